//! Screening on the call path: arguments before the decision, results and errors before they are shown or stored.

use std::borrow::Cow;

use clawk_manifest::model::ScanAction;
use clawk_policy::leak::{LeakTally, Scanner};
use clawk_proto::content::ContentBlock;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::record::CallRecord;
use super::{CallGovernor, CallerContext, Request};
use crate::error::CallError;
use crate::event::canonical;
use crate::notice::ApprovalQuestion;
use crate::ports::RunOutcome;
use crate::screen::{
    InjectionJudge, InjectionSuspicion, ScreenedTextKind, ScreeningPass, ScreeningRefusal, action_name,
};
use crate::sheet::CallPreview;

fn refusal_error(tool: &str, refused: ScreeningRefusal) -> CallError {
    CallError::Screened {
        tool: tool.to_owned(),
        reason: refused.reason.to_owned(),
        detail: refused.detail,
    }
}

/// Screens the arguments. Returns the call without what the policies remove.
///
/// # Errors
/// -32011 with the reason (R16a).
pub(super) async fn screen_arguments<'r>(
    calls: &CallGovernor,
    caller: &CallerContext,
    record: &mut CallRecord<'_>,
    request: &'r Request,
) -> Result<Cow<'r, Request>, CallError> {
    let rules = &calls.screens.rules;
    let (scanner, action) = calls.screens.inbound_scan();
    if rules.input.is_empty() && scanner.is_idle() {
        return Ok(Cow::Borrowed(request));
    }
    let tool = record.tool().to_owned();
    let mut look = ScreeningPass::new(
        &calls.screens,
        *record.thread(),
        ScreenedTextKind::Arguments,
        &tool,
        &caller.notices,
    );
    let mut outcome = Ok(Cow::Borrowed(request));
    // Remove secrets first, so that they are not stored whatever else is wrong.
    let (clean, tally) = redact_arguments(&scanner, &request.arguments);
    if !tally.is_empty() {
        look.record_secrets(&tally, action_name(action)).await;
        let clean = match action {
            ScanAction::Redact | ScanAction::Block => clean,
            // Secrets that the operator gave this agent never leave it, even if a policy only warns.
            ScanAction::Warn => redact_arguments(&scanner.without_shapes(), &request.arguments).0,
        };
        if clean != request.arguments {
            record.replace_arguments(&clean);
            outcome = Ok(Cow::Owned(Request {
                arguments: clean,
                ..request.clone()
            }));
        }
        if action == ScanAction::Block {
            outcome = Err(refusal_error(
                &request.tool,
                crate::screen::secret_refusal(&tally),
            ));
        }
    }
    let value = Value::Object(request.arguments.clone());
    if let Err(finding) = rules.input.check_json(&value, canonical(&value).len()) {
        let fault = look.record_fault(&finding, &calls.screens.scanner());
        outcome = Err(refusal_error(&request.tool, fault));
    }
    record.add_drafts(look.drafts);
    outcome
}

/// Returns whether screening finds nothing in the arguments that would change or end the call.
pub(super) fn finds_nothing(calls: &CallGovernor, request: &Request) -> bool {
    let rules = &calls.screens.rules;
    let (scanner, _) = calls.screens.inbound_scan();
    if !scanner.is_idle() && !redact_arguments(&scanner, &request.arguments).1.is_empty() {
        return false;
    }
    let value = Value::Object(request.arguments.clone());
    rules.input.is_empty() || rules.input.check_json(&value, canonical(&value).len()).is_ok()
}

/// Removes known secrets from the names in a request, which are recorded before any other check.
pub(super) fn redact_names(calls: &CallGovernor, request: &mut Request) {
    let scanner = calls.screens.scanner().without_shapes();
    if scanner.is_idle() {
        return;
    }
    let names = [Some(&mut request.tool), Some(&mut request.identity)];
    let names = names
        .into_iter()
        .chain([request.sandbox.as_mut(), request.policy.as_mut()]);
    for name in names.flatten() {
        if let Some((clean, _told)) = scanner.redact(name) {
            *name = clean;
        }
    }
}

/// Removes known secrets from a preview, which quotes files that no call has read.
pub(super) fn redact_preview(calls: &CallGovernor, sheet: CallPreview) -> CallPreview {
    let scanner = calls.screens.scanner().without_shapes();
    if scanner.is_idle() {
        return sheet;
    }
    let clean = |text: &str| Some(scanner.redact(text)?.0);
    sheet.replaced(clean).unwrap_or(sheet)
}

/// Removes known secrets from the other texts of an approval request.
pub(super) fn redact_question(calls: &CallGovernor, question: &mut ApprovalQuestion) {
    let scanner = calls.screens.scanner().without_shapes();
    if scanner.is_idle() {
        return;
    }
    let clean = |text: &str| Some(scanner.redact(text)?.0);
    for line in question.explanation.iter_mut().chain([&mut question.reason]) {
        if let Some(text) = clean(line) {
            *line = text;
        }
    }
}

fn redact_arguments(scanner: &Scanner, arguments: &Map<String, Value>) -> (Map<String, Value>, LeakTally) {
    let mut value = Value::Object(arguments.clone());
    let tally = scanner.redact_json(&mut value);
    match value {
        Value::Object(clean) => (clean, tally),
        _ => (Map::new(), tally),
    }
}

