//! The built-in tools (DESIGN §5): descriptions, schemas, annotations and static checks.
//!
//! `memory-store`, `memory-query`, `memory-forget` and `context-write` are described here, but the kernel runs them, because it has
//! the stores. `channel-send` and `schedule` are described here, and the composition root runs them, because it has the channels.

mod date;
mod describe;
mod file;
mod html;
mod preview;
mod search;
mod shell;
mod talk;
mod web;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use clawk_kernel::call::Permit;
use clawk_kernel::ports::{BoxFuture, InspectedCall, RunError, RunOutcome, ToolDescription};
use clawk_kernel::sheet::ExecutorPreview;
use clawk_kernel::time::Clock;
use clawk_plan::{Level, Plan, Request, SandboxRefusal};
use clawk_proto::SessionId;
use clawk_sandbox::Launcher;
use clawk_secrets::EnvironmentSource;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::call::ExecutorCall;
use crate::egress::EgressProxies;

pub(crate) use file::write_target;
pub use file::{MODE, main};

pub(crate) use search::SearchEndpoint;
pub(crate) use shell::launch_error;
pub(crate) use web::GuardedClients;

/// A built-in tool that another crate implements, because it needs more than arguments and a sandbox.
pub trait ExternalBuiltin: Send + Sync + fmt::Debug {
    /// The tool's description.
    fn describe(&self) -> ToolDescription;

    /// Runs the permitted call.
    fn run<'a>(
        &'a self,
        permit: Permit,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>>;
}

/// A question of `ask-user`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserQuestion {
    /// The session whose user is asked.
    pub session: SessionId,
    /// The question, at most 4,000 characters.
    pub question: String,
    /// Possible answers; empty for free text.
    pub options: Vec<String>,
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserAnswer {
    /// The person's words.
    Said(String),
    /// The person declined to answer.
    Declined,
    /// This session has no user who can be asked.
    Nobody,
}

/// How `ask-user` asks a person. The composition root provides it.
pub type AskUserHandler = Arc<dyn Fn(UserQuestion) -> BoxFuture<'static, UserAnswer> + Send + Sync>;

/// Data that all built-ins share.
pub(crate) struct BuiltinContext {
    /// The shell tool's description: which shell it is, and what it can see.
    pub(crate) shell: String,
    pub(crate) launcher: Launcher,
    pub(crate) env: EnvironmentSource,
    pub(crate) clients: GuardedClients,
    pub(crate) exits: Arc<EgressProxies>,
    pub(crate) ask: Option<AskUserHandler>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The agent's time zone.
    pub(crate) timezone: jiff::tz::TimeZone,
}

/// All built-in tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuiltinTool {
    Echo,
    Shell,
    FileRead,
    FileWrite,
    FileEdit,
    FileList,
    FileSearch,
    WebFetch,
    Sleep,
    HttpRequest,
    AskUser,
    MemoryStore,
    MemoryQuery,
    MemoryForget,
    ContextWrite,
    Date,
    WebSearch,
    ChannelSend,
    Schedule,
}

/// The description of the built-in with this name, whether or not an agent declares it. `None`: there is no such built-in.
#[must_use]
pub fn describe_builtin(name: &str) -> Option<ToolDescription> {
    BuiltinTool::from_name(name).map(BuiltinTool::describe)
}

/// All built-in tools in alphabetical order: name and description.
#[must_use]
pub fn all_builtins() -> Vec<(&'static str, ToolDescription)> {
    let mut all: Vec<_> = BuiltinTool::ALL
        .into_iter()
        .map(|builtin| (builtin.name(), builtin.describe()))
        .collect();
    all.sort_by_key(|(name, _)| *name);
    all
}

/// What the built-in with this name needs of the manifest and the machine; `None`: nothing, or no built-in.
#[must_use]
pub fn builtin_requirement(name: &str) -> Option<&'static str> {
    BuiltinTool::from_name(name).and_then(describe::builtin_requirement)
}

/// The static checks of the built-in with this name. `None`: there is no such built-in.
#[must_use]
pub fn preflight_builtin(
    name: &str,
    arguments: &Map<String, Value>,
    plan: &Plan,
    workdir: &Path,
) -> Option<Result<(), SandboxRefusal>> {
    BuiltinTool::from_name(name).map(|builtin| builtin.preflight(arguments, plan, workdir))
}

pub use describe::MAX_SENT_FILES;
pub(crate) use describe::about_shell;
pub use file::load_file;

