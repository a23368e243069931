//! Isolation levels, the enforcement that a run obtained, and refusals (CKP §5.7, R32, R36).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The isolation level of a tool, ordered from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No isolation: the tool runs as the agent's own user.
    None,
    /// A separate process with resource limits, an explicit environment and a supervisor that ends it.
    #[default]
    Process,
    /// A WebAssembly guest.
    Wasm,
    /// A container.
    Container,
    /// A virtual machine.
    Vm,
}

impl Level {
    /// The level's name in a manifest, for example `process`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Wasm => "wasm",
            Self::Container => "container",
            Self::Vm => "vm",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What kind of code ran. Only local programs have a sandbox level; built-in tools and remote endpoints have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeOrigin {
    /// A local program. The level isolates it, unless the level is `none`.
    #[default]
    Local,
    /// clawk's own code inside the agent's process. It reaches the host only through clawk's guards, or not at all.
    BuiltIn,
    /// A remote machine, reached through an endpoint that the operator declared.
    Remote,
}

/// The enforcement that a call really obtained. It is written to the trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObtainedEnforcement {
    /// The level.
    pub level: Level,
    /// What kind of code ran.
    #[serde(default)]
    pub place: CodeOrigin,
    /// The mechanisms that enforced the plan: `rlimit:nofile`, `watcher:memory`, `session`, …
    #[serde(default)]
    pub mechanisms: Vec<String>,
    /// Parts of the plan that no mechanism enforced.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl ObtainedEnforcement {
    /// For a built-in tool that needs no isolation. Examples of `mechanism`: `no-host-access`, `egress:guarded`.
    #[must_use]
    pub fn in_process(mechanism: &str) -> Self {
        Self {
            place: CodeOrigin::BuiltIn,
            ..Self::for_unsandboxed(mechanism)
        }
    }

    /// For work that a declared remote endpoint did.
    #[must_use]
    pub fn for_remote(mechanism: &str) -> Self {
        Self {
            place: CodeOrigin::Remote,
            ..Self::for_unsandboxed(mechanism)
        }
    }

    /// For level `none`, if the manifest asked for it: the tool runs inside the agent, under its own checks only.
    #[must_use]
    pub fn for_unsandboxed(mechanism: &str) -> Self {
        Self {
            level: Level::None,
            place: CodeOrigin::Local,
            mechanisms: vec![mechanism.to_owned()],
            missing: Vec::new(),
        }
    }

    /// The name for the trace and the terminal: the level, or `built-in` or `remote` for code without a level.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self.place {
            CodeOrigin::Local => self.level.as_str(),
            CodeOrigin::BuiltIn => "built-in",
            CodeOrigin::Remote => "remote",
        }
    }
}

/// The reason why nothing was started; error code `-32010` on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum SandboxRefusal {
    /// This host can't provide the level, or a part of it (R32).
    #[error("sandbox level `{level}` is not available: {mechanism}: {missing}; {hint}")]
    Unavailable {
        /// The level asked for.
        level: Level,
        /// The mechanism that would enforce the level.
        mechanism: String,
        /// What is missing on this host.
        missing: String,
        /// How to fix it.
        hint: String,
    },
    /// A rule of the sandbox forbids this call.
    #[error("the sandbox's `{rule}` refuses {subject}; allowed: {allowed}")]
    Blocked {
        /// The field of the Sandbox that decided, for example `shell.blocked_commands`.
        rule: String,
        /// What was refused, in a few words.
        subject: String,
        /// What would have been accepted.
        allowed: String,
    },
    /// Setting up the isolated process failed; the tool itself did not run (R36).
    #[error("could not start `{program}`: {reason}")]
    Setup {
        /// The program that was to run.
        program: String,
        /// The cause, and how to fix it.
        reason: String,
    },
}

impl SandboxRefusal {
    /// The `data` member of the wire error.
    #[must_use]
    pub fn error_data(&self) -> Value {
        match self {
            Self::Unavailable {
                level,
                mechanism,
                missing,
                hint,
            } => {
                json!({"level": level, "mechanism": mechanism, "missing": missing, "hint": hint})
            }
            Self::Blocked {
                rule,
                subject,
                allowed,
            } => {
                json!({"reason": "blocked", "rule": rule, "subject": subject, "allowed": allowed})
            }
            Self::Setup { program, reason } => {
                json!({"reason": "setup", "program": program, "cause": reason})
            }
        }
    }
}
