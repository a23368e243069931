//! `telegram`: Bot API by long polling or webhook. The token stands in every URL, so that no URL is ever shown.
//!
//! Long because what comes in two ways and what goes out share one bot and the shapes of its messages.

mod entry;
mod message;
mod moves;

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::Secret;
use http::{HeaderMap, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::TELEGRAM;
use self::message::{TelegramChat, TelegramMessage, User};
use self::moves::{TelegramGroupMoves, TelegramRefusal, refusal};
use crate::adapter::{
    ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, EDIT, FileSupport, HookReply, HookRequest,
    InboundPipeline, LengthUnit, MarkupFormat, OutFile, OutboundMessage, PlatformCapabilities,
    PlatformMessage, QuestionMessage, carried,
};
use crate::albums::{AlbumCollector, AlbumOutcome, merge_parts};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line, seconds_ms};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::form::MultipartForm;
use crate::genuine::constant_time_eq;
use crate::platform_kit::{escaped, listening, public_url, secret, secret_named};
use crate::remote::RemoteFiles;

pub(crate) const VENDOR: &str = "https://api.telegram.org";
/// How long a poll is held open, seconds.
const POLL_S: u64 = 25;
const PATIENCE: Duration = Duration::from_secs(40);
/// UTF-16 units of a message; the platform's limit is 4096 and its unit is not certain.
const MAX_TEXT: usize = 4_000;
/// Bytes of a file that goes out.
const MAX_FILE: usize = 50_000_000;
/// Characters of the answer to a press.
const MAX_TOLD: usize = 190;
/// The platform's names for people who have none, such as anonymous admins.
const STAND_INS: [i64; 3] = [1_087_968_824, 136_817_688, 777_000];
const UPDATES: [&str; 3] = ["message", "edited_message", "callback_query"];
/// How long the rest of an album is waited for, and how often it is looked for at most.
const ALBUM_WAIT: Duration = Duration::from_millis(700);
const ALBUM_LOOKS: usize = 4;
/// Updates of one poll.
const POLL_LIMIT: usize = 100;

#[derive(Debug, Deserialize)]
struct TelegramUpdate {
    update_id: i64,
    #[serde(default)]
    message: Option<TelegramMessage>,
    #[serde(default)]
    edited_message: Option<TelegramMessage>,
    #[serde(default)]
    callback_query: Option<TelegramCallbackQuery>,
}

#[derive(Debug, Deserialize)]
struct TelegramCallbackQuery {
    id: String,
    from: User,
    #[serde(default)]
    message: Option<TelegramCallbackMessage>,
    #[serde(default)]
    data: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TelegramCallbackMessage {
    chat: TelegramChat,
    #[serde(default)]
    message_thread_id: Option<i64>,
    #[serde(default)]
    is_topic_message: bool,
}

/// Who the bot is.
#[derive(Debug)]
struct TelegramBotUser {
    id: i64,
    username: String,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct TelegramAdapter {
    api: PlatformApi,
    token: Secret,
    base: String,
    files: RemoteFiles,
    /// Of a webhook: its secret, and our address.
    hook: Option<(Secret, String)>,
    me: OnceLock<TelegramBotUser>,
    /// Groups that have another id now.
    moves: TelegramGroupMoves,
    /// Albums of which parts have come by webhook.
    albums: AlbumCollector<PlatformMessage>,
}

impl TelegramAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let hook = match channel.transport {
            Transport::Polling => None,
            Transport::Webhook => {
                listening(parts)?;
                let secret = secret_named(config, parts, "webhook_secret")?;
                Some((secret, public_url(channel, config)?))
            }
            Transport::Websocket | Transport::Stdio => {
                return Err("`telegram` has the transports `polling` and `webhook`".to_owned());
            }
        };
        let token = secret(channel, parts)?;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_');
        if !token.expose().trim().chars().all(fits) {
            return Err("the bot token holds characters that no bot token has".to_owned());
        }
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        Ok(Self {
            api: PlatformApi::new(base, parts.secrets.env(), PATIENCE)?,
            files: RemoteFiles::new(base, parts.secrets.env(), &[])?,
            base: base.trim_end_matches('/').to_owned(),
            token,
            hook,
            me: OnceLock::new(),
            moves: TelegramGroupMoves::default(),
            albums: AlbumCollector::new(ALBUM_WAIT),
        })
    }

