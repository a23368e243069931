//! One run: facts are told among other things, then asked for in the same session, in another one, and on another channel.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufReader;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::embedder::EMBEDDING;
use super::{Embedder, FILLERS, named};
use crate::agent::{Agent, program};
use crate::serve::Server;

/// A fact, a word that only it holds, and a question without that word.
type Fact = (&'static str, &'static str, &'static str);

/// What is told.
pub(super) struct Plan<'a> {
    pub(super) turns: usize,
    pub(super) facts: &'static [Fact],
    /// None: the built-in table.
    pub(super) embedder: Option<&'a Embedder>,
    /// Each channel's entries are its own.
    pub(super) apart: bool,
}

/// The words of the facts that were in the prompt of their questions.
#[derive(Debug, Default)]
pub(super) struct Asked {
    of: usize,
    /// Asked in the session in which they were told.
    pub(super) same: Vec<&'static str>,
    /// Asked in another session of the same channel.
    pub(super) other: Vec<&'static str>,
    /// Asked on another channel.
    pub(super) elsewhere: Vec<&'static str>,
    /// Past prompts that were built again byte for byte.
    built: usize,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (same, other, elsewhere) = (self.same.len(), self.other.len(), self.elsewhere.len());
        write!(
            f,
            "of {} facts {same} are in the prompt in the same session, {other} in another session, {elsewhere} on another channel; \
             {} prompts built again byte for byte",
            self.of, self.built
        )
    }
}

/// The vectors of all facts are there after this time, also on a machine that others load. (The promise of five seconds has a test
/// of its own: `remember::a_providers_vectors_are_paid_once_and_find_by_meaning`.)
const VECTORS: Duration = Duration::from_secs(120);

/// Seconds for building all prompts of a session again.
const BUILDING: &str = "1500";

fn manifest(plan: &Plan<'_>) -> String {
    let provider = plan.embedder.map(Embedder::provider).unwrap_or_default();
    let embeds = if plan.embedder.is_some() {
        format!(", {EMBEDDING}")
    } else {
        String::new()
    };
    let scope = if plan.apart { "per-channel" } else { "global" };
    format!(
        r#"claw: "0.3.0"
kind: Claw
metadata: {{ name: tested, version: "1.0.0" }}
spec:
  identity:
    inline: {{ name: tested, personality: You are tested., autonomy: autonomous }}
  providers:
    - inline: {{ name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: {{ type: none }}, limits: {{ max_context_window: 32000 }} }}
{provider}  channels:
    - inline: {{ name: here, type: cli, transport: stdio, auth: {{ secret_ref: NONE }} }}
  policies:
    - inline: {{ name: tested, rules: [{{ id: all, action: allow, scope: all }}] }}
  memory:
    inline:
      name: head
      stores:
        - {{ name: talks, type: conversation, scope: {scope}, compaction: {{ strategy: sliding-window }}{embeds} }}
        - {{ name: notes, type: semantic, scope: {scope}, lifecycle: {{ acquisition: continuous }}{embeds} }}
"#
    )
}

/// The session that took the words.
fn say(server: &mut Server, conversation: &str, n: usize, words: &str) -> String {
    let params = json!({ "text": words, "conversation": conversation, "request_id": format!("bb0e8400-e29b-41d4-a716-{n:012}") });
    let answer = server.ask("claw.message.send", &params);
    assert_eq!(answer["result"]["stop"], "answered", "{answer}");
    answer["result"]["session_id"].as_str().unwrap().to_owned()
}

