//! Checks that an agent accepts valid manifests and refuses invalid ones for the right reason.

use std::time::Instant;

use serde_json::{Value, json};

use super::play::{
    AgentName, CALLER, VectorFailure, agent_name, expect_match, initialize_agent, open_session,
};
use super::target::{CkpTarget, ValidationJudgement};
use super::vector::{ManifestCase, Vector};

/// Tests a manifest over the wire; for clawk itself also with `clawk validate`.
pub(super) fn judge(
    case: &ManifestCase,
    vector: &Vector,
    target: &CkpTarget,
    agent: &mut Option<AgentName>,
) -> Result<(), VectorFailure> {
    on_the_wire(case, vector, target, agent)?;
    target
        .validate_document(&case.document)
        .map_or(Ok(()), |judgement| judge_locally(case, &judgement))
}

fn on_the_wire(
    case: &ManifestCase,
    vector: &Vector,
    target: &CkpTarget,
    agent: &mut Option<AgentName>,
) -> Result<(), VectorFailure> {
    let mut session = open_session(target, "wire")?;
    let connection = &mut session.connection;
    let until = Instant::now() + target.time_limit(vector.deadline_ms);
    let answer = initialize_agent(connection, &as_claw(&case.document), until)
        .map_err(|it| it.with_record(connection))?;
    let verdict = if case.accept {
        let level = case.level.as_deref().filter(|_| target.is_own());
        let level = level.map_or(json!({ "$prefix": "level-" }), |level| json!(level));
        expect_match(&json!({ "result": { "conformanceLevel": level } }), &answer)
    } else {
        let code = if target.is_own() {
            json!(-32602)
        } else {
            json!({ "$any": [-32602, -32060] })
        };
        expect_match(
            &json!({ "error": { "code": code, "message": { "$text": true } } }),
            &answer,
        )
        .and_then(|()| check_refusal_reason(case, target, &answer))
    };
    if let Some(name) = agent_name(&answer) {
        agent.get_or_insert(name);
    }
    verdict.map_err(|it| it.with_record(connection))
}

/// Checks that clawk refuses for the right reason and reports it in `data` (R3).
fn check_refusal_reason(
    case: &ManifestCase,
    target: &CkpTarget,
    answer: &Value,
) -> Result<(), VectorFailure> {
    let data = answer.pointer("/error/data").unwrap_or(&Value::Null).to_string();
    match case
        .blame
        .as_deref()
        .filter(|blame| target.is_own() && !data.contains(blame))
    {
        Some(blame) => Err(VectorFailure::new(
            format!("`{blame}` among the errors in `data`"),
            data,
        )),
        None => Ok(()),
    }
}

fn judge_locally(
    case: &ManifestCase,
    judgement: &Result<ValidationJudgement, String>,
) -> Result<(), VectorFailure> {
    let judgement = judgement
        .as_ref()
        .map_err(|error| VectorFailure::new("`clawk validate` answers", error))?;
    let ValidationJudgement { valid, level, errors } = judgement;
    let word = if case.accept { "valid" } else { "invalid" };
    if *valid != case.accept {
        return Err(VectorFailure::new(
            format!("`clawk validate` finds it {word}"),
            format!("valid: {valid}; {errors}"),
        ));
    }
    match (&case.level, &case.blame) {
        (Some(wanted), _) if level != wanted => Err(VectorFailure::new(
            format!("`clawk validate` says {wanted}"),
            level.clone(),
        )),
        (_, Some(blame)) if !errors.contains(blame) => Err(VectorFailure::new(
            format!("`clawk validate` blames `{blame}`"),
            errors.clone(),
        )),
        _ => Ok(()),
    }
}

/// Returns a Claw unchanged. Wraps another primitive in the smallest Claw that can hold it.
fn as_claw(document: &Value) -> Value {
    let mut claw = smallest_claw();
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind == "Claw" {
        return document.clone();
    }
    let mut inline = document.get("spec").cloned().unwrap_or_default();
    if let (Some(inline), Some(name)) = (inline.as_object_mut(), document.pointer("/metadata/name")) {
        inline.insert("name".to_owned(), name.clone());
    }
    if let Some(spec) = claw.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert(format!("{}s", kind.to_lowercase()), json!([{ "inline": inline }]));
    }
    claw
}

/// Returns a manifest that every agent must accept.
pub(super) fn smallest_claw() -> Value {
    json!({
        "claw": "0.2.0", "kind": "Claw", "metadata": { "name": CALLER },
        "spec": {
            "identity": { "inline": { "personality": "Plays the conformance vectors." } },
            "providers": [{ "inline": {
                "protocol": "openai-compatible", "endpoint": "http://localhost:11434/v1", "model": "llama3",
                "auth": { "type": "none" }
            } }]
        }
    })
}
