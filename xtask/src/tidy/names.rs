//! Checks that type names are nouns that a reader can understand and search for, or standard terms of the field. The words come
//! from `docs/design/glossary.md`. `names.allow` lists the exceptions and may only become shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Finding;
use super::tokens::split_tokens;

/// The file of exceptions, one `CRATE NAME` per line.
const EXCEPTIONS: &str = "xtask/src/tidy/names.allow";

/// Number of lines in `names.allow`. It is lowered together with the list and never raised.
const EXCEPTION_COUNT: usize = 4;

/// Largest number of types with the same name. More can't be found by a text search.
const TYPES_PER_NAME: usize = 4;

const CURE: &str = "give it a noun that says what is unique about it; docs/design/glossary.md";

/// Participles, pronouns and adverbs. Other participles are recognised by the endings `-ed` and `-ing`.
const NOT_NOUNS: &str = "
    All Any Asked Begun Both Bound Came Come Cut Cuts Done Drawn Due Each Earlier Elsewhere Firsts Foreseen Foretold Found Given
    Gone Grown Heard Held Here How Keeps Kept Known Lacks Lasting Later Leads Left Lent Lost Made Meant Met Neither Nobody None Now
    Once Owed Own Past Put Read Reads Said Seen Sent Shown Some Spent Stands Holds Taken There Told Undone Unmet Wanted Way What
    Where Which Who Whole Whom Whose Wish Written";

/// The only allowed names of one word. Every engineer of this field knows them.
const STANDARD_TERMS: &str = "
    Agent Agents Approval Args Arguments Atlas Attachment Attribute Audit Backend Batch Blob Body Bounds Broker Budget Buffer Builder
    Bus Cache Call Capabilities Capability Channel Channels Chunk Claim Claims Client Clock Codec Column Command Config Connection
    Container Content Context Conversation Cursor Deadline Decision Decoder Delivery Diagnostic Diff Digest Discovery Dispatcher
    Document Draft Effect Embedder Embedding Encoder Endpoint Engine Entry Envelope Error Event Events Evidence Executor Exporter
    Field File Filter Finding Format Frame Gateway Guard Guest Handle Handler Header Headers Health Host Identity Image Inbox Index
    Instance Item Iter Job Journal Kernel Key Keys Kind Label Launcher Lease Level Lifecycle Limit Limits Line Listener Location
    Lock Log Machine Mailbox Manifest Match Matcher Member Memory Message Metadata Method Metric Mode Model Mount Name Network Node
    Notification Options Origin Outbox Outcome Output Page Pair Parser Part Path Pattern Peer Permit Plan Platform Policy Pool Port
    Process Profile Prompt Protocol Provenance Provider Proxy Queue Quota Range Rate Reader Reason Record Recorder Recovery
    Redaction Registry Relay Replay Report Request Response Result Retention Role Root Route Router Row Rule Runner Runtime Sandbox
    Scanner Schedule Scheduler Schema Scope Secret Secrets Segment Sender Server Session Sessions Settings Severity Signal Signature
    Skill Snapshot Socket Source Span Spec State Status Store Stream Subcommand Swarm Table Tag Taint Target Task Telemetry Template
    Tenant Text Thread Timeout Token Tokens Tool Tools Topology Trace Transcript Transport Tree Trigger Turn Usage User Value Vector
    Vectors Verdict Verifier Version View Violation Waker Watcher Window Worker Writer";

/// Names that any module may use for its own type of that kind.
const CONVENTIONAL_NAMES: &str =
    "Args Builder Command Config Error Event Inner Kind Options Output Request Response State";

/// A type declared in clawk's code.
#[derive(Debug)]
struct TypeDeclaration {
    crate_name: String,
    name: String,
    path: PathBuf,
    line: usize,
}

impl TypeDeclaration {
    fn place(&self) -> String {
        format!("{}:{}", self.path.display(), self.line)
    }

    fn exception(&self) -> NameException {
        NameException {
            crate_name: self.crate_name.clone(),
            name: self.name.clone(),
        }
    }
}

/// A line of `names.allow`: a crate's type that may keep its name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NameException {
    crate_name: String,
    name: String,
}

