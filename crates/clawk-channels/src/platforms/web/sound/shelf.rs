//! Recordings on disk. One is accepted once it is here with a note of whose it is, and goes when it has become a message.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use clawk_kernel::time::Timestamp;
use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::MAX_MS;
use crate::adapter::PlatformMessage;
use crate::genuine::to_hex;
use crate::sealed_file::FileSeal;

/// Recordings that could not be understood: so many are kept, the oldest go.
const MAX_KEPT: usize = 100;
/// Bytes of a second of WebM or Ogg where the format does not say.
const SECOND_BYTES: u64 = 3_000;
/// Ends of the names of files.
const NOTE: &str = "json";
const SOUND: &str = "sound";
const PART: &str = "part";

/// A recording that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::platforms::web) struct VoiceRecording {
    pub(in crate::platforms::web) conversation: String,
    sender: String,
    /// The program's id of it.
    pub(in crate::platforms::web) id: String,
    pub(super) media_type: String,
    pub(super) length_ms: u64,
    /// SHA-256 of its bytes.
    pub(super) digest: Digest,
    /// When it came, microseconds: their order.
    at: i64,
}

impl VoiceRecording {
    /// The message that it is.
    pub(super) fn to_platform_message(&self, text: String) -> PlatformMessage {
        PlatformMessage {
            ids: vec![format!("{}:{}", self.conversation, self.id)],
            conversation: self.conversation.clone(),
            direct: true,
            mention: true,
            sender: Some(self.sender.clone()),
            text,
            ..PlatformMessage::default()
        }
    }
}

/// A recording that is coming in, on disk from its first byte.
#[derive(Debug)]
pub(in crate::platforms::web) struct RecordingUpload {
    media_type: String,
    file: File,
    path: PathBuf,
    hash: Sha256,
    /// The beginning, which says the rate of a WAV file.
    head: Vec<u8>,
    bytes: u64,
    max_bytes: u64,
    /// The newest time in a WebM file, milliseconds.
    webm_ms: u64,
}

impl Drop for RecordingUpload {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.path); // silent-ok: it was renamed, or the next start removes it
    }
}

impl RecordingUpload {
    /// # Errors
    /// It is too large, or can't be written; for the program.
    pub(in crate::platforms::web) fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.bytes += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if self.bytes > self.max_bytes {
            return Err(format!(
                "the recording is larger than {} MiB",
                self.max_bytes >> 20
            ));
        }
        let room = 64_usize.saturating_sub(self.head.len());
        self.head.extend(bytes.iter().take(room));
        if self.media_type == "audio/webm" {
            self.webm_ms = self.webm_ms.max(cluster_ms(bytes));
        }
        if self.length_ms() > MAX_MS {
            return Err(format!(
                "the recording is longer than {} minutes",
                MAX_MS / 60_000
            ));
        }
        self.hash.update(bytes);
        self.file
            .write_all(bytes)
            .map_err(|error| storage_failure(&error))
    }

    /// Its length; an estimate where the format does not say.
    fn length_ms(&self) -> u64 {
        let over = |bytes: u64, second: u64| bytes.saturating_mul(1_000) / second.max(1);
        if let Some(rate) = sample_rate(&self.media_type) {
            return over(self.bytes, rate * 2);
        }
        if self.media_type == "audio/wav" {
            let second = self.head.get(28..32).and_then(|four| four.try_into().ok());
            let second = u64::from(second.map_or(16_000, u32::from_le_bytes));
            // A header that claims a rate that no recorder has tells nothing.
            return over(self.bytes, second.clamp(8_000, 400_000));
        }
        if self.webm_ms > 0 {
            return self.webm_ms;
        }
        over(self.bytes, SECOND_BYTES).min(MAX_MS)
    }
}

/// The rate of bare samples.
fn sample_rate(media_type: &str) -> Option<u64> {
    media_type.strip_prefix("audio/pcm;rate=")?.parse().ok() // silent-ok: another type
}

