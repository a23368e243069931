use clawk_core::ports::{FaultKind, InferRequest, ModelMessage, ModelProvider, StopReason};
use clawk_providers::{ModelScript, ScriptedProvider};
use std::sync::Arc;

use crate::fixture::*;

fn scripted(text: &str) -> Arc<dyn ModelProvider> {
    Arc::new(ScriptedProvider::new(
        "main",
        "demo",
        true,
        100,
        ModelScript::parse(text).unwrap(),
    ))
}

const SCRIPT: &str = r#"
scenes:
  - user: "(?i)^read (it|them)"
    steps:
      - say: "Reading for {{last_user_text}}."
        call:
          - name: file-read
            arguments: { path: "README.md", deep: { list: ["{{turn}}", 1, true] } }
      - any:
          - when: { error: true, result: "denied" }
            say: "I may not: {{ last_tool_text }}"
          - say: "It says: {{last_tool_text}}"
            usage: { input: 7, output: 3 }
  - user: again
    turn: 2
    steps: [ { say: "Second turn." } ]
  - system: "Be brief"
    steps: [ { say: "Short." } ]
"#;

/// The conversation goes on with the model's own answer and results for its calls.
async fn go_on(provider: &Arc<dyn ModelProvider>, request: &mut InferRequest, result: &str, is_error: bool) {
    let answer = ask(provider, request).await.0.unwrap();
    let ids: Vec<_> = answer.calls.iter().map(|call| call.id.clone()).collect();
    request.messages.push(ModelMessage::Assistant {
        text: answer.text,
        calls: answer.calls,
        state: answer.state,
    });
    let result = |call_id| ModelMessage::ToolResult {
        call_id,
        text: result.to_owned(),
        is_error,
        from_tool: true,
    };
    request.messages.extend(ids.into_iter().map(result));
}

#[tokio::test]
async fn the_conversation_alone_says_what_comes_next() {
    for (result, is_error, said) in [
        ("{{model}} rules", false, "It says: {{model}} rules"),
        ("denied by policy", true, "I may not: denied by policy"),
    ] {
        let mut request = user("Read it");
        let first = ask(&scripted(SCRIPT), &request).await.0.unwrap();
        assert_eq!(
            (first.text.as_str(), first.stop),
            ("Reading for Read it.", StopReason::ToolUse)
        );
        let arguments = first.calls[0].arguments.clone().unwrap();
        assert_eq!(
            serde_json::Value::from(arguments),
            serde_json::json!({ "path": "README.md", "deep": { "list": ["1", 1, true] } })
        );
        go_on(&scripted(SCRIPT), &mut request, result, is_error).await;
        // A new process, in the middle of the turn.
        for _ in 0..2 {
            assert_eq!(ask(&scripted(SCRIPT), &request).await.0.unwrap().text, said);
        }
        go_on(&scripted(SCRIPT), &mut request, result, is_error).await;
        let beyond = fault(&scripted(SCRIPT), &request).await;
        assert!(
            beyond.kind == FaultKind::Rejected && beyond.message.contains("no step 2"),
            "{beyond}"
        );
        request.messages.push(ModelMessage::User {
            text: "again".to_owned(),
            images: Vec::new(),
            frame: String::new(),
            author: clawk_core::author::TextAuthor::from_runtime(),
        });
        assert_eq!(
            ask(&scripted(SCRIPT), &request).await.0.unwrap().text,
            "Second turn."
        );
    }
    assert_eq!(
        ask(&scripted(SCRIPT), &user("again")).await.0.unwrap().text,
        "Short."
    );
    let mut lost = user("again");
    lost.system.clear();
    assert!(
        fault(&scripted(SCRIPT), &lost)
            .await
            .message
            .contains("no scene of the script fits `again`")
    );
}

#[tokio::test]
async fn call_ids_are_stable_and_new_in_each_step() {
    let mut request = user("Read it");
    let script = "scenes: [{steps: [{call: [{name: a}, {name: b}]}, {call: [{name: a}]}]}]";
    let first = ask(&scripted(script), &request).await.0.unwrap();
    assert_eq!(
        first.calls,
        ask(&scripted(script), &request).await.0.unwrap().calls
    );
    go_on(&scripted(script), &mut request, "r", false).await;
    let second = ask(&scripted(script), &request).await.0.unwrap();
    assert!(first.calls.iter().all(|call| call.id != second.calls[0].id));
}

#[tokio::test]
async fn faults_may_strike_a_number_of_times() {
    let provider = scripted("scenes: [{steps: [{say: there, fault: {status: 503, times: 2}}]}]");
    for _ in 0..2 {
        assert_eq!(fault(&provider, &user("hi")).await.kind, FaultKind::ServerFault);
    }
    assert_eq!(ask(&provider, &user("hi")).await.0.unwrap().text, "there");
}

#[tokio::test]
async fn a_cut_shows_what_came_before_it() {
    let (answer, told) = ask(
        &scripted("scenes: [{steps: [{say: 'Grüß Gott', fault: {cut_after_chars: 6}}]}]"),
        &user("x"),
    )
    .await;
    assert_eq!(
        (answer.unwrap_err().kind, told.as_str()),
        (FaultKind::Cut, "Grüß G")
    );
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (script, words) in [
        ("scenes: [{steps: []}]", "scenes[0].steps"),
        (
            "scenes: [{steps: [{say: '{{nope}}'}]}]",
            "unknown template `nope`",
        ),
        ("scenes: [{steps: [{say: '{{model'}]}]", "without `}}`"),
        (
            "scenes: [{steps: [{call: [{name: a, arguments: {x: ['{{no}}']}}]}]}]",
            "unknown template `no`",
        ),
        ("scenes: [{steps: [{sya: hi}]}]", "sya"),
        ("scenes: [{user: '(', steps: [{say: hi}]}]", "regex"),
        (
            "scenes: [{steps: [{say: hi, any: [{say: ho}]}]}]",
            "`any` stands alone",
        ),
        ("scenes: [{steps: [{fault: {status: 200}}]}]", "within 400..599"),
        (
            "scenes: [{steps: [{call: [{name: a, arguments: {b: 1}, raw_arguments: x}]}]}]",
            "not both",
        ),
        ("stream: {chunk_chars: 0}\nscenes: []", "at least 1"),
        ("- no", "script is not well formed"),
    ] {
        let error = ModelScript::parse(script).unwrap_err().to_string();
        assert!(error.contains(words), "{script}: {error}");
    }
}

/// The reference's own example is read, and does what the reference says.
#[tokio::test]
async fn the_documented_example_works() {
    let page = include_str!("../../../../docs/reference/scripted-model.md");
    let yaml = page
        .split("```yaml\n")
        .nth(2)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let mut request = user("read it");
    go_on(&scripted(yaml), &mut request, "no such file", true).await;
    assert_eq!(
        ask(&scripted(yaml), &request).await.0.unwrap().text,
        "I could not: no such file"
    );
    let failing = scripted(yaml);
    for _ in 0..2 {
        assert_eq!(fault(&failing, &user("fail")).await.retry_after_ms, Some(200));
    }
    assert_eq!(ask(&failing, &user("fail")).await.0.unwrap().text, "At last.");
    assert_eq!(ask(&failing, &user("x")).await.0.unwrap().text, "You said: x");
}
