//! Finds a model that this machine can use, for `clawk run` and `clawk init`.

use bytes::Bytes;
use clawk_core::model_catalogue::ModelCatalogue;
use clawk_egress::{ClientDeadlines, EgressClient, Request, Url};
use clawk_manifest::model::{
    AuthType, ModelModality, Provider, ProviderAuth, ProviderHints, ProviderLimits, ProviderProtocol,
    ProviderTransport,
};
use clawk_secrets::EnvironmentSource;
use futures::future::join_all;
use http::{HeaderMap, Method};
use serde_json::Value;

/// The usual ports of local model servers: Ollama, llama.cpp, LM Studio.
const LOCAL: &[(u16, &str)] = &[(11434, "Ollama"), (8080, "llama.cpp"), (1234, "LM Studio")];
const PROBE_MS: u64 = 300;

/// The result of [`discover_provider`].
#[derive(Debug, Clone)]
pub struct DiscoveredProvider {
    /// A provider for a manifest, named `default`. `None`: nothing was found; use a scripted model.
    pub provider: Option<Provider>,
    /// An explanation for people: which provider, why, and how to change it.
    pub why: String,
}

/// Looks for a provider in this order: `ANTHROPIC_API_KEY`, `OPENAI_API_KEY` or `OPENAI_BASE_URL`, `OPENROUTER_API_KEY`,
/// `OLLAMA_HOST`, then a server on a usual local port. The variables `*_BASE_URL` and `*_MODEL` are respected. Takes at most about
/// 300 ms.
pub async fn discover_provider(env: &EnvironmentSource) -> DiscoveredProvider {
    if let Some(found) = by_key(env) {
        return found;
    }
    if let Some(base) = env.non_empty("OPENAI_BASE_URL") {
        // The user configured this server explicitly, so it is used even if it does not answer now.
        let model = env.non_empty("OPENAI_MODEL");
        let model = match model {
            Some(model) => model,
            None => first_model(env, &base)
                .await
                .unwrap_or_else(|| "default".to_owned()),
        };
        return found_provider(
            openai_provider(&base, &model, None),
            "the server that OPENAI_BASE_URL names",
        );
    }
    if let Some(host) = env.non_empty("OLLAMA_HOST") {
        let base = ollama_base(&host);
        if let Some(model) = first_model(env, &base).await {
            let model = env.non_empty("OLLAMA_MODEL").unwrap_or(model);
            return found_provider(
                openai_provider(&base, &model, None),
                "the server that OLLAMA_HOST names",
            );
        }
    }
    probe_ports(env, LOCAL)
        .await
        .unwrap_or_else(|| DiscoveredProvider {
            provider: None,
            why: "no model found (no API key in the environment, no local server): a scripted one answers; \
              set ANTHROPIC_API_KEY, OPENAI_API_KEY, OPENROUTER_API_KEY or OPENAI_BASE_URL for a real one"
                .to_owned(),
        })
}

fn by_key(env: &EnvironmentSource) -> Option<DiscoveredProvider> {
    let catalogue = ModelCatalogue::built_in();
    let model = |name: &str, default: &str| env.non_empty(name).unwrap_or_else(|| default.to_owned());
    let base = |name: &str, default: &str| env.non_empty(name).unwrap_or_else(|| default.to_owned());
    if env.non_empty("ANTHROPIC_API_KEY").is_some() {
        let mut provider = openai_provider(
            &base("ANTHROPIC_BASE_URL", "https://api.anthropic.com"),
            &model("ANTHROPIC_MODEL", catalogue.resolve_alias("anthropic:medium")),
            Some("ANTHROPIC_API_KEY"),
        );
        provider.protocol = ProviderProtocol::AnthropicNative;
        provider.auth.kind = AuthType::ApiKeyHeader;
        return Some(found_provider(provider, "ANTHROPIC_API_KEY is set"));
    }
    if env.non_empty("OPENAI_API_KEY").is_some() {
        let base = base("OPENAI_BASE_URL", "https://api.openai.com/v1");
        let provider = openai_provider(
            &base,
            &model("OPENAI_MODEL", catalogue.resolve_alias("openai:small")),
            Some("OPENAI_API_KEY"),
        );
        return Some(found_provider(provider, "OPENAI_API_KEY is set"));
    }
    if env.non_empty("OPENROUTER_API_KEY").is_some() {
        let default = format!("openai/{}", catalogue.resolve_alias("openai:small"));
        let model = model("OPENROUTER_MODEL", &default);
        let provider = openai_provider("https://openrouter.ai/api/v1", &model, Some("OPENROUTER_API_KEY"));
        return Some(found_provider(provider, "OPENROUTER_API_KEY is set"));
    }
    None
}

