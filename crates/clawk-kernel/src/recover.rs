//! Recovery after a crash: rebuilds the unfinished work from the journal, with the same state machine that ran it (promise 4).
//!
//! Long because it is one fold over every event that a turn writes.

mod lost;
mod spending;

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_events::Event as JournalEvent;
use clawk_events::payload::{
    ActionExecuted, ContextCompacted, LifecycleChanged, MessageAccepted, MessageAttached, MessageResumed,
    ProviderRequested, SessionStarted, SkillInvoked, SkillRepaired,
};
use clawk_proto::method::ToolCallResult;
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use serde::Deserialize;
use uuid::Uuid;

use crate::attach::TurnInput;
use crate::author::TextAuthor;
use crate::checkpoint;
use crate::compaction::{self, CompactionContent};
use crate::door::Origin;
use crate::error::CallError;
use crate::event::{JournalWriter, kind};
use crate::model_choice::ModelChoice;
use crate::open_turn::OpenTurn;
use crate::output::ModelToolResult;
use crate::pictures::ResultPictures;
use crate::ports::{Image, JournalError, JournalScan, ModelCompletion, ModelMessage, RecordedEvent};
use crate::prompt;
use crate::purse::BudgetAmount;
use crate::rates::CallRateWindow;
use crate::services::KernelServices;
use crate::skill::{self, RunningSkill, SkillCeiling};
use crate::turn::{Effect, Event, Turn};
use crate::world_model::{self, SkillPlanResult};

pub(crate) use lost::{LOST, LossSearchScope, report_owed, report_unknown, settle_lost};
pub(crate) use spending::{SPENDING, SessionSpending};

/// Largest depth of forks of forks.
const MAX_DEPTH: usize = 64;

pub(crate) const ERASED: &str = "[erased]";

/// State of an interrupted attempt on another host: its whole reservation counts as spent.
pub(crate) const ASSUMED: &str = "assumed";

/// State of a run whose tasks are reported in another chain: the amount that it used.
pub(crate) const LENT: &str = "lent";

/// A session rebuilt from its chain.
#[derive(Debug, Default)]
pub(crate) struct RebuiltSession {
    pub(crate) history: Vec<ModelMessage>,
    /// Interrupted turns, oldest first. Only the first one may have begun.
    pub(crate) open: Vec<OpenTurn>,
    /// The amount that the session has spent so far.
    pub(crate) spent: BudgetAmount,
    pub(crate) exists: bool,
    /// Which model answers, where a person chose one.
    pub(crate) model: Option<ModelChoice>,
}

