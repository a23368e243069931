//! The catalogue of models: their vendors' data. `models.toml` is built in; `[models] catalogue` in `clawk.toml` names a file that
//! replaces it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use crate::ports::ReasoningEffort;
use crate::purse::TokenPrice;
use crate::time::Timestamp;

/// Number of days before a model's shutdown from which a start and `clawk doctor` warn.
const WARN_DAYS: i64 = 60;

const DAY_MS: i64 = 86_400_000;
const SHIPPED: &str = include_str!("../models.toml");

/// One model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFacts {
    /// The source of the row.
    pub source: String,
    /// The date on which it was read, `YYYY-MM-DD`.
    pub date: String,
    /// Window for prompt and answer, in tokens.
    #[serde(default)]
    pub window_tokens: Option<u64>,
    /// Longest answer, in tokens.
    #[serde(default)]
    pub output_tokens: Option<u64>,
    /// The price.
    #[serde(default)]
    pub price: Option<TokenPrice>,
    /// The preferred API of its vendor's server: `chat`, `responses`, `anthropic`.
    #[serde(default)]
    pub dialect: Option<ModelDialect>,
    /// Supported effort levels; absent: unknown; empty: the model does not think.
    #[serde(default)]
    pub efforts: Option<Vec<ReasoningEffort>>,
    /// Accepted inputs: `text`, `image`, `audio`, `tools`.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The day of its shutdown by the vendor, `YYYY-MM-DD`.
    #[serde(default)]
    pub shutdown: Option<String>,
    /// The model that replaces it.
    #[serde(default)]
    pub successor: Option<String>,
}

/// The API of a vendor's server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelDialect {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's messages.
    Anthropic,
}

/// All known models.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCatalogue {
    /// Date of the catalogue, `YYYY-MM-DD`.
    #[serde(default)]
    date: String,
    /// Stable names that point to current models, for example `openai:small`.
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    /// Models by the vendor's name, without a version's date.
    #[serde(default)]
    models: BTreeMap<String, ModelFacts>,
}

/// Why a catalogue can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// The file can't be parsed.
    #[error("{0}")]
    Syntax(String),
    /// A row is not plausible.
    #[error("`models.\"{model}\".{field}`: {reason}")]
    Row {
        /// The model.
        model: String,
        /// The field.
        field: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// An alias names an unknown model.
    #[error("`aliases.\"{alias}\"` names `{model}`, which the catalogue does not have")]
    Alias {
        /// The alias.
        alias: String,
        /// What it names.
        model: String,
    },
}

impl ModelCatalogue {
    /// Returns the built-in catalogue.
    #[must_use]
    pub fn built_in() -> Arc<Self> {
        static CATALOGUE: OnceLock<Arc<ModelCatalogue>> = OnceLock::new();
        // silent-ok: a test checks that it can be parsed
        Arc::clone(CATALOGUE.get_or_init(|| Arc::new(Self::parse(SHIPPED).unwrap_or_default())))
    }

    /// Parses a catalogue.
    ///
    /// # Errors
    /// The text can't be parsed, or a row is not plausible.
    pub fn parse(text: &str) -> Result<Self, CatalogueError> {
        let read: Self = toml::from_str(text).map_err(|error| CatalogueError::Syntax(error.to_string()))?;
        for (name, facts) in &read.models {
            let fault = |field, reason: &str| CatalogueError::Row {
                model: name.clone(),
                field,
                reason: reason.to_owned(),
            };
            if facts.window_tokens == Some(0) {
                return Err(fault("window_tokens", "must be at least 1"));
            }
            if facts.output_tokens == Some(0) {
                return Err(fault("output_tokens", "must be at least 1"));
            }
            if let Some(day) = &facts.shutdown
                && day_of(day).is_none()
            {
                return Err(fault("shutdown", "must be a day like `2026-12-11`"));
            }
        }
        for (alias, model) in &read.aliases {
            if !read.models.contains_key(model) {
                let (alias, model) = (alias.clone(), model.clone());
                return Err(CatalogueError::Alias { alias, model });
            }
        }
        Ok(read)
    }

    /// Returns the catalogue's date, `YYYY-MM-DD`.
    #[must_use]
    pub fn date(&self) -> &str {
        &self.date
    }

