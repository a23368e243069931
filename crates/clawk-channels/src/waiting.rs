//! Messages with a recording that wait to be understood, on disk: one file each, gone when the message is the agent's. A message is
//! accepted once its file is here (C1).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_kernel::Role;
use clawk_kernel::ports::MessageContext;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::genuine::to_hex;
use crate::message::{Attachment, AttachmentContent, PlatformMessage};
use crate::sealed_file::FileSeal;

/// Messages of one channel that wait; the next one is taken with its recording as a file.
const MOST: usize = 256;
/// The end of a file's name.
const KIND: &str = "json";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct StoredVoiceMessage {
    ids: Vec<String>,
    conversation: String,
    direct: bool,
    sender: String,
    name: Option<String>,
    admin: bool,
    user: bool,
    text: String,
    files: Vec<KeptFile>,
    remembered_days: Option<u32>,
    #[serde(default)]
    context: MessageContext,
    /// Microseconds: their order.
    at: i64,
    /// What the recordings became, once that is paid.
    #[serde(default)]
    words: Option<Vec<String>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeptFile {
    name: String,
    media_type: String,
    size: Option<u64>,
    at: Option<String>,
    /// Base64.
    data: Option<String>,
}

/// A message that waits.
#[derive(Debug, Clone)]
pub(crate) struct PendingVoiceMessage {
    pub(crate) incoming: PlatformMessage,
    /// The role with which it was accepted.
    pub(crate) role: Role,
    pub(crate) at: i64,
    pub(crate) words: Option<Vec<String>>,
}

/// The messages of one channel.
#[derive(Debug)]
pub(crate) struct VoiceMessageStore {
    folder: PathBuf,
    seal: FileSeal,
}

impl VoiceMessageStore {
    /// Beside the channel's cursor.
    pub(crate) fn new(folder: &Path, channel: &str, seal: FileSeal) -> Self {
        let name = to_hex(Sha256::digest(channel.as_bytes()).get(..8).unwrap_or_default());
        Self {
            folder: folder.join(format!("{name}.recordings")),
            seal,
        }
    }

    fn path(&self, incoming: &PlatformMessage) -> Option<PathBuf> {
        let id = incoming.ids.first()?;
        let digest = to_hex(&Sha256::digest(id.as_bytes()));
        Some(self.folder.join(format!("{digest}.{KIND}")))
    }

    pub(crate) fn is_waiting(&self, incoming: &PlatformMessage) -> bool {
        self.path(incoming).is_some_and(|path| path.exists())
    }

    /// Keeps a message durably. Returns `false` if there is no room, or it has no id by which it would be found again.
    pub(crate) fn store_message(&self, waiting: &PendingVoiceMessage) -> io::Result<bool> {
        let Some(path) = self.path(&waiting.incoming) else {
            return Ok(false);
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        if waiting.words.is_none() && fs::read_dir(&self.folder)?.count() >= MOST {
            return Ok(false);
        }
        let fresh = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        let bytes = serde_json::to_vec(&to_stored(waiting)).map_err(io::Error::other)?;
        file.write_all(&self.seal.seal_bytes(&path, bytes)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(&self.folder)?.sync_all()?;
        Ok(true)
    }

    /// Those that wait, in the order in which they came.
    pub(crate) fn pending_messages(&self) -> io::Result<Vec<PendingVoiceMessage>> {
        let found = match fs::read_dir(&self.folder) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for entry in found {
            let path = entry?.path();
            if path.extension().and_then(|kind| kind.to_str()) == Some(KIND) {
                let kept = self.seal.unseal_bytes(&path, fs::read(&path)?);
                let kept = kept.and_then(|kept| serde_json::from_slice(&kept).map_err(io::Error::other));
                match kept.and_then(from_stored) {
                    Ok(waiting) => all.push(waiting),
                    Err(error) => tracing::error!(%error, "a message with a recording can't be read"),
                }
            } else {
                fs::remove_file(&path)?;
            }
        }
        all.sort_by_key(|waiting| waiting.at);
        Ok(all)
    }

    pub(crate) fn remove_message(&self, incoming: &PlatformMessage) {
        let Some(path) = self.path(incoming) else { return };
        if let Err(error) = fs::remove_file(path) {
            tracing::warn!(%error, "a message with a recording can't be removed");
        }
    }
}

fn to_stored(waiting: &PendingVoiceMessage) -> StoredVoiceMessage {
    let incoming = &waiting.incoming;
    let file = |file: &Attachment| KeptFile {
        name: file.name.clone(),
        media_type: file.media_type.clone(),
        size: file.size,
        at: match &file.content {
            AttachmentContent::At(at) => Some(at.clone()),
            AttachmentContent::Here(_) | AttachmentContent::Absent => None,
        },
        data: match &file.content {
            AttachmentContent::Here(data) => Some(STANDARD.encode(data)),
            AttachmentContent::At(_) | AttachmentContent::Absent => None,
        },
    };
    StoredVoiceMessage {
        ids: incoming.ids.clone(),
        conversation: incoming.conversation.clone(),
        direct: incoming.direct,
        sender: incoming.sender.clone().unwrap_or_default(),
        name: incoming.sender_name.clone(),
        admin: waiting.role == Role::Admin,
        user: waiting.role == Role::User,
        text: incoming.text.clone(),
        files: incoming.attachments.iter().map(file).collect(),
        remembered_days: incoming.remembered_days,
        context: incoming.context.clone(),
        at: waiting.at,
        words: waiting.words.clone(),
    }
}

fn from_stored(kept: StoredVoiceMessage) -> io::Result<PendingVoiceMessage> {
    let mut attachments = Vec::new();
    for file in kept.files {
        let content = match (file.at, file.data) {
            (Some(at), _) => AttachmentContent::At(at),
            (None, Some(data)) => {
                AttachmentContent::Here(STANDARD.decode(data).map_err(io::Error::other)?.into())
            }
            (None, None) => AttachmentContent::Absent,
        };
        attachments.push(Attachment {
            name: file.name,
            media_type: file.media_type,
            size: file.size,
            content,
        });
    }
    Ok(PendingVoiceMessage {
        incoming: PlatformMessage {
            ids: kept.ids,
            conversation: kept.conversation,
            direct: kept.direct,
            mention: true,
            sender: Some(kept.sender).filter(|sender| !sender.is_empty()),
            sender_name: kept.name,
            text: kept.text,
            attachments,
            context: kept.context,
            // It was looked up before.
            answers: None,
            remembered_days: kept.remembered_days,
        },
        role: match (kept.admin, kept.user) {
            (true, _) => Role::Admin,
            (false, true) => Role::User,
            (false, false) => Role::Viewer,
        },
        at: kept.at,
        words: kept.words,
    })
}

#[cfg(test)]
mod tests {
    use clawk_kernel::Role;

    use super::{FileSeal, PendingVoiceMessage, VoiceMessageStore};
    use crate::adapter::{Attachment, AttachmentContent, PlatformMessage};

    #[test]
    fn what_waits_is_found_again_as_it_was_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = VoiceMessageStore::new(folder.path(), "chat", FileSeal::default());
        let message = |id: &str, at: i64| PendingVoiceMessage {
            incoming: PlatformMessage {
                ids: vec![id.to_owned(), "second".to_owned()],
                conversation: "c".to_owned(),
                direct: true,
                mention: true,
                sender: Some("ann".to_owned()),
                attachments: vec![
                    Attachment {
                        content: AttachmentContent::Here(bytes::Bytes::from_static(&[0, 255])),
                        ..Attachment::default()
                    },
                    Attachment {
                        content: AttachmentContent::At("there".to_owned()),
                        size: Some(3),
                        ..Attachment::default()
                    },
                ],
                ..PlatformMessage::default()
            },
            role: Role::User,
            at,
            words: None,
        };
        assert!(shelf.store_message(&message("../b", 2)).unwrap());
        assert!(shelf.store_message(&message("a", 1)).unwrap());
        let mut again = VoiceMessageStore::new(folder.path(), "chat", FileSeal::default())
            .pending_messages()
            .unwrap();
        assert_eq!(again.len(), 2);
        assert_eq!(again[0].incoming, message("a", 1).incoming);
        assert_eq!(again[1].role, Role::User);
        again[0].words = Some(vec!["hello".to_owned()]);
        shelf.store_message(&again[0]).unwrap();
        assert_eq!(
            shelf.pending_messages().unwrap()[0].words.as_deref(),
            Some(&["hello".to_owned()][..])
        );
        shelf.remove_message(&again[0].incoming);
        assert!(!shelf.is_waiting(&again[0].incoming) && shelf.is_waiting(&again[1].incoming));
        let nameless = PendingVoiceMessage {
            incoming: PlatformMessage::default(),
            ..message("", 3)
        };
        assert!(!shelf.store_message(&nameless).unwrap());
        assert!(
            VoiceMessageStore::new(folder.path(), "other", FileSeal::default())
                .pending_messages()
                .unwrap()
                .is_empty()
        );
    }
}
