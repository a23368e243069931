//! `webhook`: any program that can POST JSON. Answers go back to the request that waits, or to `base_url`, signed the same way.

mod entry;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Channel;
use clawk_proto::MessageId;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::WEBHOOK;
use crate::adapter::{
    ButtonPress, ChannelAdapter, ChannelDisconnect, CodeBlock, FileSupport, HookReply, HookRequest,
    InboundPipeline, IngestOutcome, LengthUnit, MarkupFormat, OutboundMessage, PlatformCapabilities,
    QuestionMessage,
};
use crate::api::PlatformApi;
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::genuine::{constant_time_eq, hmac_sha256, is_hmac_valid, is_time_fresh, to_hex};
use crate::platform_kit::message_line::{FilesBy, MessageLine, PressSender, attached};
use crate::platform_kit::{listening, secret};
use crate::remote::RemoteFiles;

/// The longest that a request may wait for its answer, seconds; less than a request may take at the listener.
const MAX_WAIT_S: u64 = 55;
/// The longest text of one answer, characters.
const MAX_TEXT: usize = 1 << 20;
/// Requests that wait for their answers, and those of one conversation.
const MAX_WAITING: usize = 1_024;
const MAX_WAITING_EACH: usize = 64;
/// How long the receiver may take.
const PATIENCE: Duration = Duration::from_secs(30);
const SIGNATURE: HeaderName = HeaderName::from_static("x-clawk-signature");

/// A press, as the line protocol has it; everything else is a message.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PressBody {
    #[serde(rename = "type")]
    _type: String,
    #[serde(default)]
    #[expect(dead_code, reason = "a press is told apart by its question")]
    id: Option<String>,
    question: String,
    choice: String,
    sender: PressSender,
    conversation: String,
}

/// The channel.
pub(crate) struct WebhookAdapter {
    secret: clawk_secrets::Secret,
    /// Where answers go.
    api: Option<PlatformApi>,
    /// Where files lie: at any public host, and where answers go.
    files: RemoteFiles,
    /// Requests that wait, by conversation and the message's id.
    waiting: Mutex<HashMap<(String, String), oneshot::Sender<String>>>,
}

impl std::fmt::Debug for WebhookAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Webhook({:?})", self.api)
    }
}

impl WebhookAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        listening(parts)?;
        let env = parts.secrets.env();
        let api = config
            .base_url
            .as_deref()
            .map(|base| PlatformApi::new(base, env, PATIENCE));
        Ok(Self {
            secret: secret(channel, parts)?,
            api: api.transpose()?,
            files: RemoteFiles::public_hosts(config.base_url.as_deref(), env)?,
            waiting: Mutex::default(),
        })
    }

    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<(String, String), oneshot::Sender<String>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the request is from somebody who has the secret.
    fn is_genuine(&self, hook: &HookRequest) -> bool {
        let secret = self.secret.expose();
        if let Some(signature) = hook.header("x-clawk-signature") {
            let hex = signature.strip_prefix("sha256=");
            return hex.is_some_and(|hex| is_hmac_valid(hex, secret, &[&hook.body]));
        }
        let bearer = hook
            .header("authorization")
            .and_then(|value| value.strip_prefix("Bearer "));
        bearer.is_some_and(|token| constant_time_eq(token, secret))
    }

    async fn ingest_hook(&self, inlet: &InboundPipeline, hook: HookRequest) -> HookReply {
        if hook.method != Method::POST {
            return HookReply::refusal(405, "POST is wanted");
        }
        if !self.is_genuine(&hook) {
            return HookReply::refusal(401, "the signature or the token is not right");
        }
        if hook.headers.contains_key(http::header::CONTENT_ENCODING) {
            return HookReply::refusal(415, "an encoded body is not read");
        }
        let kind = hook.header("content-type").unwrap_or_default();
        if kind.split(';').next().unwrap_or_default().trim() != "application/json" {
            return HookReply::refusal(415, "a body of type `application/json` is wanted");
        }
        let wait = match wait_of(&hook.query) {
            Ok(wait) => wait,
            Err(reason) => return HookReply::refusal(400, reason),
        };
        let value: Value = match serde_json::from_slice(&hook.body) {
            Ok(value) => value,
            Err(_) => return HookReply::refusal(400, "the body is not JSON"),
        };
        if value.get("type").is_some_and(|kind| kind == "press") {
            return match serde_json::from_value::<PressBody>(value) {
                Ok(body) => {
                    let press = ButtonPress {
                        reason: None,
                        question: body.question,
                        choice: body.choice,
                        sender: body.sender.id(),
                        conversation: body.conversation,
                    };
                    HookReply::json(
                        202,
                        &json!({ "accepted": true, "told": inlet.handle_press(&press).await }),
                    )
                }
                Err(error) => HookReply::refusal(400, &format!("the body is wrong: {error}")),
            };
        }
        match serde_json::from_value::<MessageLine>(value) {
            Ok(message) => self.ingest_message(inlet, message, wait).await,
            Err(error) => HookReply::refusal(400, &format!("the body is wrong: {error}")),
        }
    }

    async fn ingest_message(
        &self,
        inlet: &InboundPipeline,
        message: MessageLine,
        wait: Option<Duration>,
    ) -> HookReply {
        if let Some(at) = &message.timestamp {
            match Timestamp::parse(at) {
                Ok(at) if is_time_fresh(at, inlet.clock().now()) => {}
                Ok(_) => {
                    return HookReply::refusal(401, "the message's `timestamp` is more than 5 minutes away");
                }
                Err(_) => return HookReply::refusal(400, "`timestamp` is not RFC 3339"),
            }
        }
        let key = (message.conversation.clone(), message.id.clone());
        let mut incoming = match message.into_platform_message(FilesBy::Url) {
            Ok(incoming) => incoming,
            Err(reason) => return HookReply::refusal(400, reason),
        };
        // Whoever posts here means the agent.
        incoming.mention = true;
        let answer = wait.map(|_| self.wait_for(&key));
        let taken = inlet.ingest_message(incoming).await;
        let reply = match taken {
            IngestOutcome::Accepted {
                message, duplicate, ..
            } => {
                if let (Some(wait), Some(Some(answer))) = (wait, answer) {
                    if duplicate {
                        retry_delivery(inlet, message).await;
                    }
                    if let Ok(Ok(text)) = tokio::time::timeout(wait, answer).await {
                        return HookReply::json(
                            200,
                            &json!({ "accepted": true, "duplicate": duplicate, "text": text }),
                        );
                    }
                }
                HookReply::json(202, &json!({ "accepted": true, "duplicate": duplicate }))
            }
            IngestOutcome::Ignored => HookReply::json(202, &json!({ "accepted": true, "duplicate": false })),
            IngestOutcome::Refused(reason) => HookReply::refusal(403, &reason),
            IngestOutcome::Later(_) => HookReply::refusal(503, "it could not be kept now; send it again"),
        };
        self.lock_waiting().remove(&key);
        reply
    }

    /// A place for the answer, before it can come.
    fn wait_for(&self, key: &(String, String)) -> Option<oneshot::Receiver<String>> {
        let mut waiting = self.lock_waiting();
        waiting.retain(|_, waits| !waits.is_closed());
        let of_one = waiting
            .keys()
            .filter(|(conversation, _)| *conversation == key.0)
            .count();
        if waiting.len() >= MAX_WAITING || of_one >= MAX_WAITING_EACH {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        waiting.insert(key.clone(), answer);
        Some(answered)
    }

    /// POSTs a line to `base_url`.
    async fn post_line(&self, line: &Value) -> Delivery {
        let Some(api) = &self.api else {
            return Delivery::Failed {
                reason: "nobody waits for it, and no `base_url` is configured".to_owned(),
            };
        };
        let body = line.to_string().into_bytes();
        let signature = format!(
            "sha256={}",
            to_hex(&hmac_sha256(self.secret.expose().as_bytes(), &[&body]))
        );
        let Ok(signature) = HeaderValue::from_str(&signature) else {
            return Delivery::Failed {
                reason: "no signature could be made".to_owned(),
            };
        };
        let sent = api
            .send_bytes(
                Method::POST,
                "",
                Some("application/json"),
                body,
                &[(SIGNATURE, signature)],
            )
            .await;
        match sent {
            Ok(answer) => answer.delivery_by_status(None, true, "from `base_url`"),
            Err(fault) => fault.into_delivery(),
        }
    }
}

