//! `wechat`: an official account. Messages come as XML, encrypted where an AES key is set; answers leave by the customer-service API.
//!
//! Without a key nothing signs a body: whoever has seen one address of ours can forge messages. Secret and token stand in addresses of the platform's API,
//! so that no address is ever shown.

mod entry;
mod refusals;
mod xml;

use std::time::Duration;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::Secret;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::WECHAT;
use crate::adapter::{
    Attachment, AttachmentContent, ButtonPress, ChannelAdapter, ChannelDisconnect, FileSupport, HookReply,
    HookRequest, InboundPipeline, LengthUnit, OutFile, OutboundMessage, PlatformCapabilities,
    PlatformMessage, QuestionMessage, carried,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::envelope::decrypt_envelope;
use crate::form::MultipartForm;
use crate::genuine::{constant_time_eq, is_time_fresh, of_seconds, to_hex};
use crate::held::{DeferredDeliveries, SendAttempt};
use crate::platform_kit::{escaped, listening, secret, secret_named, setting, worded};
use crate::remote::RemoteFiles;
use crate::token::{NoToken, Tokens};

pub(crate) const VENDOR: &str = "https://api.weixin.qq.com";
/// Where a token is given for the app's id and secret.
pub(crate) const TOKEN_PATH: &str = "cgi-bin/stable_token";
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a text; the platform's limit is about 2048.
const MAX_TEXT: usize = 2_000;
/// Bytes of a picture that goes out.
const MAX_PICTURE: usize = 10 << 20;
/// Padding goes up to a whole key.
const BLOCK: usize = 32;
/// A token of which the platform says that it lapsed.
const STALE: [i64; 3] = [40_001, 40_014, 42_001];
/// Who we are, or where we are, is wrong.
const REFUSED: [i64; 4] = [40_013, 40_125, 40_164, 40_243];
/// The daily quota is used up: it comes back the next day, milliseconds.
const DAILY_MS: u64 = 3_600_000;
const MINUTE_MS: u64 = 60_000;
/// The key has 43 characters, whose last two bits count for nothing.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The channel.
#[derive(Debug)]
pub(crate) struct WechatAdapter {
    api: PlatformApi,
    app: String,
    secret: Secret,
    token: Secret,
    key: Option<WechatAesKey>,
    tokens: Tokens,
    held: DeferredDeliveries,
    files: RemoteFiles,
}

struct WechatAesKey([u8; 32]);

impl std::fmt::Debug for WechatAesKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// The parts of the query that are signed.
struct WechatSignedQuery {
    signature: String,
    msg_signature: String,
    timestamp: String,
    nonce: String,
    echostr: String,
}

/// The body of a request for a token. Without `force_refresh`, tokens that were given before stay valid.
pub(crate) fn token_request(app: &str, secret: &str) -> Value {
    json!({"grant_type": "client_credential", "appid": app, "secret": secret, "force_refresh": false})
}

impl WechatAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        if channel.transport != Transport::Webhook {
            return Err("`wechat` has the transport `webhook`".to_owned());
        }
        listening(parts)?;
        let key = match config.secrets.get("encoding_aes_key") {
            None => None,
            Some(_) => {
                let text = secret_named(config, parts, "encoding_aes_key")?;
                let bytes = LENIENT.decode(format!("{}=", text.expose().trim())).ok(); // silent-ok: said below
                let key = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok()); // silent-ok: said below
                Some(WechatAesKey(key.ok_or(
                    "`secrets.encoding_aes_key` is not a key of 43 characters",
                )?))
            }
        };
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        Ok(Self {
            api: PlatformApi::new(base, parts.secrets.env(), PATIENCE)?,
            app: setting(config, "app_id")?,
            secret: secret(channel, parts)?,
            token: secret_named(config, parts, "token")?,
            key,
            tokens: Tokens::default(),
            held: DeferredDeliveries::default(),
            files: RemoteFiles::new(base, parts.secrets.env(), &[])?,
        })
    }

    async fn access_token(&self) -> Result<String, NoToken> {
        let ask = || async {
            let body = token_request(&self.app, self.secret.expose().trim());
            let answer = self.api.post_json(TOKEN_PATH, &body).await?;
            let life = answer.body.get("expires_in").and_then(Value::as_u64);
            match (answer.text("/access_token"), life) {
                (Some(token), Some(life)) => Ok((token.to_owned(), life)),
                _ if REFUSED.contains(&error_code(&answer)) || STALE.contains(&error_code(&answer)) => {
                    Err(NoToken::Refused(format!(
                        "the platform refuses the app id or secret ({})",
                        error_text(&answer)
                    )))
                }
                _ => Err(NoToken::Later {
                    reason: error_text(&answer),
                    after_ms: answer.retry_after_ms(),
                }),
            }
        };
        self.tokens.get(ask).await
    }

    /// POST with a token that counts; a lapsed one is asked for anew once.
    async fn call(&self, path: &str, body: &Value) -> Result<PlatformResponse, PlatformFailure> {
        loop {
            let token = match self.access_token().await {
                Ok(token) => token,
                Err(NoToken::Refused(reason) | NoToken::Later { reason, .. }) => {
                    return Err(PlatformFailure::NotSent(reason));
                }
            };
            let path = format!("{path}?access_token={}", escaped(&token));
            let answer = self.api.post_json(&path, body).await?;
            if !STALE.contains(&error_code(&answer)) || !self.tokens.refuse_token(&token).await {
                return Ok(answer);
            }
        }
    }

    fn delivery_from_response(&self, attempt: SendAttempt<'_>, answer: &PlatformResponse) -> Delivery {
        let reason = error_text(answer);
        let later = |ms: Option<u64>| Delivery::Retry {
            after_ms: answer.retry_after_ms().or(ms),
            reason: reason.clone(),
        };
        match error_code(answer) {
            0 => answer.delivery_by_status(None, false, &reason),
            stale if STALE.contains(&stale) => self
                .tokens
                .lost
                .refused_delivery("the platform refuses every token that it gives"),
            -1 => later(None),
            45_009 => later(Some(DAILY_MS)),
            45_011 => later(Some(MINUTE_MS)),
            45_015 => attempt.defer_forbidden("the 48 hours after their last one are over"),
            45_047 => attempt.defer_forbidden("all the answers to their last one were used up"),
            code => match refusals::wechat_refusal(code).delivery_after(None, &format!("{code}: {reason}")) {
                Some(delivery) => delivery,
                None if answer.status.is_success() => Delivery::Failed {
                    reason: reason.clone(),
                },
                None => answer.delivery_by_status(None, false, &reason),
            },
        }
    }

    async fn post_message(&self, conversation: &str, kind: &str, content: Value) -> Delivery {
        let mut body = json!({"touser": conversation, "msgtype": kind});
        if let Some(body) = body.as_object_mut() {
            body.insert(kind.to_owned(), content);
        }
        let attempt = self.held.begin_attempt(conversation);
        match self.call("cgi-bin/message/custom/send", &body).await {
            Ok(answer) => self.delivery_from_response(attempt, &answer),
            Err(fault) => fault.into_delivery(),
        }
    }

    /// SHA-1 over the sorted parts.
    fn sha1_signature(&self, parts: &[&str]) -> String {
        let mut sorted: Vec<&str> = parts.to_vec();
        sorted.push(self.token.expose().trim());
        sorted.sort_unstable_by_key(|part| part.as_bytes());
        to_hex(&Sha1::digest(sorted.concat().as_bytes()))
    }

    /// The message's XML, once it is known to be the platform's. `None` is told as one refusal.
    fn verify_message(
        &self,
        inlet: &InboundPipeline,
        query: &WechatSignedQuery,
        body: &[u8],
    ) -> Option<String> {
        if !of_seconds(&query.timestamp).is_some_and(|at| is_time_fresh(at, inlet.clock().now())) {
            return None;
        }
        let text = std::str::from_utf8(body).ok()?; // silent-ok: told as one refusal
        let Some(key) = &self.key else {
            let wanted = self.sha1_signature(&[&query.timestamp, &query.nonce]);
            return constant_time_eq(&query.signature, &wanted).then(|| text.to_owned());
        };
        // What is signed is the encrypted text alone: it is cut out before anything is parsed.
        let sealed = text.split_once("<Encrypt>")?.1.split_once("</Encrypt>")?.0.trim();
        let sealed = sealed
            .strip_prefix("<![CDATA[")
            .and_then(|data| data.strip_suffix("]]>"))
            .unwrap_or(sealed);
        let wanted = self.sha1_signature(&[&query.timestamp, &query.nonce, sealed]);
        if !constant_time_eq(&query.msg_signature, &wanted) {
            return None;
        }
        self.decrypt_message(key, sealed)
    }

    /// Sixteen bytes of noise, the length, the text, the app's id.
    fn decrypt_message(&self, key: &WechatAesKey, sealed: &str) -> Option<String> {
        let sealed = STANDARD.decode(sealed).ok()?; // silent-ok: told as one refusal
        let iv = key.0.first_chunk::<16>()?;
        let plain = decrypt_envelope(&key.0, iv, &sealed, BLOCK)?;
        let (_, rest) = plain.split_first_chunk::<16>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?; // silent-ok: told as one refusal
        let (text, app) = rest.split_at_checked(length)?;
        if app != self.app.as_bytes() {
            return None;
        }
        String::from_utf8(text.to_vec()).ok() // silent-ok: told as one refusal
    }

    /// `false`: it is not kept and must come again.
    async fn ingest_message(&self, inlet: &InboundPipeline, xml: &str) -> Result<bool, &'static str> {
        let Some(mut message) = xml::read(xml) else {
            return Err("the body is not a message");
        };
        let mut field = |name: &str| message.remove(name).unwrap_or_default();
        let (sender, kind) = (field("FromUserName"), field("MsgType"));
        if sender.is_empty() {
            return Err("the body is not a message");
        }
        if let Some((question, choice)) = carried(&field("bizmsgmenuid")) {
            let press = ButtonPress {
                reason: None,
                question: question.to_owned(),
                choice: choice.to_owned(),
                sender: sender.clone(),
                conversation: sender.clone(),
            };
            inlet.press_and_say(&press).await;
            self.held.release_deferred(inlet, &sender).await;
            return Ok(true);
        }
        let (text, attachments) = match kind.as_str() {
            "text" => (field("Content"), Vec::new()),
            "image" | "voice" | "video" | "shortvideo" => {
                let format = field("Format");
                let attachment = Attachment {
                    name: kind.clone(),
                    media_type: match kind.as_str() {
                        "image" => "image/jpeg".to_owned(),
                        _ if format.is_empty() => kind.clone(),
                        _ => format!("audio/{format}"),
                    },
                    size: None,
                    content: AttachmentContent::At(field("MediaId")),
                };
                (field("Recognition"), vec![attachment])
            }
            "location" => {
                // silent-ok: then the place has its name alone
                let number = |text: String| text.parse::<f64>().ok();
                let at = number(field("Location_X")).zip(number(field("Location_Y")));
                (worded::place_line(Some(&field("Label")), None, at), Vec::new())
            }
            "link" => {
                let told = [worded::item_line("a link", &field("Title")), field("Url")];
                (told.join("\n"), Vec::new())
            }
            // Events: nobody speaks.
            _ => return Ok(true),
        };
        let id = field("MsgId");
        if id.is_empty() || (text.is_empty() && attachments.is_empty()) {
            return Ok(true);
        }
        let incoming = PlatformMessage {
            ids: vec![id],
            conversation: sender.clone(),
            direct: true,
            mention: false,
            sender: Some(sender.clone()),
            sender_name: None,
            text,
            attachments,
            context: MessageContext::default(),
            answers: None,
            remembered_days: None,
        };
        let settled = inlet.ingest_message(incoming).await.is_settled();
        if settled {
            self.held.release_deferred(inlet, &sender).await;
        }
        Ok(settled)
    }
}

