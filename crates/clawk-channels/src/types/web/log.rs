//! What a page shows of its conversations, on disk: an answer is delivered once it is here, whether or not a page is open.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::genuine::hex;

/// Entries of one conversation; the oldest go first.
const MAX_ENTRIES: usize = 300;
/// Bytes of one conversation on disk.
const MAX_BYTES: u64 = 4 << 20;
/// Conversations in memory; the others are read again from disk.
const MAX_OPEN: usize = 256;
/// Conversations of one person; beyond, none is begun.
const MAX_CONVERSATIONS: usize = 200;

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Who {
    You,
    Agent,
}

/// A file of the agent beside a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct File {
    pub(super) id: String,
    pub(super) name: String,
}

/// One message on the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// It grows with every change of any entry: a page asks for what is newer than what it has.
    pub(super) rev: u64,
    pub(super) id: String,
    pub(super) who: Who,
    /// Of the agent: safe HTML that we made. Of a person: plain text.
    pub(super) text: String,
    /// The question, while it waits, and its choices: id and label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) question: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) choices: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) files: Vec<File>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    conversation: String,
    rev: u64,
    entries: Vec<Entry>,
}

/// All conversations of one channel.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    open: Mutex<BTreeMap<String, Kept>>,
    changed: watch::Sender<u64>,
}

impl Log {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            open: Mutex::default(),
            changed: watch::channel(0).0,
        }
    }

    /// Changes after every change of any conversation.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Wakes the pages: somebody writes.
    pub(super) fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of a person's conversations.
    fn of(&self, conversation: &str) -> PathBuf {
        let user = conversation.split('/').next().unwrap_or_default();
        self.folder.join(digest(user))
    }

    fn path(&self, conversation: &str) -> PathBuf {
        self.of(conversation)
            .join(format!("{}.json", digest(conversation)))
    }

    fn with<T>(&self, conversation: &str, with: impl FnOnce(&mut Kept) -> io::Result<T>) -> io::Result<T> {
        let mut open = self.lock();
        if !open.contains_key(conversation) {
            if open.len() >= MAX_OPEN {
                open.clear();
            }
            let kept = read(&self.path(conversation))?.unwrap_or_else(|| Kept {
                conversation: conversation.to_owned(),
                ..Kept::default()
            });
            open.insert(conversation.to_owned(), kept);
        }
        match open.get_mut(conversation) {
            Some(kept) => with(kept),
            None => Err(io::Error::other("the conversation is not open")),
        }
    }

    fn save(&self, kept: &mut Kept) -> io::Result<()> {
        let surplus = kept.entries.len().saturating_sub(MAX_ENTRIES);
        kept.entries.drain(..surplus);
        let mut text = serde_json::to_vec(kept).map_err(io::Error::other)?;
        while u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_BYTES && kept.entries.len() > 1 {
            kept.entries.drain(..kept.entries.len() / 2);
            text = serde_json::to_vec(kept).map_err(io::Error::other)?;
        }
        let (folder, path) = (self.of(&kept.conversation), self.path(&kept.conversation));
        std::fs::create_dir_all(&folder)?;
        if !path.exists() && std::fs::read_dir(&folder)?.count() >= MAX_CONVERSATIONS {
            return Err(io::Error::other("this person has too many conversations"));
        }
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, text)?;
        std::fs::File::open(&fresh)?.sync_all()?;
        std::fs::rename(&fresh, &path)
    }

    /// Adds an entry, or puts it in the place of the one with its id.
    pub(super) fn put(&self, conversation: &str, entry: Entry) -> io::Result<()> {
        let done = self.with(conversation, |kept| {
            kept.rev += 1;
            let entry = Entry {
                rev: kept.rev,
                ..entry
            };
            match kept.entries.iter_mut().find(|known| known.id == entry.id) {
                Some(known) => *known = entry,
                None => kept.entries.push(entry),
            }
            self.save(kept)
        });
        if done.is_err() {
            // What is in memory and not on disk is forgotten.
            self.lock().remove(conversation);
        }
        self.wake();
        done
    }

    /// Takes an entry away that was not meant to stay.
    pub(super) fn take_back(&self, conversation: &str, id: &str) -> io::Result<()> {
        self.with(conversation, |kept| {
            kept.entries.retain(|entry| entry.id != id);
            self.save(kept)
        })
    }

    pub(super) fn get(&self, conversation: &str, id: &str) -> io::Result<Option<Entry>> {
        self.with(conversation, |kept| {
            Ok(kept.entries.iter().find(|entry| entry.id == id).cloned())
        })
    }

    /// Entries that changed after a revision, oldest change first.
    pub(super) fn after(&self, conversation: &str, rev: u64) -> io::Result<Vec<Entry>> {
        self.with(conversation, |kept| {
            let mut entries: Vec<Entry> = kept
                .entries
                .iter()
                .filter(|entry| entry.rev > rev)
                .cloned()
                .collect();
            entries.sort_by_key(|entry| entry.rev);
            Ok(entries)
        })
    }

    /// A person's conversations, the newest first.
    pub(super) fn list(&self, user: &str) -> io::Result<Vec<String>> {
        let found = match std::fs::read_dir(self.of(user)) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for entry in found.take(MAX_CONVERSATIONS) {
            let entry = entry?;
            if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "json")
                && let Some(kept) = read(&entry.path())?
                && kept.conversation.split('/').next() == Some(user)
            {
                all.push((entry.metadata()?.modified()?, kept.conversation));
            }
        }
        all.sort();
        Ok(all
            .into_iter()
            .rev()
            .map(|(_, conversation)| conversation)
            .collect())
    }
}

fn digest(text: &str) -> String {
    let digest = hex(&Sha256::digest(text.as_bytes()));
    digest.get(..32).unwrap_or(&digest).to_owned()
}

fn read(path: &Path) -> io::Result<Option<Kept>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(found) if found.len() > MAX_BYTES * 2 => {
            return Err(io::Error::other("the conversation's file is too large"));
        }
        Ok(_) => {}
    }
    let text = std::fs::read(path)?;
    serde_json::from_slice(&text).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::{Entry, Log, MAX_ENTRIES, Who};

    fn entry(id: &str, text: &str) -> Entry {
        Entry {
            rev: 0,
            id: id.to_owned(),
            who: Who::Agent,
            text: text.to_owned(),
            question: None,
            choices: Vec::new(),
            files: Vec::new(),
        }
    }

    #[test]
    fn a_conversation_outlives_the_process_is_bounded_and_its_persons_own() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("web"));
        for n in 0..MAX_ENTRIES + 5 {
            log.put("ann/main", entry(&n.to_string(), "x")).unwrap();
        }
        log.put("ann/main", entry("7", "changed")).unwrap();
        log.put("bob/main", entry("1", "y")).unwrap();
        let log = Log::new(folder.path().join("web"));
        let all = log.after("ann/main", 0).unwrap();
        assert_eq!(all.len(), MAX_ENTRIES);
        assert_eq!(all.last().unwrap().text, "changed");
        let newest = all.last().unwrap().rev;
        assert_eq!(log.after("ann/main", newest).unwrap(), []);
        assert_eq!(log.list("ann").unwrap(), ["ann/main"]);
        assert_eq!(log.list("eve").unwrap(), Vec::<String>::new());
        assert_eq!(log.list("../../x").unwrap(), Vec::<String>::new());
    }
}
