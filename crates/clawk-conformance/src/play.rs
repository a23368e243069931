//! Playing one vector's steps and judging what comes back.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::connection::{AgentConnection, ReceiveFailure, is_response};
use super::judge;
use super::pattern::{PatternMismatch, fits};
use super::target::CkpTarget;
use super::vector::{ExpectedAnswer, LiteralTrue, Vector, VectorStep, each_string};

/// The name that the vectors' calls carry as the caller's identity; the agent's own takes its place.
pub(super) const CALLER: &str = "standard-agent";
/// After an answer that must not come, so long is listened for one that comes late.
const LINGER: Duration = Duration::from_millis(100);
/// After the last step, so long is listened for responses that nobody asked for.
const ENCORE: Duration = Duration::from_millis(30);
/// A report shows at most so many lines of a conversation, and so many characters of each.
const SHOWN_LINES: usize = 40;
const SHOWN_CHARS: usize = 2000;

/// How an agent calls itself in `claw.initialize`.
#[derive(Debug, Clone)]
pub(super) struct AgentName {
    pub(super) name: String,
    pub(super) version: String,
}

/// Why a vector failed.
#[derive(Debug, Clone, Serialize)]
pub struct VectorFailure {
    /// What should have come, and where.
    pub expected: String,
    /// What came.
    pub got: String,
    /// `>` sent, `<` received, `!` standard error.
    pub conversation: Vec<String>,
}

impl VectorFailure {
    pub(super) fn new(expected: impl Into<String>, got: impl Into<String>) -> Self {
        Self {
            expected: expected.into(),
            got: got.into(),
            conversation: Vec::new(),
        }
    }

    pub(super) fn with(mut self, connection: &AgentConnection) -> Self {
        let record = connection.record();
        let from = record.len().saturating_sub(SHOWN_LINES);
        self.conversation = record.into_iter().skip(from).map(|line| shorten(&line)).collect();
        self
    }
}

/// Plays the vector against the target. `agent` is told the agent's name once it is known.
pub(super) fn play(
    vector: &Vector,
    target: &CkpTarget,
    agent: &mut Option<AgentName>,
) -> Result<(), VectorFailure> {
    match &vector.manifest {
        Some(case) => judge::judge(case, vector, target, agent),
        None => play_steps(vector, target, agent),
    }
}

fn play_steps(
    vector: &Vector,
    target: &CkpTarget,
    agent: &mut Option<AgentName>,
) -> Result<(), VectorFailure> {
    let vector = if target.is_own() {
        vector.clone()
    } else {
        vector.elsewhere()
    };
    let mut session = open(target, vector.setup.as_deref().unwrap_or("wire"))?;
    let connection = &mut session.connection;
    let mut table = Table::new(target.patience(vector.deadline_ms));
    let verdict = (|| {
        if vector.handshake {
            let answer = initialize(connection, &judge::smallest_claw(), table.until)?;
            expect(
                &json!({ "result": { "protocolVersion": { "$text": true } } }),
                &answer,
            )?;
            if let Some(name) = agent_name(&answer) {
                table.caller.clone_from(&name.name);
                agent.get_or_insert(name);
            }
        }
        table.start = Instant::now();
        vector
            .steps
            .iter()
            .try_for_each(|step| table.play(step, connection))?;
        let late = connection.wait(Instant::now() + ENCORE, is_response);
        match late.ok().or_else(|| connection.stray_response().cloned()) {
            Some(stray) => Err(VectorFailure::new("no further response", stray.to_string())),
            None => Ok(()),
        }
    })();
    verdict.map_err(|it: VectorFailure| it.with(connection))
}

/// What is known while a vector's steps are played.
struct Table {
    until: Instant,
    start: Instant,
    caller: String,
    /// Ids as the vector has them, and as they are sent: an agent that remembers answers must not know them.
    fresh: HashMap<String, String>,
}

impl Table {
    fn new(patience: Duration) -> Self {
        let start = Instant::now();
        Self {
            until: start + patience,
            start,
            caller: CALLER.to_owned(),
            fresh: HashMap::new(),
        }
    }

    fn play(&mut self, step: &VectorStep, connection: &mut AgentConnection) -> Result<(), VectorFailure> {
        match step {
            VectorStep::Send(message) => {
                connection.send(&self.own_words(message).to_string());
                Ok(())
            }
            VectorStep::SendText(line) => {
                connection.send(line);
                Ok(())
            }
            VectorStep::Answer(answer) => self.answered(answer, connection),
            VectorStep::Notified(notified) => {
                let method = notified.get("method");
                let found = wait(connection, self.until, |message| message.get("method") == method)
                    .map_err(|got| VectorFailure::new(format!("the notification {notified}"), got))?;
                if found.get("id").is_some() {
                    return Err(VectorFailure::new(
                        "a notification, without `id`",
                        found.to_string(),
                    ));
                }
                expect(notified, &found)
            }
            VectorStep::Unanswered(LiteralTrue) => Self::unanswered(connection, self.until),
            VectorStep::Stopped(LiteralTrue) => Self::stopped(connection, self.until),
        }
    }