/// Checks the types in `crates/*/src`, without tests.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut types = Vec::new();
    for path in files {
        let Some(crate_name) = crate_of_source(path) else {
            continue;
        };
        // silent-ok: git still lists a file that was just removed
        let Ok(text) = fs::read_to_string(root.join(path)) else {
            continue;
        };
        types.extend(find_types(crate_name, path, &text));
    }
    let list =
        fs::read_to_string(root.join(EXCEPTIONS)).with_context(|| format!("can't read `{EXCEPTIONS}`"))?;
    Ok(judge(&types, &list, EXCEPTION_COUNT))
}

/// Returns the crate of a source file; `None` for tests and for files outside `src`.
fn crate_of_source(path: &Path) -> Option<&str> {
    let mut parts = path
        .components()
        .map(|part| part.as_os_str().to_str().unwrap_or_default());
    let (Some("crates"), Some(name), Some("src")) = (parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let own = path.extension().is_some_and(|extension| extension == "rs") && !parts.any(is_test_part);
    own.then_some(name)
}

/// Returns whether a path component names tests or their helpers.
fn is_test_part(part: &str) -> bool {
    let stem = part.strip_suffix(".rs");
    ["test", "tests", "testing", "fixtures"].contains(&stem.unwrap_or(part))
        || stem.is_some_and(|stem| stem.ends_with("_test") || stem.ends_with("_tests"))
}

/// The kind of a block in braces, as far as it matters for names.
#[derive(PartialEq, Eq)]
enum BlockKind {
    /// The body of an `impl` or a trait. The trait chooses the names of its `type` lines.
    AssociatedItems,
    /// `mod tests { … }`.
    InlineTests,
    OtherCode,
}

/// Returns the types that a file declares, without tests.
fn find_types(crate_name: &str, path: &Path, text: &str) -> Vec<TypeDeclaration> {
    let tokens = split_tokens(text);
    let mut blocks: Vec<BlockKind> = Vec::new();
    // The keyword that decides the kind of the next block: the first one in its head.
    let mut head: Option<&str> = None;
    let mut types = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).map_or("", |next| next.text);
        match token.text {
            "fn" | "impl" | "trait" => {
                head.get_or_insert(token.text);
            }
            "mod" if next == "tests" => {
                head.get_or_insert("tests");
            }
            "{" => blocks.push(match head.take() {
                Some("impl" | "trait") => BlockKind::AssociatedItems,
                Some("tests") => BlockKind::InlineTests,
                Some(_) | None => BlockKind::OtherCode,
            }),
            "}" => {
                head = None;
                blocks.pop();
            }
            ";" => head = None,
            _ => {}
        }
        let declares = match token.text {
            "struct" | "enum" | "trait" | "union" => true,
            "type" => blocks.last() != Some(&BlockKind::AssociatedItems),
            _ => false,
        };
        if declares && next.starts_with(char::is_uppercase) && !blocks.contains(&BlockKind::InlineTests) {
            types.push(TypeDeclaration {
                crate_name: crate_name.to_owned(),
                name: next.to_owned(),
                path: path.to_owned(),
                line: token.line,
            });
        }
    }
    types
}

/// Returns the findings for the names of `types`, and for the list of exceptions, which must have `count` lines.
fn judge(types: &[TypeDeclaration], list: &str, count: usize) -> Vec<Finding> {
    let lines: Vec<&str> = list
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let exceptions: BTreeSet<NameException> = lines.iter().filter_map(|line| parse_exception(line)).collect();
    let mut findings = Vec::new();
    // Exceptions that some type needs.
    let mut needed = BTreeSet::new();
    for declared in types {
        let Some(fault) = describe_fault(&declared.name) else {
            continue;
        };
        let exception = declared.exception();
        if !exceptions.contains(&exception) {
            let place = declared.place();
            findings.push(format!("{place}: type {fault}: {CURE}{}", allow_hint(&exception)));
        }
        needed.insert(exception);
    }
    for declared in group_by_name(types).into_values() {
        if declared.len() <= TYPES_PER_NAME {
            continue;
        }
        needed.extend(declared.iter().map(|declared| declared.exception()));
        let open: Vec<_> = declared
            .into_iter()
            .filter(|declared| !exceptions.contains(&declared.exception()))
            .collect();
        findings.extend(describe_crowd(&open));
    }
    findings.extend(judge_exceptions(&lines, &needed, count));
    findings
}

