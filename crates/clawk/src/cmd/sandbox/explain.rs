//! `clawk sandbox explain`: describes what a box shows, allows and forbids, the mechanism that enforces each rule, and the
//! mechanism's limits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clawk_plan::plan::SecretInjectionMode;
use clawk_plan::{FsMode, Level, NetworkMode, ObtainedEnforcement, SandboxRefusal, ShellMode};
use serde_json::json;

use super::BoxArgs;
use super::asked::{BoxRequest, SandboxPurpose};
use crate::compose;
use crate::out::{self, Format, TerminalStyle};

/// Flags of `clawk sandbox explain`.
#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// The same as --file
    #[arg(value_name = "MANIFEST", conflicts_with = "file", value_parser = crate::manifest::manifest_path_parser())]
    manifest: Option<PathBuf>,

    #[command(flatten)]
    within: BoxArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Mechanisms by the prefix of their name: what each enforces, and what it does not cover.
const WALLS: [(&str, &str, &str); 22] = [
    (
        "namespaces:",
        "a view, processes, network, shared memory and host name of its own",
        "faults of the kernel, which the system call filter makes fewer",
    ),
    (
        "namespace:user",
        "its ids mean nothing outside",
        "files that the mapped owner of a mount may change, in that mount",
    ),
    (
        "network:",
        "no network but its own loopback, and the proxy's door where hosts are allowed",
        "what an allowed host does with what it is sent",
    ),
    (
        "view",
        "what is not shown is not there",
        "what is shown: the system's programs and the mounts, as trusted as the host's",
    ),
    (
        "nosuid,nodev",
        "no set-id program and no device works",
        "programs of the host that run a file from a writable mount later",
    ),
    (
        "masks",
        "denied paths are covered",
        "what appears later or goes by another name, which is the guard's work",
    ),
    (
        "own-files",
        "the agent's own files are covered by themselves, read-only",
        "own files that are made or replaced later, which is the guard's work",
    ),
    (
        "guard:own_files",
        "no call changes, replaces, moves or makes one of the agent's own files",
        "reading them; what the agent's owner does on the host",
    ),
    (
        "guard",
        "denied paths that appear later, or go by another name",
        "running a denied program that appears later; its name, size and dates",
    ),
    (
        "tmpfs",
        "files in memory are bounded, and gone at the end",
        "files in a writable mount",
    ),
    (
        "dev",
        "null, zero, full, random, urandom, tty and terminals of its own, nothing else",
        "",
    ),
    (
        "proc",
        "its own processes alone; what tells of the host is covered",
        "what the kernel tells everybody: load, memory, uptime",
    ),
    (
        "rlimit",
        "open files, file size, locked memory and core dumps, per process",
        "sums over processes, which groups count; many files in a writable mount",
    ),
    (
        "cgroup",
        "memory, processes and processor of the whole tree",
        "disk: many files in a writable mount",
    ),
    (
        "watcher",
        "what no group holds is counted and ended from outside",
        "moments between two looks; time is exact",
    ),
    (
        "uid",
        "never the host's root",
        "files that the mapped owner of a mount may change, in that mount",
    ),
    ("capabilities", "none, not even within", ""),
    ("no_new_privs", "no program gives it more than it has", ""),
    ("session", "no terminal of the host", ""),
    ("environment", "only the variables that it is given", ""),
    (
        "landlock",
        "files by path, a second time",
        "chmod, chown and datagrams, and before `abi3` cutting files short; the view and the filter hold those",
    ),
    (
        "seccomp",
        "system calls that no tool needs end in an error",
        "arguments behind pointers; what allowed calls do",
    ),
];

