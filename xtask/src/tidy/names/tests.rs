use std::fs;
use std::path::{Path, PathBuf};

use super::{Finding, check, count_words, crate_of_source, find_types, judge};

/// Findings about the types that `text` declares, under a list of exceptions that is as long as it may be.
fn judge_text(text: &str, list: &str) -> Vec<Finding> {
    let types = find_types("clawk-core", Path::new("crates/clawk-core/src/a.rs"), text);
    judge(&types, list, list.lines().count())
}

fn declared_names(text: &str) -> Vec<String> {
    let types = find_types("clawk-core", Path::new("crates/clawk-core/src/a.rs"), text);
    types.into_iter().map(|declared| declared.name).collect()
}

#[test]
fn names_of_one_word_must_be_standard_terms() {
    for name in ["Told", "Which", "Elsewhere", "Granted", "Pending"] {
        let found = judge_text(&format!("\npub(crate) struct {name};"), "");
        assert_eq!(found.len(), 1, "{found:?}");
        let words = format!(
            "crates/clawk-core/src/a.rs:2: type `{name}` is named by a bare participle, pronoun or adverb: give it a noun"
        );
        assert!(
            found.iter().all(|finding| finding.starts_with(&words)),
            "{found:?}"
        );
    }
    for name in ["Desk", "Purse", "Ring", "URI", "Sha256", "Told2"] {
        let found = judge_text(&format!("enum {name} {{}}"), "");
        assert_eq!(found.len(), 1, "{found:?}");
        let finding = &found[0];
        assert!(
            finding.contains(&format!("`{name}` is named by one word")),
            "{finding}"
        );
        assert!(finding.contains("docs/design/glossary.md"), "{finding}");
        assert!(
            finding.contains(&format!("the line `clawk-core {name}`")),
            "{finding}"
        );
    }
    for name in [
        "Session",
        "Embedding",
        "BudgetLedger",
        "GrantedPermit",
        "OAuth",
        "MCPServer",
    ] {
        assert_eq!(judge_text(&format!("trait {name} {{}}"), ""), [""; 0]);
    }
}

#[test]
fn every_kind_of_type_is_found_wherever_it_stands() {
    let text = "
#[derive(Debug)] pub struct Alpha<T>(T);
pub(in crate::x) enum Beta { Struct, Type }
pub unsafe trait Gamma { type Assoc; fn f(); }
union
    Delta { a: u8 }
type Epsilon = u8;
impl<T> Iterator for Alpha<T> where T: Copy { type Item = T; fn next(&mut self) -> Option<T> { struct Zeta; type Eta = u8; None } }
fn give() -> impl Iterator { enum Theta {} }
mod inner { pub type Iota = u8; }
macro_rules! make { ($name:ident) => { pub struct $name; struct Kappa; } }
// struct Comment
const TEXT: &str = \"struct Text\";
#[cfg(test)]
mod tests { struct Helper; mod deeper { enum Deep {} } }
struct Lambda;
";
    let names = [
        "Alpha", "Beta", "Gamma", "Delta", "Epsilon", "Zeta", "Eta", "Theta", "Iota", "Kappa", "Lambda",
    ];
    assert_eq!(declared_names(text), names);
}

#[test]
fn the_own_code_of_crates_is_judged_and_tests_are_not() {
    let crate_of = |path: &'static str| crate_of_source(Path::new(path));
    assert_eq!(crate_of("crates/clawk-core/src/lib.rs"), Some("clawk-core"));
    assert_eq!(crate_of("crates/clawk/src/cmd/attests.rs"), Some("clawk"));
    for path in [
        "crates/clawk-core/src/a/tests.rs",
        "crates/clawk-core/src/tests/a.rs",
        "crates/clawk-core/src/testing.rs",
        "crates/clawk-core/src/fixtures/a.rs",
        "crates/clawk-core/src/a_test.rs",
        "crates/clawk-core/tests/it/main.rs",
        "crates/clawk-core/build.rs",
        "crates/clawk-core/src/a.md",
        "xtask/src/main.rs",
    ] {
        assert_eq!(crate_of(path), None, "{path}");
    }
}

