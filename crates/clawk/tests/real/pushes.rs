//! Push notifications of A2A over the end of the host: what a receiver is owed is durable, and is posted by the next host.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, PATIENCE};
use crate::clients::{Served, TOKEN, agent_with};

/// What takes notifications, or refuses them with a status.
struct Receiver {
    port: u16,
    status: Arc<AtomicU16>,
    /// Everything that was posted: path, body, whether it was taken.
    posted: Arc<Mutex<Vec<(String, Value, bool)>>>,
}

impl Receiver {
    fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let receiver = Self {
            port: listener.local_addr().expect("bound").port(),
            status: Arc::new(AtomicU16::new(status)),
            posted: Arc::default(),
        };
        let (status, posted) = (Arc::clone(&receiver.status), Arc::clone(&receiver.posted));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (status, posted) = (Arc::clone(&status), Arc::clone(&posted));
                // A post that is cut off by a kill is no notification.
                thread::spawn(move || take(stream, &status, &posted));
            }
        });
        receiver
    }

    fn agent(&self) -> Agent {
        let place = format!("'127.0.0.1:{}'", self.port);
        let more = format!("[egress]\nallow_private = [{place}]");
        agent_with("'a2a'", &format!("push_hosts = [{place}]"), &more)
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// The bodies that were taken on a path.
    fn taken(&self, path: &str) -> Vec<Value> {
        let posted = self.posted.lock().expect("whole");
        let ours = posted.iter().filter(|(at, _, taken)| at == path && *taken);
        ours.map(|(_, body, _)| body.clone()).collect()
    }

    fn refused(&self) -> usize {
        self.posted
            .lock()
            .expect("whole")
            .iter()
            .filter(|(_, _, taken)| !taken)
            .count()
    }

    /// The states that were taken on a path, once one of them is this one.
    fn states(&self, path: &str, last: &str) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let states: Vec<String> = self.taken(path).iter().map(state).collect();
            if states.iter().any(|state| state == last) {
                return states;
            }
            assert!(
                Instant::now() < deadline,
                "{path}: {states:?}, {:?}",
                self.posted.lock()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn take(stream: TcpStream, status: &AtomicU16, posted: &Mutex<Vec<(String, Value, bool)>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':')?;
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let status = status.load(Ordering::SeqCst);
    let body = serde_json::from_slice(&body).ok()?;
    posted.lock().expect("whole").push((path, body, status < 300));
    let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    reader.into_inner().write_all(answer.as_bytes()).ok()
}

/// The state that a notification is about, in the word of 1.0.
fn state(body: &Value) -> String {
    let places = [
        "/task/status/state",
        "/statusUpdate/status/state",
        "/status/state",
    ];
    let found = places.iter().find_map(|place| body.pointer(place));
    found.and_then(Value::as_str).expect("a state").to_owned()
}

/// One request; `None`: the host was killed meanwhile.
fn try_call(served: &Served, method: &str, params: &Value) -> Option<Value> {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
    let mut stream = TcpStream::connect(&served.address).ok()?;
    let head = format!(
        "POST /a2a HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        served.address,
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

fn call(served: &Served, method: &str, params: &Value) -> Value {
    let answer = try_call(served, method, params).expect("an answer");
    assert!(answer.get("error").is_none(), "{method}: {answer}");
    answer["result"].clone()
}

fn message(text: &str, id: &str, url: &str) -> Value {
    json!({"message": {"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]},
        "configuration": {"returnImmediately": true, "taskPushNotificationConfig": {"url": url, "token": "token-canary"}}})
}

/// Waits for a task's state.
fn comes_to(served: &Served, task: &str, wanted: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = call(served, "GetTask", &json!({"id": task}));
        if found["status"]["state"] == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{wanted}: {found}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_receiver_gets_each_state_in_order_after_the_host_was_killed() {
    let receiver = Receiver::start(503);
    let agent = receiver.agent();
    let served = Served::start(&agent);
    // One that has ended, and one that waits for a person; the receiver takes nothing yet.
    let done = call(
        &served,
        "SendMessage",
        &message("hello", "m1", &receiver.url("/done")),
    );
    let done = done["task"]["id"].as_str().expect("an id").to_owned();
    comes_to(&served, &done, "TASK_STATE_COMPLETED");
    let asked = call(
        &served,
        "SendMessage",
        &message("write it", "m2", &receiver.url("/asked")),
    );
    let asked = asked["task"]["id"].as_str().expect("an id").to_owned();
    comes_to(&served, &asked, "TASK_STATE_AUTH_REQUIRED");
    assert!(receiver.refused() > 0);
    served.kill();
    assert!(receiver.taken("/done").is_empty() && receiver.taken("/asked").is_empty());

    receiver.answers(204);
    let served = Served::start(&agent);
    let states = receiver.states("/done", "TASK_STATE_COMPLETED");
    assert_eq!(
        states,
        [
            "TASK_STATE_SUBMITTED",
            "TASK_STATE_WORKING",
            "TASK_STATE_COMPLETED"
        ]
    );
    let told = receiver.taken("/done");
    let last = told.last().expect("one");
    assert_eq!(
        last["task"]["artifacts"][0]["parts"][0]["text"], "You said: hello",
        "{last}"
    );
    assert!(
        told.iter().all(|body| body.to_string().contains(&done)),
        "{told:?}"
    );
    let states = receiver.states("/asked", "TASK_STATE_AUTH_REQUIRED");
    // The turn goes on after the restart, and its question is put again.
    let once = [
        "TASK_STATE_SUBMITTED",
        "TASK_STATE_WORKING",
        "TASK_STATE_AUTH_REQUIRED",
    ];
    assert_eq!(states[..3], once, "{states:?}");
    let again = |state: &String| once[1..].contains(&state.as_str());
    assert!(states[3..].iter().all(again), "{states:?}");
    // The task of the earlier run goes on in this one, and so do its notifications.
    call(&served, "CancelTask", &json!({"id": asked}));
    let states = receiver.states("/asked", "TASK_STATE_CANCELED");
    assert_eq!(
        states.last().map(String::as_str),
        Some("TASK_STATE_CANCELED"),
        "{states:?}"
    );
    served.end();

    // All was told: nothing comes again.
    let before = receiver.posted.lock().expect("whole").len();
    let served = Served::start(&agent);
    comes_to(&served, &done, "TASK_STATE_COMPLETED");
    served.end();
    assert_eq!(receiver.posted.lock().expect("whole").len(), before);
    let events = format!("{:?}", agent.events());
    assert!(!events.contains("token-canary"));
}

#[test]
fn a_host_that_is_killed_at_any_moment_owes_no_state() {
    const ROUNDS: u64 = 12;
    let receiver = Receiver::start(204);
    let agent = receiver.agent();
    for round in 0..ROUNDS {
        let (path, id) = (format!("/r{round}"), format!("m{round}"));
        let served = Served::start(&agent);
        let taken = call(
            &served,
            "SendMessage",
            &message("hello", &id, &receiver.url(&path)),
        );
        let task = taken["task"]["id"].as_str().expect("an id").to_owned();
        thread::sleep(Duration::from_millis(round * 13));
        served.kill();
        let served = Served::start(&agent);
        let mut states = receiver.states(&path, "TASK_STATE_COMPLETED");
        comes_to(&served, &task, "TASK_STATE_COMPLETED");
        // At least once each, and never back.
        states.dedup();
        assert_eq!(
            states,
            [
                "TASK_STATE_SUBMITTED",
                "TASK_STATE_WORKING",
                "TASK_STATE_COMPLETED"
            ],
            "round {round}"
        );
        served.kill();
    }
}

#[test]
fn a_notification_that_is_never_taken_is_given_up_on_the_record() {
    let receiver = Receiver::start(410);
    let agent = receiver.agent();
    let served = Served::start(&agent);
    let done = call(
        &served,
        "SendMessage",
        &message("hello", "m1", &receiver.url("/gone")),
    );
    let done = done["task"]["id"].as_str().expect("an id").to_owned();
    comes_to(&served, &done, "TASK_STATE_COMPLETED");
    let deadline = Instant::now() + PATIENCE;
    while receiver.refused() < 3 {
        assert!(Instant::now() < deadline, "{:?}", receiver.posted.lock());
        thread::sleep(Duration::from_millis(20));
    }
    served.end();
    let events = agent.events();
    let given_up: Vec<&Value> = events
        .iter()
        .filter(|event| event["event_type"] == "ckp.push.given_up")
        .collect();
    let states: Vec<&str> = given_up
        .iter()
        .filter_map(|event| event["payload"]["state"].as_str())
        .collect();
    assert_eq!(states, ["submitted", "working", "completed"], "{given_up:?}");
    assert!(
        given_up
            .iter()
            .all(|event| event["payload"]["task"] == *done && event["payload"]["attempts"] == 1)
    );
    assert!(
        given_up.iter().all(|event| !event.to_string().contains("/gone")),
        "addresses may hold secrets"
    );
}
