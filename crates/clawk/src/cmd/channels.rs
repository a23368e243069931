//! `clawk channels`: shows the channels of a running agent and its paired senders, and starts a trigger's run by hand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clawk_server::{ControlClient, ControlError};
use serde_json::{Value, json};

use crate::compose::ResolvedConfig;
use crate::config::Config;
use crate::out::{self, Format, TerminalStyle, one_line};
use crate::{compose, state};

/// Flags of `clawk channels`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<ChannelsCommand>,

    #[command(flatten)]
    which: state::StateSelector,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk channels --agent hello
  clawk channels add telegram --manifest my-agent
  clawk channels fire nightly --agent hello
  clawk channels remove orders --agent hello
  clawk channels remove orders --manifest claw.yaml
  clawk channels pairing list --agent hello
  clawk channels pairing approve 7K3Q9XPA --agent hello

Channels are connected while `clawk serve` runs. `remove` also works when it does not run: it reads the manifest.";

#[derive(Debug, clap::Subcommand)]
enum ChannelsCommand {
    /// Declare another channel: manifest and clawk.toml together, after its token was checked at the platform
    Add(super::edit::channel_add::Args),
    /// Begin a run of a trigger now
    Fire {
        /// The channel
        #[arg(value_name = "NAME")]
        name: String,

        #[command(flatten)]
        which: state::StateSelector,
    },
    /// Remove what a channel installed elsewhere: the triggers and the table of a `db-trigger`
    Remove {
        /// The channel
        #[arg(value_name = "NAME")]
        name: String,

        /// The agent's manifest, for an agent that does not run [default: `claw.yaml` in this folder]
        #[arg(long, value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        manifest: Option<PathBuf>,

        #[command(flatten)]
        which: state::StateSelector,
    },
    /// List the people who are paired with a channel; approve, deny and revoke pairings
    Pairing {
        #[command(subcommand)]
        what: PairingCommand,
    },
}

#[derive(Debug, clap::Subcommand)]
enum PairingCommand {
    /// List paired people, and people who wait with a code
    List {
        #[command(flatten)]
        which: state::StateSelector,

        /// Output format
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Admit the person who got this code
    Approve(PairingCodeArgs),
    /// Refuse the person who got this code
    Deny(PairingCodeArgs),
    /// End a person's pairing
    Revoke {
        /// The platform's id of the sender, as `list` prints it
        #[arg(value_name = "ID")]
        id: String,

        /// On this channel alone
        #[arg(long, value_name = "NAME")]
        channel: Option<String>,

        #[command(flatten)]
        which: state::StateSelector,
    },
}

#[derive(Debug, clap::Args)]
struct PairingCodeArgs {
    /// The code, as its owner reads it to you
    #[arg(value_name = "CODE")]
    code: String,

