//! A store's server that never answers: a turn goes on without it, and says so.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::everywhere::parts_folder;
use crate::agent::{Agent, text};
use crate::serve::Server;

const REST: &str = r#"  policies:
    - inline: { name: tested, rules: [{ id: all, action: allow, scope: all }] }
  memory:
    inline:
      name: head
      stores:
        - { name: notes, type: semantic, backend: custom }
        - { name: kept, type: semantic, backend: sqlite }
"#;

/// What the server may take in this test, and no more is waited for.
const LIMIT_MS: u64 = 700;

/// A turn is over by then, also on a loaded machine: less than the limit that a server has without a setting.
const SOON: Duration = Duration::from_secs(25);

fn agent(mode: &str) -> Agent {
    let parts = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/parts")
        .canonicalize()
        .unwrap();
    let python = std::path::PathBuf::from(parts_folder()).join("clients/bin/python");
    let agent = Agent::new();
    agent.may(REST);
    std::fs::create_dir(agent.path("shelf")).unwrap();
    let config = format!(
        "[memory.notes]\nserver = 'stdio://{}?arg={}&arg={}&arg={mode}'\nread_paths = ['{}']\ntimeout_ms = {LIMIT_MS}\n",
        python.display(),
        parts.join("memory_server.py").display(),
        agent.path("shelf/shelf.json").display(),
        parts.display()
    );
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    agent
}

fn a_turn_goes_on_without_it(mode: &str) {
    let agent = agent(mode);
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    let named = json!({"kind": "Claw", "metadata": {"name": "tested", "version": "1.0.0"}});
    assert!(server.initialize(&named)["result"].is_object());
    let mut stored = |n: u32, store: &str| {
        let context = json!({"request_id": format!("dd0e8400-e29b-41d4-a716-{n:012}"), "identity": "tested"});
        let entries = json!([{"content": "The lamp in the hall is green."}]);
        server.ask(
            "claw.memory.store",
            &json!({"store": store, "entries": entries, "context": context}),
        )
    };
    assert_eq!(stored(1, "kept")["result"]["stored"], json!(1));
    let refused = stored(2, "notes");
    assert_eq!(refused["error"]["code"], json!(-32030), "{refused}");
    assert!(server.end().success());

    let begun = Instant::now();
    let done = agent
        .clawk(["run", "claw.yaml", "-m", "which lamp is in the hall?"])
        .assert()
        .success();
    let took = begun.elapsed();
    let said = text(&done.get_output().stderr);
    assert!(
        said.contains("the store `notes` could not be asked") && said.contains("no answer within 700 ms"),
        "{said}"
    );
    assert!(took < SOON, "{took:?}");
    // What the other store has is in the prompt.
    let prompt = agent
        .clawk(["sessions", "prompt", "last", "--turn", "1", "--format", "json"])
        .assert()
        .success();
    let prompt = text(&prompt.get_output().stdout);
    assert!(prompt.contains("The lamp in the hall is green."), "{prompt}");
}

#[test]
fn a_turn_goes_on_without_a_store_whose_server_never_answers() {
    a_turn_goes_on_without_it("deaf");
}

#[test]
fn a_turn_goes_on_without_a_store_whose_server_stands_still() {
    a_turn_goes_on_without_it("stuck");
}
