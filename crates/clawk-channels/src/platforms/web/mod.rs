//! `web`: a page of our own at `/channels/NAME`. People sign in with a token, which becomes a cookie; what is said comes as
//! server-sent events. The page is four small files in this program. Programs and other pages open a WebSocket at the same address.
//!
//! Long because every request of the page is judged here, in one list.

mod asked;
mod entries;
mod entry;
mod frames;
mod log;
mod seats;
pub(crate) mod sound;
mod spoken;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery};
use clawk_manifest::model::Channel;
use http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, COOKIE, REFERRER_POLICY, SET_COOKIE};
use http::{HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::asked::{PageQuery, is_of};
pub(super) use self::entry::{VOICE_ENTRY, WEB};
use self::frames::{SocketContext, SocketSpeaker};
use self::log::{Log, PageEntry, PageEntryAuthor, QuestionDecision};
use self::seats::{SignInRegistry, SignedIn};
use self::sound::VoicePipeline;
use crate::adapter::{
    Attachment, AttachmentContent, ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, Decision,
    FileSupport, HookReply, HookRequest, HookResponse, InboundPipeline, IngestOutcome, LengthUnit,
    MarkupFormat, OutboundMessage, PlatformCapabilities, PlatformMessage, QuestionMessage,
};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::platform_kit::{listening, secret};
use crate::sealed_file::FileSeal;

/// Characters of one message.
const MAX_TEXT: usize = 64 << 10;
/// Pages that listen at a time.
const MAX_STREAMS: usize = 64;
/// Pieces that wait for a page that reads slowly, and how long it may not read.
const BEHIND: usize = 16;
const STALL: Duration = Duration::from_secs(15);
/// How often a quiet stream shows that it lives.
const ALIVE: Duration = Duration::from_secs(20);
/// How long somebody is shown to be writing.
const TYPING: Duration = Duration::from_secs(6);
/// Files of one message, and bytes of one conversation's folder of files.
const MAX_FILES: usize = 20;
/// Who comes with the token of `auth.secret_ref`.
const SHARED: &str = "user";
/// In which a program with the shared token says its session, to fetch a file.
const SESSION: &str = "clawk-session";

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("app.js");
/// Recording and playing, on a `voice` channel.
const VOICE: &str = include_str!("voice.js");
const STYLE: &str = include_str!("app.css");
/// `media-src` is for the sound of a `voice` channel, which the page fetched itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    media-src blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The channel.
pub(crate) struct WebAdapter {
    name: String,
    seats: SignInRegistry,
    log: Arc<Log>,
    files: std::path::PathBuf,
    seal: FileSeal,
    streams: Arc<Semaphore>,
    sockets: SocketContext,
    typing: Arc<Mutex<BTreeMap<String, Instant>>>,
    secure: bool,
    /// Pieces of answers that were spoken to pages.
    spoken: Mutex<std::collections::BTreeSet<String>>,
}

impl std::fmt::Debug for WebAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Web({})", self.name)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageLogin {
    token: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageMessage {
    id: String,
    conversation: String,
    text: String,
    #[serde(default)]
    attachments: Vec<PageUpload>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageUpload {
    name: String,
    media_type: String,
    data: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PagePress {
    question: String,
    choice: String,
    conversation: String,
}

impl WebAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        Self::with_sound(channel, config, parts, |_| Ok(None))
    }

    /// The same, and recordings go in and out.
    pub(crate) fn with_voice(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let faults = sound::provider_faults(channel, config, &parts.kernel.manifest().providers);
        if let Some(fault) = faults.into_iter().next() {
            return Err(fault);
        }
        let folder = parts.folder.join(format!("{}.sound", channel.name));
        let seal = FileSeal::new(parts.vault.clone());
        Self::with_sound(channel, config, parts, |log| {
            VoicePipeline::new(config, (folder, seal), log).map(Some)
        })
    }

    fn with_sound(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
        sound: impl FnOnce(Arc<Log>) -> Result<Option<VoicePipeline>, String>,
    ) -> Result<Self, String> {
        listening(parts)?;
        let mut people = vec![(SHARED.to_owned(), secret(channel, parts)?)];
        for (name, reference) in &config.users {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
            if name.is_empty() || name.len() > 64 || name == SHARED || !name.chars().all(plain) {
                return Err(format!(
                    "`users.{name}` is not a valid name (letters, digits, `-`, `_`, `.`, `@`; not `{SHARED}`)"
                ));
            }
            let token = parts
                .secrets
                .resolve(reference)
                .map_err(|error| error.to_string())?;
            people.push((name.clone(), token));
        }
        let seats = SignInRegistry::new(people)?;
        let folder = parts.folder.join(format!("{}.web", channel.name));
        let log = Arc::new(Log::new(folder, parts.vault.clone()));
        let streams = Arc::new(Semaphore::new(MAX_STREAMS));
        let known_as = config.public_url.as_deref().and_then(|url| {
            let origin = clawk_egress::Url::parse(url).ok()?.origin(); // silent-ok: the configuration's check says it
            Some(origin.ascii_serialization())
        });
        Ok(Self {
            name: channel.name.clone(),
            files: parts.folder.join(format!("{}.files", channel.name)),
            seal: FileSeal::new(parts.vault.clone()),
            sockets: SocketContext {
                seats: seats.clone(),
                log: Arc::clone(&log),
                places: Arc::clone(&streams),
                known_as,
                sound: sound(Arc::clone(&log))?.map(Arc::new),
            },
            seats,
            log,
            streams,
            typing: Arc::default(),
            spoken: Mutex::default(),
            secure: config
                .public_url
                .as_deref()
                .is_some_and(|url| url.starts_with("https://")),
        })
    }

    fn lock_typing(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.typing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cookie_name(&self) -> String {
        format!("clawk-{}", self.name)
    }

    /// Who a request is from: by the cookie.
    fn signed_in_user(&self, hook: &HookRequest) -> Option<String> {
        let name = self.cookie_name();
        let cookies = hook.headers.get_all(COOKIE).iter();
        let mut values = cookies
            .filter_map(|header| header.to_str().ok()) // silent-ok: such a cookie is not ours
            .flat_map(|header| header.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .filter(|(known, _)| *known == name)
            .map(|(_, value)| value);
        let (value, None) = (values.next()?, values.next()) else {
            return None;
        };
        self.seats.user_of_cookie(value)
    }

    fn set_cookie(&self, value: &str, seconds: u64) -> Option<(HeaderName, HeaderValue)> {
        let secure = if self.secure { "; Secure" } else { "" };
        let text = format!(
            "{}={value}; Path=/channels/{}; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}",
            self.cookie_name(),
            self.name
        );
        let value = HeaderValue::from_str(&text).ok()?; // silent-ok: a name that fits no header gets no cookie
        Some((SET_COOKIE, value))
    }

    /// Who a program is: by its token and, where that is shared, by its session.
    fn program_user(&self, inlet: &InboundPipeline, hook: &HookRequest) -> Option<String> {
        let token = frames::request_token(hook)?;
        let user = self.seats.whose_token(&token, inlet.clock().now()).ok()?; // silent-ok: 401 says it
        match hook.header(SESSION) {
            Some(session) => SocketSpeaker::from_session(&user, session).map(|speaker| speaker.sender),
            None => (user != SHARED).then_some(user),
        }
    }

    async fn answer_request(&self, inlet: &Arc<InboundPipeline>, hook: HookRequest) -> HookResponse {
        let asked = PageQuery::from_query(&hook.query);
        if hook.method == Method::GET && frames::asks(&hook) {
            return self.sockets.open_socket(inlet, &hook);
        }
        if hook.method == Method::GET {
            match (asked.what.as_str(), asked.value("asset")) {
                ("", _) => return page("text/html; charset=utf-8", PAGE),
                ("asset", "app.js") => return page("text/javascript; charset=utf-8", SCRIPT),
                ("asset", "voice.js") if self.sockets.sound.is_some() => {
                    return page("text/javascript; charset=utf-8", VOICE);
                }
                ("asset", "app.css") => return page("text/css; charset=utf-8", STYLE),
                _ => {}
            }
        } else if hook.method != Method::POST {
            return HookReply::refusal(405, "GET or POST is wanted").into();
        } else if hook.header("content-type") != Some("application/json") {
            return HookReply::refusal(415, "a body of type `application/json` is wanted").into();
        }
        if asked.what == "login" && hook.method == Method::POST {
            return self.handle_login(inlet, &hook);
        }
        let file = hook.method == Method::GET && asked.what == "file";
        let program = || {
            if file {
                self.program_user(inlet, &hook)
            } else {
                None
            }
        };
        let Some(user) = self.signed_in_user(&hook).or_else(program) else {
            return HookReply::refusal(401, "sign in first").into();
        };
        let post = hook.method == Method::POST;
        match (post, asked.what.as_str()) {
            (false, "me") => {
                let records = self.sockets.sound.is_some();
                HookReply::json(200, &json!({"user": user, "records": records})).into()
            }
            (false, "list") => match self.log.list_conversations(&user) {
                Ok(all) => HookReply::json(200, &json!({ "conversations": all })).into(),
                Err(error) => storage_failure(&error).into(),
            },
            (false, "events") => self.event_stream(inlet, &user, &asked),
            (false, "file") => self.file_download(&user, &asked),
            (true, "logout") => {
                self.seats.sign_out(&hook_cookie(&hook, &self.cookie_name()));
                let mut served: HookResponse = HookReply::json(200, &json!({})).into();
                served.headers.extend(self.set_cookie("", 0));
                served
            }
            (true, "say") => self.handle_message(inlet, &user, &hook.body).await.into(),
            (true, "record") => self.accept_recording(inlet, &user, &hook.body).await.into(),
            (true, "speech") => self.speech_piece(inlet, &user, &hook.body).await,
            (true, "press") => self.handle_press(inlet, &user, &hook.body).await.into(),
            _ => HookReply::refusal(404, "no such request").into(),
        }
    }

    fn handle_login(&self, inlet: &InboundPipeline, hook: &HookRequest) -> HookResponse {
        let Ok(login) = serde_json::from_slice::<PageLogin>(&hook.body) else {
            return HookReply::refusal(400, "the body is wrong").into();
        };
        match self.seats.sign_in(&login.token, inlet.clock().now()) {
            SignedIn::Yes {
                user,
                cookie,
                seconds,
            } => {
                let mut served: HookResponse = HookReply::json(200, &json!({ "user": user })).into();
                served.headers.extend(self.set_cookie(&cookie, seconds));
                served
            }
            SignedIn::Wrong => HookReply::refusal(403, "the token is not right").into(),
            SignedIn::Closed => {
                HookReply::refusal(429, "too many wrong tokens; none is looked at for a minute").into()
            }
            SignedIn::Failed => HookReply::refusal(503, "nobody can sign in now").into(),
        }
    }

    async fn handle_message(&self, inlet: &InboundPipeline, user: &str, body: &[u8]) -> HookReply {
        let Ok(say) = serde_json::from_slice::<PageMessage>(body) else {
            return HookReply::refusal(400, "the body is wrong");
        };
        if !id_fits(&say.id) || !is_of(&say.conversation, user) || say.attachments.len() > MAX_FILES {
            return HookReply::refusal(400, "the body is wrong");
        }
        let mut attachments = Vec::new();
        for upload in say.attachments {
            let Ok(data) = STANDARD.decode(upload.data) else {
                return HookReply::refusal(400, "a file is not base64");
            };
            attachments.push(Attachment {
                name: upload.name,
                media_type: upload.media_type,
                size: u64::try_from(data.len()).ok(), // silent-ok: no body is larger
                content: AttachmentContent::Here(data.into()),
            });
        }
        let names: Vec<String> = attachments
            .iter()
            .map(|file| crate::plain_name::harmless(&file.name))
            .collect();
        let mut shown = say.text.clone();
        for name in names {
            shown.push_str(&format!("\n[{name}]"));
        }
        // It stands before its answer, which may be there at once; of somebody who is not let in nothing is kept.
        let early = inlet.lets_in(user);
        if early
            && let Err(error) = self.log.put_entry(
                &say.conversation,
                PageEntry::new(&say.id, PageEntryAuthor::You, shown.clone()),
            )
        {
            tracing::warn!(%error, "a page can't show what was said");
        }
        let taken = inlet
            .ingest_message(PlatformMessage {
                ids: vec![format!("{user}:{}", say.id)],
                conversation: say.conversation.clone(),
                direct: true,
                mention: true,
                sender: Some(user.to_owned()),
                text: say.text,
                attachments,
                ..PlatformMessage::default()
            })
            .await;
        if matches!(taken, IngestOutcome::Refused(_) | IngestOutcome::Later(_))
            && early
            && let Err(error) = self.log.take_back(&say.conversation, &say.id)
        {
            tracing::warn!(%error, "a page shows what was not taken");
        }
        match taken {
            IngestOutcome::Accepted { .. } | IngestOutcome::Ignored => {
                HookReply::json(202, &json!({ "accepted": true }))
            }
            IngestOutcome::Refused(reason) => HookReply::refusal(403, &reason),
            IngestOutcome::Later(_) => HookReply::refusal(503, "it could not be kept now; send it again"),
        }
    }

    async fn handle_press(&self, inlet: &InboundPipeline, user: &str, body: &[u8]) -> HookReply {
        match serde_json::from_slice::<PagePress>(body) {
            Ok(pressed) if is_of(&pressed.conversation, user) => {
                let told = inlet
                    .handle_press(&ButtonPress {
                        reason: None,
                        question: pressed.question,
                        choice: pressed.choice,
                        sender: user.to_owned(),
                        conversation: pressed.conversation,
                    })
                    .await;
                HookReply::json(200, &json!({ "told": told }))
            }
            Ok(_) | Err(_) => HookReply::refusal(400, "the body is wrong"),
        }
    }

    /// The conversation as it changes.
    fn event_stream(&self, inlet: &InboundPipeline, user: &str, asked: &PageQuery) -> HookResponse {
        let conversation = asked.value("conversation").to_owned();
        let (true, Ok(after)) = (is_of(&conversation, user), asked.value("after").parse::<u64>()) else {
            return HookReply::refusal(400, "the query is wrong").into();
        };
        let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() else {
            return HookReply::refusal(429, "too many pages are open").into();
        };
        let (send, stream) = mpsc::channel(BEHIND);
        let (log, typing, seats) = (
            Arc::clone(&self.log),
            Arc::clone(&self.typing),
            self.seats.clone(),
        );
        let user = user.to_owned();
        inlet.spawn_task(async move {
            let _place = place;
            let mut rev = after;
            let mut changed = log.watch_changes();
            loop {
                changed.mark_unchanged();
                let entries = match log.entries_after(&conversation, rev) {
                    Ok(entries) => entries,
                    Err(error) => {
                        tracing::warn!(%error, "a conversation can't be shown");
                        return;
                    }
                };
                let mut events = Vec::new();
                for entry in entries {
                    rev = rev.max(entry.rev);
                    match serde_json::to_string(&entry.without_source()) {
                        Ok(text) => events.push(format!("event: entry\ndata: {text}\n\n")),
                        Err(error) => tracing::warn!(%error, "an entry can't be shown"),
                    }
                }
                let writes = {
                    let typing = typing.lock().unwrap_or_else(PoisonError::into_inner);
                    typing
                        .get(&conversation)
                        .is_some_and(|until| *until > Instant::now())
                };
                if events.is_empty() {
                    events.push(if writes {
                        "event: typing\ndata: {}\n\n".to_owned()
                    } else {
                        ": alive\n\n".to_owned()
                    });
                }
                for event in events {
                    match tokio::time::timeout(STALL, send.send(Bytes::from(event))).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) | Err(_) => return, // silent-ok: the page went, or does not read
                    }
                }
                // silent-ok: quiet for so long: a sign of life is sent
                let _changed = tokio::time::timeout(ALIVE, changed.changed()).await;
                if !seats.is_signed_in(&user) {
                    return;
                }
            }
        });
        HookResponse {
            reply: HookReply {
                status: 200,
                content_type: Some("text/event-stream"),
                body: String::new(),
            },
            headers: Vec::new(),
            stream: Some(stream),
            talk: None,
        }
    }

    /// A file that the agent sent, only ever as a download.
    fn file_download(&self, user: &str, asked: &PageQuery) -> HookResponse {
        let (id, conversation) = (asked.value("file"), asked.value("conversation"));
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !is_of(conversation, user) || id.is_empty() || id.starts_with('.') || !id.chars().all(plain) {
            return HookReply::refusal(404, "no such file").into();
        }
        let entries = self.log.entries_after(conversation, 0);
        let known = entries.is_ok_and(|entries| {
            entries
                .iter()
                .any(|entry| entry.files.iter().any(|file| file.id == id))
        });
        let data = if known {
            let path = self.files.join(id);
            std::fs::read(&path).and_then(|data| self.seal.unseal_bytes(&path, data))
        } else {
            Err(std::io::ErrorKind::NotFound.into())
        };
        let Ok(data) = data else {
            return HookReply::refusal(404, "no such file").into();
        };
        let (send, stream) = mpsc::channel(1);
        // silent-ok: there is room for one
        let _sent = send.try_send(Bytes::from(data));
        HookResponse {
            reply: HookReply {
                status: 200,
                content_type: Some("application/octet-stream"),
                body: String::new(),
            },
            headers: vec![(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"))],
            stream: Some(stream),
            talk: None,
        }
    }
}

/// Whether a page may give a message this id.
fn id_fits(id: &str) -> bool {
    (8..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn hook_cookie(hook: &HookRequest, name: &str) -> String {
    let pairs = hook.header("cookie").unwrap_or_default().split(';');
    let mut ours = pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(known, _)| *known == name);
    ours.next().map(|(_, value)| value.to_owned()).unwrap_or_default()
}

fn storage_failure(error: &std::io::Error) -> HookReply {
    tracing::warn!(%error, "a page's conversations can't be read");
    HookReply::refusal(503, "the conversations can't be read now")
}

/// A file of the page.
fn page(kind: &'static str, body: &str) -> HookResponse {
    HookResponse {
        reply: HookReply {
            status: 200,
            content_type: Some(kind),
            body: body.to_owned(),
        },
        headers: vec![
            (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
            (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        ],
        stream: None,
        talk: None,
    }
}

impl ChannelAdapter for WebAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Html,
            code: CodeBlock::Element,
            // The same id is the same entry.
            idempotent: true,
            buttons: true,
            edits: true,
            typing: true,
            files: FileSupport::Inside,
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Chars)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        inlet.report_ready();
        Box::pin(async move {
            let resumed = async {
                if let Some(sound) = &self.sockets.sound {
                    sound.resume_recordings(inlet).await;
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = over.cancelled() => {}
                () = resumed => {}
            }
            ChannelDisconnect::temporary("the agent ends")
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move { self.add_entry(out, |entry| entry) })
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move { self.replace_entry(of, out, |_, entry| entry) })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            self.add_entry(&asking.out, |entry| PageEntry {
                question: Some(asking.question.clone()),
                choices: asking.choices.clone(),
                ..entry
            })
        })
    }

    fn show_decision<'a>(
        &'a self,
        of: &'a str,
        out: &'a OutboundMessage,
        decision: &'a Decision,
    ) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            self.replace_entry(of, out, |before, entry| {
                let decided = before.question.clone().map(|question| QuestionDecision {
                    question,
                    yes: decision.yes,
                    by: decision.by.clone(),
                });
                PageEntry {
                    decided,
                    choices: before.choices.clone(),
                    ..entry
                }
            })
        })
    }

    fn show_typing<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            {
                let mut typing = self.lock_typing();
                typing.retain(|_, until| *until > Instant::now());
                typing.insert(conversation.to_owned(), Instant::now() + TYPING);
            }
            self.log.wake_pages();
        })
    }

    fn serve_hook<'a>(
        &'a self,
        inlet: &'a Arc<InboundPipeline>,
        hook: HookRequest,
    ) -> BoxFuture<'a, HookResponse> {
        Box::pin(self.answer_request(inlet, hook))
    }
}