    fn answered(&self, step: &ExpectedAnswer, connection: &mut AgentConnection) -> Result<(), VectorFailure> {
        let ExpectedAnswer {
            answer,
            no_sooner_ms,
            no_later_ms,
        } = step;
        let id = answer.get("id").unwrap_or(&Value::Null);
        let found = wait(connection, self.until, |message| {
            is_response(message) && message.get("id").is_some_and(|found| fits(id, found).is_ok())
        })
        .map_err(|got| VectorFailure::new(format!("the answer {answer}"), got))?;
        expect(answer, &found)?;
        let took = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        if took < *no_sooner_ms {
            return Err(VectorFailure::new(
                format!("the answer after {no_sooner_ms} ms"),
                format!("it after {took} ms"),
            ));
        }
        match no_later_ms {
            Some(limit) if took > *limit => Err(VectorFailure::new(
                format!("the answer within {limit} ms"),
                format!("it after {took} ms"),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// A request behind the notification is answered, and nothing else is.
    fn unanswered(connection: &mut AgentConnection, until: Instant) -> Result<(), VectorFailure> {
        connection.send(&probe());
        wait(connection, until, is_probe)
            .map_err(|got| VectorFailure::new("an answer to the next request", got))?;
        let late = connection.wait(Instant::now() + LINGER, is_response);
        match late.ok().or_else(|| connection.stray_response().cloned()) {
            Some(found) => Err(VectorFailure::new(
                "no answer to a notification",
                found.to_string(),
            )),
            None => Ok(()),
        }
    }

    /// Asked for its state, the agent says that it stops, refuses, or has gone.
    fn stopped(connection: &mut AgentConnection, until: Instant) -> Result<(), VectorFailure> {
        connection.send(&probe());
        match connection.wait(until, is_probe) {
            Err(ReceiveFailure::Gone) => Ok(()),
            Err(silence) => Err(VectorFailure::new("an agent that stops", said(&silence))),
            Ok(answer) if answer.get("error").is_some() => Ok(()),
            Ok(answer) => expect(
                &json!({ "result": { "state": { "$any": ["STOPPING", "STOPPED"] } } }),
                &answer,
            ),
        }
    }

    /// The message with the caller's name and ids that nobody has used.
    fn own_words(&mut self, message: &Value) -> Value {
        let mut message = message.clone();
        each_string(&mut message, &mut |text| {
            if text == CALLER {
                return Some(json!(self.caller));
            }
            is_uuid(text).then(|| json!(self.fresh.entry(text.to_owned()).or_insert_with(random_uuid)))
        });
        message
    }
}

pub(super) fn open(target: &CkpTarget, setup: &str) -> Result<super::target::CkpSession, VectorFailure> {
    target
        .connect(setup)
        .map_err(|error| VectorFailure::new("an agent to talk to", format!("{error:#}")))
}

pub(super) fn initialize(
    connection: &mut AgentConnection,
    manifest: &Value,
    until: Instant,
) -> Result<Value, VectorFailure> {
    let request = json!({
        "jsonrpc": "2.0", "id": "handshake", "method": "claw.initialize",
        "params": {
            "protocolVersion": "0.2.0",
            "clientInfo": { "name": "clawk-conformance", "version": env!("CARGO_PKG_VERSION") },
            "manifest": manifest,
            "capabilities": {}
        }
    });
    connection.send(&request.to_string());
    wait(connection, until, |message| {
        is_response(message) && message.get("id") == Some(&json!("handshake"))
    })
    .map_err(|got| VectorFailure::new("an answer to `claw.initialize`", got))
}

pub(super) fn agent_name(answer: &Value) -> Option<AgentName> {
    let text = |pointer| answer.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    Some(AgentName {
        name: text("/result/agentInfo/name")?,
        version: text("/result/agentInfo/version").unwrap_or_default(),
    })
}

fn wait(
    connection: &mut AgentConnection,
    until: Instant,
    wanted: impl Fn(&Value) -> bool,
) -> Result<Value, String> {
    connection
        .wait(until, wanted)
        .map_err(|silence| match connection.stray_response() {
            Some(stray) => format!("{}; before that {}", said(&silence), shorten(&stray.to_string())),
            None => said(&silence),
        })
}

fn said(silence: &ReceiveFailure) -> String {
    match silence {
        ReceiveFailure::Deadline => "nothing in time".to_owned(),
        ReceiveFailure::Gone => "the end of the agent's output".to_owned(),
        ReceiveFailure::Noise(what) => what.clone(),
    }
}

pub(super) fn expect(pattern: &Value, found: &Value) -> Result<(), VectorFailure> {
    fits(pattern, found).map_err(|PatternMismatch { at, wanted }| {
        let place = if at.is_empty() { "the message" } else { &at };
        VectorFailure::new(format!("{wanted} at `{place}`"), shorten(&found.to_string()))
    })
}

fn probe() -> String {
    json!({ "jsonrpc": "2.0", "id": "probe", "method": "claw.status", "params": {} }).to_string()
}

fn is_probe(message: &Value) -> bool {
    is_response(message) && message.get("id") == Some(&json!("probe"))
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A version 4 UUID from the seeds that the standard library's hash maps get. Unpredictable enough not to collide.
fn random_uuid() -> String {
    let word = || RandomState::new().build_hasher().finish();
    let (high, low) = (word(), word());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 50),
        low & 0xffff_ffff_ffff
    )
}
