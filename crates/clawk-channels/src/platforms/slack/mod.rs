//! `slack`: Socket Mode or the Events API in, the Web API out.
//!
//! Long because two ways in and the three steps of an upload share one bot.

mod entry;
mod refusals;
mod words;

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::{EnvironmentSource, Secret};
use http::{HeaderMap, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::SLACK;
use crate::adapter::{
    Attachment, AttachmentContent, ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, DeliveryLookup,
    EDIT, FileSupport, HookReply, HookRequest, InboundPipeline, LengthUnit, MarkupFormat, OutFile,
    OutboundMessage, PlatformCapabilities, PlatformMessage, QuestionMessage, carried,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::direct::DirectConversations;
use crate::genuine::{is_hmac_valid, is_time_fresh, of_seconds};
use crate::kinds;
use crate::platform_kit::refusals::MessageRefusal;
use crate::platform_kit::worded::without_member;
use crate::platform_kit::{escaped, listening, own_host, secret, secret_named};
use crate::remote::RemoteFiles;
use crate::socket::{Socket, SocketMessage};

pub(crate) const VENDOR: &str = "https://slack.com/api";
const HOST: &str = "slack.com";
/// Where files lie, and the only host beside that of `base_url` which is told the token.
const FILES: &str = "files.slack.com";
const PATIENCE: Duration = Duration::from_secs(30);
/// Characters of one message; more may be broken by the platform.
const MAX_TEXT: usize = 3_900;
/// Characters of a section's text.
const MAX_SECTION: usize = 2_900;
/// The platform pings; silence for so long is a dead connection.
const SILENCE: Duration = Duration::from_secs(60);
/// Messages among which one of ours is looked for.
const LOOKED_AT: u32 = 50;
#[derive(Debug, Deserialize)]
struct SlackEventCallback {
    #[serde(default)]
    event_id: String,
    #[serde(default)]
    team_id: String,
    event: Event,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    subtype: Option<String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    user_team: Option<String>,
    /// What the sender is called; not in all events.
    #[serde(default)]
    user_profile: Option<Profile>,
    #[serde(default)]
    bot_id: Option<String>,
    #[serde(default)]
    channel: String,
    #[serde(default)]
    channel_type: Option<String>,
    #[serde(default)]
    ts: String,
    #[serde(default)]
    thread_ts: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    files: Vec<SlackFile>,
    /// Messages that are shared with it, and previews of links.
    #[serde(default)]
    attachments: Vec<Value>,
    /// Of an edit: the message as it is now, and as it was.
    #[serde(default)]
    message: Option<Box<Event>>,
    #[serde(default)]
    previous_message: Option<SlackPreviousMessage>,
    #[serde(default)]
    edited: Option<SlackEdit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Profile {
    display_name: String,
    real_name: String,
}

#[derive(Debug, Deserialize)]
struct SlackPreviousMessage {
    #[serde(default)]
    text: String,
}

#[derive(Debug, Deserialize)]
struct SlackEdit {
    #[serde(default)]
    ts: String,
}

#[derive(Debug, Deserialize)]
struct SlackFile {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    mimetype: Option<String>,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    url_private: Option<String>,
    #[serde(default)]
    url_private_download: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Envelope {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    envelope_id: Option<String>,
    #[serde(default)]
    payload: Value,
    #[serde(default)]
    reason: Option<String>,
}

/// An event, and of an edit the message as it is now with the time of the edit. `None`: only a preview of a link came to it.
fn edit_of(event: Event) -> Option<(Event, Option<String>)> {
    if event.subtype.as_deref() != Some("message_changed") {
        return Some((event, None));
    }
    let now = *event.message?;
    let at = now.edited.as_ref()?.ts.clone();
    if event
        .previous_message
        .is_some_and(|before| before.text == now.text)
    {
        return None;
    }
    let whole = Event {
        kind: "message".to_owned(),
        channel: event.channel,
        channel_type: event.channel_type,
        ..now
    };
    Some((whole, Some(at)))
}

impl Profile {
    fn name(self) -> Option<String> {
        [self.display_name, self.real_name]
            .into_iter()
            .find(|name| !name.is_empty())
    }
}

/// How events come.
enum SlackTransport {
    Socket(Box<PlatformApi>),
    Hook(Secret),
}

/// The channel.
pub(crate) struct SlackAdapter {
    api: PlatformApi,
    way: SlackTransport,
    env: EnvironmentSource,
    base: Url,
    files: RemoteFiles,
    /// The bot's user.
    me: OnceLock<String>,
    direct: DirectConversations,
}

impl std::fmt::Debug for SlackAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slack({:?})", self.api)
    }
}

impl SlackAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let env = parts.secrets.env().clone();
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        let way = match channel.transport {
            Transport::Websocket => {
                let token = secret_named(config, parts, "app_token")?;
                let app = PlatformApi::new(base, &env, PATIENCE)?
                    .with_authorization("Bearer", token.expose().trim())?;
                SlackTransport::Socket(Box::new(app))
            }
            Transport::Webhook => {
                listening(parts)?;
                SlackTransport::Hook(secret_named(config, parts, "signing_secret")?)
            }
            Transport::Polling | Transport::Stdio => {
                return Err("`slack` has the transports `websocket` and `webhook`".to_owned());
            }
        };
        let token = secret(channel, parts)?;
        Ok(Self {
            api: PlatformApi::new(base, &env, PATIENCE)?
                .with_authorization("Bearer", token.expose().trim())?,
            way,
            files: RemoteFiles::new(base, &env, &[FILES])?,
            env,
            base: Url::parse(base).map_err(|error| error.to_string())?,
            me: OnceLock::new(),
            direct: DirectConversations::default(),
        })
    }

    async fn call_or_disconnect(&self, api: &PlatformApi, method: &str) -> Result<Value, ChannelDisconnect> {
        let answer = api.post_json(method, &json!({})).await;
        let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        if answer.body.get("ok") == Some(&Value::Bool(true)) {
            return Ok(answer.body);
        }
        let code = error_of(&answer);
        let reason = format!("{method}: {code}");
        Err(
            if matches!(refusals::slack_refusal(&code), MessageRefusal::Final(_)) {
                ChannelDisconnect::fatal(reason)
            } else {
                ChannelDisconnect {
                    after_ms: answer.retry_after_ms(),
                    ..ChannelDisconnect::temporary(reason)
                }
            },
        )
    }

    async fn listen(
        &self,
        inlet: &InboundPipeline,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        let me = self.call_or_disconnect(&self.api, "auth.test").await?;
        let user = me.get("user_id").and_then(Value::as_str);
        let user = user.ok_or_else(|| ChannelDisconnect::temporary("auth.test says nothing of the bot"))?;
        let _same = self.me.set(user.to_owned()); // silent-ok: the bot stays itself
        let SlackTransport::Socket(app) = &self.way else {
            inlet.report_ready();
            over.cancelled().await;
            return Ok(());
        };
        let opened = self.call_or_disconnect(app, "apps.connections.open").await?;
        let url = opened.get("url").and_then(Value::as_str).unwrap_or_default();
        let url = own_host(url, &self.base, HOST).map_err(ChannelDisconnect::temporary)?;
        let socket = Socket::connect(&url, &self.env)
            .await
            .map_err(ChannelDisconnect::temporary)?;
        loop {
            let heard = tokio::select! {
                heard = socket.next(SILENCE) => heard.map_err(ChannelDisconnect::temporary)?,
                () = over.cancelled() => {
                    socket.close_with_code(1000).await;
                    return Ok(());
                }
            };
            match heard {
                SocketMessage::Text(text) => self.handle_frame(inlet, &socket, &text).await?,
                SocketMessage::Ping | SocketMessage::Bytes(_) => {}
                SocketMessage::Closed(..) => {
                    return Err(ChannelDisconnect::temporary("the platform ended the connection"));
                }
            }
        }
    }

    async fn handle_frame(
        &self,
        inlet: &InboundPipeline,
        socket: &Socket,
        text: &str,
    ) -> Result<(), ChannelDisconnect> {
        let Ok(envelope) = serde_json::from_str::<Envelope>(text) else {
            tracing::warn!("a frame can't be read and is passed over");
            return Ok(());
        };
        match envelope.kind.as_str() {
            "hello" => inlet.report_ready(),
            "disconnect" if envelope.reason.as_deref() == Some("link_disabled") => {
                return Err(ChannelDisconnect::fatal(
                    "Socket Mode is switched off for this app",
                ));
            }
            "disconnect" => {
                return Err(ChannelDisconnect {
                    after_ms: Some(0),
                    ..ChannelDisconnect::temporary("the platform wants a new connection")
                });
            }
            "events_api" => self
                .handle_event(inlet, &envelope.payload)
                .await
                .map_err(ChannelDisconnect::temporary)?,
            "interactive" => self.handle_press(inlet, &envelope.payload).await,
            _ => {}
        }
        match envelope.envelope_id {
            // It is durable.
            Some(id) => socket
                .send_text(json!({ "envelope_id": id }).to_string())
                .await
                .map_err(ChannelDisconnect::temporary),
            None => Ok(()),
        }
    }

    /// `Err`: it is not kept and must come again.
    async fn handle_event(&self, inlet: &InboundPipeline, payload: &Value) -> Result<(), &'static str> {
        let Ok(callback) = serde_json::from_value::<SlackEventCallback>(payload.clone()) else {
            return Ok(());
        };
        // Until it is known who the bot is, nobody can say whether a message names it.
        let me = self.me.get().ok_or("the bot's own id is not known yet")?;
        let Some(incoming) = self.to_platform_message(me, callback) else {
            return Ok(());
        };
        if inlet.ingest_message(incoming).await.is_settled() {
            Ok(())
        } else {
            Err("a message could not be kept")
        }
    }

    fn to_platform_message(&self, me: &str, callback: SlackEventCallback) -> Option<PlatformMessage> {
        let SlackEventCallback {
            event_id,
            team_id,
            event,
        } = callback;
        let (event, edited) = edit_of(event)?;
        let said = matches!(event.kind.as_str(), "message" | "app_mention");
        let whole = event.subtype.is_none() || event.subtype.as_deref() == Some("file_share");
        if !said || !whole || event.bot_id.is_some() || event.ts.is_empty() {
            return None;
        }
        let user = event.user.filter(|user| user != me)?;
        let sender = match event.user_team {
            Some(team) if !team_id.is_empty() && team != team_id => format!("{team}:{user}"),
            Some(_) | None => user,
        };
        let named = event.text.contains(&format!("<@{me}>"));
        let direct = event.channel_type.as_deref() == Some("im") || event.channel.starts_with('D');
        let conversation = match (&event.thread_ts, direct) {
            (Some(thread), _) => format!("{}:{thread}", event.channel),
            (None, true) => event.channel.clone(),
            (None, false) => format!("{}:{}", event.channel, event.ts),
        };
        let attachment = |file: SlackFile| Attachment {
            name: file.name.unwrap_or_default(),
            media_type: file.mimetype.unwrap_or_default(),
            size: file.size,
            content: file
                .url_private_download
                .or(file.url_private)
                .map_or(AttachmentContent::Absent, AttachmentContent::At),
        };
        let id = match &edited {
            Some(at) => format!("{EDIT}{}:{}:{at}", event.channel, event.ts),
            None => format!("{}:{}", event.channel, event.ts),
        };
        let me = self.me.get().map(String::as_str);
        let (text, quotes) = words::read(unescape_text(&event.text), &event.attachments, me, &sender);
        Some(PlatformMessage {
            ids: [id, event_id].into_iter().filter(|id| !id.is_empty()).collect(),
            conversation,
            direct,
            mention: named || event.kind == "app_mention",
            sender: Some(sender),
            sender_name: event.user_profile.and_then(Profile::name),
            text,
            attachments: event.files.into_iter().map(attachment).collect(),
            context: MessageContext {
                edited: edited.is_some(),
                quotes,
                ..MessageContext::default()
            },
            answers: None,
            remembered_days: None,
        })
    }

    async fn handle_press(&self, inlet: &InboundPipeline, payload: &Value) {
        let text = |pointer: &str| {
            payload
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        if text("/type") != "block_actions" {
            return;
        }
        let Some((question, choice)) = carried(text("/actions/0/value")) else {
            return;
        };
        let (channel, thread) = (text("/channel/id"), text("/message/thread_ts"));
        let conversation = if thread.is_empty() {
            channel.to_owned()
        } else {
            format!("{channel}:{thread}")
        };
        let press = ButtonPress {
            reason: None,
            question: question.to_owned(),
            choice: choice.to_owned(),
            sender: text("/user/id").to_owned(),
            conversation,
        };
        let told = inlet.handle_press(&press).await;
        let params = json!({"channel": channel, "user": press.sender, "text": told});
        if let Err(fault) = self.api.post_json("chat.postEphemeral", &params).await {
            tracing::debug!(reason = fault.reason(), "a press could not be answered");
        }
    }

    /// The bytes of a file. An address in an event is a stranger's text: the token goes to the platform's files alone.
    async fn fetch_file(&self, at: &str, max_bytes: u64) -> Result<Bytes, String> {
        let url = Url::parse(at).map_err(|_invalid| "the platform gave no address of the file".to_owned())?;
        let own = url.scheme() == "https" && url.host_str() == Some(FILES);
        let headers = if own || self.files.is_base(&url) {
            self.api.authorization()
        } else {
            HeaderMap::new()
        };
        let bytes = self.files.get(at, headers, max_bytes).await?;
        // Without the right to read files, the platform shows its page for signing in.
        if kinds::detect_type(&bytes) == Some("text/html") && is_page(at) {
            return Err(
                "the platform shows a page and not the file: the app may lack `files:read`".to_owned(),
            );
        }
        Ok(bytes)
    }

    /// Uploads a file and shares it: an address to upload to, the bytes, then the message.
    async fn share_file(&self, out: &OutboundMessage, file: &OutFile) -> Delivery {
        let path = format!(
            "files.getUploadURLExternal?filename={}&length={}",
            escaped(&file.name),
            file.data.len()
        );
        let answer = match self.api.send_json(Method::GET, &path, None).await {
            Ok(answer) => answer,
            Err(fault) => return fault.not_uploaded(),
        };
        let (Some(url), Some(id)) = (answer.text("/upload_url"), answer.text("/file_id")) else {
            let reason = error_of(&answer);
            let refusal = refusals::slack_refusal(&reason);
            return match refusal.delivery_after(answer.retry_after_ms(), &reason) {
                Some(delivery) => delivery,
                None => Delivery::Failed { reason },
            };
        };
        let sent = self
            .files
            .post_bytes(url, &file.media_type, file.data.clone())
            .await;
        if let Err(reason) = sent {
            return PlatformFailure::NotSent(reason).not_uploaded();
        }
        let (channel, thread) = split_conversation(&out.conversation);
        let mut params = json!({"files": [{"id": id, "title": file.name}], "channel_id": channel});
        if let (Some(thread), Some(params)) = (thread, params.as_object_mut()) {
            params.insert("thread_ts".to_owned(), json!(thread));
        }
        match self.post_message("files.completeUploadExternal", &params).await {
            Delivery::Delivered { .. } => Delivery::Delivered {
                platform_id: Some(id.to_owned()),
            },
            other => other,
        }
    }

    async fn post_message(&self, method: &str, params: &Value) -> Delivery {
        let mut answer = match self.api.post_json(method, params).await {
            Ok(answer) => answer,
            Err(fault) => return fault.into_delivery(),
        };
        // Nothing was sent: the thread is gone or closed, and its channel takes the message.
        if refusals::slack_refusal(&error_of(&answer)) == MessageRefusal::ThreadGone
            && let Some(rest) = without_member(params, "thread_ts")
        {
            answer = match self.api.post_json(method, &rest).await {
                Ok(answer) => answer,
                Err(fault) => return fault.into_delivery(),
            };
        }
        if answer.body.get("ok") == Some(&Value::Bool(true)) {
            let id = answer.text("/ts").map(str::to_owned);
            let to = params.get("channel").and_then(Value::as_str);
            if let (Some(person), Some(direct)) = (to, answer.text("/channel")) {
                self.direct.remember_conversation(person, direct);
            }
            return Delivery::Delivered { platform_id: id };
        }
        let reason = error_of(&answer);
        if answer.status.as_u16() == 429 {
            return Delivery::Retry {
                after_ms: answer.retry_after_ms(),
                reason,
            };
        }
        if let Some(delivery) =
            refusals::slack_refusal(&reason).delivery_after(answer.retry_after_ms(), &reason)
        {
            return delivery;
        }
        if answer.status.is_success() {
            // It answered that it failed inside: nobody knows how far it came.
            return Delivery::Unknown { reason };
        }
        answer.delivery_by_status(None, false, &reason)
    }

    /// `reactions.add` or `reactions.remove` of 👀, whose name there is `eyes`.
    async fn set_reaction(&self, method: &str, id: &str) -> Result<(), String> {
        let (channel, ts) = id.rsplit_once(':').ok_or("the message has no id")?;
        let params = json!({"channel": channel, "timestamp": ts, "name": "eyes"});
        let answer = self
            .api
            .post_json(method, &params)
            .await
            .map_err(PlatformFailure::reason)?;
        if answer.body.get("ok") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        match error_of(&answer).as_str() {
            "already_reacted" | "no_reaction" => Ok(()),
            other => Err(format!("{method}: {other}")),
        }
    }

    async fn look_for(&self, out: &OutboundMessage) -> DeliveryLookup {
        let (channel, thread) = split_conversation(&out.conversation);
        let (method, more) = match thread {
            Some(thread) => ("conversations.replies", format!("&ts={thread}")),
            None => ("conversations.history", String::new()),
        };
        let path = format!("{method}?channel={channel}{more}&include_all_metadata=true&limit={LOOKED_AT}");
        let Ok(answer) = self.api.send_json(Method::GET, &path, None).await else {
            return DeliveryLookup::CantKnow;
        };
        let Some(messages) = answer.body.get("messages").and_then(Value::as_array) else {
            return DeliveryLookup::CantKnow;
        };
        let ours = |message: &&Value| {
            message
                .pointer("/metadata/event_payload/out")
                .and_then(Value::as_str)
                == Some(&out.id)
        };
        match messages.iter().find(ours) {
            Some(message) => {
                DeliveryLookup::Yes(message.get("ts").and_then(Value::as_str).map(str::to_owned))
            }
            None => DeliveryLookup::No,
        }
    }
}

