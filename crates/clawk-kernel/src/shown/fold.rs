//! The record of turns, folded from the events of a session.

use std::collections::BTreeMap;

use clawk_events::payload::{
    ActionApproved, ActionDenied, ActionExecuted, ActionFailed, ActionRequested, ClaimsJudged,
    MessageAccepted, MessageAnswered, MessageDead,
};
use clawk_proto::content::ContentBlock;
use clawk_proto::method::ToolCallResult;
use clawk_proto::{MessageId, RequestId};
use serde::Serialize;
use uuid::Uuid;

use crate::answer_claims::ClaimsJudgement;
use crate::call_summary::{TurnCallSummary, UNDECLARED};
use crate::effect::is_unknown;
use crate::event::kind;
use crate::ports::{JournalError, RecordedEvent};
use crate::time::Timestamp;

/// Events that say what calls came to, whose turn it was, and where a turn ends.
pub const KINDS: &[&str] = &[
    kind::MESSAGE_ACCEPTED,
    kind::ACTION_REQUESTED,
    kind::ACTION_APPROVED,
    kind::ACTION_DENIED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::CLAIMS_JUDGED,
    kind::MESSAGE_ANSWERED,
    kind::MESSAGE_DEAD,
];
/// Why a call of a tool that the agent has not is refused, in the record.
const UNKNOWN_TOOL: &str = "unknown_tool";
/// Calls of one turn that are looked at.
const MAX_CALLS: usize = 10_000;
/// What is kept of one call's arguments, and of its result, bytes.
const EXCERPT_BYTES: usize = 600;
/// Messages whose sender is remembered until their turn ends.
const MAX_SENDERS: usize = 10_000;

/// What became of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallOutcome {
    /// It ran and said that it did its work.
    Done,
    /// The same, and the tool has no side effects.
    Read,
    /// It was refused: nothing happened.
    Denied,
    /// It ran and failed, or surely did not begin.
    Failed,
    /// It may have happened, and nobody knows.
    Unknown,
}

impl CallOutcome {
    /// The word for people and programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Read => "read",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// One call of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordedCall {
    /// When it was asked for.
    #[serde(serialize_with = "as_text")]
    pub at: Timestamp,
    /// Its id.
    pub request_id: RequestId,
    /// The tool, by the name that the model gave.
    pub tool: String,
    /// The agent has a tool of this name. What a model calls by another name is its own text.
    #[serde(skip)]
    pub declared: bool,
    /// What became of it.
    pub outcome: CallOutcome,
    /// Why it was denied or failed, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The rule that decided, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_id: Option<String>,
    /// The beginning of its arguments, JSON; none where they were not read or are erased.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<String>,
    /// The beginning of what it said; as above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

fn as_text<S: serde::Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(at)
}

/// What the record says of one turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TurnRecord {
    /// The message that it answers.
    pub message: MessageId,
    /// Who said it, by the name that its door knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    /// When it ended; none: it runs.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text_if")]
    pub ended: Option<Timestamp>,
    /// Its calls, in the order in which they were asked for.
    pub calls: Vec<RecordedCall>,
    /// The model was offered tools with side effects.
    pub could_act: bool,
    /// What the judge found in the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<ClaimsJudgement>,
}

fn as_text_if<S: serde::Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => to.collect_str(at),
        None => to.serialize_none(),
    }
}

impl TurnRecord {
    /// Of a turn that did nothing yet.
    pub(crate) const fn for_message(message: MessageId) -> Self {
        Self {
            message,
            sender: None,
            ended: None,
            calls: Vec::new(),
            could_act: false,
            judged: None,
        }
    }

    /// What the line is made of.
    #[must_use]
    pub fn call_summary(&self) -> TurnCallSummary {
        let mut shown = TurnCallSummary {
            could_act: self.could_act,
            judged: self.judged.clone(),
            ..TurnCallSummary::default()
        };
        for call in &self.calls {
            let list = match call.outcome {
                CallOutcome::Done => &mut shown.done,
                CallOutcome::Read => &mut shown.read,
                CallOutcome::Denied => &mut shown.denied,
                CallOutcome::Failed => &mut shown.failed,
                CallOutcome::Unknown => &mut shown.unknown,
            };
            list.push(match call.declared {
                true => call.tool.clone(),
                false => UNDECLARED.to_owned(),
            });
        }
        shown
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallFate {
    /// Asked for or begun, and without an end: nobody knows.
    Open {
        begun: bool,
    },
    Done,
    Denied,
    Failed,
    Unknown,
}

#[derive(Debug)]
struct FoldedCall {
    call: RecordedCall,
    pure: bool,
    fate: CallFate,
}

impl FoldedCall {
    fn into_recorded(self) -> RecordedCall {
        let outcome = match (self.fate, self.pure) {
            (CallFate::Denied, _) => CallOutcome::Denied,
            (CallFate::Done, true) => CallOutcome::Read,
            (CallFate::Done, false) => CallOutcome::Done,
            (CallFate::Failed | CallFate::Open { begun: false }, _) => CallOutcome::Failed,
            // What only reads and was cut short has read nothing.
            (CallFate::Unknown | CallFate::Open { begun: true }, true) => CallOutcome::Failed,
            (CallFate::Unknown | CallFate::Open { begun: true }, false) => CallOutcome::Unknown,
        };
        RecordedCall { outcome, ..self.call }
    }
}

/// Folds a session's events, in their order, into the records of its turns.
#[derive(Debug, Default)]
pub struct TurnRecordFold {
    calls: Vec<FoldedCall>,
    senders: BTreeMap<Uuid, String>,
    judged: Option<(Uuid, ClaimsJudgement)>,
}

impl TurnRecordFold {
    /// Takes the next event of the session; one that ends a turn gives its record.
    ///
    /// # Errors
    /// The event can't be read: what was done in the turn is not known.
    pub fn apply_event(&mut self, event: &RecordedEvent) -> Result<Option<TurnRecord>, JournalError> {
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                let accepted: MessageAccepted = event.read_as()?;
                if self.senders.len() < MAX_SENDERS {
                    self.senders.insert(accepted.message_id, accepted.sender);
                }
            }
            kind::CLAIMS_JUDGED => {
                let claims: ClaimsJudged = event.read_as()?;
                // silent-ok: more than memory holds is behind every answer's end
                let place = |mark: u64| usize::try_from(mark).unwrap_or(usize::MAX);
                let judged = ClaimsJudgement {
                    by: claims.provider,
                    sentences: place(claims.sentences),
                    marks: claims.marks.into_iter().map(place).collect(),
                    failed: claims.failed,
                };
                self.judged = Some((claims.message_id, judged));
            }
            kind::MESSAGE_ANSWERED => {
                let answered: MessageAnswered = event.read_as()?;
                return Ok(Some(self.ended(event, answered.message_id, answered.could_act)));
            }
            kind::MESSAGE_DEAD => {
                let dead: MessageDead = event.read_as()?;
                return Ok(Some(self.ended(event, dead.message_id, false)));
            }
            _ => self.call(event)?,
        }
        Ok(None)
    }

