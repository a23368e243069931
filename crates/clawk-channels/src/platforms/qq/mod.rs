//! `qq`: the official bot API for people and groups. Events come by webhook, signed with Ed25519, or over the gateway. Answers need the
//! id of a message of the person's that is young enough; the id with a number is what makes a repetition known.
//!
//! Long because the gateway is a protocol of its own beside REST and the webhook.

mod entry;
mod refusals;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::{EnvironmentSource, Secret};
use ed25519_dalek::{Signature, Signer as _, SigningKey};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::QQ;
use crate::adapter::{
    Attachment, AttachmentContent, ChannelAdapter, ChannelDisconnect, FileSupport, HookReply, HookRequest,
    InboundPipeline, LengthUnit, OutboundMessage, PlatformCapabilities, PlatformMessage,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::genuine::{is_time_fresh, of_seconds, to_hex};
use crate::held::DeferredDeliveries;
use crate::platform_kit::gateway::{self, Gateway, GatewayFrame};
use crate::platform_kit::refusals::MessageRefusal;
use crate::platform_kit::{escaped, listening, own_host, secret, setting};
use crate::remote::RemoteFiles;
use crate::socket::Socket;
use crate::token::{NoToken, Tokens};

const VENDOR: &str = "https://api.sgroup.qq.com";
/// Where tokens are made; `base_url` stands for both.
pub(crate) const TOKENS: &str = "https://bots.qq.com";
/// Where a token is given for the app's id and secret.
pub(crate) const TOKEN_PATH: &str = "app/getAppAccessToken";
const HOST: &str = "qq.com";
/// Where files lie.
const FILES: [&str; 3] = ["qq.com", "qq.com.cn", "qpic.cn"];
const PATIENCE: Duration = Duration::from_secs(30);
/// Resumes of one session that come to nothing; behind them a new session begins.
const MAX_RESUMES: u32 = 3;
/// Characters of a message; the platform publishes no limit.
const MAX_TEXT: usize = 1_800;
/// Messages of groups and of people.
const INTENTS: u64 = 1 << 25;
/// A group's id as a conversation; a person's is their own id.
const GROUP: &str = "group:";
/// The same message was sent before.
const REPEATED: i64 = 40_054_005;
/// Who we are is wrong, or banned.
const FATAL: [u16; 4] = [4010, 4013, 4914, 4915];
/// Conversations of which the last message is known.
const REMEMBERED: usize = 10_000;

#[derive(Debug, Deserialize)]
struct QqMessage {
    id: String,
    #[serde(default)]
    content: String,
    author: QqAuthor,
    #[serde(default)]
    group_openid: Option<String>,
    #[serde(default)]
    attachments: Vec<QqFile>,
}

#[derive(Debug, Deserialize)]
struct QqAuthor {
    #[serde(default)]
    user_openid: Option<String>,
    #[serde(default)]
    member_openid: Option<String>,
}

#[derive(Debug, Deserialize)]
struct QqFile {
    #[serde(default)]
    url: String,
    #[serde(default)]
    content_type: String,
    #[serde(default)]
    filename: Option<String>,
    #[serde(default)]
    size: Option<u64>,
}

/// Where the gateway is, and the last message of each conversation: an answer must name one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct QqGatewayState {
    session: Option<String>,
    seq: Option<u64>,
    last: BTreeMap<String, String>,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct QqAdapter {
    api: PlatformApi,
    tokens_api: PlatformApi,
    base: Url,
    app: String,
    secret: Secret,
    key: SigningKey,
    /// Of the gateway.
    env: Option<Box<EnvironmentSource>>,
    tokens: Tokens,
    held: DeferredDeliveries,
    files: RemoteFiles,
    place: Mutex<QqGatewayState>,
    /// The stored place was read.
    restored: AtomicBool,
    /// Resumes since the session last said something.
    resumes: AtomicU32,
}

impl QqAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let env = parts.secrets.env().clone();
        let gateway = match channel.transport {
            Transport::Websocket => Some(Box::new(env.clone())),
            Transport::Webhook => {
                listening(parts)?;
                None
            }
            Transport::Polling | Transport::Stdio => {
                return Err("`qq` has the transports `webhook` and `websocket`".to_owned());
            }
        };
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        let secret = secret(channel, parts)?;
        Ok(Self {
            api: PlatformApi::new(base, &env, PATIENCE)?,
            tokens_api: PlatformApi::new(config.base_url.as_deref().unwrap_or(TOKENS), &env, PATIENCE)?,
            base: Url::parse(base).map_err(|error| error.to_string())?,
            app: setting(config, "app_id")?,
            key: SigningKey::from_bytes(&signing_seed(secret.expose().trim())),
            secret,
            env: gateway,
            tokens: Tokens::default(),
            held: DeferredDeliveries::default(),
            files: RemoteFiles::new(base, &env, &FILES)?,
            place: Mutex::default(),
            restored: AtomicBool::new(false),
            resumes: AtomicU32::new(0),
        })
    }

    fn lock_gateway_state(&self) -> MutexGuard<'_, QqGatewayState> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save_state(&self, inlet: &InboundPipeline) {
        // silent-ok: a plain struct always serialises
        let text = serde_json::to_string(&*self.lock_gateway_state()).unwrap_or_default();
        if let Err(error) = inlet.set_cursor(&text) {
            tracing::warn!(%error, "where the gateway is can't be kept");
        }
    }

    async fn access_token(&self) -> Result<String, NoToken> {
        let ask = || async {
            let body = json!({"appId": self.app, "clientSecret": self.secret.expose().trim()});
            let answer = self.tokens_api.post_json(TOKEN_PATH, &body).await?;
            let life = answer.body.get("expires_in");
            // The platform writes the number as a text.
            let life = life.and_then(|life| life.as_u64().or_else(|| life.as_str()?.parse().ok())); // silent-ok: no token
            match (answer.text("/access_token"), life, answer.status.as_u16()) {
                (Some(token), Some(life), _) => Ok((token.to_owned(), life)),
                (_, _, 429 | 500..=599) => Err(NoToken::Later {
                    reason: error_text(&answer),
                    after_ms: answer.retry_after_ms(),
                }),
                _ => Err(NoToken::Refused(format!(
                    "the platform refuses the app id or secret ({})",
                    error_text(&answer)
                ))),
            }
        };
        self.tokens.get(ask).await
    }

    /// One exchange with a token that counts; a lapsed one is asked for anew once.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<PlatformResponse, PlatformFailure> {
        loop {
            let token = match self.access_token().await {
                Ok(token) => token,
                Err(NoToken::Refused(reason) | NoToken::Later { reason, .. }) => {
                    return Err(PlatformFailure::NotSent(reason));
                }
            };
            let mut value = HeaderValue::from_str(&format!("QQBot {token}"))
                .map_err(|_| PlatformFailure::NotSent("the token can't stand in a header".to_owned()))?; // silent-ok: said
            value.set_sensitive(true);
            let bytes = body.map(|body| body.to_string().into_bytes());
            let json = bytes.is_some().then_some("application/json");
            let more = [(AUTHORIZATION, value)];
            let sent = self
                .api
                .send_bytes(method.clone(), path, json, bytes.unwrap_or_default(), &more);
            let answer = sent.await?;
            if !is_token_stale(&answer) || !self.tokens.refuse_token(&token).await {
                return Ok(answer);
            }
        }
    }

    async fn listen(
        &self,
        inlet: &InboundPipeline,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        self.tokens.lost.clear_refusal();
        // Once: afterwards memory is newer, also where it says that a session is over.
        if !self.restored.swap(true, Ordering::SeqCst)
            && let Ok(Some(text)) = inlet.read_cursor()
            && let Ok(place) = serde_json::from_str(&text)
        {
            *self.lock_gateway_state() = place;
        }
        self.access_token().await.map_err(NoToken::into_disconnect)?;
        self.held.read(inlet).await;
        let Some(env) = &self.env else {
            inlet.report_ready();
            over.cancelled().await;
            return Ok(());
        };
        let answer = self.call(Method::GET, "gateway", None).await;
        let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        let Some(url) = answer.text("/url") else {
            return Err(ChannelDisconnect {
                after_ms: answer.retry_after_ms(),
                ..ChannelDisconnect::temporary(format!("gateway: {}", error_text(&answer)))
            });
        };
        let url = own_host(url, &self.base, HOST).map_err(ChannelDisconnect::temporary)?;
        let socket = Socket::connect(&url, env)
            .await
            .map_err(ChannelDisconnect::temporary)?;
        if self.lock_gateway_state().session.is_some()
            && self.resumes.fetch_add(1, Ordering::SeqCst) >= MAX_RESUMES
        {
            self.new_session();
        }
        let every = gateway::read_hello(&socket).await?;
        self.identify_session(&socket).await?;
        let ended = gateway::run_session(self, inlet, &socket, (every, every), over).await;
        socket.close_with_code(1000).await;
        // A session that is over is over for the next process, too.
        self.save_state(inlet);
        ended
    }

    /// Says who we are, or where we were.
    async fn identify_session(&self, socket: &Socket) -> Result<(), ChannelDisconnect> {
        let token = self.access_token().await.map_err(NoToken::into_disconnect)?;
        let token = format!("QQBot {token}");
        let place = self.lock_gateway_state().clone();
        let first = match (&place.session, place.seq) {
            (Some(session), Some(seq)) => {
                json!({"op": 6, "d": {"token": token, "session_id": session, "seq": seq}})
            }
            _ => {
                json!({"op": 2, "d": {"token": token, "intents": INTENTS, "shard": [0, 1], "properties": {}}})
            }
        };
        socket
            .send_text(first.to_string())
            .await
            .map_err(ChannelDisconnect::temporary)
    }

    fn new_session(&self) {
        self.resumes.store(0, Ordering::SeqCst);
        let mut place = self.lock_gateway_state();
        place.session = None;
        place.seq = None;
    }

    async fn handle_frame(
        &self,
        inlet: &InboundPipeline,
        frame: GatewayFrame,
    ) -> Result<(), ChannelDisconnect> {
        match frame.op {
            0 => {
                self.resumes.store(0, Ordering::SeqCst);
                match frame.t.as_deref().unwrap_or_default() {
                    "READY" => {
                        let session = frame.d.get("session_id").and_then(Value::as_str);
                        self.lock_gateway_state().session = session.map(str::to_owned);
                        inlet.report_ready();
                    }
                    "RESUMED" => inlet.report_ready(),
                    event => {
                        if !self.handle_event(inlet, event, frame.d).await {
                            return Err(ChannelDisconnect::temporary("a message could not be kept"));
                        }
                    }
                }
                // It is durable: the session goes on behind it.
                if frame.s.is_some() {
                    self.lock_gateway_state().seq = frame.s;
                }
                self.save_state(inlet);
                Ok(())
            }
            7 => Err(ChannelDisconnect {
                after_ms: Some(0),
                ..ChannelDisconnect::temporary("the gateway wants a new connection")
            }),
            9 => {
                self.new_session();
                Err(ChannelDisconnect::temporary(
                    "the gateway does not know the session any more",
                ))
            }
            _ => Ok(()),
        }
    }

    /// `false`: it is not kept and must come again.
    async fn handle_event(&self, inlet: &InboundPipeline, event: &str, d: Value) -> bool {
        if !matches!(event, "C2C_MESSAGE_CREATE" | "GROUP_AT_MESSAGE_CREATE") {
            return true;
        }
        let Ok(message) = serde_json::from_value::<QqMessage>(d) else {
            tracing::warn!("a message can't be read and is passed over");
            return true;
        };
        let direct = event == "C2C_MESSAGE_CREATE";
        let (person, group) = (message.author.user_openid, message.group_openid);
        let (sender, conversation) = if direct {
            (person.clone(), person)
        } else {
            (
                message.author.member_openid,
                group.map(|group| format!("{GROUP}{group}")),
            )
        };
        let (Some(sender), Some(conversation)) = (sender, conversation) else {
            return true;
        };
        let attachment = |file: QqFile| Attachment {
            name: file.filename.unwrap_or_else(|| "a file".to_owned()),
            media_type: file.content_type,
            size: file.size,
            content: AttachmentContent::At(file.url),
        };
        let attachments: Vec<Attachment> = message.attachments.into_iter().map(attachment).collect();
        let text = message.content.trim().to_owned();
        if text.is_empty() && attachments.is_empty() {
            return true;
        }
        let incoming = PlatformMessage {
            ids: vec![message.id.clone()],
            conversation: conversation.clone(),
            direct,
            // Only messages that name the bot come from groups.
            mention: true,
            sender: Some(sender),
            sender_name: None,
            text,
            attachments,
            context: MessageContext::default(),
            answers: None,
            remembered_days: None,
        };
        // Before it is accepted: its answer, which must name it, may be sent the moment after.
        {
            let mut place = self.lock_gateway_state();
            if place.last.len() >= REMEMBERED && !place.last.contains_key(&conversation) {
                place.last.pop_first();
            }
            place.last.insert(conversation.clone(), message.id);
        }
        if !inlet.ingest_message(incoming).await.is_settled() {
            return false;
        }
        if self.env.is_none() {
            self.save_state(inlet);
        }
        self.held.release_deferred(inlet, &conversation).await;
        true
    }

    async fn attempt_message(
        &self,
        out: &OutboundMessage,
        id: &str,
    ) -> Result<PlatformResponse, PlatformFailure> {
        let content = sanitize_mentions(&out.text);
        let body =
            json!({"content": content, "msg_type": 0, "msg_id": id, "msg_seq": message_number(&out.id)});
        let path = match out.conversation.strip_prefix(GROUP) {
            Some(group) => format!("v2/groups/{}/messages", escaped(group)),
            None => format!("v2/users/{}/messages", escaped(&out.conversation)),
        };
        self.call(Method::POST, &path, Some(&body)).await
    }

    async fn deliver_message(&self, out: &OutboundMessage) -> Delivery {
        let attempt = self.held.begin_attempt(&out.conversation);
        let last = self.lock_gateway_state().last.get(&out.conversation).cloned();
        let first = out.reply_to.clone().or_else(|| last.clone());
        let Some(first) = first else {
            return attempt.defer_forbidden("the platform takes answers only");
        };
        let mut answer = match self.attempt_message(out, &first).await {
            Ok(answer) => answer,
            Err(fault) => return fault.into_delivery(),
        };
        // Too old, or answered too often: the person's last message may do.
        if refusals::qq(error_code(&answer)) == MessageRefusal::PersonFirst
            && let Some(last) = last.filter(|last| *last != first)
        {
            answer = match self.attempt_message(out, &last).await {
                Ok(answer) => answer,
                Err(fault) => return fault.into_delivery(),
            };
        }
        let reason = error_text(&answer);
        if error_code(&answer) == REPEATED {
            return Delivery::Delivered { platform_id: None };
        }
        if is_token_stale(&answer) {
            return self
                .tokens
                .lost
                .refused_delivery("the platform refuses every token that it gives");
        }
        match refusals::qq(error_code(&answer)) {
            MessageRefusal::PersonFirst => attempt.defer_forbidden(&format!(
                "the platform takes no further answer to their last one ({reason})"
            )),
            refusal => refusal.delivery_by_status(&answer, &reason).unwrap_or_else(|| {
                answer.delivery_by_status(answer.text("/id").map(str::to_owned), true, &reason)
            }),
        }
    }

    /// Whether the platform signed these bytes.
    fn has_valid_signature(&self, hook: &HookRequest) -> bool {
        let at = hook.header("x-signature-timestamp").unwrap_or_default();
        let given = hook.header("x-signature-ed25519").unwrap_or_default();
        let Some(signature) = bytes_of(given) else {
            return false;
        };
        let mut signed = at.as_bytes().to_vec();
        signed.extend_from_slice(&hook.body);
        let key = self.key.verifying_key();
        key.verify_strict(&signed, &Signature::from_bytes(&signature))
            .is_ok()
    }

    /// The check of the address. It signs what it is told, so that it signs only what can be nothing else.
    fn answer_address_check(&self, inlet: &InboundPipeline, d: &Value) -> HookReply {
        let text = |name: &str| d.get(name).and_then(Value::as_str).unwrap_or_default();
        let (token, at) = (text("plain_token"), text("event_ts"));
        let digits = (1..=20).contains(&at.len()) && at.bytes().all(|byte| byte.is_ascii_digit());
        let plain = (1..=64).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let young = of_seconds(at).is_some_and(|at| is_time_fresh(at, inlet.clock().now()));
        if !digits || !plain || !young {
            return HookReply::refusal(400, "the check can't be read");
        }
        let signature = self.key.sign(format!("{at}{token}").as_bytes());
        HookReply::json(
            200,
            &json!({"plain_token": token, "signature": to_hex(&signature.to_bytes())}),
        )
    }
}

