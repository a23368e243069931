//! Messages from outside (`claw.message.send`, R40): accepts a message and returns its turn's answer. Each request id is executed
//! at most once (R19).

mod earlier;
pub(crate) mod told;

use std::sync::Arc;

use clawk_events::payload::{MessageAccepted, MessageAnswered, MessageDead};
use clawk_proto::{Digest, MessageId, SessionId};

use crate::attach::{self, IncomingMessage};
use crate::conversation::{self, ConversationSelector};
use crate::dedup::{Claim, DedupAnswer, DedupMethod, answer_key_from_uuid};
use crate::door::{EntryPoint, Origin};
use crate::error::KernelError;
use crate::event::{canonical, digest, kind};
use crate::hosts;
use crate::notice::{ClientCall, SessionNotice, TurnEnd, TurnStop};
use crate::ports::{JournalError, JournalScan, ModelMessage, RecordedEvent, Usage};
use crate::recover;
use crate::session::{self, SessionServices};
use crate::shown::{self, TurnCallSummary};
use crate::taint;
use crate::time::Timestamp;
use crate::watch::Watcher;
use told::{TalkRequest, TurnResult};

/// Longest name of a conversation, in characters.
const MAX_NAME_CHARS: usize = 256;
/// Number of events read at a time.
const PAGE: usize = 1000;

/// The session, the message and the request digest of a message.
struct MessageIds {
    conversation: String,
    session: SessionId,
    message: MessageId,
    /// Digest of the conversation and the text. The same request id with another digest is refused.
    request: Digest,
}

impl MessageIds {
    /// Makes the ids of a recorded message, without comparing its text.
    const fn of_record(session: SessionId, message: MessageId) -> Self {
        Self {
            conversation: String::new(),
            session,
            message,
            request: Digest::ZERO,
        }
    }
}

/// Sends a message to the agent and waits for its answer. `tell` receives the turn's notices and must not block.
pub(crate) async fn send_message(
    sessions: &Arc<SessionServices>,
    door: EntryPoint,
    asked: TalkRequest,
    tell: &(dyn Fn(MessageId, &SessionNotice) + Send + Sync),
) -> Result<TurnResult, KernelError> {
    let place = derive_ids(&asked)?;
    let key = answer_key_from_uuid(DedupMethod::Message, place.message.0);
    let journal = sessions.scribe.journal();
    let claim = sessions
        .calls
        .dedup
        .claim_request(key, place.request, &**journal)
        .await?;
    let guard = match claim {
        Claim::Fresh(guard) => guard,
        Claim::Answered(DedupAnswer::Message(told)) => return Ok(*told),
        Claim::Answered(DedupAnswer::Call(_) | DedupAnswer::Memory(_) | DedupAnswer::Delegated(_))
        | Claim::Reused => {
            return Err(KernelError::RequestIdReused(asked.request_id));
        }
    };
    // The message was accepted before this process began, or so long ago that only the journal has it.
    let told = match journal.message_session(place.message).await? {
        Some(session) => earlier_result(sessions, session, &place, &asked, tell).await?,
        None => send_new_message(sessions, door, &place, &asked, tell).await?,
    };
    guard.publish_answer(DedupAnswer::Message(Box::new(told.clone())));
    Ok(told)
}

