//! A message as one JSON object, which a `custom` program and a `webhook` write.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_kernel::ports::MessageContext;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::message::{Attachment, AttachmentContent, OutFile, OutboundMessage, PlatformMessage};

/// A message of the line protocol; a webhook's body has the same members.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageLine {
    pub(crate) id: String,
    pub(crate) conversation: String,
    #[serde(default)]
    pub(crate) direct: bool,
    #[serde(default)]
    pub(crate) mention: bool,
    pub(crate) sender: SenderLine,
    #[serde(default)]
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) attachments: Vec<AttachmentLine>,
    #[serde(default)]
    pub(crate) timestamp: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SenderLine {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachmentLine {
    #[serde(default)]
    pub(crate) path: Option<String>,
    #[serde(default)]
    pub(crate) url: Option<String>,
    #[serde(default)]
    pub(crate) data: Option<String>,
    #[serde(default)]
    pub(crate) media_type: String,
    #[serde(default)]
    pub(crate) name: String,
}

/// The sender's id, or an object with it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum PressSender {
    Id(String),
    Sender(SenderLine),
}

impl PressSender {
    pub(crate) fn id(self) -> String {
        match self {
            Self::Id(id) | Self::Sender(SenderLine { id, .. }) => id,
        }
    }
}

/// Where a channel's files may lie, besides in the message itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilesBy {
    /// In the folder of the program that names them: `path`.
    Path,
    /// At an address: `url`.
    Url,
}

impl MessageLine {
    /// As the way in takes it.
    ///
    /// # Errors
    /// There is neither a text nor an attachment.
    pub(crate) fn into_platform_message(self, files: FilesBy) -> Result<PlatformMessage, &'static str> {
        if self.text.trim().is_empty() && self.attachments.is_empty() {
            return Err("`text` or `attachments` must hold something");
        }
        let attachment = |line: AttachmentLine| {
            let at = match files {
                FilesBy::Path => line.path,
                FilesBy::Url => line.url,
            };
            let name = if line.name.is_empty() {
                let at = at.as_deref().unwrap_or_default();
                let path = at.split(['?', '#']).next().unwrap_or_default();
                path.rsplit('/').next().unwrap_or_default().to_owned()
            } else {
                line.name
            };
            let absent = at.map_or(AttachmentContent::Absent, AttachmentContent::At);
            Attachment {
                name,
                media_type: line.media_type,
                size: line
                    .data
                    .as_ref()
                    .map(|data| u64::try_from(data.len() / 4 * 3).unwrap_or(u64::MAX)),
                // What is not base64 is named and not kept.
                content: line
                    .data
                    .and_then(|data| STANDARD.decode(data).ok()) // silent-ok: the model is told that it could not be fetched
                    .map_or(absent, |data| AttachmentContent::Here(data.into())),
            }
        };
        Ok(PlatformMessage {
            ids: vec![self.id],
            conversation: self.conversation,
            direct: self.direct,
            mention: self.mention,
            sender: Some(self.sender.id),
            sender_name: self.sender.name,
            text: self.text,
            attachments: self.attachments.into_iter().map(attachment).collect(),
            context: MessageContext::default(),
            answers: None,
            remembered_days: None,
        })
    }
}

/// The files of a message, as both line protocols have them.
pub(crate) fn attached(out: &OutboundMessage) -> Vec<Value> {
    let file = |file: &OutFile| json!({"name": file.name, "media_type": file.media_type, "data": STANDARD.encode(&file.data)});
    out.files.iter().map(file).collect()
}
