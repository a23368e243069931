//! Attempts to leave the box of level `process`, judged by what they did to the host; and ordinary work, which must succeed.
//! `cases.toml` and `uses.toml` hold them.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests: a panic is how they fail"
)]

mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use serde::Deserialize;

use world::{How, World, is_root};

#[derive(Deserialize)]
struct Cases {
    case: Vec<Family>,
}

#[derive(Deserialize)]
struct Family {
    id: String,
    what: String,
    effect: Effect,
    script: String,
    #[serde(default)]
    each: Vec<String>,
    #[serde(default)]
    off: Off,
    #[serde(default)]
    root: bool,
    /// Entries that do escape today, asserted as they are: findings.
    #[serde(default)]
    known: Vec<String>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Effect {
    Leak,
    Host,
    Setid,
    Hit,
    Killed,
    Alive,
    Claim,
    Flood,
}

#[derive(Deserialize, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Off {
    #[default]
    None,
    Plain,
}

struct Case {
    id: String,
    script: String,
    effect: Effect,
    off: Off,
    root: bool,
    known: bool,
}

fn cases() -> Vec<Case> {
    let all: Cases = toml::from_str(include_str!("cases.toml")).unwrap();
    let mut cases = Vec::new();
    for family in all.case {
        assert!(!family.what.is_empty());
        let one = [String::new()];
        let each = if family.each.is_empty() {
            &one[..]
        } else {
            &family.each
        };
        for (n, entry) in each.iter().enumerate() {
            cases.push(Case {
                id: format!("{}-{n}", family.id),
                script: family.script.replace('@', entry),
                effect: family.effect,
                off: family.off,
                root: family.root,
                known: family.known.contains(entry),
            });
        }
    }
    cases
}

/// The program under test, where every user may run it.
fn program() -> &'static str {
    static PROGRAM: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    let (_, path) = PROGRAM.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new()
            .prefix("escbin")
            .tempdir_in("/tmp")
            .unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = folder.path().join("clawk");
        let built = env!("CARGO_BIN_EXE_clawk");
        if std::fs::hard_link(built, &path).is_err() {
            std::fs::copy(built, &path).unwrap();
        }
        let text = path.to_str().unwrap().to_owned();
        (folder, text)
    });
    path
}

const TIGHT: [&str; 10] = [
    "--timeout-ms",
    "2500",
    "--memory-mb",
    "192",
    "--max-processes",
    "64",
    "--max-open-files",
    "256",
    "--allow-host",
    "allowed.example",
];
const LOOSE: [&str; 2] = ["--max-output-bytes", "10000000"];

/// Whether it had its effect, and what it said.
fn attempt(case: &Case, nobody: bool, how: How) -> (bool, String) {
    let mut world = World::new(nobody);
    let limits: &[&str] = match how {
        How::Box | How::Warm => &TIGHT,
        How::None | How::Plain => &LOOSE,
    };
    let said = world.run(how, &case.script, limits, "");
    let ran = said.contains(&format!("ran-{}", world.tag));
    let done = match case.effect {
        Effect::Leak => said.contains(&world.canary),
        Effect::Host => world.changed(),
        Effect::Setid => world.armed(),
        Effect::Hit => world.hit(),
        Effect::Killed => {
            std::thread::sleep(std::time::Duration::from_millis(50));
            world.holder.try_wait().unwrap().is_some()
        }
        Effect::Alive => world.alive(),
        Effect::Claim => said.lines().any(|line| line == "CLAIM"),
        Effect::Flood => said.len() > 2_000_000,
    };
    let shown: String = said.chars().take(300).collect();
    // What never ran shows nothing.
    let shown = if ran { shown } else { format!("NEVER RAN: {shown}") };
    (done, shown)
}

fn judge(case: &Case, nobody: bool) -> Option<String> {
    judge_in(How::Box, case, nobody)
}

