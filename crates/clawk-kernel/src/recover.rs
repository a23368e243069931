//! After a crash: what the journal says was going on, folded by the same machine that ran it (promise 4).

mod lost;

use std::collections::BTreeMap;

use clawk_proto::method::ToolCallResult;
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use serde::Deserialize;
use uuid::Uuid;

use crate::agent::Agent;
use crate::door::Origin;
use crate::error::CallError;
use crate::event::kind;
use crate::fork::{ForkPoint, MAX_DEPTH};
use crate::output::Told;
use crate::ports::{Completion, JournalError, Message, Recorded, Scan};
use crate::prompt;
use crate::purse::Amount;
use crate::skill::Ceiling;
use crate::turn::{Effect, Event, Turn};

pub(crate) use lost::{LOST, report_owed, report_unknown, settle_lost};

/// Events read at a time.
const PAGE: usize = 1000;

pub(crate) const ERASED: &str = "[erased]";

/// A turn that was interrupted, ready to go on.
#[derive(Debug)]
pub(crate) struct OpenTurn {
    pub(crate) message: MessageId,
    /// Whose message it answers, with exactly the rights that were recorded (R39).
    pub(crate) origin: Origin,
    pub(crate) turn: Turn,
    pub(crate) effects: Vec<Effect>,
    pub(crate) ceilings: Vec<Ceiling>,
    /// Skills that joined it, whose budgets hold from there on.
    pub(crate) skills: Vec<String>,
    /// What it spent before it was interrupted.
    pub(crate) spent: Amount,
    pub(crate) resumes: u32,
    /// The ids of calls that were asked for and have not ended, by the model's id: their questions are found by them.
    pub(crate) requests: BTreeMap<String, RequestId>,
}

/// A session as its chain tells it.
#[derive(Debug, Default)]
pub(crate) struct Rebuilt {
    pub(crate) history: Vec<Message>,
    /// Interrupted turns, oldest first; those behind the first have not begun.
    pub(crate) open: Vec<OpenTurn>,
    /// What it has spent so far.
    pub(crate) spent: Amount,
    pub(crate) exists: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Fields {
    message_id: Option<Uuid>,
    turn: Option<Uuid>,
    call_id: Option<String>,
    request_id: Option<String>,
    action_id: Option<String>,
    request_hash: Option<Digest>,
    skill: Option<String>,
    #[serde(default)]
    is_error: bool,
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
    cost_microusd: Option<u64>,
    #[serde(default)]
    duration_ms: u64,
    #[serde(default)]
    bytes_out: u64,
    #[serde(default)]
    waiting: bool,
}

impl Fields {
    /// What the event says was spent.
    fn spent(&self, kind: &str) -> Amount {
        let tokens = self.input_tokens.saturating_add(self.output_tokens);
        let by_model = Amount {
            tokens: tokens.saturating_add(self.token_usage),
            cost_microusd: self.cost_microusd.unwrap_or(0),
            busy_ms: self.duration_ms,
            calls: 0,
            bytes_out: self.bytes_out,
        };
        match kind {
            kind::PROVIDER_COMPLETED | kind::PROVIDER_FAILED | kind::SWARM_REPORTED => by_model,
            kind::ACTION_EXECUTED | kind::ACTION_FAILED => Amount {
                calls: 1,
                busy_ms: self.duration_ms,
                ..Amount::default()
            },
            _ => Amount::default(),
        }
    }
}

fn fields(event: &Recorded) -> Fields {
    serde_json::from_str(&event.payload).unwrap_or_default() // silent-ok: a payload of ours always reads; a foreign one counts for nothing
}

/// The event's content as text.
pub(crate) fn text(event: &Recorded) -> String {
    let bytes = event.content.as_ref().map(|content| content.bytes.clone());
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| ERASED.to_owned()) // silent-ok: erased content is an ordinary state
}

/// Reads all events that fit, page by page.
pub(crate) async fn all(
    agent: &Agent,
    mut scan: Scan,
    mut see: impl FnMut(&Recorded),
) -> Result<(), JournalError> {
    scan.limit = PAGE;
    loop {
        let page = agent.scribe.journal().scan(scan.clone()).await?;
        page.iter().for_each(&mut see);
        match page.last() {
            Some(last) if page.len() == PAGE => scan.after_row = last.row,
            Some(_) | None => return Ok(()),
        }
    }
}

/// What the rates' windows still hold of earlier runs.
pub(crate) async fn restore_rates(agent: &Agent) -> Result<(), JournalError> {
    let Some(window_ms) = agent.rates.window_ms() else {
        return Ok(());
    };
    let scan = Scan {
        kinds: &[kind::ACTION_APPROVED],
        since: Some(agent.scribe.now().plus_millis(-window_ms)),
        ..Scan::default()
    };
    all(agent, scan, |event| agent.rates.restore_call(event.at)).await
}

