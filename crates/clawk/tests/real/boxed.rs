//! MCP servers inside the sandbox: they reach the hosts that they may, see the files that they may, and their end is theirs alone.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::agent::{Agent, in_order, manifest, of, scripted};
use crate::parts::{part, stdio};
use crate::process::{running, until};
use crate::turn::last_session;
use crate::wire::{Wire, call, text};

/// A web server of the test's own: what was asked of it, and whether slow pages may end.
struct Web {
    port: u16,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Paths, and a `-` for a connection that asked for nothing.
    paths: Mutex<Vec<String>>,
    released: Mutex<bool>,
    release: Condvar,
}

impl Web {
    /// Serves `/page`, `/slow` until it is released, and `/away`, which sends on to `elsewhere`.
    fn new(elsewhere: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let (seen, elsewhere) = (Arc::<Seen>::default(), elsewhere.to_owned());
        let web = Self {
            port,
            seen: Arc::clone(&seen),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, elsewhere) = (Arc::clone(&seen), elsewhere.clone());
                // A client that goes away ends its own connection only.
                std::thread::spawn(move || seen.serve(&stream, &elsewhere));
            }
        });
        web
    }

    fn url(&self, path: &str) -> String {
        format!("http://localhost:{}{path}", self.port)
    }

    fn paths(&self) -> Vec<String> {
        self.seen.paths.lock().expect("not poisoned").clone()
    }

    fn release(&self) {
        *self.seen.released.lock().expect("not poisoned") = true;
        self.seen.release.notify_all();
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.release();
    }
}

impl Seen {
    fn serve(&self, mut stream: &TcpStream, elsewhere: &str) -> Option<()> {
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next().unwrap_or_default();
        let path = first.split(' ').nth(1).unwrap_or("-").to_owned();
        self.paths.lock().expect("not poisoned").push(path.clone());
        let _head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let (status, more, body) = match path.as_str() {
            "/page" => ("200 OK", String::new(), "The meeting is on Tuesday."),
            "/away" => ("302 Found", format!("Location: {elsewhere}\r\n"), ""),
            "/slow" => {
                let released = self.released.lock().expect("not poisoned");
                let wait = Duration::from_secs(60);
                let held = self.release.wait_timeout_while(released, wait, |done| !*done);
                drop(held);
                ("200 OK", String::new(), "At last.")
            }
            _ => ("404 Not Found", String::new(), ""),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n{body}",
            body.len()
        )
        .ok()
    }
}

/// A tool of the fetch server from PyPI, which is marked by the name that it gives itself on the web.
fn fetch(name: &str, mark: &str, more: &[&str], schema: &Value) -> Value {
    let server = part("py/bin/mcp-server-fetch");
    let arguments = [&["--allow-private-ips", "--user-agent", mark], more].concat();
    json!({ "inline": { "name": name, "description": "Fetches a page", "input_schema": schema, "timeout_ms": 60_000,
        "annotations": { "openWorldHint": true },
        "mcp_source": { "uri": stdio(&server, &arguments), "tool_name": "fetch" } } })
}

/// The server's own word for its argument: a place that can be judged before anything runs.
fn place() -> Value {
    json!({ "type": "object", "required": ["url"], "properties": { "url": { "type": "string", "format": "uri" } } })
}

/// An argument that only the server understands.
fn words() -> Value {
    json!({ "type": "object", "required": ["url"], "properties": { "url": { "type": "string" } } })
}

/// Makes the agent: these tools, all allowed; the sandbox's level; the places that it may reach.
fn agent(tools: &Value, level: &str, network: &Value, private: &[String]) -> Agent {
    let agent = Agent::new();
    let rules = json!([{ "id": "all", "action": "allow", "scope": "all" }]);
    let mut manifest = manifest(&scripted(), tools, &rules);
    let sandbox = &mut manifest["spec"]["sandbox"]["inline"];
    sandbox["level"] = json!(level);
    sandbox["capabilities"]["network"] = network.clone();
    agent.is(
        &manifest,
        &format!("[egress]\nallow_private = {}\n", json!(private)),
    );
    agent.write("script.yaml", "scenes: [{ steps: [{ say: nothing }] }]\n");
    agent
}

fn only(web: &Web) -> Value {
    json!({ "mode": "allowlist", "allowed_hosts": [format!("localhost:{}", web.port)] })
}

/// Both places are ones that this machine's operator lets tools reach: what holds a server back is the manifest.
fn opened(webs: [&Web; 2]) -> Vec<String> {
    let names = ["localhost", "127.0.0.1"];
    let places = webs
        .iter()
        .flat_map(|web| names.map(|name| format!("{name}:{}", web.port)));
    places.collect()
}

