//! Dry runs of agents that could do everything: files, a shell without a box, mail, HTTP. What they do is counted from outside, and
//! the report is then approved as a plan, which is done once.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::counter::Counter;

/// A server that takes mail, and counts connections and mails.
struct Post {
    port: u16,
    connections: Arc<AtomicUsize>,
    mails: Arc<AtomicUsize>,
}

impl Post {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, mails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&connections), Arc::clone(&mails));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counts.0.fetch_add(1, Ordering::SeqCst);
                let mails = Arc::clone(&counts.1);
                std::thread::spawn(move || take(&stream, &mails));
            }
        });
        Self {
            port,
            connections,
            mails,
        }
    }

    fn counts(&self) -> (usize, usize) {
        let (connections, mails) = (&self.connections, &self.mails);
        (connections.load(Ordering::SeqCst), mails.load(Ordering::SeqCst))
    }
}

/// One conversation of SMTP; it ends with the client.
fn take(mut stream: &TcpStream, mails: &AtomicUsize) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    stream.write_all(b"220 post\r\n").ok()?;
    while let Some(Ok(line)) = lines.next() {
        let answer: &[u8] = match line.trim() {
            "DATA" => {
                stream.write_all(b"354 go on\r\n").ok()?;
                while lines.next()?.ok()?.trim() != "." {}
                mails.fetch_add(1, Ordering::SeqCst);
                b"250 taken\r\n"
            }
            "QUIT" => b"221 bye\r\n",
            _ => b"250 fine\r\n",
        };
        stream.write_all(answer).ok()?;
    }
    Some(())
}

/// Sends one mail by the shell's own means.
fn mail_script(port: u16) -> String {
    let mut script = format!("#!/bin/bash\nset -e\nexec 3<>/dev/tcp/127.0.0.1/{port}\nread -r -u 3 _\n");
    for line in [
        "HELO me",
        "MAIL FROM:<me@here>",
        "RCPT TO:<you@there>",
        "DATA",
        "Hello.\\r\\n.",
        "QUIT",
    ] {
        script.push_str(&format!("printf '{line}\\r\\n' >&3\nread -r -u 3 answer\n"));
    }
    script.push_str("echo \"$answer\"\n");
    script
}

/// Everything is asked about, and nothing is enclosed: only the dry run keeps the world as it is.
const MANIFEST: &str = r#"  tools:
    - inline: { name: file-write, description: A built-in, input_schema: { type: object } }
    - inline: { name: file-edit, description: A built-in, input_schema: { type: object } }
    - inline: { name: shell, description: A built-in, input_schema: { type: object } }
    - inline: { name: memory-store, description: A built-in, input_schema: { type: object } }
    - inline:
        name: order
        description: Orders something
        input_schema: { type: object, properties: { id: { type: string } } }
    - inline:
        name: mail
        description: Sends a mail
        input_schema: { type: object, properties: { id: { type: string } } }
  memory:
    inline: { name: head, stores: [{ name: notes, type: semantic, backend: sqlite, scope: global }] }
  sandbox:
    inline:
      level: none
      capabilities: { filesystem: { mode: full }, network: { mode: allow-all }, shell: { mode: full } }
  policies:
    - inline:
        name: asking
        rules: [{ id: all, action: require-approval, scope: all, approval: { timeout_seconds: 60 } }]
"#;

struct World {
    agent: Agent,
    home: tempfile::TempDir,
    orders: Counter,
    post: Post,
}

fn world() -> World {
    let (agent, orders, post) = (Agent::new(), Counter::start(None), Post::start());
    let home = tempfile::tempdir().unwrap();
    agent.may(MANIFEST);
    let config = format!(
        "[tools.order.http]\nurl = \"{}\"\n\n[tools.mail]\ncommand = [\"/bin/bash\", \"mail.sh\"]\n",
        orders.url
    );
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    std::fs::write(agent.path("mail.sh"), mail_script(post.port)).unwrap();
    std::fs::write(agent.path("old.txt"), "old\n").unwrap();
    std::fs::write(home.path().join("kept.txt"), "kept\n").unwrap();
    let world = World {
        agent,
        home,
        orders,
        post,
    };
    world.says(&world.calls());
    world
}