impl Gateway for QqAdapter {
    fn durable_seq(&self) -> Option<u64> {
        self.lock_gateway_state().seq
    }

    fn handle_gateway_frame<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        _socket: &'a Socket,
        frame: GatewayFrame,
    ) -> BoxFuture<'a, Result<(), ChannelDisconnect>> {
        Box::pin(self.handle_frame(inlet, frame))
    }

    fn closed_by_peer(&self, code: u16, told: String) -> ChannelDisconnect {
        if FATAL.contains(&code) {
            return ChannelDisconnect::fatal(told);
        }
        // Only after these may a session be gone on with.
        if !matches!(code, 1006 | 4008 | 4009) {
            self.new_session();
        }
        ChannelDisconnect::temporary(told)
    }
}

/// The secret, repeated to 32 bytes.
fn signing_seed(secret: &str) -> [u8; 32] {
    let mut seed = [0; 32];
    for (place, byte) in seed.iter_mut().zip(secret.bytes().cycle()) {
        *place = byte;
    }
    seed
}

fn bytes_of(text: &str) -> Option<[u8; 64]> {
    let mut bytes = [0; 64];
    if text.len() != 128 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok()?; // silent-ok: it is hex
    }
    Some(bytes)
}

/// A number from 1 that is the same for the same message.
fn message_number(id: &str) -> u32 {
    let digest = Sha256::digest(id.as_bytes());
    let head = digest.first_chunk::<4>().copied().unwrap_or_default();
    (u32::from_be_bytes(head) >> 2) + 1
}

