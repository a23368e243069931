//! The kernel: lifecycle, sessions, turns, and the one path that every effect takes.
//!
//! *Owns:* lifecycle, sessions, the turn machine, the tool-call path, approvals, provider limits, replay, ports.
//! *Depends on:* proto, manifest, trace, policy, sandbox plans.
//! *Must not know:* HTTP servers, SQL, processes, vendors.
//! *Start reading at:* [`call`], then [`turn`], then [`ports`].

pub mod call;
pub mod ports;
pub mod time;