/// One turn of a scripted model that fetches these pages, one after the other.
fn turn(agent: &Agent, steps: &[(&str, String)]) -> (String, Vec<Value>) {
    let calls: Vec<Value> = steps
        .iter()
        .map(|(tool, url)| json!({ "call": [{ "name": tool, "arguments": { "url": url } }] }))
        .chain([json!({ "say": "Those were the pages." })])
        .collect();
    agent.write(
        "script.yaml",
        &json!({ "scenes": [{ "steps": calls }] }).to_string(),
    );
    let done = agent.clawk(&["run", "claw.yaml", "-m", "Fetch them."]).ok();
    assert!(done.stdout.contains("Those were the pages."), "{done:#?}");
    (done.stderr, last_session(agent))
}

#[test]
fn a_server_in_its_box_reaches_the_hosts_that_it_may_and_no_others() {
    let canary = Web::new("");
    let web = Web::new(&canary.url("/sent-on"));
    let stubborn = format!("http://127.0.0.1:{}", canary.port);
    let tools = json!([
        fetch("fetch", "the-fetcher", &[], &place()),
        fetch("fetch-words", "the-fetcher", &[], &words()),
        // Knows a proxy of its own: the canary, at this machine's own address.
        fetch(
            "fetch-around",
            "the-stubborn",
            &["--proxy-url", &stubborn],
            &words()
        ),
    ]);
    let steps = [
        ("fetch", web.url("/page")),
        ("fetch", canary.url("/asked-plainly")),
        ("fetch-words", canary.url("/asked-in-words")),
        (
            "fetch-words",
            format!("http://127.0.0.1:{}/by-address", canary.port),
        ),
        ("fetch-words", web.url("/away")),
        ("fetch-around", web.url("/page")),
    ];
    let boxed = agent(&tools, "process", &only(&web), &opened([&web, &canary]));
    let (shown, events) = turn(&boxed, &steps);

    assert_eq!(canary.paths(), Vec::<String>::new(), "{shown}");
    let reached = web.paths();
    assert!(
        reached.contains(&"/page".to_owned()) && reached.contains(&"/away".to_owned()),
        "{reached:?}"
    );
    let read: Vec<Value> = of(&events, "action.executed")
        .iter()
        .filter(|executed| executed["is_error"] == false)
        .map(|executed| boxed.content(&executed["result_hash"]))
        .collect();
    let [page] = &read[..] else {
        panic!("one page was to be read: {read:?}");
    };
    assert!(page.to_string().contains("The meeting is on Tuesday."), "{page}");
    judge_trace(&events, &web, &canary);

    // With the sandbox off, each of them arrives.
    let free = json!({ "mode": "allow-all", "ssrf_protection": { "enabled": false } });
    let off = agent(&tools, "none", &free, &[]);
    let (shown, _) = turn(&off, &steps);
    let paths = canary.paths().join(" ");
    for path in [
        "/asked-plainly",
        "/asked-in-words",
        "/by-address",
        "/sent-on",
        "http://localhost",
    ] {
        assert!(
            paths.contains(path),
            "{path} does not arrive with the sandbox off: {paths} {shown}"
        );
    }
}

/// Every connection is in the trace: the allowed with the rule, the refused with the reason.
fn judge_trace(events: &[Value], web: &Web, canary: &Web) {
    in_order(
        events,
        &[
            "action.approved",
            "ckp.egress.connected",
            "action.executed",
            "ckp.egress.refused",
        ],
    );
    let rule = format!("localhost:{}", web.port);
    let connected = of(events, "ckp.egress.connected");
    assert!(connected.len() >= 2, "{connected:#?}");
    for one in connected {
        assert_eq!(
            (&one["host"], &one["port"], &one["rule"]),
            (&json!("localhost"), &json!(web.port), &json!(rule)),
            "{one}"
        );
    }
    let refused: Vec<(&str, &str, &str)> = of(events, "ckp.egress.refused")
        .into_iter()
        .map(|one| {
            assert_eq!(one["port"], canary.port, "{one}");
            let word = |name: &str| one[name].as_str().unwrap_or_default();
            (word("action_id"), word("host"), word("code"))
        })
        .collect();
    // By name, by address, and sent on by a page that may be read.
    for wanted in [
        ("fetch-words", "localhost", "port"),
        ("fetch-words", "127.0.0.1", "literal"),
    ] {
        assert!(refused.contains(&wanted), "{refused:?}");
    }
    assert!(
        refused.iter().filter(|one| one.1 == "localhost").count() >= 2,
        "{refused:?}"
    );
    // The one that could be judged beforehand never ran.
    let failed = of(events, "action.denied");
    assert!(
        failed
            .iter()
            .any(|one| one["action_id"] == "fetch" && one["by"] == "sandbox"),
        "{failed:#?}"
    );
    for executed in of(events, "action.executed") {
        assert_eq!(executed["level"], "process", "{executed}");
    }
}

