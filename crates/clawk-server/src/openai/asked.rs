//! Parses a request of either API: the message, the earlier messages and the client's tools.

use clawk_kernel::ports::ToolOffer;
use clawk_kernel::{AttachedPicture, EarlierMessage};
use clawk_proto::message::MessagePart;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::ApiError;

/// The largest number of messages in one request.
const MAX_MESSAGES: usize = 2_048;
/// The largest number of tools in one request.
const MAX_TOOLS: usize = 128;
/// The longest name of a tool, characters.
const MAX_TOOL_NAME: usize = 64;

/// One message to the agent with its context.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpenAiPrompt {
    /// The text of the message; empty if only the client's tools answered.
    pub(super) text: String,
    /// Pictures of the message.
    pub(super) images: Vec<AttachedPicture>,
    /// The earlier messages according to the client, oldest first, and the results of its tools.
    pub(super) earlier: Vec<EarlierMessage>,
    /// The client's own tools.
    pub(super) tools: Vec<ToolOffer>,
}

/// The error for a wrong member of a request.
pub(super) fn invalid_member(param: &str, message: impl Into<String>) -> ApiError {
    ApiError::bad_request("invalid_value", message).with_detail("param", param.into())
}

/// The error for a member that asks for an unsupported feature.
pub(super) fn unsupported_member(param: &str, message: impl Into<String>) -> ApiError {
    ApiError::bad_request("unsupported_parameter", message).with_detail("param", param.into())
}

/// Text, or a list of parts.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum OpenAiContent {
    Text(String),
    Parts(Vec<Value>),
}

impl OpenAiContent {
    /// The content as text; other parts become notes.
    pub(super) fn to_text(&self, param: &str) -> Result<String, ApiError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Parts(parts) => {
                let texts: Result<Vec<String>, ApiError> =
                    parts.iter().map(|part| part_text(part, param)).collect();
                Ok(texts?.join("\n\n"))
            }
        }
    }
}

impl OpenAiPrompt {
    /// Adds the pictures of the message. Models that accept pictures see them instead of a note in the text.
    pub(super) fn with_pictures(
        mut self,
        said: Option<&OpenAiContent>,
        param: &str,
    ) -> Result<Self, ApiError> {
        let Some(OpenAiContent::Parts(parts)) = said else {
            return Ok(self);
        };
        let (mut texts, mut images) = (Vec::new(), Vec::new());
        for part in parts {
            match parse_picture(part).map_err(|reason| invalid_member(param, reason))? {
                Some(image) => images.push(image),
                None => texts.push(part_text(part, param)?),
            }
        }
        (self.text, self.images) = (texts.join("\n\n"), images);
        Ok(self)
    }
}

/// A part that holds a picture of a type that models accept, with its bytes.
fn parse_picture(part: &Value) -> Result<Option<AttachedPicture>, String> {
    let url = match part.get("type").and_then(Value::as_str) {
        Some("image_url") => part.pointer("/image_url/url"),
        Some("input_image") => part.get("image_url"),
        Some(_) | None => None,
    };
    match url.and_then(Value::as_str).and_then(split_data_url) {
        Some((mime_type, data)) => AttachedPicture::read(mime_type, None, data),
        None => Ok(None),
    }
}

/// The media type and the base64 text of a `data:` URL.
fn split_data_url(url: &str) -> Option<(&str, &str)> {
    url.strip_prefix("data:")?.split_once(";base64,")
}

/// A part as text.
fn part_text(part: &Value, param: &str) -> Result<String, ApiError> {
    let text = |pointer: &str| part.pointer(pointer).and_then(Value::as_str);
    let kind = text("/type").unwrap_or_default();
    let said = match kind {
        "text" | "input_text" | "output_text" => text("/text").map(str::to_owned),
        "refusal" => text("/refusal").map(str::to_owned),
        "image_url" => text("/image_url/url").map(|url| linked_text("image", url, None)),
        "input_image" => Some(linked_text(
            "image",
            text("/image_url").unwrap_or_default(),
            text("/file_id"),
        )),
        "input_audio" => text("/input_audio/data").map(|data| {
            let mime_type = format!("audio/{}", text("/input_audio/format").unwrap_or("unknown"));
            MessagePart::Audio {
                mime_type,
                data: data.to_owned(),
                name: None,
            }
            .as_text()
        }),
        "file" => Some(file_text(
            text("/file/file_data"),
            text("/file/filename"),
            text("/file/file_id"),
        )),
        "input_file" => Some(file_text(text("/file_data"), text("/filename"), text("/file_id"))),
        _ => None,
    };
    said.ok_or_else(|| {
        let shown: String = kind.chars().take(64).collect();
        invalid_member(
            param,
            format!("a part of type `{shown}` is not understood here, or lacks its content"),
        )
    })
}

