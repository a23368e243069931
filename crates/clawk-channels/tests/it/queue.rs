//! `queue` at a real Redis and a real NATS: acknowledged when durable, one run for each message, replies, poison, a restart.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use clawk_channels::Channels;
use clawk_kernel::Kernel;
use clawk_kernel::testing::{Behaviour, Rig};
use futures::StreamExt as _;
use redis::AsyncCommands as _;
use redis::streams::StreamRangeReply;
use serde_json::json;

use crate::suite::{LONG, parrot, start, until};

/// A broker, ended with the test.
struct Broker {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

fn broker(command: impl FnOnce(u16, &Path) -> Command) -> Broker {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let folder = tempfile::tempdir().unwrap();
    let child = command(port, folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the broker is missing: tests/parts/install.sh installs it");
    let broker = Broker {
        child,
        port,
        _folder: folder,
    };
    let began = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < LONG, "the broker does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    broker
}

/// A Redis of its own, its address, and a connection.
async fn redis() -> (Broker, String, redis::aio::MultiplexedConnection) {
    let server = broker(|port, folder| {
        let mut command = Command::new("redis-server");
        let port = port.to_string();
        command
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(folder);
        command
    });
    let url = format!("redis://127.0.0.1:{}", server.port);
    let client = redis::Client::open(url.as_str()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    (server, url, connection)
}

fn rig() -> Rig {
    parrot(
        json!([{"name": "jobs", "type": "queue", "transport": "stdio", "auth": {"secret_ref": "TOKEN"},
        "trigger": {"queue_name": "jobs", "max_parallel": 2}}]),
    )
}

async fn on(rig: &Rig, url: &str, folder: &Path) -> (Kernel, Channels) {
    let kernel = rig.start().await;
    let config = json!({"url": url, "prompt": "say {event}"});
    let configs = BTreeMap::from([("jobs".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = start(
        rig,
        kernel.clone(),
        configs,
        &[("TOKEN", "broker-secret")],
        folder,
    )
    .await;
    (kernel, channels)
}

async fn state(channels: &Channels, word: &str) {
    until(|| async { channels.report().await.unwrap()[0].state.as_str() == word }).await;
}

fn ended(rig: &Rig) -> usize {
    rig.journal
        .inbox()
        .iter()
        .filter(|(_, end)| end.is_some())
        .count()
}

fn facts(rig: &Rig, what: &str) -> usize {
    let trace = rig.journal.trace();
    let runs = trace.iter().filter(|event| event.event_type == "ckp.channel.run");
    runs.filter(|event| event.payload["what"] == what).count()
}

#[tokio::test]
async fn each_entry_of_a_redis_stream_begins_one_run_and_is_answered_where_it_says() {
    let (_server, url, mut redis) = redis().await;
    // Before the first start: a group from the beginning takes it, too.
    let _id: String = redis
        .xadd(
            "jobs",
            "*",
            &[
                ("payload", "first"),
                ("reply_to", "answers"),
                ("correlation_id", "c1"),
            ],
        )
        .await
        .unwrap();
    let rig = rig();
    let folder = tempfile::tempdir().unwrap();
    let (kernel, channels) = on(&rig, &url, folder.path()).await;
    state(&channels, "ready").await;
    until(|| async { ended(&rig) == 1 }).await;
    let answers = async || {
        redis
            .clone()
            .xrange_all::<_, StreamRangeReply>("answers")
            .await
            .unwrap()
            .ids
    };
    until(|| async { answers().await.len() == 1 }).await;
    let answer = answers().await.remove(0);
    assert_eq!(answer.get::<String>("payload").unwrap(), "first");
    assert_eq!(answer.get::<String>("correlation_id").unwrap(), "c1");
    // The producer's own id makes two entries one event; poison is a dead letter and never comes again.
    let _id: String = redis
        .xadd("jobs", "*", &[("payload", "second"), ("id", "p1")])
        .await
        .unwrap();
    until(|| async { ended(&rig) == 2 }).await;
    let _id: String = redis
        .xadd("jobs", "*", &[("payload", "second"), ("id", "p1")])
        .await
        .unwrap();
    let _id: String = redis
        .xadd("jobs", "*", &[("payload", b"\xff\xfe".as_slice())])
        .await
        .unwrap();
    until(|| async { facts(&rig, "dead-letter") == 1 }).await;
    let pending = async || {
        let found: redis::Value = redis::cmd("XPENDING")
            .arg("jobs")
            .arg("clawk")
            .query_async(&mut redis.clone())
            .await
            .unwrap();
        match found {
            redis::Value::Array(parts) => parts[0].clone(),
            other => other,
        }
    };
    until(|| async { pending().await == redis::Value::Int(0) }).await;
    assert_eq!(rig.journal.inbox().len(), 2);
    assert_eq!(
        std::fs::read_dir(folder.path().join("jobs.dead"))
            .unwrap()
            .count(),
        1
    );
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    let _id: String = redis
        .xadd("jobs", "*", &[("payload", "while it was down")])
        .await
        .unwrap();
    let (_kernel, channels) = on(&rig, &url, folder.path()).await;
    until(|| async { ended(&rig) == 3 }).await;
    assert_eq!(facts(&rig, "dead-letter"), 1);
    channels.close().await;
}

#[tokio::test]
async fn what_has_no_place_waits_in_the_stream() {
    let (_server, url, mut redis) = redis().await;
    let rig = rig();
    rig.runner.set("write", Behaviour::Sleep(60_000));
    let folder = tempfile::tempdir().unwrap();
    let kernel = rig.start().await;
    let config = json!({"url": url, "prompt": "{event}"});
    let configs = BTreeMap::from([("jobs".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = start(&rig, kernel, configs, &[], folder.path()).await;
    state(&channels, "ready").await;
    for n in 0..5 {
        let _id: String = redis
            .xadd("jobs", "*", &[("payload", format!("write {n}"))])
            .await
            .unwrap();
    }
    until(|| async { rig.journal.inbox().len() == 2 }).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(rig.journal.inbox().len(), 2, "`max_parallel` is 2");
    channels.close().await;
}

#[tokio::test]
async fn each_message_of_a_jetstream_subject_begins_one_run_and_is_answered_where_it_says() {
    let parts = std::env::var("CLAWK_PARTS").expect("CLAWK_PARTS names the folder of tests/parts/install.sh");
    let server = broker(|port, folder| {
        let mut command = Command::new(Path::new(&parts).join("nats/bin/nats-server"));
        command
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
            .arg(folder);
        command
    });
    let url = format!("nats://127.0.0.1:{}", server.port);
    let client = async_nats::connect(&url).await.unwrap();
    let context = async_nats::jetstream::new(client.clone());
    let rig = rig();
    let folder = tempfile::tempdir().unwrap();
    let (kernel, channels) = on(&rig, &url, folder.path()).await;
    // Without a stream nothing can be promised.
    state(&channels, "failed").await;
    assert!(
        channels.report().await.unwrap()[0]
            .reason
            .as_deref()
            .unwrap()
            .contains("no JetStream stream")
    );
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    let stream = async_nats::jetstream::stream::Config {
        name: "JOBS".to_owned(),
        subjects: vec!["jobs".to_owned()],
        ..Default::default()
    };
    context.create_stream(stream).await.unwrap();
    let mut answers = client.subscribe("answers").await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("Reply-To", "answers");
    headers.insert("Correlation-Id", "c1");
    headers.insert("Nats-Msg-Id", "m1");
    context
        .publish_with_headers("jobs", headers, "first".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let (_kernel, channels) = on(&rig, &url, folder.path()).await;
    state(&channels, "ready").await;
    let answer = tokio::time::timeout(LONG, answers.next()).await.unwrap().unwrap();
    assert_eq!(answer.payload.as_ref(), b"first");
    assert_eq!(
        answer
            .headers
            .as_ref()
            .unwrap()
            .get("Correlation-Id")
            .unwrap()
            .as_str(),
        "c1"
    );
    context
        .publish("jobs", b"\xff\xfe".as_slice().into())
        .await
        .unwrap()
        .await
        .unwrap();
    until(|| async { facts(&rig, "dead-letter") == 1 }).await;
    for n in 0..20 {
        context
            .publish("jobs", format!("job {n}").into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    until(|| async { ended(&rig) == 21 }).await;
    let mut consumer: async_nats::jetstream::consumer::PullConsumer = context
        .get_stream("JOBS")
        .await
        .unwrap()
        .get_consumer("clawk-jobs")
        .await
        .unwrap();
    let info = consumer.info().await.unwrap();
    assert_eq!(
        (info.num_ack_pending, info.num_pending, info.num_redelivered),
        (0, 0, 0)
    );
    assert_eq!(rig.journal.inbox().len(), 21);
    let _kept = Arc::clone(&rig.journal);
    channels.close().await;
}
