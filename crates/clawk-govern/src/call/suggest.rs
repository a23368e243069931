//! Suggests a rule to the operator after an answer of `always`. The suggestion is written to a separate file; an answer never
//! changes a policy.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::json;

use super::standing::StandingGrant;

/// Name of the file in the state directory.
pub const FILE: &str = "suggested-rules.yaml";

/// Returns the narrowest rule for a grant as YAML, with its meaning in comments.
#[must_use]
pub fn suggested_rule(held: &StandingGrant) -> String {
    let mut text = format!(
        "# {}: {} allowed always: {}\n# (grant {}, which stands by itself). Put this into a policy, or don't.\n",
        held.at,
        comment_line(&held.by),
        comment_line(&held.shown),
        held.id,
    );
    if held.folder.is_none() {
        text.push_str("# WIDER than the grant: a rule can't name exact arguments, so this one allows every call of the tool.\n");
    }
    let short: String = held.parameters.to_hex().chars().take(8).collect();
    let id = json!(format!("allow-{}-{short}", held.tool));
    text.push_str(&format!(
        "- id: {id}\n  action: allow\n  scope: tool\n  match:\n    name: {}\n",
        json!(held.tool)
    ));
    if let Some(folder) = &held.folder {
        text.push_str(&format!("  conditions:\n    path_within: {}\n", json!(folder)));
    }
    text
}

/// Returns one line without characters that could end a comment.
fn comment_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}

/// Appends the suggestion to the file.
///
/// # Errors
/// The file can't be written. The grant is valid anyway.
pub fn append_suggestion(dir: &Path, held: &StandingGrant) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(dir.join(FILE))?;
    file.write_all(suggested_rule(held).as_bytes())
}
