//! What the journal's writer takes: a payload that knows its event's type.

use serde_json::value::RawValue;

use crate::event::write_payload;
use crate::kind;
use crate::payload::{MemoryWrite, ScreenFinding, SwarmProgress};

pub(crate) mod sealed {
    /// Keeps [`super::WrittenEvent`] to this crate: nobody else can put a name and a payload together.
    pub trait SealedPayload {}
}

/// An event that can be written: its type's name and its payload belong together.
///
/// Every payload of this crate that only one type has is one. A payload that several types share says which of them it is, for example
/// by [`MemoryWrite::as_stored`].
pub trait WrittenEvent: sealed::SealedPayload {
    /// The event's type, as it stands in the journal.
    fn event_kind(&self) -> &'static str;

    /// The payload as the journal has it: canonical JSON (R27), within the size of an event.
    fn canonical_payload(&self) -> Box<RawValue>;
}

/// A payload that several types share, with its type.
#[derive(Debug, Clone, Copy)]
pub struct SharedPayload<'a, P> {
    kind: &'static str,
    payload: &'a P,
}

macro_rules! shared_payloads {
    ($($payload:ident { $($name:ident = $kind:ident,)* })*) => {
        $(
            impl $payload {
                $(
                    #[doc = concat!("As an event of the type [`kind::", stringify!($kind), "`].")]
                    #[must_use]
                    pub const fn $name(&self) -> SharedPayload<'_, Self> {
                        SharedPayload { kind: kind::$kind, payload: self }
                    }
                )*
            }

            impl sealed::SealedPayload for SharedPayload<'_, $payload> {}

            impl WrittenEvent for SharedPayload<'_, $payload> {
                fn event_kind(&self) -> &'static str {
                    self.kind
                }

                fn canonical_payload(&self) -> Box<RawValue> {
                    write_payload(self.payload)
                }
            }
        )*
    };
}

shared_payloads! {
    MemoryWrite {
        as_requested = MEMORY_REQUESTED,
        as_stored = MEMORY_STORED,
    }
    ScreenFinding {
        as_secret = SCREEN_SECRET,
        as_injection = SCREEN_INJECTION,
    }
    SwarmProgress {
        as_run = SWARM_RUN,
        as_try = SWARM_TRY,
        as_refused = SWARM_REFUSED,
        as_circuit = SWARM_CIRCUIT,
        as_dead_lettered = SWARM_DEAD_LETTERED,
        as_aggregated = SWARM_AGGREGATED,
        as_ended = SWARM_ENDED,
        as_led = SWARM_LED,
    }
}
