//! The verdict of a decision, and the order of strictness among verdicts.

use std::cmp::Ordering;
use std::sync::Arc;

use clawk_manifest::model::AutonomyLevel;
pub use clawk_manifest::model::TimeoutDefault;

/// How clawk asks a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approval {
    /// How long the question stays open, milliseconds.
    pub timeout_ms: u64,
    /// The decision if no person answers in time.
    pub default_if_timeout: TimeoutDefault,
}

impl Default for Approval {
    /// Five minutes, then no. Used if a rule or the autonomy asks without further settings.
    fn default() -> Self {
        Self {
            timeout_ms: 300_000,
            default_if_timeout: TimeoutDefault::Deny,
        }
    }
}

/// The effect of a rule, an autonomy level or a whole stack of layers on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Run the call.
    Allow,
    /// Run the call and write a full audit event (R16).
    AuditOnly,
    /// Ask a person first.
    Ask(Approval),
    /// Refuse the call.
    Deny,
}

impl Effect {
    /// The manifest's name for it: `allow`, `audit-only`, `require-approval`, `deny`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::AuditOnly => "audit-only",
            Self::Ask(_) => "require-approval",
            Self::Deny => "deny",
        }
    }

    /// A higher rank is stricter. Of two questions, the one that refuses without an answer is stricter.
    const fn strictness_rank(self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::AuditOnly => 1,
            Self::Ask(Approval {
                default_if_timeout: TimeoutDefault::Allow,
                ..
            }) => 2,
            Self::Ask(Approval {
                default_if_timeout: TimeoutDefault::Deny,
                ..
            }) => 3,
            Self::Deny => 4,
        }
    }
}

/// A used-up `rate_limit` of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentLimit {
    /// `tokens_per_day` or `cost_per_day_usd`.
    pub name: &'static str,
    /// The limit: tokens, or millionths of a US dollar.
    pub limit: u64,
    /// The usage so far in the current UTC day.
    pub used: u64,
}

/// A decision with its origin. Cloning copies three reference counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What happens to the call.
    pub effect: Effect,
    /// The rule that decided; `None` if no rule did (R14, autonomy).
    pub rule_id: Option<Arc<str>>,
    /// The policy that holds the rule.
    pub policy: Option<Arc<str>>,
    /// The reason for people: the rule's own `reason`, or a generated one.
    pub reason: Option<Arc<str>>,
    /// A full audit event must be written, whatever the effect: an `audit-only` verdict took part (R16).
    pub audit: bool,
    /// The rule applied because its `rate_limit` is used up: a refusal is `-32021`, not `-32011` (R16a).
    pub limit_spent: bool,
    /// The used-up limit.
    pub limit: Option<SpentLimit>,
    /// The rule depends on the origins in the context, so no standing grant overrides it.
    pub taint: bool,
}

impl Verdict {
    /// An allowance that no rule made.
    #[must_use]
    pub const fn allow() -> Self {
        Self {
            effect: Effect::Allow,
            rule_id: None,
            policy: None,
            reason: None,
            audit: false,
            limit_spent: false,
            limit: None,
            taint: false,
        }
    }

    /// A refusal that no rule made.
    #[must_use]
    pub fn deny(reason: impl Into<Arc<str>>) -> Self {
        Self {
            effect: Effect::Deny,
            reason: Some(reason.into()),
            ..Self::allow()
        }
    }

    /// Whether the call runs without a person.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.effect, Effect::Allow | Effect::AuditOnly)
    }

    /// The stricter of two layers' verdicts (R12): deny, then ask, then audit-only, then allow. If they are equal, a verdict of a
    /// rule wins, so that the trace names the rule; otherwise `self`, the outer layer. An audit that either one requires stays
    /// required. If both ask and one of them accepts no standing grant, the result accepts none.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let audit = self.audit || other.audit;
        let both_ask = matches!((&self.effect, &other.effect), (Effect::Ask(_), Effect::Ask(_)));
        let taint = both_ask && (self.taint || other.taint);
        let named = self.rule_id.is_none() && other.rule_id.is_some();
        let winner = match other.effect.strictness_rank().cmp(&self.effect.strictness_rank()) {
            Ordering::Greater => other,
            Ordering::Equal if named => other,
            Ordering::Equal | Ordering::Less => self,
        };
        Self {
            audit,
            taint: taint || winner.taint,
            ..winner
        }
    }
}

/// The verdict of the identity's autonomy, before any rule (R13, CKP §5.1).
///
/// `read_only` is true only if the manifest's annotations or the built-in tool's own say `readOnlyHint: true`. The caller applies a
/// person's standing grant to an `Ask`.
#[must_use]
pub fn autonomy_verdict(level: AutonomyLevel, read_only: bool) -> Verdict {
    match (level, read_only) {
        (AutonomyLevel::Observer, _) => {
            Verdict::deny("the identity's autonomy is `observer`: it may not run tools")
        }
        (AutonomyLevel::Supervised, false) => Verdict {
            effect: Effect::Ask(Approval::default()),
            reason: Some("the identity's autonomy is `supervised` and the tool has side effects".into()),
            ..Verdict::allow()
        },
        (AutonomyLevel::Supervised, true) | (AutonomyLevel::Autonomous, _) => Verdict::allow(),
    }
}
