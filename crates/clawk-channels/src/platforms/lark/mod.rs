//! `lark` (Feishu): events by webhook, encrypted and signed, or over the long connection; messages by the open API under a `uuid`,
//! which makes the same message twice one.
//!
//! Long because the long connection is a protocol of its own beside REST and the webhook.

mod entry;
mod frame;
mod reactions;
mod refusals;
mod text;

use std::sync::OnceLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::{EnvironmentSource, Secret};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::LARK;
use self::frame::{LarkFrame, LarkFrameAssembler};
use self::text::{harmless, read};
use crate::adapter::{
    ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, FileSupport, HookReply, HookRequest,
    InboundPipeline, LengthUnit, MarkupFormat, OutFile, OutboundMessage, PlatformCapabilities,
    PlatformMessage, QuestionMessage, carried,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line, seconds_ms};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::direct::DirectConversations;
use crate::envelope::decrypt_envelope;
use crate::form::MultipartForm;
use crate::genuine::{constant_time_eq, is_time_fresh, of_seconds, to_hex};
use crate::platform_kit::{escaped, listening, own_host, secret, secret_named, setting};
use crate::remote::RemoteFiles;
use crate::socket::{Socket, SocketMessage};
use crate::token::{NoToken, Tokens};

pub(crate) const VENDOR: &str = "https://open.feishu.cn";
/// Where a token is given for the app's id and secret.
pub(crate) const TOKEN_PATH: &str = "open-apis/auth/v3/tenant_access_token/internal";
const PATIENCE: Duration = Duration::from_secs(30);
/// Characters of one message; a card may have 30 KB with everything around it.
const MAX_TEXT: usize = 8_000;
/// Bytes of a file that goes out, and of one that is shown as a picture.
const MAX_FILE: usize = 30 << 20;
const MAX_PICTURE: usize = 10 << 20;
/// How often the long connection is pinged when the platform does not say, and within which bounds, seconds.
const PING_S: u64 = 120;
const PING_BOUNDS_S: std::ops::RangeInclusive<u64> = 1..=600;
/// A token of which the platform says that it lapsed.
const STALE: [i64; 4] = [99_991_661, 99_991_663, 99_991_664, 99_991_668];
/// Who we are is wrong.
const REFUSED: [i64; 4] = [10_003, 10_014, 10_015, 514];
/// Limits, of the app and of a chat.
const LIMITED: [i64; 2] = [99_991_400, 230_020];
/// Refusals because the message that is answered was recalled, deleted, or can't be seen.
const ROOT_GONE: [i64; 5] = [230_011, 230_019, 230_110, 230_111, 231_003];

#[derive(Debug, Deserialize)]
struct Event {
    header: Header,
    #[serde(default)]
    event: Value,
}

#[derive(Debug, Deserialize)]
struct Header {
    #[serde(default)]
    event_id: String,
    #[serde(default)]
    event_type: String,
    #[serde(default)]
    token: String,
    #[serde(default)]
    app_id: String,
}

#[derive(Debug, Deserialize)]
struct LarkMessageEvent {
    sender: Sender,
    message: LarkMessage,
}

#[derive(Debug, Deserialize)]
struct Sender {
    sender_id: PersonId,
    #[serde(default)]
    sender_type: String,
}

#[derive(Debug, Deserialize)]
struct PersonId {
    #[serde(default)]
    open_id: String,
}

#[derive(Debug, Deserialize)]
struct LarkMessage {
    message_id: String,
    #[serde(default)]
    root_id: Option<String>,
    /// The message that it answers.
    #[serde(default)]
    parent_id: Option<String>,
    #[serde(default)]
    thread_id: Option<String>,
    chat_id: String,
    #[serde(default)]
    chat_type: String,
    message_type: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    mentions: Vec<LarkMention>,
}

#[derive(Debug, Deserialize)]
struct LarkMention {
    key: String,
    id: PersonId,
    #[serde(default)]
    name: String,
}

/// How events come.
#[derive(Debug)]
enum LarkTransport {
    Hook { verification: Secret, key: Secret },
    Socket(Box<EnvironmentSource>),
}

