//! Memory stores and a whole agent's state on a PostgreSQL server.
//!
//! *Owns:* connections to the server (TLS, deadlines, a bounded pool), our schema there and its migrations, memory stores in it, the
//! journal and the lease of a state.
//! *Depends on:* the kernel's ports, `clawk-trace` for the chain, `clawk-recall` for ranking and compaction, tokio-postgres.
//! *Must not know:* RPC, policy, what an entry means, where the password comes from, who signs.
//! *Start reading at:* [`PgDatabase`], then `memory`; [`PgState`], then `state::writer`.
//!
//! ```text
//! one call ─► a place in the pool ─► BEGIN · lock the part · read, write · COMMIT ─► the connection goes back
//! ```

mod bell;
mod connect;
mod error;
mod memory;
mod migrate;
mod options;
mod pool;
mod servers;
mod state;
mod tls;

pub use error::SetupError;
pub use memory::PgMemory;
pub use options::{Options, TlsMode};
pub use pool::PgDatabase;
pub use state::moving;
pub use state::{
    ContentRemoval, ErasedReference, Event, FencingToken, HeadDelivery, HostSeen, KeptHead, LeaseSeen,
    PgEventQuery, PgJournal, PgReader, PgState, PgStateError, PgStateInfo, ServingOptions, StateSharing,
    ToSign,
};
