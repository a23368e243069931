//! What comes over CRA holds no value that is known here by the time it is recorded, resolved or asked about.

use clawk_secrets::Secret;
use serde_json::json;

use super::super::screening::{SECRET, kept};
use super::{governed, request, run};
use crate::carp::NewSession;

#[tokio::test]
async fn goals_hints_facts_and_parameters_hold_none() {
    let rig = governed();
    rig.secrets.add(&Secret::new("LAMP_KEY", SECRET));
    let kernel = rig.start().await;
    let cra = kernel.cra_handle();
    let about = json!({"note": format!("uses {SECRET}"), SECRET: [SECRET]});
    let view = cra
        .open_session(NewSession {
            agent_id: format!("desk {SECRET}"),
            goal: format!("help with {SECRET}"),
            parent: None,
            atlas_id: None,
            metadata: about.as_object().unwrap().clone(),
            owner: "tester".to_owned(),
            id: None,
        })
        .await
        .unwrap();
    assert!(!format!("{view:?}").contains(SECRET), "{view:?}");
    let asks = |n, execution| {
        let mut asked = request(view.id, n, execution);
        asked.requester.agent_id = format!("desk {SECRET}");
        let task = asked.task.as_mut().unwrap();
        task.goal = format!("pay with {SECRET}");
        task.context_hints = vec![SECRET.to_owned()];
        asked.context = json!({"card": {"number": SECRET}}).as_object().unwrap().clone();
        asked
    };
    let resolution = cra.resolve_request(&asks(1, None)).await.unwrap();
    assert!(!format!("{resolution:?}").contains(SECRET), "{resolution:?}");
    // A refused one is recorded, too.
    let mut refused = asks(2, None);
    refused.atlas_ids = vec!["com.example.nowhere".to_owned()];
    cra.resolve_request(&refused).await.unwrap_err();
    for action in ["note.write", "fee.waive"] {
        let parameters = json!({"text": format!("Bearer {SECRET}")});
        let mut asked = asks(3, run(resolution.resolution_id, action, parameters));
        asked.request_id = uuid::Uuid::new_v4();
        let answer = cra.execute_action(asked).await.unwrap();
        assert!(!format!("{answer:?}").contains(SECRET), "{answer:?}");
    }
    let questions = format!("{:?}", cra.approvals());
    assert!(!questions.contains(SECRET), "{questions}");
    assert!(!format!("{:?}", rig.runner.runs()).contains(SECRET));
    assert!(!kept(&rig).contains(SECRET), "{}", kept(&rig));
}
