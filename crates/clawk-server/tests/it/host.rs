//! Many clients of one host (R38): each with its own session state; the agent is nobody's but the launcher's.

use serde_json::json;

use crate::wire::{Client, call, fresh, initialize};

#[tokio::test]
async fn a_client_that_goes_away_ends_nothing_but_itself() {
    let mut owner = Client::ready(2).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let mut client = owner.beside();
        client.initialize().await;
        clients.push(client);
    }
    // A question and a running call of a client that is killed.
    let mut killed = clients.pop().expect("four");
    let (asked, slow) = (fresh(), fresh());
    killed.request("claw.tool.call", call("ask", &asked)).await;
    killed.request("claw.tool.call", call("slow", &slow)).await;
    killed.so_far().await;
    killed.vanish().await;
    clients.pop().expect("three").vanish().await;
    // The agent and the others go on; the question stands, and anybody who may answers it.
    assert_eq!(owner.state().await, "READY");
    assert_eq!(owner.agent.starts(), 1);
    let answered = clients[0]
        .result("claw.tool.approve", json!({"request_id": asked}))
        .await;
    assert_eq!(answered["acknowledged"], true);
    // The answers are kept under their request ids; nothing runs twice.
    for id in [&asked, &slow] {
        let tool = if *id == asked { "ask" } else { "slow" };
        let kept = clients[1].result("claw.tool.call", call(tool, id)).await;
        assert_ne!(kept["isError"], true, "{kept}");
        assert_eq!(owner.agent.runs(tool), 1);
    }
    for mut client in clients {
        assert_eq!(client.state().await, "READY");
    }
}

#[tokio::test]
async fn shutdown_ends_the_connection_and_the_agent_only_for_who_owns_it() {
    let mut owner = Client::ready(2).await;
    let mut guest = owner.beside();
    guest.initialize().await;
    assert_eq!(
        guest.result("claw.shutdown", json!({})).await,
        json!({"drained": true})
    );
    assert_eq!(guest.state().await, "STOPPED", "its own session is over");
    let (code, data) = guest.error("claw.tool.call", call("echo", &fresh())).await;
    assert_eq!((code, &data["reason"]), (-32600, &json!("stopped")));
    assert_eq!(owner.state().await, "READY");
    guest.initialize().await;
    assert_eq!(guest.state().await, "READY");
    assert_eq!(owner.agent.starts(), 1, "it joined the agent that runs");
    // The launcher's shutdown is the agent's.
    owner.result("claw.shutdown", json!({})).await;
    assert_eq!(guest.state().await, "STOPPED");
    let (code, data) = guest.error("claw.tool.call", call("echo", &fresh())).await;
    assert_eq!((code, &data["reason"]), (-32600, &json!("stopped")));
    owner.initialize().await;
    assert_eq!(owner.agent.starts(), 2);
    guest.initialize().await;
    assert_eq!(owner.agent.starts(), 2);
}

#[tokio::test]
async fn an_admin_stops_the_host_by_name() {
    let mut owner = Client::ready(1).await;
    let mut guest = owner.beside();
    guest.initialize().await;
    let (code, _) = guest.error("claw.shutdown", json!({"scope": "everything"})).await;
    assert_eq!(code, -32602);
    guest.result("claw.shutdown", json!({"scope": "host"})).await;
    owner.host.wait_stop_request().await;
    assert_eq!(owner.state().await, "STOPPED");
    let answer = guest.ask("claw.initialize", initialize()).await;
    assert!(
        answer.get("error").is_some(),
        "a host that ends starts nothing: {answer}"
    );
}

#[tokio::test]
async fn a_client_only_names_what_it_expects() {
    let mut owner = Client::ready(1).await;
    let mut guest = owner.beside();
    let mut params = initialize();
    params["manifest"] = json!({"kind": "Claw", "metadata": {"name": "invalid"}});
    let (code, data) = guest.error("claw.initialize", params).await;
    assert_eq!((code, &data["reason"]), (-32602, &json!("invalid_manifest")));
    // The rig refuses to start an agent of this name: a guest's manifest starts nothing.
    let mut params = initialize();
    params["manifest"] = json!({"kind": "Claw", "metadata": {"name": "unserved"}});
    let answer = guest.result("claw.initialize", params).await;
    assert_eq!(answer["agentInfo"]["name"], "tester");
    assert_eq!(owner.state().await, "READY");
    assert_eq!(owner.agent.starts(), 1);
}