/// Asks all `ports` at once. Returns the first port, in the given order, that answers like a model server.
async fn probe_ports(env: &EnvironmentSource, ports: &[(u16, &str)]) -> Option<DiscoveredProvider> {
    let bases: Vec<_> = ports
        .iter()
        .map(|(port, name)| (format!("http://127.0.0.1:{port}/v1"), *name))
        .collect();
    let answers = join_all(bases.iter().map(|(base, _)| first_model(env, base))).await;
    let (model, (base, name)) = answers
        .into_iter()
        .zip(&bases)
        .find_map(|(model, base)| Some((model?, base)))?;
    Some(found_provider(
        openai_provider(base, &model, None),
        &format!("a local server answers at {base} (the usual port of {name})"),
    ))
}

fn found_provider(provider: Provider, because: &str) -> DiscoveredProvider {
    let (protocol, model) = (provider.protocol, &provider.model);
    let why = format!(
        "model `{model}` ({protocol}), because {because}; a `providers` entry in claw.yaml changes it"
    );
    DiscoveredProvider {
        provider: Some(provider),
        why,
    }
}

/// Returns the first model that `BASE/models` lists.
async fn first_model(env: &EnvironmentSource, base: &str) -> Option<String> {
    // silent-ok throughout: a server that does not answer like a model server counts as not found
    let deadlines = ClientDeadlines {
        connect_ms: PROBE_MS,
        first_byte_ms: PROBE_MS,
        idle_ms: PROBE_MS,
        total_ms: PROBE_MS,
    };
    let url = Url::parse(&format!("{}/models", base.trim_end_matches('/'))).ok()?;
    let client = EgressClient::for_provider(&url, env, deadlines, 1024 * 1024).ok()?;
    let request = Request {
        method: Method::GET,
        url,
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    let response = client
        .send(request)
        .await
        .ok()
        .filter(|response| response.status().is_success())?;
    let list: Value = serde_json::from_slice(&response.bytes().await.ok()?).ok()?;
    list.get("data")?
        .get(0)?
        .get("id")?
        .as_str()
        .filter(|id| !id.is_empty())
        .map(str::to_owned)
}

/// Returns the base URL for `OLLAMA_HOST`, which is a host, `host:port` or a URL. A listening address such as `0.0.0.0` means this
/// machine.
fn ollama_base(host: &str) -> String {
    let url = if host.contains("://") {
        host.to_owned()
    } else {
        format!("http://{host}")
    };
    let Ok(mut url) = Url::parse(&url) else { return url };
    if matches!(url.host_str(), Some("0.0.0.0" | "[::]")) {
        // silent-ok: a literal address is always a host
        let _ = url.set_host(Some("127.0.0.1"));
    }
    if url.port().is_none() && !host.contains("://") {
        // silent-ok: as above
        let _ = url.set_port(Some(11434));
    }
    let base = url.as_str().trim_end_matches('/');
    if base.ends_with("/v1") {
        base.to_owned()
    } else {
        format!("{base}/v1")
    }
}

fn openai_provider(base: &str, model: &str, secret_ref: Option<&str>) -> Provider {
    let kind = if secret_ref.is_some() {
        AuthType::Bearer
    } else {
        AuthType::None
    };
    Provider {
        name: "default".to_owned(),
        version: None,
        labels: Default::default(),
        protocol: ProviderProtocol::OpenaiCompatible,
        endpoint: base.to_owned(),
        model: model.to_owned(),
        auth: ProviderAuth {
            kind,
            secret_ref: secret_ref.map(str::to_owned),
        },
        streaming: true,
        hints: ProviderHints::default(),
        fallback: Vec::new(),
        limits: ProviderLimits::default(),
        retry: Some(Default::default()),
        capabilities: vec![ModelModality::Text],
        transport: ProviderTransport::Http,
    }
}

#[cfg(test)]
mod tests;
