//! Describes why a value does not match a schema, in a text of limited length.

/// Longest text of one fault, in bytes.
const MAX_FAULT_BYTES: usize = 512;

/// Returns a fault with its place.
pub(super) fn one_line(fault: &jsonschema::ValidationError<'_>) -> String {
    let (path, words) = (fault.instance_path().to_string(), bound_fault(&fault.to_string()));
    if path.is_empty() {
        words
    } else {
        format!("at {}: {words}", bound_fault(&path))
    }
}

/// Shortens a schema fault: keeps its first and last bytes.
pub(super) fn bound_fault(words: &str) -> String {
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
