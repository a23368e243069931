use clawk_proto::content::ContentBlock;
use clawk_proto::method::ToolCallResult;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{ResultExcerpt, excerpt_result};

fn result(text: &str, is_error: bool, facts: Value) -> ToolCallResult {
    ToolCallResult {
        content: vec![ContentBlock::text(text)],
        is_error,
        structured_content: Some(facts),
    }
}

#[test]
fn a_failure_begins_with_its_reason_and_keeps_the_end() {
    let text = format!("begin\n{}\nerror: no such table `rows`\n", "x".repeat(200_000));
    let facts = json!({"exit_code": 2, "signal": null});
    let told = excerpt_result(&result(&text, true, facts), ResultExcerpt::default());
    assert!(
        told.text.starts_with("[it failed: exit code 2]\n"),
        "{}",
        told.text.chars().take(80).collect::<String>()
    );
    assert!(told.text.contains("error: no such table `rows`"));
    assert!(told.text.contains("begin\nxx"));
    assert!(told.text.len() <= 24 << 10, "{}", told.text.len());
    let digest = told.cut.expect("cut").to_string();
    assert!(told.text.contains(&digest));
}

#[test]
fn records_that_do_not_say_were_cut_at_their_head() {
    let told = excerpt_result(
        &result(&"x".repeat(200_000), false, json!({})),
        ResultExcerpt::legacy_default(),
    );
    assert!(told.text.ends_with("[cut: 131072 of 200000 bytes shown]"));
    assert_eq!(told.cut, None);
}

proptest! {
    /// Whatever the text and the bound: short text is whole, long text stays within the bound and says how much is missing.
    #[test]
    fn never_more_than_the_bound(
        text in "(\\PC|[àß語🦀\n]){0,9000}",
        bytes in ResultExcerpt::MIN_BYTES..9_000,
        is_error: bool,
        limit in proptest::option::of("\\PC{0,900}"),
    ) {
        let told = excerpt_result(&result(&text, is_error, json!({"exit_code": 3, "limit": limit})), ResultExcerpt::Ends(bytes));
        prop_assert!(told.text.len() <= bytes);
        prop_assert_eq!(told.cut.is_some(), text.len() > bytes);
        if told.cut.is_none() {
            prop_assert_eq!(told.text, text);
        }
    }
}
