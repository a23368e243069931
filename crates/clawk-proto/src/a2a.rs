//! A2A 0.3 and 1.0: the same objects in two shapes. In 0.3, objects have a `kind`, states and roles are lower-case words, and a
//! file is a separate object. Members that are equal in both versions are kept unchanged.

use serde_json::{Map, Value, json};

const STATE: &str = "TASK_STATE_";
const ROLE: &str = "ROLE_";

/// Converts a task's state from 1.0 to 0.3: `TASK_STATE_AUTH_REQUIRED` becomes `auth-required`.
#[must_use]
pub fn old_state(state: &str) -> String {
    match state.strip_prefix(STATE) {
        Some("UNSPECIFIED") | None => "unknown".to_owned(),
        Some(word) => word.to_ascii_lowercase().replace('_', "-"),
    }
}

/// Converts a task's state from 0.3 to 1.0.
#[must_use]
pub fn new_state(state: &str) -> String {
    match state {
        "unknown" => format!("{STATE}UNSPECIFIED"),
        word => format!("{STATE}{}", word.to_ascii_uppercase().replace('-', "_")),
    }
}

/// Converts a message from 1.0 to 0.3.
#[must_use]
pub fn old_message(message: &Value) -> Value {
    let mut old = with_parts(message, old_part);
    change_member(&mut old, "role", |role| {
        Value::String(
            role.as_str()
                .unwrap_or_default()
                .trim_start_matches(ROLE)
                .to_ascii_lowercase(),
        )
    });
    kind(old, "message")
}

/// Converts a message from 0.3 to 1.0.
#[must_use]
pub fn new_message(message: &Value) -> Value {
    let mut new = with_parts(message, new_part);
    new.remove("kind");
    change_member(&mut new, "role", |role| {
        Value::String(format!(
            "{ROLE}{}",
            role.as_str().unwrap_or_default().to_ascii_uppercase()
        ))
    });
    Value::Object(new)
}

/// Converts a task from 1.0 to 0.3, where each task has a `contextId`.
#[must_use]
pub fn old_task(task: &Value) -> Value {
    let mut old = to_object(task);
    change_member(&mut old, "status", |status| old_status(&status));
    change_each_item(&mut old, "artifacts", |artifact| {
        Value::Object(with_parts(artifact, old_part))
    });
    change_each_item(&mut old, "history", old_message);
    old.entry("contextId")
        .or_insert_with(|| Value::String(String::new()));
    kind(old, "task")
}

/// Converts a task from 0.3 to 1.0.
#[must_use]
pub fn new_task(task: &Value) -> Value {
    let mut new = to_object(task);
    new.remove("kind");
    change_member(&mut new, "status", |status| new_status(&status));
    change_each_item(&mut new, "artifacts", |artifact| {
        Value::Object(with_parts(artifact, new_part))
    });
    change_each_item(&mut new, "history", new_message);
    Value::Object(new)
}

/// Converts one stream event (`task`, `message`, `statusUpdate`, `artifactUpdate`) from 1.0 to 0.3.
#[must_use]
pub fn old_event(event: &Value) -> Value {
    if let Some(task) = event.get("task") {
        return old_task(task);
    }
    if let Some(message) = event.get("message") {
        return old_message(message);
    }
    if let Some(update) = event.get("statusUpdate") {
        let mut old = to_object(update);
        let state = update
            .pointer("/status/state")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let ends = ["COMPLETED", "FAILED", "CANCELED", "REJECTED"];
        let last = ends.iter().any(|word| state.strip_prefix(STATE) == Some(word));
        old.insert("final".to_owned(), last.into());
        change_member(&mut old, "status", |status| old_status(&status));
        return kind(old, "status-update");
    }
    let mut old = to_object(event.get("artifactUpdate").unwrap_or(&Value::Null));
    change_member(&mut old, "artifact", |artifact| {
        Value::Object(with_parts(&artifact, old_part))
    });
    kind(old, "artifact-update")
}

/// Converts a push receiver (`pushNotificationConfig`) from 0.3 to 1.0.
#[must_use]
pub fn new_receiver(config: &Value) -> Value {
    let mut new = to_object(config);
    change_member(&mut new, "authentication", |authentication| {
        let mut new = to_object(&authentication);
        if let Some(schemes) = new.remove("schemes") {
            let first = schemes.get(0).cloned().unwrap_or_else(|| json!(""));
            new.insert("scheme".to_owned(), first);
        }
        Value::Object(new)
    });
    Value::Object(new)
}

/// Converts a task's push receiver from 1.0 to 0.3.
#[must_use]
pub fn old_receiver(config: &Value) -> Value {
    let mut old = to_object(config);
    let task = old.remove("taskId").unwrap_or_default();
    change_member(&mut old, "authentication", |authentication| {
        let mut old = to_object(&authentication);
        if let Some(scheme) = old.remove("scheme") {
            old.insert("schemes".to_owned(), json!([scheme]));
        }
        Value::Object(old)
    });
    json!({"taskId": task, "pushNotificationConfig": old})
}

fn old_status(status: &Value) -> Value {
    let mut old = to_object(status);
    change_member(&mut old, "state", |state| {
        old_state(state.as_str().unwrap_or_default()).into()
    });
    change_member(&mut old, "message", |message| old_message(&message));
    Value::Object(old)
}

