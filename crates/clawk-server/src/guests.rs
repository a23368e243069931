//! Clients of a queue or a folder. Each has a name and its own connection. Their CKP sessions survive this process: clawk stores
//! each client's `claw.initialize` beside the state, so a message that is delivered again after a crash finds its session.

mod answers;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::body::Bytes;
use clawk_kernel::Role;
use clawk_kernel::time::{SteadyClock, Timestamp};
use clawk_proto::method::Method;
use clawk_proto::rpc::{InboundRpc, RpcId, RpcMessage, parse, write_error};
use clawk_proto::{ErrorCode, RpcError};
use clawk_recall::seal::SealKeyring;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use answers::{AnswerLog, GuestRequest, GuestRequestLookup};

use crate::access::ClientRights;
use crate::clients::{AddressedMessage, ClientConnection, ClientEndPolicy, ClientSessionEnd, SILENCE};
use crate::host::AgentHost;
use crate::transport::outbox::{Outbox, OutgoingMessages};

/// The largest number of clients of one door.
const MOST: usize = 1_024;
/// The longest client name, characters.
const MAX_NAME: usize = 128;
/// The longest stored `claw.initialize`, bytes. A client with a longer one must initialize again after a restart.
const MAX_HELLO: usize = 1 << 20;
/// How stale the recorded time of a client's last message may be.
const TOUCH: Duration = Duration::from_secs(60);

/// How long the kernel surely keeps the answer to a call (R19), less the time for a delivery. This also covers an answer that a
/// crash kept out of [`AnswerLog`].
const ANSWER_KEPT: Duration = Duration::from_secs(290);

/// The kind of a message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    /// `claw.initialize`.
    Hello,
    /// `claw.shutdown`. A repeated one does not end a later session of the client.
    Bye(GuestRequest),
    /// A request with effects.
    Acts(GuestRequest),
    /// Another request; repeating it is harmless.
    Asks,
    /// Expects no answer.
    Tells,
    /// Not a valid message; holds the error to answer with.
    Bad(RpcError),
}

impl Kind {
    pub(crate) fn from_message(message: &[u8]) -> Self {
        let wants = |message: &RpcMessage<'_>| match message {
            RpcMessage::Request(request) => request.id.is_some(),
            RpcMessage::Refused(_) => true,
            RpcMessage::Ignored => false,
        };
        match parse(message) {
            InboundRpc::One(RpcMessage::Refused(refused)) if refused.id == RpcId::NULL => {
                Self::Bad(refused.error)
            }
            InboundRpc::One(RpcMessage::Request(request)) if request.id.is_some() => {
                let id = || {
                    let id = request.id.as_ref().map(|id| id.as_json().to_owned());
                    id.unwrap_or_default()
                };
                match Method::from_name(&request.method) {
                    Some(Method::Initialize) => Self::Hello,
                    Some(Method::Shutdown) => Self::Bye(GuestRequest::of_message(id(), message)),
                    Some(Method::ToolCall | Method::MemoryStore | Method::SwarmDelegate) => {
                        Self::Acts(GuestRequest::new(id(), &request.method, request.params))
                    }
                    Some(_) | None => Self::Asks,
                }
            }
            InboundRpc::One(message) if wants(&message) => Self::Asks,
            InboundRpc::Batch(messages) if messages.iter().any(wants) => Self::Asks,
            InboundRpc::One(_) | InboundRpc::Batch(_) => Self::Tells,
        }
    }
}

/// A message that was passed to its client's connection.
#[derive(Debug)]
pub(crate) struct GuestDelivery {
    /// Its answer and the notifications before it.
    pub(crate) outlet: Arc<OutgoingMessages>,
    /// Messages that answer no request; only present with a client's first message.
    pub(crate) notices: Option<Arc<OutgoingMessages>>,
    /// The message's number among all messages of the door.
    pub(crate) order: u64,
}

