//! A PostgreSQL server of a test's own, on a free port of the loopback address, with its files in a temporary folder. The programs
//! are those that `tests/parts/install.sh` installs. The server ends with the value, and with the test's thread.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests of several crates; each uses what it needs"
)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the server may take to start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The name by which a standby is known to its primary.
const STANDBY: &str = "standby";

/// A running server; the user `clawk` has the password [`Server::PASSWORD`].
pub(crate) struct Server {
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Server {
    pub(crate) const PASSWORD: &str = "CANARY-pg-4711";

    /// Starts one.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let password = folder.path().join("password");
        std::fs::write(&password, Self::PASSWORD).expect("a file");
        let made = ordinary("initdb")
            .args([
                "--username=clawk",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg(format!("--pwfile={}", password.display()))
            .arg("--pgdata")
            .arg(folder.path().join("data"))
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut server = Self {
            folder,
            port: free_port(),
            child: None,
        };
        server.again();
        server
    }

    /// Starts it again, after [`Server::stop`].
    pub(crate) fn again(&mut self) {
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a file");
        let mut command = ordinary("postgres");
        command
            .arg("-D")
            .arg(self.folder.path().join("data"))
            .args(["-p", &self.port.to_string()]);
        let ours = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "shared_buffers=16MB",
            "max_connections=40",
        ];
        for line in ours {
            command.args(["-c", line]);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("postgres runs");
        self.child = Some(child);
        let until = Instant::now() + PATIENCE;
        while !self.says("ready to accept") {
            let ended = self
                .child
                .as_mut()
                .and_then(|child| child.try_wait().expect("it can be asked"));
            assert!(
                ended.is_none() && Instant::now() < until,
                "the server did not start:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A standby of this server, from a copy of its files. From now on each commit here waits for it.
    pub(crate) fn standby(&self) -> Self {
        self.standby_at(free_port())
    }

    /// The same on this port.
    pub(crate) fn standby_at(&self, port: u16) -> Self {
        // Before the copy is made, so that it waits for a standby, too, once it is promoted.
        self.synchronous(STANDBY);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = format!(
            "host=127.0.0.1 port={} user=clawk application_name={STANDBY}",
            self.port
        );
        let made = ordinary("pg_basebackup")
            .args([
                "-d",
                &source,
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "--no-sync",
                "-D",
            ])
            .arg(folder.path().join("data"))
            .env("PGPASSWORD", Self::PASSWORD)
            .output()
            .expect("pg_basebackup runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut standby = Self {
            folder,
            port,
            child: None,
        };
        standby.again();
        let streams = format!(
            "SELECT count(*) FROM pg_stat_replication WHERE application_name = '{STANDBY}' AND sync_state = 'sync'"
        );
        let until = Instant::now() + PATIENCE;
        while self.sql(&streams) != "1" {
            assert!(
                Instant::now() < until,
                "the standby does not follow:\n{}",
                standby.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        standby
    }

    /// For whom commits wait; empty: for nobody.
    pub(crate) fn synchronous(&self, names: &str) {
        self.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        self.sql("SELECT pg_reload_conf()");
        let until = Instant::now() + PATIENCE;
        while self.sql("SHOW synchronous_standby_names") != names {
            assert!(
                Instant::now() < until,
                "the server does not read its configuration again"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes a standby a primary. It waits for a standby of its own, as the one before it did.
    pub(crate) fn promote(&self) {
        let done = ordinary("pg_ctl")
            .args(["promote", "-w", "-t", "60", "-D"])
            .arg(self.folder.path().join("data"))
            .output()
            .expect("pg_ctl runs");
        assert!(
            done.status.success(),
            "{}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// A signal to the server's first process, and to all that it has started.
    pub(crate) fn signal(&self, name: &str) {
        let Some(child) = &self.child else { return };
        let all = Command::new("pgrep")
            .args(["-P", &child.id().to_string()])
            .output()
            .expect("pgrep runs");
        let all = String::from_utf8_lossy(&all.stdout).into_owned();
        let own = child.id().to_string();
        for id in all.split_whitespace().chain([own.as_str()]) {
            let _told = Command::new("kill").args([&format!("-{name}"), id]).status();
        }
    }

    /// Ends it at once.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Told first, so that it ends its own children.
            let _told = Command::new("kill")
                .args(["-QUIT", &child.id().to_string()])
                .status();
            let until = Instant::now() + Duration::from_secs(5);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }

    /// `postgres://clawk@127.0.0.1:PORT/postgres`, without the password.
    pub(crate) fn url(&self) -> String {
        format!("postgres://clawk@127.0.0.1:{}/postgres", self.port)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn says(&self, words: &str) -> bool {
        self.log().contains(words)
    }

    /// `psql` with these words, as the user `clawk`.
    pub(crate) fn psql(&self, sql: &str) -> Command {
        let mut command = Command::new(programs().join("psql"));
        command
            .args([
                "-X",
                "-A",
                "-t",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-d",
                &self.url(),
                "-c",
                sql,
            ])
            .env("PGPASSWORD", Self::PASSWORD)
            .stdin(Stdio::null());
        command
    }

    /// Runs SQL beside the program under test; what it answered, unaligned.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let done = self.psql(sql).output().expect("psql runs");
        assert!(
            done.status.success(),
            "{sql}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }
}

/// The URL of both servers, without a password.
pub(crate) fn url_of_both(one: &Server, other: &Server) -> String {
    format!(
        "postgres://clawk@127.0.0.1:{},127.0.0.1:{}/postgres?target_session_attrs=read-write",
        one.port, other.port
    )
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|door| door.local_addr())
        .expect("a free port")
        .port()
}

/// The server refuses to run as root. As root, it gets a user namespace in which it is somebody else; its files stay ours.
fn ordinary(program: &str) -> Command {
    let path = programs().join(program);
    let root = Command::new("id")
        .arg("-u")
        .output()
        .expect("id runs")
        .stdout
        .starts_with(b"0\n");
    let mut command = if root {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-user=1000", "--map-group=1000", "--", "setpriv"]);
        command
    } else {
        Command::new("setpriv")
    };
    // It ends with the thread that started it, even when nobody drops it.
    command
        .args(["--pdeathsig", "QUIT", "--"])
        .arg(path)
        .env("LC_ALL", "C");
    command
}

fn programs() -> PathBuf {
    let cure = "tests/parts/install.sh installs it; CLAWK_PARTS names its folder";
    let folder = match std::env::var_os("CLAWK_PARTS") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
            let cache = cache.or_else(home);
            cache
                .unwrap_or_else(|| panic!("no cache folder: {cure}"))
                .join("clawk-ci")
                .join("parts")
        }
    };
    let programs = folder.join("postgres/pg/bin");
    assert!(
        programs.join("postgres").is_file(),
        "no PostgreSQL in {}: {cure}",
        programs.display()
    );
    programs
}
