//! One agent behind all its doors at once: every transport passes the vectors, and the command line reaches it by each.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::conformance::{clawk, failures, hurried_agent, report};

/// `clawk serve` of the conformance agent, with a listener and a folder; killed when dropped.
pub(crate) struct Served {
    child: Option<Child>,
    pub(crate) folder: TempDir,
    pub(crate) address: String,
    manifest: String,
    more: Vec<String>,
}

impl Served {
    /// `more`: further flags. `config`: appended to its `clawk.toml`.
    pub(crate) fn start(config: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("temporary directory");
        let manifest = hurried_agent(folder.path());
        // As many tasks at once as suites are played at once.
        let text = std::fs::read_to_string(&manifest).expect("reads");
        let roomy = text
            .replace("max_parallel: 2", "max_parallel: 64")
            .replace("role: peer }", "role: peer, count: 16 }");
        assert_ne!(text, roomy);
        std::fs::write(&manifest, roomy).expect("writes");
        let file = folder.path().join("clawk.toml");
        let text = std::fs::read_to_string(&file).expect("reads");
        std::fs::write(&file, format!("{text}\n{config}\n")).expect("writes");
        let mut served = Self {
            child: None,
            folder,
            address: "127.0.0.1:0".to_owned(),
            manifest,
            more: more.iter().map(|&flag| flag.to_owned()).collect(),
        };
        served.run();
        served
    }

