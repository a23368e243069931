//! `[claims]`: before an answer is sent, a model names the sentences that the record of the turn does not support.
//!
//! The judge reads the record and the sentences as data and returns numbers of sentences. None of its own words reaches anybody. It
//! decides only which sentences are marked.

mod question;

use clawk_events::count_of;
use clawk_events::payload::ClaimsJudged;
use serde::{Deserialize, Serialize};
use std::time::Duration;

pub use crate::answer_claims::{ClaimsJudgement, MARK};
use crate::answer_sentence::{self, AnswerSentence};
use crate::author::TextAuthor;
use crate::drive::RunningTurn;
use crate::event::{Draft, digest};
use crate::infer::{self, InferenceContext, NoAnswer};
use crate::ports::{InferRequest, ModelMessage};
use crate::shown;
use crate::stop::Level;
use crate::turn::{Turn, TurnOutcome};
use crate::watch::NoticeSender;
use question::ClaimsQuestion;

/// The largest number of sentences; a longer answer is not judged.
const MAX_SENTENCES: usize = 1_000;

/// Reason for an unjudged answer, for people and the record.
const NO_PURSE: &str = "the purse is empty";
const FAILED: &str = "the judge gave no answer";
const LATE: &str = "the judge took too long";
const MALFORMED: &str = "the judge's answer can't be read";
const LONG: &str = "the answer or its record is too long";
const CANCELLED: &str = "the turn was cancelled";
const STOPPED: &str = "an operator's stop holds";
const NO_RECORD: &str = "the record can't be read";

/// The judge of answers and its time limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Name of a provider in the manifest.
    pub judge: String,
    /// How long the judgement of one answer may take, milliseconds. After that the answer is sent unjudged, and its record line says so.
    pub timeout_ms: u64,
}

impl Claims {
    /// Default time limit in milliseconds.
    pub const DEFAULT_TIMEOUT_MS: u64 = 30_000;
}

/// A judgement, and the event that records it at the end of the turn.
#[derive(Debug)]
pub(crate) struct ClaimsVerdict {
    pub(crate) judged: ClaimsJudgement,
    pub(crate) draft: Draft,
}

/// Judges the final answer of a turn. `None` if no judge is configured, or if the answer is empty.
pub(crate) async fn judge_answer(
    run: &RunningTurn<'_>,
    turn: &Turn,
    end: &TurnOutcome,
) -> Option<ClaimsVerdict> {
    let claims = run.calls.claims.as_ref().filter(|_| run.judged)?;
    let answer = turn.last_text();
    if answer.trim().is_empty() || matches!(end, TurnOutcome::Failed(_)) {
        return None;
    }
    let clock = run.calls.clock();
    let started_us = clock.monotonic_us();
    let sentences = answer_sentence::split(answer);
    let limit = Duration::from_millis(claims.timeout_ms);
    let found = match end {
        TurnOutcome::Cancelled => Err(CANCELLED),
        TurnOutcome::Answered | TurnOutcome::Failed(_) if sentences.len() > MAX_SENTENCES => Err(LONG),
        TurnOutcome::Answered | TurnOutcome::Failed(_) => {
            let asked = Box::pin(ask_judge(run, claims, answer, &sentences));
            tokio::time::timeout(limit, asked).await.unwrap_or(Err(LATE)) // silent-ok: late is said so
        }
    };
    let (marks, failed) = match found {
        Ok(marks) => (marks, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let scribe = &run.calls.scribe;
    let payload = ClaimsJudged {
        duration_ms: clock.monotonic_us().saturating_sub(started_us) / 1000,
        failed: failed.map(str::to_owned),
        marks: marks.iter().copied().map(count_of).collect(),
        message_id: run.turn_id,
        provider: claims.judge.to_string(),
        sentences: count_of(sentences.len()),
        text_hash: digest(answer.as_bytes()),
    };
    let draft = scribe.draft_event(&run.thread, &payload);
    let judged = ClaimsJudgement {
        by: claims.judge.clone(),
        sentences: sentences.len(),
        marks,
        failed: failed.map(str::to_owned),
    };
    Some(ClaimsVerdict { judged, draft })
}

/// Asks the judge. Returns the positions of the marks, or the reason why the answer was not judged.
async fn ask_judge(
    run: &RunningTurn<'_>,
    claims: &Claims,
    answer: &str,
    sentences: &[AnswerSentence],
) -> Result<Vec<usize>, &'static str> {
    let calls = run.calls;
    let session = run.thread.session;
    let message = clawk_proto::MessageId(run.turn_id);
    let record = shown::turn_record(&**calls.scribe.journal(), session, message, None, true).await;
    let record = record.map_err(|error| {
        tracing::warn!(%error, "an answer can't be judged");
        NO_RECORD
    })?;
    let mut marks = Vec::new();
    for question in ClaimsQuestion::from_sentences(&record, answer, sentences).ok_or(LONG)? {
        let held = calls
            .brake
            .guard_work(session, Level::Frozen, run.cancel)
            .map_err(|_| STOPPED)?; // silent-ok: the stop has its own record
        let request = InferRequest {
            system: question::ORDER.to_owned(),
            messages: vec![ModelMessage::User {
                text: question.text(),
                images: Vec::new(),
                frame: String::new(),
                author: TextAuthor::from_runtime(),
            }],
            tools: Vec::new(),
            max_output_tokens: 0,
            ..InferRequest::default()
        };
        let quiet = NoticeSender::default();
        let place = InferenceContext {
            thread: run.thread,
            // Uses an own turn id, so that no conversation is rebuilt with this request.
            turn: calls.clock().new_uuid(),
            notices: &quiet,
            purse: &run.purse,
            member: None,
        };
        let said =
            infer::infer_with_fallback(&calls.models, place, &claims.judge, request, &held.cancel).await;
        let said = said.map_err(|none| match none {
            NoAnswer::Quota(_) => NO_PURSE,
            NoAnswer::Cancelled if run.cancel.is_cancelled() => CANCELLED,
            NoAnswer::Cancelled => STOPPED,
            NoAnswer::Failed(_) => FAILED,
        })?;
        marks.extend(question.read(&said.text).ok_or(MALFORMED)?);
    }
    Ok(marks)
}

#[cfg(test)]
mod tests;