/// All clients of one door.
#[derive(Debug, Clone)]
pub(crate) struct GuestClients(Arc<GuestClientsInner>);

#[derive(Debug)]
struct GuestClientsInner {
    host: AgentHost,
    door: &'static str,
    role: Role,
    kept: PathBuf,
    answers: AnswerLog,
    tasks: TaskTracker,
    over: CancellationToken,
    open: Mutex<HashMap<String, (u64, ClientConnection)>>,
    serial: AtomicU64,
    /// By client: the number of the latest answered `claw.initialize` or `claw.shutdown`.
    latest: Mutex<HashMap<String, u64>>,
    steady: SteadyClock,
}

impl GuestClients {
    /// Creates an empty set of clients. `kept` is a folder below the state directory; it is created.
    ///
    /// # Errors
    /// The folder can't be created.
    pub(crate) fn new(
        host: AgentHost,
        door: &'static str,
        role: Role,
        (kept, vault): (PathBuf, Option<SealKeyring>),
    ) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&kept)?;
        let steady = SteadyClock::new(Arc::clone(&host.options().clock));
        clamp_future_times(&kept, door, steady.now());
        let answers = AnswerLog::open(kept.join(format!("{door}-answers")), steady.now(), vault)?;
        Ok(Self(Arc::new(GuestClientsInner {
            answers,
            host,
            door,
            role,
            kept,
            tasks: TaskTracker::new(),
            over: CancellationToken::new(),
            open: Mutex::default(),
            serial: AtomicU64::new(0),
            latest: Mutex::default(),
            steady,
        })))
    }

    /// The host that serves these clients.
    pub(crate) fn host(&self) -> &AgentHost {
        &self.0.host
    }

    fn lock_open(&self) -> MutexGuard<'_, HashMap<String, (u64, ClientConnection)>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a client's message to its connection.
    ///
    /// # Errors
    /// The error to send to the client.
    pub(crate) async fn deliver_message(
        &self,
        name: &str,
        kind: &Kind,
        message: Bytes,
    ) -> Result<GuestDelivery, RpcError> {
        let plain = name.chars().count() <= MAX_NAME && !name.chars().any(char::is_control);
        if !plain {
            let message =
                format!("a client's name has at most {MAX_NAME} characters, none a control character");
            return Err(refusal_error(&message, "bad_client"));
        }
        // The session may end between the lookup and the send; then a new session gets the message.
        for _ in 0..3 {
            let (client, fresh) = self.client_connection(name)?;
            if fresh && *kind != Kind::Hello {
                self.greet_for(name, &client).await;
            }
            let order = self.0.serial.fetch_add(1, Ordering::Relaxed);
            let reply = Arc::new(Outbox::default());
            let outlet = reply.outlet();
            let letter = AddressedMessage {
                message: message.clone(),
                reply,
            };
            if client.send_message(letter).await {
                self.touch_session(name);
                return Ok(GuestDelivery {
                    outlet,
                    notices: fresh.then(|| Arc::clone(&client.notices)),
                    order,
                });
            }
            tokio::task::yield_now().await;
        }
        Err(refusal_error("the session ends; try again", "session_ends"))
    }

    /// The client's connection, and whether it is new.
    fn client_connection(&self, name: &str) -> Result<(ClientConnection, bool), RpcError> {
        let mut open = self.lock_open();
        if let Some((_, client)) = open.get(name)
            && !client.is_gone()
        {
            return Ok((client.clone(), false));
        }
        if open.len() >= MOST {
            let message = format!("{MOST} clients are here, which is the most");
            return Err(refusal_error(&message, "too_many_clients"));
        }
        let serial = self.0.serial.fetch_add(1, Ordering::Relaxed);
        let rights = ClientRights::by_role(format!("{} {name}", self.0.door).trim_end(), self.0.role);
        let (inner, gone) = (Arc::downgrade(&self.0), name.to_owned());
        let client = ClientConnection::open(
            self.0.host.clone(),
            rights,
            ClientEndPolicy::SilentOrShutDown,
            (&self.0.tasks, &self.0.over),
            move |how| remove_client(&inner, &gone, serial, how),
        );
        open.insert(name.to_owned(), (serial, client.clone()));
        Ok((client, true))
    }

    /// Sends the stored `claw.initialize` for a client of an earlier process.
    async fn greet_for(&self, name: &str, client: &ClientConnection) {
        let path = self.0.session_path(name);
        let fresh = fs::metadata(&path)
            .and_then(|kept| kept.modified())
            .is_ok_and(|at| silent_for(at) < SILENCE);
        let Some(hello) = fs::read(&path).ok().filter(|_| fresh) else {
            return; // silent-ok: a client that is not known initializes itself
        };
        let letter = AddressedMessage {
            message: hello.into(),
            reply: Arc::default(),
        };
        client.send_message(letter).await;
    }

    /// Updates the stored session before an answer is published: a successful `claw.initialize` is stored, a successful
    /// `claw.shutdown` deletes it. The client may send its next message as soon as it reads the answer. Answers may arrive here in
    /// another order than the messages; the latest message counts.
    pub(crate) fn note_answer(&self, name: &str, kind: &Kind, (order, message): (u64, &[u8]), answer: &[u8]) {
        let done = || {
            serde_json::from_slice::<serde_json::Value>(answer)
                .is_ok_and(|answer| answer.get("result").is_some())
        };
        if !matches!(kind, Kind::Hello | Kind::Bye(_)) || !done() {
            return;
        }
        let mut latest = self.0.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.get(name).is_some_and(|known| *known > order) {
            return;
        }
        if latest.len() >= MOST {
            latest.clear();
        }
        latest.insert(name.to_owned(), order);
        if *kind == Kind::Hello {
            self.0.store_hello(name, message);
        } else {
            self.0.forget_session(name);
        }
    }

    /// Stores the answer to a call before it is published.
    pub(crate) fn keep_answer(&self, name: &str, kind: &Kind, answer: &[u8]) {
        if let Kind::Acts(act) | Kind::Bye(act) = kind {
            self.0
                .answers
                .store_answer(name, act, answer, self.0.steady.now());
        }
    }

    /// How long ago a message was placed or taken, by the wall clock.
    pub(crate) fn message_age(&self, at: Timestamp) -> Duration {
        let running = self.0.host.current_kernel().get();
        if running.is_some_and(|kernel| kernel.is_clock_behind()) {
            return Duration::MAX;
        }
        self.0.steady.elapsed_since(at)
    }

    /// The stored answer to a call that this door has already answered (R19). `again`: how long ago the message was delivered
    /// before.
    pub(crate) fn earlier_answer(&self, name: &str, kind: &Kind, again: Option<Duration>) -> Option<Vec<u8>> {
        let act = match kind {
            Kind::Acts(act) => act,
            // A new message with the same text may end another session, so only a repeated delivery gets the stored answer.
            Kind::Bye(act) if again.is_some() => act,
            Kind::Hello | Kind::Bye(_) | Kind::Asks | Kind::Tells | Kind::Bad(_) => return None,
        };
        match self.0.answers.find_request(name, act, self.0.steady.now()) {
            Some(GuestRequestLookup::Answer(answer)) => Some(answer.answer_line(&act.id)),
            Some(GuestRequestLookup::Reused) => {
                let message = "this request id was used with other arguments";
                let error = RpcError::new(ErrorCode::InvalidParams, message)
                    .with(json!({"reason": "request_id_reused"}));
                Some(with_id(&act.id, &error))
            }
            None => unknown_outcome(kind, again.is_some(), again.unwrap_or_default()),
        }
    }

    fn touch_session(&self, name: &str) {
        let path = self.0.session_path(name);
        let Ok(file) = File::open(&path) else {
            return; // silent-ok: it never initialized
        };
        let old = file
            .metadata()
            .and_then(|kept| kept.modified())
            // A time in the future means that the wall clock was set back: the file's time is corrected.
            .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > TOUCH) || at.elapsed().is_err());
        if old {
            let now = self.0.host.options().clock.now();
            let now = u64::try_from(now.0).unwrap_or(0);
            // silent-ok: the session is only forgotten a little early
            let _set = file.set_modified(std::time::UNIX_EPOCH + Duration::from_micros(now));
        }
    }

    /// Runs a task until [`GuestClients::close`].
    pub(crate) fn spawn_task(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(work);
    }

    /// Whether the door is closing.
    pub(crate) fn is_closing(&self) -> bool {
        self.0.over.is_cancelled()
    }

    /// Ends all connections. Waits for requests in flight for at most `patience`.
    pub(crate) async fn close(&self, patience: Duration) {
        self.0.over.cancel();
        self.0.tasks.close();
        if tokio::time::timeout(patience, self.0.tasks.wait()).await.is_err() {
            tracing::warn!(
                door = self.0.door,
                "answers are owed; they are given after the next start"
            );
        }
    }
}

