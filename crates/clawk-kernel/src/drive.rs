//! The driver of a turn: performs the turn machine's effects and returns their results to it.
//!
//! Long because a turn is one path through model requests, calls, memory and the record, and is read from top to bottom.

mod beside;
mod close;
mod compact;
mod context;
mod labels;
mod skills;

pub(crate) use context::ContextFileDigests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawk_events::payload::{MessageResumed, TurnStopped};
use clawk_manifest::model::{AutonomyLevel, Role};
use clawk_policy::ValueSources;
use clawk_proto::method::ToolCallResult;
use clawk_proto::{Digest, MessageId, RequestId};
use clawk_swarm::coord::Kind;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::attach::TurnInput;
use crate::author::TextAuthor;
use crate::call::{CallOrder, CallerContext, Context, Request, TaskRights, call};
use crate::carp::{self, TurnGrant};
use crate::catalog::ConvertedArguments;
use crate::checkpoint::CheckpointWriter;
use crate::claims;
use crate::door::Origin;
use crate::error::CallError;
use crate::event::{ChainText, EventWords, Thread, WordField};
use crate::infer::{self, NoAnswer};
use crate::member::Member;
use crate::message_frame;
use crate::notice::{SessionNotice, TurnStop};
use crate::open_turn::OpenTurn;
use crate::outbox::Outbox;
use crate::ports::{
    InferRequest, ModelMessage, ProvenanceCollector, ReasoningEffort, TaintedFiles, ToolOffer, ToolUse,
};
use crate::prompt::{self, ContextFiles};
use crate::purse::{BudgetAccount, BudgetAmount};
use crate::recall::{self, RecalledContext};
use crate::roles;
use crate::services::KernelServices;
use crate::shown;
use crate::skill::{self, RunningSkill, SkillCeiling};
use crate::state::State;
use crate::stop::Level;
use crate::taint;
use crate::turn::{self, Effect, Event, Turn, TurnOutcome};
use crate::watch::NoticeSender;

/// Number of resumes of an interrupted turn before its message becomes a dead letter.
pub(crate) const MAX_RESUMES: u32 = 3;

/// The dependencies of messages' turns.
#[derive(Debug, Clone)]
pub(crate) struct TurnServices {
    pub(crate) calls: Arc<KernelServices>,
    /// Receives every answer.
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) at_start: Arc<RecordedAgent>,
}

/// The description of this run's agent in the record.
#[derive(Debug)]
pub(crate) struct RecordedAgent {
    /// SHA-256 of the content of `ckp.agent.described`.
    pub(crate) agent_hash: Digest,
    /// Digests of its context files, by their paths in the manifest; `None`: the file did not exist.
    pub(crate) context: ContextFileDigests,
}

/// The data of one running turn.
pub(crate) struct RunningTurn<'a> {
    pub(crate) calls: &'a KernelServices,
    pub(crate) thread: Thread,
    pub(crate) turn_id: Uuid,
    pub(crate) door: &'static str,
    pub(crate) role: Role,
    pub(crate) provider: &'a str,
    /// How much the model thinks, where a person chose it.
    pub(crate) effort: Option<ReasoningEffort>,
    pub(crate) system: String,
    /// The part of the system prompt that changes from turn to turn.
    pub(crate) volatile: String,
    /// The rights that the Atlases grant to this turn.
    pub(crate) granted: Option<Arc<TurnGrant>>,
    /// The allowed tools; `None`: all of the agent's.
    pub(crate) only: Option<&'a [String]>,
    pub(crate) skills: bool,
    /// Skills that are active from their invocation to the turn's end.
    pub(crate) joined: Vec<RunningSkill>,
    /// The client's own tools.
    pub(crate) client: &'a [ToolOffer],
    pub(crate) ceilings: Vec<SkillCeiling>,
    pub(crate) depth: u8,
    /// Request ids of an interrupted turn's calls.
    pub(crate) requests: BTreeMap<String, RequestId>,
    /// The calls of the model's last answer were already put into a plan.
    pub(crate) planned: bool,
    /// A budget had no room for the model's answer.
    pub(crate) spent_out: AtomicBool,
    /// The tools that were offered; see [`Self::could_act`].
    pub(crate) offered: OfferedTools,
    /// The answer is judged before it is sent, so no text is shown before that.
    pub(crate) judged: bool,
    pub(crate) notices: NoticeSender,
    /// The budget that pays for the turn.
    pub(crate) purse: BudgetAccount,
    /// Sources of untrusted text beside the conversation.
    pub(crate) base: BTreeSet<String>,
    /// The context of the last model request.
    pub(crate) context: Arc<Context>,
    /// The swarm member whose turn this is, if the turn works on a swarm task.
    pub(crate) member: Option<Arc<Member>>,
    /// Writes a checkpoint after each step.
    pub(crate) saver: Option<CheckpointWriter>,
    /// Calls that ran concurrently with an earlier one, and their ends.
    pub(crate) early: BTreeMap<String, Event>,
    pub(crate) cancel: &'a CancellationToken,
}

