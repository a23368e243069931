//! Talking to the agent from outside (`claw.message.send`, R40): a message goes in, its turn's answer comes out, at most once
//! per request id (R19).

use std::sync::Arc;

use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use serde_json::Value;

use crate::agent::Agent;
use crate::call::{Claim, Keyed, Stored, keyed};
use crate::door::{Door, Origin};
use crate::error::KernelError;
use crate::event::{digest, kind};
use crate::notice::{Notice, TurnEnd};
use crate::ports::{Recorded, Scan, Usage};
use crate::purse::Amount;
use crate::recover;
use crate::session::{self, Opening, State};
use crate::watch::Watcher;

/// Characters of a conversation's name.
const MAX_NAME_CHARS: usize = 256;
/// Events read at a time.
const PAGE: usize = 1000;

/// A message from outside.
#[derive(Debug, Clone)]
pub struct Talk {
    /// Whose conversations these are: a token's name, a user.
    pub owner: String,
    /// Which of them; none: a new one.
    pub conversation: Option<String>,
    /// What is said.
    pub text: String,
    /// The same message is taken once.
    pub request_id: RequestId,
}

/// How a turn ended, as its caller is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// With an answer.
    Answered,
    /// Somebody cancelled it.
    Cancelled,
    /// It could not be finished; its message lies in the dead-letter box.
    Failed,
}

/// What came of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// What [`Talk::conversation`] takes to go on with it.
    pub conversation: String,
    /// The session that it is.
    pub session: SessionId,
    /// The turn, which is the message's id.
    pub turn: MessageId,
    /// The agent's answer.
    pub text: String,
    /// How the turn ended.
    pub stop: Stop,
    /// Why it could not be finished, for people.
    pub reason: Option<String>,
    /// Tokens of the whole turn.
    pub usage: Usage,
}

/// Where a message belongs.
struct Place {
    conversation: String,
    session: SessionId,
    message: MessageId,
    /// Of the conversation and the text: the same id with another one is refused.
    request: Digest,
}

/// Says something to the agent and waits for its answer. `tell` hears what happens in this turn; it must not block.
pub(crate) async fn talk(
    agent: &Arc<Agent>,
    door: Door,
    asked: Talk,
    tell: &(dyn Fn(MessageId, &Notice) + Send + Sync),
) -> Result<Told, KernelError> {
    let place = place(&asked)?;
    let key = keyed(Keyed::Message, place.message.0);
    let (journal, now) = (agent.scribe.journal(), agent.scribe.now());
    let claim = agent.dedup.claim(key, place.request, &**journal, now).await?;
    let guard = match claim {
        Claim::Fresh(guard) => guard,
        Claim::Answered(Stored::Message(told)) => return Ok(told),
        Claim::Answered(Stored::Call(_) | Stored::Memory(_) | Stored::Delegated(_)) | Claim::Reused => {
            return Err(KernelError::RequestIdReused(asked.request_id));
        }
    };
    // Taken before this process began, or so long ago that only the record knows.
    let told = match journal.message(place.message).await? {
        Some(session) => earlier(agent, session, &place, &asked, tell).await?,
        None => fresh(agent, door, &place, &asked, tell).await?,
    };
    guard.settle(Stored::Message(told.clone()), agent.scribe.now());
    Ok(told)
}

/// The one place that says which session a conversation is, and which message a request.
fn place(asked: &Talk) -> Result<Place, KernelError> {
    let owner = asked.owner.as_bytes();
    let request_id = asked.request_id.as_str().as_bytes();
    let conversation = match &asked.conversation {
        Some(name) => name.clone(),
        None => derived("new", &[owner, request_id]).to_string(),
    };
    if conversation.is_empty()
        || conversation.chars().count() > MAX_NAME_CHARS
        || conversation.chars().any(char::is_control)
    {
        return Err(KernelError::BadParameter {
            member: "conversation",
            reason: format!("has 1 to {MAX_NAME_CHARS} characters, none of them a control character"),
        });
    }
    let name = conversation.as_bytes();
    Ok(Place {
        session: SessionId(derived("conversation", &[owner, name])),
        message: MessageId(derived("message", &[owner, request_id])),
        request: digest(&framed("request", &[name, asked.text.as_bytes()])),
        conversation,
    })
}

