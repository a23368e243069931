//! Redis Streams: requests go to the agent's inbox, answers come in a stream of our own, which is deleted at the end.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::StreamReadReply;
use redis::{AsyncConnectionConfig, Client, RedisResult, Value};
use tokio::time::timeout;

use super::{FAREWELL, TransportChannels, goodbye_message, is_goodbye, is_initialize};
use crate::queue::{CLIENT, MESSAGE, QueueNames, REPLY_TO};
use crate::{ClientError, QueueAddress, request_id};

/// How long a read waits for entries, milliseconds.
const BLOCK_MS: u64 = 1_000;

/// Connects.
pub(super) async fn open_transport(
    queue: &QueueAddress,
    client: &str,
    ends: TransportChannels,
) -> Result<impl Future<Output = Result<(), ClientError>> + Send + use<>, ClientError> {
    let failed = |error: redis::RedisError| ClientError::Connect(error.to_string());
    let opened = Client::open(queue.server.as_str());
    let opened = opened.map_err(|_| ClientError::Connect("the URL is not one of Redis".to_owned()))?;
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(30)));
    let connect = || opened.get_multiplexed_async_connection_with_config(&config);
    let (write, read) = (connect().await.map_err(failed)?, connect().await.map_err(failed)?);
    let names = QueueNames::new(&queue.swarm, &queue.agent);
    let own = RedisTransport {
        write,
        reply: format!("{}.{}", names.outbox, request_id()),
        inbox: names.inbox,
        client: client.to_owned(),
    };
    Ok(run(own, read, ends))
}

#[derive(Clone)]
struct RedisTransport {
    write: MultiplexedConnection,
    inbox: String,
    reply: String,
    client: String,
}

fn lost_error(error: redis::RedisError) -> ClientError {
    ClientError::Lost(error.to_string())
}

impl RedisTransport {
    async fn publish_message(&mut self, message: &str) -> Result<(), ClientError> {
        let mut command = redis::cmd("XADD");
        command.arg(&self.inbox).arg("*").arg(MESSAGE).arg(message);
        command
            .arg(CLIENT)
            .arg(&self.client)
            .arg(REPLY_TO)
            .arg(&self.reply);
        let added: RedisResult<String> = command.query_async(&mut self.write).await;
        added.map(drop).map_err(lost_error)
    }
}

/// Reads the entries after `last`. A cancelled read can simply be repeated.
async fn take_messages(
    connection: &mut MultiplexedConnection,
    reply: &str,
    last: &mut String,
) -> Result<Vec<Vec<u8>>, ClientError> {
    let mut command = redis::cmd("XREAD");
    command.arg("COUNT").arg(100).arg("BLOCK").arg(BLOCK_MS);
    command.arg("STREAMS").arg(reply).arg(last.as_str());
    let found: Option<StreamReadReply> = command.query_async(connection).await.map_err(lost_error)?;
    let keys = found.map(|found| found.keys).unwrap_or_default();
    let mut messages = Vec::new();
    for entry in keys.into_iter().flat_map(|key| key.ids) {
        last.clone_from(&entry.id);
        if let Some(Value::BulkString(bytes)) = entry.map.get(MESSAGE) {
            messages.push(bytes.clone());
        }
    }
    Ok(messages)
}

async fn run(
    mut own: RedisTransport,
    mut read: MultiplexedConnection,
    ends: TransportChannels,
) -> Result<(), ClientError> {
    let TransportChannels { mut out, heard } = ends;
    let (mut greeted, mut last, reply) = (false, "0".to_owned(), own.reply.clone());
    let mut writer = own.clone();
    let writing = async {
        while let Some(message) = out.recv().await {
            greeted |= is_initialize(&message);
            writer.publish_message(&message).await?;
        }
        Ok::<bool, ClientError>(greeted)
    };
    let greeted = {
        let reading = async {
            loop {
                for message in take_messages(&mut read, &reply, &mut last).await? {
                    let text = String::from_utf8_lossy(&message).into_owned();
                    if heard.send(text).await.is_err() {
                        return Ok::<(), ClientError>(());
                    }
                }
            }
        };
        tokio::select! {
            read = reading => return read,
            greeted = writing => greeted?,
        }
    };
    if greeted {
        own.publish_message(&goodbye_message()).await?;
        let answered = async {
            while let Ok(messages) = take_messages(&mut read, &reply, &mut last).await {
                if messages.iter().any(|message| is_goodbye(message)) {
                    return;
                }
            }
        };
        // silent-ok: the server ends an open session after an hour
        let _heard = timeout(FAREWELL, answered).await;
    }
    let gone: RedisResult<i64> = redis::cmd("DEL").arg(&reply).query_async(&mut own.write).await;
    gone.map(drop).map_err(lost_error)
}
