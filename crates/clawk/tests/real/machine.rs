//! Level `vm` under emulation: a real kernel boots in qemu for every run here. Judged by effects: files of the host, what is in
//! the output, processes that live.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_manifest::model::Sandbox;
use clawk_plan::{Level, Plan, PlanDefaults, RuntimeFiles};
use clawk_sandbox::{LaunchError, LaunchInput, LaunchOutcome, Launcher, LevelSettings, LimitHit, Spec, vm};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

use crate::parts::part;
use crate::process::running;

/// A folder with what a machine may and may not see, and the way to start machines.
struct Lab {
    folder: TempDir,
    launcher: Launcher,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in [
            ("rw/in.txt", "from the host"),
            ("rw/secret/key", "canary"),
            ("rw/alias.src", "canary"),
            ("ro/in.txt", "to be read"),
            ("outside.txt", "canary"),
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let rw = folder.path().join("rw");
        std::fs::hard_link(rw.join("secret/key"), rw.join("other-name")).expect("a link");
        let settings = LevelSettings {
            vm: vm::Settings {
                allow_slow: true,
                kernel: Some(part("vmlinuz")),
                ..vm::Settings::default()
            },
            cache: Some(folder.path().join("cache")),
            ..LevelSettings::default()
        };
        let launcher = Launcher::new(env!("CARGO_BIN_EXE_clawk"), vec!["__sandbox".into()]);
        Self {
            folder,
            launcher: launcher.with_levels(settings),
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// This lab's qemu processes have it in their command lines.
    fn machines(&self) -> usize {
        running(&self.path("cache").display().to_string()).len()
    }

    fn script(&self, limits: Value, line: &str) -> Spec {
        let rw = self.path("rw");
        let sandbox: Sandbox = serde_json::from_value(json!({
            "name": "lab",
            "level": "vm",
            "capabilities": {
                "shell": { "mode": "restricted" },
                "filesystem": {
                    "mode": "scoped",
                    "mount_paths": [
                        { "path": rw, "permissions": "rw" },
                        { "path": self.path("ro"), "permissions": "ro" },
                    ],
                    "denied_paths": [rw.join("secret"), rw.join("later"), "**/*.pem"],
                },
            },
            "resource_limits": limits,
        }))
        .expect("a sandbox");
        let plan = Plan::compile(Some(&sandbox), &PlanDefaults::default());
        let mut spec = Spec::new("/bin/sh", Arc::new(plan));
        spec.args = vec!["-c".to_owned(), line.to_owned()];
        spec.workdir = Some(rw);
        spec
    }

    async fn run(&self, spec: &Spec) -> LaunchOutcome {
        let run = tokio::time::timeout(Duration::from_secs(100), self.launcher.launch(spec));
        run.await.expect("in time").expect("it runs")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const AMPLE: u64 = 90_000;

#[test]
fn a_command_runs_under_a_kernel_of_its_own() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let lab = Lab::new();
        let found = lab
            .launcher
            .probe_level(Level::Vm)
            .await
            .expect("a machine boots here");
        assert!(
            found.mechanisms.iter().any(|name| name.starts_with("qemu:")),
            "{found:?}"
        );
        tokio::join!(
            ordinary(&lab),
            files(&lab),
            limits(&lab),
            ends(&lab),
            service(&lab),
            own_files(&lab)
        );
        assert_eq!(lab.machines(), 0, "nothing of any machine lives");
    });
}

/// What the agent's start reads is read in the machine and not changed, also what is not there.
async fn own_files(lab: &Lab) {
    let rw = lab.path("rw");
    std::fs::create_dir(rw.join("rules")).expect("a folder");
    for (name, text) in [
        ("claw.yaml", "manifest"),
        ("rules/p.yaml", "rule"),
        ("evil", "evil"),
    ] {
        std::fs::write(rw.join(name), text).expect("a file");
    }
    std::fs::hard_link(rw.join("claw.yaml"), rw.join("claw-name")).expect("a link");
    let mut spec = lab.script(
        json!({ "timeout_ms": AMPLE, "memory_mb": 256 }),
        "cat claw.yaml; echo x >> claw.yaml; cp evil claw.yaml; truncate -s 0 claw.yaml; echo x >> claw-name; ln claw.yaml hard && echo x >> hard; \
         cp evil e; mv -f e claw.yaml; rm -f claw.yaml; ln -sf evil claw.yaml; chmod 777 claw.yaml; touch here; \
         while [ ! -e edited ]; do sleep 0.2; done; sleep 2; echo x >> claw.yaml; cp evil claw.yaml; rm -f claw.yaml; \
         echo x > rules/q.yaml; echo x >> rules/p.yaml; mv rules gone; rm -rf rules; \
         echo x > clawk.toml; cp evil e2; mv e2 clawk.toml; ln evil clawk.toml; ln -s evil clawk.toml; mkdir clawk.toml; echo done > work.txt",
    );
    let own = RuntimeFiles {
        state: None,
        files: ["claw.yaml", "clawk.toml", "rules"]
            .map(|name| rw.join(name))
            .to_vec(),
    };
    spec.plan = Arc::new((*spec.plan).clone().with_runtime_files(&own, &rw));
    let edit = async {
        let end = Instant::now() + Duration::from_secs(90);
        while !rw.join("here").exists() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // As an editor does it: the cover goes, the file server's judgement stays.
        std::fs::write(rw.join("claw.swp"), "edited").expect("a file");
        std::fs::rename(rw.join("claw.swp"), rw.join("claw.yaml")).expect("an edit");
        std::fs::write(rw.join("edited"), "").expect("a file");
    };
    let (outcome, ()) = tokio::join!(lab.run(&spec), edit);
    assert!(text(&outcome.stdout).starts_with("manifest"), "{outcome:?}");
    let there = |name: &str| std::fs::read_to_string(rw.join(name)).ok(); // silent-ok: judged below
    assert_eq!(there("claw.yaml").as_deref(), Some("edited"), "{outcome:?}");
    assert_eq!(there("claw-name").as_deref(), Some("manifest"), "{outcome:?}");
    assert_eq!(there("rules/p.yaml").as_deref(), Some("rule"), "{outcome:?}");
    assert_eq!(there("work.txt").as_deref(), Some("done\n"), "{outcome:?}");
    for never in ["rules/q.yaml", "clawk.toml", "gone", "hard"] {
        assert!(rw.join(never).symlink_metadata().is_err(), "{never}: {outcome:?}");
    }
}

/// Input, output, exit code, user, kernel, network.
async fn ordinary(lab: &Lab) {
    let mut spec = lab.script(
        json!({ "timeout_ms": AMPLE, "memory_mb": 256 }),
        "cat; echo err >&2; uname -r; id -u; cat /proc/net/dev; ls /proc | grep -c '^[0-9]'; echo $WORD; ls /dev; exit 7",
    );
    spec.stdin = LaunchInput::Bytes(vec![b'x'; 100_000]);
    spec.env = vec![("WORD".to_owned(), "a word".to_owned())];
    let outcome = lab.run(&spec).await;
    let out = text(&outcome.stdout);
    assert_eq!(outcome.exit_code, Some(7), "{outcome:?}");
    assert_eq!(text(&outcome.stderr), "err\n");
    let (input, rest) = out.split_at(100_000);
    assert!(input.bytes().all(|byte| byte == b'x'));
    let lines: Vec<&str> = rest.lines().collect();
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    assert!(lines[0].contains("cloud") && lines[0] != host.trim(), "{rest}");
    assert_ne!(lines[1], "0", "the tool is nobody's root");
    let cards: Vec<&str> = lines
        .iter()
        .filter(|line| line.contains(':') && !line.contains('|'))
        .copied()
        .collect();
    assert!(
        cards.iter().all(|line| line.trim_start().starts_with("lo:")),
        "{cards:?}"
    );
    assert!(lines.contains(&"a word"), "{rest}");
    assert!(!lines.contains(&"kvm") && !lines.contains(&"mem"), "{rest}");
    let held = &outcome.obtained;
    assert_eq!(held.level, Level::Vm);
    for name in [
        "qemu:tcg",
        "network-card:none",
        "box:network:empty",
        "box:seccomp:allow-list",
    ] {
        assert!(
            held.mechanisms.iter().any(|held| held == name),
            "{name}: {held:?}"
        );
    }
    assert!(
        held.mechanisms
            .iter()
            .any(|name| name.starts_with("box:uid:") && name != "box:uid:0")
    );
}

/// What the plan shows, and what it does not.
async fn files(lab: &Lab) {
    let ro = lab.path("ro").display().to_string();
    let outside = lab.path("outside.txt").display().to_string();
    let line = format!(
        "cat in.txt {ro}/in.txt; echo made > made.txt; mkdir d; echo deep > d/f; mv d/f d/g; ln -s in.txt link; cat link
         echo x > {ro}/x; cat secret/key; ls -A secret; cat other-name; echo k > later; mkdir sub; echo k > sub/k.pem; cat late/host.pem
         mv secret moved; chmod u+s made.txt; mknod node c 1 3; cat {outside} /etc/shadow; ls /root /home /boot; echo k > /usr/x; cat /proc/1/root/etc/shadow
         python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'; echo end"
    );
    let waits = async {
        // Made by the host while the machine boots, when its box stands.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        std::fs::create_dir(lab.path("rw/late")).expect("a folder");
        std::fs::write(lab.path("rw/late/host.pem"), "canary").expect("a file");
    };
    let spec = lab.script(json!({ "timeout_ms": AMPLE, "memory_mb": 256 }), &line);
    let (outcome, ()) = tokio::join!(lab.run(&spec), waits);
    let out = text(&outcome.stdout) + &text(&outcome.stderr);
    assert!(out.starts_with("from the hostto be readfrom the host"), "{out}");
    assert!(out.contains("\nend\n") || out.contains("end\n"), "{out}");
    assert!(!out.contains("canary"), "{out}");
    assert!(!out.contains(":0:0:") && !out.contains("root:*"), "{out}");
    let rw = |name: &str| lab.path("rw").join(name);
    assert_eq!(std::fs::read_to_string(rw("made.txt")).expect("made"), "made\n");
    assert_eq!(std::fs::read_to_string(rw("d/g")).expect("moved"), "deep\n");
    for never in ["later", "sub/k.pem", "moved", "node"] {
        assert!(!rw(never).exists(), "{never}: {out}");
    }
    assert!(!lab.path("ro/x").exists());
    let made = std::fs::metadata(rw("made.txt")).expect("made");
    let folder = std::fs::metadata(lab.path("rw")).expect("a folder");
    assert_eq!(
        std::os::unix::fs::MetadataExt::uid(&made),
        std::os::unix::fs::MetadataExt::uid(&folder)
    );
    assert_eq!(
        std::os::unix::fs::MetadataExt::mode(&made) & 0o6000,
        0,
        "no set-id bit"
    );
    assert!(!Path::new("/usr/x").exists());
}

/// Memory, processes, output.
async fn limits(lab: &Lab) {
    let spec = lab.script(
        json!({ "timeout_ms": AMPLE, "memory_mb": 64 }),
        "tail /dev/zero; kill -9 $$",
    );
    let outcome = lab.run(&spec).await;
    assert_eq!(outcome.limit, Some(LimitHit::Memory(64)), "{outcome:?}");
    assert_eq!((outcome.exit_code, outcome.signal), (None, Some(9)));
    let spec = lab.script(
        json!({ "timeout_ms": AMPLE, "memory_mb": 128, "max_processes": 20, "max_output_bytes": 5000 }),
        "sleep 60 & yes | head -c 100000; for i in $(seq 40); do sleep 60 & done",
    );
    let outcome = lab.run(&spec).await;
    assert_eq!(
        outcome.stdout.len() + outcome.stderr.len(),
        5000,
        "{:?}",
        outcome.limit
    );
    assert!(outcome.truncated);
    assert_eq!(outcome.limit, Some(LimitHit::Processes(20)));
    assert!(outcome.swept > 0, "what it left behind is gone");
}

/// A program that lives on: it is spoken to, and ends when it is stopped.
async fn service(lab: &Lab) {
    let limits = json!({ "timeout_ms": 1000, "memory_mb": 100 });
    let spec = lab.script(
        limits,
        "while read -r line; do echo \"heard $line\"; done; exit 3",
    );
    let mut service = lab.launcher.start_service(&spec).await.expect("it starts");
    assert_eq!(service.obtained_enforcement().level, Level::Vm);
    let mut stdin = service.stdin.take().expect("its input");
    let mut stdout = tokio::io::BufReader::new(service.stdout.take().expect("its output"));
    for word in ["one", "two"] {
        stdin
            .write_all(format!("{word}\n").as_bytes())
            .await
            .expect("written");
        let mut line = String::new();
        stdout.read_line(&mut line).await.expect("read");
        assert_eq!(line, format!("heard {word}\n"));
    }
    drop(stdin);
    let end = tokio::time::timeout(Duration::from_secs(30), service.wait()).await;
    assert_eq!(end.expect("in time").expect("an end").exit_code, Some(3));
}

/// The deadline, a program that is not there, and a run that nobody waits for any more.
async fn ends(lab: &Lab) {
    let started = Instant::now();
    let spec = lab.script(
        json!({ "timeout_ms": 12_000, "memory_mb": 100 }),
        "echo begun; sleep 1000",
    );
    let outcome = lab.run(&spec).await;
    assert_eq!(outcome.limit, Some(LimitHit::Time(12_000)), "{outcome:?}");
    assert!(started.elapsed() < Duration::from_secs(14));

    let spec = lab.script(json!({ "timeout_ms": AMPLE, "memory_mb": 100 }), "sleep 1000");
    let dropped = tokio::time::timeout(Duration::from_secs(2), lab.launcher.launch(&spec));
    assert!(dropped.await.is_err(), "it was under way");
    let spec = lab.script(json!({ "timeout_ms": AMPLE, "memory_mb": 100 }), "true");
    let mut missing = spec;
    missing.program = "/usr/bin/no-such-program".to_owned();
    match lab.launcher.launch(&missing).await {
        Err(LaunchError::Refused(refusal)) => {
            assert!(refusal.to_string().contains("no-such-program"), "{refusal}")
        }
        other => panic!("{other:?}"),
    }
}
