//! Vectors by a provider's embedding model (CKP §5.6): for queries immediately or not at all, for entries in the background. Paid
//! vectors are cached by the digest of their text.

use std::time::Duration;

use clawk_manifest::model::Store;
use clawk_recall::compact::model_of;
use clawk_recall::entry::Vector;
use tokio_util::sync::CancellationToken;

use crate::event::digest;
use crate::infer::embed::{Embedder, embed_texts};
use crate::infer::{InferenceContext, NoAnswer};
use crate::memory::MemoryServices;
use crate::ports::{Memory, MemoryError, UnembeddedEntry};
use crate::purse::BudgetAccount;
use crate::watch::NoticeSender;

/// Time limit for a query's vector. After it the query uses words only.
const QUESTION: Duration = Duration::from_secs(3);

/// Number of texts that are embedded in one request.
const BATCH: usize = 64;

/// Number of entries in one pass. The rest follows in the next pass.
const PASS: usize = 4096;

/// Returns the store's embedding model, if it searches with one.
fn store_embedder(store: &Store) -> Option<(Embedder<'_>, String)> {
    let embedding = store.embedding.as_ref()?;
    let name = model_of(store)?;
    let embedder = Embedder {
        provider: &embedding.provider_ref,
        model: &embedding.model,
        dimensions: embedding.dimensions,
    };
    Some((embedder, name))
}

/// Returns the query's vector by the store's model; `None` if the store has no model or it does not answer in time. Then the query
/// uses words only, and the answer says so.
pub(crate) async fn of_question(
    memories: &MemoryServices,
    store: &Store,
    text: &str,
    purse: &BudgetAccount,
    cancel: &CancellationToken,
) -> Option<Vector> {
    let (embedder, model) = store_embedder(store)?;
    let backend = memories.backend.as_deref()?;
    let texts = vec![text.to_owned()];
    let made = make_vectors(memories, backend, (embedder, &model), &texts, purse, cancel);
    match tokio::time::timeout(QUESTION, made).await {
        Ok(Ok(vectors)) => vectors.into_iter().next().map(|values| Vector { model, values }),
        Ok(Err(error)) => {
            tracing::warn!(
                store = store.name,
                error,
                "a question has no vector; words find alone"
            );
            None
        }
        Err(_) => {
            tracing::warn!(
                store = store.name,
                "a question's vector did not come in time; words find alone"
            );
            None
        }
    }
}

/// Makes the missing vectors of a store's entries. Returns whether all have one now.
///
/// # Errors
/// The reason for people.
pub(crate) async fn fill_vectors(
    memories: &MemoryServices,
    store: &Store,
    cancel: &CancellationToken,
) -> Result<bool, String> {
    let Some((embedder, model)) = store_embedder(store) else {
        return Ok(true);
    };
    let Some(backend) = memories.backend.as_deref() else {
        return Ok(true);
    };
    let text = |error: MemoryError| error.to_string();
    let lacking = backend
        .unembedded_entries(store, &model, PASS)
        .await
        .map_err(text)?;
    let purse = memories.classifier.models.purses.root_account().clone();
    for batch in lacking.chunks(BATCH) {
        let texts: Vec<String> = batch.iter().map(|one| one.text.clone()).collect();
        let vectors = make_vectors(memories, backend, (embedder, &model), &texts, &purse, cancel).await?;
        let handles = batch.iter().map(|UnembeddedEntry { handle, .. }| handle.clone());
        let named = handles.zip(vectors).collect();
        backend.add_vectors(store, &model, named).await.map_err(text)?;
    }
    Ok(lacking.len() < PASS)
}

/// Returns vectors of texts: cached ones, and the others from the provider.
async fn make_vectors(
    memories: &MemoryServices,
    backend: &dyn Memory,
    (embedder, name): (Embedder<'_>, &str),
    texts: &[String],
    purse: &BudgetAccount,
    cancel: &CancellationToken,
) -> Result<Vec<Vec<f32>>, String> {
    let text = |error: MemoryError| error.to_string();
    let digests: Vec<_> = texts.iter().map(|text| digest(text.as_bytes())).collect();
    let mut known = backend.paid_for(name, digests.clone()).await.map_err(text)?;
    let wanted = usize::try_from(embedder.dimensions).unwrap_or(usize::MAX);
    // The manifest's vector length has changed.
    for vector in &mut known {
        vector.take_if(|vector| vector.len() != wanted);
    }
    let missing: Vec<usize> = (0..texts.len())
        .filter(|at| known.get(*at).is_none_or(Option::is_none))
        .collect();
    if !missing.is_empty() {
        let asked: Vec<String> = missing.iter().filter_map(|at| texts.get(*at).cloned()).collect();
        let quiet = NoticeSender::default();
        let place = InferenceContext {
            // Not a session's chain, because a replay uses recorded results and requests no vector.
            thread: memories.life.root.child(memories.scribe.clock().new_uuid()),
            turn: memories.scribe.clock().new_uuid(),
            notices: &quiet,
            purse,
            member: None,
        };
        let models = &memories.classifier.models;
        let vectors = match embed_texts(models, place, embedder, &asked, cancel).await {
            Ok(vectors) => vectors,
            Err(NoAnswer::Cancelled) => return Err("the agent is being stopped".to_owned()),
            Err(NoAnswer::Failed(why) | NoAnswer::Quota(why)) => return Err(why),
        };
        let digests = missing.iter().filter_map(|at| digests.get(*at).copied());
        let paid = digests.zip(vectors.iter().cloned()).collect();
        backend.pay_once(name, paid).await.map_err(text)?;
        for (at, vector) in missing.into_iter().zip(vectors) {
            if let Some(slot) = known.get_mut(at) {
                *slot = Some(vector);
            }
        }
    }
    let all: Option<Vec<Vec<f32>>> = known.into_iter().collect();
    all.ok_or_else(|| "a text has no vector".to_owned())
}
