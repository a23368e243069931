//! The summary of a turn's calls, from the record and not from the model's text. It is computed from the journal; there is no
//! second log.

mod fold;

use clawk_proto::{MessageId, SessionId};

use crate::answer_claims::ClaimsJudgement;
pub use crate::call_summary::TurnCallSummary;
use crate::drive::RunningTurn;
use crate::notice::SessionNotice;
use crate::ports::{Journal, JournalError, JournalScan, ModelMessage};
use crate::services::KernelServices;
use crate::time::Timestamp;
use crate::turn::Turn;

pub use fold::{CallOutcome, KINDS, RecordedCall, TurnRecord, TurnRecordFold};

/// The record of a message's turn: the calls after the turn before it, up to its own end or the end of the record. With `since`, the
/// turn began then.
///
/// # Errors
/// The journal can't be read.
pub(crate) async fn turn_record(
    journal: &dyn Journal,
    session: SessionId,
    message: MessageId,
    since: Option<Timestamp>,
    with_content: bool,
) -> Result<TurnRecord, JournalError> {
    let mut fold = TurnRecordFold::default();
    let mut scan = JournalScan {
        session: Some(session),
        kinds: KINDS,
        since,
        with_content,
        ..JournalScan::default()
    };
    loop {
        let page = journal.scan_events(scan.clone()).await?;
        let Some(last) = page.last() else {
            return Ok(fold.open_record(message));
        };
        scan.after_row = last.row;
        for event in &page {
            if let Some(turn) = fold.apply_event(event)?.filter(|turn| turn.message == message) {
                return Ok(turn);
            }
        }
    }
}

/// Returns the summary of a session's last ended turn.
///
/// # Errors
/// The journal can't be read.
pub(crate) async fn last_turn_record(
    journal: &dyn Journal,
    session: SessionId,
) -> Result<Option<TurnRecord>, JournalError> {
    let (mut fold, mut found) = (TurnRecordFold::default(), None);
    let mut scan = JournalScan {
        session: Some(session),
        kinds: KINDS,
        ..JournalScan::default()
    };
    loop {
        let page = journal.scan_events(scan.clone()).await?;
        let Some(last) = page.last() else {
            return Ok(found);
        };
        scan.after_row = last.row;
        for event in &page {
            found = fold.apply_event(event)?.or(found);
        }
    }
}

/// Returns the summary of a turn that is about to end.
pub(crate) async fn of_turn(
    calls: &KernelServices,
    run: &RunningTurn<'_>,
    message: MessageId,
    turn: &Turn,
) -> Option<TurnCallSummary> {
    let called = turn
        .messages()
        .iter()
        .any(|said| matches!(said, ModelMessage::ToolResult { .. }));
    let record = match called {
        true => {
            turn_record(
                &**calls.scribe.journal(),
                run.thread.session,
                message,
                None,
                false,
            )
            .await
        }
        false => Ok(TurnRecord::for_message(message)),
    };
    match record {
        Ok(record) => Some(TurnCallSummary {
            could_act: run.could_act(),
            ..record.call_summary()
        }),
        Err(error) => {
            tracing::warn!(%error, "what a turn did can't be read");
            None
        }
    }
}

/// Sends the summary and the judgement to the session's watchers.
pub(crate) async fn notify_summary(
    calls: &KernelServices,
    run: &RunningTurn<'_>,
    message: MessageId,
    turn: &Turn,
    judged: Option<&ClaimsJudgement>,
) {
    // The member's asker judges its answer.
    if run.member.is_some() || !run.notices.attached() {
        return;
    }
    let Some(mut shown) = of_turn(calls, run, message, turn).await else {
        return;
    };
    shown.judged = judged.cloned();
    if let Some(line) = shown.record_line() {
        run.notices.send(SessionNotice::Shown(shown, line)).await;
    }
}
