//! Bodies have the names and types of the protocol's public OpenAPI description: clients are written against them.

use serde_json::{Value, json};

use super::{guarded, request};

fn texts(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value[name].is_string(), "`{name}` in {value}");
    }
}

#[tokio::test]
async fn health_says_how_each_part_is() {
    let server = guarded().await;
    let (_, health) = server.get("", "/v1/health").await;
    texts(&health, &["status", "version"]);
    assert_eq!(health["status"], "healthy");
    assert!(health["uptime_seconds"].is_u64());
    assert_eq!(health["checks"]["agent"]["status"], "pass");
    texts(&health["checks"]["agent"], &["message"]);
}

#[tokio::test]
async fn a_session_gives_back_what_its_opener_said() {
    let server = guarded().await;
    let said = json!({"ticket": 7, "ratio": 0.5, "tags": ["a"]});
    let body = json!({"agent_id": "desk", "goal": "help", "atlas_id": "com.example.desk", "metadata": said});
    let (status, session) = server.post("ann", "/v1/sessions", &body).await;
    assert_eq!(status, 201, "{session}");
    texts(
        &session,
        &[
            "session_id",
            "agent_id",
            "status",
            "created_at",
            "goal",
            "atlas_id",
        ],
    );
    assert_eq!(session["metadata"], said);
    assert!(session.get("ended_at").is_none(), "{session}");
    let path = format!("/v1/sessions/{}", session["session_id"].as_str().unwrap());
    assert_eq!(server.get("ann", &path).await.1["metadata"], said);
    server.send("ann", "DELETE", &path, None, "").await;
    texts(&server.get("ann", &path).await.1, &["ended_at"]);
    let large = json!({"agent_id": "desk", "goal": "help", "metadata": {"x": "y".repeat(5_000)}});
    let (status, refused) = server.post("ann", "/v1/sessions", &large).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused.to_string().contains("/metadata"), "{refused}");
}

#[tokio::test]
async fn a_list_of_sessions_has_pages_and_a_status() {
    let server = guarded().await;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(server.session("ann").await);
    }
    server.session("bob").await;
    let gone = format!("/v1/sessions/{}", made.remove(0));
    server.send("ann", "DELETE", &gone, None, "").await;
    let ids = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().unwrap().iter();
        items
            .map(|one| one["session_id"].as_str().unwrap().to_owned())
            .collect()
    };
    let (_, active) = server.get("ann", "/v1/sessions").await;
    assert_eq!(
        ids(&active),
        [made[1].clone(), made[0].clone()],
        "the latest first"
    );
    assert_eq!(
        (&active["total"], &active["limit"], &active["offset"]),
        (&json!(2), &json!(20), &json!(0))
    );
    let (_, second) = server.get("ann", "/v1/sessions?limit=1&offset=1").await;
    assert_eq!(
        (ids(&second), &second["total"]),
        (vec![made[0].clone()], &json!(2))
    );
    assert_eq!(server.get("ann", "/v1/sessions?status=ended").await.1["total"], 1);
    assert_eq!(server.get("ann", "/v1/sessions?status=all").await.1["total"], 3);
    assert_eq!(server.get("ops", "/v1/sessions?status=all").await.1["total"], 4);
    for wrong in ["limit=0", "limit=101", "offset=-1", "status=gone", "since=1"] {
        assert_eq!(
            server.get("ann", &format!("/v1/sessions?{wrong}")).await.0,
            400,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_trace_goes_on_behind_the_last_sequence() {
    let server = guarded().await;
    let session = server.session("ann").await;
    let (_, resolution) = server
        .post("ann", "/v1/resolve", &request(&session, 1, None))
        .await;
    let path = format!("/v1/traces/{session}");
    let (_, whole) = server.get("ann", &path).await;
    let all: Vec<u64> = sequences(&whole);
    assert_eq!(whole["total"], all.len());
    assert_eq!(whole["last_sequence"], *all.last().unwrap());
    texts(&whole, &["session_id"]);
    let mut seen = Vec::new();
    let mut next = format!("{path}?limit=2");
    loop {
        let (_, page) = server.get("ann", &next).await;
        let found = sequences(&page);
        if found.is_empty() {
            assert!(page.get("last_sequence").is_none(), "{page}");
            break;
        }
        seen.extend(found);
        next = format!("{path}?limit=2&since_sequence={}", page["last_sequence"]);
    }
    assert_eq!(seen, all, "no event twice, none left out");
    for denied in resolution["denied_actions"].as_array().unwrap() {
        texts(denied, &["action_id", "reason"]);
        assert!(!denied.as_object().unwrap().contains_key("policy_id") || denied["policy_id"].is_string());
    }
}

fn sequences(page: &Value) -> Vec<u64> {
    let events = page["events"].as_array().unwrap().iter();
    events.map(|event| event["sequence"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn a_denied_execution_is_an_event_that_names_action_and_policy() {
    let server = guarded().await;
    let session = server.session("ann").await;
    let (_, resolution) = server
        .post("ann", "/v1/resolve", &request(&session, 1, None))
        .await;
    let run =
        json!({"resolution_id": resolution["resolution_id"], "action_id": "note.delete", "parameters": {}});
    let (status, _) = server
        .post("ann", "/v1/execute", &request(&session, 2, Some(run)))
        .await;
    assert_eq!(status, 403);
    let path = format!("/v1/traces/{session}?event_type=action.denied");
    let (_, page) = server.get("ann", &path).await;
    assert_eq!(page["total"], 1, "{page}");
    let denied = &page["events"][0]["payload"];
    assert_eq!(
        (&denied["action_id"], &denied["policy_id"]),
        (&json!("note.delete"), &json!("no-delete"))
    );
}

#[tokio::test]
async fn atlases_are_listed_in_short_and_shown_as_they_were_loaded() {
    let server = guarded().await;
    let posted = json!({"atlas_version": "1.0", "atlas_id": "com.example.posted", "version": "1.0.0", "name": "Posted",
        "description": "Sent", "domains": ["desks"], "actions": [{"action_id": "posted.look", "name": "Look", "description": "Looks"}]});
    let (status, loaded) = server.post("ops", "/v1/atlases", &posted).await;
    assert_eq!(status, 201, "{loaded}");
    texts(
        &loaded,
        &["atlas_id", "version", "name", "description", "loaded_at"],
    );
    assert_eq!(
        (&loaded["domains"], &loaded["action_count"]),
        (&json!(["desks"]), &json!(1))
    );
    let (_, list) = server.get("ann", "/v1/atlases").await;
    assert_eq!(list["total"], 2);
    assert!(list["items"].as_array().unwrap().contains(&loaded), "{list}");
    let (_, shown) = server.get("ann", "/v1/atlases/com.example.posted").await;
    assert_eq!(shown, posted);
}
