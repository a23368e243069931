//! A recorded session as a tape: what came from outside, in the order in which the kernel asks for it.
//!
//! Long because it has a place for each kind of thing that came from outside.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_carp::Atlas;
use clawk_carp::atlas::Executor;
use clawk_events::payload::{ContextTainted, MessageAccepted};
use clawk_manifest::model::Role;
use clawk_proto::{Digest, RequestId, SessionId};
use clawk_recall::entry::EntrySearchResult;
use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::read::{event_content, missing_content, parse_payload, read, strings_field, text_field};
use super::said::{TapedCallEnd, TapedModelAnswer, TapedReply, fault_from_facts};
use super::{AgentFacts, ShadowAgent, ToolFacts, answer_of};
use crate::attach::{AttachedPicture, FrameSource, IncomingMessage};
use crate::carp;
use crate::door::Origin;
use crate::error::CallError;
use crate::event::{canonical, digest, kind};
use crate::infer::{KnownForm, LearntForm};
use crate::message_frame::MessageFrame;
use crate::notice::ApprovalQuestion;
use crate::ports::{InferRequest, JournalError, RecordedEvent, TaintedFiles};
use crate::recall;
use crate::recover;
use crate::team;
use crate::time::Timestamp;

/// A reason why a record cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TapeError {
    /// Content was erased, or lies elsewhere.
    #[error(
        "the content of event {sequence} (`{event_type}`) is erased or not at hand; without it there is no replay"
    )]
    Content {
        /// The event.
        sequence: u64,
        /// Its type.
        event_type: String,
    },
    /// The session holds no event.
    #[error("there is no such session in the record")]
    Session,
    /// An event can't be read: what it says can't be played.
    #[error(transparent)]
    Event(#[from] JournalError),
}

/// Everything that a replay takes.
#[derive(Debug, Clone)]
pub struct ReplayTape {
    /// The session.
    pub session: SessionId,
    /// Its events with their contents, in order.
    pub events: Vec<RecordedEvent>,
    /// The agent that it ran in.
    pub facts: AgentFacts,
    /// The agent's tools, by name, as described in that run.
    pub tools: BTreeMap<String, ToolFacts>,
    /// The swarm's tools, by name, and since when runs have offered them; earlier versions offered none.
    pub team: BTreeMap<String, Timestamp>,
    /// Events of other sessions: of the types in [`Self::BEFORE`] those of before this one, of the types in
    /// [`Self::BESIDE`] those while it lasted, too; with the contents of Atlases.
    pub past: Vec<RecordedEvent>,
    /// The configuration's Atlases, in its order.
    pub atlases: Vec<Arc<Atlas>>,
    pub(super) door: String,
    pub(super) role: Role,
    pub(super) inputs: Vec<TimedInput>,
    /// Context files that changed before a turn.
    pub(super) context: Vec<ContextChange>,
    /// What was known of providers before a turn.
    pub(super) forms: Vec<KnownForm>,
    /// What takes the place of the recorded agent.
    pub(super) shadow: Option<ShadowAgent>,
}

/// A context file that was not what it had been, by the turn that found it so.
#[derive(Debug, Clone)]
pub(super) struct ContextChange {
    pub(super) turn: String,
    pub(super) file: String,
    /// `None`: it is gone.
    pub(super) text: Option<Vec<u8>>,
}

/// An input, and when the kernel turned to it.
#[derive(Debug, Clone)]
pub(super) struct TimedInput {
    pub(super) sequence: u64,
    /// The message's id; empty for a call.
    pub(super) turn: String,
    pub(super) at: Timestamp,
    pub(super) input: TapedInput,
}

/// What came from outside.
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all inputs of a tape are messages, and a tape holds each once"
)]
pub(super) enum TapedInput {
    Message {
        said: IncomingMessage,
        origin: Origin,
    },
    Call {
        tool: String,
        arguments: Map<String, Value>,
        request_id: String,
        identity: String,
        policy: Option<String>,
        sandbox: Option<String>,
    },
}

