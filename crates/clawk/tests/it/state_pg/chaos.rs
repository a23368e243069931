//! Hosts that are killed and put to sleep, a server that restarts, and standbys that take its place, while conversations go on at all
//! hosts: every message is answered, each in one way, and nothing is done twice. Counted by the server that the tool calls. The same with
//! a Swarm, whose members do what the messages ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cluster::Cluster;
use super::{Host, agent_at, said, swarms};
use crate::agent::Agent;
use crate::counter::Counter;

const SCRIPT: &str = r#"
scenes:
  - steps:
      - call: [{ name: order, arguments: { id: "{{last_user_text}}" } }]
      - say: "Done {{last_user_text}}."
"#;
/// Members of the Swarm.
const MEMBERS: u32 = 12;
const HOSTS: [&str; 4] = ["a", "b", "c", "d"];
/// How long a lease holds: the usual time.
const LEASE: Duration = Duration::from_secs(3);
/// Of one message, on a busy machine, with the time that hosts are asleep.
const PATIENCE: Duration = Duration::from_secs(240);
/// The pause before an answer that could not be given is asked for again.
const AGAIN: Duration = Duration::from_millis(50);
/// Why a host may give no answer for now.
const FOR_NOW: [&str; 4] = ["session_moved", "state_unavailable", "not_ready", "journal"];

/// How much of it.
struct Load {
    conversations: u32,
    at_once: usize,
    /// No message is sent after so many, or after this time.
    messages: u32,
    time: Duration,
    /// Something happens each time that so many messages were answered, or so much time has gone.
    every: u32,
    pause: Duration,
    /// Each message is given to a Swarm.
    swarm: bool,
}

/// The same dice in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

/// One message on its way.
struct Message {
    id: u32,
    conversation: u32,
    host: usize,
    sent: Instant,
    /// It was not answered, and is sent again then.
    again: Option<Instant>,
}

struct Run {
    cluster: Cluster,
    counter: Counter,
    agent: Agent,
    hosts: Vec<Host>,
    dice: Dice,
    conversations: u32,
    next: u32,
    open: Vec<Message>,
    /// The answers to each message.
    answers: BTreeMap<u32, BTreeSet<String>>,
    /// The session of each message.
    places: BTreeMap<u32, String>,
    /// The conversation of each session.
    sessions: BTreeMap<String, u32>,
    times: BTreeMap<&'static str, Vec<u128>>,
    /// Messages whose answer is that the state was away.
    failed: u32,
    swarm: bool,
}

impl Run {
    fn start(conversations: u32, swarm: bool) -> Self {
        let (cluster, counter) = (Cluster::start(), Counter::start(None));
        let agent = agent_at(&cluster.url(), &counter);
        std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
        if swarm {
            swarms::add(&agent, MEMBERS, serde_json::json!({}));
        }
        for host in HOSTS {
            let file = agent.path(&format!("{host}.toml"));
            let config = std::fs::read_to_string(&file).unwrap();
            let lease = format!("lease_ms = {}", LEASE.as_millis());
            let config = config.replace(&format!("lease_ms = {}", super::LEASE_MS), &lease);
            std::fs::write(&file, config.replace("[state]\n", "[state]\npool = 8\n")).unwrap();
        }
        let hosts = HOSTS.iter().map(|name| Host::start(&agent, name)).collect();
        Self {
            cluster,
            counter,
            agent,
            hosts,
            dice: Dice(7),
            conversations,
            next: 0,
            open: Vec::new(),
            answers: BTreeMap::new(),
            places: BTreeMap::new(),
            sessions: BTreeMap::new(),
            times: BTreeMap::new(),
            failed: 0,
            swarm,
        }
    }

    fn send(&mut self, host: usize, conversation: u32) -> u32 {
        self.next += 1;
        let message = Message {
            id: self.next,
            conversation,
            host,
            sent: Instant::now(),
            again: None,
        };
        self.say(&message);
        self.open.push(message);
        self.next
    }

