//! Many people at once through a `custom` and a `webhook` channel of the real program: each message is answered once, to whom wrote
//! it; the counts add up; memory is bounded.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ADAPTER, OPEN, Platform, listed, manifest, with};
use crate::agent::Agent;
use crate::doors::free;
use crate::serve::Server;

const SECRET: &str = "hook-secret-4711";
/// What the program may take of memory beyond what it has when it begins, MiB.
const GROWS_MIB: u64 = 160;
const REPEAT: &str = "(this may be a repeat)";

/// How long so many messages may take on a busy machine.
fn patience(messages: usize) -> Duration {
    Duration::from_secs(120) + Duration::from_millis(60 * u64::try_from(messages).unwrap())
}

/// `VmHWM` and the like, MiB.
fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn room(n: usize, people: usize) -> String {
    format!("room {}", n % people)
}

/// The number in `You said **m7**.`
fn number(line: &Value) -> Option<usize> {
    line["text"]
        .as_str()?
        .split("**m")
        .nth(1)?
        .split("**")
        .next()?
        .parse()
        .ok()
}

/// Each message once, in its own room; what came twice is marked. How many were marked.
fn judged(lines: &[Value], messages: usize, people: usize) -> usize {
    let mut answers: BTreeMap<usize, usize> = BTreeMap::new();
    let mut marked = 0;
    for line in lines.iter().filter(|line| line["type"] == "send") {
        let n = number(line).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(
            line["conversation"],
            room(n, people),
            "somebody else's answer: {line}"
        );
        if line["text"].as_str().unwrap().starts_with(REPEAT) {
            marked += 1;
        } else {
            *answers.entry(n).or_default() += 1;
        }
    }
    assert_eq!(answers.len(), messages, "every message is answered");
    let twice: Vec<_> = answers.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "answered twice and not marked: {twice:?}");
    marked
}

/// Waits until all is answered and nothing is owed; then what the agent counted.
fn counted(agent: &Agent, name: &str, messages: usize, pid: u32) -> Value {
    let start = Instant::now();
    loop {
        let all = listed(agent);
        let channel = all.into_iter().find(|channel| channel["name"] == name).unwrap();
        if channel["delivered"] == json!(messages) && channel["queued"] == 0 {
            return channel;
        }
        assert!(
            start.elapsed() < patience(messages),
            "{channel} after {:?}, {} MiB",
            start.elapsed(),
            memory(pid, "VmRSS")
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn adds_up(channel: &Value, messages: usize) {
    let is = (
        &channel["accepted"],
        &channel["refused"],
        &channel["dead"],
        &channel["ignored"],
    );
    assert_eq!(
        is,
        (&json!(messages), &json!(0), &json!(0), &json!(0)),
        "{channel}"
    );
}

fn bounded(pid: u32, before: u64) -> u64 {
    let most = memory(pid, "VmHWM");
    assert!(most < before + GROWS_MIB, "{before} MiB became {most} MiB");
    most
}

fn by_a_program(messages: usize, people: usize) -> String {
    let agent = with(&[("one", OPEN)], "", "");
    let one = Platform {
        agent: &agent,
        name: "one",
    };
    let served = Server::start(&agent, &["claw.yaml"]);
    let first = Instant::now();
    while listed_or_none(&agent).is_none() {
        assert!(first.elapsed() < patience(0));
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = memory(served.id(), "VmRSS");
    let mut all = String::new();
    for n in 0..messages {
        let person = format!("person {}", n % people);
        let line = json!({"type": "message", "id": format!("p{n}"), "conversation": room(n, people), "direct": true,
            "sender": {"id": person}, "text": format!("m{n}")});
        all.push_str(&format!("{line}\n"));
    }
    let start = Instant::now();
    std::fs::write(agent.path("one.in"), all).unwrap();
    let channel = counted(&agent, "one", messages, served.id());
    let took = start.elapsed();
    adds_up(&channel, messages);
    let lines = one.got();
    let marked = judged(&lines, messages, people);
    let accepted = lines.iter().filter(|line| line["type"] == "accepted").count();
    assert_eq!(accepted, messages, "each is told to be durable, once");
    let most = bounded(served.id(), before);
    drop(served);
    format!(
        "custom: {messages} messages of {people} people in {} ms, {marked} marked as a repeat, {before} MiB before, {most} MiB at most",
        took.as_millis()
    )
}

fn listed_or_none(agent: &Agent) -> Option<Value> {
    let output = agent
        .clawk(["channels", "--agent", "tested", "--format", "json"])
        .output()
        .unwrap();
    let listed: Value = serde_json::from_slice(&output.stdout).ok()?;
    let channels = listed["channels"].as_array()?.clone();
    channels
        .iter()
        .all(|channel| channel["state"] == "ready")
        .then(|| channels[0].clone())
}

/// Where answers are POSTed to.
struct Receiver {
    address: String,
    lines: Arc<Mutex<Vec<Value>>>,
    over: Arc<AtomicBool>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (lines, over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (kept, ended) = (Arc::clone(&lines), Arc::clone(&over));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (kept, stream) = (Arc::clone(&kept), stream.unwrap());
                std::thread::spawn(move || serve(stream, &kept));
            }
        });
        Self { address, lines, over }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _woken = TcpStream::connect(&self.address);
    }
}

/// One request, or none when the connection ends: its headers in lower case, and its body.
fn request(input: &mut BufReader<TcpStream>) -> Option<(Vec<String>, Vec<u8>)> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.trim().is_empty() {
            break;
        }
        headers.push(line.trim().to_lowercase());
    }
    let length = headers
        .iter()
        .find_map(|line| line.strip_prefix("content-length:"))
        .map_or(0, |length| length.trim().parse().unwrap());
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    Some((headers, body))
}

