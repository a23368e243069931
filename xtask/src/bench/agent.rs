//! A running agent that the benchmark drives over standard input and output.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::manifest::{self, Setup};
use super::process;
use super::prose::random;
use super::sample::Sample;
use crate::run::command;

/// Requests in flight during a throughput test.
pub(crate) const IN_FLIGHT: u32 = 64;

/// A child process that answers each line with a line.
#[derive(Debug)]
pub(crate) struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    line: Vec<u8>,
    ids: Ids,
}

/// The result of a throughput test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flood {
    /// Answers per second.
    pub(crate) per_second: f64,
    /// CPU time of the agent, in microseconds per answer.
    pub(crate) cpu_us: f64,
}

impl Agent {
    /// Writes the manifest, starts the agent and initializes it.
    pub(crate) fn start(clawk: &Path, folder: &Path, setup: Setup) -> Result<Self> {
        manifest::write(folder, setup)?;
        let mut agent = Self::spawn(clawk, folder)?;
        agent.initialize()?;
        Ok(agent)
    }

    /// Starts the agent in a folder that has its manifest, without initializing it.
    pub(crate) fn spawn(clawk: &Path, folder: &Path) -> Result<Self> {
        let mut serve = command(clawk);
        serve.args(["serve", "claw.yaml", "--stdio"]).current_dir(folder);
        Self::of(&mut serve)
    }

    /// Starts any program that answers lines.
    pub(crate) fn of(command: &mut std::process::Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("no pipe")?;
        Ok(Self {
            child,
            input,
            output: BufReader::with_capacity(256 * 1024, output),
            line: Vec::new(),
            ids: Ids::default(),
        })
    }

    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `claw.initialize` and waits for the answer.
    pub(crate) fn initialize(&mut self) -> Result<()> {
        self.ask(
            "claw.initialize",
            &json!({
                "protocolVersion": "0.3.0", "clientInfo": { "name": "bench", "version": "1" }, "capabilities": {},
                "manifest": { "kind": "Claw", "metadata": { "name": "bench" }, "spec": {
                    "identity": { "inline": { "personality": "Measures." } },
                    "providers": [{ "inline": { "protocol": "openai-compatible", "endpoint": "https://localhost/v1",
                        "model": "none", "auth": { "type": "none" } } }],
                } },
            }),
        )
        .map(drop)
    }

    /// Sends one request and returns its result.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = self.exchange(format!("{request}\n").as_bytes())?;
        let mut answer: Value = serde_json::from_str(&answer)?;
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => bail!("`{method}` was answered {answer}"),
        }
    }

    /// Sends a line and waits for a line.
    pub(crate) fn exchange(&mut self, line: &[u8]) -> Result<String> {
        self.input.as_mut().context("closed")?.write_all(line)?;
        self.line.clear();
        ensure!(
            self.output.read_until(b'\n', &mut self.line)? > 0,
            "the agent has ended"
        );
        Ok(String::from_utf8_lossy(&self.line).into_owned())
    }

    /// Makes requests one after the other and records each round trip in milliseconds. Each answer must be a result.
    pub(crate) fn sequence(&mut self, kind: Kind, count: usize, into: &mut Sample) -> Result<()> {
        let mut line = Vec::new();
        for _ in 0..count {
            line.clear();
            kind.append(&mut self.ids, &mut line);
            let start = Instant::now();
            let answer = self.exchange(&line)?;
            into.push(super::sample::ms(start.elapsed()));
            ensure!(
                answer.contains("\"result\"") && !answer.contains("\"isError\":true"),
                "answered {answer}"
            );
        }
        Ok(())
    }

    /// Keeps [`IN_FLIGHT`] requests in flight until `count` are answered. One thread sends a new request for each answer, so that
    /// this side uses as little CPU as possible.
    pub(crate) fn flood(&mut self, kind: Kind, count: u32) -> Result<Flood> {
        let Self {
            child,
            input,
            output,
            line,
            ids,
        } = self;
        let input = input.as_mut().context("closed")?;
        let cpu = process::cpu_seconds(child.id())?;
        let start = Instant::now();
        let (mut sent, mut answered, mut due) = (0, 0, IN_FLIGHT.min(count));
        while answered < count {
            line.clear();
            for _ in 0..due.min(count - sent) {
                kind.append(ids, line);
                sent += 1;
            }
            input.write_all(line)?;
            let chunk = output.fill_buf()?;
            ensure!(!chunk.is_empty(), "the agent has ended");
            let length = chunk.len();
            due = u32::try_from(chunk.iter().filter(|byte| **byte == b'\n').count())?;
            let text = std::str::from_utf8(chunk).unwrap_or_default();
            ensure!(!text.contains("\"error\""), "answered {text}");
            output.consume(length);
            answered += due;
        }
        let seconds = start.elapsed().as_secs_f64();
        let cpu = process::cpu_seconds(child.id())? - cpu;
        Ok(Flood {
            per_second: f64::from(count) / seconds,
            cpu_us: cpu * 1e6 / f64::from(count),
        })
    }

    /// Returns the best of several throughput tests, after a short one to warm up.
    pub(crate) fn best_flood(&mut self, kind: Kind, count: u32, rounds: usize) -> Result<Flood> {
        self.flood(kind, count / 5)?;
        let (mut rates, mut costs) = (Sample::default(), Sample::default());
        for _ in 0..rounds {
            let flood = self.flood(kind, count)?;
            rates.push(flood.per_second);
            costs.push(flood.cpu_us);
        }
        Ok(Flood {
            per_second: rates.most(),
            cpu_us: costs.least(),
        })
    }

    /// Closes the agent's input and waits for its exit.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.input.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "the agent ended with {status}");
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // silent-ok: after `end` the process has already exited
        let _ = self.child.kill();
        let _ = self.child.wait(); // silent-ok: as above
    }
}

/// The type of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// `claw.status`.
    Status,
    /// `claw.tool.call` of `echo`.
    Echo,
    /// `claw.tool.call` of `/bin/true`.
    RunTrue,
}

impl Kind {
    fn append(self, ids: &mut Ids, line: &mut Vec<u8>) {
        let (number, id) = ids.next();
        let call = |name: &str, arguments: &str| {
            format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"claw.tool.call\",\"params\":{{\"name\":\"{name}\",\
                 \"arguments\":{arguments},\"context\":{{\"request_id\":\"{id}\",\"identity\":\"bench\"}}}}}}\n"
            )
        };
        let text = match self {
            Self::Status => {
                format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"claw.status\",\"params\":{{}}}}\n"
                )
            }
            Self::Echo => call("echo", &format!("{{\"text\":\"call number {number}\"}}")),
            Self::RunTrue => call("run-true", "{}"),
        };
        line.extend_from_slice(text.as_bytes());
    }
}

/// Request ids: they look random, as clients' ids do, but are the same in every run (splitmix64).
#[derive(Debug, Default)]
struct Ids {
    state: u64,
    count: u64,
}

impl Ids {
    fn next(&mut self) -> (u64, String) {
        self.count += 1;
        let (high, low) = (random(&mut self.state), random(&mut self.state));
        let id = format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xfff,
            low >> 52,
            low & 0xffff_ffff_ffff
        );
        (self.count, id)
    }
}
