//! `whatsapp`: Cloud API. Events come by webhook, signed without a time; answers leave by the Graph API, which knows no idempotency
//! key and no history, but names our id in what it tells of each message.
//!
//! Long because the shapes of the webhook stand beside what is made of them.

mod entry;
mod refusals;
mod words;

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::Secret;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::WHATSAPP;
use self::words::WhatsappMessageWords;
use crate::adapter::{
    Attachment, AttachmentContent, ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, DeliveryLookup,
    FileSupport, HookReply, HookRequest, InboundPipeline, LengthUnit, MarkupFormat, OutFile, OutboundMessage,
    PlatformCapabilities, PlatformMessage, QuestionMessage, carried,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::form::MultipartForm;
use crate::genuine::{constant_time_eq, is_hmac_valid};
use crate::held::{DeferredDeliveries, SendAttempt};
use crate::platform_kit::refusals::MessageRefusal;
use crate::platform_kit::worded::without_member;
use crate::platform_kit::{escaped, listening, secret, secret_named, setting};
use crate::remote::RemoteFiles;
use crate::token::CredentialRefusal;

/// The version is part of the address: the vendor keeps one for about two years.
pub(crate) const VENDOR: &str = "https://graph.facebook.com/v23.0";
/// Where files lie.
const HOSTS: [&str; 3] = ["facebook.com", "fbsbx.com", "fbcdn.net"];
const PATIENCE: Duration = Duration::from_secs(30);
/// Characters of a text; the platform's limit is 4096.
const MAX_TEXT: usize = 4_000;
/// Bytes of a file that goes out, and of one that is shown as a picture.
const MAX_FILE: usize = 100_000_000;
const MAX_PICTURE: usize = 5_000_000;
/// Characters of a text with buttons, and of a button.
const MAX_ASKED: usize = 1_024;
const MAX_TITLE: usize = 20;
/// Messages of ours of which is remembered what the platform told.
const TOLD: usize = 4_096;
/// How long it is waited for what the platform tells of a message that may be there.
const TOLD_WAIT: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Deserialize)]
struct Body {
    #[serde(default)]
    entry: Vec<WhatsappEntry>,
}

#[derive(Debug, Deserialize)]
struct WhatsappEntry {
    #[serde(default)]
    changes: Vec<WhatsappChange>,
}

#[derive(Debug, Deserialize)]
struct WhatsappChange {
    #[serde(default)]
    field: String,
    value: WhatsappChangeValue,
}

#[derive(Debug, Deserialize)]
struct WhatsappChangeValue {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    contacts: Vec<WhatsappContact>,
    #[serde(default)]
    messages: Vec<WhatsappMessage>,
    #[serde(default)]
    statuses: Vec<WhatsappMessageStatus>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    phone_number_id: String,
}

#[derive(Debug, Deserialize)]
struct WhatsappContact {
    #[serde(default)]
    wa_id: Option<String>,
    #[serde(default)]
    profile: Profile,
}