/// A text in which nothing names anybody.
fn sanitize_mentions(text: &str) -> String {
    text.replace("<@", "\u{ff1c}@").replace("<qqbot", "\u{ff1c}qqbot")
}

fn error_code(answer: &PlatformResponse) -> i64 {
    answer.body.get("code").and_then(Value::as_i64).unwrap_or(0)
}

fn is_token_stale(answer: &PlatformResponse) -> bool {
    answer.status.as_u16() == 401 || refusals::qq(error_code(answer)) == MessageRefusal::StaleToken
}

fn error_text(answer: &PlatformResponse) -> String {
    bounded_line(&format!(
        "{} {}",
        error_code(answer),
        answer.text("/message").unwrap_or_default()
    ))
}

impl ChannelAdapter for QqAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            idempotent: true,
            files: FileSupport::Nothing(
                "the platform takes files by public addresses only, and has no upload",
            ),
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Chars)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(async move {
            tokio::select! {
                ended = self.listen(inlet, over) => match ended {
                    Ok(()) => ChannelDisconnect::temporary("the agent ends"),
                    Err(ended) => ended,
                },
                ended = self.tokens.lost.wait_refusal() => ended,
            }
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(self.deliver_message(out))
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(self.files.get(at, HeaderMap::new(), max_bytes))
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            if self.env.is_some() {
                return HookReply::refusal(404, "this channel takes no requests");
            }
            if hook.method != Method::POST {
                return HookReply::refusal(405, "POST is wanted");
            }
            // The check of the address, too: it is a signature that is asked for.
            if !self.has_valid_signature(&hook) {
                return HookReply::refusal(401, "the signature is not right");
            }
            let at = hook.header("x-signature-timestamp").unwrap_or_default();
            if !of_seconds(at).is_some_and(|at| is_time_fresh(at, inlet.clock().now())) {
                return HookReply::refusal(401, "the request is too old");
            }
            let Ok(frame) = serde_json::from_slice::<GatewayFrame>(&hook.body) else {
                return HookReply::refusal(400, "the body is not an event");
            };
            match frame.op {
                13 => self.answer_address_check(inlet, &frame.d),
                0 => {
                    let event = frame.t.unwrap_or_default();
                    if self.handle_event(inlet, &event, frame.d).await {
                        HookReply::json(200, &json!({"op": 12, "d": 0}))
                    } else {
                        HookReply::json(503, &json!({"op": 12, "d": 1}))
                    }
                }
                _ => HookReply::json(200, &json!({"op": 12, "d": 0})),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};

    use super::{message_number, sanitize_mentions, signing_seed};
    use crate::genuine::to_hex;

    #[test]
    fn keys_and_signatures_are_the_published_ones() {
        let key = SigningKey::from_bytes(&signing_seed("naOC0ocQE3shWLAfffVLB1rhYPG7"));
        assert!(to_hex(key.verifying_key().as_bytes()).starts_with("d7c362fe78aef81f"));
        let key = SigningKey::from_bytes(&signing_seed("DG5g3B4j9X2KOErG"));
        let signature = to_hex(&key.sign(b"1725442341Arq0D5A61EgUu4OxUvOp").to_bytes());
        assert!(signature.starts_with("87befc99c42c651b") && signature.ends_with("ffc2d652c706"));
    }

    #[test]
    fn a_message_has_one_number_and_names_nobody() {
        assert_eq!(message_number("a"), message_number("a"));
        assert_ne!(message_number("a"), message_number("a.1"));
        assert!(!sanitize_mentions("<@everyone> <qqbot-at-everyone />").contains("<@"));
    }
}
