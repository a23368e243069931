//! Messages as files (runtime profile §6.3): `inbox/` holds requests, `outbox/` answers and notifications, `archive/` handled
//! messages. A file is written as `NAME.json.tmp` and then renamed, so that nobody reads half of a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

/// The folder of requests.
pub const INBOX: &str = "inbox";
/// The folder of answers and notifications.
pub const OUTBOX: &str = "outbox";
/// The folder of handled messages.
pub const ARCHIVE: &str = "archive";
/// The folder below [`ARCHIVE`] for files that are not valid messages.
pub const BAD: &str = "bad";
/// The suffix of a message's file.
const ENDING: &str = ".json";
/// How often a folder is polled if the kernel does not report changes.
const POLL: Duration = Duration::from_millis(100);
/// How often a folder is checked although the kernel reports changes: a report can be lost.
const LOOK: Duration = Duration::from_secs(2);

/// Why a file could not be read as a message.
#[derive(Debug, thiserror::Error)]
pub enum MessageFileError {
    /// The file is longer than a message may be.
    #[error("it has more than {0} bytes")]
    TooLong(usize),
    /// It is a link, a device, a pipe or a folder.
    #[error("it is not a regular file")]
    NotAFile,
    /// The file system reported an error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The file name of a new message: `{timestamp_ns}-{request_id}.json`. Names sort by time.
#[must_use]
pub fn name(timestamp_ns: u128, request_id: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let id: String = request_id.chars().filter(|c| plain(*c)).take(64).collect();
    format!("{timestamp_ns:020}-{id}{ENDING}")
}

/// Writes a message completely, or leaves nothing that a reader would see.
///
/// # Errors
/// The file system reports an error.
pub fn write_message(folder: &Path, name: &str, message: &[u8]) -> io::Result<()> {
    let (temporary, last) = (folder.join(format!("{name}.tmp")), folder.join(name));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o660)
        .custom_flags(no_follow())
        .open(&temporary)?;
    file.write_all(message)?;
    file.sync_data()?;
    fs::rename(&temporary, &last)
}

/// Reads a message.
///
/// # Errors
/// It is not a file of at most `max_bytes`, or can't be read.
pub fn read(path: &Path, max_bytes: usize) -> Result<Vec<u8>, MessageFileError> {
    let file = open_message(path)?;
    if !file.metadata()?.is_file() {
        return Err(MessageFileError::NotAFile);
    }
    let most = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > max_bytes {
        return Err(MessageFileError::TooLong(max_bytes));
    }
    Ok(bytes)
}

/// Opens a file without following a link and without blocking on a pipe.
fn open_message(path: &Path) -> Result<File, MessageFileError> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(no_follow() | nonblocking_flag())
        .open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => MessageFileError::NotAFile,
        Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => MessageFileError::NotAFile,
        Some(_) | None => error.into(),
    })
}

fn no_follow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0)
}

fn nonblocking_flag() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0)
}

/// The messages in a folder, oldest first, at most `most`. Files that are still being written are not included.
///
/// # Errors
/// The folder can't be read.
pub fn list_messages(folder: &Path, most: usize) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        if !hidden && name.as_encoded_bytes().ends_with(ENDING.as_bytes()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    names.truncate(most);
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// Reports possible new files in a folder: with inotify, or by polling where inotify does not work (some network file systems).
#[derive(Debug)]
pub struct FolderWatcher(Option<AsyncFd<OwnedFd>>);

impl FolderWatcher {
    /// Watches a folder. Call it inside a runtime, and list the folder afterwards.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let made = || -> io::Result<AsyncFd<OwnedFd>> {
            let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
            let wanted = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CLOSE_WRITE;
            inotify::add_watch(&fd, folder, wanted)?;
            #[expect(
                deprecated,
                reason = "the other way is unsafe; an `OwnedFd` owns its descriptor, which is what is asked for"
            )]
            AsyncFd::new(fd)
        };
        match made() {
            Ok(fd) => Self(Some(fd)),
            Err(error) => {
                tracing::warn!(%error, "a folder is polled: the kernel does not tell of its changes");
                Self(None)
            }
        }
    }

    /// A watcher that only polls.
    #[must_use]
    pub const fn new_polling() -> Self {
        Self(None)
    }

    /// Completes when there may be new files, and in any case after a while. Cancelling loses nothing.
    pub async fn wait_for_change(&self) {
        let Some(fd) = &self.0 else {
            return tokio::time::sleep(POLL).await;
        };
        let told = async {
            let Ok(mut ready) = fd.readable().await else {
                return tokio::time::sleep(POLL).await;
            };
            let mut events = [0_u8; 4096];
            // The content of the events does not matter, because the caller lists the folder.
            while rustix::io::read(fd.get_ref(), &mut events[..]).is_ok_and(|read| read > 0) {}
            ready.clear_ready();
        };
        // silent-ok: after a while the folder is checked in any case
        let _told = tokio::time::timeout(LOOK, told).await;
    }
}
