//! A model's own words are screened as output: before anybody reads them, streamed or whole, and before they are kept.

use std::sync::{Arc, Mutex};

use clawk_secrets::Secret;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::limits::say;
use super::{agent, allow_all, rig};
use crate::notice::SessionNotice;
use crate::ports::{
    BoxFuture, CompletionDelta, FaultKind, InferRequest, ModelCompletion, ModelMessage, ModelProvider,
    ProviderError,
};
use crate::testing::{Rig, ScriptedModel, calls, says};
use crate::{Kernel, kind};

const SECRET: &str = "kx9-Quartz/Lamp+7041";

/// Made here so that nothing in this file looks like a key.
fn shaped() -> String {
    format!("gh{}_{}", "p", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8")
}

fn scanning(scanning: Value) -> Rig {
    let mut spec = agent(allow_all());
    if scanning != Value::Null {
        spec["policies"][0]["secret_scanning"] = scanning;
    }
    let rig = rig(spec);
    rig.secrets.add(&Secret::new("LAMP_KEY", SECRET));
    rig
}

/// Streams its answers in pieces of some bytes.
#[derive(Debug)]
struct Streaming {
    answers: Mutex<Vec<ModelCompletion>>,
    asked: Mutex<Vec<InferRequest>>,
    chunk: usize,
}

impl ModelProvider for Streaming {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(async move {
            self.asked.lock().unwrap().push(request.clone());
            let answer = self.answers.lock().unwrap().remove(0);
            let chars: Vec<char> = answer.text.chars().collect();
            for piece in chars.chunks(self.chunk) {
                on_delta(CompletionDelta::Text(&piece.iter().collect::<String>()));
                tokio::task::yield_now().await;
            }
            Ok(answer)
        })
    }
}

async fn streaming(rig: &Rig, answers: Vec<ModelCompletion>, chunk: usize) -> (Kernel, Arc<Streaming>) {
    let model = Arc::new(Streaming {
        answers: Mutex::new(answers),
        asked: Mutex::default(),
        chunk,
    });
    let mut parts = rig.parts();
    parts
        .providers
        .insert("model".to_owned(), Arc::clone(&model) as _);
    (Kernel::start(parts).await.unwrap(), model)
}

/// What a surface was told: the pieces, and the whole.
fn told(notices: &[SessionNotice]) -> (String, String) {
    let (mut pieces, mut whole) = (String::new(), String::new());
    for notice in notices {
        match notice {
            SessionNotice::Delta(piece) => pieces.push_str(piece),
            SessionNotice::Said(text) => whole.push_str(text),
            _ => {}
        }
    }
    (pieces, whole)
}

/// Everything that the journal holds.
fn kept(rig: &Rig) -> String {
    let mut all = String::new();
    for event in rig.journal.events() {
        all.push_str(&event.payload);
        if let Some(content) = event.content {
            all.push_str(&String::from_utf8_lossy(&content.bytes));
        }
    }
    all
}

fn found(rig: &Rig) -> Vec<Value> {
    let events = rig.journal.events().into_iter();
    let found = events.filter(|event| event.kind == kind::SCREEN_SECRET);
    found
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .collect()
}

#[tokio::test]
async fn what_a_model_says_is_redacted_blocked_or_warned_of_wherever_it_goes() {
    for scope in ["output", "both"] {
        for action in ["redact", "block", "warn"] {
            for chunk in [1, 7, 10_000] {
                let rig = scanning(json!({"scope": scope, "action": action}));
                let text = format!("the key is {} and the lamp's is {SECRET}, naïvely", shaped());
                let (kernel, model) = streaming(&rig, vec![says(&text), says("yes")], chunk).await;
                let (_, notices) = say(&kernel, "tell me").await;
                let (pieces, whole) = told(&notices);
                let kept = kept(&rig);
                for place in [&pieces, &whole, &kept] {
                    assert!(
                        !place.contains(SECRET),
                        "{action} {chunk}: a known value goes: {place}"
                    );
                    let may = action == "warn";
                    assert!(
                        may || !place.contains(&shaped()),
                        "{scope} {action} {chunk}: {place}"
                    );
                }
                assert_eq!(whole.contains(&shaped()), action == "warn", "{whole}");
                assert_eq!(whole.contains("[withheld"), action == "block", "{whole}");
                assert_eq!(whole.contains("naïvely"), action != "block", "{whole}");
                let found = found(&rig);
                assert!(
                    found.iter().any(|event| event["place"] == "answer"
                        && event["kind"] == "github-token"
                        && event["action"] == action),
                    "{found:?}"
                );
                assert_eq!(model.asked.lock().unwrap().len(), 1);
            }
        }
    }
}

