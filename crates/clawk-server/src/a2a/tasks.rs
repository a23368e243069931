//! Tasks (R23): a message to the agent with an id, a state and an end. `/a2a` and `claw.task.*` share them. A task is one turn, and
//! the turn's id is derived from the task's id, so clawk finds an older task in the record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::push::PushReceivers;
use clawk_kernel::time::Timestamp;
use clawk_kernel::{
    AttachedPicture, EntryPoint, Kernel, KernelError, SessionNotice, TalkRequest, TalkStop, TurnResult,
};
use clawk_proto::{Digest, MessageId, RequestId, SessionId};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::access::ClientRights;
use crate::host::AgentHost;
use crate::telling::TurnTextBuffer;

/// The largest number of tasks in memory. The oldest ended task is dropped first.
const MAX_TASKS: usize = 1_024;
/// The largest number of states kept per task for its receivers. A turn with more states keeps the latest ones.
const MAX_PHASES: usize = 256;
/// How long to wait for a message to become durable before the client gets an answer.
const TAKING: Duration = Duration::from_secs(10);
/// The longest task id, characters.
const MAX_ID: usize = 256;

/// The state of a task. Both protocols have the same states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The message is accepted; its turn has not begun.
    Submitted,
    /// The turn runs.
    Working,
    /// The turn waits for a person's approval of a call.
    AuthRequired,
    /// The agent has answered.
    Completed,
    /// The turn failed.
    Failed,
    /// Somebody cancelled it.
    Canceled,
    /// The agent refused the message.
    Rejected,
}

impl State {
    /// The state's name in `claw.task.*`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::AuthRequired => "auth_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Rejected => "rejected",
        }
    }

    /// The state's name in A2A.
    pub(crate) const fn a2a_name(self) -> &'static str {
        match self {
            Self::Submitted => "TASK_STATE_SUBMITTED",
            Self::Working => "TASK_STATE_WORKING",
            Self::AuthRequired => "TASK_STATE_AUTH_REQUIRED",
            Self::Completed => "TASK_STATE_COMPLETED",
            Self::Failed => "TASK_STATE_FAILED",
            Self::Canceled => "TASK_STATE_CANCELED",
            Self::Rejected => "TASK_STATE_REJECTED",
        }
    }

    /// Parses a state's name of `claw.task.*`.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let all = [
            Self::Submitted,
            Self::Working,
            Self::AuthRequired,
            Self::Completed,
            Self::Failed,
            Self::Canceled,
            Self::Rejected,
        ];
        all.into_iter().find(|state| state.name() == name)
    }

    /// Whether no other state follows.
    pub(crate) const fn is_final(self) -> bool {
        match self {
            Self::Submitted | Self::Working | Self::AuthRequired => false,
            Self::Completed | Self::Failed | Self::Canceled | Self::Rejected => true,
        }
    }
}

/// A state with its time and reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentTaskPhase {
    pub(crate) state: State,
    pub(crate) at: Timestamp,
    /// Why the task is in this state, for people.
    pub(crate) reason: Option<String>,
    /// The run ended before the task did. The task continues in the next run.
    pub(crate) interrupted: bool,
}

impl AgentTaskPhase {
    const fn new(state: State, at: Timestamp) -> Self {
        Self {
            state,
            at,
            reason: None,
            interrupted: false,
        }
    }
}

/// The states of a task, in order.
#[derive(Debug, Default)]
struct AgentTaskHistory {
    /// The number of states dropped from the front.
    dropped: u64,
    phases: VecDeque<AgentTaskPhase>,
}

impl AgentTaskHistory {
    fn push(&mut self, phase: AgentTaskPhase) {
        if self.phases.len() == MAX_PHASES {
            self.phases.pop_front();
            self.dropped += 1;
        }
        self.phases.push_back(phase);
    }
}

