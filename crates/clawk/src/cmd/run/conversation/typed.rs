//! Parses a person's answer to an approval request.

use clawk_kernel::{ApprovalAnswer, GrantScope};

/// A person's input at an approval request.
pub(super) enum QuestionInput {
    Answer(ApprovalAnswer, GrantScope, Option<String>),
    View,
    Why,
}

/// Parses `y`, `n`, `n because …`, `s`, `a`, `v`, `w`, and the full words. `dir` after `s` or `a` means the folder.
pub(super) fn parse(line: &str) -> Option<QuestionInput> {
    let (word, rest) = line
        .trim()
        .split_once(char::is_whitespace)
        .unwrap_or((line.trim(), ""));
    let reason = Some(rest.trim().to_owned()).filter(|reason| !reason.is_empty());
    match word.to_ascii_lowercase().as_str() {
        "y" | "yes" if reason.is_none() => Some(QuestionInput::Answer(
            ApprovalAnswer::Approve,
            GrantScope::Exact,
            None,
        )),
        "s" | "session" => Some(QuestionInput::Answer(
            ApprovalAnswer::ApproveForSession,
            parse_scope(reason.as_deref())?,
            None,
        )),
        "a" | "always" => Some(QuestionInput::Answer(
            ApprovalAnswer::Always,
            parse_scope(reason.as_deref())?,
            None,
        )),
        "n" | "no" => Some(QuestionInput::Answer(
            ApprovalAnswer::Deny,
            GrantScope::Exact,
            reason,
        )),
        "v" | "view" => Some(QuestionInput::View),
        "w" | "why" | "?" => Some(QuestionInput::Why),
        _ => None,
    }
}

/// Parses the scope of a grant. No word means the narrower scope; an unknown word is not an answer.
fn parse_scope(said: Option<&str>) -> Option<GrantScope> {
    match said {
        None => Some(GrantScope::Exact),
        Some("dir" | "folder") => Some(GrantScope::Folder),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::{ApprovalAnswer, GrantScope};

    use super::{QuestionInput, parse};

    #[test]
    fn only_clear_answers_are_answers() {
        let answer = |line: &str| match parse(line) {
            Some(QuestionInput::Answer(answer, breadth, reason)) => Some((answer, breadth, reason)),
            _ => None,
        };
        assert_eq!(
            answer(" y "),
            Some((ApprovalAnswer::Approve, GrantScope::Exact, None))
        );
        assert_eq!(
            answer("ALWAYS"),
            Some((ApprovalAnswer::Always, GrantScope::Exact, None))
        );
        assert_eq!(
            answer("s dir"),
            Some((ApprovalAnswer::ApproveForSession, GrantScope::Folder, None))
        );
        assert_eq!(answer("n"), Some((ApprovalAnswer::Deny, GrantScope::Exact, None)));
        assert_eq!(
            answer("no not there"),
            Some((
                ApprovalAnswer::Deny,
                GrantScope::Exact,
                Some("not there".to_owned())
            ))
        );
        assert!(matches!(parse("why"), Some(QuestionInput::Why)));
        assert!(matches!(parse("v"), Some(QuestionInput::View)));
        for unclear in ["", "yes but not there", "always here", "ok", "yn"] {
            assert!(parse(unclear).is_none(), "{unclear}");
        }
    }
}
