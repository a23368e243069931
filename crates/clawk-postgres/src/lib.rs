//! Memory stores on a PostgreSQL server.
//!
//! *Owns:* connections to the server (TLS, deadlines, a bounded pool), our schema there and its migrations, memory stores in it.
//! *Depends on:* the kernel's memory port, `clawk-recall` for ranking and compaction, tokio-postgres.
//! *Must not know:* RPC, policy, what an entry means, where the password comes from.
//! *Start reading at:* [`Database`], then `memory`.
//!
//! ```text
//! one call ─► a place in the pool ─► BEGIN · lock the part · read, write · COMMIT ─► the connection goes back
//! ```

mod connect;
mod error;
mod memory;
mod migrate;
mod options;
mod pool;
mod tls;

pub use error::SetupError;
pub use memory::PgMemory;
pub use options::{Options, TlsMode};
pub use pool::Database;
