//! A primary that dies and a synchronous standby in its place: what was told is there, hosts go on by themselves, and whoever still
//! reaches the old primary can record nothing. And what a replica is good for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Database, Host, PATIENCE, agent_at, holds, said, until};
use crate::agent::{Agent, text};
use crate::counter::Counter;
use crate::postgres::database::url_of_both;

/// The end of a call: asked again until it was done, or nobody can know.
fn ended(host: &mut Host, id: u32) -> Value {
    let end = Instant::now() + PATIENCE * 2;
    let mut answer = host.answer(id);
    while answer.get("result").is_none() && answer["error"]["data"]["reason"] != "outcome_unknown" {
        assert!(Instant::now() < end, "{answer}");
        std::thread::sleep(Duration::from_millis(100));
        host.order(id);
        answer = host.answer(id);
    }
    answer
}

fn rewrite(agent: &Agent, host: &str, old: &str, new: &str) {
    let file = agent.path(&format!("{host}.toml"));
    let config = std::fs::read_to_string(&file).unwrap();
    assert!(config.contains(old), "{config}");
    std::fs::write(file, config.replace(old, new)).unwrap();
}

#[test]
fn a_failover_to_a_synchronous_standby_loses_nothing_that_was_told() {
    let (mut old, counter) = (Database::start(), Counter::start(None));
    let standby = old.standby();
    let agent = agent_at(&url_of_both(&old, &standby), &counter);
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    let ids: Vec<u32> = (100..140).collect();
    for id in &ids {
        first.order(*id);
        second.order(id + 1000);
    }
    let mut told: Vec<(u32, Value)> = ids[..10].iter().map(|id| (*id, ended(&mut first, *id))).collect();
    old.stop();
    let killed = Instant::now();
    standby.promote();
    let (promoted, port) = (killed.elapsed(), old.port());
    drop(old);
    // Nothing is told before the new primary has a standby of its own.
    let _third = standby.standby_at(port);
    let followed = killed.elapsed();
    told.extend(ids[10..].iter().map(|id| (*id, ended(&mut first, *id))));
    for id in &ids {
        ended(&mut second, id + 1000);
    }
    println!(
        "promoted after {} ms, with a standby after {} ms, all answered after {} ms",
        promoted.as_millis(),
        followed.as_millis(),
        killed.elapsed().as_millis()
    );
    // The other host tells the same answers, of before and after.
    for (id, answer) in &told {
        second.order(*id);
        let again = second.answer(*id);
        assert_eq!(
            again.get("result"),
            answer.get("result"),
            "{id}: {again} {answer}"
        );
    }
    let counts = counter.counts();
    assert_eq!(counts.values().max(), Some(&1), "never twice: {counts:?}");
    let done = told.iter().filter(|(_, answer)| answer.get("result").is_some());
    assert!(done.count() >= 10);
    for (id, _) in told.iter().filter(|(_, answer)| answer.get("result").is_some()) {
        assert_eq!(counts.get(&format!("order-{id}")), Some(&1), "told and done");
    }
    holds(&agent, &standby);
}

/// An operator who ends every wait for a standby: what the server commits then is nowhere else.
fn cancelling(database: &Arc<Database>, over: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let (database, over) = (Arc::clone(database), Arc::clone(over));
    std::thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            let sql =
                "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            let _cancelled = database.psql(sql).output();
            std::thread::sleep(Duration::from_millis(20));
        }
    })
}

#[test]
fn hosts_that_still_reach_the_old_primary_record_nothing_and_the_others_leave_it() {
    let (old, counter) = (Arc::new(Database::start()), Counter::start(None));
    let standby = old.standby();
    let both = url_of_both(&old, &standby);
    let agent = agent_at(&both, &counter);
    // The first one knows the old primary only.
    rewrite(&agent, "a", &both, &old.url());
    let (mut first, mut second) = (Host::start(&agent, "a"), Host::start(&agent, "b"));
    for (id, host) in [(2, &mut first), (3, &mut second)] {
        host.order(id);
        assert!(host.answer(id).get("result").is_some());
    }
    // A split: the old primary lives, and has lost its standby.
    standby.promote();
    let split = Instant::now();
    let rows = "SELECT last_row FROM tested.journal";
    let before: u64 = old.sql(rows).parse().unwrap();
    let _third = standby.standby();
    let over = Arc::new(AtomicBool::new(false));
    let operator = cancelling(&old, &over);
    first.order(10);
    second.order(11);
    let answer = ended(&mut second, 11);
    println!(
        "served by the new primary after {} ms",
        split.elapsed().as_millis()
    );
    assert!(answer.get("result").is_some(), "{answer}");
    // One that starts now finds both, and takes the newer one.
    let began = Instant::now();
    let mut third = Host::start(&agent, "c");
    println!("a new host serves after {} ms", began.elapsed().as_millis());
    third.order(10);
    let answer = ended(&mut third, 10);
    assert!(answer.get("result").is_some(), "{answer}");
    // The same request at the host with the old primary ends in an error, and was never sent.
    let refused = first.answer(10);
    assert!(refused.get("error").is_some(), "{refused}");
    for id in 20..25 {
        first.order(id);
        let refused = first.answer(id);
        assert!(refused.get("error").is_some(), "{refused}");
    }
    let counts = counter.counts();
    assert_eq!(counts.values().max(), Some(&1), "{counts:?}");
    assert_eq!(counts.get("order-10"), Some(&1));
    assert!(
        (20..25).all(|id| !counts.contains_key(&format!("order-{id}"))),
        "{counts:?}"
    );
    until("the old primary has committed what nobody counts", || {
        old.sql(rows).parse::<u64>().unwrap() > before
    });
    over.store(true, Ordering::SeqCst);
    operator.join().unwrap();
    first.kill();
    let report = said(&agent, &["trace", "verify"], "b");
    assert_eq!(report["valid"], json!(true), "{report}");
    holds_at(&agent, &standby);
}

