//! What a page shows of its conversations, on disk: an answer is delivered once it is here, whether or not a page is open.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_proto::MessageId;
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::{SealKeyring, is_sealed_text};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::genuine::to_hex;
use crate::sealed_file::{ResealScope, is_plain_file, paths_below, replace_file, unopened};

/// Entries of one conversation; the oldest go first.
const MAX_ENTRIES: usize = 300;
/// Bytes of one conversation on disk.
const MAX_BYTES: u64 = 4 << 20;
/// Conversations in memory; the others are read again from disk.
const MAX_OPEN: usize = 256;
/// Conversations of one person; beyond, none is begun.
const MAX_CONVERSATIONS: usize = 200;
/// Messages of which is known what their program calls them.
const MAX_CALLED: usize = 1_024;
/// People with conversations; beyond, nobody new is kept. Each session of the shared token is one.
const MAX_PEOPLE: usize = 10_000;

/// For what a conversation's file is sealed: its own name, so that none takes another one's place.
fn place_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    format!("web conversation {stem}")
}

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PageEntryAuthor {
    You,
    Agent,
}

/// A file of the agent beside a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PageFile {
    pub(super) id: String,
    pub(super) name: String,
}

/// One message on the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PageEntry {
    /// It grows with every change of any entry: a page asks for what is newer than what it has.
    pub(super) rev: u64,
    pub(super) id: String,
    pub(super) who: PageEntryAuthor,
    /// Of the agent: safe HTML that we made. Of a person: plain text.
    pub(super) text: String,
    /// The question, while it waits, and its choices: id and label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) question: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) choices: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) files: Vec<PageFile>,
    /// Counts the agent's whole messages and questions. An entry keeps its number; one that is being written has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) seq: Option<u64>,
    /// It is being written; the answer comes in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) live: bool,
    /// The text as Markdown, for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) markdown: String,
    /// The program's id of the message that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) of: Option<String>,
    /// How its question was decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) decided: Option<QuestionDecision>,
    /// It says why a recording was not taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) refused: bool,
}

/// How a question was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QuestionDecision {
    pub(super) question: String,
    /// `None`: it waits no more.
    pub(super) yes: Option<bool>,
    pub(super) by: Option<String>,
}

impl PageEntry {
    /// An entry that says this and nothing else.
    pub(super) fn new(id: &str, who: PageEntryAuthor, text: String) -> Self {
        Self {
            rev: 0,
            id: id.to_owned(),
            who,
            text,
            question: None,
            choices: Vec::new(),
            files: Vec::new(),
            seq: None,
            live: false,
            markdown: String::new(),
            of: None,
            decided: None,
            refused: false,
        }
    }