fn read(query: &str) -> WechatSignedQuery {
    let url = Url::parse(&format!("http://query.invalid/?{query}")).ok(); // silent-ok: then nothing is signed
    let given = |name: &str| {
        let pairs = url.as_ref().map(|url| url.query_pairs());
        let mut all = pairs.into_iter().flatten().filter(|(key, _)| key == name);
        let first = all.next().map(|(_, value)| value.into_owned());
        // What stands there twice is nothing.
        first.filter(|_| all.next().is_none()).unwrap_or_default()
    };
    WechatSignedQuery {
        signature: given("signature"),
        msg_signature: given("msg_signature"),
        timestamp: given("timestamp"),
        nonce: given("nonce"),
        echostr: given("echostr"),
    }
}

fn error_code(answer: &PlatformResponse) -> i64 {
    let code = answer.body.get("errcode").and_then(Value::as_i64);
    code.unwrap_or(0)
}

fn error_text(answer: &PlatformResponse) -> String {
    bounded_line(&format!(
        "{} {}",
        error_code(answer),
        answer.text("/errmsg").unwrap_or_default()
    ))
}

impl ChannelAdapter for WechatAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            buttons: true,
            typing: true,
            files: FileSupport::Beside,
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Bytes)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(async move {
            self.tokens.lost.clear_refusal();
            if let Err(no) = self.access_token().await {
                return no.into_disconnect();
            }
            if self.key.is_none() {
                tracing::warn!(channel = %inlet.channel().name,
                    "without `secrets.encoding_aes_key` no signature covers a message: whoever knows the address can forge one");
            }
            self.held.read(inlet).await;
            inlet.report_ready();
            tokio::select! {
                () = over.cancelled() => ChannelDisconnect::temporary("the agent ends"),
                ended = self.tokens.lost.wait_refusal() => ended,
            }
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(self.post_message(&out.conversation, "text", json!({"content": out.text})))
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            if !file.is_picture() || file.data.len() > MAX_PICTURE {
                return Delivery::Failed {
                    reason: "the platform takes pictures (PNG, JPEG) up to 10 MB and no other files"
                        .to_owned(),
                };
            }
            let token = match self.access_token().await {
                Ok(token) => token,
                Err(no) => return PlatformFailure::NotSent(no.into_disconnect().reason).into_delivery(),
            };
            let form = match MultipartForm::new() {
                Ok(form) => form.file("media", file),
                Err(reason) => return PlatformFailure::NotSent(reason).into_delivery(),
            };
            let path = format!("cgi-bin/media/upload?access_token={}&type=image", escaped(&token));
            let attempt = self.held.begin_attempt(&out.conversation);
            let answer = match self.api.upload_form(&path, form, &[]).await {
                Ok(answer) => answer,
                Err(fault) => return fault.not_uploaded(),
            };
            match answer.text("/media_id") {
                Some(id) => {
                    self.post_message(&out.conversation, "image", json!({ "media_id": id }))
                        .await
                }
                None if error_code(&answer) == 0 => answer.not_uploaded("it has no id"),
                None => match self.delivery_from_response(attempt, &answer) {
                    Delivery::Unknown { reason } => Delivery::Retry {
                        after_ms: None,
                        reason,
                    },
                    other => other,
                },
            }
        })
    }

    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let out = &asking.out;
            if asking.choices.is_empty() {
                return self.send_message(out).await;
            }
            let item =
                |(id, label): &(String, String)| json!({"id": asking.button_data(id), "content": label});
            let list: Vec<Value> = asking.choices.iter().map(item).collect();
            let menu = json!({"head_content": out.text, "list": list, "tail_content": ""});
            match self.post_message(&out.conversation, "msgmenu", menu).await {
                // Not every account has menus; the text says how to answer in words.
                Delivery::Failed { .. } => self.send_message(out).await,
                other => other,
            }
        })
    }

    fn show_typing<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let body = json!({"touser": conversation, "command": "Typing"});
            if let Err(fault) = self.call("cgi-bin/message/custom/typing", &body).await {
                tracing::debug!(reason = fault.reason(), "typing could not be shown");
            }
        })
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let token = self
                .access_token()
                .await
                .map_err(|no| no.into_disconnect().reason)?;
            let path = format!(
                "cgi-bin/media/get?access_token={}&media_id={}",
                escaped(&token),
                escaped(at)
            );
            let url = self.api.endpoint_url(&path).map_err(PlatformFailure::reason)?;
            let bytes = self.files.get(url.as_str(), HeaderMap::new(), max_bytes).await?;
            // Errors are told with 200, too.
            if bytes.starts_with(b"{") {
                return Err("the platform does not have the file".to_owned());
            }
            Ok(bytes)
        })
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            let query = read(&hook.query);
            if hook.method == Method::GET {
                let wanted = self.sha1_signature(&[&query.timestamp, &query.nonce]);
                let plain = query.echostr.len() <= 256
                    && query
                        .echostr
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"-_+/=".contains(&byte));
                if !constant_time_eq(&query.signature, &wanted) || !plain || query.echostr.is_empty() {
                    return HookReply::refusal(403, "the signature is not right");
                }
                return HookReply {
                    status: 200,
                    content_type: Some("text/plain"),
                    body: query.echostr,
                };
            }
            if hook.method != Method::POST {
                return HookReply::refusal(405, "GET or POST is wanted");
            }
            let Some(xml) = self.verify_message(inlet, &query, &hook.body) else {
                return HookReply::refusal(401, "the request is not the platform's");
            };
            match self.ingest_message(inlet, &xml).await {
                Ok(true) => HookReply {
                    status: 200,
                    content_type: Some("text/plain"),
                    body: "success".to_owned(),
                },
                Ok(false) => HookReply::refusal(503, "it could not be kept now"),
                Err(reason) => HookReply::refusal(400, reason),
            }
        })
    }
}
