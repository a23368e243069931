//! `dingtalk`: Stream (`websocket`), or HTTP callbacks (`webhook`), whose signature does not cover the body. Answers leave by the robot's API.

mod entry;
mod refusals;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::{EnvironmentSource, Secret};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::DINGTALK;
use self::refusals::{dingtalk, dingtalk_upload};
use crate::adapter::{
    Attachment, AttachmentContent as Place, ChannelAdapter, ChannelDisconnect, CodeBlock, FileSupport,
    HookReply, HookRequest, InboundPipeline, LengthUnit, MarkupFormat, OutFile, OutboundMessage,
    PlatformCapabilities, PlatformMessage,
};
use crate::api::{PlatformApi, PlatformFailure, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::form::MultipartForm;
use crate::genuine::{constant_time_eq, hmac_sha256, is_time_fresh};
use crate::platform_kit::refusals::MessageRefusal;
use crate::platform_kit::{escaped, listening, own_host, secret, setting};
use crate::remote::RemoteFiles;
use crate::socket::{Socket, SocketMessage};
use crate::token::{NoToken, Tokens};

pub(crate) const VENDOR: &str = "https://api.dingtalk.com";
/// Where a token is given for the app's id and secret.
pub(crate) const TOKEN_PATH: &str = "v1.0/oauth2/accessToken";
const HOST: &str = "dingtalk.com";
/// Where files are handed in; `base_url` stands for both.
const UPLOADS: &str = "https://oapi.dingtalk.com";
/// Bytes of a file that goes out.
const MAX_FILE: usize = 20 << 20;
/// Where files lie.
const FILES: [&str; 2] = ["dingtalk.com", "aliyuncs.com"];
const PATIENCE: Duration = Duration::from_secs(30);
/// Characters of one message.
const MAX_TEXT: usize = 4_500;
/// Characters of a message's title, which is what a notification shows.
const MAX_TITLE: usize = 30;
const TOKEN: HeaderName = HeaderName::from_static("x-acs-dingtalk-access-token");
const TOPIC: &str = "/v1.0/im/bot/messages/get";
/// The platform pings; silence for so long is a dead connection.
const SILENCE: Duration = Duration::from_secs(120);
/// A group's id as a conversation; a person's is their own id, which has no colon.
const GROUP: &str = "group:";

#[derive(Debug, Deserialize)]
struct DingtalkFrame {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    headers: Headers,
    #[serde(default)]
    data: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Headers {
    message_id: String,
    topic: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DingtalkMessage {
    conversation_id: String,
    conversation_type: String,
    msg_id: String,
    sender_id: String,
    #[serde(default)]
    sender_staff_id: Option<String>,
    #[serde(default)]
    sender_nick: Option<String>,
    #[serde(default)]
    is_in_at_list: bool,
    msgtype: String,
    #[serde(default)]
    text: Option<DingtalkText>,
    #[serde(default)]
    content: Option<DingtalkMessageContent>,
}

#[derive(Debug, Deserialize)]
struct DingtalkText {
    #[serde(default)]
    content: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DingtalkMessageContent {
    rich_text: Vec<RichPart>,
    file_name: Option<String>,
    download_code: String,
    recognition: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RichPart {
    #[serde(default)]
    text: Option<String>,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct DingtalkAdapter {
    api: PlatformApi,
    base: Url,
    client: String,
    robot: String,
    secret: Secret,
    /// Of Stream.
    env: Option<Box<EnvironmentSource>>,
    tokens: Tokens,
    files: RemoteFiles,
    uploads: PlatformApi,
}

impl DingtalkAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let env = parts.secrets.env().clone();
        let base = config.base_url.as_deref().unwrap_or(VENDOR);
        let client = setting(config, "client_id")?;
        let stream = match channel.transport {
            Transport::Websocket => Some(Box::new(env.clone())),
            Transport::Webhook => {
                listening(parts)?;
                None
            }
            Transport::Polling | Transport::Stdio => {
                return Err("`dingtalk` has the transports `websocket` and `webhook`".to_owned());
            }
        };
        Ok(Self {
            api: PlatformApi::new(base, &env, PATIENCE)?,
            base: Url::parse(base).map_err(|error| error.to_string())?,
            robot: config.settings.get("robot_code").unwrap_or(&client).clone(),
            client,
            secret: secret(channel, parts)?,
            env: stream,
            tokens: Tokens::default(),
            files: RemoteFiles::new(base, &env, &FILES)?,
            uploads: PlatformApi::new(config.base_url.as_deref().unwrap_or(UPLOADS), &env, PATIENCE)?,
        })
    }

    async fn access_token(&self) -> Result<String, NoToken> {
        let ask = || async {
            let body = json!({"appKey": self.client, "appSecret": self.secret.expose().trim()});
            let answer = self.api.post_json(TOKEN_PATH, &body).await?;
            let life = answer.body.get("expireIn").and_then(Value::as_u64);
            match (answer.text("/accessToken"), life, answer.status.as_u16()) {
                (Some(token), Some(life), 200) => Ok((token.to_owned(), life)),
                (_, _, 429 | 500..=599) => Err(NoToken::Later {
                    reason: error_text(&answer),
                    after_ms: answer.retry_after_ms(),
                }),
                _ if matches!(refusal(&answer), MessageRefusal::Later(_)) => Err(NoToken::Later {
                    reason: error_text(&answer),
                    after_ms: answer.retry_after_ms(),
                }),
                _ => Err(NoToken::Refused(format!(
                    "the platform refuses the client id or secret ({})",
                    error_text(&answer)
                ))),
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
            let mut value = HeaderValue::from_str(&token)
                .map_err(|_| PlatformFailure::NotSent("the token can't stand in a header".to_owned()))?; // silent-ok: said
            value.set_sensitive(true);
            let bytes = body.to_string().into_bytes();
            let json = Some("application/json");
            let answer = self
                .api
                .send_bytes(Method::POST, path, json, bytes, &[(TOKEN, value)])
                .await?;
            if !is_stale(&answer) || !self.tokens.refuse_token(&token).await {
                return Ok(answer);
            }
        }
    }

    async fn listen(
        &self,
        inlet: &InboundPipeline,
        over: &CancellationToken,
    ) -> Result<(), ChannelDisconnect> {
        self.tokens.lost.clear_refusal();
        self.access_token().await.map_err(NoToken::into_disconnect)?;
        let Some(env) = &self.env else {
            inlet.report_ready();
            over.cancelled().await;
            return Ok(());
        };
        let subscriptions = json!([{"type": "CALLBACK", "topic": TOPIC}]);
        let body = json!({"clientId": self.client, "clientSecret": self.secret.expose().trim(),
            "subscriptions": subscriptions, "ua": "clawk"});
        let opened = self.api.post_json("v1.0/gateway/connections/open", &body).await;
        let opened = opened.map_err(|fault| ChannelDisconnect::temporary(fault.reason()))?;
        let (Some(endpoint), Some(ticket)) = (opened.text("/endpoint"), opened.text("/ticket")) else {
            let told = format!("the platform opens no connection ({})", error_text(&opened));
            return Err(match opened.status.as_u16() {
                400 | 401 => ChannelDisconnect::fatal(told),
                _ => ChannelDisconnect {
                    after_ms: opened.retry_after_ms(),
                    ..ChannelDisconnect::temporary(told)
                },
            });
        };
        let mut url = own_host(endpoint, &self.base, HOST).map_err(ChannelDisconnect::temporary)?;
        url.set_query(Some(&format!("ticket={}", escaped(ticket))));
        let socket = Socket::connect(&url, env)
            .await
            .map_err(ChannelDisconnect::temporary)?;
        inlet.report_ready();
        loop {
            let heard = tokio::select! {
                heard = socket.next(SILENCE) => heard.map_err(ChannelDisconnect::temporary)?,
                () = over.cancelled() => {
                    socket.close_with_code(1000).await;
                    return Ok(());
                }
            };
            match heard {
                SocketMessage::Text(text) => self.handle_frame(inlet, &socket, &text).await?,
                SocketMessage::Ping | SocketMessage::Bytes(_) => {}
                SocketMessage::Closed(..) => {
                    return Err(ChannelDisconnect::temporary("the platform ended the connection"));
                }
            }
        }
    }

    async fn handle_frame(
        &self,
        inlet: &InboundPipeline,
        socket: &Socket,
        text: &str,
    ) -> Result<(), ChannelDisconnect> {
        let Ok(frame) = serde_json::from_str::<DingtalkFrame>(text) else {
            tracing::warn!("a frame can't be read and is passed over");
            return Ok(());
        };
        let data = match (frame.kind.as_str(), frame.headers.topic.as_str()) {
            ("SYSTEM", "ping") => frame.data.clone(),
            ("SYSTEM", "disconnect") => {
                return Err(ChannelDisconnect {
                    after_ms: Some(0),
                    ..ChannelDisconnect::temporary("the platform wants a new connection")
                });
            }
            ("CALLBACK", TOPIC) => {
                match serde_json::from_str::<DingtalkMessage>(&frame.data) {
                    Ok(message) => {
                        if !self
                            .ingest_message(inlet, message, &frame.headers.message_id)
                            .await
                        {
                            return Err(ChannelDisconnect::temporary("a message could not be kept"));
                        }
                    }
                    Err(_) => tracing::warn!("a message can't be read and is passed over"),
                }
                json!({"response": null}).to_string()
            }
            ("EVENT", _) => json!({"status": "SUCCESS", "message": "OK"}).to_string(),
            _ => json!({"response": null}).to_string(),
        };
        let ack = json!({"code": 200, "message": "OK", "data": data,
            "headers": {"messageId": frame.headers.message_id, "contentType": "application/json"}});
        socket
            .send_text(ack.to_string())
            .await
            .map_err(ChannelDisconnect::temporary)
    }

    /// `false`: it is not kept and must come again. `push` is Stream's id of the frame.
    async fn ingest_message(&self, inlet: &InboundPipeline, message: DingtalkMessage, push: &str) -> bool {
        // The encrypted id is all there is of people of other organizations.
        let staff = message.sender_staff_id.filter(|id| !id.is_empty());
        let sender = staff.unwrap_or(message.sender_id);
        let direct = message.conversation_type == "1";
        let content = message.content.unwrap_or_default();
        let mut text = message.text.map(|text| text.content).unwrap_or_default();
        let mut attachments = Vec::new();
        match message.msgtype.as_str() {
            "text" => {}
            "richText" => {
                let parts = content.rich_text.into_iter().filter_map(|part| part.text);
                text = parts.collect::<Vec<_>>().join("\n");
            }
            kind => {
                text = content.recognition.unwrap_or_default();
                attachments.push(Attachment {
                    name: content.file_name.unwrap_or_else(|| kind.to_owned()),
                    media_type: if kind == "picture" { "image/jpeg" } else { kind }.to_owned(),
                    size: None,
                    content: Place::At(content.download_code),
                });
            }
        }
        let text = text.trim().to_owned();
        if text.is_empty() && attachments.is_empty() {
            return true;
        }
        let incoming = PlatformMessage {
            ids: [message.msg_id.as_str(), push]
                .into_iter()
                .filter(|id| !id.is_empty())
                .map(str::to_owned)
                .collect(),
            conversation: if direct {
                sender.clone()
            } else {
                format!("{GROUP}{}", message.conversation_id)
            },
            direct,
            mention: message.is_in_at_list,
            sender: Some(sender),
            sender_name: message.sender_nick,
            text,
            attachments,
            context: MessageContext::default(),
            answers: None,
            remembered_days: None,
        };
        inlet.ingest_message(incoming).await.is_settled()
    }

    async fn post_message(&self, out: &OutboundMessage, key: &str, param: &Value) -> Delivery {
        let param = param.to_string();
        let (path, body) = match out.conversation.strip_prefix(GROUP) {
            Some(group) => (
                "v1.0/robot/groupMessages/send",
                json!({"robotCode": self.robot, "openConversationId": group, "msgKey": key, "msgParam": param}),
            ),
            None => (
                "v1.0/robot/oToMessages/batchSend",
                json!({"robotCode": self.robot, "userIds": [out.conversation], "msgKey": key, "msgParam": param}),
            ),
        };
        match self.call(path, &body).await {
            Ok(answer) => self.delivery_from_response(&answer),
            Err(fault) => fault.into_delivery(),
        }
    }

    /// The platform's id of a file.
    async fn upload_file(&self, file: &OutFile) -> Result<String, Delivery> {
        loop {
            let token = match self.access_token().await {
                Ok(token) => token,
                Err(no) => return Err(PlatformFailure::NotSent(no.into_disconnect().reason).into_delivery()),
            };
            let form =
                MultipartForm::new().map_err(|reason| PlatformFailure::NotSent(reason).into_delivery())?;
            let path = format!("media/upload?access_token={}&type=file", escaped(&token));
            let sent = self
                .uploads
                .upload_form(&path, form.file("media", file), &[])
                .await;
            let answer = sent.map_err(PlatformFailure::not_uploaded)?;
            if let Some(id) = answer.text("/media_id") {
                return Ok(id.to_owned());
            }
            let code = answer.body.get("errcode").and_then(Value::as_i64).unwrap_or(0);
            let why = answer.text("/errmsg").unwrap_or_default();
            return Err(match dingtalk_upload(code) {
                MessageRefusal::StaleToken if self.tokens.refuse_token(&token).await => continue,
                MessageRefusal::StaleToken => self.lost(),
                refusal => refusal
                    .delivery_after(answer.retry_after_ms(), &format!("its upload: {code} {why}"))
                    .unwrap_or_else(|| answer.not_uploaded(why)),
            });
        }
    }

    /// The platform refuses every token: the channel ends, and the message waits.
    fn lost(&self) -> Delivery {
        self.tokens
            .lost
            .refused_delivery("the platform refuses every token that it gives")
    }

    fn delivery_from_response(&self, answer: &PlatformResponse) -> Delivery {
        let listed = |name: &str| {
            let list = answer.body.get(name).and_then(Value::as_array);
            list.is_some_and(|list| !list.is_empty())
        };
        let reason = error_text(answer);
        if is_stale(answer) {
            return self.lost();
        }
        if let Some(delivery) = refusal(answer).delivery_by_status(answer, &reason) {
            return delivery;
        }
        if answer.status.is_success() && listed("flowControlledStaffIdList") {
            return Delivery::Retry {
                after_ms: answer.retry_after_ms(),
                reason: "the platform limits messages to this person".to_owned(),
            };
        }
        if answer.status.is_success() && listed("filteredStaffIdList") {
            return Delivery::Failed {
                reason: "the platform chose not to deliver it".to_owned(),
            };
        }
        if answer.status.is_success() && listed("invalidStaffIdList") {
            return Delivery::Failed {
                reason: "the platform knows no such person".to_owned(),
            };
        }
        answer.delivery_by_status(answer.text("/processQueryKey").map(str::to_owned), false, &reason)
    }

    fn has_valid_signature(&self, inlet: &InboundPipeline, hook: &HookRequest) -> bool {
        let at = hook.header("timestamp").unwrap_or_default();
        let given = hook.header("sign").unwrap_or_default();
        let secret = self.secret.expose().trim().as_bytes();
        let wanted = STANDARD.encode(hmac_sha256(secret, &[at.as_bytes(), b"\n", secret]));
        // silent-ok: what is no number is no time
        let at = at
            .parse::<i64>()
            .ok()
            .and_then(|ms| ms.checked_mul(1_000))
            .map(Timestamp);
        constant_time_eq(given, &wanted) && at.is_some_and(|at| is_time_fresh(at, inlet.clock().now()))
    }
}

/// What an answer's code means. Limits are told with 403 or 429. A success has no code, and a server's fault says nothing of the message.
fn refusal(answer: &PlatformResponse) -> MessageRefusal {
    let status = answer.status.as_u16();
    match dingtalk(answer.text("/code").unwrap_or_default()) {
        _ if !(400..500).contains(&status) => MessageRefusal::Other,
        MessageRefusal::Other if status == 429 => MessageRefusal::Later(None),
        known => known,
    }
}

fn is_stale(answer: &PlatformResponse) -> bool {
    answer.status.as_u16() == 401 || refusal(answer) == MessageRefusal::StaleToken
}

fn error_text(answer: &PlatformResponse) -> String {
    bounded_line(&format!(
        "{} {}",
        answer.text("/code").unwrap_or_default(),
        answer.text("/message").unwrap_or_default()
    ))
}

impl ChannelAdapter for DingtalkAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            code: CodeBlock::ThreeBackticks,
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
            tokio::select! {
                ended = self.listen(inlet, over) => match ended {
                    Ok(()) => ChannelDisconnect::temporary("the agent ends"),
                    Err(ended) => ended,
                },
                ended = self.tokens.lost.wait_refusal() => ended,
            }
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let first = out.markdown.lines().find(|line| !line.trim().is_empty());
            let title: String = first.unwrap_or("answer").chars().take(MAX_TITLE).collect();
            let param = json!({"title": title, "text": out.markdown});
            self.post_message(out, "sampleMarkdown", &param).await
        })
    }

    fn send_file<'a>(&'a self, out: &'a OutboundMessage, file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            if file.data.len() > MAX_FILE {
                return Delivery::Failed {
                    reason: "the platform takes files up to 20 MB".to_owned(),
                };
            }
            let id = match self.upload_file(file).await {
                Ok(id) => id,
                Err(delivery) => return delivery,
            };
            let kind = file.name.rsplit_once('.').map_or("file", |(_, end)| end);
            let param = json!({"mediaId": id, "fileName": file.name, "fileType": kind});
            self.post_message(out, "sampleFile", &param).await
        })
    }

    fn fetch_attachment<'a>(&'a self, at: &'a str, max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let body = json!({"downloadCode": at, "robotCode": self.robot});
            let answer = self.call("v1.0/robot/messageFiles/download", &body).await;
            let answer = answer.map_err(PlatformFailure::reason)?;
            match answer.text("/downloadUrl") {
                // The token is for the API alone.
                Some(url) => self.files.get(url, HeaderMap::new(), max_bytes).await,
                None => Err(error_text(&answer)),
            }
        })
    }

    fn receive_hook<'a>(&'a self, inlet: &'a InboundPipeline, hook: HookRequest) -> BoxFuture<'a, HookReply> {
        Box::pin(async move {
            if self.env.is_some() {
                return HookReply::refusal(404, "this channel takes no requests");
            }
            if hook.method != Method::POST {
                return HookReply::refusal(405, "POST is wanted");
            }
            if !self.has_valid_signature(inlet, &hook) {
                return HookReply::refusal(401, "the signature is not right, or too old");
            }
            let Ok(message) = serde_json::from_slice::<DingtalkMessage>(&hook.body) else {
                return HookReply::refusal(400, "the body is not a message");
            };
            if self.ingest_message(inlet, message, "").await {
                HookReply::empty(200)
            } else {
                HookReply::refusal(503, "it could not be kept now")
            }
        })
    }
}
