//! Requests to an embedding model: one attempt, paid and recorded like a model request. The record leaves out the vectors.

use tokio_util::sync::CancellationToken;

use super::{InferenceAttempt, InferenceContext, ModelServices, NoAnswer, provider_error};
use crate::event::{canonical, digest};
use crate::ports::{FaultKind, ModelCompletion, ProviderError, StopReason, TextEmbeddings};
use crate::purse::NoRoom;
use crate::screen::answer;

/// Longest part of one text that is embedded, in bytes. Small models accept 512 tokens.
const TEXT_BYTES: usize = 8000;

/// The model that makes the vectors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Embedder<'a> {
    /// The provider's name in the manifest.
    pub(crate) provider: &'a str,
    pub(crate) model: &'a str,
    pub(crate) dimensions: u64,
}

/// Returns a vector for each text, in order.
///
/// # Errors
/// The reason for people.
pub(crate) async fn embed_texts(
    models: &ModelServices,
    place: InferenceContext<'_>,
    embedder: Embedder<'_>,
    texts: &[String],
    cancel: &CancellationToken,
) -> Result<Vec<Vec<f32>>, NoAnswer> {
    let failed = |why: String| NoAnswer::Failed(why);
    let name = embedder.provider;
    let (Some(spec), Some(provider)) = (models.manifest.provider(name), models.providers.get(name)) else {
        return Err(failed(format!("provider `{name}` is not connected")));
    };
    let texts: Vec<String> = texts.iter().map(|text| clean_text(models, text)).collect();
    let request = canonical(&serde_json::json!({ "input": texts, "model": embedder.model }));
    let size = u64::try_from(request.len()).unwrap_or(u64::MAX);
    let now = models.scribe.now();
    let set = match models
        .purses
        .reserve_embedding(place.purse, name, embedder.model, size, now)
    {
        Ok(set) => set,
        Err(NoRoom::Quota(error)) => return Err(NoAnswer::Quota(error.to_string())),
        Err(NoRoom::Unpriced(reason)) => return Err(failed(reason)),
        Err(NoRoom::Later { wait_ms }) => {
            return Err(failed(format!(
                "provider `{name}`: requests_per_minute is used up for {wait_ms} ms"
            )));
        }
    };
    let limit = std::time::Duration::from_millis(set.reservation.amount.busy_ms);
    let open = InferenceAttempt::begin(models, place, spec, 1, digest(&request), set)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let asked = provider.embed_texts(embedder.model, Some(embedder.dimensions), &texts, cancel);
    let mut outcome = match tokio::time::timeout(limit, asked).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let message = format!("provider `{name}`: no vectors within the time that was left");
            Err(provider_error(FaultKind::Timeout, message, None))
        }
    };
    match &mut outcome {
        Ok(embedded) => embedded.usage = open.counted_usage(embedded.usage),
        Err(error) => {
            error.usage = error.usage.map(|usage| open.counted_usage(usage));
            answer::screen_failure(&models.screens, error);
        }
    }
    let told = embedding_record(embedder.model, &outcome);
    open.settle_outcome(&told, Vec::new())
        .await
        .map_err(|error| failed(error.to_string()))?;
    match outcome {
        Ok(TextEmbeddings { vectors, .. }) if vectors.len() == texts.len() => Ok(vectors),
        Ok(_) => Err(failed(format!(
            "provider `{name}` answered another number of vectors"
        ))),
        Err(error) if error.kind == FaultKind::Cancelled => Err(NoAnswer::Cancelled),
        Err(error) => Err(failed(error.message)),
    }
}

/// Returns the text shortened and without known secrets.
fn clean_text(models: &ModelServices, text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES);
    let mut text = text.get(..end).unwrap_or_default().to_owned();
    models.screens.without_known(&mut text);
    text
}

/// Returns the recorded result: the cost, without vectors.
fn embedding_record(
    model: &str,
    outcome: &Result<TextEmbeddings, ProviderError>,
) -> Result<ModelCompletion, ProviderError> {
    match outcome {
        Ok(TextEmbeddings { usage, .. }) => Ok(ModelCompletion {
            text: String::new(),
            calls: Vec::new(),
            stop: StopReason::End,
            usage: *usage,
            model: model.to_owned(),
            state: None,
        }),
        Err(error) => Err(error.clone()),
    }
}
