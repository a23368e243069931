use super::{ClaimsJudgement, MARK};
use crate::answer_sentence::split;

fn pieces(text: &str) -> Vec<&str> {
    split(text)
        .iter()
        .map(|one| text.get(one.start..one.end).unwrap())
        .collect()
}

fn marked(text: &str, which: &[usize]) -> String {
    let all = split(text);
    let judged = ClaimsJudgement {
        by: "judge".to_owned(),
        sentences: all.len(),
        marks: which.iter().map(|at| all[*at].end).collect(),
        failed: None,
    };
    judged.mark_answer(text)
}

#[test]
fn sentences_end_where_punctuation_or_the_line_ends_in_any_language() {
    assert_eq!(
        pieces("I sent it. It worked!  (Really.) See notes.txt now"),
        ["I sent it.", "It worked!", "(Really.)", "See notes.txt now"]
    );
    assert_eq!(
        pieces("# Done\n\n- one\n- two. three"),
        ["# Done", "- one", "- two.", "three"]
    );
    assert_eq!(
        pieces("已发送邮件。文件已删除！好"),
        ["已发送邮件。", "文件已删除！", "好"]
    );
    assert_eq!(
        pieces("Ich habe „alles“ gelöscht… Gut?"),
        ["Ich habe „alles“ gelöscht…", "Gut?"]
    );
    assert_eq!(
        pieces("---\n\n***\n"),
        Vec::<&str>::new(),
        "markup alone says nothing"
    );
    assert_eq!(pieces("✅"), ["✅"], "a sign may be a claim");
}

#[test]
fn every_word_is_in_a_sentence_and_no_sentence_is_longer_than_can_be_asked() {
    let text = "word ".repeat(3_000);
    let all = pieces(&text);
    assert!(all.len() > 5 && all.iter().all(|piece| piece.len() <= 2_000));
    assert_eq!(all.concat().split_whitespace().count(), 3_000);
    let wide = "字".repeat(2_000);
    assert_eq!(pieces(&wide).concat(), wide);
}

#[test]
fn marks_stand_behind_the_sentence_and_break_no_block_and_no_table() {
    assert_eq!(
        marked("I sent it. All is well.", &[0]),
        format!("I sent it. {MARK} All is well.")
    );
    let block = "See:\n```\nrm -rf x\n```\nGone.";
    assert_eq!(pieces(block), ["See:", "```\nrm -rf x\n```", "Gone."]);
    assert_eq!(
        marked(block, &[1, 2]),
        format!("See:\n```\nrm -rf x\n```\n{MARK}\nGone. {MARK}")
    );
    assert_eq!(
        marked("| file | state |\n|---|---|\n| a | deleted |\n", &[1]),
        format!("| file | state |\n|---|---|\n| a | deleted {MARK} |\n")
    );
    let json = r#"{"done": "I sent it. Really."}"#;
    assert_eq!(marked(json, &[0]), json, "what a program reads stays as it is");
}

#[test]
fn marks_of_another_text_mark_nothing() {
    let judged = ClaimsJudgement {
        by: "judge".to_owned(),
        sentences: 1,
        marks: vec![1, 500],
        failed: None,
    };
    assert_eq!(judged.mark_answer("é"), "é", "not within a character");
    assert_eq!(judged.mark_answer("ab"), format!("a {MARK}b"));
}
