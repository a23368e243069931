//! Converts a model's name and its vendor's settings to a Provider, or to a line of the report.
//!
//! A model gets the address that its configuration means, or none: unknown addresses are reported, never guessed.

use crate::draft::{Draft, ProviderDraft, UnplacedModel, fit_name, to_upper_snake};
use crate::vendors::{ANTHROPIC, ModelVendor, OPENAI, VendorReach, find_vendor, vendor_of_model};

/// The host of Gemini's own API and of its OpenAI-compatible API.
const GEMINI_HOST: &str = "https://generativelanguage.googleapis.com";
/// Models of Moonshot's plan for programmers, which has its own address.
const KIMI_CODING_MODELS: &[&str] = &["kimi-for-coding", "kimi-code", "k2p5", "k3"];

/// The settings of one vendor.
#[derive(Debug, Default, Clone)]
pub(crate) struct VendorAccount {
    /// The key as written: a value or `${NAME}`.
    pub(crate) key: Option<String>,
    /// Where the key is, for the report.
    pub(crate) place: String,
    /// The configured address.
    pub(crate) base_url: Option<String>,
    /// The name of the API dialect, if the configuration gives one.
    pub(crate) dialect: Option<String>,
}

impl VendorAccount {
    fn says_something(&self) -> bool {
        self.key.is_some() || self.base_url.is_some()
    }
}

/// The vendor of a model, as far as the configuration says.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VendorChoice<'a> {
    /// The configuration names the vendor for this model.
    Named(&'a str),
    /// The default vendor for models whose name contains none.
    Default(&'a str),
    /// The model's name contains the vendor: `vendor/model`.
    InName,
}

/// The meaning of a dialect's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VendorDialect {
    Anthropic,
    OpenAi,
    Gemini,
    Ollama,
    /// clawk does not support the dialect.
    Unspoken,
}

/// Adds the provider of a model, with the vendor's account. The report names a model whose address is unknown.
pub(crate) fn add_provider(
    draft: &mut Draft,
    model: &str,
    choice: VendorChoice<'_>,
    account: &dyn Fn(&str) -> VendorAccount,
) {
    let Some((name, bare)) = resolve_vendor(model, choice, account) else {
        let reason = "its name says no vendor: set `endpoint` and `model` in claw.yaml";
        return report_unplaced(draft, None, model, reason);
    };
    let said = account(&name);
    let vendor = vendor_of(&name, &bare);
    let placed = match resolve_endpoint(&name, vendor, &said) {
        Ok(placed) => placed,
        Err(reason) => return report_unplaced(draft, Some(&name), &bare, &reason),
    };
    let usual = match vendor.map(|vendor| vendor.reach) {
        Some(VendorReach::Address { secret, .. }) => secret.to_owned(),
        Some(VendorReach::NoAddress(_)) | None => format!("{}_API_KEY", to_upper_snake(&name)),
    };
    let secret = match &said.key {
        Some(key) => Some(draft.add_secret(
            key,
            if usual.is_empty() { "LOCAL_API_KEY" } else { &usual },
            &said.place,
        )),
        None if usual.is_empty() || is_local(&placed.endpoint) => None,
        None => Some(draft.add_secret("", &usual, "the environment of the old runtime")),
    };
    let found = ProviderDraft {
        name: fit_name(&name),
        protocol: placed.protocol,
        endpoint: placed.endpoint,
        model: bare,
        secret,
    };
    draft
        .report
        .add_carried(format!("model `{}` of `{}`", found.model, found.name));
    draft.add_provider(found);
}

/// The vendor's name and the model's own name; `None` if neither the name nor the configuration gives the vendor.
fn resolve_vendor(
    model: &str,
    choice: VendorChoice<'_>,
    account: &dyn Fn(&str) -> VendorAccount,
) -> Option<(String, String)> {
    let in_name = || {
        let (prefix, _) = model.split_once('/')?;
        (find_vendor(prefix).is_some() || account(prefix).says_something()).then(|| prefix.to_owned())
    };
    let name = match choice {
        VendorChoice::Named(vendor) => vendor.to_owned(),
        VendorChoice::Default(vendor) => in_name().unwrap_or_else(|| vendor.to_owned()),
        VendorChoice::InName => match in_name() {
            Some(prefix) => prefix,
            // An unknown vendor is still a vendor; the report names it.
            None => match model.split_once('/') {
                Some((prefix, _)) => prefix.to_owned(),
                None => vendor_of_model(model)?.to_owned(),
            },
        },
    };
    let own = model
        .split_once('/')
        // OpenRouter's own models (`openrouter/auto`) keep their whole name.
        .filter(|(prefix, rest)| *prefix == name && (name != "openrouter" || rest.contains('/')));
    let bare = own.map_or(model, |(_, rest)| rest).to_owned();
    Some((name, bare))
}

/// The known vendor with this name. `kimi` means one of two vendors; the model decides.
fn vendor_of(name: &str, model: &str) -> Option<&'static ModelVendor> {
    let coding =
        name.eq_ignore_ascii_case("kimi") && KIMI_CODING_MODELS.iter().any(|known| model.starts_with(known));
    find_vendor(if coding { "kimi-coding" } else { name })
}

struct ProviderEndpoint {
    protocol: &'static str,
    endpoint: String,
}

