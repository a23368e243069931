//! The counted amounts: tokens, money, time, calls, bytes out. Whole numbers only.

use serde::{Deserialize, Serialize};

/// The unit of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetUnit {
    /// Input and output tokens of models.
    Tokens,
    /// Millionths of a US dollar.
    CostMicrousd,
    /// Milliseconds that models and tools worked, summed over what ran side by side.
    BusyMs,
    /// Tool calls that ran.
    Calls,
    /// Bytes handed to models, and as arguments to tools that are not pure.
    BytesOut,
}

impl BudgetUnit {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Tokens,
        Self::CostMicrousd,
        Self::BusyMs,
        Self::Calls,
        Self::BytesOut,
    ];

    /// The name of the unit in `clawk.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::CostMicrousd => "cost_microusd",
            Self::BusyMs => "busy_ms",
            Self::Calls => "calls",
            Self::BytesOut => "bytes_out",
        }
    }
}

/// So much of each unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetAmount {
    /// See [`BudgetUnit::Tokens`].
    pub tokens: u64,
    /// See [`BudgetUnit::CostMicrousd`].
    pub cost_microusd: u64,
    /// See [`BudgetUnit::BusyMs`].
    pub busy_ms: u64,
    /// See [`BudgetUnit::Calls`].
    pub calls: u64,
    /// See [`BudgetUnit::BytesOut`].
    pub bytes_out: u64,
}

impl BudgetAmount {
    /// No bound at all, where amounts say what is left.
    pub(crate) const UNBOUNDED: Self = Self {
        tokens: u64::MAX,
        cost_microusd: u64::MAX,
        busy_ms: u64::MAX,
        calls: u64::MAX,
        bytes_out: u64::MAX,
    };

    /// So much of one unit.
    #[must_use]
    pub const fn get(&self, unit: BudgetUnit) -> u64 {
        match unit {
            BudgetUnit::Tokens => self.tokens,
            BudgetUnit::CostMicrousd => self.cost_microusd,
            BudgetUnit::BusyMs => self.busy_ms,
            BudgetUnit::Calls => self.calls,
            BudgetUnit::BytesOut => self.bytes_out,
        }
    }

    pub(crate) const fn cap_unit(&mut self, unit: BudgetUnit, at_most: u64) {
        let own = match unit {
            BudgetUnit::Tokens => &mut self.tokens,
            BudgetUnit::CostMicrousd => &mut self.cost_microusd,
            BudgetUnit::BusyMs => &mut self.busy_ms,
            BudgetUnit::Calls => &mut self.calls,
            BudgetUnit::BytesOut => &mut self.bytes_out,
        };
        if *own > at_most {
            *own = at_most;
        }
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            cost_microusd: self.cost_microusd.saturating_add(other.cost_microusd),
            busy_ms: self.busy_ms.saturating_add(other.busy_ms),
            calls: self.calls.saturating_add(other.calls),
            bytes_out: self.bytes_out.saturating_add(other.bytes_out),
        }
    }

    /// The larger of both, unit by unit.
    pub fn unitwise_max(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.max(other.tokens),
            cost_microusd: self.cost_microusd.max(other.cost_microusd),
            busy_ms: self.busy_ms.max(other.busy_ms),
            calls: self.calls.max(other.calls),
            bytes_out: self.bytes_out.max(other.bytes_out),
        }
    }

    /// The smaller of both, unit by unit.
    pub fn unitwise_min(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.min(other.tokens),
            cost_microusd: self.cost_microusd.min(other.cost_microusd),
            busy_ms: self.busy_ms.min(other.busy_ms),
            calls: self.calls.min(other.calls),
            bytes_out: self.bytes_out.min(other.bytes_out),
        }
    }

    /// Each unit less that of `other`, at least 0.
    pub const fn minus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            cost_microusd: self.cost_microusd.saturating_sub(other.cost_microusd),
            busy_ms: self.busy_ms.saturating_sub(other.busy_ms),
            calls: self.calls.saturating_sub(other.calls),
            bytes_out: self.bytes_out.saturating_sub(other.bytes_out),
        }
    }

    /// Nothing of anything.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}
