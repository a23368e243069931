//! Several agents at once over their standard streams. All their messages arrive on one channel, and every wait has a deadline.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::run::{command, output};

/// Time limit for one answer, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Capacity of the channel, in lines.
const WAITING: usize = 4_096;

/// The agents. They are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Several {
    agents: Vec<(Running, ChildStdin)>,
    lines: Receiver<(usize, Value)>,
    tell: SyncSender<(usize, Value)>,
}

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Returns the process id.
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _killed = self.0.kill(); // silent-ok: it has ended by itself then
        let _waited = self.0.wait(); // silent-ok: the same
    }
}

/// Makes a command that runs `clawk` with these arguments in a folder. All its state is written into that folder.
pub(crate) fn clawk(program: &Path, folder: &Path, words: &[&str]) -> Command {
    let mut command = command(program);
    command
        .args(words)
        .current_dir(folder)
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .env("XDG_STATE_HOME", folder.join("elsewhere"));
    command
}

/// Marks the configuration of a folder as trusted.
///
/// # Errors
/// clawk refuses.
pub(crate) fn trust(program: &Path, folder: &Path) -> Result<()> {
    output(&mut clawk(program, folder, &["trust", "."])).map(drop)
}

/// Starts a server and waits until a line of its standard error contains `ready`.
///
/// # Errors
/// The server ended before.
pub(crate) fn ready(command: &mut Command, ready: &str) -> Result<Running> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stderr.take().context("no pipe")?).lines();
    let running = Running(child);
    let (tell, told) = mpsc::sync_channel(1);
    let wanted = ready.to_owned();
    std::thread::spawn(move || {
        let (mut before, mut is_ready) = (String::new(), false);
        for line in lines.by_ref().map_while(Result::ok) {
            is_ready = line.contains(&wanted);
            if is_ready {
                break;
            }
            before = before + &line + "\n";
        }
        let _told = tell.send((is_ready, before)); // silent-ok: nobody waits any more
        lines.map_while(Result::ok).for_each(drop);
    });
    let (is_ready, before) = told.recv_timeout(PATIENCE).context("a server is not ready")?;
    if !is_ready {
        bail!("a server ended: {before}");
    }
    Ok(running)
}

impl Several {
    /// Makes an empty set of agents.
    pub(crate) fn new() -> Self {
        let (tell, lines) = mpsc::sync_channel(WAITING);
        Self {
            agents: Vec::new(),
            lines,
            tell,
        }
    }

    /// Starts an agent, initializes it and returns its number.
    ///
    /// # Errors
    /// The agent does not answer.
    pub(crate) fn add(&mut self, command: &mut Command) -> Result<usize> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (number, tell) = (self.agents.len(), self.tell.clone());
        self.agents.push((Running(child), input.context("no pipe")?));
        let output = BufReader::new(output.context("no pipe")?);
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(message) = serde_json::from_str(&line) else {
                    return; // silent-ok: whoever waits for an answer sees that none comes
                };
                if tell.send((number, message)).is_err() {
                    return; // silent-ok: nobody reads any more
                }
            }
        });
        self.say(
            number,
            &json!({ "jsonrpc": "2.0", "id": "hello", "method": "claw.initialize", "params": {
                "protocolVersion": "0.3.0", "clientInfo": { "name": "bench", "version": "1" }, "capabilities": { "swarm": {} },
                "manifest": { "kind": "Claw", "metadata": { "name": "bench" } },
            } }),
        )?;
        loop {
            let (from, message) = self.hear()?;
            if from == number && message.get("id").and_then(Value::as_str) == Some("hello") {
                message
                    .get("result")
                    .with_context(|| format!("answered {message}"))?;
                return Ok(number);
            }
        }
    }

    /// Returns the process id of an agent.
    pub(crate) fn pid(&self, number: usize) -> Result<u32> {
        let (running, _) = self.agents.get(number).context("no such agent")?;
        Ok(running.pid())
    }

    /// Sends a message to an agent.
    ///
    /// # Errors
    /// The agent has ended.
    pub(crate) fn say(&mut self, number: usize, message: &Value) -> Result<()> {
        let (_, input) = self.agents.get_mut(number).context("no such agent")?;
        Ok(writeln!(input, "{message}")?)
    }

    /// Returns the next message of any agent, with the agent's number.
    ///
    /// # Errors
    /// No message arrives in time, or the message is an error.
    pub(crate) fn hear(&self) -> Result<(usize, Value)> {
        let (number, message) = self
            .lines
            .recv_timeout(PATIENCE)
            .context("no agent says anything")?;
        if message.get("error").is_some() {
            bail!("answered {message}");
        }
        Ok((number, message))
    }
}
