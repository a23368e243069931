//! `validate`: finds what would prevent a request, without any effect.

use clawk_proto::carp::{CARP_VERSION, Request, ValidateResponse};
use jiff::Timestamp;

use crate::execute::{self, ExecutionRefusal, IssuedResolution};
use crate::fault::{FaultCollector, InputPath};
use crate::rate::RateLedger;
use crate::resolve::{candidate_actions, format_timestamp, select_atlases};
use crate::set::AtlasSet;

/// Checks a request with a valid shape: its Atlases and capabilities must be known. For an execution, the action must be known and
/// its parameters valid; with `issued`, it must be granted now. Charges and issues nothing.
#[must_use]
pub fn validate_request(
    set: &AtlasSet,
    request: &Request,
    issued: Option<&IssuedResolution>,
    now: Timestamp,
    ledger: &RateLedger,
) -> ValidateResponse {
    let mut report = FaultCollector::default();
    let root = InputPath::Root;
    let ids_at = root.key("atlas_ids");
    for (index, id) in request
        .atlas_ids
        .iter()
        .enumerate()
        .filter(|(_, id)| set.atlas_at(id).is_none())
    {
        report.add_fault(
            &ids_at.index(index),
            "unknown_atlas",
            format!("`{id}` is not loaded"),
        );
    }
    if let (Ok(selected), Some(task)) = (select_atlases(set, &request.atlas_ids), &request.task) {
        let task_at = root.key("task");
        let capabilities_at = task_at.key("required_capabilities");
        let unknown = candidate_actions(set, &selected, task).unknown_capabilities;
        for (index, id) in task
            .required_capabilities
            .iter()
            .enumerate()
            .filter(|(_, id)| unknown.contains(id))
        {
            let message = format!("`{id}` is not a capability of the Atlases asked");
            report.add_fault(&capabilities_at.index(index), "unknown_capability", message);
        }
    }
    if let Some(execution) = &request.execution {
        let at = root.key("execution");
        match (set.action(&execution.action_id), issued) {
            (None, _) => {
                let message = format!("`{}` is not an action of the loaded Atlases", execution.action_id);
                report.add_fault(&at.key("action_id"), "unknown_action", message);
            }
            (Some(action), None) => {
                if let Err(faults) = action
                    .parameters
                    .check_parameters(&execution.parameters, "/execution/parameters")
                {
                    report.faults.errors.extend(faults.errors);
                }
            }
            (Some(_), Some(_)) => {
                let task = request.task.as_ref();
                let checked =
                    execute::check_execution(set, issued, &request.requester, task, execution, now, ledger);
                if let Err(refusal) = checked {
                    add_refusal(&mut report, &at, refusal);
                }
            }
        }
    }
    ValidateResponse {
        carp_version: CARP_VERSION.to_owned(),
        request_id: request.request_id,
        timestamp: format_timestamp(now),
        valid: report.faults.errors.is_empty(),
        errors: report.faults.errors,
    }
}

fn add_refusal(report: &mut FaultCollector, at: &InputPath<'_>, refusal: ExecutionRefusal) {
    let message = refusal.to_string();
    match refusal {
        ExecutionRefusal::InvalidParameters(faults) => report.faults.errors.extend(faults.errors),
        ExecutionRefusal::Expired => report.add_fault(&at.key("resolution_id"), "expired", message),
        ExecutionRefusal::Unauthorized => report.add_fault(&at.key("resolution_id"), "unauthorized", message),
        ExecutionRefusal::NotAllowed { .. } => report.add_fault(&at.key("action_id"), "not_allowed", message),
        ExecutionRefusal::PendingApproval { .. } => {
            report.add_fault(&at.key("action_id"), "pending_approval", message)
        }
        ExecutionRefusal::Denied { .. } => report.add_fault(&at.key("action_id"), "denied", message),
    }
}
