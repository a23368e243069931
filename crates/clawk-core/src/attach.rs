//! Images of a message: checked when they arrive, stored by digest, shown to models that accept images.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_proto::Digest;

use crate::canonical::digest;
use crate::error::KernelError;
use crate::message_frame::MessageFrame;
use crate::ports::{Image, InferRequest, Journal, JournalError, MessageContext, ModelMessage};

/// Largest number of images in one message.
pub const MAX_IMAGES: usize = 16;
/// Largest image, in bytes.
pub const MAX_IMAGE_BYTES: usize = 5 << 20;
/// Longest name of an image, in characters. The rest is cut.
const MAX_NAME_CHARS: usize = 128;
/// Largest total size of the images in one message, and in one model request, in bytes. The latest images are shown first; earlier
/// ones become notes.
const MAX_SHOWN_BYTES: usize = 20 << 20;
/// Size at which an image is counted in a request's budget, in bytes of text. Servers count about 1,600 tokens for a large image.
const COUNTED_BYTES: u64 = 6_400;

/// An image as it arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedPicture {
    /// The MIME type: one of [`AttachedPicture::TYPES`].
    pub mime_type: String,
    /// The sender's name for the image.
    pub name: Option<String>,
    /// The image's bytes.
    pub data: Vec<u8>,
}

impl AttachedPicture {
    /// The image types that models accept.
    pub const TYPES: [&str; 4] = ["image/gif", "image/jpeg", "image/png", "image/webp"];

    /// Decodes an image from base64. `None`: models do not accept its type.
    ///
    /// # Errors
    /// The data is not base64, too large, or not of the given type. The text is for people.
    pub fn read(mime_type: &str, name: Option<&str>, data: &str) -> Result<Option<Self>, String> {
        if !Self::TYPES.contains(&mime_type) {
            return Ok(None);
        }
        if data.len() / 4 * 3 > MAX_IMAGE_BYTES + 3 {
            return Err(too_large());
        }
        let data = STANDARD
            .decode(data)
            .map_err(|error| format!("the picture is not base64: {error}"))?;
        let image = Self {
            mime_type: mime_type.to_owned(),
            name: name.map(str::to_owned),
            data,
        };
        image.check_format()?;
        Ok(Some(image))
    }

    /// Checks that this is a picture that models accept. The first bytes decide the type; the size limit is 5 MiB.
    ///
    /// # Errors
    /// The reason, as text for people.
    pub fn check_format(&self) -> Result<(), String> {
        if self.data.len() > MAX_IMAGE_BYTES {
            return Err(too_large());
        }
        let data = self.data.as_slice();
        let fits = match self.mime_type.as_str() {
            "image/gif" => data.starts_with(b"GIF8"),
            "image/jpeg" => data.starts_with(&[0xff, 0xd8, 0xff]),
            "image/png" => data.starts_with(b"\x89PNG\r\n\x1a\n"),
            "image/webp" => data.starts_with(b"RIFF") && data.get(8..12) == Some(b"WEBP"),
            _ => false,
        };
        if fits {
            return Ok(());
        }
        Err(format!(
            "the picture is not of the type `{}`; {} are taken",
            self.mime_type.chars().take(64).collect::<String>(),
            Self::TYPES.join(", ")
        ))
    }

    /// Returns the image in the form of the record and the conversation.
    fn to_image(&self, clean: impl Fn(&mut String)) -> Image {
        let name = self.name.as_ref().map(|name| {
            let mut name: String = name.chars().filter(|c| !c.is_control()).collect();
            clean(&mut name);
            name.replace('`', "'").chars().take(MAX_NAME_CHARS).collect()
        });
        Image {
            digest: digest(&self.data),
            mime_type: self.mime_type.clone(),
            name,
            size_bytes: u64::try_from(self.data.len()).unwrap_or(u64::MAX),
            data: None,
        }
    }
}

fn too_large() -> String {
    format!("the picture has more than {MAX_IMAGE_BYTES} bytes")
}

