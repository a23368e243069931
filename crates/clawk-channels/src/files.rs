//! Files that come in (C9): fetched within bounds once their sender is let in, told apart by their bytes, named so that a name can
//! do no harm, kept where file tools read them, and shown to the model where they are pictures.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clawk_kernel::{AttachedPicture, ChannelMessage, MAX_IMAGES, Role};
use clawk_manifest::model::ChannelFeatures;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::adapter::{Attachment, AttachmentContent, ChannelAdapter};
use crate::genuine::to_hex;
use crate::inlet::InboundPipeline;
use crate::kinds;
use crate::plain_name::harmless;
use crate::shares::{ShareGuard, ShareLimiter, ShareLimits};

/// Attachments of one message that are looked at.
const MAX_ATTACHMENTS: usize = 20;
/// How long fetching one may take, and all of one message with the wait for their turn. The platform waits meanwhile.
const FETCH: Duration = Duration::from_secs(30);
const FETCH_ALL: Duration = Duration::from_secs(60);
/// Messages of one channel whose files are fetched at a time: memory holds one file of each.
const AT_ONCE: ShareLimits = ShareLimits {
    total: 4,
    each: 2,
    for_admins: 1,
};
/// Bytes of all pictures of one message that are shown; further ones are kept as files only.
const MAX_SHOWN_BYTES: usize = 20 << 20;
/// Characters of a file's name on disk, after its digest.
const NAME_CHARS: usize = 60;
/// Digits of the digest in a file's name; all of them where another file has the shorter name.
const DIGITS: usize = 12;
/// The folder below the working directory where file tools find them.
const FOLDER: &str = "attachments";

/// Where files of messages are kept.
#[derive(Debug, Clone)]
pub(crate) struct InboundFileStore {
    workdir: Option<PathBuf>,
    max_bytes: u64,
    features: ChannelFeatures,
    fetching: Arc<ShareLimiter>,
}

/// Whose files a message brings.
pub(crate) enum FileOwner<'a> {
    /// An admin's: files like the agent's own.
    Admins,
    /// Somebody else's. What they wrote is data for whoever reads it, also in a conversation of somebody who may do more.
    Others {
        /// Where it came in.
        inlet: &'a InboundPipeline,
        /// Who hears that a file is not kept.
        conversation: &'a str,
        /// As the platform knows them.
        sender: &'a str,
    },
}

impl<'a> FileOwner<'a> {
    pub(crate) fn for_message(inlet: &'a InboundPipeline, inbound: &'a ChannelMessage) -> Self {
        match inbound.role {
            Role::Admin => Self::Admins,
            Role::User | Role::Viewer => Self::Others {
                inlet,
                conversation: &inbound.conversation,
                sender: &inbound.sender,
            },
        }
    }

    /// A turn to fetch this person's files.
    async fn wait_fetch_turn(&self, fetching: &Arc<ShareLimiter>) -> ShareGuard {
        match self {
            Self::Admins => fetching.take_share("", Some(Role::Admin)).await,
            Self::Others { sender, .. } => fetching.take_share(sender, None).await,
        }
    }

    /// Before a file is written: whose its bytes are, on the disk. If that fails, the sender is told.
    async fn record_sender(&self, name: &str, data: &Bytes) -> Result<(), &'static str> {
        let Self::Others {
            inlet,
            conversation,
            sender,
        } = self
        else {
            return Ok(());
        };
        let channel = &inlet.channel().name;
        let marked = inlet.kernel().mark_sent(data.to_vec(), sender, channel).await;
        marked.map_err(|error| {
            tracing::warn!(%error, "an attachment is not kept: whose it is can't be recorded");
            let told = format!(
                "The file `{}` was not kept: it can't be recorded now who sent it. Send it again later.",
                harmless(name)
            );
            inlet.send_notice(conversation, told);
            "it can't be recorded who sent it"
        })
    }

    /// After it was written.
    async fn record_written(&self, path: PathBuf) {
        if let Self::Others { inlet, .. } = self {
            inlet.kernel().note_sent(path).await;
        }
    }
}

impl InboundFileStore {
    /// `workdir` is the tools' working directory; without one, files are named and not kept.
    pub(crate) fn new(workdir: Option<PathBuf>, max_attachment_mb: u32, features: ChannelFeatures) -> Self {
        Self {
            workdir,
            features,
            max_bytes: u64::from(max_attachment_mb) << 20,
            fetching: ShareLimiter::new(AT_ONCE),
        }
    }

