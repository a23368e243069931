//! A homeserver's client-server API, as far as a channel uses it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use clawk_kernel::ports::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Brought, Fake, Kept, Said, Sent, Shared, Trouble, serve};

const TOKEN: &str = "syt_fake_token";
const ME: &str = "@bot:hs";

#[derive(Debug, Default)]
struct Server {
    kept: Kept,
    /// Room and event, in order; the position is the token.
    events: Mutex<Vec<(String, Value)>>,
    came: Notify,
    transactions: Mutex<BTreeMap<String, String>>,
    /// Rooms whose members were told: a server says that once, and again only when it changes.
    told: Mutex<std::collections::BTreeSet<String>>,
}

/// How many people a room has.
fn members(room: &str) -> usize {
    if room.starts_with("!777") { 5 } else { 2 }
}

pub(crate) struct Platform {
    server: Shared<Server>,
    base: String,
}

pub(crate) async fn start() -> Platform {
    let server = Arc::new(Server::default());
    let router = Router::new()
        .route("/_matrix/client/v3/{*path}", axum::routing::any(call))
        .route("/_matrix/client/v1/{*path}", axum::routing::get(call))
        .route("/_matrix/media/v3/upload", axum::routing::post(upload))
        .route(
            "/_matrix/client/v1/media/download/{server}/{id}",
            axum::routing::get(file),
        )
        .with_state(Arc::clone(&server));
    Platform {
        server,
        base: serve(router).await,
    }
}

async fn upload(
    State(server): State<Shared<Server>>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Bearer {TOKEN}")) || server.kept.refuses_uploads.load(Ordering::SeqCst) {
        return wrong(403, "M_FORBIDDEN");
    }
    let id = server.kept.upload(&query["filename"], body.to_vec());
    axum::Json(json!({"content_uri": format!("mxc://hs/{id}")})).into_response()
}

async fn file(
    State(server): State<Shared<Server>>,
    Path((host, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Bearer {TOKEN}")) {
        server.kept.fault("a file was fetched without the token");
    }
    if (host.as_str(), id.as_str()) != ("hs", "AbC_1-2") {
        server.kept.fault(format!("a file was asked for as {host} {id}"));
    }
    server.kept.file().await
}

fn wrong(status: u16, code: &str) -> Response {
    (
        StatusCode::from_u16(status).unwrap(),
        axum::Json(json!({"errcode": code, "error": "no"})),
    )
        .into_response()
}

async fn call(
    State(server): State<Shared<Server>>,
    Path(path): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &server.kept;
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Bearer {TOKEN}")) || kept.takes(Trouble::WrongToken) {
        return wrong(401, "M_UNKNOWN_TOKEN");
    }
    if query.contains_key("access_token") {
        kept.fault("the token stands in a URL");
    }
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    match (&method, parts.as_slice()) {
        (&Method::GET, ["account", "whoami"]) => {
            axum::Json(json!({"user_id": ME, "device_id": "D"})).into_response()
        }
        (&Method::GET, ["profile", user, "displayname"]) => {
            if *user != ME {
                kept.fault(format!("whose name? {user}"));
            }
            axum::Json(json!({"displayname": "Helper Bot"})).into_response()
        }
        (&Method::GET, ["sync"]) => sync(&server, &query).await,
        (&Method::PUT, ["rooms", room, "send", "m.room.message", txn]) => send(&server, room, txn, &params),
        (&Method::GET, ["rooms", room, "joined_members"]) => {
            let joined: BTreeMap<String, Value> = (0..members(room))
                .map(|n| (format!("@{n}:hs"), json!({})))
                .collect();
            axum::Json(json!({ "joined": joined })).into_response()
        }
        (&Method::PUT, ["rooms", _, "typing", _]) => {
            kept.typings.fetch_add(1, Ordering::SeqCst);
            axum::Json(json!({})).into_response()
        }
        (&Method::PUT, ["rooms", _, "send", "m.reaction", _]) => {
            kept.only("reaction", &params, &["m.relates_to"]);
            let relates = &params["m.relates_to"];
            if relates["rel_type"] != "m.annotation" || relates["key"] != "👀" {
                kept.fault("m.reaction");
            }
            let id = relates["event_id"].as_str().unwrap();
            kept.react(id, true);
            axum::Json(json!({"event_id": format!("$mark{}", &id[1..])})).into_response()
        }
        (&Method::GET, ["rooms", _, "relations", id, "m.annotation", "m.reaction"]) => {
            let own = json!({"type": "m.reaction", "sender": ME, "event_id": format!("$mark{}", &id[1..]),
                "content": {"m.relates_to": {"rel_type": "m.annotation", "event_id": id, "key": "👀"}}});
            let other = json!({"type": "m.reaction", "sender": "@other:hs", "event_id": "$other",
                "content": {"m.relates_to": {"rel_type": "m.annotation", "event_id": id, "key": "👀"}}});
            let on = kept.reactions.lock().unwrap().iter().any(|known| known == id);
            let chunk = if on { vec![other, own] } else { vec![other] };
            axum::Json(json!({ "chunk": chunk })).into_response()
        }
        (&Method::PUT, ["rooms", _, "redact", event, _]) => {
            match event.strip_prefix("$mark") {
                Some(rest) => {
                    kept.react(&format!("${rest}"), false);
                }
                None => kept.fault(format!("{event} is redacted")),
            }
            axum::Json(json!({"event_id": "$redaction"})).into_response()
        }
        (&Method::POST, ["rooms", _, "receipt", "m.read", _]) => {
            kept.reads.fetch_add(1, Ordering::SeqCst);
            axum::Json(json!({})).into_response()
        }
        _ => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(404, "M_UNRECOGNIZED")
        }
    }
}

