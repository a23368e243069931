//! A tool that opens connections by the hundred and says nothing on them.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::json;

use super::without::{Host, own, said, sandbox};

/// Opens more connections to the way out than the agent has descriptors, and holds them.
const HOARD: &str = r#"
import os, socket, time
held = []
while len(held) < 140:
    one = socket.socket(); one.setblocking(False)
    try: one.connect(("127.0.0.1", 3128))
    except BlockingIOError: pass
    held.append(one)
time.sleep(0.5)
open("hoarding", "w").close()
time.sleep(4)
print("held", len(held))
"#;

/// What the agent may open.
const DESCRIPTORS: u64 = 150;

#[test]
fn connections_that_a_tool_hoards_leave_the_agent_its_descriptors() {
    let host = Host::new(own());
    std::fs::write(host.work("hoard.py"), HOARD).unwrap();
    // The agent's, which is started from here.
    let few = Rlimit {
        current: Some(DESCRIPTORS / 2),
        maximum: Some(DESCRIPTORS),
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut served = host.serve("");
    let mut sandbox = sandbox("process");
    sandbox["capabilities"]["network"] = json!({"mode": "allowlist", "allowed_hosts": ["example.com"]});
    sandbox["resource_limits"]["max_open_files"] = json!(DESCRIPTORS);
    let answer = served.initialize(&sandbox);
    assert!(answer["result"].is_object(), "{answer}");
    served.tell_shell("python3 hoard.py");
    let end = Instant::now() + Duration::from_secs(10);
    while !host.work("hoarding").exists() {
        assert!(Instant::now() < end, "it never came so far");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Beside it: other calls, each with a box, streams and files of its own.
    for _ in 0..5 {
        let answer = served.shell("echo well");
        assert!(said(&answer).contains("well"), "{answer}");
    }
}