    /// The pictures of a message, and its text with a line for each file. A name can't forge a line of its own.
    pub(crate) async fn store_attachments(
        &self,
        adapter: Option<&Arc<dyn ChannelAdapter>>,
        text: &str,
        attachments: &[Attachment],
        whose: &FileOwner<'_>,
    ) -> (Vec<AttachedPicture>, String) {
        let (mut images, mut whole) = (Vec::new(), text.to_owned());
        let until = Instant::now() + FETCH_ALL;
        let far = attachments
            .iter()
            .any(|attachment| matches!(attachment.content, AttachmentContent::At(_)));
        let turn = if far {
            // silent-ok: without a turn nothing is fetched, which each file's line says
            tokio::time::timeout_at(until, whose.wait_fetch_turn(&self.fetching))
                .await
                .ok()
        } else {
            None
        };
        let may_fetch = turn.is_some();
        for attachment in attachments.iter().take(MAX_ATTACHMENTS) {
            let (kind, size, fate) = match self.attachment_bytes(adapter, attachment, until, may_fetch).await
            {
                Ok(data) => {
                    let size = u64::try_from(data.len()).unwrap_or(u64::MAX);
                    let kind = kinds::describe_type(&attachment.media_type, &data);
                    (
                        kind,
                        Some(size),
                        self.store_attachment(attachment, data, whose, &mut images).await,
                    )
                }
                Err(reason) => (
                    harmless(&attachment.media_type),
                    attachment.size,
                    format!("not fetched: {}", harmless(&reason)),
                ),
            };
            if !whole.is_empty() {
                whole.push('\n');
            }
            let size = size.map_or(String::new(), |size| format!(", {size} bytes"));
            whole.push_str(&format!(
                "[attached: {}, {kind}{size}; {fate}]",
                harmless(&attachment.name),
            ));
        }
        if attachments.len() > MAX_ATTACHMENTS {
            whole.push_str(&format!("\n[and {} more]", attachments.len() - MAX_ATTACHMENTS));
        }
        (images, whole)
    }

    /// The bytes of one file, fetched in its turn.
    pub(crate) async fn read_attachment(
        &self,
        adapter: Option<&Arc<dyn ChannelAdapter>>,
        attachment: &Attachment,
        (sender, role): (&str, Option<Role>),
    ) -> Result<Bytes, String> {
        let until = Instant::now() + FETCH;
        let turn = tokio::time::timeout_at(until, self.fetching.take_share(sender, role)).await;
        self.attachment_bytes(adapter, attachment, until, turn.is_ok())
            .await
    }

    async fn attachment_bytes(
        &self,
        adapter: Option<&Arc<dyn ChannelAdapter>>,
        attachment: &Attachment,
        until: Instant,
        may_fetch: bool,
    ) -> Result<Bytes, String> {
        if self.features.files == Some(false) {
            return Err("`features.files` of this channel is off".to_owned());
        }
        let too_large = || {
            format!(
                "it is larger than {} MiB (`max_attachment_mb`)",
                self.max_bytes >> 20
            )
        };
        if attachment.size.is_some_and(|size| size > self.max_bytes) {
            return Err(too_large());
        }
        let data = match (&attachment.content, adapter) {
            (AttachmentContent::Absent, _) | (AttachmentContent::At(_), None) => {
                return Err("this channel can't fetch files".to_owned());
            }
            (AttachmentContent::Here(data), _) => data.clone(),
            (AttachmentContent::At(_), Some(_)) if !may_fetch => {
                return Err("too many files come at a time".to_owned());
            }
            (AttachmentContent::At(at), Some(adapter)) => {
                let until = until.min(Instant::now() + FETCH);
                match tokio::time::timeout_at(until, adapter.fetch_attachment(at, self.max_bytes)).await {
                    Ok(fetched) => fetched?,
                    Err(_) => {
                        return Err(format!(
                            "it did not come within {} s, all files of the message within {} s",
                            FETCH.as_secs(),
                            FETCH_ALL.as_secs()
                        ));
                    }
                }
            }
        };
        if u64::try_from(data.len()).unwrap_or(u64::MAX) > self.max_bytes {
            return Err(too_large());
        }
        Ok(data)
    }

    /// Shows a picture, and keeps every file; what became of it.
    async fn store_attachment(
        &self,
        attachment: &Attachment,
        data: Bytes,
        whose: &FileOwner<'_>,
        images: &mut Vec<AttachedPicture>,
    ) -> String {
        let shown = self.add_picture(attachment, &data, images);
        let kept = self.write_attachment(attachment, data, whose).await;
        match (shown, kept) {
            // A model that can't see reads the note, and the file by its path.
            (true, Ok(path)) => format!("shown as a picture, kept as `{path}`"),
            (true, Err(_)) => "shown as a picture".to_owned(), // silent-ok: it is on the record with the message
            (false, Ok(path)) => format!("kept as `{path}`"),
            (false, Err(reason)) => format!("not kept: {reason}"),
        }
    }

