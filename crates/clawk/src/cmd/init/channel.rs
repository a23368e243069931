//! `clawk init --channel TYPE`: asks for a platform's settings, checks its token there, and writes the channel into the manifest
//! and `clawk.toml`. A secret is written as a reference, never as its value.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use clawk_channels::{ChannelConfig, CheckGrade, check_channels};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_manifest::model::Channel;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use serde_json::{Value, json};

use super::needs::{AnswerTarget, ChannelNeeds, ChannelQuestion, Kind, LetIn};
use crate::compose;
use crate::out;

/// The channel's name in the manifest of a new agent.
const NAME: &str = "chat";
/// Name of the provider for speech.
const SPEECH: &str = "speech";

/// Flags of `clawk init` about a channel.
#[derive(Debug, Default, clap::Args)]
#[group(skip)]
pub(in crate::cmd) struct Args {
    /// Connect the agent to a platform, and check its token there
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(in crate::cmd) channel: Option<Kind>,

    /// The variable that holds the channel's secret [default: by the type, for example TELEGRAM_TOKEN]
    #[arg(long, value_name = "VARIABLE", requires = "channel")]
    pub(in crate::cmd) secret_ref: Option<String>,

    /// A value that the type needs, for example `--setting user_id=@bot:example.org`
    #[arg(long = "setting", value_name = "NAME=VALUE", requires = "channel")]
    pub(in crate::cmd) settings: Vec<String>,

    /// The platform's address, for a server of your own
    #[arg(long, value_name = "URL", requires = "channel")]
    pub(in crate::cmd) base_url: Option<String>,

    /// Your id on the platform: you may answer questions there
    #[arg(long, value_name = "ID", requires = "channel")]
    pub(in crate::cmd) admin: Option<String>,

    /// Write the files without asking the platform
    #[arg(long, requires = "channel")]
    pub(in crate::cmd) no_check: bool,

    /// The channel's name, if it is not the usual one.
    #[arg(skip)]
    pub(in crate::cmd) name: Option<String>,
}

/// The variable's name that means "no secret".
const NO_SECRET: &str = "NONE";
/// Name of the variable with the key of a speech server.
const SPEECH_KEY: &str = "SPEECH_KEY";

/// A channel that is ready to be written.
pub(in crate::cmd) struct ChannelDraft {
    /// Lines for the manifest's `spec`.
    pub(in crate::cmd) manifest: String,
    /// Lines after the manifest's first provider; empty if the channel needs no own provider.
    pub(in crate::cmd) provider: String,
    /// The text of `clawk.toml`; `None`: every key has its default.
    pub(in crate::cmd) config: Option<String>,
    /// Steps that the user must take before a start.
    pub(in crate::cmd) next: Vec<String>,
    /// People talk to the agent in it; a trigger has no conversation.
    pub(in crate::cmd) has_conversations: bool,
    /// Arguments for `clawk serve` besides the manifest.
    pub(in crate::cmd) flags: &'static str,
}

/// The person's answers.
type ChannelAnswers = Vec<(ChannelQuestion, String)>;

