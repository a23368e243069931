//! The way out of a box taken away in the middle of a run: nothing leaves any more, and the trace says so.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::{Value, json};

use super::{Host, own, said, sandbox};
use crate::stop::until;

/// A server of the host; the paths that it was asked for.
struct Web {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Web {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 2048];
                let read = stream.read(&mut head).unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..read]).into_owned();
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                seen.lock().unwrap().push(path);
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nserved");
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// A sandbox that may reach it.
    fn sandbox(&self) -> Value {
        let mut sandbox = sandbox("process");
        sandbox["capabilities"]["network"] = json!({"mode": "allowlist",
            "allowed_hosts": [format!("127.0.0.1:{}", self.port)], "ssrf_protection": {"enabled": false}});
        sandbox
    }
}

fn appears(path: &Path) {
    until(&format!("`{}` does not appear", path.display()), || path.exists());
}

/// Closes the proxy's listening sockets in the runtime, from outside: of the box that runs, and of one that waits.
fn close_the_door(runtime: u32) {
    let pid = Pid::from_raw(i32::try_from(runtime).unwrap()).unwrap();
    let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let mut closed = 0;
    for entry in std::fs::read_dir(format!("/proc/{runtime}/fd"))
        .unwrap()
        .flatten()
    {
        let socket =
            std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        if !socket {
            continue;
        }
        let Ok(copy) = pidfd_getfd(&handle, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        let copy = TcpStream::from(copy);
        let listens = copy.peer_addr().is_err();
        if listens && copy.local_addr().is_ok_and(|at| at.port() == 3128) {
            copy.shutdown(Shutdown::Both).unwrap();
            closed += 1;
        }
    }
    assert!(closed > 0);
}

#[test]
fn a_proxy_that_is_closed_in_the_middle_of_a_run_lets_nothing_out() {
    let web = Web::new();
    let host = Host::new(own());
    let mut served = host.serve("");
    let answer = served.initialize(&web.sandbox());
    assert!(answer["result"].is_object(), "{answer}");
    let url = format!("http://127.0.0.1:{}", web.port);
    let pid = served.child.id();
    let (ready, go) = (host.work("ready"), host.work("go"));
    let work = std::thread::spawn(move || {
        appears(&ready);
        close_the_door(pid);
        std::fs::write(go, "").unwrap();
    });
    let command = format!(
        "curl -s {url}/one; touch ready; while [ ! -e go ]; do sleep 0.02; done
         for i in 1 2 3; do curl -sS -m 3 {url}/two; done
         curl -sS -m 3 --noproxy '*' {url}/three; curl -sS -m 3 -x http://127.0.0.1:3128 {url}/four; sleep 1; echo over"
    );
    let answer = served.shell(&command);
    work.join().unwrap();
    assert!(
        said(&answer).contains("served") && said(&answer).contains("over"),
        "{answer}"
    );
    assert_eq!(web.asked(), ["/one"], "{answer}");
    // The runtime does not spin over what it lost, and the next call has a way out of its own.
    let ticks = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = ticks
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(11)
        .unwrap()
        .to_owned();
    assert!(
        after.parse::<u64>().unwrap() < 100,
        "{after} hundredths of a second of work"
    );
    // A box that waited when its door was closed has none.
    let mut calls = (0..16).map(|_| served.shell(&format!("curl -s {url}/five")));
    assert!(calls.any(|answer| said(&answer).contains("served")));
    drop(calls);
    assert_eq!(web.asked(), ["/one", "/five"]);
    drop(served);
    let trace = host.trace();
    assert!(trace.contains("way out was closed"), "{trace}");
}

#[test]
fn a_runtime_that_is_killed_takes_its_boxes_with_it() {
    let web = Web::new();
    let host = Host::new(own());
    let mut served = host.serve("");
    let answer = served.initialize(&web.sandbox());
    assert!(answer["result"].is_object(), "{answer}");
    let command = format!(
        "touch ready; while :; do curl -s -m 1 http://127.0.0.1:{}/again; date >> alive; sleep 0.02; done",
        web.port
    );
    served.tell_shell(&command);
    appears(&host.work("ready"));
    until("nothing is asked", || !web.asked().is_empty());
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let did = || {
        (
            web.asked().len(),
            std::fs::metadata(host.work("alive")).map_or(0, |file| file.len()),
        )
    };
    until("the box lives on", || {
        let before = did();
        std::thread::sleep(Duration::from_millis(500));
        did() == before
    });
}
