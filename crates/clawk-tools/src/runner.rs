//! The kernel's `ToolRunner`: from a permit to the executor bound to its tool.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clawk_kernel::call::Permit;
use clawk_kernel::ports::{Description, Later, Look, Mend, RunError, RunOutcome, ToolRunner};
use clawk_kernel::witness::Fact;
use clawk_proto::SessionId;
use clawk_sandbox::{Obtained, Plan, Refusal};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::builtin::{Builtin, Extra, Shared, generic_preview};
use crate::call::Call;
use crate::executor::{Command, Endpoint};
use crate::mcp::{McpTool, Server};
use crate::mend::{Key, Mending};
use crate::stands::Stands;

/// What runs a tool.
#[derive(Debug)]
pub(crate) enum Binding {
    Builtin(Builtin),
    Extra(Arc<dyn Extra>),
    Command(Command),
    Http(Endpoint),
    Mcp(McpTool),
}

/// Runs every tool of an agent. Made by [`crate::bind()`].
pub struct Runner {
    bound: BTreeMap<String, Binding>,
    mending: BTreeMap<String, Mending>,
    servers: Vec<Arc<Server>>,
    shared: Shared,
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.bound).finish()
    }
}

impl Runner {
    pub(crate) fn new(
        bound: BTreeMap<String, Binding>,
        mending: BTreeMap<String, Mending>,
        servers: Vec<Arc<Server>>,
        shared: Shared,
    ) -> Self {
        Self {
            bound,
            mending,
            servers,
            shared,
        }
    }

    /// How a tool is run, for `clawk doctor` and logs: `built-in`, `command`, `http`, `mcp`.
    #[must_use]
    pub fn executor(&self, tool: &str) -> Option<&'static str> {
        self.bound.get(tool).map(|binding| match binding {
            Binding::Builtin(_) | Binding::Extra(_) => "built-in",
            Binding::Command(command) if command.guest => "wasm",
            Binding::Command(_) => "command",
            Binding::Http(_) => "http",
            Binding::Mcp(_) => "mcp",
        })
    }

    /// The arguments as they are sent: with the call's key, where `clawk.toml` names an argument for it.
    pub(crate) fn sent<'a>(
        &self,
        tool: &str,
        arguments: &'a Map<String, Value>,
        request_id: &str,
    ) -> Cow<'a, Map<String, Value>> {
        match self.mending.get(tool).and_then(|mending| mending.key.as_ref()) {
            Some(Key::Argument(name)) => {
                let mut arguments = arguments.clone();
                arguments.insert(name.clone(), request_id.into());
                Cow::Owned(arguments)
            }
            Some(Key::Header(_)) | None => Cow::Borrowed(arguments),
        }
    }

    fn key_header(&self, tool: &str, request_id: &str) -> Option<(http::HeaderName, String)> {
        match self.mending.get(tool)?.key.as_ref()? {
            Key::Header(name) => Some((name.clone(), request_id.to_owned())),
            Key::Argument(_) => None,
        }
    }

    /// The search path that command lines get.
    fn search(&self) -> Option<String> {
        self.shared.env.non_empty("PATH")
    }

    fn binding(&self, tool: &str) -> Result<&Binding, RunError> {
        self.bound
            .get(tool)
            .ok_or_else(|| RunError::Unavailable(format!("nothing runs the tool `{tool}`")))
    }

    #[cfg(test)]
    pub(crate) fn bound_for_tests(&self, tool: &str) -> &Binding {
        self.bound.get(tool).expect("bound")
    }

    /// Runs a call within its time, until it ends or is cancelled.
    pub(crate) async fn run_call(
        &self,
        binding: &Binding,
        call: Call<'_>,
        session: Option<SessionId>,
        cancel: &CancellationToken,
    ) -> Result<RunOutcome, RunError> {
        let _stop = call.stop.clone().drop_guard();
        // What the level can't give here, no tool gets, whether it starts a program or not (R32). Seen once, then known.
        let level = call.plan.level();
        self.shared
            .launcher
            .probe(level)
            .await
            .map_err(RunError::Sandbox)?;
        let work = async {
            match binding {
                // Processes and servers keep the time themselves: they end what they started.
                Binding::Builtin(builtin) if builtin.keeps_time(call.plan) => {
                    builtin.run(&call, &self.shared, session).await
                }
                Binding::Command(command) => command.run(&call, &self.shared).await,
                Binding::Mcp(tool) => tool.run(&call).await,
                Binding::Builtin(builtin) => timed(&call, builtin.run(&call, &self.shared, session)).await,
                Binding::Http(endpoint) => timed(&call, endpoint.run(&call)).await,
                Binding::Extra(_) => Err(RunError::Unavailable("it needs a permit".to_owned())),
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(RunError::Cancelled),
            result = work => result,
        }
    }
}

/// Never the same twice: what can't be looked at binds nothing, so nothing passes.
fn unlike(why: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{why} ({})", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn timed(
    call: &Call<'_>,
    work: impl Future<Output = Result<RunOutcome, RunError>>,
) -> Result<RunOutcome, RunError> {
    match tokio::time::timeout(call.timeout(), work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(RunError::Timeout {
            timeout_ms: call.timeout_ms,
            obtained: Obtained::in_process("watcher:time"),
        }),
    }
}

