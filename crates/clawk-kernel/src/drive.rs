//! The driver: performs what the turn machine asks for and feeds the answers back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use clawk_manifest::model::{Autonomy, Role, Skill};
use clawk_proto::{MessageId, RequestId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::agent::Agent;
use crate::call::{Caller, Request, call};
use crate::carp::{self, Granted};
use crate::door::{Door, Origin};
use crate::error::CallError;
use crate::event::{
    ContextTrimmed, MessageAnswered, MessageDead, MessageResumed, SkillInvoked, Thread, TurnStopped,
    canonical, digest, kind,
};
use crate::infer::{self, NoAnswer};
use crate::notice::{Notice, TurnEnd};
use crate::ports::{InboxChange, InferRequest, Message, ToolOffer, ToolUse};
use crate::prompt;
use crate::purse::{Amount, Purse};
use crate::recover::OpenTurn;
use crate::roles;
use crate::session::{Notices, State};
use crate::skill::{self, Ceiling};
use crate::stop::Level;
use crate::turn::{self, Effect, End, Event, Turn};

/// Tokens of conversation that a model is shown when its provider sets no `max_context_window`.
const DEFAULT_CONTEXT_TOKENS: usize = 100_000;
/// How often an interrupted turn is taken up again before its message is given up as dead.
pub(crate) const MAX_RESUMES: u32 = 3;

/// Everything that stays the same while one turn runs.
pub(crate) struct Run<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) thread: Thread,
    pub(crate) turn_id: Uuid,
    pub(crate) door: &'static str,
    pub(crate) role: Role,
    pub(crate) provider: &'a str,
    pub(crate) system: String,
    /// What the Atlases grant to this turn.
    pub(crate) granted: Option<Arc<Granted>>,
    /// Only these tools; `None`: all of the agent's.
    pub(crate) only: Option<&'a [String]>,
    pub(crate) skills: bool,
    pub(crate) ceilings: Vec<Ceiling>,
    pub(crate) depth: u8,
    /// Calls of an interrupted turn keep their ids.
    pub(crate) requests: BTreeMap<String, RequestId>,
    /// The calls of the model's last answer have been looked at together.
    pub(crate) planned: bool,
    pub(crate) notices: Notices,
    /// What pays for it.
    pub(crate) purse: Purse,
    pub(crate) cancel: &'a CancellationToken,
}