    /// What the page needs of it.
    pub(super) fn without_source(self) -> Self {
        Self {
            markdown: String::new(),
            decided: None,
            ..self
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct StoredPageConversation {
    conversation: String,
    rev: u64,
    /// The newest [`PageEntry::seq`], and up to which a program said that it has them.
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    acked: u64,
    entries: Vec<PageEntry>,
}

/// All conversations of one channel.
#[derive(Debug)]
pub(super) struct Log {
    folder: PathBuf,
    vault: Option<SealKeyring>,
    open: Mutex<BTreeMap<String, StoredPageConversation>>,
    changed: watch::Sender<u64>,
    /// What programs call the messages whose turns may run: by our id.
    called: Mutex<HashMap<String, String>>,
}

impl Log {
    /// With a `vault`, what is on disk is sealed, and what an earlier run left in plain is sealed now.
    pub(super) fn new(folder: PathBuf, vault: Option<SealKeyring>) -> Self {
        let log = Self {
            folder,
            vault,
            open: Mutex::default(),
            changed: watch::channel(0).0,
            called: Mutex::default(),
        };
        if let Some(vault) = &log.vault {
            for fault in seal_files(&log.folder, vault, ResealScope::Plain).faults() {
                tracing::error!(
                    file = fault.value,
                    why = fault.why,
                    "a page's conversation from before the encryption can't be sealed"
                );
            }
        }
        log
    }

    fn seal_text(&self, path: &Path, text: String) -> io::Result<String> {
        match &self.vault {
            Some(vault) => vault.seal_text(&place_of(path), &text).map_err(io::Error::other),
            None => Ok(text),
        }
    }

    /// Remembers what a program calls a message.
    pub(super) fn remember_called(&self, message: MessageId, id: &str) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        if called.len() >= MAX_CALLED {
            called.clear();
        }
        called.insert(message.to_string(), id.to_owned());
    }

    /// What a program calls a message.
    pub(super) fn called_id(&self, message: &str) -> Option<String> {
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        called.get(message).cloned()
    }

    /// Changes after every change of any conversation.
    pub(super) fn watch_changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Wakes the pages: somebody writes.
    pub(super) fn wake_pages(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, StoredPageConversation>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of a person's conversations.
    fn user_folder(&self, conversation: &str) -> PathBuf {
        let user = conversation.split('/').next().unwrap_or_default();
        self.folder.join(text_digest(user))
    }

    fn conversation_path(&self, conversation: &str) -> PathBuf {
        self.user_folder(conversation)
            .join(format!("{}.json", text_digest(conversation)))
    }

    fn with_conversation<T>(
        &self,
        conversation: &str,
        with: impl FnOnce(&mut StoredPageConversation) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut open = self.lock();
        if !open.contains_key(conversation) {
            if open.len() >= MAX_OPEN {
                open.clear();
            }
            let kept =
                read(&self.conversation_path(conversation), self.vault.as_ref())?.unwrap_or_else(|| {
                    StoredPageConversation {
                        conversation: conversation.to_owned(),
                        ..StoredPageConversation::default()
                    }
                });
            open.insert(conversation.to_owned(), kept);
        }
        match open.get_mut(conversation) {
            Some(kept) => with(kept),
            None => Err(io::Error::other("the conversation is not open")),
        }
    }

    fn save_conversation(&self, kept: &mut StoredPageConversation) -> io::Result<()> {
        let surplus = kept.entries.len().saturating_sub(MAX_ENTRIES);
        kept.entries.drain(..surplus);
        let mut text = serde_json::to_string(kept).map_err(io::Error::other)?;
        while u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_BYTES && kept.entries.len() > 1 {
            kept.entries.drain(..kept.entries.len() / 2);
            text = serde_json::to_string(kept).map_err(io::Error::other)?;
        }
        let (folder, path) = (
            self.user_folder(&kept.conversation),
            self.conversation_path(&kept.conversation),
        );
        if !folder.exists() {
            std::fs::create_dir_all(&self.folder)?;
            if std::fs::read_dir(&self.folder)?.count() >= MAX_PEOPLE {
                let message = format!(
                    "{} has conversations of {MAX_PEOPLE} people",
                    self.folder.display()
                );
                return Err(io::Error::other(message));
            }
            std::fs::create_dir(&folder)?;
        }
        if !path.exists() && std::fs::read_dir(&folder)?.count() >= MAX_CONVERSATIONS {
            return Err(io::Error::other("this person has too many conversations"));
        }
        write_whole(&path, &self.seal_text(&path, text)?)
    }

    /// Adds an entry, or puts it in the place of the one with its id.
    pub(super) fn put_entry(&self, conversation: &str, entry: PageEntry) -> io::Result<()> {
        let done = self.with_conversation(conversation, |kept| {
            kept.rev += 1;
            let known = kept.entries.iter().position(|known| known.id == entry.id);
            let before = known.and_then(|at| kept.entries.get(at));
            let counts = entry.who == PageEntryAuthor::Agent && !entry.live;
            let seq = before.and_then(|before| before.seq).or_else(|| {
                kept.seq += u64::from(counts);
                counts.then_some(kept.seq)
            });
            let entry = PageEntry {
                rev: kept.rev,
                seq,
                ..entry
            };
            match known.and_then(|at| kept.entries.get_mut(at)) {
                Some(known) => *known = entry,
                None => kept.entries.push(entry),
            }
            self.save_conversation(kept)
        });
        if done.is_err() {
            // What is in memory and not on disk is forgotten.
            self.lock().remove(conversation);
        }
        self.wake_pages();
        done
    }

    /// Remembers up to which number a program has a conversation.
    pub(super) fn acknowledge_seq(&self, conversation: &str, seq: u64) -> io::Result<()> {
        self.with_conversation(conversation, |kept| {
            if seq <= kept.acked || seq > kept.seq {
                return Ok(());
            }
            kept.acked = seq;
            self.save_conversation(kept)
        })
    }

    /// Up to which number a program said that it has a conversation.
    pub(super) fn acknowledged_seq(&self, conversation: &str) -> io::Result<u64> {
        self.with_conversation(conversation, |kept| Ok(kept.acked))
    }

    /// Takes an entry away that was not meant to stay.
    pub(super) fn take_back(&self, conversation: &str, id: &str) -> io::Result<()> {
        self.with_conversation(conversation, |kept| {
            kept.entries.retain(|entry| entry.id != id);
            self.save_conversation(kept)
        })
    }

    pub(super) fn get(&self, conversation: &str, id: &str) -> io::Result<Option<PageEntry>> {
        self.with_conversation(conversation, |kept| {
            Ok(kept.entries.iter().find(|entry| entry.id == id).cloned())
        })
    }

    /// Entries that changed after a revision, oldest change first.
    pub(super) fn entries_after(&self, conversation: &str, rev: u64) -> io::Result<Vec<PageEntry>> {
        self.with_conversation(conversation, |kept| {
            let mut entries: Vec<PageEntry> = kept
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
    pub(super) fn list_conversations(&self, user: &str) -> io::Result<Vec<String>> {
        let found = match std::fs::read_dir(self.user_folder(user)) {
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
                && let Some(kept) = read(&entry.path(), self.vault.as_ref())?
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

fn text_digest(text: &str) -> String {
    let digest = to_hex(&Sha256::digest(text.as_bytes()));
    digest.get(..32).unwrap_or(&digest).to_owned()
}

/// Seals the conversations of a channel. One that can't be sealed stops no other; the report names it.
pub(super) fn seal_files(folder: &Path, vault: &SealKeyring, scope: ResealScope) -> ResealReport {
    let mut report = ResealReport::default();
    for person in paths_below(folder, &mut report) {
        for path in paths_below(&person, &mut report) {
            report.add_outcome(path.display(), seal_conversation(&path, vault, scope));
        }
    }
    report
}

fn seal_conversation(path: &Path, vault: &SealKeyring, scope: ResealScope) -> io::Result<()> {
    if !is_plain_file(path)? {
        return Ok(());
    }
    if path.extension().is_some_and(|extension| extension == "new") {
        // Of a save that was cut off.
        return std::fs::remove_file(path);
    }
    let place = place_of(path);
    let mut text = std::fs::read_to_string(path)?;
    match vault.open_text(&place, &text).map_err(|error| unopened(&error))? {
        Some(_) if scope == ResealScope::Plain || vault.is_current_text(&text) => return Ok(()),
        Some(opened) => text = opened,
        None => {}
    }
    write_whole(path, &vault.seal_text(&place, &text).map_err(io::Error::other)?)
}

/// Writes a file in one step.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    replace_file(path, &path.with_extension("new"), text.as_bytes())
}

fn read(path: &Path, vault: Option<&SealKeyring>) -> io::Result<Option<StoredPageConversation>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(found) if found.len() > MAX_BYTES * 2 => {
            return Err(io::Error::other("the conversation's file is too large"));
        }
        Ok(_) => {}
    }
    let mut text = std::fs::read_to_string(path)?;
    if is_sealed_text(&text) {
        let vault = vault.ok_or_else(|| io::Error::other("it is encrypted, and its key is not given"))?;
        let opened = vault
            .open_text(&place_of(path), &text)
            .map_err(io::Error::other)?;
        text = opened.unwrap_or_default();
    }
    serde_json::from_str(&text).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::{Log, MAX_ENTRIES, PageEntry, PageEntryAuthor};
    use clawk_recall::seal::{SealKey, SealKeyring};

    fn entry(id: &str, text: &str) -> PageEntry {
        PageEntry::new(id, PageEntryAuthor::Agent, text.to_owned())
    }

    #[test]
    fn a_conversation_outlives_the_process_is_bounded_and_its_persons_own() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("web"), None);
        for n in 0..MAX_ENTRIES + 5 {
            log.put_entry("ann/main", entry(&n.to_string(), "x")).unwrap();
        }
        log.put_entry("ann/main", entry("7", "changed")).unwrap();
        log.put_entry("bob/main", entry("1", "y")).unwrap();
        let log = Log::new(folder.path().join("web"), None);
        let all = log.entries_after("ann/main", 0).unwrap();
        assert_eq!(all.len(), MAX_ENTRIES);
        assert_eq!(all.last().unwrap().text, "changed");
        let newest = all.last().unwrap().rev;
        assert_eq!(log.entries_after("ann/main", newest).unwrap(), []);
        assert_eq!(log.list_conversations("ann").unwrap(), ["ann/main"]);
        assert_eq!(log.list_conversations("eve").unwrap(), Vec::<String>::new());
        assert_eq!(log.list_conversations("../../x").unwrap(), Vec::<String>::new());
    }

    /// With the state encrypted nobody's words lie in plain, also not those of before; without the key they are not read.
    #[test]
    fn conversations_of_an_encrypted_state_are_sealed() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("page.web");
        let plain_anywhere = || {
            let people = std::fs::read_dir(&at).unwrap();
            let files = people.flat_map(|person| std::fs::read_dir(person.unwrap().path()).unwrap());
            let mut texts = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
            texts.any(|text| String::from_utf8_lossy(&text).contains("canary"))
        };
        let log = Log::new(at.clone(), None);
        log.put_entry("ann/main", entry("1", "canary one")).unwrap();
        assert!(plain_anywhere());
        let vault = |byte: &str| Some(SealKeyring::new(SealKey::from_hex(&byte.repeat(32)).unwrap()));
        let own = vault("ab");
        let log = Log::new(at.clone(), own.clone());
        assert!(!plain_anywhere(), "what was there is sealed at the start");
        log.put_entry("ann/main", entry("2", "canary two")).unwrap();
        assert!(!plain_anywhere());
        let log = Log::new(at.clone(), own);
        let texts: Vec<String> = log
            .entries_after("ann/main", 0)
            .unwrap()
            .into_iter()
            .map(|entry| entry.text)
            .collect();
        assert_eq!(texts, ["canary one", "canary two"]);
        assert_eq!(log.list_conversations("ann").unwrap(), ["ann/main"]);
        assert!(Log::new(at.clone(), None).entries_after("ann/main", 0).is_err());
        // Another key, as `clawk memory rekey` gives it.
        let key = |byte: &str| SealKey::from_hex(&byte.repeat(32)).unwrap();
        let both = SealKeyring::new(key("ef")).with_older(key("ab"));
        let person = std::fs::read_dir(&at).unwrap().next().unwrap().unwrap().path();
        std::fs::write(person.join("0imitated.json"), "~canary in plain").unwrap();
        std::fs::write(person.join("1bytes.json"), b"\xff\xfe").unwrap();
        std::fs::write(at.join("2file"), "not a person's folder").unwrap();
        let report = crate::seal_conversations_anew(folder.path(), &both);
        let named: Vec<&str> = report
            .faults()
            .iter()
            .map(|fault| fault.value.rsplit('/').next().unwrap())
            .collect();
        assert_eq!(named.len(), 3, "{report:?}");
        for name in ["0imitated.json", "1bytes.json", "2file"] {
            assert!(named.contains(&name), "{report:?}");
        }
        assert!(
            Log::new(at.clone(), vault("ab"))
                .entries_after("ann/main", 0)
                .is_err()
        );
        assert_eq!(
            Log::new(at.clone(), vault("ef"))
                .entries_after("ann/main", 0)
                .unwrap()
                .len(),
            2
        );
        assert!(
            Log::new(at.clone(), vault("cd"))
                .entries_after("ann/main", 0)
                .is_err(),
            "another key opens nothing"
        );
    }

    #[test]
    fn the_agents_whole_messages_are_counted_and_keep_their_number() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("web");
        let log = Log::new(at.clone(), None);
        let put = |entry| log.put_entry("ann/main", entry).unwrap();
        let seqs = |log: &Log| -> Vec<(String, Option<u64>)> {
            let all = log.entries_after("ann/main", 0).unwrap();
            all.into_iter().map(|entry| (entry.text, entry.seq)).collect()
        };
        put(PageEntry::new("p", PageEntryAuthor::You, "hi".to_owned()));
        put(PageEntry {
            live: true,
            ..entry("a", "I loo …")
        });
        put(entry("b", "other"));
        put(entry("a", "I looked"));
        put(entry("b", "other, edited"));
        let all = [("hi", None), ("I looked", Some(2)), ("other, edited", Some(1))];
        let all: Vec<_> = all.map(|(text, seq)| (text.to_owned(), seq)).into();
        assert_eq!(seqs(&log), all);
        log.acknowledge_seq("ann/main", 9).unwrap();
        assert_eq!(
            log.acknowledged_seq("ann/main").unwrap(),
            0,
            "a number that was never given"
        );
        log.acknowledge_seq("ann/main", 2).unwrap();
        let log = Log::new(at, None);
        assert_eq!(log.acknowledged_seq("ann/main").unwrap(), 2);
        assert_eq!(seqs(&log), all);
    }
}
