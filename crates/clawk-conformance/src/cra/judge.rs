//! Runs and judges one case.

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::api::CraAuth;
use super::case::{self, ChainValidity, CraCase, CraCaseKind, Document, PointerChange, SequenceStep};
use super::complete::{self, AtlasPackage};
use super::report::CraShortfall;
use super::session::{CraSession, text_member};
use super::target::CraTarget;
use super::{golden, http};

pub(super) fn judge(target: &CraTarget, case: &CraCase) -> Result<(), CraShortfall> {
    match &case.what {
        CraCaseKind::CarpRequest(document) => document_of(target, "carp_request", document),
        CraCaseKind::AtlasManifest(document) => document_of(target, "atlas_manifest", document),
        CraCaseKind::TraceEvent(document) => document_of(target, "trace_event", document),
        CraCaseKind::Hash { event, expected_hash } => {
            let answer = ask_adapter(target, "cra.hash", &json!({ "event": event }))?;
            expect_value("hash", &json!(expected_hash), answer.get("hash"))
        }
        CraCaseKind::Chain {
            changes,
            expected,
            error,
            error_at,
        } => judge_chain(target, changes, *expected, error.as_deref(), *error_at),
        CraCaseKind::Resolve {
            atlas,
            request,
            expected,
        } => judge_resolve(target, atlas, request, expected),
        CraCaseKind::Sequence { atlas, sequence } => self::judge_sequence(target, atlas, sequence),
        CraCaseKind::Diff {
            trace_a,
            trace_b,
            expected_diff,
        } => {
            let answer = ask_adapter(target, "cra.diff", &json!({ "a": trace_a, "b": trace_b }))?;
            let wanted = ["compatibility", "differences"];
            wanted
                .iter()
                .filter_map(|key| Some((key, expected_diff.get(*key)?)))
                .try_for_each(|(key, wanted)| check_member(key, wanted, &answer))
        }
        CraCaseKind::Replay {
            golden,
            atlas_changes,
            identical,
        } => judge_replay(target, golden, atlas_changes, *identical),
        CraCaseKind::Golden { golden } => {
            golden::judge_folder(target, &golden::GoldenFolder::load_named(golden)?)
        }
        CraCaseKind::Folder(folder) => golden::judge_folder(target, folder),
        CraCaseKind::Http { steps } => http::judge_steps(target, steps),
    }
}

/// Sends a request to the adapter.
fn ask_adapter(target: &CraTarget, method: &str, params: &Value) -> Result<Value, CraShortfall> {
    let answer = target.adapter()?.ask_method(method, params)?;
    answer.ok_or_else(|| CraShortfall::Skipped(format!("the adapter has no `{method}`")))
}

fn expect_value(what: &str, wanted: &Value, found: Option<&Value>) -> Result<(), CraShortfall> {
    if found == Some(wanted) {
        return Ok(());
    }
    let got = found.map_or_else(|| "nothing".to_owned(), Value::to_string);
    Err(CraShortfall::from_mismatch(
        format!("{what} {wanted}"),
        got,
        Value::Null,
    ))
}

fn check_member(key: &str, wanted: &Value, answer: &Value) -> Result<(), CraShortfall> {
    let found = answer.get(key).cloned().unwrap_or_default();
    match (wanted, &found) {
        (Value::Array(wanted), Value::Array(list)) => {
            let all = wanted.len() == list.len()
                && wanted
                    .iter()
                    .zip(list)
                    .all(|(wanted, found)| crate::pattern::match_pattern(wanted, found).is_ok());
            if all {
                Ok(())
            } else {
                expect_value(key, &Value::from(wanted.clone()), Some(&found))
            }
        }
        _ => expect_value(key, wanted, Some(&found)),
    }
}

fn document_of(target: &CraTarget, schema: &str, document: &Document) -> Result<(), CraShortfall> {
    if !target.has_adapter() {
        return over_http(target, schema, document);
    }
    let params = json!({ "schema": schema, "input": document.input });
    let answer = ask_adapter(target, "cra.validate", &params)?;
    let valid = answer
        .get("valid")
        .and_then(Value::as_bool)
        .context("an answer without `valid`")?;
    check_validity(document.expected, valid, &answer)?;
    let Some(path) = &document.error_path else {
        return Ok(());
    };
    let errors = answer
        .get("errors")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let paths: Vec<&str> = errors.filter_map(|error| error.get("path")?.as_str()).collect();
    if paths.contains(&path.as_str()) {
        return Ok(());
    }
    Err(CraShortfall::from_mismatch(
        format!("an error at `{path}`"),
        format!("errors at {paths:?}"),
        answer.clone(),
    ))
}

