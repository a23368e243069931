//! The Bot API, as far as a channel uses it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use clawk_kernel::ports::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Brought, Fake, Kept, Said, Sent, Shared, Trouble, serve};
use crate::suite::{hook, taken};

const TOKEN: &str = "123456:AAfake-TOKEN_x";
const SECRET: &str = "hook-secret_1";

/// Answers a request to send in the platform's place.
pub(crate) type Rule = fn(&Value) -> Option<(u16, Value)>;

#[derive(Debug, Default)]
struct Bot {
    kept: Kept,
    hooked: bool,
    /// Updates that nobody has confirmed.
    updates: std::sync::Mutex<Vec<Value>>,
    came: Notify,
    /// What it refuses to send, and how.
    rule: std::sync::Mutex<Option<Rule>>,
    /// What it was asked to send, refusals too.
    asked: std::sync::Mutex<Vec<Value>>,
    /// Updates are numbered as they come.
    numbered: std::sync::atomic::AtomicU32,
    /// How long each poll may be held open, seconds.
    polls: std::sync::Mutex<Vec<u64>>,
}

pub(crate) struct Platform {
    bot: Shared<Bot>,
    base: String,
}

pub(crate) async fn start() -> Platform {
    with(false).await
}

pub(crate) async fn with(hooked: bool) -> Platform {
    let bot = Arc::new(Bot {
        hooked,
        ..Bot::default()
    });
    let router = Router::new()
        .route("/{bot}/sendDocument", axum::routing::post(document))
        .route("/{bot}/{method}", axum::routing::post(call))
        .route("/file/{bot}/{*path}", axum::routing::get(file))
        .with_state(Arc::clone(&bot));
    Platform {
        bot,
        base: serve(router).await,
    }
}

