//! Gateway and REST, as far as a channel uses them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use clawk_kernel::ports::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{Brought, Fake, Kept, Said, Sent, Shared, Trouble, serve};

const TOKEN: &str = "fake.discord.token";

#[derive(Debug)]
struct Guild {
    kept: Kept,
    base: Mutex<String>,
    /// Every event that was dispatched, from 1.
    events: Mutex<Vec<(String, Value)>>,
    came: broadcast::Sender<u64>,
    messages: Mutex<Vec<Value>>,
    /// Threads that began at a message, by its id: their channel and name.
    threads: Mutex<Vec<(String, String, String)>>,
    /// The bot may not make threads.
    no_threads: std::sync::atomic::AtomicBool,
    /// What becomes of a resume.
    resuming: Mutex<Resuming>,
    /// How often a session was begun, and how often one was to be gone on with.
    identified: std::sync::atomic::AtomicUsize,
    resumed: std::sync::atomic::AtomicUsize,
}

/// What becomes of a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resuming {
    Works,
    /// The session lapsed.
    Refused,
    /// The session may be resumed, says the gateway each time, and it can't.
    Later,
}

impl Guild {
    /// A channel, a direct conversation, or a thread that was made.
    fn exists(&self, channel: &str) -> bool {
        let thread = channel.len() >= 7;
        !thread || self.threads.lock().unwrap().iter().any(|(id, ..)| id == channel)
    }
}

pub(crate) struct Platform {
    guild: Shared<Guild>,
}

pub(crate) async fn start() -> Platform {
    let guild = Arc::new(Guild {
        kept: Kept::default(),
        base: Mutex::default(),
        events: Mutex::default(),
        came: broadcast::channel(256).0,
        messages: Mutex::default(),
        threads: Mutex::default(),
        no_threads: std::sync::atomic::AtomicBool::new(false),
        resuming: Mutex::new(Resuming::Works),
        identified: std::sync::atomic::AtomicUsize::new(0),
        resumed: std::sync::atomic::AtomicUsize::new(0),
    });
    let router = Router::new()
        .route("/ws/", axum::routing::get(socket))
        .route("/api/{*path}", axum::routing::any(call))
        .route("/attachments/1/2/{name}", axum::routing::get(file))
        .with_state(Arc::clone(&guild));
    *guild.base.lock().unwrap() = serve(router).await;
    Platform { guild }
}

async fn file(
    State(guild): State<Shared<Guild>>,
    axum::extract::RawQuery(query): axum::extract::RawQuery,
    headers: HeaderMap,
) -> Response {
    if headers.contains_key("authorization") {
        guild.kept.fault("the token goes to the files' host");
    }
    if query.as_deref() != Some("ex=1&is=2&hm=3") {
        guild.kept.fault("a file's address without its signature");
    }
    guild.kept.file().await
}

fn wrong(status: u16, code: u32, message: &str) -> Response {
    (
        StatusCode::from_u16(status).unwrap(),
        axum::Json(json!({"code": code, "message": message})),
    )
        .into_response()
}

