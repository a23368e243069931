//! Builds providers from the manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use clawk_core::ports::{ModelProvider, ReasoningEffort, RequestAdaptation};
use clawk_core::retry_policy::ModelOptions;
use clawk_egress::{ClientDeadlines, Url};
use clawk_manifest::model::{self, AuthType, ProviderProtocol, ProviderTransport};
use clawk_secrets::SecretResolver;
use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::attempt::{ApiDialect, HttpProvider};
use crate::auth::{EndpointAuth, LazySecret, OAuth2};
use crate::endpoint::Endpoint;
use crate::scripted::{ModelScript, ScriptError, ScriptedProvider};
use crate::{anthropic, openai, responses};

/// The API of an OpenAI-compatible server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProviderDialect {
    /// `POST BASE/chat/completions`.
    ChatCompletions,
    /// `POST BASE/responses`: OpenAI's Responses API. Nothing is stored at the server.
    Responses,
}

/// `[providers.NAME]` in `clawk.toml`: this machine's settings for a provider of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProviderConfig {
    /// The API of an `openai-compatible` server. Default: chat completions, unless a refusal asks for another one.
    pub dialect: Option<ProviderDialect>,
    /// URL from which `oauth2` gets tokens; required for that type.
    pub token_url: Option<String>,
    /// The scope to request with the token.
    pub scope: Option<String>,
    /// The header of `api-key-header`; by default `x-api-key` (Anthropic) or `api-key` (OpenAI-compatible).
    pub header: Option<String>,
    /// Time limit for name lookup, TCP and TLS, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Time limit from the request to the first byte, in milliseconds. Without streaming, this covers the whole answer.
    pub first_byte_timeout_ms: u64,
    /// Time limit between two pieces of a stream, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Time limit for one attempt, in milliseconds.
    pub total_timeout_ms: u64,
    /// Largest response, in bytes.
    pub max_response_bytes: u64,
    /// Output tokens to request. Default: the model's maximum if it is known, else 4,096.
    pub max_output_tokens: Option<u64>,
    /// Longest total wait between attempts, in milliseconds. With 0, a rate limit counts as a failed attempt.
    pub retry_time_ms: u64,
    /// Reasoning effort of the model. Default: the server's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<ReasoningEffort>,
    /// The model's context window on this server, in tokens. Default: the server's own value, else the value in the catalogue of
    /// models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Parameters that the server refuses, by their names on the wire. They are not sent.
    pub omit: BTreeSet<String>,
    /// Parameters that the server expects under another name: usual name to new name.
    pub rename: BTreeMap<String, String>,
    /// Messages of the user and the assistant must strictly alternate.
    pub alternate_roles: bool,
    /// Call ids have exactly nine letters and digits, as Mistral's servers require.
    pub short_call_ids: bool,
    /// Arguments of a wrong type are converted if the tool's schema allows only one reading.
    pub convert_arguments: bool,
}

impl Default for ProviderConfig {
    fn default() -> Self {
        Self {
            dialect: None,
            token_url: None,
            scope: None,
            header: None,
            connect_timeout_ms: 10_000,
            first_byte_timeout_ms: 120_000,
            idle_timeout_ms: 60_000,
            total_timeout_ms: 600_000,
            max_response_bytes: 32 * 1024 * 1024,
            max_output_tokens: None,
            retry_time_ms: ModelOptions::RETRY_TIME_MS,
            effort: None,
            context_tokens: None,
            omit: BTreeSet::new(),
            rename: BTreeMap::new(),
            alternate_roles: false,
            short_call_ids: false,
            convert_arguments: true,
        }
    }
}

impl ProviderConfig {
    /// Returns the settings that the kernel needs.
    #[must_use]
    pub fn model_options(&self) -> ModelOptions {
        ModelOptions {
            max_output_tokens: self.max_output_tokens,
            retry_time_ms: self.retry_time_ms,
            effort: self.effort,
            efforts: None,
            adaptation: RequestAdaptation {
                alternate_roles: self.alternate_roles,
                omitted: self.omit.clone(),
                renamed: self.rename.clone(),
                responses_api: false,
                short_call_ids: self.short_call_ids,
            },
            context_tokens: self.context_tokens,
            catalogue_tokens: None,
            fits_turns: true,
            converts_arguments: self.convert_arguments,
        }
    }

    pub(crate) fn deadlines(&self) -> ClientDeadlines {
        ClientDeadlines {
            connect_ms: self.connect_timeout_ms,
            first_byte_ms: self.first_byte_timeout_ms,
            idle_ms: self.idle_timeout_ms,
            total_ms: self.total_timeout_ms,
        }
    }
}