impl World {
    /// One call of each kind.
    fn calls(&self) -> Vec<Value> {
        let home = self.home.path().display();
        let port = self.post.port;
        let command = format!(
            "echo there > {home}/left.txt; rm -f {home}/kept.txt old.txt; exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected"
        );
        vec![
            json!({"name": "file-write", "arguments": {"path": "new.txt", "content": "new\n"}}),
            json!({"name": "file-edit", "arguments": {"path": "old.txt", "old_text": "old", "new_text": "older"}}),
            json!({"name": "order", "arguments": {"id": "one"}}),
            json!({"name": "mail", "arguments": {"id": "two"}}),
            json!({"name": "memory-store", "arguments": {"store": "notes", "content": "The lamp is green."}}),
            json!({"name": "shell", "arguments": {"command": format!("bash -c '{command}'")}}),
        ]
    }

    /// The model makes these calls, one after the other.
    fn says(&self, calls: &[Value]) {
        let mut steps: Vec<Value> = calls.iter().map(|call| json!({"call": [call]})).collect();
        steps.push(json!({"say": "All is done."}));
        let script =
            json!({"scenes": [{"user": "everything", "steps": steps}, {"steps": [{"say": "Hello."}]}]});
        std::fs::write(self.agent.path("script.yaml"), script.to_string()).unwrap();
    }

    fn clawk(&self, args: &[&str]) -> std::process::Output {
        let mut command = self.agent.clawk([]);
        command.args(args).env("HOME", self.home.path());
        command.output().unwrap()
    }

    /// Connections and mails, orders.
    fn counted(&self) -> ((usize, usize), usize) {
        (self.post.counts(), self.orders.hits().len())
    }

    fn files(&self) -> [BTreeMap<PathBuf, Entry>; 2] {
        let outside = |path: &Path| !path.starts_with(self.agent.path("state"));
        let mut own = tree(&self.agent.path(""));
        own.retain(|path, _| outside(path) && !path.ends_with("plan.json") && *path != self.agent.path(""));
        [own, tree(self.home.path())]
    }
}

/// Mode, date, content.
type Entry = (u32, (i64, i64), Vec<u8>);

fn tree(root: &Path) -> BTreeMap<PathBuf, Entry> {
    let (mut found, mut open) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = open.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let mut content = Vec::new();
        if meta.is_dir() {
            open.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if meta.is_file() {
            content = std::fs::read(&path).unwrap();
        }
        found.insert(path, (meta.mode(), (meta.mtime(), meta.mtime_nsec()), content));
    }
    found
}

const DRY: [&str; 8] = [
    "run",
    "claw.yaml",
    "-m",
    "everything",
    "--dry-run",
    "--report",
    "plan.json",
    "--format",
];

