//! The ledger of external effects and their states. It is computed from the journal; there is no second log. Only unknown effects
//! have an index, so that a start need not read everything.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_events::EventError;
use clawk_events::payload::{
    ActionApproved, ActionDenied, ActionExecuted, ActionFailed, ActionRequested, EffectResolved,
};
use clawk_proto::{Digest, RequestId, SessionId};
use serde::{Deserialize, Serialize};

use crate::event::{EventWords, JournalWriter, Thread, kind, stand_in};
use crate::ports::{EffectChange, Journal, JournalError, OpenEffect};
use crate::time::Clock;

/// The event types that [`EffectLedger::apply_event`] reads.
pub const KINDS: &[&str] = &[
    kind::ACTION_REQUESTED,
    kind::ACTION_APPROVED,
    kind::ACTION_DENIED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::EFFECT_RESOLVED,
];

/// The state of an effect in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Requested, but not yet decided.
    Intended,
    /// Decided, durably. From here on it may have happened.
    Started,
    /// It ran and reported success.
    Done,
    /// It ran and reported a failure, or it surely did not begin.
    Failed,
    /// It may have happened; the outcome is unknown.
    Unknown,
}

/// One effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EffectEntry {
    /// Id of the call.
    pub request_id: RequestId,
    /// Its session.
    pub session: SessionId,
    /// The tool.
    pub tool: String,
    /// SHA-256 of the arguments' canonical JSON.
    pub parameters: Option<Digest>,
    /// The current state.
    pub state: State,
    /// Time of the last change, RFC 3339.
    pub at: String,
    /// The reason, if it failed or is unknown.
    pub reason: Option<String>,
    /// How an unknown effect was resolved: `check`, `same-key`, or a person's name.
    pub resolved_by: Option<String>,
}

/// What a failure's word in the trace means for an effect: did it surely not happen?
pub fn is_unknown(error_code: &str) -> bool {
    // An interrupted run may have done its work. Earlier versions used `cancelled` for retries, too.
    matches!(error_code, "unknown" | "timeout" | "cancelled")
}

/// What an event says of an effect.
enum EffectStep {
    Approved { pure: bool },
    Executed { is_error: bool },
    Failed { unknown: bool, reason: String },
    Denied,
    Resolved { outcome: String, by: String },
}

/// Effects in the order they were asked for.
#[derive(Debug, Default)]
pub struct EffectLedger {
    entries: Vec<EffectEntry>,
    /// The latest effect of each request id in its session. After five minutes an id may be used again.
    places: BTreeMap<(SessionId, RequestId), usize>,
    /// Marks calls of tools without side effects.
    pure: Vec<bool>,
}

fn resolved_state(outcome: &str) -> (State, Option<String>) {
    match outcome {
        "done" => (State::Done, None),
        _ => (
            State::Failed,
            Some("it was found out that it did not happen".to_owned()),
        ),
    }
}

impl EffectLedger {
    /// Takes one event; others than [`KINDS`] change nothing.
    ///
    /// # Errors
    /// The event can't be read: nobody knows which effect it is about.
    pub fn apply_event(
        &mut self,
        kind: &str,
        session: SessionId,
        at: &str,
        payload: &str,
    ) -> Result<(), EventError> {
        let (request_id, step) = match kind {
            kind::ACTION_REQUESTED => {
                self.asked(session, at, ActionRequested::read(kind, payload)?);
                return Ok(());
            }
            kind::ACTION_APPROVED => {
                let approved = ActionApproved::read(kind, payload)?;
                let pure = !approved.side_effects;
                (approved.request_id, EffectStep::Approved { pure })
            }
            kind::ACTION_EXECUTED => {
                let executed = ActionExecuted::read(kind, payload)?;
                let is_error = executed.is_error;
                (executed.request_id, EffectStep::Executed { is_error })
            }
            kind::ACTION_FAILED => {
                let failed = ActionFailed::read(kind, payload)?;
                let step = EffectStep::Failed {
                    unknown: is_unknown(&failed.error_code),
                    reason: failed.error_message.into(),
                };
                (failed.request_id, step)
            }
            kind::ACTION_DENIED => (ActionDenied::read(kind, payload)?.request_id, EffectStep::Denied),
            kind::EFFECT_RESOLVED => {
                let found = EffectResolved::read(kind, payload)?;
                // A person by name, or the means.
                let by = if found.how == "person" {
                    found.by
                } else {
                    found.how
                };
                (
                    found.request_id,
                    EffectStep::Resolved {
                        outcome: found.outcome,
                        by,
                    },
                )
            }
            _ => return Ok(()),
        };
        // silent-ok: ids of ours are UUIDs
        if let Ok(request_id) = RequestId::parse(&request_id) {
            self.step((session, request_id), step, at);
        }
        Ok(())
    }

