//! What a question says to a person, and what a typed answer means. Pure.

use clawk_kernel::sheet::{PreviewDisplay, visible_text};
use clawk_kernel::{ApprovalQuestion, EntryPoint, PastApproval, WaitingApproval};
use clawk_proto::{Digest, RequestId};

use super::text::{QuestionText, escape_literal};
use crate::adapter::{ChannelAdapter, Decision};
use crate::split::text_length;

/// Room for what is said around a question's own text.
const AROUND: usize = 500;
/// Characters of a sender's id or of a channel's name in a question.
const MAX_ID: usize = 40;

pub(super) fn id_of(asked: &WaitingApproval) -> &RequestId {
    match asked {
        WaitingApproval::One(question) => &question.request_id,
        WaitingApproval::Plan(plan) => &plan.id,
    }
}

pub(super) fn first_question(asked: &WaitingApproval) -> Option<&ApprovalQuestion> {
    match asked {
        WaitingApproval::One(question) => Some(question),
        WaitingApproval::Plan(plan) => plan.steps.first(),
    }
}

/// `yes CODE` or `no CODE [reason]`; also with `/approve` and `/deny` (R55).
pub(super) fn parse(text: &str) -> Option<(bool, String, Option<String>)> {
    let mut words = text.trim().splitn(3, char::is_whitespace);
    let yes = match words.next()?.to_ascii_lowercase().as_str() {
        "yes" | "/approve" => true,
        "no" | "/deny" => false,
        _ => return None,
    };
    let code = words.next()?.to_ascii_uppercase();
    if code.len() != 8 {
        return None;
    }
    let reason = words.next().map(str::trim).filter(|reason| !reason.is_empty());
    Some((yes, code, reason.map(str::to_owned)))
}

/// What the person reads, and the digests of what they read whole; none: it can't be answered here.
pub(super) fn question_words(
    asked: &WaitingApproval,
    adapter: &dyn ChannelAdapter,
    code: &str,
    whose: &str,
) -> (QuestionText, Vec<Digest>) {
    let abilities = adapter.capabilities();
    let (max, unit) = abilities.limit;
    let questions: Vec<&ApprovalQuestion> = match asked {
        WaitingApproval::One(question) => vec![question],
        WaitingApproval::Plan(plan) => plan.steps.iter().collect(),
    };
    let elsewhere = format!("clawk approve {}", id_of(asked));
    let room = max.saturating_sub(AROUND) / questions.len().max(1);
    let mut whole = QuestionText::default();
    let mut shown = Vec::new();
    for question in &questions {
        match question.sheet.offer(room, false, &elsewhere) {
            PreviewDisplay::Whole(text) => {
                let reason = escape_literal(&question.reason, abilities);
                let reason = match shown.is_empty() {
                    true => format!("**May this be done?**\n{whose}\n{reason}"),
                    false => reason,
                };
                whole = whole.with_frame(reason).with_call(text);
                shown.push(question.sheet.digest());
            }
            PreviewDisplay::File { .. } | PreviewDisplay::Elsewhere(_) => {}
        }
    }
    let whole = whole.with_frame(if abilities.buttons {
        format!("Press a button, or answer `yes {code}` or `no {code} reason`.")
    } else {
        format!("Answer `yes {code}` or `no {code} reason`.")
    });
    if shown.len() == questions.len() && text_length(&whole.render_for(abilities), unit) <= max {
        return (whole, shown);
    }
    let tools: Vec<String> = questions
        .iter()
        .map(|question| visible_text(&question.tool).replace('`', "'"))
        .collect();
    let text = format!(
        "**May this be done?** `{}`\n{whose}\nIts text is too long for this chat. Read all of it and answer with `{elsewhere}`.",
        tools.join("`, `")
    );
    (QuestionText::default().with_frame(text), Vec::new())
}

/// Who wants it, where the question is asked in another place than that person's own conversation; else nothing. Ids come from a
/// platform and may hold anything: each is one short line of plain characters.
pub(super) fn requester_line(door: Option<EntryPoint>, place: (&str, &str)) -> String {
    let plain = |id: &str| -> String {
        let fits = |c: &char| c.is_alphanumeric() || "@.:_+-=/!#$%".contains(*c);
        id.chars().filter(fits).take(MAX_ID).collect()
    };
    match door {
        Some(EntryPoint::Channel {
            channel,
            conversation,
            sender,
            ..
        }) if (channel.as_str(), conversation.as_str()) != place => {
            format!("For `{}` on `{}`.\n", plain(&sender), plain(&channel))
        }
        _ => String::new(),
    }
}

/// What a decision of the record is called. It reads as it does where it was made: whichever of both comes first is shown.
pub(super) fn decision_from_record(past: &PastApproval) -> Decision {
    let (yes, word) = match past.answer.as_str() {
        "approve" => (true, "Approved"),
        "approve-for-session" => (true, "Approved for the session"),
        "always" => (true, "Always approved"),
        "deny" => (false, "Denied"),
        "timeout-deny" => return decision_by_nobody(Some(false), "Denied: nobody answered in time."),
        "timeout-allow" => return decision_by_nobody(Some(true), "Allowed: nobody answered in time."),
        "cancelled" => return decision_by_nobody(None, "It was cancelled."),
        _ => return waits_no_more(),
    };
    decision_by((yes, word), &past.by, &past.channel)
}

pub(super) fn waits_no_more() -> Decision {
    decision_by_nobody(None, "It waits no more.")
}

fn decision_by_nobody(yes: Option<bool>, text: &str) -> Decision {
    Decision {
        yes,
        by: None,
        text: text.to_owned(),
    }
}

pub(super) fn decision_by((yes, word): (bool, &str), person: &str, channel: &str) -> Decision {
    Decision {
        yes: Some(yes),
        by: Some(person.to_owned()),
        text: format!("{word} by {person} ({channel})."),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_a_text_that_begins_with_the_word_and_a_code_answers() {
        assert_eq!(parse("yes ABCD2345"), Some((true, "ABCD2345".to_owned(), None)));
        assert_eq!(
            parse("/approve ABCD2345"),
            Some((true, "ABCD2345".to_owned(), None))
        );
        assert_eq!(
            parse("/Deny ABCD2345 too dear"),
            Some((false, "ABCD2345".to_owned(), Some("too dear".to_owned())))
        );
        assert_eq!(
            parse(" No abcd2345  too dear "),
            Some((false, "ABCD2345".to_owned(), Some("too dear".to_owned())))
        );
        for text in [
            "yes",
            "yes please do",
            "> yes ABCD2345",
            "ann said: yes ABCD2345",
            "yesABCD2345",
            "",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
