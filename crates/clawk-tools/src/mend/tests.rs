use std::path::Path;

use clawk_kernel::ports::ReconcileMethod;
use serde_json::{Map, Value, json};

use super::{IdempotencyKeySlot, fill_template};
use crate::testing::{Ran, open_plan, runner, text};
use clawk_kernel::ports::ToolRunner as _;

fn facts() -> Map<String, Value> {
    serde_json::from_value(json!({"request_id": "r-1", "arguments": {"order": "a/../b?x=1#{y}", "n": 7}}))
        .expect("an object")
}

#[test]
fn what_a_value_holds_cannot_make_an_address_another_one() {
    let filled = fill_template(
        "http://shop/orders/{request_id}/{arguments.order}/{arguments.n}/{arguments.none}",
        &facts(),
    );
    assert_eq!(
        filled,
        "http://shop/orders/r-1/a%2F%2E%2E%2Fb%3Fx%3D1%23%7By%7D/7/"
    );
}

#[test]
fn keys_are_headers_or_arguments() {
    assert!(matches!(
        IdempotencyKeySlot::parse("header:Idempotency-Key"),
        Ok(IdempotencyKeySlot::Header(_))
    ));
    assert_eq!(
        IdempotencyKeySlot::parse("argument:key"),
        Ok(IdempotencyKeySlot::Argument("key".to_owned()))
    );
    for bad in ["Idempotency-Key", "header:a b", "argument:", "env:X"] {
        assert!(IdempotencyKeySlot::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_is_configured_says_how_an_unknown_outcome_is_found_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let way = |config: Value| {
        let tools = json!([{"name": "t"}, {"name": "status"}]);
        let mut all = json!({"t": {"command": ["/bin/true"]}, "status": {"command": ["/bin/true"]}});
        all["t"]
            .as_object_mut()
            .expect("a table")
            .extend(config.as_object().expect("a table").clone());
        runner(tools, &all.to_string(), dir.path()).reconcile_method("t")
    };
    assert_eq!(way(json!({})), ReconcileMethod::Person);
    assert_eq!(
        way(json!({"idempotency_key": "argument:key"})),
        ReconcileMethod::SameKey
    );
    assert_eq!(
        way(json!({"reconcile": {"command": ["/bin/true"]}, "idempotency_key": "argument:key"})),
        ReconcileMethod::Check
    );
    assert_eq!(
        way(json!({"reconcile": {"tool": "status"}})),
        ReconcileMethod::Tool("status".to_owned())
    );
}

async fn echoed(config: Value, dir: &Path) -> String {
    let runner = runner(json!([{"name": "t"}]), &json!({"t": config}).to_string(), dir);
    let ran = Ran::new(open_plan());
    text(&ran.run(&runner, dir, "t", json!({"a": 1})).await.expect("ran"))
}

#[tokio::test]
async fn an_argument_carries_the_key() {
    let dir = tempfile::tempdir().expect("a folder");
    let plain = json!({"command": ["/bin/cat"]});
    assert_eq!(echoed(plain, dir.path()).await, r#"{"a":1}"#);
    let keyed = json!({"command": ["/bin/cat"], "idempotency_key": "argument:key"});
    assert_eq!(echoed(keyed, dir.path()).await, r#"{"a":1,"key":"test-request"}"#);
}
