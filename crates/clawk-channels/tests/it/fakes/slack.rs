//! The Web API with Socket Mode and the Events API, as far as a channel uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use clawk_kernel::ports::BoxFuture;
use clawk_kernel::time::Clock as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::broadcast;

use super::{Brought, Fake, Kept, Said, Sent, Shared, Trouble, serve};
use crate::suite::{hook, taken};

const TOKEN: &str = "xoxb-fake-token";
const APP: &str = "xapp-fake-token";
const SIGNING: &str = "signing-secret";

#[derive(Debug)]
struct Team {
    kept: Kept,
    hooked: bool,
    base: Mutex<String>,
    /// Envelopes for the socket that is open.
    envelopes: broadcast::Sender<Value>,
    /// Those that were not acknowledged.
    open: Mutex<BTreeMap<String, Value>>,
    metadata: Mutex<Vec<(String, String)>>,
}

pub(crate) struct Platform {
    team: Shared<Team>,
}

pub(crate) async fn start() -> Platform {
    with(false).await
}

pub(crate) async fn with(hooked: bool) -> Platform {
    let team = Arc::new(Team {
        kept: Kept::default(),
        hooked,
        base: Mutex::default(),
        envelopes: broadcast::channel(256).0,
        open: Mutex::default(),
        metadata: Mutex::default(),
    });
    let router = Router::new()
        .route("/socket", axum::routing::get(socket))
        .route("/api/{method}", axum::routing::any(call))
        .route("/upload/{id}", axum::routing::post(upload))
        .route("/files-pri/{name}", axum::routing::get(file))
        .with_state(Arc::clone(&team));
    *team.base.lock().unwrap() = serve(router).await;
    Platform { team }
}

async fn upload(
    State(team): State<Shared<Team>>,
    headers: HeaderMap,
    Path(id): Path<String>,
    body: Bytes,
) -> Response {
    if headers.contains_key("authorization") {
        team.kept.fault("the token goes to an address for uploads");
    }
    let mut uploads = team.kept.uploads.lock().unwrap();
    let place = uploads.iter_mut().find(|(known, ..)| *known == id).unwrap();
    place.2 = body.to_vec();
    "OK".into_response()
}

async fn file(State(team): State<Shared<Team>>, headers: HeaderMap) -> Response {
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Bearer {TOKEN}")) {
        team.kept.fault("a file was fetched without the token");
    }
    team.kept.file().await
}

fn wrong(error: &str) -> Response {
    axum::Json(json!({"ok": false, "error": error})).into_response()
}

async fn call(
    State(team): State<Shared<Team>>,
    Path(method): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &team.kept;
    let wanted = if method == "apps.connections.open" {
        APP
    } else {
        TOKEN
    };
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Bearer {wanted}")) || kept.takes(Trouble::WrongToken) {
        return wrong("invalid_auth");
    }
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    match method.as_str() {
        "auth.test" => axum::Json(json!({"ok": true, "user_id": "UBOT", "bot_id": "BBOT", "team_id": "T1"}))
            .into_response(),
        "apps.connections.open" => {
            let base = team.base.lock().unwrap().replace("http://", "ws://");
            axum::Json(json!({"ok": true, "url": format!("{base}/socket?ticket=1")})).into_response()
        }
        "chat.postMessage" => post(&team, &params),
        "chat.update" => {
            kept.only(&method, &params, &["channel", "ts", "text", "blocks"]);
            kept.add(Sent {
                conversation: params["channel"].as_str().unwrap().to_owned(),
                text: params["text"].as_str().unwrap().to_owned(),
                ..Sent::default()
            });
            axum::Json(json!({"ok": true, "ts": params["ts"]})).into_response()
        }
        "reactions.add" | "reactions.remove" => {
            kept.only(&method, &params, &["channel", "timestamp", "name"]);
            if params["name"] != "eyes" {
                kept.fault("invalid_name");
            }
            let on = method == "reactions.add";
            if kept.react(params["timestamp"].as_str().unwrap(), on) {
                return axum::Json(json!({"ok": true})).into_response();
            }
            wrong(if on { "already_reacted" } else { "no_reaction" })
        }
        "chat.postEphemeral" => {
            kept.only(&method, &params, &["channel", "user", "text"]);
            axum::Json(json!({"ok": true})).into_response()
        }
        "files.getUploadURLExternal" => {
            let id = team.kept.upload(&query["filename"], Vec::new());
            assert!(query["length"].parse::<usize>().unwrap() > 0);
            let base = team.base.lock().unwrap();
            axum::Json(json!({"ok": true, "upload_url": format!("{base}/upload/{id}"), "file_id": id}))
                .into_response()
        }
        "files.completeUploadExternal" => {
            kept.only(&method, &params, &["files", "channel_id", "thread_ts"]);
            kept.shared(
                params["files"][0]["id"].as_str().unwrap(),
                params["channel_id"].as_str().unwrap(),
            );
            axum::Json(json!({"ok": true, "files": [{"id": "F1"}]})).into_response()
        }
        "conversations.history" | "conversations.replies" => {
            assert_eq!(query["include_all_metadata"], "true");
            let all = team.metadata.lock().unwrap();
            let messages: Vec<Value> = all
                .iter()
                .map(|(out, ts)| json!({"ts": ts, "metadata": {"event_type": "clawk_out", "event_payload": {"out": out}}}))
                .collect();
            axum::Json(json!({"ok": true, "messages": messages})).into_response()
        }
        other => {
            kept.fault(format!("no such method: {other}"));
            wrong("unknown_method")
        }
    }
}

