//! A2A 0.3 at the same address. It has other method names and other object shapes. clawk translates each request to 1.0 and each
//! result back to 0.3, so both versions share one implementation.

use clawk_proto::a2a;
pub(super) use clawk_proto::a2a::{old_event as event, old_task as task};
use serde_json::{Value, json};

/// The version number that the card shows for 0.3.
pub(super) const VERSION: &str = "0.3.0";

/// Translates a method of 0.3 and its parameters to 1.0. `None`: 0.3 has no such method.
pub(super) fn read(method: &str, params: &Value) -> Option<(&'static str, Value)> {
    let of = |name: &str| params.get(name).cloned().unwrap_or_default();
    let receiver = || json!({"taskId": of("id"), "id": of("pushNotificationConfigId")});
    Some(match method {
        "message/send" => ("SendMessage", convert_message(params)),
        "message/stream" => ("SendStreamingMessage", convert_message(params)),
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

/// Translates the parameters of a message. The request waits for the answer unless `blocking` is `false`.
fn convert_message(params: &Value) -> Value {
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

/// Translates the result of a 1.0 method for a client of 0.3.
pub(super) fn convert_result(method: &str, result: &Value) -> Value {
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