fn refused(status: u16, description: &str) -> Response {
    let body = json!({"ok": false, "error_code": status, "description": description});
    (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response()
}

fn done(result: Value) -> Response {
    axum::Json(json!({"ok": true, "result": result})).into_response()
}

/// Text as people see it, or why the markup is wrong.
fn visible(html: &str) -> Result<String, String> {
    let (mut text, mut open, mut rest) = (String::new(), Vec::new(), html);
    while let Some(at) = rest.find('<') {
        text.push_str(&rest[..at]);
        let end = rest[at..].find('>').ok_or("an open `<`")? + at;
        let tag = &rest[at + 1..end];
        match tag.strip_prefix('/') {
            Some(name) if open.pop() == Some(name) => {}
            Some(name) => return Err(format!("unexpected end tag `{name}`")),
            None => {
                let name = tag.split(' ').next().unwrap();
                if !["b", "i", "u", "s", "a", "code", "pre", "blockquote"].contains(&name) {
                    return Err(format!("unsupported start tag `{name}`"));
                }
                open.push(name);
            }
        }
        rest = &rest[end + 1..];
    }
    text.push_str(rest);
    if open.is_empty() {
        Ok(text
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&"))
    } else {
        Err("an end tag is missing".to_owned())
    }
}

async fn document(
    State(bot): State<Shared<Bot>>,
    Path(token): Path<String>,
    headers: axum::http::HeaderMap,
    body: axum::body::Bytes,
) -> Response {
    if token != format!("bot{TOKEN}") {
        return refused(401, "Unauthorized");
    }
    let parts = super::form(&headers, &body);
    super::exactly(&bot.kept, &parts, &["chat_id", "document"]);
    let id = bot
        .kept
        .upload(parts[1].file.as_deref().unwrap(), parts[1].data.clone());
    bot.kept.shared(&id, &parts[0].text());
    done(json!({"message_id": 7}))
}

async fn file(State(bot): State<Shared<Bot>>, Path((token, path)): Path<(String, String)>) -> Response {
    if token != format!("bot{TOKEN}") || path != "documents/file_7.bin" {
        bot.kept.fault(format!("a file was asked for as {token} {path}"));
        return refused(404, "Not Found");
    }
    bot.kept.file().await
}

async fn call(
    State(bot): State<Shared<Bot>>,
    Path((token, method)): Path<(String, String)>,
    axum::Json(params): axum::Json<Value>,
) -> Response {
    let kept = &bot.kept;
    if token != format!("bot{TOKEN}") || kept.takes(Trouble::WrongToken) {
        return refused(401, "Unauthorized");
    }
    match method.as_str() {
        "getMe" => done(json!({"id": 42, "is_bot": true, "first_name": "Bot", "username": "TheBot"})),
        "deleteWebhook" => {
            if params.get("drop_pending_updates").is_some() {
                kept.fault("deleteWebhook drops updates");
            }
            done(json!(true))
        }
        "setWebhook" => {
            kept.only(&method, &params, &["url", "secret_token", "allowed_updates"]);
            assert!(params["url"].as_str().unwrap().ends_with("/channels/chat"));
            done(json!(true))
        }
        "getUpdates" if bot.hooked => refused(
            409,
            "Conflict: can't use getUpdates method while webhook is active",
        ),
        "getUpdates" => updates(&bot, &params).await,
        "answerCallbackQuery" => {
            kept.only(&method, &params, &["callback_query_id", "text"]);
            if params["text"].as_str().unwrap().chars().count() > 200 {
                kept.fault("answerCallbackQuery: MESSAGE_TOO_LONG");
            }
            done(json!(true))
        }
        "getFile" => {
            kept.only(&method, &params, &["file_id"]);
            let size = kept.stored.lock().unwrap().data.len();
            if size > 20 << 20 {
                return refused(400, "Bad Request: file is too big");
            }
            assert_eq!(params["file_id"], "BQACfile");
            done(
                json!({"file_id": "BQACfile", "file_unique_id": "u", "file_size": size, "file_path": "documents/file_7.bin"}),
            )
        }
        "sendMessage" | "editMessageText" => send(&bot, &method, &params),
        "setMessageReaction" => {
            kept.only(&method, &params, &["chat_id", "message_id", "reaction", "is_big"]);
            let reactions = params["reaction"].as_array().unwrap();
            // A bot may put one reaction on a message.
            if reactions.len() > 1
                || reactions
                    .iter()
                    .any(|one| *one != json!({"type": "emoji", "emoji": "👀"}))
            {
                kept.fault("REACTION_INVALID");
            }
            let id = params["message_id"].as_i64().unwrap();
            kept.react(&id.to_string(), !reactions.is_empty());
            done(json!(true))
        }
        "sendChatAction" => {
            kept.only(&method, &params, &["chat_id", "message_thread_id", "action"]);
            kept.typings.fetch_add(1, Ordering::SeqCst);
            done(json!(true))
        }
        other => {
            kept.fault(format!("no such method: {other}"));
            refused(404, "Not Found")
        }
    }
}

async fn updates(bot: &Bot, params: &Value) -> Response {
    bot.kept.only(
        "getUpdates",
        params,
        &["offset", "limit", "timeout", "allowed_updates"],
    );
    bot.polls
        .lock()
        .unwrap()
        .push(params["timeout"].as_u64().unwrap_or(0));
    let offset = params["offset"].as_i64();
    if offset.is_some_and(|offset| offset < 0) {
        bot.kept.fault("getUpdates: a negative offset forgets updates");
    }
    if let Some(offset) = offset {
        bot.updates
            .lock()
            .unwrap()
            .retain(|update| update["update_id"].as_i64().unwrap() >= offset);
    }
    for _ in 0..50 {
        let waiting = bot.updates.lock().unwrap().clone();
        if !waiting.is_empty() {
            return done(Value::Array(waiting));
        }
        let _ = tokio::time::timeout(Duration::from_millis(20), bot.came.notified()).await;
    }
    done(json!([]))
}

fn send(bot: &Bot, method: &str, params: &Value) -> Response {
    let kept = &bot.kept;
    if method == "sendMessage" {
        bot.asked.lock().unwrap().push(params.clone());
        let rule = *bot.rule.lock().unwrap();
        if let Some((status, body)) = rule.and_then(|rule| rule(params)) {
            return (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
        }
    }
    kept.only(
        method,
        params,
        &[
            "chat_id",
            "text",
            "parse_mode",
            "message_thread_id",
            "reply_parameters",
            "reply_markup",
            "link_preview_options",
            "message_id",
        ],
    );
    if method == "editMessageText" {
        let known = [
            "chat_id",
            "text",
            "parse_mode",
            "reply_markup",
            "link_preview_options",
            "message_id",
        ];
        kept.only(method, params, &known);
    }
    if kept.takes(Trouble::TooMany) {
        let body = json!({"ok": false, "error_code": 429, "description": "Too Many Requests: retry after 1",
            "parameters": {"retry_after": 1}});
        return (
            StatusCode::TOO_MANY_REQUESTS,
            [("Retry-After", "1")],
            axum::Json(body),
        )
            .into_response();
    }
    let text = params["text"].as_str().unwrap();
    let shown = match params["parse_mode"].as_str() {
        Some("HTML") => match visible(text) {
            Ok(shown) => shown,
            Err(why) => {
                kept.fault(format!("{method}: can't parse entities: {why}: {text}"));
                return refused(400, &format!("Bad Request: can't parse entities: {why}"));
            }
        },
        _ => text.to_owned(),
    };
    if shown.trim().is_empty() || shown.encode_utf16().count() > 4096 {
        kept.fault(format!("{method}: message is too long or empty"));
        return refused(400, "Bad Request: message is too long");
    }
    let mut buttons = Vec::new();
    for button in params["reply_markup"]["inline_keyboard"][0]
        .as_array()
        .into_iter()
        .flatten()
    {
        let data = button["callback_data"].as_str().unwrap();
        if data.is_empty() || data.len() > 64 {
            kept.fault("BUTTON_DATA_INVALID");
        }
        buttons.push((button["text"].as_str().unwrap().to_owned(), data.to_owned()));
    }
    let id = kept.sent.lock().unwrap().len() + 1000;
    kept.add(Sent {
        id: id.to_string(),
        conversation: params["chat_id"].as_str().unwrap().to_owned(),
        text: shown,
        buttons,
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return refused(502, "Bad Gateway");
    }
    done(json!({"message_id": id}))
}

impl Platform {
    pub(crate) fn polls(&self) -> Vec<u64> {
        self.bot.polls.lock().unwrap().clone()
    }

    /// From now on it answers so where the rule has an answer.
    pub(crate) fn refuses(&self, rule: Rule) {
        *self.bot.rule.lock().unwrap() = Some(rule);
    }

    /// Every request to send, refused ones too.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.bot.asked.lock().unwrap().clone()
    }

    /// A message with these members.
    pub(crate) async fn message(&self, n: u32, chat: i64, more: Value) {
        let mut message = json!({"message_id": n, "date": 1, "from": {"id": 9002, "is_bot": false, "first_name": "Ann"},
            "chat": {"id": chat, "type": if chat < 0 { "supergroup" } else { "private" }, "title": "Weekend"}});
        message
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.bring(json!({ "message": message })).await;
    }

    async fn bring(&self, mut update: Value) {
        update["update_id"] = json!(5000 + self.bot.numbered.fetch_add(1, Ordering::SeqCst));
        if !self.bot.hooked {
            self.bot.updates.lock().unwrap().push(update);
            self.bot.came.notify_one();
            return;
        }
        let body = serde_json::to_vec(&update).unwrap();
        let request = hook(&[("x-telegram-bot-api-secret-token", SECRET)], &body);
        let reply = self.bot.kept.channels().receive_hook("chat", request).await;
        taken(&reply);
        assert_eq!(reply.body, "", "a body would be executed");
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.bot.kept
    }

    fn kind(&self) -> &'static str {
        "telegram"
    }

    fn transport(&self) -> &'static str {
        if self.bot.hooked { "webhook" } else { "polling" }
    }

    fn config(&self) -> Value {
        let mut config = json!({"base_url": self.base});
        if self.bot.hooked {
            config["public_url"] = json!("https://agent.example");
            config["secrets"] = json!({"webhook_secret": "HOOK"});
        }
        config
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", TOKEN), ("HOOK", SECRET)]
    }

    fn id(&self, person: u32) -> String {
        (9000 + person).to_string()
    }

    fn direct(&self, person: u32) -> String {
        self.id(person)
    }

    fn group(&self) -> String {
        "-100777".to_owned()
    }

    fn limit(&self) -> usize {
        4096
    }

    fn knows_repeats(&self) -> bool {
        false
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let chat: i64 = said.conversation.parse().unwrap();
            let kind = if said.direct { "private" } else { "supergroup" };
            let text = match said.mention {
                // Whoever names the bot in their own words says where.
                true if said.text.contains("@thebot") => said.text.clone(),
                // A name of two UTF-16 units a character before the mention.
                true => format!("say 👋 @thebot {}", said.text),
                false => said.text.clone(),
            };
            let named = text.split_once("@thebot").filter(|_| said.mention);
            let entities = named.map_or(json!([]), |(before, _)| {
                json!([{"type": "mention", "offset": before.encode_utf16().count(), "length": 7}])
            });
            let sender: i64 = said.sender.parse().unwrap();
            self.bring(json!({"message": {
                "message_id": said.n, "date": 1, "from": {"id": sender, "is_bot": false, "first_name": "Ann"},
                "chat": {"id": chat, "type": kind}, "text": text, "entities": entities}}))
                .await;
        })
    }

    fn brings<'a>(&'a self, file: &'a Brought) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let from: i64 = self.id(file.person).parse().unwrap();
            let mut document = json!({"file_id": "BQACfile", "file_unique_id": "u", "file_name": file.name, "mime_type": file.media_type});
            if let Some(size) = file.size {
                document["file_size"] = json!(size);
            }
            self.bring(json!({"message": {"message_id": file.n, "date": 1, "from": {"id": from, "is_bot": false, "first_name": "Ann"},
                "chat": {"id": from, "type": "private"}, "caption": file.caption, "document": document}}))
            .await;
        })
    }

    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (chat, from): (i64, i64) = (on.conversation.parse().unwrap(), sender.parse().unwrap());
            self.bring(json!({"callback_query": {
                "id": "77", "from": {"id": from, "is_bot": false, "first_name": "Ann"},
                "message": {"message_id": 1, "chat": {"id": chat, "type": "private"}}, "chat_instance": "1", "data": carried}}))
            .await;
            tokio::time::sleep(Duration::from_millis(150)).await;
        })
    }
}
