//! Model vendors by their names in other runtimes: each with its address, or with the reason why it can't be imported.
//!
//! Names are compared whole. A vendor whose name only begins like another one (`google-vertex`, `ollama-cloud`, `kimi-coding`) is a
//! different vendor, so a model or key never goes to the wrong address.

/// The API dialect of OpenAI's chat completions.
pub(crate) const OPENAI: &str = "openai-compatible";
/// The API dialect of Anthropic's messages.
pub(crate) const ANTHROPIC: &str = "anthropic-native";

/// A known vendor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelVendor {
    /// Its names, in lower case without separators.
    pub(crate) names: &'static [&'static str],
    /// How it is reached.
    pub(crate) reach: VendorReach,
}

/// How a vendor is reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VendorReach {
    /// At one address for all users.
    Address {
        protocol: &'static str,
        endpoint: &'static str,
        /// The usual variable of its key; empty: no key.
        secret: &'static str,
    },
    /// Not with a fixed address and key. Holds the reason for the report.
    NoAddress(&'static str),
}

/// A vendor with OpenAI's API dialect.
const fn openai_vendor(
    names: &'static [&'static str],
    endpoint: &'static str,
    secret: &'static str,
) -> ModelVendor {
    let protocol = OPENAI;
    let reach = VendorReach::Address {
        protocol,
        endpoint,
        secret,
    };
    ModelVendor { names, reach }
}

/// A vendor with Anthropic's API dialect.
const fn anthropic_vendor(
    names: &'static [&'static str],
    endpoint: &'static str,
    secret: &'static str,
) -> ModelVendor {
    let protocol = ANTHROPIC;
    let reach = VendorReach::Address {
        protocol,
        endpoint,
        secret,
    };
    ModelVendor { names, reach }
}

/// A vendor without a fixed address.
const fn unlocated_vendor(names: &'static [&'static str], reason: &'static str) -> ModelVendor {
    let reach = VendorReach::NoAddress(reason);
    ModelVendor { names, reach }
}

const SUBSCRIPTION: &str = "it is signed in to by browser with a subscription, which is for that vendor's own program: use a vendor \
                            with an API key and set `endpoint` and `model` in claw.yaml";
const PROGRAM: &str = "it starts a program of the vendor, which clawk does not: use the vendor's API and set `endpoint` and `model` in \
                       claw.yaml";