#[tokio::test]
async fn long_answers_are_streamed_and_a_secret_over_the_edges_of_pieces_is_found() {
    // More than what is held back, on both sides of the secrets.
    let filler = "Ein Satz mit Umlauten: äöü. ".repeat(700);
    let text = format!("{filler}{} {filler}{SECRET}{filler}", shaped());
    for chunk in [3, 4_096] {
        let rig = scanning(json!({"scope": "output", "action": "redact"}));
        let (kernel, _) = streaming(&rig, vec![says(&text)], chunk).await;
        let (_, notices) = say(&kernel, "tell me").await;
        let (pieces, whole) = told(&notices);
        assert!(
            pieces.contains("[redacted:github-token]"),
            "pieces leave before the end"
        );
        assert!(
            !pieces.contains(shaped().get(..12).unwrap()) && !pieces.contains(SECRET.get(..12).unwrap()),
            "not in part"
        );
        assert!(!pieces.contains('\u{fffd}'), "no character is torn");
        let streamed = pieces.chars().count();
        assert!(
            streamed > 0 && whole.starts_with(&pieces),
            "what was streamed is how the whole begins"
        );
    }
    let rig = scanning(json!({"scope": "output", "action": "block"}));
    let (kernel, _) = streaming(&rig, vec![says(&text)], 64).await;
    let (_, notices) = say(&kernel, "tell me").await;
    let (pieces, whole) = told(&notices);
    assert!(
        !pieces.contains("[redacted") && whole.starts_with("[withheld"),
        "{whole}"
    );
}

#[tokio::test]
async fn known_values_leave_no_model_whatever_the_policy_and_short_answers_are_streamed() {
    for scanning_block in [Value::Null, json!({"scope": "input", "action": "block"})] {
        let rig = scanning(scanning_block);
        let text = format!("{SECRET} it is. {}", "And so on. ".repeat(60));
        let (kernel, _) = streaming(&rig, vec![says(&text)], 5).await;
        let (_, notices) = say(&kernel, "tell me").await;
        let (pieces, whole) = told(&notices);
        assert!(
            pieces.starts_with("[redacted:known-secret LAMP_KEY] it is. And"),
            "{pieces}"
        );
        assert!(whole.starts_with(&pieces) && !kept(&rig).contains(SECRET));
    }
    // Nothing is looked for: pieces are told as they come.
    let rig = rig(agent(allow_all()));
    let (kernel, _) = streaming(&rig, vec![says("word by word")], 1).await;
    let (_, notices) = say(&kernel, "tell me").await;
    assert_eq!(told(&notices).0, "word by word");
}

#[tokio::test]
async fn the_arguments_that_a_model_gives_are_kept_as_the_call_gets_them() {
    for (action, runs) in [("redact", 1), ("block", 0)] {
        let rig = scanning(json!({"scope": "input", "action": action}));
        let wanted = calls(&[("write", json!({"token": shaped()}))]);
        let (kernel, model) = streaming(&rig, vec![wanted, says("done")], 100).await;
        let (_, notices) = say(&kernel, "do it").await;
        assert_eq!(rig.runner.runs().len(), runs, "{action}");
        let kept = kept(&rig);
        assert!(!kept.contains(&shaped()), "{action}: {kept}");
        let asked = model.asked.lock().unwrap();
        let read = asked[1].messages.last().unwrap();
        let ModelMessage::ToolResult { text, is_error, .. } = read else {
            panic!("{read:?}")
        };
        assert_eq!(*is_error, action == "block", "{text}");
        let found = found(&rig);
        assert!(
            found.iter().all(|event| event["place"] == "arguments"),
            "{found:?}"
        );
        if action == "block" {
            // Why, and what to do instead: to the model, and to who watches.
            for words in [
                "it holds a secret (github-token)",
                "secret_scanning",
                "without the secret",
                "[secrets]",
            ] {
                assert!(text.contains(words), "{text}");
            }
            assert!(!text.contains("JSON") && !text.contains("]. "), "{text}");
            let told = notices.iter().any(|notice| {
                matches!(notice, SessionNotice::Screened { place: "arguments", action: "block", kinds } if kinds == &["github-token"])
            });
            assert!(told, "{notices:?}");
        }
    }
}

#[tokio::test]
async fn a_providers_failure_is_told_without_what_it_quotes() {
    let mut rig = scanning(Value::Null);
    let model = ScriptedModel::new(|_, _| {
        Err(ScriptedModel::fault(
            FaultKind::Rejected,
            &format!("bad key {SECRET}"),
        ))
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let kernel = rig.start().await;
    let (end, notices) = say(&kernel, "go").await;
    assert!(!format!("{end:?}{notices:?}").contains(SECRET));
    assert!(!kept(&rig).contains(SECRET));
}
