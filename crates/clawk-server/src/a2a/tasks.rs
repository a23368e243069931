//! Tasks (R23): a message to the agent as something that has an id, a state, and an end; for `/a2a` and for `claw.task.*` alike.
//! A task is a turn: its id gives the turn's id, so one that this process does not know is found in the record.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::push::Receivers;
use clawk_kernel::time::Timestamp;
use clawk_kernel::{Attached, Door, Kernel, KernelError, Notice, Talk, TalkStop, Told};
use clawk_proto::{MessageId, RequestId, SessionId};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::access::Rights;
use crate::host::Host;
use crate::telling::Telling;

/// Tasks that are kept in memory; the oldest that has ended goes first.
const MAX_TASKS: usize = 1_024;
/// Characters of a task's id.
const MAX_ID: usize = 256;

/// How a task stands. The states of both protocols, one to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Taken; its turn has not begun.
    Submitted,
    /// Its turn runs.
    Working,
    /// A person is asked whether a call may run.
    AuthRequired,
    /// Answered.
    Completed,
    /// Its turn could not be finished.
    Failed,
    /// Somebody cancelled it.
    Canceled,
    /// The agent did not take it.
    Rejected,
}

impl State {
    /// The word of `claw.task.*`.
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

    /// The word of A2A.
    pub(crate) const fn a2a(self) -> &'static str {
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

    /// Nothing follows.
    pub(crate) const fn is_final(self) -> bool {
        match self {
            Self::Submitted | Self::Working | Self::AuthRequired => false,
            Self::Completed | Self::Failed | Self::Canceled | Self::Rejected => true,
        }
    }
}

/// A state, since when, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) state: State,
    pub(crate) at: Timestamp,
    /// For people.
    pub(crate) reason: Option<String>,
}

/// A task of this process.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: String,
    /// Its conversation.
    pub(crate) context: String,
    owner: Arc<str>,
    text: String,
    images: Vec<Attached>,
    session: SessionId,
    pub(super) receivers: Receivers,
    pub(crate) telling: Telling,
    phase: watch::Sender<Phase>,
    /// Somebody wants its end.
    cancelled: std::sync::atomic::AtomicBool,
}

/// What is told of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) id: String,
    /// Its conversation; none where only the record knows the task.
    pub(crate) context: Option<String>,
    pub(crate) phase: Phase,
    /// What the agent has said so far.
    pub(crate) text: String,
    /// What its turn did by the record, once it has ended and where the record has something to say.
    pub(crate) record: Option<Value>,
}

/// What a task asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) id: String,
    pub(crate) context: Option<String>,
    pub(crate) text: String,
    /// Pictures that come with it.
    pub(crate) images: Vec<Attached>,
}

/// Why there is no task.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// No such task of this caller.
    #[error("there is no task `{0}`")]
    Unknown(String),
    /// The same id with another content.
    #[error("the task `{0}` was created with another content")]
    Reused(String),
    /// Its id or its conversation's name.
    #[error("{0}")]
    Invalid(String),
    /// Too many at once.
    #[error("{MAX_TASKS} tasks are under way")]
    Full,
    /// The kernel's word.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// The tasks of a host.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<VecDeque<Arc<Task>>>);

/// Whose door it is: tasks of one owner are the same by either protocol.
fn client(owner: &str) -> String {
    format!("a2a:{owner}")
}

/// A task's id as a request's id: a UUID as it is, any other name as a UUID of it.
fn request_id(id: &str) -> RequestId {
    RequestId::parse(id).unwrap_or_else(|_| {
        let digest = Sha256::digest(id.as_bytes());
        let half = digest.first_chunk::<16>().copied().unwrap_or_default();
        RequestId::from(uuid::Builder::from_custom_bytes(half).into_uuid())
    })
}