#[rustfmt::skip]
const VENDORS: &[ModelVendor] = &[
    anthropic_vendor(&["anthropic", "claude"], "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    openai_vendor(&["openai"], "https://api.openai.com/v1", "OPENAI_API_KEY"),
    openai_vendor(&["gemini", "google", "googlegemini"], "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    openai_vendor(&["mistral", "mistralai"], "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    openai_vendor(&["deepseek"], "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    openai_vendor(&["xai", "grok"], "https://api.x.ai/v1", "XAI_API_KEY"),
    openai_vendor(&["groq"], "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    openai_vendor(&["cohere"], "https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY"),
    openai_vendor(&["perplexity"], "https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    openai_vendor(&["moonshot", "moonshotai"], "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    openai_vendor(&["moonshotcn"], "https://api.moonshot.cn/v1", "MOONSHOT_API_KEY"),
    anthropic_vendor(&["kimicoding", "kimicode", "kimiforcoding"], "https://api.kimi.com/coding", "KIMI_API_KEY"),
    openai_vendor(&["zai", "glm", "zaiglobal"], "https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
    openai_vendor(&["zaicoding", "zaicodingglobal"], "https://api.z.ai/api/coding/paas/v4", "ZAI_API_KEY"),
    openai_vendor(&["zhipu", "zhipuai", "bigmodel", "zaicn", "glmcn"], "https://open.bigmodel.cn/api/paas/v4", "ZHIPU_API_KEY"),
    openai_vendor(&["minimax"], "https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    openai_vendor(&["minimaxcn"], "https://api.minimaxi.com/v1", "MINIMAX_API_KEY"),
    openai_vendor(&["dashscope", "qwen", "modelstudio", "dashscopeintl", "qwenintl"], "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    openai_vendor(&["dashscopecn", "qwencn", "bailian"], "https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    openai_vendor(&["dashscopecodingplan"], "https://coding.dashscope.aliyuncs.com/v1", "DASHSCOPE_CODING_PLAN_API_KEY"),
    openai_vendor(&["xiaomi", "mimo", "xiaomimimo"], "https://api.xiaomimimo.com/v1", "XIAOMI_API_KEY"),
    openai_vendor(&["stepfun"], "https://api.stepfun.ai/v1", "STEPFUN_API_KEY"),
    openai_vendor(&["qianfan", "baidu"], "https://qianfan.baidubce.com/v2", "QIANFAN_API_KEY"),
    openai_vendor(&["volcengine", "doubao"], "https://ark.cn-beijing.volces.com/api/v3", "VOLCANO_ENGINE_API_KEY"),
    openai_vendor(&["volcengineplan", "volcenginecodingplan"], "https://ark.cn-beijing.volces.com/api/coding/v3", "VOLCANO_ENGINE_API_KEY"),
    openai_vendor(&["byteplus"], "https://ark.ap-southeast.bytepluses.com/api/v3", "BYTEPLUS_API_KEY"),
    openai_vendor(&["byteplusplan", "bytepluscodingplan"], "https://ark.ap-southeast.bytepluses.com/api/coding/v3", "BYTEPLUS_API_KEY"),
    openai_vendor(&["arcee", "arceeai"], "https://api.arcee.ai/api/v1", "ARCEEAI_API_KEY"),
    openai_vendor(&["openrouter"], "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    openai_vendor(&["vercelaigateway", "vercel", "vercelai", "aigateway"], "https://ai-gateway.vercel.sh/v1", "AI_GATEWAY_API_KEY"),
    openai_vendor(&["opencode", "opencodezen"], "https://opencode.ai/zen/v1", "OPENCODE_API_KEY"),
    openai_vendor(&["opencodego"], "https://opencode.ai/zen/go/v1", "OPENCODE_API_KEY"),
    openai_vendor(&["kilocode", "kilo"], "https://api.kilo.ai/api/gateway", "KILOCODE_API_KEY"),
    openai_vendor(&["aihubmix"], "https://aihubmix.com/v1", "AIHUBMIX_API_KEY"),
    openai_vendor(&["siliconflow"], "https://api.siliconflow.cn/v1", "SILICONFLOW_API_KEY"),
    openai_vendor(&["modelscope"], "https://api-inference.modelscope.cn/v1", "MODELSCOPE_API_KEY"),
    openai_vendor(&["huggingface", "hf"], "https://router.huggingface.co/v1", "HF_TOKEN"),
    openai_vendor(&["venice", "veniceai"], "https://api.venice.ai/api/v1", "VENICE_API_KEY"),
    openai_vendor(&["together", "togetherai"], "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    openai_vendor(&["fireworks", "fireworksai"], "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    openai_vendor(&["cerebras"], "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    openai_vendor(&["nvidia", "nvidianim"], "https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    openai_vendor(&["deepinfra"], "https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    openai_vendor(&["novita", "novitaai"], "https://api.novita.ai/openai/v1", "NOVITA_API_KEY"),
    openai_vendor(&["chutes"], "https://llm.chutes.ai/v1", "CHUTES_API_KEY"),
    openai_vendor(&["featherless", "featherlessai"], "https://api.featherless.ai/v1", "FEATHERLESS_API_KEY"),
    openai_vendor(&["sambanova"], "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    openai_vendor(&["hyperbolic"], "https://api.hyperbolic.xyz/v1", "HYPERBOLIC_API_KEY"),
    openai_vendor(&["ollamacloud"], "https://ollama.com/v1", "OLLAMA_API_KEY"),
    anthropic_vendor(&["synthetic"], "https://api.synthetic.new/anthropic", "SYNTHETIC_API_KEY"),
    openai_vendor(&["ollama"], "http://127.0.0.1:11434/v1", ""),
    openai_vendor(&["lmstudio"], "http://127.0.0.1:1234/v1", ""),
    openai_vendor(&["vllm", "hostedvllm"], "http://127.0.0.1:8000/v1", ""),
    openai_vendor(&["llamacpp", "llamaserver"], "http://127.0.0.1:8080/v1", ""),
    openai_vendor(&["sglang"], "http://127.0.0.1:30000/v1", ""),
    openai_vendor(&["litellm"], "http://127.0.0.1:4000/v1", "LITELLM_API_KEY"),
    unlocated_vendor(
        &["kimi"],
        "two services have this name: name it `moonshot` (api.moonshot.ai) or `kimi-coding` (api.kimi.com), or set `endpoint` in claw.yaml",
    ),
    unlocated_vendor(&["githubcopilot", "copilot"], SUBSCRIPTION),
    unlocated_vendor(&["openaicodex", "codex", "chatgpt"], SUBSCRIPTION),
    unlocated_vendor(&["qwenportal", "qwenoauth", "qwencode"], SUBSCRIPTION),
    unlocated_vendor(&["minimaxportal"], SUBSCRIPTION),
    unlocated_vendor(&["googlegeminicli", "geminicli", "googleantigravity", "antigravity"], SUBSCRIPTION),
    unlocated_vendor(&["claudecli", "claudecode", "codexcli", "grokcli", "copilotcli"], PROGRAM),
    unlocated_vendor(
        &["amazonbedrock", "bedrock", "awsbedrock"],
        "Bedrock signs each request with AWS credentials, which clawk does not: put a gateway with an OpenAI-compatible address in \
         front of it and set `endpoint` in claw.yaml",
    ),
    unlocated_vendor(
        &["googlevertex", "vertex", "vertexai", "anthropicvertex"],
        "its address holds your project and its tokens last an hour: set `endpoint` to \
         `https://aiplatform.googleapis.com/v1/projects/PROJECT/locations/global/endpoints/openapi` in claw.yaml, or use `google` with \
         an API key",
    ),
    unlocated_vendor(
        &["cloudflareaigateway", "cloudflare", "cloudflareai", "workersai"],
        "its address holds your account: set `endpoint` to `https://gateway.ai.cloudflare.com/v1/ACCOUNT/GATEWAY/compat` in claw.yaml",
    ),
    unlocated_vendor(
        &["azure", "azureopenai", "azureopenairesponses", "azurefoundry"],
        "its address holds your resource: set `endpoint` to `https://RESOURCE.openai.azure.com/openai/v1` in claw.yaml",
    ),
];

/// The vendor with exactly this name, in any spelling.
pub(crate) fn find_vendor(name: &str) -> Option<&'static ModelVendor> {
    let folded: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    VENDORS
        .iter()
        .find(|vendor| vendor.names.contains(&folded.as_str()))
}

/// Whether it is a router, whose models keep their vendors' names (`anthropic/claude-…`).
pub(crate) fn is_router(name: &str) -> bool {
    let routers = [
        "openrouter",
        "vercel-ai-gateway",
        "kilocode",
        "litellm",
        "huggingface",
        "together",
        "deepinfra",
        "novita",
        "siliconflow",
        "modelscope",
        "chutes",
        "featherless",
        "nvidia",
    ];
    let same = |router: &&str| {
        find_vendor(router)
            .is_some_and(|vendor| find_vendor(name).is_some_and(|own| std::ptr::eq(own, vendor)))
    };
    routers.iter().any(same)
}

/// The vendor of a bare model name, if the name is unambiguous.
pub(crate) fn vendor_of_model(model: &str) -> Option<&'static str> {
    let starts = |words: &[&str]| words.iter().any(|word| model.starts_with(word));
    if model.contains('/') || starts(&["gpt-oss"]) && !model.contains(':') {
        None
    } else if model.contains(':') && !starts(&["ft:"]) {
        // `qwen3:8b`: only Ollama uses tags.
        Some("ollama")
    } else if starts(&["claude", "sonnet", "opus", "haiku"]) {
        Some("anthropic")
    } else if starts(&["gpt", "ft:gpt", "o1", "o3", "o4", "chatgpt"]) {
        Some("openai")
    } else if starts(&["gemini"]) {
        Some("gemini")
    } else if starts(&["deepseek-chat", "deepseek-reasoner", "deepseek-v"]) {
        Some("deepseek")
    } else if starts(&["glm"]) {
        Some("zai")
    } else if starts(&["kimi"]) {
        Some("moonshot")
    } else if starts(&["grok"]) {
        Some("xai")
    } else if starts(&["mistral-", "magistral-", "devstral-", "codestral-"]) {
        Some("mistral")
    } else {
        None
    }
}
