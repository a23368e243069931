//! Describes why a value does not fit a schema, in a text of bounded length.

/// Bytes of one fault's words.
const MAX_FAULT_BYTES: usize = 512;

/// A fault with its place.
pub(super) fn one_line(fault: &jsonschema::ValidationError<'_>) -> String {
    let (path, words) = (fault.instance_path().to_string(), bounded(&fault.to_string()));
    if path.is_empty() {
        words
    } else {
        format!("at {}: {words}", bounded(&path))
    }
}

/// A fault quotes what it is about, which may be long: its beginning and its end, where the fault itself stands.
pub(super) fn bounded(words: &str) -> String {
    if words.len() <= MAX_FAULT_BYTES {
        return words.to_owned();
    }
    let half = MAX_FAULT_BYTES / 2;
    let first = words.get(..words.floor_char_boundary(half)).unwrap_or_default();
    let last = words
        .get(words.ceil_char_boundary(words.len() - half)..)
        .unwrap_or_default();
    format!(
        "{first} [… {} bytes …] {last}",
        words.len() - first.len() - last.len()
    )
}
