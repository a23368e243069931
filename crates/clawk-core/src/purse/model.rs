//! A model's own purse: its provider's limits (CKP §5.2), its price, and how many tokens its bytes make.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clawk_manifest::model::{Provider, ProviderLimits, ProviderProtocol};

use super::amount::{BudgetAmount, BudgetUnit};
use super::book::{BudgetAccountId, BudgetLedger, BudgetReservation};
use super::limit::{Limit, UnpricedRule, Window};
use super::price::{PriceQuote, PriceTable, TokenPrice};
use super::report::ModelPrice;
use super::{BudgetAccount, BudgetTree};
use crate::error::CallError;
use crate::ports::{TokenReport, Usage};
use crate::retry_policy::ModelOptions;
use crate::time::Timestamp;

/// Output tokens asked for where the model's maximum is not known, and no purse's share is cut below that.
const OUTPUT_TOKENS: u64 = 4096;
/// One answer's part of what a purse still holds, at most: an answer that may be long must not keep all others waiting.
const SHARE: u64 = 4;
/// Milliseconds set aside for one attempt when no limit says less.
const ATTEMPT_MS: u64 = 600_000;
const MINUTE_US: i64 = 60_000_000;
/// Tokens per thousand bytes before a server's own counts are known, and at most.
const FIRST_RATIO: u64 = 250;
const MAX_RATIO: u64 = 1000;
/// Requests shorter than this say nothing about the ratio: the server's own frame outweighs them.
const TELLING_BYTES: u64 = 2000;

/// What is known and limited of one provider.
#[derive(Debug)]
pub(super) struct ModelBudget {
    pub(super) id: BudgetAccountId,
    model: String,
    limits: ProviderLimits,
    quote: PriceQuote,
    shipped: bool,
    said_unknown: AtomicBool,
    /// Output tokens as the operator has said.
    given_output: Option<u64>,
    /// The price is nobody's word, but the dearest of the catalogue.
    guessed: bool,
    /// The model's own maximum of output tokens, and its window.
    output_tokens: Option<u64>,
    window_tokens: Option<u64>,
    /// Tokens read since the start, and of them those from the server's cache.
    read_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    /// Tokens per thousand bytes: the most that the server has counted so far.
    ratio: AtomicU64,
    requests: Mutex<VecDeque<Timestamp>>,
}

impl ModelBudget {
    pub(super) fn new(
        book: &BudgetLedger,
        spec: &Provider,
        (prices, local, unpriced): (&PriceTable, &BTreeMap<String, ModelOptions>, UnpricedRule),
        now: Timestamp,
    ) -> Self {
        let scope = format!("provider {}", spec.name);
        let day = Limit {
            unit: BudgetUnit::Tokens,
            window: Window::Day,
            bound: spec.limits.tokens_per_day.unwrap_or(u64::MAX),
            scope: scope.clone(),
            name: "tokens_per_day".to_owned(),
        };
        // A scripted model has no server, and no bill.
        let quote = match prices.quote_price(&spec.model) {
            PriceQuote::Unknown if spec.protocol == ProviderProtocol::Custom => {
                PriceQuote::Known(TokenPrice::FREE)
            }
            quote => quote,
        };
        let highest = match (quote, unpriced) {
            (PriceQuote::Unknown, UnpricedRule::EstimateHighest) => prices.catalogue.highest_price(),
            (PriceQuote::Unknown, UnpricedRule::Refuse) | (PriceQuote::Known(_), _) => None,
        };
        let facts = prices.catalogue.find_facts(&spec.model);
        Self {
            id: book.open_account(
                None,
                scope,
                vec![day],
                Some(format!("provider:{}", spec.name)),
                now,
            ),
            model: spec.model.clone(),
            limits: spec.limits.clone(),
            quote: highest.map_or(quote, PriceQuote::Known),
            guessed: highest.is_some(),
            shipped: prices.is_shipped(&spec.model),
            said_unknown: AtomicBool::new(false),
            given_output: local.get(&spec.name).and_then(|local| local.max_output_tokens),
            output_tokens: facts.and_then(|facts| facts.output_tokens),
            window_tokens: facts.and_then(|facts| facts.window_tokens),
            read_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            ratio: AtomicU64::new(FIRST_RATIO),
            requests: Mutex::default(),
        }
    }

    pub(super) const fn price(&self) -> Option<TokenPrice> {
        match self.quote {
            PriceQuote::Known(price) => Some(price),
            PriceQuote::Unknown => None,
        }
    }