#[derive(Debug, Default, Deserialize)]
struct Profile {
    #[serde(default)]
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WhatsappMessage {
    id: String,
    #[serde(default)]
    from: Option<String>,
    /// Of people who have a name instead of a number.
    #[serde(default)]
    from_user_id: Option<String>,
    #[serde(default)]
    group_id: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<WhatsappText>,
    #[serde(default)]
    interactive: Option<WhatsappInteractive>,
    #[serde(default)]
    image: Option<WhatsappMedia>,
    #[serde(default)]
    video: Option<WhatsappMedia>,
    #[serde(default)]
    audio: Option<WhatsappMedia>,
    #[serde(default)]
    document: Option<WhatsappMedia>,
    #[serde(default)]
    sticker: Option<WhatsappMedia>,
    /// Whatever else it holds: a place, contacts, what it answers.
    #[serde(flatten)]
    more: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
struct WhatsappText {
    #[serde(default)]
    body: String,
}

#[derive(Debug, Deserialize)]
struct WhatsappInteractive {
    #[serde(default)]
    button_reply: Option<WhatsappButtonReply>,
}

#[derive(Debug, Deserialize)]
struct WhatsappButtonReply {
    id: String,
}

#[derive(Debug, Deserialize)]
struct WhatsappMedia {
    #[serde(default)]
    id: String,
    #[serde(default)]
    mime_type: String,
    #[serde(default)]
    filename: Option<String>,
    #[serde(default)]
    caption: Option<String>,
}

/// What became of a message of ours.
#[derive(Debug, Deserialize)]
struct WhatsappMessageStatus {
    id: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    biz_opaque_callback_data: Option<String>,
    #[serde(default)]
    errors: Vec<Value>,
}

/// Our ids that the platform named, with its own; the oldest go first.
#[derive(Debug, Default)]
struct WhatsappSentIds {
    ids: HashMap<String, String>,
    order: VecDeque<String>,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct WhatsappAdapter {
    api: PlatformApi,
    number: String,
    signing: Secret,
    verify: Secret,
    /// For files, which lie on another host.
    bearer: HeaderValue,
    files: RemoteFiles,
    lost: CredentialRefusal,
    held: DeferredDeliveries,
    named: Mutex<WhatsappSentIds>,
}

impl WhatsappAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        if channel.transport != Transport::Webhook {
            return Err("`whatsapp` has the transport `webhook`".to_owned());
        }
        listening(parts)?;
        let token = secret(channel, parts)?;
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.expose().trim()))
            .map_err(|_| "the secret can't stand in a header".to_owned())?; // silent-ok: said
        bearer.set_sensitive(true);
        Ok(Self {
            bearer,
            files: RemoteFiles::new(base, parts.secrets.env(), &HOSTS)?,
            api: PlatformApi::new(base, parts.secrets.env(), PATIENCE)?
                .with_authorization("Bearer", token.expose().trim())?,
            number: setting(config, "phone_number_id")?,
            signing: secret_named(config, parts, "app_secret")?,
            verify: secret_named(config, parts, "verify_token")?,
            lost: CredentialRefusal::default(),
            held: DeferredDeliveries::default(),
            named: Mutex::default(),
        })
    }

    fn lock_sent_ids(&self) -> MutexGuard<'_, WhatsappSentIds> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch_bot_identity(&self) -> Result<(), ChannelDisconnect> {
        let path = format!("{}?fields=id", escaped(&self.number));
        let answer = self.api.send_json(Method::GET, &path, None).await;
        let answer = answer.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        if answer.status.is_success() {
            return Ok(());
        }
        let told = error_text(&answer);
        Err(match error_code(&answer) {
            Some(0 | 190) => {
                ChannelDisconnect::fatal(format!("the platform refuses the access token ({told})"))
            }
            Some(100 | 33) => {
                ChannelDisconnect::fatal(format!("`settings.phone_number_id` is not known there ({told})"))
            }
            _ => ChannelDisconnect {
                after_ms: answer.retry_after_ms(),
                ..ChannelDisconnect::temporary(told)
            },
        })
    }

    /// `false`: it is not kept and must come again.
    async fn ingest_change(&self, inlet: &InboundPipeline, told: WhatsappChangeValue) -> bool {
        // The same app may serve other numbers.
        if told.metadata.phone_number_id != self.number {
            return true;
        }
        for status in told.statuses {
            self.note_status(inlet, status);
        }
        for message in told.messages {
            let from = message.from.clone().or_else(|| message.from_user_id.clone());
            let contact = told.contacts.iter().find(|contact| contact.wa_id == from);
            let name = contact.and_then(|contact| contact.profile.name.clone());
            if !self.ingest_message(inlet, message, from, name).await {
                return false;
            }
        }
        true
    }

    async fn ingest_message(
        &self,
        inlet: &InboundPipeline,
        message: WhatsappMessage,
        from: Option<String>,
        name: Option<String>,
    ) -> bool {
        let Some(conversation) = message.group_id.clone().or_else(|| from.clone()) else {
            return true;
        };
        if let Some(reply) = message.interactive.and_then(|pressed| pressed.button_reply) {
            if let (Some((question, choice)), Some(sender)) = (carried(&reply.id), from) {
                let press = ButtonPress {
                    reason: None,
                    question: question.to_owned(),
                    choice: choice.to_owned(),
                    sender,
                    conversation: conversation.clone(),
                };
                inlet.press_and_say(&press).await;
            }
            self.held.release_deferred(inlet, &conversation).await;
            return true;
        }
        let media = [
            message.image,
            message.video,
            message.audio,
            message.document,
            message.sticker,
        ];
        let mut text = message.text.map(|text| text.body).unwrap_or_default();
        let mut attachments = Vec::new();
        for media in media.into_iter().flatten() {
            if text.is_empty() {
                text = media.caption.unwrap_or_default();
            }
            attachments.push(Attachment {
                name: media.filename.unwrap_or_else(|| message.kind.clone()),
                media_type: media.mime_type,
                size: None,
                content: AttachmentContent::At(media.id),
            });
        }
        let WhatsappMessageWords {
            text,
            quotes,
            answers,
        } = words::read(&message.kind, text, &message.more, from.as_deref());
        if text.is_empty() && attachments.is_empty() {
            return true;
        }
        let incoming = PlatformMessage {
            ids: vec![message.id],
            conversation: conversation.clone(),
            direct: message.group_id.is_none(),
            mention: false,
            sender: from,
            sender_name: name,
            text,
            attachments,
            context: MessageContext {
                quotes,
                ..MessageContext::default()
            },
            answers,
            remembered_days: None,
        };
        let settled = inlet.ingest_message(incoming).await.is_settled();
        if settled {
            self.held.release_deferred(inlet, &conversation).await;
        }
        settled
    }

    /// Remembers which of our messages the platform has.
    fn note_status(&self, inlet: &InboundPipeline, status: WhatsappMessageStatus) {
        if status.status == "failed" {
            let told = status.errors.first().and_then(|error| error.pointer("/title"));
            let reason = bounded_line(told.and_then(Value::as_str).unwrap_or_default());
            tracing::warn!(channel = %inlet.channel().name, reason, "the platform could not deliver a message it had taken");
        }
        let Some(ours) = status.biz_opaque_callback_data else {
            return;
        };
        let mut named = self.lock_sent_ids();
        if named.ids.insert(ours.clone(), status.id).is_none() {
            named.order.push_back(ours);
        }
        if named.order.len() > TOLD
            && let Some(oldest) = named.order.pop_front()
        {
            named.ids.remove(&oldest);
        }
    }

    async fn post_message(&self, out: &OutboundMessage, kind: &str, content: Value) -> Delivery {
        let mut body = json!({"messaging_product": "whatsapp", "recipient_type": "individual", "to": out.conversation,
            "type": kind, "biz_opaque_callback_data": out.id});
        if let Some(body) = body.as_object_mut() {
            body.insert(kind.to_owned(), content);
            if let Some(id) = &out.reply_to {
                body.insert("context".to_owned(), json!({ "message_id": id }));
            }
        }
        let path = format!("{}/messages", escaped(&self.number));
        let attempt = self.held.begin_attempt(&out.conversation);
        let mut answer = match self.api.post_json(&path, &body).await {
            Ok(answer) => answer,
            Err(fault) => return fault.into_delivery(),
        };
        // Nothing was sent: the message that is answered can't be named, and the words go without it.
        let refusal = error_code(&answer).map(|code| refusals::whatsapp_refusal(code, &error_text(&answer)));
        if refusal == Some(MessageRefusal::RepliedGone)
            && let Some(rest) = without_member(&body, "context")
        {
            answer = match self.api.post_json(&path, &rest).await {
                Ok(answer) => answer,
                Err(fault) => return fault.into_delivery(),
            };
        }
        self.delivery_from_response(attempt, &answer)
    }

    /// Reacts to a message; an empty emoji takes the reaction away.
    async fn set_reaction(&self, to: &str, id: &str, emoji: &str) -> Result<(), String> {
        let body = json!({"messaging_product": "whatsapp", "recipient_type": "individual", "to": to, "type": "reaction",
            "reaction": {"message_id": id, "emoji": emoji}});
        let path = format!("{}/messages", escaped(&self.number));
        let answer = self
            .api
            .post_json(&path, &body)
            .await
            .map_err(PlatformFailure::reason)?;
        if answer.status.is_success() {
            return Ok(());
        }
        Err(error_text(&answer))
    }

    /// What an answer means: the code counts, not the status.
    fn delivery_from_response(&self, attempt: SendAttempt<'_>, answer: &PlatformResponse) -> Delivery {
        let (reason, after_ms) = (error_text(answer), answer.retry_after_ms());
        match error_code(answer) {
            Some(0 | 190) => self
                .lost
                .refused_delivery("the platform refuses the access token"),
            Some(131_047) => attempt.defer_forbidden("the 24 hours after their last one are over"),
            code => {
                let told = format!("{}: {reason}", code.unwrap_or_default());
                let refusal = code.map(|code| refusals::whatsapp_refusal(code, &reason));
                let delivery = refusal.and_then(|refusal| refusal.delivery_after(after_ms, &told));
                let id = || answer.text("/messages/0/id").map(str::to_owned);
                delivery.unwrap_or_else(|| answer.delivery_by_status(id(), false, &reason))
            }
        }
    }

    /// The vendor asks whether this address is ours.
    fn verify_address(&self, query: &str) -> HookReply {
        let Ok(url) = Url::parse(&format!("http://query.invalid/?{query}")) else {
            return HookReply::refusal(403, "the query can't be read");
        };
        let given = |name: &str| {
            let mut all = url.query_pairs().filter(|(key, _)| key == name);
            let first = all.next().map(|(_, value)| value.into_owned());
            first.filter(|_| all.next().is_none()).unwrap_or_default()
        };
        let challenge = given("hub.challenge");
        let plain = challenge.len() <= 256
            && challenge
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        let right = constant_time_eq(&given("hub.verify_token"), self.verify.expose().trim());
        if !right || given("hub.mode") != "subscribe" || !plain || challenge.is_empty() {
            return HookReply::refusal(403, "the verify token is not right");
        }
        HookReply {
            status: 200,
            content_type: Some("text/plain"),
            body: challenge,
        }
    }
}