    async fn call(&self, method: &str, params: &Value) -> Result<PlatformResponse, PlatformFailure> {
        let path = format!("bot{}/{method}", self.token.expose().trim());
        self.api.send_json(Method::POST, &path, Some(params)).await
    }

    /// A call that must succeed for the channel to work.
    async fn call_or_disconnect(&self, method: &str, params: &Value) -> Result<Value, ChannelDisconnect> {
        let answer = self
            .call(method, params)
            .await
            .map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        if answer.body.get("ok") == Some(&Value::Bool(true)) {
            return Ok(answer.body.get("result").cloned().unwrap_or_default());
        }
        let reason = format!("{method}: {}", error_text(&answer));
        Err(match answer.status.as_u16() {
            401 | 404 => ChannelDisconnect::fatal(format!("the platform refuses the bot token ({reason})")),
            429 => ChannelDisconnect {
                after_ms: retry_after(&answer),
                ..ChannelDisconnect::temporary(reason)
            },
            _ => ChannelDisconnect::temporary(reason),
        })
    }

    async fn fetch_bot_identity(&self) -> Result<(), ChannelDisconnect> {
        let me = self.call_or_disconnect("getMe", &json!({})).await?;
        let id = me.get("id").and_then(Value::as_i64);
        let username = me.get("username").and_then(Value::as_str);
        let (Some(id), Some(username)) = (id, username) else {
            return Err(ChannelDisconnect::temporary("getMe says nothing of the bot"));
        };
        let _same = self.me.set(TelegramBotUser {
            id,
            username: username.to_lowercase(),
        }); // silent-ok: the bot stays itself
        Ok(())
    }

    async fn listen(
        &self,
        inlet: &InboundPipeline,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        self.fetch_bot_identity().await?;
        self.moves.restore_moves(inlet);
        if let Some((secret, url)) = &self.hook {
            let params = json!({"url": url, "secret_token": secret.expose(), "allowed_updates": UPDATES});
            self.call_or_disconnect("setWebhook", &params).await?;
            inlet.report_ready();
            over.cancelled().await;
            return Ok(());
        }
        self.call_or_disconnect("deleteWebhook", &json!({})).await?;
        let (mut offset, mut polled) = (None, false);
        loop {
            // The first answer comes at once: the channel is connected then, and what is owed goes out.
            let timeout = if polled { POLL_S } else { 0 };
            let mut params = json!({"timeout": timeout, "limit": POLL_LIMIT, "allowed_updates": UPDATES});
            if let (Some(offset), Some(params)) = (offset, params.as_object_mut()) {
                params.insert("offset".to_owned(), json!(offset));
            }
            let updates = tokio::select! {
                updates = self.call_or_disconnect("getUpdates", &params) => updates?,
                () = over.cancelled() => return Ok(()),
            };
            polled = true;
            inlet.report_ready();
            let Value::Array(updates) = updates else {
                return Err(ChannelDisconnect::temporary(
                    "getUpdates: the answer is not a list",
                ));
            };
            let updates = tokio::select! {
                updates = self.whole_albums(params, updates) => updates?,
                () = over.cancelled() => return Ok(()),
            };
            let last = updates
                .iter()
                .filter_map(|update| update.get("update_id")?.as_i64())
                .max();
            for update in group_updates(updates) {
                self.ingest_updates(inlet, update)
                    .await
                    .map_err(ChannelDisconnect::temporary)?;
            }
            // The next poll confirms them: what they brought is durable.
            offset = last.map(|id| id.saturating_add(1)).or(offset);
        }
    }

    /// The updates of a poll. Where an album is among the last ones, its other parts may still be on their way: the same is asked
    /// again, which confirms nothing.
    async fn whole_albums(
        &self,
        mut params: Value,
        mut updates: Vec<Value>,
    ) -> Result<Vec<Value>, ChannelDisconnect> {
        if let Some(params) = params.as_object_mut() {
            params.insert("timeout".to_owned(), json!(0));
        }
        for _ in 0..ALBUM_LOOKS {
            let open = updates.last().is_some_and(|last| album_of(last).is_some());
            if !open || updates.len() >= POLL_LIMIT {
                break;
            }
            tokio::time::sleep(ALBUM_WAIT).await;
            let Value::Array(again) = self.call_or_disconnect("getUpdates", &params).await? else {
                break;
            };
            let grown = again.len() > updates.len();
            if again.len() >= updates.len() {
                updates = again;
            }
            if !grown {
                break;
            }
        }
        Ok(updates)
    }

