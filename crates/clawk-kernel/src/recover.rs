//! After a crash: what the journal says was going on, folded by the same machine that ran it (promise 4).

use std::collections::BTreeMap;

use clawk_proto::method::ToolCallResult;
use clawk_proto::{MessageId, RequestId, SessionId};
use serde::Deserialize;
use uuid::Uuid;

use crate::agent::Agent;
use crate::call::{Keyed, key};
use crate::error::CallError;
use crate::event::{ActionFailed, Thread, canonical, digest, kind};
use crate::ports::{Completion, JournalError, Message, Recorded, Scan};
use crate::prompt;
use crate::skill::Ceiling;
use crate::turn::{Effect, Event, Turn};

/// Events read at a time.
const PAGE: usize = 1000;

const ERASED: &str = "[erased]";

/// A turn that was interrupted, ready to go on.
#[derive(Debug)]
pub(crate) struct OpenTurn {
    pub(crate) message: MessageId,
    pub(crate) turn: Turn,
    pub(crate) effects: Vec<Effect>,
    pub(crate) ceilings: Vec<Ceiling>,
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
    pub(crate) exists: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Fields {
    message_id: Option<Uuid>,
    turn: Option<Uuid>,
    call_id: Option<String>,
    request_id: Option<String>,
    action_id: Option<String>,
    request_hash: Option<clawk_proto::Digest>,
    skill: Option<String>,
    #[serde(default)]
    is_error: bool,
    to: Option<String>,
    provider: Option<String>,
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
}

fn fields(event: &Recorded) -> Fields {
    serde_json::from_str(&event.payload).unwrap_or_default() // silent-ok: a payload of ours always reads; a foreign one counts for nothing
}

fn text(event: &Recorded) -> String {
    let bytes = event.content.as_ref().map(|content| content.bytes.clone());
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_else(|| ERASED.to_owned()) // silent-ok: erased content is an ordinary state
}

/// Reads all events that fit, page by page.
async fn all(agent: &Agent, mut scan: Scan, mut see: impl FnMut(&Recorded)) -> Result<(), JournalError> {
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

/// Tokens spent today, back into the ledger.
pub(crate) async fn restore_usage(agent: &Agent) -> Result<(), JournalError> {
    let now = agent.scribe.now();
    let kinds = &[kind::PROVIDER_COMPLETED, kind::PROVIDER_FAILED];
    let scan = Scan {
        kinds,
        since: Some(now.day_start()),
        ..Scan::default()
    };
    all(agent, scan, |event| {
        let Fields {
            provider,
            input_tokens,
            output_tokens,
            ..
        } = fields(event);
        if let Some(provider) = provider {
            agent
                .ledger
                .restore(&provider, input_tokens.saturating_add(output_tokens), event.at);
        }
    })
    .await
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

/// Every call that was decided and never ended is told unknown, once, with its stored answer (promise 4).
pub(crate) async fn report_unknown(agent: &Agent, after_row: u64) -> Result<usize, JournalError> {
    let kinds = &[kind::ACTION_APPROVED, kind::ACTION_EXECUTED, kind::ACTION_FAILED];
    let mut open: BTreeMap<(SessionId, String), (Fields, Uuid)> = BTreeMap::new();
    all(
        agent,
        Scan {
            kinds,
            after_row,
            ..Scan::default()
        },
        |event| {
            let found = fields(event);
            let Some(request_id) = found.request_id.clone() else {
                return;
            };
            let at = (event.session, request_id);
            if event.kind == kind::ACTION_APPROVED {
                open.insert(at, (found, agent.clock().uuid()));
            } else {
                open.remove(&at);
            }
        },
    )
    .await?;
    let mut drafts = Vec::new();
    for ((session, request_id), (found, span)) in &open {
        let tool = found.action_id.clone().unwrap_or_default();
        let error = CallError::Unknown {
            tool: tool.clone(),
            reason: "the runtime stopped while it ran; it has not been run again".to_owned(),
        };
        let bytes = canonical(&error);
        let result_hash = digest(&bytes);
        let request_hash = found.request_hash.unwrap_or(result_hash);
        let payload = ActionFailed {
            action_id: &tool,
            duration_ms: 0,
            error_code: "unknown",
            error_message: &error.to_string(),
            request_hash,
            request_id,
            result_hash,
            turn: found.turn,
        };
        let thread = Thread {
            session: *session,
            span: *span,
            parent: Some(session.0),
        };
        let key = RequestId::parse(request_id).ok().map(|id| key(Keyed::Call, &id)); // silent-ok: ids of ours are UUIDs
        drafts.push(
            agent
                .scribe
                .entry(&thread, kind::ACTION_FAILED, &payload)
                .content(result_hash, bytes)
                .answers(key),
        );
    }
    let count = drafts.len();
    if count > 0 {
        agent.scribe.write(drafts).await?;
    }
    Ok(count)
}

/// Folds a session's chain into its conversation and its interrupted turns.
pub(crate) async fn rebuild(agent: &Agent, session: SessionId) -> Result<Rebuilt, JournalError> {
    let mut fold = Fold::default();
    let scan = Scan {
        session: Some(session),
        with_content: true,
        ..Scan::default()
    };
    all(agent, scan, |event| fold.see(agent, event)).await?;
    Ok(fold.end())
}

#[derive(Debug, Default)]
struct Fold {
    history: Vec<Message>,
    running: Option<OpenTurn>,
    waiting: Vec<(MessageId, String)>,
    calls: BTreeMap<String, String>,
    exists: bool,
}

impl Fold {
    fn see(&mut self, agent: &Agent, event: &Recorded) {
        self.exists = true;
        let found = fields(event);
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                if let Some(id) = found.message_id {
                    self.waiting.push((MessageId(id), text(event)));
                }
            }
            kind::MESSAGE_RESUMED => self.with(found.message_id, |open| open.resumes += 1),
            kind::PROVIDER_COMPLETED => {
                let completion = event
                    .content
                    .as_ref()
                    .and_then(|c| serde_json::from_slice::<Completion>(&c.bytes).ok()); // silent-ok: erased or foreign: the turn is asked again
                if let Some(completion) = completion {
                    self.with(found.turn, |open| {
                        open.effects = open.turn.step(Event::Inferred(completion))
                    });
                }
            }
            kind::ACTION_REQUESTED => {
                if let (Some(request), Some(call)) = (found.request_id, found.call_id) {
                    self.calls.insert(request, call);
                }
            }
            kind::ACTION_EXECUTED => self.called(found, read::<ToolCallResult>(event).map(Ok)),
            kind::ACTION_DENIED | kind::ACTION_FAILED => {
                self.called(found, read::<CallError>(event).map(Err))
            }
            kind::SKILL_INVOKED => self.skill(agent, found, text(event)),
            kind::MESSAGE_ANSWERED | kind::MESSAGE_DEAD => {
                let ended = if event.kind == kind::MESSAGE_ANSWERED {
                    Event::Cancelled
                } else {
                    Event::Failed(String::new())
                };
                self.with(found.message_id, |open| open.effects = open.turn.step(ended));
                if let Some(open) = self
                    .running
                    .take_if(|open| Some(open.message.0) == found.message_id)
                {
                    self.history = open.turn.into_messages();
                }
            }
            _ => {}
        }
    }

    /// The turn of this message, begun if it has not: messages are answered in the order they came.
    fn with(&mut self, id: Option<Uuid>, change: impl FnOnce(&mut OpenTurn)) {
        let Some(id) = id else { return };
        if self.running.as_ref().is_none_or(|open| open.message.0 != id)
            && let Some(at) = self.waiting.iter().position(|(message, _)| message.0 == id)
        {
            let (message, text) = self.waiting.remove(at);
            self.running = Some(begin(self.history.clone(), message, text));
        }
        if let Some(open) = self.running.as_mut().filter(|open| open.message.0 == id) {
            change(open);
        }
    }

    fn called(&mut self, found: Fields, outcome: Option<Result<ToolCallResult, CallError>>) {
        let call = found.request_id.and_then(|request| self.calls.remove(&request));
        let Some(call_id) = call else { return };
        let (text, is_error) = match &outcome {
            Some(outcome) => prompt::result_text(outcome),
            None => (ERASED.to_owned(), found.is_error),
        };
        self.with(found.turn, |open| {
            open.effects = open.turn.step(Event::CallDone {
                call_id,
                text,
                is_error,
            })
        });
    }

    fn skill(&mut self, agent: &Agent, found: Fields, text: String) {
        let Some(call_id) = found.call_id else { return };
        let ceiling = found
            .skill
            .and_then(|name| agent.manifest.skill(&name).and_then(Ceiling::of));
        let is_error = found.is_error;
        self.with(found.turn, |open| {
            if !is_error {
                open.ceilings.extend(ceiling);
            }
            open.effects = open.turn.step(Event::CallDone {
                call_id,
                text,
                is_error,
            });
        });
    }

    fn end(self) -> Rebuilt {
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
                .map(|(message, text)| begin(Vec::new(), message, text)),
        );
        Rebuilt {
            history: self.history,
            open,
            exists: self.exists,
        }
    }
}

fn begin(history: Vec<Message>, message: MessageId, text: String) -> OpenTurn {
    let turn = Turn::start(history, text);
    OpenTurn {
        message,
        turn,
        effects: vec![Effect::Infer],
        ceilings: Vec::new(),
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
