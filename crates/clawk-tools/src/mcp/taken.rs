//! Names for a server's tools, if a declared tool takes over all of them.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

/// The maximum length of a tool name, in bytes (R8).
const MAX_NAME_BYTES: usize = 63;
/// How many hexadecimal digits of the digest are in a shortened name.
const DIGEST_DIGITS: usize = 8;
/// The maximum number of tools that are taken over from one server.
const MAX_TAKEN: usize = 256;

/// The agent's name for each of the server's tools. If several tools would get the same name, each tool whose own name has other
/// characters gets a digest of it, independent of their order. Tools above [`MAX_TAKEN`] are dropped.
pub(crate) fn tool_names(declared: &str, served: &[String]) -> BTreeMap<String, String> {
    if served.len() > MAX_TAKEN {
        tracing::warn!(
            tool = declared,
            "its server has {} tools, and the first {MAX_TAKEN} are taken over; name those that are wanted, each with `mcp_source.tool_name`",
            served.len()
        );
    }
    let served: BTreeSet<&String> = served.iter().take(MAX_TAKEN).collect();
    let mut groups: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for tool in served {
        groups.entry(name(declared, tool)).or_default().push(tool);
    }
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    for (shared, tools) in groups {
        let alone = tools.len() == 1;
        for tool in tools {
            let plain = shared == format!("{declared}-{tool}");
            let name = if alone || plain {
                shared.clone()
            } else {
                with_digest(&shared, tool)
            };
            all.entry(name).or_insert_with(|| tool.clone());
        }
    }
    all
}

/// `DECLARED-TOOL` with only letters, digits and hyphens. A name that is too long is cut and ends with a digest.
fn name(declared: &str, tool: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let whole: String = format!("{declared}-{tool}").chars().map(plain).collect();
    if whole.len() <= MAX_NAME_BYTES {
        return whole;
    }
    with_digest(&whole, tool)
}

fn with_digest(whole: &str, tool: &str) -> String {
    let digest: String = Sha256::digest(tool.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let room = MAX_NAME_BYTES - DIGEST_DIGITS - 1;
    let kept = whole.get(..whole.len().min(room)).unwrap_or_default();
    format!("{kept}-{}", digest.get(..DIGEST_DIGITS).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::tool_names;

    #[test]
    fn names_are_cut_and_told_apart() {
        let served = ["read_file".to_owned(), "list".to_owned()];
        let found = tool_names("fs", &served);
        assert_eq!(found["fs-read-file"], "read_file");
        let twins = ["a.b".to_owned(), "a_b".to_owned(), "a-b".to_owned()];
        let found = tool_names("fs", &twins);
        assert_eq!(found["fs-a-b"], "a-b", "the plain name keeps its name");
        assert_eq!(found.len(), 3);
        let turned: Vec<String> = twins.into_iter().rev().collect();
        assert_eq!(found, tool_names("fs", &turned), "their order does not count");
        let long = ["x".repeat(80), format!("{}y", "x".repeat(79))];
        let found = tool_names("fs", &long);
        assert_eq!(found.len(), 2, "the digest tells them apart");
        assert!(found.keys().all(|name| name.len() == 63));
        let many: Vec<String> = (0..300).map(|n| format!("t{n}")).collect();
        assert_eq!(tool_names("fs", &many).len(), 256);
        let odd = [
            "",
            " ",
            "日本",
            "a/b",
            "tools/ls",
            "x y",
            "é",
            "-",
            "a--b",
            "\u{202e}x",
        ]
        .map(str::to_owned);
        assert_eq!(tool_names("fs", &odd).len(), odd.len());
    }

    proptest! {
        /// Every tool gets a valid and unique name, whatever the server calls it.
        #[test]
        fn every_name_is_valid(served in proptest::collection::btree_set("\\PC{0,90}", 0..12)) {
            let served: Vec<String> = served.into_iter().collect();
            let found = tool_names("srv", &served);
            prop_assert_eq!(found.len(), served.len());
            for name in found.keys() {
                prop_assert!(clawk_proto::uri::is_name(name), "{}", name);
            }
        }
    }
}