fn serve(stream: TcpStream, kept: &Mutex<Vec<Value>>) {
    let mut out = stream.try_clone().unwrap();
    let mut input = BufReader::new(stream);
    while let Some((headers, body)) = request(&mut input) {
        assert!(
            headers
                .iter()
                .any(|line| line.starts_with("x-clawk-signature: sha256=")),
            "{headers:?}"
        );
        kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
        if out.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_err() {
            return;
        }
    }
}

/// One person's connection, which is made anew where it ends.
struct Person {
    address: String,
    open: Option<(TcpStream, BufReader<TcpStream>)>,
}

impl Person {
    /// The status; none: the connection broke, and nobody knows.
    fn post(&mut self, body: &str) -> Option<u16> {
        if self.open.is_none() {
            let stream = TcpStream::connect(&self.address).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
            let input = BufReader::new(stream.try_clone().unwrap());
            self.open = Some((stream, input));
        }
        let (out, input) = self.open.as_mut()?;
        let asked = format!(
            "POST /channels/two HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {SECRET}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answered = out.write_all(asked.as_bytes()).ok().and_then(|()| request(input));
        let status = answered.and_then(|(headers, _)| headers.first()?.split(' ').nth(1)?.parse().ok());
        if status.is_none() {
            self.open = None;
        }
        status
    }
}

fn by_http(messages: usize, people: usize) -> String {
    let receiver = Receiver::start();
    let agent = Agent::new();
    let text = manifest(&[], "").replace(
        "  channels:\n",
        "  channels:\n    - inline: { name: two, type: webhook, transport: webhook, auth: { secret_ref: HOOK }, access_control: { mode: open } }\n",
    );
    std::fs::write(agent.path("claw.yaml"), text).unwrap();
    std::fs::write(agent.path("adapter.py"), ADAPTER).unwrap();
    let config = format!(
        "[secrets_store]\nfile = \"secrets.toml\"\n[channels.two]\nbase_url = \"http://{}\"\n",
        receiver.address
    );
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    std::fs::write(agent.path("secrets.toml"), format!("HOOK = \"{SECRET}\"\n")).unwrap();
    std::fs::set_permissions(agent.path("secrets.toml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let address = free();
    let served = Server::start(&agent, &["claw.yaml", "--listen", &address]);
    let first = Instant::now();
    while listed_or_none(&agent).is_none() {
        assert!(first.elapsed() < patience(0));
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = memory(served.id(), "VmRSS");
    let (start, again) = (Instant::now(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for person in 0..people {
            let (address, again) = (address.clone(), &again);
            std::thread::Builder::new()
                .stack_size(256 << 10)
                .spawn_scoped(scope, move || {
                    let mut door = Person { address, open: None };
                    for n in (person..messages).step_by(people) {
                        let body =
                            json!({"id": format!("h{n}"), "conversation": room(n, people), "direct": true,
                            "sender": {"id": format!("person {person}")}, "text": format!("m{n}")})
                            .to_string();
                        // A platform brings again what was not taken.
                        while door.post(&body) != Some(202) {
                            again.fetch_add(1, Ordering::SeqCst);
                            assert!(start.elapsed() < patience(messages), "m{n} is not taken");
                            std::thread::sleep(Duration::from_millis(200));
                        }
                    }
                })
                .unwrap();
        }
    });
    let said = start.elapsed();
    let channel = counted(&agent, "two", messages, served.id());
    let took = start.elapsed();
    adds_up(&channel, messages);
    let marked = judged(&receiver.lines.lock().unwrap(), messages, people);
    let most = bounded(served.id(), before);
    drop(served);
    format!(
        "webhook: {messages} messages of {people} people taken in {} ms, answered in {} ms, {} brought again, {marked} marked as a \
         repeat, {before} MiB before, {most} MiB at most",
        said.as_millis(),
        took.as_millis(),
        again.load(Ordering::SeqCst)
    )
}

#[test]
fn a_thousand_messages_of_fifty_people_at_once_through_a_program() {
    println!("{}", by_a_program(1_000, 50));
}

#[test]
fn a_thousand_messages_of_fifty_people_at_once_over_http() {
    println!("{}", by_http(1_000, 50));
}

#[test]
#[ignore = "takes minutes; `cargo xtask soak` or `cargo nextest run --run-ignored only` runs it"]
fn ten_thousand_messages_of_two_hundred_people_at_once_through_a_program() {
    println!("{}", by_a_program(10_000, 200));
}

#[test]
#[ignore = "takes minutes; `cargo xtask soak` or `cargo nextest run --run-ignored only` runs it"]
fn ten_thousand_messages_of_two_hundred_people_at_once_over_http() {
    println!("{}", by_http(10_000, 200));
}
