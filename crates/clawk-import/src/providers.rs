//! Where the known vendors answer, and how `vendor/model` names are read.

use crate::draft::{Draft, Provider, fit, shout};

/// A vendor: its words, how it is spoken to, its address, its usual variable; an empty variable: no key.
struct Vendor {
    names: &'static [&'static str],
    protocol: &'static str,
    endpoint: &'static str,
    secret: &'static str,
}

const OPENAI: &str = "openai-compatible";
const ANTHROPIC: &str = "anthropic-native";

const fn vendor(names: &'static [&'static str], endpoint: &'static str, secret: &'static str) -> Vendor {
    Vendor {
        names,
        protocol: OPENAI,
        endpoint,
        secret,
    }
}

const VENDORS: &[Vendor] = &[
    Vendor {
        names: &["anthropic", "claude"],
        protocol: ANTHROPIC,
        endpoint: "https://api.anthropic.com",
        secret: "ANTHROPIC_API_KEY",
    },
    vendor(&["openai"], "https://api.openai.com/v1", "OPENAI_API_KEY"),
    vendor(
        &["openrouter"],
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
    ),
    vendor(&["groq"], "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    vendor(&["deepseek"], "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    vendor(&["mistral"], "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    vendor(&["xai", "grok"], "https://api.x.ai/v1", "XAI_API_KEY"),
    vendor(
        &["gemini", "google"],
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
    vendor(&["together"], "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    vendor(
        &["fireworks"],
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_API_KEY",
    ),
    vendor(&["cerebras"], "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    vendor(
        &["nvidia"],
        "https://integrate.api.nvidia.com/v1",
        "NVIDIA_API_KEY",
    ),
    vendor(&["perplexity"], "https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    vendor(
        &["moonshot", "kimi"],
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
    ),
    vendor(
        &["zhipu", "zai", "glm"],
        "https://open.bigmodel.cn/api/paas/v4",
        "ZHIPU_API_KEY",
    ),
    vendor(&["minimax"], "https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    vendor(
        &["dashscope", "qwen"],
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
    ),
    vendor(&["ollama"], "http://127.0.0.1:11434/v1", ""),
    vendor(&["lmstudio"], "http://127.0.0.1:1234/v1", ""),
    vendor(&["vllm", "llamacpp"], "http://127.0.0.1:8000/v1", ""),
];

/// What a configuration says of one vendor.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    /// The key as it stands there: a value or `${NAME}`.
    pub(crate) key: Option<String>,
    /// Where the key stands, for the report.
    pub(crate) place: String,
    /// An address of its own.
    pub(crate) base_url: Option<String>,
    /// `anthropic…` or `openai…`, where the configuration names a dialect.
    pub(crate) dialect: Option<String>,
}

/// Adds the provider for a model name, with the vendor's account. A model without a vendor takes `fallback`.
///
/// `model` is `vendor/model` or a bare model name. Routers (OpenRouter) keep the rest of the name as the model.
pub(crate) fn add(draft: &mut Draft, model: &str, fallback: Option<&str>, account: &dyn Fn(&str) -> Account) {
    let (name, model) = match model.split_once('/') {
        Some((vendor, rest)) if known(vendor).is_some() || has(&account(vendor)) => {
            (vendor.to_owned(), rest.to_owned())
        }
        _ => (
            fallback.unwrap_or_else(|| guessed(model)).to_owned(),
            model.to_owned(),
        ),
    };
    let said = account(&name);
    let vendor = known(&name);
    let endpoint = said
        .base_url
        .clone()
        .or_else(|| vendor.map(|vendor| vendor.endpoint.to_owned()));
    let Some(endpoint) = endpoint else {
        let setting = if said.place.is_empty() {
            name.clone()
        } else {
            said.place.clone()
        };
        let reason =
            format!("no address is known for the provider `{name}`: add a Provider with its `endpoint`");
        draft.report.left(setting, reason);
        return;
    };
    let anthropic = said
        .dialect
        .as_deref()
        .map(|dialect| dialect.contains("anthropic"));
    let protocol = match anthropic {
        Some(true) => ANTHROPIC,
        Some(false) => OPENAI,
        None => vendor.map_or(OPENAI, |vendor| vendor.protocol),
    };
    let usual = vendor.map_or_else(
        || format!("{}_API_KEY", shout(&name)),
        |vendor| vendor.secret.to_owned(),
    );
    let secret = match &said.key {
        Some(key) => Some(draft.secret(
            key,
            if usual.is_empty() { "LOCAL_API_KEY" } else { &usual },
            &said.place,
        )),
        None if usual.is_empty() || is_local(&endpoint) => None,
        None => Some(draft.secret("", &usual, "the environment of the old runtime")),
    };
    let found = Provider {
        name: fit(&name),
        protocol,
        endpoint,
        model,
        secret,
    };
    draft
        .report
        .carried(format!("model `{}` of `{}`", found.model, found.name));
    draft.provider(found);
}

fn known(name: &str) -> Option<&'static Vendor> {
    let folded: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    let exact = VENDORS
        .iter()
        .find(|vendor| vendor.names.contains(&folded.as_str()));
    exact.or_else(|| {
        VENDORS
            .iter()
            .find(|vendor| vendor.names.iter().any(|known| folded.starts_with(known)))
    })
}

fn has(account: &Account) -> bool {
    account.key.is_some() || account.base_url.is_some()
}

/// The vendor of a bare model name.
fn guessed(model: &str) -> &'static str {
    let starts = |words: &[&str]| words.iter().any(|word| model.starts_with(word));
    if starts(&["claude", "sonnet", "opus", "haiku"]) {
        "anthropic"
    } else if starts(&["gpt", "o1", "o3", "o4", "chatgpt", "codex"]) {
        "openai"
    } else if starts(&["gemini"]) {
        "gemini"
    } else if starts(&["deepseek"]) {
        "deepseek"
    } else if starts(&["glm"]) {
        "zhipu"
    } else if model.contains('/') {
        "openrouter"
    } else {
        "ollama"
    }
}

fn is_local(endpoint: &str) -> bool {
    ["http://127.0.0.1", "http://localhost", "http://[::1]"]
        .iter()
        .any(|local| endpoint.starts_with(local))
}
