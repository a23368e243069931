//! `clawk swarm`: gives a task to the whole swarm; shows its members, their topology, and the state of a task.

mod shown;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::state::kept::{StateReader, read_only};
use crate::state::server::StateConfig;
use anyhow::{Context, Result, bail};
use clawk_kernel::ports::{JournalScan, RecordedEvent};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_kernel::{EntryPoint, SWARM_KINDS, SwarmView, fact_of};
use clawk_proto::RequestId;
use clawk_proto::method::{DelegateTask, TaskStatus};
use clawk_swarm::coord::{EdgeKind, Kind, SwarmEdge};
use clawk_swarm::{Plan, SwarmCoordinator, SwarmFact, SwarmWorkerId};
use clawk_trace::proof;
use serde_json::{Value, json};

use crate::compose;
use crate::config::{AllowOutsideArgs, Config};
use crate::manifest;
use crate::out::{self, Format, TerminalStyle};
use crate::peers::{ANY, MemberBinding, resolve_binding};
use crate::state::{Origin, StateLookup};

pub(crate) use tree::print_tree;

/// Interval at which the state of an awaited run is read.
const LOOK: Duration = Duration::from_secs(1);

/// Flags of `clawk swarm`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: SwarmCommand,
}

const EXAMPLES: &str = "\
Examples:
  clawk swarm run claw.yaml 'Compare the three offers' --input '{\"offers\": [1, 2, 3]}'
  clawk swarm run claw.yaml 'Check this' --to reviewer --format json
  clawk swarm status claw.yaml
  clawk swarm graph claw.yaml --format mermaid
  clawk swarm key claw.yaml
  clawk trace show --task 0195f1c2-6d3e-7aaa-8bbb-0123456789ab

The exit code of `run` is 0 only when the swarm has completed the task.";

const RUN_EXAMPLES: &str = "\
Examples:
  clawk swarm run claw.yaml 'Compare the three offers' --input '{\"offers\": [1, 2, 3]}'
  clawk swarm run claw.yaml 'Check this' --to reviewer
  clawk swarm run claw.yaml 'Check this' --task 0195f1c2-6d3e-7aaa-8bbb-0123456789ab

The last one goes on with the task after a crash. The answer is on standard output; how far it is,
on standard error. Exit code 0: completed; 1: partial or failed; 2: the id is another task's.";

#[derive(Debug, clap::Subcommand)]
enum SwarmCommand {
    /// Give the swarm a task and wait for the result
    Run(SwarmRunArgs),
    /// Show the members, what runs and what waits
    Status(SwarmTargetArgs),
    /// Print the graph of the swarm: who delegates to whom, who may ask whom, where answers go
    Graph {
        /// The manifest
        #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
        manifest: PathBuf,

        /// Print the tasks that members really gave each other in this run
        #[arg(long, value_name = "UUID", value_parser = id)]
        task: Option<RequestId>,

        /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
        #[arg(long, value_name = "DIR")]
        state: Option<PathBuf>,

        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: GraphFormat,
    },
    /// Print this host's public key, as `[peers.NAME] key` of other hosts wants it
    Key(SwarmTargetArgs),
}

/// The agent that a verb looks at.
#[derive(Debug, clap::Args)]
struct SwarmTargetArgs {
    /// The manifest
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    manifest: PathBuf,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// How to print
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// How a graph is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum GraphFormat {
    /// For people
    #[default]
    Human,
    /// JSON
    Json,
    /// Graphviz
    Dot,
    /// Mermaid
    Mermaid,
}

/// Flags of `clawk swarm run`.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct SwarmRunArgs {
    /// The manifest
    #[arg(value_name = "CLAW", value_parser = crate::manifest::manifest_path_parser())]
    pub(crate) manifest: PathBuf,

    /// The task, as text
    #[arg(value_name = "TEXT")]
    pub(crate) text: String,

    /// Structured input, as JSON
    #[arg(long, value_name = "JSON", value_parser = parse_input)]
    pub(crate) input: Option<Value>,

    /// Only this member, identity or role, instead of the whole swarm
    #[arg(long, value_name = "MEMBER")]
    pub(crate) to: Option<String>,

    /// The task's id; with the same id again, clawk continues the task after a crash, or prints its result
    #[arg(long, value_name = "UUID", value_parser = id)]
    pub(crate) task: Option<RequestId>,

    /// State directory; default `$XDG_STATE_HOME/clawk/<agent>`
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,

    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,

    /// Agree to the programs that the folder's files would run, without a question
    #[arg(long)]
    pub(crate) trust: bool,

    #[command(flatten)]
    pub(crate) outside: AllowOutsideArgs,
}