/// The newest time of the clusters that begin in these bytes (Matroska: the id of a cluster, its size, then its time).
fn cluster_ms(bytes: &[u8]) -> u64 {
    const CLUSTER: [u8; 4] = [0x1F, 0x43, 0xB6, 0x75];
    const TIME: u8 = 0xE7;
    let mut newest = 0;
    for at in match_offsets(bytes, CLUSTER) {
        let rest = bytes.get(at + CLUSTER.len()..).unwrap_or_default();
        let size = rest.first().map_or(0, |first| first.leading_zeros() as usize + 1);
        let Some([TIME, length, time @ ..]) = rest.get(size..) else {
            continue;
        };
        let length = usize::from(length & 0x7F);
        if let (1..=8, Some(digits)) = (length, time.get(..length)) {
            let ms = digits.iter().fold(0_u64, |ms, digit| ms << 8 | u64::from(*digit));
            // A false find in the sound itself claims a time out of all measure.
            if ms <= MAX_MS * 2 {
                newest = newest.max(ms);
            }
        }
    }
    newest
}

/// Where four bytes stand.
fn match_offsets(bytes: &[u8], four: [u8; 4]) -> impl Iterator<Item = usize> {
    let windows = bytes.windows(four.len()).enumerate();
    windows.filter_map(move |(at, window)| (window == four).then_some(at))
}

fn storage_failure(error: &io::Error) -> String {
    tracing::warn!(%error, "a recording can't be kept");
    "it could not be kept now; send it again".to_owned()
}