/// Whether the turn's model was offered tools, and whether one of them has side effects.
#[derive(Debug, Default)]
pub(crate) struct OfferedTools {
    looked: AtomicBool,
    acts: AtomicBool,
}

impl RunningTurn<'_> {
    /// Returns whether the model was offered tools with side effects in this turn.
    pub(crate) fn could_act(&self) -> bool {
        self.offered.acts.load(Ordering::Relaxed)
    }

    /// Runs a turn to its end.
    pub(crate) async fn drive_turn(&mut self, turn: &mut Turn, effects: Vec<Effect>) -> TurnOutcome {
        let mut queue = VecDeque::from(effects);
        self.look_back(turn).await;
        self.save_checkpoint(turn, false).await;
        while let Some(effect) = queue.pop_front() {
            let event = match effect {
                Effect::Infer => {
                    self.planned = false;
                    self.look_back(turn).await;
                    self.ask_until_answered(turn).await
                }
                Effect::Call(wanted) => {
                    self.ask_plan(&wanted, turn).await;
                    Box::pin(self.side_by_side(&wanted, turn)).await;
                    match self.early.remove(&wanted.id) {
                        Some(event) => event,
                        None => self.call(wanted).await,
                    }
                }
                Effect::Say(text) => {
                    if !self.judged {
                        self.notices.send(SessionNotice::Said(text)).await;
                    }
                    continue;
                }
                Effect::Done(end) => {
                    let end = match self.close_skills(turn, end).await {
                        Ok(more) => {
                            queue.extend(more);
                            continue;
                        }
                        Err(end) => end,
                    };
                    self.note_stop(turn);
                    self.give_up_plan().await;
                    if !self.calls.life.stop.is_cancelled() {
                        self.save_checkpoint(turn, true).await;
                    }
                    return end;
                }
            };
            // The turn machine alone reports a cancelled call to the model's conversation.
            let event = if self.cancel.is_cancelled() {
                Event::Cancelled
            } else {
                event
            };
            queue.extend(turn.handle_event(event));
            self.save_checkpoint(turn, false).await;
            self.joined.iter_mut().for_each(|joined| joined.mark_start(turn));
        }
        TurnOutcome::Failed("the turn ended without an end".to_owned())
    }

    /// Writes a checkpoint. A failure is recorded as a warning, and the task continues.
    async fn save_checkpoint(&mut self, turn: &Turn, done: bool) {
        let Some(saver) = &mut self.saver else { return };
        let site = (self.thread, &*self.context);
        if let Err(error) = saver.save_state(self.calls, site, turn, done).await {
            let text = format!("a checkpoint could not be kept: {error}");
            self.notices.send(SessionNotice::Warned(text)).await;
        }
    }

    /// Returns what ended the turn.
    fn turn_stop(&self, end: &TurnOutcome, turn: &Turn) -> TurnStop {
        match end {
            TurnOutcome::Answered if turn.is_declined() => TurnStop::Refused,
            TurnOutcome::Answered => TurnStop::Answered,
            TurnOutcome::Cancelled => TurnStop::Cancelled,
            TurnOutcome::Failed(_) if turn.loop_stop().is_some() => TurnStop::Stopped,
            TurnOutcome::Failed(_) if self.spent_out.load(Ordering::Relaxed) => TurnStop::Budget,
            TurnOutcome::Failed(_) => TurnStop::Failed,
        }
    }

    /// Records that the loop guard ended the turn.
    fn note_stop(&self, turn: &Turn) {
        let Some(stopped) = turn.loop_stop() else { return };
        let words = EventWords::new(WordField::Reason, &stopped.reason);
        let payload = TurnStopped {
            guard: stopped.guard.to_owned(),
            reason: ChainText::from_code(stopped.guard),
            turn: self.turn_id,
            words_hash: Some(words.digest()),
        };
        let scribe = &self.calls.scribe;
        let draft = scribe.draft_event(&self.thread, &payload);
        let draft = draft.with_words(words);
        if let Err(error) = scribe.submit_drafts(vec![draft]) {
            tracing::warn!(%error, "a turn's stop could not be recorded");
        }
    }

    /// Asks the model. If the session is frozen, waits, and repeats a request that a stop interrupted.
    async fn ask_until_answered(&self, turn: &Turn) -> Event {
        let brake = &self.calls.brake;
        let session = self.thread.session;
        loop {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Event::Cancelled,
                () = brake.wait_until_thawed(session) => {}
            }
            let Ok(held) = brake.guard_work(session, Level::Frozen, self.cancel) else {
                continue;
            };
            match self.ask_model(turn, &held.cancel).await {
                Event::Cancelled if !self.cancel.is_cancelled() => {}
                event => return event,
            }
        }
    }

    async fn ask_model(&self, turn: &Turn, cancel: &CancellationToken) -> Event {
        let tools = self.tool_offers().await;
        let messages = turn.messages().to_vec();
        let mut request = InferRequest {
            system: self.system_prompt(),
            messages,
            tools,
            max_output_tokens: 0,
            volatile: self.volatile.clone(),
            effort: self.effort,
            ..InferRequest::default()
        };
        message_frame::move_first_frame(&mut request);
        let place = infer::InferenceContext {
            thread: self.thread,
            turn: self.turn_id,
            notices: &self.notices,
            purse: &self.purse,
            member: self.member.as_deref(),
        };
        match infer::infer_with_fallback(&self.calls.models, place, self.provider, request, cancel).await {
            Ok(completion) => Event::Inferred(completion),
            Err(NoAnswer::Cancelled) => Event::Cancelled,
            Err(NoAnswer::Failed(reason)) => Event::Failed(reason),
            Err(NoAnswer::Quota(reason)) => {
                self.spent_out.store(true, Ordering::Relaxed);
                Event::Failed(reason)
            }
        }
    }

    /// Returns the tools to offer. An observer (R13) and a viewer's turn (C4) get none.
    async fn tool_offers(&self) -> Vec<ToolOffer> {
        let claw = self.calls.manifest.identity.autonomy;
        let autonomy = self
            .member
            .as_ref()
            .map_or(claw, |member| member.effective_autonomy(claw));
        if autonomy == AutonomyLevel::Observer || !roles::may_trigger(self.role) {
            return Vec::new();
        }
        let may = |name: &str| self.member.as_ref().is_none_or(|member| member.may_use(name));
        let mut offers = Vec::new();
        self.offered.looked.store(true, Ordering::Relaxed);
        let acts = || self.offered.acts.store(true, Ordering::Relaxed);
        for declared in self.calls.catalog.iter() {
            let wanted = |only: &[String]| only.iter().any(|name| **name == *declared.name);
            if self.calls.carp.hides_tool(&declared.name)
                || !self.only.is_none_or(wanted)
                || !may(&declared.name)
            {
                continue;
            }
            let found = match self
                .calls
                .catalog
                .offered_entries(declared, &*self.calls.runner)
                .await
            {
                Ok(found) => found,
                Err(error) => {
                    self.not_offered(&declared.name, &error).await;
                    continue;
                }
            };
            for entry in found {
                if self.calls.carp.hides_tool(&entry.name) || !may(&entry.name) {
                    continue;
                }
                match self.calls.describe_tool(&entry).await {
                    Ok(described) => {
                        if !described.read_only() {
                            acts();
                        }
                        offers.push(entry.tool_offer(&described));
                    }
                    Err(error) => self.not_offered(&entry.name, &error).await,
                }
            }
        }
        // This tool is not declared in the manifest. It reads the results of this session's tools.
        if self.calls.cuts.has_cuts(self.thread.session)
            && let Some(entry) = self.calls.catalog.output_read()
            && let Ok(described) = self.calls.describe_tool(entry).await
        {
            offers.push(entry.tool_offer(&described));
        }
        if self.only.is_none() && roles::may_trigger(self.role) {
            for entry in self.calls.team_offers(true, self.member.as_deref()) {
                if let Ok(described) = self.calls.describe_tool(&entry).await {
                    acts();
                    offers.push(entry.tool_offer(&described));
                }
            }
        }
        if matches!(&self.member, Some(member) if matches!(member.kind, Kind::Judge { .. })) {
            return Vec::new();
        }
        if let Some(granted) = self.granted.as_ref().filter(|granted| !granted.offers.is_empty()) {
            acts();
            offers.extend(granted.offers.iter().cloned());
        }
        if self.skills {
            offers.extend(self.calls.manifest.skills.iter().map(skill::skill_offer));
        }
        offers.extend(self.client_offers(&offers));
        offers
    }

    /// Looks up the offered tools for a turn that was resumed at its end and asked no model.
    async fn look_at_offers(&self) {
        if !self.offered.looked.load(Ordering::Relaxed) {
            let _offers = self.tool_offers().await;
        }
    }

    async fn not_offered(&self, tool: &str, error: &CallError) {
        // Without a terminal, the operator reads this in the log.
        tracing::error!(target: crate::OPERATOR, "tool `{tool}` is not offered: {error}");
        let text = format!("the tool `{tool}` is not offered: {error}");
        self.notices.send(SessionNotice::Warned(text)).await;
    }

    /// Returns the conversation's share of the model's window, in bytes.
    fn history_share(&self) -> usize {
        let session = self.thread.session;
        let room = self
            .calls
            .models
            .context_room(session, self.provider, (&self.system, &[]));
        room.conversation_bytes
    }

    /// Returns the current system prompt, including later reports of an event bus's members.
    fn system_prompt(&self) -> String {
        let heard = self
            .member
            .as_ref()
            .map(|member| member.peer_reports())
            .unwrap_or_default();
        match heard.is_empty() {
            true => self.system.clone(),
            false => format!("{}\n\n{}", self.system, heard.join("\n")),
        }
    }

    fn request_id(&mut self, call_id: &str) -> RequestId {
        let known = self.requests.remove(call_id);
        known.unwrap_or_else(|| RequestId::from(self.calls.clock().new_uuid()))
    }

    fn call_done_event(&self, call_id: String, outcome: &Result<ToolCallResult, CallError>) -> Event {
        let told = prompt::result_text(outcome, self.calls.shown);
        let session = self.thread.session;
        self.calls.cuts.add(session, told.cut);
        self.calls.cuts.note_whole(session, &call_id, told.whole);
        let pictures = told.pictures.map(|found| (call_id.clone(), found));
        self.calls.models.pictures.add(session, pictures);
        Event::CallDone {
            call_id,
            text: told.text,
            is_error: told.is_error,
            from_tool: outcome.as_ref().err().is_none_or(CallError::may_quote_tool),
        }
    }

    async fn call(&mut self, wanted: ToolUse) -> Event {
        let ToolUse { id, name, arguments } = wanted;
        let arguments = match arguments {
            Ok(arguments) => arguments,
            // The turn machine itself reports such arguments to the model and requests no call. If it did, nothing would run.
            Err(raw) => {
                return Event::CallDone {
                    call_id: id,
                    text: turn::not_run(&raw),
                    is_error: true,
                    from_tool: false,
                };
            }
        };
        if let Some(skill) = self.find_skill(&name) {
            return self.invoke_skill(id, skill, arguments).await;
        }
        if self.is_clients(&name) {
            return self.hand_over(id, name, &arguments).await;
        }
        let request_id = self.request_id(&id);
        let (caller, request) = self.call_request(id.clone(), name, arguments, request_id).await;
        let outcome = call(self.calls, &caller, request, self.cancel).await;
        self.call_done_event(id, &outcome)
    }

    /// Converts a model's arguments to the types in the tool's schema, if their meaning is clear. Policy, approvals, the record and
    /// the tool see only the converted arguments; the original ones are in the model's recorded answer.
    async fn convert_arguments(
        &self,
        tool: &str,
        arguments: serde_json::Map<String, Value>,
    ) -> ConvertedArguments {
        let calls = self.calls;
        let same = |arguments| ConvertedArguments {
            arguments,
            pointers: Vec::new(),
        };
        let wanted = calls.models.local_options(self.provider).converts_arguments;
        // A tool that a rule refuses by name is refused before its server is asked.
        if !wanted || calls.engine.denies_by_name(tool).is_some() {
            return same(arguments);
        }
        // silent-ok: the call's refusal reports what is wrong with the tool
        let _prepared = calls.catalog.prepare_tool(tool, &*calls.runner).await;
        let catalog = &calls.catalog;
        let entry = catalog
            .get(tool)
            .or_else(|| catalog.of_team(tool))
            .or_else(|| catalog.of_skill(tool));
        let entry = entry.or_else(|| {
            catalog
                .output_read()
                .filter(|entry| *entry.name == *tool)
                .cloned()
        });
        let Some(entry) = entry else {
            return same(arguments);
        };
        match calls.describe_tool(&entry).await {
            Ok(described) => described
                .convert_arguments(&arguments)
                .unwrap_or_else(|| same(arguments)),
            Err(_) => same(arguments), // silent-ok: as above
        }
    }

    /// Returns the call request for a tool use of the model.
    pub(crate) async fn call_request(
        &self,
        id: String,
        name: String,
        arguments: serde_json::Map<String, Value>,
        request_id: RequestId,
    ) -> (CallerContext, Request) {
        let action = self
            .granted
            .as_ref()
            .and_then(|granted| granted.find_action(&name));
        let name = action.map_or(name.clone(), str::to_owned);
        let under = self.granted.as_ref().filter(|_| self.calls.carp.is_action(&name));
        let ConvertedArguments {
            arguments,
            pointers: converted,
        } = self.convert_arguments(&name, arguments).await;
        let request = Request {
            tool: name,
            arguments,
            request_id,
            identity: self.calls.manifest.identity.name.clone(),
            sandbox: None,
            policy: None,
            under: under.map(|granted| granted.call_context(&self.calls.carp)),
            converted,
        };
        let caller = CallerContext {
            thread: self.thread,
            door: self.door,
            turn: Some(self.turn_id),
            call_id: Some(id),
            ceilings: self.ceilings.clone(),
            depth: self.depth,
            role: self.role,
            notices: self.notices.clone(),
            pends: false,
            purse: self.purse.clone(),
            context: Arc::clone(&self.context),
            member: self.member.clone().map(|member| member as Arc<dyn TaskRights>),
            rank: CallOrder::default(),
        };
        (caller, request)
    }
}

