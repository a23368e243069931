//! `web-search`: asks the search provider that `[tools.web-search.search]` declares. The request goes the way of `web-fetch`: the
//! sandbox's hosts, then the guard against private addresses. What comes back is text of the web.

mod wire;

use clawk_egress::Url;
use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_plan::{Plan, SandboxRefusal};
use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BuiltinContext, web};
use crate::call::{ExecutorCall, failure_outcome, success_outcome};
use crate::config::{SearchConfig, SearchProvider};
use clawk_secrets::Secret;

/// Number of results if the call does not say how many.
const USUAL_RESULTS: usize = 8;

/// The largest number of results of one call.
pub(super) const MAX_RESULTS: usize = 20;

/// The maximum length of a query, in characters. Brave's limit, the lowest one.
pub(super) const MAX_QUERY_CHARS: usize = 400;

/// A declared search provider, ready to be asked.
#[derive(Debug)]
pub(crate) struct SearchEndpoint {
    provider: SearchProvider,
    pub(crate) url: Url,
    key: Option<Secret>,
}

/// One search result. Everything in it is text of the web.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SearchHit {
    title: String,
    url: String,
    snippet: String,
}

#[derive(Deserialize)]
struct Args {
    query: String,
    #[serde(default)]
    max_results: Option<usize>,
}

impl SearchEndpoint {
    /// Builds the endpoint. `key` is the resolved `secret_ref`.
    ///
    /// # Errors
    /// The URL or the key is missing or not usable, with the cure.
    pub(crate) fn new(config: &SearchConfig, key: Option<Secret>) -> Result<Self, String> {
        let provider = config.provider;
        let base = match (&config.url, provider.usual_url()) {
            (Some(url), _) => url.as_str(),
            (None, Some(usual)) => usual,
            (None, None) => {
                return Err(format!(
                    "`search.url` is missing: name your {} server (example: `url = \"https://search.example\"`)",
                    provider.name()
                ));
            }
        };
        let url = Url::parse(base).map_err(|error| format!("`search.url` can't be read: {error}"))?;
        let host = url.host_str().unwrap_or_default();
        if !matches!(url.scheme(), "http" | "https") || host.is_empty() {
            return Err("`search.url` is not an http or https URL".to_owned());
        }
        let here = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        if key.is_some() && url.scheme() == "http" && !here {
            return Err(
                "`search.url` is plain http, and the key would go over the network in clear text; use https"
                    .to_owned(),
            );
        }
        if key.is_none() && provider.needs_key() {
            return Err(format!(
                "`search.secret_ref` is missing: {} needs a key; put it into the environment or the secrets store, and name it (example: \
                 `secret_ref = \"{}\"`)",
                provider.name(),
                provider.usual_secret()
            ));
        }
        Ok(Self { provider, url, key })
    }

    /// Checks that the sandbox lets the tool reach the provider.
    pub(crate) fn preflight(&self, plan: &Plan) -> Result<(), SandboxRefusal> {
        web::preflight_url(self.url.as_str(), plan)
    }

    /// What a person reads before approving.
    pub(crate) fn call_fact(&self) -> String {
        format!(
            "search with {} at {}",
            self.provider.name(),
            self.url.host_str().unwrap_or_default()
        )
    }

    /// Asks the provider.
    pub(crate) async fn run(
        &self,
        call: &ExecutorCall<'_>,
        shared: &BuiltinContext,
    ) -> Result<RunOutcome, RunError> {
        self.preflight(call.plan).map_err(RunError::Sandbox)?;
        let args: Args = match call.parse() {
            Ok(args) => args,
            Err(outcome) => return Ok(outcome),
        };
        let query = args.query.trim();
        if query.is_empty() || query.chars().count() > MAX_QUERY_CHARS {
            return Ok(failure_outcome(format!(
                "`query` has 1 to {MAX_QUERY_CHARS} characters"
            )));
        }
        let most = args.max_results.unwrap_or(USUAL_RESULTS).clamp(1, MAX_RESULTS);
        let request = wire::build_request(self.provider, &self.url, query, most);
        let key = match self.key_header().transpose() {
            Ok(key) => key,
            Err(reason) => return Err(RunError::Unavailable(reason)),
        };
        let reply = match web::send_search(call, shared, request, key).await {
            Ok(reply) => reply,
            Err(end) => return end,
        };
        Ok(web::add_enforcement(self.outcome(query, most, &reply)))
    }

    /// The key's header, and the secret for removing it from the answer.
    fn key_header(&self) -> Option<Result<web::RequestKey<'_>, String>> {
        let secret = self.key.as_ref()?;
        let (name, prefix) = self.provider.key_header();
        let value = HeaderValue::from_str(&format!("{prefix}{}", secret.expose()));
        Some(match value {
            Ok(value) => Ok(web::RequestKey {
                name: HeaderName::from_static(name),
                value,
                secret,
            }),
            Err(_unfit) => Err(format!("the secret `{}` can't be a header", secret.name())),
        })
    }

    fn outcome(&self, query: &str, most: usize, reply: &web::FetchedResponse) -> RunOutcome {
        let name = self.provider.name();
        let body = serde_json::from_slice::<Value>(&reply.body);
        if !reply.ok {
            let said = body.ok().and_then(|body| wire::error_text(&body)); // silent-ok: the status says it
            let said = said.map_or_else(String::new, |said| format!(": {said}"));
            return failure_outcome(format!(
                "{name} answered with status {}{said}{}",
                reply.status,
                self.cure(reply.status)
            ));
        }
        let Ok(body) = body else {
            return failure_outcome(format!(
                "{name} did not answer with JSON ({}){}",
                reply.content_type,
                self.cure(403)
            ));
        };
        let Some(hits) = wire::read_hits(self.provider, &body) else {
            return failure_outcome(format!("{name} answered in an unknown form"));
        };
        let hits: Vec<SearchHit> = hits.into_iter().take(most).collect();
        let text = if hits.is_empty() {
            "no results".to_owned()
        } else {
            let shown = hits.iter().enumerate().map(|(n, hit)| {
                let snippet = match hit.snippet.as_str() {
                    "" => String::new(),
                    snippet => format!("\n   {snippet}"),
                };
                format!("{}. {}\n   {}{snippet}", n + 1, hit.title, hit.url)
            });
            shown.collect::<Vec<_>>().join("\n")
        };
        let results: Vec<Value> = hits
            .iter()
            .map(|hit| json!({"title": hit.title, "url": hit.url, "snippet": hit.snippet}))
            .collect();
        success_outcome(
            text,
            json!({"provider": name, "query": query, "results": results}),
        )
    }

    /// What helps against a refusal with this status.
    fn cure(&self, status: u16) -> String {
        match (self.provider, status) {
            (SearchProvider::Searxng, 403) => {
                " (does the server's `settings.yml` list `json` under `search.formats`?)".to_owned()
            }
            (_, 401 | 403) => format!(
                " (check the key that `search.secret_ref` of `[tools.web-search]` names; {} gave it)",
                self.provider.name()
            ),
            (_, 429) => " (the provider's rate limit; ask again later)".to_owned(),
            (_, 402 | 432 | 433) => " (the plan at the provider is used up)".to_owned(),
            (_, _) => String::new(),
        }
    }
}
