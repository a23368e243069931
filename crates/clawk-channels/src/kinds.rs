//! What a file is by its first bytes. What its sender calls it decides nothing.

use clawk_kernel::AttachedPicture;

use crate::plain_name::harmless;

/// Bytes that are looked at to tell text from data.
const LOOKED_AT: usize = 8 << 10;
/// First bytes, where they stand, and what they mean.
const MAGIC: [(usize, &[u8], &str); 22] = [
    (0, b"GIF8", "image/gif"),
    (0, &[0xff, 0xd8, 0xff], "image/jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"BM", "image/bmp"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar"),
    (0, b"\x7fELF", "application/x-executable"),
    (0, b"MZ", "application/x-executable"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, &[0xff, 0xfb], "audio/mpeg"),
    (0, b"#!AMR", "audio/amr"),
    (4, b"ftyp", "video/mp4"),
    (0, &[0x1a, 0x45, 0xdf, 0xa3], "video/webm"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
    (0, b"\0asm", "application/wasm"),
];

/// The media type of a picture that models take.
pub(crate) fn picture_type(data: &[u8]) -> Option<&'static str> {
    detect_type(data).filter(|kind| AttachedPicture::TYPES.contains(kind))
}

/// What a file is. `None`: its bytes are not known here.
pub(crate) fn detect_type(data: &[u8]) -> Option<&'static str> {
    let magic = MAGIC.iter().find(|(at, magic, kind)| {
        let riff = !matches!(*kind, "image/webp" | "audio/wav") || data.starts_with(b"RIFF");
        riff && data.get(*at..).is_some_and(|rest| rest.starts_with(magic))
    });
    if let Some((.., kind)) = magic {
        return Some(kind);
    }
    let head = data.get(..LOOKED_AT.min(data.len()))?;
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // A character may be cut at the end.
        Err(error) if head.len() - error.valid_up_to() < 4 && error.error_len().is_none() => {
            std::str::from_utf8(head.get(..error.valid_up_to())?).ok()? // silent-ok: it is valid up to there
        }
        Err(_) => return None, // silent-ok: it is data of a kind that is not known here
    };
    if text.contains('\0') {
        return None;
    }
    let beginning: String = text
        .trim_start()
        .chars()
        .take(16)
        .collect::<String>()
        .to_ascii_lowercase();
    if beginning.starts_with("<!doctype html") || beginning.starts_with("<html") {
        return Some("text/html");
    }
    Some("text/plain")
}

/// The type as the model reads it: what its bytes say, and what its sender called it where that is something else.
pub(crate) fn describe_type(claimed: &str, data: &[u8]) -> String {
    let claimed = harmless(claimed.split(';').next().unwrap_or(claimed).trim());
    match detect_type(data) {
        None => claimed,
        Some(kind) if is_vague(&claimed) => kind.to_owned(),
        Some(kind) if claim_agrees(&claimed, kind) => claimed,
        Some(kind) => format!("sent as {claimed}, by its bytes {kind}"),
    }
}

/// Words that say nothing of the content.
fn is_vague(claimed: &str) -> bool {
    matches!(
        claimed,
        "" | "file" | "application/octet-stream" | "binary/octet-stream"
    )
}

/// Whether a claim may be true of such bytes: containers hold several types, and most formats of documents are text or an archive.
fn claim_agrees(claimed: &str, kind: &str) -> bool {
    let family = |kind: &str| kind.split('/').next().unwrap_or_default().to_owned();
    let (claims, is) = (family(claimed), family(kind));
    match kind {
        "text/plain" => {
            !matches!(claims.as_str(), "image" | "audio" | "video") && claimed != "application/pdf"
        }
        "application/zip" | "application/gzip" => claims == "application",
        "audio/ogg" | "video/mp4" | "video/webm" => {
            matches!(claims.as_str(), "audio" | "video") || claimed == "application/ogg"
        }
        _ if is == "image" => {
            claimed == kind || claimed == "image" || claimed == "image/jpg" && kind == "image/jpeg"
        }
        "text/html" => claimed == kind || claimed == "application/xhtml+xml",
        _ => claimed == kind || is == claims && is == "audio" || claimed == is,
    }
}

#[cfg(test)]
mod tests {
    use super::{describe_type, detect_type, picture_type};

    #[test]
    fn bytes_say_what_a_file_is() {
        assert_eq!(picture_type(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(picture_type(b"RIFF\0\0\0\0WEBPrest"), Some("image/webp"));
        assert_eq!(detect_type(b"xxxx\0\0\0\0WEBPrest"), None, "no RIFF before it");
        assert_eq!(picture_type(b"BMxx"), None, "models take none");
        assert_eq!(
            detect_type("é".repeat(5000).as_bytes()),
            Some("text/plain"),
            "cut in a character"
        );
        assert_eq!(detect_type(b"\n<!DOCTYPE HTML><p>"), Some("text/html"));
        assert_eq!(detect_type(&[0, 1, 2]), None);
        assert_eq!(describe_type("", b"%PDF-1.7"), "application/pdf");
        assert_eq!(
            describe_type("application/json; charset=utf-8", b"{}"),
            "application/json"
        );
        assert_eq!(describe_type("audio/ogg; codecs=opus", b"OggS"), "audio/ogg");
        assert_eq!(
            describe_type("image/png", b"<html>"),
            "sent as image/png, by its bytes text/html"
        );
        assert_eq!(
            describe_type("image/jpeg", b"\x89PNG\r\n\x1a\n"),
            "sent as image/jpeg, by its bytes image/png"
        );
    }
}
