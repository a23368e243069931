//! Content blocks in MCP's shape (CKP §9.3.2).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One block of a tool result's `content`. Every implementation must support `text`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ContentBlock {
    /// Plain text for the model.
    Text {
        /// The text, UTF-8.
        text: String,
    },
    /// An image, base64 in `data`.
    Image {
        /// Base64 of the bytes.
        data: String,
        /// For example `image/png`.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// An embedded or linked resource, unchanged from MCP.
    Resource {
        /// MCP's `resource` object.
        resource: Value,
    },
}

impl ContentBlock {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// The block as text, for a model that accepts only text.
    #[must_use]
    pub fn as_model_text(&self) -> String {
        match self {
            Self::Text { text } => text.clone(),
            Self::Image { mime_type, data } => format!("[image {mime_type}, {} bytes as base64]", data.len()),
            Self::Resource { resource } => {
                let uri = resource
                    .get("uri")
                    .and_then(Value::as_str)
                    .unwrap_or("without uri");
                match resource.get("text").and_then(Value::as_str) {
                    Some(text) => format!("[resource {uri}]\n{text}"),
                    None => format!("[resource {uri}]"),
                }
            }
        }
    }
}
