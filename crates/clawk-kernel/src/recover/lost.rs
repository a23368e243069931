//! Unfinished work of the last run: model requests, which are settled at their reservation, and calls with an unknown outcome.

use std::collections::BTreeMap;

use clawk_events::payload::{
    ActionApproved, ActionExecuted, ActionFailed, ProviderCompleted, ProviderFailed, ProviderRequested,
};
use clawk_proto::{RequestId, SessionId};
use uuid::Uuid;

use super::unclean_since;
use crate::catalog::ToolCatalog;
use crate::dedup::{DedupMethod, answer_key};
use crate::error::CallError;
use crate::event::{ChainText, Draft, JournalWriter, Thread, canonical, digest, kind};
use crate::ports::{EffectChange, JournalError, JournalScan, OpenEffect, SpentAmount};
use crate::purse::{BudgetAmount, hour_of};

/// Where unfinished work is searched.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LossSearchScope {
    /// After this row: the agent had a single host.
    Behind(u64),
    /// In this session: its host is lost.
    Session(SessionId),
}

impl LossSearchScope {
    fn journal_scan(self, kinds: &'static [&'static str]) -> JournalScan {
        let (after_row, session) = match self {
            Self::Behind(row) => (row, None),
            Self::Session(session) => (0, Some(session)),
        };
        JournalScan {
            kinds,
            after_row,
            session,
            ..JournalScan::default()
        }
    }
}

/// The `kind` of such a request's `ckp.provider.failed` event. No model sends this value.
pub(crate) const LOST: &str = "lost";

/// Settles each model request that was in flight when the last run died at its reserved amount, once.
pub(crate) async fn settle_lost(
    scribe: &JournalWriter,
    within: LossSearchScope,
) -> Result<usize, JournalError> {
    let kinds = &[
        kind::PROVIDER_REQUESTED,
        kind::PROVIDER_COMPLETED,
        kind::PROVIDER_FAILED,
    ];
    let mut open: BTreeMap<Uuid, (SessionId, ProviderRequested)> = BTreeMap::new();
    scribe
        .read_each(within.journal_scan(kinds), |event| {
            match event.kind.as_str() {
                kind::PROVIDER_REQUESTED => {
                    let asked: ProviderRequested = event.read_as()?;
                    open.insert(asked.inference_id, (event.session, asked));
                }
                kind::PROVIDER_COMPLETED => {
                    open.remove(&event.read_as::<ProviderCompleted>()?.inference_id);
                }
                _ => {
                    open.remove(&event.read_as::<ProviderFailed>()?.inference_id);
                }
            }
            Ok(())
        })
        .await?;
    let (mut drafts, mut spent) = (Vec::new(), Vec::new());
    for (inference_id, (session, asked)) in &open {
        let payload = ProviderFailed {
            attempt: asked.attempt,
            bytes_out: asked.bytes_out,
            cause: None,
            cost_microusd: asked.cost_microusd,
            duration_ms: 0,
            estimated: true,
            inference_id: *inference_id,
            input_tokens: asked.input_tokens,
            kind: LOST.to_owned(),
            output_tokens: asked.output_tokens,
            provider: asked.provider.clone(),
            reason: ChainText::from_code(
                "the runtime stopped before the answer; settled at what was set aside",
            ),
            retry_after_ms: None,
            status: None,
            told: None,
            took: Vec::new(),
            turn: asked.turn,
            words_hash: None,
        };
        let thread = Thread {
            session: *session,
            span: scribe.clock().new_uuid(),
            parent: Some(session.0),
        };
        let amount = BudgetAmount {
            tokens: asked.input_tokens.saturating_add(asked.output_tokens),
            cost_microusd: asked.cost_microusd.unwrap_or(0),
            bytes_out: asked.bytes_out,
            ..BudgetAmount::default()
        };
        drafts.push(scribe.draft_event(&thread, &payload));
        spent.extend(asked.purses.iter().map(|purse| SpentAmount {
            hour: hour_of(scribe.now()),
            purse: purse.as_str().into(),
            amount,
        }));
    }
    let count = drafts.len();
    if count > 0 {
        scribe
            .submit_spending(drafts, spent, Vec::new())?
            .wait_until_durable()
            .await?;
    }
    Ok(count)
}

