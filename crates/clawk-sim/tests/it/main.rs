//! A fixed set of seeds, each twice. `cargo xtask sim --seeds N` plays more.

#[test]
fn a_fixed_set_of_seeds_breaks_nothing_and_is_the_same_twice() {
    let (mut crashes, mut repeated, mut effects) = (0, 0, 0);
    for seed in 0..40 {
        let first = clawk_sim::run(Kind::Bus, seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        let second = clawk_sim::run(Kind::Bus, seed).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        assert_eq!(first, second, "seed {seed}");
        crashes += first.crashes;
        repeated += first.repeated;
        effects += first.effects;
    }
    assert!(
        crashes > 50 && repeated > 5 && effects > 40,
        "{crashes} crashes, {repeated} repetitions, {effects} effects: the faults and the work really happen"
    );
}

#[test]
fn different_seeds_are_different_worlds() {
    let of = |seed| clawk_sim::run(Kind::Bus, seed).map(|report| report.digest);
    assert_ne!(of(1), of(2));
}
