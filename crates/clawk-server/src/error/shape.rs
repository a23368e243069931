//! Errors in the shape of a request, each with its location. A missing member is named with its path (S.15).

use serde::de::DeserializeOwned;

/// Parses one JSON document.
///
/// # Errors
/// A sentence with the member's path from the document's root, and what is wrong.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| error_sentence(&error))?;
    json.end().map_err(|error| error.to_string())?;
    Ok(read)
}

fn error_sentence(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let path = error.path().to_string();
    let whole = error.inner().to_string();
    // The path helps more than line and column, since a program wrote the text. A syntax error has no path.
    let what = match whole.rsplit_once(" at line ") {
        Some((what, _)) if error.inner().is_data() => what,
        _ => return whole,
    };
    let missing = what
        .strip_prefix("missing field `")
        .and_then(|rest| rest.strip_suffix('`'));
    match (missing, path.as_str()) {
        (Some(member), ".") => format!("`{member}` is missing"),
        (Some(member), path) => format!("`{path}.{member}` is missing"),
        (None, ".") => what.to_owned(),
        (None, path) => format!("`{path}`: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use clawk_proto::method::ToolCallParams;

    use super::read;

    #[test]
    fn a_fault_has_its_path() {
        let fault = |text: &str| read::<ToolCallParams>(text.as_bytes()).unwrap_err();
        for (text, says) in [
            (r#"{"name": "x", "arguments": {}}"#, "`context` is missing"),
            (
                r#"{"name": "x", "arguments": {}, "context": {"identity": "a"}}"#,
                "`context.request_id` is missing",
            ),
            (
                r#"{"name": 7, "arguments": {}, "context": {}}"#,
                "`name`: invalid type",
            ),
        ] {
            assert!(fault(text).contains(says), "{text}: {}", fault(text));
        }
        assert!(fault("{").contains("line 1"), "{}", fault("{"));
        assert!(fault("{} {}").contains("missing") || fault("{} {}").contains("trailing"));
    }
}
