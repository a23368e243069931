//! A Qdrant of a test's own: the HTTP API over the local mode of its own client (`qdrant_server.py`), on a free port of the loopback
//! address. It ends with the value.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests of several crates; each uses what it needs"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to start, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running server that wants the key [`Server::KEY`].
pub(crate) struct Server {
    _folder: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}

impl Server {
    pub(crate) const KEY: &str = "CANARY-qdrant-4711";

    /// Starts one, empty.
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let told = folder.path().join("port");
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let script = here.join("../../tests/parts/qdrant_server.py");
        let parts = std::env::var_os("CLAWK_PARTS")
            .expect("CLAWK_PARTS names the folder that `cargo xtask ci` installs parts into");
        let python = PathBuf::from(parts).join("qdrant/bin/python");
        let mut child = Command::new(&python)
            .arg(script)
            .arg(&told)
            .arg(Self::KEY)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("`{}`: {error}", python.display()));
        let until = Instant::now() + PATIENCE;
        let port = loop {
            if let Ok(port) = std::fs::read_to_string(&told) {
                break port.parse().expect("a port");
            }
            assert!(
                child.try_wait().expect("it can be asked").is_none() && Instant::now() < until,
                "Qdrant's local mode did not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        Self {
            _folder: folder,
            port,
            child,
        }
    }

    /// Its base address.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}
