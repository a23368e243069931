//! A2A 0.3 at the same address: its methods have other names, and its objects other shapes. A request is read into 1.0, and its
//! result is written in 0.3, so both have one way through.

use clawk_proto::a2a;
pub(super) use clawk_proto::a2a::{old_event as event, old_task as task};
use serde_json::{Value, json};

/// The version of 0.3 on the card.
pub(super) const VERSION: &str = "0.3.0";

/// The method of 1.0 that one of 0.3 is, with its parameters; `None`: 0.3 has no such method.
pub(super) fn read(method: &str, params: &Value) -> Option<(&'static str, Value)> {
    let of = |name: &str| params.get(name).cloned().unwrap_or_default();
    let receiver = || json!({"taskId": of("id"), "id": of("pushNotificationConfigId")});
    Some(match method {
        "message/send" => ("SendMessage", message(params)),
        "message/stream" => ("SendStreamingMessage", message(params)),
        "tasks/get" => ("GetTask", params.clone()),
        "tasks/cancel" => ("CancelTask", params.clone()),
        "tasks/resubscribe" => ("SubscribeToTask", params.clone()),
        "tasks/pushNotificationConfig/set" => {
            let mut config = a2a::new_receiver(&of("pushNotificationConfig"));
            if let Some(config) = config.as_object_mut() {
                config.insert("taskId".to_owned(), of("taskId"));
            }
            ("CreateTaskPushNotificationConfig", config)
        }
        "tasks/pushNotificationConfig/get" => ("GetTaskPushNotificationConfig", receiver()),
        "tasks/pushNotificationConfig/list" => {
            ("ListTaskPushNotificationConfigs", json!({"taskId": of("id")}))
        }
        "tasks/pushNotificationConfig/delete" => ("DeleteTaskPushNotificationConfig", receiver()),
        "agent/getAuthenticatedExtendedCard" => ("GetExtendedAgentCard", json!({})),
        _ => return None,
    })
}

/// Parameters of a message. An answer is waited for unless `blocking` is `false`.
fn message(params: &Value) -> Value {
    let configuration = params.get("configuration");
    let of = |name: &str| configuration.and_then(|all| all.get(name));
    let push = of("pushNotificationConfig").filter(|config| !config.is_null());
    json!({
        "message": params.get("message").map(a2a::new_message),
        "configuration": {
            "returnImmediately": of("blocking") == Some(&Value::Bool(false)),
            "taskPushNotificationConfig": push.map(a2a::new_receiver),
        },
    })
}

/// The result of a method of 1.0, for a client of 0.3.
pub(super) fn result(method: &str, result: &Value) -> Value {
    match method {
        "SendMessage" => a2a::old_event(result),
        "GetTask" | "CancelTask" => a2a::old_task(result),
        "CreateTaskPushNotificationConfig" | "GetTaskPushNotificationConfig" => a2a::old_receiver(result),
        "ListTaskPushNotificationConfigs" => {
            let configs = result.get("configs").and_then(Value::as_array);
            configs.into_iter().flatten().map(a2a::old_receiver).collect()
        }
        _ => result.clone(),
    }
}
