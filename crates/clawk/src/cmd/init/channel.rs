//! `clawk init --channel TYPE`: asks for what a platform needs, checks its token there, and writes the channel into the manifest and
//! `clawk.toml`. A secret is written as a reference, never as itself.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clawk_channels::{ChannelConfig, Grade, check};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_manifest::model::Channel;
use clawk_secrets::{Env, Resolver};
use serde_json::{Value, json};

use crate::compose;
use crate::out;

/// The channel's name in the manifest.
const NAME: &str = "chat";

/// Flags of `clawk init` about a channel.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Connect the agent to a platform, and check its token there
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(super) channel: Option<Kind>,

    /// The variable that holds the channel's secret [default: by the type, for example TELEGRAM_TOKEN]
    #[arg(long, value_name = "VARIABLE", requires = "channel")]
    secret_ref: Option<String>,

    /// A value that the type needs, for example `--setting user_id=@bot:example.org`
    #[arg(long = "setting", value_name = "NAME=VALUE", requires = "channel")]
    settings: Vec<String>,

    /// The platform's address, for a server of your own
    #[arg(long, value_name = "URL", requires = "channel")]
    base_url: Option<String>,

    /// Your id on the platform: you may answer questions there
    #[arg(long, value_name = "ID", requires = "channel")]
    admin: Option<String>,

    /// Write the files without asking the platform
    #[arg(long, requires = "channel")]
    no_check: bool,
}

/// A platform that `clawk init` can connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A bot of Telegram
    Telegram,
    /// An app of Slack, by Socket Mode
    Slack,
    /// A bot of Discord
    Discord,
    /// A user of a Matrix homeserver
    Matrix,
    /// A mailbox, by IMAP and SMTP
    Email,
    /// Signed HTTP requests of a program of yours
    Webhook,
    /// A page in the browser
    Web,
}

/// What a type needs, and where a person gets it.
struct Needs {
    transport: &'static str,
    /// The variable of the first secret.
    secret: &'static str,
    /// Where to get it.
    how: &'static str,
    /// Further secrets: the key in `clawk.toml`, and the variable.
    secrets: &'static [(&'static str, &'static str)],
    /// Settings, and top-level keys with a URL: what they are, for people.
    settings: &'static [(&'static str, &'static str)],
    urls: &'static [(&'static str, &'static str)],
    /// Whether unknown people get a code to be paired with.
    pairs: bool,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Telegram => "telegram",
            Self::Slack => "slack",
            Self::Discord => "discord",
            Self::Matrix => "matrix",
            Self::Email => "email",
            Self::Webhook => "webhook",
            Self::Web => "web",
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each platform")]
    const fn needs(self) -> Needs {
        let plain = Needs {
            transport: "websocket",
            secret: "",
            how: "",
            secrets: &[],
            settings: &[],
            urls: &[],
            pairs: true,
        };
        match self {
            Self::Telegram => Needs {
                transport: "polling",
                secret: "TELEGRAM_TOKEN",
                how: "in Telegram, write to @BotFather, send /newbot, and copy the token",
                ..plain
            },
            Self::Slack => Needs {
                secret: "SLACK_BOT_TOKEN",
                how: "at api.slack.com/apps make an app with Socket Mode; OAuth & Permissions shows the bot token (xoxb-), Basic \
                      Information the app token (xapp-)",
                secrets: &[("app_token", "SLACK_APP_TOKEN")],
                ..plain
            },
            Self::Discord => Needs {
                secret: "DISCORD_TOKEN",
                how: "at discord.com/developers/applications make an application; Bot shows the token, and MESSAGE CONTENT INTENT \
                      must be on",
                ..plain
            },
            Self::Matrix => Needs {
                transport: "polling",
                secret: "MATRIX_TOKEN",
                how: "make a user for the agent on your homeserver; in Element, All settings, Help & About shows its access token",
                settings: &[("user_id", "the agent's user id, for example @bot:example.org")],
                urls: &[(
                    "base_url",
                    "the homeserver's address, for example https://matrix.example.org",
                )],
                ..plain
            },
            Self::Email => Needs {
                transport: "polling",
                secret: "MAIL_PASSWORD",
                how: "make a mailbox for the agent alone, with a password of its own",
                settings: &[
                    ("address", "the mailbox's address"),
                    (
                        "authserv_id",
                        "the first word of Authentication-Results in a mail that you received there",
                    ),
                ],
                urls: &[
                    (
                        "url",
                        "the IMAP server, for example imaps://USER@imap.example.org",
                    ),
                    (
                        "smtp_url",
                        "the SMTP server, for example smtps://USER@smtp.example.org",
                    ),
                ],
                pairs: false,
                ..plain
            },
            Self::Webhook => Needs {
                transport: "webhook",
                secret: "WEBHOOK_SECRET",
                how: "make a long random text, for example with `openssl rand -hex 32`; both sides sign with it",
                pairs: false,
                ..plain
            },
            Self::Web => Needs {
                secret: "WEB_TOKEN",
                how: "make a long random text, for example with `openssl rand -hex 32`; it is what you sign in with",
                pairs: false,
                ..plain
            },
        }
    }
}

