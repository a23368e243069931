//! What an answer needs to know of its thread, on disk: the subject and the ids. Losing it costs the subject, never the answer: whom
//! it goes to stands in the conversation's own name.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::sealed_file::{FileSeal, replace_file};

/// Threads that are kept; the ones longest without mail go first.
const MAX_THREADS: usize = 2_000;

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) subject: String,
    pub(super) references: Vec<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredMailThreads {
    next: u64,
    threads: BTreeMap<String, (u64, Thread)>,
}

#[derive(Debug)]
pub(super) struct MailThreadStore {
    path: PathBuf,
    seal: FileSeal,
    kept: Mutex<Option<StoredMailThreads>>,
}

impl MailThreadStore {
    pub(super) fn new(path: PathBuf, seal: FileSeal) -> Self {
        Self {
            path,
            seal,
            kept: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<StoredMailThreads>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> StoredMailThreads {
        let read = std::fs::read(&self.path).and_then(|bytes| self.seal.unseal_bytes(&self.path, bytes));
        let text = match read {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, "the threads of the mailbox can't be read; their subjects are lost");
                }
                return StoredMailThreads::default();
            }
        };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(%error, "the threads of the mailbox can't be read; their subjects are lost");
            StoredMailThreads::default()
        })
    }

    pub(super) fn get(&self, conversation: &str) -> Option<Thread> {
        let mut kept = self.lock();
        let kept = kept.get_or_insert_with(|| self.read());
        kept.threads.get(conversation).map(|(_, thread)| thread.clone())
    }

    /// Keeps a thread durably.
    pub(super) fn store_thread(&self, conversation: &str, thread: Thread) -> io::Result<()> {
        let mut kept = self.lock();
        let kept = kept.get_or_insert_with(|| self.read());
        kept.next += 1;
        kept.threads.insert(conversation.to_owned(), (kept.next, thread));
        if kept.threads.len() > MAX_THREADS {
            let oldest = kept.threads.iter().min_by_key(|(_, (at, _))| *at);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                kept.threads.remove(&oldest);
            }
        }
        let text = serde_json::to_string(kept).map_err(io::Error::other)?;
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let fresh = self.path.with_extension("threads.new");
        replace_file(
            &self.path,
            &fresh,
            &self.seal.seal_bytes(&self.path, text.into_bytes())?,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{FileSeal, MAX_THREADS, MailThreadStore, Thread};

    #[test]
    fn threads_outlive_the_process_and_the_oldest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mail.threads");
        let threads = MailThreadStore::new(path.clone(), FileSeal::default());
        let thread = |n: usize| Thread {
            subject: n.to_string(),
            references: Vec::new(),
        };
        for n in 0..3 {
            threads.store_thread(&n.to_string(), thread(n)).unwrap();
        }
        assert_eq!(
            MailThreadStore::new(path, FileSeal::default()).get("1"),
            Some(thread(1))
        );
        for n in 3..=MAX_THREADS {
            threads
                .lock()
                .as_mut()
                .unwrap()
                .threads
                .insert(n.to_string(), (n as u64 + 10, thread(n)));
        }
        threads.store_thread("last", thread(9)).unwrap();
        assert_eq!(threads.get("0"), None);
        assert_eq!(threads.get("last"), Some(thread(9)));
    }
}