fn linked_text(what: &str, url: &str, id: Option<&str>) -> String {
    match split_data_url(url) {
        Some((mime_type, data)) => MessagePart::Image {
            mime_type: mime_type.to_owned(),
            data: data.to_owned(),
            name: None,
        }
        .as_text(),
        None => format!("[{what} at {}; it is not shown to you]", id.unwrap_or(url)),
    }
}

fn file_text(data: Option<&str>, name: Option<&str>, id: Option<&str>) -> String {
    let (mime_type, data) = match data {
        Some(data) => split_data_url(data).unwrap_or(("application/octet-stream", data)),
        None => ("application/octet-stream", ""),
    };
    MessagePart::File {
        mime_type: mime_type.to_owned(),
        data: data.to_owned(),
        name: name.or(id).map(str::to_owned),
    }
    .as_text()
}

/// Splits off the new message: the last one, if a person or a tool wrote it.
pub(super) fn split_prompt(
    mut all: Vec<EarlierMessage>,
    tools: Vec<ToolOffer>,
    param: &str,
) -> Result<OpenAiPrompt, ApiError> {
    if all.len() > MAX_MESSAGES {
        return Err(invalid_member(param, format!("at most {MAX_MESSAGES} messages")));
    }
    let text = match all.last().map(|last| last.role) {
        Some("user") => all.pop().map(|last| last.text).unwrap_or_default(),
        Some("tool") => String::new(),
        Some(_) | None => {
            let message = "the last message must be one of role `user`, or the answer of a tool";
            return Err(invalid_member(param, message));
        }
    };
    if text.trim().is_empty() && all.last().is_none_or(|last| last.role != "tool") {
        return Err(invalid_member(param, "the last message is empty"));
    }
    all.retain(|earlier| {
        !earlier.text.trim().is_empty() || !earlier.calls.is_empty() || earlier.answers.is_some()
    });
    Ok(OpenAiPrompt {
        text,
        images: Vec::new(),
        earlier: all,
        tools,
    })
}

/// Describes a tool of the client for the model.
pub(super) fn tool_offer(
    kind: &str,
    name: Option<&str>,
    description: Option<&str>,
    parameters: Option<&Value>,
) -> Result<ToolOffer, ApiError> {
    let name = name.filter(|_| kind == "function");
    let name = name.ok_or_else(|| invalid_member("tools", "only tools of type `function`"))?;
    let parameters = parameters.filter(|schema| !schema.is_null());
    Ok(ToolOffer {
        name: name.to_owned(),
        description: description.unwrap_or_default().to_owned(),
        input_schema: parameters
            .cloned()
            .unwrap_or_else(|| json!({"type": "object", "properties": {}})),
    })
}

/// The client's tools for the model: all, or none if `tool_choice` says so.
pub(super) fn tool_offers<T>(
    tools: Option<&[T]>,
    choice: Option<&Value>,
    offer: impl Fn(&T) -> Result<ToolOffer, ApiError>,
) -> Result<Vec<ToolOffer>, ApiError> {
    match tools {
        Some(given) if allows_tool_use(choice)? => {
            tools_of(given.iter().map(offer).collect::<Result<_, _>>()?)
        }
        Some(_) | None => Ok(Vec::new()),
    }
}

/// Checks that all tools of the client have different names.
pub(super) fn tools_of(given: Vec<ToolOffer>) -> Result<Vec<ToolOffer>, ApiError> {
    if given.len() > MAX_TOOLS {
        return Err(invalid_member("tools", format!("at most {MAX_TOOLS} tools")));
    }
    let mut seen = std::collections::BTreeSet::new();
    for tool in &given {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if tool.name.is_empty() || tool.name.len() > MAX_TOOL_NAME || !tool.name.chars().all(fits) {
            let message = format!("a tool's name has 1 to {MAX_TOOL_NAME} letters, digits, `_` and `-`");
            return Err(invalid_member("tools", message));
        }
        if !seen.insert(tool.name.as_str()) {
            return Err(invalid_member(
                "tools",
                format!("the tool `{}` stands there twice", tool.name),
            ));
        }
        if !tool.input_schema.is_object() {
            return Err(invalid_member(
                "tools",
                format!("the parameters of the tool `{}` must be a JSON schema", tool.name),
            ));
        }
    }
    Ok(given)
}

/// Whether `tool_choice` lets the model see the tools. A call can't be forced here: the agent decides.
pub(super) fn allows_tool_use(choice: Option<&Value>) -> Result<bool, ApiError> {
    match choice {
        None | Some(Value::Null) => Ok(true),
        Some(Value::String(word)) if word == "auto" => Ok(true),
        Some(Value::String(word)) if word == "none" => Ok(false),
        Some(_) => Err(unsupported_member(
            "tool_choice",
            "only `auto` and `none`: the agent decides by itself which tool it calls",
        )),
    }
}