    /// Who the bot is. Until that is known, nobody can say whether a message names it.
    fn bot_user(&self) -> Result<&TelegramBotUser, &'static str> {
        self.me.get().ok_or("the bot's own id is not known yet")
    }

    /// Updates that belong together. `Err`: they are not kept, and must come again.
    async fn ingest_updates(
        &self,
        inlet: &InboundPipeline,
        updates: Vec<TelegramUpdate>,
    ) -> Result<(), String> {
        let me = self.bot_user()?;
        let mut parts = Vec::new();
        for update in updates {
            let edited = update.edited_message.filter(TelegramMessage::has_words);
            if let Some(message) = update.message.or(edited) {
                self.moves.learn_from_message(&message);
                parts.extend(self.to_platform_message(me, update.update_id, message));
            }
            if let Some(callback) = update.callback_query {
                self.handle_press(inlet, callback).await;
            }
        }
        self.moves.save_moves(inlet);
        let Some(incoming) = merge_parts(parts) else {
            return Ok(());
        };
        if inlet.ingest_message(incoming).await.is_settled() {
            return Ok(());
        }
        Err("a message could not be kept".to_owned())
    }

    /// The same of one update that comes by webhook: the parts of an album come one by one, each of them waits for the others, and
    /// none is acknowledged before all of them are durable.
    async fn take_pushed(&self, inlet: &InboundPipeline, update: TelegramUpdate) -> Result<(), String> {
        let Some(message) = &update.message else {
            return self.ingest_updates(inlet, vec![update]).await;
        };
        let Some(album) = &message.media_group_id else {
            return self.ingest_updates(inlet, vec![update]).await;
        };
        let me = self.bot_user()?;
        let key = format!("{}:{album}", message.chat.id);
        let Some(incoming) = update
            .message
            .and_then(|message| self.to_platform_message(me, update.update_id, message))
        else {
            return Ok(());
        };
        let kept = match self.albums.add_part(&key, incoming, None).await {
            AlbumOutcome::All(parts, told) => {
                let kept = match merge_parts(parts) {
                    Some(incoming) => inlet.ingest_message(incoming).await.is_settled(),
                    None => true,
                };
                told.report_outcome(kept);
                kept
            }
            AlbumOutcome::Settled(kept) => kept,
        };
        if kept {
            Ok(())
        } else {
            Err("a message could not be kept".to_owned())
        }
    }

    /// `None`: it is no person's message.
    fn to_platform_message(
        &self,
        me: &TelegramBotUser,
        update_id: i64,
        message: TelegramMessage,
    ) -> Option<PlatformMessage> {
        let from = message.from.as_ref().filter(|_| message.chat.id != 0)?;
        let stand_in = message.sender_chat.is_some() || STAND_INS.contains(&from.id);
        if from.is_bot && !stand_in {
            return None;
        }
        let mention = self.is_mentioned(me, &message);
        let direct = message.chat.kind == "private";
        let chat = message.chat.id;
        let thread = message.message_thread_id.filter(|_| message.is_topic_message);
        let id = match message.edit_date {
            Some(date) => format!("{EDIT}{chat}:{}:{date}", message.message_id),
            None => format!("{chat}:{}", message.message_id),
        };
        let (sender, sender_name) = ((!stand_in).then(|| from.id.to_string()), Some(from.name()));
        let decoded = message.decode_message(self.me.get().map(|me| me.id));
        if decoded.is_empty() {
            return None;
        }
        Some(PlatformMessage {
            ids: vec![id, format!("u{update_id}")],
            conversation: self.conversation(chat, thread),
            direct,
            mention,
            sender,
            sender_name,
            text: decoded.text,
            attachments: decoded.attachments,
            context: decoded.context,
            answers: None,
            remembered_days: None,
        })
    }

    /// The conversation of a chat. A group that became a supergroup stays the conversation that it was.
    fn conversation(&self, chat: i64, thread: Option<i64>) -> String {
        let chat = self.moves.first_id(&chat.to_string());
        thread.map_or_else(|| chat.clone(), |thread| format!("{chat}:{thread}"))
    }

    fn is_mentioned(&self, me: &TelegramBotUser, message: &TelegramMessage) -> bool {
        let replied = message
            .reply_to_message
            .as_ref()
            .and_then(|replied| replied.from.as_ref());
        if replied.is_some_and(|from| from.id == me.id) {
            return true;
        }
        let text = message
            .text
            .as_deref()
            .or(message.caption.as_deref())
            .unwrap_or_default();
        let mut entities = message.entities.iter().chain(&message.caption_entities);
        entities.any(|entity| {
            let named = utf16_slice(text, entity.offset, entity.length).to_lowercase();
            match entity.kind.as_str() {
                "mention" => named.strip_prefix('@') == Some(&me.username),
                "text_mention" => entity.user.as_ref().is_some_and(|user| user.id == me.id),
                // `/stop@otherbot` is for the other one.
                "bot_command" => named.split_once('@').is_none_or(|(_, bot)| bot == me.username),
                _ => false,
            }
        })
    }

    async fn handle_press(&self, inlet: &InboundPipeline, callback: TelegramCallbackQuery) {
        let told = match (&callback.message, callback.data.as_deref().and_then(carried)) {
            (Some(message), Some((question, choice))) => {
                let chat = message.chat.id;
                let thread = message.message_thread_id.filter(|_| message.is_topic_message);
                let press = ButtonPress {
                    reason: None,
                    question: question.to_owned(),
                    choice: choice.to_owned(),
                    sender: callback.from.id.to_string(),
                    conversation: self.conversation(chat, thread),
                };
                inlet.handle_press(&press).await
            }
            _ => "This button means nothing any more.".to_owned(),
        };
        let text: String = told.chars().take(MAX_TOLD).collect();
        let params = json!({"callback_query_id": callback.id, "text": text});
        if let Err(fault) = self.call("answerCallbackQuery", &params).await {
            tracing::debug!(reason = fault.reason(), "a press could not be answered");
        }
    }

    /// Puts these reactions on a message in the place of those that the bot put before. A bot may put one; 👀 is one of the emoji that
    /// the platform takes, unless the group's admins allow others only.
    async fn set_reaction(&self, id: &str, reactions: Value) -> Result<(), String> {
        let (chat, message) = split_message_id(id).ok_or("the message has no id")?;
        let params = json!({"chat_id": chat, "message_id": message, "reaction": reactions});
        let answer = self.call("setMessageReaction", &params).await;
        let answer = answer.map_err(PlatformFailure::reason)?;
        if answer.body.get("ok") == Some(&Value::Bool(true)) {
            return Ok(());
        }
        Err(error_text(&answer))
    }

    /// The bytes of a file. Its address holds the token: it is in no error.
    async fn fetch_file(&self, id: &str, max_bytes: u64) -> Result<Bytes, String> {
        let answer = self.call("getFile", &json!({ "file_id": id })).await;
        let answer = answer.map_err(PlatformFailure::reason)?;
        let Some(path) = answer.text("/result/file_path") else {
            return Err(format!("the platform does not give it: {}", error_text(&answer)));
        };
        if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err("the platform gave no path of the file".to_owned());
        }
        let path: Vec<String> = path.split('/').map(escaped).collect();
        let url = format!(
            "{}/file/bot{}/{}",
            self.base,
            self.token.expose().trim(),
            path.join("/")
        );
        self.files.get(&url, HeaderMap::new(), max_bytes).await
    }

    /// Sends a file as a document. As a photo, the platform would scale it down.
    async fn send_document(&self, out: &OutboundMessage, file: &OutFile) -> Delivery {
        if file.data.len() > MAX_FILE {
            return Delivery::Failed {
                reason: "the platform takes files up to 50 MB".to_owned(),
            };
        }
        let mut params = json!({});
        self.set_target(&out.conversation, &mut params);
        let path = format!("bot{}/sendDocument", self.token.expose().trim());
        loop {
            let mut form = match MultipartForm::new() {
                Ok(form) => form,
                Err(reason) => return PlatformFailure::NotSent(reason).into_delivery(),
            };
            for name in ["chat_id", "message_thread_id"] {
                if let Some(value) = params.get(name) {
                    form = form.text(name, value.to_string().trim_matches('"'));
                }
            }
            let answer = match self
                .api
                .upload_form(&path, form.file("document", file), &[])
                .await
            {
                Ok(answer) => answer,
                Err(fault) => return fault.into_delivery(),
            };
            if !self.cure_request(&answer, &mut params, "") {
                return delivery_from_response(&answer);
            }
        }
    }

    async fn deliver_message(&self, method: &str, mut params: Value, markdown: &str) -> Delivery {
        loop {
            let answer = match self.call(method, &params).await {
                Ok(answer) => answer,
                Err(fault) => return fault.into_delivery(),
            };
            if !self.cure_request(&answer, &mut params, markdown) {
                return delivery_from_response(&answer);
            }
        }
    }

    /// Changes a request that was refused for a reason which the platform names, so that it may be taken. `false`: there is no cure, or
    /// it was tried. Each cure takes something away that was there, so that this ends.
    fn cure_request(&self, answer: &PlatformResponse, params: &mut Value, markdown: &str) -> bool {
        let Some(params) = params.as_object_mut() else {
            return false;
        };
        match refusal(answer.status.as_u16(), &answer.body) {
            TelegramRefusal::Moved(to) => {
                let to = to.to_string();
                let from = params.insert("chat_id".to_owned(), json!(to));
                let from = from
                    .as_ref()
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned();
                self.moves.add_move(&from, &to);
                // Numbers of messages and topics of the old group mean nothing in the new one, and what was to be changed is not there.
                let changes = params.remove("message_id").is_some();
                params.remove("reply_parameters");
                params.remove("message_thread_id");
                from != to && !changes
            }
            TelegramRefusal::ThreadGone => params.remove("message_thread_id").is_some(),
            TelegramRefusal::RepliedGone => params.remove("reply_parameters").is_some(),
            TelegramRefusal::Markup => {
                let text = markdown.chars().take(MAX_TEXT).collect::<String>();
                params.insert("text".to_owned(), json!(text));
                params.remove("parse_mode").is_some()
            }
            TelegramRefusal::NotModified | TelegramRefusal::Final(_) | TelegramRefusal::Other => false,
        }
    }

    /// Where a message goes: the chat as its id is now, and the topic.
    fn set_target(&self, conversation: &str, params: &mut Value) {
        let (chat, thread) = conversation.split_once(':').unwrap_or((conversation, ""));
        if let Some(params) = params.as_object_mut() {
            params.insert("chat_id".to_owned(), json!(self.moves.current_id(chat)));
            if let Ok(thread) = thread.parse::<i64>() {
                params.insert("message_thread_id".to_owned(), json!(thread));
            }
        }
    }

    fn message_params(&self, out: &OutboundMessage) -> Value {
        let mut params =
            json!({"text": out.text, "parse_mode": "HTML", "link_preview_options": {"is_disabled": true}});
        self.set_target(&out.conversation, &mut params);
        let replied = out.reply_to.as_deref().and_then(split_message_id);
        if let (Some((chat, id)), Some(params)) = (replied, params.as_object_mut())
            && params.get("chat_id").and_then(Value::as_str) == Some(chat)
        {
            let reply = json!({"message_id": id, "allow_sending_without_reply": true});
            params.insert("reply_parameters".to_owned(), reply);
        }
        params
    }
}

