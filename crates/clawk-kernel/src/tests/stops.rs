//! The emergency stop, the roles of senders, and the rates of the whole agent.

use std::sync::Arc;
use std::time::Duration;

use clawk_manifest::model::Role;
use clawk_proto::SessionId;
use serde_json::{Value, json};

use super::{agent, allow_all, id, params, rig, rpc};
use crate::error::{CallError, DeniedBy};
use crate::notice::{SessionNotice, TurnEnd};
use crate::stop::{Level, StopOrder};
use crate::testing::{Behaviour, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel, KnownPerson, kind, stop};

fn operator() -> KnownPerson {
    KnownPerson::admin("control", "ann")
}

async fn stop(kernel: &Kernel, session: Option<SessionId>, level: Level) {
    kernel
        .engage_stop(session, level, &operator(), Some("fire".to_owned()))
        .await
        .unwrap();
}

fn stopped(error: &CallError) -> bool {
    matches!(error, CallError::Denied { by: DeniedBy::Stop, reason, .. } if reason.contains("fire"))
}

#[tokio::test]
async fn a_stop_ends_what_runs_within_a_second_and_refuses_what_is_new() {
    let rig = rig(agent(allow_all()));
    rig.runner.set("write", Behaviour::Sleep(60_000));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let running = tokio::spawn(kernel.call(session, params("write", json!({}), 1)));
    while rig.runner.runs().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stop(&kernel, None, Level::NoTools).await;
    let ended = tokio::time::timeout(Duration::from_secs(1), running)
        .await
        .expect("within a second");
    assert!(matches!(ended.unwrap(), Err(CallError::Unknown { .. })));
    for (tool, n) in [("write", 2), ("echo", 3)] {
        let error = kernel
            .call(session, params(tool, json!({"text": "x"}), n))
            .await
            .unwrap_err();
        assert!(stopped(&error), "{error}");
    }
    assert_eq!(rig.runner.runs().len(), 1);
    // It survives a restart; only an admin lifts it.
    drop(kernel);
    let kernel = rig.start().await;
    assert_eq!(kernel.active_stops().len(), 1);
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("echo", json!({"text": "x"}), 4))
        .await
        .unwrap_err();
    assert!(stopped(&error), "{error}");
    for role in [Role::Viewer, Role::User] {
        let person = KnownPerson { role, ..operator() };
        assert!(!kernel.lift_stop(None, &person).await.unwrap());
        assert_eq!(kernel.active_stops().len(), 1);
    }
    assert!(kernel.lift_stop(None, &operator()).await.unwrap());
    kernel
        .call(session, params("echo", json!({"text": "x"}), 5))
        .await
        .unwrap();
    let kinds = rig.journal.kinds();
    assert!(kinds.contains(&kind::STOP_ENGAGED.to_owned()) && kinds.contains(&kind::STOP_LIFTED.to_owned()));
    drop(kernel);
    assert_eq!(rig.start().await.active_stops(), []);
}

#[tokio::test]
async fn a_stop_of_one_session_leaves_the_others_and_no_network_leaves_the_rest() {
    let mut spec = agent(allow_all());
    spec["tools"].as_array_mut().unwrap().push(json!(
        {"name": "fetch", "description": "f", "input_schema": {"type": "object"}, "annotations": {"openWorldHint": true, "readOnlyHint": true}}));
    let rig = rig(spec);
    let kernel = rig.start().await;
    let (one, two) = (rpc(&kernel).await, rpc(&kernel).await);
    stop(&kernel, Some(one), Level::NoTools).await;
    assert!(stopped(
        &kernel.call(one, params("write", json!({}), 1)).await.unwrap_err()
    ));
    kernel.call(two, params("write", json!({}), 2)).await.unwrap();
    stop(&kernel, None, Level::NoNetwork).await;
    kernel.call(two, params("write", json!({}), 3)).await.unwrap();
    assert!(stopped(
        &kernel.call(two, params("fetch", json!({}), 4)).await.unwrap_err()
    ));
    assert!(
        stopped(&kernel.call(one, params("write", json!({}), 5)).await.unwrap_err()),
        "the stricter one holds"
    );
}

