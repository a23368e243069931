//! Names under which a server's tools are taken over for a declared tool that names none of them.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

/// Longest name of a tool, bytes (R8).
const MAX_NAME_BYTES: usize = 63;
/// Hexadecimal digits of the digest in a name that is cut.
const DIGEST_DIGITS: usize = 8;
/// Tools of one server; more are not taken over.
const MAX_TAKEN: usize = 256;

/// The name in the agent of each of the server's tools.
///
/// # Errors
/// Two would have one name, or there are too many; says what would mend it.
pub(crate) fn names(declared: &str, served: &[String]) -> Result<BTreeMap<String, String>, String> {
    if served.len() > MAX_TAKEN {
        return Err(format!(
            "its server has {} tools, and at most {MAX_TAKEN} are taken over; name those that are wanted, each with `mcp_source.tool_name`",
            served.len()
        ));
    }
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for tool in served {
        let name = name(declared, tool);
        if let Some(other) = all.insert(name.clone(), tool.clone()) {
            return Err(format!(
                "its server's tools `{}` and `{}` would both be called `{name}`; name those that are wanted, each with `mcp_source.tool_name`",
                shown(&other),
                shown(tool)
            ));
        }
    }
    Ok(all)
}

/// `DECLARED-TOOL` in the letters, digits and hyphens that a name may have; a long one is cut and ends with a digest.
fn name(declared: &str, tool: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let whole: String = format!("{declared}-{tool}").chars().map(plain).collect();
    if whole.len() <= MAX_NAME_BYTES {
        return whole;
    }
    let digest: String = Sha256::digest(tool.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept = whole
        .get(..MAX_NAME_BYTES - DIGEST_DIGITS - 1)
        .unwrap_or_default();
    format!("{kept}-{}", digest.get(..DIGEST_DIGITS).unwrap_or_default())
}

fn shown(tool: &str) -> String {
    tool.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::names;

    #[test]
    fn names_are_cut_and_collisions_refused() {
        let served = ["read_file".to_owned(), "list".to_owned()];
        let found = names("fs", &served).unwrap();
        assert_eq!(found["fs-read-file"], "read_file");
        let twins = ["a.b".to_owned(), "a_b".to_owned()];
        let why = names("fs", &twins).unwrap_err();
        assert!(why.contains("`fs-a-b`") && why.contains("tool_name"), "{why}");
        let long = ["x".repeat(80), format!("{}y", "x".repeat(79))];
        let found = names("fs", &long).unwrap();
        assert_eq!(found.len(), 2, "the digest tells them apart");
        assert!(found.keys().all(|name| name.len() == 63));
        assert!(names("fs", &vec!["t".to_owned(); 257]).is_err());
    }

    proptest! {
        /// Whatever a server calls its tools: names are valid and each leads to one tool, or all are refused.
        #[test]
        fn every_name_is_valid(served in proptest::collection::btree_set("\\PC{0,90}", 0..12)) {
            let served: Vec<String> = served.into_iter().collect();
            if let Ok(found) = names("srv", &served) {
                prop_assert_eq!(found.len(), served.len());
                for name in found.keys() {
                    prop_assert!(clawk_proto::uri::is_name(name), "{}", name);
                }
            }
        }
    }
}