    #[command(flatten)]
    which: state::StateSelector,
}

/// The manifest of an agent that is not running.
const BESIDE: &str = "claw.yaml";

/// Sends the request to the running agent.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.what {
        None => list_channels(&args.which, args.format),
        Some(ChannelsCommand::Add(args)) => super::edit::channel_add::run(args, config),
        Some(ChannelsCommand::Fire { name, which }) => {
            ask_agent(which, "clawk.channels.fire", &json!({ "name": name }))?;
            out::print_line(format!("{name} is fired"))?;
            Ok(ExitCode::SUCCESS)
        }
        Some(ChannelsCommand::Remove {
            name,
            manifest,
            which,
        }) => {
            let removed = remove(name, which, manifest.as_deref(), config)?;
            for line in &removed {
                out::print_line(one_line(line))?;
            }
            if removed.is_empty() {
                out::print_line(format!("{} installed nothing elsewhere", one_line(name)))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(ChannelsCommand::Pairing { what }) => run_pairing(what),
    }
}

/// Sends the request to the running agent. If none runs, removes the pairing by the manifest.
fn remove(
    name: &str,
    which: &state::StateSelector,
    manifest: Option<&Path>,
    config: Option<&Path>,
) -> Result<Vec<String>> {
    let beside = Path::new(BESIDE);
    let path = manifest.or_else(|| beside.exists().then_some(beside));
    let running = compose::build_runtime()?
        .block_on(async { Ok::<_, anyhow::Error>(ControlClient::connect(&which.find_dir()?).await?) });
    if let (Err(_), Some(path)) = (&running, path) {
        return compose::build_runtime()?.block_on(removed_from_here(name, path, config));
    }
    drop(running);
    let answer = ask_agent(which, "clawk.channels.remove", &json!({ "name": name }))?;
    let removed = array_member(&answer, "removed").iter().filter_map(Value::as_str);
    Ok(removed.map(str::to_owned).collect())
}

async fn removed_from_here(name: &str, path: &Path, config: Option<&Path>) -> Result<Vec<String>> {
    let config = Config::load(config, Some(path))?;
    // A folder without the user's consent must not choose a secret or the host it is sent to.
    let blueprint = ResolvedConfig::with_config(path, config)
        .await?
        .with_consent(false, crate::trust::can_ask_user())
        .await?;
    let channels = &blueprint.manifest.channels;
    let Some(channel) = channels.iter().find(|channel| channel.name == *name) else {
        bail!("`{}` declares no channel `{}`", path.display(), one_line(name));
    };
    let usual = clawk_channels::ChannelConfig::default();
    let local = blueprint.config.settings.channels.get(name).unwrap_or(&usual);
    clawk_channels::remove_installed(channel, local, &blueprint.resolver, &blueprint.workdir)
        .await
        .map_err(|reason| anyhow!(reason))
}

fn run_pairing(what: &PairingCommand) -> Result<ExitCode> {
    match what {
        PairingCommand::List { which, format } => list_pairings(which, *format)?,
        PairingCommand::Approve(PairingCodeArgs { code, which }) => {
            decide_pairing(which, code, "approve", "let in")?
        }
        PairingCommand::Deny(PairingCodeArgs { code, which }) => {
            decide_pairing(which, code, "deny", "refused")?
        }
        PairingCommand::Revoke { id, channel, which } => {
            let params = json!({ "id": id, "channel": channel });
            let answer = ask_agent(which, "clawk.channels.pairing.revoke", &params)?;
            for channel in array_member(&answer, "channels") {
                let channel = channel.as_str().unwrap_or_default();
                out::print_line(format!("{} is not let in by {channel} any more", one_line(id)))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn decide_pairing(which: &state::StateSelector, code: &str, verb: &str, word: &str) -> Result<()> {
    let answer = ask_agent(
        which,
        &format!("clawk.channels.pairing.{verb}"),
        &json!({ "code": code }),
    )?;
    out::print_line(format!(
        "{} is {word} by {}",
        text_member(&answer, "sender"),
        text_member(&answer, "channel")
    ))?;
    Ok(())
}

fn ask_agent(which: &state::StateSelector, method: &str, params: &Value) -> Result<Value> {
    let dir = which.find_dir()?;
    compose::build_runtime()?.block_on(async {
        let mut client = ControlClient::connect(&dir).await?;
        match client.call_method(method, params).await {
            Ok(answer) => Ok(answer),
            Err(ControlError::Refused(error)) => Err(anyhow!(error.message)),
            Err(error) => Err(error.into()),
        }
    })
}

fn array_member<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    let array = value.get(member).and_then(Value::as_array);
    array.map(Vec::as_slice).unwrap_or_default()
}

fn text_member(value: &Value, member: &str) -> String {
    one_line(value.get(member).and_then(Value::as_str).unwrap_or_default()).into()
}

fn list_channels(which: &state::StateSelector, format: Format) -> Result<ExitCode> {
    let answer = ask_agent(which, "clawk.channels.list", &json!({}))?;
    if format == Format::Json {
        out::print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let channels = array_member(&answer, "channels");
    if channels.is_empty() {
        out::print_line("the agent has no channels")?;
    }
    let paint = TerminalStyle::for_stdout();
    for channel in channels {
        let state = match text_member(channel, "state").as_str() {
            "ready" => paint.green("ready"),
            "degraded" => paint.yellow("degraded"),
            other => paint.red(other),
        };
        let number = |member: &str| channel.get(member).and_then(Value::as_u64).unwrap_or(0);
        out::print_line(format!(
            "{state} {}  {}, {}",
            paint.bold(&text_member(channel, "name")),
            text_member(channel, "type"),
            text_member(channel, "transport")
        ))?;
        let reason = text_member(channel, "reason");
        if !reason.is_empty() {
            out::print_line(format!("  {reason}"))?;
        }
        let last = |member: &str| {
            let at = text_member(channel, member);
            if at.is_empty() { "never".to_owned() } else { at }
        };
        out::print_line(paint.dim(&format!(
            "  last in {}, last out {}; taken {}, repeated {}, refused {}, delivered {}, owed {}, dead {}",
            last("last_in"),
            last("last_out"),
            number("accepted"),
            number("duplicates"),
            number("refused"),
            number("delivered"),
            number("queued"),
            number("dead")
        )))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list_pairings(which: &state::StateSelector, format: Format) -> Result<()> {
    let answer = ask_agent(which, "clawk.channels.pairing.list", &json!({}))?;
    if format == Format::Json {
        return out::print_json(&answer);
    }
    let channels = array_member(&answer, "pairings");
    if channels.is_empty() {
        out::print_line("no channel has the access mode `pairing`")?;
    }
    let paint = TerminalStyle::for_stdout();
    for channel in channels {
        out::print_line(paint.bold(&text_member(channel, "channel")))?;
        for sender in array_member(channel, "paired") {
            out::print_line(format!(
                "  paired   {}",
                one_line(sender.as_str().unwrap_or_default())
            ))?;
        }
        for pending in array_member(channel, "pending") {
            let (sender, until) = (text_member(pending, "sender"), text_member(pending, "expires_at"));
            out::print_line(format!("  waiting  {sender}  (until {until})"))?;
        }
    }
    Ok(())
}
