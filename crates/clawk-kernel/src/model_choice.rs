//! Which model answers a conversation's next messages, and how much it thinks: what a person chose with `/model NAME [EFFORT]`
//! (ADR 0330). Pure; the session keeps it, and each message's record says what holds for its turn.

pub(crate) use clawk_core::model_choice::ModelChoice;
use serde::Serialize;

use crate::infer::ModelServices;
use crate::ports::ReasoningEffort;
use clawk_manifest::model::Provider as Spec;

/// The word for the manifest's own order.
const DEFAULT_WORD: &str = "default";

/// The model that answers a conversation first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelInUse {
    /// The provider's name.
    pub provider: String,
    /// The model's name.
    pub model: String,
    /// How much it thinks, where anybody said so.
    pub effort: Option<ReasoningEffort>,
}

/// Why a model was not chosen; for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelChoiceError {
    /// No provider of the agent has this name or model.
    #[error("no model `{asked}`; there are {known}")]
    UnknownModel {
        /// What was asked for.
        asked: String,
        /// The models and their providers.
        known: String,
    },
    /// The model has no such effort.
    #[error("the model `{model}` has no effort `{asked}`; it has {known}")]
    UnknownEffort {
        /// What was asked for.
        asked: String,
        /// The model.
        model: String,
        /// Its levels.
        known: String,
    },
    /// The model does not think.
    #[error("the model `{model}` has no levels of effort")]
    NoEffort {
        /// The model.
        model: String,
    },
    /// More words than a model and an effort.
    #[error("it is `/model NAME EFFORT`, where the effort may be left out; `/model default` goes back")]
    Words,
}

/// Reads `NAME`, `NAME EFFORT`, `EFFORT` or `default`. `current`: what was chosen before.
///
/// # Errors
/// There is no such model, or it has no such effort.
pub(crate) fn choose_model(
    models: &ModelServices,
    current: Option<&ModelChoice>,
    words: &[&str],
) -> Result<Option<ModelChoice>, ModelChoiceError> {
    let (spec, effort) = match words {
        [word] if word.eq_ignore_ascii_case(DEFAULT_WORD) => return Ok(None),
        [word] => match (named(models, word), ReasoningEffort::parse(word)) {
            (Some(spec), _) => (spec, None),
            (None, Some(_)) => (
                answering(models, current).ok_or_else(|| unknown(models, word))?,
                Some(*word),
            ),
            (None, None) => return Err(unknown(models, word)),
        },
        [name, effort] => (
            named(models, name).ok_or_else(|| unknown(models, name))?,
            Some(*effort),
        ),
        _ => return Err(ModelChoiceError::Words),
    };
    Ok(Some(ModelChoice {
        provider: spec.name.clone(),
        effort: effort.map(|word| effort_of(models, spec, word)).transpose()?,
    }))
}

/// The model that a conversation with this choice is answered by.
pub(crate) fn model_in_use(models: &ModelServices, choice: Option<&ModelChoice>) -> Option<ModelInUse> {
    let spec = answering(models, choice)?;
    let chosen = choice.filter(|choice| choice.provider == spec.name);
    Some(ModelInUse {
        provider: spec.name.clone(),
        model: spec.model.clone(),
        effort: chosen
            .and_then(|choice| choice.effort)
            .or(models.local_options(&spec.name).effort),
    })
}

/// The provider of a choice; one that the manifest has no more counts as none.
fn answering<'m>(models: &'m ModelServices, choice: Option<&ModelChoice>) -> Option<&'m Spec> {
    let chosen = choice.and_then(|choice| models.manifest.provider(&choice.provider));
    chosen.or_else(|| models.manifest.provider(models.primary_provider()))
}

/// The provider that a person means: by its own name, its model's, or the model's without the vendor.
fn named<'m>(models: &'m ModelServices, name: &str) -> Option<&'m Spec> {
    let all = &models.manifest.providers;
    let bare = |model: &str| model.rsplit('/').next().unwrap_or(model).to_owned();
    let same = |one: &str| one.eq_ignore_ascii_case(name);
    all.iter()
        .find(|spec| same(&spec.name))
        .or_else(|| all.iter().find(|spec| same(&spec.model)))
        .or_else(|| all.iter().find(|spec| same(&bare(&spec.model))))
}

fn unknown(models: &ModelServices, asked: &str) -> ModelChoiceError {
    let known = models.manifest.providers.iter();
    let known: Vec<String> = known
        .map(|spec| format!("`{}` ({})", spec.name, spec.model))
        .collect();
    ModelChoiceError::UnknownModel {
        asked: asked.to_owned(),
        known: known.join(", "),
    }
}

fn effort_of(models: &ModelServices, spec: &Spec, word: &str) -> Result<ReasoningEffort, ModelChoiceError> {
    let model = spec.model.clone();
    let known = models.local_options(&spec.name).efforts;
    let known = known.as_deref().unwrap_or(&ReasoningEffort::ALL);
    if known.is_empty() {
        return Err(ModelChoiceError::NoEffort { model });
    }
    let effort = ReasoningEffort::parse(word).filter(|effort| known.contains(effort));
    effort.ok_or_else(|| {
        let known: Vec<String> = known
            .iter()
            .map(|level| format!("`{}`", level.as_str()))
            .collect();
        ModelChoiceError::UnknownEffort {
            asked: word.to_owned(),
            model,
            known: known.join(", "),
        }
    })
}