/// What the event says was spent. What was set aside for a request to a model is not spent yet: [`reserved_by`].
#[expect(clippy::too_many_lines, reason = "the names of the events that cost nothing")]
fn spent_by(event: &JournalEvent) -> BudgetAmount {
    match event {
        JournalEvent::ProviderCompleted(answered) => spent_on_model(
            answered.input_tokens.saturating_add(answered.output_tokens),
            answered.cost_microusd,
            answered.duration_ms,
            answered.bytes_out,
        ),
        JournalEvent::ProviderFailed(failed) => spent_on_model(
            failed.input_tokens.saturating_add(failed.output_tokens),
            failed.cost_microusd,
            failed.duration_ms,
            failed.bytes_out,
        ),
        JournalEvent::ActionExecuted(executed) => spent_on_call(executed.duration_ms),
        JournalEvent::ActionFailed(failed) => spent_on_call(failed.duration_ms),
        // A report about a task that this agent did not give costs it nothing.
        JournalEvent::SwarmReported(reported) if !reported.orphan => spent_on_model(
            reported.token_usage,
            Some(reported.cost_microusd),
            reported.duration_ms,
            0,
        ),
        // Of a try that was cut off: its task's report does not know of it.
        JournalEvent::SwarmTry(tried) if matches!(tried.state.as_deref(), Some(ASSUMED | LENT)) => {
            spent_on_model(
                tried.token_usage.unwrap_or_default(),
                tried.cost_microusd,
                tried.duration_ms.unwrap_or_default(),
                0,
            )
        }
        JournalEvent::SessionStarted(_)
        | JournalEvent::AgentDescribed(_)
        | JournalEvent::ToolDescribed(_)
        | JournalEvent::SessionEnded(_)
        | JournalEvent::LifecycleChanged(_)
        | JournalEvent::MessageAccepted(_)
        | JournalEvent::MessageAttached(_)
        | JournalEvent::MessageFramed(_)
        | JournalEvent::MessageTools(_)
        | JournalEvent::ClientToolCalled(_)
        | JournalEvent::MessageRefused(_)
        | JournalEvent::MessageAnswered(_)
        | JournalEvent::MessageResumed(_)
        | JournalEvent::MessageDead(_)
        | JournalEvent::ClaimsJudged(_)
        | JournalEvent::ConversationCleared(_)
        | JournalEvent::ConversationModel(_)
        | JournalEvent::TurnStopped(_)
        | JournalEvent::DeliveryStarted(_)
        | JournalEvent::DeliveryEnded(_)
        | JournalEvent::DeliveryRequeued(_)
        | JournalEvent::ProviderRequested(_)
        | JournalEvent::ProviderAdapted(_)
        | JournalEvent::ProviderUnreachable(_)
        | JournalEvent::BudgetWarned(_)
        | JournalEvent::DryRunSpent(_)
        | JournalEvent::ActionRequested(_)
        | JournalEvent::ActionApproved(_)
        | JournalEvent::ActionDenied(_)
        | JournalEvent::ActionAudited(_)
        | JournalEvent::EffectResolved(_)
        | JournalEvent::ContextTrimmed(_)
        | JournalEvent::ContextCompacted(_)
        | JournalEvent::ContextWritten(_)
        | JournalEvent::ContextRead(_)
        | JournalEvent::ContextTainted(_)
        | JournalEvent::ScreenSecret(_)
        | JournalEvent::ScreenInjection(_)
        | JournalEvent::ScreenInput(_)
        | JournalEvent::ScreenJudged(_)
        | JournalEvent::SkillInvoked(_)
        | JournalEvent::SkillRepaired(_)
        | JournalEvent::SkillFinished(_)
        | JournalEvent::WorldModelPlanned(_)
        | JournalEvent::WorldModelCompared(_)
        | clawk_events::approval_events!()
        | clawk_events::carp_events!()
        | clawk_events::channel_events!()
        | clawk_events::egress_events!()
        | clawk_events::memory_events!()
        | clawk_events::swarm_events!()
        | JournalEvent::Shortened { .. }
        | JournalEvent::Unknown { .. } => BudgetAmount::default(),
    }
}

fn spent_on_model(tokens: u64, cost_microusd: Option<u64>, busy_ms: u64, bytes_out: u64) -> BudgetAmount {
    BudgetAmount {
        tokens,
        cost_microusd: cost_microusd.unwrap_or(0),
        busy_ms,
        calls: 0,
        bytes_out,
    }
}

fn spent_on_call(busy_ms: u64) -> BudgetAmount {
    BudgetAmount {
        calls: 1,
        busy_ms,
        ..BudgetAmount::default()
    }
}

/// What was set aside for a request to a model.
fn reserved_by(requested: &ProviderRequested) -> BudgetAmount {
    spent_on_model(
        requested.input_tokens.saturating_add(requested.output_tokens),
        requested.cost_microusd,
        0,
        requested.bytes_out,
    )
}

/// Returns the event's content as text.
pub(crate) fn event_text(event: &RecordedEvent) -> String {
    let bytes = event.content.as_ref().map(|content| content.bytes.clone());
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| ERASED.to_owned()) // silent-ok: erased content is an ordinary state
}

/// Restores the rate limits' windows from earlier runs.
pub(crate) async fn restore_rates(
    scribe: &JournalWriter,
    rates: &CallRateWindow,
) -> Result<(), JournalError> {
    let Some(window_ms) = rates.window_ms() else {
        return Ok(());
    };
    let scan = JournalScan {
        kinds: &[kind::ACTION_APPROVED],
        since: Some(scribe.now().plus_millis(-window_ms)),
        ..JournalScan::default()
    };
    scribe
        .for_each_event(scan, |event| rates.restore_call(event.at))
        .await
}

