//! Checks which plans a virtual machine can serve, without starting one.

use crate::level::{Level, SandboxRefusal};
use crate::plan::{NetworkMode, Plan};

/// Memory for the guest's kernel and its agent, in addition to the tool's memory, in MiB.
pub const KERNEL_MB: u64 = 192;

/// The maximum memory of a machine, in MiB. The memory is one file of the sandbox, and the file size limit applies to it.
const LARGEST_MB: u64 = 2047;

/// Checks that a virtual machine can serve the plan.
///
/// # Errors
/// Names what the machine can't do, and how to fix it.
pub fn check_servable(plan: &Plan) -> Result<(), SandboxRefusal> {
    if plan.network().mode != NetworkMode::Deny {
        return Err(machine_refusal(
            "network",
            "a machine has no network card, and the plan allows network",
            "set `network.mode: deny`, or run this tool at level `container` or `process`",
        ));
    }
    if plan.limits().memory_mb.saturating_add(KERNEL_MB) > LARGEST_MB {
        return Err(machine_refusal(
            "memory_mb",
            format!(
                "a machine has at most {} MiB for its tool",
                LARGEST_MB - KERNEL_MB
            ),
            "lower `memory_mb`",
        ));
    }
    match plan.runtime.as_deref() {
        Some(name @ ("apple-container" | "gvisor")) => Err(machine_refusal(
            name,
            format!("`{name}` makes no machines"),
            "leave `runtime` out of the Sandbox",
        )),
        Some(_) | None => Ok(()),
    }
}

/// Builds the refusal of level `vm`: the mechanism that would enforce it, what is missing, and how to fix it.
#[must_use]
pub fn machine_refusal(mechanism: &str, missing: impl Into<String>, hint: &str) -> SandboxRefusal {
    SandboxRefusal::Unavailable {
        level: Level::Vm,
        mechanism: mechanism.to_owned(),
        missing: missing.into(),
        hint: hint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Limits, Network, PlanDefaults};

    fn plan() -> Plan {
        Plan::for_undeclared(&PlanDefaults::default()).at_level(Level::Vm)
    }

    #[test]
    fn a_plan_with_network_is_refused() {
        let mut plan = plan();
        for mode in [NetworkMode::Allowlist, NetworkMode::AllowAll] {
            plan.network = Network {
                mode,
                ..Network::default()
            };
            let refused = check_servable(&plan).unwrap_err();
            let SandboxRefusal::Unavailable {
                level: Level::Vm,
                mechanism,
                missing,
                hint,
            } = refused
            else {
                panic!("{refused}")
            };
            assert_eq!(mechanism, "network");
            assert!(missing.contains("no network card"), "{missing}");
            assert!(hint.contains("container"), "{hint}");
        }
    }

    #[test]
    fn more_memory_than_a_machine_can_have_is_refused() {
        let mut plan = plan();
        plan.limits = Limits {
            memory_mb: 4096,
            ..Limits::default()
        };
        let refused = check_servable(&plan).unwrap_err();
        assert!(
            matches!(&refused, SandboxRefusal::Unavailable { mechanism, .. } if mechanism == "memory_mb"),
            "{refused}"
        );
        plan.limits.memory_mb = 1024;
        check_servable(&plan).unwrap();
    }
}
