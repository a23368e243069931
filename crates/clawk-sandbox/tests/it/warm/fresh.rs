//! A box that waits shows no stale world, and nothing of one call reaches another.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use clawk_plan::{Plan, PlanDefaults};
use clawk_sandbox::{InMemoryFile, LaunchOutcome, Launcher, Spec};
use serde_json::{Value, json};

use super::{bytes, launcher, ready, run, script, text, warmed};

pub(super) fn scoped(folder: &Path, mount: &Path, permissions: &str, denied: Value) -> Spec {
    let sandbox = json!({"name": "s", "level": "process", "capabilities": {"filesystem": {
        "mode": "scoped", "mount_paths": [{"path": mount, "permissions": permissions}], "denied_paths": denied}}});
    let given = serde_json::from_value(sandbox).expect("a sandbox");
    let mut spec = Spec::new(
        "/bin/sh",
        Arc::new(Plan::compile(Some(&given), &PlanDefaults::default())),
    );
    spec.workdir = Some(folder.to_path_buf());
    spec
}

fn does(spec: &Spec, command: &str) -> Spec {
    let mut spec = spec.clone();
    spec.args = vec!["-c".to_owned(), command.to_owned()];
    spec
}

/// What cold and warm boxes must have in common. The id is the box's own.
pub(super) fn facts(outcome: &LaunchOutcome) -> Value {
    let held = outcome.obtained.mechanisms.iter();
    let held: Vec<&String> = held.filter(|held| !held.starts_with("uid:")).collect();
    json!({"code": outcome.exit_code, "signal": outcome.signal, "out": text(&outcome.stdout), "err": text(&outcome.stderr),
        "limit": outcome.limit.map(|limit| limit.to_string()), "held": held, "missing": outcome.obtained.missing,
        "level": outcome.obtained.level, "truncated": outcome.truncated, "swept": outcome.swept})
}

/// Everything a program can see of its box, but what is random.
pub(super) const LOOK: &str = "cat /proc/self/status | grep -E '^(Cap|NoNewPrivs|Seccomp|NSpid|Groups|Umask|SigBlk|SigIgn|SigCgt)'; \
    sed 's/^[0-9]* [0-9]* [0-9]*:[0-9]* //; s/\\(uid\\|gid\\)=[0-9]*//g; s/shared:[0-9]*//; s/,size=[0-9]*k//' /proc/self/mountinfo; \
    ls -la /dev /tmp /run /var /home / | sed 's/^dr-xr-xr-x *[0-9]*/proc/; s/[A-Z][a-z][a-z] *[0-9]* *[0-9:]*//; s/^total.*//; s/18[0-9]\\{8\\}/ID/g; s/  */ /g'; ulimit -a; pwd; env | sort; \
    cat /proc/self/limits; ls /proc/self/fd; hostname; cat /etc/group | sed 's/[0-9]*:$//'; cat /proc/net/dev | cut -d: -f1; echo $$; nice";

#[tokio::test]
async fn a_program_sees_the_same_box_warm_and_cold() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(".env"), "CANARY").expect("written");
    let plain = script(LOOK);
    let mounted = does(
        &scoped(folder.path(), folder.path(), "rw", json!(["**/.env", "/etc"])),
        LOOK,
    );
    let mut dressed = does(&scoped(folder.path(), folder.path(), "ro", json!([])), LOOK);
    dressed.env = vec![
        ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
        ("A".to_owned(), "1".to_owned()),
    ];
    dressed.timeout_ms = Some(7_000);
    dressed.stdin = bytes("in");
    for spec in [plain, mounted, dressed] {
        let cold = super::super::run(&spec).await;
        assert!(cold.stdout.len() > 2000, "{}", text(&cold.stderr));
        let warm = run(&spec).await;
        for (seen, expected) in [(&warm.stdout, &cold.stdout), (&warm.stderr, &cold.stderr)] {
            let (seen, expected) = (text(seen), text(expected));
            let differ = seen
                .lines()
                .zip(expected.lines())
                .find(|(seen, expected)| seen != expected);
            assert_eq!(
                differ,
                None,
                "{} lines, {} expected",
                seen.lines().count(),
                expected.lines().count()
            );
        }
        assert_eq!(facts(&warm), facts(&cold));
    }
}