/// Returns the row after which the last run's calls begin; `None`: that run ended normally, or there was none.
pub(crate) async fn unclean_since(scribe: &JournalWriter) -> Result<Option<u64>, JournalError> {
    let Some(last) = scribe.journal().last_row_of(kind::LIFECYCLE).await? else {
        return Ok(None);
    };
    let mut ready = None;
    let mut clean = false;
    let scan = JournalScan {
        kinds: &[kind::LIFECYCLE],
        ..JournalScan::default()
    };
    scribe
        .read_each(scan, |event| {
            let to = event.read_as::<LifecycleChanged>()?.to;
            if to == "READY" {
                ready = Some(event.row);
            }
            clean = event.row == last && to == "STOPPED";
            Ok(())
        })
        .await?;
    Ok(if clean { None } else { Some(ready.unwrap_or(0)) })
}

/// Rebuilds a session's conversation and its interrupted turns from its chain.
pub(crate) async fn rebuild_session(
    calls: &KernelServices,
    session: SessionId,
) -> Result<RebuiltSession, JournalError> {
    Ok(fold_session(calls, session, None).await?.into_rebuilt(calls))
}

/// Like [`rebuild_session`], up to and including event `at`.
pub(crate) async fn rebuild_until(
    calls: &KernelServices,
    session: SessionId,
    at: u64,
) -> Result<RebuiltSession, JournalError> {
    Ok(fold_session(calls, session, Some(at)).await?.into_rebuilt(calls))
}

/// The inner turn of a composite tool, as recorded in the journal.
pub(crate) struct InnerTurn {
    pub(crate) open: OpenTurn,
    /// The model was asked once more for the skill's result.
    pub(crate) repaired: bool,
}

/// Rebuilds an inner turn whose first message is `first`; `None`: the model's text was erased.
pub(crate) async fn rebuild_inner(
    calls: &KernelServices,
    session: SessionId,
    turn: Uuid,
    first: &str,
) -> Result<Option<InnerTurn>, JournalError> {
    let said = TurnInput {
        text: first.to_owned(),
        ..TurnInput::default()
    };
    let nobody = Origin::from_record(Default::default());
    let mut fold = RecoveryFold {
        running: Some(begin_turn(calls, Vec::new(), (MessageId(turn), nobody), said)),
        ..RecoveryFold::default()
    };
    let (mut erased, mut repaired) = (false, false);
    let scan = JournalScan {
        session: Some(session),
        with_content: true,
        ..JournalScan::default()
    };
    calls
        .scribe
        .read_each(scan, |event| {
            if event.read()?.turn_id() == Some(turn) {
                erased |= event.kind == kind::PROVIDER_COMPLETED && event.content.is_none();
                repaired |= event.kind == kind::SKILL_REPAIRED;
                fold.apply_event(calls, event)?;
            }
            Ok(())
        })
        .await?;
    calls.cuts.add(session, std::mem::take(&mut fold.cuts));
    calls
        .models
        .pictures
        .add(session, std::mem::take(&mut fold.pictures));
    for (call_id, whole) in std::mem::take(&mut fold.wholes) {
        calls.cuts.note_whole(session, &call_id, Some(whole));
    }
    let open = fold.into_rebuilt(calls).open.into_iter().next();
    Ok(open.filter(|_| !erased).map(|open| InnerTurn { open, repaired }))
}

/// A fork of a source session, from the first event of the forked session.
struct RecordedFork {
    /// The turn that continues in the fork.
    turn: Option<Uuid>,
    by: Origin,
    keeps_sender: bool,
}

impl RecordedFork {
    /// Returns the origin of the continued turn.
    fn origin_of_turn(&self, origin: &Origin) -> Origin {
        let origin = origin.clone();
        match self.keeps_sender {
            true => origin.forked_by(&self.by),
            false => origin.taken_over_by(&self.by),
        }
    }
}

