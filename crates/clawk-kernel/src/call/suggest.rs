//! A rule for the operator, from an answer of `always`. It is a suggestion in a file of its own: a policy is never changed
//! by an answer.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::json;

use super::standing::StandingGrant;

/// The file's name in the state directory.
pub const FILE: &str = "suggested-rules.yaml";

/// The narrowest rule that the policy language has for a grant, as YAML, with what it means in comments.
#[must_use]
pub fn suggestion(held: &StandingGrant) -> String {
    let mut text = format!(
        "# {}: {} allowed always: {}\n# (grant {}, which stands by itself). Put this into a policy, or don't.\n",
        held.at,
        plain(&held.by),
        plain(&held.shown),
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

/// One line without anything that could end a comment.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(200)
        .collect()
}

/// Adds it to the file.
///
/// # Errors
/// The file can't be written; the grant stands all the same.
pub(crate) fn append(dir: &Path, held: &StandingGrant) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(dir.join(FILE))?;
    file.write_all(suggestion(held).as_bytes())
}