async fn call(
    State(guild): State<Shared<Guild>>,
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &guild.kept;
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Bot {TOKEN}")) || kept.takes(Trouble::WrongToken) {
        return wrong(401, 0, "401: Unauthorized");
    }
    let agent = headers
        .get("user-agent")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !agent.starts_with("DiscordBot (") {
        kept.fault(format!("user agent: {agent}"));
    }
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    match (&method, parts.as_slice()) {
        (&Method::GET, ["gateway", "bot"]) => {
            let url = guild.base.lock().unwrap().replace("http://", "ws://");
            axum::Json(json!({"url": format!("{url}/ws/"), "shards": 1})).into_response()
        }
        (&Method::GET, ["channels", channel]) => {
            let kind = if channel.len() >= 7 { 11 } else { 0 };
            axum::Json(json!({"id": channel, "type": kind})).into_response()
        }
        (&Method::POST, ["channels", channel, "messages", id, "threads"]) => {
            kept.only("thread", &params, &["name", "auto_archive_duration"]);
            let name = params["name"].as_str().unwrap();
            if name.is_empty()
                || name.chars().count() > 100
                || ![60, 1440, 4320, 10_080].contains(&params["auto_archive_duration"].as_u64().unwrap())
            {
                kept.fault("50035: thread");
            }
            if guild.no_threads.load(std::sync::atomic::Ordering::SeqCst) {
                return wrong(403, 50013, "Missing Permissions");
            }
            if channel.len() >= 7 {
                kept.fault("50024: a thread in a thread");
            }
            let mut threads = guild.threads.lock().unwrap();
            if threads.iter().any(|(known, ..)| known == id) {
                return wrong(400, 160_004, "A thread has already been created for this message");
            }
            threads.push(((*id).to_owned(), (*channel).to_owned(), name.to_owned()));
            (
                StatusCode::CREATED,
                axum::Json(json!({"id": id, "type": 11, "parent_id": channel})),
            )
                .into_response()
        }
        (&Method::POST, ["users", "@me", "channels"]) => {
            kept.only("direct", &params, &["recipient_id"]);
            let person: u32 = params["recipient_id"].as_str().unwrap().parse().unwrap();
            if !(100..200).contains(&person) {
                return wrong(400, 50_033, "Invalid Recipient(s)");
            }
            axum::Json(json!({"id": (9000 + person - 101).to_string(), "type": 1})).into_response()
        }
        // A person's id is no channel.
        (_, ["channels", channel, "messages", ..]) if channel.len() == 3 && channel.starts_with('1') => {
            wrong(404, 10003, "Unknown Channel")
        }
        (_, ["channels", channel, "messages" | "typing", ..]) if !guild.exists(channel) => {
            kept.fault(format!("10003: {channel}"));
            wrong(404, 10003, "Unknown Channel")
        }
        (&Method::GET, ["channels", channel, "messages"]) => {
            let all = guild.messages.lock().unwrap();
            let here: Vec<Value> = all
                .iter()
                .rev()
                .filter(|message| message["channel_id"] == *channel)
                .cloned()
                .collect();
            axum::Json(here).into_response()
        }
        (&Method::POST, ["channels", channel, "messages"])
            if headers["content-type"]
                .to_str()
                .unwrap()
                .starts_with("multipart/") =>
        {
            let parts = super::form(&headers, &body);
            super::exactly(kept, &parts, &["payload_json", "files[0]"]);
            let about: Value = serde_json::from_slice(&parts[0].data).unwrap();
            kept.only(
                "payload_json",
                &about,
                &["nonce", "enforce_nonce", "allowed_mentions", "attachments"],
            );
            if about["nonce"].as_str().unwrap().len() > 25 || about["allowed_mentions"]["parse"] != json!([])
            {
                kept.fault("50035");
            }
            let name = about["attachments"][0]["filename"].as_str().unwrap();
            let id = kept.upload(name, parts[1].data.clone());
            kept.shared(&id, channel);
            axum::Json(json!({"id": "9"})).into_response()
        }
        (&Method::POST, ["channels", channel, "messages"]) => post(&guild, channel, &params),
        (&Method::PATCH, ["channels", channel, "messages", _]) => {
            kept.only("edit", &params, &["content", "components", "allowed_mentions"]);
            kept.add(Sent {
                conversation: (*channel).to_owned(),
                text: params["content"].as_str().unwrap().to_owned(),
                ..Sent::default()
            });
            if kept.takes(Trouble::TakenAndBroken) {
                return wrong(502, 0, "bad gateway");
            }
            axum::Json(json!({"id": "1"})).into_response()
        }
        (method, ["channels", _, "messages", id, "reactions", emoji, "@me"])
            if method == Method::PUT || method == Method::DELETE =>
        {
            if !["👀", "%F0%9F%91%80"].contains(emoji) {
                kept.fault(format!("10014: {emoji}"));
            }
            // Both may be asked twice.
            kept.react(id, method == Method::PUT);
            StatusCode::NO_CONTENT.into_response()
        }
        (&Method::POST, ["channels", _, "typing"]) => StatusCode::NO_CONTENT.into_response(),
        (&Method::POST, ["interactions", _, _, "callback"]) => {
            if params["data"]["flags"] != 64 {
                kept.fault("an answer to a press that everybody sees");
            }
            StatusCode::NO_CONTENT.into_response()
        }
        _ => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(404, 0, "404: Not Found")
        }
    }
}

