//! What `clawk import` writes starts: the sample of each runtime, in a network namespace that has no network.

use std::path::{Path, PathBuf};
use std::process::Command;

use clawk_import::Runtime;
use serde_json::{Value, json};

use crate::agent::{Agent, program};
use crate::serve::Server;

/// Where the samples lie; the crate that imports tests itself with them.
fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../clawk-import/tests/samples")
}

fn clawk(agent: &Agent, args: &[&str]) -> (bool, Value) {
    let out = Command::new("unshare")
        .args(["--net", "--"])
        .arg(program())
        .args(args)
        .args(["--format", "json"])
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&out.stderr);
    let value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{args:?}: {words}"));
    (out.status.success(), value)
}

#[test]
fn the_sample_of_each_runtime_validates_says_what_is_missing_and_starts() {
    for runtime in Runtime::ALL {
        let (agent, name) = (Agent::new(), runtime.name());
        let home = samples().join(name).join(runtime.default_home());
        let (done, imported) = clawk(
            &agent,
            &["import", name, home.to_str().unwrap(), "--output", "new"],
        );
        assert!(done, "{name}: {imported:#}");
        let (valid, report) = clawk(&agent, &["validate", "new/claw.yaml"]);
        assert!(valid && report["valid"] == true, "{name}: {report:#}");

        // Where the folder names programs and hosts of its own, a person agrees first.
        agent.clawk(["trust", "new/claw.yaml"]).assert().success();

        // Without the old runtime's secrets it says which ones are missing, each by its name.
        let secrets = imported["report"]["secrets"].as_array().unwrap();
        let names: Vec<&str> = secrets
            .iter()
            .map(|secret| secret["name"].as_str().unwrap())
            .collect();
        assert!(!names.is_empty(), "{name}");
        let (fit, doctor) = clawk(&agent, &["doctor", "new/claw.yaml"]);
        let said = doctor.to_string();
        assert!(!fit, "{name}: {doctor:#}");
        for secret in &names {
            assert!(
                said.contains(secret),
                "{name}: {secret} is not named in {doctor:#}"
            );
        }

        // With them it starts.
        let values: Vec<(&str, &str)> = names.iter().map(|name| (*name, "a-value-of-a-test")).collect();
        let mut server = Server::without_network(&agent, &["new/claw.yaml", "--stdio", "--trust"], &values);
        let manifest = json!({"kind": "Claw", "metadata": {"name": "x"}});
        let hello = json!({"protocolVersion": "0.3.0", "clientInfo": {"name": "t", "version": "1"},
                           "manifest": manifest, "capabilities": {}});
        let answer = server.ask("claw.initialize", &hello);
        assert!(answer["result"]["agentInfo"].is_object(), "{name}: {answer}");
        let status = server.ask("claw.status", &json!({}));
        assert_eq!(status["result"]["state"], "READY", "{name}: {status}");
        assert!(server.end().success(), "{name}");
    }
}

/// The new folder is whole and valid, or it is not there.
#[test]
fn a_folder_that_can_not_be_written_whole_is_not_written() {
    let agent = Agent::new();
    let old = agent.path("old");
    std::fs::create_dir_all(&old).unwrap();
    std::fs::write(
        old.join("openclaw.json"),
        r#"{"agents": {"defaults": {"model": "openai/gpt-5"}}}"#,
    )
    .unwrap();
    let old = old.to_str().unwrap().to_owned();
    // An empty folder is replaced; one with something in it stays as it is.
    std::fs::create_dir(agent.path("empty")).unwrap();
    agent
        .clawk(["import", "openclaw", old.as_str(), "--output", "empty"])
        .assert()
        .success();
    assert!(agent.path("empty/claw.yaml").is_file());
    let again = agent
        .clawk(["import", "openclaw", old.as_str(), "--output", "empty"])
        .assert()
        .failure();
    assert!(String::from_utf8_lossy(&again.get_output().stderr).contains("is not empty"));
    // A configuration that can't be read leaves nothing, also not beside the folder.
    std::fs::write(agent.path("old/openclaw.json"), "{").unwrap();
    agent
        .clawk(["import", "openclaw", old.as_str(), "--output", "none"])
        .assert()
        .failure();
    let names: Vec<String> = std::fs::read_dir(agent.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert!(
        !names
            .iter()
            .any(|name| name.contains("none") || name.contains("import-")),
        "{names:?}"
    );
}
