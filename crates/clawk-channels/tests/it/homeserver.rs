//! `matrix` against a real homeserver: Synapse, with a database of its own, on loopback.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clawk_channels::Channels;
use clawk_kernel::Kernel;
use clawk_kernel::testing::Rig;
use serde_json::json;

use crate::suite::{asking, parrot, until};

const LONG: Duration = Duration::from_secs(60);
const AGENT: &str = "@agent:localhost";

/// A homeserver; killed when dropped.
struct Synapse {
    folder: tempfile::TempDir,
    bin: PathBuf,
    port: u16,
    child: Child,
}

impl Drop for Synapse {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Synapse {
    fn start() -> Self {
        let parts =
            std::env::var("CLAWK_PARTS").expect("CLAWK_PARTS names the folder of tests/parts/install.sh");
        let bin = Path::new(&parts).join("matrix/bin");
        assert!(
            bin.join("python").exists(),
            "run tests/parts/install.sh: {} is missing",
            bin.display()
        );
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let at = folder.path();
        let fast = json!({"per_second": 1_000, "burst_count": 1_000});
        let config = json!({
            "server_name": "localhost",
            "pid_file": at.join("pid"),
            "listeners": [{"port": port, "type": "http", "tls": false, "bind_addresses": ["127.0.0.1"],
                "resources": [{"names": ["client"], "compress": false}]}],
            "database": {"name": "sqlite3", "args": {"database": at.join("db")}},
            "log_config": at.join("log.json"),
            "media_store_path": at.join("media"),
            "signing_key_path": at.join("key"),
            "registration_shared_secret": "registers",
            "macaroon_secret_key": "signs",
            "form_secret": "forms",
            "report_stats": false,
            "trusted_key_servers": [],
            "rc_message": fast,
            "rc_invites": {"per_room": fast, "per_user": fast, "per_issuer": fast},
            "rc_joins": {"local": fast, "remote": fast},
            "rc_login": {"address": fast, "account": fast, "failed_attempts": fast},
        });
        std::fs::write(at.join("config.yaml"), config.to_string()).unwrap();
        std::fs::write(
            at.join("log.json"),
            json!({"version": 1, "root": {"level": "ERROR"}}).to_string(),
        )
        .unwrap();
        let run = |more: &[&str]| {
            let mut command = Command::new(bin.join("python"));
            command
                .args(["-m", "synapse.app.homeserver", "-c"])
                .arg(at.join("config.yaml"))
                .args(more)
                .current_dir(at)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        };
        assert!(run(&["--generate-keys"]).status().unwrap().success());
        let child = run(&[]).spawn().unwrap();
        let server = Self {
            bin: bin.clone(),
            port,
            child,
            folder,
        };
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < LONG, "the homeserver does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        for user in ["agent", "ann", "bob"] {
            let done = Command::new(server.bin.join("register_new_matrix_user"))
                .args(["-u", user, "-p", "password", "--no-admin", "-c"])
                .arg(server.folder.path().join("config.yaml"))
                .arg(server.url())
                .output()
                .unwrap();
            assert!(
                done.status.success(),
                "{} {}",
                String::from_utf8_lossy(&done.stdout),
                String::from_utf8_lossy(&done.stderr)
            );
        }
        server
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What a person does there.
    fn person(&self, words: &[&str]) -> String {
        self.tries(words)
            .unwrap_or_else(|told| panic!("{words:?}: {told}"))
    }

    fn tries(&self, words: &[&str]) -> Result<String, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parts/matrix_person.py");
        let done = Command::new(self.bin.join("python"))
            .arg(script)
            .arg(self.url())
            .args(words)
            .output()
            .unwrap();
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        Ok(String::from_utf8(done.stdout).unwrap().trim().to_owned())
    }

    fn login(&self, user: &str) -> String {
        self.person(&["login", user, "password"])
    }

    /// What the agent said in a room.
    fn read(&self, token: &str, room: &str) -> Vec<String> {
        serde_json::from_str(&self.person(&["read", token, room, AGENT])).unwrap()
    }
}

async fn on(rig: &Rig, server: &Synapse, token: &str, folder: &Path) -> (Kernel, Channels) {
    let kernel = rig.start().await;
    let config =
        json!({"base_url": server.url(), "settings": {"user_id": AGENT}, "admins": ["@ann:localhost"]});
    let configs = BTreeMap::from([("chat".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = asking(rig, kernel.clone(), configs, &[("TOKEN", token)], (folder, "")).await;
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
    (kernel, channels)
}

async fn until_said(server: &Synapse, token: &str, room: &str, part: &str) -> String {
    let begun = Instant::now();
    loop {
        let all = server.read(token, room);
        if let Some(said) = all.iter().find(|said| said.contains(part)) {
            return said.clone();
        }
        assert!(begun.elapsed() < LONG, "`{part}` does not come: {all:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_on_a_real_homeserver_is_answered_once_and_approves_in_words() {
    let server = Synapse::start();
    let rig = parrot(
        json!([{"name": "chat", "type": "matrix", "transport": "polling", "auth": {"secret_ref": "TOKEN"},
        "access_control": {"mode": "allowlist", "allowed_ids": ["@ann:localhost"]}}]),
    );
    let folder = tempfile::tempdir().unwrap();
    let token = server.login("agent");
    let (kernel, channels) = on(&rig, &server, &token, folder.path()).await;
    let ann = server.login("ann");
    let room = server.person(&["room", &ann, AGENT, "30"]);
    server.person(&["say", &ann, &room, "m1", "say **hello**"]);
    until_said(&server, &ann, &room, "hello").await;
    // The same message again, as a client does that missed the answer.
    server.person(&["say", &ann, &room, "m1", "say **hello**"]);
    // A question, answered in words.
    server.person(&["say", &ann, &room, "m2", "write a letter"]);
    let asked = until_said(&server, &ann, &room, "Files are precious").await;
    let code = asked.split("yes ").nth(1).unwrap().get(..8).unwrap().to_owned();
    server.person(&["say", &ann, &room, "m3", &format!("yes {code}")]);
    until_said(&server, &ann, &room, "It is over.").await;
    assert_eq!(rig.runner.runs().len(), 1);
    // What was written while the agent was down is answered once; what was answered is not answered again.
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    server.person(&["say", &ann, &room, "m4", "say later"]);
    let (_kernel, channels) = on(&rig, &server, &token, folder.path()).await;
    until_said(&server, &ann, &room, "later").await;
    until(|| async { channels.channel_reports().await.unwrap()[0].queued == 0 }).await;
    let all = server.read(&ann, &room);
    for part in ["hello", "later"] {
        assert_eq!(
            all.iter().filter(|said| said.contains(part)).count(),
            1,
            "{all:?}"
        );
    }
    assert_eq!(rig.journal.inbox().len(), 3, "one turn for each message");
    // Somebody who is not let in invites it: it does not come.
    let bob = server.login("bob");
    let refused = server.tries(&["room", &bob, AGENT, "3"]).unwrap_err();
    assert!(refused.contains("the agent does not join"), "{refused}");
    assert_eq!(rig.journal.inbox().len(), 3);
    channels.close().await;
}
