//! A state directory: its lock, its settings and its contents.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use clawk_recall::keys::Keys;
use clawk_recall::reseal::ResealReport;

use crate::answers::AnswerIndex;
use crate::append::SqliteChainTips;
use crate::blobs::BlobStore;
use crate::error::StateError;
use crate::journal::SqliteJournal;
use crate::memory::SqliteMemory;
use crate::queue::{Bounds, SqliteWriterQueue};
use crate::reader::StateReaderPool;
use crate::seal;
use crate::writer::{SqliteWriterCounters, Writer, limit_size};
use crate::{check, schema};

/// When a write counts as completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteDurability {
    /// It survives a power failure: one disk sync per group.
    #[default]
    Durable,
    /// It survives a crash of the process, but maybe not of the machine.
    Relaxed,
}

impl WriteDurability {
    pub(crate) const fn synchronous_pragma(self) -> &'static str {
        match self {
            Self::Durable => "FULL",
            Self::Relaxed => "NORMAL",
        }
    }
}

/// Options for opening a state directory.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// When a write counts as completed.
    pub durability: WriteDurability,
    /// The largest number of queued entries; above it, work is refused.
    pub queue_entries: usize,
    /// The largest size of queued entries, bytes.
    pub queue_bytes: usize,
    /// The largest size of the database, bytes; `None`: only the disk limits it.
    pub max_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: WriteDurability::Durable,
            queue_entries: 65_536,
            queue_bytes: 64 * 1024 * 1024,
            max_bytes: None,
        }
    }
}

/// Counters of the writer since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriterStats {
    /// The number of transactions.
    pub commits: u64,
    /// The number of events in them.
    pub entries: u64,
}

/// An open state directory with its lock. One process owns it at a time; dropping the last handle closes it.
#[derive(Debug, Clone)]
pub struct StateDir {
    pub(crate) inner: Arc<StateDirInner>,
}

#[derive(Debug)]
pub(crate) struct StateDirInner {
    path: PathBuf,
    pub(crate) queue: Arc<SqliteWriterQueue>,
    pub(crate) counters: Arc<SqliteWriterCounters>,
    pub(crate) readers: StateReaderPool,
    pub(crate) blobs: BlobStore,
    pub(crate) answers: Arc<AnswerIndex>,
    pub(crate) reseal_report: ResealReport,
    thread: Mutex<Option<JoinHandle<()>>>,
    lock: Mutex<Option<File>>,
}

impl StateDir {
    /// Opens or creates the directory (mode 0700), locks it, migrates its database and verifies its chains from their marks.
    ///
    /// # Errors
    /// Another process uses it, a later version wrote it, a chain is broken, or the file system or SQLite reports an error.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, StateError> {
        Self::open_with(path, options, None)
    }

    /// As [`StateDir::open`], with the key of encrypted stores. Content that is not sealed with the key yet is sealed before this
    /// returns. So the first start with a new key takes as long as reading and writing everything.
    ///
    /// # Errors
    /// As [`StateDir::open`]; or the key is missing or wrong.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: Options,
        keys: Option<Keys>,
    ) -> Result<Self, StateError> {
        let path = path.as_ref().to_owned();
        make_private(&path)?;
        refuse_links(&path)?;
        let lock = take_lock(&path)?;
        if let Some(to) = crate::moving::moved_to(&path)? {
            return Err(StateError::Moved { path, to });
        }
        make_private(&path.join("blobs"))?;
        let database = path.join("state.db");
        let connection = schema::open_writer(&database, options.durability)?;
        fs::set_permissions(&database, Permissions::from_mode(0o600))
            .map_err(StateError::io_error("can't protect", &database))?;
        check::verify_chains(&connection, &path, &database)?;
        let counters = Arc::new(SqliteWriterCounters::default());
        counters
            .max_bytes
            .store(options.max_bytes.unwrap_or(0), Ordering::Relaxed);
        limit_size(&connection, options.max_bytes.unwrap_or(0))
            .map_err(StateError::database_error(&database))?;
        let queue = Arc::new(SqliteWriterQueue::new(Bounds {
            entries: options.queue_entries,
            bytes: options.queue_bytes,
            group_entries: 2048,
            group_bytes: 2 * 1024 * 1024,
        }));
        let blobs = BlobStore::new(&path);
        let settled = seal::settle_keys(&connection, &database, &blobs, keys)?;
        let blobs = blobs.sealed_by(settled.seals);
        crate::erase::finish_erasures(&connection, &blobs).map_err(StateError::database_error(&database))?;
        let answers =
            Arc::new(AnswerIndex::load(&connection).map_err(StateError::database_error(&database))?);
        let writer = Writer {
            database: database.clone(),
            durability: options.durability,
            blobs: blobs.clone(),
            queue: queue.clone(),
            counters: counters.clone(),
            answers: answers.clone(),
            tips: SqliteChainTips::default(),
            connection: Some(connection),
        };
        let thread = std::thread::Builder::new()
            .name("clawk-journal".to_owned())
            .spawn(move || writer.run())
            .map_err(StateError::io_error(
                "can't start the journal's thread for",
                &path,
            ))?;
        let readers = StateReaderPool::new(database, blobs.clone());
        let (thread, lock) = (Mutex::new(Some(thread)), Mutex::new(Some(lock)));
        Ok(Self {
            inner: Arc::new(StateDirInner {
                path,
                queue,
                counters,
                readers,
                blobs,
                answers,
                reseal_report: settled.report,
                thread,
                lock,
            }),
        })
    }

    /// The path of the state directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The journal of this directory.
    #[must_use]
    pub fn journal(&self) -> Arc<SqliteJournal> {
        Arc::new(SqliteJournal::new(self.inner.clone()))
    }

    /// The memory stores of this directory.
    #[must_use]
    pub fn memory(&self) -> Arc<SqliteMemory> {
        Arc::new(SqliteMemory::new(self.inner.clone()))
    }

    /// The counters of the writer.
    #[must_use]
    pub fn stats(&self) -> WriterStats {
        let counters = &self.inner.counters;
        WriterStats {
            commits: counters.commits.load(Ordering::Relaxed),
            entries: counters.entries.load(Ordering::Relaxed),
        }
    }

    /// A counter that changes after each commit with events. It wakes readers.
    #[must_use]
    pub fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.counters.committed.subscribe()
    }

    /// Changes [`Options::max_bytes`]; 0 means no limit. A journal that was full soon tries again.
    pub fn set_max_bytes(&self, bytes: u64) {
        self.inner.counters.max_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Finishes queued writes, marks the chains as verified, and releases the lock. Later writes are refused. Blocks.
    pub fn close(&self) {
        self.inner.close();
    }
}

