//! Measures requests over each transport, to an agent or to a bare echo server of the same transport, with the same client; and
//! idle connections.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clawk_client::folder::{FolderWatcher, INBOX, OUTBOX, list_messages, read, write_message};
use clawk_client::{AgentAddress, AgentClient, OpenTransport, Options};
use futures::{SinkExt as _, StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_tungstenite::tungstenite::Message;
use tokio_util::task::TaskTracker;

/// Requests in flight.
const IN_FLIGHT: usize = 64;
/// Connections that are opened concurrently.
const OPENING: usize = 64;

/// Round trips of `claw.status` one after the other (median, microseconds), then answers per second with [`IN_FLIGHT`] in flight.
/// The target `echo:WHICH` is a bare echo server in this process.
pub(crate) fn measure(target: &str, requests: usize, folder: &Path) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let told = runtime.block_on(async {
        let tasks = TaskTracker::new();
        let url = match target.strip_prefix("echo:") {
            Some(which) => echo(which, folder, &tasks).await?,
            None => target.to_owned(),
        };
        let client = AgentClient::connect(AgentAddress::parse(&url)?, Options::for_client("bench")).await?;
        let status = || async {
            let answer = client.call("claw.status", json!({})).await?;
            ensure!(answer.get("state").is_some(), "no state in {answer}");
            anyhow::Ok(())
        };
        let mut took = Vec::with_capacity(requests);
        for _ in 0..requests {
            let began = Instant::now();
            status().await?;
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
        took.sort_by(f64::total_cmp);
        let median = took.get(requests / 2).copied().context("no request")?;
        let began = Instant::now();
        let mut all = stream::iter(0..requests * 4)
            .map(|_| status())
            .buffer_unordered(IN_FLIGHT);
        while let Some(one) = all.next().await {
            one?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a count of requests")]
        let rate = (requests * 4) as f64 / began.elapsed().as_secs_f64();
        anyhow::Ok(format!("{median} {rate}"))
    });
    runtime.shutdown_background();
    told
}

/// Opens connections that are initialized and then idle. Prints a line when all are open, then waits for the end of standard input.
pub(crate) fn idle(target: &str, connections: usize) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let target = AgentAddress::parse(target)?;
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "claw.initialize", "params": {
            "protocolVersion": "0.3.0", "clientInfo": {"name": "idle", "version": "1"}, "capabilities": {},
            "manifest": {"kind": "Claw", "metadata": {"name": "any"}}}})
        .to_string();
        let open = |_| {
            let (target, hello) = (target.clone(), hello.clone());
            async move {
                let mut wire = OpenTransport::open(&target, "idle", None).await?;
                wire.send(hello).await?;
                let answer = wire.receive().await?;
                ensure!(answer.contains("\"result\""), "{answer}");
                anyhow::Ok(wire)
            }
        };
        let mut opening = stream::iter(0..connections).map(open).buffer_unordered(OPENING);
        let mut wires = Vec::with_capacity(connections);
        while let Some(wire) = opening.next().await {
            wires.push(wire?);
        }
        drop(opening);
        super::say(&wires.len().to_string())?;
        let mut end = String::new();
        tokio::io::stdin().read_to_string(&mut end).await?;
        anyhow::Ok(())
    })?;
    runtime.shutdown_background();
    Ok(())
}

/// Streamed answers of `/openai/v1` one after the other: the median time from the request to the first word, in microseconds. The
/// agent's model answers at once, so the result is the agent's own share.
pub(crate) fn first_word(address: &str, requests: usize) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let body = json!({"model": "bench", "user": "bench", "stream": true, "messages": [{"role": "user", "content": "hello"}]});
        let body = body.to_string();
        let head = format!(
            "POST /openai/v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut took = Vec::with_capacity(requests);
        for _ in 0..requests {
            let mut stream = BufReader::new(TcpStream::connect(address).await?);
            stream.get_ref().set_nodelay(true)?;
            let began = Instant::now();
            stream.write_all(format!("{head}{body}").as_bytes()).await?;
            let mut line = String::new();
            loop {
                line.clear();
                ensure!(stream.read_line(&mut line).await? > 0, "no word came");
                let chunk = line.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
                let word = chunk.as_ref().and_then(|chunk| chunk.pointer("/choices/0/delta/content"));
                if word.and_then(Value::as_str).is_some_and(|word| !word.is_empty()) {
                    break;
                }
            }
            took.push(began.elapsed().as_secs_f64() * 1e6);
            // Read the answer to its end, so that the next request does not wait for it.
            let mut rest = String::new();
            stream.read_to_string(&mut rest).await?;
        }
        took.sort_by(f64::total_cmp);
        let median = took.get(requests / 2).copied().context("no request")?;
        Ok(median.to_string())
    })
}