    /// Starts it, again where it was.
    pub(crate) fn run(&mut self) {
        let mut child = clawk(&self.path("xdg"))
            .args(["serve", &self.manifest, "--listen", &self.address, "--state"])
            .arg(self.path("state"))
            .arg("--dir")
            .arg(self.path("box"))
            .args(&self.more)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stderr.take().expect("standard error")).lines();
        let address = loop {
            let line = lines.next().expect("it says where it serves").expect("text");
            if let Some((_, address)) = line.rsplit_once("://").filter(|_| line.starts_with("serving ")) {
                break address.to_owned();
            }
            if line.starts_with("error") {
                panic!(
                    "{line}{}",
                    lines.map_while(Result::ok).collect::<Vec<_>>().join("\n")
                );
            }
        };
        self.address = address;
        thread::spawn(move || lines.for_each(drop));
        self.child = Some(child);
    }

    /// Its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Where it is reached.
    pub(crate) fn url(&self, scheme: &str) -> String {
        match scheme {
            "dir" => format!("dir:{}", self.path("box").display()),
            "unix" => format!("unix:{}", self.path("state/control.sock").display()),
            scheme => format!("{scheme}://{}", self.address),
        }
    }

    /// `clawk call`: whether it succeeded, and what it printed.
    pub(crate) fn call(&self, url: &str, method: &str, params: &Value) -> (bool, Value) {
        let output = clawk(&self.path("xdg"))
            .args(["call", url, method, &params.to_string()])
            .output()
            .expect("runs");
        let told = if output.status.success() {
            &output.stdout
        } else {
            &output.stderr
        };
        let text = String::from_utf8_lossy(told);
        let value = serde_json::from_str(&text).unwrap_or_else(|_| json!(text));
        (output.status.success(), value)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How often a tool call with this id was decided, by the record.
pub(crate) fn decided(state: &Path, request: &str) -> usize {
    let child = clawk(state)
        .args(["trace", "show", "--format", "json", "--state"])
        .arg(state)
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("runs");
    let mut text = String::new();
    let mut lines = BufReader::new(child.stdout.take().expect("output"));
    while lines.read_line(&mut text).expect("text") > 0 {}
    child.wait().expect("ends");
    let events: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    let events = events.as_array().or_else(|| events["events"].as_array());
    let events = events.unwrap_or_else(|| panic!("{text}"));
    let about = |event: &&Value| {
        event["event_type"] == "action.executed" && event["payload"].to_string().contains(request)
    };
    events.iter().filter(about).count()
}

/// Every URL passes every vector, all at the same time.
pub(crate) fn all_pass(served: &Served, urls: &[String], home: &Path) {
    let reports: Vec<(String, Value)> = thread::scope(|scope| {
        let playing: Vec<_> = urls
            .iter()
            .map(|url| scope.spawn(move || (url.clone(), report(&["--target", url], home))))
            .collect();
        playing
            .into_iter()
            .map(|one| one.join().expect("it is played to its end"))
            .collect()
    });
    for (url, report) in reports {
        assert!(failures(&report).is_empty(), "{url}: {:#?}", failures(&report));
        assert_eq!(
            (&report["total"], &report["passed"]),
            (&json!(31), &json!(31)),
            "{url}"
        );
        assert_eq!(report["implementation"], "test-agent");
    }
    let (_, status) = served.call(&served.url("http"), "claw.status", &json!({}));
    assert_eq!(status["state"], "READY");
}

#[test]
fn every_transport_passes_31_of_31_and_all_at_once() {
    let served = Served::start("[doors.dir]\nrole = \"admin\"", &[]);
    let urls: Vec<String> = ["http", "ws", "dir", "unix"]
        .map(|scheme| served.url(scheme))
        .to_vec();
    all_pass(&served, &urls, &served.path("xdg"));
}

#[test]
fn call_and_send_reach_an_agent_by_each_door() {
    let served = Served::start("[doors.dir]\nrole = \"admin\"", &[]);
    for scheme in ["http", "ws", "dir", "unix"] {
        let url = served.url(scheme);
        let (ok, status) = served.call(&url, "claw.status", &json!({}));
        assert!(ok && status["state"] == "READY", "{url}: {status}");
        let echo = json!({"name": "echo", "arguments": {"text": scheme}});
        let (ok, echoed) = served.call(&url, "claw.tool.call", &echo);
        assert!(ok && echoed["content"][0]["text"] == scheme, "{url}: {echoed}");
        let (ok, refused) = served.call(&url, "claw.no.such", &json!({}));
        assert!(!ok && refused["error"]["code"] == -32601, "{url}: {refused}");
        let output = clawk(&served.path("xdg"))
            .args([
                "send",
                &url,
                "Hello",
                "--conversation",
                scheme,
                "--format",
                "json",
            ])
            .output()
            .expect("runs");
        let told = String::from_utf8_lossy(&output.stdout);
        let told: Value = serde_json::from_str(&told)
            .unwrap_or_else(|_| panic!("{url}: {told}{}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(told["conversation"], scheme, "{told}");
    }
    // A command is a target, too.
    let target = format!(
        "exec:{} serve {} --stdio",
        env!("CARGO_BIN_EXE_clawk"),
        served.manifest
    );
    let (ok, status) = served.call(&target, "claw.status", &json!({}));
    assert!(ok && status["state"] == "READY", "{status}");
}

/// An answer by a file.
fn answer(served: &Served, name: &str) -> Value {
    let file = served.path("box/outbox").join(name);
    for _ in 0..400 {
        if let Ok(text) = std::fs::read_to_string(&file) {
            return serde_json::from_str(&text).expect("JSON");
        }
        thread::sleep(std::time::Duration::from_millis(25));
    }
    panic!("no answer `{name}`");
}

#[test]
fn a_call_by_the_folder_outlives_the_agent_that_took_it() {
    let mut served = Served::start("", &[]);
    let url = served.url("dir");
    assert!(served.call(&url, "claw.status", &json!({})).0);
    // A client that initialized, asked, and is gone; the agent is killed with the request in its inbox.
    let inbox = served.path("box/inbox");
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "claw.initialize", "params": {"protocolVersion": "0.3.0",
        "clientInfo": {"name": "t", "version": "1"}, "manifest": {"kind": "Claw", "metadata": {"name": "x"}},
        "capabilities": {}}});
    let put = |name: &str, message: &Value| {
        std::fs::write(inbox.join(format!("{name}.tmp")), message.to_string()).expect("writes");
        std::fs::rename(inbox.join(format!("{name}.tmp")), inbox.join(name)).expect("renames");
    };
    put("00000000000000000001-hello.json", &hello);
    assert!(answer(&served, "00000000000000000001-hello.json")["result"].is_object());
    served.kill();
    let id = "7b1c2f4e-0d57-4a57-9f3a-0c8d6b8f1a11";
    put(
        "00000000000000000002-call.json",
        &json!({"jsonrpc": "2.0", "id": 2, "method": "claw.tool.call", "params": {"name": "echo",
            "arguments": {"text": "kept"}, "context": {"request_id": id, "identity": "test-agent"}}}),
    );
    std::fs::write(inbox.join("00000000000000000003-bad.json"), "{ no JSON").expect("writes");
    served.run();
    // Its session is there again, without a new `claw.initialize`.
    assert_eq!(
        answer(&served, "00000000000000000003-bad.json")["error"]["code"],
        -32700
    );
    let kept = answer(&served, "00000000000000000002-call.json");
    assert_eq!(kept["result"]["content"][0]["text"], "kept", "{kept}");
    let archive = served.path("box/archive");
    assert!(archive.join("bad/00000000000000000003-bad.json").exists());
    assert!(archive.join("bad/00000000000000000003-bad.json.error").exists());
    // A request is moved away after its answer: killed in between, it is answered again, from the record.
    let moved = || {
        let left = std::fs::read_dir(&inbox).expect("reads").count();
        left == 0 && archive.join("00000000000000000002-call.json").exists()
    };
    for _ in 0..400 {
        if moved() {
            return;
        }
        thread::sleep(std::time::Duration::from_millis(25));
    }
    panic!("the inbox is not empty");
}

#[test]
fn a_message_may_have_eight_mebibytes_and_no_more() {
    let served = Served::start("", &[]);
    let put = |name: &str, message: &str| {
        let inbox = served.path("box/inbox");
        std::fs::write(inbox.join(format!("{name}.tmp")), message).expect("writes");
        std::fs::rename(inbox.join(format!("{name}.tmp")), inbox.join(name)).expect("renames");
    };
    let hello = json!({"protocolVersion": "0.3.0", "clientInfo": {"name": "t", "version": "1"},
        "manifest": {"kind": "Claw", "metadata": {"name": "x"}}, "capabilities": {}});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "claw.initialize", "params": hello});
    put("00000000000000000001-a.json", &hello.to_string());
    let padded = |bytes: usize| {
        let status = |pad: &str| {
            json!({"jsonrpc": "2.0", "id": 2, "method": "claw.status", "params": {"pad": pad}}).to_string()
        };
        status(&"x".repeat(bytes - status("").len()))
    };
    put("00000000000000000002-b.json", &padded(8 << 20));
    put("00000000000000000003-c.json", &padded((8 << 20) + 1));
    assert!(answer(&served, "00000000000000000001-a.json")["result"].is_object());
    assert_eq!(
        answer(&served, "00000000000000000002-b.json")["result"]["state"],
        "READY"
    );
    let refused = answer(&served, "00000000000000000003-c.json");
    assert_eq!(refused["error"]["data"]["reason"], "unreadable", "{refused}");
    // A link into somebody else's file is no message.
    let outside = served.path("outside.json");
    std::fs::write(&outside, hello.to_string()).expect("writes");
    let link = served.path("box/inbox/00000000000000000004-d.json");
    std::os::unix::fs::symlink(&outside, link).expect("links");
    let refused = answer(&served, "00000000000000000004-d.json");
    assert_eq!(refused["error"]["data"]["reason"], "unreadable", "{refused}");
    assert!(outside.exists());
}