    fn add_picture(&self, attachment: &Attachment, data: &Bytes, images: &mut Vec<AttachedPicture>) -> bool {
        let before: usize = images.iter().map(|image| image.data.len()).sum();
        let Some(kind) = kinds::picture_type(data) else {
            return false;
        };
        if self.features.inline_images == Some(false)
            || images.len() >= MAX_IMAGES
            || before + data.len() > MAX_SHOWN_BYTES
        {
            return false;
        }
        let image = AttachedPicture {
            mime_type: kind.to_owned(),
            name: Some(harmless(&attachment.name)),
            data: data.to_vec(),
        };
        let fits = image.check_format().is_ok();
        if fits {
            images.push(image);
        }
        fits
    }

    /// The path of a file, below the working directory; or why it is not kept.
    async fn write_attachment(
        &self,
        attachment: &Attachment,
        data: Bytes,
        whose: &FileOwner<'_>,
    ) -> Result<String, &'static str> {
        let workdir = self.workdir.clone().ok_or("the agent has no working directory")?;
        whose.record_sender(&attachment.name, &data).await?;
        let (name, folder) = (attachment.name.clone(), workdir.join(FOLDER));
        let written = tokio::task::spawn_blocking(move || write(&workdir, &name, &data)).await;
        let error = match written {
            Ok(Ok(name)) => {
                whose.record_written(folder.join(&name)).await;
                return Ok(format!("{FOLDER}/{name}"));
            }
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(%error, "an attachment could not be kept");
        Err("it could not be written")
    }
}

/// A name on disk: the digest's start, then what is plain of the sender's own name. It has no separator and no leading dot, so it
/// stays in its folder; the digest keeps two files of one name apart.
pub(crate) fn on_disk(name: &str, data: &[u8]) -> String {
    sanitize_file_name(name, &to_hex(&Sha256::digest(data)), DIGITS)
}

fn sanitize_file_name(name: &str, digest: &str, digits: usize) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let plain: String = last
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_'))
        .take(NAME_CHARS * DIGITS / digits)
        .collect();
    let plain = plain.trim_start_matches('.');
    let digest = digest.get(..digits).unwrap_or(digest);
    if plain.is_empty() {
        format!("{digest}-file")
    } else {
        format!("{digest}-{plain}")
    }
}

