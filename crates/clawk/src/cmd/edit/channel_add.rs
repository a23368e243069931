//! `clawk channels add`: declares another channel, with the settings of `clawk init --channel`.

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::{AgentEdit, EditArgs, EditOutcome, check_new_name};
use crate::cmd::init::channel::{self, draft_channel};
use crate::cmd::init::needs::Kind;
use crate::out;

/// Flags of `clawk channels add`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    edit: EditArgs,

    /// The platform or event source
    #[arg(value_enum, value_name = "TYPE")]
    kind: Kind,

    /// The channel's name in the manifest [default: its type]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The variable that holds the channel's secret [default: by the type, for example TELEGRAM_TOKEN]
    #[arg(long, value_name = "VARIABLE")]
    secret_ref: Option<String>,

    /// A value that the type needs, for example `--setting user_id=@bot:example.org`
    #[arg(long = "setting", value_name = "NAME=VALUE")]
    settings: Vec<String>,

    /// The platform's address, for a server of your own
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,

    /// Your id on the platform: you may answer questions there
    #[arg(long, value_name = "ID")]
    admin: Option<String>,

    /// Do not ask the platform whether the token is good
    #[arg(long)]
    no_check: bool,
}

const EXAMPLES: &str = "\
Examples:
  clawk channels add telegram                  asks for what the platform needs; the token is checked there
  clawk channels add cron --name nightly --setting 'schedule=0 2 * * *' --yes
  clawk channels add web --manifest my-agent --dry-run";

/// Adds the channel.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let mut edit = AgentEdit::open(&args.edit, config)?;
    let name = args
        .name
        .clone()
        .unwrap_or_else(|| args.kind.manifest_word().to_owned());
    let others = edit.manifest.channels.iter().map(|channel| channel.name.as_str());
    check_new_name("channel", &name, others)?;
    let asks = !args.edit.yes && io::stdin().is_terminal() && io::stdout().is_terminal();
    let wanted = channel::Args {
        channel: Some(args.kind),
        secret_ref: args.secret_ref.clone(),
        settings: args.settings.clone(),
        base_url: args.base_url.clone(),
        admin: args.admin.clone(),
        no_check: args.no_check,
        name: Some(name),
    };
    let draft = draft_channel(&wanted, args.kind, asks)?;
    edit.add_to_manifest("channels", &item_of_lines(&draft.manifest))?;
    if !draft.provider.trim().is_empty() {
        edit.add_to_manifest("providers", &item_of_lines(&draft.provider))?;
    }
    if let Some(table) = &draft.config {
        let lines: Vec<&str> = table.lines().skip_while(|line| line.starts_with('#')).collect();
        edit.add_to_config(&lines.join("\n"))?;
    }
    if edit.finish()? == EditOutcome::Written {
        for step in &draft.next {
            out::print_note(format!("next:  {step}"))
        }
        out::print_note(format!(
            "next:  clawk serve {}{}",
            args.edit.manifest.display(),
            draft.flags
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the item of a section's lines, without its dash and indentation.
fn item_of_lines(section: &str) -> String {
    let mut lines = section
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("- "));
    let Some(first) = lines.next() else {
        return String::new();
    };
    let column = first.len() - first.trim_start().len() + 2;
    let rest = lines.map(|line| line.get(column..).unwrap_or(line.trim_start()));
    let first = first.get(column..).unwrap_or_default();
    std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n")
}