/// The place of the first message whose kind of author is recorded; earlier versions recorded none.
pub(super) fn first_judged(events: &[RecordedEvent]) -> Option<u64> {
    let judged = |event: &&RecordedEvent| {
        event.kind == kind::MESSAGE_ACCEPTED && text_field(&parse_payload(event), "author_kind").is_some()
    };
    events.iter().find(judged).map(|event| event.sequence)
}

impl ReplayTape {
    /// What of earlier sessions bears on this one: standing grants, tokens spent on the same day.
    pub const BEFORE: [&str; 4] = [
        kind::APPROVAL_GRANTED,
        kind::APPROVAL_REVOKED,
        kind::PROVIDER_COMPLETED,
        kind::PROVIDER_FAILED,
    ];
    /// What bears on it while it lasts, too: limits of Atlases, and their coming and going.
    pub const BESIDE: [&str; 3] = [kind::CARP_CHARGED, kind::ATLAS_LOADED, kind::ATLAS_REMOVED];
    /// Atlases that come and go.
    pub const CHANGES: [&str; 2] = [kind::ATLAS_LOADED, kind::ATLAS_REMOVED];

    /// The swarm's tools.
    pub const TEAM: [&str; 3] = [team::DELEGATE, team::ASK, team::REPORT];

    /// Reads the session's events (with contents).
    ///
    /// # Errors
    /// There are none, or the content of a message or call is not there.
    #[expect(
        clippy::too_many_lines,
        reason = "one member for each part of the tape, read once"
    )]
    pub fn new(
        session: SessionId,
        events: Vec<RecordedEvent>,
        facts: AgentFacts,
        tools: BTreeMap<String, ToolFacts>,
    ) -> Result<Self, TapeError> {
        let first = events.first().ok_or(TapeError::Session)?;
        let door = text_field(&parse_payload(first), "door").unwrap_or_default();
        // A version that recorded no role of a session gave it an admin's.
        let role = text_field(&parse_payload(first), "role")
            .map_or(Role::Admin, |role| Role::parse(&role).unwrap_or(Role::Viewer));
        let judged = first_judged(&events).is_some();
        let mut inputs: Vec<TimedInput> = Vec::new();
        let mut turns = 0;
        let mut attached = Vec::new();
        let mut frame = MessageFrame::default();
        let mut context = Vec::new();
        let mut forms = Vec::new();
        for event in &events {
            event.read()?;
            let facts = parse_payload(event);
            let given = |input| TimedInput {
                sequence: event.sequence,
                turn: text_field(&facts, "message_id").unwrap_or_default(),
                at: event.at,
                input,
            };
            match event.kind.as_str() {
                kind::CONTEXT_READ => {
                    let told = text_field(&facts, "text_hash")
                        .map(|_| event_content(event))
                        .transpose()?;
                    context.push(ContextChange {
                        turn: text_field(&facts, "turn").unwrap_or_default(),
                        file: text_field(&facts, "file").unwrap_or_default(),
                        text: told.map(<[u8]>::to_vec),
                    });
                }
                kind::PROVIDER_ADAPTED => forms.extend(LearntForm::known_before(event)?),
                kind::MESSAGE_ATTACHED => attached.push(AttachedPicture {
                    mime_type: text_field(&facts, "mime_type").unwrap_or_default(),
                    name: text_field(&facts, "name"),
                    data: event_content(event)?.to_vec(),
                }),
                kind::MESSAGE_FRAMED => {
                    let text = String::from_utf8(event_content(event)?.to_vec());
                    frame = MessageFrame {
                        text: text.map_err(|_| missing_content(event))?, // silent-ok: no text, no content
                        untrusted: strings_field(&facts, "untrusted"),
                    };
                }
                kind::MESSAGE_ACCEPTED => {
                    let bytes = event_content(event)?;
                    let said = String::from_utf8(bytes.to_vec()).map_err(|_| missing_content(event))?; // silent-ok: no text, no content
                    let accepted: MessageAccepted = event.read_as()?;
                    let origin = Origin::from_replayed_record(accepted.into(), judged);
                    let said = IncomingMessage {
                        text: said,
                        images: std::mem::take(&mut attached),
                        setting: FrameSource::Recorded(std::mem::take(&mut frame)),
                    };
                    inputs.push(given(TapedInput::Message { said, origin }));
                }
                kind::MESSAGE_TOOLS => {
                    let tools = read(event)?;
                    if let Some(TapedInput::Message { origin, .. }) =
                        inputs.last_mut().map(|given| &mut given.input)
                    {
                        origin.tools = tools;
                    }
                }
                // Messages that came while another was answered wait for their turn.
                kind::CARP_REQUEST => {
                    let goal = text_field(&facts, "goal").unwrap_or_default();
                    let mut waiting = inputs.iter_mut().enumerate().skip(turns);
                    if let Some((at, given)) = waiting.find(|(_, given)| given.is_goal(&goal)) {
                        given.at = event.at;
                        turns = at + 1;
                    }
                }
                // A call that a model asked for comes again by itself.
                kind::ACTION_REQUESTED if text_field(&facts, "turn").is_none() => {
                    let call = TapedInput::Call {
                        tool: text_field(&facts, "action_id").unwrap_or_default(),
                        arguments: read(event)?,
                        request_id: text_field(&facts, "request_id").unwrap_or_default(),
                        identity: text_field(&facts, "identity").unwrap_or_default(),
                        policy: text_field(&facts, "policy"),
                        sandbox: text_field(&facts, "sandbox"),
                    };
                    inputs.push(given(call));
                }
                _ => {}
            }
        }
        Ok(Self {
            session,
            events,
            facts,
            tools,
            team: BTreeMap::new(),
            past: Vec::new(),
            atlases: Vec::new(),
            door,
            role,
            inputs,
            context,
            forms,
            shadow: None,
        })
    }

    /// Context files that changed before a turn. A shadow's own files stay as they are.
    pub(super) fn context_changes(&self) -> impl Iterator<Item = &ContextChange> {
        let own = self.shadow.is_none();
        self.context.iter().filter(move |_| own)
    }

    /// The tool that runs each action: what is recorded under the one is asked for under the other.
    fn action_runners(&self) -> HashMap<String, String> {
        let uploaded = self.past.iter().filter(|event| event.kind == kind::ATLAS_LOADED);
        let uploaded = uploaded
            .filter_map(|event| carp::atlas_of(&event.content.as_ref()?.bytes).ok()) // silent-ok: what is none had no actions
            .map(Arc::new);
        let fallback = self.facts.carp.as_ref().and_then(|carp| carp.fallback.as_ref());
        let declared = |name: &str| self.facts.manifest.tools.iter().any(|tool| tool.name == name);
        let mut runners = HashMap::new();
        for atlas in uploaded.chain(self.atlases.iter().cloned()) {
            for action in &atlas.actions {
                let id = &*action.shown.action_id;
                let tool = match &action.executor {
                    Some(Executor::Tool(name)) => Some(name.to_string()),
                    _ if declared(id) => None,
                    _ => fallback.cloned(),
                };
                runners.extend(tool.map(|tool| (id.to_owned(), tool)));
            }
        }
        runners
    }
}

