//! What a person types at a question.

use clawk_kernel::{Answer, Breadth};

/// What a person typed at a question.
pub(super) enum Typed {
    Answer(Answer, Breadth, Option<String>),
    View,
    Why,
}

/// `y`, `n`, `n because …`, `s`, `a`, `v`, `w`, and their words; `dir` behind `s` or `a` means the folder.
pub(super) fn parse(line: &str) -> Option<Typed> {
    let (word, rest) = line
        .trim()
        .split_once(char::is_whitespace)
        .unwrap_or((line.trim(), ""));
    let reason = Some(rest.trim().to_owned()).filter(|reason| !reason.is_empty());
    match word.to_ascii_lowercase().as_str() {
        "y" | "yes" if reason.is_none() => Some(Typed::Answer(Answer::Approve, Breadth::Exact, None)),
        "s" | "session" => Some(Typed::Answer(
            Answer::ApproveForSession,
            breadth(reason.as_deref())?,
            None,
        )),
        "a" | "always" => Some(Typed::Answer(Answer::Always, breadth(reason.as_deref())?, None)),
        "n" | "no" => Some(Typed::Answer(Answer::Deny, Breadth::Exact, reason)),
        "v" | "view" => Some(Typed::View),
        "w" | "why" | "?" => Some(Typed::Why),
        _ => None,
    }
}

/// Nothing said is the narrower one; other words are no answer.
fn breadth(said: Option<&str>) -> Option<Breadth> {
    match said {
        None => Some(Breadth::Exact),
        Some("dir" | "folder") => Some(Breadth::Folder),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::{Answer, Breadth};

    use super::{Typed, parse};

    #[test]
    fn only_clear_answers_are_answers() {
        let answer = |line: &str| match parse(line) {
            Some(Typed::Answer(answer, breadth, reason)) => Some((answer, breadth, reason)),
            _ => None,
        };
        assert_eq!(answer(" y "), Some((Answer::Approve, Breadth::Exact, None)));
        assert_eq!(answer("ALWAYS"), Some((Answer::Always, Breadth::Exact, None)));
        assert_eq!(
            answer("s dir"),
            Some((Answer::ApproveForSession, Breadth::Folder, None))
        );
        assert_eq!(answer("n"), Some((Answer::Deny, Breadth::Exact, None)));
        assert_eq!(
            answer("no not there"),
            Some((Answer::Deny, Breadth::Exact, Some("not there".to_owned())))
        );
        assert!(matches!(parse("why"), Some(Typed::Why)));
        assert!(matches!(parse("v"), Some(Typed::View)));
        for unclear in ["", "yes but not there", "always here", "ok", "yn"] {
            assert!(parse(unclear).is_none(), "{unclear}");
        }
    }
}
