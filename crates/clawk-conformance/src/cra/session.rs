//! A session with a target: resolutions, executions and the trace, over the adapter or the API.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::adapter::CraAdapter;
use super::api::CraAuth;
use super::complete::AtlasPackage;
use super::report::CraShortfall;
use super::target::{CraServerInstance, CraTarget};

/// The result of an execution.
#[derive(Debug, Clone)]
pub(super) struct CraExecution {
    /// `success`, `error`, `denied` or `pending_approval`.
    pub(super) status: String,
    /// The whole response.
    pub(super) body: Value,
}

/// An open session.
pub(super) enum CraSession<'t> {
    Http {
        served: Box<CraServerInstance<'t>>,
        id: String,
    },
    Adapter {
        adapter: &'t CraAdapter,
        id: String,
    },
}

impl<'t> CraSession<'t> {
    /// Opens a session under the given Atlases.
    pub(super) fn open(
        target: &'t CraTarget,
        atlases: &[AtlasPackage],
        agent: &str,
        goal: &str,
    ) -> Result<Self, CraShortfall> {
        if let Some(served) = target.serve_api(atlases)? {
            let body = json!({ "agent_id": agent, "goal": goal });
            let answer =
                served
                    .api
                    .send_request("POST", "/v1/sessions", Some(&body), CraAuth::Bearer, None)?;
            if answer.status != 201 {
                return Err(CraShortfall::from_mismatch(
                    "a session (201)",
                    answer.status,
                    answer.body_json(),
                ));
            }
            let id = text_member(&answer.body_json(), "session_id")
                .context("the new session has no `session_id`")?;
            return Ok(Self::Http {
                served: Box::new(served),
                id,
            });
        }
        let adapter = target.adapter()?;
        let packages: Vec<Value> = atlases
            .iter()
            .map(|package| json!({ "manifest": package.manifest, "files": package_files(package) }))
            .collect();
        let params = json!({ "agent_id": agent, "goal": goal, "atlases": packages });
        match adapter.ask_method("cra.session.open", &params)? {
            Some(opened) => Ok(Self::Adapter {
                adapter,
                id: text_member(&opened, "session_id").context("the new session has no `session_id`")?,
            }),
            None => Err(CraShortfall::Skipped("the adapter has no sessions".to_owned())),
        }
    }

    /// Makes a resolution. The request gets this session's id and a new request id.
    pub(super) fn resolve_request(&self, mut request: Value) -> Result<Value> {
        self.address_request(&mut request);
        match self {
            Self::Http { served, .. } => {
                let answer =
                    served
                        .api
                        .send_request("POST", "/v1/resolve", Some(&request), CraAuth::Bearer, None)?;
                if answer.status != 200 {
                    bail!("resolve was answered {}: {}", answer.status, answer.text);
                }
                Ok(answer.body_json())
            }
            Self::Adapter { adapter, .. } => {
                adapter.require_answer("cra.session.resolve", &json!({ "request": request }))
            }
        }
    }

    /// Executes an action of a resolution.
    pub(super) fn execute_action(&self, mut request: Value, resolution_id: &str) -> Result<CraExecution> {
        self.address_request(&mut request);
        if let Some(place) = request.pointer_mut("/execution/resolution_id") {
            *place = json!(resolution_id);
        }
        let body = match self {
            Self::Http { served, .. } => {
                let answer =
                    served
                        .api
                        .send_request("POST", "/v1/execute", Some(&request), CraAuth::Bearer, None)?;
                match answer.status {
                    200 => answer.body_json(),
                    403 => {
                        let body = answer.body_json();
                        let status = "denied".to_owned();
                        return Ok(CraExecution { status, body });
                    }
                    other => bail!("execute was answered {other}: {}", answer.text),
                }
            }
            Self::Adapter { adapter, .. } => {
                adapter.require_answer("cra.session.execute", &json!({ "request": request }))?
            }
        };
        let status = text_member(&body, "status").context("the execution has no `status`")?;
        Ok(CraExecution { status, body })
    }

    /// Returns all events of the session so far.
    pub(super) fn read_trace(&self) -> Result<Vec<Value>> {
        match self {
            Self::Http { served, id } => {
                let path = format!("/v1/traces/{id}?limit=1000");
                let ndjson = Some("application/x-ndjson");
                let answer = served
                    .api
                    .send_request("GET", &path, None, CraAuth::Bearer, ndjson)?;
                if answer.status != 200 {
                    bail!("the trace was answered {}: {}", answer.status, answer.text);
                }
                answer.body_lines()
            }
            Self::Adapter { adapter, id } => {
                let trace = adapter.require_answer("cra.session.trace", &json!({ "session_id": id }))?;
                match trace.get("events") {
                    Some(Value::Array(events)) => Ok(events.clone()),
                    _ => bail!("the trace has no `events`"),
                }
            }
        }
    }

    fn address_request(&self, request: &mut Value) {
        let (Self::Http { id, .. } | Self::Adapter { id, .. }) = self;
        let Value::Object(members) = request else { return };
        let clock = clawk_core::time::SystemClock::default();
        let own = clawk_core::time::Clock::new_uuid(&clock);
        members.insert("request_id".to_owned(), json!(own));
        let now = clawk_core::time::Clock::now(&clock).to_string();
        members.insert("timestamp".to_owned(), json!(now));
        if let Some(Value::Object(requester)) = members.get_mut("requester") {
            requester.insert("session_id".to_owned(), json!(id));
        }
    }
}

fn package_files(package: &AtlasPackage) -> Value {
    package
        .files
        .iter()
        .map(|(name, text)| (name.clone(), Value::from(text.as_str())))
        .collect()
}

pub(super) fn text_member(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}