/// Validates over the API if there is no adapter: resolves a request, or posts a manifest.
fn over_http(target: &CraTarget, schema: &str, document: &Document) -> Result<(), CraShortfall> {
    let operation = text_member(&document.input, "operation");
    let (path, taken) = match schema {
        "carp_request" if operation.as_deref() == Some("execute") => ("/v1/execute", [200, 404]),
        "carp_request" if operation.as_deref() == Some("validate") => {
            return Err(CraShortfall::Skipped("the API has no way to validate".to_owned()));
        }
        "carp_request" => ("/v1/resolve", [200, 404]),
        "atlas_manifest" => ("/v1/atlases", [201, 409]),
        _ => {
            return Err(CraShortfall::Skipped(
                "only an adapter can be asked this".to_owned(),
            ));
        }
    };
    let Some(served) = target.serve_api(&[])? else {
        return Err(CraShortfall::Skipped("there is no API".to_owned()));
    };
    let answer = served
        .api
        .send_request("POST", path, Some(&document.input), CraAuth::Bearer, None)?;
    let body = answer.body_json();
    if !taken.contains(&answer.status) && answer.status != 400 {
        return Err(CraShortfall::from_mismatch("taken or 400", answer.status, body));
    }
    if answer.status == 201
        && let Some(id) = text_member(&document.input, "atlas_id")
    {
        served.api.send_request(
            "DELETE",
            &format!("/v1/atlases/{id}"),
            None,
            CraAuth::Bearer,
            None,
        )?;
    }
    check_validity(document.expected, answer.status != 400, &body)?;
    match &document.error_path {
        Some(path) if !answer.text.contains(path.trim_start_matches('/')) => Err(
            CraShortfall::from_mismatch(format!("an error that names `{path}`"), &answer.text, body),
        ),
        Some(_) | None => Ok(()),
    }
}

fn check_validity(expected: ChainValidity, valid: bool, answer: &Value) -> Result<(), CraShortfall> {
    let got = if valid {
        ChainValidity::Valid
    } else {
        ChainValidity::Invalid
    };
    if got == expected {
        return Ok(());
    }
    Err(CraShortfall::from_mismatch(
        expected.name(),
        got.name(),
        answer.clone(),
    ))
}

fn judge_chain(
    target: &CraTarget,
    changes: &[PointerChange],
    expected: ChainValidity,
    error: Option<&str>,
    error_at: Option<u64>,
) -> Result<(), CraShortfall> {
    let events = damaged_chain(changes)?;
    let answer = ask_adapter(target, "cra.verify", &json!({ "events": events }))?;
    let valid = answer
        .get("valid")
        .and_then(Value::as_bool)
        .context("an answer without `valid`")?;
    check_validity(expected, valid, &answer)?;
    if let Some(error) = error {
        expect_value("error", &json!(error), answer.get("error"))?;
    }
    match error_at {
        Some(at) => expect_value("error_at", &json!(at), answer.get("error_at")),
        None => Ok(()),
    }
}

/// Returns the golden chain with changes. If asked for, the digests are recomputed.
fn damaged_chain(changes: &[PointerChange]) -> Result<Value> {
    let mut events = Value::from(golden::load_trace("multi-action")?);
    for change in changes {
        case::apply_changes(&mut events, std::slice::from_ref(change))?;
        if change.reseal {
            let index = change.pointer.trim_start_matches('/');
            let index = index.split('/').next().unwrap_or_default();
            let event = events
                .pointer_mut(&format!("/{index}"))
                .with_context(|| format!("no event {index}"))?;
            let hash = super::own::hash(event)?;
            if let Value::Object(members) = event {
                members.insert("event_hash".to_owned(), json!(hash));
            }
        }
    }
    Ok(events)
}

fn open_session<'t>(
    target: &'t CraTarget,
    package: AtlasPackage,
    parts: &Value,
) -> Result<CraSession<'t>, CraShortfall> {
    let goal = parts
        .pointer("/task/goal")
        .and_then(Value::as_str)
        .unwrap_or("Test goal");
    let agent = parts
        .pointer("/requester/agent_id")
        .and_then(Value::as_str)
        .unwrap_or("test-agent");
    CraSession::open(target, &[package], agent, goal)
}