/// Rebuilds a session. For a forked session, its sources are rebuilt first, beginning with the oldest.
async fn fold_session(
    calls: &KernelServices,
    session: SessionId,
    at: Option<u64>,
) -> Result<RecoveryFold, JournalError> {
    let wanted = session;
    // Each part has its last event and, for a source, its fork: the continued turn, and who forked.
    let mut parts: Vec<(SessionId, Option<u64>, Option<RecordedFork>)> = vec![(session, at, None)];
    while let Some((session, _, _)) = parts.last() {
        let first = JournalScan {
            session: Some(*session),
            limit: 1,
            ..JournalScan::default()
        };
        let first = calls.scribe.journal().scan_events(first).await?;
        let Some(first) = first.first() else { break };
        if first.kind != kind::SESSION_STARTED {
            break;
        }
        let started: SessionStarted = first.read_as()?;
        let by = Origin::from_record((&started).into());
        let Some(fork) = started.fork else {
            break;
        };
        if parts.len() > MAX_DEPTH {
            return Err(JournalError::Unreadable(format!(
                "more than {MAX_DEPTH} forks of forks"
            )));
        }
        let recorded = RecordedFork {
            turn: fork.turn,
            by,
            keeps_sender: fork.keeps_sender,
        };
        parts.push((fork.session_id, Some(fork.sequence), Some(recorded)));
    }
    let mut fold = RecoveryFold::default();
    for (session, until, forked) in parts.into_iter().rev() {
        let scan = JournalScan {
            session: Some(session),
            with_content: true,
            ..JournalScan::default()
        };
        calls
            .scribe
            .read_each(scan, |event| match until {
                Some(until) if event.sequence > until => Ok(()),
                Some(_) | None => fold.apply_event(calls, event),
            })
            .await?;
        if let Some(forked) = forked.filter(|_| session != wanted) {
            fold.apply_fork(calls, &forked);
        }
    }
    calls.cuts.add(wanted, std::mem::take(&mut fold.cuts));
    calls
        .models
        .pictures
        .add(wanted, std::mem::take(&mut fold.pictures));
    for (call_id, whole) in std::mem::take(&mut fold.wholes) {
        calls.cuts.note_whole(wanted, &call_id, Some(whole));
    }
    Ok(fold)
}

/// Events that a turn can't be taken up without. One of them that was cut to the size of an event stops the fold; any other says
/// nothing to it.
const MUST_BE_WHOLE: [&str; 7] = [
    kind::SESSION_STARTED,
    kind::MESSAGE_ACCEPTED,
    kind::ACTION_REQUESTED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::PROVIDER_COMPLETED,
    kind::PROVIDER_FAILED,
];

/// A call that has ended, by the record.
struct EndedCall {
    turn: Option<Uuid>,
    request_id: String,
    action_id: String,
    is_error: bool,
}

impl EndedCall {
    /// It did not run, was cut short, or its outcome is unknown.
    const fn refused(turn: Option<Uuid>, request_id: String, action_id: String) -> Self {
        Self {
            turn,
            request_id,
            action_id,
            is_error: false,
        }
    }
}

#[derive(Debug, Default)]
struct RecoveryFold {
    history: Vec<ModelMessage>,
    running: Option<OpenTurn>,
    /// Turns that had not ended when another one began, with their open calls.
    behind: Vec<(OpenTurn, BTreeMap<String, String>)>,
    waiting: Vec<(MessageId, TurnInput, Origin)>,
    /// How often waiting messages were resumed without beginning.
    resumes: BTreeMap<Uuid, u32>,
    /// Images of the message that is accepted next.
    attached: Vec<Image>,
    /// The frame of the message that is accepted next.
    framed: String,
    calls: BTreeMap<String, String>,
    spent: BudgetAmount,
    exists: bool,
    /// Which model answers, where a person chose one.
    model: Option<ModelChoice>,
    /// Results whose text was cut.
    cuts: Vec<Digest>,
    /// Results with images, by call id.
    pictures: Vec<(String, ResultPictures)>,
    /// Complete results, by call id.
    wholes: Vec<(String, Digest)>,
}

