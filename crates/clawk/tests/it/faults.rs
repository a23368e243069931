//! What goes wrong on the way to a listener: messages cut in the middle, clients that come and go, that do not read, that say
//! nothing. Nothing is lost and nothing is done twice. `cargo xtask soak doors` runs the same with more of each.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::transports::{Served, decided};

const OPEN: &str =
    "[http]\nmax_sessions = 20000\nmax_connections = 20000\nrequests_per_second = 0\nstall_seconds = 2\n";

/// How much of each: a small form in CI, the whole in a soak.
#[expect(clippy::disallowed_methods, reason = "a test asks how long it may take")]
fn scale(small: usize, whole: usize) -> usize {
    if std::env::var_os("CLAWK_SOAK").is_some() {
        whole
    } else {
        small
    }
}

fn hello() -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "claw.initialize", "params": {"protocolVersion": "0.3.0",
        "clientInfo": {"name": "t", "version": "1"}, "manifest": {"kind": "Claw", "metadata": {"name": "x"}}, "capabilities": {}}})
    .to_string()
}

fn echo(request: &str, text: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 2, "method": "claw.tool.call", "params": {"name": "echo", "arguments": {"text": text},
        "context": {"request_id": request, "identity": "test-agent"}}})
    .to_string()
}

fn request_id(number: usize) -> String {
    format!("7b1c2f4e-0d57-4a57-9f3a-{number:012x}")
}

/// A WebSocket by hand, so that it can break.
struct Socket(TcpStream);

