//! Answers that a person types as a command: `/approve`, `/deny`, alone or with the beginning of a question's code.

use std::time::Duration;

use clawk_kernel::sheet::visible_text;
use clawk_kernel::{EntryPoint, Role, WaitingApproval};
use tokio::time::Instant;

use super::words::{first_question, id_of};
use super::{OpenQuestion, PressOutcome, QuestionRegistry, QuestionTask};
use crate::adapter::OutboundMessage;
use crate::markup::dress;
use crate::platforms::is_trigger;

/// How long after a decision an answer without a code may still mean the decided question.
const MAY_MEAN_ANOTHER: Duration = Duration::from_secs(60);

/// An answer that was typed as a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TypedAnswer<'a> {
    pub(crate) channel: &'a str,
    pub(crate) conversation: &'a str,
    pub(crate) sender: &'a str,
    pub(crate) role: Role,
    pub(crate) yes: bool,
    /// What stands behind the command.
    pub(crate) words: &'a [String],
}

/// A question as a typed answer looks for it.
#[derive(Debug, Clone, Copy)]
struct CodedQuestion<'a> {
    code: &'a str,
    /// When it was decided.
    decided_at: Option<Instant>,
}

/// Chooses the question that an answer means. Returns its code and the reason.
///
/// # Errors
/// None is meant, or it is not clear which one; in words for the person.
fn choose_question<'a>(
    here: &[CodedQuestion<'a>],
    yes: bool,
    words: &[String],
    now: Instant,
) -> Result<(&'a str, Option<String>), String> {
    let verb = if yes { "/approve" } else { "/deny" };
    let waiting: Vec<&str> = here
        .iter()
        .filter(|open| open.decided_at.is_none())
        .map(|open| open.code)
        .collect();
    let joined = |words: &[String]| Some(words.join(" ")).filter(|text| !text.is_empty());
    if let Some((first, rest)) = words.split_first() {
        let start = first.to_ascii_uppercase();
        // One letter before a reason may be the reason's first word.
        let is_clear = rest.is_empty() || start.len() > 1;
        let found: Vec<&str> = waiting
            .iter()
            .copied()
            .filter(|code| is_clear && code.starts_with(&start))
            .collect();
        match found.as_slice() {
            [code] => return Ok((code, joined(rest))),
            [] if yes => {
                return Err(format!(
                    "No question waits here whose code begins with `{start}`."
                ));
            }
            [] => {}
            several => {
                return Err(format!(
                    "Several codes begin so: {}. Say more letters.",
                    several.join(", ")
                ));
            }
        }
    }
    let [code] = waiting.as_slice() else {
        return Err(match waiting.is_empty() {
            true => "No question waits here.".to_owned(),
            false => format!(
                "Several questions wait here: {}. Say `{verb} CODE`; the beginning of the code is enough.",
                waiting.join(", ")
            ),
        });
    };
    let recent = here.iter().filter_map(|open| open.decided_at);
    if recent
        .into_iter()
        .any(|at| now.saturating_duration_since(at) < MAY_MEAN_ANOTHER)
    {
        return Err(format!(
            "Another question was decided here a moment ago. Read the one that waits, and say `{verb} {code}`."
        ));
    }
    Ok((code, joined(words)))
}

impl QuestionRegistry {
    /// Answers the only question that waits in a conversation, or the one whose code begins as the person typed.
    ///
    /// # Errors
    /// No question is meant, or it is not clear which one; in words for the person.
    pub(crate) async fn answer_by_words(&self, typed: TypedAnswer<'_>) -> Result<PressOutcome, String> {
        let here = self.questions_here(typed.channel, typed.conversation);
        let coded: Vec<CodedQuestion<'_>> = here
            .iter()
            .map(|open| CodedQuestion {
                code: &open.code,
                decided_at: open.decided_at,
            })
            .collect();
        let (code, reason) = choose_question(&coded, typed.yes, typed.words, Instant::now())?;
        let Some(open) = here.iter().find(|open| open.code == code) else {
            return Ok(PressOutcome::Unknown);
        };
        let answered = (typed.channel, typed.sender, Some(typed.role));
        Ok(self.settle_question(open, typed.yes, answered, reason).await)
    }

    /// The questions that were asked in a conversation.
    pub(super) fn questions_here(&self, channel: &str, conversation: &str) -> Vec<OpenQuestion> {
        let adapter = self.adapter_of(channel);
        let is_here = |asked: &str| match &adapter {
            Some(adapter) => adapter.is_same_place(asked, conversation),
            None => asked == conversation,
        };
        let open = self.lock_open();
        open.iter()
            .filter(|open| open.channel == channel && is_here(&open.conversation))
            .cloned()
            .collect()
    }

    /// What a conversation waits for: one sentence for each question about a call of its own.
    pub(crate) fn waiting_sentences(&self, channel: &str, conversation: &str) -> Vec<String> {
        let here = (channel.to_owned(), conversation.to_owned());
        let pending = self.kernel.pending_questions();
        let of_here = pending.iter().filter(|question| {
            matches!(self.kernel.door_of(question.session), Some(EntryPoint::Channel { channel, conversation, .. })
                if (channel == here.0) && (conversation == here.1))
        });
        of_here
            .map(|question| format!("`{}` waits for an admin's answer.", tool_name(&question.tool)))
            .collect()
    }