/// The channel.
#[derive(Debug)]
pub(crate) struct LarkAdapter {
    api: PlatformApi,
    base: Url,
    app: String,
    secret: Secret,
    way: LarkTransport,
    tokens: Tokens,
    me: OnceLock<String>,
    direct: DirectConversations,
    files: RemoteFiles,
}

impl LarkAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let env = parts.secrets.env().clone();
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        let way = match channel.transport {
            Transport::Webhook => {
                listening(parts)?;
                LarkTransport::Hook {
                    verification: secret_named(config, parts, "verification_token")?,
                    // Without it nothing of a request is signed.
                    key: secret_named(config, parts, "encrypt_key")?,
                }
            }
            Transport::Websocket => LarkTransport::Socket(Box::new(env.clone())),
            Transport::Polling | Transport::Stdio => {
                return Err("`lark` has the transports `webhook` and `websocket`".to_owned());
            }
        };
        Ok(Self {
            api: PlatformApi::new(base, &env, PATIENCE)?,
            base: Url::parse(base).map_err(|error| error.to_string())?,
            app: setting(config, "app_id")?,
            secret: secret(channel, parts)?,
            way,
            tokens: Tokens::default(),
            me: OnceLock::new(),
            direct: DirectConversations::default(),
            files: RemoteFiles::new(base, &env, &[])?,
        })
    }

    async fn access_token(&self) -> Result<String, NoToken> {
        let ask = || async {
            let body = json!({"app_id": self.app, "app_secret": self.secret.expose().trim()});
            let answer = self.api.post_json(TOKEN_PATH, &body).await?;
            let life = answer.body.get("expire").and_then(Value::as_u64);
            match (answer.text("/tenant_access_token"), life) {
                (Some(token), Some(life)) if error_code(&answer) == 0 => Ok((token.to_owned(), life)),
                _ if REFUSED.contains(&error_code(&answer)) => Err(NoToken::Refused(format!(
                    "the platform refuses the app id or secret ({})",
                    error_text(&answer)
                ))),
                _ => Err(NoToken::Later {
                    reason: error_text(&answer),
                    after_ms: wait_ms(&answer),
                }),
            }
        };
        self.tokens.get(ask).await
    }

    /// One exchange with a token that counts; a lapsed one is asked for anew once.
    pub(super) async fn call(
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
            let value = bearer_header(&token)?;
            let bytes = body.map(|body| body.to_string().into_bytes());
            let json = bytes.is_some().then_some("application/json; charset=utf-8");
            let more = [(AUTHORIZATION, value)];
            let sent = self
                .api
                .send_bytes(method.clone(), path, json, bytes.unwrap_or_default(), &more);
            let answer = sent.await?;
            if !STALE.contains(&error_code(&answer)) || !self.tokens.refuse_token(&token).await {
                return Ok(answer);
            }
        }
    }

    pub(super) fn app_id(&self) -> &str {
        &self.app
    }

    async fn fetch_bot_identity(&self) -> Result<(), ChannelDisconnect> {
        self.access_token().await.map_err(NoToken::into_disconnect)?;
        let info = self.call(Method::GET, "open-apis/bot/v3/info", None).await;
        let info = info.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        match info.text("/bot/open_id") {
            Some(me) if error_code(&info) == 0 => {
                let _same = self.me.set(me.to_owned()); // silent-ok: the bot stays itself
                Ok(())
            }
            _ => Err(ChannelDisconnect {
                after_ms: wait_ms(&info),
                ..ChannelDisconnect::temporary(format!("bot/v3/info: {}", error_text(&info)))
            }),
        }
    }

    async fn listen(
        &self,
        inlet: &InboundPipeline,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        self.tokens.lost.clear_refusal();
        self.fetch_bot_identity().await?;
        match &self.way {
            LarkTransport::Hook { .. } => {
                inlet.report_ready();
                over.cancelled().await;
                Ok(())
            }
            LarkTransport::Socket(env) => self.run_long_connection(inlet, env, over).await,
        }
    }

    /// The long connection.
    async fn run_long_connection(
        &self,
        inlet: &InboundPipeline,
        env: &EnvironmentSource,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        let body = json!({"AppID": self.app, "AppSecret": self.secret.expose().trim()});
        let answer = self.api.post_json("callback/ws/endpoint", &body).await;
        let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        if error_code(&answer) != 0 {
            let told = format!("the platform opens no long connection ({})", error_text(&answer));
            return Err(if REFUSED.contains(&error_code(&answer)) {
                ChannelDisconnect::fatal(told)
            } else {
                ChannelDisconnect::temporary(told)
            });
        }
        let larks = self
            .base
            .host_str()
            .is_some_and(|host| host.ends_with("larksuite.com"));
        let vendor = if larks { "larksuite.com" } else { "feishu.cn" };
        let url = own_host(answer.text("/data/URL").unwrap_or_default(), &self.base, vendor);
        let url = url.map_err(ChannelDisconnect::temporary)?;
        let number = url.query_pairs().find(|(name, _)| name == "service_id");
        // silent-ok: pings without it are answered all the same
        let service = number.and_then(|(_, id)| id.parse().ok()).unwrap_or(0);
        let mut every = ping_every(answer.body.pointer("/data/ClientConfig"));
        let socket = Socket::connect(&url, env)
            .await
            .map_err(ChannelDisconnect::temporary)?;
        inlet.report_ready();
        let mut parts = LarkFrameAssembler::default();
        let mut next = Instant::now() + every;
        loop {
            tokio::select! {
                () = over.cancelled() => {
                    socket.close_with_code(1000).await;
                    return Ok(());
                }
                () = tokio::time::sleep_until(next) => {
                    let ping = LarkFrame { service, headers: vec![("type".to_owned(), "ping".to_owned())], ..LarkFrame::default() };
                    socket.say_bytes(ping.encode_frame()).await.map_err(ChannelDisconnect::temporary)?;
                    next = Instant::now() + every;
                }
                heard = socket.next(every * 3) => match heard.map_err(ChannelDisconnect::temporary)? {
                    SocketMessage::Bytes(bytes) => {
                        let frame = LarkFrame::read(&bytes);
                        let frame = frame.ok_or_else(|| ChannelDisconnect::temporary("a frame of the platform can't be read"))?;
                        if frame.method == 0 {
                            // silent-ok: most pongs are empty
                            let told = serde_json::from_slice::<Value>(&frame.payload).ok();
                            every = told.as_ref().map_or(every, |told| ping_every(Some(told)));
                        } else {
                            self.handle_data_frame(inlet, &socket, frame, &mut parts).await?;
                        }
                    }
                    SocketMessage::Text(_) | SocketMessage::Ping => {}
                    SocketMessage::Closed(..) => return Err(ChannelDisconnect::temporary("the platform ended the connection")),
                },
            }
        }
    }

    async fn handle_data_frame(
        &self,
        inlet: &InboundPipeline,
        socket: &Socket,
        frame: LarkFrame,
        parts: &mut LarkFrameAssembler,
    ) -> Result<(), ChannelDisconnect> {
        let Some(whole) = parts.add_frame(&frame) else {
            return Ok(());
        };
        let answer = match serde_json::from_slice::<Event>(&whole) {
            Ok(event) => self.handle_event(inlet, event).await,
            Err(_) => Some(json!({})), // silent-ok: it is nothing of ours
        };
        let mut payload = json!({"code": if answer.is_some() { 200 } else { 500 }, "headers": {}});
        if let (Some(answer), Some(payload)) = (
            answer.filter(|answer| *answer != json!({})),
            payload.as_object_mut(),
        ) {
            payload.insert("data".to_owned(), json!(STANDARD.encode(answer.to_string())));
        }
        let mut ack = frame;
        ack.payload = payload.to_string().into_bytes();
        socket
            .say_bytes(ack.encode_frame())
            .await
            .map_err(ChannelDisconnect::temporary)
    }

    /// What the platform is answered; `None`: it is not kept and must come again.
    async fn handle_event(&self, inlet: &InboundPipeline, event: Event) -> Option<Value> {
        match event.header.event_type.as_str() {
            "im.message.receive_v1" => {
                let Ok(said) = serde_json::from_value::<LarkMessageEvent>(event.event) else {
                    tracing::warn!("a message can't be read and is passed over");
                    return Some(json!({}));
                };
                // Until it is known who the bot is, nobody can say whether a message names it.
                let me = self.me.get()?;
                match self.to_platform_message(me, said, event.header.event_id) {
                    Some(incoming) => inlet
                        .ingest_message(incoming)
                        .await
                        .is_settled()
                        .then(|| json!({})),
                    None => Some(json!({})),
                }
            }
            "card.action.trigger" => Some(self.handle_press(inlet, &event.event).await),
            _ => Some(json!({})),
        }
    }

    fn to_platform_message(
        &self,
        me: &str,
        said: LarkMessageEvent,
        event_id: String,
    ) -> Option<PlatformMessage> {
        let LarkMessageEvent { sender, message } = said;
        if sender.sender_type == "app" || sender.sender_id.open_id.is_empty() {
            return None;
        }
        let content: Value = serde_json::from_str(&message.content).unwrap_or_default(); // silent-ok: then it says nothing
        let (mut text, attachments) = read(&message.message_type, &content, &message.message_id);
        // A key in a text can be typed by anybody; who is named stands in the list.
        let mine = |mention: &LarkMention| mention.id.open_id == me;
        for mention in &message.mentions {
            let name = if mine(mention) {
                String::new()
            } else {
                format!("@{}", mention.name)
            };
            text = text.replace(&mention.key, &name);
        }
        let text = text.trim().to_owned();
        if text.is_empty() && attachments.is_empty() {
            return None;
        }
        let conversation = match (&message.thread_id, message.root_id) {
            (Some(_), root) => {
                let root = root.unwrap_or_else(|| message.message_id.clone());
                format!("{}:{root}", message.chat_id)
            }
            (None, _) => message.chat_id,
        };
        Some(PlatformMessage {
            ids: vec![message.message_id, event_id]
                .into_iter()
                .filter(|id| !id.is_empty())
                .collect(),
            conversation,
            direct: message.chat_type == "p2p",
            mention: message.mentions.iter().any(mine),
            sender: Some(sender.sender_id.open_id),
            sender_name: None,
            text,
            attachments,
            context: MessageContext::default(),
            answers: message.parent_id,
            remembered_days: None,
        })
    }

    async fn handle_press(&self, inlet: &InboundPipeline, event: &Value) -> Value {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let Some((question, choice)) = carried(text("/action/value/clawk")) else {
            return json!({});
        };
        let (chat, root) = (text("/context/open_chat_id"), text("/action/value/root"));
        let press = ButtonPress {
            reason: None,
            question: question.to_owned(),
            choice: choice.to_owned(),
            sender: text("/operator/open_id").to_owned(),
            conversation: if root.is_empty() {
                chat.to_owned()
            } else {
                format!("{chat}:{root}")
            },
        };
        let told = inlet.handle_press(&press).await;
        json!({"toast": {"type": "info", "content": told}})
    }

    /// What a message calls an uploaded file, and its key.
    async fn upload_file(&self, file: &OutFile) -> Result<(&'static str, String), Delivery> {
        if file.data.len() > MAX_FILE {
            return Err(Delivery::Failed {
                reason: "the platform takes files up to 30 MB".to_owned(),
            });
        }
        let picture = file.is_picture() && file.data.len() <= MAX_PICTURE;
        let token = match self.access_token().await {
            Ok(token) => token,
            Err(no) => return Err(PlatformFailure::NotSent(no.into_disconnect().reason).into_delivery()),
        };
        let value = bearer_header(&token).map_err(PlatformFailure::into_delivery)?;
        let form = MultipartForm::new().map_err(|reason| PlatformFailure::NotSent(reason).into_delivery())?;
        let (path, form) = if picture {
            let form = form.text("image_type", "message").file("image", file);
            ("open-apis/im/v1/images", form)
        } else {
            let form = form
                .text("file_type", "stream")
                .text("file_name", &file.name)
                .file("file", file);
            ("open-apis/im/v1/files", form)
        };
        let sent = self.api.upload_form(path, form, &[(AUTHORIZATION, value)]).await;
        let answer = sent.map_err(PlatformFailure::not_uploaded)?;
        let (kind, member) = if picture {
            ("image", "/data/image_key")
        } else {
            ("file", "/data/file_key")
        };
        match answer.text(member) {
            Some(key) if error_code(&answer) == 0 => Ok((kind, key.to_owned())),
            _ => Err(match wait_ms(&answer) {
                Some(ms) => Delivery::Retry {
                    after_ms: Some(ms),
                    reason: error_text(&answer),
                },
                None => answer.not_uploaded(&error_text(&answer)),
            }),
        }
    }

    async fn post_message(&self, out: &OutboundMessage, kind: &str, content: &Value) -> Delivery {
        let (chat, root) = split_conversation(&out.conversation);
        let answer = self.post_to(out, (chat, root), (kind, content)).await;
        match &answer {
            // Nothing was sent: the message at which the thread began is gone, and the chat takes the answer.
            Ok(refused) if root.is_some() && ROOT_GONE.contains(&error_code(refused)) => {
                self.delivery_from_response(self.post_to(out, (chat, None), (kind, content)).await)
            }
            Ok(_) | Err(_) => self.delivery_from_response(answer),
        }
    }

    async fn post_to(
        &self,
        out: &OutboundMessage,
        (chat, root): (&str, Option<&str>),
        (kind, content): (&str, &Value),
    ) -> Result<PlatformResponse, PlatformFailure> {
        let mut body = json!({"msg_type": kind, "content": content.to_string(), "uuid": out.id});
        let path = match (root, body.as_object_mut()) {
            (Some(root), Some(body)) => {
                body.insert("reply_in_thread".to_owned(), json!(true));
                format!("open-apis/im/v1/messages/{}/reply", escaped(root))
            }
            (_, Some(body)) => {
                // A person's own id is a conversation, too.
                let of = if chat.starts_with("ou_") {
                    "open_id"
                } else {
                    "chat_id"
                };
                body.insert("receive_id".to_owned(), json!(chat));
                format!("open-apis/im/v1/messages?receive_id_type={of}")
            }
            (_, None) => String::new(),
        };
        let answer = self.call(Method::POST, &path, Some(&body)).await?;
        if let Some(direct) = answer.text("/data/chat_id").filter(|_| root.is_none()) {
            self.direct.remember_conversation(chat, direct);
        }
        Ok(answer)
    }

    fn delivery_from_response(&self, answer: Result<PlatformResponse, PlatformFailure>) -> Delivery {
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => return fault.into_delivery(),
        };
        let reason = error_text(&answer);
        let id = answer.text("/data/message_id").map(str::to_owned);
        match error_code(&answer) {
            0 => answer.delivery_by_status(id, true, &reason),
            stale if STALE.contains(&stale) => self
                .tokens
                .lost
                .refused_delivery("the platform refuses every token that it gives"),
            limited if LIMITED.contains(&limited) => Delivery::Retry {
                after_ms: wait_ms(&answer),
                reason,
            },
            code => match refusals::lark_refusal(code)
                .delivery_after(wait_ms(&answer), &format!("{code}: {reason}"))
            {
                Some(delivery) => delivery,
                // Some are told with 200.
                None if answer.status.is_success() => Delivery::Failed { reason },
                None => answer.delivery_by_status(id, true, &reason),
            },
        }
    }

    /// What the body says, once it is known to be the platform's: `None` is told as one refusal, whatever is wrong.
    fn verify_event(
        &self,
        inlet: &InboundPipeline,
        hook: &HookRequest,
        verification: &Secret,
        key: &Secret,
    ) -> Option<Value> {
        let at = hook.header("x-lark-request-timestamp");
        let nonce = hook.header("x-lark-request-nonce");
        let given = hook.header("x-lark-signature");
        let key = key.expose().trim();
        let is_signed = match (at, nonce, given) {
            (Some(at), Some(nonce), Some(given)) => {
                let mut digest = Sha256::new();
                for part in [at.as_bytes(), nonce.as_bytes(), key.as_bytes(), &hook.body] {
                    digest.update(part);
                }
                let fresh = of_seconds(at).is_some_and(|at| is_time_fresh(at, inlet.clock().now()));
                if !constant_time_eq(&given.to_ascii_lowercase(), &to_hex(&digest.finalize())) || !fresh {
                    return None;
                }
                true
            }
            (None, None, None) => false,
            _ => return None,
        };
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct LarkEncryptedBody {
            encrypt: String,
        }
        let sealed: LarkEncryptedBody = serde_json::from_slice(&hook.body).ok()?; // silent-ok: told as one refusal
        let sealed = STANDARD.decode(sealed.encrypt).ok()?; // silent-ok: told as one refusal
        let (iv, sealed) = sealed.split_first_chunk::<16>()?;
        let text = decrypt_envelope(&Sha256::digest(key.as_bytes()).into(), iv, sealed, 16)?;
        let body: Value = serde_json::from_slice(&text).ok()?; // silent-ok: told as one refusal
        let check = body.get("type").is_some_and(|kind| kind == "url_verification");
        let token = if check {
            body.get("token")
        } else {
            body.pointer("/header/token")
        };
        let token = token.and_then(Value::as_str).unwrap_or_default();
        // The URL check alone is not signed.
        (constant_time_eq(token, verification.expose().trim()) && (is_signed || check)).then_some(body)
    }
}