fn holds_at(agent: &Agent, database: &Database) {
    let report = said(
        agent,
        &["trace", "verify"],
        &format!("{}?schema=tested", database.url()),
    );
    assert_eq!(
        (&report["valid"], report.get("problems")),
        (&json!(true), None),
        "{report}"
    );
}

#[test]
fn several_servers_without_a_synchronous_standby_are_refused_unless_that_is_accepted() {
    let (database, counter) = (Database::start(), Counter::start(None));
    let standby = database.standby();
    database.synchronous("");
    let both = url_of_both(&database, &standby);
    let agent = agent_at(&both, &counter);
    let refused = agent
        .clawk(["serve", "claw.yaml", "--stdio", "--config", "a.toml"])
        .write_stdin("")
        .assert()
        .failure();
    let said = text(&refused.get_output().stderr);
    for word in [
        "`synchronous_standby_names`",
        "`failover = \"asynchronous\"`",
        &format!("127.0.0.1:{}", database.port()),
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    rewrite(&agent, "a", "[state]\n", "[state]\nfailover = \"asynchronous\"\n");
    let mut host = Host::start(&agent, "a");
    host.order(2);
    assert!(host.answer(2).get("result").is_some());
    host.stop();
    // One server is its own matter.
    rewrite(&agent, "b", &both, &database.url());
    Host::start(&agent, "b").stop();
    // A server that is asked for to be written is no standby.
    rewrite(&agent, "c", "read-write", "standby");
    let refused = agent
        .clawk(["serve", "claw.yaml", "--stdio", "--config", "c.toml"])
        .write_stdin("")
        .assert()
        .failure();
    let said = text(&refused.get_output().stderr);
    assert!(said.contains("`target_session_attrs`"), "{said}");
}

#[test]
fn verbs_that_read_ask_the_replica_and_go_on_while_the_primary_is_away() {
    let (mut database, counter) = (Database::start(), Counter::start(None));
    let replica = database.standby();
    let agent = agent_at(&database.url(), &counter);
    let line = format!("[state]\nread_url = \"{}\"\n", replica.url());
    rewrite(&agent, "a", "[state]\n", &line);
    // A host that serves reads what the server itself has, however far behind the replica is.
    replica.sql("SELECT pg_wal_replay_pause()");
    for start in 0..2 {
        let mut host = Host::start(&agent, "a");
        for id in 2..4 {
            host.order(10 * start + id);
            assert!(host.answer(10 * start + id).get("result").is_some());
        }
        host.stop();
    }
    replica.sql("SELECT pg_wal_replay_resume()");
    let events = |state: &str| {
        said(&agent, &["state", "info"], state)["events"]
            .as_u64()
            .unwrap()
    };
    let written: u64 = database
        .sql("SELECT last_row FROM tested.journal")
        .parse()
        .unwrap();
    let flushed = database.sql("SELECT pg_current_wal_flush_lsn()");
    // Until then it may lack the state's schema as well, and the verb fails.
    until("the replica has all", || {
        replica.sql(&format!(
            "SELECT to_regclass('tested.journal') IS NOT NULL AND pg_last_wal_replay_lsn() >= '{flushed}'"
        )) == "t"
    });
    assert_eq!(events("a"), written);
    database.stop();
    let report = said(&agent, &["trace", "verify"], "a");
    assert_eq!(report["valid"], json!(true), "{report}");
    assert_eq!(events("a"), written);
    let shown = agent
        .clawk(["trace", "show", "--state", "a", "--format", "json"])
        .env("PGPASSWORD", Database::PASSWORD)
        .assert()
        .success();
    assert!(text(&shown.get_output().stdout).contains("ckp.tool."));
    // The URL of the server itself has no replica.
    agent
        .clawk(["trace", "verify", "--state"])
        .arg(format!("{}?schema=tested", database.url()))
        .env("PGPASSWORD", Database::PASSWORD)
        .assert()
        .failure();
}