/// Asks, checks, and returns what to write. Writes nothing.
pub(in crate::cmd) fn draft_channel(args: &Args, kind: Kind, asks: bool) -> Result<ChannelDraft> {
    let needs = kind.needs();
    if asks {
        out::print_line(format!("{}: {}", kind.manifest_word(), needs.how))?;
    }
    let (taken, base_url) = collect_answers(args, kind, &needs, asks)?;
    let reference = args
        .secret_ref
        .clone()
        .unwrap_or_else(|| first_secret(&needs, &taken).to_owned());
    check_variable_name(&reference)?;
    let people = matches!(needs.lets_in, LetIn::Pairing | LetIn::Admin);
    let admin = match &args.admin {
        Some(admin) if people => Some(admin.clone()),
        Some(_) => bail!(
            "`--admin` says nothing to `{}`: {}",
            kind.manifest_word(),
            no_sender_reason(&needs)
        ),
        None if asks && people => {
            Some(prompt_text("Your id on the platform (empty: later)?")?).filter(|id| !id.is_empty())
        }
        None => None,
    };
    let config = channel_config(&needs, base_url, &taken, admin.as_deref())?;
    let name = args.name.as_deref().unwrap_or(NAME);
    let mut manifest = channel_manifest(kind, &needs, &reference, &taken, admin.as_deref());
    if let Some(manifest) = manifest.as_object_mut() {
        manifest.insert("name".to_owned(), json!(name));
    }
    let declared: Channel = serde_json::from_value(manifest.clone())?;
    if let Some(fault) = config.config_faults(&declared).first() {
        bail!("nothing was written: {}", out::sanitize_block(fault));
    }
    let mut variables = vec![reference];
    variables.retain(|name| name != NO_SECRET);
    variables.extend(needs.secrets.iter().map(|(_, variable)| (*variable).to_owned()));
    if !args.no_check {
        let typed = if asks {
            prompt_secrets(&variables)?
        } else {
            BTreeMap::new()
        };
        check_platform(&declared, &config, &typed, &variables)?;
    }
    let provider = speech_provider_yaml(&taken);
    // Explains once where each secret comes from.
    let mut hows = variables
        .into_iter()
        .zip(std::iter::once(needs.how).chain(std::iter::repeat("")))
        .collect::<Vec<_>>();
    if !provider.is_empty() {
        hows.push((SPEECH_KEY.to_owned(), "the key of the speech server"));
    }
    let next = hows
        .into_iter()
        .filter(|(name, _)| clawk_secrets::env::non_empty(name).is_none())
        .map(|(name, how)| match how {
            "" => format!("export {name}=…"),
            how => format!("export {name}=…    # {how}"),
        })
        .collect();
    Ok(ChannelDraft {
        manifest: channel_yaml(&manifest),
        provider,
        config: channel_toml(name, &config)?,
        next,
        has_conversations: !clawk_channels::is_trigger(declared.kind),
        flags: if needs.listens {
            " --listen 127.0.0.1:8080"
        } else {
            ""
        },
    })
}

/// Returns the settings that the type needs, from flags or from the person, and the platform's address if it is not the vendor's.
fn collect_answers(
    args: &Args,
    kind: Kind,
    needs: &ChannelNeeds,
    asks: bool,
) -> Result<(ChannelAnswers, Option<String>)> {
    let mut given = parse_pairs(&args.settings)?;
    if let Some(url) = &args.base_url {
        given.insert("base_url".to_owned(), url.clone());
    }
    let mut taken = ChannelAnswers::new();
    for ask in &needs.asks {
        let value = match given.remove(ask.name) {
            Some(value) => value,
            None if asks && ask.place == AnswerTarget::Optional => {
                prompt_text(&format!("{}: {} (empty: later)?", ask.name, ask.what))?
            }
            None if asks => prompt_text(&format!("{}: {}?", ask.name, ask.what))?,
            None if ask.place == AnswerTarget::Optional => continue,
            None => bail!("`--setting {}=…` is missing: {}", ask.name, ask.what),
        };
        let value = value.trim().to_owned();
        if value.is_empty() && ask.place != AnswerTarget::Optional {
            bail!("`{}` is empty: {}", ask.name, ask.what);
        }
        if !value.is_empty() {
            taken.push((*ask, value));
        }
    }
    let base_url = given.remove("base_url");
    if let Some((unknown, _)) = given.first_key_value() {
        bail!(
            "`{}` needs no setting `{}`",
            kind.manifest_word(),
            out::clip_line(unknown, 60)
        );
    }
    Ok((taken, base_url))
}

/// Returns the reason why no sender's id is needed.
const fn no_sender_reason(needs: &ChannelNeeds) -> &'static str {
    match needs.lets_in {
        LetIn::User => "the person with its token is its admin",
        LetIn::Nobody | LetIn::Pairing | LetIn::Admin => "nobody writes there",
    }
}

/// Returns the variable of the first secret. An address without a user needs no password.
fn first_secret(needs: &ChannelNeeds, taken: &ChannelAnswers) -> &'static str {
    let url = taken.iter().find(|(ask, _)| ask.name == "url");
    match (needs.lets_in, url) {
        (LetIn::Nobody, Some((_, url))) if !url.contains('@') => NO_SECRET,
        _ => needs.secret,
    }
}