/// A task that this process knows.
#[derive(Debug)]
pub(crate) struct AgentTask {
    pub(crate) id: String,
    /// The id of the task's conversation.
    pub(crate) context: String,
    pub(super) owner: Arc<str>,
    /// The digest of the task's content. The same id with another digest is an error.
    pub(super) content: Digest,
    session: SessionId,
    pub(super) receivers: PushReceivers,
    pub(crate) telling: TurnTextBuffer,
    phase: watch::Sender<AgentTaskPhase>,
    history: Mutex<AgentTaskHistory>,
    /// Cancelled once the message is durable or refused.
    taken: CancellationToken,
    /// Somebody has cancelled the task.
    cancelled: std::sync::atomic::AtomicBool,
}

/// A task as its client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentTaskView {
    pub(crate) id: String,
    /// The task's conversation; `None` if only the record knows the task.
    pub(crate) context: Option<String>,
    pub(crate) phase: AgentTaskPhase,
    /// The agent's text so far.
    pub(crate) text: String,
    /// What the turn did, from the record; only after its end, and only if the record has anything.
    pub(crate) record: Option<Value>,
}

/// The content of a new task.
#[derive(Debug, Clone)]
pub(crate) struct AgentTaskRequest {
    pub(crate) id: String,
    pub(crate) context: Option<String>,
    pub(crate) text: String,
    /// Pictures of the message.
    pub(crate) images: Vec<AttachedPicture>,
}

impl AgentTaskRequest {
    /// The digest of the conversation, the text and the pictures.
    fn content_digest(&self, context: &str) -> Digest {
        let mut hash = Sha256::new();
        let images = self.images.iter().map(|image| &image.data[..]);
        for part in [context.as_bytes(), self.text.as_bytes()]
            .into_iter()
            .chain(images)
        {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part);
        }
        Digest(hash.finalize().into())
    }
}

/// Why a task can't be created or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentTaskError {
    /// The caller has no task with this id.
    #[error("there is no task `{0}`")]
    Unknown(String),
    /// The id was already used with other content.
    #[error("the task `{0}` was created with another content")]
    Reused(String),
    /// The id or the conversation's name is not valid.
    #[error("{0}")]
    Invalid(String),
    /// Too many tasks run at once.
    #[error("{MAX_TASKS} tasks are under way")]
    Full,
    /// The kernel reported an error.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// The identity of a task: owner, id, conversation and content digest.
#[derive(Debug)]
pub(super) struct AgentTaskIdentity {
    pub(super) id: String,
    pub(super) owner: Arc<str>,
    pub(super) context: String,
    pub(super) content: Digest,
}

/// The tasks of a host.
#[derive(Debug, Default)]
pub(crate) struct AgentTasks(Mutex<VecDeque<Arc<AgentTask>>>);

/// The client name for an owner. It does not depend on the protocol, so both protocols see the same tasks.
fn client_name(owner: &str) -> String {
    format!("a2a:{owner}")
}

/// Derives the request id from the task's id: a UUID stays as it is, any other name becomes a name-based UUID.
fn request_id(id: &str) -> RequestId {
    RequestId::parse(id).unwrap_or_else(|_| {
        let digest = Sha256::digest(id.as_bytes());
        let half = digest.first_chunk::<16>().copied().unwrap_or_default();
        RequestId::from(uuid::Builder::from_custom_bytes(half).into_uuid())
    })
}

/// The task id for a message, derived from the client's message id.
pub(crate) fn id_of(message: &str) -> String {
    let digest = Sha256::digest(format!("a2a message {message}").as_bytes());
    let half = digest.first_chunk::<16>().copied().unwrap_or_default();
    uuid::Builder::from_custom_bytes(half).into_uuid().to_string()
}

impl AgentTasks {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<AgentTask>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller's task with this id, if this process knows it.
    pub(crate) fn find_task(&self, owner: &str, id: &str) -> Option<Arc<AgentTask>> {
        let tasks = self.lock();
        tasks
            .iter()
            .find(|task| *task.owner == *owner && task.id == id)
            .cloned()
    }

