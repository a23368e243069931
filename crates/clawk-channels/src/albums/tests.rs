#![expect(
    clippy::disallowed_methods,
    reason = "parts that come at the same time are tasks of their own"
)]

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::{MessageContext, QuoteAuthor, QuoteKind, QuotedText};

use super::{AlbumCollector, AlbumOutcome, merge_parts};
use crate::adapter::{Attachment, PlatformMessage};

fn part(n: usize, text: &str) -> PlatformMessage {
    PlatformMessage {
        ids: vec![format!("5:{n}")],
        conversation: "5".to_owned(),
        text: text.to_owned(),
        attachments: vec![Attachment {
            name: format!("p{n}"),
            ..Attachment::default()
        }],
        ..PlatformMessage::default()
    }
}

#[test]
fn parts_become_one_message_with_all_ids_and_files() {
    let quote = QuotedText {
        kind: QuoteKind::Reply,
        author: QuoteAuthor::Agent,
        text: "which?".to_owned(),
    };
    let with_quote = |part: PlatformMessage| PlatformMessage {
        context: MessageContext {
            quotes: vec![quote.clone()],
            ..MessageContext::default()
        },
        ..part
    };
    let parts = [
        with_quote(part(1, "best?")),
        part(2, ""),
        with_quote(part(3, "or this")),
    ];
    let whole = merge_parts(parts).unwrap();
    assert_eq!(whole.ids, ["5:1", "5:2", "5:3"]);
    assert_eq!(whole.text, "best?\nor this");
    let names: Vec<&str> = whole.attachments.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["p1", "p2", "p3"]);
    assert_eq!(whole.context.quotes, [quote]);
    assert_eq!(merge_parts([]), None);
}

#[tokio::test(start_paused = true)]
async fn parts_that_come_one_by_one_are_settled_together() {
    for (kept, total) in [(true, None), (false, None), (true, Some(3))] {
        let albums = Arc::new(AlbumCollector::new(Duration::from_millis(700)));
        let (one, two) = (Arc::clone(&albums), Arc::clone(&albums));
        let first = tokio::spawn(async move {
            let AlbumOutcome::All(parts, receipt) = albums.add_part("a", 1, total).await else {
                panic!("the first part gathers the others");
            };
            receipt.report_outcome(kept);
            parts
        });
        tokio::task::yield_now().await;
        let second = tokio::spawn(async move { one.add_part("a", 2, total).await });
        tokio::task::yield_now().await;
        let third = tokio::spawn(async move { two.add_part("a", 3, total).await });
        assert_eq!(first.await.unwrap(), [1, 2, 3]);
        for other in [second, third] {
            assert!(matches!(other.await.unwrap(), AlbumOutcome::Settled(told) if told == kept));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_gathering_that_is_cut_off_settles_nothing_and_blocks_nothing() {
    let albums = Arc::new(AlbumCollector::new(Duration::from_millis(700)));
    let (one, two) = (Arc::clone(&albums), Arc::clone(&albums));
    let first = tokio::spawn(async move { one.add_part("a", 1, None).await });
    tokio::task::yield_now().await;
    let second = tokio::spawn(async move { two.add_part("a", 2, None).await });
    tokio::task::yield_now().await;
    first.abort();
    assert!(
        matches!(second.await.unwrap(), AlbumOutcome::Settled(false)),
        "the parts come again"
    );
    let again = albums.add_part("a", 1, None).await;
    assert!(matches!(again, AlbumOutcome::All(parts, _) if parts == [1]));
}