/// Returns the outcome of a call in a form that everybody may see.
pub(super) async fn screen_outcome(
    calls: &CallGovernor,
    caller: &CallerContext,
    record: &mut CallRecord<'_>,
    outcome: Result<RunOutcome, CallError>,
    cancel: &CancellationToken,
) -> Result<RunOutcome, CallError> {
    let tool = record.tool().to_owned();
    let spot = if outcome.is_ok() {
        ScreenedTextKind::Result
    } else {
        ScreenedTextKind::Error
    };
    let mut look = ScreeningPass::new(&calls.screens, *record.thread(), spot, &tool, &caller.notices);
    let outcome = match outcome {
        Ok(ran) => Ok(screen_result(&*calls.judge, &mut look, ran, cancel).await),
        Err(error) => {
            // Arguments of a call that was refused before screening are stored without secrets, too.
            let (scanner, action) = calls.screens.inbound_scan();
            let scanner = match action {
                ScanAction::Redact | ScanAction::Block => scanner,
                ScanAction::Warn => scanner.without_shapes(),
            };
            if !scanner.is_idle() {
                let (clean, tally) = redact_arguments(&scanner, record.arguments());
                if !tally.is_empty() {
                    record.replace_arguments(&clean);
                }
            }
            Err(error_text(&mut look, error).await)
        }
    };
    record.add_drafts(look.drafts);
    outcome
}

/// Removes secrets from every text of an error. An error may quote what was sent and what came back.
async fn error_text(look: &mut ScreeningPass<'_>, error: CallError) -> CallError {
    let screens = look.screens;
    let (scanner, action) = screens.result_scan();
    let scanner = if matches!(
        screens.rules.secrets_in,
        Some(ScanAction::Redact | ScanAction::Block)
    ) {
        screens.scanner()
    } else {
        match action {
            ScanAction::Warn => scanner.without_shapes(),
            ScanAction::Redact | ScanAction::Block => scanner,
        }
    };
    if scanner.is_idle() {
        return error;
    }
    let Ok(mut value) = serde_json::to_value(&error) else {
        return error;
    };
    let tally = scanner.redact_json(&mut value);
    if tally.is_empty() {
        return error;
    }
    look.record_secrets(&tally, "redact").await;
    let tool = look.subject.to_owned();
    serde_json::from_value(value).unwrap_or_else(|_| CallError::Unavailable {
        tool, // silent-ok: an error that can't be told without its secrets is not told
        reason: "its error holds secrets and is withheld".to_owned(),
    })
}

async fn screen_result(
    judge: &dyn InjectionJudge,
    look: &mut ScreeningPass<'_>,
    mut ran: RunOutcome,
    cancel: &CancellationToken,
) -> RunOutcome {
    let (scanner, action) = look.screens.result_scan();
    if !scanner.is_idle() {
        let mut clean = ran.clone();
        let tally = take_out(&scanner, &mut clean);
        if !tally.is_empty() {
            look.record_secrets(&tally, action_name(action)).await;
            match action {
                ScanAction::Redact => ran = clean,
                ScanAction::Block => {
                    ran = withhold_result(ran, &crate::screen::secret_refusal(&tally).detail)
                }
                // Secrets that the operator gave this agent never leave it, even if a policy only warns.
                ScanAction::Warn => {
                    let _told = take_out(&scanner.without_shapes(), &mut ran);
                }
            }
        }
    }
    if look.screens.rules.injection.is_some() {
        let texts: Vec<String> = ran.content.iter().map(ContentBlock::as_model_text).collect();
        match judge.find_suspicion(look, &texts.join("\n"), cancel).await {
            InjectionSuspicion::Passes(None) => {}
            InjectionSuspicion::Passes(Some(mark)) => ran.content.insert(0, ContentBlock::text(mark)),
            InjectionSuspicion::Blocked(detail) => ran = withhold_result(ran, &detail),
        }
    }
    ran
}

/// Returns the outcome of a tool that ran and whose result is withheld.
fn withhold_result(ran: RunOutcome, why: &str) -> RunOutcome {
    RunOutcome {
        content: vec![ContentBlock::text(format!(
            "[withheld: the tool ran, and its output was not let through: {why}]"
        ))],
        is_error: true,
        structured: None,
        obtained: ran.obtained,
    }
}

/// Removes secrets from every part of a result, even if one is spread over several blocks.
fn take_out(scanner: &Scanner, ran: &mut RunOutcome) -> LeakTally {
    let mut tally = LeakTally::default();
    for block in &mut ran.content {
        match block {
            ContentBlock::Text { text } => {
                if let Some((clean, found)) = scanner.redact(text) {
                    *text = clean;
                    tally.join(&found);
                }
            }
            ContentBlock::Image { data, mime_type: _ } => {
                if let Some((clean, found)) = scanner.without_shapes().redact(data) {
                    *data = clean;
                    tally.join(&found);
                }
            }
            ContentBlock::Resource { resource } => tally.join(&scanner.redact_json(resource)),
        }
    }
    if let Some(structured) = &mut ran.structured {
        tally.join(&scanner.redact_json(structured));
    }
    if ran.content.len() > 1 {
        let texts: Vec<String> = ran.content.iter().map(ContentBlock::as_model_text).collect();
        if let Some((clean, found)) = scanner.redact(&texts.join("\n")) {
            ran.content = vec![ContentBlock::text(clean)];
            tally.join(&found);
        }
    }
    tally
}
