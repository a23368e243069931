//! Level `container` with an image from a real engine's store: Podman's, and that of a Docker daemon, both of this test's own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_manifest::model::Sandbox;
use clawk_plan::{Level, Plan, PlanDefaults, SandboxRefusal};
use clawk_sandbox::{LaunchError, Launcher, LevelSettings, Spec, container};
use rustix::process::{Pid, Signal};
use serde_json::json;

use super::parts;

const IMAGE: &str = "localhost/tools:1";

/// Podman whose store is in this folder.
fn podman(folder: &Path) -> PathBuf {
    let line = format!(
        "podman --root {0}/store --runroot {0}/run --storage-driver vfs",
        folder.display()
    );
    wrapper(&folder.join("podman-here"), &line)
}

/// A program that is this command line with its own words behind.
fn wrapper(at: &Path, line: &str) -> PathBuf {
    std::fs::write(at, format!("#!/bin/sh\nexec {line} \"$@\"\n")).expect("a wrapper");
    std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o755)).expect("executable");
    at.to_owned()
}

/// A Docker daemon whose store is in a folder.
struct Daemon {
    process: Child,
    engine: PathBuf,
}

impl Daemon {
    fn start(folder: &Path) -> Self {
        let at = |name: &str| folder.join(name).display().to_string();
        let programs = parts::part("docker/usr");
        let path = format!(
            "{0}/bin:{0}/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
            programs.display()
        );
        let socket = format!("unix://{}", at("socket"));
        let line = format!("{}/bin/docker -H {socket}", programs.display());
        let engine = wrapper(&folder.join("docker-here"), &line);
        let log = std::fs::File::create(folder.join("log")).expect("a file");
        // It only keeps images: no bridge, no rule of a firewall, no container.
        let process = program(&programs.join("sbin/dockerd"))
            .env("PATH", path)
            .args([
                "--data-root",
                &at("data"),
                "--exec-root",
                &at("run"),
                "--pidfile",
                &at("pid"),
            ])
            .args(["-H", &socket, "--storage-driver=vfs", "--bridge=none"])
            .args([
                "--iptables=false",
                "--ip6tables=false",
                "--ip-forward=false",
                "--ip-masq=false",
            ])
            .stderr(log)
            .spawn()
            .expect("dockerd starts: run tests/parts/install.sh");
        let daemon = Self { process, engine };
        let end = Instant::now() + Duration::from_secs(60);
        while !program(&daemon.engine)
            .arg("info")
            .output()
            .expect("runs")
            .status
            .success()
        {
            let said = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the daemon never answered: {}", said());
            std::thread::sleep(Duration::from_millis(100));
        }
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let asked = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
        asked.expect("it is ours");
        self.process.wait().expect("it ends, and its containerd with it");
    }
}

/// An image with a shell and a marker; its id.
fn import(folder: &Path, engine: &Path) -> String {
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("bin")).expect("a folder");
    std::fs::copy("/bin/busybox", tree.join("bin/sh")).expect("busybox-static is needed");
    std::fs::write(tree.join("marker"), "from the store").expect("a marker");
    let archive = folder.join("tree.tar");
    run(program(Path::new("tar"))
        .args(["-C"])
        .arg(&tree)
        .arg("-cf")
        .arg(&archive)
        .arg("."));
    run(program(engine).arg("import").arg(&archive).arg(IMAGE));
    let id = run(program(engine).args(["image", "inspect", "--format", "{{.Id}}", IMAGE]));
    let id = id.trim();
    format!("sha256:{}", id.strip_prefix("sha256:").unwrap_or(id))
}

#[expect(clippy::disallowed_methods, reason = "a test drives a real engine")]
fn program(path: &Path) -> Command {
    Command::new(path)
}

fn run(command: &mut Command) -> String {
    let done = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}: run tests/parts/install.sh"));
    assert!(
        done.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn launcher(folder: &Path, settings: container::Settings) -> Launcher {
    Launcher::new(env!("CARGO_BIN_EXE_clawk"), vec!["__sandbox".into()]).with_levels(LevelSettings {
        container: settings,
        cache: Some(folder.join("cache")),
        ..LevelSettings::default()
    })
}

fn spec() -> Spec {
    let sandbox: Sandbox = serde_json::from_value(json!({
        "name": "lab", "level": "container", "capabilities": { "shell": { "mode": "full" } },
    }))
    .expect("a sandbox");
    let mut spec = Spec::new(
        "/bin/sh",
        Arc::new(Plan::compile(Some(&sandbox), &PlanDefaults::default())),
    );
    let line = "read -r text < /marker; echo \"$text\"; (: > /marker2) 2>/dev/null; (exec /usr/bin/env true) 2>/dev/null || echo alone";
    spec.args = vec!["-c".to_owned(), line.to_owned()];
    spec
}

#[test]
fn an_image_of_podmans_store_is_what_runs_under_our_own_bundle() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = podman(folder.path());
    runs_from_the_store(folder.path(), &engine);
}

#[test]
fn an_image_of_a_docker_daemon_is_what_runs_under_our_own_bundle() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = Daemon::start(folder.path());
    runs_from_the_store(folder.path(), &daemon.engine);
}

fn runs_from_the_store(folder: &Path, engine: &Path) {
    let id = import(folder, engine);
    let settings = container::Settings {
        engine: engine.display().to_string(),
        engine_image: Some(IMAGE.to_owned()),
        digest: Some(id),
        ..container::Settings::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let engine = launcher(folder, settings.clone());
        let outcome = engine.launch(&spec()).await.expect("runs");
        assert_eq!(
            String::from_utf8_lossy(&outcome.stdout),
            "from the store\nalone\n",
            "{outcome:?}"
        );
        assert_eq!(outcome.obtained.level, Level::Container);
        for held in ["seccomp", "capabilities:none", "root:read-only", "netns:empty"] {
            assert!(
                outcome.obtained.mechanisms.iter().any(|name| name == held),
                "{held}: {:?}",
                outcome.obtained
            );
        }
        // Another image than the one that is pinned; an engine that is not there; a name that is an option.
        let wrong = |change: fn(&mut container::Settings)| {
            let mut settings = settings.clone();
            change(&mut settings);
            let engine = launcher(folder, settings);
            async move { refused(engine.launch(&spec()).await) }
        };
        let pinned = wrong(|settings| settings.digest = Some(format!("sha256:{}", "0".repeat(64)))).await;
        assert!(pinned.contains("and not `sha256:0000"), "{pinned}");
        let missing = wrong(|settings| settings.engine = "no-such-engine".to_owned()).await;
        assert!(missing.contains("no-such-engine"), "{missing}");
        let option = wrong(|settings| settings.engine_image = Some("--all".to_owned())).await;
        assert!(option.contains("not a valid name of an image"), "{option}");
        let unknown = wrong(|settings| settings.engine_image = Some("localhost/none:1".to_owned())).await;
        assert!(unknown.contains("localhost/none:1"), "{unknown}");
    });
}

fn refused<T: std::fmt::Debug>(result: Result<T, LaunchError>) -> String {
    match result {
        Err(LaunchError::Refused(SandboxRefusal::Unavailable { level, missing, .. })) => {
            assert_eq!(level, Level::Container);
            missing
        }
        other => panic!("{other:?}"),
    }
}
