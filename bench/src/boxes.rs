//! Measures the cost of a sandbox compared with a bare process, and checks that many calls leave nothing behind.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clawk_plan::{Limits, Plan, PlanDefaults};
use clawk_sandbox::{Launcher, Spec, WarmPoolLimits};
use serde_json::{Value, json};

/// The program that runs in every box.
const TRUE: &str = "/bin/true";

/// The bubblewrap options that come closest to clawk's sandbox.
const BUBBLEWRAP: &[&str] = &[
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--cap-drop",
    "ALL",
    "--clearenv",
    TRUE,
];

/// Prewarmed boxes per configuration ([`WarmPoolLimits`]'s default). Memory is the mean of these boxes, because program pages that
/// only boxes use are in memory once for all of them.
const WAITING: usize = 4;

/// Pause between two calls, as between an agent's calls. It gives the previous call time to prepare the next box and the kernel
/// time to remove the old one, so that no other measured way pays for them.
const BETWEEN: Duration = Duration::from_millis(50);

/// Time limit for a prewarmed box to become ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// Milliseconds of one run of `/bin/true`: the median of each way, measured in turns. The ways are `plain`, `bubblewrap`, `runc`;
/// clawk's `warm` (a box of the call's configuration is ready), `cold` (first call of its configuration, at best a template is
/// ready), `alone` (nothing is ready), `first` (the very first call, which also loads the program) and `container`; and `wasm`, a
/// precompiled guest that does nothing.
///
/// Each way makes `calls` calls in direct succession, and there is one median for the first call, one for the second, and so on.
///
/// # Errors
/// A run fails, or a way is unknown.
pub(crate) fn milliseconds(ways: &[&str], rounds: usize, calls: usize) -> Result<String> {
    local(async {
        let mut boxes = Boxes::make(ways).await?;
        let mut all: Vec<Vec<f64>> = vec![Vec::new(); ways.len() * calls];
        for _ in 0..rounds {
            for (way, took) in ways.iter().zip(all.chunks_mut(calls)) {
                if *way == "warm" {
                    ready(&boxes.warm, 1).await?;
                }
                tokio::time::sleep(BETWEEN).await;
                for took in took {
                    took.push(boxes.run(way).await?);
                }
            }
        }
        Ok(medians(&mut all))
    })
}

fn local<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

fn medians(all: &mut [Vec<f64>]) -> String {
    let medians = all.iter_mut().map(|took| {
        took.sort_by(f64::total_cmp);
        took.get(took.len() / 2).map_or("0".to_owned(), f64::to_string)
    });
    medians.collect::<Vec<_>>().join(" ")
}

/// The prepared inputs of all ways.
struct Boxes {
    alone: Launcher,
    cold: Launcher,
    warm: Launcher,
    /// Memory limits in MiB. Each cold call takes the next one, so that its configuration is new.
    configurations: std::ops::RangeFrom<u64>,
    bundle: Option<Bundle>,
    guest: Option<Guest>,
}

impl Boxes {
    async fn make(ways: &[&str]) -> Result<Self> {
        let alone = Launcher::default();
        let cold = Launcher::default().with_warm(WarmPoolLimits::default());
        let warm = Launcher::default().with_warm(WarmPoolLimits::default());
        for launcher in [&alone, &cold, &warm] {
            boxed(launcher).await?;
        }
        let guest = ways.contains(&"wasm").then(Guest::make).transpose()?;
        if let Some(guest) = &guest {
            guest.run(&alone).await?;
        }
        Ok(Self {
            alone,
            cold,
            warm,
            configurations: 64..,
            bundle: ways.contains(&"runc").then(Bundle::make).transpose()?,
            guest,
        })
    }

