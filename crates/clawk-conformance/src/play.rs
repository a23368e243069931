//! Runs the steps of one vector and judges the answers.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::connection::{AgentConnection, ReceiveFailure, is_response};
use super::judge;
use super::pattern::{PatternMismatch, match_pattern};
use super::target::CkpTarget;
use super::vector::{ExpectedAnswer, LiteralTrue, Vector, VectorStep, each_string};

/// The caller's identity in the vectors' calls. It is replaced by the agent's own.
pub(super) const CALLER: &str = "standard-agent";
/// Additional time in which a forbidden answer may still arrive.
const LINGER: Duration = Duration::from_millis(100);
/// Additional time after the last step in which unrequested responses may arrive.
const ENCORE: Duration = Duration::from_millis(30);
/// Largest number of a connection's lines in a report, and largest number of characters per line.
const SHOWN_LINES: usize = 40;
const SHOWN_CHARS: usize = 2000;

/// The agent's name and version in `claw.initialize`.
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

    pub(super) fn with_record(mut self, connection: &AgentConnection) -> Self {
        let record = connection.record();
        let from = record.len().saturating_sub(SHOWN_LINES);
        self.conversation = record
            .into_iter()
            .skip(from)
            .map(|line| shorten_text(&line))
            .collect();
        self
    }
}

/// Runs the vector against the target. `agent` receives the agent's name once it is known.
pub(super) fn play_vector(
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
        vector.for_foreign_agent()
    };
    let mut session = open_session(target, vector.setup.as_deref().unwrap_or("wire"))?;
    let connection = &mut session.connection;
    let mut table = Table::new(target.time_limit(vector.deadline_ms));
    let verdict = (|| {
        if vector.handshake {
            let answer = initialize_agent(connection, &judge::smallest_claw(), table.until)?;
            expect_match(
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
            .try_for_each(|step| table.play_step(step, connection))?;
        let late = connection.wait_for_message(Instant::now() + ENCORE, is_response);
        match late.ok().or_else(|| connection.stray_response().cloned()) {
            Some(stray) => Err(VectorFailure::new("no further response", stray.to_string())),
            None => Ok(()),
        }
    })();
    verdict.map_err(|it: VectorFailure| it.with_record(connection))
}

/// The values known while a vector's steps run.
struct Table {
    until: Instant,
    start: Instant,
    caller: String,
    /// Maps the vector's ids to the ids that are sent. New ids are used, because an agent may remember answers by id.
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

    fn play_step(
        &mut self,
        step: &VectorStep,
        connection: &mut AgentConnection,
    ) -> Result<(), VectorFailure> {
        match step {
            VectorStep::Send(message) => {
                connection.send_line(&self.own_words(message).to_string());
                Ok(())
            }
            VectorStep::SendText(line) => {
                connection.send_line(line);
                Ok(())
            }
            VectorStep::Answer(answer) => self.expect_answer(answer, connection),
            VectorStep::Notified(notified) => {
                let method = notified.get("method");
                let found =
                    wait_for_message(connection, self.until, |message| message.get("method") == method)
                        .map_err(|got| VectorFailure::new(format!("the notification {notified}"), got))?;
                if found.get("id").is_some() {
                    return Err(VectorFailure::new(
                        "a notification, without `id`",
                        found.to_string(),
                    ));
                }
                expect_match(notified, &found)
            }
            VectorStep::Unanswered(LiteralTrue) => Self::expect_no_answer(connection, self.until),
            VectorStep::Stopped(LiteralTrue) => Self::expect_stopped(connection, self.until),
        }
    }

    fn expect_answer(
        &self,
        step: &ExpectedAnswer,
        connection: &mut AgentConnection,
    ) -> Result<(), VectorFailure> {
        let ExpectedAnswer {
            answer,
            no_sooner_ms,
            no_later_ms,
        } = step;
        let id = answer.get("id").unwrap_or(&Value::Null);
        let found = wait_for_message(connection, self.until, |message| {
            is_response(message)
                && message
                    .get("id")
                    .is_some_and(|found| match_pattern(id, found).is_ok())
        })
        .map_err(|got| VectorFailure::new(format!("the answer {answer}"), got))?;
        expect_match(answer, &found)?;
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

    /// Checks that a notification gets no answer: only the request after it may be answered.
    fn expect_no_answer(connection: &mut AgentConnection, until: Instant) -> Result<(), VectorFailure> {
        connection.send_line(&probe_request());
        wait_for_message(connection, until, is_probe)
            .map_err(|got| VectorFailure::new("an answer to the next request", got))?;
        let late = connection.wait_for_message(Instant::now() + LINGER, is_response);
        match late.ok().or_else(|| connection.stray_response().cloned()) {
            Some(found) => Err(VectorFailure::new(
                "no answer to a notification",
                found.to_string(),
            )),
            None => Ok(()),
        }
    }

    /// Asks for the agent's state. It must be stopping, refuse, or be gone.
    fn expect_stopped(connection: &mut AgentConnection, until: Instant) -> Result<(), VectorFailure> {
        connection.send_line(&probe_request());
        match connection.wait_for_message(until, is_probe) {
            Err(ReceiveFailure::Gone) => Ok(()),
            Err(silence) => Err(VectorFailure::new(
                "an agent that stops",
                describe_silence(&silence),
            )),
            Ok(answer) if answer.get("error").is_some() => Ok(()),
            Ok(answer) => expect_match(
                &json!({ "result": { "state": { "$any": ["STOPPING", "STOPPED"] } } }),
                &answer,
            ),
        }
    }

    /// Returns the message with the agent's identity and with new ids.
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

pub(super) fn open_session(
    target: &CkpTarget,
    setup: &str,
) -> Result<super::target::CkpSession, VectorFailure> {
    target
        .connect(setup)
        .map_err(|error| VectorFailure::new("an agent to talk to", format!("{error:#}")))
}

pub(super) fn initialize_agent(
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
    connection.send_line(&request.to_string());
    wait_for_message(connection, until, |message| {
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

fn wait_for_message(
    connection: &mut AgentConnection,
    until: Instant,
    wanted: impl Fn(&Value) -> bool,
) -> Result<Value, String> {
    connection
        .wait_for_message(until, wanted)
        .map_err(|silence| match connection.stray_response() {
            Some(stray) => format!(
                "{}; before that {}",
                describe_silence(&silence),
                shorten_text(&stray.to_string())
            ),
            None => describe_silence(&silence),
        })
}

fn describe_silence(silence: &ReceiveFailure) -> String {
    match silence {
        ReceiveFailure::Deadline => "nothing in time".to_owned(),
        ReceiveFailure::Gone => "the end of the agent's output".to_owned(),
        ReceiveFailure::Noise(what) => what.clone(),
    }
}

pub(super) fn expect_match(pattern: &Value, found: &Value) -> Result<(), VectorFailure> {
    match_pattern(pattern, found).map_err(|PatternMismatch { at, wanted }| {
        let place = if at.is_empty() { "the message" } else { &at };
        VectorFailure::new(format!("{wanted} at `{place}`"), shorten_text(&found.to_string()))
    })
}

fn probe_request() -> String {
    json!({ "jsonrpc": "2.0", "id": "probe", "method": "claw.status", "params": {} }).to_string()
}

fn is_probe(message: &Value) -> bool {
    is_response(message) && message.get("id") == Some(&json!("probe"))
}

fn shorten_text(text: &str) -> String {
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

/// Makes a version 4 UUID from the seeds of the standard library's hash maps. They are random enough to avoid collisions.
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