/// A channel, ready to be written.
pub(super) struct Written {
    /// Lines of the manifest's `spec`.
    pub(super) manifest: String,
    /// The whole `clawk.toml`; none: every key has its default.
    pub(super) config: Option<String>,
    /// What is to be done before a start.
    pub(super) next: Vec<String>,
}

/// Asks, checks, and says what to write. Nothing is written here.
pub(super) fn channel(args: &Args, kind: Kind, asks: bool) -> Result<Written> {
    let needs = kind.needs();
    let reference = args.secret_ref.clone().unwrap_or_else(|| needs.secret.to_owned());
    variable(&reference)?;
    let mut given = pairs(&args.settings)?;
    if let Some(url) = &args.base_url {
        given.insert("base_url".to_owned(), url.clone());
    }
    if asks {
        out::line(&format!("{}: {}", kind.word(), needs.how))?;
    }
    let mut taken = BTreeMap::new();
    for (key, what) in needs.settings.iter().chain(needs.urls) {
        let value = match given.remove(*key) {
            Some(value) => value,
            None if asks => text(&format!("{key}: {what}?"))?,
            None => bail!("`--setting {key}=…` is missing: {what}"),
        };
        taken.insert(*key, value);
    }
    let base_url = given.remove("base_url").or_else(|| taken.remove("base_url"));
    if let Some((unknown, _)) = given.first_key_value() {
        bail!(
            "`{}` needs no setting `{}`",
            kind.word(),
            out::clipped(unknown, 60)
        );
    }
    let admin = match &args.admin {
        Some(admin) => Some(admin.clone()),
        None if asks && kind != Kind::Web => {
            Some(text("Your id on the platform (empty: later)?")?).filter(|id| !id.is_empty())
        }
        None => None,
    };
    let config = config(kind, &needs, base_url, &taken, admin.as_deref());
    let manifest = manifest(kind, &needs, &reference, admin.as_deref());
    let mut variables = vec![reference.clone()];
    variables.extend(needs.secrets.iter().map(|(_, variable)| (*variable).to_owned()));
    let mut typed = BTreeMap::new();
    if asks && !args.no_check {
        for name in variables
            .iter()
            .filter(|name| clawk_secrets::env::non_empty(name).is_none())
        {
            let asked =
                inquire::Password::new(&format!("{name} (checked, and written nowhere; empty: later)"))
                    .without_confirmation()
                    .prompt()
                    .context("not answered")?;
            if !asked.trim().is_empty() {
                typed.insert(name.clone(), asked);
            }
        }
    }
    if !args.no_check {
        looked(&manifest, &config, &typed, &variables)?;
    }
    let next = variables
        .iter()
        .filter(|name| clawk_secrets::env::non_empty(name).is_none())
        .map(|name| format!("export {name}=…    # {}", needs.how))
        .collect();
    Ok(Written {
        manifest: yaml(&manifest),
        config: toml(&config)?,
        next,
    })
}

fn text(question: &str) -> Result<String> {
    Ok(inquire::Text::new(question)
        .prompt()
        .context("not answered")?
        .trim()
        .to_owned())
}

fn pairs(settings: &[String]) -> Result<BTreeMap<String, String>> {
    let pair = |setting: &String| {
        let (name, value) = setting
            .split_once('=')
            .with_context(|| format!("`{}` is not NAME=VALUE", out::clipped(setting, 60)))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    settings.iter().map(pair).collect()
}

/// Whoever writes the secret itself here would write it into the manifest.
fn variable(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
        bail!(
            "`--secret-ref` takes the name of a variable: capital letters, digits and `_`, not the secret itself"
        );
    }
    Ok(())
}