    /// Runs one call. Returns its duration in milliseconds.
    async fn run(&mut self, way: &str) -> Result<f64> {
        let began = Instant::now();
        match way {
            "plain" => plain(&[TRUE])?,
            "bubblewrap" => plain(BUBBLEWRAP)?,
            "runc" => self.bundle.as_ref().context("no bundle")?.run()?,
            "container" => contained(&self.alone).await?,
            "wasm" => {
                let guest = self.guest.as_ref().context("no guest")?;
                guest.run(&self.alone).await?;
            }
            "alone" => boxed(&self.alone).await?,
            "first" => boxed(&Launcher::default()).await?,
            "cold" => configured(&self.cold, self.configurations.next().unwrap_or(64)).await?,
            "warm" => boxed(&self.warm).await?,
            _ => bail!(
                "`{way}` is none of `plain`, `bubblewrap`, `runc`, `cold`, `alone`, `first`, `warm`, `container` and `wasm`"
            ),
        }
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

/// Memory of a prewarmed box in KiB, as the mean of [`WAITING`] boxes: pages that only this box has (private pages, and pages that
/// only its processes share), then the box's proportional share. After that come private pages and proportional share of the fork
/// server, and the own pages of a template's two processes.
///
/// # Errors
/// No box is ready in time.
pub(crate) fn waiting_kib() -> Result<String> {
    local(async {
        let launcher = Launcher::default().with_warm(WarmPoolLimits::default());
        together(&launcher).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let nursery = children(std::process::id());
        let all: Vec<u32> = nursery.iter().flat_map(|pid| children(*pid)).collect();
        // A template has no process that will become the tool.
        let has_tool = |pid: &u32| children(*pid).iter().any(|first| !children(*first).is_empty());
        let (supervisors, blanks): (Vec<u32>, Vec<u32>) = all.into_iter().partition(has_tool);
        let blank: Vec<u32> = blanks
            .iter()
            .flat_map(|pid| children(*pid))
            .chain(blanks.clone())
            .collect();
        let firsts: Vec<u32> = supervisors.iter().flat_map(|pid| children(*pid)).collect();
        let tools: Vec<u32> = firsts.iter().flat_map(|pid| children(*pid)).collect();
        ensure!(
            nursery.len() == 1
                && blank.len() == 2
                && [&supervisors, &firsts, &tools]
                    .iter()
                    .all(|all| all.len() == WAITING),
            "so many boxes were to wait: {nursery:?} {blank:?} {supervisors:?} {firsts:?} {tools:?}"
        );
        let sum =
            |pids: &[u32], field: &str| -> Result<u64> { pids.iter().map(|pid| rollup(*pid, field)).sum() };
        let boxes: Vec<[u32; 3]> = supervisors
            .iter()
            .zip(firsts.iter().zip(&tools))
            .map(|(supervisor, (first, tool))| [*supervisor, *first, *tool])
            .collect();
        let of_boxes = boxes.concat();
        let others = [vec![std::process::id()], nursery.clone()];
        let each_box: Vec<Vec<u32>> = boxes.iter().map(|one| one.to_vec()).collect();
        let (not_boxes, not_blank) = (
            [others.concat(), blank.clone()].concat(),
            [others.concat(), of_boxes.clone()].concat(),
        );
        let each = u64::try_from(WAITING)?;
        Ok(format!(
            "{} {} {} {} {}",
            alone(&each_box, &not_boxes)? / each,
            sum(&of_boxes, "Pss:")? / each,
            sum(&nursery, "Private_")?,
            sum(&nursery, "Pss:")?,
            alone(&[blank], &not_blank)?
        ))
    })
}

/// The smallest possible bundle for runc: the host's `/usr` and a `/proc`.
struct Bundle(std::path::PathBuf);

impl Bundle {
    fn make() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("clawk-bench-{}", std::process::id()));
        let root = folder.join("rootfs");
        for name in ["usr", "proc", "dev", "tmp", "sys", "etc"] {
            fs::create_dir_all(root.join(name))?;
        }
        for name in ["bin", "lib", "lib64", "sbin"] {
            std::os::unix::fs::symlink(format!("usr/{name}"), root.join(name))?;
        }
        let bundle = Self(folder);
        let at = bundle.0.to_str().context("a folder whose name is text")?;
        plain(&["runc", "spec", "--bundle", at])?;
        let file = bundle.0.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file)?)?;
        let process = config.get_mut("process").context("no process")?;
        *process.get_mut("terminal").context("no terminal")? = json!(false);
        *process.get_mut("args").context("no args")? = json!([TRUE]);
        let mounts = config.get_mut("mounts").and_then(Value::as_array_mut);
        mounts.context("no mounts")?.push(json!({
            "destination": "/usr", "type": "none", "source": "/usr", "options": ["rbind", "ro", "nosuid", "nodev"]}));
        fs::write(&file, serde_json::to_vec(&config)?)?;
        Ok(bundle)
    }

    fn run(&self) -> Result<()> {
        let at = self.0.to_str().context("a folder whose name is text")?;
        let name = format!("clawk-bench-{}", std::process::id());
        plain(&["runc", "run", "--bundle", at, &name])
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // silent-ok: a folder for temporary files
    }
}