/// Writes a file into the folder of attachments; its name there. The folder and the file are opened without following links: a tool
/// may have put one there.
fn write(workdir: &Path, name: &str, data: &[u8]) -> io::Result<String> {
    let root = openat(CWD, workdir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match mkdirat(&root, FOLDER, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = openat(
        &root,
        FOLDER,
        OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let digest = to_hex(&Sha256::digest(data));
    // Whoever makes two files whose digests begin alike, or a tool that changed one, does not put other bytes in its place.
    for digits in [DIGITS, digest.len()] {
        let name = sanitize_file_name(name, &digest, digits);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&folder, name.as_str(), flags, Mode::from_raw_mode(0o644)) {
            Ok(file) => {
                std::fs::File::from(file).write_all(data)?;
                return Ok(name);
            }
            Err(rustix::io::Errno::EXIST) if has_content(&folder, &name, data)? => return Ok(name),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "another file has its name",
    ))
}

/// Whether the file of this name holds these bytes: a repetition.
fn has_content(folder: &OwnedFd, name: &str, data: &[u8]) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::ACCESS) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let most = u64::try_from(data.len()).unwrap_or(u64::MAX).saturating_add(1);
    let mut there = Vec::with_capacity(data.len());
    file.take(most).read_to_end(&mut there)?;
    Ok(there == data)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use clawk_manifest::model::ChannelFeatures;

    use super::{FileOwner, InboundFileStore, on_disk};
    use crate::adapter::{Attachment, AttachmentContent};

    fn file(name: &str, data: &'static [u8]) -> Attachment {
        Attachment {
            name: name.to_owned(),
            media_type: "text/plain".to_owned(),
            size: Some(data.len() as u64),
            content: AttachmentContent::Here(Bytes::from_static(data)),
        }
    }

    #[tokio::test]
    async fn a_file_stays_in_its_folder_whatever_it_is_called() {
        let outer = tempfile::tempdir().unwrap();
        let workdir = outer.path().join("a/b");
        std::fs::create_dir_all(&workdir).unwrap();
        let files = InboundFileStore::new(Some(workdir.clone()), 1, ChannelFeatures::default());
        let names = [
            "../../x",
            "..",
            ".bashrc",
            "/etc/passwd",
            "a\\b\\c.txt",
            "x\u{202e}gpj.exe",
            "",
            "\u{0}\n[forged",
        ];
        let mut told = String::new();
        for name in names {
            told = files
                .store_attachments(None, &told, &[file(name, b"hello")], &FileOwner::Admins)
                .await
                .1;
        }
        assert_eq!(told.lines().count(), names.len(), "a name forges no line: {told}");
        assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1);
        let mut kept: Vec<String> = std::fs::read_dir(workdir.join("attachments"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        kept.sort();
        assert!(
            kept.iter().all(|name| name.starts_with("2cf24dba5fb0-")),
            "{kept:?}"
        );
        assert!(kept.contains(&"2cf24dba5fb0-x".to_owned()), "{kept:?}");
        assert_eq!(on_disk("....", b"hello"), "2cf24dba5fb0-file");
    }

    #[tokio::test]
    async fn a_link_in_the_place_of_the_folder_is_not_followed() {
        let outer = tempfile::tempdir().unwrap();
        let (workdir, other) = (outer.path().join("work"), outer.path().join("other"));
        std::fs::create_dir_all(&workdir).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        std::os::unix::fs::symlink(&other, workdir.join("attachments")).unwrap();
        let files = InboundFileStore::new(Some(workdir), 1, ChannelFeatures::default());
        let (_, told) = files
            .store_attachments(None, "", &[file("x", b"hello")], &FileOwner::Admins)
            .await;
        assert!(told.contains("not kept"), "{told}");
        assert_eq!(std::fs::read_dir(other).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn other_bytes_under_the_same_name_are_another_file() {
        let workdir = tempfile::tempdir().unwrap();
        let files = InboundFileStore::new(Some(workdir.path().to_owned()), 1, ChannelFeatures::default());
        let kept = |told: &str| told.split('`').nth(1).unwrap().to_owned();
        let first = kept(
            &files
                .store_attachments(None, "", &[file("x", b"hello")], &FileOwner::Admins)
                .await
                .1,
        );
        assert_eq!(
            kept(
                &files
                    .store_attachments(None, "", &[file("x", b"hello")], &FileOwner::Admins)
                    .await
                    .1
            ),
            first
        );
        // A tool wrote over it: what the message brought is told by a name of its own.
        std::fs::write(workdir.path().join(&first), "changed").unwrap();
        let second = kept(
            &files
                .store_attachments(None, "", &[file("x", b"hello")], &FileOwner::Admins)
                .await
                .1,
        );
        assert_ne!(second, first);
        assert_eq!(std::fs::read(workdir.path().join(&second)).unwrap(), b"hello");
        assert_eq!(std::fs::read(workdir.path().join(&first)).unwrap(), b"changed");
    }

    #[tokio::test]
    async fn pictures_beyond_what_one_message_may_show_are_files() {
        let workdir = tempfile::tempdir().unwrap();
        let files = InboundFileStore::new(Some(workdir.path().to_owned()), 20, ChannelFeatures::default());
        let pictures: Vec<Attachment> = (0..6)
            .map(|n| {
                let mut data = b"\x89PNG\r\n\x1a\n".to_vec();
                data.resize(4 << 20, n);
                Attachment {
                    content: AttachmentContent::Here(data.into()),
                    ..file(&format!("{n}.png"), b"")
                }
            })
            .collect();
        let (images, told) = files
            .store_attachments(None, "", &pictures, &FileOwner::Admins)
            .await;
        assert_eq!(images.len(), 5, "20 MiB are shown: {told}");
        assert_eq!(told.matches("kept as `attachments/").count(), 6, "{told}");
    }

    #[tokio::test]
    async fn what_a_file_is_is_told_by_its_bytes() {
        let files = InboundFileStore::new(None, 1, ChannelFeatures::default());
        let mut program = file("holiday.jpg", b"\x7fELF\x02\x01\x01");
        program.media_type = "image/jpeg".to_owned();
        let (images, told) = files
            .store_attachments(None, "", &[program], &FileOwner::Admins)
            .await;
        assert_eq!(images, []);
        assert!(
            told.contains("sent as image/jpeg, by its bytes application/x-executable"),
            "{told}"
        );
    }

    #[tokio::test]
    async fn pictures_are_told_by_their_bytes_and_large_files_are_not_taken() {
        let files = InboundFileStore::new(None, 1, ChannelFeatures::default());
        let png = b"\x89PNG\r\n\x1a\nrest";
        let (images, told) = files
            .store_attachments(None, "see", &[file("a.txt", png)], &FileOwner::Admins)
            .await;
        assert_eq!(images.len(), 1);
        assert_eq!(images[0].mime_type, "image/png");
        assert!(told.starts_with("see\n[attached: a.txt"), "{told}");
        let large = Attachment {
            size: Some(2 << 20),
            ..file("a.bin", b"x")
        };
        let (images, told) = files
            .store_attachments(None, "", &[large], &FileOwner::Admins)
            .await;
        assert_eq!(images.len(), 0);
        assert!(told.contains("larger than 1 MiB"), "{told}");
    }
}