/// The endpoint of a vendor, or the reason why it is unknown.
fn resolve_endpoint(
    name: &str,
    vendor: Option<&'static ModelVendor>,
    said: &VendorAccount,
) -> Result<ProviderEndpoint, String> {
    let dialect = said.dialect.as_deref().map(dialect_of);
    if let (Some(VendorDialect::Unspoken), Some(word)) = (dialect, said.dialect.as_deref()) {
        return Err(format!(
            "clawk does not speak `{word}`: set `endpoint` in claw.yaml to an address that speaks OpenAI's or Anthropic's dialect"
        ));
    }
    let reach = vendor.map(|vendor| vendor.reach);
    let Some(base) = said.base_url.as_deref() else {
        return match reach {
            Some(VendorReach::Address {
                protocol, endpoint, ..
            }) => Ok(ProviderEndpoint {
                protocol,
                endpoint: endpoint.to_owned(),
            }),
            Some(VendorReach::NoAddress(reason)) => Err(reason.to_owned()),
            None => Err(format!(
                "no address is known for the vendor `{name}`: set `endpoint` in claw.yaml"
            )),
        };
    };
    let base = root_address(base)?;
    if let (Some(VendorReach::NoAddress(reason)), None) = (reach, dialect)
        && !["/v1", "/openai", "/compat", "/openapi"]
            .iter()
            .any(|end| base.ends_with(end))
    {
        return Err(reason.to_owned());
    }
    let usual = match reach {
        Some(VendorReach::Address { protocol, .. }) if protocol == ANTHROPIC => VendorDialect::Anthropic,
        Some(VendorReach::Address { .. } | VendorReach::NoAddress(_)) | None => VendorDialect::OpenAi,
    };
    dialect_endpoint(dialect.unwrap_or(usual), base)
}

/// The endpoint of a dialect below `base`.
fn dialect_endpoint(dialect: VendorDialect, base: String) -> Result<ProviderEndpoint, String> {
    let (protocol, endpoint) = match dialect {
        VendorDialect::Anthropic => (ANTHROPIC, base.strip_suffix("/v1").unwrap_or(&base).to_owned()),
        VendorDialect::OpenAi | VendorDialect::Gemini if base.starts_with(GEMINI_HOST) => {
            (OPENAI, format!("{GEMINI_HOST}/v1beta/openai"))
        }
        VendorDialect::Gemini => {
            return Err(format!(
                "it speaks `google-generative-ai` at `{base}`, which clawk does not: set `endpoint` in claw.yaml to its OpenAI address"
            ));
        }
        VendorDialect::Ollama => {
            let server = base
                .strip_suffix("/api")
                .or_else(|| base.strip_suffix("/v1"))
                .unwrap_or(&base);
            (OPENAI, format!("{server}/v1"))
        }
        VendorDialect::OpenAi => (OPENAI, base),
        VendorDialect::Unspoken => return Err("clawk does not speak its dialect".to_owned()),
    };
    Ok(ProviderEndpoint { protocol, endpoint })
}

/// An address cut after the dialect's root.
fn root_address(base: &str) -> Result<String, String> {
    let base = base.trim().trim_end_matches('/');
    let base = ["/chat/completions", "/responses", "/v1/messages"]
        .iter()
        .find_map(|end| base.strip_suffix(end))
        .unwrap_or(base);
    let rest = base
        .strip_prefix("https://")
        .or_else(|| base.strip_prefix("http://"));
    let Some(rest) = rest.filter(|rest| !rest.is_empty()) else {
        // The address is not shown, because it may contain a secret.
        return Err("its address is not a URL: set `endpoint` in claw.yaml".to_owned());
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@')
        || base.contains('?')
        || base.contains("${")
        || base.contains(char::is_whitespace)
    {
        return Err("its address holds a password, a query or a variable: set `endpoint` in claw.yaml, and the secret by reference".to_owned());
    }
    Ok(base.to_owned())
}

fn dialect_of(word: &str) -> VendorDialect {
    let folded: String = word
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    match folded.as_str() {
        "anthropic" | "anthropicmessages" | "messages" => VendorDialect::Anthropic,
        "openai"
        | "openaicompletions"
        | "openaichat"
        | "openaichatcompletions"
        | "openairesponses"
        | "openaicompatible"
        | "chatcompletions"
        | "completions"
        | "responses" => VendorDialect::OpenAi,
        "googlegenerativeai" | "gemini" | "google" => VendorDialect::Gemini,
        "ollama" => VendorDialect::Ollama,
        _ => VendorDialect::Unspoken,
    }
}

/// Reports a model that was not imported. The new agent keeps the model's name, with an address that does not exist.
fn report_unplaced(draft: &mut Draft, vendor: Option<&str>, model: &str, reason: &str) {
    let whole = vendor.map_or_else(|| model.to_owned(), |vendor| format!("{vendor}/{model}"));
    draft.report.add_left_out(format!("model `{whole}`"), reason);
    draft.unplaced.get_or_insert_with(|| UnplacedModel {
        vendor: fit_name(vendor.unwrap_or("unknown")),
        model: model.to_owned(),
    });
}

fn is_local(endpoint: &str) -> bool {
    ["http://127.0.0.1", "http://localhost", "http://[::1]"]
        .iter()
        .any(|local| endpoint.starts_with(local))
}
