//! `discord`: Gateway in, REST out. The gateway acknowledges nothing, so the session and the last event that is durable here are
//! kept, resumed first, and a gap is read from history (C1).
//!
//! Long because the gateway is a protocol of its own beside REST.

mod entry;
mod refusals;
mod threads;
mod words;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext, QuoteKind};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::{EnvironmentSource, Secret};
use http::{HeaderMap, HeaderName, Method};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::DISCORD;
use self::words::{DiscordFile, DiscordMessage, is_later};
use crate::adapter::{
    Attachment, AttachmentContent, ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, DeliveryLookup,
    EDIT, FileSupport, InboundPipeline, LengthUnit, MarkupFormat, OutFile, OutboundMessage,
    PlatformCapabilities, PlatformMessage, QuestionMessage, carried,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line, seconds_ms};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::form::MultipartForm;
use crate::genuine::to_hex;
use crate::platform_kit::DisplayNameCache;
use crate::platform_kit::gateway::{self, Gateway, GatewayFrame};
use crate::platform_kit::refusals::MessageRefusal;
use crate::platform_kit::{escaped, own_host, secret, worded};
use crate::remote::RemoteFiles;
use crate::socket::Socket;

pub(crate) const VENDOR: &str = "https://discord.com/api/v10";
const HOSTS: [&str; 2] = ["discord.gg", "discord.com"];
/// Where files lie. Their addresses are signed: the token goes to none of them.
const FILES: [&str; 2] = ["cdn.discordapp.com", "media.discordapp.net"];
const PATIENCE: Duration = Duration::from_secs(30);
/// UTF-16 units of a message.
const MAX_TEXT: usize = 1_990;
/// Bytes of a file that goes out.
const MAX_FILE: usize = 10 << 20;
/// Guild messages, direct messages, message content, guilds.
const INTENTS: u64 = 1 | 1 << 9 | 1 << 12 | 1 << 15;
/// Close codes after which nothing but a person helps.
const FATAL: [u16; 6] = [4004, 4010, 4011, 4012, 4013, 4014];
/// Conversations of which the last message is remembered, for gaps.
const REMEMBERED: usize = 1_000;
/// Leaves the session open, so that it can be resumed.
const RESUMABLE: u16 = 4000;
/// Resumes of one session that come to nothing; behind them a new session begins.
const MAX_RESUMES: u32 = 3;
/// What the platform says of an id that is no channel.
const UNKNOWN_CHANNEL: u64 = 10_003;

/// Where the gateway is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct DiscordGatewayState {
    session: Option<String>,
    resume_url: Option<String>,
    /// The last event that is durable here.
    seq: Option<u64>,
    /// The bot's own id.
    me: Option<String>,
    /// The last message of each conversation.
    last: BTreeMap<String, String>,
    /// Threads that began at a message.
    threads: threads::ThreadsByMessage,
    /// Direct conversations by the person's id, for those to whom the agent wrote first.
    direct: BTreeMap<String, String>,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct DiscordAdapter {
    api: PlatformApi,
    token: Secret,
    env: EnvironmentSource,
    base: Url,
    intents: u64,
    files: RemoteFiles,
    place: Mutex<DiscordGatewayState>,
    /// The stored place was read. It is read once: afterwards memory is newer, also where it says that a session is over.
    restored: AtomicBool,
    /// Resumes since the session last said something.
    resumes: AtomicU32,
    known: Mutex<threads::DiscordThreadFacts>,
    /// Of channels and threads.
    names: DisplayNameCache,
}

