//! A server whose every answer has another shape: as servers and proxies really write them, whole, broken, cut and silent. No turn
//! outlasts the limits, and what is booked is what the server counted.

use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::claw::Conversation;
use crate::server::{ModelRequest, read_request, tokens_of};
use crate::story::file_name;

/// The limits of the provider under test.
pub(crate) const SETTINGS: &str = "\
[providers.any]\nfirst_byte_timeout_ms = 700\nidle_timeout_ms = 700\ntotal_timeout_ms = 4000\nretry_time_ms = 1000\n\
[budgets.day]\ntokens = 1_000_000_000\ncost_microusd = 100_000_000_000\n\
[prices.shapes]\ninput = 2_000_000\noutput = 8_000_000\ncached_input = 200_000\n";
/// No turn takes longer: five answers, three attempts each, at their limits, with the waits between them.
const TURN_LIMIT: Duration = Duration::from_secs(60);

/// The shapes of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerShape {
    Plain,
    CallsAtOneIndex,
    CallsWithoutIndex,
    EmptyArgumentsFirst,
    WholeJson,
    JsonLines,
    CarriageReturns,
    ByteOrderMark,
    NoBlankLineAtEnd,
    NoDone,
    HalfSurrogates,
    UsageInEveryChunk,
    BytePieces,
    Keepalives,
    NoUsage,
    // What is no answer.
    ErrorFirst,
    ErrorBehindWords,
    FinishedWithError,
    ContentFilter,
    DoneAlone,
    NoWords,
    CutInTheMiddle,
    NotJson,
    SilentAtOnce,
    SilentInTheMiddle,
    Overloaded,
    LoginPage,
}

const SHAPES: [AnswerShape; 27] = [
    AnswerShape::Plain,
    AnswerShape::CallsAtOneIndex,
    AnswerShape::CallsWithoutIndex,
    AnswerShape::EmptyArgumentsFirst,
    AnswerShape::WholeJson,
    AnswerShape::JsonLines,
    AnswerShape::CarriageReturns,
    AnswerShape::ByteOrderMark,
    AnswerShape::NoBlankLineAtEnd,
    AnswerShape::NoDone,
    AnswerShape::HalfSurrogates,
    AnswerShape::UsageInEveryChunk,
    AnswerShape::BytePieces,
    AnswerShape::Keepalives,
    AnswerShape::NoUsage,
    AnswerShape::ErrorFirst,
    AnswerShape::ErrorBehindWords,
    AnswerShape::FinishedWithError,
    AnswerShape::ContentFilter,
    AnswerShape::DoneAlone,
    AnswerShape::NoWords,
    AnswerShape::CutInTheMiddle,
    AnswerShape::NotJson,
    AnswerShape::SilentAtOnce,
    AnswerShape::SilentInTheMiddle,
    AnswerShape::Overloaded,
    AnswerShape::LoginPage,
];

/// What the server counted, and how often each shape was sent.
#[derive(Debug, Default)]
pub(crate) struct ServerCount {
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) answers: u64,
    seed: u64,
}

impl ServerCount {
    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    fn shape(&mut self) -> AnswerShape {
        // Half of all answers are whole, so that conversations go on.
        let whole = self.random().is_multiple_of(2);
        let shapes = if whole { &SHAPES[..15] } else { &SHAPES[..] };
        let at = usize::try_from(self.random()).unwrap_or(0) % shapes.len();
        shapes[at]
    }
}

struct ShapeServer {
    port: u16,
    count: Arc<Mutex<ServerCount>>,
    ended: Arc<AtomicBool>,
}

impl ShapeServer {
    fn start(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let count = Arc::new(Mutex::new(ServerCount {
            seed,
            ..ServerCount::default()
        }));
        let ended = Arc::new(AtomicBool::new(false));
        let (all, over) = (Arc::clone(&count), Arc::clone(&ended));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (all, stream) = (Arc::clone(&all), stream.unwrap());
                std::thread::spawn(move || {
                    // A client that goes away ends its connection.
                    let _gone = serve(stream, &all);
                });
            }
        });
        Self { port, count, ended }
    }
}