    fn asked(&mut self, session: SessionId, at: &str, asked: ActionRequested) {
        let Ok(request_id) = RequestId::parse(&asked.request_id) else {
            return; // silent-ok: ids of ours are UUIDs
        };
        let place = (session, request_id.clone());
        // The same request once more, under its key: what was unknown stays so until the answer.
        if self.goes_on(&place, Some(asked.parameters_hash)) {
            return;
        }
        self.places.insert(place, self.entries.len());
        self.entries.push(EffectEntry {
            request_id,
            session,
            tool: asked.action_id,
            parameters: Some(asked.parameters_hash),
            state: State::Intended,
            at: at.to_owned(),
            reason: None,
            resolved_by: None,
        });
        self.pure.push(false);
    }

    fn step(&mut self, place: (SessionId, RequestId), step: EffectStep, at: &str) {
        let resolves = matches!(step, EffectStep::Resolved { .. });
        let Some(place) = self.place_of(resolves, &place) else {
            return;
        };
        let (Some(entry), Some(pure)) = (self.entries.get_mut(place), self.pure.get_mut(place)) else {
            return;
        };
        let was_unknown = entry.state == State::Unknown;
        let (state, reason) = match step {
            EffectStep::Resolved { outcome, by } => {
                entry.resolved_by = Some(by);
                resolved_state(&outcome)
            }
            EffectStep::Executed { is_error: false } => (State::Done, None),
            // That it failed now, or is refused, says nothing of before.
            EffectStep::Approved { .. }
            | EffectStep::Executed { .. }
            | EffectStep::Failed { .. }
            | EffectStep::Denied
                if was_unknown =>
            {
                return;
            }
            EffectStep::Approved { pure: is_pure } => {
                *pure = is_pure;
                (State::Started, None)
            }
            EffectStep::Executed { is_error: true } => {
                (State::Failed, Some("it ran and said that it failed".to_owned()))
            }
            EffectStep::Failed {
                unknown: true,
                reason,
            } => (State::Unknown, Some(reason)),
            EffectStep::Failed {
                unknown: false,
                reason,
            } => (State::Failed, Some(reason)),
            // Refused: nothing happened, and nothing is to be told of it.
            EffectStep::Denied => {
                *pure = true;
                return;
            }
        };
        entry.state = state;
        entry.reason = reason;
        at.clone_into(&mut entry.at);
    }

    /// Returns whether a known request without an end was resumed after a restart, or repeated under its key.
    fn goes_on(&self, place: &(SessionId, RequestId), parameters: Option<Digest>) -> bool {
        let known = self.places.get(place).and_then(|at| self.entries.get(*at));
        known.is_some_and(|entry| match entry.state {
            State::Intended | State::Started | State::Unknown => entry.parameters == parameters,
            State::Done | State::Failed => false,
        })
    }

    /// The effect that an event is about. What is found out is the oldest that is unknown, as the index has it.
    fn place_of(&self, resolves: bool, place: &(SessionId, RequestId)) -> Option<usize> {
        let oldest = || {
            self.entries.iter().position(|entry| {
                entry.state == State::Unknown && (entry.session, &entry.request_id) == (place.0, &place.1)
            })
        };
        let found = resolves.then(oldest).flatten();
        found.or_else(|| self.places.get(place).copied())
    }