#[test]
fn a_name_on_more_than_four_types_is_found_unless_conventional() {
    let types = |name: &str, count: usize| format!("struct {name};\n").repeat(count);
    assert_eq!(judge_text(&types("BudgetLedger", 4), ""), [""; 0]);
    assert_eq!(judge_text(&types("Options", 9), ""), [""; 0]);
    for name in ["BudgetLedger", "Session"] {
        let found = judge_text(&types(name, 5), "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains(&format!("`{name}` names 5 types, more than 4")),
            "{found:?}"
        );
        assert!(found[0].contains("crates/clawk-core/src/a.rs:5"), "{found:?}");
        assert_eq!(
            judge_text(&types(name, 5), &format!("clawk-core {name}")),
            [""; 0]
        );
    }
}

#[test]
fn an_exception_holds_for_its_crate_and_goes_when_nothing_needs_it() {
    assert_eq!(judge_text("struct Desk;", "clawk-core Desk"), [""; 0]);
    let other = judge_text("struct Desk;", "clawk-store Desk");
    assert_eq!(other.len(), 2, "{other:?}");
    assert!(
        other
            .iter()
            .any(|finding| finding.contains("no type needs `clawk-store Desk` any more: remove"))
    );
    let good = judge_text("struct BudgetLedger;", "clawk-core BudgetLedger");
    assert_eq!(good.len(), 1, "{good:?}");
    let twice = judge_text("struct Desk;", "clawk-core Desk\nclawk-core Desk");
    assert!(
        twice.iter().any(|finding| finding.contains("stands twice")),
        "{twice:?}"
    );
    let wrong = judge_text("", "Desk");
    assert!(
        wrong
            .iter()
            .any(|finding| finding.contains("is not a crate and a name")),
        "{wrong:?}"
    );
}

#[test]
fn the_list_of_exceptions_can_only_shrink() {
    let types = find_types(
        "clawk-core",
        Path::new("crates/clawk-core/src/a.rs"),
        "struct Desk;",
    );
    let list = "# a comment\n\nclawk-core Desk\n";
    assert_eq!(judge(&types, list, 1), [""; 0]);
    let longer = judge(&types, list, 0);
    assert_eq!(longer.len(), 1, "{longer:?}");
    assert!(longer[0].contains("can only shrink: rename"), "{longer:?}");
    let shorter = judge(&types, list, 2);
    assert_eq!(shorter.len(), 1, "{shorter:?}");
    assert!(shorter[0].contains("is 2: lower the number"), "{shorter:?}");
}

#[test]
fn the_files_and_the_list_of_a_tree_are_read() {
    let tree = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = [
        "crates/clawk-core/src/a.rs",
        "crates/clawk-core/src/a/tests.rs",
        "crates/gone/src/a.rs",
    ]
    .map(PathBuf::from)
    .into();
    for path in &files[..2] {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "struct Kept;\n").unwrap();
    }
    assert!(
        check(tree.path(), &files)
            .unwrap_err()
            .to_string()
            .contains("names.allow")
    );
    let list = tree.path().join("xtask/src/tidy/names.allow");
    fs::create_dir_all(list.parent().unwrap()).unwrap();
    fs::write(&list, "# none\n").unwrap();
    let found = check(tree.path(), &files).unwrap();
    assert!(
        found
            .iter()
            .any(|finding| finding.starts_with("crates/clawk-core/src/a.rs:1: type `Kept`"))
    );
    assert!(
        !found.iter().any(|finding| finding.contains("tests.rs")),
        "{found:?}"
    );
}

#[test]
fn words_are_counted_as_a_reader_sees_them() {
    for (name, words) in [
        ("Uri", 1),
        ("URI", 1),
        ("Sha256", 1),
        ("OAuth", 2),
        ("MCPServer", 2),
        ("ApprovalRequest", 2),
        ("X", 1),
    ] {
        assert_eq!(count_words(name), words, "{name}");
    }
}