#[tokio::test]
async fn every_box_has_a_network_of_its_own() {
    let launcher = launcher();
    let spec = script("readlink /proc/self/ns/net; sleep 1");
    // All alive at once: the kernel gives the number of one that is gone again.
    let runs = tokio::join!(
        launcher.launch(&spec),
        launcher.launch(&spec),
        launcher.launch(&spec)
    );
    let host = std::fs::read_link("/proc/self/ns/net").expect("proc");
    let mut seen = vec![host.display().to_string()];
    for run in [runs.0, runs.1, runs.2] {
        seen.push(text(&run.expect("runs").stdout).trim().to_owned());
    }
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert!(
        seen.len() == all && seen.iter().all(|name| name.starts_with("net:")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn nothing_of_a_call_is_in_the_next() {
    let launcher = launcher();
    let mut first =
        script("cat; env; echo left > /tmp/left; echo x > /dev/shm/left; id -u; cat /run/clawk/*");
    first.env = vec![("SECRET".to_owned(), "CANARY-1".to_owned())];
    first.args.push("CANARY-2".to_owned());
    first.stdin = bytes("CANARY-3");
    warmed(&launcher, &first).await;
    let said = text(&launcher.launch(&first).await.expect("runs").stdout);
    assert!(said.contains("CANARY-1") && said.contains("CANARY-3"), "{said}");
    ready(&launcher, 1).await;
    let second = script(
        "env; ls /tmp /dev/shm /run; cat; tr '\\0' ' ' < /proc/1/cmdline; tr '\\0' ' ' < /proc/1/environ; id -u",
    );
    let again = text(&launcher.launch(&second).await.expect("runs").stdout);
    assert!(!again.contains("CANARY") && !again.contains("left"), "{again}");
    assert_eq!(launcher.served_warm(), 2);
    let id = |text: &str| text.lines().find_map(|line| line.parse::<u32>().ok());
    if rustix::process::getuid().is_root() {
        assert_ne!(id(&said), id(&again), "each box is used once");
    }
    // A run with files in memory never takes a box that waits.
    ready(&launcher, 1).await;
    let mut third = script("cat /run/clawk/key");
    third.files = vec![InMemoryFile {
        name: "key".to_owned(),
        bytes: b"of this run".to_vec(),
    }];
    assert_eq!(
        text(&launcher.launch(&third).await.expect("runs").stdout),
        "of this run"
    );
    assert_eq!((launcher.served_warm(), launcher.waiting_count()), (2, 1));
}

/// Runs in a box that had waited while `change` came to pass; whether that box was taken.
async fn after(launcher: &Launcher, spec: &Spec, change: impl FnOnce()) -> (String, bool) {
    warmed(launcher, spec).await;
    let before = launcher.served_warm();
    change();
    let outcome = launcher.launch(spec).await.expect("runs");
    let warm = launcher.served_warm() > before;
    // The next box is there before another run asks for one: no second box is made while something changes.
    ready(launcher, 1).await;
    (text(&outcome.stdout), warm)
}

#[tokio::test]
async fn a_mount_that_was_replaced_is_shown_as_it_is_now() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mount, other) = (folder.path().join("mount"), folder.path().join("other"));
    for (path, word) in [(&mount, "old"), (&other, "new")] {
        std::fs::create_dir(path).expect("made");
        std::fs::write(path.join("word"), word).expect("written");
    }
    let spec = does(
        &scoped(folder.path(), &mount, "ro", json!([])),
        &format!("cat {}/word", mount.display()),
    );
    let launcher = launcher();
    // What changes inside of a mount is seen in any case.
    let (said, warm) = after(&launcher, &spec, || {
        std::fs::write(mount.join("word"), "changed").expect("written");
    })
    .await;
    assert_eq!((said.as_str(), warm), ("changed", true));
    let (said, warm) = after(&launcher, &spec, || {
        std::fs::rename(&mount, folder.path().join("away")).expect("moved");
        std::fs::rename(&other, &mount).expect("moved");
    })
    .await;
    assert_eq!((said.as_str(), warm), ("new", false));
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_by_now_is_followed_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("link");
    for name in ["a", "b"] {
        std::fs::create_dir(folder.path().join(name)).expect("made");
        std::fs::write(folder.path().join(name).join("word"), name).expect("written");
    }
    symlink(folder.path().join("a"), &link).expect("linked");
    let spec = does(
        &scoped(folder.path(), &link, "ro", json!([])),
        &format!("cat {}/word", link.display()),
    );
    let (said, warm) = after(&launcher(), &spec, || {
        std::fs::remove_file(&link).expect("removed");
        symlink(folder.path().join("b"), &link).expect("linked");
    })
    .await;
    assert_eq!((said.as_str(), warm), ("b", false));
}

#[tokio::test]
async fn what_is_denied_now_is_covered_now() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("sub")).expect("made");
    std::fs::write(at("open"), "open").expect("written");
    let denied = json!(["**/*.pem", at("literal"), at("sub/kept")]);
    let spec = |command: &str| {
        does(
            &scoped(folder.path(), folder.path(), "rw", denied.clone()),
            command,
        )
    };
    let launcher = launcher();
    // `stat -c %a` says whether a cover is there: the guard alone covers nothing.
    let look = "cat sub/new.pem literal sub/kept other 2>/dev/null; stat -c %a:%h sub/new.pem literal sub/kept 2>/dev/null; cat open";
    let (said, warm) = after(&launcher, &spec(look), || ()).await;
    assert_eq!((said.as_str(), warm), ("open", true));
    let changes: [(&str, &dyn Fn()); 4] = [
        ("0:1\nopen", &|| {
            std::fs::write(at("sub/new.pem"), "CANARY").expect("written")
        }),
        ("0:1\n0:1\nopen", &|| {
            std::fs::write(at("literal"), "CANARY").expect("written")
        }),
        // A further name of a denied file, outside of the rule.
        ("0:1\n0:1\nopen", &|| {
            std::fs::hard_link(at("literal"), at("other")).expect("linked")
        }),
        ("0:1\n0:1\n0:1\nopen", &|| {
            std::fs::rename(at("sub"), at("moved")).expect("moved");
            std::fs::create_dir(at("sub")).expect("made");
            std::fs::write(at("sub/new.pem"), "CANARY").expect("written");
            std::fs::write(at("sub/kept"), "CANARY").expect("written");
        }),
    ];
    for (number, (wanted, change)) in changes.into_iter().enumerate() {
        let (said, warm) = after(&launcher, &spec(look), change).await;
        assert_eq!((said.as_str(), warm), (wanted, false), "change {number}");
        let cold = super::super::run(&spec(look)).await;
        assert_eq!(said, text(&cold.stdout), "as in a box made for it");
    }
}

#[tokio::test]
async fn a_box_is_taken_for_its_own_configuration_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let launcher = launcher();
    let writable = does(
        &scoped(folder.path(), folder.path(), "rw", json!([])),
        "touch made; echo $?",
    );
    warmed(&launcher, &writable).await;
    let narrower = does(
        &scoped(folder.path(), folder.path(), "ro", json!([])),
        "touch made 2>/dev/null; echo $?",
    );
    let outcome = launcher.launch(&narrower).await.expect("runs");
    assert_eq!(
        (text(&outcome.stdout).as_str(), launcher.served_warm()),
        ("1\n", 0)
    );
    assert!(!folder.path().join("made").exists());
}