impl DiscordAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        if channel.transport != Transport::Websocket {
            return Err("`discord` has the transport `websocket`".to_owned());
        }
        let env = parts.secrets.env().clone();
        let token = secret(channel, parts)?;
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        let intents = match config.settings.get("intents") {
            None => INTENTS,
            Some(given) => given
                .parse()
                .map_err(|_| format!("`settings.intents` is `{given}`, not a number"))?, // silent-ok: said
        };
        let agent = "DiscordBot (https://github.com/clawk/clawk, 1)";
        Ok(Self {
            api: PlatformApi::new(base, &env, PATIENCE)?
                .with_authorization("Bot", token.expose().trim())?
                .with_header(HeaderName::from_static("user-agent"), agent),
            token,
            files: RemoteFiles::new(base, &env, &FILES)?,
            env,
            base: Url::parse(base).map_err(|error| error.to_string())?,
            intents,
            place: Mutex::default(),
            restored: AtomicBool::new(false),
            resumes: AtomicU32::new(0),
            known: Mutex::default(),
            names: DisplayNameCache::default(),
        })
    }

    fn with_threads<T>(&self, with: impl FnOnce(&mut threads::ThreadsByMessage) -> T) -> T {
        with(&mut self.lock_gateway_state().threads)
    }

    /// A thread exists. Messages that arrive there while the agent is down are read from its history.
    pub(super) fn follow_thread(&self, thread: &str) {
        let mut place = self.lock_gateway_state();
        place
            .last
            .entry(thread.to_owned())
            .or_insert_with(|| thread.to_owned());
    }

    const fn thread_facts(&self) -> &Mutex<threads::DiscordThreadFacts> {
        &self.known
    }

    pub(super) async fn send_request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<PlatformResponse, PlatformFailure> {
        self.api.send_json(method, path, body).await
    }

    fn lock_gateway_state(&self) -> MutexGuard<'_, DiscordGatewayState> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save_state(&self, inlet: &InboundPipeline) {
        // silent-ok: a plain struct always serialises
        let text = serde_json::to_string(&*self.lock_gateway_state()).unwrap_or_default();
        if let Err(error) = inlet.set_cursor(&text) {
            tracing::warn!(%error, "where the gateway is can't be kept");
        }
    }

    async fn gateway_url(&self) -> Result<Url, ChannelDisconnect> {
        let kept = self.lock_gateway_state().resume_url.clone();
        let url = match kept {
            Some(url) => url,
            None => {
                let answer = self.api.send_json(Method::GET, "gateway/bot", None).await;
                let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
                match answer.status.as_u16() {
                    200 => answer.text("/url").unwrap_or_default().to_owned(),
                    401 => return Err(ChannelDisconnect::fatal("the platform refuses the bot token")),
                    _ => {
                        return Err(ChannelDisconnect {
                            after_ms: retry_after(&answer),
                            ..ChannelDisconnect::temporary(format!("gateway/bot: {}", error_text(&answer)))
                        });
                    }
                }
            }
        };
        let own = HOSTS
            .iter()
            .find_map(|host| own_host(&url, &self.base, host).ok()); // silent-ok: said below
        let mut url = own.ok_or_else(|| {
            ChannelDisconnect::temporary("the platform gave an address that is not its own")
        })?;
        url.set_query(Some("v=10&encoding=json"));
        if url.path().is_empty() {
            url.set_path("/");
        }
        Ok(url)
    }

    async fn listen(
        &self,
        inlet: &InboundPipeline,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        if !self.restored.swap(true, Ordering::SeqCst)
            && let Ok(Some(text)) = inlet.read_cursor()
            && let Ok(place) = serde_json::from_str(&text)
        {
            *self.lock_gateway_state() = place;
        }
        if self.lock_gateway_state().session.is_some()
            && self.resumes.fetch_add(1, Ordering::SeqCst) >= MAX_RESUMES
        {
            self.new_session();
        }
        let url = self.gateway_url().await?;
        let connected = Socket::connect(&url, &self.env).await;
        let socket = connected.map_err(|reason| {
            // The address of the session may be gone.
            self.lock_gateway_state().resume_url = None;
            ChannelDisconnect::temporary(reason)
        })?;
        let every = gateway::read_hello(&socket).await?;
        self.identify_session(&socket).await?;
        // Somewhere in the first interval, so that many do not beat together.
        let part = u32::try_from(inlet.clock().random_u64() % 1000).unwrap_or(0);
        let ended = gateway::run_session(self, inlet, &socket, (every * part / 1000, every), over).await;
        socket.close_with_code(RESUMABLE).await;
        // A session that is over is over for the next process, too.
        self.save_state(inlet);
        ended
    }

    /// Says who we are, or where we were.
    async fn identify_session(&self, socket: &Socket) -> Result<(), ChannelDisconnect> {
        let token = self.token.expose().trim();
        let place = self.lock_gateway_state().clone();
        let first = match (&place.session, place.seq) {
            (Some(session), Some(seq)) => {
                json!({"op": 6, "d": {"token": token, "session_id": session, "seq": seq}})
            }
            _ => json!({"op": 2, "d": {"token": token, "intents": self.intents,
                "properties": {"os": "linux", "browser": "clawk", "device": "clawk"}}}),
        };
        socket
            .send_text(first.to_string())
            .await
            .map_err(ChannelDisconnect::temporary)
    }

    /// The next connection begins a session; what lay between is read from history.
    fn new_session(&self) {
        self.resumes.store(0, Ordering::SeqCst);
        let mut place = self.lock_gateway_state();
        place.session = None;
        place.resume_url = None;
        place.seq = None;
    }

    async fn handle_frame(
        &self,
        inlet: &InboundPipeline,
        socket: &Socket,
        frame: GatewayFrame,
    ) -> Result<(), ChannelDisconnect> {
        match frame.op {
            0 => {
                self.resumes.store(0, Ordering::SeqCst);
                self.dispatch_event(inlet, frame.t.as_deref().unwrap_or_default(), frame.d)
                    .await?;
                if frame.s.is_some() {
                    self.lock_gateway_state().seq = frame.s;
                }
                self.save_state(inlet);
                Ok(())
            }
            1 => gateway::send_heartbeat(self, socket).await,
            7 => Err(ChannelDisconnect {
                after_ms: Some(0),
                ..ChannelDisconnect::temporary("the gateway wants a new connection")
            }),
            9 => {
                if frame.d != json!(true) {
                    self.new_session();
                }
                Err(ChannelDisconnect {
                    after_ms: Some(1_000 + inlet.clock().random_u64() % 4_000),
                    ..ChannelDisconnect::temporary("the gateway does not know the session any more")
                })
            }
            _ => Ok(()),
        }
    }

    async fn dispatch_event(
        &self,
        inlet: &InboundPipeline,
        event: &str,
        d: Value,
    ) -> Result<(), ChannelDisconnect> {
        match event {
            "READY" => {
                let text = |pointer: &str| d.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
                {
                    let mut place = self.lock_gateway_state();
                    place.me = text("/user/id");
                    place.session = text("/session_id");
                    place.resume_url = text("/resume_gateway_url");
                }
                self.read_missed_messages(inlet).await?;
                inlet.report_ready();
            }
            "RESUMED" => inlet.report_ready(),
            "GUILD_CREATE" | "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" => self.learn_names(&d),
            "MESSAGE_CREATE" => self.ingest_message(inlet, d).await?,
            // Without a time of the edit, only a preview of a link came to the message.
            "MESSAGE_UPDATE" if d.get("edited_timestamp").is_some_and(Value::is_string) => {
                self.ingest_message(inlet, d).await?;
            }
            "INTERACTION_CREATE" => self.handle_press(inlet, &d).await,
            _ => {}
        }
        Ok(())
    }

    /// What a server's channels are called, or one of them.
    fn learn_names(&self, d: &Value) {
        let text = |value: &Value, name: &str| {
            value
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let lists = ["channels", "threads"].map(|name| d.get(name).and_then(Value::as_array));
        if lists == [None, None] {
            return self.names.remember_name(&text(d, "id"), &text(d, "name"));
        }
        let server = text(d, "name");
        for channel in lists.into_iter().flatten().flatten() {
            self.names.remember_name(
                &text(channel, "id"),
                &format!("{} in {server}", text(channel, "name")),
            );
        }
    }

    /// What was said while nobody listened, in conversations that are known.
    async fn read_missed_messages(&self, inlet: &InboundPipeline) -> Result<(), ChannelDisconnect> {
        let last = self.lock_gateway_state().last.clone();
        for (conversation, after) in last {
            let path = format!("channels/{conversation}/messages?after={after}&limit=100");
            let answer = self.api.send_json(Method::GET, &path, None).await;
            let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
            let Value::Array(mut messages) = answer.body else {
                inlet.report_degraded(format!(
                    "messages of the conversation {conversation} may be missing: its history can't be read"
                ));
                continue;
            };
            messages.reverse();
            for message in messages {
                self.ingest_message(inlet, message).await?;
            }
        }
        Ok(())
    }

    async fn ingest_message(&self, inlet: &InboundPipeline, d: Value) -> Result<(), ChannelDisconnect> {
        let Ok(message) = serde_json::from_value::<DiscordMessage>(d) else {
            tracing::warn!("a message can't be read and is passed over");
            return Ok(());
        };
        let (conversation, id) = (message.channel_id.clone(), message.id.clone());
        if let Some(incoming) = self.to_platform_message(message)
            && !inlet.ingest_message(incoming).await.is_settled()
        {
            return Err(ChannelDisconnect::temporary("a message could not be kept"));
        }
        let mut place = self.lock_gateway_state();
        if place.last.len() >= REMEMBERED && !place.last.contains_key(&conversation) {
            place.last.pop_first();
        }
        // An edit may be of an old message: what was said since is read already.
        if place
            .last
            .get(&conversation)
            .is_none_or(|last| is_later(&id, last))
        {
            place.last.insert(conversation, id);
        }
        Ok(())
    }

    fn to_platform_message(&self, message: DiscordMessage) -> Option<PlatformMessage> {
        let me = self.lock_gateway_state().me.clone().unwrap_or_default();
        let person = !message.author.bot && message.webhook_id.is_none() && message.author.id != me;
        let (words, forwarded) = words::read(message.content, &message.more);
        let said = matches!(message.kind, 0 | 19) && !(words.is_empty() && message.attachments.is_empty());
        if !person || !said {
            return None;
        }
        let replied = message.referenced_message.as_ref();
        let replied = replied.is_some_and(|replied| replied.author.id == me);
        let answered = message
            .referenced_message
            .filter(|answered| !answered.content.is_empty());
        let answered = answered.map(|answered| {
            let (id, sender) = (&answered.author.id, Some(message.author.id.as_str()));
            let author = worded::quote_author(id, answered.author.name(), Some(&me), sender);
            worded::quoted_text(QuoteKind::Reply, author, answered.content)
        });
        let chat_name = self.names.name_of(&message.channel_id);
        let id = match &message.edited_timestamp {
            Some(at) => format!("{EDIT}{}:{at}", message.id),
            None => message.id,
        };
        let attachment = |file: DiscordFile| Attachment {
            name: file.filename,
            media_type: file.content_type.unwrap_or_default(),
            size: file.size,
            content: file.url.map_or(AttachmentContent::Absent, AttachmentContent::At),
        };
        Some(PlatformMessage {
            ids: vec![id],
            conversation: message.channel_id,
            direct: message.guild_id.is_none(),
            mention: replied || message.mentions.iter().any(|user| user.id == me),
            sender_name: message.author.name().map(str::to_owned),
            sender: Some(message.author.id),
            text: words,
            attachments: message.attachments.into_iter().map(attachment).collect(),
            context: MessageContext {
                chat_name,
                edited: message.edited_timestamp.is_some(),
                quotes: answered.into_iter().chain(forwarded).collect(),
                ..MessageContext::default()
            },
            answers: None,
            remembered_days: None,
        })
    }

    async fn handle_press(&self, inlet: &InboundPipeline, d: &Value) {
        let text = |pointer: &str| d.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if d.get("type") != Some(&json!(3)) {
            return;
        }
        let told = match carried(text("/data/custom_id")) {
            Some((question, choice)) => {
                let member = text("/member/user/id");
                let sender = if member.is_empty() {
                    text("/user/id")
                } else {
                    member
                };
                let press = ButtonPress {
                    reason: None,
                    question: question.to_owned(),
                    choice: choice.to_owned(),
                    sender: sender.to_owned(),
                    conversation: text("/channel_id").to_owned(),
                };
                inlet.handle_press(&press).await
            }
            None => "This button means nothing any more.".to_owned(),
        };
        let (id, token) = (text("/id"), text("/token"));
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '=');
        if !is_snowflake(id) || !token.chars().all(plain) {
            return;
        }
        let answer =
            json!({"type": 4, "data": {"content": told, "flags": 64, "allowed_mentions": {"parse": []}}});
        let path = format!("interactions/{id}/{token}/callback");
        if let Err(fault) = self.api.post_json(&path, &answer).await {
            tracing::debug!(reason = fault.reason(), "a press could not be answered");
        }
    }

    async fn post_message(&self, method: Method, path: &str, body: &Value) -> Delivery {
        let answer = self.api.send_json(method.clone(), path, Some(body)).await;
        // Nothing was sent: the message that is answered can't be named, and the words go without it.
        if let Ok(refused) = &answer
            && refusals::discord_refusal(refused.status.as_u16(), &refused.body)
                == MessageRefusal::RepliedGone
            && let Some(rest) = worded::without_member(body, "message_reference")
        {
            return delivery_from_response(self.api.send_json(method, path, Some(&rest)).await);
        }
        delivery_from_response(answer)
    }

    /// The bot's 👀 on a message: PUT shows it, DELETE takes it away.
    async fn set_reaction(&self, method: Method, conversation: &str, id: &str) -> Result<(), String> {
        if !is_snowflake(id) {
            return Err("the message has no number".to_owned());
        }
        let channel = threads::of_message(self, conversation, id);
        let messages = messages_path(&channel).map_err(|_| "the conversation has no number")?; // silent-ok: said
        let path = format!(
            "{messages}/{id}/reactions/{}/@me",
            escaped(crate::platform_kit::EYES)
        );
        let answer = self.api.send_json(method, &path, None).await;
        let answer = answer.map_err(PlatformFailure::reason)?;
        if answer.status.is_success() {
            return Ok(());
        }
        Err(format!("{} {}", answer.status.as_u16(), error_text(&answer)))
    }

    /// The path of the messages of a conversation, whose thread is made if it is only begun.
    async fn messages_path_of(&self, conversation: &str) -> Result<String, Delivery> {
        let direct = self.lock_gateway_state().direct.get(conversation).cloned();
        match direct {
            Some(direct) => messages_path(&direct),
            None => messages_path(&threads::place(self, conversation).await?),
        }
    }

    /// Sends a message, with a file where there is one, to a conversation, or to a person by their id: people and channels have ids of
    /// one kind, and the platform says that an id is no channel. `body` makes the message for the path of a conversation.
    async fn deliver_message(
        &self,
        conversation: &str,
        body: &(dyn Fn(&str) -> Value + Sync),
        file: Option<&OutFile>,
    ) -> Delivery {
        let path = match self.messages_path_of(conversation).await {
            Ok(path) => path,
            Err(delivery) => return delivery,
        };
        let answer = self.hand_in(&path, &body(&path), file).await;
        let unknown = answer.as_ref().is_ok_and(|answer| {
            answer.status.as_u16() == 404
                && answer.body.get("code").and_then(Value::as_u64) == Some(UNKNOWN_CHANNEL)
        });
        if threads::is_gone(&answer) {
            return match threads::channel_of(self, &path).await {
                Some(path) => delivery_from_response(self.hand_in(&path, &body(&path), file).await),
                None => delivery_from_response(answer),
            };
        }
        if !unknown {
            return delivery_from_response(answer);
        }
        match self.open_direct(conversation).await {
            Ok(Some(path)) => delivery_from_response(self.hand_in(&path, &body(&path), file).await),
            Ok(None) => delivery_from_response(answer),
            Err(fault) => fault.into_delivery(),
        }
    }

    async fn hand_in(
        &self,
        path: &str,
        body: &Value,
        file: Option<&OutFile>,
    ) -> Result<PlatformResponse, PlatformFailure> {
        let Some(file) = file else {
            return self.api.send_json(Method::POST, path, Some(body)).await;
        };
        let form = MultipartForm::new().map_err(PlatformFailure::NotSent)?;
        let form = form.json("payload_json", body).file("files[0]", file);
        self.api.upload_form(path, form, &[]).await
    }

    /// Opens the direct conversation with a person: the path of its messages. `None`: nobody has this id, or they take no messages.
    async fn open_direct(&self, person: &str) -> Result<Option<String>, PlatformFailure> {
        let body = json!({ "recipient_id": person });
        let answer = self.api.post_json("users/@me/channels", &body).await?;
        let Some(direct) = answer
            .text("/id")
            .filter(|id| answer.status.is_success() && is_snowflake(id))
        else {
            return Ok(None);
        };
        let mut place = self.lock_gateway_state();
        if place.direct.len() >= REMEMBERED {
            place.direct.pop_first();
        }
        place.direct.insert(person.to_owned(), direct.to_owned());
        Ok(messages_path(direct).ok()) // silent-ok: its id is a number
    }

    async fn look_for(&self, out: &OutboundMessage) -> DeliveryLookup {
        let Ok(path) = self.messages_path_of(&out.conversation).await else {
            return DeliveryLookup::CantKnow;
        };
        let thread = path;
        let path = format!("{thread}?limit=50");
        // silent-ok: then the answer is sent marked as a repetition
        let Ok(answer) = self.api.send_json(Method::GET, &path, None).await else {
            return DeliveryLookup::CantKnow;
        };
        let (Value::Array(messages), Some(me)) = (&answer.body, self.lock_gateway_state().me.clone()) else {
            return DeliveryLookup::CantKnow;
        };
        let nonce = message_nonce(&out.id);
        let ours = |message: &&Value| {
            let text = |pointer: &str| {
                message
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            text("/author/id") == me && (text("/nonce") == nonce || text("/content") == out.text)
        };
        match messages.iter().find(ours) {
            Some(message) => {
                DeliveryLookup::Yes(message.get("id").and_then(Value::as_str).map(str::to_owned))
            }
            // The channel above the thread may have it.
            None if threads::channel_of(self, &thread).await.is_some() => DeliveryLookup::CantKnow,
            None => DeliveryLookup::No,
        }
    }
}