/// Runs the turn of a new message.
pub(crate) async fn run_new_turn(
    turns: &TurnServices,
    state: &State,
    (message, origin): (MessageId, Origin),
    said: TurnInput,
    cancel: &CancellationToken,
) {
    let author = TextAuthor::from_origin(&origin, &turns.calls.manifest);
    let turn = Turn::start_with(state.history(), said, author);
    let open = OpenTurn {
        message,
        origin,
        turn: turn.with_bounds(turns.calls.turn_bounds()),
        effects: vec![Effect::Infer],
        ceilings: Vec::new(),
        requests: BTreeMap::new(),
        skills: Vec::new(),
        spent: BudgetAmount::default(),
        resumes: 0,
        early: BTreeMap::new(),
    };
    finish_turn(turns, state, open, cancel).await;
}

/// Runs the rest of an interrupted turn.
pub(crate) async fn resume_turn(
    turns: &TurnServices,
    state: &State,
    mut open: OpenTurn,
    cancel: &CancellationToken,
) {
    // A turn that had not begun also answers the earlier messages.
    open.turn.go_behind(state.history());
    let (message, resumes) = (open.message, open.resumes);
    let waiting = open.effects.iter().any(|effect| match effect {
        Effect::Call(wanted) => {
            let asked = open.requests.get(&wanted.id);
            asked.is_some_and(|id| turns.calls.desk.is_waiting(id))
        }
        Effect::Infer | Effect::Say(_) | Effect::Done(_) => false,
    });
    let effects = if resumes >= MAX_RESUMES {
        let reason = format!("it was interrupted {resumes} times");
        vec![Effect::Done(TurnOutcome::Failed(reason))]
    } else {
        let payload = MessageResumed {
            attempt: resumes + 1,
            message_id: message.0,
            role: Some(open.origin.role.as_str().to_owned()),
            waiting,
        };
        let scribe = &turns.calls.scribe;
        let draft = scribe.draft_event(&state.thread, &payload);
        match scribe.write(vec![draft]).await {
            Ok(()) => open.effects,
            Err(error) => vec![Effect::Done(TurnOutcome::Failed(error.to_string()))],
        }
    };
    finish_turn(turns, state, OpenTurn { effects, ..open }, cancel).await;
}