/// The chat and the number of a message, of the id that it has here.
fn split_message_id(id: &str) -> Option<(&str, i64)> {
    let (chat, number) = id.rsplit_once(':')?;
    Some((chat, number.parse().ok()?)) // silent-ok: a run of a schedule has no message
}

/// The album that an update is a part of.
fn album_of(update: &Value) -> Option<String> {
    let message = update.get("message")?;
    let album = message.get("media_group_id")?.as_str()?;
    Some(format!("{}:{album}", message.pointer("/chat/id")?))
}

/// Updates in their order, those of an album together.
fn group_updates(updates: Vec<Value>) -> Vec<Vec<TelegramUpdate>> {
    let mut groups: Vec<(Option<String>, Vec<TelegramUpdate>)> = Vec::new();
    for update in updates {
        let album = album_of(&update);
        let update = match serde_json::from_value::<TelegramUpdate>(update) {
            Ok(update) => update,
            Err(error) => {
                tracing::warn!(%error, "an update can't be read and is passed over");
                continue;
            }
        };
        let known = groups
            .iter_mut()
            .find(|(known, _)| album.is_some() && *known == album);
        match known {
            Some((_, parts)) => parts.push(update),
            None => groups.push((album, vec![update])),
        }
    }
    groups.into_iter().map(|(_, updates)| updates).collect()
}

