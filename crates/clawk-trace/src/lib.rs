//! TRACE: the bytes that are hashed, the chain of events, and its verification.
//!
//! *Owns:* canonical JSON in its three profiles, the size of events, the hash chain, the streaming verifier, semantic diff, signed
//! checkpoints, the statements that hosts sign, one-line rendering for people.
//! *Depends on:* `clawk-proto`; SHA-256, Ed25519.
//! *Must not know:* SQL, the kernel, clocks, tokio.
//! *Start reading at:* [`chain`], then [`mod@verify`].

pub mod bounds;
pub mod canonical;
pub mod chain;
pub mod checkpoint;
pub mod diff;
pub mod event;
pub mod proof;
pub mod show;
pub mod verify;

pub use bounds::bounded;
pub use canonical::{CanonicalError, Profile};
pub use chain::{ChainLink, Draft, HashBuffer, SessionChain};
pub use diff::{Diff, diff, diff_events};
pub use verify::{FaultKind, MAX_LINE_BYTES, TraceFault, VerificationReport, verify, verify_events};