/// Returns the system prompt, followed by the context of the Atlases.
fn compose_system_prompt(
    calls: &KernelServices,
    (state, provider): (&State, &str),
    granted: Option<&TurnGrant>,
    recalled: &RecalledContext,
    files: &ContextFiles,
) -> String {
    let window = window_tokens(calls, state.id, provider);
    let mut system = match &state.member {
        Some(member) => prompt::member_prompt(&calls.manifest, member, &state.peer_messages, files, window),
        None => prompt::system_prompt(&calls.manifest, None, &state.peer_messages, files, window),
    };
    if let Some(granted) = granted.filter(|granted| !granted.context.is_empty()) {
        system.push_str("\n\n");
        system.push_str(&granted.context);
    }
    if !recalled.text.is_empty() {
        system.push_str("\n\n");
        system.push_str(&recalled.text);
    }
    system
}

/// Returns the message that a turn answers.
fn question_text(turn: &Turn) -> String {
    let said = turn.messages().iter().rev().find_map(|message| match message {
        ModelMessage::User { text, .. } => Some(text.clone()),
        ModelMessage::Assistant { .. } | ModelMessage::ToolResult { .. } => None,
    });
    said.unwrap_or_default()
}

/// Who is asked first in this message's turn, and how much it thinks. What a person chose counts while the manifest has it; a member of
/// a swarm has its own provider.
fn chosen<'a>(
    calls: &KernelServices,
    state: &'a State,
    origin: &'a Origin,
) -> (&'a str, Option<ReasoningEffort>) {
    let chosen = origin
        .model
        .as_ref()
        .filter(|model| state.member.is_none() && calls.manifest.provider(&model.provider).is_some());
    match chosen {
        Some(model) => (&model.provider, model.effort),
        None => (&state.provider, None),
    }
}