    /// What is known of its price, for people.
    pub(super) fn model_price(&self, provider: &str) -> ModelPrice {
        ModelPrice {
            provider: provider.to_owned(),
            model: self.model.clone(),
            price: match self.quote {
                PriceQuote::Known(price) => Some(price),
                PriceQuote::Unknown => None,
            },
            shipped: self.shipped,
            guessed: self.guessed,
            read_tokens: self.read_tokens.load(Ordering::Relaxed),
            cached_tokens: self.cached_tokens.load(Ordering::Relaxed),
        }
    }

    fn estimate_tokens(&self, bytes: u64) -> u64 {
        let ratio = self.ratio.load(Ordering::Relaxed);
        bytes.saturating_mul(ratio).div_ceil(1000)
    }

    /// Output tokens to ask for after so many of input, before any purse says less.
    fn wanted_output(&self, input: u64) -> u64 {
        if let Some(given) = self.given_output {
            return given;
        }
        let Some(output) = self.output_tokens else {
            return OUTPUT_TOKENS;
        };
        let Some(window) = self.limits.max_context_window.or(self.window_tokens) else {
            return output;
        };
        // The count of the input is an estimate: an eighth more of it stays free.
        let room = window.saturating_sub(input.saturating_add(input / 8));
        output.min(room.max(OUTPUT_TOKENS))
    }

    /// What one answer may take of so many tokens that are left.
    fn answer_share(&self, left: u64) -> u64 {
        if self.given_output.is_some() {
            return left;
        }
        left.min((left / SHARE).max(OUTPUT_TOKENS))
    }

    /// A request of this minute, or how long until there is room for one, milliseconds.
    fn take_request(&self, now: Timestamp) -> Result<(), u64> {
        let Some(limit) = self.limits.requests_per_minute else {
            return Ok(());
        };
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        while requests.front().is_some_and(|first| now.0 - first.0 >= MINUTE_US) {
            requests.pop_front();
        }
        if u64::try_from(requests.len()).unwrap_or(u64::MAX) >= limit {
            let oldest = requests.front().copied().unwrap_or(now);
            let wait_us = (oldest.0 + MINUTE_US - now.0).max(1000);
            return Err(u64::try_from(wait_us / 1000).unwrap_or(1) + 1);
        }
        requests.push_back(now);
        Ok(())
    }
}

/// Why an attempt may not start.
#[derive(Debug)]
pub enum NoRoom {
    /// A limit: final (-32021).
    Quota(CallError),
    /// Money is limited and the price is not known: this provider is not asked, another may be.
    Unpriced(String),
    /// `requests_per_minute`: room comes in so many milliseconds.
    Later {
        /// Milliseconds.
        wait_ms: u64,
    },
}

/// What is set aside for one attempt at a model.
#[derive(Debug)]
pub struct AttemptReservation {
    /// What is set aside.
    pub reservation: BudgetReservation,
    /// Tokens of the request, as estimated.
    pub input_tokens: u64,
    /// The largest answer that still fits, tokens.
    pub max_output_tokens: u64,
    /// The price of its tokens; none: not known.
    pub price: Option<TokenPrice>,
}

impl AttemptReservation {
    /// Tokens as set aside.
    pub const fn estimated_usage(&self) -> Usage {
        Usage {
            input_tokens: self.input_tokens,
            output_tokens: self.max_output_tokens,
            cached_tokens: 0,
            cache_write_tokens: 0,
            estimated: true,
            told: None,
            unreadable: false,
        }
    }

    /// What counts of the usage that a provider told. A count that can't be recorded is what was set aside. One that the server sent in a
    /// form that nobody reads is the estimate of what was sent and received, and of the prompt no less than was set aside for it.
    pub fn counted_usage(&self, usage: Usage) -> Usage {
        let aside = self.estimated_usage();
        let count = |told: u64, aside: u64| match told {
            told if told > Usage::TOKENS_MAX => aside,
            told => told,
        };
        let wild = |told: u64| told > Usage::TOKENS_MAX;
        Usage {
            input_tokens: match usage.unreadable {
                true => count(usage.input_tokens.max(aside.input_tokens), aside.input_tokens),
                false => count(usage.input_tokens, aside.input_tokens),
            },
            output_tokens: count(usage.output_tokens, aside.output_tokens),
            // What came from a cache only makes it cheaper: what can't be believed does not.
            cached_tokens: if wild(usage.cached_tokens) {
                0
            } else {
                usage.cached_tokens
            },
            cache_write_tokens: if wild(usage.cache_write_tokens) {
                0
            } else {
                usage.cache_write_tokens
            },
            estimated: usage.estimated || wild(usage.input_tokens) || wild(usage.output_tokens),
            told: usage.told.map(|told| TokenReport {
                input_tokens: told.input_tokens.min(Usage::TOKENS_MAX),
                output_tokens: told.output_tokens.min(Usage::TOKENS_MAX),
            }),
            unreadable: usage.unreadable || wild(usage.input_tokens) || wild(usage.output_tokens),
        }
    }