fn judge_resolve(
    target: &CraTarget,
    atlas: &Map<String, Value>,
    parts: &Map<String, Value>,
    expected: &Map<String, Value>,
) -> Result<(), CraShortfall> {
    let mentioned: Vec<String> = text_member(&Value::Object(parts.clone()), "action")
        .into_iter()
        .collect();
    let request = complete::complete_request(parts);
    let session = open_session(target, complete::complete_atlas(atlas, &mentioned), &request)?;
    let found = session.resolve_request(request)?;
    for (key, wanted) in expected {
        let got = match key.as_str() {
            "decision" => found.pointer("/decision/type").cloned(),
            "policy_id" => found.pointer("/denied_actions/0/policy_id").cloned(),
            "reason" => found.pointer("/denied_actions/0/reason").cloned(),
            "allowed_actions" => Some(select_members(&found, "/allowed_actions", "action_id", &[])),
            "denied_actions" => Some(select_members(
                &found,
                "/denied_actions",
                "action_id",
                &["policy_id"],
            )),
            // The document's field; the schema has this information under `metadata`.
            "context_blocks" => Some(select_source_packs(&found)),
            "constraints" => Some(select_members(&found, "/constraints", "type", &[])),
            other => {
                return Err(
                    anyhow::anyhow!("a case expects `{other}`, which is not a known expectation").into(),
                );
            }
        };
        expect_value(key, wanted, got.as_ref()).map_err(|miss| with_details(miss, &found))?;
    }
    Ok(())
}

fn with_details(miss: CraShortfall, whole: &Value) -> CraShortfall {
    match miss {
        CraShortfall::Failed { error, .. } => CraShortfall::Failed {
            error,
            details: json!({ "whole": whole }),
        },
        CraShortfall::Skipped(reason) => CraShortfall::Skipped(reason),
    }
}

/// Returns selected members of every entry at `pointer`.
fn select_members(found: &Value, pointer: &str, first: &str, more: &[&str]) -> Value {
    let entries = found
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    entries
        .map(|entry| {
            let keys = std::iter::once(first).chain(more.iter().copied());
            keys.filter_map(|key| Some((key.to_owned(), entry.get(key)?.clone())))
                .collect::<Value>()
        })
        .collect()
}

fn select_source_packs(found: &Value) -> Value {
    let blocks = found
        .pointer("/context_blocks")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    blocks
        .map(|block| {
            let pack = block
                .pointer("/metadata/source_pack")
                .or_else(|| block.get("source_pack"));
            json!({ "source_pack": pack })
        })
        .collect()
}

fn judge_sequence(
    target: &CraTarget,
    atlas: &Map<String, Value>,
    steps: &[SequenceStep],
) -> Result<(), CraShortfall> {
    let mentioned: Vec<String> = steps.iter().map(|step| step.action.clone()).collect();
    let request = complete::complete_request(&Map::new());
    let session = open_session(target, complete::complete_atlas(atlas, &mentioned), &request)?;
    let mut resolution = session.resolve_request(request.clone())?;
    for (number, step) in steps.iter().enumerate() {
        let id = text_member(&resolution, "resolution_id").context("a resolution without an id")?;
        let mut execute = request.clone();
        if let Value::Object(members) = &mut execute {
            let execution = json!({
                "resolution_id": id, "action_id": step.action, "parameters": {}, "idempotency_key": null,
            });
            members.insert("execution".to_owned(), execution);
            members.insert("operation".to_owned(), json!("execute"));
        }
        let executed = session.execute_action(execute, &id)?;
        let got = match executed.status.as_str() {
            "success" => "allow",
            "denied" => "deny",
            "pending_approval" => "requires_approval",
            other => other,
        };
        let at = format!("step {number} (`{}`)", step.action);
        if got != step.expected {
            return Err(CraShortfall::from_mismatch(
                format!("{at}: {}", step.expected),
                got,
                executed.body,
            ));
        }
        if let Some(reason) = &step.reason {
            resolution = session.resolve_request(request.clone())?;
            let said = format!(
                "{} {}",
                executed.body,
                resolution.pointer("/denied_actions").unwrap_or(&Value::Null)
            );
            if !said.contains(reason.as_str()) {
                return Err(CraShortfall::from_mismatch(
                    format!("{at}: reason `{reason}`"),
                    said,
                    executed.body,
                ));
            }
        }
    }
    Ok(())
}

fn judge_replay(
    target: &CraTarget,
    golden: &str,
    changes: &[PointerChange],
    identical: bool,
) -> Result<(), CraShortfall> {
    let mut package = golden::load_package(golden)?;
    case::apply_changes(&mut package.manifest, changes)?;
    let files: Value = package
        .files
        .iter()
        .map(|(name, text)| (name.clone(), Value::from(text.as_str())))
        .collect();
    let params = json!({
        "atlases": [{ "manifest": package.manifest, "files": files }],
        "trace": golden::load_trace(golden)?,
    });
    let answer = ask_adapter(target, "cra.replay", &params)?;
    expect_value("identical", &json!(identical), answer.get("identical"))
}
