//! Asks a model's server for the size of its window: the list of models, llama.cpp's properties, Ollama's model description.

use serde_json::{Value, json};

use crate::endpoint::Endpoint;

/// Vendors whose servers do not report the window. They are not asked; the catalogue knows their models.
const SILENT_HOSTS: &[&str] = &[
    "api.openai.com",
    "api.anthropic.com",
    "generativelanguage.googleapis.com",
    "api.deepseek.com",
    "openai.azure.com",
];
/// Members of a listed model that hold the window. The smallest value counts.
const MEMBERS: &[&str] = &[
    "max_model_len",
    "loaded_context_length",
    "context_length",
    "context_window",
    "max_context_length",
    "max_context_window",
];

/// Asks the server for the window in tokens, if it may know. `last` is the end of the endpoint's path, after the base URL.
pub(crate) async fn ask_window(endpoint: &Endpoint, last: &str, model: &str) -> Option<u64> {
    let host = endpoint.url.host_str().unwrap_or_default();
    if SILENT_HOSTS.iter().any(|silent| host.ends_with(silent)) {
        return None;
    }
    let path = endpoint.url.path().to_owned();
    let base = path.strip_suffix(last).unwrap_or_default();
    let list = endpoint.look_up(&format!("{base}/models"), None).await;
    if let Some(tokens) = list.as_ref().and_then(|list| listed_window(list, model)) {
        return Some(tokens);
    }
    // Ask further only if the server returned a list of models, and only below its base URL.
    list?;
    let root = base.strip_suffix("/v1").unwrap_or(base);
    let properties = endpoint.look_up(&format!("{root}/props"), None).await;
    if let Some(tokens) = properties.as_ref().and_then(of_properties) {
        return Some(tokens);
    }
    let version = endpoint.look_up(&format!("{root}/api/version"), None).await?;
    version.get("version")?.as_str()?;
    let running = endpoint.look_up(&format!("{root}/api/ps"), None).await;
    if let Some(tokens) = running.as_ref().and_then(|running| of_running(running, model)) {
        return Some(tokens);
    }
    let described = endpoint
        .look_up(&format!("{root}/api/show"), Some(json!({ "model": model })))
        .await?;
    of_description(&described)
}

/// Reads `GET BASE/models`: the entry of this model, or the only entry.
fn listed_window(list: &Value, model: &str) -> Option<u64> {
    let models = list.get("data").unwrap_or(list).as_array()?;
    let is_named = |entry: &&Value| entry.get("id").and_then(Value::as_str) == Some(model);
    let entry = models.iter().find(is_named).or(match models.as_slice() {
        [only] => Some(only),
        _ => None,
    })?;
    let places = [Some(entry), entry.get("top_provider")].into_iter().flatten();
    let said = places.flat_map(|place| MEMBERS.iter().filter_map(|member| place.get(*member)?.as_u64()));
    said.filter(|tokens| *tokens > 0).min()
}

/// Reads llama.cpp's `GET /props`.
fn of_properties(properties: &Value) -> Option<u64> {
    let settings = properties.get("default_generation_settings");
    let said = [
        settings.and_then(|settings| settings.get("n_ctx")),
        properties.get("n_ctx"),
    ];
    said.into_iter()
        .flatten()
        .find_map(Value::as_u64)
        .filter(|tokens| *tokens > 0)
}

/// Reads Ollama's `GET /api/ps`: the real window of the loaded model.
fn of_running(running: &Value, model: &str) -> Option<u64> {
    let models = running.get("models")?.as_array()?;
    let is_named = |entry: &&Value| {
        let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
        name == model || name.strip_suffix(":latest") == Some(model)
    };
    models.iter().find(is_named)?.get("context_length")?.as_u64()
}

/// Reads Ollama's `POST /api/show`: only a value that the operator set. The size used in training is not the size that is served.
fn of_description(described: &Value) -> Option<u64> {
    let parameters = described.get("parameters")?.as_str()?;
    let mut lines = parameters.lines().map(str::split_whitespace);
    lines.find_map(|mut words| match (words.next(), words.next()) {
        (Some("num_ctx"), Some(tokens)) => tokens.parse().ok(), // silent-ok: then it is not said
        _ => None,
    })
}

#[cfg(test)]
mod tests;
