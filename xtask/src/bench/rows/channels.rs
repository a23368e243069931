//! Measures the cost of a channel message, from the platform's request to the answer, compared with a bare HTTP echo; and the cost
//! of ten idle channels.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::super::Size;
use super::super::process::{cpu_seconds, rss_mib};
use super::super::programs::Programs;
use super::super::sample::Sample;
use super::super::table::{Goal, Table};
use crate::run::{command, output};

/// Number of messages, sent one after the other, each in one of several conversations.
const MESSAGES: usize = 2_000;
const MESSAGES_QUICK: usize = 400;
const CONVERSATIONS: usize = 50;
/// Number of connected idle channels, and how long they are watched.
const CHANNELS: usize = 10;
const WATCHED: Duration = Duration::from_secs(20);
const WATCHED_QUICK: Duration = Duration::from_secs(5);
/// Time limit for an agent to connect.
const PATIENCE: Duration = Duration::from_secs(30);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// A bot token of the usual form.
const BOT: &str = "123456:AAbench-token_x";

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let quick = size.starts < 30;
    let messages = if quick { MESSAGES_QUICK } else { MESSAGES };
    let mut library = command(&programs.library);
    let echo = output(
        library
            .args(["transport", "echo:http", &messages.to_string()])
            .arg(folder),
    )?;
    let echo_us: f64 = echo.split_whitespace().next().context("no number")?.parse()?;
    let took = answers(programs, folder, messages)?;
    for (share, name) in [(0.5, "median"), (0.99, "p99")] {
        table.add(
            format!("a webhook's message until its answer, with a model that answers at once, {name}"),
            (took.quantile(share), "ms"),
            ("a bare echo over http, ms".to_owned(), echo_us / 1000.0),
            Goal::None,
        );
    }
    let watched = if quick { WATCHED_QUICK } else { WATCHED };
    let (alone_mib, alone_cpu) = idle(programs, folder, 0, watched)?;
    let (ten_mib, ten_cpu) = idle(programs, folder, CHANNELS, watched)?;
    table.add(
        format!("resident memory of {CHANNELS} connected channels on which nobody writes"),
        (ten_mib - alone_mib, "MiB"),
        ("the agent without them, MiB".to_owned(), alone_mib),
        Goal::None,
    );
    table.add(
        format!("CPU time in a second of {CHANNELS} such channels (Telegram, long polling)"),
        ((ten_cpu - alone_cpu) * 1000.0, "ms"),
        ("a core, ms".to_owned(), 1000.0),
        Goal::None,
    );
    Ok(())
}

/// Milliseconds from each message's request to the answer, for which the request waits.
fn answers(programs: &Programs, folder: &Path, messages: usize) -> Result<Sample> {
    let channel = "    - inline: { name: hook, type: webhook, transport: webhook, auth: { secret_ref: HOOK }, access_control: { mode: open } }\n";
    let served = Served::start(programs, folder, "answers", channel, "")?;
    let mut wire = TcpStream::connect(&served.address)?;
    wire.set_read_timeout(Some(PATIENCE))?;
    wire.set_nodelay(true)?;
    let mut reader = BufReader::new(wire.try_clone()?);
    let mut took = Sample::default();
    for n in 0..messages {
        let body =
            json!({"id": format!("m{n}"), "conversation": format!("c{}", n % CONVERSATIONS), "direct": true,
            "sender": {"id": "ann"}, "text": "hello"})
            .to_string();
        let begun = Instant::now();
        write!(
            wire,
            "POST /channels/hook?wait=25 HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            served.address,
            body.len()
        )?;
        let answer = answer(&mut reader)?;
        took.push(begun.elapsed().as_secs_f64() * 1000.0);
        if answer.get("text").and_then(Value::as_str).is_none() {
            bail!("a message was not answered: {answer}");
        }
    }
    Ok(took)
}

fn answer(reader: &mut impl std::io::BufRead) -> Result<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