    fn say(&mut self, message: &Message) {
        let text = format!("m{}", message.id);
        self.hosts[message.host].say(
            10_000 + message.id,
            &format!("talk-{}", message.conversation),
            &text,
        );
    }

    fn send_any(&mut self) {
        let (host, conversation) = (self.dice.below(4), self.next % self.conversations);
        self.send(host, conversation);
    }

    /// Takes the answers that are there, and asks again where there was none for now.
    fn step(&mut self) {
        let mut came = false;
        for mut message in std::mem::take(&mut self.open) {
            if message.sent.elapsed() >= PATIENCE {
                self.print_state(&message);
                panic!("message {} is not answered", message.id);
            }
            if message.again.is_some_and(|at| at <= Instant::now()) {
                message.again = None;
                self.say(&message);
            }
            let Some(answer) = self.hosts[message.host].poll(10_000 + message.id) else {
                self.open.push(message);
                continue;
            };
            came = true;
            if !self.take(message.id, message.conversation, &answer) {
                message.again = Some(Instant::now() + AGAIN);
                self.open.push(message);
            }
        }
        if !came {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether it is an answer.
    fn take(&mut self, id: u32, conversation: u32, answer: &Value) -> bool {
        if let Some(text) = answer["result"]["parts"][0]["text"].as_str() {
            self.answers.entry(id).or_default().insert(text.to_owned());
            if let Some(session) = answer["result"]["session_id"].as_str() {
                self.places.insert(id, session.to_owned());
                self.sessions.insert(session.to_owned(), conversation);
            }
            return true;
        }
        // A turn that waited for the state for too long says so: an answer, too, and the only one.
        if let Some(why) = answer["result"]["reason"].as_str() {
            assert!(why.contains("the state can't be reached"), "{answer}");
            self.answers.entry(id).or_default().insert(why.to_owned());
            self.failed += 1;
            return true;
        }
        let reason = &answer["error"]["data"]["reason"];
        assert!(FOR_NOW.iter().any(|known| reason == known), "{answer}");
        false
    }

    /// Whoever asked there asks elsewhere, with the same id.
    fn elsewhere(&mut self, victim: usize) {
        let moved = self.open.iter_mut().filter(|message| message.host == victim);
        for message in moved {
            message.host = (victim + 1) % 4;
            message.again = Some(Instant::now());
        }
    }

    /// A conversation whose session this host holds.
    fn held_by(&self, host: usize) -> Option<u32> {
        let sql = format!(
            "SELECT l.session FROM tested.leases l JOIN tested.runs r ON r.run = l.run WHERE r.host = '{}' AND NOT r.gone LIMIT 400",
            HOSTS[host]
        );
        let held = self.cluster.primary().sql(&sql);
        held.lines()
            .find_map(|session| self.sessions.get(session).copied())
    }

    /// How long a message takes that is sent now to another host than the victim, since `began`.
    fn measure(&mut self, what: &'static str, began: Instant, victim: usize, conversation: u32) {
        let host = (victim + 1 + self.dice.below(3)) % 4;
        let id = self.send(host, conversation);
        while !self.answers.contains_key(&id) {
            self.step();
        }
        self.times
            .entry(what)
            .or_default()
            .push(began.elapsed().as_millis());
    }

    /// Something happens.
    #[expect(clippy::print_stdout, reason = "for whoever looks for the reason of a fault")]
    fn disturb(&mut self) {
        let (victim, any) = (self.dice.below(4), self.next % self.conversations);
        let which = self.dice.below(6);
        println!("after {} messages: {which} at host {}", self.next, HOSTS[victim]);
        match which {
            0 | 1 => {
                let held = self.held_by(victim).unwrap_or(any);
                self.hosts[victim].kill();
                let began = Instant::now();
                self.elsewhere(victim);
                self.measure("host killed", began, victim, held);
                self.hosts[victim] = Host::begin(&self.agent, HOSTS[victim]);
                while self.hosts[victim].poll(1).is_none() {
                    assert!(began.elapsed() < PATIENCE, "the host does not come back");
                    self.step();
                }
            }
            2 => {
                let held = self.held_by(victim).unwrap_or(any);
                self.hosts[victim].signal("STOP");
                let began = Instant::now();
                self.measure("host asleep", began, victim, held);
                while began.elapsed() < LEASE + Duration::from_millis(1_500) {
                    self.step();
                }
                self.hosts[victim].signal("CONT");
            }
            3 => {
                let began = Instant::now();
                self.cluster.restart();
                self.measure("server restarted", began, victim, any);
            }
            4 => {
                let began = Instant::now();
                self.cluster.fail_over(false);
                self.measure("failover", began, victim, any);
            }
            _ => {
                let began = Instant::now();
                self.cluster.fail_over(true);
                self.measure("failover, the old primary lives", began, victim, any);
            }
        }
    }

    /// The times of each kind of event, in milliseconds.
    #[expect(
        clippy::print_stdout,
        reason = "the table is what a person reads of this test"
    )]
    fn print(&mut self, took: Duration) {
        let counts = self.counter.counts();
        println!(
            "{} messages in {} conversations, {} answered ({} of them: the state was away), {} effects, in {} s",
            self.next,
            self.sessions.len(),
            self.answers.len(),
            self.failed,
            counts.len(),
            took.as_secs()
        );
        if self.swarm {
            let done = self.answers.values().flatten();
            let done = done.filter(|text| text.contains("Ordered")).count();
            println!("{done} of them were done by members of the Swarm, and known to be");
        }
        println!(
            "| until the first answer, ms | times | min | median | p95 | max |\n|---|---|---|---|---|---|"
        );
        for (what, times) in &mut self.times {
            times.sort_unstable();
            let at = |share: usize| times[(times.len() - 1) * share / 100];
            println!(
                "| {what} | {} | {} | {} | {} | {} |",
                times.len(),
                at(0),
                at(50),
                at(95),
                at(100)
            );
        }
    }

