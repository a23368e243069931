//! Telemetry (CKP §5.10): events, spans and metrics without contents, and the places that they are sent to.
//!
//! * **Owns:** the content-free [`Fact`], what is made of facts ([`Item`], [`Meter`]), and how it is sent ([`Sink`]).
//! * **Depends on:** proto, manifest, egress, secrets.
//! * **Must not know:** event payloads. Whoever makes a [`Fact`] has no field to put a prompt, an argument or a result into.
//! * **Start reading at:** [`Fact`], then [`Assembler`].

mod assemble;
mod fact;
mod item;
mod line;
mod meter;
mod otlp;
mod sink;
#[cfg(test)]
mod tests;

pub use assemble::{Assembler, Wanted};
pub use fact::{Called, Fact, Inferred, Label, Trouble, What};
pub use item::{Category, Item, Val};
pub use meter::{Meter, Metric, Point, Series};
pub use sink::{Batch, DeliveryError, FileSink, HttpSink, Resource, Sink, SqliteSink};