impl Drop for ShapeServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn serve(mut stream: TcpStream, count: &Mutex<ServerCount>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let Some(request) = read_request(&mut reader)? else {
        return Ok(());
    };
    if request.body.is_null() {
        return stream.write_all(b"HTTP/1.1 404 X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}");
    }
    let reply = ShapedReply::make(&request, &mut count.lock().unwrap());
    let head = format!(
        "HTTP/1.1 {} X\r\nconnection: close\r\ncontent-type: {}\r\n",
        reply.status, reply.kind
    );
    match reply.ends {
        ReplyEnd::Silent if reply.body.is_empty() => {}
        // Of an unknown length: its end is the connection's.
        ReplyEnd::Cut | ReplyEnd::Silent | ReplyEnd::Whole if reply.status == 200 => {
            stream.write_all(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes())?;
            for piece in reply.body.chunks(reply.piece_bytes) {
                stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
                stream.write_all(piece)?;
                stream.write_all(b"\r\n")?;
            }
            if reply.ends == ReplyEnd::Whole {
                stream.write_all(b"0\r\n\r\n")?;
            }
        }
        ReplyEnd::Cut | ReplyEnd::Silent | ReplyEnd::Whole => {
            stream.write_all(format!("{head}content-length: {}\r\n\r\n", reply.body.len()).as_bytes())?;
            stream.write_all(&reply.body)?;
        }
    }
    stream.flush()?;
    if reply.ends == ReplyEnd::Silent {
        // Until the client gives up.
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut reader, &mut rest)?;
    }
    stream.shutdown(Shutdown::Both)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplyEnd {
    Whole,
    Cut,
    Silent,
}

struct ShapedReply {
    status: u16,
    kind: &'static str,
    body: Vec<u8>,
    piece_bytes: usize,
    ends: ReplyEnd,
}

/// What the model says: words, or calls.
fn said(request: &ModelRequest, number: u64) -> (Option<String>, Vec<(String, String)>) {
    let messages = request.body["messages"].as_array().cloned().unwrap_or_default();
    let user = messages
        .iter()
        .rposition(|message| message["role"] == "user")
        .unwrap_or(0);
    let results = messages
        .iter()
        .skip(user)
        .filter(|message| message["role"] == "tool")
        .count();
    if results >= 4 {
        return (
            Some(format!("That is all, for the {number}th time. ").repeat(8)),
            Vec::new(),
        );
    }
    let read = |at: usize| {
        let file = file_name(u32::try_from(results + at).unwrap());
        (format!("call_{number}_{at}"), json!({ "path": file }).to_string())
    };
    (None, vec![read(0), read(1)])
}

