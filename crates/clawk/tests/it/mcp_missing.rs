//! An MCP server that does not start says why, at every door at which somebody looks.

use std::os::unix::fs::PermissionsExt as _;

use crate::agent::{Agent, text};

const TOOLS: &str = r#"  tools:
    - inline: { name: far, mcp_source: { uri: "stdio://./server.sh" } }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
"#;
const SERVER: &str = "#!/bin/sh\necho started >> starts\necho 'Error: STUB_API_KEY is not set' >&2\nexit 3\n";

fn agent() -> Agent {
    let agent = Agent::new();
    agent.may(TOOLS);
    std::fs::write(agent.path("server.sh"), SERVER).unwrap();
    let may_run = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(agent.path("server.sh"), may_run).unwrap();
    agent
}

#[test]
fn doctor_starts_the_servers_of_a_trusted_folder_and_tells_their_last_words() {
    let agent = agent();
    let looked = agent.clawk(["doctor", "claw.yaml"]).output().unwrap();
    let said = text(&looked.stdout);
    assert!(
        said.contains("mcp") && said.contains("not started") && said.contains("far"),
        "{said}"
    );
    assert!(
        !agent.path("starts").exists(),
        "nobody agreed to what the folder runs"
    );
    agent.clawk(["trust", "."]).assert().success();
    let looked = agent.clawk(["doctor", "claw.yaml"]).output().unwrap();
    let said = text(&looked.stdout);
    assert_eq!(looked.status.code(), Some(1), "{said}");
    assert!(
        said.contains("FAIL  mcp") && said.contains("STUB_API_KEY is not set"),
        "{said}"
    );
}

#[test]
fn a_turn_goes_on_without_the_server_and_says_what_is_missing() {
    let agent = agent();
    let ran = agent.clawk(["run", "claw.yaml", "-m", "hello"]).output().unwrap();
    let said = format!("{}{}", text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{said}");
    assert!(
        said.contains("`far` is not offered") && said.contains("STUB_API_KEY is not set"),
        "{said}"
    );
}

#[test]
fn the_last_words_of_a_server_that_did_not_start_are_that_servers_and_give_no_orders() {
    for called in ["far", "far-read"] {
        let agent = agent();
        let rules = r#"  policies:
    - inline:
        name: rules
        rules:
          - { id: own-words, action: deny, scope: tool, match: { name: file-read }, conditions: { taint: [web, tool] }, reason: not by a server's word }
          - { id: rest, action: allow, scope: all }
"#;
        let reads = "    - inline: { name: file-read, description: Reads, input_schema: { type: object } }\n  sandbox:\n";
        agent.may(&format!("{}{rules}", TOOLS.replace("  sandbox:\n", reads)));
        let script = format!(
            "scenes:\n  - steps:\n      - call: [{{ name: {called}, arguments: {{}} }}]\n      \
             - call: [{{ name: file-read, arguments: {{ path: server.sh }} }}]\n      - say: \"{{{{last_tool_text}}}}\"\n"
        );
        std::fs::write(agent.path("script.yaml"), script).unwrap();
        let ran = agent.clawk(["run", "claw.yaml", "-m", "go on"]).output().unwrap();
        let said = format!("{}{}", text(&ran.stdout), text(&ran.stderr));
        assert!(said.contains("STUB_API_KEY is not set"), "{called}: {said}");
        let wanted = format!("not by a server's word (from web {called})");
        assert!(said.contains(&wanted), "{called}: {said}");
    }
}

#[test]
fn validate_says_what_a_server_lacks_without_starting_it() {
    for (program, want) in [
        ("/opt/no/such/program", "there is no file `/opt/no/such/program`"),
        ("FOLDER/npx", "its sandbox has no network"),
    ] {
        let agent = Agent::new();
        agent.may(&TOOLS.replace(
            "./server.sh",
            &program.replace(
                "FOLDER",
                agent.path("").display().to_string().trim_end_matches('/'),
            ),
        ));
        std::fs::write(agent.path("npx"), SERVER).unwrap();
        let looked = agent.clawk(["validate", "claw.yaml"]).output().unwrap();
        let said = format!("{}{}", text(&looked.stdout), text(&looked.stderr));
        assert!(said.contains(want), "{program}: {said}");
        assert!(!agent.path("starts").exists());
    }
}