    /// The caller's tasks, latest first.
    pub(crate) fn tasks_of_owner(&self, owner: &str) -> Vec<Arc<AgentTask>> {
        self.lock()
            .iter()
            .rev()
            .filter(|task| *task.owner == *owner)
            .cloned()
            .collect()
    }

    /// Creates a task, or returns the one with the same id and content.
    ///
    /// # Errors
    /// The id is not valid or belongs to other content, or too many tasks run.
    pub(crate) fn create_task(
        &self,
        host: &AgentHost,
        kernel: Kernel,
        rights: &ClientRights,
        wanted: AgentTaskRequest,
    ) -> Result<Arc<AgentTask>, AgentTaskError> {
        if wanted.id.is_empty() || wanted.id.len() > MAX_ID || wanted.id.chars().any(char::is_control) {
            return Err(AgentTaskError::Invalid(format!(
                "a task's id has 1 to {MAX_ID} characters, none of them a control character"
            )));
        }
        let context = wanted.context.clone().unwrap_or_else(|| wanted.id.clone());
        let content = wanted.content_digest(&context);
        let talk = TalkRequest {
            images: wanted.images.clone(),
            ..TalkRequest::new(
                rights.name(),
                Some(context.clone()),
                wanted.text.clone(),
                request_id(&wanted.id),
            )
        };
        let (session, _) = talk.derive_address()?;
        let phase = AgentTaskPhase::new(State::Submitted, host.options().clock.now());
        let named = AgentTaskIdentity {
            id: wanted.id,
            owner: rights.shared_name(),
            context,
            content,
        };
        let (task, is_new) = self.enter_task(named, session, phase)?;
        if !is_new {
            return Ok(task);
        }
        let talk = TalkRequest {
            taken: Some(task.taken.clone()),
            ..talk
        };
        let door = EntryPoint::Rpc {
            client: client_name(rights.name()),
            role: rights.role(),
        };
        let (running, clock) = (Arc::clone(&task), Arc::clone(&host.options().clock));
        host.spawn_detached(async move {
            let tell =
                |_: MessageId, notice: &SessionNotice| running.handle_notice(&kernel, notice, clock.now());
            let outcome = kernel.send_message(door, talk, &tell).await;
            running.end_task(outcome, clock.now());
        });
        Ok(task)
    }

    /// Resumes a task of an earlier run and follows it to its end. `last` is the last state that its receivers got.
    ///
    /// # Errors
    /// Too many tasks run.
    pub(super) fn resume_task(
        &self,
        host: &AgentHost,
        kernel: &Kernel,
        named: AgentTaskIdentity,
        last: State,
    ) -> Result<Arc<AgentTask>, AgentTaskError> {
        let (owner, id) = (Arc::clone(&named.owner), named.id.clone());
        let talk = TalkRequest::new(
            &owner,
            Some(named.context.clone()),
            String::new(),
            request_id(&id),
        );
        let (session, message) = talk.derive_address()?;
        let phase = AgentTaskPhase::new(last, host.options().clock.now());
        let (task, is_new) = self.enter_task(named, session, phase)?;
        if !is_new {
            return Ok(task);
        }
        let (running, clock, kernel) = (
            Arc::clone(&task),
            Arc::clone(&host.options().clock),
            kernel.clone(),
        );
        host.spawn_detached(async move {
            running.taken.cancel();
            let tell =
                |_: MessageId, notice: &SessionNotice| running.handle_notice(&kernel, notice, clock.now());
            let begun = last != State::Submitted;
            let outcome = kernel
                .rejoin_message((message, begun), &client_name(&owner), &tell)
                .await;
            match outcome.transpose() {
                Some(outcome) => {
                    // It has an answer, so it has been working.
                    if outcome.is_ok() && running.phase.borrow().state == State::Submitted {
                        running.moves_to(State::Working, None, clock.now());
                    }
                    running.end_task(outcome, clock.now());
                }
                None => running.mark_lost(clock.now()),
            }
        });
        Ok(task)
    }