async fn sync(server: &Server, query: &BTreeMap<String, String>) -> Response {
    let since: Option<usize> = query.get("since").map(|since| since[1..].parse().unwrap());
    for _ in 0..50 {
        let events = server.events.lock().unwrap().clone();
        let from = since.unwrap_or(events.len());
        if since.is_none() || events.len() > from {
            let mut rooms: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
            for (room, event) in &events[from.min(events.len())..] {
                rooms.entry(room).or_default().push(event.clone());
            }
            let join: BTreeMap<&str, Value> = rooms
                .into_iter()
                .map(|(room, events)| {
                    let mut joined = json!({"timeline": {"events": events, "limited": false}});
                    if server.told.lock().unwrap().insert(room.to_owned()) {
                        joined["summary"] = json!({"m.joined_member_count": members(room)});
                    }
                    (room, joined)
                })
                .collect();
            return axum::Json(json!({"next_batch": format!("s{}", events.len()), "rooms": {"join": join}}))
                .into_response();
        }
        let _ = tokio::time::timeout(Duration::from_millis(20), server.came.notified()).await;
    }
    axum::Json(json!({"next_batch": query["since"]})).into_response()
}

fn send(server: &Server, room: &str, txn: &str, params: &Value) -> Response {
    let kept = &server.kept;
    kept.only(
        "message",
        params,
        &[
            "msgtype",
            "body",
            "format",
            "formatted_body",
            "m.relates_to",
            "m.new_content",
            "filename",
            "url",
            "info",
        ],
    );
    if let Some(known) = server.transactions.lock().unwrap().get(txn) {
        return axum::Json(json!({ "event_id": known })).into_response();
    }
    if kept.takes(Trouble::TooMany) {
        return (
            StatusCode::TOO_MANY_REQUESTS,
            axum::Json(json!({"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 300})),
        )
            .into_response();
    }
    if let Some(url) = params["url"].as_str() {
        kept.shared(url.strip_prefix("mxc://hs/").unwrap(), room);
        return axum::Json(json!({"event_id": "$file"})).into_response();
    }
    if params.to_string().len() > 65_536 {
        kept.fault("M_TOO_LARGE");
        return wrong(413, "M_TOO_LARGE");
    }
    let id = format!("$own{}", kept.sent.lock().unwrap().len());
    server
        .transactions
        .lock()
        .unwrap()
        .insert(txn.to_owned(), id.clone());
    kept.add(Sent {
        id: id.clone(),
        conversation: match params["m.relates_to"]["rel_type"].as_str() {
            Some("m.thread") => format!("{room} {}", params["m.relates_to"]["event_id"].as_str().unwrap()),
            _ => room.to_owned(),
        },
        text: params["body"].as_str().unwrap().to_owned(),
        buttons: Vec::new(),
        files: Vec::new(),
    });
    let own = json!({"type": "m.room.message", "event_id": id, "sender": ME, "content": params});
    server.events.lock().unwrap().push((room.to_owned(), own));
    server.came.notify_one();
    if kept.takes(Trouble::TakenAndBroken) {
        return wrong(502, "M_UNKNOWN");
    }
    axum::Json(json!({ "event_id": id })).into_response()
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.server.kept
    }

    fn kind(&self) -> &'static str {
        "matrix"
    }

    fn transport(&self) -> &'static str {
        "polling"
    }

    fn config(&self) -> Value {
        json!({"base_url": self.base, "settings": {"user_id": ME}})
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", TOKEN)]
    }

    fn id(&self, person: u32) -> String {
        format!("@p{person}:hs")
    }

    fn direct(&self, person: u32) -> String {
        format!("!900{person}:hs")
    }

    fn group(&self) -> String {
        "!777:hs".to_owned()
    }

    fn approvals(&self) -> String {
        "!9009:hs".to_owned()
    }

    fn has_buttons(&self) -> bool {
        false
    }

    fn limit(&self) -> usize {
        16_000
    }

    fn knows_repeats(&self) -> bool {
        true
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut content = json!({"msgtype": "m.text", "body": said.text});
            if said.mention {
                content["m.mentions"] = json!({"user_ids": [ME]});
            }
            let (room, root) = said
                .conversation
                .split_once(' ')
                .unwrap_or((&said.conversation, ""));
            if !root.is_empty() {
                content["m.relates_to"] = json!({"rel_type": "m.thread", "event_id": root});
            }
            let event = json!({"type": "m.room.message", "event_id": format!("$e{}", said.n), "sender": said.sender,
                "origin_server_ts": 1, "content": content});
            self.server.events.lock().unwrap().push((room.to_owned(), event));
            self.server.came.notify_one();
        })
    }

    fn brings<'a>(&'a self, file: &'a Brought) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let url = file
                .elsewhere
                .clone()
                .unwrap_or_else(|| "mxc://hs/AbC_1-2".to_owned());
            let mut info = json!({"mimetype": file.media_type});
            if let Some(size) = file.size {
                info["size"] = json!(size);
            }
            let content = json!({"msgtype": "m.file", "filename": file.name, "body": file.caption, "url": url, "info": info});
            let event = json!({"type": "m.room.message", "event_id": format!("$f{}", file.n), "sender": self.id(file.person),
                "origin_server_ts": 1, "content": content});
            self.server
                .events
                .lock()
                .unwrap()
                .push((self.direct(file.person), event));
            self.server.came.notify_one();
        })
    }

    fn press<'a>(&'a self, _carried: &'a str, _sender: &'a str, _on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
