//! A session with a target: resolve, execute, and the trace of it, by whichever door there is.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::adapter::CraAdapter;
use super::api::CraAuth;
use super::complete::AtlasPackage;
use super::report::CraShortfall;
use super::target::{CraServerInstance, CraTarget};

/// How an execution ended.
#[derive(Debug, Clone)]
pub(super) struct CraExecution {
    /// `success`, `error`, `denied` or `pending_approval`.
    pub(super) status: String,
    /// The whole answer.
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
    /// Opens one under the given Atlases.
    pub(super) fn open(
        target: &'t CraTarget,
        atlases: &[AtlasPackage],
        agent: &str,
        goal: &str,
    ) -> Result<Self, CraShortfall> {
        if let Some(served) = target.serve(atlases)? {
            let body = json!({ "agent_id": agent, "goal": goal });
            let answer = served
                .api
                .send("POST", "/v1/sessions", Some(&body), CraAuth::Bearer, None)?;
            if answer.status != 201 {
                return Err(CraShortfall::other(
                    "a session (201)",
                    answer.status,
                    answer.json(),
                ));
            }
            let id = text(&answer.json(), "session_id").context("the new session has no `session_id`")?;
            return Ok(Self::Http {
                served: Box::new(served),
                id,
            });
        }
        let adapter = target.adapter()?;
        let packages: Vec<Value> = atlases
            .iter()
            .map(|package| json!({ "manifest": package.manifest, "files": files(package) }))
            .collect();
        let params = json!({ "agent_id": agent, "goal": goal, "atlases": packages });
        match adapter.ask("cra.session.open", &params)? {
            Some(opened) => Ok(Self::Adapter {
                adapter,
                id: text(&opened, "session_id").context("the new session has no `session_id`")?,
            }),
            None => Err(CraShortfall::Skipped("the adapter has no sessions".to_owned())),
        }
    }

    /// Resolves; the request gets this session's id and an id of its own.
    pub(super) fn resolve(&self, mut request: Value) -> Result<Value> {
        self.address(&mut request);
        match self {
            Self::Http { served, .. } => {
                let answer = served
                    .api
                    .send("POST", "/v1/resolve", Some(&request), CraAuth::Bearer, None)?;
                if answer.status != 200 {
                    bail!("resolve was answered {}: {}", answer.status, answer.text);
                }
                Ok(answer.json())
            }
            Self::Adapter { adapter, .. } => {
                adapter.must("cra.session.resolve", &json!({ "request": request }))
            }
        }
    }

    /// Executes an action of a resolution.
    pub(super) fn execute(&self, mut request: Value, resolution_id: &str) -> Result<CraExecution> {
        self.address(&mut request);
        if let Some(place) = request.pointer_mut("/execution/resolution_id") {
            *place = json!(resolution_id);
        }
        let body = match self {
            Self::Http { served, .. } => {
                let answer = served
                    .api
                    .send("POST", "/v1/execute", Some(&request), CraAuth::Bearer, None)?;
                match answer.status {
                    200 => answer.json(),
                    403 => {
                        let body = answer.json();
                        let status = "denied".to_owned();
                        return Ok(CraExecution { status, body });
                    }
                    other => bail!("execute was answered {other}: {}", answer.text),
                }
            }
            Self::Adapter { adapter, .. } => {
                adapter.must("cra.session.execute", &json!({ "request": request }))?
            }
        };
        let status = text(&body, "status").context("the execution has no `status`")?;
        Ok(CraExecution { status, body })
    }

    /// All events of the session so far.
    pub(super) fn trace(&self) -> Result<Vec<Value>> {
        match self {
            Self::Http { served, id } => {
                let path = format!("/v1/traces/{id}?limit=1000");
                let ndjson = Some("application/x-ndjson");
                let answer = served.api.send("GET", &path, None, CraAuth::Bearer, ndjson)?;
                if answer.status != 200 {
                    bail!("the trace was answered {}: {}", answer.status, answer.text);
                }
                answer.lines()
            }
            Self::Adapter { adapter, id } => {
                let trace = adapter.must("cra.session.trace", &json!({ "session_id": id }))?;
                match trace.get("events") {
                    Some(Value::Array(events)) => Ok(events.clone()),
                    _ => bail!("the trace has no `events`"),
                }
            }
        }
    }

    fn address(&self, request: &mut Value) {
        let (Self::Http { id, .. } | Self::Adapter { id, .. }) = self;
        let Value::Object(members) = request else { return };
        let clock = clawk_core::time::SystemClock::default();
        let own = clawk_core::time::Clock::uuid(&clock);
        members.insert("request_id".to_owned(), json!(own));
        let now = clawk_core::time::Clock::now(&clock).to_string();
        members.insert("timestamp".to_owned(), json!(now));
        if let Some(Value::Object(requester)) = members.get_mut("requester") {
            requester.insert("session_id".to_owned(), json!(id));
        }
    }
}

fn files(package: &AtlasPackage) -> Value {
    package
        .files
        .iter()
        .map(|(name, text)| (name.clone(), Value::from(text.as_str())))
        .collect()
}

pub(super) fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}
