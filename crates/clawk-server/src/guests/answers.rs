//! Answers to calls from a queue or a folder, stored for seven days under their request ids (R19). A repeated delivery gets the
//! original answer, however late. There is one file of lines per day; an index in memory needs 48 bytes per line.
//!
//! The kernel keeps answers of every door for five minutes; this log covers the time after that. Writes are not synced: after a
//! power failure the latest answers may be missing, and their calls are answered with `outcome_unknown`.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_kernel::time::Timestamp;
use clawk_recall::seal::{SealKeyring, is_sealed_text};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// The number of days that answers are kept, besides the present one.
const KEPT_DAYS: i64 = 7;
const DAY_MS: i64 = 86_400_000;
/// The largest size of all files together, bytes; above it, the oldest day is dropped early.
const MAX_BYTES: u64 = 1 << 30;
/// The largest number of answers; above it, the oldest day is dropped early.
const MAX_ANSWERS: usize = 1_000_000;
/// The context string under which lines are sealed.
const PLACE: &str = "answers";
/// The longest answer that is stored, bytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// A digest of the client, the method and the request id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GuestRequestKey([u8; 16]);

/// A request with effects.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GuestRequest {
    /// The message's id as JSON text.
    pub(crate) id: String,
    method: String,
    request_id: Option<String>,
    /// The digest of the method and the arguments.
    digest: [u8; 32],
}

impl GuestRequest {
    /// For a message with these params (JSON text).
    pub(crate) fn new(id: String, method: &str, params: &str) -> Self {
        // silent-ok: the reader refuses params that are not valid JSON, and they are not stored
        let params: serde_json::Value = serde_json::from_str(params).unwrap_or_default();
        let named = ["/context/request_id", "/request_id", "/task_id"]
            .iter()
            .find_map(|place| params.pointer(place));
        Self {
            id,
            method: method.to_owned(),
            request_id: named.and_then(serde_json::Value::as_str).map(str::to_owned),
            digest: Sha256::digest(format!("{method} {params}").as_bytes()).into(),
        }
    }

    /// For a message without a request id: identical bytes are the same request.
    pub(crate) fn of_message(id: String, message: &[u8]) -> Self {
        let digest: [u8; 32] = Sha256::digest(message).into();
        Self {
            id,
            method: "claw.shutdown".to_owned(),
            request_id: Some(to_hex(&digest)),
            digest,
        }
    }

    /// The key of the answer; `None` without a request id.
    pub(crate) fn request_key(&self, client: &str) -> Option<GuestRequestKey> {
        let id = self.request_id.as_deref()?;
        let digest = Sha256::digest(format!("{}:{client} {} {id}", client.len(), self.method).as_bytes());
        digest.first_chunk::<16>().map(|half| GuestRequestKey(*half))
    }
}

/// Encodes a line, without its newline.
fn encode_line(line: &AnswerLogLine, vault: Option<&SealKeyring>) -> io::Result<Vec<u8>> {
    let text = serde_json::to_string(line)?;
    let sealed = vault.map(|vault| vault.seal_text(PLACE, &text)).transpose();
    Ok(sealed.map_err(io::Error::other)?.unwrap_or(text).into_bytes())
}

/// Decodes a line.
fn read_line(bytes: &[u8], vault: Option<&SealKeyring>) -> Result<AnswerLogLine, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| error.to_string())?
        .trim_end();
    if !is_sealed_text(text) {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let vault = vault.ok_or_else(|| "it is encrypted, and its key is not given".to_owned())?;
    let opened = vault.open_text(PLACE, text).map_err(|error| error.to_string())?;
    serde_json::from_str(&opened.unwrap_or_default()).map_err(|error| error.to_string())
}

/// The result of a lookup.
#[derive(Debug, PartialEq)]
pub(crate) enum GuestRequestLookup {
    /// The stored answer: a result or an error, as JSON members.
    Answer(GuestAnswer),
    /// The same request id was used with other arguments.
    Reused,
}