fn config(
    kind: Kind,
    needs: &Needs,
    base_url: Option<String>,
    taken: &BTreeMap<&'static str, String>,
    admin: Option<&str>,
) -> ChannelConfig {
    let url = |name: &str| taken.get(name).cloned();
    let settings = needs.settings.iter();
    ChannelConfig {
        base_url,
        url: url("url"),
        smtp_url: url("smtp_url"),
        secrets: needs
            .secrets
            .iter()
            .map(|(key, variable)| ((*key).to_owned(), (*variable).to_owned()))
            .collect(),
        settings: settings
            .filter_map(|(name, _)| Some(((*name).to_owned(), taken.get(name)?.clone())))
            .collect(),
        // The page's token belongs to a person called `user`.
        admins: match kind {
            Kind::Web => vec!["user".to_owned()],
            _ => admin.map(str::to_owned).into_iter().collect(),
        },
        ..ChannelConfig::default()
    }
}

fn manifest(kind: Kind, needs: &Needs, reference: &str, admin: Option<&str>) -> Value {
    let access = match (needs.pairs, kind) {
        (true, _) => json!({"mode": "pairing", "pairing": {"code_expiry_minutes": 30, "max_pending": 10}}),
        (false, Kind::Web) => json!({"mode": "allowlist", "allowed_ids": ["user"]}),
        (false, _) => json!({"mode": "allowlist", "allowed_ids": admin.into_iter().collect::<Vec<_>>()}),
    };
    json!({"name": NAME, "type": kind.word(), "transport": needs.transport, "auth": {"secret_ref": reference},
        "access_control": access})
}

/// Asks the platform, where the secrets are at hand.
fn looked(
    manifest: &Value,
    config: &ChannelConfig,
    typed: &BTreeMap<String, String>,
    variables: &[String],
) -> Result<()> {
    let channel: Channel = serde_json::from_value(manifest.clone())?;
    let resolver = match typed.is_empty() {
        true => Resolver::without_store(Env::Process),
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
            Resolver::without_store(Env::fixed(known.chain(typed.clone())))
        }
    };
    if let Some(missing) = variables.iter().find(|name| resolver.resolve(name).is_err()) {
        out::note(&format!(
            "not checked: {missing} is not set; `clawk doctor` checks it later"
        ));
        return Ok(());
    }
    let clock = SystemClock::default();
    let found = compose::runtime()?.block_on(check(&[(&channel, config)], &resolver, clock.now(), ""));
    for (_, finding) in &found {
        out::line(&format!("{}: {}", finding.code, out::harmless(&finding.result)))?;
        if finding.grade == Grade::Warn {
            out::line(&format!("  → {}", out::harmless(&finding.cure)))?;
        }
    }
    if let Some((_, bad)) = found.iter().find(|(_, finding)| finding.grade == Grade::Fail) {
        bail!(
            "nothing was written: {} (cure: {}; or `--no-check`)",
            out::harmless(&bad.result),
            bad.cure
        );
    }
    Ok(())
}

/// The channel as lines of the manifest's `spec`. Values are JSON, which is YAML.
fn yaml(manifest: &Value) -> String {
    let mut lines = vec![
        "\n  # Who reaches it, and where. `clawk channels` shows the state while `clawk serve claw.yaml` runs.".to_owned(),
        "  channels:".to_owned(),
        "    - inline:".to_owned(),
    ];
    for (key, value) in manifest.as_object().into_iter().flatten() {
        lines.push(format!("        {key}: {value}"));
    }
    lines.join("\n") + "\n"
}

fn toml(config: &ChannelConfig) -> Result<Option<String>> {
    let usual = serde_json::to_value(ChannelConfig::default())?;
    let mut keys = serde_json::to_value(config)?;
    if let (Some(keys), Some(usual)) = (keys.as_object_mut(), usual.as_object()) {
        keys.retain(|key, value| usual.get(key) != Some(value));
    }
    if keys.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(None);
    }
    let text = toml::to_string(&json!({ "channels": { NAME: keys } })).context("clawk.toml can't be made")?;
    Ok(Some(format!(
        "# What is local to this machine. docs/reference/config.md lists every key.\n{text}"
    )))
}