/// Prints the plan.
pub(super) fn run(args: &ExplainArgs, config: Option<&Path>) -> Result<ExitCode> {
    let asked = args
        .within
        .clone()
        .with_manifest(args.manifest.clone())
        .resolve_request(config, SandboxPurpose::Explain)?;
    let level = asked.plan.level();
    let probed = compose::build_runtime()?.block_on(asked.launcher.probe_level(level));
    match args.format {
        Format::Json => out::print_json(&json_document(&asked, &probed))?,
        Format::Human => print_human(&asked, &probed)?,
    }
    Ok(if probed.is_ok() && asked.plan.check_available().is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print_heading(text: &str) -> std::io::Result<()> {
    out::print_line(TerminalStyle::for_stdout().bold(text))
}

fn print_item(text: &str) -> std::io::Result<()> {
    out::print_line(format!("  {}", out::one_line(text)))
}

fn print_human(asked: &BoxRequest, probed: &Result<ObtainedEnforcement, SandboxRefusal>) -> Result<()> {
    let declared = match (asked.plan.name(), &asked.sandbox) {
        (Some(name), Some(_)) => format!("Sandbox `{}`", out::one_line(name)),
        _ => "no Sandbox is declared: the most restrictive one".to_owned(),
    };
    print_heading(&format!("{declared}, level {}", asked.plan.level()))?;
    print_files(asked)?;
    print_network(asked)?;
    print_limits(asked)?;
    print_heading("System calls and command lines (`capabilities.shell`)")?;
    print_item(match asked.plan.shell_mode() {
        ShellMode::Deny => "the `shell` tool runs nothing; other programs get the short list of system calls",
        ShellMode::Restricted => {
            "command lines but the blocked ones; the short list of system calls (an allow-list)"
        }
        ShellMode::Full => "every command line; all system calls but those that lead out (a deny-list)",
    })?;
    print_item(match asked.plan.injection() {
        SecretInjectionMode::HostBoundary => {
            "secrets stay outside: the proxy puts them in where they are bound for that host"
        }
        SecretInjectionMode::Environment => {
            "granted secrets are variables of the tool's environment: it can read them"
        }
        SecretInjectionMode::FileMount => "granted secrets are files in memory, mode 0400: it can read them",
    })?;
    print_walls(probed)
}

fn print_files(asked: &BoxRequest) -> Result<()> {
    let files = asked.plan.filesystem();
    let paint = TerminalStyle::for_stdout();
    print_heading("Files")?;
    if asked.plan.level() == Level::None {
        return Ok(print_item(
            "everything that you can reach: level `none` has no walls",
        )?);
    }
    match files.mode {
        FsMode::Full => print_item("the host's view, as far as the mapped user may")?,
        FsMode::Deny | FsMode::ReadOnly | FsMode::Scoped => {
            print_item("the system, read-only: programs, libraries, a few files of /etc")?;
            print_item("a /tmp and /dev/shm of its own in memory, gone at the end")?;
        }
    }
    if let Some(home) = asked.plan.private_home() {
        print_item(&format!("$HOME is {home}: writable, in memory, gone at the end"))?;
    }
    if files.mode != FsMode::Deny {
        for mount in &files.mounts {
            let path: PathBuf = asked.base.join(&mount.path).components().collect();
            let there = if path.exists() { "" } else { ", which is not there" };
            let writable = mount.writable && files.mode == FsMode::Scoped;
            let rights = if writable {
                paint.yellow("rw")
            } else {
                "ro".to_owned()
            };
            out::print_line(format!(
                "  {rights} {}{there}",
                out::one_line(&path.display().to_string())
            ))?;
        }
    }
    for own in shown_own(asked) {
        out::print_line(format!(
            "  {} {} (the agent's own: no tool changes it, or makes it)",
            paint.cyan("ro"),
            out::one_line(&own.display().to_string())
        ))?;
    }
    for denied in &files.denied {
        let about = match denied.origin() {
            Some(origin) => format!(" (what `{origin}` leads to)"),
            None if denied.names_something(&asked.base) => String::new(),
            None => ", which names nothing now".to_owned(),
        };
        let line = format!("{}{about}", denied.text());
        out::print_line(format!("  {} {}", paint.red("no"), out::one_line(&line)))?;
    }
    Ok(())
}

/// Returns the agent's own files that a mount would make writable. In a folder of the agent's own, only the folder.
fn shown_own(asked: &BoxRequest) -> Vec<&PathBuf> {
    let own = &asked.plan.filesystem().own;
    let below = |path: &&PathBuf| own.iter().any(|above| path.starts_with(above) && above != *path);
    own.iter().filter(|path| !below(path)).collect()
}

fn print_network(asked: &BoxRequest) -> Result<()> {
    let network = asked.plan.network();
    print_heading("Network")?;
    if asked.plan.level() == Level::None {
        return Ok(print_item(
            "everything: at level `none` a program passes the proxy by",
        )?);
    }
    match network.mode {
        NetworkMode::Deny => print_item("none: an empty network of its own")?,
        NetworkMode::Allowlist => {
            for host in &network.allowed_hosts {
                let port = if host.rsplit_once(':').is_some() {
                    ""
                } else {
                    ", ports 80 and 443"
                };
                print_item(&format!("{host}{port}"))?;
            }
            if network.allowed_hosts.is_empty() {
                print_item("`allowlist` with an empty list: no host")?;
            }
        }
        NetworkMode::AllowAll => print_item("every host")?,
    }
    if network.mode != NetworkMode::Deny {
        print_item("by the egress proxy alone: names are looked up once, and every address is judged")?;
        if network.block_private_ips {
            print_item("no address of the own network, this machine or a cloud's metadata")?;
        } else {
            print_item("addresses of the own network too: `ssrf_protection` is off")?;
        }
    }
    for host in &asked.allow_private {
        print_item(&format!("{host} may be in the own network (--allow-private)"))?;
    }
    Ok(())
}

fn print_limits(asked: &BoxRequest) -> Result<()> {
    let limits = asked.plan.limits();
    print_heading("Limits of one run")?;
    print_item(&format!("{} ms of wall time (`timeout_ms`)", limits.timeout_ms))?;
    print_item(&format!(
        "{} MiB of memory, all processes together (`memory_mb`)",
        limits.memory_mb
    ))?;
    print_item(&format!(
        "{} processes and threads (`max_processes`)",
        limits.max_processes
    ))?;
    print_item(&format!(
        "{} open files per process (`max_open_files`)",
        limits.max_open_files
    ))?;
    print_item(&format!(
        "{} of processor weight; 1024 is a core's (`cpu_shares`)",
        limits.cpu_shares
    ))?;
    Ok(print_item(&format!(
        "{} bytes of output kept (`max_output_bytes`)",
        limits.max_output_bytes
    ))?)
}

type WallDescription = (&'static str, &'static str, &'static str);

/// Groups mechanisms of the same kind, in order.
fn group_mechanisms(mechanisms: &[String]) -> Vec<(String, Option<&'static WallDescription>)> {
    let mut groups: Vec<(String, Option<&WallDescription>)> = Vec::new();
    for mechanism in mechanisms {
        let wall = WALLS.iter().find(|(name, ..)| mechanism.starts_with(name));
        match groups.last_mut() {
            Some((names, known)) if wall.is_some() && *known == wall => {
                names.push_str(", ");
                names.push_str(mechanism);
            }
            _ => groups.push((mechanism.clone(), wall)),
        }
    }
    groups
}

fn print_walls(probed: &Result<ObtainedEnforcement, SandboxRefusal>) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let obtained = match probed {
        Ok(obtained) => obtained,
        Err(refusal) => {
            print_heading("Not to be had here")?;
            return Ok(print_item(&refusal.to_string())?);
        }
    };
    print_heading("Walls, as a box that was really started has them")?;
    for (names, wall) in group_mechanisms(&obtained.mechanisms) {
        out::print_line(format!("  {}", paint.cyan(&names)))?;
        let Some((_, holds, but)) = wall else { continue };
        out::print_line(format!("      holds: {holds}"))?;
        if !but.is_empty() {
            out::print_line(paint.dim(&format!("      does not cover: {but}")))?;
        }
    }
    for missing in &obtained.missing {
        out::print_line(paint.yellow(&format!("  not held: {missing}")))?;
    }
    if obtained.mechanisms.is_empty() {
        print_item("none")?;
    }
    Ok(())
}

fn json_document(
    asked: &BoxRequest,
    probed: &Result<ObtainedEnforcement, SandboxRefusal>,
) -> serde_json::Value {
    let walls = |obtained: &ObtainedEnforcement| {
        let one = |(mechanism, wall): (String, Option<&WallDescription>)| {
            json!({
                "mechanism": mechanism,
                "holds": wall.map(|(_, holds, _)| holds),
                "does_not_cover": wall.map(|(_, _, but)| but),
            })
        };
        group_mechanisms(&obtained.mechanisms)
            .into_iter()
            .map(one)
            .collect::<Vec<_>>()
    };
    let denied = asked.plan.filesystem().denied.iter();
    let denied: Vec<_> = denied
        .map(|denied| {
            json!({
                "path": denied.text(),
                "from": denied.origin(),
                "names_something": denied.names_something(&asked.base),
            })
        })
        .collect();
    json!({
        "level": asked.plan.level(),
        "sandbox": asked.sandbox,
        "base": asked.base,
        "own_files": asked.plan.filesystem().own,
        "denied_paths": denied,
        "home": asked.plan.private_home(),
        "limits": asked.plan.limits(),
        "allow_private": asked.allow_private,
        "walls": probed.as_ref().map(walls).unwrap_or_default(),
        "missing": probed.as_ref().map(|obtained| obtained.missing.clone()).unwrap_or_default(),
        "refused": probed.as_ref().err().map(SandboxRefusal::error_data),
    })
}