impl Socket {
    fn open(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        let head = format!(
            "GET /claw/ws HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: claw\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).expect("a head");
            answer.push(byte[0]);
        }
        assert!(
            answer.starts_with(b"HTTP/1.1 101"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
        Self(stream)
    }

    /// Open, and initialized.
    fn ready(address: &str) -> Self {
        let mut socket = Self::open(address);
        socket.send(&hello());
        assert!(socket.receive()["result"].is_object());
        socket
    }

    fn frame(text: &str) -> Vec<u8> {
        let length = text.len();
        let mut frame = vec![0x81];
        match u16::try_from(length) {
            Ok(short) if short < 126 => frame.push(0x80 | u8::try_from(short).expect("short")),
            Ok(medium) => {
                frame.push(0x80 | 126);
                frame.extend(medium.to_be_bytes());
            }
            Err(_) => {
                frame.push(0x80 | 127);
                frame.extend(u64::try_from(length).expect("fits").to_be_bytes());
            }
        }
        frame.extend([0; 4]); // a mask that changes nothing
        frame.extend(text.as_bytes());
        frame
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(&Self::frame(text)).expect("sent");
    }

    /// The next text frame.
    fn receive(&mut self) -> Value {
        loop {
            let mut head = [0; 2];
            self.0.read_exact(&mut head).expect("a frame");
            let length = match head[1] & 0x7f {
                126 => {
                    let mut more = [0; 2];
                    self.0.read_exact(&mut more).expect("a length");
                    usize::from(u16::from_be_bytes(more))
                }
                127 => {
                    let mut more = [0; 8];
                    self.0.read_exact(&mut more).expect("a length");
                    usize::try_from(u64::from_be_bytes(more)).expect("fits")
                }
                short => usize::from(short),
            };
            let mut text = vec![0; length];
            self.0.read_exact(&mut text).expect("a body");
            if head[0] & 0x0f == 1 {
                let message: Value = serde_json::from_slice(&text).expect("JSON");
                // Heartbeats answer nothing.
                if message.get("id").is_some() {
                    return message;
                }
            }
        }
    }
}

/// POST by hand: the head and the body of the answer.
fn post(address: &str, session: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .write_all(post_bytes(address, session, body).as_bytes())
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_owned(), body.to_owned())
}

fn post_bytes(address: &str, session: &str, body: &str) -> String {
    let session = match session {
        "" => String::new(),
        id => format!("claw-session-id: {id}\r\n"),
    };
    format!(
        "POST /claw HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\naccept: application/json\r\n{session}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn session(address: &str) -> String {
    let (head, body) = post(address, "", &hello());
    let id = head
        .lines()
        .find_map(|line| line.strip_prefix("claw-session-id: "));
    id.unwrap_or_else(|| panic!("{head}\n{body}")).trim().to_owned()
}

/// Files that a process has open, and its resident memory in KiB.
fn holds(process: u32) -> (usize, usize) {
    let files = std::fs::read_dir(format!("/proc/{process}/fd"))
        .expect("it runs")
        .count();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a size");
    let kib = line
        .split_whitespace()
        .nth(1)
        .expect("a number")
        .parse()
        .expect("a number");
    (files, kib)
}

/// Until the process has at most so many files open.
fn lets_go(process: u32, most: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while holds(process).0 > most {
        assert!(
            Instant::now() < until,
            "{} files are open, {most} expected",
            holds(process).0
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_message_that_is_cut_anywhere_is_not_done_and_the_same_one_whole_is_done_once() {
    let served = Served::start(OPEN, &[]);
    let address = &served.address;
    let id = session(address);
    let cuts = scale(12, 200);
    for cut in 0..cuts {
        let message = echo(&request_id(cut), "cut");
        // Somewhere in the body; a frame, and a request.
        let frame = Socket::frame(&message);
        let at = frame.len() - 1 - cut * (message.len() - 2) / cuts;
        let mut socket = Socket::ready(address);
        socket.0.write_all(&frame[..at]).expect("sent");
        drop(socket);
        let bytes = post_bytes(address, &id, &message);
        let mut stream = TcpStream::connect(address.as_str()).expect("it listens");
        stream
            .write_all(&bytes.as_bytes()[..bytes.len() - 1 - cut * (message.len() - 2) / cuts])
            .expect("sent");
        drop(stream);
    }
    for cut in 0..cuts {
        let message = echo(&request_id(cut), "cut");
        for _ in 0..2 {
            let (head, body) = post(address, &id, &message);
            let answer: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{head}\n{body}"));
            assert_eq!(answer["result"]["content"][0]["text"], "cut", "{answer}");
        }
    }
    for cut in 0..cuts {
        assert_eq!(decided(&served.path("state"), &request_id(cut)), 1);
    }
}

#[test]
fn clients_that_come_and_go_leave_nothing_behind() {
    let served = Served::start(OPEN, &[]);
    let address = &served.address;
    let process = served.process();
    drop(Socket::ready(address));
    std::thread::sleep(Duration::from_millis(300));
    let (files, _) = holds(process);
    for number in 0..scale(100, 1_000) {
        let mut socket = Socket::ready(address);
        if number % 3 == 0 {
            // Gone with a call under way.
            socket.send(&echo(&request_id(number), "left"));
        }
        drop(socket);
    }
    lets_go(process, files + 4);
    // What a client left under way was done, once, and its answer is there for who asks again.
    let mut socket = Socket::ready(address);
    for number in (0..scale(100, 1_000)).step_by(3) {
        socket.send(&echo(&request_id(number), "left"));
        assert_eq!(socket.receive()["result"]["content"][0]["text"], "left");
    }
    assert_eq!(decided(&served.path("state"), &request_id(0)), 1);
}

#[test]
fn a_client_that_does_not_read_is_cut_and_nobody_else_waits() {
    let served = Served::start(OPEN, &[]);
    let address = &served.address;
    let before = holds(served.process()).1;
    let text = "x".repeat(1 << 20);
    let mut slow = Socket::ready(address);
    slow.0
        .set_write_timeout(Some(Duration::from_secs(5)))
        .expect("a timeout");
    let mut sent = 0;
    // Eight megabytes of answers that nobody takes; at some point nothing more is read from it either.
    while sent < 64 {
        let frame = Socket::frame(&echo(&request_id(sent), &text));
        match slow.0.write_all(&frame) {
            Ok(()) => sent += 1,
            Err(error) => {
                let kinds = [
                    ErrorKind::WouldBlock,
                    ErrorKind::TimedOut,
                    ErrorKind::ConnectionReset,
                    ErrorKind::BrokenPipe,
                ];
                assert!(kinds.contains(&error.kind()), "{error}");
                break;
            }
        }
    }
    assert!(sent < 64, "64 MiB were taken from a client that reads nothing");
    let began = Instant::now();
    let mut quick = Socket::ready(address);
    quick.send(&echo(&request_id(1_000), "quick"));
    assert_eq!(quick.receive()["result"]["content"][0]["text"], "quick");
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "others wait: {:?}",
        began.elapsed()
    );
    let grown = holds(served.process()).1.saturating_sub(before) / 1024;
    assert!(grown < 96, "{grown} MiB more for one slow client");
}

#[test]
fn connections_that_say_nothing_cost_little_and_hold_nobody_up() {
    let served = Served::start(OPEN, &[]);
    let address = &served.address;
    let count = scale(200, 10_000);
    let (files, before) = holds(served.process());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = u64::try_from(count).expect("fits") + 200;
    let raised = rustix::process::Rlimit {
        current: limit.maximum.map_or(Some(wanted), |most| Some(wanted.min(most))),
        maximum: limit.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("a test may open files");
    let idle: Vec<Socket> = (0..count).map(|_| Socket::ready(address)).collect();
    let (_, after) = holds(served.process());
    let each = (after.saturating_sub(before)) * 1024 / count;
    println!("{count} idle WebSockets: {each} bytes of resident memory each");
    // A build without optimization has larger tasks than the one that is shipped.
    assert!(each < 200 * 1024, "{each} bytes each");
    let mut busy = Socket::ready(address);
    let began = Instant::now();
    busy.send(&echo(&request_id(1), "busy"));
    assert_eq!(busy.receive()["result"]["content"][0]["text"], "busy");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(idle);
    lets_go(served.process(), files + 8);
}
