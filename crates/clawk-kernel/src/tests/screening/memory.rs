//! Screening of memory, and of text from peers.

use std::sync::Arc;

use clawk_proto::method::{
    BroadcastParams, MemoryContext, MemoryQuery, MemoryQueryParams, MemoryStoreParams, NewEntry,
};
use serde_json::json;

use super::super::limits::say;
use super::super::{id, rpc};
use super::{ATTACK, SECRET, kept, knowing, screened, shaped, with};
use crate::error::KernelError;
use crate::kind;
use crate::notice::TurnEnd;
use crate::testing::ScriptedModel;

fn note(text: &str, n: u32) -> MemoryStoreParams {
    MemoryStoreParams {
        store: "notes".to_owned(),
        entries: vec![NewEntry {
            content: json!(text),
            key: None,
            metadata: None,
        }],
        context: MemoryContext { request_id: id(n) },
    }
}

fn recall(text: &str) -> MemoryQueryParams {
    MemoryQueryParams {
        store: "notes".to_owned(),
        query: MemoryQuery::Semantic {
            text: text.to_owned(),
            top_k: None,
        },
    }
}

#[tokio::test]
async fn recalled_memory_is_screened() {
    let mut spec = with("prompt_injection", json!({}));
    spec["policies"][0]["secret_scanning"] = json!({"scope": "output", "action": "redact"});
    let rig = knowing(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.memory_store(session, note(ATTACK, 1)).await.unwrap();
    kernel
        .memory_store(session, note(&format!("key {SECRET} {}", shaped()), 2))
        .await
        .unwrap();
    let found = kernel.memory_query(session, recall("key")).await.unwrap();
    let told = serde_json::to_string(&found).unwrap();
    assert!(
        !told.contains("evil.example") && !told.contains(SECRET) && !told.contains(&shaped()),
        "{told}"
    );
    assert!(!found.entries.is_empty());
    assert!(
        screened(&rig, kind::SCREEN_SECRET)
            .iter()
            .any(|e| e["place"] == "memory")
    );
}

#[tokio::test]
async fn what_is_to_be_remembered_is_screened_as_input() {
    let rig = knowing(with(
        "secret_scanning",
        json!({"scope": "input", "action": "block"}),
    ));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let error = kernel.memory_store(session, note(SECRET, 1)).await.unwrap_err();
    assert!(
        matches!(&error, KernelError::Screened { reason, .. } if reason == "secret"),
        "{error:?}"
    );
    assert!(!kept(&rig).contains(SECRET));
}

#[tokio::test]
async fn what_a_turn_said_is_remembered_without_secrets() {
    let redact = json!({"scope": "both", "action": "redact"});
    for (block, value, shapes) in [
        ("secret_scanning", redact, true),
        ("prompt_injection", json!({}), false),
    ] {
        let mut rig = knowing(with(block, value));
        let answer = format!("your key is {SECRET}");
        rig.models
            .insert("model".to_owned(), Arc::new(ScriptedModel::saying(&answer)));
        let kernel = rig.start().await;
        let (end, _) = say(&kernel, &format!("my key is {} or {SECRET}", shaped())).await;
        assert_eq!(end, TurnEnd::Answered);
        let kept = format!("{:?}", rig.memory);
        assert!(
            kept.contains("my key is") && kept.contains("your key is"),
            "{kept}"
        );
        assert!(!kept.contains(SECRET), "{block}: {kept}");
        assert_eq!(kept.contains(&shaped()), !shapes, "{block}: {kept}");
    }
}

#[tokio::test]
async fn peers_text_is_screened() {
    let rig = knowing(with("prompt_injection", json!({})));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let shout = |text: &str| BroadcastParams {
        swarm: "team".to_owned(),
        message: json!({"text": text}),
    };
    let error = kernel
        .broadcast_message(session, shout(ATTACK))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, KernelError::Screened { reason, .. } if reason == "prompt_injection"),
        "{error:?}"
    );
    kernel
        .broadcast_message(session, shout("the build is green"))
        .await
        .unwrap();
    let found = screened(&rig, kind::SCREEN_INJECTION);
    assert!(
        !found.is_empty() && found.iter().all(|e| e["place"] == "peer"),
        "{found:?}"
    );
}