/// Parts, each with its length, so that no two lists look the same.
fn framed(what: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = what.as_bytes().to_vec();
    for part in parts {
        bytes.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// A UUID (version 8) that is always the same for the same parts.
fn derived(what: &str, parts: &[&[u8]]) -> uuid::Uuid {
    let bytes = digest(&framed(what, parts)).0;
    let half = bytes.first_chunk::<16>().copied().unwrap_or_default();
    let bits = u128::from_be_bytes(half) & !(0xf << 76) & !(0x3 << 62);
    uuid::Uuid::from_u128(bits | (0x8 << 76) | (0x2 << 62))
}

/// How the record marks the request.
fn mark(place: &Place) -> String {
    format!("request:{}", place.request)
}

async fn fresh(
    agent: &Arc<Agent>,
    door: Door,
    place: &Place,
    asked: &Talk,
    tell: &(dyn Fn(MessageId, &Notice) + Send + Sync),
) -> Result<Told, KernelError> {
    let state = conversation(agent, &door, place.session).await?;
    let watcher = state.notices.watch(agent.over.clone());
    let origin = Origin {
        platform_ids: vec![asked.request_id.as_str().to_owned(), mark(place)],
        ..Origin::from(door)
    };
    session::accept_as(agent, &state, place.message, origin, asked.text.clone()).await?;
    follow(agent, &watcher, place, tell).await
}

/// The conversation's session: open, or from the record, or new.
async fn conversation(agent: &Arc<Agent>, door: &Door, id: SessionId) -> Result<Arc<State>, KernelError> {
    let _working = agent.life.enter().map_err(KernelError::NotReady)?;
    let _alone = agent.talking.lock().await;
    let open = agent.sessions_lock().get(&id).cloned();
    if let Some(state) = open {
        return Ok(state);
    }
    let rebuilt = recover::rebuild(agent, id).await?;
    let opening = Opening {
        id: rebuilt.exists.then_some(id),
        door: door.clone(),
        provider: agent.primary_provider().to_owned(),
        goal: "conversation".to_owned(),
        history: rebuilt.history,
        under: None,
        spent: if rebuilt.exists {
            rebuilt.spent
        } else {
            Amount::default()
        },
        surface: false,
        peer_messages: Vec::new(),
    };
    let (state, _) = session::open_as(agent, opening, id).await?;
    Ok(state)
}

/// Until the turn ends.
async fn follow(
    agent: &Agent,
    watcher: &Watcher,
    place: &Place,
    tell: &(dyn Fn(MessageId, &Notice) + Send + Sync),
) -> Result<Told, KernelError> {
    let (mut mine, mut text) = (false, String::new());
    loop {
        let notice = tokio::select! {
            biased;
            notice = watcher.next() => notice,
            () = agent.stop.cancelled() => None,
        };
        // The message is durable: it is answered after the next start, and found by its request id.
        let Some(notice) = notice else {
            return Err(KernelError::NotReady(agent.life.state()));
        };
        match &notice {
            Notice::TurnStarted { message } => mine = *message == place.message,
            Notice::Said(said) if mine => text.clone_from(said),
            _ => {}
        }
        if mine || matches!(notice, Notice::Missed(_)) {
            tell(place.message, &notice);
        }
        if let Notice::TurnEnded { message, end, usage } = notice
            && message == place.message
        {
            let (stop, reason) = match end {
                TurnEnd::Answered => (Stop::Answered, None),
                TurnEnd::Cancelled => (Stop::Cancelled, None),
                TurnEnd::Failed(reason) => (Stop::Failed, Some(reason)),
            };
            return Ok(told(place, text, stop, reason, usage));
        }
    }
}

fn told(place: &Place, text: String, stop: Stop, reason: Option<String>, usage: Usage) -> Told {
    Told {
        conversation: place.conversation.clone(),
        session: place.session,
        turn: place.message,
        text,
        stop,
        reason,
        usage,
    }
}

/// What came, or comes, of a message that was taken before.
async fn earlier(
    agent: &Agent,
    session: SessionId,
    place: &Place,
    asked: &Talk,
    tell: &(dyn Fn(MessageId, &Notice) + Send + Sync),
) -> Result<Told, KernelError> {
    // Watched first, then looked: an end that comes in between is seen.
    let open = agent.sessions_lock().get(&session).cloned();
    let watcher = open.map(|state| state.notices.watch(agent.over.clone()));
    let record = record(agent, session, place).await?;
    if session != place.session || !record.same {
        return Err(KernelError::RequestIdReused(asked.request_id.clone()));
    }
    match (record.end, watcher) {
        (Some(told), _) => Ok(told),
        (None, Some(watcher)) => {
            // It may have joined in the middle of the turn: what was said before is in the record, which is whole by now.
            let told = follow(agent, &watcher, place, tell).await?;
            Ok(self::record(agent, session, place).await?.end.unwrap_or(told))
        }
        (None, None) => Err(KernelError::NotReady(agent.life.state())),
    }
}

/// What the chain says of a message.
struct Record {
    /// It was asked with the same words.
    same: bool,
    end: Option<Told>,
}

async fn record(agent: &Agent, session: SessionId, place: &Place) -> Result<Record, KernelError> {
    let mut record = Record {
        same: false,
        end: None,
    };
    let mut after_row = 0;
    loop {
        let scan = Scan {
            after_row,
            limit: PAGE,
            session: Some(session),
            kinds: &[kind::MESSAGE_ACCEPTED, kind::MESSAGE_ANSWERED, kind::MESSAGE_DEAD],
            with_content: true,
            ..Scan::default()
        };
        let events = agent.scribe.journal().scan(scan).await?;
        let full = events.len() == PAGE;
        for event in &events {
            after_row = event.row;
            record.read(event, place);
        }
        if !full {
            return Ok(record);
        }
    }
}

impl Record {
    fn read(&mut self, event: &Recorded, place: &Place) {
        let payload: Value = serde_json::from_str(&event.payload).unwrap_or_default(); // silent-ok: payloads of ours always read
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        if text("message_id") != Some(&*place.message.to_string()) {
            return;
        }
        let count = |name: &str| payload.get(name).and_then(Value::as_u64).unwrap_or(0);
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                let marks = payload.get("platform_ids").and_then(Value::as_array);
                let mark = mark(place);
                self.same = marks.is_some_and(|marks| marks.iter().any(|known| *known == *mark));
            }
            kind::MESSAGE_ANSWERED => {
                let stop = match text("end") {
                    Some("cancelled") => Stop::Cancelled,
                    Some(_) | None => Stop::Answered,
                };
                let usage = Usage {
                    input_tokens: count("input_tokens"),
                    output_tokens: count("output_tokens"),
                    ..Usage::default()
                };
                self.end = Some(told(place, recover::text(event), stop, None, usage));
            }
            kind::MESSAGE_DEAD => {
                let reason = text("reason").map(str::to_owned);
                self.end = Some(told(place, String::new(), Stop::Failed, reason, Usage::default()));
            }
            _ => {}
        }
    }
}