fn delivery_from_response(answer: &PlatformResponse) -> Delivery {
    let said = error_text(answer);
    match refusal(answer.status.as_u16(), &answer.body) {
        TelegramRefusal::NotModified => return Delivery::Delivered { platform_id: None },
        TelegramRefusal::Final(why) => {
            return Delivery::Failed {
                reason: format!("{why} ({} {said})", answer.status.as_u16()),
            };
        }
        TelegramRefusal::Moved(_)
        | TelegramRefusal::ThreadGone
        | TelegramRefusal::RepliedGone
        | TelegramRefusal::Markup
        | TelegramRefusal::Other => {}
    }
    if answer.status.as_u16() == 429 {
        return Delivery::Retry {
            after_ms: retry_after(answer),
            reason: said,
        };
    }
    let id = answer.body.pointer("/result/message_id").and_then(Value::as_i64);
    answer.delivery_by_status(id.map(|id| id.to_string()), false, &said)
}

/// UTF-16 units of a text.
fn utf16_slice(text: &str, offset: usize, length: usize) -> String {
    let units: Vec<u16> = text.encode_utf16().skip(offset).take(length).collect();
    String::from_utf16_lossy(&units)
}

fn error_text(answer: &PlatformResponse) -> String {
    bounded_line(answer.text("/description").unwrap_or_default())
}