    /// Returns the model of an alias; any other name is returned unchanged.
    #[must_use]
    pub fn resolve_alias<'a>(&'a self, name: &'a str) -> &'a str {
        self.aliases.get(name).map_or(name, String::as_str)
    }

    /// Returns the data about a model. The vendor's prefix, a version's date and the tag of a local model are ignored; a successor
    /// is a different model.
    #[must_use]
    pub fn find_facts(&self, model: &str) -> Option<&ModelFacts> {
        self.facts_by_name(model).map(|(_, facts)| facts)
    }

    fn facts_by_name(&self, model: &str) -> Option<(&str, &ModelFacts)> {
        let model = self.resolve_alias(model);
        let bare = model.rsplit('/').next().unwrap_or(model);
        let bare = bare.split_once(':').map_or(bare, |(name, _)| name);
        let exact = |name: &str| {
            let found = self.models.iter().find(|(known, _)| is_version_of(name, known));
            found.map(|(known, facts)| (known.as_str(), facts))
        };
        // Gateways write Anthropic's versions with a point.
        exact(bare).or_else(|| {
            bare.starts_with("claude")
                .then(|| exact(&bare.replace('.', "-")))
                .flatten()
        })
    }

    /// Returns the highest price in the catalogue for each part. It is the upper limit for a model with an unknown price.
    #[must_use]
    pub fn highest_price(&self) -> Option<TokenPrice> {
        let prices = self.models.values().filter_map(|facts| facts.price);
        prices.reduce(|most, price| TokenPrice {
            input: most.input.max(price.input),
            output: most.output.max(price.output),
            cached_input: None,
            cache_write: most.cache_write.max(price.cache_write),
        })
    }

    /// Returns a warning if a model will be shut down within 60 days, or already was.
    #[must_use]
    pub fn shutdown_warning(&self, model: &str, now: Timestamp) -> Option<String> {
        let (name, facts) = self.facts_by_name(model)?;
        let day = facts.shutdown.as_deref()?;
        let shutdown = day_of(day)?;
        if now.plus_millis(WARN_DAYS * DAY_MS) < shutdown {
            return None;
        }
        let when = if now < shutdown {
            "is shut down on"
        } else {
            "was shut down on"
        };
        let instead = match &facts.successor {
            Some(successor) => format!("; use `{successor}` instead"),
            None => String::new(),
        };
        Some(format!("the model `{name}` {when} {day} by its vendor{instead}"))
    }

    /// Returns why a model does not support this effort; `None`: it does, or nothing is known.
    #[must_use]
    pub fn effort_fault(&self, model: &str, effort: ReasoningEffort) -> Option<String> {
        let known = self.find_facts(model)?.efforts.as_ref()?;
        if known.contains(&effort) {
            return None;
        }
        let names: Vec<String> = known
            .iter()
            .map(|effort| format!("`{}`", effort.as_str()))
            .collect();
        Some(match names.is_empty() {
            true => format!("the model `{model}` has no levels of effort"),
            false => format!(
                "the model `{model}` has no effort `{}`; it has {}",
                effort.as_str(),
                names.join(", ")
            ),
        })
    }

    #[cfg(test)]
    pub(crate) fn models(&self) -> &BTreeMap<String, ModelFacts> {
        &self.models
    }
}

/// Returns the start of a day in UTC.
fn day_of(day: &str) -> Option<Timestamp> {
    Timestamp::parse(&format!("{day}T00:00:00Z")).ok() // silent-ok: whoever asks says what is wrong with it
}

/// Returns whether `model` is a version of `name`: the name alone, or followed by a date or `latest`. `gpt-5.4` is not `gpt-5`,
/// because the price of a newer model can't be derived from an older one's.
fn is_version_of(model: &str, name: &str) -> bool {
    let Some(version) = model.strip_prefix(name) else {
        return false;
    };
    let Some(version) = version.strip_prefix('-') else {
        return version.is_empty();
    };
    let digits = version.chars().filter(char::is_ascii_digit).count();
    let dated = digits >= 3 && version.chars().all(|c| c.is_ascii_digit() || c == '-');
    dated || version == "latest"
}

#[cfg(test)]
mod tests;
