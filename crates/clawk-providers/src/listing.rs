//! Lists the models that a server offers, with the properties that the server reports for each.

use clawk_egress::Url;
use clawk_manifest::model;
use serde_json::Value;

use crate::factory::{FactoryError, ProviderFactory};

/// Largest number of models in a list.
const MODELS_MAX: usize = 5_000;
/// Longest model name in a list, in characters.
const NAME_MAX: usize = 256;
/// JSON members that hold the size of a model's window in tokens.
const WINDOW_MEMBERS: &[&str] = &[
    "max_model_len",
    "loaded_context_length",
    "context_length",
    "context_window",
    "max_context_length",
    "max_context_window",
    "max_input_tokens",
    "input_token_limit",
];
/// JSON members that hold a model's shutdown date.
const SHUTDOWN_MEMBERS: &[&str] = &[
    "shutdown_date",
    "shutdown_at",
    "retirement_date",
    "retires_at",
    "sunset_date",
    "deprecation_date",
    "deprecation",
];

/// A model that a server offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedModel {
    /// The model's name at the server.
    pub id: String,
    /// The model's window in tokens, if the server reports it.
    pub window_tokens: Option<u64>,
    /// The day when the model is shut down, `YYYY-MM-DD`, if the server reports it.
    pub shutdown: Option<String>,
}

