//! One message per line, over any pair of streams.

use std::path::Path;

use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::UnixStream;

use super::{FAREWELL, MAX_MESSAGE, TransportChannels};
use crate::ClientError;

/// Connects to a Unix socket.
pub(super) async fn open_transport(
    path: &Path,
    ends: TransportChannels,
) -> Result<impl Future<Output = Result<(), ClientError>> + Send + use<>, ClientError> {
    let stream = UnixStream::connect(path).await;
    let stream = stream.map_err(|error| ClientError::Connect(format!("`{}`: {error}", path.display())))?;
    let (reader, writer) = stream.into_split();
    Ok(run(reader, writer, ends))
}

/// Runs until the other side ends the connection, or our side has ended it and the last answers were read.
pub(super) async fn run<R, W>(reader: R, mut writer: W, ends: TransportChannels) -> Result<(), ClientError>
where
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let TransportChannels { mut out, heard } = ends;
    let lost = |error: std::io::Error| ClientError::Lost(error.to_string());
    // This future owns the writer, because dropping the writer closes the pipe.
    let writing = async move {
        while let Some(message) = out.recv().await {
            // In JSON text a newline can only be white space between tokens.
            let mut line = message.replace(['\n', '\r'], " ");
            line.push('\n');
            writer.write_all(line.as_bytes()).await.map_err(lost)?;
            writer.flush().await.map_err(lost)?;
        }
        writer.shutdown().await.map_err(lost)
    };
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    let reading = async {
        loop {
            let mut line = Vec::new();
            let most = u64::try_from(MAX_MESSAGE).unwrap_or(u64::MAX);
            let read = (&mut reader).take(most).read_until(b'\n', &mut line).await;
            if read.map_err(lost)? == 0 {
                return Ok(());
            }
            let text = String::from_utf8(line).map_err(|error| ClientError::Malformed(error.to_string()))?;
            let text = text.trim_end_matches(['\n', '\r']).to_owned();
            if heard.send(text).await.is_err() {
                return Ok(());
            }
        }
    };
    tokio::pin!(writing, reading);
    tokio::select! {
        read = &mut reading => read,
        written = &mut writing => {
            written?;
            // silent-ok: a peer that does not close after us is abandoned
            tokio::time::timeout(FAREWELL, reading).await.unwrap_or(Ok(()))
        }
    }
}
