//! What a lost host left is taken up before anybody goes on with its sessions.

use std::time::{Duration, Instant};

use super::{Database, Host, agent, holds, until};
use crate::counter::Counter;

const SCRIPT: &str = r#"
scenes:
  - steps:
      - call: [{ name: order, arguments: { id: "{{last_user_text}}" } }]
      - say: "Done {{last_user_text}}."
"#;
const TALKS: u32 = 8;

#[test]
fn whoever_is_asked_next_takes_up_what_a_lost_host_left_and_does_nothing_again() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    counter.hold(true);
    for n in 0..TALKS {
        first.say(100 + n, &format!("talk-{n}"), &format!("m{n}"));
    }
    until("all calls are under way", || {
        counter.hits().len() == usize::try_from(TALKS).unwrap()
    });
    first.kill();
    counter.hold(false);
    // Its time is over, and the other host is asked before it looks by itself.
    database.sql("UPDATE tested.runs SET gone = true WHERE host = 'a'");
    for n in 0..TALKS {
        second.say(200 + n, &format!("talk-{n}"), &format!("n{n}"));
        second.say(100 + n, &format!("talk-{n}"), &format!("m{n}"));
    }
    for n in 0..TALKS {
        for (id, text) in [(100 + n, format!("Done m{n}.")), (200 + n, format!("Done n{n}."))] {
            let answer = second.answer(id);
            assert_eq!(answer["result"]["parts"][0]["text"], text, "{answer}");
        }
    }
    let counts = counter.counts();
    assert_eq!(counts.len(), usize::try_from(2 * TALKS).unwrap());
    assert_eq!(
        counts.values().max(),
        Some(&1),
        "nothing is done again: {counts:?}"
    );
    let unknown = "SELECT count(*) FROM tested.effects_open";
    assert_eq!(
        database.sql(unknown),
        TALKS.to_string(),
        "what was under way has no known outcome"
    );
    holds(&agent, &database);
}

#[test]
fn the_same_message_at_two_hosts_at_the_same_moment_is_taken_once() {
    const MESSAGES: u32 = 30;
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    let talk = |n: u32| format!("talk-{n}");
    for n in 0..MESSAGES {
        first.say(100 + n, &talk(n), &format!("m{n}"));
    }
    for n in 0..MESSAGES {
        assert!(first.answer(100 + n)["result"].to_string().contains("Done"));
    }
    // The other one gives each message to the first one, which looks every 150 ms; the first one is asked itself about then.
    for n in 0..MESSAGES {
        second.say(200 + n, &talk(n), &format!("n{n}"));
        std::thread::sleep(Duration::from_millis(u64::from(n) * 7));
        first.say(200 + n, &talk(n), &format!("n{n}"));
    }
    for n in 0..MESSAGES {
        for host in [&mut first, &mut second] {
            let mut answer = host.answer(200 + n);
            // On a very busy machine a host may lose its sessions.
            while ["session_moved", "state_unavailable"]
                .contains(&answer["error"]["data"]["reason"].as_str().unwrap_or_default())
            {
                std::thread::sleep(Duration::from_millis(100));
                host.say(200 + n, &talk(n), &format!("n{n}"));
                answer = host.answer(200 + n);
            }
            assert_eq!(
                answer["result"]["parts"][0]["text"],
                format!("Done n{n}."),
                "{answer}"
            );
        }
    }
    let twice = "SELECT count(*) FROM (SELECT 1 FROM tested.events WHERE kind = 'ckp.message.accepted' \
        GROUP BY payload::json->>'message_id' HAVING count(*) > 1) t";
    assert_eq!(database.sql(twice), "0");
    counter.never_twice();
    holds(&agent, &database);
}

#[test]
fn a_host_that_sleeps_in_the_middle_of_a_commit_does_not_hold_up_the_others_for_long() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let agent = agent(&database, &counter);
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    second.order(1);
    assert!(second.answer(1).get("result").is_some());
    // The only one that is at work: a transaction that stands still is its own.
    let standing = "SELECT count(*) FROM pg_stat_activity a JOIN pg_locks l USING (pid) \
        WHERE a.state = 'idle in transaction' AND l.relation = 'tested.journal'::regclass AND l.mode = 'RowShareLock'";
    let mut next = 100;
    until("it sleeps in a commit", || {
        for _ in 0..30 {
            next += 1;
            first.order(next);
        }
        first.signal("STOP");
        let one = database.sql(standing);
        std::thread::sleep(Duration::from_millis(50));
        if one != "0" && database.sql(standing) != "0" {
            return true;
        }
        first.signal("CONT");
        false
    });
    let began = Instant::now();
    second.order(2);
    let answer = second.answer(2);
    println!("answered after {} ms", began.elapsed().as_millis());
    assert!(answer.get("result").is_some(), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    first.signal("CONT");
    holds(&agent, &database);
}