/// Returns why a name is not acceptable; `None` for a good name.
fn describe_fault(name: &str) -> Option<String> {
    if count_words(name) > 1 || lists(STANDARD_TERMS, name) {
        return None;
    }
    let participle = ["ed", "ing"].iter().any(|ending| {
        name.strip_suffix(ending)
            .is_some_and(|stem| stem.chars().count() > 1)
    });
    Some(if participle || lists(NOT_NOUNS, name) {
        format!("`{name}` is named by a bare participle, pronoun or adverb")
    } else {
        format!("`{name}` is named by one word that is not a standard term")
    })
}

/// Returns the finding about too many types with one name.
fn describe_crowd(types: &[&TypeDeclaration]) -> Option<Finding> {
    let first = types.first().filter(|_| types.len() > TYPES_PER_NAME)?;
    let places: Vec<String> = types.iter().map(|declared| declared.place()).collect();
    Some(format!(
        "{}: `{}` names {} types, more than {TYPES_PER_NAME} ({}): {CURE}{}",
        first.place(),
        first.name,
        types.len(),
        places.join(", "),
        allow_hint(&first.exception())
    ))
}

fn allow_hint(exception: &NameException) -> String {
    let NameException { crate_name, name } = exception;
    format!(
        " (a type that is older than this rule: the line `{crate_name} {name}` in {EXCEPTIONS}, and `EXCEPTION_COUNT` one higher)"
    )
}

fn group_by_name(types: &[TypeDeclaration]) -> BTreeMap<&str, Vec<&TypeDeclaration>> {
    let mut names: BTreeMap<&str, Vec<&TypeDeclaration>> = BTreeMap::new();
    for declared in types {
        if !lists(CONVENTIONAL_NAMES, &declared.name) {
            names.entry(&declared.name).or_default().push(declared);
        }
    }
    names
}

/// Checks that the list holds only needed exceptions, each once, and did not become longer.
fn judge_exceptions(lines: &[&str], needed: &BTreeSet<NameException>, count: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for line in lines {
        match parse_exception(line) {
            None => findings.push(format!(
                "{EXCEPTIONS}: `{line}` is not a crate and a name (example: `clawk-core Shell`)"
            )),
            Some(exception) if !needed.contains(&exception) => findings.push(format!(
                "{EXCEPTIONS}: no type needs `{line}` any more: remove the line"
            )),
            Some(exception) => {
                if !seen.insert(exception) {
                    findings.push(format!("{EXCEPTIONS}: `{line}` stands twice: remove one line"));
                }
            }
        }
    }
    if lines.len() != count {
        let cure = if lines.len() > count {
            "the list can only shrink: rename the type instead"
        } else {
            "lower the number"
        };
        findings.push(format!(
            "{EXCEPTIONS}: {} lines, and `EXCEPTION_COUNT` in xtask/src/tidy/names.rs is {count}: {cure}",
            lines.len()
        ));
    }
    findings
}

fn parse_exception(line: &str) -> Option<NameException> {
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(crate_name), Some(name), None) = (words.next(), words.next(), words.next()) else {
        return None;
    };
    Some(NameException { crate_name, name })
}

fn lists(words: &str, name: &str) -> bool {
    words.split_whitespace().any(|word| word == name)
}

/// Counts the words in a name: `ApprovalRequest` has two, `Sha256` and `URI` have one, `OAuth` has two.
fn count_words(name: &str) -> usize {
    let letters: Vec<char> = name.chars().collect();
    let starts = letters.iter().enumerate().filter(|(at, letter)| {
        let before = at.checked_sub(1).and_then(|at| letters.get(at));
        let after = letters.get(at + 1);
        letter.is_uppercase()
            && (before.is_none_or(|before| !before.is_uppercase())
                || after.is_some_and(|after| after.is_lowercase()))
    });
    starts.count()
}

#[cfg(test)]
mod tests;