/// Asks the person for secrets that are not in the environment. They are used only for the check.
fn prompt_secrets(variables: &[String]) -> Result<BTreeMap<String, String>> {
    let mut typed = BTreeMap::new();
    for name in variables
        .iter()
        .filter(|name| clawk_secrets::env::non_empty(name).is_none())
    {
        let asked = inquire::Password::new(&format!("{name} (checked, and written nowhere; empty: later)"))
            .without_confirmation()
            .prompt()
            .context("not answered")?;
        if !asked.trim().is_empty() {
            typed.insert(name.clone(), asked);
        }
    }
    Ok(typed)
}

fn prompt_text(question: &str) -> Result<String> {
    Ok(inquire::Text::new(question)
        .prompt()
        .context("not answered")?
        .trim()
        .to_owned())
}

fn parse_pairs(settings: &[String]) -> Result<BTreeMap<String, String>> {
    let pair = |setting: &String| {
        let (name, value) = setting
            .split_once('=')
            .with_context(|| format!("`{}` is not NAME=VALUE", out::clip_line(setting, 60)))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    settings.iter().map(pair).collect()
}

/// Checks that the text is a variable's name, because a secret typed here would end up in the manifest.
fn check_variable_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        bail!(
            "`--secret-ref` takes the name of a variable: capital letters, digits and `_`, not the secret itself"
        );
    }
    Ok(())
}

fn channel_config(
    needs: &ChannelNeeds,
    base_url: Option<String>,
    taken: &ChannelAnswers,
    admin: Option<&str>,
) -> Result<ChannelConfig> {
    let mut keys = serde_json::Map::new();
    let mut settings = serde_json::Map::new();
    for (ask, value) in taken {
        match ask.place {
            AnswerTarget::Setting => {
                settings.insert(ask.name.to_owned(), json!(value));
            }
            AnswerTarget::Key | AnswerTarget::Optional => {
                keys.insert(ask.name.to_owned(), json!(value));
            }
            AnswerTarget::Command => {
                let words: Vec<&str> = value.split_whitespace().collect();
                keys.insert(ask.name.to_owned(), json!(words));
            }
            AnswerTarget::Speech => {
                settings.insert("transcribe".to_owned(), json!(SPEECH));
                settings.insert("speak".to_owned(), json!(SPEECH));
            }
            AnswerTarget::Trigger => {}
        }
    }
    if let Some(url) = base_url {
        keys.insert("base_url".to_owned(), json!(url));
    }
    keys.insert("settings".to_owned(), Value::Object(settings));
    let mut config: ChannelConfig = serde_json::from_value(Value::Object(keys))?;
    config.secrets = needs
        .secrets
        .iter()
        .map(|(key, variable)| ((*key).to_owned(), (*variable).to_owned()))
        .collect();
    config.admins = match needs.lets_in {
        LetIn::User => vec!["user".to_owned()],
        LetIn::Pairing | LetIn::Admin | LetIn::Nobody => admin.map(str::to_owned).into_iter().collect(),
    };
    Ok(config)
}

fn channel_manifest(
    kind: Kind,
    needs: &ChannelNeeds,
    reference: &str,
    taken: &ChannelAnswers,
    admin: Option<&str>,
) -> Value {
    let mut channel = json!({"name": NAME, "type": kind.manifest_word(), "transport": needs.transport,
        "auth": {"secret_ref": reference}});
    let access = match needs.lets_in {
        LetIn::Pairing => {
            json!({"mode": "pairing", "pairing": {"code_expiry_minutes": 30, "max_pending": 10}})
        }
        LetIn::User => json!({"mode": "allowlist", "allowed_ids": ["user"]}),
        LetIn::Admin => {
            json!({"mode": "allowlist", "allowed_ids": admin.into_iter().collect::<Vec<_>>()})
        }
        LetIn::Nobody => Value::Null,
    };
    let triggers = taken.iter().filter(|(ask, _)| ask.place == AnswerTarget::Trigger);
    let trigger: serde_json::Map<String, Value> = triggers
        .map(|(ask, value)| (ask.name.to_owned(), json!(value)))
        .collect();
    if let Some(channel) = channel.as_object_mut() {
        if !access.is_null() {
            channel.insert("access_control".to_owned(), access);
        }
        if !trigger.is_empty() {
            channel.insert("trigger".to_owned(), Value::Object(trigger));
        }
    }
    channel
}