impl ShapedReply {
    fn make(request: &ModelRequest, count: &mut ServerCount) -> Self {
        let shape = count.shape();
        count.answers += 1;
        let (words, calls) = said(request, count.answers);
        let body = &request.body;
        let input = tokens_of(body["messages"].to_string().len() + body["tools"].to_string().len());
        let written = words.as_ref().map_or(0, String::len)
            + calls
                .iter()
                .map(|(_, arguments)| arguments.len() + "file-read".len())
                .sum::<usize>();
        let output = tokens_of(written);
        let usage =
            json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output });
        let chunks = chunks(shape, words.as_deref(), &calls, &usage);
        let mut reply = Self {
            status: 200,
            kind: "text/event-stream",
            body: framed(shape, &chunks).into_bytes(),
            piece_bytes: if shape == AnswerShape::BytePieces { 7 } else { 500 },
            ends: ReplyEnd::Whole,
        };
        let (mut booked_input, mut booked_output) = (input, output);
        match shape {
            AnswerShape::Overloaded => {
                reply.status = 503;
                reply.body = br#"{"error":{"message":"overloaded","type":"server_error"}}"#.to_vec();
                (booked_input, booked_output) = (0, 0);
            }
            AnswerShape::LoginPage => {
                reply.kind = "text/html";
                reply.body = b"<!DOCTYPE html><html><body>Please log in.</body></html>".to_vec();
                booked_output = 0;
            }
            AnswerShape::ErrorFirst | AnswerShape::DoneAlone | AnswerShape::NoWords => booked_output = 0,
            AnswerShape::WholeJson => {
                reply.kind = "application/json";
                reply.body = whole(words.as_deref(), &calls, &usage).to_string().into_bytes();
            }
            AnswerShape::SilentAtOnce => {
                reply.body.clear();
                reply.ends = ReplyEnd::Silent;
                booked_output = 0;
            }
            AnswerShape::CutInTheMiddle | AnswerShape::SilentInTheMiddle => {
                reply.body.truncate(reply.body.len() / 2);
                reply.ends = if shape == AnswerShape::CutInTheMiddle {
                    ReplyEnd::Cut
                } else {
                    ReplyEnd::Silent
                };
                booked_output /= 2;
            }
            AnswerShape::NotJson => {
                reply.body = b"data: {\"choices\":[{\"delta\":{\"content\":\n\n".to_vec();
                booked_output = 0;
            }
            AnswerShape::ErrorBehindWords | AnswerShape::FinishedWithError | AnswerShape::ContentFilter => {}
            AnswerShape::Plain
            | AnswerShape::CallsAtOneIndex
            | AnswerShape::CallsWithoutIndex
            | AnswerShape::EmptyArgumentsFirst
            | AnswerShape::JsonLines
            | AnswerShape::CarriageReturns
            | AnswerShape::ByteOrderMark
            | AnswerShape::NoBlankLineAtEnd
            | AnswerShape::NoDone
            | AnswerShape::HalfSurrogates
            | AnswerShape::UsageInEveryChunk
            | AnswerShape::BytePieces
            | AnswerShape::Keepalives
            | AnswerShape::NoUsage => {}
        }
        count.input_tokens += booked_input;
        count.output_tokens += booked_output;
        reply
    }
}

fn whole(words: Option<&str>, calls: &[(String, String)], usage: &Value) -> Value {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(id, arguments)| json!({ "id": id, "type": "function", "function": { "name": "file-read", "arguments": arguments } }))
        .collect();
    let stop = if calls.is_empty() { "stop" } else { "tool_calls" };
    let mut message = json!({ "role": "assistant", "content": words });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    json!({ "object": "chat.completion", "model": "m", "choices": [{ "index": 0, "message": message, "finish_reason": stop }], "usage": usage })
}