/// A task's id for a message that has one of the client's own.
pub(crate) fn id_of(message: &str) -> String {
    let digest = Sha256::digest(format!("a2a message {message}").as_bytes());
    let half = digest.first_chunk::<16>().copied().unwrap_or_default();
    uuid::Builder::from_custom_bytes(half).into_uuid().to_string()
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Task>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller's task of this id, if this process knows it.
    pub(crate) fn find(&self, owner: &str, id: &str) -> Option<Arc<Task>> {
        let tasks = self.lock();
        tasks
            .iter()
            .find(|task| *task.owner == *owner && task.id == id)
            .cloned()
    }

    /// The caller's tasks, the latest first.
    pub(crate) fn of(&self, owner: &str) -> Vec<Arc<Task>> {
        self.lock()
            .iter()
            .rev()
            .filter(|task| *task.owner == *owner)
            .cloned()
            .collect()
    }

    /// Takes a task, or finds the one of the same id and content.
    ///
    /// # Errors
    /// The id is another content's, or not an id; too many are under way.
    pub(crate) fn create(
        &self,
        host: &Host,
        kernel: Kernel,
        rights: &Rights,
        wanted: Wanted,
    ) -> Result<Arc<Task>, Fault> {
        if wanted.id.is_empty() || wanted.id.len() > MAX_ID || wanted.id.chars().any(char::is_control) {
            return Err(Fault::Invalid(format!(
                "a task's id has 1 to {MAX_ID} characters, none of them a control character"
            )));
        }
        let context = wanted.context.unwrap_or_else(|| wanted.id.clone());
        let talk = Talk {
            images: wanted.images.clone(),
            ..Talk::new(
                rights.name(),
                Some(context.clone()),
                wanted.text.clone(),
                request_id(&wanted.id),
            )
        };
        let (session, _) = talk.address()?;
        let now = host.options().clock.now();
        let task = {
            let mut tasks = self.lock();
            if let Some(known) = tasks
                .iter()
                .find(|task| *task.owner == *rights.name() && task.id == wanted.id)
            {
                let same =
                    known.text == wanted.text && known.context == context && known.images == wanted.images;
                return if same {
                    Ok(Arc::clone(known))
                } else {
                    Err(Fault::Reused(wanted.id))
                };
            }
            if tasks.len() >= MAX_TASKS {
                let ended = tasks.iter().position(|task| task.phase.borrow().state.is_final());
                let ended = ended.ok_or(Fault::Full)?;
                tasks.remove(ended);
            }
            let phase = Phase {
                state: State::Submitted,
                at: now,
                reason: None,
            };
            let task = Arc::new(Task {
                id: wanted.id,
                context,
                owner: rights.shared_name(),
                text: wanted.text,
                images: wanted.images,
                session,
                receivers: Receivers::default(),
                telling: Telling::default(),
                phase: watch::Sender::new(phase),
                cancelled: false.into(),
            });
            tasks.push_back(Arc::clone(&task));
            task
        };
        let door = Door::Rpc {
            client: client(rights.name()),
            role: rights.role(),
        };
        let (running, clock) = (Arc::clone(&task), Arc::clone(&host.options().clock));
        host.outlive(async move {
            let tell = |_: MessageId, notice: &Notice| running.hear(&kernel, notice, clock.now());
            let outcome = kernel.talk(door, talk, &tell).await;
            running.end(outcome, clock.now());
        });
        Ok(task)
    }

    /// A task of the caller's, from memory or from the record.
    ///
    /// # Errors
    /// There is none; the journal can't be read.
    pub(crate) async fn view(&self, kernel: &Kernel, owner: &str, id: &str) -> Result<View, Fault> {
        if let Some(task) = self.find(owner, id) {
            return Ok(task.view());
        }
        let unknown = || Fault::Unknown(id.chars().take(MAX_ID).collect());
        // The turn's id does not hang on the conversation's name.
        let talk = Talk::new(owner, None, String::new(), request_id(id));
        let (_, turn) = talk.address()?;
        let standing = kernel.standing(turn, &client(owner)).await?;
        let standing = standing.ok_or_else(unknown)?;
        let record = standing
            .end
            .as_ref()
            .and_then(|told| told.shown.as_ref()?.facts());
        let (state, reason, text) = match standing.end {
            Some(told) => ended(told),
            None => (State::Submitted, None, String::new()),
        };
        let at = standing.at;
        Ok(View {
            id: id.to_owned(),
            context: None,
            phase: Phase { state, at, reason },
            text,
            record,
        })
    }
}

fn ended(told: Told) -> (State, Option<String>, String) {
    let state = match told.stop {
        TalkStop::Answered | TalkStop::Refused => State::Completed,
        TalkStop::Cancelled => State::Canceled,
        TalkStop::Budget | TalkStop::Stopped | TalkStop::Failed => State::Failed,
    };
    (state, told.reason, told.text)
}

impl Task {
    /// Its state, and every change of it.
    pub(crate) fn follow(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn view(&self) -> View {
        View {
            id: self.id.clone(),
            context: Some(self.context.clone()),
            phase: self.phase.borrow().clone(),
            text: self.telling.text(),
            record: self.telling.record(),
        }
    }

    /// Its turn ends soon, if it has not ended. `false`: it has.
    pub(crate) fn cancel(&self, kernel: &Kernel) -> bool {
        use std::sync::atomic::Ordering;
        let state = self.phase.borrow().state;
        if state.is_final() {
            return false;
        }
        self.cancelled.store(true, Ordering::SeqCst);
        // One that waits behind another's turn is cancelled when it begins.
        if state != State::Submitted {
            kernel.cancel_turn(self.session);
        }
        true
    }

    fn moves_to(&self, state: State, reason: Option<String>, at: Timestamp) {
        self.phase.send_if_modified(|phase| {
            let moves = phase.state != state && !phase.state.is_final();
            if moves {
                *phase = Phase { state, at, reason };
            }
            moves
        });
    }

    fn hear(&self, kernel: &Kernel, notice: &Notice, now: Timestamp) {
        self.telling.tell(notice);
        match notice {
            Notice::TurnStarted { .. } => {
                self.moves_to(State::Working, None, now);
                if self.cancelled.load(std::sync::atomic::Ordering::SeqCst) {
                    kernel.cancel_turn(self.session);
                }
            }
            Notice::Asking(question) => {
                self.moves_to(State::AuthRequired, Some(question.reason.clone()), now)
            }
            Notice::Planned(_) => self.moves_to(State::AuthRequired, None, now),
            Notice::CallDecided { .. } => self.moves_to(State::Working, None, now),
            _ => {}
        }
    }

    fn end(&self, outcome: Result<Told, KernelError>, now: Timestamp) {
        let (state, reason) = match &outcome {
            Ok(told) => {
                let (state, reason, _) = ended(told.clone());
                (state, reason)
            }
            // The agent ends: the message is durable, and this process has nothing more to say of it.
            Err(error @ KernelError::NotReady(_)) => (State::Failed, Some(error.to_string())),
            Err(error) => (State::Rejected, Some(error.to_string())),
        };
        self.telling.end(outcome);
        self.moves_to(state, reason, now);
    }
}
