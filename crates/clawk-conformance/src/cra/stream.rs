//! The event stream of an API: a WebSocket whose text messages are events.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::api::{CraApi, CraAuth};
use super::report::CraShortfall;
use crate::pattern;

/// Time limit for the handshake, and for the last event after the last step.
const PATIENCE: Duration = Duration::from_secs(10);

/// An open stream.
pub(super) struct CraEventStream(WebSocketStream<MaybeTlsStream<TcpStream>>);

/// Opens a stream.
///
/// # Errors
/// The API does not use plain HTTP, or refuses the handshake.
pub(super) fn open_stream(api: &CraApi, path: &str) -> Result<CraEventStream, CraShortfall> {
    if api.base.scheme() != "http" {
        let why = "the stream is played over plain HTTP only; run the harness on the server's side of TLS";
        return Err(CraShortfall::Skipped(why.to_owned()));
    }
    let mut url = api.base.join(path).context("a path")?;
    url.set_scheme("ws")
        .map_err(|()| anyhow::anyhow!("`{url}` can't be a stream"))?;
    let mut request = url.as_str().into_client_request().context("a request")?;
    request.headers_mut().extend(api.auth_headers(CraAuth::Bearer)?);
    let opened = api
        .runtime()
        .block_on(async { tokio::time::timeout(PATIENCE, tokio_tungstenite::connect_async(request)).await })
        .context("the handshake was not answered in time")?;
    let (stream, _) = opened.map_err(|error| CraShortfall::from_mismatch("a stream", error, Value::Null))?;
    Ok(CraEventStream(stream))
}

impl CraEventStream {
    /// Reads until every pattern has matched an event, in order. Other events may come between.
    pub(super) fn expect_events(mut self, api: &CraApi, wanted: &[Value]) -> Result<(), CraShortfall> {
        let mut seen = Vec::new();
        let mut left = wanted.iter();
        let mut next = left.next();
        let read = async {
            while let Some(pattern) = next {
                let message = self.0.next().await.context("the stream ended")??;
                let Message::Text(text) = message else { continue };
                let event: Value = serde_json::from_str(&text).context("a message that is not valid JSON")?;
                if pattern::match_pattern(pattern, &event).is_ok() {
                    next = left.next();
                }
                seen.push(event);
            }
            anyhow::Ok(())
        };
        match api
            .runtime()
            .block_on(async { tokio::time::timeout(PATIENCE, read).await })
        {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                // silent-ok: the timeout itself is the result
                let got = format!("{} other events in {} s", seen.len(), PATIENCE.as_secs());
                Err(CraShortfall::from_mismatch(
                    "an event that was not sent",
                    got,
                    json!({ "seen": seen }),
                ))
            }
        }
    }
}
