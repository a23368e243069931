//! `line`: Messaging API. Events come by webhook, signed without a time; answers are pushed with a retry key, so that the same message
//! twice is one.

mod entry;
mod refusals;

use std::sync::OnceLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::Secret;
use http::{HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::LINE;
use crate::adapter::{
    Attachment, AttachmentContent, ButtonPress, ChannelAdapter, ChannelDisconnect, FileSupport, HookReply,
    HookRequest, InboundPipeline, LengthUnit, OutboundMessage, PlatformCapabilities, PlatformMessage,
    QuestionMessage, carried,
};
use crate::albums::{AlbumCollector, AlbumOutcome, merge_parts};
use crate::api::{PlatformApi, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::genuine::{constant_time_eq, hmac_sha256, to_hex};
use crate::platform_kit::{escaped, listening, secret, secret_named, worded};
use crate::remote::RemoteFiles;

pub(crate) const VENDOR: &str = "https://api.line.me";
/// Where files are; `base_url` stands for both.
const DATA: &str = "https://api-data.line.me";
/// A file at an address that its sender named: it is not followed.
const EXTERNAL: &str = "external";
/// How often a file is asked for that the platform still prepares, and the wait between.
const PREPARING: u32 = 10;
const PREPARED_AGAIN: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);
/// UTF-16 units of a text.
const MAX_TEXT: usize = 4_900;
/// Characters of a button.
const MAX_LABEL: usize = 20;
const RETRY_KEY: HeaderName = HeaderName::from_static("x-line-retry-key");
/// How long the other pictures of a set are waited for.
const SET_WAIT: Duration = Duration::from_millis(900);
/// How long somebody is shown to be writing, seconds.
const LOADING_S: u64 = 10;

#[derive(Debug, Deserialize)]
struct Body {
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    source: LineEventSource,
    #[serde(default)]
    webhook_event_id: String,
    #[serde(default)]
    message: Option<LineMessage>,
    #[serde(default)]
    postback: Option<LinePostback>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LineEventSource {
    user_id: Option<String>,
    group_id: Option<String>,
    room_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LineMessage {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    mention: Option<LineMention>,
    #[serde(default)]
    file_name: Option<String>,
    #[serde(default)]
    file_size: Option<u64>,
    #[serde(default)]
    content_provider: Option<LineContentProvider>,
    /// The message that it answers, by its id.
    #[serde(default)]
    quoted_message_id: Option<String>,
    /// The pictures that were sent together with it.
    #[serde(default)]
    image_set: Option<ImageSet>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct ImageSet {
    id: String,
    #[serde(default)]
    total: usize,
}

/// Who holds a file.
#[derive(Debug, Deserialize)]
struct LineContentProvider {
    #[serde(rename = "type", default)]
    kind: String,
}

#[derive(Debug, Deserialize)]
struct LineMention {
    #[serde(default)]
    mentionees: Vec<LineMentionee>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LineMentionee {
    #[serde(default)]
    is_self: bool,
}

#[derive(Debug, Deserialize)]
struct LinePostback {
    data: String,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct LineAdapter {
    api: PlatformApi,
    signing: Secret,
    data: String,
    files: RemoteFiles,
    me: OnceLock<String>,
    /// Sets of pictures of which some have come.
    albums: AlbumCollector<PlatformMessage>,
}

impl LineAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        if channel.transport != Transport::Webhook {
            return Err("`line` has the transport `webhook`".to_owned());
        }
        listening(parts)?;
        let token = secret(channel, parts)?;
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        let data = config.base_url.as_deref().unwrap_or(DATA);
        Ok(Self {
            api: PlatformApi::new(base, parts.secrets.env(), PATIENCE)?
                .with_authorization("Bearer", token.expose().trim())?,
            signing: secret_named(config, parts, "channel_secret")?,
            files: RemoteFiles::new(data, parts.secrets.env(), &[])?,
            data: data.trim_end_matches('/').to_owned(),
            me: OnceLock::new(),
            albums: AlbumCollector::new(SET_WAIT),
        })
    }

    async fn fetch_bot_identity(&self) -> Result<(), ChannelDisconnect> {
        let answer = self.api.send_json(Method::GET, "v2/bot/info", None).await;
        let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        let told = error_text(&answer);
        match answer.status.as_u16() {
            200 => {
                let me = answer.text("/userId").unwrap_or_default().to_owned();
                let _same = self.me.set(me); // silent-ok: the bot stays itself
                Ok(())
            }
            401 | 403 => Err(ChannelDisconnect::fatal(format!(
                "the platform refuses the access token ({told})"
            ))),
            _ => Err(ChannelDisconnect::temporary(told)),
        }
    }

    /// `false`: it is not kept and must come again.
    async fn ingest_event(&self, inlet: &InboundPipeline, event: Event) -> bool {
        // Another answers in this chat.
        if event.mode.as_deref() == Some("standby") {
            return true;
        }
        let LineEventSource {
            user_id,
            group_id,
            room_id,
        } = event.source;
        let direct = group_id.is_none() && room_id.is_none();
        let Some(conversation) = group_id.or(room_id).or_else(|| user_id.clone()) else {
            return true;
        };
        if let Some(postback) = event.postback {
            if let (Some((question, choice)), Some(sender)) = (carried(&postback.data), user_id) {
                let press = ButtonPress {
                    reason: None,
                    question: question.to_owned(),
                    choice: choice.to_owned(),
                    sender,
                    conversation,
                };
                inlet.press_and_say(&press).await;
            }
            return true;
        }
        let Some(message) = event.message.filter(|_| event.kind == "message") else {
            return true;
        };
        let mentions = message
            .mention
            .map(|mention| mention.mentionees)
            .unwrap_or_default();
        let mut attachments = Vec::new();
        if matches!(message.kind.as_str(), "image" | "video" | "audio" | "file") {
            let external = message
                .content_provider
                .as_ref()
                .is_some_and(|provider| provider.kind == "external");
            let at = if external { EXTERNAL } else { &message.id };
            attachments.push(Attachment {
                name: message.file_name.unwrap_or_else(|| message.kind.clone()),
                media_type: message.kind.clone(),
                size: message.file_size,
                content: AttachmentContent::At(at.to_owned()),
            });
        }
        let text = message_words(&message.kind, message.text, &message.more);
        let incoming = PlatformMessage {
            ids: vec![message.id, event.webhook_event_id]
                .into_iter()
                .filter(|id| !id.is_empty())
                .collect(),
            conversation,
            direct,
            mention: mentions.iter().any(|mentionee| mentionee.is_self),
            sender: user_id,
            sender_name: None,
            text,
            attachments,
            context: MessageContext::default(),
            answers: message.quoted_message_id,
            remembered_days: None,
        };
        let Some(set) = message.image_set else {
            return inlet.ingest_message(incoming).await.is_settled();
        };
        // The pictures of a set come one by one; they are one message.
        let total = Some(set.total).filter(|total| *total > 0);
        match self.albums.add_part(&set.id, incoming, total).await {
            AlbumOutcome::All(parts, receipt) => {
                let kept = match merge_parts(parts) {
                    Some(incoming) => inlet.ingest_message(incoming).await.is_settled(),
                    None => true,
                };
                receipt.report_outcome(kept);
                kept
            }
            AlbumOutcome::Settled(kept) => kept,
        }
    }

    /// The bytes of a message's file.
    async fn fetch_file(&self, id: &str, max_bytes: u64) -> Result<Bytes, String> {
        if id == EXTERNAL {
            return Err("it lies at another host than the platform's, which is not followed".to_owned());
        }
        let url = format!("{}/v2/bot/message/{}/content", self.data, escaped(id));
        for _ in 0..PREPARING {
            let got = self
                .files
                .request_url(&url, self.api.authorization(), max_bytes)
                .await?;
            match got.status.as_u16() {
                200 => return Ok(got.bytes),
                202 => tokio::time::sleep(PREPARED_AGAIN).await,
                other => return Err(format!("the platform answered {other}")),
            }
        }
        Err("the platform still prepares it".to_owned())
    }

    async fn push(&self, out: &OutboundMessage, messages: &[Value]) -> Delivery {
        let body = json!({"to": out.conversation, "messages": messages});
        let Ok(key) = HeaderValue::from_str(&retry_key(&out.id)) else {
            return Delivery::Failed {
                reason: "no retry key could be made".to_owned(),
            };
        };
        let bytes = body.to_string().into_bytes();
        let sent = self
            .api
            .send_bytes(
                Method::POST,
                "v2/bot/message/push",
                Some("application/json"),
                bytes,
                &[(RETRY_KEY, key)],
            )
            .await;
        match sent {
            // It was accepted under this key before.
            Ok(answer) if answer.status.as_u16() == 409 => Delivery::Delivered {
                platform_id: sent_id(&answer),
            },
            Ok(answer) => {
                let details = answer.text("/details/0/message").unwrap_or_default();
                let refusal = refusals::line_refusal(answer.status.as_u16(), &error_text(&answer), details);
                let told = format!("{} {details}", error_text(&answer));
                refusal.delivery_by_status(&answer, &told).unwrap_or_else(|| {
                    answer.delivery_by_status(sent_id(&answer), true, &error_text(&answer))
                })
            }
            Err(fault) => fault.into_delivery(),
        }
    }
}

/// A UUID that is the same for the same message.
fn retry_key(id: &str) -> String {
    let digest = to_hex(&Sha256::digest(id.as_bytes()));
    let part = |from: usize, to: usize| digest.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-8{}-a{}-{}",
        part(0, 8),
        part(8, 12),
        part(13, 16),
        part(17, 20),
        part(20, 32)
    )
}

/// Events in their order; those of one set of pictures together, since each of them waits for the others.
fn group_events(events: Vec<Event>) -> Vec<Vec<Event>> {
    let set = |event: &Event| Some(event.message.as_ref()?.image_set.as_ref()?.id.clone());
    let mut groups: Vec<(Option<String>, Vec<Event>)> = Vec::new();
    for event in events {
        let of = set(&event);
        match groups
            .last_mut()
            .filter(|(known, _)| of.is_some() && *known == of)
        {
            Some((_, group)) => group.push(event),
            None => groups.push((of, vec![event])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// The words of a message: its text, or what it is, where there is no file.
fn message_words(kind: &str, text: String, more: &Map<String, Value>) -> String {
    let word = |name: &str| more.get(name).and_then(Value::as_str);
    let number = |name: &str| more.get(name).and_then(Value::as_f64);
    match kind {
        "location" => {
            let at = number("latitude").zip(number("longitude"));
            worded::place_line(word("title"), word("address"), at)
        }
        "sticker" => {
            let known = more.get("keywords").and_then(Value::as_array);
            let first = known.and_then(|all| all.first()?.as_str());
            worded::sticker_line(Some(text.as_str()).filter(|text| !text.is_empty()).or(first))
        }
        "text" | "image" | "video" | "audio" | "file" => text,
        other => worded::item_line("a message", other),
    }
}

fn sent_id(answer: &PlatformResponse) -> Option<String> {
    answer.text("/sentMessages/0/id").map(str::to_owned)
}

fn error_text(answer: &PlatformResponse) -> String {
    bounded_line(answer.text("/message").unwrap_or_default())
}

impl ChannelAdapter for LineAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            idempotent: true,
            buttons: true,
            typing: true,
            files: FileSupport::Nothing(
                "the platform takes files by public addresses only, and has no upload",
            ),
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Utf16)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(async move {
            if let Err(ended) = self.fetch_bot_identity().await {
                return ended;
            }
            inlet.report_ready();
            over.cancelled().await;
            ChannelDisconnect::temporary("the agent ends")
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move { self.push(out, &[json!({"type": "text", "text": out.text})]).await })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let mut messages = vec![json!({"type": "text", "text": asking.out.text})];
            let action = |(id, label): &(String, String)| {
                let label: String = label.chars().take(MAX_LABEL).collect();
                json!({"type": "postback", "label": label, "data": asking.button_data(id)})
            };
            let actions: Vec<Value> = asking.choices.iter().take(4).map(action).collect();
            if !actions.is_empty() {
                let template = json!({"type": "buttons", "text": "Your answer:", "actions": actions});
                messages.push(json!({"type": "template", "altText": "Your answer", "template": template}));
            }
            self.push(&asking.out, &messages).await
        })
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(self.fetch_file(at, max_bytes))
    }

    fn show_typing<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let body = json!({"chatId": conversation, "loadingSeconds": LOADING_S});
            if let Err(fault) = self.api.post_json("v2/bot/chat/loading/start", &body).await {
                tracing::debug!(reason = fault.reason(), "typing could not be shown");
            }
        })
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            if hook.method != Method::POST {
                return HookReply::refusal(405, "POST is wanted");
            }
            let given = hook.header("x-line-signature").unwrap_or_default();
            let secret = self.signing.expose().trim();
            let wanted = STANDARD.encode(hmac_sha256(secret.as_bytes(), &[&hook.body]));
            if !constant_time_eq(given, &wanted) {
                return HookReply::refusal(401, "the signature is not right");
            }
            let Ok(body) = serde_json::from_slice::<Body>(&hook.body) else {
                return HookReply::refusal(400, "the body is not a list of events");
            };
            for events in group_events(body.events) {
                let taken = events.into_iter().map(|event| self.ingest_event(inlet, event));
                if !futures::future::join_all(taken)
                    .await
                    .into_iter()
                    .all(|kept| kept)
                {
                    return HookReply::refusal(503, "it could not be kept now");
                }
            }
            HookReply::empty(200)
        })
    }
}
