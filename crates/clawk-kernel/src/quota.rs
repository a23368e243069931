//! Provider limits (CKP §5.2): tokens of the day, tokens of a request, requests of a minute.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::{Provider, ProviderLimits};

use crate::error::CallError;
use crate::ports::Usage;
use crate::time::Timestamp;

/// Output tokens asked for when no limit says less.
pub(crate) const DEFAULT_OUTPUT_TOKENS: u64 = 4096;
const DAY_MS: i64 = 86_400_000;
const MINUTE_US: i64 = 60_000_000;

/// What each provider has spent in its windows. The journal's completions are the truth; this is their sum.
#[derive(Debug)]
pub(crate) struct Ledger {
    accounts: BTreeMap<String, Account>,
}

#[derive(Debug)]
struct Account {
    limits: ProviderLimits,
    spent: Mutex<Spent>,
}

#[derive(Debug, Default)]
struct Spent {
    day: i64,
    tokens: u64,
    reserved: u64,
    requests: VecDeque<Timestamp>,
}

impl Spent {
    fn roll(&mut self, now: Timestamp) {
        let day = now.day_start().0;
        if day > self.day {
            self.day = day;
            self.tokens = 0;
        }
        while self
            .requests
            .front()
            .is_some_and(|first| now.0 - first.0 >= MINUTE_US)
        {
            self.requests.pop_front();
        }
    }
}

/// Tokens set aside for one attempt; settled or given back when it ends, whatever way.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    account: &'a Account,
    tokens: u64,
    /// At most so many output tokens fit.
    pub(crate) max_output_tokens: u64,
}

/// Why an attempt may not start.
#[derive(Debug)]
pub(crate) enum NoRoom {
    /// A token limit: final (-32021).
    Quota(CallError),
    /// `requests_per_minute`: room comes in so many milliseconds.
    Later {
        /// Milliseconds.
        wait_ms: u64,
    },
}

fn lock(spent: &Mutex<Spent>) -> MutexGuard<'_, Spent> {
    spent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    pub(crate) fn new(providers: &[Provider]) -> Self {
        let account = |p: &Provider| Account {
            limits: p.limits.clone(),
            spent: Mutex::default(),
        };
        Self {
            accounts: providers.iter().map(|p| (p.name.clone(), account(p))).collect(),
        }
    }

    /// Counts tokens that the journal says were spent today.
    pub(crate) fn restore(&self, provider: &str, tokens: u64, at: Timestamp) {
        if let Some(account) = self.accounts.get(provider) {
            let mut spent = lock(&account.spent);
            spent.roll(at);
            spent.tokens = spent.tokens.saturating_add(tokens);
        }
    }

    /// All tokens of today, over all providers.
    pub(crate) fn tokens_today(&self, now: Timestamp) -> u64 {
        self.accounts.values().fold(0, |sum, account| {
            let mut spent = lock(&account.spent);
            spent.roll(now);
            sum.saturating_add(spent.tokens)
        })
    }

    /// Whether `wanted` more tokens fit into the provider's day; 0 asks whether the day is used up.
    pub(crate) fn check_day(&self, provider: &str, wanted: u64, now: Timestamp) -> Result<(), CallError> {
        let Some(account) = self.accounts.get(provider) else {
            return Ok(());
        };
        let Some(limit) = account.limits.tokens_per_day else {
            return Ok(());
        };
        let mut spent = lock(&account.spent);
        spent.roll(now);
        let used = spent.tokens.saturating_add(spent.reserved);
        if used.saturating_add(wanted.max(1)) > limit {
            return Err(day_quota(provider, limit, used, wanted, now));
        }
        Ok(())
    }

    /// Sets tokens aside for one attempt of about `input` tokens.
    pub(crate) fn reserve(
        &self,
        provider: &str,
        input: u64,
        now: Timestamp,
    ) -> Result<Reservation<'_>, NoRoom> {
        let Some(account) = self.accounts.get(provider) else {
            return Err(NoRoom::Quota(CallError::Unavailable {
                tool: provider.to_owned(),
                reason: "no such provider".to_owned(),
            }));
        };
        let mut spent = lock(&account.spent);
        spent.roll(now);
        let mut output = DEFAULT_OUTPUT_TOKENS;
        if let Some(limit) = account.limits.tokens_per_request {
            output = output.min(limit.saturating_sub(input));
            if output == 0 {
                return Err(NoRoom::Quota(CallError::Quota {
                    scope: format!("provider {provider}"),
                    limit_name: "tokens_per_request".to_owned(),
                    limit,
                    used: 0,
                    wanted: input,
                    resets_at: None,
                }));
            }
        }
        if let Some(limit) = account.limits.tokens_per_day {
            let used = spent.tokens.saturating_add(spent.reserved);
            output = output.min(limit.saturating_sub(used).saturating_sub(input));
            if output == 0 {
                return Err(NoRoom::Quota(day_quota(provider, limit, used, input.max(1), now)));
            }
        }
        if let Some(limit) = account.limits.requests_per_minute {
            let taken = u64::try_from(spent.requests.len()).unwrap_or(u64::MAX);
            if taken >= limit {
                let oldest = spent.requests.front().copied().unwrap_or(now);
                let wait_us = (oldest.0 + MINUTE_US - now.0).max(1000);
                return Err(NoRoom::Later {
                    wait_ms: u64::try_from(wait_us / 1000).unwrap_or(1) + 1,
                });
            }
            spent.requests.push_back(now);
        }
        let tokens = input.saturating_add(output);
        spent.reserved = spent.reserved.saturating_add(tokens);
        Ok(Reservation {
            account,
            tokens,
            max_output_tokens: output,
        })
    }
}

impl Reservation<'_> {
    /// Replaces what was set aside by what was spent.
    pub(crate) fn settle(self, usage: Usage, now: Timestamp) {
        let mut spent = lock(&self.account.spent);
        spent.roll(now);
        spent.tokens = spent.tokens.saturating_add(usage.total());
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut spent = lock(&self.account.spent);
        spent.reserved = spent.reserved.saturating_sub(self.tokens);
    }
}

fn day_quota(provider: &str, limit: u64, used: u64, wanted: u64, now: Timestamp) -> CallError {
    CallError::Quota {
        scope: format!("provider {provider}"),
        limit_name: "tokens_per_day".to_owned(),
        limit,
        used,
        wanted,
        resets_at: Some(now.day_start().plus_millis(DAY_MS).to_string()),
    }
}
