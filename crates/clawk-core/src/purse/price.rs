//! The prices of models: `[prices]` of `clawk.toml` first, then the catalogue.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model_catalogue::ModelCatalogue;
use crate::ports::Usage;

/// One model's price, in millionths of a US dollar per million tokens: 3 dollars per million tokens are 3,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenPrice {
    /// Tokens read.
    pub input: u64,
    /// Tokens written.
    pub output: u64,
    /// Tokens read from the server's cache; absent: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<u64>,
    /// Tokens written into the server's cache; absent: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<u64>,
}

const MILLION: u128 = 1_000_000;

impl TokenPrice {
    /// Costs nothing.
    pub const FREE: Self = Self {
        input: 0,
        output: 0,
        cached_input: None,
        cache_write: None,
    };

    /// The cost of this usage in millionths of a US dollar, rounded up.
    ///
    /// ```
    /// use clawk_core::ports::Usage;
    /// use clawk_core::purse::TokenPrice;
    ///
    /// // 3 dollars per million input tokens, 15 dollars per million output tokens.
    /// let price = TokenPrice { input: 3_000_000, output: 15_000_000, cached_input: None, cache_write: None };
    /// let usage = Usage { input_tokens: 1_000, output_tokens: 200, ..Usage::default() };
    /// assert_eq!(price.cost_of(&usage), 6_000); // 0.006 dollars
    /// ```
    #[must_use]
    pub fn cost_of(&self, usage: &Usage) -> u64 {
        let cached = usage.cached_tokens.min(usage.input_tokens);
        let written = usage.cache_write_tokens.min(usage.input_tokens - cached);
        let plain = usage.input_tokens - cached - written;
        let parts = [
            (plain, self.input),
            (cached, self.cached_input.unwrap_or(self.input)),
            (written, self.cache_write.unwrap_or(self.input)),
            (usage.output_tokens, self.output),
        ];
        let sum: u128 = parts
            .into_iter()
            .map(|(tokens, price)| u128::from(tokens) * u128::from(price))
            .sum();
        round_up_microusd(sum)
    }

    /// The most that so many tokens can cost, whatever the cache does.
    #[must_use]
    pub fn at_most(&self, input: u64, output: u64) -> u64 {
        let dearest = self.input.max(self.cache_write.unwrap_or(0));
        let sum = u128::from(input) * u128::from(dearest) + u128::from(output) * u128::from(self.output);
        round_up_microusd(sum)
    }

    /// The most output tokens that money pays for after `input` tokens; `None`: not even those.
    #[must_use]
    pub fn output_for(&self, microusd: u64, input: u64) -> Option<u64> {
        let left = microusd.checked_sub(self.at_most(input, 0))?;
        if self.output == 0 {
            return Some(u64::MAX);
        }
        Some(u64::try_from(u128::from(left) * MILLION / u128::from(self.output)).unwrap_or(u64::MAX))
    }
}

/// The most money that one attempt can cost, millionths of a dollar: what the journal records exactly.
const MICROUSD_MAX: u64 = 1 << 53;

/// Of so many millionths of a millionth, rounded up.
fn round_up_microusd(sum: u128) -> u64 {
    // silent-ok: as much as there can be
    u64::try_from(sum.div_ceil(MILLION)).map_or(MICROUSD_MAX, |cost| cost.min(MICROUSD_MAX))
}

/// The rule for a model whose price is not in any table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum UnknownPriceRule {
    /// A word.
    Word(UnknownWord),
    /// As if it cost this.
    As(TokenPrice),
}

/// See [`UnknownPriceRule`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownWord {
    /// Where money is limited, it is not asked.
    #[default]
    Refuse,
    /// It costs nothing.
    Free,
}

impl Default for UnknownPriceRule {
    fn default() -> Self {
        Self::Word(UnknownWord::Refuse)
    }
}

/// `[prices]` of `clawk.toml`: prices by model name, in which `*` matches any text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriceTable {
    /// What holds for a model that neither this nor the catalogue prices: `"refuse"`, `"free"`, or a price.
    pub unknown: UnknownPriceRule,
    /// By model name.
    #[serde(flatten)]
    pub models: BTreeMap<String, TokenPrice>,
    /// What vendors say of their models.
    #[serde(skip, default = "ModelCatalogue::built_in")]
    pub catalogue: Arc<ModelCatalogue>,
}

impl Default for PriceTable {
    fn default() -> Self {
        Self {
            unknown: UnknownPriceRule::default(),
            models: BTreeMap::new(),
            catalogue: ModelCatalogue::built_in(),
        }
    }
}

