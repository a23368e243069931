//! NATS: requests go to the agent's inbox, answers come on a private subject.

use async_nats::HeaderMap;
use clawk_secrets::EnvironmentSource;
use futures::StreamExt as _;
use tokio::time::timeout;

use super::{FAREWELL, TransportChannels, goodbye_message, is_goodbye, is_initialize};
use crate::queue::{CLIENT, QueueNames, REPLY_TO};
use crate::{ClientError, QueueAddress, request_id};

/// Connects.
pub(super) async fn open_transport(
    queue: &QueueAddress,
    client: &str,
    ends: TransportChannels,
) -> Result<impl Future<Output = Result<(), ClientError>> + Send + use<>, ClientError> {
    let failed = |error: &dyn std::fmt::Display| ClientError::Connect(error.to_string());
    let tls = clawk_egress::tls_config(&EnvironmentSource::Process).map_err(|error| failed(&error))?;
    let options = async_nats::ConnectOptions::new()
        .name(client)
        .require_tls(queue.server.scheme() == "tls")
        .tls_client_config(tls);
    let connected = options.connect(queue.server.as_str()).await;
    let connected = connected.map_err(|error| failed(&error))?;
    let reply = connected.new_inbox();
    let answers = connected.subscribe(reply.clone()).await;
    let own = NatsTransport {
        context: async_nats::jetstream::new(connected),
        inbox: QueueNames::new(&queue.swarm, &queue.agent).inbox,
        reply,
        client: client.to_owned(),
    };
    Ok(run(own, answers.map_err(|error| failed(&error))?, ends))
}

struct NatsTransport {
    context: async_nats::jetstream::Context,
    inbox: String,
    reply: String,
    client: String,
}

impl NatsTransport {
    /// Publishes to the agent's inbox and waits for the server's acknowledgement.
    async fn publish_message(&self, message: String) -> Result<(), ClientError> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", request_id().as_str());
        headers.insert(CLIENT, self.client.as_str());
        headers.insert(REPLY_TO, self.reply.as_str());
        let lost = |error: &dyn std::fmt::Display| ClientError::Lost(error.to_string());
        let published = self
            .context
            .publish_with_headers(self.inbox.clone(), headers, message.into());
        let acknowledged = published.await.map_err(|error| lost(&error))?;
        acknowledged.await.map_err(|error| lost(&error)).map(drop)
    }
}

async fn run(
    own: NatsTransport,
    mut answers: async_nats::Subscriber,
    ends: TransportChannels,
) -> Result<(), ClientError> {
    let TransportChannels { mut out, heard } = ends;
    let mut greeted = false;
    loop {
        tokio::select! {
            message = out.recv() => match message {
                Some(message) => {
                    greeted |= is_initialize(&message);
                    own.publish_message(message).await?;
                }
                None => break,
            },
            answer = answers.next() => match answer {
                Some(answer) => {
                    let text = String::from_utf8_lossy(&answer.payload).into_owned();
                    if heard.send(text).await.is_err() {
                        return Ok(());
                    }
                }
                None => return Err(ClientError::Lost("the connection has ended".to_owned())),
            },
        }
    }
    if greeted {
        own.publish_message(goodbye_message()).await?;
        let answered = async {
            while let Some(answer) = answers.next().await {
                if is_goodbye(&answer.payload) {
                    return;
                }
            }
        };
        // silent-ok: the server ends an open session after an hour
        let _heard = timeout(FAREWELL, answered).await;
    }
    Ok(())
}
