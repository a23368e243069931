//! 1,000 messages from 100 conversations through a `custom` channel, with `kill -9` of the agent at random moments.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{LONG, OPEN, Platform, with};
use crate::serve::Server;

const MESSAGES: u32 = 1_000;
const CONVERSATIONS: u32 = 100;
const REPEAT: &str = "(this may be a repeat)";

/// A random number, the same in every run.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// The number in `You said **m7**.`, and whether it is marked.
fn answered(line: &Value) -> Option<(u32, bool)> {
    let text = line["text"].as_str()?;
    let number = text.split("**m").nth(1)?.split("**").next()?.parse().ok()?;
    Some((number, text.starts_with(REPEAT)))
}

/// What came of it, in words.
fn survive(kills: u32) -> String {
    let agent = with(&[("one", OPEN)], "", "");
    let one = Platform {
        agent: &agent,
        name: "one",
    };
    for n in 0..MESSAGES {
        let (id, room) = (format!("p{n}"), format!("room {}", n % CONVERSATIONS));
        one.message(
            &id,
            &room,
            &format!("sender {}", n % CONVERSATIONS),
            &format!("m{n}"),
        );
    }
    let mut dice = 7;
    let per_life = u64::from(2 * MESSAGES / (kills + 1));
    for _ in 0..kills {
        let served = Server::start(&agent, &["claw.yaml"]);
        let before = one.got().len();
        let further = usize::try_from(random(&mut dice, per_life)).unwrap();
        let start = Instant::now();
        while one.got().len() < before + further && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(random(&mut dice, 5)));
        drop(served);
    }
    let served = Server::start(&agent, &["claw.yaml"]);
    let mut answers: BTreeMap<u32, Vec<bool>> = BTreeMap::new();
    let start = Instant::now();
    loop {
        answers.clear();
        for (number, marked) in one.got().iter().filter_map(answered) {
            answers.entry(number).or_default().push(marked);
        }
        if answers.len() == usize::try_from(MESSAGES).unwrap() {
            break;
        }
        assert!(
            start.elapsed() < 4 * LONG,
            "{} of {MESSAGES} are answered",
            answers.len()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let unmarked_twice: Vec<_> = answers
        .iter()
        .filter(|(_, all)| all.iter().filter(|marked| !**marked).count() > 1)
        .collect();
    assert!(unmarked_twice.is_empty(), "{unmarked_twice:?}");
    let marked = answers.values().flatten().filter(|marked| **marked).count();
    let all: usize = answers.values().map(Vec::len).sum();
    // Nothing is owed, nothing is dead, and each message is one turn.
    let wait = Instant::now();
    loop {
        let output = agent
            .clawk(["outbox", "list", "--agent", "tested", "--format", "json"])
            .output()
            .unwrap();
        let owed: Value = serde_json::from_slice(&output.stdout).unwrap();
        if owed["outbox"] == json!([]) {
            break;
        }
        assert!(wait.elapsed() < LONG, "{owed}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(served);
    let told = one.got();
    let accepted = |id: &str| {
        told.iter()
            .any(|line| line["type"] == "accepted" && line["id"] == id)
    };
    assert!((0..MESSAGES).all(|n| accepted(&format!("p{n}"))));
    assert!(told.iter().all(|line| line["type"] != "refused"));
    let verified = agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .output()
        .unwrap();
    assert!(
        verified.status.success(),
        "{}",
        crate::agent::text(&verified.stdout)
    );
    format!(
        "{kills} kills: {MESSAGES} messages, {all} answers delivered, {marked} of them marked as a repeat"
    )
}

#[test]
fn a_thousand_messages_over_ten_kills_are_each_answered_once_or_marked() {
    println!("{}", survive(10));
}

#[test]
#[ignore = "takes minutes; `cargo xtask soak` or `cargo nextest run --run-ignored only` runs it"]
fn a_thousand_messages_over_a_hundred_kills_are_each_answered_once_or_marked() {
    println!("{}", survive(100));
}
