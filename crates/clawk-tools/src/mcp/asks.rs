//! Tests: a server's questions to its client, tools that are taken over, and tools that change.

use std::sync::{Arc, Mutex};

use clawk_kernel::ports::{RunError, ToolRunner};
use clawk_proto::SessionId;
use serde_json::{Value, json};

use super::tests::tools;
use crate::builtin::{AskUserHandler, UserAnswer};
use crate::config::ToolsConfig;
use crate::testing::{Ran, host, manifest, open_plan, runner, text};
use crate::{ToolHost, bind_tools};

fn new_session() -> SessionId {
    serde_json::from_value(json!("00000000-0000-4000-8000-000000000001")).expect("a session")
}

/// A runner whose person gives these answers in turn; and the questions that the person got.
fn runner_with_answers(
    said: &[Option<&str>],
    dir: &std::path::Path,
) -> (crate::Runner, Arc<Mutex<Vec<String>>>) {
    let said: Mutex<Vec<Option<String>>> =
        Mutex::new(said.iter().rev().map(|one| one.map(str::to_owned)).collect());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&heard);
    let ask: AskUserHandler = Arc::new(move |question| {
        told.lock().expect("a lock").push(question.question);
        let answer = match said.lock().expect("a lock").pop().flatten() {
            Some(text) => UserAnswer::Said(text),
            None => UserAnswer::Declined,
        };
        Box::pin(std::future::ready(answer))
    });
    let host = ToolHost {
        ask: Some(ask),
        ..host(dir)
    };
    let bound = bind_tools(
        &manifest(tools(&["ask", "roots"], &[]), dir),
        &ToolsConfig::default(),
        host,
    );
    (bound.expect("all bound"), heard)
}

async fn call(
    runner: &crate::Runner,
    session: Option<SessionId>,
    tool: &str,
    dir: &std::path::Path,
) -> Value {
    let ran = Ran {
        session,
        ..Ran::new(open_plan())
    };
    let outcome = ran.run(runner, dir, tool, json!({})).await.expect("ran");
    serde_json::from_str(&text(&outcome)).expect("the client's answer")
}

#[tokio::test]
async fn a_server_asks_the_person_of_the_calls_session() {
    let dir = tempfile::tempdir().expect("a folder");
    let (runner, heard) = runner_with_answers(&[Some("Ann"), Some("41")], dir.path());
    let said = call(&runner, Some(new_session()), "ask", dir.path()).await;
    assert_eq!(said["action"], "accept");
    assert_eq!(said["content"], json!({"name": "Ann", "age": 41}));
    let heard = heard.lock().expect("a lock").clone();
    let first = heard
        .iter()
        .find(|question| question.contains("Your name"))
        .expect("asked");
    assert!(
        first.contains("the MCP server stdio://") && first.contains("Who are you?"),
        "{first}"
    );
}

#[tokio::test]
async fn it_is_declined_where_nobody_can_be_asked_or_the_answer_does_not_fit() {
    let dir = tempfile::tempdir().expect("a folder");
    for (said, session) in [
        (&[None][..], Some(new_session())),
        (&[Some("Ann"), Some("old")][..], Some(new_session())),
        (&[Some("Ann"), Some("41")][..], None),
    ] {
        let (runner, _) = runner_with_answers(said, dir.path());
        let answer = call(&runner, session, "ask", dir.path()).await;
        assert_eq!(answer["action"], "decline", "{said:?} {session:?}");
        assert!(answer.get("content").is_none_or(Value::is_null));
        runner.close().await;
    }
    let nobody = runner(tools(&["ask"], &[]), "{}", dir.path());
    let answer = call(&nobody, Some(new_session()), "ask", dir.path()).await;
    assert_eq!(answer["action"], "decline");
}

#[tokio::test]
async fn roots_are_the_mounted_folders() {
    let dir = tempfile::tempdir().expect("a folder");
    let (runner, _) = runner_with_answers(&[], dir.path());
    let said = call(&runner, None, "roots", dir.path()).await;
    let own = format!("file://{}/", dir.path().display());
    assert_eq!(said["roots"], json!([{"uri": own}]));
}

#[tokio::test]
async fn all_tools_of_a_server_are_taken_over() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = r#"{"srv": {"trust_annotations": true}}"#;
    let runner = runner(tools(&["srv"], &[]), config, dir.path());
    let names = runner
        .takes_over("srv")
        .await
        .expect("listed")
        .expect("taken over");
    assert!(
        names.contains(&"srv-echo".to_owned()) && names.contains(&"srv-huge-line".to_owned()),
        "{names:?}"
    );
    assert_eq!(names.len(), 12);
    let said = runner.describe_tool("srv-look").await.expect("described");
    assert_eq!(said.description, "The tool look.");
    assert_eq!(said.trusted_annotations["readOnlyHint"], true);
    let ran = Ran::new(open_plan())
        .run(&runner, dir.path(), "srv-echo", json!({"text": "hi"}))
        .await;
    assert_eq!(text(&ran.expect("ran")), "echo: hi");
    // If the server has a tool with the declared name, that tool is used.
    let named = crate::testing::runner(tools(&["echo"], &[]), "{}", dir.path());
    assert_eq!(named.takes_over("echo").await.expect("listed"), None);
}

#[tokio::test]
async fn a_tool_that_changed_is_not_called() {
    let dir = tempfile::tempdir().expect("a folder");
    let log = format!("starts={}", dir.path().join("log").display());
    let runner = runner(
        tools(&["echo", "look", "die"], &["changing", &log]),
        "{}",
        dir.path(),
    );
    assert_eq!(
        runner.describe_tool("look").await.expect("described").description,
        "The tool look."
    );
    let ran = Ran::new(open_plan());
    let call = async |tool: &str, said: &str| ran.run(&runner, dir.path(), tool, json!({"text": said})).await;
    assert_eq!(text(&call("look", "stay").await.expect("ran")), "looked");
    // The server announces the change with the answer above, or before the next answer.
    assert_eq!(text(&call("echo", "a").await.expect("ran")), "echo: a");
    let refused = |outcome: Result<_, RunError>| match outcome {
        Err(RunError::Unavailable(said)) => assert!(said.contains("changed its tool `look`"), "{said}"),
        other => panic!("{other:?}"),
    };
    refused(call("look", "stay").await);
    assert_eq!(
        text(&call("echo", "b").await.expect("the others go on")),
        "echo: b"
    );
    // A new process must not change the promised tools.
    assert!(call("die", "").await.is_err());
    refused(call("look", "stay").await);
}