    /// What the journal says of a message that was acted on twice, and with which keys.
    #[expect(clippy::print_stdout, reason = "for whoever looks for the reason")]
    fn tell(&self, text: &str) {
        let hits = self.counter.hits();
        let keys: Vec<_> = hits
            .iter()
            .filter(|hit| hit.id == text)
            .map(|hit| &hit.key)
            .collect();
        let Some(session) = text
            .strip_prefix('m')
            .and_then(|id| self.places.get(&id.parse().ok()?))
        else {
            return;
        };
        let sql = format!(
            "SELECT row, at, kind, left(payload, 400) FROM tested.events WHERE session = decode(replace('{session}', '-', ''), 'hex') ORDER BY row"
        );
        println!("{text}: {keys:?}\n{}", self.cluster.primary().sql(&sql));
        let runs = "SELECT run, host, gone FROM tested.runs ORDER BY run";
        println!("{}", self.cluster.primary().sql(runs));
    }

    /// What the state says while a message waits for too long.
    #[expect(clippy::print_stdout, reason = "for whoever looks for the reason")]
    fn print_state(&self, message: &Message) {
        println!(
            "message {} of conversation {} was given to {}",
            message.id, message.conversation, HOSTS[message.host]
        );
        for sql in [
            "SELECT n, encode(message, 'escape'), encode(session, 'hex'), state, encode(reason, 'escape') FROM tested.inbox WHERE state <> 'done' ORDER BY n LIMIT 20",
            "SELECT run, host, gone, expires > now() FROM tested.runs ORDER BY run",
            "SELECT session, host, run, epoch, expires > now() FROM tested.leases WHERE run IS NOT NULL",
            "SELECT n, session, encode(wish, 'escape') FROM tested.orders WHERE outcome IS NULL",
            "SELECT row, encode(session, 'hex'), at, kind, left(payload, 300) FROM tested.events ORDER BY row DESC LIMIT 60",
            "SELECT pid, state, wait_event_type, wait_event, left(query, 120) FROM pg_stat_activity WHERE datname = current_database()",
        ] {
            println!("-- {sql}\n{}", self.cluster.primary().sql(sql));
        }
    }