fn bearer_header(token: &str) -> Result<HeaderValue, PlatformFailure> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value =
        value.map_err(|_| PlatformFailure::NotSent("the token can't stand in a header".to_owned()))?; // silent-ok: said
    value.set_sensitive(true);
    Ok(value)
}

fn ping_every(config: Option<&Value>) -> Duration {
    let told = config
        .and_then(|config| config.get("PingInterval"))
        .and_then(Value::as_u64);
    Duration::from_secs(told.filter(|told| PING_BOUNDS_S.contains(told)).unwrap_or(PING_S))
}

/// The chat, and the root of the thread.
fn split_conversation(conversation: &str) -> (&str, Option<&str>) {
    match conversation.split_once(':') {
        Some((chat, root)) => (chat, Some(root)),
        None => (conversation, None),
    }
}

pub(super) fn error_code(answer: &PlatformResponse) -> i64 {
    let code = answer.body.get("code").and_then(Value::as_i64);
    code.unwrap_or(if answer.status.is_success() { 0 } else { -1 })
}

pub(super) fn error_text(answer: &PlatformResponse) -> String {
    bounded_line(&format!(
        "{} {}",
        error_code(answer),
        answer.text("/msg").unwrap_or_default()
    ))
}

/// How long the platform wants to be left alone.
fn wait_ms(answer: &PlatformResponse) -> Option<u64> {
    let reset = answer.headers.get("x-ogw-ratelimit-reset");
    let reset = reset.and_then(|value| value.to_str().ok()?.parse().ok()); // silent-ok: our own wait counts
    reset.and_then(seconds_ms).or_else(|| answer.retry_after_ms())
}