/// The folder in which script files may be (R9, R3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptAccess {
    /// No script file is allowed, because the manifest arrived over the network.
    Refused,
    /// Only files inside this directory, which is the manifest's.
    Inside(PathBuf),
    /// Any file; relative paths start at this directory: `--allow-outside`.
    Anywhere(PathBuf),
}

/// Why a provider of the manifest cannot be used here, and how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum FactoryError {
    /// A field of the manifest is wrong.
    #[error("provider `{name}`: `{field}` {reason}")]
    Field {
        /// Name of the provider.
        name: String,
        /// The field, as a path below the provider's spec.
        field: &'static str,
        /// What is wrong, and how to fix it.
        reason: String,
    },
    /// A key of `clawk.toml` is wrong.
    #[error("provider `{name}`: `[providers.{name}] {key}` {reason}")]
    Config {
        /// Name of the provider.
        name: String,
        /// The key.
        key: &'static str,
        /// What is wrong, and how to fix it.
        reason: String,
    },
    /// The script of a scripted model is wrong.
    #[error("provider `{name}`: {source}")]
    Script {
        /// Name of the provider.
        name: String,
        /// What is wrong with the file.
        source: ScriptError,
    },
}

/// Builds providers. It opens no connection and resolves no secret: an agent starts even if its key is not set yet, and the first
/// request reports what is missing.
#[derive(Debug)]
pub struct ProviderFactory {
    resolver: SecretResolver,
    config: BTreeMap<String, ProviderConfig>,
    scripts: ScriptAccess,
}

impl ProviderFactory {
    /// Makes a factory with the settings of `[providers]` in `clawk.toml`.
    #[must_use]
    pub fn new(
        resolver: SecretResolver,
        config: BTreeMap<String, ProviderConfig>,
        scripts: ScriptAccess,
    ) -> Self {
        Self {
            resolver,
            config,
            scripts,
        }
    }

    /// Builds the provider that `spec` declares (CKP §5.2).
    ///
    /// # Errors
    /// [`FactoryError`]: the endpoint, an option or a script is not valid.
    pub fn build_provider(&self, spec: &model::Provider) -> Result<Arc<dyn ModelProvider>, FactoryError> {
        let config = self.config.get(&spec.name).cloned().unwrap_or_default();
        if config.max_output_tokens == Some(0) {
            return Err(FactoryError::Config {
                name: spec.name.clone(),
                key: "max_output_tokens",
                reason: "must be at least 1".to_owned(),
            });
        }
        if config.context_tokens.is_some_and(|tokens| tokens < 512) {
            return Err(FactoryError::Config {
                name: spec.name.clone(),
                key: "context_tokens",
                reason: "must be at least 512".to_owned(),
            });
        }
        if spec.transport != ProviderTransport::Http {
            let reason = format!("is `{}`; only `http` is served", spec.transport);
            return Err(field_error(spec, "transport", reason));
        }
        match self.http_provider(spec)? {
            Some(provider) => Ok(Arc::new(provider)),
            None => self.scripted_provider(spec, &config),
        }
    }

    /// Builds the HTTP provider; `None` for a scripted model.
    pub(crate) fn http_provider(&self, spec: &model::Provider) -> Result<Option<HttpProvider>, FactoryError> {
        let config = self.config.get(&spec.name).cloned().unwrap_or_default();
        let dialect = match (spec.protocol, config.dialect) {
            (ProviderProtocol::Custom, _) => return Ok(None),
            (ProviderProtocol::OpenaiCompatible, None | Some(ProviderDialect::ChatCompletions)) => {
                ApiDialect::OpenAi
            }
            (ProviderProtocol::OpenaiCompatible, Some(ProviderDialect::Responses)) => ApiDialect::Responses,
            (ProviderProtocol::AnthropicNative, None) => ApiDialect::Anthropic,
            (ProviderProtocol::AnthropicNative, Some(_)) => {
                return Err(FactoryError::Config {
                    name: spec.name.clone(),
                    key: "dialect",
                    reason: "is a choice of the protocol `openai-compatible`; leave it out".to_owned(),
                });
            }
        };
        let base = http_url(&spec.endpoint).map_err(|reason| field_error(spec, "endpoint", reason))?;
        let (url, headers) = match dialect {
            // The URL of the other API is derived from this one, like the URLs for embeddings and speech.
            ApiDialect::OpenAi | ApiDialect::Responses => {
                (openai::completions_url(&responses::base_url(base)), Vec::new())
            }
            ApiDialect::Anthropic => {
                let version = HeaderValue::from_static(anthropic::VERSION);
                (
                    anthropic::messages_url(&base),
                    vec![(HeaderName::from_static("anthropic-version"), version)],
                )
            }
        };
        let endpoint = Endpoint {
            name: spec.name.clone(),
            url,
            headers,
            auth: endpoint_auth(spec, &config, dialect)?,
            resolver: self.resolver.clone(),
            deadlines: config.deadlines(),
            max_response_bytes: config.max_response_bytes,
            sends_dimensions: AtomicBool::new(false),
            client: OnceLock::new(),
        };
        let (model, streaming) = (spec.model.clone(), spec.streaming);
        Ok(Some(HttpProvider {
            endpoint,
            dialect,
            model,
            streaming,
            opens_thought: AtomicBool::new(false),
        }))
    }

