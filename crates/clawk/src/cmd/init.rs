//! `clawk init`: writes a commented `claw.yaml` that runs.

pub(in crate::cmd) mod channel;
pub(in crate::cmd) mod needs;

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use clawk_kernel::ModelCatalogue;

use crate::out::{self, TerminalStyle};

/// Flags of `clawk init`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder to write to; clawk creates it
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// What to write: an agent of your own, or the agent of the tutorial
    #[arg(long, value_enum)]
    template: Option<Template>,

    /// The agent's name: letters, digits, hyphens [default: the folder's name]
    #[arg(long)]
    name: Option<String>,

    /// Which model answers
    #[arg(long, value_enum)]
    provider: Option<InitProvider>,

    /// How much the agent may do without asking
    #[arg(long, value_enum)]
    autonomy: Option<InitAutonomy>,

    /// Which of the ready policies the agent starts with
    #[arg(long, value_enum)]
    policy: Option<Policy>,

    #[command(flatten)]
    channel: channel::Args,

    /// Ask no question; every flag that is missing takes its default
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  clawk init my-agent                                   asks a few questions in a terminal
  clawk init my-agent --provider anthropic --yes        asks nothing
  clawk init my-agent --policy strict                   an agent that may look and not act
  clawk init my-agent --channel telegram                an agent on Telegram; the token is checked there
  clawk init nightly --channel cron --setting 'schedule=0 2 * * *' --yes
  clawk init tutorial --template tutorial               the agent of the tutorial; it needs no model";

/// What `clawk init` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Template {
    /// An agent of your own, from the answers to a few questions
    Own,
    /// The agent of the tutorial: a scripted model, two tools, notes to sum up
    Tutorial,
}

/// Which provider the manifest names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum InitProvider {
    /// An API key in the environment, else a local server, else a scripted model
    Auto,
    /// Anthropic's API, key in ANTHROPIC_API_KEY
    Anthropic,
    /// OpenAI's API, key in OPENAI_API_KEY
    Openai,
    /// A server on this machine that speaks OpenAI's protocol, as Ollama does
    Local,
}

/// The identity's autonomy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum InitAutonomy {
    /// Never uses a tool
    Observer,
    /// Asks before every act with side effects
    Supervised,
    /// Acts as far as its policy allows
    Autonomous,
}

/// The rules that it starts with; written beside the manifest, to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Reads in its folder, and nothing else
    Strict,
    /// Reads in its folder; asks before changes, commands and fetching
    Standard,
    /// Reads and changes in its folder, fetches; asks before commands and other requests
    Trusting,
}

impl Policy {
    const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Standard => "standard",
            Self::Trusting => "trusting",
        }
    }

    /// Returns the policy and its tests.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Strict => (
                include_str!("../../../../examples/policies/strict.yaml"),
                include_str!("../../../../examples/policies/strict.tests.yaml"),
            ),
            Self::Standard => (
                include_str!("../../../../examples/policies/standard.yaml"),
                include_str!("../../../../examples/policies/standard.tests.yaml"),
            ),
            Self::Trusting => (
                include_str!("../../../../examples/policies/trusting.yaml"),
                include_str!("../../../../examples/policies/trusting.tests.yaml"),
            ),
        }
    }
}

/// The files of the tutorial's agent: path and content.
const TUTORIAL: [(&str, &str); 7] = [
    (
        "claw.yaml",
        include_str!("../../../../examples/tutorial/claw.yaml"),
    ),
    (
        "script.yaml",
        include_str!("../../../../examples/tutorial/script.yaml"),
    ),
    (
        "notes.txt",
        include_str!("../../../../examples/tutorial/notes.txt"),
    ),
    (
        "tools/file-read.yaml",
        include_str!("../../../../examples/tutorial/tools/file-read.yaml"),
    ),
    (
        "tools/file-write.yaml",
        include_str!("../../../../examples/tutorial/tools/file-write.yaml"),
    ),
    (
        "policies/tutorial.yaml",
        include_str!("../../../../examples/tutorial/policies/tutorial.yaml"),
    ),
    (
        "policies/tutorial.tests.yaml",
        include_str!("../../../../examples/tutorial/policies/tutorial.tests.yaml"),
    ),
];

/// The answers, from flags or from a person.
struct InitAnswers {
    name: String,
    provider: InitProvider,
    autonomy: InitAutonomy,
    policy: Policy,
}