/// Every call that was decided and never ended is told unknown, once, with its stored answer (promise 4).
///
/// A composite call whose turn continues and keeps checkpoints is not recorded: it continues with its turn, and its only effects
/// are those of its inner calls. The second part of the result lists such calls.
pub(crate) async fn report_unknown(
    scribe: &JournalWriter,
    catalog: &ToolCatalog,
    within: LossSearchScope,
    resumable: &(dyn Fn(&Uuid) -> bool + Sync),
) -> Result<(usize, Vec<String>), JournalError> {
    let kinds = &[kind::ACTION_APPROVED, kind::ACTION_EXECUTED, kind::ACTION_FAILED];
    let mut open: BTreeMap<(SessionId, String), (ActionApproved, Uuid)> = BTreeMap::new();
    scribe
        .read_each(within.journal_scan(kinds), |event| {
            match event.kind.as_str() {
                kind::ACTION_APPROVED => {
                    let approved: ActionApproved = event.read_as()?;
                    let at = (event.session, approved.request_id.clone());
                    open.insert(at, (approved, scribe.clock().new_uuid()));
                }
                kind::ACTION_EXECUTED => {
                    open.remove(&(event.session, event.read_as::<ActionExecuted>()?.request_id));
                }
                _ => {
                    open.remove(&(event.session, event.read_as::<ActionFailed>()?.request_id));
                }
            }
            Ok(())
        })
        .await?;
    // What was asked of the swarm goes on with the swarm: its result comes when the call is taken up again.
    let of_team = |approved: &ActionApproved| catalog.of_team(&approved.action_id).is_some();
    open.retain(|_, (found, _)| !of_team(found));
    let goes_on = |found: &ActionApproved| {
        let tool = catalog.get(&found.action_id);
        tool.is_some_and(|tool| tool.skill.is_some()) && found.turn.as_ref().is_some_and(resumable)
    };
    let interrupted = open
        .iter()
        .filter(|(_, (found, _))| goes_on(found))
        .map(|((_, request_id), _)| request_id.clone())
        .collect();
    open.retain(|_, (found, _)| !goes_on(found));
    let (mut drafts, mut spent, mut effects) = (Vec::new(), Vec::new(), Vec::new());
    for ((session, request_id), (found, span)) in &open {
        let tool = found.action_id.as_str();
        let id = RequestId::parse(request_id).ok(); // silent-ok: ids of ours are UUIDs
        let thread = Thread {
            session: *session,
            span: *span,
            parent: Some(session.0),
        };
        let draft = unknown_draft(scribe, &thread, found);
        drafts.push(draft.with_answer_key(id.as_ref().map(|id| answer_key(DedupMethod::Call, id))));
        if let Some(request_id) = id.filter(|_| found.side_effects) {
            effects.push(EffectChange::Unknown(OpenEffect {
                request_id,
                session: *session,
                parameters: found.parameters_hash,
                at: scribe.now(),
                tool: tool.to_owned(),
            }));
        }
        spent.extend(lost_call(scribe, catalog, tool));
    }
    let count = drafts.len();
    if count > 0 {
        scribe
            .submit_spending(drafts, spent, effects)?
            .wait_until_durable()
            .await?;
    }
    Ok((count, interrupted))
}

/// Does the same at a normal end, for outcomes that the journal refused.
pub(crate) async fn report_owed(
    scribe: &JournalWriter,
    catalog: &ToolCatalog,
) -> Result<usize, JournalError> {
    match unclean_since(scribe).await? {
        Some(row) => Ok(
            report_unknown(scribe, catalog, LossSearchScope::Behind(row), &|_| false)
                .await?
                .0,
        ),
        None => Ok(0),
    }
}

/// The event of a call whose outcome is unknown.
fn unknown_draft(scribe: &JournalWriter, thread: &Thread, approved: &ActionApproved) -> Draft {
    let tool = approved.action_id.as_str();
    let error = CallError::Unknown {
        tool: tool.to_owned(),
        reason: "the runtime stopped while it ran; it has not been run again".to_owned(),
    };
    let bytes = canonical(&error);
    let result_hash = digest(&bytes);
    let payload = ActionFailed {
        action_id: tool.to_owned(),
        duration_ms: 0,
        error_code: "unknown".to_owned(),
        error_message: ChainText::from_code("unknown"),
        request_hash: approved.request_hash,
        request_id: approved.request_id.clone(),
        result_hash,
        // More is counted than any event says, which is never too little.
        took: Vec::new(),
        turn: approved.turn,
    };
    let draft = scribe.draft_event(thread, &payload);
    draft.with_content(result_hash, bytes)
}

/// Returns the amounts of a call with an unknown outcome: it counts as having used its whole time.
fn lost_call(scribe: &JournalWriter, catalog: &ToolCatalog, tool: &str) -> [SpentAmount; 2] {
    let amount = BudgetAmount {
        calls: 1,
        busy_ms: catalog.timeout_ms(tool).unwrap_or(0),
        ..BudgetAmount::default()
    };
    let hour = hour_of(scribe.now());
    ["agent".to_owned(), format!("tool:{tool}")].map(|purse| SpentAmount {
        hour,
        purse: purse.into(),
        amount,
    })
}