/// The row after which the last run's calls stand; `None`: that run ended in order, or there was none.
pub(crate) async fn unclean_since(agent: &Agent) -> Result<Option<u64>, JournalError> {
    let Some(last) = agent.scribe.journal().last_row_of(kind::LIFECYCLE).await? else {
        return Ok(None);
    };
    let mut ready = None;
    let mut clean = false;
    let scan = Scan {
        kinds: &[kind::LIFECYCLE],
        ..Scan::default()
    };
    all(agent, scan, |event| {
        let to = fields(event).to;
        if to.as_deref() == Some("READY") {
            ready = Some(event.row);
        }
        clean = event.row == last && to.as_deref() == Some("STOPPED");
    })
    .await?;
    Ok(if clean { None } else { Some(ready.unwrap_or(0)) })
}

/// Folds a session's chain into its conversation and its interrupted turns.
pub(crate) async fn rebuild(agent: &Agent, session: SessionId) -> Result<Rebuilt, JournalError> {
    Ok(fold(agent, session, None).await?.end(agent))
}

/// The same, up to and including event `at`.
pub(crate) async fn rebuild_until(
    agent: &Agent,
    session: SessionId,
    at: u64,
) -> Result<Rebuilt, JournalError> {
    Ok(fold(agent, session, Some(at)).await?.end(agent))
}

type Forked = (Option<Uuid>, Origin);

/// A forked session begins where its source stood: the sources are folded first, the oldest at the start.
async fn fold(agent: &Agent, session: SessionId, at: Option<u64>) -> Result<Fold, JournalError> {
    let wanted = session;
    // Each with its last event and, of a source, the fork of it: the turn that goes on, and who forked.
    let mut parts: Vec<(SessionId, Option<u64>, Option<Forked>)> = vec![(session, at, None)];
    while let Some((session, _, _)) = parts.last() {
        let first = Scan {
            session: Some(*session),
            limit: 1,
            ..Scan::default()
        };
        let first = agent.scribe.journal().scan(first).await?;
        let Some(first) = first.first() else { break };
        // silent-ok: a payload of ours always reads; of a foreign one the least role is left
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
        parts.push((fork.session_id, Some(fork.sequence), Some((fork.turn, by))));
    }
    let mut fold = Fold::default();
    for (session, until, turn) in parts.into_iter().rev() {
        let scan = Scan {
            session: Some(session),
            with_content: true,
            ..Scan::default()
        };
        all(agent, scan, |event| {
            if until.is_none_or(|until| event.sequence <= until) {
                fold.see(agent, event);
            }
        })
        .await?;
        if let Some((turn, by)) = turn.filter(|_| session != wanted) {
            fold.fork(turn, &by);
        }
    }
    agent.cuts.add(wanted, std::mem::take(&mut fold.cuts));
    Ok(fold)
}

#[derive(Debug, Default)]
struct Fold {
    history: Vec<Message>,
    running: Option<OpenTurn>,
    waiting: Vec<(MessageId, String, Origin)>,
    calls: BTreeMap<String, String>,
    spent: Amount,
    exists: bool,
    /// Results whose text was cut.
    cuts: Vec<Digest>,
}

