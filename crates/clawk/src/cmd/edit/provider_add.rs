//! `clawk provider add`: declares another provider.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clawk_egress::Url;
use clawk_kernel::ModelCatalogue;
use serde_json::json;

use super::{AgentEdit, EditArgs, EditOutcome, check_new_name};
use crate::out;

/// Flags of `clawk provider add`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    edit: EditArgs,

    /// The provider's name in the manifest
    #[arg(value_name = "NAME")]
    name: String,

    /// A vendor whose address and protocol are known
    #[arg(long, value_enum, conflicts_with_all = ["endpoint", "protocol"])]
    vendor: Option<ModelVendor>,

    /// The server's address, for example `http://127.0.0.1:11434/v1`
    #[arg(long, value_name = "URL", required_unless_present = "vendor")]
    endpoint: Option<String>,

    /// The protocol that the server speaks
    #[arg(long, value_enum, default_value_t = ServerProtocol::OpenaiCompatible)]
    protocol: ServerProtocol,

    /// The model
    #[arg(long, value_name = "MODEL", required_unless_present = "vendor")]
    model: Option<String>,

    /// The name of the secret with the key: a variable's name, never the key [default: the vendor's usual one; none with --endpoint]
    #[arg(long, value_name = "VARIABLE")]
    secret_ref: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  clawk provider add second --vendor anthropic
  clawk provider add local --endpoint http://127.0.0.1:11434/v1 --model llama3.2 --yes
  clawk provider add lab --endpoint https://llm.example.com/v1 --model big-1 --secret-ref LAB_KEY

The first provider of a manifest answers; the others are for `/model`, `fallback` and members of a Swarm. A key is kept by
`clawk login NAME`, and checked by `clawk provider test NAME`.";

/// Vendors with a known address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModelVendor {
    /// Anthropic's API, key in ANTHROPIC_API_KEY
    Anthropic,
    /// OpenAI's API, key in OPENAI_API_KEY
    Openai,
}

/// ServerProtocols of model servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ServerProtocol {
    /// OpenAI's chat completions
    OpenaiCompatible,
    /// Anthropic's messages
    AnthropicNative,
}

impl ServerProtocol {
    const fn word(self) -> &'static str {
        match self {
            Self::OpenaiCompatible => "openai-compatible",
            Self::AnthropicNative => "anthropic-native",
        }
    }

    const fn auth(self) -> &'static str {
        match self {
            Self::OpenaiCompatible => "bearer",
            Self::AnthropicNative => "api-key-header",
        }
    }
}

impl ModelVendor {
    /// Address, protocol, the catalogue's name for its usual model, and the usual name of its key.
    const fn facts(self) -> (&'static str, ServerProtocol, &'static str, &'static str) {
        match self {
            Self::Anthropic => (
                "https://api.anthropic.com/v1",
                ServerProtocol::AnthropicNative,
                "anthropic:medium",
                "ANTHROPIC_API_KEY",
            ),
            Self::Openai => (
                "https://api.openai.com/v1",
                ServerProtocol::OpenaiCompatible,
                "openai:small",
                "OPENAI_API_KEY",
            ),
        }
    }
}

/// Adds the provider.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let mut edit = AgentEdit::open(&args.edit, config)?;
    let others = edit
        .manifest
        .providers
        .iter()
        .map(|provider| provider.name.as_str());
    check_new_name("provider", &args.name, others)?;
    let catalogue = ModelCatalogue::built_in();
    let (endpoint, protocol, model, usual_key) = match (args.vendor, &args.endpoint) {
        (Some(vendor), _) => {
            let (endpoint, protocol, alias, key) = vendor.facts();
            (
                endpoint.to_owned(),
                protocol,
                catalogue.resolve_alias(alias).to_owned(),
                Some(key),
            )
        }
        (None, Some(endpoint)) => (endpoint.clone(), args.protocol, String::new(), None),
        (None, None) => bail!("give `--endpoint URL`, or a `--vendor`"),
    };
    let url = Url::parse(&endpoint).with_context(|| {
        format!(
            "`{}` is not an address; it begins with `https://` or `http://`",
            out::clip_line(&endpoint, 80)
        )
    })?;
    if !url.username().is_empty() || url.password().is_some() {
        bail!("a key does not belong into the address; name it by `--secret-ref`");
    }
    let model = args.model.clone().unwrap_or(model);
    let reference = args.secret_ref.as_deref().or(usual_key);
    if let Some(reference) = reference {
        check_variable(reference)?;
    }
    let auth = match reference {
        Some(reference) => json!({"type": protocol.auth(), "secret_ref": reference}),
        None => json!({"type": "none"}),
    };
    let item = format!(
        "inline:\n  name: {}\n  protocol: {}\n  endpoint: {}\n  model: {}\n  auth: {auth}\n  streaming: true",
        args.name,
        protocol.word(),
        json!(endpoint),
        json!(model)
    );
    edit.add_to_manifest("providers", &item)?;
    let outcome = edit.finish()?;
    if outcome == EditOutcome::Written {
        let claw = args.edit.manifest.display();
        if reference.is_some() {
            out::print_note(format!("next:  clawk login {} --manifest {claw}", args.name));
        }
        out::print_note(format!(
            "       clawk provider test {} --manifest {claw}",
            args.name
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks the name of a secret. A text that is not one is not repeated, because it may be the key itself.
fn check_variable(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.is_empty()
        || name.len() > 64
        || !name.chars().all(fits)
        || clawk_proto::secret_name::looks_like_key(name)
    {
        bail!("`--secret-ref` takes the name of a variable, not the key itself");
    }
    Ok(())
}
