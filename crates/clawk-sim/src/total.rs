//! Plays many seeds on several threads, and sums up the results.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::{BrokenInvariant, Kind, SeedReport, run};

/// How many results may wait to be counted.
const WAITING: usize = 64;

/// Which seeds are played, and on how many threads.
#[derive(Debug, Clone, Copy)]
pub struct SeedRunOptions {
    /// The first seed.
    pub from: u64,
    /// The number of seeds. Fewer are played if the time is over first.
    pub seeds: u64,
    /// The worlds in which each seed is played.
    pub kinds: &'static [Kind],
    /// No new seed begins after this time.
    pub time: Option<Duration>,
    /// The number of threads, at least one. Each thread plays one seed at a time.
    pub jobs: usize,
    /// Whether to continue after a seed that broke an invariant.
    pub keep_going: bool,
    /// The pause between two progress lines.
    pub tell_every: Duration,
}

/// The failure of a seed.
#[derive(Debug)]
pub enum SeedFault {
    /// An invariant was broken.
    Broken(BrokenInvariant),
    /// The second play gave a different result.
    Differs(Box<SeedReport>, Result<Box<SeedReport>, BrokenInvariant>),
}

impl fmt::Display for SeedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(broken) => write!(f, "{broken}"),
            Self::Differs(first, second) => write!(f, "it is not the same twice: {first:?}, {second:?}"),
        }
    }
}

/// The sums of all seeds that were played.
#[derive(Debug, Default)]
pub struct SeedTotals {
    /// Seeds that were played, each twice.
    pub seeds: u64,
    sums: BTreeMap<&'static str, usize>,
    /// Seeds that failed.
    pub failed: Vec<(u64, SeedFault)>,
}

impl SeedTotals {
    fn add(&mut self, report: &SeedReport) {
        let SeedReport {
            digest: _,
            crashes,
            repeated,
            cuts,
            jumps,
            slow,
            full,
            ends,
            outages,
            lost,
            asleep,
            failovers,
            taken_over,
            again,
            answers,
            stops,
            effects,
            events,
        } = report;
        for (name, value) in [
            ("crashes", crashes),
            ("ends in order", ends),
            ("cuts", cuts),
            ("outages", outages),
            ("clocks set", jumps),
            ("slow disks", slow),
            ("full disks", full),
            ("lost messages", lost),
            ("hosts asleep", asleep),
            ("failovers", failovers),
            ("sessions taken over", taken_over),
            ("repeated messages", repeated),
            ("requests made again", again),
            ("answers of a person", answers),
            ("stops", stops),
            ("effects", effects),
            ("events", events),
        ] {
            *self.sums.entry(name).or_default() += value;
        }
    }
}

impl fmt::Display for SeedTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} seeds, each twice: ", self.seeds)?;
        for (name, sum) in &self.sums {
            write!(f, "{sum} {name}, ")?;
        }
        write!(f, "{} seeds broke something", self.failed.len())
    }
}

/// The result of a seed in one world.
type PlayedSeed = (Kind, Result<SeedReport, SeedFault>);

/// Plays a seed twice and compares the results.
fn play_twice(kind: Kind, seed: u64) -> Result<SeedReport, SeedFault> {
    let first = run(kind, seed).map_err(SeedFault::Broken)?;
    match run(kind, seed) {
        Ok(second) if first == second => Ok(first),
        second => Err(SeedFault::Differs(Box::new(first), second.map(Box::new))),
    }
}

/// Plays all seeds of `wanted`. `tell` gets progress lines, and a line for each seed that failed.
pub fn play_seeds(wanted: SeedRunOptions, mut tell: impl FnMut(&str)) -> SeedTotals {
    let (next, ended) = (AtomicU64::new(wanted.from), AtomicBool::new(false));
    let (began, last) = (Instant::now(), wanted.from.saturating_add(wanted.seeds));
    let worker = |told: SyncSender<(u64, Vec<PlayedSeed>)>| {
        let in_time = || wanted.time.is_none_or(|time| began.elapsed() < time);
        while !ended.load(Ordering::SeqCst) && in_time() {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed >= last {
                return;
            }
            let played = wanted.kinds.iter().map(|kind| (*kind, play_twice(*kind, seed)));
            if told.send((seed, played.collect())).is_err() {
                return;
            }
        }
    };
    let mut total = SeedTotals::default();
    std::thread::scope(|scope| {
        let (told, outcomes) = sync_channel(WAITING);
        for _ in 0..wanted.jobs.max(1) {
            let told = told.clone();
            scope.spawn(|| worker(told));
        }
        drop(told);
        let mut said = Instant::now();
        loop {
            match outcomes.recv_timeout(wanted.tell_every) {
                Ok((seed, played)) => {
                    total.seeds += 1;
                    for (kind, outcome) in played {
                        match outcome {
                            Ok(report) => total.add(&report),
                            Err(fault) => {
                                tell(&format!("seed {seed}, world {kind:?}: {fault}"));
                                total.failed.push((seed, fault));
                                ended.store(!wanted.keep_going, Ordering::SeqCst);
                            }
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if said.elapsed() >= wanted.tell_every {
                said = Instant::now();
                tell(&format!(
                    "after {:.1} minutes: {} seeds since {}, {} broke something",
                    began.elapsed().as_secs_f64() / 60.0,
                    total.seeds,
                    wanted.from,
                    total.failed.len()
                ));
            }
        }
    });
    total
}
