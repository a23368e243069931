//! Every platform by one suite, each against a strict fake of its vendor's API.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they fail, and they start servers beside themselves"
)]

mod apart;
mod attacks;
mod commands;
mod cron;
mod db_trigger;
mod durable;
mod fakes;
mod faults;
mod files;
mod frames;
mod heard;
mod homeserver;
mod hooks;
#[cfg(feature = "mail")]
mod mail;
mod platforms;
#[cfg(all(feature = "nats", feature = "redis"))]
mod queue;
mod reactions;
mod refusals;
mod schedule;
mod signatures;
mod suite;
mod telegram;
mod threads;
mod voice;
mod weather;
mod web;