impl Fold {
    fn see(&mut self, agent: &Agent, event: &Recorded) {
        self.exists = true;
        let found = fields(event);
        let spent = found.spent(&event.kind);
        self.spent = self.spent.plus(spent);
        // Turns of a session are serial: what is spent while one runs is its own.
        if let Some(open) = &mut self.running {
            open.spent = open.spent.plus(spent);
        }
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                if let Some(id) = found.message_id {
                    // silent-ok: a payload of ours always reads; of a foreign one the least role is left
                    let came = serde_json::from_str(&event.payload).unwrap_or_default();
                    let origin = Origin::recorded(came);
                    self.waiting.push((MessageId(id), text(event), origin));
                }
            }
            // Taken up to wait on for a person, it has not failed.
            kind::MESSAGE_RESUMED if found.waiting => {}
            kind::MESSAGE_RESUMED => self.with(agent, found.message_id, |open| open.resumes += 1),
            kind::PROVIDER_COMPLETED => {
                let completion = event
                    .content
                    .as_ref()
                    .and_then(|c| serde_json::from_slice::<Completion>(&c.bytes).ok()); // silent-ok: erased or foreign: the turn is asked again
                if let Some(completion) = completion {
                    self.with(agent, found.turn, |open| {
                        open.effects = open.turn.step(Event::Inferred(completion))
                    });
                }
            }
            kind::ACTION_REQUESTED => {
                if let (Some(request), Some(call)) = (found.request_id, found.call_id) {
                    self.calls.insert(request, call);
                }
            }
            kind::ACTION_EXECUTED => self.called(agent, found, read::<ToolCallResult>(event).map(Ok)),
            kind::ACTION_DENIED | kind::ACTION_FAILED => {
                self.called(agent, found, read::<CallError>(event).map(Err))
            }
            kind::SKILL_INVOKED => self.skill(agent, found, text(event)),
            kind::MESSAGE_ANSWERED | kind::MESSAGE_DEAD => {
                let ended = if event.kind == kind::MESSAGE_ANSWERED {
                    Event::Cancelled
                } else {
                    Event::Failed(String::new())
                };
                self.with(agent, found.message_id, |open| {
                    open.effects = open.turn.step(ended)
                });
                if let Some(open) = self
                    .running
                    .take_if(|open| Some(open.message.0) == found.message_id)
                {
                    self.history = open.turn.into_messages();
                    // What it asked for and did not get is asked for no more, whatever ids a model gives next.
                    self.calls.clear();
                }
            }
            _ => {}
        }
    }

    /// The turn of this message, begun if it has not: messages are answered in the order they came.
    fn with(&mut self, agent: &Agent, id: Option<Uuid>, change: impl FnOnce(&mut OpenTurn)) {
        let Some(id) = id else { return };
        if self.running.as_ref().is_none_or(|open| open.message.0 != id)
            && let Some(at) = self.waiting.iter().position(|(message, ..)| message.0 == id)
        {
            let (message, text, origin) = self.waiting.remove(at);
            self.running = Some(begin(agent, self.history.clone(), (message, origin), text));
        }
        if let Some(open) = self.running.as_mut().filter(|open| open.message.0 == id) {
            change(open);
        }
    }

    fn called(&mut self, agent: &Agent, found: Fields, outcome: Option<Result<ToolCallResult, CallError>>) {
        let call = found.request_id.and_then(|request| self.calls.remove(&request));
        let Some(call_id) = call else { return };
        let told = match &outcome {
            Some(outcome) => prompt::result_text(outcome, agent.options.shown),
            None => Told {
                text: ERASED.to_owned(),
                is_error: found.is_error,
                cut: None,
            },
        };
        self.cuts.extend(told.cut);
        let (text, is_error) = (told.text, told.is_error);
        self.with(agent, found.turn, |open| {
            open.effects = open.turn.step(Event::CallDone {
                call_id,
                text,
                is_error,
            })
        });
    }

    fn skill(&mut self, agent: &Agent, found: Fields, text: String) {
        let Some(call_id) = found.call_id else { return };
        let name = found.skill;
        let ceiling = name
            .as_ref()
            .and_then(|name| agent.manifest.skill(name).and_then(Ceiling::of));
        let is_error = found.is_error;
        self.with(agent, found.turn, |open| {
            if !is_error {
                open.ceilings.extend(ceiling);
                open.skills.extend(name);
            }
            open.effects = open.turn.step(Event::CallDone {
                call_id,
                text,
                is_error,
            });
        });
    }

    /// What follows happens in another session: the turn that goes on there belongs to who forked it, with an id of its own and no more
    /// rights than its message had; what waited waits here.
    fn fork(&mut self, turn: Option<Uuid>, by: &Origin) {
        self.calls.clear();
        let mut waiting = std::mem::take(&mut self.waiting).into_iter();
        match (self.running.take(), turn) {
            (Some(open), Some(id)) => {
                self.running = Some(OpenTurn {
                    message: MessageId(id),
                    origin: by.clone().at_most(open.origin.role),
                    resumes: 0,
                    ..open
                });
            }
            (Some(mut open), None) => {
                open.turn.step(Event::Cancelled);
                self.history = open.turn.into_messages();
            }
            // It had come and not begun.
            (None, Some(id)) => {
                self.waiting = waiting
                    .next()
                    .map(|(_, text, origin)| (MessageId(id), text, by.clone().at_most(origin.role)))
                    .into_iter()
                    .collect()
            }
            (None, None) => {}
        }
    }

    fn end(self, agent: &Agent) -> Rebuilt {
        let mut open: Vec<OpenTurn> = self.running.into_iter().collect();
        let requests = self.calls;
        if let Some(running) = open.first_mut() {
            let parsed = requests
                .into_iter()
                .filter_map(|(request, call)| Some((call, RequestId::parse(&request).ok()?))); // silent-ok: ids of ours are UUIDs
            running.requests.extend(parsed);
        }
        open.extend(
            self.waiting
                .into_iter()
                .map(|(message, text, origin)| begin(agent, Vec::new(), (message, origin), text)),
        );
        Rebuilt {
            history: self.history,
            open,
            spent: self.spent,
            exists: self.exists,
        }
    }
}

fn begin(
    agent: &Agent,
    history: Vec<Message>,
    (message, origin): (MessageId, Origin),
    text: String,
) -> OpenTurn {
    let turn = Turn::start(history, text).within(agent.bounds());
    OpenTurn {
        message,
        origin,
        turn,
        effects: vec![Effect::Infer],
        ceilings: Vec::new(),
        skills: Vec::new(),
        spent: Amount::default(),
        resumes: 0,
        requests: BTreeMap::new(),
    }
}

fn read<T: for<'de> Deserialize<'de>>(event: &Recorded) -> Option<T> {
    event
        .content
        .as_ref()
        .and_then(|content| serde_json::from_slice(&content.bytes).ok()) // silent-ok: erased content is an ordinary state
}