/// Asks, writes the files, and prints the next steps.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let manifest = args.dir.join("claw.yaml");
    if manifest.exists() {
        bail!("`{}` exists already; choose another folder", manifest.display());
    }
    let asks = is_interactive(args);
    if choose_value(
        args.template,
        asks,
        "What do you want to start with?",
        Template::Own,
    )? == Template::Tutorial
    {
        return write_tutorial(args, &manifest);
    }
    let wanted = collect_answers(args, asks)?;
    let config = args.dir.join("clawk.toml");
    if args.channel.channel.is_some() && config.exists() {
        bail!("`{}` exists already; choose another folder", config.display());
    }
    // The channel is asked for and checked before anything is written.
    let channel = match args.channel.channel {
        Some(kind) => Some(channel::draft_channel(&args.channel, kind, asks)?),
        None => None,
    };
    let (name, (rules, tests)) = (wanted.policy.name(), wanted.policy.texts());
    let more = channel.as_ref().map_or("", |channel| &channel.manifest);
    let provider = channel.as_ref().map_or("", |channel| &channel.provider);
    let schedules = channel.as_ref().is_some_and(|channel| channel.has_conversations);
    write(&manifest, &(manifest_yaml(&wanted, provider, schedules) + more))?;
    if let Some(text) = channel.as_ref().and_then(|channel| channel.config.as_ref()) {
        write(&config, text)?;
    }
    write(&args.dir.join(format!("policies/{name}.yaml")), rules)?;
    write(&args.dir.join(format!("policies/{name}.tests.yaml")), tests)?;
    if wanted.provider == InitProvider::Auto {
        write(&args.dir.join("script.yaml"), SCRIPT)?;
    }
    write_schema(args)?;
    if let Some(channel) = &channel {
        let path = manifest.display();
        let served = [
            format!("clawk doctor {path}"),
            format!("clawk serve {path}{}", channel.flags),
        ];
        for (n, step) in channel.next.iter().chain(&served).enumerate() {
            let label = if n == 0 { "next:" } else { "     " };
            out::print_line(format!("{label}  {step}"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    out::print_line(format!("next:  clawk run {}", manifest.display()))?;
    out::print_line(format!("       clawk doctor {}", manifest.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the tutorial's agent exactly as in the tutorial, with its fixed name and policy.
fn write_tutorial(args: &Args, manifest: &Path) -> Result<ExitCode> {
    let given: [(&str, bool); 5] = [
        ("--name", args.name.is_some()),
        ("--provider", args.provider.is_some()),
        ("--autonomy", args.autonomy.is_some()),
        ("--policy", args.policy.is_some()),
        ("--channel", args.channel.channel.is_some()),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
        bail!("`{flag}` does not go with `--template tutorial`, whose agent is fixed");
    }
    for (name, text) in TUTORIAL {
        write(&args.dir.join(name), text)?;
    }
    write_schema(args)?;
    out::print_line(format!("next:  clawk run {}", manifest.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the schema that the manifest's first line names, for editors.
fn write_schema(args: &Args) -> Result<()> {
    let schema = clawk_manifest::schema_for_kind("Claw").context("there is no schema of a Claw")?;
    write(
        &args.dir.join("claw.schema.json"),
        &serde_json::to_string_pretty(&schema)?,
    )
}

fn is_interactive(args: &Args) -> bool {
    !args.yes && io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Creates a file and its folder, and prints its path.
fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("can't make `{}`", folder.display()))?;
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("can't write `{}`", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("can't write `{}`", path.display()))?;
    Ok(out::print_line(format!(
        "{} {}",
        TerminalStyle::for_stdout().green("wrote"),
        path.display()
    ))?)
}

fn collect_answers(args: &Args, asks: bool) -> Result<InitAnswers> {
    let name = match &args.name {
        Some(name) => validate_name(name)?,
        None if asks => {
            let text = inquire::Text::new("The agent's name?")
                .with_default(&folder_name(&args.dir))
                .prompt();
            validate_name(&text.context("not answered")?)?
        }
        None => folder_name(&args.dir),
    };
    Ok(InitAnswers {
        name,
        provider: choose_value(args.provider, asks, "Who answers?", InitProvider::Auto)?,
        autonomy: choose_value(
            args.autonomy,
            asks,
            "How much may it do without asking?",
            InitAutonomy::Supervised,
        )?,
        policy: choose_value(
            args.policy,
            asks,
            "Which rules does it start with?",
            Policy::Standard,
        )?,
    })
}

fn choose_value<T: ValueEnum + Copy + PartialEq>(
    given: Option<T>,
    asks: bool,
    question: &str,
    default: T,
) -> Result<T> {
    if let Some(given) = given {
        return Ok(given);
    }
    if !asks {
        return Ok(default);
    }
    let label = |value: &T| {
        let value = value.to_possible_value();
        value
            .map(|v| {
                format!(
                    "{}: {}",
                    v.get_name(),
                    v.get_help().map(ToString::to_string).unwrap_or_default()
                )
            })
            .unwrap_or_default()
    };
    let labels: Vec<String> = T::value_variants().iter().map(label).collect();
    let start = T::value_variants()
        .iter()
        .position(|value| *value == default)
        .unwrap_or_default();
    let picked = inquire::Select::new(question, labels)
        .with_starting_cursor(start)
        .raw_prompt()
        .context("not answered")?;
    Ok(T::value_variants().get(picked.index).copied().unwrap_or(default))
}

/// Checks that the name is valid in URIs (R8).
fn validate_name(name: &str) -> Result<String> {
    let good = (1..=63).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !good {
        bail!(
            "`{}` is not a valid name for an agent; use 1 to 63 letters, digits and hyphens (example: `my-agent`)",
            out::clip_line(name, 80)
        );
    }
    Ok(name.to_owned())
}

/// Derives an agent name from the folder's name, or returns `my-agent`.
fn folder_name(dir: &Path) -> String {
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_owned()); // silent-ok: a folder to be made has its name already
    let name = full
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let fit: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(63)
        .collect();
    let fit = fit.trim_matches('-');
    if fit.is_empty() {
        "my-agent".to_owned()
    } else {
        fit.to_owned()
    }
}

/// Returns the manifest's text. If `provider_too` is not empty, it is added as a second provider. `schedules`: the agent has a
/// conversation in which the tool `schedule` works.
fn manifest_yaml(wanted: &InitAnswers, provider_too: &str, schedules: bool) -> String {
    let autonomy = wanted
        .autonomy
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default();
    TEMPLATE
        .replace("SCHEDULE", if schedules { SCHEDULE } else { NO_SCHEDULE })
        .replace("POLICY", wanted.policy.name())
        .replace("NAME", &wanted.name)
        .replace("AUTONOMY", &autonomy)
        .replace("PROVIDER", &provider_yaml(wanted.provider))
        .replace(LAST_OF_PROVIDER, &format!("{LAST_OF_PROVIDER}{provider_too}"))
}

/// Returns a provider's fields. The model comes from this build's catalogue.
fn provider_yaml(provider: InitProvider) -> String {
    let (alias, text) = match provider {
        InitProvider::Auto => (
            "",
            "\
        # `auto:` takes what is found on this machine: an API key in the environment, else a local server that
        # speaks OpenAI's protocol, else the scripted model in script.yaml.
        protocol: custom
        endpoint: auto:script.yaml
        model: auto
        auth:
          type: none",
        ),
        InitProvider::Anthropic => (
            "anthropic:medium",
            "\
        protocol: anthropic-native
        endpoint: https://api.anthropic.com/v1
        model: MODEL
        auth:
          type: api-key-header
          secret_ref: ANTHROPIC_API_KEY",
        ),
        InitProvider::Openai => (
            "openai:small",
            "\
        protocol: openai-compatible
        endpoint: https://api.openai.com/v1
        model: MODEL
        auth:
          type: bearer
          secret_ref: OPENAI_API_KEY",
        ),
        InitProvider::Local => (
            "local:small",
            "\
        protocol: openai-compatible
        endpoint: http://127.0.0.1:11434/v1
        model: MODEL
        auth:
          type: none",
        ),
    };
    text.replace("MODEL", ModelCatalogue::built_in().resolve_alias(alias))
}

/// The last line of the template's provider.
const LAST_OF_PROVIDER: &str = "        streaming: true\n";
/// The line of the tool `schedule` for an agent with conversations.
const SCHEDULE: &str =
    "    # Makes schedules in a conversation: \"remind me on Monday at nine\".\n    - schedule";
/// The line for an agent without.
const NO_SCHEDULE: &str = "    # `schedule` (\"remind me on Monday\") needs a conversation in a channel: `clawk init --channel telegram` adds both.";
const TEMPLATE: &str = include_str!("init/claw.yaml");
const SCRIPT: &str = include_str!("init/script.yaml");

#[cfg(test)]
mod tests {
    use clawk_kernel::ModelCatalogue;

    use super::{InitProvider, folder_name, provider_yaml, validate_name};

    #[test]
    fn no_model_that_init_writes_has_a_known_shutdown() {
        let catalogue = ModelCatalogue::built_in();
        for kind in [InitProvider::Anthropic, InitProvider::Openai, InitProvider::Local] {
            let yaml = provider_yaml(kind);
            let model = yaml
                .lines()
                .find_map(|line| line.trim().strip_prefix("model: "))
                .unwrap();
            assert!(
                catalogue.find_facts(model).unwrap().shutdown.is_none(),
                "{kind:?}: {model}"
            );
        }
    }

    #[test]
    fn names_fit_the_uri_grammar() {
        assert!(validate_name("my-agent-2").is_ok());
        for bad in ["", "my agent", "ü", &"x".repeat(64)] {
            assert!(validate_name(bad).is_err(), "{bad}");
        }
        assert_eq!(
            folder_name(std::path::Path::new("/nowhere/My project!")),
            "My-project"
        );
        assert_eq!(folder_name(std::path::Path::new("/")), "my-agent");
    }
}