/// A guest that does nothing: `(module (memory (export "memory") 1) (func (export "_start")))`.
const NOTHING: &[u8] = b"\0asm\x01\0\0\0\x01\x04\x01\x60\0\0\x03\x02\x01\0\x05\x03\x01\0\x01\
\x07\x13\x02\x06memory\x02\0\x06_start\0\0\x0a\x04\x01\x02\0\x0b";

/// A guest's file, removed when dropped.
struct Guest(std::path::PathBuf);

impl Guest {
    fn make() -> Result<Self> {
        let file = std::env::temp_dir().join(format!("clawk-bench-{}.wasm", std::process::id()));
        fs::write(&file, NOTHING)?;
        Ok(Self(file))
    }

    async fn run(&self, launcher: &Launcher) -> Result<()> {
        let given = serde_json::from_value(json!({"name": "b", "level": "wasm"}))?;
        let plan = Arc::new(Plan::compile(Some(&given), &PlanDefaults::default()));
        let name = self.0.to_str().context("a file whose name is text")?;
        let outcome = launcher.launch(&Spec::new(name, plan)).await?;
        ensure!(outcome.is_success(), "{outcome:?}");
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0); // silent-ok: a folder for temporary files
    }
}

/// Milliseconds from a call's deadline until it returns and all its processes are gone: median and maximum. The tool ignores
/// SIGTERM and has left its session.
///
/// # Errors
/// The deadline does not end a run.
pub(crate) fn after_deadline(rounds: usize) -> Result<String> {
    const DEADLINE_MS: u64 = 150;
    local(async {
        let launcher = Launcher::default();
        let mut spec = Spec::new("/bin/sh", Arc::new(Plan::compile(None, &PlanDefaults::default())));
        let script = "trap '' TERM; (setsid sh -c \"trap '' TERM; while :; do sleep 9; done\" &); while :; do sleep 9; done";
        spec.args = vec!["-c".to_owned(), script.to_owned()];
        spec.timeout_ms = Some(DEADLINE_MS);
        let mut took = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let began = Instant::now();
            let outcome = launcher.launch(&spec).await?;
            ensure!(outcome.limit.is_some(), "{outcome:?}");
            took.push(began.elapsed().as_secs_f64() * 1e3 - 150.0);
        }
        took.sort_by(f64::total_cmp);
        let (median, most) = (took.get(took.len() / 2), took.last());
        Ok(format!(
            "{} {}",
            median.copied().unwrap_or(0.0),
            most.copied().unwrap_or(0.0)
        ))
    })
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .collect::<String>();
    text.split_ascii_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Sums the pages that only one box has, in KiB.
fn alone(boxes: &[Vec<u32>], others: &[u32]) -> Result<u64> {
    let mut holders: HashMap<u64, HashSet<usize>> = HashMap::new();
    for (at, processes) in boxes.iter().enumerate() {
        for page in processes
            .iter()
            .map(|pid| frames(*pid))
            .collect::<Result<Vec<_>>>()?
            .concat()
        {
            holders.entry(page).or_default().insert(at);
        }
    }
    for pid in others {
        for page in frames(*pid)? {
            holders.entry(page).or_default().insert(usize::MAX);
        }
    }
    let alone = holders
        .values()
        .filter(|who| who.len() == 1 && !who.contains(&usize::MAX));
    Ok(u64::try_from(alone.count())? * 4)
}