/// An answer without its id.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GuestAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Box<RawValue>>,
}

impl PartialEq for GuestAnswer {
    fn eq(&self, other: &Self) -> bool {
        let text = |raw: &Option<Box<RawValue>>| raw.as_ref().map(|raw| raw.get().to_owned());
        text(&self.result) == text(&other.result) && text(&self.error) == text(&other.error)
    }
}

impl GuestAnswer {
    /// The answer line for a message with this id.
    pub(crate) fn answer_line(&self, id: &str) -> Vec<u8> {
        let member = |name: &str, raw: &Option<Box<RawValue>>| {
            raw.as_ref()
                .map(|raw| format!(",\"{name}\":{}", raw.get()))
                .unwrap_or_default()
        };
        let (result, error) = (member("result", &self.result), member("error", &self.error));
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id}{result}{error}}}").into_bytes()
    }
}

#[derive(Serialize, Deserialize)]
struct AnswerLogLine {
    key: String,
    request: String,
    answer: GuestAnswer,
}

#[derive(Debug, Clone, Copy)]
struct AnswerLogPosition {
    day: i64,
    at: u64,
    length: u32,
}

/// The stored answers of one door.
#[derive(Debug)]
pub(super) struct AnswerLog {
    folder: PathBuf,
    vault: Option<SealKeyring>,
    inner: Mutex<AnswerLogInner>,
}

#[derive(Debug, Default)]
struct AnswerLogInner {
    known: HashMap<GuestRequestKey, AnswerLogPosition>,
    /// The files and their lengths, by day.
    days: std::collections::BTreeMap<i64, (File, u64)>,
}

fn is_plain(path: &Path) -> io::Result<bool> {
    let mut first = [0];
    let read = File::open(path)?.read_exact_at(&mut first, 0);
    Ok(read.is_ok() && first == *b"{")
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hex_key(text: &str) -> Option<GuestRequestKey> {
    let number = u128::from_str_radix(text, 16).ok()?; // silent-ok: a line that is not ours
    (text.len() == 32).then(|| GuestRequestKey(number.to_be_bytes()))
}

impl AnswerLog {
    /// Opens the log in this folder; creates the folder if needed.
    ///
    /// # Errors
    /// The folder can't be created or read.
    pub(super) fn open(folder: PathBuf, now: Timestamp, vault: Option<SealKeyring>) -> io::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        let mut inner = AnswerLogInner::default();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let day = path
                .file_stem()
                .and_then(|name| name.to_str())
                .and_then(|name| name.parse().ok());
            if let Some(day) = day {
                // Plain files from before the stores were encrypted are deleted.
                if vault.is_some() && is_plain(&path)? {
                    fs::remove_file(&path)?;
                    continue;
                }
                inner.read(&path, day, vault.as_ref())?;
            }
        }
        inner.expire_days(&folder, day_of(now));
        Ok(Self {
            folder,
            vault,
            inner: Mutex::new(inner),
        })
    }

    fn lock(&self) -> MutexGuard<'_, AnswerLogInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up a request.
    pub(super) fn find_request(
        &self,
        client: &str,
        act: &GuestRequest,
        now: Timestamp,
    ) -> Option<GuestRequestLookup> {
        let key = act.request_key(client)?;
        let mut inner = self.lock();
        inner.expire_days(&self.folder, day_of(now));
        let place = *inner.known.get(&key)?;
        let (file, _) = inner.days.get(&place.day)?;
        let mut bytes = vec![0; usize::try_from(place.length).ok()?]; // silent-ok: a u32 is a usize
        let read = file
            .read_exact_at(&mut bytes, place.at)
            .map_err(|error| error.to_string());
        let line = read.and_then(|()| read_line(&bytes, self.vault.as_ref()));
        match line {
            Ok(line) if line.request == to_hex(&act.digest) => Some(GuestRequestLookup::Answer(line.answer)),
            Ok(_) => Some(GuestRequestLookup::Reused),
            Err(error) => {
                tracing::warn!(%error, "a kept answer can't be read");
                None
            }
        }
    }

    /// Stores an answer, unless the request already has one.
    pub(super) fn store_answer(&self, client: &str, act: &GuestRequest, line: &[u8], now: Timestamp) {
        let Some(key) = act.request_key(client).filter(|_| line.len() <= MAX_ANSWER_BYTES) else {
            return;
        };
        let answer: GuestAnswer = match serde_json::from_slice(line) {
            Ok(answer) => answer,
            Err(error) => return tracing::warn!(%error, "an answer can't be kept"),
        };
        if !is_kept(&answer) {
            return;
        }
        let line = AnswerLogLine {
            key: to_hex(&key.0),
            request: to_hex(&act.digest),
            answer,
        };
        let mut inner = self.lock();
        if inner.known.contains_key(&key) {
            return;
        }
        if let Err(error) = inner.append_line((&self.folder, self.vault.as_ref()), day_of(now), key, &line) {
            tracing::warn!(%error, "an answer is not kept: a call that comes again later is not known");
        }
    }
}