impl BuiltinTool {
    pub(crate) const ALL: [Self; 19] = [
        Self::Echo,
        Self::Shell,
        Self::FileRead,
        Self::FileWrite,
        Self::FileEdit,
        Self::FileList,
        Self::FileSearch,
        Self::WebFetch,
        Self::Sleep,
        Self::HttpRequest,
        Self::AskUser,
        Self::MemoryStore,
        Self::MemoryQuery,
        Self::MemoryForget,
        Self::ContextWrite,
        Self::Date,
        Self::WebSearch,
        Self::ChannelSend,
        Self::Schedule,
    ];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|builtin| builtin.name() == name)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Shell => "shell",
            Self::FileRead => "file-read",
            Self::FileWrite => "file-write",
            Self::FileEdit => "file-edit",
            Self::FileList => "file-list",
            Self::FileSearch => "file-search",
            Self::WebFetch => "web-fetch",
            Self::Sleep => "sleep",
            Self::HttpRequest => "http-request",
            Self::AskUser => "ask-user",
            Self::MemoryStore => "memory-store",
            Self::MemoryQuery => "memory-query",
            Self::MemoryForget => "memory-forget",
            Self::ContextWrite => "context-write",
            Self::Date => "date",
            Self::WebSearch => "web-search",
            Self::ChannelSend => "channel-send",
            Self::Schedule => "schedule",
        }
    }

    /// Whether the kernel runs this tool, because it needs the kernel's stores.
    pub(crate) const fn is_kernels(self) -> bool {
        matches!(
            self,
            Self::MemoryStore | Self::MemoryQuery | Self::MemoryForget | Self::ContextWrite
        )
    }

    /// Whether the tool's process enforces the time limit. Then the supervisor ends it and reports the enforcement.
    pub(crate) fn keeps_time(self, plan: &Plan) -> bool {
        match self {
            Self::Shell => true,
            Self::FileRead | Self::FileWrite | Self::FileEdit | Self::FileList | Self::FileSearch => {
                plan.level() >= Level::Process
            }
            Self::Echo | Self::Sleep | Self::Date | Self::AskUser => false,
            Self::WebFetch | Self::HttpRequest | Self::WebSearch => false,
            Self::ChannelSend | Self::Schedule => false,
            Self::MemoryStore | Self::MemoryQuery | Self::MemoryForget | Self::ContextWrite => false,
        }
    }

    pub(crate) fn describe(self) -> ToolDescription {
        describe::builtin_description(self)
    }

    /// The description under this agent's sandbox.
    pub(crate) fn describe_here(self, shared: &BuiltinContext) -> ToolDescription {
        let mut all = self.describe();
        if self == Self::Shell {
            all.description = shared.shell.clone();
        }
        all
    }

    /// Checks the arguments against the plan. Arguments that are not text are left to the schema check.
    pub(crate) fn preflight(
        self,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        let path = |path: &str, write: bool| plan.preflight(&Request::Path { path, write, workdir });
        match self {
            Self::Echo | Self::Sleep | Self::Date | Self::AskUser => Ok(()),
            Self::ChannelSend | Self::Schedule => Ok(()),
            // The binding knows the provider's host, and checks it.
            Self::WebSearch => plan.check_available(),
            Self::MemoryStore | Self::MemoryQuery | Self::MemoryForget | Self::ContextWrite => Ok(()),
            Self::Shell => {
                plan.check_available()?;
                text("command").map_or(Ok(()), |command| plan.preflight(&Request::Shell { command }))?;
                text("workdir").map_or(Ok(()), |folder| path(folder, false))
            }
            Self::FileRead => text("path").map_or(Ok(()), |file| path(file, false)),
            Self::FileList | Self::FileSearch => path(text("path").unwrap_or("."), false),
            Self::FileWrite | Self::FileEdit => text("path").map_or(Ok(()), |file| path(file, true)),
            Self::WebFetch | Self::HttpRequest => {
                text("url").map_or(Ok(()), |url| web::preflight_url(url, plan))
            }
        }
    }

    /// Runs the tool. The static checks are repeated on exactly these arguments.
    pub(crate) async fn run(
        self,
        call: &ExecutorCall<'_>,
        shared: &BuiltinContext,
        session: Option<SessionId>,
    ) -> Result<RunOutcome, RunError> {
        self.preflight(call.arguments, call.plan, call.workdir)
            .map_err(RunError::Sandbox)?;
        match self {
            Self::Echo => Ok(talk::run_echo(call)),
            Self::Sleep => Ok(talk::run_sleep(call).await),
            Self::Date => Ok(date::run_date(call, shared.clock.now(), &shared.timezone)),
            Self::AskUser => talk::ask_person(call, shared, session).await,
            Self::Shell => shell::run(call, shared).await,
            Self::FileRead => file::run(call, &shared.launcher, file::FileTool::Read).await,
            Self::FileWrite => file::run(call, &shared.launcher, file::FileTool::Write).await,
            Self::FileEdit => file::run(call, &shared.launcher, file::FileTool::Edit).await,
            Self::FileList => file::run(call, &shared.launcher, file::FileTool::List).await,
            Self::FileSearch => file::run(call, &shared.launcher, file::FileTool::Search).await,
            Self::MemoryStore | Self::MemoryQuery | Self::MemoryForget | Self::ContextWrite => Err(
                RunError::Unavailable(format!("`{}` is run by the kernel", self.name())),
            ),
            Self::WebSearch => Err(RunError::Unavailable(
                "`web-search` has no provider; name one in `[tools.web-search.search]` of clawk.toml"
                    .to_owned(),
            )),
            Self::ChannelSend | Self::Schedule => Err(RunError::Unavailable(format!(
                "`{}` needs the channels of a served agent, and this host has none",
                self.name()
            ))),
            Self::WebFetch => web::run_fetch(call, shared).await.map(web::add_enforcement),
            Self::HttpRequest => web::run_request(call, shared).await.map(web::add_enforcement),
        }
    }

    /// The preview that a person reads before approving; lines of plain text.
    pub(crate) fn preview(self, look: &InspectedCall<'_>) -> ExecutorPreview {
        preview::preview_call(self, look)
    }
}

#[cfg(test)]
mod preview_tests;
#[cfg(test)]
mod tests;
