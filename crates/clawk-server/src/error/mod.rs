//! The one mapping from what the kernel refuses to what a client reads: [`ckp`] to JSON-RPC errors, [`cra`] and [`talk`] to HTTP. No wildcard
//! arms: a new error of the kernel does not compile until every protocol has a word for it.

pub(crate) mod ckp;
mod cra;
pub(crate) mod shape;
mod talk;

use clawk_kernel::DeniedBy;

/// The layer that denied, as both protocols write it.
const fn layer(by: DeniedBy) -> &'static str {
    match by {
        DeniedBy::Autonomy => "autonomy",
        DeniedBy::Policy => "policy",
        DeniedBy::Skill => "skill",
        DeniedBy::Rate => "rate",
        DeniedBy::Role => "role",
        DeniedBy::Stop => "stop",
        DeniedBy::Atlas => "atlas",
        DeniedBy::Task => "task",
    }
}