/// Computes the session of a conversation and the message of a request. This is the only place that does so.
fn derive_ids(asked: &TalkRequest) -> Result<MessageIds, KernelError> {
    let owner = asked.owner.as_bytes();
    let request_id = asked.request_id.as_str().as_bytes();
    let conversation = match &asked.conversation {
        Some(name) => name.clone(),
        None => derive_uuid("new", &[owner, request_id]).to_string(),
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
    let (before, tools) = (canonical(&asked.earlier), canonical(&asked.tools));
    let images = attach::picture_digests(&asked.images);
    let mut parts = vec![name, asked.text.as_bytes()];
    if !asked.earlier.is_empty() || !asked.tools.is_empty() {
        parts.extend([before.as_slice(), tools.as_slice()]);
    }
    parts.extend(images.iter().map(|image| &image.0[..]));
    Ok(MessageIds {
        session: SessionId(derive_uuid("conversation", &[owner, name])),
        message: MessageId(derive_uuid("message", &[owner, request_id])),
        request: digest(&length_prefixed("request", &parts)),
        conversation,
    })
}

/// Joins the parts with their lengths, so that different lists give different bytes.
fn length_prefixed(what: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = what.as_bytes().to_vec();
    for part in parts {
        bytes.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// Returns a UUID (version 8) that is derived from the parts only.
fn derive_uuid(what: &str, parts: &[&[u8]]) -> uuid::Uuid {
    let bytes = digest(&length_prefixed(what, parts)).0;
    let half = bytes.first_chunk::<16>().copied().unwrap_or_default();
    let bits = u128::from_be_bytes(half) & !(0xf << 76) & !(0x3 << 62);
    uuid::Uuid::from_u128(bits | (0x8 << 76) | (0x2 << 62))
}

/// Returns the request's mark in the record.
fn request_mark(place: &MessageIds) -> String {
    format!("request:{}", place.request)
}

/// Returns the text for the agent, and the sources of other people's text in it. Text that a client reports as earlier messages
/// counts as nobody's own words (R44).
fn incoming_message(
    door: EntryPoint,
    place: &MessageIds,
    asked: &TalkRequest,
    history: &[ModelMessage],
) -> (Origin, IncomingMessage) {
    let (text, repeats) = earlier::compose_message(history, &asked.earlier, &asked.text);
    let told_by = taint::of_sender(door.sender(), "a client's history");
    let origin = Origin {
        platform_ids: vec![asked.request_id.as_str().to_owned(), request_mark(place)],
        tools: asked.tools.clone(),
        repeats: repeats.then_some(told_by).into_iter().collect(),
        ..Origin::from(door)
    };
    let said = IncomingMessage {
        text,
        images: asked.images.clone(),
        ..IncomingMessage::default()
    };
    (origin, said)
}

async fn send_new_message(
    sessions: &Arc<SessionServices>,
    door: EntryPoint,
    place: &MessageIds,
    asked: &TalkRequest,
    tell: &(dyn Fn(MessageId, &SessionNotice) + Send + Sync),
) -> Result<TurnResult, KernelError> {
    if hosts::is_elsewhere(sessions, place.session).await? {
        return send_through_holder(sessions, door, place, asked).await;
    }
    let state = {
        let _working = sessions.life.begin_work().map_err(KernelError::NotReady)?;
        conversation::open_conversation(sessions, &door, ConversationSelector::Named(place.session)).await?
    };
    let watcher = state.notices.watch(sessions.life.over.clone());
    let (origin, said) = incoming_message(door, place, asked, &state.history());
    if sessions.calls.hosts.is_some() {
        // Another host may hand over the same message at this moment.
        let order = state.arriving.lock().await;
        if sessions
            .scribe
            .journal()
            .message_session(place.message)
            .await?
            .is_some()
        {
            drop(order);
            return until_ended(sessions, place.session, place).await;
        }
        session::accept_as(sessions, &state, place.message, origin, said).await?;
    } else {
        session::accept_as(sessions, &state, place.message, origin, said).await?;
    }
    asked.is_taken();
    follow_turn(sessions, (&watcher, false), place, tell).await
}

/// Hands the message to the host that owns the conversation, and returns its answer here.
async fn send_through_holder(
    sessions: &Arc<SessionServices>,
    door: EntryPoint,
    place: &MessageIds,
    asked: &TalkRequest,
) -> Result<TurnResult, KernelError> {
    let _working = sessions.life.begin_work().map_err(KernelError::NotReady)?;
    let (origin, said) = incoming_message(door, place, asked, &[]);
    hosts::hand_over(sessions, (place.session, place.message), &origin, &said).await?;
    until_ended(sessions, place.session, place).await
}

/// Waits for the end of a turn that may run on another host.
async fn until_ended(
    sessions: &SessionServices,
    session: SessionId,
    place: &MessageIds,
) -> Result<TurnResult, KernelError> {
    let Some(hosts) = &sessions.calls.hosts else {
        return Err(KernelError::NotReady(sessions.life.state()));
    };
    let ended = loop {
        let waiting = hosts::register_waiter(hosts, place.message);
        let ended = waiting.notified();
        tokio::pin!(ended);
        // Register before looking, so that an end in between is not missed.
        ended.as_mut().enable();
        match message_record(sessions, session, place).await {
            Ok(MessageRecord { end: Some(told), .. }) => break Ok(told),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
        if let Err(error) = hosts::wait_for_end(sessions, ended).await {
            break Err(error);
        }
    };
    hosts::remove_waiter(hosts, place.message);
    ended
}

/// Returns the message id for an owner's request.
pub(crate) fn message_of(owner: &str, request: &str) -> MessageId {
    MessageId(derive_uuid("message", &[owner.as_bytes(), request.as_bytes()]))
}

/// Follows the session until the turn ends. `mine`: the running turn belongs to this message.
async fn follow_turn(
    sessions: &SessionServices,
    (watcher, mut mine): (&Watcher, bool),
    place: &MessageIds,
    tell: &(dyn Fn(MessageId, &SessionNotice) + Send + Sync),
) -> Result<TurnResult, KernelError> {
    let (mut text, mut calls) = (String::new(), Vec::new());
    let (mut found, mut missed) = (None, false);
    loop {
        let notice = tokio::select! {
            biased;
            notice = watcher.next() => notice,
            () = sessions.life.stop.cancelled() => None,
        };
        // The message is durable. It is answered after the next start and found by its request id.
        let Some(notice) = notice else {
            return Err(hosts::lost_error(sessions).unwrap_or(KernelError::NotReady(sessions.life.state())));
        };
        match &notice {
            SessionNotice::TurnStarted { message } => mine = *message == place.message,
            SessionNotice::Said(said) if mine => text.clone_from(said),
            SessionNotice::Handed(call) if mine => calls.push(call.clone()),
            SessionNotice::Shown(shown, _) if mine => found = Some(shown.clone()),
            SessionNotice::Missed(_) => missed = true,
            _ => {}
        }
        if mine || matches!(notice, SessionNotice::Missed(_)) {
            tell(place.message, &notice);
        }
        if let SessionNotice::TurnEnded {
            message,
            end,
            stop,
            usage,
        } = notice
            && message == place.message
        {
            let reason = match end {
                TurnEnd::Answered | TurnEnd::Cancelled => None,
                TurnEnd::Failed(reason) => match message_record(sessions, place.session, place).await?.end {
                    // An end that is not recorded does not count. The message is resumed and answered after the next start.
                    None => return Err(JournalError::Unwritable(reason).into()),
                    // Another host took over the turn and has answered it. Its recorded end counts.
                    Some(told) if told.reason.is_none() => return Ok(told),
                    Some(_) => Some(reason),
                },
            };
            // Notices that did not fit into the watcher's queue are in the record.
            if found.is_none() && missed {
                found = self::call_summary(sessions, place.session, place.message).await?;
            }
            return Ok(TurnResult {
                calls,
                shown: found,
                ..turn_result(place, text, stop, reason, usage)
            });
        }
    }
}

fn turn_result(
    place: &MessageIds,
    text: String,
    stop: TurnStop,
    reason: Option<String>,
    usage: Usage,
) -> TurnResult {
    TurnResult {
        conversation: place.conversation.clone(),
        session: place.session,
        turn: place.message,
        text,
        calls: Vec::new(),
        stop,
        reason,
        shown: None,
        usage,
    }
}

/// Returns the record's summary of a turn, if there is something to report.
async fn call_summary(
    sessions: &SessionServices,
    session: SessionId,
    message: MessageId,
) -> Result<Option<TurnCallSummary>, KernelError> {
    let journal = &**sessions.scribe.journal();
    let record = shown::turn_record(journal, session, message, None, false).await?;
    Ok(Some(record.call_summary()).filter(|shown| shown.record_line().is_some()))
}

/// Returns or waits for the answer to a message that was accepted before.
async fn earlier_result(
    sessions: &SessionServices,
    session: SessionId,
    place: &MessageIds,
    asked: &TalkRequest,
    tell: &(dyn Fn(MessageId, &SessionNotice) + Send + Sync),
) -> Result<TurnResult, KernelError> {
    // Subscribe first and then look, so that an end in between is seen.
    let open = sessions.table.get(session);
    let watcher = open.map(|state| state.notices.watch(sessions.life.over.clone()));
    let record = message_record(sessions, session, place).await?;
    if session != place.session || !record.same {
        return Err(KernelError::RequestIdReused(asked.request_id.clone()));
    }
    asked.is_taken();
    match (record.end, watcher) {
        (Some(told), _) => Ok(told),
        (None, Some(watcher)) => {
            // The subscription may have begun in the middle of the turn. The missing text is in the record, which is complete by
            // now.
            let told = follow_turn(sessions, (&watcher, false), place, tell).await?;
            Ok(self::message_record(sessions, session, place)
                .await?
                .end
                .unwrap_or(told))
        }
        (None, None) => until_ended(sessions, session, place).await,
    }
}

/// Waits for the answer to a message of `client` from an earlier run; `None`: the record does not have the message. `begun`: its
/// turn had begun, so an open approval request of its session belongs to it.
pub(crate) async fn rejoin_message(
    sessions: &SessionServices,
    (message, begun): (MessageId, bool),
    client: &str,
    tell: &(dyn Fn(MessageId, &SessionNotice) + Send + Sync),
) -> Result<Option<TurnResult>, KernelError> {
    let Some(session) = sessions.scribe.journal().message_session(message).await? else {
        return Ok(None);
    };
    let open = sessions.table.get(session);
    let watcher = open.map(|state| state.notices.watch(sessions.life.over.clone()));
    let place = MessageIds::of_record(session, message);
    let record = message_record(sessions, session, &place).await?;
    if record.sender != client {
        return Ok(None);
    }
    let watcher = match (record.end, watcher) {
        (Some(told), _) => return Ok(Some(told)),
        (None, None) => return Err(KernelError::NotReady(sessions.life.state())),
        (None, Some(watcher)) => watcher,
    };
    // Approval requests from before the subscription are not reported again.
    let asked = sessions
        .calls
        .desk
        .pending_questions(sessions.scribe.clock().monotonic_us());
    let asked = asked
        .into_iter()
        .filter(|question| begun && question.session == session);
    for question in asked {
        tell(message, &SessionNotice::Asking(Box::new(question)));
    }
    let told = follow_turn(sessions, (&watcher, begun), &place, tell).await?;
    let end = self::message_record(sessions, session, &place).await?.end;
    Ok(Some(end.unwrap_or(told)))
}

/// What the chain records about a message.
struct MessageRecord {
    /// The request had the same text.
    same: bool,
    /// The sender.
    sender: String,
    calls: Vec<ClientCall>,
    /// Time of acceptance, or of the end.
    at: Timestamp,
    end: Option<TurnResult>,
}

async fn message_record(
    sessions: &SessionServices,
    session: SessionId,
    place: &MessageIds,
) -> Result<MessageRecord, KernelError> {
    let mut record = MessageRecord {
        same: false,
        sender: String::new(),
        calls: Vec::new(),
        at: Timestamp(0),
        end: None,
    };
    let mut after_row = 0;
    loop {
        let scan = JournalScan {
            after_row,
            limit: PAGE,
            session: Some(session),
            kinds: &[
                kind::MESSAGE_ACCEPTED,
                kind::CLIENT_CALLED,
                kind::MESSAGE_ANSWERED,
                kind::MESSAGE_DEAD,
            ],
            with_content: true,
            ..JournalScan::default()
        };
        let events = sessions.scribe.journal().scan_events(scan).await?;
        let full = events.len() == PAGE;
        for event in &events {
            after_row = event.row;
            record.read(event, place)?;
        }
        if !full {
            break;
        }
    }
    if let Some(end) = &mut record.end
        && let Some(shown) = call_summary(sessions, session, place.message).await?
    {
        end.text = shown.mark_answer(&end.text);
        end.shown = Some(shown);
    }
    Ok(record)
}

impl MessageRecord {
    fn read(&mut self, event: &RecordedEvent, place: &MessageIds) -> Result<(), JournalError> {
        if event.read_whole()?.turn_id() != Some(place.message.0) {
            return Ok(());
        }
        self.at = event.at;
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                let accepted: MessageAccepted = event.read_as()?;
                let mark = request_mark(place);
                let mut marks = accepted.platform_ids.iter().flatten();
                self.same = marks.any(|known| *known == mark);
                self.sender = accepted.sender;
            }
            kind::CLIENT_CALLED => {
                let call = serde_json::from_str(&recover::event_text(event));
                self.calls.extend(call.ok()); // silent-ok: erased content is an ordinary state
            }
            kind::MESSAGE_ANSWERED => {
                let answered: MessageAnswered = event.read_as()?;
                let stop = match answered.end.as_str() {
                    "cancelled" => TurnStop::Cancelled,
                    _ if answered.declined => TurnStop::Refused,
                    _ => TurnStop::Answered,
                };
                let usage = Usage {
                    input_tokens: answered.input_tokens,
                    output_tokens: answered.output_tokens,
                    ..Usage::default()
                };
                self.end = Some(TurnResult {
                    calls: std::mem::take(&mut self.calls),
                    ..turn_result(place, recover::event_text(event), stop, None, usage)
                });
            }
            _ => {
                let dead: MessageDead = event.read_with_words()?;
                let stop = match dead.why.as_deref() {
                    Some("budget") => TurnStop::Budget,
                    Some("stopped") => TurnStop::Stopped,
                    Some(_) | None => TurnStop::Failed,
                };
                let reason = Some(dead.reason.into());
                self.end = Some(turn_result(place, String::new(), stop, reason, Usage::default()));
            }
        }
        Ok(())
    }
}

/// The state of a message.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageStatus {
    /// The session of its conversation.
    pub session: SessionId,
    /// Time of acceptance, or of the end.
    pub at: Timestamp,
    /// The result; `None`: the message waits, or its turn runs.
    pub end: Option<TurnResult>,
}

/// Returns the state of a message that this client sent; `None` for another client's message.
pub(crate) async fn message_status(
    sessions: &SessionServices,
    message: MessageId,
    client: &str,
) -> Result<Option<MessageStatus>, KernelError> {
    let Some(session) = sessions.scribe.journal().message_session(message).await? else {
        return Ok(None);
    };
    let place = MessageIds::of_record(session, message);
    let record = message_record(sessions, session, &place).await?;
    let (at, end) = (record.at, record.end);
    Ok((record.sender == client).then_some(MessageStatus { session, at, end }))
}

impl TalkRequest {
    /// Returns the conversation's session and the id of the turn that will answer. Both depend only on owner, conversation and
    /// request id.
    ///
    /// # Errors
    /// The conversation's name is empty, too long, or holds a control character.
    pub fn derive_address(&self) -> Result<(SessionId, MessageId), KernelError> {
        let place = derive_ids(self)?;
        Ok((place.session, place.message))
    }
}
