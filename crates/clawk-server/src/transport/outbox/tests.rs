//! R25: messages leave whole, and a peer that does not read is noticed.

#![expect(
    clippy::disallowed_methods,
    reason = "tests make their own tasks and ids, and end with them"
)]

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use super::{ONE_WRITE, Outbox, SATURATED, whole_messages};

/// Keeps each write apart.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Vec<Vec<u8>>>>);

impl tokio::io::AsyncWrite for Writes {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.0.lock().unwrap().push(bytes.to_vec());
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn r25_every_write_ends_with_a_newline() {
    let outbox = Outbox::default();
    let mut sent = Vec::new();
    for length in [1, 10, ONE_WRITE - 1, ONE_WRITE, ONE_WRITE + 1, 3 * ONE_WRITE, 5] {
        let mut message = vec![b'm'; length];
        message.push(b'\n');
        sent.extend_from_slice(&message);
        outbox.take(&mut message);
        assert!(message.is_empty());
    }
    outbox.finish();
    let writes = Writes::default();
    outbox.write_to(writes.clone()).await.expect("written");
    let writes = writes.0.lock().unwrap().clone();
    assert!(writes.iter().all(|write| write.ends_with(b"\n")));
    assert_eq!(writes.concat(), sent);
}

#[test]
fn a_write_holds_whole_messages_only() {
    assert_eq!(whole_messages(b"a\nb\n"), 4);
    let long = [vec![b'x'; 2 * ONE_WRITE], b"\nb\n".to_vec()].concat();
    assert_eq!(whole_messages(&long), 2 * ONE_WRITE + 1);
    let short_then_long = [b"a\n".to_vec(), long].concat();
    assert_eq!(whole_messages(&short_then_long), 2);
}

#[tokio::test]
async fn r25_a_saturated_outbox_has_no_room_until_the_peer_reads() {
    let outbox = Arc::new(Outbox::default());
    outbox.room().await;
    let (ours, mut theirs) = tokio::io::duplex(1024);
    let mut message = vec![b'm'; SATURATED];
    message.push(b'\n');
    outbox.take(&mut message);
    assert!(outbox.is_saturated());
    let writing = tokio::spawn({
        let outbox = Arc::clone(&outbox);
        async move { outbox.write_to(ours).await }
    });
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(50), outbox.room());
    assert!(waiting.await.is_err(), "there was room although nothing was read");
    let reading = tokio::spawn(async move { tokio::io::copy(&mut theirs, &mut tokio::io::sink()).await });
    outbox.room().await;
    outbox.finish();
    writing.await.expect("no panic").expect("written");
    assert_eq!(
        reading.await.expect("no panic").expect("read"),
        SATURATED as u64 + 1
    );
}

#[tokio::test]
async fn a_peer_that_is_gone_frees_whoever_waits_for_room() {
    let outbox = Outbox::default();
    let (ours, theirs) = tokio::io::duplex(16);
    drop(theirs);
    let mut message = vec![b'm'; SATURATED];
    outbox.take(&mut message);
    assert!(outbox.write_to(ours).await.is_err());
    outbox.room().await;
    let mut late = b"late\n".to_vec();
    outbox.take(&mut late);
    assert!(late.is_empty() && !outbox.is_saturated());
}
