//! Policy (CKP §5.8): which calls are allowed, need approval or are denied. The first matching rule decides.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ManifestDuration, closed::closed_set};

closed_set! {
    /// The action of a matching rule.
    pub enum RuleAction {
        Allow = "allow", Deny = "deny", RequireApproval = "require-approval",
        /// Allow, with a full audit event (R16).
        AuditOnly = "audit-only",
    }
}

closed_set! {
    /// The scope of a rule (R11).
    pub enum RuleScope { Tool = "tool", Category = "category", All = "all" }
}

closed_set! {
    /// The decision if no person answers in time.
    pub enum TimeoutDefault { Deny = "deny", Allow = "allow" }
}

closed_set! {
    /// The detection of prompt injection.
    pub enum InjectionDetection { Pattern = "pattern", LlmBased = "llm-based", Hybrid = "hybrid", None = "none" }
}

closed_set! {
    /// The action for a suspected prompt injection.
    pub enum InjectionAction { BlockAndLog = "block-and-log", Warn = "warn", LogOnly = "log-only", Ignore = "ignore" }
}

closed_set! {
    /// Which texts are scanned for secrets.
    pub enum ScanScope { Input = "input", Output = "output", Both = "both" }
}

closed_set! {
    /// The action for a found secret.
    pub enum ScanAction { Redact = "redact", Block = "block", Warn = "warn" }
}

closed_set! {
    /// The destination of audit records.
    pub enum AuditDestination { File = "file", Sqlite = "sqlite", Webhook = "webhook", Syslog = "syslog" }
}

/// Which calls are allowed, need approval or are denied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Unique name; `policy-N` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The rules, at least one; ids are unique within the policy.
    pub rules: Vec<Rule>,
    /// Defence against prompt injection; `None`: not configured.
    #[serde(default)]
    pub prompt_injection: Option<PromptInjection>,
    /// Secret scanning; `None`: not configured.
    #[serde(default)]
    pub secret_scanning: Option<SecretScanning>,
    /// Input validation; `None`: not configured.
    #[serde(default)]
    pub input_validation: Option<InputValidation>,
    /// Rate limits of the whole agent; calls above them are refused.
    #[serde(default)]
    pub rate_limits: PolicyRates,
    /// Audit; `None`: only the trace.
    #[serde(default)]
    pub audit: Option<Audit>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The rule's name in verdicts and in the trace.
    pub id: String,
    /// The action when the rule matches: allow, deny, ask a person, or allow and audit.
    pub action: RuleAction,
    /// The kind of calls that the rule is for.
    pub scope: RuleScope,
    /// Which tools the rule matches. Every given key must match.
    #[serde(default, rename = "match")]
    pub matcher: RuleMatch,
    /// Conditions on the arguments, as given, such as `path_within`.
    #[serde(default)]
    pub conditions: Map<String, Value>,
    /// The rule applies once this limit is used up (R11).
    #[serde(default)]
    pub rate_limit: Option<RuleRate>,
    /// A text for the person who is asked and for the caller who is refused.
    #[serde(default)]
    pub reason: Option<String>,
    /// The settings of the question, for `require-approval`.
    #[serde(default)]
    pub approval: Approval,
}

impl Rule {
    /// The value of `conditions.path_within`.
    #[must_use]
    pub fn path_within(&self) -> Option<&str> {
        self.conditions.get("path_within").and_then(Value::as_str)
    }
}

/// The conditions on a tool. All given conditions must hold (R11).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleMatch {
    /// The tool's name, or a glob such as `file-*`.
    pub name: Option<String>,
    /// The tool's `labels.category`.
    pub category: Option<String>,
    /// Labels that the tool must have, with these values.
    pub labels: BTreeMap<String, String>,
    /// Annotations that the tool must have, with these values.
    pub annotations: Map<String, Value>,
}

impl RuleMatch {
    /// Whether there is no condition.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.name.is_none()
            && self.category.is_none()
            && self.labels.is_empty()
            && self.annotations.is_empty()
    }
}

/// Limits that make a rule apply once they are used up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleRate {
    /// US dollars per UTC day.
    pub cost_per_day_usd: Option<f64>,
    /// Tokens per UTC day.
    pub tokens_per_day: Option<u64>,
}

/// The settings of a question for approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Approval {
    /// How long the question stays open; at least 1, 300 by default.
    pub timeout_seconds: u64,
    /// The decision without an answer; `deny` by default (R16).
    pub default_if_timeout: TimeoutDefault,
}

impl Default for Approval {
    fn default() -> Self {
        Self {
            timeout_seconds: 300,
            default_if_timeout: TimeoutDefault::Deny,
        }
    }
}

/// How clawk looks for instructions in text that is only data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PromptInjection {
    /// The detection method; `pattern` by default (runtime profile §1).
    pub detection: InjectionDetection,
    /// The pattern engine, as given.
    pub pattern_engine: Option<String>,
    /// The smallest number of patterns; if clawk has fewer, the agent does not start.
    pub pattern_count: Option<u64>,
    /// The action for a suspicious text; `block-and-log` by default.
    pub action: InjectionAction,
}

impl Default for PromptInjection {
    fn default() -> Self {
        Self {
            detection: InjectionDetection::Pattern,
            pattern_engine: None,
            pattern_count: None,
            action: InjectionAction::BlockAndLog,
        }
    }
}

/// Looks for secrets in arguments, results, or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecretScanning {
    /// Whether scanning is on; the default is `true` if the block exists.
    pub enabled: bool,
    /// Which text is scanned; `output` by default.
    pub scope: ScanScope,
    /// The smallest number of built-in patterns.
    pub patterns: u64,
    /// The action for a secret; `redact` by default.
    pub action: ScanAction,
}

impl Default for SecretScanning {
    fn default() -> Self {
        Self {
            enabled: true,
            scope: ScanScope::Output,
            patterns: 22,
            action: ScanAction::Redact,
        }
    }
}

/// Checks text before a tool gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InputValidation {
    /// The largest input, in bytes.
    pub max_size_bytes: Option<u64>,
    /// Refuse null bytes; the default is `true` if the block exists.
    pub null_byte_detection: bool,
    /// Looks for text that white space hides.
    pub whitespace_analysis: bool,
    /// Expected encoding; `utf-8` by default.
    pub encoding: String,
}

impl Default for InputValidation {
    fn default() -> Self {
        Self {
            max_size_bytes: None,
            null_byte_detection: true,
            whitespace_analysis: false,
            encoding: "utf-8".to_owned(),
        }
    }
}

/// Rate limits of the whole agent; `None` means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyRates {
    /// Tool calls per minute.
    pub tool_calls_per_minute: Option<u64>,
    /// Tokens per hour.
    pub tokens_per_hour: Option<u64>,
    /// US dollars per UTC day.
    pub cost_per_day_usd: Option<f64>,
}

/// Where clawk writes audit records of calls, and what they hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Records arguments.
    pub log_inputs: bool,
    /// Records results.
    pub log_outputs: bool,
    /// Records approvals; on by default.
    pub log_approvals: bool,
    /// How long records are kept; `None`: for ever.
    pub retention: Option<ManifestDuration>,
    /// The destination; `sqlite` by default.
    pub destination: AuditDestination,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            log_inputs: false,
            log_outputs: false,
            log_approvals: true,
            retention: None,
            destination: AuditDestination::Sqlite,
        }
    }
}
