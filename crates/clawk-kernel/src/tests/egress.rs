//! What a call reached stands in the trace, with the call, whatever its outcome.

use clawk_trace::verify_events;
use serde_json::{Value, json};

use super::{agent, allow_all, params, rig, rpc};
use crate::ports::{CallConnection, ConnectionCollector, ReachedConnections, RunError};
use crate::testing::Behaviour;

fn connection(host: &str, refused: bool) -> CallConnection {
    CallConnection {
        via: "connect",
        host: host.to_owned(),
        port: 443,
        address: Some([1, 1, 1, 1].into()),
        rule: Some("*.test".to_owned()),
        private: false,
        terminated: true,
        bytes_out: 10,
        bytes_in: 20,
        duration_ms: 3,
        secrets: vec!["KEY".into()],
        findings: vec!["word".to_owned()],
        refused: refused.then(|| ("sni", "another name".to_owned())),
    }
}

#[tokio::test]
async fn connections_are_events_of_their_call() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let reached = ReachedConnections {
        connections: vec![connection("a.test", false), connection("b.test", true)],
        ..ReachedConnections::default()
    };
    let lost = Behaviour::Error(RunError::Unknown("lost".to_owned()));
    for (n, then) in [(1, Behaviour::Echo), (2, lost)] {
        rig.runner
            .set("write", Behaviour::Reach(reached.clone(), Box::new(then)));
        let _ = kernel.call(session, params("write", json!({}), n)).await;
    }
    let events: Vec<Value> = rig
        .journal
        .trace()
        .iter()
        .map(|event| serde_json::to_value(event).unwrap())
        .filter(|event| {
            event["event_type"].as_str().unwrap().contains("egress")
                || event["event_type"] == "action.executed"
                || event["event_type"] == "action.failed"
        })
        .collect();
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["event_type"].as_str().unwrap())
        .collect();
    let each = ["ckp.egress.connected", "ckp.egress.refused"];
    assert_eq!(
        kinds,
        [
            each[0],
            each[1],
            "action.executed",
            each[0],
            each[1],
            "action.failed"
        ]
    );
    let payload = &events[0]["payload"];
    assert_eq!(
        payload,
        &json!({"action_id": "write", "address": "1.1.1.1", "bytes_in": 20, "bytes_out": 10, "duration_ms": 3,
            "findings": ["word"], "host": "a.test", "port": 443, "private": false,
            "request_id": "00000000-0000-4000-8000-000000000001", "rule": "*.test", "secrets": ["KEY"],
            "terminated": true, "via": "connect"})
    );
    assert_eq!(events[1]["payload"]["code"], "sni");
    assert_eq!(events[0]["span_id"], events[2]["span_id"]);
    assert!(verify_events(rig.journal.trace()).valid);
}

#[test]
fn a_flood_is_summed_up_and_its_bytes_are_counted() {
    let connections = ConnectionCollector::default();
    for _ in 0..100 {
        connections.add_connections(ReachedConnections {
            connections: vec![connection("a.test", false), connection("b.test", true)],
            more_bytes_out: 1,
            ..ReachedConnections::default()
        });
    }
    assert_eq!(connections.bytes_out(), 100 * 21);
    let reached = connections.take_connections();
    assert_eq!(reached.connections.len(), ConnectionCollector::KEPT);
    assert_eq!((reached.more_connected, reached.more_refused), (68, 68));
    assert_eq!(connections.bytes_out(), 0);
}