/// A page where none was sent.
fn is_page(at: &str) -> bool {
    let path = at
        .split(['?', '#'])
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    ![".html", ".htm", ".xhtml"].iter().any(|end| path.ends_with(end))
}

fn error_of(answer: &PlatformResponse) -> String {
    let code = answer.text("/error").map(bounded_line);
    code.unwrap_or_else(|| format!("status {}", answer.status.as_u16()))
}

/// The channel, and the thread's root.
fn split_conversation(conversation: &str) -> (&str, Option<&str>) {
    match conversation.split_once(':') {
        Some((channel, thread)) => (channel, Some(thread)),
        None => (conversation, None),
    }
}

fn message_body(out: &OutboundMessage) -> Value {
    let (channel, thread) = split_conversation(&out.conversation);
    let mut params = json!({"channel": channel, "text": out.text, "unfurl_links": false, "unfurl_media": false,
        "metadata": {"event_type": "clawk_out", "event_payload": {"out": out.id}}});
    if let (Some(thread), Some(params)) = (thread, params.as_object_mut()) {
        params.insert("thread_ts".to_owned(), json!(thread));
    }
    params
}

/// What the platform escaped.
pub(super) fn unescape_text(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&")
}

/// The form field `payload` of an interaction.
fn payload_of(form: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(form).ok()?; // silent-ok: a form of ours is text
    let url = Url::parse(&format!("http://form.invalid/?{text}")).ok()?; // silent-ok: then it is none
    let field = url.query_pairs().find(|(name, _)| name == "payload")?;
    serde_json::from_str(&field.1).ok() // silent-ok: then it is none
}