    /// The notice to a conversation whose own call waits for somebody elsewhere: once for each question. Whoever asked would see
    /// nothing at all otherwise.
    pub(super) fn waiting_notice(
        &self,
        asked: &WaitingApproval,
        targets: &[(String, String)],
    ) -> Option<QuestionTask> {
        let question = first_question(asked)?;
        let Some(EntryPoint::Channel {
            channel,
            conversation,
            ..
        }) = self.kernel.door_of(question.session)
        else {
            return None;
        };
        let place = (channel, conversation);
        let manifest = self.kernel.manifest();
        let of_people = manifest
            .channels
            .iter()
            .any(|channel| channel.name == place.0 && !is_trigger(channel.kind));
        let adapter = self.adapter_of(&place.0)?;
        let is_asked_here = targets
            .iter()
            .any(|(channel, there)| *channel == place.0 && adapter.is_same_place(there, &place.1));
        if !of_people || is_asked_here || !self.lock_told().insert(id_of(asked).clone()) {
            return None;
        }
        let tool = tool_name(&question.tool);
        let mut asked_on: Vec<&str> = targets.iter().map(|(channel, _)| channel.as_str()).collect();
        asked_on.dedup();
        let markdown = match asked_on.is_empty() {
            true => format!(
                "`{tool}` needs an admin's approval, and nobody is named who could be asked. The operator answers it with `clawk \
                 approvals`; `[approvals] to` in clawk.toml names whom to ask."
            ),
            false => format!(
                "I wait for an admin: `{tool}` needs their approval. They are asked on `{}`. `/stop` ends this.",
                asked_on.join("`, `")
            ),
        };
        let out = OutboundMessage {
            id: format!("waits-{}", id_of(asked)),
            conversation: place.1,
            reply_to: None,
            text: dress(&markdown, adapter.capabilities().markup),
            markdown,
            files: Vec::new(),
        };
        Some(QuestionTask::Tell(Box::new(out), adapter))
    }
}

/// A tool's name within backticks.
fn tool_name(tool: &str) -> String {
    visible_text(tool).replace('`', "'")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{CodedQuestion, choose_question};

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn an_answer_means_the_only_question_or_the_one_whose_code_begins_so() {
        let now = Instant::now() + Duration::from_secs(600);
        let open = |code| CodedQuestion {
            code,
            decided_at: None,
        };
        let old = CodedQuestion {
            code: "OLDOLDOL",
            decided_at: Some(now - Duration::from_secs(61)),
        };
        let one = [open("ABCDEFGH"), old];
        let two = [open("ABCDEFGH"), open("ABXXXXXX")];
        let chosen =
            |here: &[CodedQuestion<'static>], yes, text| choose_question(here, yes, &words(text), now);
        let because = |reason: &str| Some(reason.to_owned());
        assert_eq!(chosen(&one, true, ""), Ok(("ABCDEFGH", None)));
        assert_eq!(chosen(&one, true, "a"), Ok(("ABCDEFGH", None)));
        assert_eq!(
            chosen(&one, false, "not today"),
            Ok(("ABCDEFGH", because("not today")))
        );
        assert_eq!(
            chosen(&one, false, "a bad idea"),
            Ok(("ABCDEFGH", because("a bad idea")))
        );
        assert_eq!(
            chosen(&one, false, "abc a bad idea"),
            Ok(("ABCDEFGH", because("a bad idea")))
        );
        assert_eq!(chosen(&two, true, "abx"), Ok(("ABXXXXXX", None)));
        for (here, yes, text, says) in [
            (one.as_slice(), true, "zz", "begins with `ZZ`"),
            (&one, true, "OLD", "begins with `OLD`"),
            (&two, true, "", "Several questions wait here: ABCDEFGH, ABXXXXXX"),
            (&two, true, "ab", "Several codes begin so"),
            (&two, false, "no", "Several questions wait here"),
            (&[], true, "", "No question waits here"),
            (&[old], false, "why", "No question waits here"),
        ] {
            let said = chosen(here, yes, text).unwrap_err();
            assert!(said.contains(says), "{text}: {said}");
        }
    }

    #[test]
    fn an_answer_without_a_code_counts_for_no_question_that_came_after_another_one() {
        let now = Instant::now() + Duration::from_secs(600);
        let here = [
            CodedQuestion {
                code: "NEWNEWNE",
                decided_at: None,
            },
            CodedQuestion {
                code: "OLDOLDOL",
                decided_at: Some(now - Duration::from_secs(5)),
            },
        ];
        let said = choose_question(&here, true, &[], now).unwrap_err();
        assert!(said.contains("say `/approve NEWNEWNE`"), "{said}");
        assert_eq!(
            choose_question(&here, true, &words("n"), now),
            Ok(("NEWNEWNE", None))
        );
    }
}