/// The time since the last message, from a file's time. A time in the future counts as now: the wall clock was set back, and the
/// client must not be cut off for that.
fn silent_for(at: std::time::SystemTime) -> Duration {
    at.elapsed().unwrap_or_default() // silent-ok: as above
}

/// Sets file times in the future to now. Otherwise, after the wall clock was set back, those files would be kept too long.
fn clamp_future_times(kept: &Path, door: &str, now: Timestamp) {
    let now = std::time::UNIX_EPOCH + Duration::from_micros(u64::try_from(now.0).unwrap_or(0));
    for entry in fs::read_dir(kept).into_iter().flatten().flatten() {
        let own = entry
            .file_name()
            .to_string_lossy()
            .starts_with(&format!("{door}-"));
        let ahead = entry
            .metadata()
            .and_then(|kept| kept.modified())
            .is_ok_and(|at| at > now);
        if own && ahead {
            // silent-ok: the session is only kept longer
            let _set = File::open(entry.path()).and_then(|file| file.set_modified(now));
        }
    }
}

/// Called when a client's connection has ended. If the host is stopping, the session continues after the next start. A session that
/// `claw.shutdown` ended was deleted with its answer; the client may have initialized again since.
fn remove_client(inner: &Weak<GuestClientsInner>, name: &str, serial: u64, how: ClientSessionEnd) {
    let Some(inner) = inner.upgrade() else { return };
    let mut open = inner.open.lock().unwrap_or_else(PoisonError::into_inner);
    if open.get(name).is_some_and(|(known, _)| *known == serial) {
        open.remove(name);
        if how == ClientSessionEnd::Silent && !inner.over.is_cancelled() {
            inner.forget_session(name);
        }
    }
}

