//! The wire types of the two protocol families, and nothing else.
//!
//! *Owns:* JSON-RPC frames, CKP methods with params and results, TRACE wire types, the error-code table, `claw://` URIs, ids,
//! network addresses and the rules about them. *Depends on:* serde, and the URL parser. *Must not know:* tokio, files, manifests,
//! time. *Start reading at:* [`rpc`], then [`method`], then [`error`].

pub mod a2a;
pub mod carp;
pub mod content;
pub mod error;
pub mod id;
pub mod message;
pub mod method;
pub mod place;
pub mod rpc;
pub mod secret_name;
pub mod trace;
pub mod uri;

pub use content::ContentBlock;
pub use error::{ErrorCode, RpcError};
pub use id::{Digest, MessageId, RequestId, SessionId};