/// Runs openssl in a folder.
fn openssl(folder: &Path, words: &str) {
    let status = std::process::Command::new("openssl")
        .args(words.split(' '))
        .current_dir(folder)
        .stderr(Stdio::null())
        .status()
        .expect("openssl is installed");
    assert!(status.success(), "{words}");
}

#[test]
fn tls_is_spoken_and_clients_may_have_to_show_a_certificate() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let at = folder.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(
        at,
        &format!("req -x509 {key} -days 2 -subj /CN=ca -keyout ca.key -out ca.pem"),
    );
    std::fs::write(at.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("writes");
    for who in ["server", "client"] {
        openssl(
            at,
            &format!("req {key} -subj /CN={who} -keyout {who}.key -out {who}.csr"),
        );
        let sign = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
        openssl(at, &format!("x509 -req -in {who}.csr {sign} -out {who}.pem"));
    }
    let of = |name: &str| at.join(name).display().to_string();
    let tls = format!(
        "[http.tls]\ncertificate = \"{}\"\nkey = \"{}\"\n",
        of("server.pem"),
        of("server.key")
    );
    let ask = |served: &Served, scheme: &str, roots: Option<&str>| {
        let url = served.url(scheme).replace("127.0.0.1", "localhost");
        let mut command = clawk(&served.path("xdg"));
        command.args(["call", &url, "claw.status"]);
        if let Some(roots) = roots {
            command.env("SSL_CERT_FILE", at.join(roots));
        }
        let output = command.output().expect("runs");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let served = Served::start(&tls, &[]);
    for scheme in ["https", "wss"] {
        let (ok, told) = ask(&served, scheme, Some("ca.pem"));
        assert!(ok, "{scheme}: {told}");
        let (ok, told) = ask(&served, scheme, None);
        assert!(!ok && told.contains("UnknownIssuer"), "{scheme}: {told}");
    }
    assert!(!ask(&served, "http", None).0, "nothing is said in the clear");
    drop(served);
    let served = Served::start(&format!("{tls}client_authorities = \"{}\"\n", of("ca.pem")), &[]);
    for scheme in ["https", "wss"] {
        assert!(
            !ask(&served, scheme, Some("ca.pem")).0,
            "{scheme}: without a certificate"
        );
    }
    let fetch = |more: &[&str]| {
        let url = format!(
            "https://localhost:{}/healthz",
            served.address.rsplit(':').next().expect("a port")
        );
        let output = std::process::Command::new("curl")
            .args([
                "-s",
                "--cacert",
                "ca.pem",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                &url,
            ])
            .args(more)
            .current_dir(at)
            .output()
            .expect("curl is installed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(fetch(&[]), "000");
    assert_eq!(fetch(&["--cert", "client.pem", "--key", "client.key"]), "200");
}