/// Waits until each fact has its vector: by words alone, its own text has half of the points at most.
fn embedded(server: &mut Server, facts: &[Fact]) {
    let until = Instant::now() + VECTORS;
    for (fact, _, _) in facts {
        loop {
            let query = json!({ "type": "semantic", "text": fact, "top_k": 1 });
            let context = json!({ "identity": "tested", "channel": "rpc" });
            let found = server.ask(
                "claw.memory.query",
                &json!({ "store": "notes", "query": query, "context": context }),
            );
            let first = &found["result"]["entries"][0];
            if first["content"] == *fact && first["score"].as_f64() > Some(0.6) {
                break;
            }
            assert!(Instant::now() < until, "no vector for `{fact}`: {found}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Tells the facts among other things, evenly; the session. Then asks for them there and in another session; that one.
fn talk(agent: &Agent, plan: &Plan<'_>) -> (String, String) {
    let mut server = Server::start(agent, &["claw.yaml", "--stdio"]);
    assert!(server.initialize(&named())["result"].is_object());
    let every = plan.turns / plan.facts.len();
    let (mut facts, mut main) = (plan.facts.iter(), String::new());
    for n in 0..plan.turns {
        let fact = if n % every == every / 2 {
            facts.next()
        } else {
            None
        };
        let words = match fact {
            Some((fact, _, _)) => (*fact).to_owned(),
            None => FILLERS[n * 7 % FILLERS.len()].replace("{n}", &n.to_string()),
        };
        main = say(&mut server, "main", n, &words);
    }
    assert_eq!(facts.next(), None);
    if plan.embedder.is_some() {
        embedded(&mut server, plan.facts);
    }
    let mut sessions = [String::new(), String::new()];
    for (conversation, session) in ["main", "other"].into_iter().zip(&mut sessions) {
        for (n, (_, _, question)) in plan.facts.iter().enumerate() {
            let n = n
                + plan.turns
                + if conversation == "other" {
                    plan.facts.len()
                } else {
                    0
                };
            *session = say(&mut server, conversation, n, question);
        }
    }
    let [same, other] = sessions;
    assert_eq!(main, same, "one conversation is one session");
    assert!(server.end().success());
    (same, other)
}

/// The prompts of a session by turn, from the first: every one of them is built again, and compared with the record's digest by the verb.
/// Only those from `from` on are given back.
fn prompts(agent: &Agent, session: &str, from: usize, last: usize) -> BTreeMap<usize, String> {
    let mut child = Command::new("timeout")
        .arg(BUILDING)
        .arg(program())
        .args([
            "sessions",
            "prompt",
            session,
            "--format",
            "json",
            "--turn",
            &format!("1-{last}"),
        ])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut found, mut count) = (BTreeMap::new(), 0);
    let printed = BufReader::new(child.stdout.take().unwrap());
    for prompt in serde_json::Deserializer::from_reader(printed).into_iter::<Value>() {
        let prompt = prompt.unwrap();
        count += 1;
        assert_eq!(prompt["turn"], count);
        if count >= from {
            found.insert(count, prompt.to_string());
        }
    }
    assert!(child.wait().unwrap().success(), "all prompts can be built again");
    assert_eq!(count, last);
    found
}

/// Tells and asks.
pub(super) fn ask(plan: &Plan<'_>) -> Asked {
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), manifest(plan)).unwrap();
    std::fs::write(
        agent.path("script.yaml"),
        "scenes: [{ steps: [{ say: \"Noted.\" }] }]\n",
    )
    .unwrap();
    let (same, other) = talk(&agent, plan);
    let count = plan.facts.len();
    let mut asked = Asked {
        of: count,
        built: plan.turns + 2 * count,
        ..Asked::default()
    };
    let holds = |prompt: &str, way: &str, (_, word, question): &Fact| {
        let holds = prompt.contains(word);
        if !holds {
            eprintln!("{way}: not in the prompt: {word} ({question})");
        }
        holds.then_some(*word)
    };
    let first = plan.turns + 1;
    let shown = prompts(&agent, &same, first, plan.turns + count);
    let pairs = plan.facts.iter().zip(shown.values());
    asked.same = pairs
        .filter_map(|(fact, prompt)| holds(prompt, "same session", fact))
        .collect();
    let shown = prompts(&agent, &other, 1, count);
    let pairs = plan.facts.iter().zip(shown.values());
    asked.other = pairs
        .filter_map(|(fact, prompt)| holds(prompt, "another session", fact))
        .collect();
    for fact in plan.facts {
        agent.clawk(["run", "claw.yaml", "-m", fact.2]).assert().success();
        let shown = prompts(&agent, "last", 1, 1);
        asked.elsewhere.extend(holds(&shown[&1], "another channel", fact));
        asked.built += 1;
    }
    agent.clawk(["trace", "verify"]).assert().success();
    asked
}