    /// Returns the effects in the order of their requests.
    #[must_use]
    pub fn into_entries(self) -> Vec<EffectEntry> {
        let effects = self.entries.into_iter().zip(self.pure);
        effects
            .filter(|(_, pure)| !pure)
            .map(|(entry, _)| entry)
            .collect()
    }
}

/// The settled outcome of an unknown effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EffectSettlement {
    /// It happened.
    Done,
    /// It did not happen.
    NotDone,
}

impl EffectSettlement {
    /// Reads `done` or `not-done`. Every other word is `None`, so the outcome stays unknown.
    ///
    /// ```
    /// use clawk_govern::effect::EffectSettlement;
    ///
    /// assert_eq!(EffectSettlement::parse("Not-Done\n"), Some(EffectSettlement::NotDone));
    /// assert_eq!(EffectSettlement::parse("perhaps"), None);
    /// ```
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word.trim().to_ascii_lowercase().as_str() {
            "done" => Some(Self::Done),
            "not-done" | "not done" | "not_done" => Some(Self::NotDone),
            _ => None,
        }
    }

    /// Returns the word in the trace.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotDone => "not-done",
        }
    }
}

/// How the outcome was determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettlementMethod {
    /// By the check that `clawk.toml` configures for the tool.
    Check,
    /// By the same request again, under its idempotency key.
    SameKey,
    /// By a person's statement.
    Person,
}

impl SettlementMethod {
    /// Returns the word of the trace.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::SameKey => "same-key",
            Self::Person => "person",
        }
    }
}

/// Records the outcome of the oldest unknown effect with this id. Returns `false` if there is none.
pub async fn resolve_effect(
    scribe: &JournalWriter,
    id: &RequestId,
    outcome: EffectSettlement,
    how: SettlementMethod,
    by: &str,
    reason: Option<&str>,
) -> Result<bool, JournalError> {
    let open = scribe.journal().open_effects().await?;
    match open.into_iter().find(|effect| effect.request_id == *id) {
        Some(effect) => resolve_one(scribe, &effect, outcome, (how, by, reason)).await,
        None => Ok(false),
    }
}

/// Records the outcome of one effect. Returns `false` if it is no longer unknown.
pub async fn resolve_one(
    scribe: &JournalWriter,
    effect: &OpenEffect,
    outcome: EffectSettlement,
    (how, by, reason): (SettlementMethod, &str, Option<&str>),
) -> Result<bool, JournalError> {
    if !scribe.journal().open_effects().await?.contains(effect) {
        return Ok(false);
    }
    let words = EventWords::of_reason(reason);
    let (reason, words_hash) = stand_in(words.as_ref());
    let payload = EffectResolved {
        action_id: effect.tool.to_string(),
        by: by.to_owned(),
        how: how.as_str().to_owned(),
        outcome: outcome.as_str().to_owned(),
        reason,
        request_id: effect.request_id.as_str().to_owned(),
        words_hash,
    };
    let thread = Thread {
        session: effect.session,
        span: scribe.clock().new_uuid(),
        parent: Some(effect.session.0),
    };
    let draft = scribe.draft_event(&thread, &payload).with_words(words);
    let change = EffectChange::Resolved {
        request_id: effect.request_id.clone(),
        session: effect.session,
        parameters: effect.parameters,
    };
    scribe
        .submit_spending(vec![draft], Vec::new(), vec![change])?
        .wait_until_durable()
        .await?;
    Ok(true)
}

/// Records a person's statement for an agent that is not running. Returns `false` if no effect with this id is unknown.
///
/// # Errors
/// The journal can't be read or written.
pub async fn resolve_offline(
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    id: &RequestId,
    outcome: EffectSettlement,
    by: &str,
    reason: Option<&str>,
) -> Result<bool, JournalError> {
    resolve_effect(
        &JournalWriter::new(journal, clock),
        id,
        outcome,
        SettlementMethod::Person,
        by,
        reason,
    )
    .await
}
