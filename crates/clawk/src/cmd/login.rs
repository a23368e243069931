//! `clawk login PROVIDER`: takes a key, tests it at the provider, and keeps it in a file that only its owner can read.

use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_manifest::model::Provider;
use clawk_secrets::{EnvironmentSource, Secret, SecretResolver, env, keep_secret};

use crate::compose::{self, ResolvedConfig};
use crate::config::Config;
use crate::out;

/// Longest key, in bytes.
const MAX_KEY_BYTES: u64 = 16 * 1024;

/// Flags of `clawk login`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The provider in the manifest
    #[arg(value_name = "PROVIDER")]
    provider: String,

    /// The agent's manifest, or its folder
    #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser(), default_value = ".")]
    manifest: PathBuf,

    /// Keep the key without asking the provider whether it is good
    #[arg(long)]
    no_check: bool,
}

const EXAMPLES: &str = "\
Examples:
  clawk login main                             asks for the key, hidden; tests it, and keeps it
  clawk login main --manifest my-agent
  pass show llm | clawk login main             the key from a password store

The key is kept under the name that the provider's `secret_ref` gives, in `$XDG_CONFIG_HOME/clawk/secrets` (else
`~/.config/clawk/secrets`), mode 0600. A store of clawk.toml, the environment and `$CLAW_SECRETS_DIR` come before it.
Tokens of MCP servers are another thing: `clawk mcp login`.";

/// Takes, tests and keeps the key.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    compose::build_runtime()?.block_on(log_in(args, config))
}

async fn log_in(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let config = Config::load(config, Some(&args.manifest))?;
    // A folder without the user's consent must not choose the host that a key is sent to.
    let mut blueprint = ResolvedConfig::with_config(&args.manifest, config)
        .await?
        .with_consent(false, crate::trust::can_ask_user())
        .await?;
    let provider = find_provider(&blueprint.manifest.providers, &args.provider)?.clone();
    let Some(reference) = provider.auth.secret_ref.clone() else {
        bail!(
            "the provider `{}` needs no key: its `auth` names no `secret_ref`",
            out::one_line(&provider.name)
        );
    };
    let host = out::one_line(&provider.endpoint);
    let key = read_key(&format!(
        "The key `{}` for {host} (hidden)",
        out::one_line(&reference)
    ))?;
    if !args.no_check {
        blueprint.resolver = resolver_with(&reference, &key);
        let listed = blueprint.provider_factory().list_models(&provider).await;
        let listed = listed.map_err(|error| {
            anyhow::anyhow!("the key was not kept: {error} (`--no-check` keeps it without asking)")
        })?;
        out::print_note(format!(
            "{host} accepts the key; it offers {} models",
            listed.len()
        ));
    }
    let file = keep_secret(
        &EnvironmentSource::Process,
        &Secret::new(reference.as_str(), key.as_str()),
    )?;
    out::print_line(format!(
        "kept `{}` in {}",
        out::one_line(&reference),
        file.display()
    ))?;
    if env::non_empty(&reference).is_some() {
        out::print_note(format!(
            "the environment variable `{}` is set here, and comes before the kept key",
            out::one_line(&reference)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the provider of this name, or the only one whose address has the word as part of its host (`anthropic`).
fn find_provider<'p>(providers: &'p [Provider], wanted: &str) -> Result<&'p Provider> {
    if let Some(provider) = providers.iter().find(|provider| provider.name == wanted) {
        return Ok(provider);
    }
    let host_has = |provider: &&Provider| {
        let rest = provider.endpoint.split_once("://").map_or("", |(_, rest)| rest);
        let host = rest.split(['/', ':']).next().unwrap_or_default();
        host.split('.').any(|part| part.eq_ignore_ascii_case(wanted))
    };
    let found: Vec<&Provider> = providers.iter().filter(host_has).collect();
    match found.as_slice() {
        [one] => Ok(one),
        _ => {
            let names: Vec<String> = providers
                .iter()
                .map(|provider| format!("`{}`", provider.name))
                .collect();
            bail!(
                "the manifest has no provider `{}`; it has {}. `clawk provider add` adds one",
                out::clip_line(wanted, 60),
                out::one_line(&names.join(", "))
            )
        }
    }
}

/// Returns a resolver that knows this key, and the variables that a connection needs.
fn resolver_with(reference: &str, key: &str) -> SecretResolver {
    let names = [
        "HTTPS_PROXY",
        "https_proxy",
        "NO_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
    ];
    let known = names
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), env::non_empty(name)?)));
    let given = (reference.to_owned(), key.to_owned());
    SecretResolver::without_store(EnvironmentSource::from_pairs(known.chain([given])))
}

/// Reads the key from a terminal without showing it, or from standard input.
fn read_key(question: &str) -> Result<String> {
    let typed = if io::stdin().is_terminal() {
        let asked = inquire::Password::new(question).without_confirmation();
        asked.prompt().context("no key was given; nothing was kept")?
    } else {
        let mut text = String::new();
        io::stdin()
            .lock()
            .take(MAX_KEY_BYTES + 1)
            .read_to_string(&mut text)
            .context("the key on standard input can't be read as text")?;
        text
    };
    clean_key(&typed)
}

/// Returns the key without what stands around it by accident.
fn clean_key(typed: &str) -> Result<String> {
    let key = typed.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let quoted = ['"', '\'']
        .iter()
        .find_map(|quote| key.strip_prefix(*quote)?.strip_suffix(*quote));
    let key = quoted.unwrap_or(key);
    if key.is_empty() {
        bail!("the key is empty; nothing was kept");
    }
    if u64::try_from(key.len()).unwrap_or(u64::MAX) > MAX_KEY_BYTES {
        bail!("the key is longer than {MAX_KEY_BYTES} bytes; nothing was kept");
    }
    if key.chars().any(|c| c.is_whitespace() || c.is_control()) {
        bail!("a key has no blanks and is one line; nothing was kept");
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::clean_key;

    #[test]
    fn what_stands_around_a_key_goes_and_what_is_no_key_is_refused() {
        for (typed, key) in [
            ("abc\n", Some("abc")),
            (" \u{feff}abc\r\n", Some("abc")),
            ("\"abc\"\n", Some("abc")),
            ("'abc'", Some("abc")),
            ("", None),
            ("\"\"", None),
            ("two words", None),
            ("a\nb", None),
            ("a\u{1b}[2J", None),
        ] {
            assert_eq!(clean_key(typed).ok().as_deref(), key, "{typed:?}");
        }
    }
}