fn rich_post(markdown: &str) -> Value {
    json!({"zh_cn": {"content": [[{"tag": "md", "text": harmless(markdown)}]]}})
}

/// A card, with buttons where there are choices.
fn card_content(markdown: &str, buttons: Vec<Value>) -> Value {
    let mut elements = vec![json!({"tag": "markdown", "content": harmless(markdown)})];
    if !buttons.is_empty() {
        elements.push(json!({"tag": "action", "actions": buttons}));
    }
    json!({"config": {"update_multi": true}, "elements": elements})
}

impl ChannelAdapter for LarkAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            code: CodeBlock::ThreeBackticks,
            idempotent: true,
            buttons: true,
            edits: true,
            files: FileSupport::Beside,
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
        Box::pin(async move { self.post_message(out, "post", &rich_post(&out.markdown)).await })
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let (kind, key) = match self.upload_file(file).await {
                Ok(uploaded) => uploaded,
                Err(delivery) => return delivery,
            };
            let member = if kind == "image" { "image_key" } else { "file_key" };
            self.post_message(
                out,
                kind,
                &Value::Object([(member.to_owned(), json!(key))].into_iter().collect()),
            )
            .await
        })
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            // A card is changed as a card.
            let (method, id, body) = match of.strip_prefix("card:") {
                Some(id) => {
                    let content = card_content(&out.markdown, Vec::new()).to_string();
                    (Method::PATCH, id, json!({ "content": content }))
                }
                None => {
                    let content = rich_post(&out.markdown).to_string();
                    (Method::PUT, of, json!({"msg_type": "post", "content": content}))
                }
            };
            let path = format!("open-apis/im/v1/messages/{}", escaped(id));
            self.delivery_from_response(self.call(method, &path, Some(&body)).await)
        })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let out = &asking.out;
            let (_, root) = split_conversation(&out.conversation);
            let button = |(id, label): &(String, String)| {
                let mut value = json!({"clawk": asking.button_data(id)});
                if let (Some(root), Some(value)) = (root, value.as_object_mut()) {
                    value.insert("root".to_owned(), json!(root));
                }
                json!({"tag": "button", "text": {"tag": "plain_text", "content": label}, "value": value})
            };
            let buttons: Vec<Value> = asking.choices.iter().map(button).collect();
            match self
                .post_message(out, "interactive", &card_content(&out.markdown, buttons))
                .await
            {
                Delivery::Delivered { platform_id } => Delivery::Delivered {
                    platform_id: platform_id.map(|id| format!("card:{id}")),
                },
                other => other,
            }
        })
    }

    fn is_same_place(&self, asked: &str, answered: &str) -> bool {
        self.direct.is_same(asked, answered)
    }

    fn begin_thread<'a>(
        &'a self,
        _inlet: &'a InboundPipeline,
        incoming: &'a PlatformMessage,
    ) -> BoxFuture<'a, Option<String>> {
        let (chat, root) = split_conversation(&incoming.conversation);
        let first = incoming.ids.first().filter(|_| root.is_none());
        Box::pin(std::future::ready(first.map(|id| format!("{chat}:{id}"))))
    }

    fn add_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(reactions::put(self, id))
    }

    fn remove_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        id: &'a str,
        mark: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(reactions::remove(self, id, mark))
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let mut parts = at.splitn(3, ' ');
            let (kind, message, key) = (parts.next(), parts.next(), parts.next());
            let (Some(kind), Some(message), Some(key)) = (kind, message, key) else {
                return Err("the file has no address".to_owned());
            };
            let path = format!(
                "open-apis/im/v1/messages/{}/resources/{}?type={kind}",
                escaped(message),
                escaped(key)
            );
            let url = self.api.endpoint_url(&path).map_err(PlatformFailure::reason)?;
            let token = self
                .access_token()
                .await
                .map_err(|no| no.into_disconnect().reason)?;
            let headers = HeaderMap::from_iter([(
                AUTHORIZATION,
                bearer_header(&token).map_err(PlatformFailure::reason)?,
            )]);
            self.files.get(url.as_str(), headers, max_bytes).await
        })
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            let LarkTransport::Hook { verification, key } = &self.way else {
                return HookReply::refusal(404, "this channel takes no requests");
            };
            if hook.method != Method::POST {
                return HookReply::refusal(405, "POST is wanted");
            }
            let Some(body) = self.verify_event(inlet, &hook, verification, key) else {
                return HookReply::refusal(401, "the request is not the platform's");
            };
            if body.get("type").is_some_and(|kind| kind == "url_verification") {
                let challenge = body.get("challenge").cloned().unwrap_or_default();
                return HookReply::json(200, &json!({ "challenge": challenge }));
            }
            let Ok(event) = serde_json::from_value::<Event>(body) else {
                return HookReply::refusal(400, "the body is not an event");
            };
            if event.header.app_id != self.app || event.header.token.is_empty() {
                return HookReply::refusal(401, "the event is of another app");
            }
            match self.handle_event(inlet, event).await {
                Some(answer) => HookReply::json(200, &answer),
                None => HookReply::refusal(503, "it could not be kept now"),
            }
        })
    }
}
