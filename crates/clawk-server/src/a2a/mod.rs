//! `/a2a`: serves the agent to other agents (A2A 1.0 and 0.3, JSON-RPC over HTTP), with an AgentCard at the well-known path. A task
//! is a message to the agent. The token identifies the caller and its rights.

mod card;
mod old;
pub(crate) mod push;
pub(crate) mod tasks;
#[cfg(test)]
mod tests;
mod wire;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use clawk_kernel::Kernel;
use futures::stream::{self, Stream};
use http::{HeaderMap, header};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::access::Scope;
use crate::http::auth::{HttpPrincipal, StreamEndSignal};
use crate::http::{ApiError, HttpApp, body};
use crate::telling::TurnTextStep;
use tasks::{AgentTask, AgentTaskPhase, AgentTaskRequest, State as TaskState};
use wire::A2aError;

/// The preferred protocol version.
const VERSION: &str = "1.0";
/// The path of the JSON-RPC endpoint.
pub(crate) const PATH: &str = "/a2a";
/// The path of the AgentCard. It needs no token.
pub(crate) const CARD: &str = "/.well-known/agent-card.json";
/// Paths whose handlers may wait for a whole turn. The listener's request deadline does not apply to them.
pub(crate) const PATIENT: &[&str] = &[PATH];
/// How long a request waits for the answer. After that it returns the task in its current state.
const TURN_LIMIT: Duration = Duration::from_secs(600);
/// How long a cancelled task may take to end.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// The largest number of tasks on one page.
const MAX_PAGE: usize = 100;

/// The routes of the A2A endpoint.
pub(crate) fn routes() -> Router<HttpApp> {
    Router::new().route(PATH, post(serve)).route(CARD, get(card))
}

fn kernel(app: &HttpApp) -> Result<Kernel, ApiError> {
    let running = app.host.current_kernel().get();
    running.ok_or_else(|| ApiError::unavailable("no agent runs yet"))
}

async fn card(State(app): State<HttpApp>, headers: HeaderMap) -> Result<Json<Value>, ApiError> {
    let kernel = kernel(&app)?;
    // The guard has checked that `Host` is a name of this server.
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    Ok(Json(card::agent_card(
        &kernel,
        host.unwrap_or("localhost"),
        app.is_guarded(),
        app.options.push.is_some(),
    )))
}

/// One A2A request: the caller, the agent it talks to, and the method with its parameters.
struct A2aRequest {
    app: HttpApp,
    kernel: Kernel,
    principal: HttpPrincipal,
    id: Value,
    params: Value,
    /// The client speaks A2A 0.3.
    old: bool,
}