impl TimedInput {
    /// It is the message that a resolution was made for.
    fn is_goal(&self, goal: &str) -> bool {
        match &self.input {
            TapedInput::Message { said, .. } => carp::goal_of(&said.text) == goal,
            TapedInput::Call { .. } => false,
        }
    }
}

type TapeKey = (String, Digest);

/// The tapes that the ports play from; each answer is given once.
#[derive(Debug)]
pub(super) struct TapePlayer {
    inner: Mutex<TapePlayerState>,
    /// A question is left alone.
    left: Notify,
}

#[derive(Debug)]
struct TapePlayerState {
    /// Another agent plays: what is asked for is found by what it is about, not by its turn.
    shadow: bool,
    /// What each call that a person was asked about is, in a shadow run.
    questions: HashMap<String, TapeKey>,
    models: HashMap<String, VecDeque<(Timestamp, TapedModelAnswer)>>,
    calls: HashMap<TapeKey, VecDeque<(Timestamp, TapedCallEnd)>>,
    /// In the order of the questions, by the call that each asks about.
    replies: VecDeque<(String, TapedReply)>,
    /// Questions of this replay that nobody will answer.
    left_alone: HashSet<RequestId>,
    /// What had changed when an approval was void, by the call that it was for.
    voids: HashMap<String, (TapeKey, String)>,
    /// The same, once the answer has been given: from then on the world is another one.
    changed: HashMap<TapeKey, String>,
    /// What models were asked in this replay.
    asked: Vec<InferRequest>,
    /// What was recalled before turns, by store and question.
    recalled: HashMap<TapeKey, VecDeque<EntrySearchResult>>,
    /// The untrusted files that calls could read, by the call's id, until its end is read.
    read: HashMap<String, TaintedFiles>,
    /// Context files with untrusted text.
    marked: TaintedFiles,
    now: Timestamp,
    ids: u128,
}