impl Run<'_> {
    /// Drives a turn to its end.
    pub(crate) async fn drive(&mut self, turn: &mut Turn, effects: Vec<Effect>) -> End {
        let mut queue = VecDeque::from(effects);
        while let Some(effect) = queue.pop_front() {
            let event = match effect {
                Effect::Infer => {
                    self.planned = false;
                    self.infer(turn).await
                }
                Effect::Call(wanted) => {
                    self.plan(&wanted, turn).await;
                    self.call(wanted).await
                }
                Effect::Say(text) => {
                    self.notices.send(Notice::Said(text)).await;
                    continue;
                }
                Effect::Done(end) => {
                    self.note_stop(turn);
                    self.give_up_plan().await;
                    return end;
                }
            };
            // A cancelled call is told to the model's conversation by the machine, in one place.
            let event = if self.cancel.is_cancelled() {
                Event::Cancelled
            } else {
                event
            };
            queue.extend(turn.step(event));
        }
        End::Failed("the turn ended without an end".to_owned())
    }

    /// The loop guard's word, in the trace.
    fn note_stop(&self, turn: &Turn) {
        let Some(stopped) = turn.stopped() else { return };
        let payload = TurnStopped {
            guard: stopped.guard,
            reason: &stopped.reason,
            turn: self.turn_id,
        };
        let scribe = &self.agent.scribe;
        let draft = scribe.entry(&self.thread, kind::TURN_STOPPED, &payload);
        if let Err(error) = scribe.submit(vec![draft]) {
            tracing::warn!(%error, "a turn's stop could not be recorded");
        }
    }

    /// Asks the model, unless the session is frozen: then it waits where it is, and asks again what a stop cut short.
    async fn infer(&self, turn: &Turn) -> Event {
        let brake = &self.agent.brake;
        let session = self.thread.session;
        loop {
            tokio::select! {
                () = self.cancel.cancelled() => return Event::Cancelled,
                () = brake.thawed(session) => {}
            }
            let Ok(held) = brake.hold(session, Level::Frozen, self.cancel) else {
                continue;
            };
            match self.ask_model(turn, &held.cancel).await {
                Event::Cancelled if !self.cancel.is_cancelled() => {}
                event => return event,
            }
        }
    }

    async fn ask_model(&self, turn: &Turn, cancel: &CancellationToken) -> Event {
        let tools = self.offers().await;
        let messages = self.fit(turn.messages()).await;
        let request = InferRequest {
            system: self.system.clone(),
            messages,
            tools,
            max_output_tokens: 0,
        };
        let place = infer::Place {
            thread: self.thread,
            turn: self.turn_id,
            notices: &self.notices,
            purse: &self.purse,
        };
        match infer::infer(self.agent, place, self.provider, request, cancel).await {
            Ok(completion) => Event::Inferred(completion),
            Err(NoAnswer::Cancelled) => Event::Cancelled,
            Err(NoAnswer::Failed(reason)) => Event::Failed(reason),
        }
    }

    /// What the model may ask for. An observer is offered nothing (R13).
    async fn offers(&self) -> Vec<ToolOffer> {
        if self.agent.manifest.identity.autonomy == Autonomy::Observer {
            return Vec::new();
        }
        let mut offers = Vec::new();
        for declared in self.agent.catalog.iter() {
            let wanted = |only: &[String]| only.iter().any(|name| **name == *declared.name);
            if self.agent.carp.hides(&declared.name) || !self.only.is_none_or(wanted) {
                continue;
            }
            let found = match self.agent.catalog.offered(declared, &*self.agent.runner).await {
                Ok(found) => found,
                Err(error) => {
                    self.not_offered(&declared.name, &error).await;
                    continue;
                }
            };
            for entry in found {
                if self.agent.carp.hides(&entry.name) {
                    continue;
                }
                match self.agent.described(&entry).await {
                    Ok(described) => offers.push(entry.offer(&described)),
                    Err(error) => self.not_offered(&entry.name, &error).await,
                }
            }
        }
        // The one tool that no manifest declares: it reads what this session's tools said.
        if self.agent.cuts.any(self.thread.session)
            && let Some(entry) = self.agent.catalog.output_read()
            && let Ok(described) = self.agent.described(entry).await
        {
            offers.push(entry.offer(&described));
        }
        offers.extend(
            self.granted
                .iter()
                .flat_map(|granted| granted.offers.iter().cloned()),
        );
        if self.skills {
            offers.extend(self.agent.manifest.skills.iter().map(skill::offer));
        }
        offers
    }

    async fn not_offered(&self, tool: &str, error: &CallError) {
        let text = format!("[tool `{tool}` is not offered: {error}]");
        self.notices.send(Notice::Said(text)).await;
    }

    /// The latest messages that fit the model's window, cut at a user message; the record keeps all of them.
    async fn fit(&self, messages: &[Message]) -> Vec<Message> {
        let window = self
            .agent
            .context_tokens(self.provider)
            .unwrap_or(DEFAULT_CONTEXT_TOKENS);
        let budget = window.saturating_sub(window / 4) * 4;
        let sizes: Vec<usize> = messages.iter().map(|message| canonical(message).len()).collect();
        let mut total: usize = sizes.iter().sum();
        let mut first = 0;
        for (at, size) in sizes.iter().enumerate() {
            let is_user = matches!(messages.get(at), Some(Message::User { .. }));
            if is_user {
                first = at;
                if total <= budget {
                    break;
                }
            }
            total -= size;
        }
        let kept = messages.get(first..).unwrap_or_default().to_vec();
        if first > 0 {
            let payload = ContextTrimmed {
                dropped_messages: first,
                kept_messages: kept.len(),
                turn: self.turn_id,
            };
            let draft = self
                .agent
                .scribe
                .entry(&self.thread, kind::CONTEXT_TRIMMED, &payload);
            if let Err(error) = self.agent.scribe.submit(vec![draft]) {
                tracing::warn!(%error, "a trimmed context could not be recorded");
            }
        }
        kept
    }

    async fn call(&mut self, wanted: ToolUse) -> Event {
        let ToolUse { id, name, arguments } = wanted;
        let arguments = match arguments {
            Ok(arguments) => arguments,
            // The machine tells the model itself and asks for no such call; were it otherwise, nothing runs without them.
            Err(raw) => {
                return Event::CallDone {
                    call_id: id,
                    text: turn::not_run(&raw),
                    is_error: true,
                };
            }
        };
        if let Some(skill) = self.skill(&name) {
            let skill = skill.clone();
            return self.invoke(&id, &skill, arguments).await;
        }
        let request_id = self
            .requests
            .remove(&id)
            .unwrap_or_else(|| RequestId::from(self.agent.clock().uuid()));
        let (caller, request) = self.request(id.clone(), name, arguments, request_id);
        let outcome = call(self.agent, &caller, request, self.cancel).await;
        let told = prompt::result_text(&outcome, self.agent.options.shown);
        self.agent.cuts.add(self.thread.session, told.cut);
        Event::CallDone {
            call_id: id,
            text: told.text,
            is_error: told.is_error,
        }
    }

    /// The skill that this name invokes here.
    pub(crate) fn skill(&self, name: &str) -> Option<&Skill> {
        let is_skill = self.skills && self.agent.catalog.get(name).is_none();
        name.strip_prefix(skill::PREFIX)
            .filter(|_| is_skill && roles::triggers(self.role))
            .and_then(|name| self.agent.manifest.skill(name))
    }

    /// What the path is asked for when the model asks for a tool.
    pub(crate) fn request(
        &self,
        id: String,
        name: String,
        arguments: serde_json::Map<String, Value>,
        request_id: RequestId,
    ) -> (Caller, Request) {
        let action = self.granted.as_ref().and_then(|granted| granted.action(&name));
        let name = action.map_or(name.clone(), str::to_owned);
        let under = self.granted.as_ref().filter(|_| self.agent.carp.is_action(&name));
        let request = Request {
            tool: name,
            arguments,
            request_id,
            identity: self.agent.manifest.identity.name.clone(),
            sandbox: None,
            policy: None,
            under: under.map(|granted| granted.under(self.agent)),
        };
        let caller = Caller {
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
        };
        (caller, request)
    }

    /// A skill joins the turn: its instruction as the answer, its permissions as a ceiling from here on.
    async fn invoke(
        &mut self,
        call_id: &str,
        skill: &Skill,
        arguments: serde_json::Map<String, Value>,
    ) -> Event {
        let (text, is_error) = match check_input(skill, &arguments) {
            Ok(()) => {
                self.ceilings.extend(Ceiling::of(skill));
                let now = self.agent.scribe.now();
                self.purse = self.agent.purses.skill(&self.purse, &skill.name, now);
                (skill::instruction(skill, &arguments), false)
            }
            Err(fault) => (format!("not done: {fault}"), true),
        };
        let payload = SkillInvoked {
            arguments_hash: digest(&canonical(&arguments)),
            call_id,
            is_error,
            skill: &skill.name,
            text_hash: digest(text.as_bytes()),
            turn: self.turn_id,
        };
        let draft = self
            .agent
            .scribe
            .entry(&self.thread, kind::SKILL_INVOKED, &payload);
        let draft = draft.content(payload.text_hash, text.clone().into_bytes());
        if let Err(error) = self.agent.scribe.write(vec![draft]).await {
            return Event::Failed(error.to_string());
        }
        Event::CallDone {
            call_id: call_id.to_owned(),
            text,
            is_error,
        }
    }
}

