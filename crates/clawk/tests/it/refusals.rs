//! Every verb that prints JSON prints its refusals as JSON, too; and every verb that reads a manifest takes `--allow-outside`.

use std::collections::VecDeque;

use serde_json::Value;

use crate::agent::{Agent, text};
use crate::trace::json;

const ID: &str = "0195f1c2-6d3e-7aaa-8bbb-0123456789ab";

fn clawk(agent: &Agent, args: &[String]) -> std::process::Output {
    assert_cmd::Command::new(crate::agent::program())
        .args(args)
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .timeout(std::time::Duration::from_secs(60))
        .output()
        .unwrap()
}

fn help(agent: &Agent, verb: &[String]) -> String {
    let args: Vec<String> = verb.iter().cloned().chain(["--help".to_owned()]).collect();
    text(&clawk(agent, &args).stdout)
}

/// The words of the lines below a heading, up to the next blank line.
fn below(help: &str, heading: &str) -> Vec<String> {
    help.lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// Every verb that does something, with its help: one that only has verbs below it is left out.
fn verbs(agent: &Agent) -> Vec<(Vec<String>, String)> {
    let (mut found, mut open) = (Vec::new(), VecDeque::from([Vec::new()]));
    while let Some(verb) = open.pop_front() {
        let help = help(agent, &verb);
        let parts = below(&help, "Commands:");
        open.extend(parts.into_iter().map(|part| [verb.clone(), vec![part]].concat()));
        if !help.contains("<COMMAND>") {
            found.push((verb, help));
        }
    }
    found
}

/// What its usage line wants: `<NAME>`, and `--name <NAME>`, without brackets around it.
fn wanted(help: &str) -> Vec<String> {
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap();
    let (mut words, mut depth) = (Vec::new(), 0);
    for word in usage.split_whitespace() {
        let opens = word.matches('[').count();
        let optional = depth + opens > 0;
        depth = depth + opens - word.matches(']').count();
        match word.trim_end_matches('.') {
            _ if optional => {}
            "<ID>" | "<REQUEST>" => words.push(ID.to_owned()),
            "<N>" => words.push("1".to_owned()),
            "<OUTCOME>" => words.push("done".to_owned()),
            name if name.starts_with('<') => words.push("no-such-thing".to_owned()),
            name if name.starts_with("--") => words.push(name.to_owned()),
            _ => {}
        }
    }
    words
}

#[test]
fn every_verb_that_prints_json_prints_its_refusals_as_json() {
    let agent = Agent::new();
    std::fs::write(agent.path("no-such-thing"), "kind: [").unwrap();
    let (mut tried, mut refused, mut plain) = (0, 0, 0);
    for (verb, help) in verbs(&agent)
        .into_iter()
        .filter(|(_, help)| help.contains("--format"))
    {
        let mut args = verb.clone();
        args.extend(wanted(&help));
        // Its first word is one of a list.
        if verb == ["import"] {
            args = ["import", "openclaw", "no-such-thing"]
                .map(str::to_owned)
                .to_vec();
        }
        // What it tries may be left out where an older version asks, so the usage shows it as optional.
        if verb == ["upgrade"] {
            args.extend(["--shadow".to_owned(), "no-such-thing".to_owned()]);
        }
        // One of an id and `--all` is wanted, which the usage shows as optional.
        if verb == ["memory", "restore"] {
            args.push(ID.to_owned());
        }
        args.extend(["--format".to_owned(), "json".to_owned()]);
        let output = clawk(&agent, &args);
        let (out, told) = (text(&output.stdout), text(&output.stderr));
        if output.status.code() == Some(2) {
            assert!(told.contains("Usage:"), "{args:?}: {told}");
            panic!("the test does not know how to call {args:?}: {told}");
        }
        tried += 1;
        if output.status.code() != Some(0) {
            refused += 1;
            let document: Value = serde_json::from_str(&out)
                .unwrap_or_else(|_| panic!("{args:?} printed no JSON: {out:?}\n{told}"));
            let ok = document.get("valid").or(document.get("ok"));
            assert_eq!(ok, Some(&Value::Bool(false)), "{args:?}: {document:#}");
            // Else it is the verb's own report, which says where each fault lies.
            if let Some(errors) = document["errors"].as_array() {
                plain += 1;
                let told = |error: &Value| error["code"].is_string() && error["message"].is_string();
                assert!(
                    !errors.is_empty() && errors.iter().all(told),
                    "{args:?}: {document:#}"
                );
            }
        }
    }
    assert!(
        tried > 20 && refused > 15 && plain + 3 >= refused,
        "{tried} {refused} {plain}"
    );
}

/// A verb, and what it takes besides its manifest.
#[test]
fn every_verb_whose_error_names_allow_outside_takes_it() {
    let agent = Agent::new();
    let policy = "claw: \"0.3.0\"\nkind: Policy\nmetadata: { name: out }\nspec: { rules: [{ id: a, action: allow, scope: all }] }\n";
    let inside = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let (head, _) = inside.split_once("  policies:").unwrap();
    std::fs::create_dir(agent.path("in")).unwrap();
    std::fs::copy(agent.path("script.yaml"), agent.path("in/script.yaml")).unwrap();
    std::fs::write(
        agent.path("in/claw.yaml"),
        format!("{head}  policies: [\"../out.yaml\"]\n"),
    )
    .unwrap();
    std::fs::write(agent.path("out.yaml"), policy).unwrap();
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    let named = ["claw.yaml", "CLAW", "FILE"];
    let mut tried = 0;
    for (verb, help) in verbs(&agent) {
        let reads = help.contains("--allow-outside");
        let line: Vec<&str> = verb.iter().map(String::as_str).collect();
        let args: &[&str] = match line.as_slice() {
            ["run"] => &["in/claw.yaml", "-m", "hello"],
            ["serve"] => &["in/claw.yaml", "--stdio"],
            ["validate" | "doctor" | "acp" | "trust"] => &["in/claw.yaml"],
            ["dead-letters", "replay"] => &[ID, "in/claw.yaml"],
            ["trace", "fork"] => &["in/claw.yaml", "--session", "last", "--at", "3", "-m", "hello"],
            ["trace", "replay"] => &["--with-manifest", "in/claw.yaml"],
            ["policy", "explain"] => &["in/claw.yaml", "--tool", "file-read"],
            ["mcp", "list" | "login" | "logout"] => &["in/claw.yaml"],
            ["policy", "test"] => &["in/claw.yaml"],
            ["provider", "add"] => &["other", "--manifest", "in", "--vendor", "openai", "--dry-run"],
            ["mcp", "add"] => &["files", "--manifest", "in", "--dry-run", "--", "/bin/true"],
            ["channels", "add"] => &["cron", "--manifest", "in", "--dry-run"],
            ["policy", "what-if"] => &["--policy", "out.yaml", "--manifest", "in/claw.yaml"],
            ["upgrade"] => &["in/claw.yaml", "--shadow", "in/claw.yaml"],
            ["swarm", "run"] => &["in/claw.yaml", "do it"],
            ["sandbox", "explain"] => &["in/claw.yaml"],
            ["skill", "list" | "test"] => &["in/claw.yaml"],
            ["skill", "show"] => &["none", "--claw", "in/claw.yaml"],
            ["skill", "import"] => &["none", "--output", "none.yaml", "--claw", "in/claw.yaml"],
            ["sandbox", "run"] => &["in/claw.yaml", "--", "true"],
            _ => {
                assert!(
                    !reads,
                    "{verb:?} takes `--allow-outside`, and this test does not try it"
                );
                continue;
            }
        };
        assert!(
            reads,
            "{verb:?} reads a manifest ({named:?}) and does not take `--allow-outside`"
        );
        let call = |allow: bool| {
            let split = args.iter().position(|word| *word == "--").unwrap_or(args.len());
            let (before, after) = args.split_at(split);
            let flag = allow.then_some("--allow-outside");
            let words = line
                .iter()
                .chain(before)
                .copied()
                .chain(flag)
                .chain(after.iter().copied());
            let output = clawk(&agent, &words.map(str::to_owned).collect::<Vec<_>>());
            format!("{}{}", text(&output.stdout), text(&output.stderr))
        };
        if line != ["dead-letters", "replay"] {
            let told = call(false);
            assert!(
                told.contains("outside") || told.contains("not valid"),
                "{verb:?}: {told}"
            );
        }
        let told = call(true);
        assert!(
            !told.contains("lies outside") && !told.contains("is not valid"),
            "{verb:?}: {told}"
        );
        tried += 1;
    }
    assert_eq!(tried, 26);
}

#[test]
fn faults_of_a_manifest_are_each_in_the_refusal() {
    let agent = Agent::new();
    std::fs::write(
        agent.path("claw.yaml"),
        "claw: \"0.3.0\"\nkind: Claw\nmetadata: { name: x }\nspec: { identty: 1 }\n",
    )
    .unwrap();
    let (code, told) = json(
        &agent,
        &[
            "policy",
            "explain",
            "claw.yaml",
            "--tool",
            "x",
            "--format",
            "json",
        ],
    );
    assert_eq!((code, &told["valid"]), (1, &Value::Bool(false)));
    let (_, validated) = json(&agent, &["validate", "claw.yaml", "--format", "json"]);
    assert_eq!(told["errors"], validated["errors"]);
}

#[test]
fn a_retry_that_never_comes_is_warned_of() {
    let agent = Agent::new();
    let warned = |tool: &str, config: &str| {
        let manifest = format!(
            "claw: \"0.3.0\"\nkind: Claw\nmetadata: {{ name: m }}\nspec:\n  identity: {{ inline: {{ name: m, personality: x }} }}\n  \
             providers: [{{ inline: {{ name: p, protocol: custom, endpoint: \"script:s.yaml\", model: x, auth: {{ type: none }} }} }}]\n  \
             tools: [{{ inline: {{ {tool}, description: d, input_schema: {{ type: object }}, retry: {{ max_attempts: 3 }} }} }}]\n"
        );
        std::fs::write(agent.path("retry.yaml"), manifest).unwrap();
        std::fs::write(agent.path("clawk.toml"), config).unwrap();
        let (_, report) = json(&agent, &["validate", "retry.yaml", "--format", "json"]);
        let warnings = report["warnings"].as_array().unwrap();
        warnings
            .iter()
            .any(|warning| warning["code"] == "no-effect" && warning["path"] == "/spec/tools/0/retry")
    };
    let bound = |name: &str| format!("[tools.{name}]\ncommand = [\"true\"]\n");
    assert!(warned("name: sum", &bound("sum")));
    assert!(!warned(
        "name: sum, annotations: { idempotentHint: true }",
        &bound("sum")
    ));
    // A built-in says it of itself; what is bound in its place does not.
    assert!(!warned("name: file-read", ""));
    assert!(warned("name: file-read", &bound("file-read")));
    assert!(warned("name: shell", ""));
}