impl TapePlayer {
    /// # Errors
    /// The content of an answer is not there.
    pub(super) fn new(tape: &ReplayTape) -> Result<Self, TapeError> {
        let mut inner = TapePlayerState {
            shadow: tape.shadow.is_some(),
            questions: HashMap::new(),
            models: HashMap::new(),
            calls: HashMap::new(),
            replies: VecDeque::new(),
            left_alone: HashSet::new(),
            voids: HashMap::new(),
            changed: HashMap::new(),
            asked: Vec::new(),
            recalled: HashMap::new(),
            read: HashMap::new(),
            marked: TaintedFiles::new(),
            now: tape.events.first().map_or(Timestamp(0), |event| event.at),
            ids: 1,
        };
        let mut asked: HashMap<String, TapeKey> = HashMap::new();
        let runners = tape.action_runners();
        for event in &tape.events {
            inner.load_event(event, &mut asked, &runners)?;
        }
        Ok(Self {
            inner: Mutex::new(inner),
            left: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, TapePlayerState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record_request(&self, request: InferRequest) {
        self.lock().asked.push(request);
    }

    pub(super) fn requests(&self) -> Vec<InferRequest> {
        std::mem::take(&mut self.lock().asked)
    }

    /// What the next such question found.
    pub(super) fn next_recall(&self, store: &str, question: Digest) -> Option<EntrySearchResult> {
        let mut inner = self.lock();
        inner.recalled.get_mut(&(store.to_owned(), question))?.pop_front()
    }

    pub(super) fn next_answer(&self, provider: &str) -> Option<TapedModelAnswer> {
        let mut inner = self.lock();
        let provider = if inner.shadow { "" } else { provider };
        let (at, said) = inner.models.get_mut(provider)?.pop_front()?;
        inner.now = at;
        Some(said)
    }

    /// The session's context files with untrusted text, as recorded.
    pub(super) fn marked_files(&self) -> TaintedFiles {
        self.lock().marked.clone()
    }

    /// What the next such call that ran came to.
    pub(super) fn next_call_end(&self, tool: &str, arguments: Digest) -> Option<TapedCallEnd> {
        let mut inner = self.lock();
        let queue = inner.calls.get_mut(&(tool.to_owned(), arguments))?;
        while queue.front()?.1.refused {
            queue.pop_front();
        }
        let (at, ended) = queue.pop_front()?;
        inner.now = at;
        Some(ended)
    }

    /// The sandbox's refusal before anybody was asked, if the next such call met one.
    pub(super) fn next_refusal(&self, tool: &str, arguments: Digest) -> Option<clawk_plan::SandboxRefusal> {
        let mut inner = self.lock();
        let queue = inner.calls.get_mut(&(tool.to_owned(), arguments))?;
        // Refusals of other layers come from those layers again.
        while let Some((_, ended)) = queue.front().filter(|(_, ended)| ended.refused) {
            let outcome = ended.outcome.clone();
            queue.pop_front();
            if let Err(CallError::Sandbox(refusal)) = outcome {
                return Some(refusal);
            }
        }
        None
    }

    /// The same for who only looks ahead: nothing is used up.
    pub(super) fn peek_refusal(&self, tool: &str, arguments: Digest) -> Option<clawk_plan::SandboxRefusal> {
        let inner = self.lock();
        let queue = inner.calls.get(&(tool.to_owned(), arguments))?;
        let mut refused = queue.iter().take_while(|(_, ended)| ended.refused);
        refused.find_map(|(_, ended)| match &ended.outcome {
            Err(CallError::Sandbox(refusal)) => Some(refusal.clone()),
            _ => None,
        })
    }

    /// Whether a person was asked about the next such call.
    pub(super) fn was_asked(&self, tool: &str, arguments: Digest) -> bool {
        let inner = self.lock();
        let queue = inner.calls.get(&(tool.to_owned(), arguments));
        queue
            .and_then(VecDeque::front)
            .is_some_and(|(_, ended)| ended.asked)
    }

    /// What has changed since such a call was asked about, in the record's words.
    pub(super) fn changed_since_asked(&self, tool: &str, arguments: Digest) -> Option<String> {
        self.lock().changed.get(&(tool.to_owned(), arguments)).cloned()
    }

    pub(super) fn is_shadow(&self) -> bool {
        self.lock().shadow
    }

    /// What a person said to the next question; in a shadow run, to this one.
    pub(super) fn next_reply(&self, question: &ApprovalQuestion) -> Option<TapedReply> {
        let mut inner = self.lock();
        if inner.shadow {
            return inner.answer_to(question);
        }
        let (request_id, answered) = inner.replies.pop_front()?;
        if let Some((key, changed)) = inner.voids.remove(&request_id) {
            inner.changed.insert(key, changed);
        }
        inner.now = answered.at;
        Some(answered)
    }

    /// The record's time of what comes next.
    pub(super) fn turn_to(&self, at: Timestamp) {
        self.lock().now = at;
    }

    /// Nobody answers this question, as nobody did then.
    pub(super) fn leave_alone(&self, question: &RequestId) {
        self.lock().left_alone.insert(question.clone());
        self.left.notify_waiters();
    }

    /// Ends when it is known that nobody will answer this question.
    pub(super) async fn left_alone(&self, question: &RequestId) {
        loop {
            // Listening before looking: what is said in between is heard.
            let mut said = std::pin::pin!(self.left.notified());
            said.as_mut().enable();
            if self.lock().left_alone.contains(question) {
                return;
            }
            said.await;
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.lock().now
    }

    pub(super) fn id(&self) -> u128 {
        let mut inner = self.lock();
        inner.ids += 1;
        inner.ids
    }
}

impl TapePlayerState {
    /// The models' queue of this provider: in a shadow run they all speak from one.
    fn models_of(&mut self, provider: String) -> &mut VecDeque<(Timestamp, TapedModelAnswer)> {
        let name = if self.shadow { String::new() } else { provider };
        self.models.entry(name).or_default()
    }

    /// The answer to the first question about this very call that is not yet answered.
    fn answer_to(&mut self, question: &ApprovalQuestion) -> Option<TapedReply> {
        let about = (question.tool.clone(), digest(&canonical(&question.arguments)));
        let mut replies = self.replies.iter();
        let at = replies.position(|(id, _)| self.questions.get(id) == Some(&about))?;
        let (_, answered) = self.replies.remove(at)?;
        self.now = answered.at;
        Some(answered)
    }

    /// The latest answer about this call.
    fn latest_reply(&mut self, request_id: &str) -> Option<&mut TapedReply> {
        let found = self.replies.iter_mut().rev().find(|(id, _)| id == request_id);
        found.map(|(_, reply)| reply)
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each kind of event, all of them short"
    )]
    fn load_event(
        &mut self,
        event: &RecordedEvent,
        asked: &mut HashMap<String, TapeKey>,
        runners: &HashMap<String, String>,
    ) -> Result<(), TapeError> {
        let facts = parse_payload(event);
        let own = |key: &str| text_field(&facts, key).unwrap_or_default();
        match event.kind.as_str() {
            kind::PROVIDER_COMPLETED => {
                let said = TapedModelAnswer::Completion(Box::new(read(event)?));
                self.models_of(own("provider")).push_back((event.at, said));
            }
            kind::MEMORY_RECALLED => {
                let question = text_field(&facts, "query_hash").and_then(|hex| Digest::from_hex(&hex));
                let searches: Vec<recall::RecallSearch> = read(event)?;
                for search in searches {
                    let Some(question) = question else { continue };
                    let found = self.recalled.entry((search.store, question)).or_default();
                    found.push_back(search.found);
                }
            }
            kind::CONTEXT_TAINTED => {
                let tainted: ContextTainted = event.read_as()?;
                let files = tainted.files;
                match tainted.request_id {
                    Some(request_id) => {
                        self.read.entry(request_id).or_default().extend(files);
                    }
                    None => self.marked.extend(files),
                }
            }
            // Nobody heard what the model said; the turn that was taken up asked it again.
            kind::PROVIDER_FAILED if own("kind") == recover::LOST => {}
            kind::PROVIDER_FAILED => {
                self.models_of(own("provider"))
                    .push_back((event.at, fault_from_facts(&facts)));
            }
            kind::ACTION_REQUESTED => {
                let arguments = text_field(&facts, "parameters_hash").and_then(|hex| Digest::from_hex(&hex));
                if let Some(arguments) = arguments {
                    let name = own("action_id");
                    if self.shadow {
                        self.questions
                            .insert(own("request_id"), (name.clone(), arguments));
                    }
                    let tool = runners.get(&name).cloned().unwrap_or(name);
                    asked.insert(own("request_id"), (tool, arguments));
                }
            }
            kind::ACTION_EXECUTED | kind::ACTION_FAILED | kind::ACTION_DENIED => {
                let outcome = match event.kind.as_str() {
                    kind::ACTION_EXECUTED => Ok(read(event)?),
                    _ => Err(read(event)?),
                };
                let request_id = own("request_id");
                if let Some(key) = asked.remove(&request_id) {
                    let ended = TapedCallEnd {
                        asked: self.latest_reply(&request_id).is_some(),
                        outcome,
                        payload: facts,
                        refused: event.kind == kind::ACTION_DENIED,
                        read: self.read.remove(&request_id).unwrap_or_default(),
                    };
                    self.calls.entry(key).or_default().push_back((event.at, ended));
                }
            }
            // Steps of a plan are asked about together and may be answered in any order.
            kind::APPROVAL_REQUESTED => {
                let asked = (own("request_id"), TapedReply::unanswered_at(event.at));
                self.replies.push_back(asked);
            }
            kind::APPROVAL_ANSWERED => {
                if let Some(reply) = self.latest_reply(&own("request_id")) {
                    reply.answer = answer_of(&own("answer"));
                    reply.by = own("by");
                    reply.reason = text_field(&facts, "reason");
                    reply.at = event.at;
                }
            }
            kind::APPROVAL_VOIDED => {
                let request_id = own("request_id");
                if let Some(key) = asked.get(&request_id).cloned() {
                    self.voids.insert(request_id, (key, own("changed")));
                }
            }
            kind::APPROVAL_GRANTED => {
                if let Some(reply) = self.latest_reply(&own("request_id")) {
                    reply.folder = text_field(&facts, "folder").is_some();
                }
            }
            _ => {}
        }
        Ok(())
    }
}
