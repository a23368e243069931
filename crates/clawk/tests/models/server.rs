//! A model's server on loopback: HTTP by hand, rules of a vendor behind it, and a log that all servers of a test share.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::story::StoryPlace;

/// What every vendor is sent as its key.
pub(crate) const KEY: &str = "key-of-the-tests";

#[derive(Debug)]
pub(crate) struct ModelRequest {
    pub(crate) path: String,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// An answer of a server that takes a request.
#[derive(Debug)]
pub(crate) struct ModelReply {
    /// None: not a question to the model, or one for a summary.
    pub(crate) place: Option<StoryPlace>,
    pub(crate) input_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) content_type: &'static str,
    pub(crate) text: String,
}

/// A refusal, as the vendor words it.
#[derive(Debug)]
pub(crate) struct ModelRefusal {
    pub(crate) status: u16,
    pub(crate) text: String,
}

/// What a vendor takes, refuses and answers.
pub(crate) trait VendorRules: Send {
    fn name(&self) -> &'static str;
    fn answer(&mut self, request: &ModelRequest) -> Result<ModelReply, ModelRefusal>;
    /// What the vendor says when it has too much to do.
    fn overloaded(&self) -> ModelRefusal {
        ModelRefusal {
            status: 503,
            text: r#"{"error":{"message":"The server is overloaded","type":"server_error"}}"#.to_owned(),
        }
    }
}

/// One request and what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) vendor: &'static str,
    pub(crate) outcome: ExchangeOutcome,
    pub(crate) place: Option<(u32, u32)>,
    pub(crate) input_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) output_tokens: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExchangeOutcome {
    /// Also: looked up.
    Answered,
    Refused(String),
    /// By the test: overloaded, or cut in the middle.
    Faulted,
}

/// What all servers of a test share.
#[derive(Debug, Default)]
pub(crate) struct ExchangeLog {
    pub(crate) exchanges: Vec<Exchange>,
    /// Who fails at which task and step.
    pub(crate) faults: BTreeSet<(&'static str, u32, u32)>,
}

pub(crate) type SharedLog = Arc<Mutex<ExchangeLog>>;

/// A server that listens until it is dropped.
pub(crate) struct ModelServer {
    pub(crate) port: u16,
    ended: Arc<AtomicBool>,
}

impl ModelServer {
    pub(crate) fn start(rules: Box<dyn VendorRules>, log: &SharedLog) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ended = Arc::new(AtomicBool::new(false));
        let (rules, log, over) = (Arc::new(Mutex::new(rules)), Arc::clone(log), Arc::clone(&ended));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (rules, log) = (Arc::clone(&rules), Arc::clone(&log));
                let stream = stream.unwrap();
                std::thread::spawn(move || {
                    // A client that goes away ends its connection.
                    let _gone = serve(stream, &rules, &log);
                });
            }
        });
        Self { port, ended }
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn serve(
    mut stream: TcpStream,
    rules: &Mutex<Box<dyn VendorRules>>,
    log: &Mutex<ExchangeLog>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let Some(request) = read_request(&mut reader)? else {
            return Ok(());
        };
        let mut rules = rules.lock().unwrap();
        let (exchange, status, kind, text) = exchange(rules.as_mut(), &request, log);
        drop(rules);
        let is_cut = exchange.outcome == ExchangeOutcome::Faulted && status == 200;
        log.lock().unwrap().exchanges.push(exchange);
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all(head.as_bytes())?;
        if is_cut {
            stream.write_all(&text.as_bytes()[..text.len() / 2])?;
            return stream.shutdown(std::net::Shutdown::Both);
        }
        stream.write_all(text.as_bytes())?;
        stream.flush()?;
    }
}

pub(crate) fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<ModelRequest>> {
    let mut head = String::new();
    loop {
        if reader.read_line(&mut head)? == 0 {
            return Ok(None);
        }
        if head.ends_with("\r\n\r\n") {
            break;
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let head = head.to_lowercase();
    let length = head.split("content-length: ").nth(1);
    let length = length.and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(ModelRequest { path, head, body }))
}

fn exchange(
    rules: &mut dyn VendorRules,
    request: &ModelRequest,
    log: &Mutex<ExchangeLog>,
) -> (Exchange, u16, &'static str, String) {
    let vendor = rules.name();
    let mut exchange = Exchange {
        vendor,
        outcome: ExchangeOutcome::Answered,
        place: None,
        input_tokens: 0,
        cached_tokens: 0,
        output_tokens: 0,
    };
    // Whether it can be reached is asked without a key.
    if request.body.is_null() && !request.head.contains(KEY) {
        return (exchange, 404, "application/json", "{}".to_owned());
    }
    if !request.head.contains(KEY) {
        exchange.outcome = ExchangeOutcome::Refused("no key".to_owned());
        return (
            exchange,
            401,
            "application/json",
            r#"{"error":{"message":"no key"}}"#.to_owned(),
        );
    }
    let reply = match rules.answer(request) {
        Ok(reply) => reply,
        Err(refusal) => {
            exchange.outcome = ExchangeOutcome::Refused(refusal.text.clone());
            return (exchange, refusal.status, "application/json", refusal.text);
        }
    };
    exchange.input_tokens = reply.input_tokens;
    exchange.cached_tokens = reply.cached_tokens;
    exchange.output_tokens = reply.output_tokens;
    exchange.place = reply.place.as_ref().map(|place| (place.task, place.step));
    let faults = &log.lock().unwrap().faults;
    match exchange.place {
        Some((task, step)) if faults.contains(&(vendor, task, step)) => {
            exchange.outcome = ExchangeOutcome::Faulted;
            if task % 2 == 0 {
                return (exchange, 200, reply.content_type, reply.text);
            }
            let refusal = rules.overloaded();
            (exchange, refusal.status, "application/json", refusal.text)
        }
        Some(_) | None => (exchange, 200, reply.content_type, reply.text),
    }
}

/// A cache of prompts by their common beginning, in units of so many tokens, from a least length on.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    pub(crate) least_tokens: u64,
    pub(crate) unit_tokens: u64,
    seen: Vec<String>,
}

/// Earlier prompts that a cache of prefixes holds.
const CACHED_PROMPTS: usize = 4;

impl PrefixCache {
    pub(crate) const fn new(least_tokens: u64, unit_tokens: u64) -> Self {
        Self {
            least_tokens,
            unit_tokens,
            seen: Vec::new(),
        }
    }

    /// Tokens of the prompt, and how many of them are read from the cache.
    pub(crate) fn count(&mut self, prompt: String) -> (u64, u64) {
        let common = |seen: &String| {
            let same = seen
                .bytes()
                .zip(prompt.bytes())
                .take_while(|(one, two)| one == two);
            same.count()
        };
        let most = self.seen.iter().map(common).max().unwrap_or(0);
        let cached = tokens_of(most) / self.unit_tokens * self.unit_tokens;
        let cached = if cached < self.least_tokens { 0 } else { cached };
        let all = tokens_of(prompt.len());
        if self.seen.len() == CACHED_PROMPTS {
            self.seen.remove(0);
        }
        self.seen.push(prompt);
        (all, cached)
    }
}

/// The stand-ins' tokenizer: four bytes are a token.
pub(crate) fn tokens_of(bytes: usize) -> u64 {
    u64::try_from(bytes / 4).unwrap()
}

/// The members of an object that are none of these.
pub(crate) fn unknown_member(object: &Value, known: &[&str]) -> Option<String> {
    let members = object.as_object()?;
    members
        .keys()
        .find(|name| !known.contains(&name.as_str()))
        .cloned()
}