/// An incoming message.
#[derive(Debug, Clone, Default)]
pub struct IncomingMessage {
    /// The words.
    pub text: String,
    /// The pictures.
    pub images: Vec<AttachedPicture>,
    /// Where the frame comes from.
    pub setting: FrameSource,
}

/// The source of a message's frame.
#[derive(Debug, Clone)]
pub enum FrameSource {
    /// It is written when the message is taken.
    Given(MessageContext),
    /// It was written when the message was accepted in the replayed run.
    Recorded(MessageFrame),
}

impl Default for FrameSource {
    fn default() -> Self {
        Self::Given(MessageContext::default())
    }
}

impl From<String> for IncomingMessage {
    fn from(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

/// The user's input to a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TurnInput {
    /// The words.
    pub text: String,
    /// The pictures.
    pub images: Vec<Image>,
    /// See [`ModelMessage::User`].
    pub frame: String,
}

/// Returns the images of a message with sanitized names.
///
/// # Errors
/// There are too many, or one is not what it says.
pub fn collect_images(
    attached: &[AttachedPicture],
    clean: impl Fn(&mut String),
) -> Result<Vec<Image>, KernelError> {
    if attached.len() > MAX_IMAGES {
        let reason = format!("it has {} pictures, the limit is {MAX_IMAGES}", attached.len());
        return Err(KernelError::Refused(reason));
    }
    let total: usize = attached.iter().map(|image| image.data.len()).sum();
    if total > MAX_SHOWN_BYTES {
        let reason = format!("its pictures have {total} bytes together, the limit is {MAX_SHOWN_BYTES}");
        return Err(KernelError::Refused(reason));
    }
    for image in attached {
        image.check_format().map_err(KernelError::Refused)?;
    }
    Ok(attached.iter().map(|image| image.to_image(&clean)).collect())
}

/// What the pictures of a request and those of results (`of_tools`) count for the purse, bytes; nothing where the provider is not shown them.
pub fn count_picture_bytes(request: &InferRequest, of_tools: usize, takes_images: bool) -> u64 {
    let each = request.messages.iter().map(|message| match message {
        ModelMessage::User { images, .. } => images.len(),
        ModelMessage::Assistant { .. } | ModelMessage::ToolResult { .. } => 0,
    });
    let count = u64::try_from(each.sum::<usize>().saturating_add(of_tools)).unwrap_or(u64::MAX);
    if takes_images {
        count.saturating_mul(COUNTED_BYTES)
    } else {
        0
    }
}

/// Returns the request in the form that is sent to a provider: with the images' bytes if it accepts images, otherwise with a note
/// for each.
///
/// # Errors
/// The journal can't be read.
pub async fn load_pictures(
    journal: &dyn Journal,
    mut request: InferRequest,
    takes_images: bool,
) -> Result<InferRequest, JournalError> {
    let mut left = MAX_SHOWN_BYTES;
    for message in request.messages.iter_mut().rev() {
        let ModelMessage::User { text, images, .. } = message else {
            continue;
        };
        for mut image in std::mem::take(images) {
            let size = usize::try_from(image.size_bytes).unwrap_or(usize::MAX);
            let bytes = if takes_images && size <= left {
                journal.read_content(image.digest).await?
            } else {
                None
            };
            match bytes {
                Some(bytes) => {
                    left -= size;
                    image.data = Some(Arc::from(bytes));
                    images.push(image);
                }
                // The image is not accepted, one too many, or erased.
                None => {
                    let gap = if text.is_empty() { "" } else { "\n\n" };
                    *text = format!("{text}{gap}{}", picture_note(&image));
                }
            }
        }
    }
    Ok(request)
}

fn picture_note(image: &Image) -> String {
    let name = image.name.as_ref().map(|name| format!(" `{name}`"));
    format!(
        "[an image{}, {}, {} bytes; it is not shown to you]",
        name.unwrap_or_default(),
        image.mime_type,
        image.size_bytes
    )
}

/// Their digests, for what makes a request the same.
pub fn picture_digests(attached: &[AttachedPicture]) -> Vec<Digest> {
    attached.iter().map(|image| digest(&image.data)).collect()
}