    /// What this usage cost; `None`: the price is not known.
    pub fn cost(&self, usage: &Usage) -> Option<u64> {
        self.price.map(|price| price.cost_of(usage))
    }

    /// What the attempt took.
    pub fn amount_taken(&self, usage: &Usage, duration_ms: u64) -> BudgetAmount {
        BudgetAmount {
            tokens: usage.total(),
            cost_microusd: self.cost(usage).unwrap_or(0),
            busy_ms: duration_ms,
            calls: 0,
            bytes_out: self.reservation.amount.bytes_out,
        }
    }
}

impl BudgetTree {
    /// Sets tokens, money and time aside for one attempt at a model whose request has so many bytes.
    ///
    /// # Errors
    /// A limit is reached, or money is limited and the price is not known.
    pub fn reserve_inference(
        &self,
        purse: &BudgetAccount,
        provider: &str,
        bytes: u64,
        now: Timestamp,
    ) -> Result<AttemptReservation, NoRoom> {
        let Some(model) = self.models.get(provider) else {
            return Err(NoRoom::Quota(CallError::Unavailable {
                tool: provider.to_owned(),
                reason: "no such provider".to_owned(),
            }));
        };
        let input = model.estimate_tokens(bytes);
        let most = output_by_request(provider, model, input).map_err(NoRoom::Quota)?;
        let price = match model.quote {
            PriceQuote::Known(price) => Some(price),
            PriceQuote::Unknown => {
                if !model.said_unknown.swap(true, Ordering::Relaxed) {
                    tracing::warn!(model = %model.model, "its price is not known; `[prices]` of clawk.toml can give it");
                }
                None
            }
        };
        let mut blind = self.rules_count_money && price.is_none();
        let mut output = most;
        let path: Arc<[BudgetAccountId]> = [model.id].iter().chain(&*purse.0.path).copied().collect();
        let reserved = self.book.reserve_amount(path, now, |left| {
            output = output.min(model.answer_share(left.tokens.saturating_sub(input)));
            if output == 0 {
                return Err((BudgetUnit::Tokens, input.max(1)));
            }
            blind |= price.is_none() && left.cost_microusd != u64::MAX;
            let mut cost = 0;
            if let Some(price) = price.filter(|_| left.cost_microusd != u64::MAX) {
                output =
                    output.min(model.answer_share(price.output_for(left.cost_microusd, input).unwrap_or(0)));
                cost = price.at_most(input, output);
                if output == 0 {
                    return Err((BudgetUnit::CostMicrousd, price.at_most(input, 1)));
                }
            }
            let busy_ms = left.busy_ms.min(ATTEMPT_MS);
            if busy_ms == 0 {
                return Err((BudgetUnit::BusyMs, 1));
            }
            Ok(BudgetAmount {
                tokens: input.saturating_add(output),
                cost_microusd: cost,
                busy_ms,
                calls: 0,
                bytes_out: bytes,
            })
        });
        if blind {
            // Dropped, a reservation that was made is given back.
            return Err(NoRoom::Unpriced(format!(
                "provider `{provider}`: money is limited and the price of the model `{0}` is not known; give it in `[prices.\"{0}\"]` of clawk.toml, or say what holds with `[prices] unknown` or `[budgets] unpriced`",
                model.model
            )));
        }
        let reservation = reserved.map_err(NoRoom::Quota)?;
        model
            .take_request(now)
            .map_err(|wait_ms| NoRoom::Later { wait_ms })?;
        Ok(AttemptReservation {
            reservation,
            input_tokens: input,
            max_output_tokens: output,
            price,
        })
    }

    /// Sets tokens, money and time aside for one request of so many bytes to an embedding model of a provider; it writes nothing.
    ///
    /// # Errors
    /// A limit is reached, or money is limited and the price is not known.
    pub fn reserve_embedding(
        &self,
        purse: &BudgetAccount,
        provider: &str,
        embedder: &str,
        bytes: u64,
        now: Timestamp,
    ) -> Result<AttemptReservation, NoRoom> {
        let Some(model) = self.models.get(provider) else {
            return Err(NoRoom::Unpriced(format!("no such provider: {provider}")));
        };
        let input = model.estimate_tokens(bytes);
        let price = match self.embedders.get(embedder) {
            Some(PriceQuote::Known(price)) => Some(*price),
            Some(PriceQuote::Unknown) | None => None,
        };
        self.reserve_known_usage(
            purse,
            (provider, embedder),
            (model, price),
            (bytes, input, 0),
            now,
        )
    }

