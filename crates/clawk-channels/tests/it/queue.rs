//! `queue` with a real Redis, NATS and RabbitMQ: a message is acknowledged when it is durable, and begins one run; replies, messages that
//! can't be processed, restarts.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
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

use crate::suite::{LONG, parrot, start, start_sealed, until};

/// The record line of an answer for which no tool was called.
const RECORD: &str = "\n\n_Record: no action was taken for this answer._";

/// A broker, ended with the test.
struct Broker {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Broker {
    fn drop(&mut self) {
        // With all that it began.
        let group = format!("-{}", self.child.id());
        let _gone = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _waited = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// How long a broker may take to start, on a busy machine.
const STARTS: Duration = Duration::from_secs(180);

fn broker(command: impl FnOnce(u16, &Path) -> Command) -> Broker {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let child = command(port, folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .expect("the broker is missing: tests/parts/install.sh installs it");
    let broker = Broker {
        child,
        port,
        _folder: folder,
    };
    let began = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < STARTS, "the broker does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    broker
}

/// A Redis server for this test, its address, and a connection.
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
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == word }).await;
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
    assert_eq!(answer.get::<String>("payload").unwrap(), format!("first{RECORD}"));
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

/// Beside an encrypted state, nothing of an event that can't be read lies in a folder: it is the content of its record.
#[tokio::test]
async fn in_an_encrypted_state_a_dead_event_is_the_content_of_its_record() {
    let (_server, url, mut redis) = redis().await;
    let rig = rig();
    let folder = tempfile::tempdir().unwrap();
    let kernel = rig.start().await;
    let config = json!({"url": url, "prompt": "say {event}"});
    let configs = BTreeMap::from([("jobs".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = start_sealed(&rig, kernel, configs, folder.path()).await;
    state(&channels, "ready").await;
    let poison = b"\xff quetzal".as_slice();
    let _id: String = redis.xadd("jobs", "*", &[("payload", poison)]).await.unwrap();
    until(|| async { facts(&rig, "dead-letter") == 1 }).await;
    channels.close().await;
    assert!(!folder.path().join("jobs.dead").exists());
    let events = rig.journal.events();
    let dead = events
        .iter()
        .find(|event| event.payload.contains("dead-letter"))
        .unwrap();
    assert_eq!(dead.content.as_ref().unwrap().bytes, poison);
    assert!(dead.payload.contains("kept as "), "{}", dead.payload);
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
        channels.channel_reports().await.unwrap()[0]
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
    assert_eq!(answer.payload.as_ref(), format!("first{RECORD}").as_bytes());
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

/// A RabbitMQ server for this test, with all its files in one folder and its Erlang port mapper on a free port.
struct Rabbit {
    _broker: Broker,
    /// The Erlang port mapper; it would otherwise stay behind as a daemon.
    _names: Broker,
    port: u16,
}

impl Rabbit {
    fn start() -> Self {
        let names = broker(|port, _| {
            let mut command = Command::new("epmd");
            command.args(["-port", &port.to_string(), "-address", "127.0.0.1"]);
            command
        });
        let (names_port, own_port) = (names.port.to_string(), free_port().to_string());
        let broker = broker(|port, folder| {
            let at = |name: &str| folder.join(name);
            std::fs::write(at("rabbitmq.conf"), "loopback_users = none\n").unwrap();
            std::fs::write(at("enabled_plugins"), "[].\n").unwrap();
            let mut command = Command::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
            command
                .env("HOME", folder)
                .env("RABBITMQ_NODENAME", format!("t{port}@localhost"))
                .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
                .env("RABBITMQ_NODE_PORT", port.to_string())
                .env("RABBITMQ_DIST_PORT", own_port)
                .env("ERL_EPMD_PORT", names_port)
                .env("ERL_EPMD_ADDRESS", "127.0.0.1")
                .env("RABBITMQ_MNESIA_BASE", at("data"))
                .env("RABBITMQ_LOG_BASE", at("log"))
                .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
                .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
                .env("RABBITMQ_PID_FILE", at("pid"));
            command
        });
        let rabbit = Self {
            port: broker.port,
            _broker: broker,
            _names: names,
        };
        // Its port is open a moment before it takes anybody in.
        let began = Instant::now();
        while !rabbit.python("connection()").status.success() {
            assert!(began.elapsed() < STARTS, "RabbitMQ takes nobody in");
            std::thread::sleep(Duration::from_millis(500));
        }
        rabbit
    }

    fn url(&self) -> String {
        format!("amqp://guest@127.0.0.1:{}/%2f", self.port)
    }

    /// What another AMQP client does.
    fn python(&self, script: &str) -> std::process::Output {
        let parts =
            std::env::var("CLAWK_PARTS").expect("CLAWK_PARTS names the folder of tests/parts/install.sh");
        let whole = format!(
            "import pika, sys, json\n\
             def connection():\n    return pika.BlockingConnection(pika.ConnectionParameters('127.0.0.1', {}, heartbeat=60))\n\
             def publish(c, body, **more):\n    c.basic_publish('', 'jobs', body, pika.BasicProperties(delivery_mode=2, **more))\n\
             {script}\n",
            self.port
        );
        Command::new(Path::new(&parts).join("amqp/bin/python"))
            .args(["-c", &whole])
            .output()
            .expect("tests/parts/install.sh installs pika")
    }

    fn says(&self, script: &str) -> String {
        let output = self.python(script);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// How many messages of a queue are ready, and how many are unacknowledged (by closing the consumer and counting again).
    fn ready(&self, queue: &str) -> u32 {
        self.says(&format!(
            "k = connection(); c = k.channel(); print(c.queue_declare('{queue}', passive=True).method.message_count); k.close()"
        ))
        .parse()
        .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_of_a_rabbitmq_queue_begins_one_run_and_is_answered_where_it_says() {
    let rabbit = Rabbit::start();
    let rig = rig();
    let folder = tempfile::tempdir().unwrap();
    // A login that the broker refuses is a person's to mend.
    let (kernel, channels) = on(&rig, &rabbit.url().replace("guest@", "nobody@"), folder.path()).await;
    state(&channels, "failed").await;
    let reason = channels.channel_reports().await.unwrap()[0]
        .reason
        .clone()
        .unwrap();
    assert!(
        reason.contains("refuses") && !reason.contains("broker-secret"),
        "{reason}"
    );
    channels.close().await;
    kernel.shutdown("test", 1_000).await;

    // What lies there before the first start, with a reply address and a correlation.
    rabbit.says(
        "k = connection(); c = k.channel(); c.queue_declare('jobs', durable=True); c.queue_declare('answers')\n\
         publish(c, b'first', reply_to='answers', correlation_id='c1', message_id='m1')\n\
         k.close()",
    );
    let url = format!("amqp://127.0.0.1:{}", rabbit.port);
    let (kernel, channels) = on(&rig, &url, folder.path()).await;
    state(&channels, "ready").await;
    until(|| async { ended(&rig) == 1 }).await;
    until(|| async { rabbit.ready("answers") == 1 }).await;
    let answer = rabbit.says(
        "k = connection(); c = k.channel(); m, p, b = c.basic_get('answers', auto_ack=True)\n\
         print(json.dumps([b.decode(), p.correlation_id, p.delivery_mode, bool(p.message_id)])); k.close()",
    );
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer, json!([format!("first{RECORD}"), "c1", 2, true]));
    // The producer's id makes two messages one; poison is a dead letter; a reply to a queue that is gone is one of the outbox.
    rabbit.says(
        "k = connection(); c = k.channel()\n\
         publish(c, b'second', message_id='m2'); publish(c, b'second', message_id='m2')\n\
         publish(c, b'\\xff\\xfe'); publish(c, b'x' * (2 << 20))\n\
         publish(c, b'third', reply_to='nowhere')\n\
         publish(c, b'same'); publish(c, b'same')\n\
         k.close()",
    );
    until(|| async { facts(&rig, "dead-letter") == 2 && ended(&rig) == 5 }).await;
    until(|| async { channels.channel_reports().await.unwrap()[0].dead == 1 }).await;
    let dead = kernel.read_outbox(10).await.unwrap();
    assert!(dead[0].reason.as_deref().unwrap().contains("gone"), "{dead:?}");
    assert_eq!(
        std::fs::read_dir(folder.path().join("jobs.dead"))
            .unwrap()
            .count(),
        2
    );
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    // Nothing comes again: all of it was acknowledged.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(rabbit.ready("jobs"), 0);
    rabbit.says("k = connection(); c = k.channel(); publish(c, b'while it was down'); k.close()");
    let (_kernel, channels) = on(&rig, &url, folder.path()).await;
    until(|| async { ended(&rig) == 6 }).await;
    assert_eq!(rig.journal.inbox().len(), 6, "`same` is two, `second` is one");
    channels.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_keeps_what_has_no_place_and_what_was_not_accepted() {
    let rabbit = Rabbit::start();
    let rig = rig();
    rig.runner.set("write", Behaviour::Sleep(60_000));
    rabbit.says(
        "k = connection(); c = k.channel(); c.queue_declare('jobs', durable=True)\n\
         [publish(c, b'write %d' % n) for n in range(6)]\n\
         k.close()",
    );
    let folder = tempfile::tempdir().unwrap();
    let kernel = rig.start().await;
    let config = json!({"url": rabbit.url(), "prompt": "{event}"});
    let configs = BTreeMap::from([("jobs".to_owned(), serde_json::from_value(config).unwrap())]);
    let secrets = [("TOKEN", "guest")];
    let channels = start(&rig, kernel, configs, &secrets, folder.path()).await;
    until(|| async { rig.journal.inbox().len() == 2 }).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(rig.journal.inbox().len(), 2, "`max_parallel` is 2");
    // Two are acknowledged, at most two are here without an acknowledgement, the others wait at the broker.
    assert!(rabbit.ready("jobs") >= 2, "{}", rabbit.ready("jobs"));
    channels.close().await;
    let began = Instant::now();
    while rabbit.ready("jobs") != 4 {
        assert!(
            began.elapsed() < LONG,
            "what was not accepted goes back: {}",
            rabbit.ready("jobs")
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
