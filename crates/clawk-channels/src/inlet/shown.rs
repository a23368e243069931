//! What a platform shows beside messages: that one was read, and that somebody writes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{ASIDE_MS, InboundPipeline};
use crate::adapter::PlatformMessage;

/// How often somebody is shown to be writing, and for how long at most, milliseconds.
const TYPING_EVERY_MS: u64 = 4_000;
const TYPING_FOR_MS: u64 = 300_000;
/// Conversations in which somebody is shown to be writing at a time.
const TYPINGS: usize = 256;

impl InboundPipeline {
    /// Shows that the message was read, and that somebody writes, where the manifest asks for it and the platform can.
    pub(super) fn acknowledge_message(&self, incoming: &PlatformMessage) {
        let Some(adapter) = self.adapter() else { return };
        let (processing, abilities) = (&self.channel.processing, adapter.capabilities());
        let id = incoming.ids.first().cloned();
        let reads = id.filter(|_| processing.read_receipts && abilities.receipts);
        let types = processing.typing_indicator && abilities.typing;
        let Some(place) = self.aside_place(&incoming.conversation) else {
            return;
        };
        if reads.is_none() && !types {
            return;
        }
        let conversation = incoming.conversation.clone();
        // One task for a conversation, however much is said in it, and so many in all.
        let types = types && {
            let mut writing = self.lock_writing();
            writing.len() < TYPINGS && writing.insert(conversation.clone())
        };
        let (over, writing) = (self.over.clone(), Arc::clone(&self.writing));
        self.tasks.spawn(async move {
            let soon = Duration::from_millis(ASIDE_MS);
            let shown = async {
                if let Some(id) = &reads {
                    // silent-ok: it is only shown
                    let _late = tokio::time::timeout(soon, adapter.read(&conversation, id)).await;
                }
                drop(place);
                let waits = || lock(&writing).contains(&conversation);
                let until = Instant::now() + Duration::from_millis(TYPING_FOR_MS);
                while types && waits() && Instant::now() < until {
                    // silent-ok: it is only shown
                    let _late = tokio::time::timeout(soon, adapter.show_typing(&conversation)).await;
                    // The platform shows it for some seconds; the answer ends it.
                    tokio::time::sleep(Duration::from_millis(TYPING_EVERY_MS)).await;
                }
                if types {
                    lock(&writing).remove(&conversation);
                }
            };
            tokio::select! {
                () = shown => {}
                () = over.cancelled() => {}
            }
        });
    }

    fn lock_writing(&self) -> MutexGuard<'_, HashSet<String>> {
        lock(&self.writing)
    }

    /// The conversation has its answer: the typing indicator ends.
    pub(crate) fn stop_typing(&self, conversation: &str) {
        self.lock_writing().remove(conversation);
    }
}

fn lock(writing: &Mutex<HashSet<String>>) -> MutexGuard<'_, HashSet<String>> {
    writing.lock().unwrap_or_else(PoisonError::into_inner)
}