    fn scripted_provider(
        &self,
        spec: &model::Provider,
        config: &ProviderConfig,
    ) -> Result<Arc<dyn ModelProvider>, FactoryError> {
        let path = spec
            .endpoint
            .strip_prefix("script:")
            .or_else(|| spec.endpoint.strip_prefix("file:"));
        let Some(path) = path
            .map(|path| path.strip_prefix("//").unwrap_or(path))
            .filter(|path| !path.is_empty())
        else {
            let reason =
                "of a `custom` provider must be `script:PATH`, a scripted model's YAML file".to_owned();
            return Err(field_error(spec, "endpoint", reason));
        };
        let path = self
            .script_path(Path::new(path))
            .map_err(|reason| field_error(spec, "endpoint", reason))?;
        let script = ModelScript::load(&path).map_err(|source| FactoryError::Script {
            name: spec.name.clone(),
            source,
        })?;
        Ok(Arc::new(ScriptedProvider::new(
            &spec.name,
            &spec.model,
            spec.streaming,
            config.first_byte_timeout_ms,
            script,
        )))
    }

    fn script_path(&self, path: &Path) -> Result<PathBuf, String> {
        let dir = match &self.scripts {
            ScriptAccess::Refused => {
                return Err("names a file, which a manifest on the wire may not".to_owned());
            }
            ScriptAccess::Anywhere(dir) => return Ok(dir.join(path)),
            ScriptAccess::Inside(dir) => dir,
        };
        let whole = dir.join(path);
        // Resolve symbolic links: the real location of the file counts. A missing file is reported when it is read.
        let root = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        let outside = match whole.canonicalize() {
            Ok(real) => !real.starts_with(root),
            Err(_) => {
                path.is_absolute() || path.components().any(|part| matches!(part, Component::ParentDir))
            }
        };
        if outside {
            let (path, dir) = (path.display(), dir.display());
            return Err(format!(
                "`{path}` lies outside of `{dir}`; move it there or give `--allow-outside`"
            ));
        }
        Ok(whole)
    }
}

fn endpoint_auth(
    spec: &model::Provider,
    config: &ProviderConfig,
    dialect: ApiDialect,
) -> Result<EndpointAuth, FactoryError> {
    let key = || match spec.auth.secret_ref.as_deref() {
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(field_error(
            spec,
            "auth.secret_ref",
            format!("is required for type `{}`", spec.auth.kind),
        )),
    };
    let wrong = |key, reason| FactoryError::Config {
        name: spec.name.clone(),
        key,
        reason,
    };
    match spec.auth.kind {
        AuthType::None => Ok(EndpointAuth::None),
        AuthType::Bearer => Ok(EndpointAuth::Bearer(LazySecret::new(key()?))),
        AuthType::ApiKeyHeader => {
            let default = match dialect {
                ApiDialect::OpenAi | ApiDialect::Responses => "api-key",
                ApiDialect::Anthropic => "x-api-key",
            };
            let name = config.header.as_deref().unwrap_or(default);
            let header = name
                .parse()
                .map_err(|_| wrong("header", format!("`{name}` is not a valid header name")))?;
            Ok(EndpointAuth::Header(header, LazySecret::new(key()?)))
        }
        AuthType::Oauth2 => {
            let Some(url) = &config.token_url else {
                return Err(wrong(
                    "token_url",
                    "is required for type `oauth2`: where tokens are had".to_owned(),
                ));
            };
            let url = http_url(url).map_err(|reason| wrong("token_url", reason))?;
            let oauth2 = OAuth2::new(key()?, url, config.scope.clone(), config.deadlines());
            Ok(EndpointAuth::OAuth2(Box::new(oauth2)))
        }
    }
}

fn http_url(text: &str) -> Result<Url, String> {
    // The URL's text is not shown, because it may hold a key.
    let url = Url::parse(text).map_err(|error| format!("is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("must be http or https, not `{}`", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not hold credentials; use `auth.secret_ref`".to_owned());
    }
    Ok(url)
}

fn field_error(spec: &model::Provider, field: &'static str, reason: String) -> FactoryError {
    FactoryError::Field {
        name: spec.name.clone(),
        field,
        reason,
    }
}