#[test]
fn a_server_in_its_box_sees_the_mounts_and_nothing_else() {
    let outside = tempfile::tempdir().expect("temporary directory");
    let secret = outside.path().join("secret.txt");
    std::fs::write(&secret, "CANARY-7731").expect("writable");
    let server = part("npm/node_modules/.bin/mcp-server-filesystem");
    // The server itself would give out everything.
    let tool = |name: &str, served: &str| {
        json!({ "inline": { "name": name, "description": "Files", "timeout_ms": 60_000,
            "input_schema": { "type": "object", "properties": { "path": { "type": "string" }, "content": { "type": "string" } } },
            "mcp_source": { "uri": stdio(&server, &["/"]), "tool_name": served } } })
    };
    let tools = json!([tool("read", "read_text_file"), tool("write", "write_file")]);
    let network = json!({ "mode": "deny" });
    let outcomes = ["process", "none"].map(|level| {
        let agent = agent(&tools, level, &network, &[]);
        agent.write("notes.txt", "The meeting is on Tuesday.\n");
        let mut wire = Wire::open(&agent);
        let own = wire.call("read", &json!({ "path": agent.path("notes.txt") }));
        assert!(text(&own).contains("Tuesday"), "{level}: {own}");
        let planted = outside.path().join(format!("planted-{level}"));
        let read = wire.call("read", &json!({ "path": &secret }));
        let wrote = wire.call("write", &json!({ "path": &planted, "content": "here" }));
        let state = wire.call("read", &json!({ "path": agent.path("clawk.toml") }));
        assert!(wire.close().success());
        let answers = format!("{read} {wrote} {state}");
        (answers.contains("CANARY-7731"), planted.exists())
    });
    assert_eq!(
        outcomes,
        [(false, false), (true, true)],
        "in the box, and with the sandbox off"
    );
}

#[test]
fn a_server_killed_in_the_middle_of_a_call_fails_that_call_alone() {
    let web = Web::new("");
    let mark = format!("short-lived-{}", web.port);
    let echo = json!({ "inline": { "name": "echo", "description": "Says it again",
        "input_schema": { "type": "object", "properties": { "text": {} } } } });
    let tools = json!([fetch("fetch", &mark, &[], &place()), echo]);
    let agent = agent(&tools, "process", &only(&web), &opened([&web, &web]));
    let mut wire = Wire::open(&agent);
    let first = wire.call("fetch", &json!({ "url": web.url("/page") }));
    assert!(text(&first).contains("Tuesday"), "{first}");

    let pending = wire.send(
        "claw.tool.call",
        &call("fetch", &json!({ "url": web.url("/slow") })).0,
    );
    until(Duration::from_secs(60), "the page is not asked for", || {
        web.paths().contains(&"/slow".to_owned()).then_some(())
    });
    let victims = running(&mark);
    assert!(!victims.is_empty(), "the server runs");
    // The program alone: the last one made, below those that enclose it.
    for pid in &victims {
        let _ = kill_process(*pid, Signal::KILL);
    }
    let answer = wire.answer(&json!(pending));
    assert_eq!(answer["error"]["data"]["reason"], "outcome_unknown", "{answer}");
    assert!(
        answer.to_string().contains("was lost during the call"),
        "{answer}"
    );
    // The agent lives on, and so does the world: the page can be read by the next call, in a server of its own.
    assert_eq!(
        text(&wire.call("echo", &json!({ "text": "still here" }))),
        "still here"
    );
    web.release();
    let again = wire.call("fetch", &json!({ "url": web.url("/page") }));
    assert!(text(&again).contains("Tuesday"), "{again}");
    let fresh = running(&mark);
    assert!(!fresh.is_empty() && fresh.iter().all(|pid| !victims.contains(pid)));
    assert!(wire.close().success());
    until(Duration::from_secs(10), "the server outlives its agent", || {
        running(&mark).is_empty().then_some(())
    });
    let events = agent.events();
    assert_eq!(of(&events, "action.executed").len(), 3, "two pages and an echo");
    assert_eq!(of(&events, "action.failed").len(), 1, "the lost one");
}
