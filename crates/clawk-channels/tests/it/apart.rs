//! What one platform does to another, and one message to the next: nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_kernel::ports::ModelMessage;
use clawk_kernel::testing::{Behaviour, Rig, ScriptedModel, calls, manifest, says};
use serde_json::json;

use crate::fakes::{self, Fake, Trouble};
use crate::suite::{Stage, asking, channel, config, direct, parrot, until};

#[tokio::test]
async fn a_platform_that_does_not_answer_holds_no_others_question_up() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    // It takes connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = json!({"name": "dead", "type": "telegram", "transport": "polling", "auth": {"secret_ref": "TOKEN"},
        "access_control": {"mode": "open"}});
    let rig = parrot(json!([dead, channel(&*fake, &json!({}))]));
    let kernel = rig.start().await;
    let at = format!("http://{}", silent.local_addr().unwrap());
    let configs = BTreeMap::from([
        (
            "dead".to_owned(),
            serde_json::from_value(json!({"base_url": at})).unwrap(),
        ),
        ("chat".to_owned(), config(&*fake)),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let places = (folder.path(), "dead:1,chat:9009");
    let channels = asking(&rig, kernel.clone(), configs, &fake.secrets(), places).await;
    fake.attach(channels.clone());
    until(|| async { channels.channel_reports().await.unwrap()[1].state.as_str() == "ready" }).await;
    let began = Instant::now();
    fake.says(&direct(&*fake, 1, 2, "write a line")).await;
    until(|| async {
        fake.sent()
            .iter()
            .any(|sent| sent.conversation == "9009" && sent.text.contains("May this be done?"))
    })
    .await;
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "the silent one is waited for 30 s"
    );
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
}

#[tokio::test]
async fn an_answer_whose_last_edit_breaks_is_not_sent_beside_what_stands_there() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::discord::start().await);
    let tools = json!([{"name": "read", "description": "read", "input_schema": {"type": "object"}}]);
    let mut rig = Rig::new(manifest(json!({
        "channels": [channel(&*fake, &json!({}))], "tools": tools,
        "policies": [{"name": "policy", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}]})));
    rig.runner.set("read", Behaviour::Sleep(4_000));
    let model = ScriptedModel::new(|request, _| {
        let asked = matches!(request.messages.last(), Some(ModelMessage::User { .. }));
        let mut answer = if asked {
            calls(&[("read", json!({}))])
        } else {
            says("All is there.")
        };
        if asked {
            answer.text = "Let me look".to_owned();
        }
        Ok(answer)
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let stage = Stage::on(rig, Arc::clone(&fake), json!({}), folder).await;
    fake.says(&direct(&*fake, 1, 2, "go")).await;
    // It stands there in part.
    until(|| async {
        fake.sent()
            .iter()
            .any(|sent| sent.text.starts_with("Let me look"))
    })
    .await;
    fake.trouble(Trouble::TakenAndBroken);
    until(|| async { stage.report().await.delivered == 1 }).await;
    let all = fake.sent();
    let messages: Vec<_> = all.iter().filter(|sent| !sent.id.is_empty()).collect();
    assert_eq!(messages.len(), 1, "one message, edited: {all:?}");
    assert!(all.last().unwrap().text.starts_with("All is there."), "{all:?}");
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}
