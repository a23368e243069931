//! The agent's channels: built from the manifest and `clawk.toml`, started with the kernel, and reachable from the host's entry
//! points.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::state::kept::StateDir;
use anyhow::{Result, anyhow};
use clawk_channels::{ChannelDependencies, Channels, HookRequest, NotDone, OutFile, ScheduleRequest};
use clawk_kernel::Kernel;
use clawk_kernel::call::Permit;
use clawk_kernel::ports::{BoxFuture, Delivery, RunError, RunOutcome, ToolDescription};
use clawk_kernel::time::SystemClock;
use clawk_manifest::model::ChannelType;
use clawk_plan::ObtainedEnforcement;
use clawk_proto::MessageId;
use clawk_proto::content::ContentBlock;
use clawk_sandbox::Spec;
use clawk_server::{HookBody, HookSocket};
use clawk_tools::builtin::MAX_SENT_FILES;
use clawk_tools::{
    AskUserHandler, ExternalBuiltin, OperatorProgram, UserAnswer, UserQuestion, load_file, program_spec,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::ResolvedConfig;

impl ResolvedConfig {
    /// Returns whether the manifest has a channel other than the terminal.
    pub(crate) fn has_channels(&self) -> bool {
        let channels = &self.manifest.channels;
        channels.iter().any(|channel| channel.kind != ChannelType::Cli)
    }

    /// Returns the faults of `[channels]` and `[approvals]`.
    pub(super) fn channel_faults(&self) -> Vec<String> {
        let settings = &self.config.settings;
        let mut faults = clawk_channels::faults(
            &settings.channels,
            &self.manifest.channels,
            &self.manifest.providers,
        );
        for target in &settings.approvals.to {
            let known = target.split_once(':').is_some_and(|(channel, conversation)| {
                !conversation.is_empty() && self.manifest.channels.iter().any(|known| known.name == channel)
            });
            if !known {
                faults.push(format!(
                    "`[approvals] to`: `{target}` is not `CHANNEL:CONVERSATION` with a channel of the manifest"
                ));
            }
        }
        faults
    }

    /// Starts the channels of a running agent.
    ///
    /// # Errors
    /// The journal can't be read. A fault of a single channel is part of that channel's state.
    pub(crate) async fn start_channels(
        &self,
        kernel: Kernel,
        state: &StateDir,
        listening: bool,
    ) -> Result<Channels> {
        let parts = ChannelDependencies {
            kernel,
            clock: Arc::new(SystemClock::default()),
            secrets: self.resolver.clone(),
            configs: self.config.settings.channels.clone(),
            approvals: self.config.settings.approvals.to.clone(),
            folder: state.path().join("channels"),
            vault: state.vault().cloned(),
            workdir: Some(self.workdir.clone()),
            launcher: self.launcher(Some(&state.path().join("cache"))),
            programs: self.channel_programs(state)?,
            listening,
        };
        let channels = Channels::start(parts).await?;
        *self.connected.lock().unwrap_or_else(PoisonError::into_inner) = Some(channels.clone());
        Ok(channels)
    }

    /// Returns the handler by which `ask-user` asks the person in a channel's conversation.
    pub(crate) fn ask_by_channel(&self) -> AskUserHandler {
        let connected = Arc::clone(&self.connected);
        Arc::new(move |question: UserQuestion| {
            let channels = at_hand(&connected);
            Box::pin(async move {
                let Some(channels) = channels else {
                    return UserAnswer::Nobody;
                };
                let answer = channels
                    .ask_person(question.session, &question.question, &question.options)
                    .await;
                answer.map_or(UserAnswer::Nobody, UserAnswer::Said)
            })
        })
    }

    /// Returns the built-in `channel-send`.
    pub(super) fn channel_send(&self) -> Arc<dyn ExternalBuiltin> {
        Arc::new(ChannelSendTool(Arc::clone(&self.connected)))
    }

    /// Returns the built-in `schedule`.
    pub(super) fn schedule_builtin(&self) -> Arc<dyn ExternalBuiltin> {
        Arc::new(Schedule(Arc::clone(&self.connected)))
    }

    /// Returns the programs of `custom` channels, each with its sandbox.
    fn channel_programs(&self, state: &StateDir) -> Result<BTreeMap<String, Result<Spec, String>>> {
        let host = self.tool_host(None, Some(state.path()));
        let host = host.map_err(|faults| anyhow!("{}", faults.join("; ")))?;
        let mut programs = BTreeMap::new();
        for channel in &self.manifest.channels {
            let Some(config) = self.config.settings.channels.get(&channel.name) else {
                continue;
            };
            if channel.kind != ChannelType::Custom || config.command.is_empty() {
                continue;
            }
            let given = OperatorProgram {
                name: &channel.name,
                command: &config.command,
                env: &config.env,
                secret_env: &config.secret_env,
                read_paths: &config.read_paths,
                sandbox: config.sandbox.as_deref(),
                allowed_hosts: &config.allowed_hosts,
            };
            programs.insert(channel.name.clone(), program_spec(&self.manifest, &host, &given));
        }
        Ok(programs)
    }
}

/// An agent's channels, after they are connected.
type ConnectedChannels = Arc<Mutex<Option<Channels>>>;

fn at_hand(connected: &ConnectedChannels) -> Option<Channels> {
    connected.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The arguments of `channel-send`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChannelSendArgs {
    #[serde(default)]
    channel: Option<String>,
    #[serde(default)]
    conversation: Option<String>,
    text: String,
    #[serde(default)]
    file: Option<String>,
    #[serde(default)]
    files: Vec<String>,
}

/// `channel-send`: sends a message to a conversation. It is governed and recorded like any tool, and sends at most once.
#[derive(Debug)]
struct ChannelSendTool(ConnectedChannels);

impl ExternalBuiltin for ChannelSendTool {
    fn describe(&self) -> ToolDescription {
        clawk_tools::builtin::describe_builtin("channel-send").unwrap_or_default()
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let Some(channels) = at_hand(&self.0) else {
                let reason = "no channel is connected: channels are while `clawk serve` runs".to_owned();
                return Err(RunError::Unavailable(reason));
            };
            let not_sent = |reason: String| {
                Ok(RunOutcome {
                    content: vec![ContentBlock::text(format!("not sent: {reason}"))],
                    is_error: true,
                    structured: None,
                    obtained: ObtainedEnforcement::in_process("no-host-access"),
                })
            };
            let wanted = serde_json::from_value::<ChannelSendArgs>(Value::Object(permit.arguments().clone()));
            let wanted = match wanted {
                Ok(wanted) => wanted,
                Err(error) => return not_sent(format!("the arguments do not fit: {error}")),
            };
            let place = match (wanted.channel, wanted.conversation) {
                (Some(channel), Some(conversation)) => Some((channel, conversation)),
                (None, None) => channels.place_of(permit.session()),
                _ => return not_sent("`channel` and `conversation` stand together".to_owned()),
            };
            let Some((channel, conversation)) = place else {
                return not_sent(
                    "nobody talks here by a channel; name `channel` and `conversation`".to_owned(),
                );
            };
            let (mut files, most) = (Vec::new(), channels.max_file_bytes(&channel));
            for path in wanted.file.iter().chain(&wanted.files).take(MAX_SENT_FILES + 1) {
                if files.len() >= MAX_SENT_FILES {
                    return not_sent(format!("at most {MAX_SENT_FILES} files go with a message"));
                }
                match load_file(&permit, path, most).await? {
                    Ok(bytes) => files.push(OutFile::new(path, bytes.into())),
                    Err(why) => return not_sent(why),
                }
            }
            let id = permit.request_id().as_str().parse().map(MessageId);
            let id = id.map_err(|_| RunError::Unavailable("the call has no id".to_owned()))?; // silent-ok: ids are UUIDs
            let sent = channels
                .send_text(&channel, &conversation, &wanted.text, &files, id)
                .await;
            match sent.map_err(|reason| RunError::Unavailable(reason.to_string()))? {
                Delivery::Delivered { platform_id } => Ok(RunOutcome {
                    content: vec![ContentBlock::text("sent")],
                    is_error: false,
                    structured: Some(json!({ "sent": true, "platform_id": platform_id })),
                    obtained: ObtainedEnforcement::in_process(if files.is_empty() {
                        "no-host-access"
                    } else {
                        "checks:filesystem"
                    }),
                }),
                Delivery::Retry { reason, .. } | Delivery::Failed { reason } => not_sent(reason),
                Delivery::Unknown { reason } => Err(RunError::Unknown(reason)),
            }
        })
    }
}