/// Puts the sealed bytes in the place of a recording that came in plain.
fn write_over(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The recordings of one channel.
#[derive(Debug)]
pub(super) struct RecordingStore {
    folder: PathBuf,
    max_bytes: u64,
    seal: FileSeal,
}

impl RecordingStore {
    pub(super) const fn new(folder: PathBuf, max_bytes: u64, seal: FileSeal) -> Self {
        Self {
            folder,
            max_bytes,
            seal,
        }
    }

    pub(super) fn begin_recording(&self, media_type: &str) -> Result<RecordingUpload, String> {
        let fits = match sample_rate(media_type) {
            Some(rate) => (8_000..=48_000).contains(&rate),
            None => matches!(media_type, "audio/wav" | "audio/webm"),
        };
        if !fits {
            return Err("recordings are `audio/wav`, `audio/webm` or `audio/pcm;rate=16000`".to_owned());
        }
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|_| "no random bytes can be had".to_owned())?; // silent-ok: said
        let path = self.folder.join(format!("{}.{PART}", to_hex(&random)));
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder);
        let file = made.and_then(|()| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(&path)
        });
        Ok(RecordingUpload {
            media_type: media_type.to_owned(),
            file: file.map_err(|error| storage_failure(&error))?,
            path,
            hash: Sha256::new(),
            head: Vec::new(),
            bytes: 0,
            max_bytes: self.max_bytes,
            webm_ms: 0,
        })
    }

    fn recording_path(&self, conversation: &str, id: &str, kind: &str) -> PathBuf {
        let digest = to_hex(&Sha256::digest(format!("{conversation}\n{id}").as_bytes()));
        self.folder.join(format!("{digest}.{kind}"))
    }

    pub(super) fn is_waiting(&self, conversation: &str, id: &str) -> bool {
        self.recording_path(conversation, id, NOTE).exists()
    }

    /// First the sound, then the note: a note without its sound does not exist.
    pub(super) fn store_recording(
        &self,
        taking: RecordingUpload,
        of: &PlatformMessage,
        id: &str,
        at: Timestamp,
    ) -> Result<VoiceRecording, String> {
        if taking.bytes == 0 {
            return Err("the recording is empty".to_owned());
        }
        let recording = VoiceRecording {
            conversation: of.conversation.clone(),
            sender: of.sender.clone().unwrap_or_default(),
            id: id.to_owned(),
            media_type: taking.media_type.clone(),
            length_ms: taking.length_ms(),
            digest: Digest(taking.hash.clone().finalize().into()),
            at: at.0,
        };
        let note = serde_json::to_vec(&recording).map_err(|error| error.to_string())?;
        let kept = || -> io::Result<()> {
            let sound = self.recording_path(&recording.conversation, id, SOUND);
            if self.seal.is_on() {
                write_over(
                    &taking.path,
                    &self.seal.seal_bytes(&sound, fs::read(&taking.path)?)?,
                )?;
            } else {
                taking.file.sync_all()?;
            }
            fs::rename(&taking.path, &sound)?;
            let (fresh, path) = (
                self.recording_path(&recording.conversation, id, "new"),
                self.recording_path(&recording.conversation, id, NOTE),
            );
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&fresh)?;
            file.write_all(&self.seal.seal_bytes(&path, note)?)?;
            file.sync_all()?;
            fs::rename(&fresh, &path)?;
            File::open(&self.folder)?.sync_all()
        };
        kept().map_err(|error| storage_failure(&error))?;
        Ok(recording)
    }

    pub(super) fn read_sound(&self, recording: &VoiceRecording) -> io::Result<Vec<u8>> {
        let path = self.recording_path(&recording.conversation, &recording.id, SOUND);
        let data = self.seal.unseal_bytes(&path, fs::read(&path)?)?;
        if Digest(Sha256::digest(&data).into()) == recording.digest {
            Ok(data)
        } else {
            Err(io::Error::other("a recording is not what was accepted"))
        }
    }

    /// Those that wait, in the order in which they came. What was not accepted is removed.
    pub(super) fn pending_recordings(&self) -> io::Result<Vec<VoiceRecording>> {
        let found = match fs::read_dir(&self.folder) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all: Vec<VoiceRecording> = Vec::new();
        for entry in found {
            let path = entry?.path();
            match path.extension().and_then(|kind| kind.to_str()) {
                Some(NOTE) => {
                    let note = self.seal.unseal_bytes(&path, fs::read(&path)?)?;
                    all.push(serde_json::from_slice(&note).map_err(io::Error::other)?);
                }
                Some(PART | "new") => fs::remove_file(&path)?,
                Some(_) | None => {}
            }
        }
        all.sort_by_key(|recording| recording.at);
        Ok(all)
    }

    /// It waits no more. The sound goes, unless it could not be understood.
    pub(super) fn finish_recording(&self, recording: &VoiceRecording, keep: bool) {
        let path = |kind| self.recording_path(&recording.conversation, &recording.id, kind);
        let sound = path(SOUND);
        let removed = if keep {
            fs::remove_file(path(NOTE)).and_then(|()| self.prune_failed())
        } else {
            fs::remove_file(path(NOTE)).and_then(|()| fs::remove_file(&sound))
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "a recording can't be removed");
        }
    }

    fn prune_failed(&self) -> io::Result<()> {
        let mut kept: Vec<(std::time::SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if is_kept(&path) {
                kept.push((fs::metadata(&path)?.modified()?, path));
            }
        }
        kept.sort();
        let surplus = kept.len().saturating_sub(MAX_KEPT);
        kept.into_iter()
            .take(surplus)
            .try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// A sound whose note is gone.
fn is_kept(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == SOUND) && !path.with_extension(NOTE).exists()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use clawk_kernel::time::Timestamp;

    use super::{FileSeal, MAX_KEPT, RecordingStore, cluster_ms};
    use crate::adapter::PlatformMessage;

    fn now() -> Timestamp {
        static NOW: AtomicI64 = AtomicI64::new(1);
        Timestamp(NOW.fetch_add(1, Ordering::Relaxed))
    }

    fn of() -> PlatformMessage {
        PlatformMessage {
            conversation: "ann/x".to_owned(),
            sender: Some("ann".to_owned()),
            ..PlatformMessage::default()
        }
    }

    fn sealing() -> FileSeal {
        let key = clawk_recall::seal::SealKey::from_hex(&"ab".repeat(32)).unwrap();
        FileSeal::new(Some(clawk_recall::seal::SealKeyring::new(key)))
    }

    #[test]
    fn an_accepted_recording_outlives_the_process_and_what_was_not_accepted_goes() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("sound");
        let shelf = RecordingStore::new(at.clone(), 1 << 20, sealing());
        let take = |id: &str| {
            let mut taking = shelf.begin_recording("audio/pcm;rate=16000").unwrap();
            taking.push(&[1; 16_000]).unwrap();
            taking.push(&[2; 16_000]).unwrap();
            shelf.store_recording(taking, &of(), id, now()).unwrap()
        };
        let (one, two) = (take("b"), take("a"));
        assert_eq!(one.length_ms, 1_000);
        let mut cut = shelf.begin_recording("audio/wav").unwrap();
        cut.push(&[0; 100]).unwrap();
        std::mem::forget(cut);
        let again = RecordingStore::new(at.clone(), 1 << 20, sealing());
        assert_eq!(
            again.pending_recordings().unwrap(),
            [one.clone(), two.clone()],
            "in their order"
        );
        assert!(again.is_waiting("ann/x", "a") && !again.is_waiting("bob/x", "a"));
        assert_eq!(again.read_sound(&one).unwrap().len(), 32_000);
        for file in std::fs::read_dir(&at).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            assert!(clawk_recall::seal::is_sealed(&bytes), "no file is in plain");
        }
        again.finish_recording(&one, false);
        again.finish_recording(&two, true);
        assert_eq!(again.pending_recordings().unwrap(), []);
        assert_eq!(
            std::fs::read_dir(&at).unwrap().count(),
            1,
            "what was not understood is kept"
        );
        std::fs::write(again.recording_path("ann/x", "a", super::SOUND), "changed").unwrap();
        assert!(again.read_sound(&two).is_err());
        for n in 0..MAX_KEPT + 3 {
            again.finish_recording(&take(&n.to_string()), true);
        }
        assert_eq!(std::fs::read_dir(&at).unwrap().count(), MAX_KEPT);
    }

    #[test]
    fn what_is_too_large_too_long_or_of_another_kind_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = RecordingStore::new(folder.path().to_owned(), 20 << 20, FileSeal::default());
        for kind in [
            "audio/aiff",
            "audio/pcm",
            "audio/pcm;rate=1",
            "audio/pcm;rate=x",
            "text/html",
            "",
        ] {
            assert!(shelf.begin_recording(kind).is_err(), "{kind}");
        }
        let mut long = shelf.begin_recording("audio/pcm;rate=8000").unwrap();
        long.push(&vec![0; 16_000 * 300]).unwrap();
        assert!(long.push(&[0; 16_000]).unwrap_err().contains("5 minutes"));
        let mut large = RecordingStore::new(folder.path().to_owned(), 1 << 20, FileSeal::default())
            .begin_recording("audio/webm")
            .unwrap();
        assert!(large.push(&vec![0; (1 << 20) + 1]).unwrap_err().contains("1 MiB"));
        // WAV: 32,000 bytes a second.
        let mut wav = shelf.begin_recording("audio/wav").unwrap();
        let mut head = vec![0_u8; 44];
        head[28..32].copy_from_slice(&32_000_u32.to_le_bytes());
        wav.push(&head).unwrap();
        wav.push(&vec![0; 64_000]).unwrap();
        assert_eq!(wav.length_ms(), 2_001);
        assert!(
            shelf
                .store_recording(shelf.begin_recording("audio/wav").unwrap(), &of(), "x", now())
                .is_err(),
            "empty"
        );
        drop((long, large, wav));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_webm_file_says_its_time_in_its_clusters() {
        let mut bytes = vec![0x1A, 0x45, 0xDF, 0xA3, 0, 0];
        for ms in [0_u32, 5_000, 301_000] {
            bytes.extend([
                0x1F, 0x43, 0xB6, 0x75, 0x01, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
            ]);
            bytes.extend([0xE7, 0x84]);
            bytes.extend(ms.to_be_bytes());
            bytes.extend([0xA3, 1, 2, 3]);
        }
        assert_eq!(cluster_ms(&bytes), 301_000);
        assert_eq!(cluster_ms(&bytes[..30]), 0);
        assert_eq!(cluster_ms(b"\x1F\x43\xB6\x75"), 0);
    }
}