fn new_status(status: &Value) -> Value {
    let mut new = to_object(status);
    change_member(&mut new, "state", |state| {
        new_state(state.as_str().unwrap_or_default()).into()
    });
    change_member(&mut new, "message", |message| new_message(&message));
    Value::Object(new)
}

fn old_part(part: &Value) -> Value {
    let mut old = to_object(part);
    let (mime_type, name) = (old.remove("mediaType"), old.remove("filename"));
    if old.contains_key("text") {
        return kind(old, "text");
    }
    if let Some(data) = old.remove("data") {
        // In 0.3, data is an object.
        let data = if data.is_object() {
            data
        } else {
            json!({"value": data})
        };
        old.insert("data".to_owned(), data);
        return kind(old, "data");
    }
    let mut file = Map::new();
    let members = [
        ("bytes", old.remove("raw")),
        ("uri", old.remove("url")),
        ("mimeType", mime_type),
        ("name", name),
    ];
    for (name, value) in members {
        file.extend(value.map(|value| (name.to_owned(), value)));
    }
    old.insert("file".to_owned(), Value::Object(file));
    kind(old, "file")
}

fn new_part(part: &Value) -> Value {
    let mut new = to_object(part);
    new.remove("kind");
    if let Some(Value::Object(mut file)) = new.remove("file") {
        let members = [
            ("bytes", "raw"),
            ("uri", "url"),
            ("mimeType", "mediaType"),
            ("name", "filename"),
        ];
        for (old, name) in members {
            new.extend(file.remove(old).map(|value| (name.to_owned(), value)));
        }
    }
    Value::Object(new)
}

fn to_object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn kind(mut object: Map<String, Value>, kind: &str) -> Value {
    object.insert("kind".to_owned(), kind.into());
    Value::Object(object)
}

/// Replaces a member, if it exists.
fn change_member(object: &mut Map<String, Value>, name: &str, by: impl FnOnce(Value) -> Value) {
    if let Some(value) = object.get_mut(name) {
        *value = by(value.take());
    }
}

fn change_each_item(object: &mut Map<String, Value>, name: &str, by: impl Fn(&Value) -> Value) {
    if let Some(all) = object.get_mut(name).and_then(Value::as_array_mut) {
        all.iter_mut().for_each(|one| *one = by(one));
    }
}

fn with_parts(holder: &Value, by: impl Fn(&Value) -> Value) -> Map<String, Value> {
    let mut holder = to_object(holder);
    change_each_item(&mut holder, "parts", by);
    holder
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{new_message, new_receiver, new_task, old_event, old_message, old_receiver, old_task};

    #[test]
    fn a_message_is_the_same_in_both_shapes() {
        let new = json!({"messageId": "m", "role": "ROLE_USER", "contextId": "c", "parts": [
            {"text": "look"}, {"raw": "AAAA", "mediaType": "image/png", "filename": "a.png"},
            {"url": "https://x.example/a"}, {"data": {"n": 1}}]});
        let old = json!({"kind": "message", "messageId": "m", "role": "user", "contextId": "c", "parts": [
            {"kind": "text", "text": "look"},
            {"kind": "file", "file": {"bytes": "AAAA", "mimeType": "image/png", "name": "a.png"}},
            {"kind": "file", "file": {"uri": "https://x.example/a"}}, {"kind": "data", "data": {"n": 1}}]});
        assert_eq!(old_message(&new), old);
        assert_eq!(new_message(&old), new);
    }

    #[test]
    fn a_task_is_the_same_in_both_shapes() {
        let new = json!({"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_AUTH_REQUIRED", "timestamp": "now",
            "message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "may I?"}]}},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "x"}]}], "history": []});
        let old = json!({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "auth-required", "timestamp": "now",
            "message": {"kind": "message", "messageId": "m", "role": "agent", "parts": [{"kind": "text", "text": "may I?"}]}},
            "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": "x"}]}], "history": []});
        assert_eq!(old_task(&new), old);
        assert_eq!(new_task(&old), new);
        assert_eq!(old_task(&json!({"id": "t"}))["contextId"], "", "0.3 wants one");
    }

    #[test]
    fn the_last_update_of_a_stream_says_so() {
        let update =
            |state: &str| old_event(&json!({"statusUpdate": {"taskId": "t", "status": {"state": state}}}));
        assert_eq!(
            update("TASK_STATE_WORKING"),
            json!({"kind": "status-update", "taskId": "t", "final": false, "status": {"state": "working"}})
        );
        assert_eq!(update("TASK_STATE_REJECTED")["final"], true);
        let piece = json!({"artifactUpdate": {"taskId": "t", "append": true, "artifact": {"artifactId": "a", "parts": [{"text": "x"}]}}});
        assert_eq!(old_event(&piece)["artifact"]["parts"][0]["kind"], "text");
        assert_eq!(old_event(&piece)["kind"], "artifact-update");
    }

    #[test]
    fn a_receiver_is_the_same_in_both_shapes() {
        let old = json!({"id": "r", "url": "https://x.example", "token": "t", "authentication": {"schemes": ["Bearer"], "credentials": "c"}});
        let new = json!({"id": "r", "url": "https://x.example", "token": "t", "authentication": {"scheme": "Bearer", "credentials": "c"}});
        assert_eq!(new_receiver(&old), new);
        let mut with_task = new;
        with_task["taskId"] = json!("t");
        assert_eq!(
            old_receiver(&with_task),
            json!({"taskId": "t", "pushNotificationConfig": old})
        );
    }
}
