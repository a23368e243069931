//! Recovery after a crash: rebuilds the unfinished work from the journal, with the same state machine that ran it (promise 4).
//!
//! Long because it is one fold over every event that a turn writes.

mod lost;
mod spending;

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_proto::method::ToolCallResult;
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use serde::Deserialize;
use uuid::Uuid;

use crate::attach::TurnInput;
use crate::author::TextAuthor;
use crate::call::CallGovernor;
use crate::checkpoint;
use crate::compaction::{self, CompactionContent};
use crate::door::Origin;
use crate::error::CallError;
use crate::event::{ForkPoint, JournalWriter, kind};
use crate::model_choice::ModelChoice;
use crate::open_turn::OpenTurn;
use crate::output::ModelToolResult;
use crate::pictures::ResultPictures;
use crate::ports::{Image, JournalError, JournalScan, ModelCompletion, ModelMessage, RecordedEvent};
use crate::prompt;
use crate::purse::BudgetAmount;
use crate::rates::CallRateWindow;
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

#[derive(Debug, Default, Deserialize)]
struct RecoveryFields {
    message_id: Option<Uuid>,
    turn: Option<Uuid>,
    call_id: Option<String>,
    request_id: Option<String>,
    action_id: Option<String>,
    inference_id: Option<Uuid>,
    request_hash: Option<Digest>,
    skill: Option<String>,
    #[serde(default)]
    is_error: bool,
    provider: Option<String>,
    effort: Option<String>,
    to: Option<String>,
    side_effects: Option<bool>,
    parameters_hash: Option<Digest>,
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    fork: Option<ForkPoint>,
    #[serde(default)]
    token_usage: u64,
    /// The report belongs to a task that this agent did not delegate.
    orphan: Option<bool>,
    state: Option<serde_json::Value>,
    cost_microusd: Option<u64>,
    #[serde(default)]
    duration_ms: u64,
    #[serde(default)]
    bytes_out: u64,
    #[serde(default)]
    waiting: bool,
    #[serde(default)]
    replaced_messages: usize,
}

impl RecoveryFields {
    fn is(&self, state: &str) -> bool {
        self.state.as_ref().and_then(serde_json::Value::as_str) == Some(state)
    }

    /// Returns the amount that the event records as spent.
    fn spent(&self, kind: &str) -> BudgetAmount {
        let tokens = self.input_tokens.saturating_add(self.output_tokens);
        let by_model = BudgetAmount {
            tokens: tokens.saturating_add(self.token_usage),
            cost_microusd: self.cost_microusd.unwrap_or(0),
            busy_ms: self.duration_ms,
            calls: 0,
            bytes_out: self.bytes_out,
        };
        match kind {
            kind::SWARM_REPORTED if self.orphan == Some(true) => BudgetAmount::default(),
            // The attempt was interrupted, so its task's report does not include it.
            kind::SWARM_TRY if self.is(ASSUMED) || self.is(LENT) => by_model,
            kind::PROVIDER_COMPLETED | kind::PROVIDER_FAILED | kind::SWARM_REPORTED => by_model,
            kind::ACTION_EXECUTED | kind::ACTION_FAILED => BudgetAmount {
                calls: 1,
                busy_ms: self.duration_ms,
                ..BudgetAmount::default()
            },
            _ => BudgetAmount::default(),
        }
    }
}

fn fields(event: &RecordedEvent) -> RecoveryFields {
    serde_json::from_str(&event.payload).unwrap_or_default() // silent-ok: a payload of ours always reads; a foreign one counts for nothing
}

/// Returns the event's content as text.
pub(crate) fn text(event: &RecordedEvent) -> String {
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
    scribe.each(scan, |event| rates.restore_call(event.at)).await
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
        .each(scan, |event| {
            let to = fields(event).to;
            if to.as_deref() == Some("READY") {
                ready = Some(event.row);
            }
            clean = event.row == last && to.as_deref() == Some("STOPPED");
        })
        .await?;
    Ok(if clean { None } else { Some(ready.unwrap_or(0)) })
}

/// Rebuilds a session's conversation and its interrupted turns from its chain.
pub(crate) async fn rebuild(
    calls: &CallGovernor,
    session: SessionId,
) -> Result<RebuiltSession, JournalError> {
    Ok(fold(calls, session, None).await?.end(calls))
}

/// Like [`rebuild`], up to and including event `at`.
pub(crate) async fn rebuild_until(
    calls: &CallGovernor,
    session: SessionId,
    at: u64,
) -> Result<RebuiltSession, JournalError> {
    Ok(fold(calls, session, Some(at)).await?.end(calls))
}

