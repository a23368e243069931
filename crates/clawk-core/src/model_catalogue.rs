//! The catalogue of models: what their vendors say of them, as data. `models.toml` is built in; `[models] catalogue` of `clawk.toml`
//! names another file in its place.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;

use crate::ports::ReasoningEffort;
use crate::purse::TokenPrice;
use crate::time::Timestamp;

/// Days before a model's shutdown from which on a start and `clawk doctor` warn.
const WARN_DAYS: i64 = 60;

const DAY_MS: i64 = 86_400_000;
const SHIPPED: &str = include_str!("../models.toml");

/// One model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFacts {
    /// Where its row was read.
    pub source: String,
    /// When, `YYYY-MM-DD`.
    pub date: String,
    /// Tokens of prompt and answer together.
    #[serde(default)]
    pub window_tokens: Option<u64>,
    /// Tokens of one answer, at most.
    #[serde(default)]
    pub output_tokens: Option<u64>,
    /// What it costs.
    #[serde(default)]
    pub price: Option<TokenPrice>,
    /// What its vendor's server speaks best: `chat`, `responses`, `anthropic`.
    #[serde(default)]
    pub dialect: Option<ModelDialect>,
    /// Levels of effort that it has; absent: not known; empty: it does not think.
    #[serde(default)]
    pub efforts: Option<Vec<ReasoningEffort>>,
    /// What it takes: `text`, `image`, `audio`, `tools`.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The day on which its vendor shuts it down, `YYYY-MM-DD`.
    #[serde(default)]
    pub shutdown: Option<String>,
    /// The model to use instead.
    #[serde(default)]
    pub successor: Option<String>,
}

/// What a vendor's server speaks.
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

/// All models that are known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCatalogue {
    /// When it was gathered, `YYYY-MM-DD`.
    #[serde(default)]
    date: String,
    /// Names that stay when models change, for example `openai:small`.
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    /// By the names that vendors give them, without the date of a version.
    #[serde(default)]
    models: BTreeMap<String, ModelFacts>,
}

/// Why a catalogue can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// It does not read.
    #[error("{0}")]
    Syntax(String),
    /// A row that can't be meant.
    #[error("`models.\"{model}\".{field}`: {reason}")]
    Row {
        /// The model.
        model: String,
        /// The field.
        field: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// An alias of nothing.
    #[error("`aliases.\"{alias}\"` names `{model}`, which the catalogue does not have")]
    Alias {
        /// The alias.
        alias: String,
        /// What it names.
        model: String,
    },
}

impl ModelCatalogue {
    /// The one that is built in.
    #[must_use]
    pub fn shipped() -> Arc<Self> {
        static CATALOGUE: OnceLock<Arc<ModelCatalogue>> = OnceLock::new();
        // silent-ok: a test holds that it reads
        Arc::clone(CATALOGUE.get_or_init(|| Arc::new(Self::parse(SHIPPED).unwrap_or_default())))
    }

    /// Reads a catalogue.
    ///
    /// # Errors
    /// It does not read, or a row can't be meant.
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

    /// When it was gathered, `YYYY-MM-DD`.
    #[must_use]
    pub fn date(&self) -> &str {
        &self.date
    }

    /// The model that an alias stands for; any other name stands for itself.
    #[must_use]
    pub fn resolve<'a>(&'a self, name: &'a str) -> &'a str {
        self.aliases.get(name).map_or(name, String::as_str)
    }

    /// What is known of a model. Its vendor's prefix, the date of its version and the tag of a local one do not count; a successor is
    /// another model.
    #[must_use]
    pub fn find(&self, model: &str) -> Option<&ModelFacts> {
        self.named(model).map(|(_, facts)| facts)
    }

    fn named(&self, model: &str) -> Option<(&str, &ModelFacts)> {
        let model = self.resolve(model);
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

    /// The dearest price of all, part by part: what a model costs at most whose price nobody knows.
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

    /// A warning where a model is shut down within 60 days, or has been.
    #[must_use]
    pub fn shutdown_warning(&self, model: &str, now: Timestamp) -> Option<String> {
        let (name, facts) = self.named(model)?;
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

    /// Why a model can't be asked with this effort; `None`: it can, or nothing is known of it.
    #[must_use]
    pub fn effort_fault(&self, model: &str, effort: ReasoningEffort) -> Option<String> {
        let known = self.find(model)?.efforts.as_ref()?;
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

/// The beginning of a day, UTC.
fn day_of(day: &str) -> Option<Timestamp> {
    Timestamp::parse(&format!("{day}T00:00:00Z")).ok() // silent-ok: whoever asks says what is wrong with it
}

/// A model of the catalogue: its name, alone or with the date of a version or `latest` behind it. `gpt-5.4` is not `gpt-5`: what a newer
/// model costs is not known from an older one's price.
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