/// `schedule`: the agent's own schedules in a conversation, each with an end and a maximum number of runs.
#[derive(Debug)]
struct Schedule(ConnectedChannels);

impl ExternalBuiltin for Schedule {
    fn describe(&self) -> ToolDescription {
        clawk_tools::builtin::describe_builtin("schedule").unwrap_or_default()
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let Some(channels) = at_hand(&self.0) else {
                let reason = "no channel is connected: channels are while `clawk serve` runs".to_owned();
                return Err(RunError::Unavailable(reason));
            };
            let wanted = serde_json::from_value::<ScheduleRequest>(Value::Object(permit.arguments().clone()));
            let done = match wanted {
                Ok(wanted) => {
                    channels
                        .handle_schedule(permit.session(), wanted, permit.made_from())
                        .await
                }
                Err(error) => Err(format!("the arguments do not fit the action: {error}")),
            };
            Ok(match done {
                Ok(told) => RunOutcome {
                    content: vec![ContentBlock::text(told.to_string())],
                    is_error: false,
                    structured: Some(told),
                    obtained: ObtainedEnforcement::in_process("no-host-access"),
                },
                Err(reason) => RunOutcome {
                    content: vec![ContentBlock::text(reason)],
                    is_error: true,
                    structured: None,
                    obtained: ObtainedEnforcement::in_process("no-host-access"),
                },
            })
        })
    }
}

