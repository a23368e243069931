//! Isolation levels, what a run really got, and refusals (CKP §5.7, R32, R36).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The isolation of a tool, the weakest level first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The agent's own user.
    None,
    /// A process of its own with limits, an explicit environment and a supervisor that ends it.
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
    /// The manifest's word.
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

/// The kind of code that ran. Only a program has a sandbox level; a built-in or a remote endpoint has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeOrigin {
    /// Code that the level encloses, or that level `none` leaves open.
    #[default]
    Local,
    /// Our own code inside the agent, which reaches the host only through guards of ours, or not at all.
    BuiltIn,
    /// Somebody else's machine: an endpoint that the operator declared.
    Remote,
}

/// The enforcement a call really had; goes into the trace.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObtainedEnforcement {
    /// The level.
    pub level: Level,
    /// Whose code ran.
    #[serde(default)]
    pub place: CodeOrigin,
    /// The mechanisms that held it: `rlimit:nofile`, `watcher:memory`, `session`, …
    #[serde(default)]
    pub mechanisms: Vec<String>,
    /// What the plan asks for and no mechanism enforced.
    #[serde(default)]
    pub missing: Vec<String>,
}

impl ObtainedEnforcement {
    /// A built-in inside the agent that needs no walls: `no-host-access`, `egress:guarded`.
    #[must_use]
    pub fn in_process(mechanism: &str) -> Self {
        Self {
            place: CodeOrigin::BuiltIn,
            ..Self::open(mechanism)
        }
    }

    /// A declared endpoint's work.
    #[must_use]
    pub fn remote(mechanism: &str) -> Self {
        Self {
            place: CodeOrigin::Remote,
            ..Self::open(mechanism)
        }
    }

    /// Level `none`, because that was asked for: inside the agent, under checks of its own only.
    #[must_use]
    pub fn open(mechanism: &str) -> Self {
        Self {
            level: Level::None,
            place: CodeOrigin::Local,
            mechanisms: vec![mechanism.to_owned()],
            missing: Vec::new(),
        }
    }

    /// The word for the trace and the terminal: the level, or `built-in` or `remote` where no level applies.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self.place {
            CodeOrigin::Local => self.level.as_str(),
            CodeOrigin::BuiltIn => "built-in",
            CodeOrigin::Remote => "remote",
        }
    }
}

/// Why nothing was started; `-32010` on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum SandboxRefusal {
    /// The level or a part of it can't be had here (R32).
    #[error("sandbox level `{level}` is not available: {mechanism}: {missing}; {hint}")]
    Unavailable {
        /// The level asked for.
        level: Level,
        /// The mechanism that would enforce it.
        mechanism: String,
        /// What is missing on this host.
        missing: String,
        /// The cure.
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
    /// The enclosed process could not be set up; the tool itself did not run (R36).
    #[error("could not start `{program}`: {reason}")]
    Setup {
        /// The program that was to run.
        program: String,
        /// The cause, and what would mend it.
        reason: String,
    },
}

impl SandboxRefusal {
    /// The `data` member of the wire error.
    #[must_use]
    pub fn data(&self) -> Value {
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
