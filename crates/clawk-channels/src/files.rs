//! Files that come in (C9): fetched within bounds once their sender is let in, named so that a name can do no harm, shown to the
//! model as pictures or kept where file tools read them.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clawk_kernel::{Attached, MAX_IMAGES};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use sha2::{Digest as _, Sha256};

use crate::adapter::{Adapter, Attachment, Content};
use crate::genuine::hex;
use crate::inlet::harmless;

/// Attachments of one message that are looked at.
const MAX_ATTACHMENTS: usize = 20;
/// How long fetching one may take.
const FETCH: Duration = Duration::from_secs(30);
/// Characters of a file's name on disk, after its digest.
const NAME_CHARS: usize = 60;
/// The folder below the working directory where file tools find them.
const FOLDER: &str = "attachments";

/// Where files of messages are kept.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    workdir: Option<PathBuf>,
    max_bytes: u64,
}

impl Files {
    /// `workdir` is the tools' working directory; without one, files that are not pictures are named and not kept.
    pub(crate) fn new(workdir: Option<PathBuf>, max_attachment_mb: u32) -> Self {
        Self {
            workdir,
            max_bytes: u64::from(max_attachment_mb) << 20,
        }
    }

    /// The pictures of a message, and its text with a line for each file. A name can't forge a line of its own.
    pub(crate) async fn take(
        &self,
        adapter: Option<&Arc<dyn Adapter>>,
        text: &str,
        attachments: &[Attachment],
    ) -> (Vec<Attached>, String) {
        let (mut images, mut whole) = (Vec::new(), text.to_owned());
        for attachment in attachments.iter().take(MAX_ATTACHMENTS) {
            let fate = match self.bytes(adapter, attachment).await {
                Ok(data) => self.keep(attachment, data, &mut images).await,
                Err(reason) => format!("not fetched: {}", harmless(&reason)),
            };
            if !whole.is_empty() {
                whole.push('\n');
            }
            let size = attachment
                .size
                .map_or(String::new(), |size| format!(", {size} bytes"));
            whole.push_str(&format!(
                "[attached: {}, {}{size}; {fate}]",
                harmless(&attachment.name),
                harmless(&attachment.media_type)
            ));
        }
        if attachments.len() > MAX_ATTACHMENTS {
            whole.push_str(&format!("\n[and {} more]", attachments.len() - MAX_ATTACHMENTS));
        }
        (images, whole)
    }

    async fn bytes(
        &self,
        adapter: Option<&Arc<dyn Adapter>>,
        attachment: &Attachment,
    ) -> Result<Bytes, String> {
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
            (Content::Absent, _) | (Content::At(_), None) => {
                return Err("this channel can't fetch files".to_owned());
            }
            (Content::Here(data), _) => data.clone(),
            (Content::At(at), Some(adapter)) => {
                match tokio::time::timeout(FETCH, adapter.fetch(at, self.max_bytes)).await {
                    Ok(fetched) => fetched?,
                    Err(_) => return Err(format!("it did not come within {} s", FETCH.as_secs())),
                }
            }
        };
        if u64::try_from(data.len()).unwrap_or(u64::MAX) > self.max_bytes {
            return Err(too_large());
        }
        Ok(data)
    }

    /// Shows a picture, or keeps a file; what became of it.
    async fn keep(&self, attachment: &Attachment, data: Bytes, images: &mut Vec<Attached>) -> String {
        if let Some(kind) = picture(&data)
            && images.len() < MAX_IMAGES
        {
            let image = Attached {
                mime_type: kind.to_owned(),
                name: Some(harmless(&attachment.name)),
                data: data.to_vec(),
            };
            if image.check().is_ok() {
                images.push(image);
                return "shown as a picture".to_owned();
            }
        }
        let Some(workdir) = self.workdir.clone() else {
            return "not kept: the agent has no working directory".to_owned();
        };
        let name = on_disk(&attachment.name, &data);
        let path = format!("{FOLDER}/{name}");
        let kept = tokio::task::spawn_blocking(move || write(&workdir, &name, &data)).await;
        match kept {
            Ok(Ok(())) => format!("kept as `{path}`"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "an attachment could not be kept");
                "not kept: it could not be written".to_owned()
            }
            Err(error) => {
                tracing::warn!(%error, "an attachment could not be kept");
                "not kept: it could not be written".to_owned()
            }
        }
    }
}

/// The media type of a picture that models take, by its first bytes: what the sender calls it decides nothing.
fn picture(data: &[u8]) -> Option<&'static str> {
    Attached::TYPES.into_iter().find(|kind| match *kind {
        "image/gif" => data.starts_with(b"GIF8"),
        "image/jpeg" => data.starts_with(&[0xff, 0xd8, 0xff]),
        "image/png" => data.starts_with(b"\x89PNG\r\n\x1a\n"),
        _ => data.starts_with(b"RIFF") && data.get(8..12) == Some(b"WEBP"),
    })
}

/// A name on disk: the digest's start, then what is plain of the sender's own name. It has no separator and no leading dot, so it
/// stays in its folder; the digest keeps two files of one name apart.
pub(crate) fn on_disk(name: &str, data: &[u8]) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let plain: String = last
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_'))
        .take(NAME_CHARS)
        .collect();
    let plain = plain.trim_start_matches('.');
    let digest = hex(&Sha256::digest(data));
    let digest = digest.get(..12).unwrap_or(&digest);
    if plain.is_empty() {
        format!("{digest}-file")
    } else {
        format!("{digest}-{plain}")
    }
}

/// Writes a file into the folder of attachments. The folder and the file are opened without following links: a tool may have put one
/// there.
fn write(workdir: &Path, name: &str, data: &[u8]) -> io::Result<()> {
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
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&folder, name, flags, Mode::from_raw_mode(0o644)) {
        Ok(file) => std::fs::File::from(file).write_all(data),
        // The same bytes under the same name: a repetition.
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Files, on_disk};
    use crate::adapter::{Attachment, Content};

    fn file(name: &str, data: &'static [u8]) -> Attachment {
        Attachment {
            name: name.to_owned(),
            media_type: "text/plain".to_owned(),
            size: Some(data.len() as u64),
            content: Content::Here(Bytes::from_static(data)),
        }
    }

    #[tokio::test]
    async fn a_file_stays_in_its_folder_whatever_it_is_called() {
        let outer = tempfile::tempdir().unwrap();
        let workdir = outer.path().join("a/b");
        std::fs::create_dir_all(&workdir).unwrap();
        let files = Files::new(Some(workdir.clone()), 1);
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
            told = files.take(None, &told, &[file(name, b"hello")]).await.1;
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
        let files = Files::new(Some(workdir), 1);
        let (_, told) = files.take(None, "", &[file("x", b"hello")]).await;
        assert!(told.contains("not kept"), "{told}");
        assert_eq!(std::fs::read_dir(other).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn pictures_are_told_by_their_bytes_and_large_files_are_not_taken() {
        let files = Files::new(None, 1);
        let png = b"\x89PNG\r\n\x1a\nrest";
        let (images, told) = files.take(None, "see", &[file("a.txt", png)]).await;
        assert_eq!(images.len(), 1);
        assert_eq!(images[0].mime_type, "image/png");
        assert!(told.starts_with("see\n[attached: a.txt"), "{told}");
        let large = Attachment {
            size: Some(2 << 20),
            ..file("a.bin", b"x")
        };
        let (images, told) = files.take(None, "", &[large]).await;
        assert_eq!(images.len(), 0);
        assert!(told.contains("larger than 1 MiB"), "{told}");
    }
}