/// Returns the page frame numbers of a process's memory.
fn frames(pid: u32) -> Result<Vec<u64>> {
    const PAGE: u64 = 4096;
    const PRESENT: u64 = 1 << 63;
    const NUMBER: u64 = (1 << 55) - 1;
    let file = fs::File::open(format!("/proc/{pid}/pagemap")).context("only root sees page frames")?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut found = Vec::new();
    for line in maps.lines() {
        let hex = |text: &str| u64::from_str_radix(text, 16);
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let (from, to) = range.context("a range")?;
        // The page for system calls lies above all addresses that can be queried.
        let (Ok(from), Ok(to)) = (hex(from), hex(to)) else {
            continue;
        };
        let mut entries = vec![0; usize::try_from((to - from) / PAGE * 8)?];
        if file.read_exact_at(&mut entries, from / PAGE * 8).is_err() {
            continue;
        }
        let (entries, _) = entries.as_chunks::<8>();
        let entries = entries.iter().map(|entry| u64::from_ne_bytes(*entry));
        found.extend(
            entries
                .filter(|entry| entry & PRESENT > 0)
                .map(|entry| entry & NUMBER),
        );
    }
    ensure!(found.iter().any(|frame| *frame > 0), "only root sees page frames");
    Ok(found)
}

fn rollup(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("`{path}` can't be read"))?;
    let lines = text.lines().filter(|line| line.starts_with(field));
    let sizes = lines.filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    let sum = sizes.sum();
    ensure!(sum > 0, "`{path}` tells nothing of `{field}`");
    Ok(sum)
}

/// Everything on this machine that belongs to clawk's sandbox: processes, groups, files.
#[derive(Debug)]
struct Left {
    mounts: usize,
    groups: usize,
    descriptors: usize,
    zombies: usize,
    processes: usize,
    temporary: usize,
}

impl Left {
    /// Returns whether any count is larger than before. Smaller counts are fine, because another program may have ended.
    fn exceeds(&self, before: &Self) -> bool {
        self.mounts > before.mounts
            || self.groups > before.groups
            || self.descriptors > before.descriptors
            || self.zombies > before.zombies
            || self.processes > before.processes
            || self.temporary > before.temporary
    }

    fn now() -> Result<Self> {
        let entries = |path: &Path| -> Result<usize> {
            let list = fs::read_dir(path).with_context(|| format!("`{}` can't be listed", path.display()))?;
            Ok(list.count())
        };
        let mounts = fs::read_to_string("/proc/self/mountinfo").context("no list of mounts")?;
        let (mut zombies, mut processes) = (0, 0);
        let own = fs::metadata("/proc/self/exe").map(|own| (own.dev(), own.ino()))?;
        for entry in fs::read_dir("/proc").context("no list of processes")?.flatten() {
            let path = entry.path();
            // The entry is not a process, or the process has ended.
            let Ok(stat) = fs::read_to_string(path.join("stat")) else {
                continue;
            };
            let Some((_, rest)) = stat.rsplit_once(')') else {
                continue;
            };
            let mut rest = rest.split_ascii_whitespace();
            let (state, parent) = (rest.next(), rest.next().and_then(|pid| pid.parse().ok()));
            // Count children of this process and orphans of the first process. Boxes of other programs start and end at the same
            // time.
            let ours = parent == Some(std::process::id()) || stat.contains("(clawk-b");
            zombies += usize::from(state == Some("Z") && ours);
            let line = fs::read(path.join("cmdline"));
            let is_box = line.is_ok_and(|line| String::from_utf8_lossy(&line).contains("__sandbox"));
            let program = fs::metadata(path.join("exe")).map(|program| (program.dev(), program.ino()));
            processes += usize::from(is_box && program.is_ok_and(|program| program == own));
        }
        Ok(Self {
            mounts: mounts.lines().count(),
            groups: groups(Path::new("/sys/fs/cgroup"), 4),
            descriptors: entries(Path::new("/proc/self/fd"))?,
            zombies,
            processes,
            temporary: entries(&std::env::temp_dir())?,
        })
    }
}