    /// Finds the task with this identity, or adds it in the given state; the flag says whether it is new. A task whose run has
    /// ended is replaced.
    fn enter_task(
        &self,
        named: AgentTaskIdentity,
        session: SessionId,
        phase: AgentTaskPhase,
    ) -> Result<(Arc<AgentTask>, bool), AgentTaskError> {
        let mut tasks = self.lock();
        let known = tasks
            .iter()
            .position(|task| task.owner == named.owner && task.id == named.id);
        if let Some((at, task)) = known.and_then(|at| Some((at, Arc::clone(tasks.get(at)?)))) {
            if task.content != named.content {
                return Err(AgentTaskError::Reused(named.id));
            }
            if !task.phase.borrow().interrupted {
                return Ok((task, false));
            }
            tasks.remove(at);
        }
        if tasks.len() >= MAX_TASKS {
            let ended = tasks.iter().position(|task| task.phase.borrow().state.is_final());
            tasks.remove(ended.ok_or(AgentTaskError::Full)?);
        }
        let mut history = AgentTaskHistory::default();
        history.push(phase.clone());
        let task = Arc::new(AgentTask {
            id: named.id,
            context: named.context,
            owner: named.owner,
            content: named.content,
            session,
            receivers: PushReceivers::default(),
            telling: TurnTextBuffer::default(),
            phase: watch::Sender::new(phase),
            history: Mutex::new(history),
            taken: CancellationToken::new(),
            cancelled: false.into(),
        });
        tasks.push_back(Arc::clone(&task));
        Ok((task, true))
    }

    /// Reads a task of the caller, from memory or from the record.
    ///
    /// # Errors
    /// No such task exists, or the journal can't be read.
    pub(crate) async fn task_view(
        &self,
        kernel: &Kernel,
        owner: &str,
        id: &str,
    ) -> Result<AgentTaskView, AgentTaskError> {
        if let Some(task) = self.find_task(owner, id) {
            return Ok(task.view());
        }
        let unknown = || AgentTaskError::Unknown(id.chars().take(MAX_ID).collect());
        // The turn's id does not depend on the conversation's name.
        let talk = TalkRequest::new(owner, None, String::new(), request_id(id));
        let (_, turn) = talk.derive_address()?;
        let standing = kernel.message_status(turn, &client_name(owner)).await?;
        let standing = standing.ok_or_else(unknown)?;
        let record = standing
            .end
            .as_ref()
            .and_then(|told| told.shown.as_ref()?.to_json());
        let (state, reason, text) = match standing.end {
            Some(told) => final_state(told),
            None => (State::Submitted, None, String::new()),
        };
        let at = standing.at;
        Ok(AgentTaskView {
            id: id.to_owned(),
            context: None,
            phase: AgentTaskPhase {
                reason,
                ..AgentTaskPhase::new(state, at)
            },
            text,
            record,
        })
    }
}

fn final_state(told: TurnResult) -> (State, Option<String>, String) {
    let state = match told.stop {
        TalkStop::Answered | TalkStop::Refused => State::Completed,
        TalkStop::Cancelled => State::Canceled,
        TalkStop::Budget | TalkStop::Stopped | TalkStop::Failed => State::Failed,
    };
    (state, told.reason, told.text)
}

impl AgentTask {
    /// Waits until the message is durable or refused, for at most `TAKING`.
    pub(crate) async fn wait_durable(&self) {
        // silent-ok: the journal is slow, and the client gets the current state
        let _late = tokio::time::timeout(TAKING, self.taken.cancelled()).await;
    }

    /// The current state and its later changes.
    pub(crate) fn subscribe(&self) -> watch::Receiver<AgentTaskPhase> {
        self.phase.subscribe()
    }