/// Starts a bare echo server. Returns its URL.
async fn echo(which: &str, folder: &Path, tasks: &TaskTracker) -> Result<String> {
    match which {
        "unix" => {
            let path = folder.join("echo.sock");
            let listener = UnixListener::bind(&path)?;
            tasks.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (reader, mut writer) = stream.into_split();
                    let mut lines = BufReader::new(reader).lines();
                    while let Ok(Some(line)) = lines.next_line().await {
                        let answer = format!("{}\n", answer(&line));
                        if writer.write_all(answer.as_bytes()).await.is_err() {
                            break;
                        }
                    }
                }
            });
            Ok(format!("unix:{}", path.display()))
        }
        "http" | "ws" => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let url = format!("{which}://{}", listener.local_addr()?);
            let (each, socket) = (tasks.clone(), which == "ws");
            tasks.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    // silent-ok: only a matter of speed
                    let _fast = stream.set_nodelay(true);
                    each.spawn(async move {
                        // silent-ok: a client that goes ends its connection
                        let _ended = if socket {
                            frames(stream).await
                        } else {
                            requests(stream).await
                        };
                    });
                }
            });
            Ok(url)
        }
        "dir" => {
            let at = folder.join("echo");
            for part in [INBOX, OUTBOX, "archive"] {
                std::fs::create_dir_all(at.join(part))?;
            }
            let (inbox, outbox) = (at.join(INBOX), at.join(OUTBOX));
            tasks.spawn(async move {
                let watch = FolderWatcher::new(&inbox);
                loop {
                    // silent-ok: the folder is looked at again with the next change; the measurement waits for its answers
                    for file in list_messages(&inbox, usize::MAX).unwrap_or_default() {
                        let Ok(message) = read(&file, 1 << 20) else {
                            continue; // silent-ok: the measurement sees a missing answer
                        };
                        let text = answer(&String::from_utf8_lossy(&message)).to_string();
                        let name = file
                            .file_name()
                            .unwrap_or_default()
                            .to_string_lossy()
                            .into_owned();
                        // silent-ok: the measurement sees a missing answer
                        let _put = write_message(&outbox, &name, text.as_bytes());
                        let _gone = std::fs::remove_file(&file);
                    }
                    watch.wait_for_change().await;
                }
            });
            Ok(format!("dir:{}", at.display()))
        }
        _ => bail!("no echo `{which}`"),
    }
}

/// Returns a fixed answer to any request.
fn answer(request: &str) -> Value {
    let request: Value = serde_json::from_str(request).unwrap_or_default(); // silent-ok: answered with `null`
    json!({"jsonrpc": "2.0", "id": request.get("id"), "result": {"state": "READY", "uptime_ms": 1}})
}

async fn frames(stream: TcpStream) -> Result<()> {
    #[expect(clippy::result_large_err, reason = "the type is tungstenite's")]
    let choose = |_: &_, mut response: tokio_tungstenite::tungstenite::handshake::server::Response| {
        let claw = http::HeaderValue::from_static("claw");
        response.headers_mut().insert("sec-websocket-protocol", claw);
        Ok(response)
    };
    let mut socket = tokio_tungstenite::accept_hdr_async(stream, choose).await?;
    while let Some(frame) = socket.next().await {
        if let Message::Text(text) = frame? {
            socket.send(Message::text(answer(&text).to_string())).await?;
        }
    }
    Ok(())
}

async fn requests(stream: TcpStream) -> Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut method, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if method.is_empty() {
                method = line.split(' ').next().unwrap_or_default().to_owned();
            }
            let lower = line.to_ascii_lowercase();
            if let Some(text) = lower.strip_prefix("content-length:") {
                length = text.trim().parse()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let answer = match method.as_str() {
            "POST" => {
                let text = answer(&String::from_utf8_lossy(&body)).to_string();
                format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nclaw-session-id: echo\r\ncontent-length: {}\r\n\r\n{text}",
                    text.len()
                )
            }
            // The stream of notifications: open, but without any message.
            "GET" => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
                stream.write_all(head.as_bytes()).await?;
                // Longer than any measurement; the client closes the connection.
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                return Ok(());
            }
            _ => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).await?;
    }
}