/// Counts control groups of boxes whose supervisor is gone.
fn groups(folder: &Path, depth: usize) -> usize {
    let mut found = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let supervisor = name.to_str().and_then(|name| name.strip_prefix("clawk-"));
        if let Some(supervisor) = supervisor {
            // A group of a living supervisor may belong to another agent that is working.
            found += usize::from(!Path::new("/proc").join(supervisor).exists());
        } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found += groups(&entry.path(), depth - 1);
        }
    }
    found
}

/// Runs `calls` calls, with prewarmed boxes where one is ready. Prints the counts before and after to standard error. Returns how
/// many calls used a prewarmed box.
///
/// # Errors
/// Something is left behind.
pub(crate) fn leave_nothing(calls: usize) -> Result<u64> {
    local(async {
        let launcher = Launcher::default().with_warm(WarmPoolLimits::default());
        together(&launcher).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = Left::now()?;
        for call in 0..calls {
            // Two of three calls use a prewarmed box; the third makes its own.
            if call % 3 > 0 {
                ready(&launcher, 1).await?;
            }
            boxed(&launcher).await?;
        }
        ready(&launcher, WAITING).await?;
        let began = Instant::now();
        let mut after = Left::now()?;
        while after.exceeds(&before) && began.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(50)).await;
            after = Left::now()?;
        }
        let mut told = std::io::stderr().lock();
        writeln!(told, "before: {before:?}\nafter {calls} calls: {after:?}")?;
        ensure!(!after.exceeds(&before), "something is left");
        Ok(launcher.served_warm())
    })
}

/// Makes as many concurrent calls as there may be prewarmed boxes, until all of them are ready.
async fn together(launcher: &Launcher) -> Result<()> {
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..WAITING {
        let launcher = launcher.clone();
        calls.spawn(async move { boxed(&launcher).await });
    }
    calls.join_all().await.into_iter().collect::<Result<()>>()?;
    ready(launcher, WAITING).await
}

async fn ready(launcher: &Launcher, boxes: usize) -> Result<()> {
    let began = Instant::now();
    while launcher.waiting_count() < boxes {
        ensure!(began.elapsed() < PATIENCE, "no box waits");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Wait until the machine is idle before the next call.
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "what others cost")]
fn plain(words: &[&str]) -> Result<()> {
    let (program, args) = words.split_first().context("no program")?;
    let status = std::process::Command::new(program).args(args).status()?;
    ensure!(status.success(), "`{program}` ended with {status}");
    Ok(())
}

async fn contained(launcher: &Launcher) -> Result<()> {
    let given = serde_json::from_value(json!({"name": "b", "level": "container"}))?;
    let plan = Arc::new(Plan::compile(Some(&given), &PlanDefaults::default()));
    let outcome = launcher.launch(&Spec::new(TRUE, plan)).await?;
    ensure!(outcome.is_success(), "{outcome:?}");
    Ok(())
}

async fn boxed(launcher: &Launcher) -> Result<()> {
    configured(launcher, Limits::default().memory_mb).await
}

async fn configured(launcher: &Launcher, memory_mb: u64) -> Result<()> {
    let limits = Limits {
        memory_mb,
        ..Limits::default()
    };
    let defaults = PlanDefaults {
        limits,
        ..PlanDefaults::default()
    };
    let plan = Arc::new(Plan::compile(None, &defaults));
    let outcome = launcher.launch(&Spec::new(TRUE, plan)).await?;
    ensure!(outcome.is_success(), "{outcome:?}");
    Ok(())
}