fn post(guild: &Guild, channel: &str, params: &Value) -> Response {
    let kept = &guild.kept;
    kept.only(
        "message",
        params,
        &[
            "content",
            "nonce",
            "enforce_nonce",
            "allowed_mentions",
            "message_reference",
            "components",
        ],
    );
    if kept.takes(Trouble::TooMany) {
        let body = json!({"message": "You are being rate limited.", "retry_after": 0.3, "global": false});
        return (
            StatusCode::TOO_MANY_REQUESTS,
            [("Retry-After", "1")],
            axum::Json(body),
        )
            .into_response();
    }
    let content = params["content"].as_str().unwrap();
    if content.trim().is_empty() || content.chars().count() > 2000 {
        kept.fault("50035: content");
        return wrong(400, 50035, "Invalid Form Body");
    }
    if params["allowed_mentions"]["parse"] != json!([]) {
        kept.fault("model text may ping people");
    }
    let nonce = params["nonce"].as_str().unwrap();
    if nonce.len() > 25 {
        kept.fault("50035: nonce");
    }
    let mut messages = guild.messages.lock().unwrap();
    if let Some(known) = messages.iter().find(|message| message["nonce"] == nonce) {
        return axum::Json(known.clone()).into_response();
    }
    let mut buttons = Vec::new();
    for button in params["components"][0]["components"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let (label, id) = (
            button["label"].as_str().unwrap(),
            button["custom_id"].as_str().unwrap(),
        );
        if id.is_empty() || id.len() > 100 {
            kept.fault("50035: custom_id");
        }
        buttons.push((label.to_owned(), id.to_owned()));
    }
    let id = (5_000_000 + messages.len()).to_string();
    let message = json!({"id": id, "channel_id": channel, "content": content, "nonce": nonce, "author": {"id": "42", "bot": true}});
    messages.push(message.clone());
    kept.add(Sent {
        id,
        conversation: channel.to_owned(),
        text: content.to_owned(),
        buttons,
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return wrong(502, 0, "bad gateway");
    }
    axum::Json(message).into_response()
}

async fn socket(State(guild): State<Shared<Guild>>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(move |socket| talk(guild, socket))
}

async fn talk(guild: Shared<Guild>, mut socket: WebSocket) {
    let mut came = guild.came.subscribe();
    let hello = json!({"op": 10, "d": {"heartbeat_interval": 500}, "s": null, "t": null});
    if socket.send(Message::text(hello.to_string())).await.is_err() {
        return;
    }
    let Some(Ok(Message::Text(first))) = socket.recv().await else {
        return;
    };
    let first: Value = serde_json::from_str(first.as_str()).unwrap();
    if first["d"]["token"] != TOKEN {
        guild.kept.fault("4004");
        return;
    }
    if first["op"] == 6 {
        guild.resumed.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let resuming = *guild.resuming.lock().unwrap();
        if resuming != Resuming::Works {
            let invalid = json!({"op": 9, "d": resuming == Resuming::Later, "s": null, "t": null});
            let _ = socket.send(Message::text(invalid.to_string())).await;
            let _ = socket.recv().await;
            return;
        }
    } else {
        guild.identified.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    let mut at = match first["op"].as_u64() {
        Some(6) => first["d"]["seq"].as_u64().unwrap(),
        _ => {
            let url = guild.base.lock().unwrap().replace("http://", "ws://");
            let mut events = guild.events.lock().unwrap();
            let ready =
                json!({"session_id": "S1", "resume_gateway_url": format!("{url}/ws/"), "user": {"id": "42"}});
            events.push(("READY".to_owned(), ready));
            u64::try_from(events.len()).unwrap() - 1
        }
    };
    let mut resumed = first["op"] == 6;
    loop {
        let next = {
            let events = guild.events.lock().unwrap();
            events.get(usize::try_from(at).unwrap()).cloned()
        };
        if let Some((kind, d)) = next {
            at += 1;
            let frame = json!({"op": 0, "t": kind, "s": at, "d": d});
            if socket.send(Message::text(frame.to_string())).await.is_err() {
                return;
            }
            continue;
        }
        if std::mem::take(&mut resumed) {
            // What was missed has been sent.
            let frame = json!({"op": 0, "t": "RESUMED", "s": at, "d": {}});
            if socket.send(Message::text(frame.to_string())).await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            _ = came.recv() => {}
            heard = socket.recv() => match heard {
                Some(Ok(Message::Text(text))) => {
                    let frame: Value = serde_json::from_str(text.as_str()).unwrap();
                    if frame["op"] == 1 {
                        let ack = json!({"op": 11, "d": null});
                        if socket.send(Message::text(ack.to_string())).await.is_err() { return; }
                    }
                }
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}

impl Platform {
    pub(crate) fn resuming(&self, now: Resuming) {
        *self.guild.resuming.lock().unwrap() = now;
    }

    /// Sessions that were begun, and resumes.
    pub(crate) fn sessions(&self) -> (usize, usize) {
        use std::sync::atomic::Ordering::SeqCst;
        (
            self.guild.identified.load(SeqCst),
            self.guild.resumed.load(SeqCst),
        )
    }

    pub(crate) fn refuses_threads(&self) {
        self.guild
            .no_threads
            .store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Id, channel and name of every thread.
    pub(crate) fn threads(&self) -> Vec<(String, String, String)> {
        self.guild.threads.lock().unwrap().clone()
    }

    fn dispatch(&self, kind: &str, d: Value) {
        self.guild.events.lock().unwrap().push((kind.to_owned(), d));
        let _ = self.guild.came.send(0);
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.guild.kept
    }

    fn kind(&self) -> &'static str {
        "discord"
    }

    fn transport(&self) -> &'static str {
        "websocket"
    }

    fn config(&self) -> Value {
        json!({"base_url": format!("{}/api", self.guild.base.lock().unwrap())})
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", TOKEN)]
    }

    fn id(&self, person: u32) -> String {
        (100 + person).to_string()
    }

    fn direct(&self, person: u32) -> String {
        (9000 + person - 1).to_string()
    }

    fn group(&self) -> String {
        "777".to_owned()
    }

    fn limit(&self) -> usize {
        2000
    }

    fn knows_repeats(&self) -> bool {
        true
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut d = json!({"id": (1_000_000 + said.n).to_string(), "channel_id": said.conversation, "content": said.text,
                "author": {"id": said.sender, "username": "ann"}, "type": 0, "mentions": []});
            if !said.direct {
                d["guild_id"] = json!("1");
            }
            if said.mention {
                d["mentions"] = json!([{"id": "42", "bot": true}]);
            }
            self.dispatch("MESSAGE_CREATE", d);
        })
    }

    fn brings<'a>(&'a self, file: &'a Brought) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let own = format!(
                "{}/attachments/1/2/f.bin?ex=1&is=2&hm=3",
                self.guild.base.lock().unwrap()
            );
            let url = file.elsewhere.clone().unwrap_or(own);
            let mut attached = json!({"id": "3", "filename": file.name, "content_type": file.media_type, "url": url, "proxy_url": url});
            if let Some(size) = file.size {
                attached["size"] = json!(size);
            }
            self.dispatch("MESSAGE_CREATE", json!({"id": (2_000_000 + file.n).to_string(), "channel_id": self.direct(file.person),
                "content": file.caption, "author": {"id": self.id(file.person), "username": "ann"}, "type": 0, "mentions": [],
                "attachments": [attached]}));
        })
    }

    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.dispatch("INTERACTION_CREATE", json!({"id": "7", "application_id": "8", "type": 3, "token": "tok",
                "data": {"custom_id": carried, "component_type": 2}, "channel_id": on.conversation, "user": {"id": sender}}));
            tokio::time::sleep(Duration::from_millis(150)).await;
        })
    }
}