/// The channels, as the host's entry points use them.
#[derive(Debug)]
pub(crate) struct HostChannels(pub(crate) Channels);

impl clawk_server::Channels for HostChannels {
    fn receive_hook<'a>(
        &'a self,
        name: &'a str,
        request: http::Request<bytes::Bytes>,
    ) -> BoxFuture<'a, http::Response<HookBody>> {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let hook = HookRequest {
                method: parts.method,
                query: parts.uri.query().unwrap_or_default().to_owned(),
                headers: parts.headers,
                body,
            };
            let served = self.0.serve_hook(name, hook).await;
            let reply = served.reply;
            let body = match (served.talk, served.stream) {
                (Some(talk), _) => HookBody::Socket(HookSocket {
                    protocol: talk.protocol,
                    max_frame_bytes: talk.max_frame_bytes,
                    heard: talk.heard,
                    said: talk.said,
                }),
                (None, Some(pieces)) => HookBody::Stream(pieces),
                (None, None) => HookBody::Whole(reply.body.into_bytes()),
            };
            let mut response = http::Response::new(body);
            response.headers_mut().extend(served.headers);
            *response.status_mut() =
                http::StatusCode::from_u16(reply.status).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
            if let Some(kind) = reply.content_type {
                let headers = response.headers_mut();
                headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
            }
            response
        })
    }

    fn run_order<'a>(
        &'a self,
        method: &'a str,
        params: &'a Value,
        by: &'a str,
    ) -> BoxFuture<'a, Option<Result<Value, String>>> {
        Box::pin(async move {
            let text = |member: &str| params.get(member).and_then(Value::as_str).unwrap_or_default();
            let told = |done: Result<Value, NotDone>| Some(done.map_err(|reason| reason.to_string()));
            match method {
                "clawk.channels.list" => match self.0.channel_reports().await {
                    Ok(reports) => Some(Ok(json!({ "channels": reports }))),
                    Err(error) => Some(Err(error.to_string())),
                },
                "clawk.channels.remove" => {
                    let name = text("name");
                    let removed = self.0.remove(name).await;
                    told(removed.map(|removed| json!({ "removed": removed })))
                }
                "clawk.channels.fire" => {
                    let name = text("name");
                    told(self.0.fire_trigger(name).await.map(|()| json!({ "fired": name })))
                }
                "clawk.channels.pairing.list" => Some(Ok(json!({ "pairings": self.0.list_pairings() }))),
                "clawk.channels.pairing.approve" | "clawk.channels.pairing.deny" => {
                    let approve = method.ends_with("approve");
                    let decided = self.0.decide_pairing(text("code"), approve, by).await;
                    told(decided.map(|(channel, sender)| json!({ "channel": channel, "sender": sender })))
                }
                "clawk.channels.pairing.revoke" => {
                    let channel = params.get("channel").and_then(Value::as_str);
                    let revoked = self.0.revoke_pairing(text("id"), channel, by).await;
                    told(revoked.map(|channels| json!({ "channels": channels })))
                }
                _ => None,
            }
        })
    }
}
