//! Undo and provenance around a call: saves what it may overwrite before it runs, and notes what it changed afterwards.

use std::path::Path;
use std::sync::Arc;

use clawk_kernel::call::Permit;
use clawk_kernel::ports::InspectedCall;
use clawk_plan::Level;
use serde_json::Value;

use crate::builtin::{BuiltinTool, write_target};
use crate::runner::ExecutorBinding;
use crate::undo::{OpenUndoRecord, UndoReach, UndoRecord, UndoStore, writable_folders};

/// What a call may overwrite: named files, or everything that its sandbox may write.
enum Kind {
    File,
    Program,
}

fn kind(binding: &ExecutorBinding) -> Option<Kind> {
    match binding {
        ExecutorBinding::Builtin(BuiltinTool::FileWrite | BuiltinTool::FileEdit) => Some(Kind::File),
        ExecutorBinding::Builtin(BuiltinTool::Shell) => Some(Kind::Program),
        ExecutorBinding::Command(command) if !command.guest => Some(Kind::Program),
        ExecutorBinding::Builtin(_)
        | ExecutorBinding::Search(_)
        | ExecutorBinding::Extra(_)
        | ExecutorBinding::Command(_)
        | ExecutorBinding::Http(_)
        | ExecutorBinding::A2a(_)
        | ExecutorBinding::Mcp(_) => None,
    }
}

/// Saves what the call may overwrite. If something can't be saved, the call still runs; its record or the log says so.
pub(crate) async fn before_call(
    undo: Option<&Arc<UndoStore>>,
    binding: &ExecutorBinding,
    permit: &Permit,
) -> Option<OpenUndoRecord> {
    let (undo, kind) = (Arc::clone(undo?), kind(binding)?);
    let record = UndoRecord::new(permit.session(), permit.request_id().clone(), permit.tool());
    let (plan, workdir) = (Arc::clone(permit.sandbox_plan()), permit.workdir().to_owned());
    let named = permit
        .arguments()
        .get("path")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let work = move || {
        let reach = match kind {
            Kind::File => {
                let place = write_target(&plan, &workdir, &named?)?;
                // silent-ok: if the folders are unbounded, only folders beside the file are searched for its other hard links
                let around = writable_folders(plan.filesystem(), &workdir)
                    .unwrap_or_else(|_| place.parent().map(Path::to_owned).into_iter().collect());
                Ok(UndoReach::Places {
                    places: vec![place],
                    around,
                })
            }
            Kind::Program if plan.level() == Level::None => {
                Err("its sandbox has level `none`: it may write anywhere".to_owned())
            }
            Kind::Program => match writable_folders(plan.filesystem(), &workdir) {
                Ok(trees) if trees.is_empty() => return None,
                found => found.map(UndoReach::Trees),
            },
        };
        Some(undo.begin_record(record, reach))
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(None) => None,
        Ok(Some(Ok(open))) => Some(open),
        Ok(Some(Err(error))) => {
            tracing::warn!(%error, "what a call overwrites can't be kept; it can't be undone");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "what a call overwrites can't be kept; it can't be undone");
            None
        }
    }
}

/// Notes what the call changed.
pub(crate) async fn after_call(undo: Option<&Arc<UndoStore>>, open: Option<OpenUndoRecord>) {
    let (Some(undo), Some(open)) = (undo.cloned(), open) else {
        return;
    };
    let noted = tokio::task::spawn_blocking(move || undo.end_record(open)).await;
    let why = match noted {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(%why, "what a call changed can't be looked at; it can't be undone");
}

/// A note for the approval that the call can't be undone; `None` if it can.
pub(crate) async fn missing_undo_notice(
    undo: Option<&Arc<UndoStore>>,
    binding: &ExecutorBinding,
    look: &InspectedCall<'_>,
) -> Option<String> {
    let (undo, Kind::Program) = (Arc::clone(undo?), kind(binding)?) else {
        return None;
    };
    if look.plan.level() == Level::None {
        return Some("no undo: its sandbox has level `none`".to_owned());
    }
    let (plan, workdir) = (Arc::clone(look.plan), look.workdir.to_owned());
    let work = move || undo.too_much(plan.filesystem(), &workdir);
    // silent-ok: the run checks again, and its record says why nothing is saved
    tokio::task::spawn_blocking(work).await.ok().flatten()
}