/// The chunks of an answer, as JSON.
fn chunks(shape: AnswerShape, words: Option<&str>, calls: &[(String, String)], usage: &Value) -> Vec<String> {
    let mut deltas = vec![json!({ "role": "assistant", "content": "" })];
    if let Some(words) = words {
        let (one, two) = words.split_at(words.len() / 2);
        deltas.extend([one, two].map(|part| json!({ "content": part })));
    }
    let mut tails = Vec::new();
    for (at, (id, arguments)) in calls.iter().enumerate() {
        let index = match shape {
            AnswerShape::CallsAtOneIndex => json!(0),
            AnswerShape::CallsWithoutIndex => Value::Null,
            _ => json!(at),
        };
        let split = shape == AnswerShape::Plain || shape == AnswerShape::EmptyArgumentsFirst;
        let head = if split { "" } else { arguments };
        let call = json!({ "index": index, "id": id, "type": "function", "function": { "name": "file-read", "arguments": head } });
        deltas.push(json!({ "tool_calls": [call] }));
        if split {
            tails.push(json!({ "tool_calls": [{ "index": at, "function": { "arguments": arguments } }] }));
        }
    }
    deltas.extend(tails);
    let stop = match (shape, calls.is_empty()) {
        (AnswerShape::FinishedWithError, _) => "error",
        (AnswerShape::ContentFilter, _) => "content_filter",
        (_, true) => "stop",
        (_, false) => "tool_calls",
    };
    let chunk = |delta: &Value, stop: Option<&str>| {
        let mut chunk = json!({ "object": "chat.completion.chunk", "model": "m", "choices": [{ "index": 0, "delta": delta, "finish_reason": stop }] });
        if shape == AnswerShape::UsageInEveryChunk {
            chunk["usage"] = usage.clone();
        }
        chunk.to_string()
    };
    let error =
        json!({ "error": { "message": "The engine is overloaded", "type": "server_error", "code": 500 } })
            .to_string();
    let mut out: Vec<String> = match shape {
        AnswerShape::ErrorFirst => return vec![error],
        AnswerShape::DoneAlone => return Vec::new(),
        AnswerShape::NoWords => vec![chunk(&json!({ "role": "assistant", "content": "" }), None)],
        _ => deltas.iter().map(|delta| chunk(delta, None)).collect(),
    };
    if shape == AnswerShape::HalfSurrogates && words.is_some() {
        out.push(chunk(&json!({ "content": "@" }), None).replace('@', "\\ud83d"));
        out.push(chunk(&json!({ "content": "@" }), None).replace('@', "\\ude00"));
    }
    if shape == AnswerShape::ErrorBehindWords {
        out.push(error);
        return out;
    }
    out.push(chunk(&json!({}), Some(stop)));
    let uncounted = [
        AnswerShape::NoUsage,
        AnswerShape::NoWords,
        AnswerShape::FinishedWithError,
    ];
    if !uncounted.contains(&shape) {
        out.push(
            json!({ "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage })
                .to_string(),
        );
    }
    out
}

fn framed(shape: AnswerShape, chunks: &[String]) -> String {
    if shape == AnswerShape::JsonLines {
        return chunks.iter().map(|chunk| format!("{chunk}\n")).collect();
    }
    let mut text = String::new();
    if shape == AnswerShape::ByteOrderMark {
        text.push('\u{feff}');
    }
    for chunk in chunks {
        if shape == AnswerShape::Keepalives {
            text.push_str(": keep-alive\n\n");
        }
        text.push_str(&format!("data: {chunk}\n\n"));
    }
    match shape {
        AnswerShape::NoDone => {}
        AnswerShape::NoBlankLineAtEnd => text.push_str("data: [DONE]"),
        _ => text.push_str("data: [DONE]\n\n"),
    }
    match shape {
        AnswerShape::CarriageReturns => text.replace('\n', "\r"),
        _ => text,
    }
}

/// Turns against a server of shapes; what was booked and what the server counted.
pub(crate) fn soak(seed: u64, turns: u32) {
    let server = ShapeServer::start(seed);
    let provider = format!(
        "name: any, protocol: openai-compatible, endpoint: \"http://127.0.0.1:{}/v1\", model: shapes",
        server.port
    );
    let mut conversation = Conversation::with_provider(&provider, SETTINGS);
    let (mut ends, mut slowest) = (std::collections::BTreeMap::<String, u32>::new(), Duration::ZERO);
    for turn in 0..turns {
        let begun = Instant::now();
        let stop = conversation.say(turn, "Read files.");
        let took = begun.elapsed();
        slowest = slowest.max(took);
        assert!(took < TURN_LIMIT, "seed {seed} turn {turn} took {took:?}");
        *ends.entry(stop).or_default() += 1;
    }
    let (tokens, cost) = conversation.booked();
    let count = server.count.lock().unwrap();
    let counted = count.input_tokens + count.output_tokens;
    let due = count.input_tokens * 2 + count.output_tokens * 8;
    eprintln!(
        "seed {seed}: {turns} turns ({ends:?}), {} answers, slowest turn {slowest:?}; booked {tokens} tokens and {cost} µUSD, the server counted {counted} and {due}",
        count.answers
    );
    for (booked, counted) in [(tokens, counted), (cost, due)] {
        assert!(
            booked * 100 >= counted * 95 && booked * 100 <= counted * 105,
            "seed {seed}: booked {booked}, the server counted {counted}"
        );
    }
    assert!(ends.contains_key("answered"), "seed {seed}: {ends:?}");
}
