//! A fixed set of seeds of each world, each twice. `cargo xtask sim --seeds N` plays more.

#![expect(clippy::panic, reason = "tests: a panic is how they fail")]

use clawk_sim::{Kind, SeedReport};

/// Plays the seeds, each twice.
fn both(kind: Kind, seeds: impl Iterator<Item = u64>) -> Vec<SeedReport> {
    let played = seeds.map(|seed| {
        let once = || clawk_sim::run(kind, seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        let (first, second) = (once(), once());
        assert_eq!(first, second, "seed {seed}");
        first
    });
    played.collect()
}

fn sum(reports: &[SeedReport], of: impl Fn(&SeedReport) -> usize) -> usize {
    reports.iter().map(of).sum()
}

#[test]
fn a_fixed_set_of_seeds_breaks_nothing_and_is_the_same_twice() {
    let reports = both(Kind::Bus, 0..40);
    let crashes = sum(&reports, |report| report.crashes);
    let repeated = sum(&reports, |report| report.repeated);
    let effects = sum(&reports, |report| report.effects);
    assert!(
        crashes > 50 && repeated > 5 && effects > 40,
        "{crashes} crashes, {repeated} repetitions, {effects} effects: the faults and the work really happen"
    );
}

#[test]
fn hosts_that_share_a_state_break_nothing_and_are_the_same_twice() {
    let reports = both(Kind::State, 0..30);
    let happened = [
        ("crashes", sum(&reports, |report| report.crashes), 50),
        ("hosts asleep", sum(&reports, |report| report.asleep), 50),
        ("failovers", sum(&reports, |report| report.failovers), 5),
        (
            "sessions taken over",
            sum(&reports, |report| report.taken_over),
            200,
        ),
        ("stops", sum(&reports, |report| report.stops), 20),
        ("effects", sum(&reports, |report| report.effects), 50),
    ];
    for (what, times, least) in happened {
        assert!(
            times > least,
            "{times} {what}: the faults and the work really happen"
        );
    }
}

#[test]
fn different_seeds_are_different_worlds() {
    for kind in Kind::ALL {
        let of = |seed| clawk_sim::run(kind, seed).map(|report| report.digest);
        assert_ne!(of(1), of(2));
    }
}
