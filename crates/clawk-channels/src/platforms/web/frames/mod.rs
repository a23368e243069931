//! Frames over a WebSocket, for programs and pages of others: JSON texts, accepted messages, numbered answers, questions. A token
//! names a person or, where it is shared, nobody: then each session speaks for itself.

mod hear;
mod show;

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clawk_kernel::ports::SocketFrame;
use http::header::{AUTHORIZATION, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::log::Log;
use super::seats::{SignInRegistry, SignedIn, secret_digest};
use super::sound::{VoicePipeline, VoiceRecording};
use super::{SHARED, STALL};
use crate::adapter::{HookReply, HookRequest, HookResponse, HookWebSocket, InboundPipeline};

/// The subprotocol, and how a page says its token: base64url of it, without padding.
pub(super) const PROTOCOL: &str = "clawk.v1";
const TOKEN: &str = "bearer.";
/// The longest frame, bytes.
const MAX_FRAME: usize = 1 << 20;
/// How long a program may take for its first frame.
const HELLO: Duration = Duration::from_secs(10);
/// Frames that wait in each direction.
const BEHIND: usize = 16;
/// Messages of one socket that wait to be taken in.
const WAITING: usize = 16;
/// Bytes of a session's secret, and characters of a message's id.
const SECRET: usize = 32;
const MAX_ID: usize = 128;
/// Bytes of a frame of sound.
const SOUND_BYTES: usize = 32 << 10;

/// Close codes (RFC 6455 §7.4.1).
const UNSUPPORTED: u16 = 1003;
const INVALID: u16 = 1007;
const POLICY: u16 = 1008;
const AGAIN: u16 = 1013;

/// How a socket is closed: the code and why.
type SocketCloseReason = (u16, &'static str);

/// What a program says.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
enum ClientFrame {
    Hello {
        session: Option<String>,
        /// The newest number that it has; absent: what it acknowledged.
        after: Option<u64>,
    },
    Message {
        id: String,
        text: String,
    },
    Press {
        question: String,
        choice: String,
        reason: Option<String>,
    },
    Ack {
        seq: u64,
    },
    #[serde(rename = "audio-start")]
    AudioStart {
        id: String,
        media_type: String,
    },
    #[serde(rename = "audio-end")]
    AudioEnd {
        id: String,
    },
    /// Stops the sound that is being sent; the text stays.
    Cancel {},
}

/// What sockets of one channel share.
#[derive(Clone)]
pub(super) struct SocketContext {
    pub(super) seats: SignInRegistry,
    pub(super) log: Arc<Log>,
    /// Streams and sockets that are open.
    pub(super) places: Arc<Semaphore>,
    /// The scheme and host under which the channel is known, where they are configured.
    pub(super) known_as: Option<String>,
    /// Recordings, where the channel takes them.
    pub(super) sound: Option<Arc<VoicePipeline>>,
}

/// Who speaks on a socket, and in which conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SocketSpeaker {
    pub(super) sender: String,
    pub(super) conversation: String,
}

impl SocketSpeaker {
    /// `None`: the session's secret is not one of ours.
    pub(super) fn from_session(user: &str, session: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(session).ok()?; // silent-ok: what can't be decoded is not ours
        if bytes.len() != SECRET {
            return None;
        }
        // The secret itself is kept nowhere.
        let tag: String = secret_digest(session).chars().take(32).collect();
        let sender = if user == SHARED {
            format!("session-{tag}")
        } else {
            user.to_owned()
        };
        Some(Self {
            conversation: format!("{sender}/{tag}"),
            sender,
        })
    }
}

/// Whether a request asks for a WebSocket.
pub(super) fn asks(hook: &HookRequest) -> bool {
    hook.header(UPGRADE.as_str())
        .is_some_and(|to| to.eq_ignore_ascii_case("websocket"))
}

/// The token of a request: of its header, or of the second subprotocol.
pub(super) fn request_token(hook: &HookRequest) -> Option<String> {
    if let Some(header) = hook.header(AUTHORIZATION.as_str()) {
        return header.strip_prefix("Bearer ").map(str::to_owned);
    }
    let coded = offered_protocols(hook).find_map(|offered| offered.strip_prefix(TOKEN))?;
    let token = URL_SAFE_NO_PAD.decode(coded).ok()?; // silent-ok: no token of ours
    String::from_utf8(token).ok() // silent-ok: the same
}

fn offered_protocols(hook: &HookRequest) -> impl Iterator<Item = &str> {
    let all = hook.headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    all.filter_map(|value| value.to_str().ok()) // silent-ok: not ours
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// What a socket is refused with.
fn refusal_response(status: u16, reason: &str) -> HookResponse {
    HookReply::refusal(status, reason).into()
}

impl SocketContext {
    /// Opens a socket for whoever has a token.
    pub(super) fn open_socket(&self, inlet: &Arc<InboundPipeline>, hook: &HookRequest) -> HookResponse {
        if !self.is_own_page(hook) {
            return refusal_response(403, "pages of other sites may not open a socket here");
        }
        if !offered_protocols(hook).any(|offered| offered == PROTOCOL) {
            return refusal_response(400, "the subprotocol `clawk.v1` is wanted");
        }
        let user = match request_token(hook).map(|token| self.seats.whose_token(&token, inlet.clock().now()))
        {
            None => return refusal_response(401, "a token is wanted"),
            Some(Ok(user)) => user,
            Some(Err(SignedIn::Closed)) => {
                return refusal_response(429, "too many wrong tokens; none is looked at for a minute");
            }
            Some(Err(_)) => return refusal_response(401, "the token is not right"),
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return refusal_response(429, "too many pages are open");
        };
        let (heard, hears) = mpsc::channel(BEHIND);
        let (says, said) = mpsc::channel(BEHIND);
        let (sockets, inside) = (self.clone(), Arc::clone(inlet));
        inlet.spawn_task(async move {
            let out = FrameSender(says);
            if let Err((code, reason)) = sockets.run_socket(&inside, &user, hears, &out).await {
                // silent-ok: whoever is gone need not be told
                let _told = out.0.send_timeout(SocketFrame::Close(code, reason), STALL).await;
            }
            drop(place);
        });
        HookResponse {
            talk: Some(HookWebSocket {
                protocol: PROTOCOL,
                max_frame_bytes: MAX_FRAME,
                heard,
                said,
            }),
            ..HookReply::empty(101).into()
        }
    }

    /// A browser says where its page is from. Programs say nothing.
    fn is_own_page(&self, hook: &HookRequest) -> bool {
        if !hook.headers.contains_key(ORIGIN) {
            return true;
        }
        let origin = hook.header(ORIGIN.as_str()).unwrap_or_default();
        let host = hook.header(HOST.as_str()).unwrap_or_default();
        let own = origin.split_once("://").is_some_and(|(scheme, authority)| {
            matches!(scheme, "http" | "https") && !host.is_empty() && authority.eq_ignore_ascii_case(host)
        });
        let known = self.known_as.as_deref();
        own || known.is_some_and(|known| known.eq_ignore_ascii_case(origin))
    }

    /// One socket, until its program is gone.
    async fn run_socket(
        &self,
        inlet: &Arc<InboundPipeline>,
        user: &str,
        mut hears: mpsc::Receiver<SocketFrame>,
        out: &FrameSender,
    ) -> Result<(), SocketCloseReason> {
        let first = match tokio::time::timeout(HELLO, hears.recv()).await {
            Ok(Some(frame)) => read(frame)?,
            Ok(None) => return Ok(()),
            Err(_) => return Err((POLICY, "no `hello` came")),
        };
        let ClientFrame::Hello { session, after } = first else {
            return Err((POLICY, "`hello` comes first"));
        };
        let session = match session {
            Some(session) => session,
            None => new_secret()?,
        };
        let Some(speaker) = SocketSpeaker::from_session(user, &session) else {
            return Err((POLICY, "the session is not one of this channel"));
        };
        let acked = self
            .log
            .acknowledged_seq(&speaker.conversation)
            .map_err(close_on_error)?;
        out.send_json(&json!({"type": "hello", "session": session, "sender": speaker.sender}))
            .await?;
        let pending = SocketSharedState::default();
        let (queue, queued) = mpsc::channel(WAITING);
        let (speech, aloud) = mpsc::channel(WAITING);
        let talking = SocketSession {
            sockets: self,
            inlet,
            speaker: &speaker,
            pending: &pending,
            out,
        };
        // Whichever ends, ends the others.
        tokio::select! {
            ended = talking.read_frames(hears, queue) => ended,
            ended = talking.ingest_inputs(queued) => ended,
            ended = talking.send_updates((after.unwrap_or(acked), acked), speech) => ended,
            ended = talking.speak_answers(aloud) => ended,
        }
    }
}

fn read(frame: SocketFrame) -> Result<ClientFrame, SocketCloseReason> {
    let SocketFrame::Text(text) = frame else {
        return Err((UNSUPPORTED, "a text frame is wanted"));
    };
    serde_json::from_str(&text).map_err(|_| (INVALID, "the frame is not one of `clawk.v1`"))
}

fn new_secret() -> Result<String, SocketCloseReason> {
    let mut random = [0_u8; SECRET];
    match getrandom::fill(&mut random) {
        Ok(()) => Ok(URL_SAFE_NO_PAD.encode(random)),
        Err(_) => Err((AGAIN, "no session can be begun now")),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is passed as a function")]
fn close_on_error(error: std::io::Error) -> SocketCloseReason {
    tracing::warn!(%error, "a conversation can't be read");
    (AGAIN, "the conversation can't be read now")
}

/// What a program is told.
struct FrameSender(mpsc::Sender<SocketFrame>);

impl FrameSender {
    async fn send_json(&self, frame: &Value) -> Result<(), SocketCloseReason> {
        self.send_frame(SocketFrame::Text(frame.to_string())).await
    }

    async fn send_frame(&self, frame: SocketFrame) -> Result<(), SocketCloseReason> {
        let sent = self.0.send_timeout(frame, STALL).await;
        sent.map_err(|_| (POLICY, "it does not read"))
    }

    async fn send_refusal(&self, id: &str, reason: &str) -> Result<(), SocketCloseReason> {
        self.send_json(&json!({"type": "refused", "id": id, "reason": reason}))
            .await
    }
}

/// What is to be taken in.
enum SocketInput {
    Text(String, String),
    Sound(VoiceRecording),
}

/// An answer that is to be spoken.
struct SpokenAnswer {
    seq: u64,
    of: String,
    markdown: String,
}

/// What the parts of one socket tell each other.
#[derive(Debug, Default)]
struct SocketSharedState {
    /// Ids whose `accepted` was not sent yet: no answer comes before it.
    taking: Mutex<HashSet<String>>,
    /// The newest answer that is to be spoken, and up to which one none is any more.
    aloud: AtomicU64,
    hushed: AtomicU64,
    hush: Notify,
}

/// One socket after its `hello`.
struct SocketSession<'a> {
    sockets: &'a SocketContext,
    inlet: &'a Arc<InboundPipeline>,
    speaker: &'a SocketSpeaker,
    pending: &'a SocketSharedState,
    out: &'a FrameSender,
}

/// The name of a choice in frames.
fn name_of<'a>(id: &str, label: &'a str) -> &'a str {
    match id {
        "y" => "yes",
        "n" => "no",
        _ => label,
    }
}

fn is_valid_id(id: &str) -> bool {
    (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::SocketSpeaker;

    #[test]
    fn a_session_speaks_for_itself_or_for_the_person_of_the_token() {
        let secret = URL_SAFE_NO_PAD.encode([7; 32]);
        let other = URL_SAFE_NO_PAD.encode([8; 32]);
        let shared = SocketSpeaker::from_session("user", &secret).unwrap();
        assert_ne!(shared, SocketSpeaker::from_session("user", &other).unwrap());
        assert!(!shared.sender.contains(&secret) && !shared.conversation.contains(&secret));
        let ann = SocketSpeaker::from_session("ann", &secret).unwrap();
        assert_eq!(ann.sender, "ann");
        assert!(super::super::asked::is_of(&ann.conversation, "ann"));
        assert!(super::super::asked::is_of(&shared.conversation, &shared.sender));
        assert_ne!(
            ann.conversation,
            SocketSpeaker::from_session("bob", &secret).unwrap().conversation,
            "one session of two people is two conversations"
        );
        for wrong in [
            "",
            "short",
            secret.strip_prefix("B").unwrap(),
            "../../../../../../../../../../../../../../x",
        ] {
            assert_eq!(SocketSpeaker::from_session("ann", wrong), None, "{wrong}");
        }
    }
}
