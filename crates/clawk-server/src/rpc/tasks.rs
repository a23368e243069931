//! `claw.task.*` (R23): tasks over CKP, the same tasks as at `/a2a`. Available if that endpoint is enabled.

use std::sync::Arc;

use clawk_kernel::{AttachedPicture, Kernel};
use clawk_proto::rpc::write_notification;
use clawk_proto::{ErrorCode, RpcError};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dispatch::AdmittedRequest;
use super::{RpcConnection, gate, messages};
use crate::a2a::tasks::{AgentTask, AgentTaskError, AgentTaskRequest, AgentTaskView};
use crate::access::{ClientRights, Scope};
use crate::error::ckp as error;
use crate::host::AgentHost;
use crate::telling::TurnTextStep;
use crate::transport::outbox::Outbox;

/// The prefix of its methods.
pub(super) const PREFIX: &str = "claw.task.";
/// The notification for subscribers: a state, or a piece of the answer.
const UPDATE: &str = "claw.task.update";

#[derive(Debug, Deserialize)]
struct CreateTaskParams {
    #[serde(default)]
    task_id: Option<String>,
    #[serde(default)]
    message: Option<TaskMessage>,
    #[serde(default)]
    messages: Option<Vec<TaskMessage>>,
    #[serde(default)]
    conversation: Option<String>,
}

/// A message: its text, or an object that contains it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TaskMessage {
    Text(String),
    Object {
        #[serde(default)]
        text: Option<String>,
        #[serde(default)]
        content: Option<Value>,
        #[serde(default)]
        parts: Option<Vec<clawk_proto::message::MessagePart>>,
    },
}

#[derive(Debug, Deserialize)]
struct TaskIdParams {
    task_id: String,
}

impl TaskMessage {
    /// The message's text and pictures.
    fn message_content(&self) -> Result<(String, Vec<AttachedPicture>), RpcError> {
        let text = match self {
            Self::Object {
                text: None,
                parts: Some(parts),
                ..
            } => return messages::parse_parts(parts).map_err(invalid_params),
            Self::Text(text) | Self::Object { text: Some(text), .. } => Some(text.as_str()),
            Self::Object { content, .. } => content.as_ref().and_then(Value::as_str),
        };
        let text = text.ok_or_else(|| invalid_params("a message has a `text`, or `parts`"))?;
        Ok((text.to_owned(), Vec::new()))
    }
}

fn invalid_params(message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorCode::InvalidParams, message).with(json!({"reason": "invalid_params"}))
}

fn task_refusal(fault: &AgentTaskError) -> RpcError {
    match fault {
        AgentTaskError::Unknown(id) => {
            invalid_params(fault.to_string()).with(json!({"reason": "unknown_task", "task_id": id}))
        }
        AgentTaskError::Reused(id) => {
            invalid_params(fault.to_string()).with(json!({"reason": "request_id_reused", "task_id": id}))
        }
        AgentTaskError::Invalid(_) => invalid_params(fault.to_string()),
        AgentTaskError::Full => RpcError::new(ErrorCode::QuotaExceeded, fault.to_string())
            .with(json!({"reason": "too_many_tasks"})),
        AgentTaskError::Kernel(kernel) => error::from_kernel(kernel),
    }
}

fn task_json(view: &AgentTaskView) -> Value {
    json!({"task_id": view.id, "state": view.phase.state.name(), "conversation": view.context,
        "updated_at": view.phase.at.to_string(), "reason": view.phase.reason, "text": view.text, "record": view.record})
}

impl RpcConnection {
    /// Handles a method of `claw.task.*`.
    pub(super) async fn handle_task(&mut self, name: &str, ask: AdmittedRequest<'_>) {
        let run = match gate::admit_extension(&self.phase, &self.rights, Scope::Message) {
            Ok(run) => Arc::clone(run),
            Err(error) => return self.refuse_request(&ask, &error),
        };
        if !self.host.serves_tasks() {
            let error = RpcError::new(
                ErrorCode::MethodNotFound,
                format!("`{name}` is not served: no A2A endpoint is on (`[http] doors`)"),
            )
            .with(json!({"reason": "not_served", "method": name}));
            return self.refuse_request(&ask, &error);
        }
        let verb = name.strip_prefix(PREFIX).unwrap_or_default();
        let Some(verb) = ["create", "get", "list", "cancel", "subscribe"]
            .into_iter()
            .find(|known| *known == verb)
        else {
            let error = RpcError::new(ErrorCode::MethodNotFound, "unknown method of `claw.task`")
                .with(json!({"reason": "unknown_method"}));
            return self.refuse_request(&ask, &error);
        };
        self.flush();
        let slot = self.lanes.enter(ask.params.len()).await;
        let (host, rights, outbox) = (self.host.clone(), self.rights.clone(), Arc::clone(&self.outbox));
        let (params, reply) = (ask.params.to_owned(), self.reply_guard(ask));
        self.start_task(async move {
            let outcome = run_task_method(&host, &run.kernel, &rights, &outbox, verb, &params).await;
            drop(slot);
            reply.send_outcome(outcome);
        })
        .await;
    }
}

