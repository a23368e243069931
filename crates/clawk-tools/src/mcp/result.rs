//! Converts an MCP result to clawk's. It is parsed part by part from raw JSON: an unknown or broken part becomes a note.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_kernel::AttachedPicture;
use clawk_kernel::ports::RunOutcome;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use serde_json::{Value, json};

use super::listing::display_name;
use crate::call::truncate_text;

/// The maximum number of parts that are read of one result.
const MAX_PARTS: usize = 1_000;
/// The maximum number of pictures of one result. Further pictures become notes.
const MAX_PICTURES: usize = 8;
/// The maximum size of one result's pictures, in bytes of base64.
const MAX_PICTURE_BYTES: usize = 8 << 20;
/// How many members of `structuredContent` are searched for in the text.
const MAX_LEAVES: usize = 300;
/// How many bytes of a part of unknown type the model sees as JSON.
const MAX_UNKNOWN_BYTES: usize = 2 << 10;

/// Converts a raw result. Text above `limit` bytes is dropped with a note. Whether the call succeeded is not changed.
pub(super) fn outcome_from_result(result: &Value, limit: usize, obtained: ObtainedEnforcement) -> RunOutcome {
    let mut parts = McpResultParts {
        content: Vec::new(),
        text_left: limit,
        left_out: 0,
        pictures: 0,
        picture_bytes: 0,
    };
    match result {
        Value::Object(members) => {
            match members.get("content") {
                Some(Value::Array(all)) => {
                    all.iter().take(MAX_PARTS).for_each(|part| parts.add_part(part));
                    if all.len() > MAX_PARTS {
                        parts.add_note(format!("[{} more parts are left out]", all.len() - MAX_PARTS));
                    }
                }
                Some(Value::Null) | None => {}
                Some(one) => parts.add_part(one),
            }
            if let Some(old) = members.get("toolResult").filter(|old| !old.is_null()) {
                parts.add_part(&as_part(old));
            }
        }
        other => parts.add_part(&as_part(other)),
    }
    let given = result.get("structuredContent").filter(|given| !given.is_null());
    let structured = given.map(|given| parts.add_structured(given, limit));
    let left_out = parts.left_out;
    if left_out > 0 {
        parts.content.push(ContentBlock::text(format!(
            "[the result is longer: {left_out} bytes above the limit of {limit} (`max_output_bytes`) are left out]"
        )));
    }
    if parts.content.is_empty() {
        parts
            .content
            .push(ContentBlock::text("[the tool ran and answered with nothing]"));
    }
    RunOutcome {
        content: parts.content,
        is_error: is_true(result.get("isError")),
        structured,
        obtained,
    }
}

/// Whether a value means true in one of the forms that servers use.
fn is_true(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        Some(Value::Number(number)) => number.as_f64().is_some_and(|number| number != 0.0),
        Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => false,
    }
}

fn as_part(value: &Value) -> Value {
    match value {
        Value::Object(members) if members.get("type").is_some_and(Value::is_string) => value.clone(),
        Value::String(_) | Value::Null => value.clone(),
        other => Value::String(other.to_string()),
    }
}

struct McpResultParts {
    content: Vec<ContentBlock>,
    text_left: usize,
    left_out: usize,
    pictures: usize,
    picture_bytes: usize,
}

impl McpResultParts {
    fn add_text(&mut self, text: &str) {
        let (kept, was_cut) = truncate_text(text, self.text_left);
        self.text_left -= kept.len();
        if was_cut {
            self.left_out += text.len() - kept.len();
        }
        if !kept.is_empty() {
            self.content.push(ContentBlock::text(kept));
        }
    }

    fn add_note(&mut self, note: String) {
        self.content.push(ContentBlock::text(note));
    }

    fn add_part(&mut self, part: &Value) {
        let word = |name: &str| part.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = word("type");
        match part {
            Value::String(text) => return self.add_text(text),
            Value::Null => return,
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => return self.add_text(&part.to_string()),
            Value::Object(_) => {}
        }
        match kind {
            "text" => match part.get("text") {
                Some(Value::String(text)) => self.add_text(text),
                Some(Value::Null) | None => {}
                Some(other) => self.add_text(&other.to_string()),
            },
            "image" => self.add_image(word("data"), part),
            "audio" => {
                let (mime, size) = (display_name(word("mimeType")), word("data").len());
                self.add_note(format!("[audio {mime}, {size} bytes as base64]"));
            }
            "resource" => match part.get("resource") {
                Some(resource) => self.add_resource(resource),
                None => self.add_resource(part),
            },
            "resource_link" => self.add_link(part),
            // A part without a type that has a text is a text part.
            "" if part.get("text").is_some_and(Value::is_string) => self.add_text(word("text")),
            _ => self.add_unknown(kind, part),
        }
    }

    fn add_unknown(&mut self, kind: &str, part: &Value) {
        let (kind, json) = (display_name(kind), part.to_string());
        if json.len() <= MAX_UNKNOWN_BYTES.min(self.text_left) {
            self.text_left -= json.len();
            return self.add_note(format!(
                "[content of the type `{kind}`, which clawk does not know] {json}"
            ));
        }
        self.add_note(format!(
            "[content of the type `{kind}`, which clawk does not know, {} bytes]",
            json.len()
        ));
    }