/// What is known of a model's price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PriceQuote {
    Known(TokenPrice),
    Unknown,
}

impl PriceTable {
    /// The catalogue alone knows this model's price.
    pub(crate) fn is_shipped(&self, model: &str) -> bool {
        let own = self.models.keys().any(|name| matches_pattern(name, model));
        !own && self.listed_price(model).is_some()
    }

    fn listed_price(&self, model: &str) -> Option<TokenPrice> {
        self.catalogue.find_facts(model)?.price
    }

    /// The exact name first, then the longest pattern, then the catalogue, then `unknown`.
    pub(crate) fn quote_price(&self, model: &str) -> PriceQuote {
        let own = self.models.get(model).or_else(|| {
            let fits = self
                .models
                .iter()
                .filter(|(name, _)| matches_pattern(name, model));
            fits.max_by_key(|(name, _)| name.len()).map(|(_, price)| price)
        });
        match (own.copied().or_else(|| self.listed_price(model)), self.unknown) {
            (Some(price), _) | (None, UnknownPriceRule::As(price)) => PriceQuote::Known(price),
            (None, UnknownPriceRule::Word(UnknownWord::Free)) => PriceQuote::Known(TokenPrice::FREE),
            (None, UnknownPriceRule::Word(UnknownWord::Refuse)) => PriceQuote::Unknown,
        }
    }
}

/// `*` is any text; everything else is itself.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{PriceQuote, PriceTable, TokenPrice, UnknownPriceRule, UnknownWord, matches_pattern};
    use crate::ports::Usage;

    #[test]
    fn the_nearest_name_wins_and_the_operators_come_first() {
        let mut prices = PriceTable::default();
        assert_eq!(prices.quote_price("house-model"), PriceQuote::Unknown);
        let PriceQuote::Known(mini) = prices.quote_price("openai/gpt-4o-mini-2024-07-18") else {
            panic!("it is in the table")
        };
        assert_eq!((mini.input, mini.output), (150_000, 600_000));
        let cheap = TokenPrice {
            input: 1,
            output: 2,
            cached_input: None,
            cache_write: None,
        };
        prices.models.insert("gpt-*".to_owned(), cheap);
        assert_eq!(prices.quote_price("gpt-4o-mini"), PriceQuote::Known(cheap));
        prices.unknown = UnknownPriceRule::Word(UnknownWord::Free);
        assert_eq!(
            prices.quote_price("house-model"),
            PriceQuote::Known(TokenPrice::FREE)
        );
        assert!(
            matches_pattern("a*b*c", "axxbyyc")
                && !matches_pattern("a*b*c", "axxbyy")
                && !matches_pattern("ab", "abc")
                && matches_pattern("*", "")
        );
    }

    #[test]
    fn a_newer_model_has_no_older_ones_price() {
        let prices = PriceTable::default();
        for known in [
            "gpt-5",
            "gpt-5-2025-08-07",
            "claude-sonnet-4-5-20250929",
            "claude-opus-4-20250514",
            "claude-3-5-haiku-latest",
            "models/gemini-2.5-pro",
        ] {
            assert!(
                matches!(prices.quote_price(known), PriceQuote::Known(_)),
                "{known}"
            );
        }
        for other in [
            "gpt-5.9",
            "gpt-5-ultra",
            "gpt-5.4-pro-max",
            "claude-opus-4-9",
            "claude-opus-6",
            "o30",
            "o3-",
        ] {
            assert_eq!(prices.quote_price(other), PriceQuote::Unknown, "{other}");
        }
    }

    #[test]
    fn cached_tokens_cost_what_the_cache_costs_and_nothing_is_rounded_down() {
        let price = TokenPrice {
            input: 3_000_000,
            output: 15_000_000,
            cached_input: Some(300_000),
            cache_write: None,
        };
        let usage = Usage {
            input_tokens: 1_000,
            cached_tokens: 900,
            output_tokens: 10,
            ..Usage::default()
        };
        assert_eq!(price.cost_of(&usage), 100 * 3 + 270 + 150);
        assert_eq!(
            price.cost_of(&Usage {
                output_tokens: 0,
                input_tokens: 1,
                cached_tokens: 1,
                ..Usage::default()
            }),
            1
        );
        assert_eq!(price.output_for(price.at_most(100, 7), 100), Some(7));
        assert_eq!(price.output_for(299, 100), None);
    }
}