    fn ended(&mut self, event: &RecordedEvent, message: Uuid, could_act: bool) -> TurnRecord {
        let record = self.open_record(MessageId(message));
        self.calls.clear();
        self.senders.remove(&message);
        self.judged = None;
        TurnRecord {
            ended: Some(event.at),
            could_act,
            ..record
        }
    }

    /// The record of the turn that has not ended, as far as it is known.
    pub fn open_record(&mut self, message: MessageId) -> TurnRecord {
        let judged = self.judged.take().filter(|(of, _)| *of == message.0);
        TurnRecord {
            sender: self.senders.get(&message.0).cloned(),
            calls: self.calls.drain(..).map(FoldedCall::into_recorded).collect(),
            judged: judged.map(|(_, judged)| judged),
            ..TurnRecord::for_message(message)
        }
    }

    fn call(&mut self, event: &RecordedEvent) -> Result<(), JournalError> {
        let content = event.content.as_ref().map(|content| content.bytes.as_slice());
        match event.kind.as_str() {
            kind::ACTION_REQUESTED => self.requested(event, event.read_as()?, content),
            kind::ACTION_APPROVED => {
                let approved: ActionApproved = event.read_as()?;
                if let Some(seen) = self.known(&approved.request_id) {
                    seen.pure = !approved.side_effects;
                    seen.call.rule_id = approved.rule_id;
                    seen.fate = CallFate::Open { begun: true };
                }
            }
            kind::ACTION_DENIED => {
                let denied: ActionDenied = event.read_with_words()?;
                if let Some(seen) = self.known(&denied.request_id) {
                    seen.call.declared = denied.by != UNKNOWN_TOOL;
                    seen.call.reason = Some(denied.reason.into());
                    seen.call.rule_id = denied.rule_id;
                    seen.fate = CallFate::Denied;
                }
            }
            kind::ACTION_EXECUTED => {
                let executed: ActionExecuted = event.read_as()?;
                if let Some(seen) = self.known(&executed.request_id) {
                    seen.call.result = content.and_then(tool_text);
                    seen.fate = match executed.is_error {
                        true => CallFate::Failed,
                        false => CallFate::Done,
                    };
                }
            }
            kind::ACTION_FAILED => {
                let failed: ActionFailed = event.read_with_words()?;
                if let Some(seen) = self.known(&failed.request_id) {
                    seen.call.reason = Some(failed.error_message.into());
                    seen.fate = match is_unknown(&failed.error_code) {
                        true => CallFate::Unknown,
                        false => CallFate::Failed,
                    };
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn requested(&mut self, event: &RecordedEvent, asked: ActionRequested, content: Option<&[u8]>) {
        let goes_on = self
            .known(&asked.request_id)
            .is_some_and(|seen| matches!(seen.fate, CallFate::Open { .. } | CallFate::Unknown));
        // silent-ok: ids of ours are UUIDs
        let Ok(request_id) = RequestId::parse(&asked.request_id) else {
            return;
        };
        if goes_on || self.calls.len() >= MAX_CALLS {
            return;
        }
        self.calls.push(FoldedCall {
            call: RecordedCall {
                at: event.at,
                request_id,
                tool: asked.action_id,
                declared: true,
                outcome: CallOutcome::Unknown,
                reason: None,
                rule_id: None,
                arguments: content.map(|bytes| excerpt_text(&String::from_utf8_lossy(bytes))),
                result: None,
            },
            pure: false,
            fate: CallFate::Open { begun: false },
        });
    }

    /// The latest call of this id.
    fn known(&mut self, request_id: &str) -> Option<&mut FoldedCall> {
        let mut latest = self.calls.iter_mut().rev();
        latest.find(|seen| seen.call.request_id.as_str() == request_id)
    }
}

/// What a tool said, in words.
fn tool_text(content: &[u8]) -> Option<String> {
    let result: ToolCallResult = serde_json::from_slice(content).ok()?; // silent-ok: erased or foreign content says nothing
    let texts: Vec<String> = result.content.iter().map(ContentBlock::as_model_text).collect();
    Some(excerpt_text(&texts.join("\n")))
}

fn excerpt_text(text: &str) -> String {
    crate::compaction::clip_text(text, EXCERPT_BYTES)
}
