//! MCP servers that ask the agent's model: off by default, by policy, paid from the purse, and in the trace.

use serde_json::Value;

use crate::agent::{Agent, text};

const TOOLS: &str = r#"  tools:
    - inline:
        name: advise
        description: Asks an oracle
        input_schema: { type: object }
        mcp_source: { uri: "stdio:///usr/bin/python3?arg=server.py" }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
  policies:
    - inline:
        name: tested
        rules:
          - { id: advice, action: allow, scope: tool, match: { name: advise } }
"#;
const ALLOWED: &str =
    "          - { id: asking, action: allow, scope: tool, match: { name: mcp-sampling } }\n";
const SCRIPT: &str = r#"
scenes:
  - system: oracle
    steps:
      - say: "Left."
  - system: echo
    steps:
      - say: "{{last_user_text}}"
  - user: "(?i)many"
    steps:
      - call: [{ name: advise, arguments: { times: 4 } }]
      - say: "{{last_tool_text}}"
  - user: "(?i)long"
    steps:
      - call: [{ name: advise, arguments: { times: 2, blanks: 3000 } }]
      - say: "{{last_tool_text}}"
  - user: "(?i)straight"
    steps:
      - call: [{ name: mcp-sampling, arguments: { server: none, messages: [{ role: user, text: hi }], max_tokens: 9 } }]
      - say: "{{last_tool_text}}"
  - user: "(?i)echo"
    steps:
      - call: [{ name: advise, arguments: { system: echo } }]
      - say: "{{last_tool_text}}"
  - steps:
      - call: [{ name: advise, arguments: {} }]
      - say: "{{last_tool_text}}"
"#;
const KEY: &str = "sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz";

fn agent(rules: &str, config: &str) -> Agent {
    let agent = Agent::new();
    agent.may(&format!("{TOOLS}{rules}"));
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    std::fs::write(agent.path("server.py"), include_str!("sampling_server.py")).unwrap();
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    agent
}

fn said(agent: &Agent, message: &str) -> String {
    let output = agent.clawk(["run", "claw.yaml", "-m", message]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn trace(agent: &Agent) -> Vec<Value> {
    let output = agent.clawk(["trace", "export"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

const ON: &str = "[tools.advise.sampling]\nmax_tokens = 100\nper_call = 2\n";

#[test]
fn a_server_asks_no_model_unless_the_operator_and_a_policy_allow_it() {
    let off = agent(ALLOWED, "");
    assert!(said(&off, "go").contains("offered: False; refused: sampling is off for this server"));
    // Allowed by the operator, but by no rule.
    let unruled = agent("", ON);
    let told = said(&unruled, "go");
    assert!(
        told.contains("offered: True; refused:") && !told.contains("Left."),
        "{told}"
    );
    let denied = agent(
        "          - { id: never, action: deny, scope: tool, match: { name: mcp-sampling }, reason: Not here }\n",
        ON,
    );
    let told = said(&denied, "go");
    assert!(told.contains("Not here") && !told.contains("Left."), "{told}");
}

#[test]
fn a_model_cannot_call_what_only_a_server_may() {
    let agent = agent(ALLOWED, ON);
    let told = said(&agent, "straight");
    assert!(told.contains("unknown tool `mcp-sampling`"), "{told}");
    let trace = trace(&agent);
    let ran = |event: &&Value| event["event_type"] == "action.executed";
    assert_eq!(trace.iter().filter(ran).count(), 0);
}

#[test]
fn an_allowed_question_is_a_governed_call_that_the_calling_session_pays() {
    let agent = agent(ALLOWED, ON);
    let told = said(&agent, "many");
    assert!(told.contains("scripted says Left. (endTurn)"), "{told}");
    assert!(
        told.contains("this call has asked 2 questions, which is its limit"),
        "{told}"
    );
    assert_eq!(told.matches("Left.").count(), 2, "{told}");
    let trace = trace(&agent);
    let of = |kind: &str, name: &str| {
        let events = trace.iter().filter(|event| event["event_type"] == kind);
        events
            .filter(|event| event["payload"]["action_id"] == name)
            .cloned()
            .collect::<Vec<_>>()
    };
    let asked = of("action.requested", "mcp-sampling");
    assert_eq!(asked.len(), 2);
    assert_eq!(of("action.executed", "mcp-sampling").len(), 2);
    let caller = &of("action.requested", "advise")[0]["session_id"];
    for question in &asked {
        let session = &question["session_id"];
        assert_ne!(session, caller, "a session of its own");
    }
    let replayed = agent
        .clawk(["trace", "replay", "--format", "json"])
        .output()
        .unwrap();
    assert!(replayed.status.success(), "{}", text(&replayed.stdout));
}

#[test]
fn the_calling_sessions_budget_pays_for_the_questions() {
    // Room for the turn and one long question; a purse of each question's own would pay for both.
    let agent = agent(ALLOWED, &format!("{ON}[budgets.session]\ntokens = 1300\n"));
    let told = said(&agent, "long");
    assert_eq!(told.matches("Left.").count(), 1, "{told}");
    assert!(told.contains("refused: ") && told.contains("tokens"), "{told}");
}

#[test]
fn a_secret_in_a_question_reaches_no_model_and_no_trace() {
    let agent = agent(
        ALLOWED,
        &format!("[tools.advise]\nsecret_env = {{ KEY = \"ORACLE_KEY\" }}\n{ON}"),
    );
    let mut run = agent.clawk(["run", "claw.yaml", "-m", "echo"]);
    let output = run.env("ORACLE_KEY", KEY).output().unwrap();
    let told = text(&output.stdout);
    assert!(
        told.contains("[redacted:known-secret ORACLE_KEY]"),
        "{told} {}",
        text(&output.stderr)
    );
    let trace = trace(&agent);
    assert!(
        trace
            .iter()
            .any(|event| event["payload"]["action_id"] == "mcp-sampling"),
        "it was asked"
    );
    assert!(!format!("{trace:?}{told}").contains(KEY));
}