    pub(crate) fn view(&self) -> AgentTaskView {
        let phase = self.phase.borrow().clone();
        self.view_in(phase)
    }

    /// The task as it looks in the state `phase`.
    pub(super) fn view_in(&self, phase: AgentTaskPhase) -> AgentTaskView {
        AgentTaskView {
            id: self.id.clone(),
            context: Some(self.context.clone()),
            phase,
            text: self.telling.text(),
            record: self.telling.turn_record(),
        }
    }

    /// Cancels the task. Returns `false` if it has already ended.
    pub(crate) fn cancel(&self, kernel: &Kernel) -> bool {
        use std::sync::atomic::Ordering;
        let state = self.phase.borrow().state;
        if state.is_final() {
            return false;
        }
        self.cancelled.store(true, Ordering::SeqCst);
        // A task that waits behind another turn is cancelled when its own turn begins.
        if state != State::Submitted {
            kernel.cancel_turn(self.session);
        }
        true
    }

    /// The states from position `at` on, and the next position.
    pub(super) fn phases_since(&self, at: u64) -> (Vec<AgentTaskPhase>, u64) {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = usize::try_from(at.saturating_sub(history.dropped)).unwrap_or(usize::MAX);
        let fresh = history.phases.iter().skip(skip).cloned().collect();
        let length = u64::try_from(history.phases.len()).unwrap_or(u64::MAX);
        (fresh, history.dropped.saturating_add(length))
    }

    fn moves_to(&self, state: State, reason: Option<String>, at: Timestamp) {
        self.set_phase(AgentTaskPhase {
            reason,
            ..AgentTaskPhase::new(state, at)
        });
    }

    fn set_phase(&self, next: AgentTaskPhase) {
        self.phase.send_if_modified(|phase| {
            let moves = phase.state != next.state && !phase.state.is_final();
            if moves {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.push(next.clone());
                *phase = next;
            }
            moves
        });
    }

    /// Marks the task as failed: the record does not know it, because the host ended before the message was durable.
    fn mark_lost(&self, now: Timestamp) {
        let reason = "the host ended before it had taken the message; send it again";
        self.taken.cancel();
        self.telling
            .end_turn(Err(KernelError::Refused(reason.to_owned())));
        self.moves_to(State::Failed, Some(reason.to_owned()), now);
    }

    fn handle_notice(&self, kernel: &Kernel, notice: &SessionNotice, now: Timestamp) {
        self.telling.add_notice(notice);
        match notice {
            SessionNotice::TurnStarted { .. } => {
                self.moves_to(State::Working, None, now);
                if self.cancelled.load(std::sync::atomic::Ordering::SeqCst) {
                    kernel.cancel_turn(self.session);
                }
            }
            SessionNotice::Asking(question) => {
                self.moves_to(State::AuthRequired, Some(question.reason.clone()), now)
            }
            SessionNotice::Planned(_) => self.moves_to(State::AuthRequired, None, now),
            SessionNotice::CallDecided { .. } => self.moves_to(State::Working, None, now),
            _ => {}
        }
    }

    fn end_task(&self, outcome: Result<TurnResult, KernelError>, now: Timestamp) {
        let (state, reason) = match &outcome {
            Ok(told) => {
                let (state, reason, _) = final_state(told.clone());
                (state, reason)
            }
            // The agent is stopping: the message is durable, and this process can do no more for it.
            Err(error @ KernelError::NotReady(_)) => (State::Failed, Some(error.to_string())),
            Err(error) => (State::Rejected, Some(error.to_string())),
        };
        let interrupted = matches!(&outcome, Err(KernelError::NotReady(_)));
        self.taken.cancel();
        self.telling.end_turn(outcome);
        self.set_phase(AgentTaskPhase {
            reason,
            interrupted,
            ..AgentTaskPhase::new(state, now)
        });
    }
}