async fn serve(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Response, ApiError> {
    let version = request.headers().get("a2a-version").cloned();
    let bytes = body::json_bytes(&app, request).await?;
    let kernel = kernel(&app)?;
    let mut id = Value::Null;
    let outcome = match wire::parse(&bytes) {
        Err(refusal) => Err(refusal),
        Ok((named, method, params)) => {
            id = named;
            let (old, (method, params)) = match old::read(&method, &params) {
                Some((method, params)) => (true, (method.to_owned(), params)),
                None => (false, (method, params)),
            };
            let asked = A2aRequest {
                app,
                kernel,
                principal,
                id: id.clone(),
                params,
                old,
            };
            match wire::check_version(version.as_ref(), old) {
                Ok(()) => asked.answer(&method).await,
                Err(refusal) => Err(refusal),
            }
        }
    };
    Ok(outcome.unwrap_or_else(|refusal| Json(refusal.to_response(&id)).into_response()))
}

impl A2aRequest {
    async fn answer(self, method: &str) -> Result<Response, A2aError> {
        if !self.principal.has_scope(Scope::Message) {
            return Err(A2aError::invalid_params("this token lacks the scope `message`"));
        }
        let result = match method {
            "SendMessage" => self.send().await?,
            "SendStreamingMessage" => {
                let (task, _) = self.take().await?;
                return Ok(self.stream(task));
            }
            "SubscribeToTask" => {
                let id = wire::required_text(&self.params, "id")?;
                let owner = &self.principal.name;
                let Some(task) = self.tasks().find_task(owner, &id) else {
                    // This process does not know the task: only the record may. There is nothing to follow.
                    self.tasks().task_view(&self.kernel, owner, &id).await?;
                    return Err(A2aError::unsupported(
                        "the task belongs to an earlier run, and has nothing more to tell",
                    ));
                };
                return Ok(self.stream(task));
            }
            "GetTask" => {
                let id = wire::required_text(&self.params, "id")?;
                let view = self
                    .tasks()
                    .task_view(&self.kernel, &self.principal.name, &id)
                    .await?;
                wire::task_json(&view)
            }
            "ListTasks" => self.list()?,
            "CancelTask" => self.cancel().await?,
            "CreateTaskPushNotificationConfig" => {
                let task = self.own("taskId")?;
                self.push(&task, &self.params, false).await?
            }
            "GetTaskPushNotificationConfig" => {
                let task = self.own("taskId")?;
                let found = match wire::required_text(&self.params, "id") {
                    Ok(id) => task.receivers.find(&id),
                    // A2A 0.3 allows the receiver's id to be absent.
                    Err(_) if self.old => task.receivers.shown().into_iter().next(),
                    Err(refusal) => return Err(refusal),
                };
                found.ok_or_else(|| A2aError::invalid_params("id: the task has no such configuration"))?
            }
            "ListTaskPushNotificationConfigs" => json!({"configs": self.own("taskId")?.receivers.shown()}),
            "DeleteTaskPushNotificationConfig" => {
                let (task, id) = (self.own("taskId")?, wire::required_text(&self.params, "id")?);
                task.receivers.remove(&id);
                if let Some(push) = &self.app.options.push {
                    push.forget_receiver(&task, &id).await?;
                }
                Value::Null
            }
            "GetExtendedAgentCard" => {
                return Err(A2aError::unsupported(
                    "there is no other card than the one at the well-known path",
                ));
            }
            other => return Err(A2aError::no_method(other)),
        };
        let result = if self.old {
            old::convert_result(method, &result)
        } else {
            result
        };
        Ok(Json(json!({"jsonrpc": "2.0", "id": self.id, "result": result})).into_response())
    }

    fn tasks(&self) -> &tasks::AgentTasks {
        self.app.host.tasks()
    }

    /// Finds the caller's task in this run, from the parameter `name`. For push notifications.
    fn own(&self, name: &str) -> Result<Arc<AgentTask>, A2aError> {
        if self.app.options.push.is_none() {
            return Err(A2aError::no_push());
        }
        let id = wire::required_text(&self.params, name)?;
        let known = self.tasks().find_task(&self.principal.name, &id);
        known.ok_or_else(|| A2aError::unknown_task(&id))
    }

    /// Registers a push receiver, described by `config`, for later states of the task. `from_first`: `config` came with the
    /// message, so the receiver also gets the earlier states.
    async fn push(&self, task: &Arc<AgentTask>, config: &Value, from_first: bool) -> Result<Value, A2aError> {
        let push = self.app.options.push.clone().ok_or_else(A2aError::no_push)?;
        // A client that repeats its message gets the same receiver again, not a second one.
        let id = push::id_of(config);
        let receiver = push.receiver(&task.id, config, &id, self.old)?;
        let shown = receiver.shown();
        // The client has repeated its message.
        if from_first && task.receivers.has(&receiver) {
            return Ok(shown);
        }
        task.receivers.put(receiver.clone())?;
        let begun = push
            .add_receiver(&self.app.host, (task, config), receiver, from_first)
            .await;
        if let Err(error) = begun {
            task.receivers.remove(&id);
            return Err(error.into());
        }
        Ok(shown)
    }

    /// Creates the task for a message. The flag says whether the request waits for the task's end.
    async fn take(&self) -> Result<(Arc<AgentTask>, bool), A2aError> {
        let message = wire::parse_message(&self.params)?;
        if let Some(id) = &message.task {
            let known = self.tasks().find_task(&self.principal.name, id).is_some();
            return Err(if known {
                A2aError::unsupported(
                    "a task takes no further message: send it in the same context without a task id",
                )
            } else {
                A2aError::unknown_task(id)
            });
        }
        let wanted = AgentTaskRequest {
            id: tasks::id_of(&message.id),
            context: message.context,
            text: message.text,
            images: message.images,
        };
        // This comes before the task is created: an invalid receiver must not leave a task behind.
        if let Some(config) = &message.push {
            let push = self.app.options.push.as_ref().ok_or_else(A2aError::no_push)?;
            push.receiver(&wanted.id, config, &wanted.id, self.old)?;
        }
        let task = self.tasks().create_task(
            &self.app.host,
            self.kernel.clone(),
            &self.principal.rights(),
            wanted,
        )?;
        if let Some(config) = &message.push {
            self.push(&task, config, true).await?;
        }
        // A receiver hears only of tasks that survive a crash.
        task.wait_durable().await;
        Ok((task, message.waits))
    }

    async fn send(&self) -> Result<Value, A2aError> {
        let (task, waits) = self.take().await?;
        if waits {
            settled(&task, TURN_LIMIT, true).await;
        }
        Ok(json!({"task": wire::task_json(&task.view())}))
    }

    fn list(&self) -> Result<Value, A2aError> {
        let (context, state) = wire::parse_filter(&self.params)?;
        let size = self.params.get("pageSize").and_then(Value::as_u64).unwrap_or(50);
        let size = usize::try_from(size).unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
        let from: usize = match self.params.get("pageToken").and_then(Value::as_str) {
            None | Some("") => 0,
            Some(token) => token
                .parse()
                .map_err(|_| A2aError::invalid_params("pageToken: is none of this server's"))?,
        };
        let artifacts = self.params.get("includeArtifacts") == Some(&Value::Bool(true));
        let mut found: Vec<tasks::AgentTaskView> = self
            .tasks()
            .tasks_of_owner(&self.principal.name)
            .iter()
            .map(|task| task.view())
            .collect();
        found.retain(|view| context.is_none() || view.context == context);
        found.retain(|view| {
            state
                .as_deref()
                .is_none_or(|state| view.phase.state.a2a_name() == state)
        });
        let total = found.len();
        let next = if from + size < total {
            (from + size).to_string()
        } else {
            String::new()
        };
        let page = found.into_iter().skip(from).take(size).map(|view| {
            let mut task = wire::task_json(&view);
            if let (false, Some(task)) = (artifacts, task.as_object_mut()) {
                task.remove("artifacts");
            }
            task
        });
        let page: Vec<Value> = page.collect();
        Ok(json!({"pageSize": page.len(), "tasks": page, "nextPageToken": next, "totalSize": total}))
    }

    async fn cancel(&self) -> Result<Value, A2aError> {
        let id = wire::required_text(&self.params, "id")?;
        let Some(task) = self.tasks().find_task(&self.principal.name, &id) else {
            self.tasks()
                .task_view(&self.kernel, &self.principal.name, &id)
                .await?;
            return Err(A2aError::too_late(&id));
        };
        if !task.cancel(&self.kernel) {
            return Err(A2aError::too_late(&id));
        }
        settled(&task, CANCEL_LIMIT, false).await;
        Ok(wire::task_json(&task.view()))
    }

    fn stream(self, task: Arc<AgentTask>) -> Response {
        let pieces = A2aTaskStream {
            phases: task.subscribe(),
            id: self.id,
            task,
            at: 0,
            stage: A2aStreamStage::Task,
            told: None,
            old: self.old,
            ending: StreamEndSignal::for_app(&self.app),
        };
        Sse::new(pieces.stream())
            .keep_alive(KeepAlive::default())
            .into_response()
    }
}

/// Waits until the task has ended, or (with `or_asked`) until it waits for a person, or until `limit` has passed.
async fn settled(task: &AgentTask, limit: Duration, or_asked: bool) {
    let mut phases = task.subscribe();
    let there = |phase: &AgentTaskPhase| {
        phase.state.is_final() || (or_asked && phase.state == TaskState::AuthRequired)
    };
    // silent-ok: after the limit, the caller gets the task's current state
    let _late = tokio::time::timeout(limit, phases.wait_for(there)).await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum A2aStreamStage {
    Task,
    Updates,
    Done,
}

/// The event stream of one task: its current state first, then pieces of the answer and state changes until the end.
struct A2aTaskStream {
    id: Value,
    task: Arc<AgentTask>,
    phases: watch::Receiver<AgentTaskPhase>,
    /// Bytes of the answer that were already sent.
    at: usize,
    stage: A2aStreamStage,
    /// The last state that was sent.
    told: Option<TaskState>,
    /// The events use the shapes of A2A 0.3.
    old: bool,
    ending: StreamEndSignal,
}

impl A2aTaskStream {
    fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut pieces| async move {
            let update = pieces.next().await?;
            let update = if pieces.old { old::event(&update) } else { update };
            let answer = json!({"jsonrpc": "2.0", "id": pieces.id, "result": update});
            Some((Ok(Event::default().data(answer.to_string())), pieces))
        })
    }

    async fn next(&mut self) -> Option<Value> {
        match self.stage {
            A2aStreamStage::Task => {
                self.phases.mark_unchanged();
                let view = self.task.view();
                (self.at, self.told) = (view.text.len(), Some(view.phase.state));
                self.stage = if view.phase.state.is_final() {
                    A2aStreamStage::Done
                } else {
                    A2aStreamStage::Updates
                };
                Some(json!({"task": wire::task_json(&view)}))
            }
            A2aStreamStage::Updates => loop {
                tokio::select! {
                    biased;
                    next = self.task.telling.next(self.at) => match next {
                        TurnTextStep::Text(more) => {
                            let first = self.at == 0;
                            self.at += more.len();
                            return Some(wire::artifact_update(&self.task, &more, !first));
                        }
                        // The whole text was sent: the final state follows at once.
                        TurnTextStep::End(_) => {
                            let _ended = self.phases.wait_for(|phase| phase.state.is_final()).await;
                            self.stage = A2aStreamStage::Done;
                            return Some(wire::status_update(&self.task.view()));
                        }
                    },
                    Ok(()) = self.phases.changed() => {
                        let state = self.phases.borrow_and_update().state;
                        if !state.is_final() && self.told.replace(state) != Some(state) {
                            return Some(wire::status_update(&self.task.view()));
                        }
                    }
                    () = self.ending.wait_end() => {
                        self.stage = A2aStreamStage::Done;
                        return None;
                    }
                }
            },
            A2aStreamStage::Done => None,
        }
    }
}