    fn add_image(&mut self, data: &str, part: &Value) {
        // Some servers send a whole data URL.
        let data = data.rsplit_once(";base64,").map_or(data, |(_, data)| data);
        let said = ["mimeType", "mime_type", "mediaType"]
            .iter()
            .find_map(|name| part.get(*name).and_then(Value::as_str))
            .unwrap_or_default();
        let data: String = data.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let kind = kind_of_picture(&data).map_or_else(|| said.to_owned(), str::to_owned);
        let kept = match AttachedPicture::read(&kind, None, &data) {
            _ if self.pictures >= MAX_PICTURES => Err("the result has too many pictures".to_owned()),
            _ if self.picture_bytes + data.len() > MAX_PICTURE_BYTES => {
                Err("the pictures of the result are too large".to_owned())
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("no model takes pictures of this type".to_owned()),
            Err(why) => Err(why),
        };
        match kept {
            Ok(()) => {
                (self.pictures, self.picture_bytes) = (self.pictures + 1, self.picture_bytes + data.len());
                self.content.push(ContentBlock::Image {
                    data,
                    mime_type: kind,
                });
            }
            Err(why) => self.add_note(format!(
                "[image {}, {} bytes as base64, is left out: {why}]",
                display_name(&kind),
                data.len()
            )),
        }
    }

    /// Adds an embedded resource, or one that was read.
    fn add_resource(&mut self, resource: &Value) {
        let word = |name: &str| resource.get(name).and_then(Value::as_str);
        let uri = display_name(word("uri").unwrap_or("without uri"));
        let mime = word("mimeType").unwrap_or_default();
        match (word("text"), word("blob")) {
            (Some(text), _) if text.len() <= self.text_left && mime.len() + uri.len() < 4_096 => {
                self.text_left -= text.len();
                let kept = json!({"uri": word("uri").unwrap_or_default(), "mimeType": mime, "text": text});
                self.content.push(ContentBlock::Resource { resource: kept });
            }
            (Some(text), _) => {
                self.add_note(format!("[resource {uri}]"));
                self.add_text(text);
            }
            (None, Some(blob)) if mime.starts_with("image/") => {
                self.add_note(format!("[resource {uri}]"));
                self.add_image(blob, resource);
            }
            (None, Some(blob)) if self.blob_text(&uri, blob) => {}
            (None, Some(blob)) => {
                let mime = display_name(mime);
                self.add_note(format!(
                    "[resource {uri}, {mime}, {} bytes as base64]",
                    blob.len()
                ));
            }
            (None, None) => self.add_note(format!("[resource {uri}]")),
        }
    }

    /// Adds a blob as text, if it is text.
    fn blob_text(&mut self, uri: &str, blob: &str) -> bool {
        if blob.len() / 4 * 3 > self.text_left {
            return false;
        }
        let bytes = STANDARD.decode(blob.trim()).ok(); // silent-ok: what is not base64 is noted as a blob
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()); // silent-ok: what is no text is noted as a blob
        let is_plain = |text: &String| !text.contains(|c: char| c.is_control() && !c.is_whitespace());
        let Some(text) = text.filter(is_plain) else {
            return false;
        };
        self.add_note(format!("[resource {uri}]"));
        self.add_text(&text);
        true
    }

    fn add_link(&mut self, part: &Value) {
        let kept = ["uri", "name", "title", "description", "mimeType", "size"];
        let kept = kept.iter().filter_map(|name| {
            let value = part
                .get(*name)
                .filter(|value| value.is_string() || value.is_number())?;
            Some(((*name).to_owned(), value.clone()))
        });
        let resource: Value = Value::Object(kept.collect());
        let size = resource.to_string().len();
        if size > self.text_left {
            self.left_out += size;
            return;
        }
        self.text_left -= size;
        self.content.push(ContentBlock::Resource { resource });
    }

    /// Handles `structuredContent`. The model sees it if the text does not already contain the same.
    fn add_structured(&mut self, given: &Value, limit: usize) -> Value {
        let json = given.to_string();
        let texts: Vec<String> = self.content.iter().map(ContentBlock::as_model_text).collect();
        if !is_said(given, &texts.join("\n"), &mut { MAX_LEAVES }) {
            self.add_text(&json);
        }
        if json.len() > limit {
            return json!({"truncated": true});
        }
        given.clone()
    }
}

/// Whether the text contains every word and number of the structure: many servers send the same in both.
fn is_said(given: &Value, text: &str, left: &mut usize) -> bool {
    let Some(fewer) = left.checked_sub(1) else {
        // Above this number of members, only the text's length decides.
        return text.len() >= MAX_LEAVES;
    };
    *left = fewer;
    match given {
        Value::Null | Value::Bool(_) => !text.is_empty(),
        Value::Number(number) => text.contains(&number.to_string()),
        Value::String(word) => {
            !text.is_empty()
                && (text.contains(word.as_str())
                    || text.contains(Value::String(word.clone()).to_string().trim_matches('"')))
        }
        Value::Array(all) => !text.is_empty() && all.iter().all(|one| is_said(one, text, left)),
        Value::Object(members) => !text.is_empty() && members.values().all(|one| is_said(one, text, left)),
    }
}

/// Detects a picture's type by its first bytes, because the server's type may be wrong.
fn kind_of_picture(data: &str) -> Option<&'static str> {
    let head = STANDARD.decode(data.get(..16)?).ok()?; // silent-ok: what is not base64 is told by who reads it all
    AttachedPicture::TYPES.into_iter().find(|kind| {
        let head = AttachedPicture {
            mime_type: (*kind).to_owned(),
            name: None,
            data: head.clone(),
        };
        head.check_format().is_ok()
    })
}

#[cfg(test)]
mod tests;
