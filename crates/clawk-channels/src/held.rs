//! Answers that a platform's own rules forbid until the person writes again (C5): they are dead letters that say so, and are taken
//! up when the person does.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_kernel::ports::Delivery;

use crate::inlet::Inlet;

/// How such a dead letter's reason begins.
const WAITS: &str = "it waits for the person's next message: ";
/// Rows of the outbox that are read.
const READ: usize = 100_000;
/// Conversations that are remembered.
const REMEMBERED: usize = 10_000;

/// The conversations in which something waits.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<HashSet<String>>);

impl Held {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waited when the agent ended.
    pub(crate) async fn read(&self, inlet: &Inlet) {
        match inlet.kernel().outbox(READ).await {
            Ok(rows) => {
                let name = &inlet.channel().name;
                let waiting = rows.into_iter().filter(|row| {
                    row.dead
                        && row.owed.channel == *name
                        && row.reason.as_deref().is_some_and(|why| why.starts_with(WAITS))
                });
                self.lock().extend(waiting.map(|row| row.owed.conversation));
            }
            Err(error) => tracing::warn!(%error, "the outbox can't be read"),
        }
    }

    /// The platform forbids it now.
    pub(crate) fn delivery(&self, conversation: &str, why: &str) -> Delivery {
        let mut held = self.lock();
        if held.len() < REMEMBERED {
            held.insert(conversation.to_owned());
        }
        Delivery::Failed {
            reason: format!("{WAITS}{why}"),
        }
    }

    /// The person wrote: what waited is owed again.
    pub(crate) async fn release(&self, inlet: &Inlet, conversation: &str) {
        if !self.lock().remove(conversation) {
            return;
        }
        let rows = match inlet.kernel().outbox(READ).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(%error, "the outbox can't be read");
                self.lock().insert(conversation.to_owned());
                return;
            }
        };
        let (name, mut found) = (&inlet.channel().name, false);
        for row in rows {
            let waits = row.dead && row.reason.as_deref().is_some_and(|why| why.starts_with(WAITS));
            if waits && row.owed.channel == *name && row.owed.conversation == conversation {
                found = true;
                let again = inlet.kernel().retry_delivery(row.owed.message, name).await;
                if let Err(error) = again {
                    tracing::warn!(%error, "an answer could not be taken out of the outbox again");
                }
            }
        }
        if !found {
            // Its attempt may not be on the record yet: the next message looks again.
            self.lock().insert(conversation.to_owned());
        }
    }
}