impl ToolRunner for Runner {
    fn describe<'a>(&'a self, tool: &'a str) -> Later<'a, Result<Description, RunError>> {
        Box::pin(async move {
            Ok(match self.binding(tool)? {
                Binding::Builtin(builtin) => builtin.describe(),
                Binding::Extra(extra) => extra.describe(),
                Binding::Mcp(served) => served.describe().await?,
                // The manifest says what these are.
                Binding::Command(_) | Binding::Http(_) => Description {
                    input_schema: json!({"type": "object"}),
                    ..Description::default()
                },
            })
        })
    }

    fn preflight(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), Refusal> {
        self.shared.launcher.known(plan.level())?;
        match self.bound.get(tool) {
            Some(Binding::Builtin(builtin)) => builtin.preflight(arguments, plan, workdir),
            Some(Binding::Command(_) | Binding::Http(_) | Binding::Mcp(_)) => plan.available(),
            Some(Binding::Extra(_)) | None => Ok(()),
        }
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> Later<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let binding = self.binding(permit.tool())?;
            if let Binding::Extra(extra) = binding {
                return tokio::select! {
                    biased;
                    () = cancel.cancelled() => Err(RunError::Cancelled),
                    result = extra.run(permit, cancel) => result,
                };
            }
            let request_id = permit.request_id().as_str();
            let arguments = self.sent(permit.tool(), permit.arguments(), request_id);
            let call = Call {
                arguments: &arguments,
                key: self.key_header(permit.tool(), request_id),
                plan: permit.plan(),
                workdir: permit.workdir(),
                timeout_ms: permit.timeout_ms(),
                marks: permit.marks(),
                apart: permit.apart(),
                tool: permit.tool(),
                connections: permit.connections().clone(),
                stop: cancel.child_token(),
            };
            self.run_call(binding, call, Some(permit.session()), cancel).await
        })
    }

    fn preview<'a>(&'a self, look: Look<'a>) -> Later<'a, Vec<String>> {
        Box::pin(async move {
            let Some(binding) = self.bound.get(look.tool) else {
                return generic_preview(look.arguments);
            };
            match binding {
                Binding::Builtin(Builtin::Shell) => {
                    let stands = Stands::of(binding, &look, self.search());
                    let mut lines = Builtin::Shell.preview(&look);
                    lines.push(format!("  in {}", stands.from().display()));
                    lines.extend(stands.programs());
                    lines
                }
                Binding::Builtin(builtin) => builtin.preview(&look),
                Binding::Command(command) => {
                    let stands = Stands::of(binding, &look, None);
                    let words = std::iter::once(&command.program).chain(&command.args);
                    let line = words.map(String::as_str).collect::<Vec<_>>().join(" ");
                    let mut lines = vec![format!("$ {line}"), format!("  in {}", stands.from().display())];
                    lines.extend(stands.programs());
                    lines.extend(generic_preview(look.arguments));
                    lines
                }
                Binding::Http(endpoint) => {
                    let url = &endpoint.url;
                    let host = url.host_str().unwrap_or_default();
                    let mut lines = vec![format!("POST {}://{host}{}", url.scheme(), url.path())];
                    lines.extend(generic_preview(look.arguments));
                    lines
                }
                Binding::Mcp(tool) => {
                    let mut lines = vec![format!("ask the MCP server {}", tool.server.name())];
                    lines.extend(generic_preview(look.arguments));
                    lines
                }
                Binding::Extra(_) => generic_preview(look.arguments),
            }
        })
    }

    fn stands_on<'a>(&'a self, look: Look<'a>) -> Later<'a, Vec<Fact>> {
        Box::pin(async move {
            let Some(binding) = self.bound.get(look.tool) else {
                return Vec::new();
            };
            let stands = Stands::of(binding, &look, self.search());
            match tokio::task::spawn_blocking(move || stands.look()).await {
                Ok(facts) => facts,
                Err(error) => vec![Fact::new("the executor", unlike(&error.to_string()))],
            }
        })
    }

    fn mend(&self, tool: &str) -> Mend {
        self.mending.get(tool).map(Mending::way).unwrap_or_default()
    }

    fn check<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> Later<'a, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let none = || RunError::Unavailable(format!("`{}` has no check", permit.tool()));
            let mending = self.mending.get(permit.tool()).ok_or_else(none)?;
            let call = Call {
                arguments: permit.arguments(),
                key: None,
                plan: permit.plan(),
                workdir: permit.workdir(),
                timeout_ms: permit.timeout_ms(),
                tool: permit.tool(),
                connections: permit.connections().clone(),
                marks: permit.marks(),
                apart: permit.apart(),
                stop: cancel.child_token(),
            };
            let _stop = call.stop.clone().drop_guard();
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(RunError::Cancelled),
                result = mending.check(&call, &self.shared) => result,
            }
        })
    }

    fn close(&self) -> Later<'_, ()> {
        Box::pin(async move {
            futures::future::join_all(self.servers.iter().map(|server| server.close())).await;
        })
    }
}
