//! An HTTP server that counts what it is asked to do, and can keep its answers to itself.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;

/// One request to do something.
#[derive(Debug, Clone)]
pub(crate) struct Hit {
    /// `Idempotency-Key`, if it had one.
    pub(crate) key: Option<String>,
    /// The argument `id`.
    pub(crate) id: String,
}

#[derive(Debug, Default)]
struct Shared {
    hits: Mutex<Vec<Hit>>,
    /// Reads, counts and never answers.
    holds: AtomicBool,
    answered: Mutex<usize>,
    /// Where the ids of what was done are written, one a line.
    log: Option<std::path::PathBuf>,
}

/// Runs until the process ends.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    shared: Arc<Shared>,
    pub(crate) url: String,
}

impl Counter {
    pub(crate) fn start(log: Option<std::path::PathBuf>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            log,
            ..Shared::default()
        });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&own);
                std::thread::spawn(move || serve(&shared, stream));
            }
        });
        Self { shared, url }
    }

    fn hits_lock(&self) -> MutexGuard<'_, Vec<Hit>> {
        self.shared.hits.lock().unwrap()
    }

    pub(crate) fn hits(&self) -> Vec<Hit> {
        self.hits_lock().clone()
    }

    /// Something was asked for, and nothing twice.
    pub(crate) fn never_twice(&self) {
        let counts = self.counts();
        assert_eq!(counts.values().max(), Some(&1), "{counts:?}");
    }

    /// How often each was asked for.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for hit in self.hits_lock().iter() {
            *counts.entry(hit.id.clone()).or_default() += 1;
        }
        counts
    }

    pub(crate) fn answered(&self) -> usize {
        *self.shared.answered.lock().unwrap()
    }

    /// From now on answers stay away, or come again.
    pub(crate) fn hold(&self, holds: bool) {
        self.shared.holds.store(holds, Ordering::SeqCst);
    }
}

fn serve(shared: &Shared, mut stream: TcpStream) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let (mut length, mut key) = (0, None);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let Some((name, value)) = line.trim().split_once(':') else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap(),
                "idempotency-key" => key = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let answer = if let Some(id) = path.strip_prefix("/state/") {
            let done = shared.hits.lock().unwrap().iter().any(|hit| hit.id == id);
            if done { "done" } else { "not-done" }.to_owned()
        } else {
            let facts: Value = serde_json::from_slice(&body).unwrap_or_default();
            let id = facts["id"].as_str().unwrap_or_default().to_owned();
            let mut hits = shared.hits.lock().unwrap();
            hits.push(Hit { key, id: id.clone() });
            if let Some(log) = &shared.log {
                let all: Vec<&str> = hits.iter().map(|hit| hit.id.as_str()).collect();
                std::fs::write(log, all.join("\n")).unwrap();
            }
            drop(hits);
            if shared.holds.load(Ordering::SeqCst) {
                // Until the other side is gone.
                let _rest = reader.read(&mut [0; 64]);
                return;
            }
            format!("did {id}")
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        if stream.write_all(format!("{head}{answer}").as_bytes()).is_err() {
            return;
        }
        *shared.answered.lock().unwrap() += 1;
    }
}