/// Why the models of a provider can't be listed.
#[derive(Debug, thiserror::Error)]
pub enum ListingError {
    /// The provider's configuration is not valid.
    #[error(transparent)]
    Provider(#[from] FactoryError),
    /// The provider has no server, for example a scripted model.
    #[error("provider `{0}` is a script: it has no server that lists models")]
    NoServer(String),
    /// The server refused, or could not be reached.
    #[error("{0}")]
    Server(String),
    /// The response holds no list of models.
    #[error("provider `{0}`: the answer is not a list of models")]
    NotAList(String),
}

impl ProviderFactory {
    /// Asks the provider's server, with the provider's key, for its models. The list is sorted by name.
    ///
    /// # Errors
    /// [`ListingError`]: the provider's configuration is not valid, or its server refused or sends no list.
    pub async fn list_models(&self, spec: &model::Provider) -> Result<Vec<ListedModel>, ListingError> {
        let Some(provider) = self.http_provider(spec)? else {
            return Err(ListingError::NoServer(spec.name.clone()));
        };
        let url = list_url(&provider.endpoint.url);
        let answer = provider.endpoint.get_json(url).await;
        let answer = answer.map_err(|fault| {
            let error = provider.endpoint.provider_error(fault, None);
            ListingError::Server(error.message)
        })?;
        read_list(&answer).ok_or_else(|| ListingError::NotAList(spec.name.clone()))
    }
}

/// Returns `BASE/models`. For Anthropic it adds a page size, because the server lists only twenty models by default.
fn list_url(asked: &Url) -> Url {
    let mut url = asked.clone();
    let path = asked.path().trim_end_matches('/');
    let (base, is_anthropic) = match path.strip_suffix("/messages") {
        Some(base) => (base, true),
        None => (path.strip_suffix("/chat/completions").unwrap_or(path), false),
    };
    let path = format!("{base}/models");
    url.set_path(&path);
    if is_anthropic {
        url.set_query(Some("limit=1000"));
    }
    url
}

fn read_list(answer: &Value) -> Option<Vec<ListedModel>> {
    let list = answer
        .get("data")
        .or_else(|| answer.get("models"))
        .unwrap_or(answer);
    let mut listed: Vec<ListedModel> = list
        .as_array()?
        .iter()
        .filter_map(read_model)
        .take(MODELS_MAX)
        .collect();
    listed.sort_by(|one, two| one.id.cmp(&two.id));
    listed.dedup_by(|one, two| one.id == two.id);
    Some(listed)
}

fn read_model(entry: &Value) -> Option<ListedModel> {
    let id = ["id", "name", "model"]
        .iter()
        .find_map(|name| entry.get(*name)?.as_str());
    let id: String = id.or_else(|| entry.as_str())?.chars().take(NAME_MAX).collect();
    let places = [Some(entry), entry.get("top_provider"), entry.get("meta")];
    let windows = places.into_iter().flatten().flat_map(|place| {
        WINDOW_MEMBERS
            .iter()
            .filter_map(|member| place.get(*member)?.as_u64())
    });
    Some(ListedModel {
        // Google's names begin with their collection (`models/`); requests accept them without it.
        id: id.strip_prefix("models/").map(str::to_owned).unwrap_or(id),
        window_tokens: windows.filter(|tokens| *tokens > 0).min(),
        shutdown: SHUTDOWN_MEMBERS
            .iter()
            .find_map(|member| day_of(entry.get(*member)?)),
    })
}

/// Returns the day of a date, a time or a number of seconds since 1970.
fn day_of(said: &Value) -> Option<String> {
    match said {
        Value::String(text) => {
            let day = text.get(..10)?;
            day.parse::<jiff::civil::Date>().ok().map(|day| day.to_string()) // silent-ok: it is not a day
        }
        Value::Number(number) => {
            let seconds = number.as_i64().filter(|seconds| *seconds > 0)?;
            let time = jiff::Timestamp::from_second(seconds).ok()?; // silent-ok: as above
            Some(time.to_zoned(jiff::tz::TimeZone::UTC).date().to_string())
        }
        Value::Object(times) => times.get("inference").and_then(day_of),
        Value::Null | Value::Bool(_) | Value::Array(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{list_url, read_list};
    use clawk_egress::Url;
    use serde_json::json;

    #[test]
    fn lists_are_read_as_servers_write_them() {
        for (answer, id, window, shutdown) in [
            (
                json!({ "object": "list", "data": [{ "id": "gpt-5.1", "shutdown_date": "2027-04-01" }] }),
                "gpt-5.1",
                None,
                Some("2027-04-01"),
            ),
            (
                json!({ "data": [{ "id": "claude-sonnet-5", "type": "model", "max_input_tokens": 1_000_000 }], "has_more": false }),
                "claude-sonnet-5",
                Some(1_000_000),
                None,
            ),
            (
                json!({ "data": [{ "id": "models/gemini-3.8-flash", "object": "model" }] }),
                "gemini-3.8-flash",
                None,
                None,
            ),
            (
                json!({ "data": [{ "id": "mistral-old", "max_context_length": 32768, "deprecation": "2026-12-01T12:00:00Z" }] }),
                "mistral-old",
                Some(32768),
                Some("2026-12-01"),
            ),
            (
                json!({ "data": [{ "id": "m", "deprecation": null }] }),
                "m",
                None,
                None,
            ),
            (
                json!({ "data": [{ "id": "gpt", "deprecation": { "inference": 1_797_033_600 } }] }),
                "gpt",
                None,
                Some("2026-12-12"),
            ),
            (
                json!({ "data": [{ "id": "q", "top_provider": { "context_length": 4096 }, "context_length": 8192 }] }),
                "q",
                Some(4096),
                None,
            ),
            (
                json!({ "models": [{ "name": "llama3.2:latest", "model": "llama3.2:latest" }] }),
                "llama3.2:latest",
                None,
                None,
            ),
            (json!([{ "id": "together" }]), "together", None, None),
            (json!({ "data": ["plain"] }), "plain", None, None),
        ] {
            let listed = read_list(&answer).unwrap_or_default();
            let [only] = listed.as_slice() else {
                panic!("{answer}: {listed:?}")
            };
            assert_eq!(
                (only.id.as_str(), only.window_tokens, only.shutdown.as_deref()),
                (id, window, shutdown),
                "{answer}"
            );
        }
        assert_eq!(read_list(&json!({ "error": "no" })), None);
    }

    #[test]
    fn the_list_stands_beside_the_address() {
        for (asked, list) in [
            ("https://h/v1/chat/completions", "https://h/v1/models"),
            ("https://h/v1/messages", "https://h/v1/models?limit=1000"),
            (
                "https://h/v1beta/openai/chat/completions",
                "https://h/v1beta/openai/models",
            ),
            (
                "https://h/d/chat/completions?api-version=1",
                "https://h/d/models?api-version=1",
            ),
        ] {
            let asked = Url::parse(asked).unwrap();
            assert_eq!(list_url(&asked).as_str(), list);
        }
    }
}