fn judge_in(how: How, case: &Case, nobody: bool) -> Option<String> {
    let off = if case.off == Off::Plain {
        How::Plain
    } else {
        How::None
    };
    let (could, said) = attempt(case, nobody, off);
    if !could {
        return Some(format!(
            "{}: no effect with the sandbox off\n  {}\n  {said}",
            case.id, case.script
        ));
    }
    let (escaped, said) = attempt(case, nobody, how);
    if said.starts_with("NEVER RAN") {
        return Some(format!("{}: {said}", case.id));
    }
    (escaped != case.known).then(|| {
        let what = if escaped {
            "ESCAPED"
        } else {
            "is stopped now: no longer `known`"
        };
        format!("{}: {what}\n  {}\n  {said}", case.id, case.script)
    })
}

/// Two at a time.
fn all<T: Sync>(items: &[T], judge: impl Fn(&T) -> Option<String> + Sync) {
    let next = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    faults.lock().unwrap().extend(judge(item));
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        items.len(),
        faults.join("\n")
    );
}

fn wanted(cases: Vec<Case>, powers: bool) -> Vec<Case> {
    #[expect(clippy::disallowed_methods, reason = "for a person: one family only")]
    let only = std::env::var("ESCAPES").unwrap_or_default();
    cases
        .into_iter()
        .filter(|case| (powers || !case.root) && case.id.starts_with(&only))
        .collect()
}

#[test]
fn there_are_enough_of_them() {
    assert!(cases().len() >= 120, "{}", cases().len());
    let uses: Uses = toml::from_str(include_str!("uses.toml")).unwrap();
    assert!(uses.r#use.len() >= 25);
}

#[test]
fn nothing_leaves_the_box() {
    all(&wanted(cases(), is_root()), |case| judge(case, false));
}

#[test]
fn nothing_leaves_the_box_of_an_ordinary_user() {
    all(&wanted(cases(), false), |case| judge(case, is_root()));
}

#[test]
fn nothing_leaves_a_box_that_waited() {
    all(&wanted(cases(), is_root()), |case| {
        judge_in(How::Warm, case, false)
    });
}

#[derive(Deserialize)]
struct Uses {
    r#use: Vec<Use>,
}

#[derive(Deserialize)]
struct Use {
    what: String,
    script: String,
    says: String,
    #[serde(default)]
    stdin: String,
    #[serde(default)]
    serve: bool,
}

fn works(how: How, one: &Use, nobody: bool) -> Option<String> {
    let world = World::new(nobody);
    let place = format!("127.0.0.1:{}", world.port());
    let limits = ["--allow-host", &place, "--allow-private", &place];
    let limits = if one.serve { &limits[..] } else { &[] };
    let run = || world.run(how, &one.script, limits, &one.stdin);
    let said = if one.serve { world.serving(run) } else { run() };
    (!said.contains(&one.says))
        .then(|| format!("{}: {}", one.what, said.chars().take(600).collect::<String>()))
}

#[test]
fn ordinary_work_is_done() {
    let uses: Uses = toml::from_str(include_str!("uses.toml")).unwrap();
    all(&uses.r#use, |one| {
        works(How::Box, one, false)
            .or_else(|| works(How::Box, one, is_root()))
            .or_else(|| works(How::Warm, one, is_root()))
    });
}

/// A person tries a Sandbox before any agent has it: its own file counts, and is as safe from the tool as a manifest.
#[test]
fn a_sandbox_is_tried_by_its_own_file() {
    let world = World::new(false);
    let file = world.path("work/box.yaml");
    let text = "claw: \"0.3.0\"\nkind: Sandbox\nmetadata: { name: box }\nspec:\n  level: process\n  capabilities:\n    filesystem: { mode: scoped, mount_paths: [{ path: \".\", permissions: rw }], denied_paths: [\".env\"] }\n";
    std::fs::write(&file, text).unwrap();
    let said = world.tried(
        &["box.yaml"],
        "cat fine2; cat .env; echo made > made; echo x >> box.yaml; pwd",
    );
    assert!(said.contains("fine") && !said.contains(&world.canary), "{said}");
    assert!(said.contains(world.path("work").to_str().unwrap()), "{said}");
    assert_eq!(
        std::fs::read_to_string(world.path("work/made")).unwrap(),
        "made\n"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    std::fs::write(&file, text.replace("level: process", "level: processes")).unwrap();
    assert!(world.tried(&["box.yaml"], "echo ran").contains("box.yaml"));
    assert!(!world.tried(&["box.yaml"], "echo ran").contains("ran\n"));
}