impl RecoveryFold {
    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each kind of event, and the names of those that change nothing"
    )]
    fn apply_event(&mut self, calls: &KernelServices, recorded: &RecordedEvent) -> Result<(), JournalError> {
        self.exists = true;
        let event = recorded.read()?;
        self.turn_to(event.turn_id());
        let spent = spent_by(&event);
        self.spent = self.spent.plus(spent);
        // The turns of a session run one after the other, so spending during a turn belongs to it.
        if let Some(open) = &mut self.running {
            open.spent = open.spent.plus(spent);
        }
        match event {
            JournalEvent::MessageAttached(attached) => self.attached.push(event_image(*attached)),
            JournalEvent::MessageFramed(_) => self.framed = event_text(recorded),
            JournalEvent::MessageAccepted(accepted) => self.accepted(*accepted, event_text(recorded)),
            JournalEvent::ConversationCleared(_) => self.history.clear(),
            JournalEvent::ConversationModel(chosen) => {
                self.model = ModelChoice::recorded(chosen.provider, chosen.effort.as_deref());
            }
            JournalEvent::MessageTools(came) => self.client_tools(came.message_id, recorded),
            JournalEvent::ClientToolCalled(called) => self.with_turn(calls, Some(called.turn), |open| {
                let call_id = called.call_id;
                open.effects = open.turn.handle_event(Event::Handed { call_id });
            }),
            // Erased: what it stood for is there as it was.
            JournalEvent::ContextCompacted(compacted) => {
                if let Some(replaced) = read::<CompactionContent>(recorded) {
                    self.apply_compaction(&compacted, &replaced);
                }
            }
            JournalEvent::MessageResumed(resumed) => self.mark_resumed(&resumed),
            JournalEvent::ProviderCompleted(answered) => self.inferred(calls, answered.turn, recorded),
            JournalEvent::ActionRequested(asked) => {
                if let Some(call) = asked.call_id {
                    self.calls.insert(asked.request_id, call);
                }
            }
            JournalEvent::ActionExecuted(executed) => self.apply_execution(calls, *executed, recorded),
            JournalEvent::ActionDenied(denied) => {
                let call = EndedCall::refused(denied.turn, denied.request_id, denied.action_id);
                self.apply_call(calls, call, read::<CallError>(recorded).map(Err));
            }
            JournalEvent::ActionFailed(failed) => {
                let call = EndedCall::refused(failed.turn, failed.request_id, failed.action_id);
                self.apply_call(calls, call, read::<CallError>(recorded).map(Err));
            }
            JournalEvent::SkillInvoked(invoked) => {
                self.apply_legacy_skill(calls, *invoked, event_text(recorded))
            }
            JournalEvent::SkillRepaired(repaired) => {
                self.apply_repair(calls, &repaired, event_text(recorded))
            }
            JournalEvent::MessageAnswered(answered) => {
                self.ended(calls, answered.message_id, Event::Cancelled)
            }
            JournalEvent::MessageDead(dead) => {
                self.ended(calls, dead.message_id, Event::Failed(String::new()))
            }
            JournalEvent::SessionStarted(_)
            | JournalEvent::AgentDescribed(_)
            | JournalEvent::ToolDescribed(_)
            | JournalEvent::SessionEnded(_)
            | JournalEvent::LifecycleChanged(_)
            | JournalEvent::MessageRefused(_)
            | JournalEvent::ClaimsJudged(_)
            | JournalEvent::TurnStopped(_)
            | JournalEvent::DeliveryStarted(_)
            | JournalEvent::DeliveryEnded(_)
            | JournalEvent::DeliveryRequeued(_)
            | JournalEvent::ProviderRequested(_)
            | JournalEvent::ProviderFailed(_)
            | JournalEvent::ProviderAdapted(_)
            | JournalEvent::ProviderUnreachable(_)
            | JournalEvent::BudgetWarned(_)
            | JournalEvent::DryRunSpent(_)
            | JournalEvent::ActionApproved(_)
            | JournalEvent::ActionAudited(_)
            | JournalEvent::EffectResolved(_)
            | JournalEvent::ContextTrimmed(_)
            | JournalEvent::ContextWritten(_)
            | JournalEvent::ContextRead(_)
            | JournalEvent::ContextTainted(_)
            | JournalEvent::ScreenSecret(_)
            | JournalEvent::ScreenInjection(_)
            | JournalEvent::ScreenInput(_)
            | JournalEvent::ScreenJudged(_)
            | JournalEvent::SkillFinished(_)
            | JournalEvent::WorldModelPlanned(_)
            | JournalEvent::WorldModelCompared(_)
            | clawk_events::approval_events!()
            | clawk_events::carp_events!()
            | clawk_events::channel_events!()
            | clawk_events::egress_events!()
            | clawk_events::memory_events!()
            | clawk_events::swarm_events!()
            | JournalEvent::Unknown { .. } => {}
            // Only what a turn can't be taken up without has to be whole.
            JournalEvent::Shortened { kind, .. } if MUST_BE_WHOLE.contains(&kind) => {
                recorded.read_whole()?;
            }
            JournalEvent::Shortened { .. } => {}
        }
        Ok(())
    }

    fn accepted(&mut self, accepted: MessageAccepted, text: String) {
        let id = MessageId(accepted.message_id);
        let said = TurnInput {
            text,
            images: std::mem::take(&mut self.attached),
            frame: std::mem::take(&mut self.framed),
        };
        self.waiting
            .push((id, said, Origin::from_record(accepted.into())));
    }

    fn inferred(&mut self, calls: &KernelServices, turn: Uuid, event: &RecordedEvent) {
        // Erased: the turn is asked again.
        let Some(completion) = read::<ModelCompletion>(event) else {
            return;
        };
        self.with_turn(calls, Some(turn), |open| {
            open.effects = open.turn.handle_event(Event::Inferred(completion))
        });
        // A task with checkpoints may be interrupted as often as it gets further in between, in an inner turn as well.
        if let Some(open) = self
            .running
            .as_mut()
            .filter(|_| checkpoint::checkpoint_store(&calls.manifest).is_some())
        {
            open.resumes = 0;
        }
    }

    fn ended(&mut self, calls: &KernelServices, id: Uuid, end: Event) {
        self.with_turn(calls, Some(id), |open| open.effects = open.turn.handle_event(end));
        if let Some(open) = self.running.take_if(|open| open.message.0 == id) {
            self.history = open.turn.into_messages();
            // What it asked for and did not get is asked for no more, whatever ids a model gives next.
            self.calls.clear();
        }
    }

    /// The oldest messages left the context of this turn, and of those after it.
    fn apply_compaction(&mut self, compacted: &ContextCompacted, replaced: &CompactionContent) {
        let instead = compaction::summary_messages(&replaced.text);
        // silent-ok: more than memory holds is more than the history has
        let messages = usize::try_from(compacted.replaced_messages).unwrap_or(usize::MAX);
        let open = self.running.as_mut();
        if let Some(open) = open.filter(|open| open.message.0 == compacted.turn) {
            open.turn.set_aside(messages, instead);
        } else if messages <= self.history.len() {
            self.history.splice(0..messages, instead);
        }
    }

    /// The client's own tools that came with a message.
    fn client_tools(&mut self, message: Uuid, event: &RecordedEvent) {
        let came = self.waiting.iter_mut().find(|(id, ..)| id.0 == message);
        if let (Some((.., origin)), Some(tools)) = (came, read(event)) {
            origin.tools = tools;
        }
    }

    /// It was taken up, which alone does not begin it: what it answers may still grow. Taken up to wait on for a person, it has not failed.
    fn mark_resumed(&mut self, resumed: &MessageResumed) {
        let id = resumed.message_id;
        match self.running.as_mut().filter(|open| open.message.0 == id) {
            _ if resumed.waiting => {}
            Some(open) => open.resumes += 1,
            None => *self.resumes.entry(id).or_default() += 1,
        }
    }

    /// Makes this turn the running one, if it continues after another turn began.
    fn turn_to(&mut self, id: Option<Uuid>) {
        let at = self
            .behind
            .iter()
            .position(|(open, _)| Some(open.message.0) == id);
        let Some(at) = at else { return };
        let (open, asked) = self.behind.remove(at);
        self.put_behind();
        (self.running, self.calls) = (Some(open), asked);
    }

    fn put_behind(&mut self) {
        if let Some(open) = self.running.take() {
            self.behind.push((open, std::mem::take(&mut self.calls)));
        }
    }

    /// Changes the turn of this message, and begins it if needed. Messages are answered in the order in which they arrived.
    fn with_turn(&mut self, calls: &KernelServices, id: Option<Uuid>, change: impl FnOnce(&mut OpenTurn)) {
        let Some(id) = id else { return };
        if self.running.as_ref().is_none_or(|open| open.message.0 != id)
            && let Some(at) = self.waiting.iter().position(|(message, ..)| message.0 == id)
        {
            let (message, said, origin) = self.waiting.remove(at);
            self.put_behind();
            let open = begin_turn(calls, self.history.clone(), (message, origin), said);
            self.running = Some(OpenTurn {
                resumes: self.resumes.remove(&id).unwrap_or_default(),
                ..open
            });
        }
        if let Some(open) = self.running.as_mut().filter(|open| open.message.0 == id) {
            change(open);
        }
    }

    fn apply_call(
        &mut self,
        calls: &KernelServices,
        ended: EndedCall,
        outcome: Option<Result<ToolCallResult, CallError>>,
    ) {
        let Some(call_id) = self.calls.remove(&ended.request_id) else {
            return;
        };
        let shown = skill::result_excerpt(calls, &ended.action_id);
        // Of what was erased, nobody knows.
        let from_tool = match &outcome {
            Some(Err(error)) => error.may_quote_tool(),
            Some(Ok(_)) | None => true,
        };
        let told = match &outcome {
            Some(outcome) => prompt::result_text(outcome, shown),
            None => ModelToolResult {
                text: ERASED.to_owned(),
                is_error: ended.is_error,
                cut: None,
                pictures: None,
                whole: None,
            },
        };
        self.cuts.extend(told.cut);
        self.wholes
            .extend(told.whole.map(|whole| (call_id.clone(), whole)));
        let pictures = told.pictures.map(|found| (call_id.clone(), found));
        self.pictures.extend(pictures);
        let done = Event::CallDone {
            call_id: call_id.clone(),
            text: told.text,
            is_error: told.is_error,
            from_tool,
        };
        self.with_turn(calls, ended.turn, |open| finish_call(open, call_id, done));
    }

    fn apply_execution(&mut self, calls: &KernelServices, executed: ActionExecuted, event: &RecordedEvent) {
        let (turn, is_error) = (executed.turn, executed.is_error);
        let tool = executed.action_id;
        let result = read::<ToolCallResult>(event);
        let planned = SkillPlanResult::from_structured(
            result
                .as_ref()
                .and_then(|result| result.structured_content.as_ref()),
        );
        let call = EndedCall {
            turn,
            request_id: executed.request_id,
            action_id: tool.clone(),
            is_error,
        };
        self.apply_call(calls, call, result.map(Ok));
        if !is_error {
            self.apply_joined_skill(calls, turn, &tool, planned);
        }
    }

    /// Adds a skill to the turn at the end of its call. This is enough if a crash prevented the events after it.
    fn apply_joined_skill(
        &mut self,
        calls: &KernelServices,
        turn: Option<Uuid>,
        invoked: &str,
        planned: Option<SkillPlanResult>,
    ) {
        let skill = invoked
            .strip_prefix(skill::PREFIX)
            .filter(|_| calls.catalog.get(invoked).is_none())
            .and_then(|name| calls.manifest.skill(name));
        let Some(skill) = skill else { return };
        let now_us = calls.clock().monotonic_us();
        self.with_turn(calls, turn, |open| {
            let ceiling = SkillCeiling::from_skill(skill, world_model::model_policy(calls, skill));
            open.ceilings
                .push(ceiling.with_fallback(planned.as_ref().and_then(|planned| planned.fallback)));
            let mut joined = RunningSkill::new(Arc::new(skill.clone()), now_us, planned);
            joined.mark_start(&open.turn);
            open.skills.push(joined);
        });
    }

    /// The same in a record of an earlier version, where the invocation was no call.
    fn apply_legacy_skill(&mut self, calls: &KernelServices, invoked: SkillInvoked, text: String) {
        if invoked.request_id.is_some() {
            return;
        }
        let (turn, is_error, call_id) = (Some(invoked.turn), invoked.is_error, invoked.call_id);
        self.with_turn(calls, turn, |open| {
            open.effects = open.turn.handle_event(Event::CallDone {
                call_id,
                text,
                is_error,
                from_tool: true,
            });
        });
        if !is_error {
            self.apply_joined_skill(calls, turn, &format!("{}{}", skill::PREFIX, invoked.skill), None);
        }
    }

    /// The model was asked once more for a skill's result.
    fn apply_repair(&mut self, calls: &KernelServices, repaired: &SkillRepaired, text: String) {
        self.with_turn(calls, Some(repaired.turn), |open| {
            for joined in &mut open.skills {
                joined.repaired |= repaired.skill == joined.skill.name;
            }
            open.effects = open.turn.ask_again(text);
        });
    }

    /// Switches to the forked session. The continued turn answers the person who forked, with a new id and no more rights than its
    /// message had. Waiting messages stay in the source.
    fn apply_fork(&mut self, calls: &KernelServices, forked: &RecordedFork) {
        self.calls.clear();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        match (self.running.take(), forked.turn) {
            (Some(open), Some(id)) => {
                self.running = Some(OpenTurn {
                    message: MessageId(id),
                    origin: forked.origin_of_turn(&open.origin),
                    resumes: 0,
                    ..open
                });
            }
            (Some(mut open), None) => {
                open.turn.handle_event(Event::Cancelled);
                self.history = open.turn.into_messages();
            }
            // The message had arrived but not begun.
            (None, Some(id)) => {
                self.waiting = waiting
                    .next()
                    .map(|(_, said, origin)| {
                        let mut goes_on = forked.origin_of_turn(&origin);
                        if goes_on.written_by.is_none() {
                            goes_on = goes_on
                                .with_repeated_author(&TextAuthor::from_origin(&origin, &calls.manifest));
                        }
                        (MessageId(id), said, goes_on)
                    })
                    .into_iter()
                    .collect()
            }
            (None, None) => {}
        }
    }

    fn into_rebuilt(mut self, calls: &KernelServices) -> RebuiltSession {
        self.put_behind();
        let begun = self.behind.into_iter().map(|(mut open, asked)| {
            let asked = asked
                .into_iter()
                .filter_map(|(request, call)| Some((call, RequestId::parse(&request).ok()?))); // silent-ok: ids of ours are UUIDs
            open.requests.extend(asked);
            open
        });
        let mut open: Vec<OpenTurn> = begun.collect();
        let resumes = self.resumes;
        open.extend(self.waiting.into_iter().map(|(message, said, origin)| OpenTurn {
            resumes: resumes.get(&message.0).copied().unwrap_or_default(),
            ..begin_turn(calls, Vec::new(), (message, origin), said)
        }));
        RebuiltSession {
            history: self.history,
            open,
            spent: self.spent,
            exists: self.exists,
            model: self.model,
        }
    }
}