#[tokio::test]
async fn frozen_keeps_messages_and_asks_no_model() {
    let mut rig = rig(agent(allow_all()));
    let model = Arc::new(ScriptedModel::saying("hello"));
    rig.models.insert("model".to_owned(), Arc::clone(&model));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    stop(&kernel, None, Level::Frozen).await;
    session.send_text("are you there").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(model.asked().len(), 0, "no model is asked");
    assert!(
        rig.journal.inbox().iter().any(|(_, end)| end.is_none()),
        "the message is kept"
    );
    kernel.lift_stop(None, &operator()).await.unwrap();
    loop {
        if let Some(SessionNotice::TurnEnded { end, .. }) = session.next_notice().await {
            assert_eq!(end, TurnEnd::Answered);
            break;
        }
    }
    assert_eq!(model.asked().len(), 1);
}

#[tokio::test]
async fn a_frozen_agent_still_stops_in_order_and_answers_after_the_next_start() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    stop(&kernel, None, Level::Frozen).await;
    session.send_text("later").await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), kernel.shutdown("test", 50))
        .await
        .expect("it ends");
    assert!(
        rig.journal.inbox().iter().all(|(_, end)| end.is_none()),
        "kept, not lost"
    );
    let order = StopOrder::Lift { session: None };
    let clock = Arc::clone(&rig.clock);
    let left = stop::write_offline_order(Arc::clone(&rig.journal) as _, clock, Some(order), &operator())
        .await
        .unwrap();
    assert_eq!(left, []);
    let _kernel = rig.start().await;
    while rig.journal.inbox().iter().any(|(_, end)| end.is_none()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_agent_that_does_not_run_can_be_stopped() {
    let rig = rig(agent(allow_all()));
    let order = StopOrder::Engage {
        level: Level::NoTools,
        session: None,
        reason: Some("fire".to_owned()),
    };
    let clock = Arc::clone(&rig.clock);
    let stops = stop::write_offline_order(Arc::clone(&rig.journal) as _, clock, Some(order), &operator())
        .await
        .unwrap();
    assert_eq!(stops.len(), 1);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    assert!(stopped(
        &kernel
            .call(session, params("write", json!({}), 1))
            .await
            .unwrap_err()
    ));
}

fn channel(role: Role) -> EntryPoint {
    EntryPoint::Channel {
        channel: "slack".to_owned(),
        conversation: "C1".to_owned(),
        direct: true,
        sender: "U1".to_owned(),
        role,
    }
}

#[tokio::test]
async fn a_viewer_triggers_no_tool() {
    for (role, runs) in [(Role::Viewer, 0), (Role::User, 1)] {
        let mut rig = rig(agent(allow_all()));
        let model = ScriptedModel::new(|_, count| {
            Ok(if count == 1 {
                calls(&[("echo", json!({"text": "x"}))])
            } else {
                says("done")
            })
        });
        rig.models.insert("model".to_owned(), Arc::new(model));
        let kernel = rig.start().await;
        let session = kernel.open_session(channel(role)).await.unwrap();
        session.send_text("go").await.unwrap();
        while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
        assert_eq!(rig.runner.runs().len(), runs, "{role}");
        let denied = rig
            .journal
            .events()
            .into_iter()
            .any(|event| event.kind == kind::ACTION_DENIED && event.payload.contains(r#""by":"role""#));
        assert_eq!(denied, role == Role::Viewer);
    }
}

fn limited(rates: Value) -> Value {
    let mut spec = agent(allow_all());
    spec["policies"][0]["rate_limits"] = rates;
    spec
}

#[tokio::test]
async fn r16a_calls_of_a_minute_are_bounded_and_the_window_survives() {
    let rig = rig(limited(json!({"tool_calls_per_minute": 2})));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    for n in 1..=2 {
        kernel.call(session, params("write", json!({}), n)).await.unwrap();
    }
    let full = async |kernel: &Kernel, n: u32| {
        let session = rpc(kernel).await;
        let error = kernel
            .call(session, params("write", json!({}), n))
            .await
            .unwrap_err();
        let CallError::Denied {
            by: DeniedBy::Rate,
            retry_after_ms: Some(wait),
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert!((1..=60_001).contains(&wait), "{wait}");
    };
    full(&kernel, 3).await;
    drop(kernel);
    let kernel = rig.start().await;
    full(&kernel, 4).await;
    rig.clock.advance_ms(60_001);
    let session = rpc(&kernel).await;
    kernel.call(session, params("write", json!({}), 5)).await.unwrap();
    assert!(
        kernel
            .pending_questions()
            .iter()
            .all(|question| question.request_id != id(5))
    );
}
