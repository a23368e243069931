//! `--dir`: CKP through files (runtime profile §6.3). A file in `inbox/` is a message. Its answer goes to `outbox/` under the same
//! name. Then the message moves to `archive/`. A file that is not a valid message moves to `archive/bad/`, with the error beside
//! it.
//!
//! A request stays in the inbox until its answer is on the disk; while it is handled, its name ends in `….json.taken`. So after a
//! crash it is handled again, and its request id prevents a second execution.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_client::folder::{
    ARCHIVE, BAD, FolderWatcher, INBOX, MessageFileError, OUTBOX, list_messages, name, read, write_message,
};
use clawk_kernel::Role;
use clawk_kernel::time::Timestamp;
use clawk_proto::{ErrorCode, RpcError};
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::guests::{GuestClients, Kind, is_answer, no_id};
use crate::host::AgentHost;
use crate::transport::outbox::OutgoingMessages;

/// The largest number of files in progress; more wait in the inbox.
const IN_FLIGHT: usize = 8_192;
/// The largest number of files in one scan.
const ROUND: usize = 2 * IN_FLIGHT;
/// With this many unread files in the outbox, requests wait in the inbox.
const UNREAD: usize = 10_000;
/// With this many unread files in the outbox, no notifications are written.
const UNREAD_NOTICES: usize = 1_000;
/// How often a full outbox is checked.
const FULL: Duration = Duration::from_millis(250);
/// How long the shutdown waits for answers.
const FAREWELL: Duration = Duration::from_secs(10);
/// The suffix of a message that is being handled.
const TAKEN: &str = ".taken";
/// The archive is pruned after this many files.
const PRUNE_EVERY: usize = 256;

/// Settings of the folder door.
#[derive(Debug, Clone)]
pub struct FolderOptions {
    /// The role of its messages.
    pub role: Role,
    /// The folder, below the state directory, where sessions survive a restart.
    pub kept: PathBuf,
    /// Seals the stored answers, if the agent's stores are encrypted.
    pub vault: Option<clawk_recall::seal::SealKeyring>,
    /// The largest number of files in the archive; the oldest are deleted. 0: the archive keeps nothing.
    pub archived_files: usize,
}

/// Why a folder can't be served.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Every user of this machine could write messages.
    #[error("every user may write into `{}`; remove this right with `chmod o-w`", .0.display())]
    Open(PathBuf),
    /// The file system reported an error.
    #[error("can't use `{}`: {cause}", .folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The error.
        cause: io::Error,
    },
}

/// The door, ready to serve.
#[derive(Debug)]
pub struct FolderDoor(Arc<FolderDoorInner>);

#[derive(Debug)]
struct FolderDoorInner {
    inbox: PathBuf,
    outbox: PathBuf,
    archive: PathBuf,
    guests: GuestClients,
    options: FolderOptions,
    places: Arc<Semaphore>,
    /// Notified when a file has left the inbox.
    left: Notify,
    archived: Mutex<usize>,
}

impl FolderDoor {
    /// Creates `inbox`, `outbox` and `archive` where they are missing, readable by the owner only.
    ///
    /// # Errors
    /// The folder can't be used, or everybody may write into it.
    pub fn bind(folder: &Path, host: AgentHost, options: FolderOptions) -> Result<Self, FolderError> {
        let failed = |cause| FolderError::Io {
            folder: folder.to_owned(),
            cause,
        };
        let archive = folder.join(ARCHIVE);
        for part in [folder.join(INBOX), folder.join(OUTBOX), archive.join(BAD)] {
            let mut builder = fs::DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(&part).map_err(failed)?;
        }
        for part in [
            folder.to_owned(),
            folder.join(INBOX),
            folder.join(OUTBOX),
            archive.clone(),
        ] {
            let mode = fs::symlink_metadata(&part).map_err(failed)?.permissions().mode();
            if mode & 0o002 != 0 {
                return Err(FolderError::Open(part));
            }
        }
        let guests = GuestClients::new(
            host,
            "dir",
            options.role,
            (options.kept.clone(), options.vault.clone()),
        )
        .map_err(failed)?;
        Ok(Self(Arc::new(FolderDoorInner {
            inbox: folder.join(INBOX),
            outbox: folder.join(OUTBOX),
            archive,
            guests,
            options,
            places: Arc::new(Semaphore::new(IN_FLIGHT)),
            left: Notify::new(),
            archived: Mutex::default(),
        })))
    }

