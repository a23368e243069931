//! A fixed number of inputs for each target, made from its seeds by a fixed generator: the same inputs at each run.

#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

use std::path::Path;

use clawk_fuzz::TARGETS;

/// Inputs for each target. `CLAWK_FUZZ_INPUTS` sets another number, for a longer look.
const INPUTS: usize = 4_000;

/// No input grows beyond this many bytes.
const MAX_BYTES: usize = 16 * 1024;

#[test]
fn mutated_seeds_break_no_check() {
    let inputs =
        std::env::var("CLAWK_FUZZ_INPUTS").map_or(INPUTS, |number| number.parse().expect("a number"));
    for (target, check) in TARGETS {
        let seeds = read_seeds(target);
        for seed in &seeds {
            check(seed);
        }
        let mut random = SplitMix(0x5eed);
        let mut input = Vec::new();
        for round in 0..inputs {
            if round % 8 == 0 {
                input.clone_from(&seeds[random.below(seeds.len())]);
            }
            mutate(&mut input, &seeds, &mut random);
            let result = std::panic::catch_unwind(|| check(&input));
            assert!(
                result.is_ok(),
                "{target}, input {round}: {:?}",
                String::from_utf8_lossy(&input)
            );
        }
    }
}

fn read_seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has no seeds", folder.display());
    paths
        .iter()
        .map(|path| std::fs::read(path).expect("readable"))
        .collect()
}

/// Bytes and words that mean something to a reader.
const TOKENS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b":",
    b",",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"-0",
    b"1e999",
    b"9007199254740993",
    b"data: ",
    b"event: ",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\"jsonrpc\":\"2.0\"",
    b"\"id\":",
    b"\"method\":",
    b"\"$ref\"",
];

fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut SplitMix) {
    let at = random.below(input.len() + 1);
    match random.below(6) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 => {
            let end = (at + random.below(32)).min(input.len());
            input.drain(at..end);
        }
        2 => {
            let token = TOKENS[random.below(TOKENS.len())];
            input.splice(at..at, token.iter().copied());
        }
        3 => {
            let end = (at + random.below(64)).min(input.len());
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        4 => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len() + 1);
            let to = (from + random.below(256)).min(other.len());
            input.splice(at..at, other[from..to].iter().copied());
        }
        _ => input.truncate(at),
    }
    input.truncate(MAX_BYTES);
}

/// A small generator of numbers (SplitMix64), so that a run needs no library and can be told by its seed.
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % bound as u64).expect("below a usize")
    }
}