/// A skill's input by its `input_schema`.
pub(crate) fn check_input(skill: &Skill, arguments: &serde_json::Map<String, Value>) -> Result<(), String> {
    let Some(schema) = &skill.input_schema else {
        return Ok(());
    };
    let validator = crate::catalog::validator(schema)?;
    let instance = Value::Object(arguments.clone());
    match validator.iter_errors(&instance).next() {
        Some(fault) => Err(format!("invalid input for the skill `{}`: {fault}", skill.name)),
        None => Ok(()),
    }
}

/// A new message's turn.
pub(crate) async fn turn(
    agent: &Arc<Agent>,
    state: &State,
    (message, origin): (MessageId, Origin),
    text: String,
    cancel: &CancellationToken,
) {
    let open = OpenTurn {
        message,
        origin,
        turn: Turn::start(state.history(), text).within(agent.bounds()),
        effects: vec![Effect::Infer],
        ceilings: Vec::new(),
        requests: BTreeMap::new(),
        skills: Vec::new(),
        spent: Amount::default(),
        resumes: 0,
    };
    finish(agent, state, open, cancel).await;
}

/// The rest of an interrupted turn.
pub(crate) async fn resume(
    agent: &Arc<Agent>,
    state: &State,
    mut open: OpenTurn,
    cancel: &CancellationToken,
) {
    // One that had come and not begun answers what was said before it as well.
    open.turn.go_behind(state.history());
    let (message, resumes) = (open.message, open.resumes);
    let waiting = open.effects.iter().any(|effect| match effect {
        Effect::Call(wanted) => {
            let asked = open.requests.get(&wanted.id);
            asked.is_some_and(|id| agent.desk.waits(id))
        }
        Effect::Infer | Effect::Say(_) | Effect::Done(_) => false,
    });
    let effects = if resumes >= MAX_RESUMES {
        let reason = format!("it was interrupted {resumes} times");
        vec![Effect::Done(End::Failed(reason))]
    } else {
        let payload = MessageResumed {
            attempt: resumes + 1,
            message_id: message.0,
            role: open.origin.role.as_str(),
            waiting,
        };
        let draft = agent.scribe.entry(&state.thread, kind::MESSAGE_RESUMED, &payload);
        match agent.scribe.write(vec![draft]).await {
            Ok(()) => open.effects,
            Err(error) => vec![Effect::Done(End::Failed(error.to_string()))],
        }
    };
    finish(agent, state, OpenTurn { effects, ..open }, cancel).await;
}

