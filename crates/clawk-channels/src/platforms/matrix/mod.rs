//! `matrix`: the client-server API by long polling. Sends carry a transaction id, so that the same message twice is one.
//!
//! Long because the room list, its gaps, files and reactions share one account.

mod entry;
mod refusals;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_manifest::model::{Channel, Transport};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::MATRIX;
use self::words::MatrixMessageContent;
use crate::adapter::{
    ChannelAdapter, ChannelDisconnect, EDIT, FileSupport, InboundPipeline, IngestOutcome, LengthUnit,
    MarkupFormat, MessageFrame, OutFile, OutboundMessage, PlatformCapabilities, PlatformMessage,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::markup;
use crate::platform_kit::DisplayNameCache;
use crate::platform_kit::refusals::MessageRefusal;
use crate::platform_kit::worded::without_member;
use crate::platform_kit::{escaped, secret};
use crate::remote::RemoteFiles;

/// How long a poll is held open, milliseconds.
const POLL_MS: u64 = 25_000;
const PATIENCE: Duration = Duration::from_secs(40);
/// Bytes of a text: with its HTML it stays below an event's limit.
const MAX_TEXT: usize = 15_000;
/// Pages of history that a gap is read from.
const MAX_PAGES: usize = 20;
/// How long somebody is shown to be writing, milliseconds.
const TYPING_MS: u64 = 6_000;
const FILTER: &str = r#"{"room":{"timeline":{"limit":100}},"presence":{"types":[]}}"#;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MatrixSync {
    next_batch: String,
    rooms: MatrixRooms,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MatrixRooms {
    join: BTreeMap<String, MatrixJoinedRoom>,
    invite: BTreeMap<String, MatrixInvitedRoom>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MatrixJoinedRoom {
    timeline: MatrixTimeline,
    state: RoomState,
    summary: MatrixRoomSummary,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MatrixRoomSummary {
    #[serde(rename = "m.joined_member_count")]
    joined: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MatrixTimeline {
    events: Vec<Event>,
    limited: bool,
    prev_batch: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RoomState {
    events: Vec<Event>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MatrixInvitedRoom {
    invite_state: InviteState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InviteState {
    events: Vec<Event>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    event_id: String,
    sender: String,
    state_key: Option<String>,
    content: Value,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct MatrixAdapter {
    api: PlatformApi,
    base: String,
    files: RemoteFiles,
    user_id: String,
    /// Rooms with one other member.
    direct: Mutex<BTreeMap<String, bool>>,
    /// Of rooms, and of people in each.
    names: DisplayNameCache,
    /// Own messages that may be replied to.
    own: Mutex<BTreeSet<String>>,
    /// What people call the bot: its display names, as the server and mentions say.
    own_names: Mutex<BTreeSet<String>>,
}

/// Own messages that are remembered, and own names.
const REMEMBERED: usize = 10_000;
const MAX_NAMES: usize = 100;

impl MatrixAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        if channel.transport != Transport::Polling {
            return Err("`matrix` has the transport `polling`".to_owned());
        }
        let base = config
            .base_url
            .as_deref()
            .ok_or("`base_url` is missing in clawk.toml: the homeserver's address")?;
        let user_id = config
            .settings
            .get("user_id")
            .ok_or("`settings.user_id` is missing in clawk.toml, such as `@bot:example.org`")?;
        let token = secret(channel, parts)?;
        Ok(Self {
            api: PlatformApi::new(base, parts.secrets.env(), PATIENCE)?
                .with_authorization("Bearer", token.expose().trim())?,
            files: RemoteFiles::new(base, parts.secrets.env(), &[])?,
            base: base.trim_end_matches('/').to_owned(),
            user_id: user_id.clone(),
            direct: Mutex::default(),
            names: DisplayNameCache::default(),
            own: Mutex::default(),
            own_names: Mutex::default(),
        })
    }

    fn lock_direct(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_own(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call_or_disconnect(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ChannelDisconnect> {
        let answer = self.api.send_json(method, path, body).await;
        let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        if answer.status.is_success() {
            return Ok(answer.body);
        }
        let reason = error_text(&answer);
        Err(match answer.status.as_u16() {
            401 | 403 => {
                ChannelDisconnect::fatal(format!("the homeserver refuses the access token ({reason})"))
            }
            _ => ChannelDisconnect {
                after_ms: retry_after(&answer),
                ..ChannelDisconnect::temporary(reason)
            },
        })
    }

    async fn listen(
        &self,
        inlet: &InboundPipeline,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        let me = self
            .call_or_disconnect(Method::GET, "_matrix/client/v3/account/whoami", None)
            .await?;
        if me.get("user_id").and_then(Value::as_str) != Some(&self.user_id) {
            return Err(ChannelDisconnect::fatal(
                "the access token is not that of `settings.user_id`",
            ));
        }
        self.ask_name().await;
        let kept = inlet
            .read_cursor()
            .map_err(|error| ChannelDisconnect::temporary(error.to_string()))?;
        let mut since = match kept {
            Some(since) => since,
            None => {
                // What was said before the agent first ran is not answered.
                let path = format!("_matrix/client/v3/sync?timeout=0&filter={}", escaped(FILTER));
                let first: MatrixSync = self.sync_rooms(&path).await?;
                self.note_direct_rooms(&first);
                self.accept_invites(inlet, &first).await;
                self.save_cursor(inlet, &first.next_batch);
                first.next_batch
            }
        };
        loop {
            inlet.report_ready();
            let path = format!(
                "_matrix/client/v3/sync?timeout={POLL_MS}&since={}&filter={}",
                escaped(&since),
                escaped(FILTER)
            );
            let sync = tokio::select! {
                sync = self.sync_rooms(&path) => sync?,
                () = over.cancelled() => return Ok(()),
            };
            self.note_direct_rooms(&sync);
            self.accept_invites(inlet, &sync).await;
            for (room, joined) in sync.rooms.join {
                self.ingest_room(inlet, &room, joined, &since).await?;
            }
            self.save_cursor(inlet, &sync.next_batch);
            since = sync.next_batch;
        }
    }

    fn own_names(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.own_names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the bot's display name, by which people speak to it. A server may not say it.
    async fn ask_name(&self) {
        let path = format!("_matrix/client/v3/profile/{}/displayname", escaped(&self.user_id));
        // silent-ok: mentions tell the name, too
        if let Ok(answer) = self.api.send_json(Method::GET, &path, None).await
            && let Some(name) = answer.text("/displayname")
        {
            self.own_names().insert(name.trim().to_owned());
        }
    }

    /// Remembers how a mention of the bot is written in the plain text of a message: as the link's own words.
    fn note_name(&self, content: &Value) {
        let html = content
            .get("formatted_body")
            .and_then(Value::as_str)
            .unwrap_or_default();
        for (link, _) in html.match_indices("<a href=\"https://matrix.to/#/") {
            let link = html.get(link..).unwrap_or_default();
            let Some((target, rest)) = link.split_once('>') else {
                continue;
            };
            let id = target
                .rsplit("/#/")
                .next()
                .unwrap_or_default()
                .trim_end_matches('"');
            let name = rest.split_once("</a>").map_or("", |(name, _)| name).trim();
            let is_ours = id == self.user_id || id == escaped(&self.user_id);
            let mut names = self.own_names();
            if is_ours && !name.is_empty() && !name.contains('<') && names.len() < MAX_NAMES {
                names.insert(crate::plain_name::harmless(name));
            }
        }
    }

    async fn sync_rooms(&self, path: &str) -> Result<MatrixSync, ChannelDisconnect> {
        let body = self.call_or_disconnect(Method::GET, path, None).await?;
        let sync: MatrixSync = serde_json::from_value(body)
            .map_err(|_| ChannelDisconnect::temporary("the sync can't be read"))?; // silent-ok: said
        if sync.next_batch.is_empty() {
            return Err(ChannelDisconnect::temporary("the sync says no `next_batch`"));
        }
        Ok(sync)
    }

    fn save_cursor(&self, inlet: &InboundPipeline, since: &str) {
        if let Err(error) = inlet.set_cursor(since) {
            tracing::warn!(%error, "where the homeserver is can't be kept");
        }
    }

    /// Which rooms hold two. A server says it when it changes, and not again after a restart of ours.
    fn note_direct_rooms(&self, sync: &MatrixSync) {
        let mut direct = self.lock_direct();
        for (room, joined) in &sync.rooms.join {
            if let Some(count) = joined.summary.joined {
                direct.insert(room.clone(), count == 2);
            }
            for event in joined.state.events.iter().chain(&joined.timeline.events) {
                self.learn_name(room, event);
            }
        }
    }

    /// What a room or a member of it is called now.
    fn learn_name(&self, room: &str, event: &Event) {
        let text = |name: &str| {
            event
                .content
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match (event.kind.as_str(), &event.state_key) {
            ("m.room.name", Some(_)) => self.names.remember_name(room, text("name")),
            ("m.room.member", Some(user)) => self
                .names
                .remember_name(&format!("{room} {user}"), text("displayname")),
            _ => {}
        }
    }

    /// Asks who is in a room of which that is not known.
    async fn ask_members(&self, room: &str) -> Result<(), ChannelDisconnect> {
        if self.lock_direct().contains_key(room) {
            return Ok(());
        }
        let path = format!("_matrix/client/v3/rooms/{}/joined_members", escaped(room));
        let told = self.call_or_disconnect(Method::GET, &path, None).await?;
        let joined = told.get("joined").and_then(Value::as_object);
        let joined =
            joined.ok_or_else(|| ChannelDisconnect::temporary("the members of a room can't be read"))?;
        self.lock_direct().insert(room.to_owned(), joined.len() == 2);
        for (user, told) in joined {
            let name = told.get("display_name").and_then(Value::as_str);
            self.names
                .remember_name(&format!("{room} {user}"), name.unwrap_or_default());
        }
        Ok(())
    }

    /// Rooms to which somebody who is let in invites.
    async fn accept_invites(&self, inlet: &InboundPipeline, sync: &MatrixSync) {
        for (room, invited) in &sync.rooms.invite {
            let events = invited.invite_state.events.iter();
            let mut ours = events.filter(|event| {
                event.kind == "m.room.member" && event.state_key.as_deref() == Some(&self.user_id)
            });
            let Some(invite) = ours.next() else { continue };
            if !inlet.lets_in(&invite.sender) {
                tracing::info!(channel = %inlet.channel().name, "an invitation of somebody who is not let in is left alone");
                continue;
            }
            if invite.content.get("is_direct") == Some(&json!(true)) {
                self.lock_direct().insert(room.clone(), true);
            }
            let path = format!("_matrix/client/v3/join/{}", escaped(room));
            if let Err(ended) = self
                .call_or_disconnect(Method::POST, &path, Some(&json!({})))
                .await
            {
                inlet.report_degraded(format!("a room can't be joined: {}", ended.reason));
            }
        }
    }

    async fn ingest_room(
        &self,
        inlet: &InboundPipeline,
        room: &str,
        joined: MatrixJoinedRoom,
        since: &str,
    ) -> Result<(), ChannelDisconnect> {
        let mut events = Vec::new();
        if let (true, Some(before)) = (joined.timeline.limited, &joined.timeline.prev_batch) {
            events = self.read_missed_events(room, before, since).await?;
        }
        events.extend(joined.timeline.events);
        if !events.is_empty() {
            self.ask_members(room).await?;
        }
        for event in events {
            if event.kind == "m.room.encrypted" {
                inlet.report_degraded("a room is encrypted, which this version can't read");
            }
            let Some(incoming) = self.to_platform_message(inlet, room, event) else {
                continue;
            };
            if let IngestOutcome::Later(reason) = inlet.ingest_message(incoming).await {
                return Err(ChannelDisconnect::temporary(format!(
                    "a message could not be kept: {reason}"
                )));
            }
        }
        Ok(())
    }

    /// What lies between two looks, oldest first.
    async fn read_missed_events(
        &self,
        room: &str,
        before: &str,
        since: &str,
    ) -> Result<Vec<Event>, ChannelDisconnect> {
        let (mut from, mut events) = (before.to_owned(), Vec::new());
        for _ in 0..MAX_PAGES {
            let path = format!(
                "_matrix/client/v3/rooms/{}/messages?dir=b&limit=100&from={}&to={}",
                escaped(room),
                escaped(&from),
                escaped(since)
            );
            let page = self.call_or_disconnect(Method::GET, &path, None).await?;
            let chunk = page.get("chunk").cloned().unwrap_or_default();
            let chunk: Vec<Event> = serde_json::from_value(chunk).unwrap_or_default(); // silent-ok: nothing to read is an empty page
            let done = chunk.is_empty();
            events.extend(chunk);
            match page.get("end").and_then(Value::as_str) {
                Some(end) if !done => end.clone_into(&mut from),
                _ => break,
            }
        }
        events.reverse();
        Ok(events)
    }

    fn to_platform_message(
        &self,
        inlet: &InboundPipeline,
        room: &str,
        event: Event,
    ) -> Option<PlatformMessage> {
        if event.sender == self.user_id || event.event_id.is_empty() {
            return None;
        }
        self.note_name(&event.content);
        let text = |pointer: &str| event.content.pointer(pointer).and_then(Value::as_str);
        let edited = text("/m.relates_to/rel_type") == Some("m.replace");
        // An edit says the message anew beside a text for old programs.
        let content = if edited {
            event.content.get("m.new_content")?
        } else {
            &event.content
        };
        let MatrixMessageContent {
            text: words,
            attachments,
            answered,
        } = words::read(
            &event.kind,
            content,
            text("/m.relates_to/m.in_reply_to/event_id").is_some(),
        )?;
        let named = event
            .content
            .pointer("/m.mentions/user_ids")
            .and_then(Value::as_array);
        let named = named.is_some_and(|ids| ids.iter().any(|id| id.as_str() == Some(&self.user_id)));
        let replied =
            text("/m.relates_to/m.in_reply_to/event_id").is_some_and(|id| self.lock_own().contains(id));
        let thread =
            text("/m.relates_to/event_id").filter(|_| text("/m.relates_to/rel_type") == Some("m.thread"));
        let answers = text("/m.relates_to/m.in_reply_to/event_id").map(str::to_owned);
        // What the sender's program repeats can be made up; what came here before is taken in its place.
        let known = answers.as_ref().is_some_and(|id| inlet.recent.is_known(id));
        Some(PlatformMessage {
            ids: vec![match edited {
                true => format!("{EDIT}{}", event.event_id),
                false => event.event_id.clone(),
            }],
            conversation: thread.map_or_else(|| room.to_owned(), |root| format!("{room} {root}")),
            direct: self.lock_direct().get(room) == Some(&true),
            mention: named || replied,
            sender: Some(event.sender.clone()),
            sender_name: self.names.name_of(&format!("{room} {}", event.sender)),
            text: words,
            attachments,
            context: MessageContext {
                chat_name: self.names.name_of(room),
                edited,
                quotes: answered.filter(|_| !known).into_iter().collect(),
                ..MessageContext::default()
            },
            answers,
            remembered_days: None,
        })
    }

    /// The bytes behind an `mxc:` address; a server that does not know the newer way is asked the older one.
    async fn fetch_file(&self, at: &str, max_bytes: u64) -> Result<Bytes, String> {
        let (server, id) = parse_media_uri(at).ok_or("its address is not one of a homeserver")?;
        for version in ["client/v1/media", "media/v3"] {
            let url = format!(
                "{}/_matrix/{version}/download/{}/{}",
                self.base,
                escaped(server),
                escaped(id)
            );
            let got = self
                .files
                .request_url(&url, self.api.authorization(), max_bytes)
                .await?;
            match got.status.as_u16() {
                200 => return Ok(got.bytes),
                404 if version == "client/v1/media" => {}
                other => return Err(format!("the homeserver answered {other}")),
            }
        }
        Err("the homeserver does not have it".to_owned())
    }

    async fn upload_file(&self, out: &OutboundMessage, file: &OutFile) -> Delivery {
        let path = format!("_matrix/media/v3/upload?filename={}", escaped(&file.name));
        let kind = match HeaderValue::from_str(&file.media_type) {
            Ok(kind) => kind,
            Err(error) => return PlatformFailure::NotSent(error.to_string()).into_delivery(),
        };
        let sent = self
            .api
            .send_bytes(
                Method::POST,
                &path,
                None,
                file.data.to_vec(),
                &[(CONTENT_TYPE, kind)],
            )
            .await;
        let answer = match sent {
            Ok(answer) => answer,
            Err(fault) => return fault.not_uploaded(),
        };
        let Some(url) = answer
            .text("/content_uri")
            .filter(|url| parse_media_uri(url).is_some())
        else {
            return match (answer.status.as_u16(), retry_after(&answer)) {
                (429, after_ms) => Delivery::Retry {
                    after_ms,
                    reason: error_text(&answer),
                },
                _ => answer.not_uploaded(&error_text(&answer)),
            };
        };
        let kind = if file.media_type.starts_with("image/") {
            "m.image"
        } else {
            "m.file"
        };
        let mut content = json!({"msgtype": kind, "body": file.name, "filename": file.name, "url": url,
            "info": {"mimetype": file.media_type, "size": file.data.len()}});
        if let ((_, Some(root)), Some(content)) =
            (split_conversation(&out.conversation), content.as_object_mut())
        {
            content.insert(
                "m.relates_to".to_owned(),
                json!({"rel_type": "m.thread", "event_id": root}),
            );
        }
        self.put_message(out, &content).await
    }

    /// The event of the agent's 👀 on a message, which an earlier run sent.
    async fn own_mark(&self, room: &str, id: &str) -> Result<Option<String>, String> {
        let path = format!(
            "_matrix/client/v1/rooms/{}/relations/{}/m.annotation/m.reaction?limit=50",
            escaped(room),
            escaped(id)
        );
        let answer = self.api.send_json(Method::GET, &path, None).await;
        let answer = answer.map_err(PlatformFailure::reason)?;
        if !answer.status.is_success() {
            return Err(error_text(&answer));
        }
        let events = answer.body.get("chunk").and_then(Value::as_array);
        let own = events.into_iter().flatten().find(|event| {
            event.get("sender").and_then(Value::as_str) == Some(&self.user_id)
                && event.pointer("/content/m.relates_to/key").and_then(Value::as_str)
                    == Some(crate::platform_kit::EYES)
        });
        Ok(own
            .and_then(|event| event.get("event_id")?.as_str())
            .map(str::to_owned))
    }

    /// Sends an event under a transaction id that is the same for the same message.
    async fn put_event(&self, path: &str, content: &Value) -> Result<Option<String>, String> {
        let answer = self.api.send_json(Method::PUT, path, Some(content)).await;
        let answer = answer.map_err(PlatformFailure::reason)?;
        if answer.status.is_success() {
            return Ok(answer.text("/event_id").map(str::to_owned));
        }
        Err(error_text(&answer))
    }

    async fn put_in(
        &self,
        room: &str,
        id: &str,
        content: &Value,
    ) -> Result<PlatformResponse, PlatformFailure> {
        let path = format!(
            "_matrix/client/v3/rooms/{}/send/m.room.message/{}",
            escaped(room),
            escaped(id)
        );
        self.api.send_json(Method::PUT, &path, Some(content)).await
    }

    /// Sends it, and changes what is refused for a reason that has a cure: without a relation that the server does not take, and to the
    /// room that took the place of this one.
    async fn put_cured(
        &self,
        out: &OutboundMessage,
        content: &Value,
    ) -> Result<PlatformResponse, PlatformFailure> {
        let (room, _) = split_conversation(&out.conversation);
        let answer = self.put_in(room, &out.id, content).await?;
        let changes = content.get("m.new_content").is_some();
        if message_refusal(&answer) == MessageRefusal::ThreadGone
            && !changes
            && let Some(rest) = without_member(content, "m.relates_to")
        {
            return self.put_in(room, &out.id, &rest).await;
        }
        if answer.status.as_u16() == 403
            && !changes
            && let Some(next) = self.replacement_room(room).await
        {
            let plain = without_member(content, "m.relates_to");
            return self
                .put_in(&next, &out.id, plain.as_ref().unwrap_or(content))
                .await;
        }
        Ok(answer)
    }

    /// The room that took the place of this one when it was upgraded.
    async fn replacement_room(&self, room: &str) -> Option<String> {
        let path = format!("_matrix/client/v3/rooms/{}/state/m.room.tombstone", escaped(room));
        let asked = self.api.send_json(Method::GET, &path, None).await;
        let answer = asked.ok().filter(|answer| answer.status.is_success())?; // silent-ok: the refusal is told then
        let next = answer.text("/replacement_room")?;
        if !next.starts_with('!') || next == room {
            return None;
        }
        let next = next.to_owned();
        // Whoever may write a tombstone could name any room; only an upgrade's new room names the old one.
        let path = format!("_matrix/client/v3/rooms/{}/state/m.room.create/", escaped(&next));
        let asked = self.api.send_json(Method::GET, &path, None).await;
        let made = asked.ok().filter(|answer| answer.status.is_success())?; // silent-ok: the refusal is told then
        (made.text("/predecessor/room_id") == Some(room)).then_some(next)
    }

    async fn put_message(&self, out: &OutboundMessage, content: &Value) -> Delivery {
        let answer = match self.put_cured(out, content).await {
            Ok(answer) => answer,
            Err(fault) => return fault.into_delivery(),
        };
        let id = answer.text("/event_id").map(str::to_owned);
        if let Some(id) = &id {
            let mut own = self.lock_own();
            if own.len() >= REMEMBERED {
                own.clear();
            }
            own.insert(id.clone());
        }
        if answer.status.as_u16() == 429 {
            return Delivery::Retry {
                after_ms: retry_after(&answer),
                reason: error_text(&answer),
            };
        }
        match message_refusal(&answer).delivery_by_status(&answer, &error_text(&answer)) {
            Some(delivery) => delivery,
            None => answer.delivery_by_status(id, true, &error_text(&answer)),
        }
    }
}

/// The room, and the thread's root.
fn split_conversation(conversation: &str) -> (&str, Option<&str>) {
    match conversation.split_once(' ') {
        Some((room, root)) => (room, Some(root)),
        None => (conversation, None),
    }
}

/// Server and id of an `mxc:` address.
fn parse_media_uri(at: &str) -> Option<(&str, &str)> {
    let (server, id) = at.strip_prefix("mxc://")?.split_once('/')?;
    let host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let fits = !server.is_empty() && !id.is_empty() && server.chars().all(host) && id.chars().all(plain);
    // A path of dots would be another address.
    (fits && server.chars().any(|c| c.is_ascii_alphanumeric())).then_some((server, id))
}

fn message_refusal(answer: &PlatformResponse) -> MessageRefusal {
    let text = |name: &str| answer.text(name).unwrap_or_default();
    refusals::matrix_refusal(answer.status.as_u16(), text("/errcode"), text("/error"))
}

fn error_text(answer: &PlatformResponse) -> String {
    let code = answer.text("/errcode").unwrap_or_default();
    bounded_line(&format!("{code} {}", answer.text("/error").unwrap_or_default()))
}

/// The longer of what the body and the header say.
fn retry_after(answer: &PlatformResponse) -> Option<u64> {
    let body = answer.body.get("retry_after_ms").and_then(Value::as_u64);
    body.max(answer.retry_after_ms())
}

fn message_content(out: &OutboundMessage) -> Value {
    let mut content = json!({"msgtype": "m.text", "body": out.text, "format": "org.matrix.custom.html",
        "formatted_body": markup::telegram_html(&out.markdown).replace('\n', "<br>")});
    let (_, root) = split_conversation(&out.conversation);
    let reply = out.reply_to.as_ref().map(|id| json!({ "event_id": id }));
    let relates = match (root, reply) {
        (Some(root), Some(reply)) => {
            Some(json!({"rel_type": "m.thread", "event_id": root, "m.in_reply_to": reply}))
        }
        (Some(root), None) => Some(json!({"rel_type": "m.thread", "event_id": root})),
        (None, Some(reply)) => Some(json!({ "m.in_reply_to": reply })),
        (None, None) => None,
    };
    if let (Some(relates), Some(content)) = (relates, content.as_object_mut()) {
        content.insert("m.relates_to".to_owned(), relates);
    }
    content
}

impl ChannelAdapter for MatrixAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Plain,
            idempotent: true,
            edits: true,
            typing: true,
            receipts: true,
            files: FileSupport::Beside,
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Bytes)
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
        Box::pin(async move { self.put_message(out, &message_content(out)).await })
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(self.upload_file(out, file))
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let new = message_content(&OutboundMessage {
                reply_to: None,
                ..out.clone()
            });
            let text = format!("* {}", out.text);
            let replaced = json!({"msgtype": "m.text", "body": text, "m.new_content": new,
                "m.relates_to": {"rel_type": "m.replace", "event_id": of}});
            self.put_message(out, &replaced).await
        })
    }

    fn message_frame(&self) -> MessageFrame {
        let local = self
            .user_id
            .split(':')
            .next()
            .unwrap_or_default()
            .trim_start_matches('@');
        let mut names: Vec<String> = self.own_names().iter().cloned().collect();
        names.extend([self.user_id.clone(), local.to_owned()]);
        // The longest first: one name may begin another.
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        MessageFrame {
            names,
            ..MessageFrame::default()
        }
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(self.fetch_file(at, max_bytes))
    }

    fn show_typing<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (room, _) = split_conversation(conversation);
            let path = format!(
                "_matrix/client/v3/rooms/{}/typing/{}",
                escaped(room),
                escaped(&self.user_id)
            );
            let body = json!({"typing": true, "timeout": TYPING_MS});
            if let Err(fault) = self.api.send_json(Method::PUT, &path, Some(&body)).await {
                tracing::debug!(reason = fault.reason(), "typing could not be shown");
            }
        })
    }

    fn begin_thread<'a>(
        &'a self,
        _inlet: &'a InboundPipeline,
        incoming: &'a PlatformMessage,
    ) -> BoxFuture<'a, Option<String>> {
        let (room, root) = split_conversation(&incoming.conversation);
        let first = incoming.ids.first().filter(|_| root.is_none());
        Box::pin(std::future::ready(first.map(|id| format!("{room} {id}"))))
    }

    fn add_reaction<'a>(
        &'a self,
        conversation: &'a str,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            let (room, _) = split_conversation(conversation);
            let path = format!(
                "_matrix/client/v3/rooms/{}/send/m.reaction/{}",
                escaped(room),
                escaped(&format!("eyes-{id}"))
            );
            let relates =
                json!({"rel_type": "m.annotation", "event_id": id, "key": crate::platform_kit::EYES});
            self.put_event(&path, &json!({ "m.relates_to": relates })).await
        })
    }

    fn remove_reaction<'a>(
        &'a self,
        conversation: &'a str,
        id: &'a str,
        mark: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let (room, _) = split_conversation(conversation);
            let mark = match mark {
                Some(mark) => Some(mark.to_owned()),
                None => self.own_mark(room, id).await?,
            };
            let Some(mark) = mark else { return Ok(()) };
            let path = format!(
                "_matrix/client/v3/rooms/{}/redact/{}/{}",
                escaped(room),
                escaped(&mark),
                escaped(&format!("seen-{id}"))
            );
            self.put_event(&path, &json!({})).await.map(|_event| ())
        })
    }

    fn read<'a>(&'a self, conversation: &'a str, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (room, _) = split_conversation(conversation);
            let path = format!(
                "_matrix/client/v3/rooms/{}/receipt/m.read/{}",
                escaped(room),
                escaped(id)
            );
            if let Err(fault) = self.api.post_json(&path, &json!({})).await {
                tracing::debug!(reason = fault.reason(), "a receipt could not be sent");
            }
        })
    }
}
