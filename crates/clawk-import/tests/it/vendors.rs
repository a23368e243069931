//! Which vendor a model goes to: its own address, or nowhere.

use std::fs;
use std::path::Path;

use clawk_import::{ImportResult, Runtime, import_agent};
use tempfile::TempDir;

use crate::valid;

/// The first provider's address in the manifest.
fn endpoint(text: &str) -> &str {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("endpoint:"));
    line.unwrap_or_default()
        .split_once(": ")
        .map_or("", |(_, address)| address.trim_matches('"'))
}

fn from(runtime: Runtime, file: &str, words: &str) -> (ImportResult, String) {
    let old = TempDir::new().unwrap();
    fs::write(old.path().join(file), words).unwrap();
    let import = import_agent(runtime, old.path()).unwrap();
    let text = valid(runtime, &import);
    (import, text)
}

fn openclaw(model: &str) -> (ImportResult, String) {
    let config = format!(r#"{{"agents": {{"defaults": {{"model": {{"primary": "{model}"}}}}}}}}"#);
    from(Runtime::Openclaw, "openclaw.json", &config)
}

/// Each vendor's documented address. None: the model does not come over and is named.
const OPENCLAW: &[(&str, Option<&str>)] = &[
    ("anthropic/claude-opus-5", Some("https://api.anthropic.com")),
    ("openai/gpt-5.6", Some("https://api.openai.com/v1")),
    (
        "openrouter/anthropic/claude-sonnet-5",
        Some("https://openrouter.ai/api/v1"),
    ),
    ("openrouter/auto", Some("https://openrouter.ai/api/v1")),
    (
        "google/gemini-3.1-pro",
        Some("https://generativelanguage.googleapis.com/v1beta/openai"),
    ),
    ("zai/glm-5.2", Some("https://api.z.ai/api/paas/v4")),
    ("opencode/claude-opus-4-6", Some("https://opencode.ai/zen/v1")),
    ("opencode-go/kimi-k2.6", Some("https://opencode.ai/zen/go/v1")),
    (
        "vercel-ai-gateway/anthropic/claude-opus-4.6",
        Some("https://ai-gateway.vercel.sh/v1"),
    ),
    (
        "huggingface/deepseek-ai/DeepSeek-R1",
        Some("https://router.huggingface.co/v1"),
    ),
    ("venice/llama-3.3-70b", Some("https://api.venice.ai/api/v1")),
    ("xiaomi/mimo-v2.5", Some("https://api.xiaomimimo.com/v1")),
    ("ollama-cloud/kimi-k2.6", Some("https://ollama.com/v1")),
    ("ollama/qwen3", Some("http://127.0.0.1:11434/v1")),
    ("kimi-coding/k2p5", Some("https://api.kimi.com/coding")),
    ("kimi/kimi-for-coding", Some("https://api.kimi.com/coding")),
    ("moonshot/kimi-k2.6", Some("https://api.moonshot.ai/v1")),
    (
        "volcengine-plan/ark-code-latest",
        Some("https://ark.cn-beijing.volces.com/api/coding/v3"),
    ),
    (
        "byteplus/seed-1-8",
        Some("https://ark.ap-southeast.bytepluses.com/api/v3"),
    ),
    (
        "deepinfra/deepseek-ai/DeepSeek-V4-Flash",
        Some("https://api.deepinfra.com/v1/openai"),
    ),
    ("qianfan/deepseek-v3.2", Some("https://qianfan.baidubce.com/v2")),
    (
        "featherless/Qwen/Qwen3-32B",
        Some("https://api.featherless.ai/v1"),
    ),
    (
        "nvidia/nvidia/nemotron-3",
        Some("https://integrate.api.nvidia.com/v1"),
    ),
    (
        "synthetic/hf:MiniMaxAI/MiniMax-M3",
        Some("https://api.synthetic.new/anthropic"),
    ),
    ("kimi/kimi-k2.6", None),
    ("github-copilot/gpt-5.4", None),
    ("openai-codex/gpt-5.4", None),
    ("amazon-bedrock/anthropic.claude-v4", None),
    ("google-vertex/gemini-3-pro", None),
    ("google-antigravity/gemini-3-pro", None),
    ("qwen-portal/coder-model", None),
    ("minimax-portal/MiniMax-M3", None),
    ("cloudflare-ai-gateway/claude-sonnet-5", None),
    ("azure-openai/gpt-5", None),
    // Names that only begin like a known one, or that nobody has.
    ("openai-proxy/gpt-5", None),
    ("anthropic.internal/claude", None),
    ("groq2/llama", None),
    ("acme/secret-model", None),
    ("some-model-without-a-vendor", None),
];

#[test]
fn a_model_goes_to_its_own_vendor_or_nowhere() {
    for (model, wanted) in OPENCLAW {
        let (import, text) = openclaw(model);
        match wanted {
            Some(address) => assert_eq!(endpoint(&text), *address, "{model}"),
            None => {
                assert!(
                    endpoint(&text).ends_with(".invalid/v1"),
                    "{model} goes to {}",
                    endpoint(&text)
                );
                let named = import.report.left.iter().any(|left| left.setting.contains(model));
                assert!(named, "{model} is not named: {:#?}", import.report.left);
                assert!(
                    import.report.secrets.is_empty(),
                    "{model}: {:?}",
                    import.report.secrets
                );
            }
        }
    }
    assert!(
        openclaw("openrouter/auto")
            .1
            .contains("model: \"openrouter/auto\"")
    );
    assert!(
        openclaw("nvidia/nvidia/nemotron-3")
            .1
            .contains("model: \"nvidia/nemotron-3\"")
    );
}

/// A provider of the configuration's own: dialect, address, and where that leads here.
const OWN_ADDRESSES: &[(&str, &str, Option<&str>)] = &[
    (
        "openai-completions",
        "https://llm.example.com/v1/",
        Some("https://llm.example.com/v1"),
    ),
    (
        "openai-responses",
        "https://llm.example.com/v1/responses",
        Some("https://llm.example.com/v1"),
    ),
    (
        "openai-completions",
        "https://llm.example.com/v1/chat/completions",
        Some("https://llm.example.com/v1"),
    ),
    (
        "anthropic-messages",
        "https://llm.example.com/anthropic/v1/messages",
        Some("https://llm.example.com/anthropic"),
    ),
    (
        "anthropic-messages",
        "https://llm.example.com/v1",
        Some("https://llm.example.com"),
    ),
    (
        "ollama",
        "http://gpu.example.com:11434/api",
        Some("http://gpu.example.com:11434/v1"),
    ),
    (
        "google-generative-ai",
        "https://generativelanguage.googleapis.com/v1beta",
        Some("https://generativelanguage.googleapis.com/v1beta/openai"),
    ),
    ("google-generative-ai", "https://gemini.example.com", None),
    (
        "bedrock-converse-stream",
        "https://bedrock-runtime.us-east-1.amazonaws.com",
        None,
    ),
    ("openai-codex-responses", "https://chatgpt.com/backend-api", None),
    ("github-copilot", "https://api.individual.githubcopilot.com", None),
    (
        "azure-openai-responses",
        "https://r.openai.azure.com/openai",
        None,
    ),
    ("a-dialect-of-tomorrow", "https://llm.example.com", None),
    ("openai-completions", "llm.example.com", None),
    (
        "openai-completions",
        "https://user:CANARY-5f2c@llm.example.com/v1",
        None,
    ),
    ("openai-completions", "${LLM_URL}/v1", None),
];

#[test]
fn an_address_of_ones_own_is_spoken_to_in_its_dialect_or_not_at_all() {
    for (dialect, base, wanted) in OWN_ADDRESSES {
        let config = format!(
            r#"{{"agents": {{"defaults": {{"model": "house/m"}}}},
                 "models": {{"providers": {{"house": {{"api": "{dialect}", "baseUrl": "{base}", "apiKey": "CANARY-5f2c"}}}}}}}}"#
        );
        let (import, text) = from(Runtime::Openclaw, "openclaw.json", &config);
        match wanted {
            Some(address) => assert_eq!(endpoint(&text), *address, "{dialect} at {base}"),
            None => {
                assert_eq!(endpoint(&text), "https://house.invalid/v1", "{dialect} at {base}");
                let named = import
                    .report
                    .left
                    .iter()
                    .any(|left| left.setting.contains("house/m"));
                assert!(named, "{dialect}: {:#?}", import.report.left);
            }
        }
    }
}