fn post(team: &Team, params: &Value) -> Response {
    let kept = &team.kept;
    kept.only(
        "chat.postMessage",
        params,
        &[
            "channel",
            "text",
            "thread_ts",
            "unfurl_links",
            "unfurl_media",
            "metadata",
            "blocks",
        ],
    );
    if kept.takes(Trouble::TooMany) {
        return (
            StatusCode::TOO_MANY_REQUESTS,
            [("Retry-After", "1")],
            axum::Json(json!({"ok": false, "error": "ratelimited"})),
        )
            .into_response();
    }
    let text = params["text"].as_str().unwrap();
    if text.chars().count() > 4000 {
        kept.fault("msg_too_long");
        return wrong("msg_too_long");
    }
    let mut buttons = Vec::new();
    for element in params["blocks"][1]["elements"].as_array().into_iter().flatten() {
        if params["blocks"][0]["text"]["text"]
            .as_str()
            .unwrap()
            .chars()
            .count()
            > 3000
        {
            kept.fault("invalid_blocks");
        }
        let label = element["text"]["text"].as_str().unwrap().to_owned();
        buttons.push((label, element["value"].as_str().unwrap().to_owned()));
    }
    let ts = format!("17{:08}.000100", kept.sent.lock().unwrap().len());
    let out = params["metadata"]["event_payload"]["out"]
        .as_str()
        .unwrap()
        .to_owned();
    team.metadata.lock().unwrap().push((out, ts.clone()));
    let thread = params["thread_ts"].as_str();
    let channel = params["channel"].as_str().unwrap();
    kept.add(Sent {
        id: ts.clone(),
        conversation: thread.map_or_else(|| channel.to_owned(), |thread| format!("{channel}:{thread}")),
        text: text
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&amp;", "&"),
        buttons,
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return (StatusCode::BAD_GATEWAY, "bad gateway").into_response();
    }
    axum::Json(json!({"ok": true, "channel": channel, "ts": ts})).into_response()
}

async fn socket(State(team): State<Shared<Team>>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(move |socket| talk(team, socket))
}

async fn talk(team: Shared<Team>, mut socket: WebSocket) {
    let mut envelopes = team.envelopes.subscribe();
    let hello = json!({"type": "hello", "num_connections": 1});
    if socket.send(Message::text(hello.to_string())).await.is_err() {
        return;
    }
    let again: Vec<Value> = team.open.lock().unwrap().values().cloned().collect();
    for envelope in again {
        let _ = socket.send(Message::text(envelope.to_string())).await;
    }
    loop {
        tokio::select! {
            envelope = envelopes.recv() => {
                let Ok(envelope) = envelope else { return };
                if socket.send(Message::text(envelope.to_string())).await.is_err() { return; }
            }
            heard = socket.recv() => match heard {
                Some(Ok(Message::Text(text))) => {
                    let ack: Value = serde_json::from_str(text.as_str()).unwrap();
                    team.kept.only("acknowledgement", &ack, &["envelope_id"]);
                    team.open.lock().unwrap().remove(ack["envelope_id"].as_str().unwrap());
                }
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}

pub(crate) fn signature(secret: &str, at: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("v0:{at}:").as_bytes());
    mac.update(body);
    let hex: String = mac
        .finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("v0={hex}")
}

pub(crate) fn now() -> String {
    let clock = clawk_kernel::testing::TestClock::default();
    (clock.now().as_millis() / 1000).to_string()
}

impl Platform {
    async fn bring(&self, kind: &str, payload: Value, id: &str) {
        if !self.team.hooked {
            let envelope = json!({"type": kind, "envelope_id": id, "payload": payload, "accepts_response_payload": false});
            self.team
                .open
                .lock()
                .unwrap()
                .insert(id.to_owned(), envelope.clone());
            let _ = self.team.envelopes.send(envelope);
            return;
        }
        let form = kind == "interactive";
        let body = if form {
            let text: String = payload
                .to_string()
                .bytes()
                .map(|byte| format!("%{byte:02x}"))
                .collect();
            format!("payload={text}")
        } else {
            payload.to_string()
        };
        let at = now();
        let signed = signature(SIGNING, &at, body.as_bytes());
        let kind = if form {
            "application/x-www-form-urlencoded"
        } else {
            "application/json"
        };
        let headers = [
            ("x-slack-request-timestamp", at.as_str()),
            ("x-slack-signature", &signed),
            ("content-type", kind),
        ];
        taken(
            &self
                .team
                .kept
                .channels()
                .receive_hook("chat", hook(&headers, body.as_bytes()))
                .await,
        );
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.team.kept
    }

    fn kind(&self) -> &'static str {
        "slack"
    }

    fn transport(&self) -> &'static str {
        if self.team.hooked { "webhook" } else { "websocket" }
    }

    fn config(&self) -> Value {
        let base = format!("{}/api", self.team.base.lock().unwrap());
        if self.team.hooked {
            json!({"base_url": base, "secrets": {"signing_secret": "SIGNING"}})
        } else {
            json!({"base_url": base, "secrets": {"app_token": "APP"}})
        }
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", TOKEN), ("APP", APP), ("SIGNING", SIGNING)]
    }

    fn id(&self, person: u32) -> String {
        format!("U{person}")
    }

    fn direct(&self, person: u32) -> String {
        // The suite's place for questions.
        if person == 1 {
            "9000".to_owned()
        } else {
            format!("D{person}")
        }
    }

    fn group(&self) -> String {
        "C777".to_owned()
    }

    fn limit(&self) -> usize {
        4000
    }

    fn knows_repeats(&self) -> bool {
        true
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let ts = format!("16{:08}.000200", said.n);
            // Whoever names the bot in their own words says where.
            let text = if said.mention && !said.text.contains("<@UBOT>") {
                format!("say <@UBOT> {}", said.text)
            } else {
                said.text.clone()
            };
            let kind = if said.direct { "im" } else { "channel" };
            let (channel, thread) = said
                .conversation
                .split_once(':')
                .unwrap_or((&said.conversation, ""));
            let mut event = json!({"type": "event_callback", "event_id": format!("Ev{}", said.n), "team_id": "T1",
                "event": {"type": "message", "user": said.sender, "channel": channel, "channel_type": kind, "ts": ts,
                    "text": text}});
            if !thread.is_empty() {
                event["event"]["thread_ts"] = json!(thread);
            }
            self.bring("events_api", event.clone(), &format!("e{}", said.n))
                .await;
            if said.mention {
                // One message, two events.
                let mut second = event;
                second["event_id"] = json!(format!("EvM{}", said.n));
                second["event"]["type"] = json!("app_mention");
                self.bring("events_api", second, &format!("m{}", said.n)).await;
            }
        })
    }

    fn brings<'a>(&'a self, file: &'a Brought) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let own = format!("{}/files-pri/T1-F1", self.team.base.lock().unwrap());
            let url = file.elsewhere.clone().unwrap_or(own);
            let mut shared =
                json!({"id": "F1", "name": file.name, "mimetype": file.media_type, "url_private": url});
            if let Some(size) = file.size {
                shared["size"] = json!(size);
            }
            let event = json!({"type": "event_callback", "event_id": format!("EvF{}", file.n), "team_id": "T1",
                "event": {"type": "message", "subtype": "file_share", "user": self.id(file.person), "channel": self.direct(file.person),
                    "channel_type": "im", "ts": format!("16{:08}.000300", file.n), "text": file.caption, "files": [shared]}});
            self.bring("events_api", event, &format!("f{}", file.n)).await;
        })
    }

    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let payload = json!({"type": "block_actions", "user": {"id": sender}, "channel": {"id": on.conversation},
                "message": {"ts": on.id}, "actions": [{"action_id": "choice-y", "type": "button", "value": carried}]});
            let id = format!("p{}{sender}{carried}", self.team.kept.sent.lock().unwrap().len());
            self.bring("interactive", payload, &id).await;
            tokio::time::sleep(Duration::from_millis(150)).await;
        })
    }
}