/// The system prompt, and behind it what the Atlases give as context.
fn system(agent: &Agent, state: &State, granted: Option<&Granted>) -> String {
    let mut system = prompt::system(&agent.manifest, None, &state.peer_messages);
    if let Some(granted) = granted.filter(|granted| !granted.context.is_empty()) {
        system.push_str("\n\n");
        system.push_str(&granted.context);
    }
    system
}

async fn finish(agent: &Arc<Agent>, state: &State, open: OpenTurn, cancel: &CancellationToken) {
    let OpenTurn {
        message,
        origin,
        mut turn,
        effects,
        ceilings,
        requests,
        ..
    } = open;
    let now = agent.scribe.now();
    let own = agent.purses.turn(&state.purse, &message.to_string(), now);
    own.recall(open.spent);
    let purse = open
        .skills
        .iter()
        .fold(own, |purse, skill| agent.purses.skill(&purse, skill, now));
    let started_us = agent.clock().monotonic_us();
    state.notices.send(Notice::TurnStarted { message }).await;
    let (granted, effects) = match carp::for_turn(agent, state.id, turn.messages()).await {
        Ok(granted) => (granted, effects),
        // Without its resolution a turn would not be governed.
        Err(error) => (
            None,
            vec![Effect::Done(End::Failed(format!(
                "the Atlases could not be asked: {error}"
            )))],
        ),
    };
    let system = system(agent, state, granted.as_deref());
    let mut run = Run {
        agent,
        thread: state.thread.child(message.0),
        turn_id: message.0,
        door: origin.door.name(),
        role: origin.role,
        provider: &state.provider,
        system,
        granted,
        only: None,
        skills: true,
        ceilings,
        depth: 0,
        requests,
        planned: false,
        notices: state.notices.clone(),
        purse,
        cancel,
    };
    let end = run.drive(&mut turn, effects).await;
    if agent.stop.is_cancelled() && end == End::Cancelled {
        // The agent is being stopped, not the turn: the message stays open and is taken up after the next start.
        return;
    }
    let usage = turn.usage();
    let recorded = close(agent, &run, (message, &origin), &end, &turn, started_us).await;
    agent.outbox.wake();
    state.set_history(turn.into_messages());
    let end = told(end, recorded, (message, &state.door));
    state
        .notices
        .send(Notice::TurnEnded { message, end, usage })
        .await;
}