fn error_code(answer: &PlatformResponse) -> Option<i64> {
    answer.body.pointer("/error/code")?.as_i64()
}

fn error_text(answer: &PlatformResponse) -> String {
    let details = answer.text("/error/error_data/details");
    bounded_line(
        details
            .or_else(|| answer.text("/error/message"))
            .unwrap_or_default(),
    )
}

impl ChannelAdapter for WhatsappAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Whatsapp,
            code: CodeBlock::ThreeBackticks,
            buttons: true,
            receipts: true,
            files: FileSupport::Beside,
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Chars)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(async move {
            self.lost.clear_refusal();
            if let Err(ended) = self.fetch_bot_identity().await {
                return ended;
            }
            self.held.read(inlet).await;
            inlet.report_ready();
            tokio::select! {
                () = over.cancelled() => ChannelDisconnect::temporary("the agent ends"),
                ended = self.lost.wait_refusal() => ended,
            }
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(self.post_message(out, "text", json!({"body": out.text, "preview_url": false})))
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let picture = file.is_picture() && file.data.len() <= MAX_PICTURE;
            if file.data.len() > MAX_FILE {
                return Delivery::Failed {
                    reason: "the platform takes files up to 100 MB".to_owned(),
                };
            }
            let form = match MultipartForm::new() {
                Ok(form) => form
                    .text("messaging_product", "whatsapp")
                    .text("type", &file.media_type)
                    .file("file", file),
                Err(reason) => return PlatformFailure::NotSent(reason).into_delivery(),
            };
            let path = format!("{}/media", escaped(&self.number));
            let attempt = self.held.begin_attempt(&out.conversation);
            let answer = match self.api.upload_form(&path, form, &[]).await {
                Ok(answer) => answer,
                Err(fault) => return fault.not_uploaded(),
            };
            let Some(id) = answer.text("/id").filter(|_| answer.status.is_success()) else {
                return match self.delivery_from_response(attempt, &answer) {
                    // The upload is not the message.
                    Delivery::Unknown { reason } => Delivery::Retry {
                        after_ms: None,
                        reason,
                    },
                    Delivery::Delivered { .. } => answer.not_uploaded("it has no id"),
                    other => other,
                };
            };
            if picture {
                return self.post_message(out, "image", json!({ "id": id })).await;
            }
            self.post_message(out, "document", json!({"id": id, "filename": file.name}))
                .await
        })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let out = &asking.out;
            let fits = out.text.chars().count() <= MAX_ASKED;
            // Three buttons at most, with titles of their own; what does not fit is answered in words.
            if asking.choices.is_empty() || asking.choices.len() > 3 || !fits {
                return self.send_message(out).await;
            }
            let button = |(id, label): &(String, String)| {
                let title: String = label.chars().take(MAX_TITLE).collect();
                json!({"type": "reply", "reply": {"id": asking.button_data(id), "title": title}})
            };
            let buttons: Vec<Value> = asking.choices.iter().map(button).collect();
            let content =
                json!({"type": "button", "body": {"text": out.text}, "action": {"buttons": buttons}});
            self.post_message(out, "interactive", content).await
        })
    }

    /// The platform names our id in what it tells of a message: that may come soon after.
    fn sent_before<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, DeliveryLookup> {
        Box::pin(async move {
            let known = || self.lock_sent_ids().ids.get(&out.id).cloned();
            let wait = async {
                loop {
                    if let Some(id) = known() {
                        return id;
                    }
                    tokio::time::sleep(LOOK).await;
                }
            };
            match tokio::time::timeout(TOLD_WAIT, wait).await {
                Ok(id) => DeliveryLookup::Yes(Some(id)),
                Err(_) => DeliveryLookup::CantKnow,
            }
        })
    }

    fn read<'a>(&'a self, _conversation: &'a str, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let path = format!("{}/messages", escaped(&self.number));
            let body = json!({"messaging_product": "whatsapp", "status": "read", "message_id": id});
            if let Err(fault) = self.api.post_json(&path, &body).await {
                tracing::debug!(reason = fault.reason(), "a message could not be shown as read");
            }
        })
    }

    fn add_reaction<'a>(
        &'a self,
        conversation: &'a str,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            self.set_reaction(conversation, id, crate::platform_kit::EYES)
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
        Box::pin(self.set_reaction(conversation, id, ""))
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let answer = self.api.send_json(Method::GET, &escaped(at), None).await;
            let answer = answer.map_err(PlatformFailure::reason)?;
            if !answer.status.is_success() {
                return Err(error_text(&answer));
            }
            let headers = HeaderMap::from_iter([(AUTHORIZATION, self.bearer.clone())]);
            let url = answer.text("/url").unwrap_or_default();
            self.files.get(url, headers, max_bytes).await
        })
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            if hook.method == Method::GET {
                return self.verify_address(&hook.query);
            }
            if hook.method != Method::POST {
                return HookReply::refusal(405, "GET or POST is wanted");
            }
            let given = hook.header("x-hub-signature-256").unwrap_or_default();
            let hex = given.strip_prefix("sha256=").unwrap_or_default();
            if !is_hmac_valid(hex, self.signing.expose().trim(), &[&hook.body]) {
                return HookReply::refusal(401, "the signature is not right");
            }
            let Ok(body) = serde_json::from_slice::<Body>(&hook.body) else {
                return HookReply::refusal(400, "the body is not a list of changes");
            };
            let changes = body.entry.into_iter().flat_map(|entry| entry.changes);
            for change in changes.filter(|change| change.field == "messages") {
                if !self.ingest_change(inlet, change.value).await {
                    return HookReply::refusal(503, "it could not be kept now");
                }
            }
            HookReply::empty(200)
        })
    }
}
