//! Embeddings of texts: `POST BASE/embeddings`, as OpenAI defines it and others implement it.

use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use clawk_core::ports::{FaultKind, TextEmbeddings, Usage};
use clawk_egress::Url;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::attempt::{next, unreadable_answer};
use crate::endpoint::Endpoint;
use crate::fault::AttemptFault;

/// Longest vector that is accepted, in dimensions.
const MAX_DIMENSIONS: usize = 16_384;

/// Bytes per token for the estimate, if the server sends no count.
const TOKEN_BYTES: usize = 4;

#[derive(Deserialize)]
struct EmbeddingsResponse {
    data: Vec<EmbeddingItem>,
    usage: Option<EmbeddingsUsage>,
}

#[derive(Deserialize)]
struct EmbeddingItem {
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct EmbeddingsUsage {
    /// Some servers send only one of the two counts.
    prompt_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

/// Returns `BASE/embeddings`, where `chat` is `BASE/chat/completions`.
fn embeddings_url(chat: &Url) -> Url {
    let mut url = chat.clone();
    let base = chat.path().strip_suffix("/chat/completions").unwrap_or_default();
    let path = format!("{base}/embeddings");
    url.set_path(&path);
    url
}

/// Makes one attempt. `dimensions` is the manifest's vector length. Another length is a failure, because vectors of different
/// lengths cannot be compared. A model whose vectors are longer is asked once more, with the parameter `dimensions`; the first request
/// of an endpoint has it not, because many servers refuse it.
pub(crate) async fn embed_texts(
    endpoint: &Endpoint,
    (model, dimensions): (&str, Option<u64>),
    texts: &[String],
    cancel: &CancellationToken,
) -> Result<TextEmbeddings, (AttemptFault, Option<Usage>)> {
    let sent = dimensions.filter(|_| endpoint.sends_dimensions.load(Ordering::Relaxed));
    let (data, usage) = request_vectors(endpoint, (model, sent), texts, cancel).await?;
    let are_longer = dimensions.is_some_and(|wanted| {
        let long = data.first().map_or(0, |item| item.embedding.len());
        u64::try_from(long).unwrap_or(u64::MAX) > wanted
    });
    if sent.is_some() || !are_longer {
        let vectors = ordered_vectors(data, texts.len(), dimensions).map_err(|fault| (fault, Some(usage)))?;
        return Ok(TextEmbeddings { vectors, usage });
    }
    let again = request_vectors(endpoint, (model, dimensions), texts, cancel).await;
    let both = |second: Usage| Usage {
        input_tokens: usage.input_tokens.saturating_add(second.input_tokens),
        estimated: usage.estimated || second.estimated,
        ..usage
    };
    let (shorter, second) = match again {
        Ok(answered) => answered,
        // The server does not know the parameter, and the vectors that it gave are too long.
        Err((fault, _)) if fault.kind == FaultKind::Rejected => {
            let refused = ordered_vectors(data, texts.len(), dimensions).err();
            return Err((refused.unwrap_or(fault), Some(usage)));
        }
        Err((fault, second)) => return Err((fault, Some(second.map_or(usage, both)))),
    };
    let usage = both(second);
    let vectors = ordered_vectors(shorter, texts.len(), dimensions).map_err(|fault| (fault, Some(usage)))?;
    endpoint.sends_dimensions.store(true, Ordering::Relaxed);
    Ok(TextEmbeddings { vectors, usage })
}

/// Sends one request. `dimensions`: the parameter, if it is sent.
async fn request_vectors(
    endpoint: &Endpoint,
    (model, dimensions): (&str, Option<u64>),
    texts: &[String],
    cancel: &CancellationToken,
) -> Result<(Vec<EmbeddingItem>, Usage), (AttemptFault, Option<Usage>)> {
    let mut body = json!({ "model": model, "input": texts, "encoding_format": "float" });
    if let (Some(wanted), Some(members)) = (dimensions, body.as_object_mut()) {
        members.insert("dimensions".to_owned(), wanted.into());
    }
    let body = Bytes::from(body.to_string());
    let counted = Usage {
        input_tokens: u64::try_from(body.len().div_ceil(TOKEN_BYTES)).unwrap_or(u64::MAX),
        estimated: true,
        ..Usage::default()
    };
    let head = cancel
        .run_until_cancelled(endpoint.post_to(embeddings_url(&endpoint.url), body))
        .await;
    let mut response = head
        .unwrap_or_else(|| Err(AttemptFault::cancelled()))
        .map_err(|fault| (fault, None))?;
    let spent = |fault| (fault, Some(counted));
    let mut bytes = BytesMut::new();
    while let Some(piece) = next(&mut response, cancel).await.map_err(spent)? {
        bytes.extend_from_slice(&piece);
    }
    let answer: EmbeddingsResponse = serde_json::from_slice(&bytes)
        .map_err(unreadable_answer)
        .map_err(spent)?;
    let told = answer
        .usage
        .and_then(|counts| counts.prompt_tokens.or(counts.total_tokens));
    let usage = told.map_or(counted, |input_tokens| Usage {
        input_tokens,
        ..Usage::default()
    });
    Ok((answer.data, usage))
}

/// Returns one vector for each text, in the texts' order. All have the same number of dimensions and length 1.
fn ordered_vectors(
    data: Vec<EmbeddingItem>,
    count: usize,
    dimensions: Option<u64>,
) -> Result<Vec<Vec<f32>>, AttemptFault> {
    let wanted = dimensions.and_then(|wanted| usize::try_from(wanted).ok());
    let mut found: Vec<Option<Vec<f32>>> = vec![None; count];
    let given = data.len();
    let mut length = wanted;
    for EmbeddingItem { index, embedding } in data {
        let long = embedding.len();
        if long == 0 || long > MAX_DIMENSIONS || *length.get_or_insert(long) != long {
            return Err(AttemptFault::malformed(format!(
                "a vector has {long} numbers where {} are wanted; `embedding.dimensions` of the store says how many the model makes",
                length.unwrap_or(1)
            )));
        }
        let Some(slot) = found.get_mut(index).filter(|slot| slot.is_none()) else {
            return Err(AttemptFault::malformed(format!(
                "it answers a text {index} that was not asked, or twice"
            )));
        };
        let size = embedding.iter().map(|value| value * value).sum::<f32>().sqrt();
        if !size.is_normal() {
            return Err(AttemptFault::malformed("a vector has no direction"));
        }
        *slot = Some(embedding.into_iter().map(|value| value / size).collect());
    }
    let vectors: Option<Vec<_>> = found.into_iter().collect();
    vectors
        .ok_or_else(|| AttemptFault::malformed(format!("{count} texts were asked and {given} vectors came")))
}