/// Memory in MiB, and CPU seconds per second, of an agent with this many idle channels.
fn idle(programs: &Programs, folder: &Path, channels: usize, watched: Duration) -> Result<(f64, f64)> {
    let platform = TcpListener::bind("127.0.0.1:0")?;
    let base = format!("http://{}", platform.local_addr()?);
    std::thread::spawn(move || {
        for stream in platform.incoming().flatten() {
            std::thread::spawn(move || bot_api(stream));
        }
    });
    let (mut declared, mut config) = (String::new(), String::new());
    for n in 0..channels {
        writeln!(
            declared,
            "    - inline: {{ name: bot{n}, type: telegram, transport: polling, auth: {{ secret_ref: BOT }}, access_control: {{ mode: open }} }}"
        )?;
        writeln!(config, "[channels.bot{n}]\nbase_url = '{base}'")?;
    }
    let name = format!("idle-{channels}");
    let served = Served::start(programs, folder, &name, &declared, &config)?;
    let begun = Instant::now();
    while channels > 0 && served.ready(programs, folder, &name)? < channels {
        if begun.elapsed() > PATIENCE {
            bail!("the channels do not connect");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_secs(2));
    let before = cpu_seconds(served.child.id())?;
    std::thread::sleep(watched);
    let after = cpu_seconds(served.child.id())?;
    Ok((
        rss_mib(served.child.id())?,
        (after - before) / watched.as_secs_f64(),
    ))
}

/// A platform without messages: it knows the bot, and answers each poll at its timeout.
fn bot_api(mut stream: TcpStream) {
    let Ok(reading) = stream.try_clone() else { return };
    let mut reader = BufReader::new(reading);
    loop {
        let (mut first, mut length) = (String::new(), 0_usize);
        match reader.read_line(&mut first) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let result = if first.contains("/getMe ") {
            json!({"id": 1, "is_bot": true, "first_name": "Bench", "username": "BenchBot"})
        } else if first.contains("/getUpdates ") {
            let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
            let wait = asked.get("timeout").and_then(Value::as_u64).unwrap_or(1);
            std::thread::sleep(Duration::from_secs(wait));
            json!([])
        } else {
            json!(true)
        };
        let text = json!({"ok": true, "result": result}).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        if stream.write_all((head + &text).as_bytes()).is_err() {
            return;
        }
    }
}

/// A `clawk serve` process with these channels. It is killed when this value is dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(programs: &Programs, folder: &Path, name: &str, channels: &str, config: &str) -> Result<Self> {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("claw.yaml"), MANIFEST.replace("CHANNELS", channels))?;
        std::fs::write(
            folder.join("model.yaml"),
            "scenes: [{ steps: [{ say: done }] }]\n",
        )?;
        std::fs::write(
            folder.join("clawk.toml"),
            format!("state = 'state'\n[http]\nrequests_per_second = 0\n{config}"),
        )?;
        output(command(&programs.clawk).args(["trust", "."]).current_dir(&folder))?;
        let mut serve = command(&programs.clawk);
        serve
            .args(["serve", "claw.yaml", "--listen", "127.0.0.1:0"])
            .current_dir(&folder)
            .env("HOOK", TOKEN)
            .env("BOT", BOT);
        let mut child = serve.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("no pipe")?).lines();
        let address = lines.by_ref().find_map(|line| {
            let line = line.ok()?; // silent-ok: the end of the output is no address
            line.starts_with("serving ").then_some(())?;
            line.rsplit_once("://").map(|(_, address)| address.to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.context("the agent does not say where it listens")?;
        Ok(Self { child, address })
    }

    /// Returns the number of connected channels.
    fn ready(&self, programs: &Programs, folder: &Path, name: &str) -> Result<usize> {
        let folder = folder.join(name);
        let mut asked = command(&programs.clawk);
        asked
            .args(["channels", "--state", "state", "--format", "json"])
            .current_dir(&folder);
        let told: Value = serde_json::from_str(&output(&mut asked)?)?;
        let all = told.get("channels").and_then(Value::as_array);
        let ready = all
            .into_iter()
            .flatten()
            .filter(|channel| channel.get("state").and_then(Value::as_str) == Some("ready"));
        Ok(ready.count())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // silent-ok: the process may have exited by itself
        let _killed = self.child.kill();
        let _waited = self.child.wait(); // silent-ok: the same
    }
}

const MANIFEST: &str = r#"claw: "0.3.0"
kind: Claw
metadata:
  name: bench
  annotations: { heartbeat_interval_ms: 3600000 }
spec:
  identity:
    inline: { personality: Answers whoever measures., autonomy: autonomous }
  providers:
    - inline: { name: scripted, protocol: custom, endpoint: "script:./model.yaml", model: scripted, auth: { type: none } }
  channels:
    - inline: { name: terminal, type: cli, transport: stdio, auth: { secret_ref: NONE } }
CHANNELS"#;