/// The picture that an event tells of.
fn event_image(attached: MessageAttached) -> Image {
    Image {
        digest: attached.content_hash,
        mime_type: attached.mime_type,
        name: attached.name,
        size_bytes: attached.size_bytes,
        data: None,
    }
}

fn begin_turn(
    calls: &KernelServices,
    history: Vec<ModelMessage>,
    (message, origin): (MessageId, Origin),
    said: TurnInput,
) -> OpenTurn {
    let author = TextAuthor::from_origin(&origin, &calls.manifest);
    let turn = Turn::start_with(history, said, author).with_bounds(calls.turn_bounds());
    OpenTurn {
        message,
        origin,
        turn,
        effects: vec![Effect::Infer],
        ceilings: Vec::new(),
        skills: Vec::new(),
        spent: BudgetAmount::default(),
        resumes: 0,
        requests: BTreeMap::new(),
        early: BTreeMap::new(),
    }
}

/// Adds a call's end in the order in which the model made the calls. A call that ended early waits for the calls before it.
fn finish_call(open: &mut OpenTurn, call_id: String, done: Event) {
    match open.effects.last() {
        Some(Effect::Call(next)) if next.id != call_id => {
            open.early.insert(call_id, done);
        }
        _ => open.effects = open.turn.handle_event(done),
    }
    while let [.., Effect::Call(next)] = open.effects.as_slice()
        && let Some(event) = open.early.remove(&next.id)
    {
        open.effects = open.turn.handle_event(event);
    }
}

fn read<T: for<'de> Deserialize<'de>>(event: &RecordedEvent) -> Option<T> {
    event
        .content
        .as_ref()
        .and_then(|content| serde_json::from_slice(&content.bytes).ok()) // silent-ok: erased content is an ordinary state
}
