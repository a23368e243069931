//! Maps the kernel's errors to the errors that clients read: [`ckp`] for JSON-RPC, [`cra`] and [`talk`] for HTTP. There are no
//! wildcard arms, so a new kernel error does not compile until every protocol maps it.

pub(crate) mod ckp;
mod cra;
pub(crate) mod shape;
mod talk;

use clawk_kernel::DeniedBy;

/// The name of the layer that denied the call, in both protocols.
const fn layer_name(by: DeniedBy) -> &'static str {
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
