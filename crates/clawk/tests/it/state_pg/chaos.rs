//! Hosts that are killed and put to sleep, and a server that restarts, while conversations go on at all of them: every message is
//! answered, each in one way, and nothing is done twice. Counted by the server that the tool calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Database, Host, agent, holds, said};
use crate::counter::Counter;

const SCRIPT: &str = r#"
scenes:
  - steps:
      - call: [{ name: order, arguments: { id: "{{last_user_text}}" } }]
      - say: "Done {{last_user_text}}."
"#;
const HOSTS: [&str; 4] = ["a", "b", "c", "d"];
/// Of one message, on a busy machine, with the time that hosts are asleep.
const PATIENCE: Duration = Duration::from_secs(240);

/// The same dice in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// One message and what became of it.
struct Message {
    id: u32,
    host: usize,
    sent: Instant,
}

fn index(n: u64) -> usize {
    usize::try_from(n).unwrap()
}

#[expect(
    clippy::print_stdout,
    reason = "the times are what a person reads of this test"
)]
fn chaos(messages: u32, at_once: usize, events: u32) {
    let (mut database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    let mut dice = Dice(7);
    let mut hosts: Vec<Host> = HOSTS.iter().map(|name| Host::start(&agent, name)).collect();
    let mut open: Vec<Message> = Vec::new();
    let mut answers: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    let mut times: Vec<(&str, u128)> = Vec::new();
    let (mut next, mut done) = (0_u32, 0_u32);
    let every = (messages / events).max(1);
    while done < messages {
        while open.len() < at_once && next < messages {
            next += 1;
            let host = index(dice.below(4));
            hosts[host].say(10_000 + next, &format!("talk-{}", next % 40), &format!("m{next}"));
            open.push(Message {
                id: next,
                host,
                sent: Instant::now(),
            });
        }
        if next % every == 0 && done + 4 < next {
            let (victim, began) = (index(dice.below(4)), Instant::now());
            let what = disturb(dice.below(3), &mut database, &agent, &mut hosts, victim);
            // Whoever asked there asks elsewhere, with the same id.
            for message in open
                .iter_mut()
                .filter(|message| message.host == victim && what == "killed")
            {
                message.host = (victim + 1) % 4;
                hosts[message.host].say(
                    10_000 + message.id,
                    &format!("talk-{}", message.id % 40),
                    &format!("m{}", message.id),
                );
            }
            let first = settle(&mut hosts, &mut open, &mut answers);
            done += first;
            times.push((what, began.elapsed().as_millis()));
            continue;
        }
        done += settle(&mut hosts, &mut open, &mut answers);
    }
    println!("disturbance          until the next answer, ms");
    for (what, ms) in &times {
        println!("{what:<20} {ms}");
    }
    assert_eq!(
        answers.len(),
        usize::try_from(messages).unwrap(),
        "no message is lost"
    );
    for (id, told) in &answers {
        assert_eq!(told.len(), 1, "message {id} was answered in two ways: {told:?}");
    }
    let counts = counter.counts();
    assert_eq!(
        counts.values().max(),
        Some(&1),
        "nothing is done twice: {counts:?}"
    );
    holds(&agent, &database);
    let info = said(&agent, &["state", "info"], "a");
    assert!(
        info["events"].as_u64().unwrap() > u64::from(messages) * 5,
        "{info}"
    );
}

/// Kills a host and starts it again, puts it to sleep for longer than its lease, or restarts the server.
fn disturb(
    which: u64,
    database: &mut Database,
    agent: &crate::agent::Agent,
    hosts: &mut [Host],
    victim: usize,
) -> &'static str {
    match which {
        0 => {
            hosts[victim].kill();
            hosts[victim] = Host::start(agent, HOSTS[victim]);
            "killed"
        }
        1 => {
            hosts[victim].signal("STOP");
            std::thread::sleep(Duration::from_millis(super::LEASE_MS + 1_500));
            hosts[victim].signal("CONT");
            "asleep"
        }
        _ => {
            database.stop();
            database.again();
            "server restarted"
        }
    }
}

/// Waits for the oldest message; asks again where it could not be answered. How many have ended.
fn settle(hosts: &mut [Host], open: &mut Vec<Message>, answers: &mut BTreeMap<u32, BTreeSet<String>>) -> u32 {
    if open.is_empty() {
        return 0;
    }
    let message = &mut open[0];
    let id = 10_000 + message.id;
    assert!(
        message.sent.elapsed() < PATIENCE,
        "message {} is not answered",
        message.id
    );
    let answer = hosts[message.host].answer(id);
    if let Some(text) = answer["result"]["parts"][0]["text"].as_str() {
        // A call that was cut off has an unknown outcome, which the model says.
        answers.entry(message.id).or_default().insert(text.to_owned());
        open.remove(0);
        return 1;
    }
    let reason: &Value = &answer["error"]["data"]["reason"];
    assert!(
        ["session_moved", "state_unavailable", "not_ready", "journal"]
            .iter()
            .any(|known| reason == known),
        "{answer}"
    );
    std::thread::sleep(Duration::from_millis(50));
    let (conversation, text) = (format!("talk-{}", message.id % 40), format!("m{}", message.id));
    hosts[message.host].say(id, &conversation, &text);
    0
}

#[test]
fn four_hosts_lose_no_message_and_do_nothing_twice_whatever_happens_to_them() {
    chaos(200, 12, 12);
}

/// `cargo xtask soak`.
#[test]
#[ignore = "ten minutes"]
fn soak_four_hosts_lose_no_message_and_do_nothing_twice() {
    chaos(2_000, 24, 90);
}