/// Tokens that the model's window holds.
pub(crate) fn window_tokens(
    calls: &KernelServices,
    session: clawk_proto::SessionId,
    provider: &str,
) -> usize {
    calls.models.window_tokens(session, provider)
}

/// Returns the sources of untrusted text beside the conversation: what this and earlier turns recalled or read from files, and
/// peers' text.
async fn base_taint(
    calls: &KernelServices,
    state: &State,
    author: &TextAuthor,
    (recalled, marked): (&RecalledContext, &TaintedFiles),
) -> BTreeSet<String> {
    let mut base = recall::of_session(calls, state).await;
    base.extend(recalled.untrusted.iter().cloned());
    base.extend(taint::through(marked));
    state.remember_labels(base.clone());
    base.extend(author.origins());
    if !state.peer_messages.is_empty() {
        base.insert("peer swarm".to_owned());
    }
    base
}

#[expect(
    clippy::too_many_lines,
    reason = "a turn from its first question to its record, read downward: to split it would hide the order"
)]
async fn finish_turn(turns: &TurnServices, state: &State, open: OpenTurn, cancel: &CancellationToken) {
    let OpenTurn {
        message,
        origin,
        mut turn,
        effects,
        ceilings,
        requests,
        early,
        skills,
        spent,
        ..
    } = open;
    let calls = &*turns.calls;
    state.set_asker(&origin.door);
    let now = calls.scribe.now();
    let own = calls.purses.turn_account(&state.purse, &message.to_string(), now);
    own.add_earlier_spending(spent);
    let purse = skills.iter().fold(own, |purse, joined| {
        calls.purses.skill_account(&purse, &joined.skill.name, now)
    });
    let started_us = calls.clock().monotonic_us();
    state.notices.send(SessionNotice::TurnStarted { message }).await;
    let (granted, effects) =
        match carp::for_turn((&calls.carp, &calls.catalog), state.id, turn.messages()).await {
            Ok(granted) => (granted, effects),
            // Without its resolution a turn would not be governed.
            Err(error) => (
                None,
                vec![Effect::Done(TurnOutcome::Failed(format!(
                    "the Atlases could not be asked: {error}"
                )))],
            ),
        };
    let thread = state.thread.child(message.0);
    let asked = question_text(&turn);
    let author = TextAuthor::from_origin(&origin, &calls.manifest);
    let about = recall::Turn {
        thread,
        message,
        origin: &origin,
        author: &author,
        notices: &state.notices,
        purse: &purse,
    };
    let (provider, effort) = chosen(calls, state, &origin);
    let effects = match calls.models.begin_turn(&thread, message.0, provider).await {
        Ok(()) => effects,
        Err(error) => vec![Effect::Done(TurnOutcome::Failed(error.to_string()))],
    };
    let window = window_tokens(calls, state.id, provider);
    let (recalled, effects) = match recall::recall_before_turn(calls, about, &asked, window, cancel).await {
        Ok(recalled) => (recalled, effects),
        Err(error) => (
            RecalledContext::default(),
            vec![Effect::Done(TurnOutcome::Failed(error.to_string()))],
        ),
    };
    let files = prompt::context_files(&*calls.runner, &calls.manifest, state.member.as_deref()).await;
    let effects = match context::record_context_files(turns, state, (&thread, message), &files).await {
        Ok(()) => effects,
        Err(error) => vec![Effect::Done(TurnOutcome::Failed(error.to_string()))],
    };
    let base = base_taint(calls, state, &author, (&recalled, &files.marked)).await;
    let system = compose_system_prompt(calls, (state, provider), granted.as_deref(), &recalled, &files);
    // A member's answer is its asker's to judge.
    let judged = calls.claims.is_some() && state.member.is_none();
    let mut run = RunningTurn {
        calls,
        thread,
        turn_id: message.0,
        door: origin.door.name(),
        role: origin.role,
        provider,
        effort,
        system,
        volatile: recalled.text.clone(),
        granted,
        only: None,
        skills: true,
        joined: skills,
        client: &origin.tools,
        ceilings,
        depth: 0,
        requests,
        planned: false,
        spent_out: AtomicBool::new(false),
        offered: OfferedTools::default(),
        judged,
        notices: match judged {
            true => state.notices.whole(),
            false => state.notices.clone(),
        },
        purse: purse.clone(),
        base,
        context: Arc::new(Context {
            taint: Vec::new(),
            values: ValueSources::default(),
            origin: Some(origin.clone()),
            requester: Some(author.clone()),
            read: ProvenanceCollector::default(),
        }),
        saver: CheckpointWriter::of_turn(
            calls,
            message.0,
            state.member.as_ref().map(|member| member.task.as_str()),
            &turn,
        ),
        member: state.member.clone(),
        early,
        cancel,
    };
    let end = match run.compact_history(&mut turn, state).await {
        Ok(()) => run.drive_turn(&mut turn, effects).await,
        Err(error) => TurnOutcome::Failed(error.to_string()),
    };
    state.add_labels(taint::through(&run.context.read.collected_files()));
    if calls.life.stop.is_cancelled() && end == TurnOutcome::Cancelled {
        // The agent stops, not the turn: the message stays open and is resumed after the next start.
        return;
    }
    let verdict = claims::judge_answer(&run, &turn, &end).await;
    if calls.life.stop.is_cancelled()
        && verdict
            .as_ref()
            .is_some_and(|verdict| verdict.judged.failed.is_some())
    {
        // As above: the answer is judged after the next start.
        return;
    }
    let usage = turn.usage();
    let stop = run.turn_stop(&end, &turn);
    if end == TurnOutcome::Answered {
        // Remember before the answer is acknowledged, so that a crash in between only repeats it.
        let sources = run.context.output_origins();
        recall::remember_after_turn(calls, about, (&asked, turn.last_text()), &sources).await;
    }
    run.look_at_offers().await;
    let found = verdict.as_ref().map(|verdict| &verdict.judged);
    if let Some(judged) = found {
        run.notices
            .send(SessionNotice::Said(judged.mark_answer(turn.last_text())))
            .await;
    }
    shown::notify_summary(calls, &run, message, &turn, found).await;
    let judged = verdict.map(|verdict| verdict.draft);
    let ending = close::TurnEnding {
        end: &end,
        stop,
        judged,
        started_us,
    };
    let recorded = close::close_message(calls, &run, (message, &origin), ending, &turn).await;
    turns.outbox.wake_delivery();
    state.set_history(turn.into_messages());
    // An end that is not recorded does not count.
    let stop = if recorded.is_ok() { stop } else { TurnStop::Failed };
    let end = close::turn_end(end, recorded, (message, &state.door));
    state
        .notices
        .send(SessionNotice::TurnEnded {
            message,
            end,
            stop,
            usage,
        })
        .await;
}
