//! Measures a bare message broker: messages that are published and acknowledged, one after the other and with many in flight.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use async_nats::jetstream;
use futures::{StreamExt as _, stream};

/// Messages in flight.
const IN_FLIGHT: usize = 64;
/// Body of a message. It is about as long as a task's message.
const BODY: &str =
    "{\"task_id\":\"00000000-0000-4000-8001-000000000001\",\"task\":{\"description\":\"task 1\"}}";

/// A connection to a broker.
enum Broker {
    Nats(jetstream::Context),
    Redis(redis::aio::MultiplexedConnection),
}

impl Broker {
    async fn connect(url: &str) -> Result<Self> {
        if url.starts_with("nats://") {
            let context = jetstream::new(async_nats::connect(url).await?);
            let config = jetstream::stream::Config {
                name: "bench".to_owned(),
                subjects: vec!["bench".to_owned()],
                ..jetstream::stream::Config::default()
            };
            context.get_or_create_stream(config).await?;
            return Ok(Self::Nats(context));
        }
        if url.starts_with("redis://") {
            let client = redis::Client::open(url)?;
            return Ok(Self::Redis(client.get_multiplexed_async_connection().await?));
        }
        bail!("`{url}` is not the address of a broker")
    }

    /// Publishes one message and waits for its acknowledgement.
    async fn publish(&self) -> Result<()> {
        match self {
            Self::Nats(context) => {
                context.publish("bench", BODY.into()).await?.await?;
            }
            Self::Redis(connection) => {
                let mut command = redis::cmd("XADD");
                command.arg("bench").arg("*").arg("body").arg(BODY);
                let id: String = command.query_async(&mut connection.clone()).await?;
                ensure!(!id.is_empty(), "no id");
            }
        }
        Ok(())
    }
}

/// Returns the median microseconds of one message, and messages per second with [`IN_FLIGHT`] in flight.
pub(crate) fn measure(url: &str, messages: usize) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let broker = Broker::connect(url).await?;
        let mut took = Vec::with_capacity(messages);
        for _ in 0..messages {
            let began = Instant::now();
            broker.publish().await?;
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
        took.sort_by(f64::total_cmp);
        let median = took.get(messages / 2).copied().context("no message")?;
        let began = Instant::now();
        let mut all = stream::iter(0..messages * 4)
            .map(|_| broker.publish())
            .buffer_unordered(IN_FLIGHT);
        while let Some(one) = all.next().await {
            one?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a count of messages")]
        let rate = (messages * 4) as f64 / began.elapsed().as_secs_f64();
        Ok(format!("{median} {rate}"))
    })
}