impl ChannelAdapter for SlackAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Mrkdwn,
            code: CodeBlock::ThreeBackticks,
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
        Box::pin(async move { ChannelDisconnect::from_result(self.listen(inlet, over).await) })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move { self.post_message("chat.postMessage", &message_body(out)).await })
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(self.share_file(out, file))
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let (channel, _) = split_conversation(&out.conversation);
            let channel = self.direct.conversation_with(channel);
            let params = json!({"channel": channel, "ts": of, "text": out.text, "blocks": []});
            self.post_message("chat.update", &params).await
        })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let mut params = message_body(&asking.out);
            let button = |(id, label): &(String, String)| {
                json!({"type": "button", "action_id": format!("choice-{id}"), "value": asking.button_data(id),
                    "text": {"type": "plain_text", "text": label}})
            };
            let buttons: Vec<Value> = asking.choices.iter().map(button).collect();
            let fits = asking.out.text.chars().count() <= MAX_SECTION;
            if let (false, true, Some(params)) = (buttons.is_empty(), fits, params.as_object_mut()) {
                let section = json!({"type": "section", "text": {"type": "mrkdwn", "text": asking.out.text}});
                let actions = json!({"type": "actions", "block_id": asking.question, "elements": buttons});
                params.insert("blocks".to_owned(), json!([section, actions]));
            }
            self.post_message("chat.postMessage", &params).await
        })
    }

    fn is_same_place(&self, asked: &str, answered: &str) -> bool {
        self.direct.is_same(asked, answered)
    }

    fn sent_before<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, DeliveryLookup> {
        Box::pin(self.look_for(out))
    }

    fn add_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move { self.set_reaction("reactions.add", id).await.map(|()| None) })
    }

    fn remove_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        id: &'a str,
        _mark: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.set_reaction("reactions.remove", id))
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(self.fetch_file(at, max_bytes))
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            let SlackTransport::Hook(secret) = &self.way else {
                return HookReply::refusal(404, "this channel takes no requests");
            };
            if hook.method != Method::POST {
                return HookReply::refusal(405, "POST is wanted");
            }
            let at = hook.header("x-slack-request-timestamp").unwrap_or_default();
            let given = hook.header("x-slack-signature").unwrap_or_default();
            let parts: [&[u8]; 4] = [b"v0:", at.as_bytes(), b":", &hook.body];
            let hex = given.strip_prefix("v0=").unwrap_or_default();
            if !is_hmac_valid(hex, secret.expose().trim(), &parts) {
                return HookReply::refusal(401, "the signature is not right");
            }
            if !of_seconds(at).is_some_and(|at| is_time_fresh(at, inlet.clock().now())) {
                return HookReply::refusal(401, "the request is too old");
            }
            if hook
                .header("content-type")
                .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"))
            {
                if let Some(payload) = payload_of(&hook.body) {
                    self.handle_press(inlet, &payload).await;
                }
                return HookReply::empty(200);
            }
            let Ok(body) = serde_json::from_slice::<Value>(&hook.body) else {
                return HookReply::refusal(400, "the body is not JSON");
            };
            if body.get("type").is_some_and(|kind| kind == "url_verification") {
                let challenge = body.get("challenge").cloned().unwrap_or_default();
                return HookReply::json(200, &json!({ "challenge": challenge }));
            }
            match self.handle_event(inlet, &body).await {
                Ok(()) => HookReply::empty(200),
                Err(reason) => HookReply::refusal(503, reason),
            }
        })
    }
}
