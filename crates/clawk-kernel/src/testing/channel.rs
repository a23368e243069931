//! A channel that does as a test says.

use std::fmt;
use std::sync::Mutex;

use tokio_util::sync::CancellationToken;

use crate::ports::{BoxFuture, ChannelDelivery, Delivery, OutgoingAnswer};

type Answer = dyn Fn(&OutgoingAnswer, usize) -> Delivery + Send + Sync;

/// Ends attempts by a function of what is sent and of how often it was asked; remembers what it was given.
pub struct ScriptedChannel {
    answer: Box<Answer>,
    sent: Mutex<Vec<OutgoingAnswer>>,
    takes_ms: u64,
}

impl fmt::Debug for ScriptedChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedChannel")
    }
}

impl Default for ScriptedChannel {
    fn default() -> Self {
        Self::new(|_, _| Self::delivered())
    }
}

impl ScriptedChannel {
    /// By a function.
    pub fn new(answer: impl Fn(&OutgoingAnswer, usize) -> Delivery + Send + Sync + 'static) -> Self {
        Self {
            answer: Box::new(answer),
            sent: Mutex::default(),
            takes_ms: 0,
        }
    }

    /// Each attempt takes so long.
    #[must_use]
    pub fn taking_ms(mut self, ms: u64) -> Self {
        self.takes_ms = ms;
        self
    }

    /// The platform has it.
    #[must_use]
    pub const fn delivered() -> Delivery {
        Delivery::Delivered { platform_id: None }
    }

    /// What was sent, in order, attempts that failed among it.
    #[must_use]
    pub fn sent(&self) -> Vec<OutgoingAnswer> {
        self.sent.lock().unwrap().clone()
    }
}

impl ChannelDelivery for ScriptedChannel {
    fn deliver_answer<'a>(
        &'a self,
        out: &'a OutgoingAnswer,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            let count = {
                let mut sent = self.sent.lock().unwrap();
                sent.push(out.clone());
                sent.len()
            };
            if self.takes_ms > 0 {
                tokio::select! {
                    () = tokio::time::sleep(std::time::Duration::from_millis(self.takes_ms)) => {}
                    () = cancel.cancelled() => return Delivery::Unknown { reason: "cut short".to_owned() },
                }
            }
            (self.answer)(out, count)
        })
    }
}