    /// Serves until `cancel`. Requests in flight may finish; unanswered ones stay in the inbox.
    pub async fn serve(self, cancel: CancellationToken) {
        let inner = self.0;
        let watch = FolderWatcher::new(&inner.inbox);
        inner.prune_archive();
        inner.take_again().await;
        while !cancel.is_cancelled() {
            tokio::select! {
                () = cancel.cancelled() => break,
                () = inner.process_inbox() => {}
            }
            tokio::select! {
                () = cancel.cancelled() => break,
                () = watch.wait_for_change() => {}
                () = inner.left.notified(), if inner.is_full() => {}
            }
        }
        inner.guests.close(FAREWELL).await;
    }
}

/// The name of a message while it is handled.
fn with_ending(file: &Path) -> PathBuf {
    let mut taken = file.as_os_str().to_owned();
    taken.push(TAKEN);
    taken.into()
}

impl FolderDoorInner {
    fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// The number of unread files in the outbox.
    fn count_unread(&self) -> usize {
        fs::read_dir(&self.outbox).map_or(0, Iterator::count)
    }

    /// Handles the files in the inbox, oldest first.
    async fn process_inbox(self: &Arc<Self>) {
        while self.count_unread() >= UNREAD {
            tokio::time::sleep(FULL).await;
        }
        let files = match list_messages(&self.inbox, ROUND) {
            Ok(files) => files,
            Err(error) => return tracing::warn!(%error, "the inbox can't be read"),
        };
        for file in files {
            let Some(name) = file.file_name().map(OsStr::to_owned) else {
                continue;
            };
            let taken = with_ending(&file);
            // The file is renamed first: a file with this name after a crash may have been executed.
            match fs::rename(&file, &taken) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    tracing::warn!(%error, "a message can't be taken");
                    continue;
                }
            }
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return;
            };
            self.process_file(&taken, name, None, place).await;
        }
    }

    /// Handles the files that an earlier process took but did not answer.
    async fn take_again(self: &Arc<Self>) {
        let names = fs::read_dir(&self.inbox).into_iter().flatten().flatten();
        let mut names: Vec<OsString> = names.map(|entry| entry.file_name()).collect();
        names.sort_unstable();
        for taken in names {
            let Some(name) = taken.to_str().and_then(|taken| taken.strip_suffix(TAKEN)) else {
                continue;
            };
            let file = self.inbox.join(&taken);
            // The rename changed `ctime`, so it is the time of the take.
            let since = fs::symlink_metadata(&file).map_or(0, |it| it.ctime());
            let age = self
                .guests
                .message_age(Timestamp(since.saturating_mul(1_000_000)));
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return;
            };
            self.process_file(&file, OsString::from(name), Some(age), place)
                .await;
        }
    }

    /// Handles one file. `again`: an earlier process took it this long ago.
    async fn process_file(
        self: &Arc<Self>,
        file: &Path,
        name: OsString,
        again: Option<Duration>,
        place: OwnedSemaphorePermit,
    ) {
        let most = self.guests.host().options().max_message_bytes;
        let message = match read(file, most) {
            Ok(message) => message,
            Err(MessageFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                let refusal = RpcError::new(ErrorCode::InvalidRequest, error.to_string())
                    .with(json!({"reason": "unreadable", "max_message_bytes": most}));
                return self.reject_file(file, &name, &refusal);
            }
        };
        let kind = Kind::from_message(&message);
        if let Kind::Bad(refusal) = &kind {
            return self.reject_file(file, &name, refusal);
        }
        if let Some(answer) = self.guests.earlier_answer("", &kind, again) {
            self.write(name.to_string_lossy().into_owned(), answer).await;
            return self.file_away(file, &self.archive, &name);
        }
        let delivered = match self
            .guests
            .deliver_message("", &kind, message.clone().into())
            .await
        {
            Ok(delivered) => delivered,
            Err(refusal) => return self.reject_file(file, &name, &refusal),
        };
        if let Some(notices) = delivered.notices {
            let inner = Arc::clone(self);
            self.guests
                .spawn_task(async move { inner.write_notices(&notices).await });
        }
        let (inner, file) = (Arc::clone(self), file.to_owned());
        self.guests.spawn_task(async move {
            inner
                .write_answers(
                    &file,
                    &name,
                    (&kind, &message),
                    (delivered.order, &delivered.outlet),
                )
                .await;
            drop(place);
            inner.left.notify_one();
        });
    }

    /// Writes the answer to a message, then moves the message to the archive.
    async fn write_answers(
        self: &Arc<Self>,
        file: &Path,
        name: &OsStr,
        (kind, message): (&Kind, &[u8]),
        (order, outlet): (u64, &OutgoingMessages),
    ) {
        let mut answered = *kind == Kind::Tells;
        while let Some(batch) = outlet.next().await {
            for line in batch.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let to = if is_answer(line) {
                    answered = true;
                    self.guests.keep_answer("", kind, line);
                    self.guests.note_answer("", kind, (order, message), line);
                    name.to_string_lossy().into_owned()
                } else {
                    self.fresh_name()
                };
                self.write(to, line.to_vec()).await;
            }
        }
        if answered {
            self.file_away(file, &self.archive, name);
        } else if !self.guests.is_closing() {
            // The session ended before it read the message: the next session takes it. silent-ok: it is taken again at the next
            // start
            let _back = fs::rename(file, self.inbox.join(name));
        }
    }

    /// Writes messages that answer no request. A client that does not read gets no more of them.
    async fn write_notices(self: &Arc<Self>, notices: &OutgoingMessages) {
        notices.set_heard(true);
        while let Some(batch) = notices.next().await {
            for line in batch.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                self.write(self.fresh_name(), line.to_vec()).await;
            }
            while self.count_unread() >= UNREAD_NOTICES {
                notices.set_heard(false);
                if tokio::time::timeout(FULL, notices.finished()).await.is_ok() {
                    return;
                }
            }
            notices.set_heard(true);
        }
    }

    fn fresh_name(&self) -> String {
        let clock = &self.guests.host().options().clock;
        let micros = u128::try_from(clock.now().0).unwrap_or(0);
        name(micros.saturating_mul(1000), &clock.new_uuid().to_string())
    }

    /// Writes a message durably.
    async fn write(self: &Arc<Self>, name: String, line: Vec<u8>) {
        let inner = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || write_message(&inner.outbox, &name, &line)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "an answer can't be written"),
            Err(error) => tracing::warn!(%error, "an answer was not written"),
        }
    }

    /// Answers a file that is not a valid message, and keeps it with the error beside it.
    fn reject_file(&self, file: &Path, name: &OsStr, refusal: &RpcError) {
        let shown = name.to_string_lossy();
        tracing::warn!(file = %shown, error = %refusal.message, "a file is not a message");
        let bad = self.archive.join(BAD);
        let told = write_message(&self.outbox, &shown, &no_id(refusal))
            .and_then(|()| write_message(&bad, &format!("{shown}.error"), &no_id(refusal)));
        if let Err(error) = told {
            tracing::warn!(%error, "an error can't be written");
        }
        self.file_away(file, &bad, name);
    }

    fn file_away(&self, file: &Path, to: &Path, name: &OsStr) {
        let moved = if self.options.archived_files == 0 && to == self.archive {
            fs::remove_file(file)
        } else {
            fs::rename(file, to.join(name))
        };
        if let Err(error) = moved {
            tracing::warn!(%error, "a message can't be archived");
        }
        let due = {
            let mut archived = self.archived.lock().unwrap_or_else(PoisonError::into_inner);
            *archived += 1;
            archived.is_multiple_of(PRUNE_EVERY)
        };
        if due {
            self.prune_archive();
        }
    }

    /// Deletes the oldest files above the limit.
    fn prune_archive(&self) {
        for folder in [self.archive.clone(), self.archive.join(BAD)] {
            let mut names: Vec<OsString> = fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
                .map(|entry| entry.file_name())
                .collect();
            names.sort_unstable();
            let surplus = names.len().saturating_sub(self.options.archived_files);
            for name in names.into_iter().take(surplus) {
                // silent-ok: the next prune tries again
                let _gone = fs::remove_file(folder.join(name));
            }
        }
    }
}