#[test]
fn the_vendor_that_a_configuration_names_counts_before_the_one_in_the_models_name() {
    let router = r#"{"agents": {"defaults": {"model": "anthropic/claude-opus-4-5"}}, "providers": {"openrouter": {"apiKey": "CANARY-5f2c"}}}"#;
    let forced = r#"{"agents": {"defaults": {"model": "anthropic/claude-opus-4-5", "provider": "vercel"}}}"#;
    for (config, address) in [(router, "openrouter.ai"), (forced, "ai-gateway.vercel.sh")] {
        let (_, text) = from(Runtime::Nanobot, "config.json", config);
        assert!(endpoint(&text).contains(address), "{text}");
        assert!(text.contains("model: \"anthropic/claude-opus-4-5\""), "{text}");
    }
    for (vendor, address) in [
        ("openrouter", Some("openrouter.ai")),
        ("kimi-code", Some("api.kimi.com")),
        ("custom:https://llm.example.com/v1", Some("llm.example.com")),
        ("copilot", None),
        ("a-vendor-of-tomorrow", None),
    ] {
        let config =
            format!("default_provider = \"{vendor}\"\ndefault_model = \"a/b\"\napi_key = \"CANARY-5f2c\"\n");
        let (import, text) = from(Runtime::Zeroclaw, "config.toml", &config);
        match address {
            Some(address) => assert!(endpoint(&text).contains(address), "{vendor}: {text}"),
            None => {
                assert!(endpoint(&text).ends_with(".invalid/v1"), "{vendor}: {text}");
                assert!(
                    import
                        .report
                        .left
                        .iter()
                        .any(|left| left.setting.contains(vendor)),
                    "{vendor}"
                );
            }
        }
    }
}

/// The manifest of an agent none of whose models came over says nothing of another vendor.
#[test]
fn an_agent_whose_model_did_not_come_over_takes_no_other_one() {
    let (import, text) = openclaw("github-copilot/gpt-5.4");
    assert!(
        !text.contains("auto:") && text.contains("model: \"gpt-5.4\""),
        "{text}"
    );
    let (_, report) = import
        .files
        .iter()
        .find(|(name, _)| name == Path::new("IMPORT.md"))
        .unwrap();
    assert!(String::from_utf8_lossy(report).contains("`github-copilot/gpt-5.4`"));
}
