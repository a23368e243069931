//! What an Atlas says of an action's results and repetition acts; what a session's opener said comes back.

use serde_json::{Value, json};

use super::{execute, load, request, run, session};
use crate::AtlasSettings;
use crate::carp::NewSession;
use crate::testing::{Behaviour, Rig};
use crate::tests::{allow_all, rig};
use clawk_proto::carp::ExecutionStatus;

fn desk(action: Value) -> Rig {
    let retry = json!({"max_attempts": 3, "backoff": "constant"});
    let mut rig = rig(json!({
        "tools": [{"name": "look", "description": "looks", "input_schema": {"type": "object"}, "retry": retry}],
        "policies": [{"name": "policy", "rules": allow_all()}],
    }));
    let mut one =
        json!({"action_id": "desk.look", "name": "Look", "description": "looks", "executor": "tool:look"});
    one.as_object_mut()
        .unwrap()
        .extend(action.as_object().cloned().unwrap());
    let atlas = json!({
        "atlas_version": "1.0", "atlas_id": "com.example.desk", "version": "1.0.0", "name": "Desk",
        "description": "A desk.", "actions": [one],
    });
    rig.atlases = AtlasSettings {
        loaded: vec![load(&atlas)],
        clock_skew_ms: None,
        served: true,
        ..AtlasSettings::default()
    };
    rig
}

async fn look(rig: &Rig, parameters: Value) -> (ExecutionStatus, String) {
    let kernel = rig.start().await;
    let cra = kernel.cra_handle();
    let id = session(&cra).await.id;
    let resolution = cra
        .resolve_request(&request(id, 1, None))
        .await
        .unwrap()
        .resolution_id;
    let answer = execute(&cra, id, 2, run(resolution, "desk.look", parameters))
        .await
        .unwrap();
    (answer.status, json!([answer.result, answer.error]).to_string())
}

#[tokio::test]
async fn a_result_that_does_not_fit_returns_schema_is_an_error_and_stays_readable() {
    let schema = json!({"returns_schema": {"type": "object", "required": ["count"]}});
    let (status, text) = look(&desk(schema.clone()), json!({"text": "{\"count\": 1}"})).await;
    assert_eq!(status, ExecutionStatus::Success, "{text}");
    let (status, text) = look(&desk(schema), json!({"text": "{\"sum\": 17}"})).await;
    assert_eq!(status, ExecutionStatus::Error);
    assert!(text.contains("returns_schema") && text.contains("17"), "{text}");
}

#[tokio::test]
async fn an_idempotent_action_is_tried_again_and_another_is_not() {
    for (idempotent, runs) in [(true, 2), (false, 1)] {
        let rig = desk(json!({"idempotent": idempotent}));
        rig.runner.set("look", Behaviour::Flaky(1));
        let (status, text) = look(&rig, json!({"text": "x"})).await;
        assert_eq!(rig.runner.runs().len(), runs, "{text}");
        assert_eq!(status == ExecutionStatus::Success, idempotent, "{text}");
    }
}

#[tokio::test]
async fn a_restart_remembers_what_a_sessions_opener_said() {
    let rig = desk(json!({}));
    let kernel = rig.start().await;
    let said = json!({"ticket": 7, "ratio": 0.5}).as_object().cloned().unwrap();
    let new = NewSession {
        agent_id: "desk-1".to_owned(),
        goal: "help".to_owned(),
        parent: None,
        atlas_id: Some("com.example.desk".to_owned()),
        metadata: said.clone(),
        owner: "tester".to_owned(),
        id: None,
    };
    let opened = kernel.cra_handle().open_session(new).await.unwrap();
    kernel.shutdown("test", 1000).await;
    let kernel = rig.start().await;
    let view = kernel.cra_handle().session(opened.id).unwrap();
    assert_eq!((view.goal, view.metadata), ("help".to_owned(), said));
    assert_eq!(view.atlas_id.as_deref(), Some("com.example.desk"));
}
