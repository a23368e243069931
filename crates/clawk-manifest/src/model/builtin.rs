//! The names of the runtime's built-in tools (R54). A tool of `spec.tools` with one of these names needs neither description nor
//! schema: the runtime has them.

use crate::diagnostic::did_you_mean;

/// The name of every built-in tool, in alphabetical order. `clawk-tools` describes them; one of its tests compares both lists.
pub const BUILTIN_TOOL_NAMES: [&str; 19] = [
    "ask-user",
    "channel-send",
    "context-write",
    "date",
    "echo",
    "file-edit",
    "file-list",
    "file-read",
    "file-search",
    "file-write",
    "http-request",
    "memory-forget",
    "memory-query",
    "memory-store",
    "schedule",
    "shell",
    "sleep",
    "web-fetch",
    "web-search",
];

/// Names of other runtimes for the same work, for suggestions only.
const OTHER_NAMES: [(&str, &str); 24] = [
    ("bash", "shell"),
    ("calendar", "date"),
    ("clock", "date"),
    ("command", "shell"),
    ("cron", "schedule"),
    ("current-time", "date"),
    ("edit", "file-edit"),
    ("exec", "shell"),
    ("execute", "shell"),
    ("fetch", "web-fetch"),
    ("get-time", "date"),
    ("glob", "file-list"),
    ("grep", "file-search"),
    ("http", "http-request"),
    ("list-directory", "file-list"),
    ("ls", "file-list"),
    ("read", "file-read"),
    ("recall", "memory-query"),
    ("remember", "memory-store"),
    ("reminder", "schedule"),
    ("send-message", "channel-send"),
    ("terminal", "shell"),
    ("time", "date"),
    ("write", "file-write"),
];

/// The built-in tool with this name. `_` and `-` are the same (`file_list` is `file-list`).
#[must_use]
pub fn builtin_tool_name(text: &str) -> Option<&'static str> {
    let same = |name: &&str| {
        name.len() == text.len()
            && name
                .bytes()
                .zip(text.bytes())
                .all(|(own, given)| own == given || (own == b'-' && given == b'_'))
    };
    BUILTIN_TOOL_NAMES.into_iter().find(same)
}

/// The built-in tool that a name which is none of them probably means: by a known name elsewhere, by the same words in another order
/// (`read_file`), or by a misspelling.
#[must_use]
pub fn similar_builtin_tool(text: &str) -> Option<&'static str> {
    let folded = text.to_lowercase().replace(['_', ' '], "-");
    let other = OTHER_NAMES.iter().find(|(name, _)| *name == folded);
    let words = |name: &str| {
        let mut words: Vec<String> = name
            .split('-')
            .map(|word| word.strip_suffix('s').unwrap_or(word).to_owned())
            .collect();
        words.sort();
        words
    };
    let given = words(&folded);
    other
        .map(|(_, name)| *name)
        .or_else(|| BUILTIN_TOOL_NAMES.into_iter().find(|name| words(name) == given))
        .or_else(|| did_you_mean(&folded, BUILTIN_TOOL_NAMES))
}

/// What to write instead of a name that is no built-in tool: the nearest one, if any, and the list of all.
#[must_use]
pub fn builtin_tool_help(text: &str) -> String {
    let all = BUILTIN_TOOL_NAMES.join(", ");
    match similar_builtin_tool(text) {
        Some(near) => format!("did you mean the built-in `{near}`? (built-in tools: {all})"),
        None => format!("built-in tools: {all}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{BUILTIN_TOOL_NAMES, OTHER_NAMES, builtin_tool_name, similar_builtin_tool};

    #[test]
    fn every_name_is_found_in_both_spellings_and_no_other_text_is() {
        for name in BUILTIN_TOOL_NAMES {
            assert_eq!(builtin_tool_name(name), Some(name));
            assert_eq!(builtin_tool_name(&name.replace('-', "_")), Some(name));
        }
        for other in [
            "",
            "file",
            "file-listing",
            "File-List",
            "./file-list",
            "file list",
        ] {
            assert_eq!(builtin_tool_name(other), None, "{other}");
        }
        assert!(BUILTIN_TOOL_NAMES.is_sorted(), "a reader looks a name up");
    }

    #[test]
    fn names_of_other_runtimes_and_misspellings_lead_to_the_built_in() {
        for (given, meant) in [
            ("read_file", "file-read"),
            ("list_files", "file-list"),
            ("search_web", "web-search"),
            ("web_serach", "web-search"),
            ("file-raed", "file-read"),
            ("Bash", "shell"),
            ("remember", "memory-store"),
            ("shedule", "schedule"),
        ] {
            assert_eq!(similar_builtin_tool(given), Some(meant), "{given}");
        }
        assert_eq!(similar_builtin_tool("invoices"), None);
        for (name, meant) in OTHER_NAMES {
            assert_eq!(builtin_tool_name(name), None, "{name} is a built-in itself");
            assert!(BUILTIN_TOOL_NAMES.contains(&meant), "{meant}");
        }
    }
}