async fn run_task_method(
    host: &AgentHost,
    kernel: &Kernel,
    rights: &ClientRights,
    outbox: &Arc<Outbox>,
    verb: &str,
    params: &str,
) -> Result<Value, RpcError> {
    let (tasks, owner) = (host.tasks(), rights.name());
    match verb {
        "create" => {
            let wanted = parse_create(host, error::decode("claw.task.create", params)?)?;
            let task = tasks
                .create_task(host, kernel.clone(), rights, wanted)
                .map_err(|fault| task_refusal(&fault))?;
            task.wait_durable().await;
            Ok(task_json(&task.view()))
        }
        "list" => {
            let all: Vec<Value> = tasks
                .tasks_of_owner(owner)
                .iter()
                .map(|task| task_json(&task.view()))
                .collect();
            Ok(json!({"tasks": all}))
        }
        _ => {
            let TaskIdParams { task_id } = error::decode(&format!("{PREFIX}{verb}"), params)?;
            let task = tasks.find_task(owner, &task_id);
            // A task of an earlier run has ended, or does not exist.
            let view = tasks
                .task_view(kernel, owner, &task_id)
                .await
                .map_err(|fault| task_refusal(&fault))?;
            match (verb, task) {
                ("cancel", Some(task)) => {
                    task.cancel(kernel);
                    let mut phases = task.subscribe();
                    let ends = phases.wait_for(|phase| phase.state.is_final());
                    // silent-ok: the client gets the current state
                    let _late = tokio::time::timeout(std::time::Duration::from_secs(10), ends).await;
                    Ok(task_json(&task.view()))
                }
                ("subscribe", task) => {
                    if let Some(task) = task {
                        host.spawn_detached(follow_task(task, Arc::downgrade(outbox)));
                    }
                    Ok(json!({"task_id": task_id, "subscribed": true, "state": view.phase.state.name()}))
                }
                _ => Ok(task_json(&view)),
            }
        }
    }
}

fn parse_create(host: &AgentHost, create: CreateTaskParams) -> Result<AgentTaskRequest, RpcError> {
    let said: Vec<TaskMessage> = match (create.message, create.messages) {
        (Some(one), None) => vec![one],
        (None, Some(all)) if !all.is_empty() => all,
        (Some(_), Some(_)) | (None, Some(_) | None) => {
            return Err(invalid_params("a task has either `message` or `messages`"));
        }
    };
    let said: Vec<(String, Vec<AttachedPicture>)> = said
        .iter()
        .map(TaskMessage::message_content)
        .collect::<Result<_, _>>()?;
    let (texts, images): (Vec<String>, Vec<Vec<AttachedPicture>>) = said.into_iter().unzip();
    Ok(AgentTaskRequest {
        id: create
            .task_id
            .unwrap_or_else(|| host.options().clock.new_uuid().to_string()),
        context: create.conversation,
        text: texts.join("\n\n"),
        images: images.concat(),
    })
}

/// Notifies a subscriber of a task, until the task or the subscriber ends.
async fn follow_task(task: Arc<AgentTask>, outbox: std::sync::Weak<Outbox>) {
    let mut phases = task.subscribe();
    let mut at = task.view().text.len();
    loop {
        let (update, over) = tokio::select! {
            biased;
            next = task.telling.next(at) => match next {
                TurnTextStep::Text(more) => {
                    at += more.len();
                    (json!({"task_id": task.id, "state": task.view().phase.state.name(), "text": more}), false)
                }
                TurnTextStep::End(_) => {
                    // silent-ok: the task is held here, so its phases can't be dropped
                    let _ended = phases.wait_for(|phase| phase.state.is_final()).await;
                    let view = task.view();
                    let (state, reason) = (view.phase.state.name(), view.phase.reason);
                    (json!({"task_id": task.id, "state": state, "reason": reason}), true)
                }
            },
            Ok(()) = phases.changed() => {
                let state = phases.borrow_and_update().state;
                if state.is_final() {
                    continue;
                }
                (json!({"task_id": task.id, "state": state.name()}), false)
            }
        };
        let Some(outbox) = outbox.upgrade() else { return };
        let mut line = Vec::new();
        if write_notification(&mut line, UPDATE, &update) {
            line.push(b'\n');
            outbox.take(&mut line);
        }
        if over {
            return;
        }
        outbox.room().await;
    }
}