    /// The same for one request of so many bytes to a speech model, which is counted for `usage`: its server counts no tokens.
    ///
    /// # Errors
    /// A limit is reached, or money is limited and the price is not known.
    pub fn reserve_speech(
        &self,
        purse: &BudgetAccount,
        provider: &str,
        (bytes, usage): (u64, Usage),
        now: Timestamp,
    ) -> Result<AttemptReservation, NoRoom> {
        let Some(model) = self.models.get(provider) else {
            return Err(NoRoom::Unpriced(format!("no such provider: {provider}")));
        };
        let counted = (bytes, usage.input_tokens, usage.output_tokens);
        self.reserve_known_usage(
            purse,
            (provider, &model.model),
            (model, model.price()),
            counted,
            now,
        )
    }

    /// Sets aside what a request takes whose tokens are known before: `bytes`, tokens of input and of output.
    fn reserve_known_usage(
        &self,
        purse: &BudgetAccount,
        (provider, asked): (&str, &str),
        (model, price): (&ModelBudget, Option<TokenPrice>),
        (bytes, input, output): (u64, u64, u64),
        now: Timestamp,
    ) -> Result<AttemptReservation, NoRoom> {
        let mut blind = self.rules_count_money && price.is_none();
        let path: Arc<[BudgetAccountId]> = [model.id].iter().chain(&*purse.0.path).copied().collect();
        let reserved = self.book.reserve_amount(path, now, |left| {
            if left.tokens < input.saturating_add(output) {
                return Err((BudgetUnit::Tokens, input.saturating_add(output)));
            }
            blind |= price.is_none() && left.cost_microusd != u64::MAX;
            let cost = price.map_or(0, |price| price.at_most(input, output));
            if left.cost_microusd < cost {
                return Err((BudgetUnit::CostMicrousd, cost));
            }
            let busy_ms = left.busy_ms.min(ATTEMPT_MS);
            if busy_ms == 0 {
                return Err((BudgetUnit::BusyMs, 1));
            }
            Ok(BudgetAmount {
                tokens: input.saturating_add(output),
                cost_microusd: cost,
                busy_ms,
                calls: 0,
                bytes_out: bytes,
            })
        });
        if blind {
            return Err(NoRoom::Unpriced(format!(
                "provider `{provider}`: money is limited and the price of the model `{asked}` is not known; give it in `[prices.\"{asked}\"]` of clawk.toml"
            )));
        }
        let reservation = reserved.map_err(NoRoom::Quota)?;
        model
            .take_request(now)
            .map_err(|wait_ms| NoRoom::Later { wait_ms })?;
        Ok(AttemptReservation {
            reservation,
            input_tokens: input,
            max_output_tokens: output,
            price,
        })
    }

    /// Gives back the place in the minute that the last attempt took here: other hosts have used the minute up, or a limit.
    pub fn give_back_request(&self, provider: &str) {
        if let Some(model) = self.models.get(provider) {
            let mut requests = model.requests.lock().unwrap_or_else(PoisonError::into_inner);
            requests.pop_back();
        }
    }

    /// Learns from a server's own count how many tokens its bytes make; upwards only.
    pub fn learn_token_rate(&self, provider: &str, bytes: u64, usage: &Usage) {
        let Some(model) = self.models.get(provider) else {
            return;
        };
        let read = usage.input_tokens.min(Usage::TOKENS_MAX);
        model.read_tokens.fetch_add(read, Ordering::Relaxed);
        model
            .cached_tokens
            .fetch_add(usage.cached_tokens.min(read), Ordering::Relaxed);
        if !usage.estimated && bytes >= TELLING_BYTES {
            let seen = usage.input_tokens.saturating_mul(1000).div_ceil(bytes.max(1));
            model.ratio.fetch_max(seen.min(MAX_RATIO), Ordering::Relaxed);
        }
    }
}

/// The most output tokens that one request may ask for.
fn output_by_request(provider: &str, model: &ModelBudget, input: u64) -> Result<u64, CallError> {
    let wanted = model.wanted_output(input);
    let Some(limit) = model.limits.tokens_per_request else {
        return Ok(wanted);
    };
    match wanted.min(limit.saturating_sub(input)) {
        0 => Err(CallError::Quota {
            scope: format!("provider {provider}"),
            limit_name: "tokens_per_request".to_owned(),
            limit,
            used: 0,
            wanted: input,
            resets_at: None,
            rule_id: None,
        }),
        most => Ok(most),
    }
}
