//! The one path of a tool call.
mod permit;
pub use permit::Permit;