/// The inner turn of a composite tool, as recorded in the journal.
pub(crate) struct InnerTurn {
    pub(crate) open: OpenTurn,
    /// The model was asked once more for the skill's result.
    pub(crate) repaired: bool,
}

/// Rebuilds an inner turn whose first message is `first`; `None`: the model's text was erased.
pub(crate) async fn rebuild_inner(
    calls: &CallGovernor,
    session: SessionId,
    turn: Uuid,
    first: &str,
) -> Result<Option<InnerTurn>, JournalError> {
    let said = TurnInput {
        text: first.to_owned(),
        ..TurnInput::default()
    };
    let nobody = Origin::recorded(Default::default());
    let mut fold = RecoveryFold {
        running: Some(begin(calls, Vec::new(), (MessageId(turn), nobody), said)),
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
        .each(scan, |event| {
            if fields(event).turn == Some(turn) {
                erased |= event.kind == kind::PROVIDER_COMPLETED && event.content.is_none();
                repaired |= event.kind == kind::SKILL_REPAIRED;
                fold.see(calls, event);
            }
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
    let open = fold.end(calls).open.into_iter().next();
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
async fn fold(
    calls: &CallGovernor,
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
        let first = calls.scribe.journal().scan(first).await?;
        let Some(first) = first.first() else { break };
        // silent-ok: clawk's own payloads are always readable; a foreign one gets the lowest role
        let by = Origin::recorded(serde_json::from_str(&first.payload).unwrap_or_default());
        let first = fields(first);
        let Some(fork) = first.fork else {
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
            .each(scan, |event| {
                if until.is_none_or(|until| event.sequence <= until) {
                    fold.see(calls, event);
                }
            })
            .await?;
        if let Some(forked) = forked.filter(|_| session != wanted) {
            fold.fork(calls, &forked);
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
        reason = "one arm for each kind of event, all of them short"
    )]
    fn see(&mut self, calls: &CallGovernor, event: &RecordedEvent) {
        self.exists = true;
        let found = fields(event);
        self.turn_to(found.turn.or(found.message_id));
        let spent = found.spent(&event.kind);
        self.spent = self.spent.plus(spent);
        // The turns of a session run one after the other, so spending during a turn belongs to it.
        if let Some(open) = &mut self.running {
            open.spent = open.spent.plus(spent);
        }
        match event.kind.as_str() {
            // silent-ok: clawk's own payloads are always readable
            kind::MESSAGE_ATTACHED => self.attached.extend(image(event)),
            kind::MESSAGE_FRAMED => self.framed = text(event),
            kind::MESSAGE_ACCEPTED => {
                let images = std::mem::take(&mut self.attached);
                let frame = std::mem::take(&mut self.framed);
                if let Some(id) = found.message_id {
                    // silent-ok: clawk's own payloads are always readable; a foreign one gets the lowest role
                    let came = serde_json::from_str(&event.payload).unwrap_or_default();
                    let origin = Origin::recorded(came);
                    let said = TurnInput {
                        text: text(event),
                        images,
                        frame,
                    };
                    self.waiting.push((MessageId(id), said, origin));
                }
            }
            kind::CONVERSATION_CLEARED => self.history.clear(),
            kind::CONVERSATION_MODEL => {
                self.model = ModelChoice::recorded(found.provider, found.effort.as_deref());
            }
            kind::MESSAGE_TOOLS | kind::CLIENT_CALLED => self.clients(calls, found, event),
            // The summary was erased. The messages that it replaced are still there and are used.
            kind::CONTEXT_COMPACTED => {
                if let Some(replaced) = read::<CompactionContent>(event) {
                    self.compacted(found, &replaced);
                }
            }
            // The turn was resumed to wait for a person. That does not count as a failure.
            kind::MESSAGE_RESUMED if found.waiting => {}
            kind::MESSAGE_RESUMED => self.resumed(found.message_id),
            kind::PROVIDER_COMPLETED => {
                let completion = event
                    .content
                    .as_ref()
                    .and_then(|c| serde_json::from_slice::<ModelCompletion>(&c.bytes).ok()); // silent-ok: erased or foreign: the turn is asked again
                if let Some(completion) = completion {
                    self.with(calls, found.turn, |open| {
                        open.effects = open.turn.step(Event::Inferred(completion))
                    });
                    // A task with checkpoints may be interrupted any number of times if it makes progress in between, also in an
                    // inner turn.
                    if let Some(open) = self
                        .running
                        .as_mut()
                        .filter(|_| checkpoint::store(&calls.manifest).is_some())
                    {
                        open.resumes = 0;
                    }
                }
            }
            kind::ACTION_REQUESTED => {
                if let (Some(request), Some(call)) = (found.request_id, found.call_id) {
                    self.calls.insert(request, call);
                }
            }
            kind::ACTION_EXECUTED => self.executed(calls, found, event),
            kind::ACTION_DENIED | kind::ACTION_FAILED => {
                self.called(calls, found, read::<CallError>(event).map(Err))
            }
            kind::SKILL_INVOKED => self.skill(calls, found, text(event)),
            kind::SKILL_REPAIRED => self.repaired(calls, &found, text(event)),
            kind::MESSAGE_ANSWERED | kind::MESSAGE_DEAD => {
                let ended = if event.kind == kind::MESSAGE_ANSWERED {
                    Event::Cancelled
                } else {
                    Event::Failed(String::new())
                };
                self.with(calls, found.message_id, |open| {
                    open.effects = open.turn.step(ended)
                });
                if let Some(open) = self
                    .running
                    .take_if(|open| Some(open.message.0) == found.message_id)
                {
                    self.history = open.turn.into_messages();
                    // Calls without a result are not continued, whatever ids the model gives next.
                    self.calls.clear();
                }
            }
            _ => {}
        }
    }

    /// Removes the oldest messages from the context of this turn and of later turns.
    fn compacted(&mut self, found: RecoveryFields, replaced: &CompactionContent) {
        let instead = compaction::instead(&replaced.text);
        let open = self.running.as_mut();
        if let Some(open) = open.filter(|open| Some(open.message.0) == found.turn) {
            open.turn.set_aside(found.replaced_messages, instead);
        } else if found.replaced_messages <= self.history.len() {
            self.history.splice(0..found.replaced_messages, instead);
        }
    }

    /// Handles events of the client's own tools: tools that came with a message, and a call that was handed to the client.
    fn clients(&mut self, calls: &CallGovernor, found: RecoveryFields, event: &RecordedEvent) {
        let id = found.message_id.map(MessageId);
        let came = self.waiting.iter_mut().find(|(message, ..)| Some(*message) == id);
        if let (Some((.., origin)), Some(tools)) = (came, read(event)) {
            origin.tools = tools;
        }
        if let Some(call_id) = found.call_id {
            self.with(calls, found.turn, |open| {
                open.effects = open.turn.step(Event::Handed { call_id });
            });
        }
    }

    /// Records that a turn was resumed. That alone does not begin it: its message may still be extended.
    fn resumed(&mut self, id: Option<Uuid>) {
        let Some(id) = id else { return };
        match self.running.as_mut().filter(|open| open.message.0 == id) {
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
    fn with(&mut self, calls: &CallGovernor, id: Option<Uuid>, change: impl FnOnce(&mut OpenTurn)) {
        let Some(id) = id else { return };
        if self.running.as_ref().is_none_or(|open| open.message.0 != id)
            && let Some(at) = self.waiting.iter().position(|(message, ..)| message.0 == id)
        {
            let (message, said, origin) = self.waiting.remove(at);
            self.put_behind();
            let open = begin(calls, self.history.clone(), (message, origin), said);
            self.running = Some(OpenTurn {
                resumes: self.resumes.remove(&id).unwrap_or_default(),
                ..open
            });
        }
        if let Some(open) = self.running.as_mut().filter(|open| open.message.0 == id) {
            change(open);
        }
    }

    fn called(
        &mut self,
        calls: &CallGovernor,
        found: RecoveryFields,
        outcome: Option<Result<ToolCallResult, CallError>>,
    ) {
        let call = found.request_id.and_then(|request| self.calls.remove(&request));
        let Some(call_id) = call else { return };
        let shown = skill::shown(calls, found.action_id.as_deref().unwrap_or_default());
        // The origin of an erased result is unknown.
        let from_tool = match &outcome {
            Some(Err(error)) => error.may_quote_tool(),
            Some(Ok(_)) | None => true,
        };
        let told = match &outcome {
            Some(outcome) => prompt::result_text(outcome, shown),
            None => ModelToolResult {
                text: ERASED.to_owned(),
                is_error: found.is_error,
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
        self.with(calls, found.turn, |open| called(open, call_id, done));
    }

    fn executed(&mut self, calls: &CallGovernor, found: RecoveryFields, event: &RecordedEvent) {
        let tool = found.action_id.clone().unwrap_or_default();
        let joins = RecoveryFields {
            turn: found.turn,
            is_error: found.is_error,
            ..RecoveryFields::default()
        };
        let result = read::<ToolCallResult>(event);
        let planned = SkillPlanResult::of(
            result
                .as_ref()
                .and_then(|result| result.structured_content.as_ref()),
        );
        self.called(calls, found, result.map(Ok));
        self.joined(calls, &joins, &tool, planned);
    }

    /// Adds a skill to the turn at the end of its call. This is enough if a crash prevented the events after it.
    fn joined(
        &mut self,
        calls: &CallGovernor,
        found: &RecoveryFields,
        invoked: &str,
        planned: Option<SkillPlanResult>,
    ) {
        let skill = invoked
            .strip_prefix(skill::PREFIX)
            .filter(|_| calls.catalog.get(invoked).is_none())
            .and_then(|name| calls.manifest.skill(name));
        let Some(skill) = skill.filter(|_| !found.is_error) else {
            return;
        };
        let now_us = calls.clock().monotonic_us();
        self.with(calls, found.turn, |open| {
            let ceiling = SkillCeiling::of(skill, world_model::model_policy(calls, skill));
            open.ceilings.push(ceiling.planned(planned.as_ref()));
            let mut joined = RunningSkill::new(Arc::new(skill.clone()), now_us, planned);
            joined.begin(&open.turn);
            open.skills.push(joined);
        });
    }

    /// Adds a skill from the record of an earlier version, in which the invocation was not a call.
    fn skill(&mut self, calls: &CallGovernor, found: RecoveryFields, text: String) {
        let (Some(call_id), None) = (found.call_id.clone(), &found.request_id) else {
            return;
        };
        let is_error = found.is_error;
        self.with(calls, found.turn, |open| {
            open.effects = open.turn.step(Event::CallDone {
                call_id,
                text,
                is_error,
                from_tool: true,
            });
        });
        let name = format!("{}{}", skill::PREFIX, found.skill.as_deref().unwrap_or_default());
        self.joined(calls, &found, &name, None);
    }

    /// Records that the model was asked once more for a skill's result.
    fn repaired(&mut self, calls: &CallGovernor, found: &RecoveryFields, text: String) {
        self.with(calls, found.turn, |open| {
            for joined in &mut open.skills {
                joined.repaired |= found.skill.as_ref() == Some(&joined.skill.name);
            }
            open.effects = open.turn.again(text);
        });
    }

    /// Switches to the forked session. The continued turn answers the person who forked, with a new id and no more rights than its
    /// message had. Waiting messages stay in the source.
    fn fork(&mut self, calls: &CallGovernor, forked: &RecordedFork) {
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
                open.turn.step(Event::Cancelled);
                self.history = open.turn.into_messages();
            }
            // The message had arrived but not begun.
            (None, Some(id)) => {
                self.waiting = waiting
                    .next()
                    .map(|(_, said, origin)| {
                        let mut goes_on = forked.origin_of_turn(&origin);
                        if goes_on.written_by.is_none() {
                            goes_on = goes_on.repeating(&TextAuthor::of(&origin, &calls.manifest));
                        }
                        (MessageId(id), said, goes_on)
                    })
                    .into_iter()
                    .collect()
            }
            (None, None) => {}
        }
    }

    fn end(mut self, calls: &CallGovernor) -> RebuiltSession {
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
            ..begin(calls, Vec::new(), (message, origin), said)
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

/// Returns the image that an event describes.
fn image(event: &RecordedEvent) -> Option<Image> {
    #[derive(Deserialize)]
    struct Attachment {
        content_hash: Digest,
        mime_type: String,
        name: Option<String>,
        size_bytes: u64,
    }
    let found: Attachment = serde_json::from_str(&event.payload).ok()?; // silent-ok: a payload of ours always reads
    Some(Image {
        digest: found.content_hash,
        mime_type: found.mime_type,
        name: found.name,
        size_bytes: found.size_bytes,
        data: None,
    })
}

fn begin(
    calls: &CallGovernor,
    history: Vec<ModelMessage>,
    (message, origin): (MessageId, Origin),
    said: TurnInput,
) -> OpenTurn {
    let author = TextAuthor::of(&origin, &calls.manifest);
    let turn = Turn::start_with(history, said, author).within(calls.bounds());
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
fn called(open: &mut OpenTurn, call_id: String, done: Event) {
    match open.effects.last() {
        Some(Effect::Call(next)) if next.id != call_id => {
            open.early.insert(call_id, done);
        }
        _ => open.effects = open.turn.step(done),
    }
    while let [.., Effect::Call(next)] = open.effects.as_slice()
        && let Some(event) = open.early.remove(&next.id)
    {
        open.effects = open.turn.step(event);
    }
}

fn read<T: for<'de> Deserialize<'de>>(event: &RecordedEvent) -> Option<T> {
    event
        .content
        .as_ref()
        .and_then(|content| serde_json::from_slice(&content.bytes).ok()) // silent-ok: erased content is an ordinary state
}
