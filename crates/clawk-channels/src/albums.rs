//! Albums: one message of a person that a platform delivers as several, one for each picture. They become one message again before
//! anything of it is acknowledged (C1).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::adapter::PlatformMessage;

/// Albums that are gathered at a time; the parts of further ones are messages of their own.
const MAX_ALBUMS: usize = 256;
/// Parts of one album.
const MAX_PARTS: usize = 16;

/// Albums whose parts come one by one, each in a request of its own.
#[derive(Debug)]
pub(crate) struct AlbumCollector<T> {
    open: Mutex<HashMap<String, OpenAlbum<T>>>,
    /// How long the parts are waited for, from the first one on.
    wait: Duration,
    came: Notify,
}

#[derive(Debug)]
struct OpenAlbum<T> {
    parts: Vec<T>,
    settled: watch::Receiver<Option<bool>>,
}

/// What becomes of one part.
#[derive(Debug)]
pub(crate) enum AlbumOutcome<T> {
    /// It was the first one: all parts that came in time, in their order, and what the other requests wait for.
    All(Vec<T>, AlbumReceipt),
    /// The first part's request took it along: whether the album is durable.
    Settled(bool),
}

/// Tells the requests of an album's other parts whether it is durable. Dropped without a word, it is not.
#[derive(Debug)]
pub(crate) struct AlbumReceipt(watch::Sender<Option<bool>>);

impl AlbumReceipt {
    /// Whether the album is durable, or refused for good.
    pub(crate) fn report_outcome(self, kept: bool) {
        let _others = self.0.send(Some(kept)); // silent-ok: the album has one part
    }
}

/// Removes an album from the open ones, also where its request is cut off.
struct AlbumGuard<'a, T> {
    albums: &'a AlbumCollector<T>,
    key: &'a str,
}

impl<T> Drop for AlbumGuard<'_, T> {
    fn drop(&mut self) {
        self.albums.lock().remove(self.key);
    }
}

impl<T> AlbumCollector<T> {
    pub(crate) fn new(wait: Duration) -> Self {
        Self {
            open: Mutex::default(),
            wait,
            came: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, OpenAlbum<T>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a part. `total`: how many parts there are, where the platform says; with the last one the wait is over.
    pub(crate) async fn add_part(&self, key: &str, part: T, total: Option<usize>) -> AlbumOutcome<T> {
        let (receipt, mut settled) = watch::channel(None);
        let first = {
            let mut open = self.lock();
            let full = open.len() >= MAX_ALBUMS;
            match open.get_mut(key) {
                Some(album) if album.parts.len() < MAX_PARTS => {
                    album.parts.push(part);
                    settled = album.settled.clone();
                    false
                }
                Some(_) => return AlbumOutcome::All(vec![part], AlbumReceipt(receipt)),
                None if full => return AlbumOutcome::All(vec![part], AlbumReceipt(receipt)),
                None => {
                    let parts = vec![part];
                    let album = OpenAlbum {
                        parts,
                        settled: settled.clone(),
                    };
                    open.insert(key.to_owned(), album);
                    true
                }
            }
        };
        if !first {
            self.came.notify_waiters();
            let told = settled.wait_for(Option::is_some).await;
            // An error: the first part's request was cut off. All parts come again.
            return AlbumOutcome::Settled(told.is_ok_and(|kept| *kept == Some(true)));
        }
        let closing = AlbumGuard { albums: self, key };
        let whole = || {
            let open = self.lock();
            let parts = open.get(key).map_or(0, |album| album.parts.len());
            total.is_some_and(|total| parts >= total)
        };
        let all = async {
            loop {
                let came = self.came.notified();
                tokio::pin!(came);
                came.as_mut().enable();
                if whole() {
                    return;
                }
                came.await;
            }
        };
        // silent-ok: late or whole, what is there is the album
        let _late = tokio::time::timeout(self.wait, all).await;
        let parts = self.lock().remove(key).map(|album| album.parts);
        drop(closing);
        AlbumOutcome::All(parts.unwrap_or_default(), AlbumReceipt(receipt))
    }
}

/// One message of the parts of an album: all files and words, in their order. `None`: there are no parts.
pub(crate) fn merge_parts(parts: impl IntoIterator<Item = PlatformMessage>) -> Option<PlatformMessage> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next()?;
    for part in parts {
        whole.ids.extend(part.ids);
        whole.mention |= part.mention;
        if !part.text.is_empty() && part.text != whole.text {
            let gap = if whole.text.is_empty() { "" } else { "\n" };
            whole.text.push_str(gap);
            whole.text.push_str(&part.text);
        }
        whole.attachments.extend(part.attachments);
        for quote in part.context.quotes {
            if !whole.context.quotes.contains(&quote) {
                whole.context.quotes.push(quote);
            }
        }
    }
    Some(whole)
}

#[cfg(test)]
mod tests;