pub(super) fn delivery_from_response(answer: Result<PlatformResponse, PlatformFailure>) -> Delivery {
    match answer {
        Ok(answer) if answer.status.as_u16() == 429 => Delivery::Retry {
            after_ms: retry_after(&answer),
            reason: error_text(&answer),
        },
        Ok(answer) => {
            let refusal = refusals::discord_refusal(answer.status.as_u16(), &answer.body);
            if let Some(delivery) = refusal.delivery_after(retry_after(&answer), &error_with_code(&answer)) {
                return delivery;
            }
            let id = answer.text("/id").map(str::to_owned);
            answer.delivery_by_status(id, false, &error_text(&answer))
        }
        Err(fault) => fault.into_delivery(),
    }
}

impl Gateway for DiscordAdapter {
    fn durable_seq(&self) -> Option<u64> {
        self.lock_gateway_state().seq
    }

    fn handle_gateway_frame<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        socket: &'a Socket,
        frame: GatewayFrame,
    ) -> BoxFuture<'a, Result<(), ChannelDisconnect>> {
        Box::pin(self.handle_frame(inlet, socket, frame))
    }

    fn closed_by_peer(&self, code: u16, told: String) -> ChannelDisconnect {
        if FATAL.contains(&code) {
            return ChannelDisconnect::fatal(told);
        }
        if matches!(code, 4007 | 4009 | 1000 | 1001) {
            self.new_session();
        }
        ChannelDisconnect::temporary(told)
    }
}

