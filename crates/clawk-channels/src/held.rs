//! Answers that a platform's own rules forbid until the person writes again (C5): they are dead letters that say so, and are taken
//! up when the person does.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::Delivery;

use crate::adapter::InboundPipeline;

/// How such a dead letter's reason begins.
const WAITS: &str = "it waits for the person's next message: ";
/// Rows of the outbox that are read.
const READ: usize = 100_000;
/// Conversations that are remembered.
const REMEMBERED: usize = 10_000;

/// How often, and how long apart, a dead letter is looked for that is not on the record yet.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// After so many messages of the person it is not looked for any more: it was a question or a notice, which no outbox has.
const MISSES: u32 = 3;

/// The conversations in which something waits for the person.
#[derive(Debug, Default)]
pub(crate) struct DeferredDeliveries(Mutex<DeferredConversations>);

#[derive(Debug, Default)]
struct DeferredConversations {
    /// How many messages of the person looked for what waits, and did not find it.
    waiting: HashMap<String, u32>,
    /// Attempts by number: answers, questions and notices may be sent to one conversation at the same time.
    under_way: HashMap<u64, UnderWay>,
    last: u64,
}

#[derive(Debug)]
struct UnderWay {
    conversation: String,
    /// The person wrote since it began.
    wrote: bool,
}

/// One attempt to send. It must begin before what the attempt rests on (the person's last message, say) is read.
#[derive(Debug)]
pub(crate) struct SendAttempt<'a> {
    held: &'a DeferredDeliveries,
    number: u64,
}

impl Drop for SendAttempt<'_> {
    fn drop(&mut self) {
        self.held.lock().under_way.remove(&self.number);
    }
}

impl SendAttempt<'_> {
    /// The platform forbids it now. If the person wrote meanwhile, it may be allowed already, so it is tried again.
    pub(crate) fn defer_forbidden(self, why: &str) -> Delivery {
        let mut all = self.held.lock();
        if let Some(own) = all.under_way.remove(&self.number) {
            if own.wrote {
                return Delivery::Retry {
                    after_ms: Some(0),
                    reason: format!("the person wrote while it was sent: {why}"),
                };
            }
            if all.waiting.len() < REMEMBERED {
                all.waiting.insert(own.conversation, 0);
            }
        }
        drop(all);
        Delivery::Failed {
            reason: format!("{WAITS}{why}"),
        }
    }
}

impl DeferredDeliveries {
    fn lock(&self) -> MutexGuard<'_, DeferredConversations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin_attempt(&self, conversation: &str) -> SendAttempt<'_> {
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        let own = UnderWay {
            conversation: conversation.to_owned(),
            wrote: false,
        };
        all.under_way.insert(number, own);
        SendAttempt { held: self, number }
    }

    /// What waited when the agent ended.
    pub(crate) async fn read(&self, inlet: &InboundPipeline) {
        match inlet.kernel().read_outbox(READ).await {
            Ok(rows) => {
                let name = &inlet.channel().name;
                let waiting = rows.into_iter().filter(|row| {
                    row.dead
                        && row.owed.channel == *name
                        && row.reason.as_deref().is_some_and(|why| why.starts_with(WAITS))
                });
                self.lock()
                    .waiting
                    .extend(waiting.map(|row| (row.owed.conversation, 0)));
            }
            Err(error) => tracing::warn!(%error, "the outbox can't be read"),
        }
    }

    /// How often what waited for this person was looked for in vain; `None`: nothing waited.
    fn take_deferred(&self, conversation: &str) -> Option<u32> {
        let mut all = self.lock();
        let here = all
            .under_way
            .values_mut()
            .filter(|own| own.conversation == conversation);
        here.for_each(|own| own.wrote = true);
        all.waiting.remove(conversation)
    }

    /// The person wrote: what waited is owed again.
    pub(crate) async fn release_deferred(&self, inlet: &InboundPipeline, conversation: &str) {
        let Some(misses) = self.take_deferred(conversation) else {
            return;
        };
        for _ in 0..LOOKS {
            match self.owed_again(inlet, conversation).await {
                Ok(true) => return,
                // It failed a moment ago, and the kernel has not written that down yet.
                Ok(false) => tokio::time::sleep(BETWEEN_LOOKS).await,
                Err(error) => {
                    tracing::warn!(%error, "the outbox can't be read");
                    self.lock().waiting.insert(conversation.to_owned(), misses);
                    return;
                }
            }
        }
        if misses + 1 < MISSES {
            self.lock().waiting.insert(conversation.to_owned(), misses + 1);
        }
    }

    async fn owed_again(
        &self,
        inlet: &InboundPipeline,
        conversation: &str,
    ) -> Result<bool, clawk_kernel::KernelError> {
        let (name, mut found) = (&inlet.channel().name, false);
        for row in inlet.kernel().read_outbox(READ).await? {
            let waits = row.dead && row.reason.as_deref().is_some_and(|why| why.starts_with(WAITS));
            if waits && row.owed.channel == *name && row.owed.conversation == conversation {
                found = true;
                let again = inlet.kernel().retry_delivery(row.owed.message, name).await;
                if let Err(error) = again {
                    tracing::warn!(%error, "an answer could not be taken out of the outbox again");
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::ports::Delivery;

    use super::DeferredDeliveries;

    #[test]
    fn what_is_forbidden_waits_unless_the_person_wrote_since_the_attempt_began() {
        let held = DeferredDeliveries::default();
        let forbidden = |held: &DeferredDeliveries| held.begin_attempt("ann").defer_forbidden("too old");
        assert!(matches!(forbidden(&held), Delivery::Failed { .. }));
        assert_eq!(held.take_deferred("ann"), Some(0), "it waited");
        assert_eq!(held.take_deferred("ann"), None);

        let attempt = held.begin_attempt("ann");
        assert_eq!(held.take_deferred("ann"), None, "nothing waits yet");
        // A notice that is sent meanwhile takes nothing away from the answer.
        drop(held.begin_attempt("ann"));
        assert!(matches!(
            attempt.defer_forbidden("too old"),
            Delivery::Retry { .. }
        ));
        assert_eq!(held.take_deferred("ann"), None);
        // That she wrote then is no word about a later attempt.
        assert!(matches!(forbidden(&held), Delivery::Failed { .. }));

        let attempt = held.begin_attempt("ann");
        assert_eq!(held.take_deferred("ann"), Some(0));
        drop(attempt);
        assert!(held.lock().under_way.is_empty());
    }
}