impl StateDirInner {
    fn close(&self) {
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the journal's thread ended by a panic");
        }
        self.readers.close();
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for StateDirInner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Creates the directory, or removes other users' rights to it.
pub(crate) fn make_private(path: &Path) -> Result<(), StateError> {
    if path.is_dir() {
        let mode = fs::metadata(path)
            .map_err(StateError::io_error("can't look at", path))?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            fs::set_permissions(path, Permissions::from_mode(0o700))
                .map_err(StateError::io_error("can't protect", path))?;
        }
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(StateError::io_error("can't make the directory", path))
}

/// Refuses symbolic links in the directory: it may come from a cloned repository, and a link would redirect our writes.
fn refuse_links(state: &Path) -> Result<(), StateError> {
    for folder in [state.to_owned(), state.join("keys"), state.join("blobs")] {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(StateError::io_error("can't look at", &folder)(e)),
        };
        for entry in entries {
            let entry = entry.map_err(StateError::io_error("can't look at", &folder))?;
            let kind = entry
                .file_type()
                .map_err(StateError::io_error("can't look at", &folder))?;
            if kind.is_symlink() {
                let why = std::io::Error::other(
                    "a state directory holds no links; remove it, or name another directory with --state",
                );
                return Err(StateError::io_error("refused the link", &entry.path())(why));
            }
        }
    }
    Ok(())
}

/// Creates a database file that only its owner may read, if it does not exist. SQLite gives the files beside it the same mode.
pub(crate) fn make_private_file(path: &Path) -> Result<(), StateError> {
    let mut open = OpenOptions::new();
    open.write(true).create(true).truncate(false).mode(0o600);
    open.open(path)
        .map(drop)
        .map_err(StateError::io_error("can't make", path))
}

/// Takes the lock, which lasts as long as the file is open. The process id in the file is only for the error message.
fn take_lock(state: &Path) -> Result<File, StateError> {
    let path = state.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(StateError::io_error("can't open the lock file", &path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // silent-ok: without it the message only lacks the process id
            let _ = (&mut file).take(32).read_to_string(&mut pid);
            let holder = match pid.trim().parse::<u32>() {
                Ok(pid) => format!("process {pid}"),
                Err(_) => "another process".to_owned(), // silent-ok: the lock was just taken
            };
            return Err(StateError::Locked {
                path: state.to_owned(),
                holder,
            });
        }
        Err(TryLockError::Error(source)) => {
            return Err(StateError::Io {
                what: "can't lock",
                path,
                source,
            });
        }
    }
    let write = || -> std::io::Result<()> {
        file.set_len(0)?;
        writeln!(&mut (&file), "{}", std::process::id())
    };
    write().map_err(StateError::io_error("can't write the lock file", &path))?;
    Ok(file)
}