/// Returns the provider for speech as lines of the manifest's `providers`. Values are JSON, which is valid YAML.
fn speech_provider_yaml(taken: &ChannelAnswers) -> String {
    let of = |name: &str| {
        let found = taken.iter().find(|(ask, _)| ask.name == name);
        found.map(|(_, value)| json!(value).to_string())
    };
    let (Some(url), Some(model)) = (of("speech_url"), of("speech_model")) else {
        return String::new();
    };
    format!(
        "    - inline:
        name: {SPEECH}
        protocol: openai-compatible
        endpoint: {url}
        model: {model}
        capabilities: [audio]
        auth: {{ type: bearer, secret_ref: {SPEECH_KEY} }}
"
    )
}

/// Asks the platform, if the secrets are available.
fn check_platform(
    channel: &Channel,
    config: &ChannelConfig,
    typed: &BTreeMap<String, String>,
    variables: &[String],
) -> Result<()> {
    let resolver = match typed.is_empty() {
        true => SecretResolver::without_store(EnvironmentSource::Process),
        false => {
            let proxies = [
                "HTTPS_PROXY",
                "https_proxy",
                "NO_PROXY",
                "no_proxy",
                "SSL_CERT_FILE",
            ]
            .map(str::to_owned);
            let known = variables.iter().cloned().chain(proxies);
            let known = known.filter_map(|name| Some((name.clone(), clawk_secrets::env::non_empty(&name)?)));
            SecretResolver::without_store(EnvironmentSource::from_pairs(known.chain(typed.clone())))
        }
    };
    if let Some(missing) = variables.iter().find(|name| resolver.resolve(name).is_err()) {
        out::print_note(format!(
            "not checked: {missing} is not set; `clawk doctor` checks it later"
        ));
        return Ok(());
    }
    let clock = SystemClock::default();
    let found =
        compose::build_runtime()?.block_on(check_channels(&[(channel, config)], &resolver, clock.now(), ""));
    for (_, finding) in &found {
        out::print_line(format!("{}: {}", finding.code, out::one_line(&finding.result)))?;
        if finding.grade == CheckGrade::Warn {
            out::print_line(format!("  → {}", out::one_line(&finding.cure)))?;
        }
    }
    if let Some((_, bad)) = found
        .iter()
        .find(|(_, finding)| finding.grade == CheckGrade::Fail)
    {
        bail!(
            "nothing was written: {} (cure: {}; or `--no-check`)",
            out::one_line(&bad.result),
            bad.cure
        );
    }
    Ok(())
}

/// Keys of a channel, in the usual order.
const KEYS: [&str; 6] = ["name", "type", "transport", "auth", "access_control", "trigger"];

/// Returns the channel as lines of the manifest's `spec`. Values are JSON, which is valid YAML.
fn channel_yaml(manifest: &Value) -> String {
    let mut lines = vec![
        "\n  # Who reaches it, and where. `clawk channels` shows the state while `clawk serve claw.yaml` runs.".to_owned(),
        "  channels:".to_owned(),
        "    - inline:".to_owned(),
    ];
    for key in KEYS {
        if let Some(value) = manifest.get(key) {
            lines.push(format!("        {key}: {value}"));
        }
    }
    lines.join("\n") + "\n"
}

fn channel_toml(name: &str, config: &ChannelConfig) -> Result<Option<String>> {
    let usual = serde_json::to_value(ChannelConfig::default())?;
    let mut keys = serde_json::to_value(config)?;
    if let (Some(keys), Some(usual)) = (keys.as_object_mut(), usual.as_object()) {
        keys.retain(|key, value| usual.get(key) != Some(value));
    }
    if keys.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(None);
    }
    let text = toml::to_string(&json!({ "channels": { name: keys } })).context("clawk.toml can't be made")?;
    Ok(Some(format!(
        "# What is local to this machine. docs/reference/config.md lists every key.\n{text}"
    )))
}
