//! Measures one agent on several hosts: turns by the number of hosts that share a PostgreSQL server, compared with one host on
//! SQLite; and the queries of an idle host. Server and hosts share this machine, so more hosts do not have more processors.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::super::Size;
use super::super::programs::Programs;
use super::super::sample::{Sample, ms};
use super::super::servers::{Database, secrets};
use super::super::several::{Several, clawk, trust};
use super::super::table::{Goal, Table};

/// Numbers of hosts that share the server.
const HOSTS: [usize; 3] = [1, 2, 4];
/// Wait until the last turns' work is done and counted: an idle connection reports its transactions after ten seconds.
const COUNTED: Duration = Duration::from_secs(12);
/// Conversations of each host that are active at the same time.
const OPEN: u32 = 8;

const MANIFEST: &str = r#"claw: "0.3.0"
kind: Claw
metadata: { name: bench, version: "1.0.0" }
spec:
  identity:
    inline: { name: bench, personality: Answers whoever measures., autonomy: autonomous }
  providers:
    - inline: { name: scripted, protocol: custom, endpoint: "script:./model.yaml", model: scripted, auth: { type: none } }
  channels:
    - inline: { name: terminal, type: cli, transport: stdio, auth: { secret_ref: NONE } }
  policies:
    - inline: { name: all, rules: [{ id: all, action: allow, scope: all }] }
"#;

/// The hosts of one agent.
#[derive(Debug)]
struct Hosts {
    agents: Several,
    count: usize,
    said: u64,
    /// Number of this group of hosts. It makes its conversations and request ids unique.
    number: u32,
}

impl Hosts {
    fn start(programs: &Programs, folder: &Path, configs: &[&str], number: u32) -> Result<Self> {
        let mut agents = Several::new();
        for config in configs {
            let words = ["serve", "claw.yaml", "--stdio", "--config", config];
            agents.add(&mut clawk(&programs.clawk, folder, &words))?;
        }
        Ok(Self {
            agents,
            count: configs.len(),
            said: 0,
            number,
        })
    }

    /// Sends a message to a conversation of a host.
    fn say(&mut self, host: usize, conversation: u32) -> Result<()> {
        self.said += 1;
        let request = format!("{:08x}-0000-4000-8000-{:012}", self.number, self.said);
        let name = format!("{}-{host}-{conversation}", self.number);
        let params = json!({ "text": "hello", "conversation": name, "request_id": request });
        // The answer's id identifies the conversation.
        let id = conversation;
        self.agents.say(
            host,
            &json!({ "jsonrpc": "2.0", "id": id, "method": "claw.message.send", "params": params }),
        )
    }

    /// Returns the host and the conversation whose turn has ended.
    fn answered(&self) -> Result<(usize, u32)> {
        loop {
            let (host, message) = self.agents.hear()?;
            let Some(id) = message.get("id").and_then(Value::as_u64) else {
                continue;
            };
            let text = message.pointer("/result/parts/0/text").and_then(Value::as_str);
            ensure!(text == Some("done"), "answered {message}");
            return Ok((host, u32::try_from(id)?));
        }
    }

    /// Runs turns one after the other at the first host. In milliseconds.
    fn sequence(&mut self, turns: u32) -> Result<Sample> {
        let mut took = Sample::default();
        for _ in 0..turns {
            let began = Instant::now();
            self.say(0, 0)?;
            self.answered()?;
            took.push(ms(began.elapsed()));
        }
        Ok(took)
    }

    /// Runs turns on all hosts, in [`OPEN`] conversations each. Returns turns per second.
    fn flood(&mut self, turns: u32) -> Result<f64> {
        let began = Instant::now();
        let mut said = 0;
        for host in 0..self.count {
            for conversation in 1..=OPEN {
                self.say(host, conversation)?;
                said += 1;
            }
        }
        for _ in 0..turns.max(said) {
            let (host, conversation) = self.answered()?;
            if said < turns {
                self.say(host, conversation)?;
                said += 1;
            }
        }
        Ok(f64::from(turns.max(said)) / began.elapsed().as_secs_f64())
    }
}

/// Writes the agent and its configurations: `sqlite.toml` and one file for each host.
fn write(folder: &Path, database: &Database) -> Result<()> {
    let files = [
        ("claw.yaml", MANIFEST.to_owned()),
        ("model.yaml", "scenes: [{ steps: [{ say: done }] }]\n".to_owned()),
        ("sqlite.toml", "state = \"sqlite\"\n".to_owned()),
    ];
    for (name, text) in files {
        std::fs::write(folder.join(name), text)?;
    }
    secrets(folder)?;
    for host in NAMES {
        let config = format!(
            "[state]\nurl = \"{}\"\nschema = \"bench\"\ndir = \"{host}\"\nhost = \"{host}\"\npassword = \"PG_PASSWORD\"\n\
             [secrets_store]\nfile = \"secrets.toml\"\n",
            database.url()
        );
        std::fs::write(folder.join(format!("{host}.toml")), config)?;
    }
    Ok(())
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const CONFIGS: [&str; 4] = ["a.toml", "b.toml", "c.toml", "d.toml"];

/// Returns the number of transactions of the whole server so far.
fn transactions(database: &Database) -> Result<f64> {
    let told = database.sql("select sum(xact_commit + xact_rollback) from pg_stat_database")?;
    told.parse().with_context(|| format!("`{told}` is not a number"))
}

/// Returns transactions per second.
fn transactions_per_second(database: &Database, watched: Duration) -> Result<f64> {
    let (before, began) = (transactions(database)?, Instant::now());
    sleep(watched);
    Ok((transactions(database)? - before) / began.elapsed().as_secs_f64())
}

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let quick = size.starts < 30;
    let (sequence, flood, watched) = if quick {
        (30, 200, Duration::from_secs(5))
    } else {
        (200, 1_000, Duration::from_secs(30))
    };
    let database = Database::start(folder)?;
    write(folder, &database)?;
    trust(&programs.clawk, folder)?;
    let mut file = Hosts::start(programs, folder, &["sqlite.toml"], 0)?;
    file.flood(flood / 5)?;
    let quiet = transactions_per_second(&database, watched)?;
    let mut alone: Option<f64> = None;
    for count in HOSTS {
        let configs = CONFIGS.get(..count).context("too many hosts")?;
        let mut hosts = Hosts::start(programs, folder, configs, u32::try_from(count)?)?;
        hosts.flood(flood / 5)?;
        let (mut trip, mut rate) = (Sample::default(), Sample::default());
        let (mut file_trip, mut file_rate) = (Sample::default(), Sample::default());
        for _ in 0..size.rounds {
            file_trip.push(file.sequence(sequence)?.median());
            file_rate.push(file.flood(flood)?);
            trip.push(hosts.sequence(sequence)?.median());
            rate.push(hosts.flood(flood)?);
        }
        table.add(
            format!("a turn at one of {count} hosts on one PostgreSQL server, best p50"),
            (trip.least(), "ms"),
            ("one host on SQLite", file_trip.least()),
            Goal::None,
        );
        table.add(
            format!("the same, turns of all hosts, {OPEN} conversations each"),
            (rate.most(), "/s"),
            ("one host on SQLite", file_rate.most()),
            Goal::None,
        );
        sleep(COUNTED);
        let asked = transactions_per_second(&database, watched)? - quiet;
        let least = *alone.get_or_insert(asked);
        table.add(
            format!("{count} hosts with nothing to do: transactions of the server"),
            (asked, "/s"),
            ("one host", least),
            Goal::None,
        );
    }
    Ok(())
}