/// At most 25 characters that are the same for the same message.
fn message_nonce(id: &str) -> String {
    to_hex(Sha256::digest(id.as_bytes()).get(..12).unwrap_or_default())
}

/// The platform's words with its status and code.
fn error_with_code(answer: &PlatformResponse) -> String {
    let code = answer
        .body
        .get("code")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    format!("{} {code}: {}", answer.status.as_u16(), error_text(answer))
}

pub(super) fn error_text(answer: &PlatformResponse) -> String {
    bounded_line(answer.text("/message").unwrap_or_default())
}

fn retry_after(answer: &PlatformResponse) -> Option<u64> {
    let given = answer.body.get("retry_after").and_then(Value::as_f64);
    given.and_then(seconds_ms).or_else(|| answer.retry_after_ms())
}

/// Whether a text is an id of the platform.
pub(super) fn is_snowflake(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The path of a conversation's messages; ids are numbers.
pub(super) fn messages_path(conversation: &str) -> Result<String, Delivery> {
    if is_snowflake(conversation) {
        return Ok(format!("channels/{conversation}/messages"));
    }
    Err(Delivery::Failed {
        reason: "the conversation is not a channel's id".to_owned(),
    })
}

/// `path` is where it goes: a thread holds no reply to the message at which it begins.
fn message_body(out: &OutboundMessage, path: &str) -> Value {
    let mut body = json!({"content": out.text, "nonce": message_nonce(&out.id), "enforce_nonce": true,
        "allowed_mentions": {"parse": [], "replied_user": false}});
    let begins = |id: &&String| path == format!("channels/{id}/messages");
    let reply = out.reply_to.as_ref().filter(|id| !begins(id));
    if let (Some(reply), Some(body)) = (reply, body.as_object_mut()) {
        let reference = json!({"message_id": reply, "fail_if_not_exists": false});
        body.insert("message_reference".to_owned(), reference);
    }
    body
}

impl ChannelAdapter for DiscordAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            code: CodeBlock::ThreeBackticks,
            buttons: true,
            edits: true,
            typing: true,
            files: FileSupport::Beside,
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Utf16)
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
        Box::pin(async move {
            let body = |path: &str| message_body(out, path);
            self.deliver_message(&out.conversation, &body, None).await
        })
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            if file.data.len() > MAX_FILE {
                return Delivery::Failed {
                    reason: "the platform takes files up to 10 MiB".to_owned(),
                };
            }
            let about = json!({"nonce": message_nonce(&out.id), "enforce_nonce": true, "allowed_mentions": {"parse": []},
                "attachments": [{"id": 0, "filename": file.name}]});
            self.deliver_message(&out.conversation, &|_: &str| about.clone(), Some(file))
                .await
        })
    }

    fn is_same_place(&self, asked: &str, answered: &str) -> bool {
        asked == answered
            || self
                .lock_gateway_state()
                .direct
                .get(asked)
                .is_some_and(|direct| direct == answered)
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let path = match self.messages_path_of(&out.conversation).await {
                Ok(path) => format!("{path}/{of}"),
                Err(delivery) => return delivery,
            };
            let body = json!({"content": out.text, "components": [], "allowed_mentions": {"parse": []}});
            self.post_message(Method::PATCH, &path, &body).await
        })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let button = |(id, label): &(String, String)| json!({"type": 2, "style": 2, "label": label, "custom_id": asking.button_data(id)});
            let buttons: Vec<Value> = asking.choices.iter().map(button).collect();
            let body = |path: &str| {
                let mut body = message_body(&asking.out, path);
                if let (false, Some(body)) = (buttons.is_empty(), body.as_object_mut()) {
                    body.insert(
                        "components".to_owned(),
                        json!([{"type": 1, "components": buttons}]),
                    );
                }
                body
            };
            self.deliver_message(&asking.out.conversation, &body, None).await
        })
    }

    fn sent_before<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, DeliveryLookup> {
        Box::pin(self.look_for(out))
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(self.files.get(at, HeaderMap::new(), max_bytes))
    }

    fn begin_thread<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        incoming: &'a PlatformMessage,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let thread = threads::begin(self, incoming).await;
            if thread.is_some() {
                // Before the message is accepted: whoever goes on with it after a crash knows where the thread stands.
                self.save_state(inlet);
            }
            thread
        })
    }

    fn add_reaction<'a>(
        &'a self,
        conversation: &'a str,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            self.set_reaction(Method::PUT, conversation, id)
                .await
                .map(|()| None)
        })
    }

    fn remove_reaction<'a>(
        &'a self,
        conversation: &'a str,
        id: &'a str,
        _mark: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.set_reaction(Method::DELETE, conversation, id))
    }

    fn show_typing<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let path = format!("channels/{}/typing", threads::stands(self, conversation));
            if let Err(fault) = self.api.send_json(Method::POST, &path, None).await {
                tracing::debug!(reason = fault.reason(), "typing could not be shown");
            }
        })
    }
}