    /// Nothing is lost, answered in two ways, or done twice.
    fn judge(&mut self) {
        // Answers to the same question at another host, which nobody waited for.
        for host in &mut self.hosts {
            for (id, answer) in host.rest() {
                let text = answer["result"]["parts"][0]["text"].as_str();
                if let (Some(id), Some(text)) = (id.checked_sub(10_000), text) {
                    self.answers.entry(id).or_default().insert(text.to_owned());
                }
            }
        }
        assert_eq!(
            self.answers.len(),
            usize::try_from(self.next).unwrap(),
            "no message is lost"
        );
        for (id, told) in &self.answers {
            assert_eq!(told.len(), 1, "message {id} was answered in two ways: {told:?}");
        }
        let counts = self.counter.counts();
        let twice: Vec<_> = counts.iter().filter(|(_, times)| **times > 1).collect();
        for (text, _) in &twice {
            self.tell(text);
        }
        assert!(twice.is_empty(), "done twice: {twice:?}");
        let primary = self.cluster.primary();
        let twice = "SELECT count(*) FROM (SELECT 1 FROM tested.events WHERE kind = 'ckp.message.answered' \
            GROUP BY payload::json->>'message_id' HAVING count(*) > 1) t";
        assert_eq!(primary.sql(twice), "0", "no message has two ends in the journal");
        let lost = "SELECT count(*) FROM tested.inbox WHERE state = 'open'";
        assert_eq!(primary.sql(lost), "0", "no message waits");
        if self.swarm {
            swarms::each_ended_once(primary);
        }
        for state in ["a".to_owned(), format!("{}?schema=tested", primary.url())] {
            let report = said(&self.agent, &["trace", "verify"], &state);
            assert_eq!(report["valid"], true, "{report}");
        }
    }
}

fn chaos(load: &Load) {
    let mut run = Run::start(load.conversations, load.swarm);
    let began = Instant::now();
    let (mut last, mut answered) = (Instant::now(), 0);
    loop {
        let more = run.next < load.messages && (began.elapsed() < load.time || run.next < load.conversations);
        while more && run.open.len() < load.at_once {
            run.send_any();
        }
        if !more && run.open.is_empty() {
            break;
        }
        run.step();
        let done = run.answers.len();
        let due = done >= answered + usize::try_from(load.every).unwrap() && last.elapsed() >= load.pause;
        if more && due && done > 4 {
            run.disturb();
            (last, answered) = (Instant::now(), run.answers.len());
        }
    }
    run.print(began.elapsed());
    run.judge();
}

#[test]
fn four_hosts_lose_no_message_and_do_nothing_twice_whatever_happens_to_them() {
    chaos(&Load {
        conversations: 40,
        at_once: 12,
        messages: 200,
        time: Duration::MAX,
        every: 16,
        pause: Duration::ZERO,
        swarm: false,
    });
}

#[test]
fn four_hosts_of_a_swarm_lose_no_message_and_do_nothing_twice_whatever_happens_to_them() {
    chaos(&Load {
        conversations: 40,
        at_once: 12,
        messages: 150,
        time: Duration::MAX,
        every: 16,
        pause: Duration::ZERO,
        swarm: true,
    });
}

/// `cargo xtask soak hosts`.
#[test]
#[ignore = "ten minutes"]
fn soak_four_hosts_lose_no_message_and_do_nothing_twice() {
    let number =
        |name: &str, usual: u64| -> u64 { std::env::var(name).map_or(usual, |text| text.parse().unwrap()) };
    chaos(&Load {
        conversations: u32::try_from(number("CLAWK_SOAK_CONVERSATIONS", 2_000)).unwrap(),
        at_once: 24,
        messages: u32::MAX,
        time: Duration::from_secs(60 * number("CLAWK_SOAK_MINUTES", 10)),
        every: 1,
        pause: Duration::from_secs(2),
        swarm: std::env::var_os("CLAWK_SOAK_SWARM").is_some(),
    });
}
