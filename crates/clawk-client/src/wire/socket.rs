//! WebSocket: one message per text frame, subprotocol `claw`.

use std::sync::Arc;

use clawk_egress::Url;
use clawk_secrets::{EnvironmentSource, Secret};
use futures::{SinkExt as _, StreamExt as _};
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::{FAREWELL, MAX_MESSAGE, SILENT, TransportChannels};
use crate::ClientError;

/// Both directions of a connection.
trait SocketStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> SocketStream for S {}

/// Close codes of a refused connection.
const UNAUTHORIZED: u16 = 4002;

/// Connects.
pub(super) async fn open_transport(
    url: &Url,
    token: Option<&Secret>,
    ends: TransportChannels,
) -> Result<impl Future<Output = Result<(), ClientError>> + Send + use<>, ClientError> {
    let failed = |what: String| ClientError::Connect(what);
    let mut request = url
        .as_str()
        .into_client_request()
        .map_err(|error| failed(error.to_string()))?;
    let headers = request.headers_mut();
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("claw"));
    if let Some(token) = token {
        let bearer = HeaderValue::try_from(format!("Bearer {}", token.expose().trim()))
            .map_err(|_| ClientError::Refused("the token has characters that no header takes".to_owned()))?;
        headers.insert(AUTHORIZATION, bearer);
    }
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let stream = TcpStream::connect((bare.as_str(), port)).await;
    let stream = stream.map_err(|error| failed(format!("`{host}:{port}`: {error}")))?;
    // silent-ok: only speed depends on it
    let _fast = stream.set_nodelay(true);
    let stream: Box<dyn SocketStream> = if url.scheme() == "wss" {
        let config = clawk_egress::tls_config(&EnvironmentSource::Process)
            .map_err(|error| failed(error.to_string()))?;
        let name = ServerName::try_from(bare).map_err(|error| failed(error.to_string()))?;
        let connected = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
        Box::new(connected.map_err(|error| failed(error.to_string()))?)
    } else {
        Box::new(stream)
    };
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
        .read_buffer_size(16 * 1024)
        .write_buffer_size(16 * 1024);
    let opened = client_async_with_config(request, stream, Some(config)).await;
    let (socket, _) = opened.map_err(|error| match &error {
        Error::Http(answer)
            if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
        {
            ClientError::Refused(answer.status().to_string())
        }
        other => failed(other.to_string()),
    })?;
    Ok(run(socket, ends))
}

async fn run(
    socket: WebSocketStream<Box<dyn SocketStream>>,
    ends: TransportChannels,
) -> Result<(), ClientError> {
    let TransportChannels { mut out, heard } = ends;
    let lost = |error: Error| ClientError::Lost(error.to_string());
    let (mut sink, mut frames) = socket.split();
    let writing = async {
        while let Some(message) = out.recv().await {
            sink.feed(Message::text(message)).await.map_err(lost)?;
            while let Ok(more) = out.try_recv() {
                sink.feed(Message::text(more)).await.map_err(lost)?;
            }
            sink.flush().await.map_err(lost)?;
        }
        let normal = CloseFrame {
            code: 1000.into(),
            reason: "".into(),
        };
        sink.send(Message::Close(Some(normal))).await.map_err(lost)
    };
    let reading = async {
        loop {
            // The server sends pings, and tungstenite answers them.
            let frame = timeout(SILENT, frames.next()).await;
            let frame = frame.map_err(|_| ClientError::Lost("nothing came for too long".to_owned()))?;
            match frame {
                Some(Ok(Message::Text(text))) => {
                    if heard.send(text.as_str().to_owned()).await.is_err() {
                        return Ok(());
                    }
                }
                Some(Ok(Message::Close(Some(frame)))) if u16::from(frame.code) == UNAUTHORIZED => {
                    return Err(ClientError::Refused(frame.reason.as_str().to_owned()));
                }
                Some(Ok(Message::Close(frame))) => {
                    let code = frame.map_or(1005, |frame| frame.code.into());
                    return Err(ClientError::Lost(format!("closed with code {code}")));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(lost(error)),
                None => return Err(ClientError::Lost("the connection has ended".to_owned())),
            }
        }
    };
    tokio::pin!(writing, reading);
    tokio::select! {
        read = &mut reading => read,
        written = &mut writing => {
            written?;
            // silent-ok: our close frame was sent, whatever follows
            let _heard = timeout(FAREWELL, reading).await;
            Ok(())
        }
    }
}