impl GuestClientsInner {
    fn session_path(&self, name: &str) -> PathBuf {
        let digest = Sha256::digest(name.as_bytes());
        let half = digest.first_chunk::<16>().copied().unwrap_or_default();
        self.kept
            .join(format!("{}-{:032x}.json", self.door, u128::from_be_bytes(half)))
    }

    fn store_hello(&self, name: &str, hello: &[u8]) {
        if hello.len() > MAX_HELLO {
            return tracing::warn!("a `claw.initialize` is too long to be kept over a restart");
        }
        let path = self.session_path(name);
        if let Err(error) = write(&path, hello) {
            tracing::warn!(%error, "a client's session will not outlive a restart");
        }
    }

    fn forget_session(&self, name: &str) {
        // silent-ok: it may never have been stored
        let _gone = fs::remove_file(self.session_path(name));
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    fs::rename(&temporary, path)
}

fn refusal_error(message: &str, reason: &str) -> RpcError {
    RpcError::new(ErrorCode::InvalidRequest, message).with(json!({"reason": reason}))
}

/// The `outcome_unknown` answer for a repeated call whose first delivery is so old that its answer may be gone. The call does not
/// run again, since it may have run before. `None` if this can't be, or if repeating the message is harmless.
fn unknown_outcome(kind: &Kind, again: bool, age: Duration) -> Option<Vec<u8>> {
    let Kind::Acts(act) = kind else { return None };
    if !again || age < ANSWER_KEPT {
        return None;
    }
    let message = "this was delivered before, and whether it was done is not known any more; look at the trace, then ask with a \
                   new request id";
    let error = RpcError::new(ErrorCode::Internal, message).with(json!({"reason": "outcome_unknown"}));
    Some(with_id(&act.id, &error))
}

fn with_id(id: &str, error: &RpcError) -> Vec<u8> {
    let mut answer = Vec::new();
    write_error(&mut answer, &RpcId::of_json(id).unwrap_or(RpcId::NULL), error);
    answer
}

/// An error without a request id, as JSON text.
pub(crate) fn no_id(error: &RpcError) -> Vec<u8> {
    let mut answer = Vec::new();
    write_error(&mut answer, &RpcId::NULL, error);
    answer
}

/// Whether a line is the answer to a request.
pub(crate) fn is_answer(line: &[u8]) -> bool {
    !line.starts_with(br#"{"jsonrpc":"2.0","method":"#)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use std::time::SystemTime;

    use clawk_kernel::time::Timestamp;

    use super::{Kind, SILENCE, clamp_future_times, silent_for, unknown_outcome};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "times of files are the wall clock's")]
    fn a_wall_clock_that_goes_back_cuts_no_client_off() {
        let now = SystemTime::now();
        let hour = Duration::from_secs(3_600);
        assert!(silent_for(now + hour) < SILENCE, "the clock went back an hour");
        assert!(silent_for(now - hour / 2) < SILENCE);
        assert!(silent_for(now - hour * 2) >= SILENCE, "real silence");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "times of files are the wall clock's")]
    fn a_session_that_was_kept_before_the_clock_was_set_back_counts_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let year = Duration::from_secs(365 * 86_400);
        let file = |name: &str, at: SystemTime| {
            let path = folder.path().join(name);
            std::fs::write(&path, "{}").unwrap();
            let file = std::fs::File::open(&path).unwrap();
            file.set_modified(at).unwrap();
            path
        };
        let (ahead, old) = (file("dir-a.json", now + year), file("dir-b.json", now - year));
        let other = file("nats-a.json", now + year);
        let micros = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
        clamp_future_times(folder.path(), "dir", Timestamp(i64::try_from(micros).unwrap()));
        let modified = |path: &std::path::Path| std::fs::metadata(path).unwrap().modified().unwrap();
        assert!(modified(&ahead) <= now);
        assert!(silent_for(modified(&old)) >= SILENCE, "as it was");
        assert!(modified(&other) > now, "another door's");
    }

    #[test]
    fn a_call_that_may_have_been_done_long_ago_is_not_done_again() {
        let call = Kind::from_message(br#"{"jsonrpc":"2.0","id":"a","method":"claw.tool.call","params":{}}"#);
        let (short, long) = (Duration::from_secs(60), Duration::from_secs(600));
        assert_eq!(unknown_outcome(&call, false, long), None, "its first delivery");
        assert_eq!(unknown_outcome(&call, true, short), None, "its answer is kept");
        let answer = unknown_outcome(&call, true, long).expect("refused");
        let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(
            (&answer["id"], &answer["error"]["data"]["reason"]),
            (&"a".into(), &"outcome_unknown".into())
        );
        let looks = Kind::from_message(br#"{"jsonrpc":"2.0","id":1,"method":"claw.status","params":{}}"#);
        assert_eq!(unknown_outcome(&looks, true, long), None);
        // Messages are known for at least seven days.
        let says =
            Kind::from_message(br#"{"jsonrpc":"2.0","id":1,"method":"claw.message.send","params":{}}"#);
        assert_eq!(unknown_outcome(&says, true, long), None);
    }
}