/// Whether an answer settles its request: a result, or a refusal after the decision. A request that failed earlier (not
/// initialized, no such method) may be sent again.
fn is_kept(answer: &GuestAnswer) -> bool {
    #[derive(Deserialize)]
    struct ErrorCodeField {
        code: i64,
    }
    let code = answer
        .error
        .as_ref()
        .and_then(|error| serde_json::from_str::<ErrorCodeField>(error.get()).ok()); // silent-ok: no code
    answer.result.is_some() || code.is_some_and(|ErrorCodeField { code }| (-32021..=-32010).contains(&code))
}

fn day_of(now: Timestamp) -> i64 {
    now.as_millis().div_euclid(DAY_MS)
}

impl AnswerLogInner {
    fn read(&mut self, path: &Path, day: i64, vault: Option<&SealKeyring>) -> io::Result<()> {
        let file = OpenOptions::new().read(true).append(true).open(path)?;
        let mut reader = BufReader::new(&file);
        let (mut at, mut line) = (0, Vec::new());
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            // A crash cut this line off. The rest of the file is ignored.
            if read == 0 || line.last() != Some(&b'\n') {
                break;
            }
            let key = read_line(&line, vault)
                .ok()
                .and_then(|line| parse_hex_key(&line.key)); // silent-ok: not ours, or of an earlier key
            if let (Some(key), Ok(length)) = (key, u32::try_from(read)) {
                self.known
                    .entry(key)
                    .or_insert(AnswerLogPosition { day, at, length });
            }
            at += u64::try_from(read).unwrap_or(0);
        }
        drop(reader);
        file.set_len(at)?;
        self.days.insert(day, (file, at));
        Ok(())
    }

    fn append_line(
        &mut self,
        (folder, vault): (&Path, Option<&SealKeyring>),
        day: i64,
        key: GuestRequestKey,
        line: &AnswerLogLine,
    ) -> io::Result<()> {
        self.expire_days(folder, day);
        let mut bytes = encode_line(line, vault)?;
        bytes.push(b'\n');
        let (file, length) = match self.days.entry(day) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let path = folder.join(format!("{day}.jsonl"));
                let file = OpenOptions::new()
                    .read(true)
                    .append(true)
                    .create(true)
                    .mode(0o600)
                    .open(path)?;
                let length = file.metadata()?.len();
                new.insert((file, length))
            }
        };
        let at = *length;
        file.write_all(&bytes)?;
        *length += u64::try_from(bytes.len()).unwrap_or(0);
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.known.insert(key, AnswerLogPosition { day, at, length });
        Ok(())
    }

    /// Deletes expired days, and the oldest ones while a limit is exceeded.
    fn expire_days(&mut self, folder: &Path, today: i64) {
        loop {
            let bytes: u64 = self.days.values().map(|(_, length)| length).sum();
            let Some(oldest) = self.days.keys().next().copied() else {
                return;
            };
            let full = (bytes > MAX_BYTES || self.known.len() > MAX_ANSWERS) && oldest < today;
            if oldest >= today - KEPT_DAYS && !full {
                return;
            }
            self.days.remove(&oldest);
            self.known.retain(|_, place| place.day != oldest);
            if let Err(error) = fs::remove_file(folder.join(format!("{oldest}.jsonl"))) {
                tracing::warn!(%error, "answers of a day that is over can't be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::time::Timestamp;

    use super::{AnswerLog, DAY_MS, GuestRequest, GuestRequestLookup};

    const RESULT: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;

    fn at(days: i64) -> Timestamp {
        Timestamp(1_700_000_000_000_000).plus_millis(days * DAY_MS)
    }

    fn act(id: &str, request: &str, more: &str) -> GuestRequest {
        let params =
            format!(r#"{{"name":"t","context":{{"request_id":"{request}"}},"arguments":{{"n":{more}}}}}"#);
        GuestRequest::new(id.to_owned(), "claw.tool.call", &params)
    }

    #[test]
    fn an_answer_is_found_for_seven_days_over_a_restart_and_only_by_who_asked_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let answers = AnswerLog::open(folder.path().join("a"), at(0), None).unwrap();
        let asked = act("1", "r", "1");
        assert_eq!(answers.find_request("ann", &asked, at(0)), None);
        answers.store_answer("ann", &asked, RESULT, at(0));
        answers.store_answer(
            "ann",
            &asked,
            br#"{"jsonrpc":"2.0","id":2,"result":{"other":true}}"#,
            at(0),
        );
        drop(answers);
        // A line that a crash cut off.
        let file = std::fs::read_dir(folder.path().join("a"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.extend_from_slice(br#"{"key":"00"#);
        std::fs::write(&file, bytes).unwrap();

        let answers = AnswerLog::open(folder.path().join("a"), at(6), None).unwrap();
        let again = act("\"again\"", "r", "1");
        let Some(GuestRequestLookup::Answer(found)) = answers.find_request("ann", &again, at(6)) else {
            panic!()
        };
        let line = String::from_utf8(found.answer_line(&again.id)).unwrap();
        assert_eq!(line, r#"{"jsonrpc":"2.0","id":"again","result":{"content":[]}}"#);
        assert_eq!(
            answers.find_request("ann", &act("1", "r", "2"), at(6)),
            Some(GuestRequestLookup::Reused)
        );
        assert_eq!(
            answers.find_request("bob", &again, at(6)),
            None,
            "another client's"
        );
        assert_eq!(answers.find_request("ann", &act("1", "s", "1"), at(6)), None);
        answers.store_answer("ann", &act("1", "late", "1"), RESULT, at(6));
        assert_eq!(
            answers.find_request("ann", &again, at(8)),
            None,
            "eight days later"
        );
        assert!(
            answers
                .find_request("ann", &act("1", "late", "1"), at(8))
                .is_some()
        );
        assert_eq!(std::fs::read_dir(folder.path().join("a")).unwrap().count(), 1);
    }

    #[test]
    fn what_was_refused_before_it_was_judged_is_not_kept() {
        let folder = tempfile::tempdir().unwrap();
        let answers = AnswerLog::open(folder.path().join("a"), at(0), None).unwrap();
        let error =
            |code: i64| format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m"}}}}"#);
        for (request, code, kept) in [
            ("a", -32600, false),
            ("b", -32602, false),
            ("c", -32011, true),
            ("d", -32603, false),
        ] {
            let asked = act("1", request, "1");
            answers.store_answer("ann", &asked, error(code).as_bytes(), at(0));
            assert_eq!(
                answers.find_request("ann", &asked, at(0)).is_some(),
                kept,
                "{code}"
            );
        }
        let nameless = GuestRequest::new("1".to_owned(), "claw.tool.call", r#"{"name":"t"}"#);
        answers.store_answer("ann", &nameless, RESULT, at(0));
        assert_eq!(answers.find_request("ann", &nameless, at(0)), None);
    }
}