fn id(text: &str) -> Result<RequestId, String> {
    RequestId::parse(text).map_err(|error| error.to_string())
}

fn parse_input(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))
}

/// Runs the command.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    match &args.what {
        SwarmCommand::Run(args) => run_task(args, config),
        SwarmCommand::Status(of) => print_status(
            &inspect_swarm(&of.manifest, of.state.as_deref(), config)?,
            of.format,
        ),
        SwarmCommand::Graph {
            manifest,
            task,
            state,
            format,
        } => print_graph(
            &inspect_swarm(manifest, state.as_deref(), config)?,
            task.as_ref(),
            *format,
        ),
        SwarmCommand::Key(of) => print_key(&of.manifest, of.state.as_deref(), config, of.format),
    }
}

/// Prints this host's public key. Creates it if it is missing.
fn print_key(path: &Path, state: Option<&Path>, config: Option<&Path>, format: Format) -> Result<ExitCode> {
    let config = Config::load(config, Some(path))?;
    let (manifest, _) = manifest::load_valid_manifest(path, &config)?;
    let wanted = StateLookup {
        flag: state,
        configured: config.settings.state.as_ref().and_then(StateConfig::dir),
        agent: &manifest.metadata.name,
        origin: &Origin::of_file(path)?,
    };
    let key = crate::state::kept::host_key(&wanted.dir()?)?;
    let written = proof::written(&key);
    match format {
        Format::Json => out::print_json(&json!({"key": written, "fingerprint": key.id()}))?,
        Format::Human => {
            out::print_line(&written)?;
            out::print_note(TerminalStyle::for_stderr().dim(&format!("fingerprint {}", key.id())));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Gives the task and waits for its end.
fn run_task(args: &SwarmRunArgs, config: Option<&Path>) -> Result<ExitCode> {
    give_as(args, config, EntryPoint::Cli)
}

/// Gives the task with the rights of this entry point.
pub(crate) fn give_as(args: &SwarmRunArgs, config: Option<&Path>, door: EntryPoint) -> Result<ExitCode> {
    compose::build_runtime()?.block_on(async {
        let request = compose::Request {
            manifest: &args.manifest,
            config,
            state: args.state.as_deref(),
            outside: args.outside,
            trust: args.trust,
            dry: None,
            trial: None,
        };
        let agent = compose::start_agent(&request, None).await?;
        if agent.manifest.swarm.is_none() {
            agent.close("there is no swarm").await;
            bail!("the manifest declares no Swarm; `clawk run` talks to the agent alone");
        }
        let id = args
            .task
            .clone()
            .unwrap_or_else(|| RequestId::from(SystemClock::default().new_uuid()));
        if args.format == Format::Human {
            out::print_note(TerminalStyle::for_stderr().dim(&format!("task {id}")));
        }
        let session = agent.kernel.open_session(door).await?;
        let task = DelegateTask {
            description: args.text.clone(),
            input: args.input.clone(),
        };
        let mut questions = agent.kernel.subscribe_questions();
        let running = agent
            .kernel
            .swarm_run(&session, id.clone(), task, args.to.clone());
        tokio::pin!(running);
        let mut look = tokio::time::interval_at(tokio::time::Instant::now() + LOOK, LOOK);
        let mut told = String::new();
        let outcome = loop {
            tokio::select! {
                outcome = &mut running => break outcome,
                _ = look.tick(), if args.format == Format::Human => {
                    shown::print_progress(&agent.kernel, &id, &mut told).await;
                }
                Ok(question) = questions.recv() => out::print_note(format!(
                    "`{}` waits for a person: clawk approve {} (or deny)",
                    out::one_line(&question.tool), question.request_id
                )),
                _ = tokio::signal::ctrl_c() => {
                    agent.close("clawk swarm run was interrupted").await;
                    bail!("interrupted; `--task {id}` goes on with it");
                }
            }
        };
        agent.close("clawk swarm run has ended").await;
        let result = match outcome {
            Ok(result) => result,
            Err(error @ clawk_kernel::KernelError::RequestIdReused(_)) => {
                out::print_note(format!(
                    "error: {error}; the same `--task` is for the same text and input"
                ));
                return Ok(ExitCode::from(2));
            }
            Err(error) => return Err(error.into()),
        };
        shown::print_result(&result, args.format)?;
        Ok(match result.status {
            TaskStatus::Completed => ExitCode::SUCCESS,
            TaskStatus::Failed | TaskStatus::Partial => ExitCode::FAILURE,
        })
    })
}

/// A swarm's manifest and record.
struct SwarmInspection {
    coord: SwarmCoordinator,
    facts: Vec<SwarmFact>,
    /// For each seat: its provider if it works here, and how and where it is reached.
    seats: Vec<(Option<String>, MemberBinding)>,
}

fn inspect_swarm(path: &Path, state: Option<&Path>, config: Option<&Path>) -> Result<SwarmInspection> {
    let config = Config::load(config, Some(path))?;
    let (manifest, _) = manifest::load_valid_manifest(path, &config)?;
    let swarm = manifest
        .swarm
        .as_ref()
        .context("the manifest declares no Swarm")?;
    let plan = Plan::from_manifest(
        swarm,
        &manifest.identity.name,
        config.settings.swarm.local_limits(),
    )?;
    let first = manifest
        .providers
        .first()
        .map(|provider| provider.name.clone())
        .unwrap_or_default();
    let seats = plan.seats.iter().enumerate().map(|(at, seat)| {
        let mut binding = resolve_binding(&config.settings.peers, swarm, &seat.identity);
        // A member that delegates work runs where the run is.
        if plan.head == SwarmWorkerId::Seat(at) && binding.host == ANY {
            binding = MemberBinding::in_process();
        }
        let asks = seat.provider.clone().unwrap_or_else(|| first.clone());
        (Some(asks).filter(|_| binding.is_here()), binding)
    });
    let seats = seats.collect();
    let mut coord = SwarmCoordinator::new(plan);
    let wanted = StateLookup {
        flag: state,
        configured: config.settings.state.as_ref().and_then(StateConfig::dir),
        agent: &manifest.metadata.name,
        origin: &Origin::of_file(path)?,
    };
    let dir = wanted.dir()?;
    let mut facts = Vec::new();
    if crate::state::kept::holds_state(&dir) {
        for_each_event(&read_only(&dir)?, |event| {
            if let Some(fact) = fact_of(event) {
                coord.apply_fact(&fact);
                facts.push(fact);
            }
        })?;
    }
    Ok(SwarmInspection { coord, facts, seats })
}

/// Reads every event of a swarm, in order.
pub(crate) fn for_each_event(reader: &StateReader, mut see: impl FnMut(&RecordedEvent)) -> Result<()> {
    let mut scan = JournalScan {
        kinds: &SWARM_KINDS,
        with_content: true,
        limit: 1000,
        ..JournalScan::default()
    };
    loop {
        let page = reader.recorded_events(&scan)?;
        for event in &page {
            event.read()?;
            see(event);
        }
        match page.last() {
            Some(last) if page.len() == scan.limit => scan.after_row = last.row,
            Some(_) | None => return Ok(()),
        }
    }
}

fn print_status(looked: &SwarmInspection, format: Format) -> Result<ExitCode> {
    let view = SwarmView::from_coordinator(&looked.coord);
    if format == Format::Json {
        let members = view
            .members
            .iter()
            .zip(&looked.seats)
            .map(|(member, (provider, binding))| {
                let mut told = json!(member);
                if let Value::Object(told) = &mut told {
                    let uri = clawk_proto::uri::ClawUri::parse(&member.identity).map(|uri| uri.to_string());
                    let uri = uri.unwrap_or_else(|_| format!("claw://local/identity/{}", member.identity)); // silent-ok: a plain name
                    told.insert("uri".to_owned(), json!(uri));
                    told.insert("binding".to_owned(), json!(binding.way));
                    told.insert("provider".to_owned(), json!(provider));
                    told.insert("host".to_owned(), json!(binding.host));
                }
                told
            });
        let told = json!({"swarm": view.swarm, "members": members.collect::<Vec<_>>(), "waiting": view.waiting, "running": view.running, "runs": view.runs});
        out::print_json(&told)?;
        return Ok(ExitCode::SUCCESS);
    }
    let paint = TerminalStyle::for_stdout();
    out::print_line(format!(
        "{}  {}",
        paint.bold(&out::one_line(&view.swarm)),
        paint.dim(&format!(
            "{}, {} running, {} waiting",
            view.topology, view.running, view.waiting
        ))
    ))?;
    for (member, (_, binding)) in view.members.iter().zip(&looked.seats) {
        let circuit = if member.circuit == "closed" {
            String::new()
        } else {
            format!(", circuit {}", member.circuit)
        };
        out::print_line(format!(
            "  {}  {} ({}){}{circuit}, {} done, {} failed",
            out::one_line(&member.member),
            member.status,
            out::one_line(&member.role),
            if binding.is_here() {
                String::new()
            } else {
                format!(", by {}", binding.way)
            },
            member.done,
            member.failed
        ))?;
    }
    for run in &view.runs {
        out::print_line(format!(
            "  run {}: {} waiting, {} running, {} completed, {} failed",
            run.task_id, run.waiting, run.running, run.completed, run.failed
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

const fn edge_label(kind: EdgeKind) -> &'static str {
    match kind {
        EdgeKind::Delegates => "delegates",
        EdgeKind::Feeds => "feeds",
        EdgeKind::Asks => "asks",
        EdgeKind::Judges => "judges",
    }
}

/// Returns who gave which task to whom in a run, by its record.
fn edges_of(looked: &SwarmInspection, run: &RequestId) -> Vec<SwarmEdge> {
    let plan = looked.coord.plan();
    let mut on = std::collections::BTreeMap::new();
    for fact in &looked.facts {
        if let SwarmFact::Began { task, who, .. } = fact {
            on.insert(task.clone(), *who);
        }
    }
    let edge = |fact: &SwarmFact| {
        let SwarmFact::Delegated { new, .. } = fact else {
            return None;
        };
        if new.run != *run {
            return None;
        }
        let from = new
            .parent
            .as_ref()
            .and_then(|parent| on.get(parent))
            .copied()
            .unwrap_or(plan.head);
        Some(SwarmEdge {
            from: plan.member(from).to_owned(),
            to: plan.member(*on.get(&new.task)?).to_owned(),
            kind: match new.kind {
                Kind::Work if new.parent.is_some() => EdgeKind::Delegates,
                Kind::Work => EdgeKind::Feeds,
                Kind::Asked => EdgeKind::Asks,
                Kind::Judge { .. } => EdgeKind::Judges,
            },
            task_id: Some(new.task.clone()),
        })
    };
    looked.facts.iter().filter_map(edge).collect()
}

/// Prints one edge.
fn print_edge(edge: &SwarmEdge) -> std::io::Result<()> {
    let (from, to) = (out::one_line(&edge.from), out::one_line(&edge.to));
    // The run itself gives the head its task.
    if edge.kind == EdgeKind::Feeds && edge.from == edge.to {
        return out::print_line(format!("the task goes to {to}"));
    }
    out::print_line(format!("{from} {} {to}", edge_label(edge.kind)))
}

fn print_graph(looked: &SwarmInspection, task: Option<&RequestId>, format: GraphFormat) -> Result<ExitCode> {
    let view = SwarmView::from_coordinator(&looked.coord);
    let edges = match task {
        None => view.edges,
        Some(run) => {
            let edges = edges_of(looked, run);
            if edges.is_empty() {
                bail!("no run {run} is in the record");
            }
            edges
        }
    };
    let quoted = |name: &str| name.replace(['"', '\n'], "'");
    match format {
        GraphFormat::Json => out::print_json(
            &json!({"swarm": view.swarm, "topology": view.topology, "nodes": view.nodes, "edges": edges}),
        )?,
        GraphFormat::Human => edges.iter().try_for_each(print_edge)?,
        GraphFormat::Dot => {
            out::print_line(format!("digraph \"{}\" {{", quoted(&view.swarm)))?;
            for node in &view.nodes {
                out::print_line(format!(
                    "  \"{}\" [label=\"{}\\n{}\"];",
                    quoted(&node.member),
                    quoted(&node.member),
                    quoted(&node.role)
                ))?;
            }
            for edge in &edges {
                out::print_line(format!(
                    "  \"{}\" -> \"{}\" [label=\"{}\"];",
                    quoted(&edge.from),
                    quoted(&edge.to),
                    edge_label(edge.kind)
                ))?;
            }
            out::print_line("}")?;
        }
        GraphFormat::Mermaid => {
            out::print_line("graph TD")?;
            let at = |name: &str| {
                view.nodes
                    .iter()
                    .position(|node| node.member == name)
                    .unwrap_or(0)
            };
            for (at, node) in view.nodes.iter().enumerate() {
                out::print_line(format!("  m{at}[\"{}\"]", quoted(&node.member)))?;
            }
            for edge in &edges {
                out::print_line(format!(
                    "  m{} -->|{}| m{}",
                    at(&edge.from),
                    edge_label(edge.kind),
                    at(&edge.to)
                ))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
