//! Runtimes and programs that are missing.

use clawk_plan::{Level, SandboxRefusal};
use clawk_sandbox::{LaunchError, Launcher, LevelSettings, Spec, container};
use serde_json::json;

use super::super::launcher;
use super::{sandbox, script};

#[tokio::test]
async fn a_runtime_that_is_not_the_one_asked_for_is_refused() {
    // gVisor is stronger than what is there: nothing else will do.
    let spec = script(&sandbox("container", json!({"runtime": "gvisor"})), "true");
    match launcher().launch(&spec).await {
        Err(LaunchError::Refused(refusal @ SandboxRefusal::Unavailable { .. })) => {
            let data = refusal.error_data();
            assert_eq!(data["mechanism"], "gvisor", "{data}");
            assert!(data["hint"].as_str().expect("text").contains("runsc"), "{data}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn without_a_runtime_it_is_refused_with_the_reason() {
    let settings = LevelSettings {
        container: container::Settings {
            runtimes: vec!["no-such-runtime".to_owned(), "/bin/true".to_owned()],
            ..Default::default()
        },
        ..Default::default()
    };
    let launcher: Launcher = launcher().with_levels(settings);
    assert!(
        launcher.level_availability(Level::Container).is_ok(),
        "nothing was tried yet"
    );
    let spec = script(&sandbox("container", json!({})), "true");
    match launcher.launch(&spec).await {
        Err(LaunchError::Refused(refusal @ SandboxRefusal::Unavailable { .. })) => {
            let data = refusal.error_data();
            assert_eq!(data["level"], "container");
            assert!(
                data["missing"]
                    .as_str()
                    .expect("text")
                    .contains("`no-such-runtime` is not installed"),
                "{data}"
            );
            assert!(
                data["missing"].as_str().expect("text").contains("/bin/true"),
                "what is not a runtime is found out: {data}"
            );
            assert!(data["hint"].as_str().expect("text").contains("runc"), "{data}");
        }
        other => panic!("{other:?}"),
    }
    assert!(
        launcher.level_availability(Level::Container).is_err(),
        "and remembered"
    );
    let missing = run_refused(&script(
        &sandbox(
            "container",
            json!({"capabilities": {"filesystem": {"mode": "full"}}}),
        ),
        "true",
    ))
    .await;
    assert!(missing.contains("never the host's whole view"), "{missing}");
}

async fn run_refused(spec: &Spec) -> String {
    match launcher().launch(spec).await {
        Err(LaunchError::Refused(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_a_failure_to_set_up() {
    let spec = Spec::new("/no/such/program", sandbox("container", json!({})));
    let said = run_refused(&spec).await;
    assert!(said.contains("no such file or directory"), "{said}");
}