/// What the surface is told of an end: one that could not be recorded is none. A message that failed is kept, and whoever reads
/// this is told how to say it again; a peer's asker says it again by itself.
fn told<E: std::fmt::Display>(
    end: End,
    recorded: Result<(), E>,
    (message, door): (MessageId, &Door),
) -> TurnEnd {
    match (end, recorded) {
        (_, Err(error)) => TurnEnd::Failed(error.to_string()),
        (End::Answered, Ok(())) => TurnEnd::Answered,
        (End::Cancelled, Ok(())) => TurnEnd::Cancelled,
        (End::Failed(reason), Ok(())) if matches!(door, Door::Peer { .. }) => TurnEnd::Failed(reason),
        (End::Failed(reason), Ok(())) => TurnEnd::Failed(format!(
            "{reason}; the message is kept: `clawk dead-letters replay {message} CLAW` says it again"
        )),
    }
}

/// Closes the message in the inbox with its end, in one commit.
async fn close(
    agent: &Agent,
    run: &Run<'_>,
    (message, origin): (MessageId, &Origin),
    end: &End,
    turn: &Turn,
    started_us: u64,
) -> Result<(), crate::ports::JournalError> {
    let scribe = &agent.scribe;
    if let End::Failed(reason) = end {
        let dead = scribe.entry(
            &run.thread,
            kind::MESSAGE_DEAD,
            &MessageDead {
                message_id: message.0,
                reason,
            },
        );
        let change = InboxChange::Closed {
            message,
            how: "dead",
            reason: Some(reason.clone()),
            owed: origin
                .owed(message, run.thread.session, None)
                .map(|owed| (owed, scribe.now())),
        };
        return scribe.submit_with(vec![dead], vec![change])?.durable().await;
    }
    let text = turn.said().as_bytes().to_vec();
    let payload = MessageAnswered {
        duration_ms: agent.clock().monotonic_us().saturating_sub(started_us) / 1000,
        end: if *end == End::Answered {
            "answered"
        } else {
            "cancelled"
        },
        input_tokens: turn.usage().input_tokens,
        message_id: message.0,
        output_tokens: turn.usage().output_tokens,
        text_hash: digest(&text),
    };
    let (said_nothing, owed) = (
        text.is_empty(),
        origin.owed(message, run.thread.session, Some(payload.text_hash)),
    );
    let draft = scribe
        .entry(&run.thread, kind::MESSAGE_ANSWERED, &payload)
        .content(payload.text_hash, text);
    let change = InboxChange::Closed {
        message,
        how: "answered",
        reason: None,
        // Who cancelled a turn before it said anything waits for nothing.
        owed: owed.filter(|_| !said_nothing).map(|owed| (owed, scribe.now())),
    };
    scribe.submit_with(vec![draft], vec![change])?.durable().await
}
