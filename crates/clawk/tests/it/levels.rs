//! A manifest's `sandbox.level` above `process`, through the real binary: where the command really ran, and the trace.

use clawk_plan::Level;
use predicates::prelude::*;
use predicates::str::contains;

use super::agent::Agent;

/// An agent whose shell runs at this level and whose model asks it who and where it is.
pub(crate) fn agent(level: Level, command: &str, more: &str) -> Agent {
    let agent = Agent::new();
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let manifest = manifest
        .replace("level: process", &format!("level: {level}{more}"))
        .replace("      capabilities:\n", "      capabilities:\n        shell: { mode: full }\n")
        .replace("  tools:\n", "  tools:\n    - inline:\n        name: shell\n        description: Runs a command\n        input_schema: { type: object }\n")
        .replace("        rules:\n", "        rules:\n          - { id: shells, action: allow, scope: tool, match: { name: shell } }\n");
    std::fs::write(agent.path("claw.yaml"), manifest).unwrap();
    let command = serde_json::to_string(command).unwrap();
    let script = format!(
        "scenes:\n  - steps:\n      - call: [{{ name: shell, arguments: {{ command: {command} }} }}]\n      - say: \"{{{{last_tool_text}}}}\"\n"
    );
    std::fs::write(agent.path("script.yaml"), script).unwrap();
    agent
}

/// What the trace says of the last run.
pub(crate) fn trace(agent: &Agent) -> String {
    let state = agent.state();
    let shown = agent
        .clawk([
            "trace",
            "show",
            "--format",
            "json",
            "--state",
            state.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    String::from_utf8_lossy(&shown.stdout).into_owned() + &String::from_utf8_lossy(&shown.stderr)
}

#[test]
fn a_command_runs_in_a_container_and_the_trace_says_which() {
    let agent = agent(
        Level::Container,
        "cat in.txt; id -u; cat /proc/1/comm; echo made > made.txt; ls /root",
        "",
    );
    agent
        .clawk(["run", "claw.yaml", "-m", "go"])
        .assert()
        .success()
        .stdout(
            contains("a line of text")
                .and(contains("cannot access '/root'").or(contains("cannot open directory '/root'"))),
        );
    assert_eq!(std::fs::read_to_string(agent.path("made.txt")).unwrap(), "made\n");
    let trace = trace(&agent);
    assert!(
        trace.contains("oci:runc") && trace.contains("container"),
        "{trace}"
    );
}

#[test]
fn a_tool_that_fills_the_disk_is_ended_and_the_model_is_told_why() {
    for level in [Level::Process, Level::Container] {
        let fill = "i=0; while head -c 8388608 /dev/zero > fill$i; do i=$((i+1)); done";
        let agent = agent(level, fill, "");
        let disk = rustix::fs::statvfs(agent.path(".")).unwrap();
        let floor_mb = (disk.f_bavail * disk.f_frsize).div_ceil(1 << 20) - 64;
        let config = format!("[sandbox]\nmin_free_disk_mb = {floor_mb}\n");
        std::fs::write(agent.path("clawk.toml"), config).unwrap();
        agent
            .clawk(["run", "claw.yaml", "-m", "go"])
            .assert()
            .success()
            .stdout(contains(format!("has less than {floor_mb} MiB left")));
        // Still with the walls that it had.
        let (trace, wall) = (
            trace(&agent),
            if level == Level::Process {
                "seccomp"
            } else {
                "oci:"
            },
        );
        assert!(trace.contains(wall), "{level}: {trace}");
    }
}

#[test]
fn a_level_that_is_not_to_be_had_is_refused_with_the_cure() {
    let agent = agent(Level::Container, "touch ran.txt", "");
    std::fs::write(
        agent.path("clawk.toml"),
        "[sandbox.container]\nruntimes = [\"no-such-runtime\"]\n",
    )
    .unwrap();
    agent
        .clawk(["run", "claw.yaml", "-m", "go"])
        .assert()
        .failure()
        .stderr(contains("`no-such-runtime` is not installed"));
    assert!(!agent.path("ran.txt").exists());
    agent
        .clawk(["doctor", "claw.yaml"])
        .assert()
        .stdout(contains("sandbox-container").and(contains("`no-such-runtime` is not installed")));
}

#[cfg(feature = "vm")]
#[test]
fn a_machine_that_is_not_to_be_had_is_refused_with_the_cure() {
    let agent = agent(Level::Vm, "touch ran.txt", "");
    let config = agent.path("clawk.toml");
    std::fs::write(&config, "[sandbox.vm]\nqemu = \"no-such-qemu\"\n").unwrap();
    let run = || agent.clawk(["run", "claw.yaml", "-m", "go"]).assert().failure();
    run().stderr(contains("`no-such-qemu` is not installed").and(contains("linux-image-cloud-amd64")));
    agent
        .clawk(["doctor", "claw.yaml"])
        .assert()
        .stdout(contains("sandbox-vm").and(contains("`no-such-qemu` is not installed")));
    // Whatever this host has: a machine has no network card.
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let manifest = manifest.replace(
        "      capabilities:\n",
        "      capabilities:\n        network: { mode: allow-all }\n",
    );
    std::fs::write(agent.path("claw.yaml"), manifest).unwrap();
    run().stderr(contains("no network card"));
    assert!(!agent.path("ran.txt").exists());
}

#[cfg(feature = "wasm")]
#[test]
fn a_guest_runs_in_wasm_and_the_trace_says_so() {
    let copy = r#"(module
      (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
      (memory (export "memory") 1)
      (func (export "_start")
        (i32.store (i32.const 0) (i32.const 1024)) (i32.store (i32.const 4) (i32.const 4096))
        (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (i32.store (i32.const 4) (i32.load (i32.const 8)))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
    let agent = agent(Level::Wasm, "hello guest", "");
    std::fs::write(agent.path("copy.wasm"), wat::parse_str(copy).unwrap()).unwrap();
    std::fs::write(agent.path("clawk.toml"), "[tools.shell]\nwasm = \"copy.wasm\"\n").unwrap();
    agent
        .clawk(["run", "claw.yaml", "-m", "go"])
        .assert()
        .success()
        .stdout(contains("hello guest"));
    let trace = trace(&agent);
    assert!(trace.contains("wasmtime"), "{trace}");
    assert!(
        agent
            .state()
            .join("cache/wasm")
            .read_dir()
            .unwrap()
            .next()
            .is_some()
    );
}