/// An answer that nobody waited for is owed again.
async fn retry_delivery(inlet: &InboundPipeline, message: MessageId) {
    if let Err(error) = inlet.kernel().retry_delivery(message, "webhook").await {
        tracing::warn!(%error, "an answer could not be taken out of the outbox again");
    }
}

fn wait_of(query: &str) -> Result<Option<Duration>, &'static str> {
    let wrong = "`wait` is a whole number of seconds up to 60; nothing else may stand in the query";
    if query.is_empty() {
        return Ok(None);
    }
    let seconds: u64 = query
        .strip_prefix("wait=")
        .and_then(|value| value.parse().ok()) // silent-ok: said below
        .filter(|seconds| *seconds <= 60)
        .ok_or(wrong)?;
    Ok(Some(Duration::from_secs(seconds.min(MAX_WAIT_S))))
}

impl ChannelAdapter for WebhookAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            code: CodeBlock::Fence,
            idempotent: true,
            buttons: true,
            edits: self.api.is_some(),
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
            over.cancelled().await;
            ChannelDisconnect::temporary("the agent ends")
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let key = out.reply_to.clone().map(|id| (out.conversation.clone(), id));
            let waits = key.and_then(|key| self.lock_waiting().remove(&key));
            if let Some(waits) = waits
                && waits.send(out.markdown.clone()).is_ok()
            {
                return Delivery::Delivered { platform_id: None };
            }
            let line = json!({"type": "send", "out": out.id, "conversation": out.conversation, "reply_to": out.reply_to,
                "text": out.markdown, "attachments": attached(out)});
            self.post_line(&line).await
        })
    }

    fn edit_message<'a>(&'a self, of: &'a str, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            self.post_line(&json!({"type": "edit", "out": out.id, "of": of, "text": out.markdown}))
                .await
        })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let out = &asking.out;
            let choices: Vec<Value> = asking
                .choices
                .iter()
                .map(|(id, label)| json!({"id": id, "label": label}))
                .collect();
            let line = json!({"type": "ask", "out": out.id, "question": asking.question, "conversation": out.conversation,
                "text": out.markdown, "choices": choices});
            match self.post_line(&line).await {
                Delivery::Delivered { .. } => Delivery::Delivered {
                    platform_id: Some(out.id.clone()),
                },
                other => other,
            }
        })
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(self.files.get(at, HeaderMap::new(), max_bytes))
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(self.ingest_hook(inlet, hook))
    }
}

#[cfg(test)]
mod tests {
    use super::wait_of;

    #[test]
    fn a_wait_is_a_bounded_number_of_seconds() {
        assert_eq!(wait_of("").unwrap(), None);
        assert_eq!(wait_of("wait=5").unwrap().unwrap().as_secs(), 5);
        assert_eq!(wait_of("wait=60").unwrap().unwrap().as_secs(), 55);
        for query in ["wait=61", "wait=-1", "wait=x", "wait=5&x=1", "x"] {
            assert!(wait_of(query).is_err(), "{query}");
        }
    }
}
