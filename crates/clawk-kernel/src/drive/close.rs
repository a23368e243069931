//! The end of a turn: the text for the message's client, and the closing of the message in the inbox.

use clawk_events::payload::{MessageAnswered, MessageDead};
use clawk_proto::MessageId;

use super::RunningTurn;
use crate::door::{EntryPoint, Origin};
use crate::event::{ChainText, Draft, EventWords, WordField, digest};
use crate::notice::{TurnEnd, TurnStop};
use crate::ports::InboxChange;
use crate::services::KernelServices;
use crate::turn::{Turn, TurnOutcome};

/// Returns the end for the client. An end that can't be recorded does not count. A failed message is kept, and the text says how to
/// send it again; a peer's asker repeats it automatically.
pub(super) fn turn_end<E: std::fmt::Display>(
    end: TurnOutcome,
    recorded: Result<(), E>,
    (message, door): (MessageId, &EntryPoint),
) -> TurnEnd {
    match (end, recorded) {
        (_, Err(error)) => TurnEnd::Failed(error.to_string()),
        (TurnOutcome::Answered, Ok(())) => TurnEnd::Answered,
        (TurnOutcome::Cancelled, Ok(())) => TurnEnd::Cancelled,
        (TurnOutcome::Failed(reason), Ok(())) if matches!(door, EntryPoint::Peer { .. }) => {
            TurnEnd::Failed(reason)
        }
        (TurnOutcome::Failed(reason), Ok(())) => TurnEnd::Failed(format!(
            "{reason}; the message is kept: `clawk dead-letters replay {message} CLAW` says it again"
        )),
    }
}

/// The end of a turn, with the judgement of its answer.
pub(super) struct TurnEnding<'a> {
    pub(super) end: &'a TurnOutcome,
    pub(super) stop: TurnStop,
    pub(super) judged: Option<Draft>,
    pub(super) started_us: u64,
}

/// Closes the message in the inbox with its end, in one commit.
pub(super) async fn close_message(
    calls: &KernelServices,
    run: &RunningTurn<'_>,
    (message, origin): (MessageId, &Origin),
    ending: TurnEnding<'_>,
    turn: &Turn,
) -> Result<(), crate::ports::JournalError> {
    let TurnEnding {
        end,
        stop,
        judged,
        started_us,
    } = ending;
    let scribe = &calls.scribe;
    if let TurnOutcome::Failed(reason) = end {
        let words = EventWords::new(WordField::Reason, reason);
        let payload = MessageDead {
            message_id: message.0,
            reason: ChainText::IN_CONTENT,
            why: stop.stop_reason().map(str::to_owned),
            words_hash: Some(words.digest()),
        };
        let dead = scribe.draft_event(&run.thread, &payload).with_words(words);
        let change = InboxChange::Closed {
            message,
            how: "dead",
            reason: Some(reason.clone()),
            owed: origin
                .owed_answer(message, run.thread.session, None)
                .map(|owed| (owed, scribe.now())),
        };
        return scribe
            .submit_with(vec![dead], vec![change])?
            .wait_until_durable()
            .await;
    }
    let text = turn.last_text().as_bytes().to_vec();
    let payload = MessageAnswered {
        could_act: run.could_act(),
        declined: stop == TurnStop::Refused,
        duration_ms: calls.clock().monotonic_us().saturating_sub(started_us) / 1000,
        end: if *end == TurnOutcome::Answered {
            "answered"
        } else {
            "cancelled"
        }
        .to_owned(),
        input_tokens: turn.usage().input_tokens,
        message_id: message.0,
        output_tokens: turn.usage().output_tokens,
        text_hash: digest(&text),
    };
    let (said_nothing, owed) = (
        text.is_empty(),
        origin.owed_answer(message, run.thread.session, Some(payload.text_hash)),
    );
    let draft = scribe
        .draft_event(&run.thread, &payload)
        .with_content(payload.text_hash, text);
    let change = InboxChange::Closed {
        message,
        how: "answered",
        reason: None,
        // A user who cancelled a turn before its first text waits for nothing.
        owed: owed.filter(|_| !said_nothing).map(|owed| (owed, scribe.now())),
    };
    // The verdict comes first, so that a reader of the end has already read it.
    let drafts = judged.into_iter().chain([draft]).collect();
    scribe
        .submit_with(drafts, vec![change])?
        .wait_until_durable()
        .await
}