fn retry_after(answer: &PlatformResponse) -> Option<u64> {
    let given = answer
        .body
        .pointer("/parameters/retry_after")
        .and_then(Value::as_f64);
    given.and_then(seconds_ms).or_else(|| answer.retry_after_ms())
}

impl ChannelAdapter for TelegramAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::TelegramHtml,
            code: CodeBlock::Element,
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
        Box::pin(self.deliver_message("sendMessage", self.message_params(out), &out.markdown))
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(self.send_document(out, file))
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let mut params = self.message_params(out);
            if let (Some(params), Ok(id)) = (params.as_object_mut(), of.parse::<i64>()) {
                // The method has neither.
                params.remove("message_thread_id");
                params.remove("reply_parameters");
                params.insert("message_id".to_owned(), json!(id));
            }
            self.deliver_message("editMessageText", params, &out.markdown)
                .await
        })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let mut params = self.message_params(&asking.out);
            let button = |(id, label): &(String, String)| json!({"text": label, "callback_data": asking.button_data(id)});
            let row: Vec<Value> = asking.choices.iter().map(button).collect();
            if let (false, Some(params)) = (row.is_empty(), params.as_object_mut()) {
                params.insert("reply_markup".to_owned(), json!({"inline_keyboard": [row]}));
            }
            self.deliver_message("sendMessage", params, &asking.out.markdown)
                .await
        })
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(self.fetch_file(at, max_bytes))
    }

    fn show_typing<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut params = json!({"action": "typing"});
            self.set_target(conversation, &mut params);
            if let Err(fault) = self.call("sendChatAction", &params).await {
                tracing::debug!(reason = fault.reason(), "typing could not be shown");
            }
        })
    }

    fn add_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            let eyes = json!([{"type": "emoji", "emoji": crate::platform_kit::EYES}]);
            self.set_reaction(id, eyes).await.map(|()| None)
        })
    }

    fn remove_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        id: &'a str,
        _mark: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(self.set_reaction(id, json!([])))
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            let Some((secret, _)) = &self.hook else {
                return HookReply::refusal(404, "this channel takes no requests");
            };
            if hook.method != Method::POST {
                return HookReply::refusal(405, "POST is wanted");
            }
            let given = hook.header("x-telegram-bot-api-secret-token").unwrap_or_default();
            if !constant_time_eq(given, secret.expose()) {
                return HookReply::refusal(401, "the secret token is not right");
            }
            let Ok(update) = serde_json::from_slice::<TelegramUpdate>(&hook.body) else {
                return HookReply::refusal(400, "the body is not an update");
            };
            match self.take_pushed(inlet, update).await {
                // An empty body: a member `method` in it would be executed.
                Ok(()) => HookReply::empty(200),
                Err(_) => HookReply::refusal(503, "it could not be kept now"),
            }
        })
    }
}