#[test]
fn a_dry_run_with_a_shell_mail_and_http_has_no_effect_and_its_report_is_done_once_as_a_plan() {
    let world = world();
    let before = world.files();
    let run = world.clawk(&[&DRY[..], &["json"]].concat());
    let report: Value =
        serde_json::from_slice(&run.stdout).unwrap_or_else(|_| panic!("{}", text(&run.stderr)));
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 6, "{report:#}");
    for step in steps {
        assert_eq!(step["outcome"], "predicted", "{step:#}");
        assert!(step["asks"].is_string(), "{step:#}");
    }
    assert_eq!(world.counted(), ((0, 0), 0), "nothing has left: {report:#}");
    assert!(world.files() == before, "folder and home are as they were");

    // Approved as a plan, each call is done once. What the report does not have is not done: another order, the same order
    // again, another command.
    let mut calls = world.calls();
    calls.push(json!({"name": "order", "arguments": {"id": "three"}}));
    calls.push(json!({"name": "order", "arguments": {"id": "one"}}));
    calls.push(json!({"name": "mail", "arguments": {"id": "two"}}));
    calls.push(json!({"name": "shell", "arguments": {"command": "touch beyond.txt"}}));
    world.says(&calls);
    let done = world.clawk(&["run", "claw.yaml", "--plan", "plan.json", "--yes"]);
    let told = format!("{} {}", text(&done.stdout), text(&done.stderr));
    assert!(done.status.success() && told.contains("All is done."), "{told}");
    let counts = world.orders.counts();
    assert_eq!(
        (counts.len(), counts.get("one")),
        (1, Some(&1)),
        "{counts:?} {told}"
    );
    assert_eq!(
        world.post.counts(),
        (2, 1),
        "one mail, and the shell's connection: {told}"
    );
    let read = |path: PathBuf| std::fs::read_to_string(path).ok();
    assert_eq!(read(world.agent.path("new.txt")).as_deref(), Some("new\n"));
    assert_eq!(
        read(world.home.path().join("left.txt")).as_deref(),
        Some("there\n")
    );
    assert_eq!(
        read(world.home.path().join("kept.txt")),
        None,
        "the shell removed it"
    );
    assert_eq!(read(world.agent.path("beyond.txt")), None, "{told}");
    // The record has the same: six approved by the report, four refused.
    let exported = world.clawk(&["trace", "export", "--agent", "tested", "--session", "last"]);
    let lines = text(&exported.stdout);
    let events = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut kinds = BTreeMap::new();
    for event in events {
        *kinds
            .entry(event["event_type"].as_str().unwrap().to_owned())
            .or_insert(0) += 1;
    }
    assert_eq!(
        (kinds.get("action.executed"), kinds.get("action.denied")),
        (Some(&6), Some(&4)),
        "{kinds:?} {told}"
    );
}

#[test]
fn what_is_too_large_to_keep_is_said_before_and_listed_after() {
    let agent = Agent::new();
    agent.may(
        "  tools:\n    - inline: { name: shell, description: A built-in, input_schema: { type: object } }\n  sandbox:\n    inline:\n      \
         level: process\n      capabilities:\n        filesystem: { mode: scoped, mount_paths: [{ path: \"./work\", permissions: rw }] }\n        \
         shell: { mode: full }\n  policies:\n    - inline: { name: all, rules: [{ id: all, action: allow, scope: all }] }\n",
    );
    std::fs::write(agent.path("clawk.toml"), "[undo]\nmax_mb = 1\n").unwrap();
    std::fs::write(
        agent.path("script.yaml"),
        "scenes: [{ steps: [{ call: [{ name: shell, arguments: { command: rm work/large } }] }, { say: Gone. }] }]\n",
    )
    .unwrap();
    std::fs::create_dir(agent.path("work")).unwrap();
    std::fs::write(agent.path("work/large"), vec![7; 2 << 20]).unwrap();
    let json = |args: &[&str]| -> (Option<i32>, Value) {
        let output = agent.clawk([]).args(args).output().unwrap();
        let value = serde_json::from_slice(&output.stdout);
        (
            output.status.code(),
            value.unwrap_or_else(|_| panic!("{}", text(&output.stderr))),
        )
    };
    let (_, report) = json(&["run", "claw.yaml", "-m", "go", "--dry-run", "--format", "json"]);
    let said = report["steps"][0]["prediction"].to_string();
    assert!(
        said.contains("no undo") && said.contains("more than 1 MB"),
        "{report:#}"
    );
    assert!(agent.path("work/large").exists());
    agent.clawk(["run", "claw.yaml", "-m", "go"]).assert().success();
    assert!(!agent.path("work/large").exists());
    let (code, listed) = json(&["undo", "last", "--yes", "--format", "json"]);
    assert_eq!((code, &listed["steps"]), (Some(1), &json!([])), "{listed:#}");
    let why = listed["conflicts"][0]["why"].as_str().unwrap();
    assert!(
        why.contains("more than 1 MB") && why.contains("max_mb"),
        "{listed:#}"
    );
}
