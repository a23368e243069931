//! The protocols' own test suites: the official MCP conformance suite against `/mcp` and against clawk as a client, the MCP
//! inspector, and the `openai` package for Node. `docs/reference/conformance.md` has the results.

use std::process::Command;
use std::time::Duration;

use crate::agent::{Agent, program};
use crate::clients::{Served, TOKEN, agent};
use crate::parts::{ours, part};
use crate::process::{Done, finish};

/// The newest revision of MCP that clawk's door speaks; the suite has one that is newer.
const REVISION: &str = "2025-11-25";

/// How long a whole suite may take.
const SUITE: Duration = Duration::from_secs(300);

/// A program of the suites, by the Node that they need.
fn node(agent: &Agent, script: &str) -> Command {
    let node = part("suites/node_modules/node/bin/node");
    let mut command = agent.command(&node);
    command.arg(part("suites/node_modules").join(script));
    command
}

fn conformance(agent: &Agent, args: &[&str]) -> Done {
    let mut command = node(agent, "@modelcontextprotocol/conformance/dist/index.js");
    command.args(args);
    finish(&mut command, SUITE)
}

fn shown(done: &Done) -> String {
    format!("{}\n{}", done.stdout, done.stderr)
}

#[test]
fn the_official_mcp_suite_passes_against_the_server() {
    // The suite has no token: on loopback, the door is open without any.
    let agent = agent("'mcp'");
    agent.write("clawk.toml", "[http]\ndoors = ['mcp']\n");
    let served = Served::start(&agent);
    let baseline = ours("clients").join("mcp_server_baseline.yaml");
    let url = served.url("/mcp");
    let baseline = baseline.display().to_string();
    let done = conformance(
        &agent,
        &[
            "server",
            "--url",
            &url,
            "--requirements",
            REVISION,
            "--expected-failures",
            &baseline,
        ],
    );
    assert!(done.status.success(), "{}", shown(&done));
    for scenario in [
        "server-initialize",
        "ping",
        "tools-list",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
        "completion-complete",
        "server-sse-multiple-streams",
        "server-session-lifecycle",
        "server-sse-polling",
    ] {
        let passed = done
            .stdout
            .lines()
            .any(|line| line.contains(scenario) && line.contains('✓'));
        assert!(passed, "{scenario}: {}", shown(&done));
    }
    served.end();
}

/// Scenarios that clawk as a client must pass: the protocol, and where tokens come from.
const CLIENT_SCENARIOS: &[&str] = &[
    "initialize",
    "tools_call",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
    "auth/2025-03-26-oauth-metadata-backcompat",
    "auth/resource-mismatch",
    "auth/offline-access-scope",
    "auth/offline-access-not-supported",
    "auth/iss-supported",
    "auth/iss-not-advertised",
    "auth/iss-supported-missing",
    "auth/iss-wrong-issuer",
    "auth/iss-unexpected",
    "auth/iss-normalized",
    "auth/metadata-issuer-mismatch",
    "json-schema-ref-no-deref",
    "sse-retry",
];

#[test]
fn the_official_mcp_suite_passes_against_the_client() {
    let agent = Agent::new();
    let python = part("clients/bin/python");
    let script = ours("clients").join("conformance_client.py");
    let command = format!("{} {}", python.display(), script.display());
    let mut failed = Vec::new();
    for scenario in CLIENT_SCENARIOS {
        let mut suite = node(&agent, "@modelcontextprotocol/conformance/dist/index.js");
        suite.args(["client", "--command", &command, "--scenario", scenario]);
        let done = finish(suite.env("CLAWK", program()), SUITE);
        if !done.status.success() {
            failed.push(format!("{scenario}:\n{}", shown(&done)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn the_mcp_inspector_lists_and_calls_the_agent() {
    let agent = agent("'health'");
    let inspect = |args: &[&str]| {
        let mut command = node(&agent, "@modelcontextprotocol/inspector/cli/build/cli.js");
        command
            .args([
                "--cli",
                &program().display().to_string(),
                "serve",
                "claw.yaml",
                "--mcp",
            ])
            .args(args);
        finish(&mut command, SUITE)
    };
    let tools = inspect(&["--method", "tools/list"]);
    assert!(
        tools.status.success() && tools.stdout.contains("\"file-read\""),
        "{}",
        shown(&tools)
    );
    let call = inspect(&[
        "--method",
        "tools/call",
        "--tool-name",
        "ask",
        "--tool-arg",
        "message=hello",
    ]);
    assert!(call.stdout.contains("You said: hello"), "{}", shown(&call));
    let prompts = inspect(&["--method", "prompts/list"]);
    assert!(prompts.stdout.contains("skill-digest"), "{}", shown(&prompts));
}

#[test]
fn the_openai_package_for_node_talks_to_the_agent() {
    let agent = agent("'openai'");
    let served = Served::start(&agent);
    let node = part("suites/node_modules/node/bin/node");
    let mut command = agent.command(&node);
    command.arg(ours("clients").join("openai_client.mjs"));
    command
        .arg(part("suites/node_modules/openai/index.mjs"))
        .args([&served.url("/openai/v1"), TOKEN]);
    let done = finish(&mut command, SUITE);
    assert!(
        done.status.success() && done.stdout.ends_with("ok\n"),
        "{}",
        shown(&done)
    );
    served.end();
    agent.events();
}
