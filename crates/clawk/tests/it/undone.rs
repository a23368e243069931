//! `clawk undo` after a hundred random sessions of file tools and shell commands, through the real binary. After each undo the tree
//! is compared with what it was: contents, modes, dates, symbolic and hard links.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::stop::Served;

const MANIFEST: &str = r#"  tools:
    - inline: { name: file-write, description: A built-in, input_schema: { type: object } }
    - inline: { name: file-edit, description: A built-in, input_schema: { type: object } }
    - inline: { name: shell, description: A built-in, input_schema: { type: object } }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: "./work", permissions: rw }] }
        shell: { mode: full }
  policies:
    - inline: { name: all, rules: [{ id: all, action: allow, scope: all }] }
"#;

const SESSIONS: usize = 100;

/// What stands at a path, as far as an undo puts it back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stands {
    mode: u32,
    modified: (i64, i64),
    content: u64,
    size: usize,
    /// The first path in the tree that is the same file.
    same_as: PathBuf,
}

type Tree = BTreeMap<PathBuf, Stands>;

fn tree(root: &Path) -> Tree {
    let mut metas = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            open.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        metas.insert(path, meta);
    }
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    let stands = |(path, meta): (PathBuf, std::fs::Metadata)| {
        let content = if meta.is_dir() {
            Vec::new()
        } else if meta.is_symlink() {
            std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            std::fs::read(&path).unwrap()
        };
        let stands = Stands {
            mode: meta.mode(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            content: fnv(&content),
            size: content.len(),
            // A symbolic link can't be changed, so it makes no difference whether two of them are one.
            same_as: if meta.is_symlink() {
                path.clone()
            } else {
                first.entry(meta.ino()).or_insert_with(|| path.clone()).clone()
            },
        };
        (path, stands)
    };
    metas.into_iter().map(stands).collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Where two trees differ, for people.
fn difference(was: &Tree, now: &Tree) -> Vec<String> {
    let paths: std::collections::BTreeSet<&PathBuf> = was.keys().chain(now.keys()).collect();
    let differ = paths.into_iter().filter(|path| was.get(*path) != now.get(*path));
    let told = differ.map(|path| {
        format!(
            "{}: was {:?}, is {:?}",
            path.display(),
            was.get(path),
            now.get(path)
        )
    });
    told.collect()
}

/// xorshift64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[usize::try_from(self.roll(of.len() as u64)).unwrap()]
    }

    fn folder(&mut self) -> &'static str {
        self.pick(&["one", "two/deep", "two", "empty", "with space"])
    }

    /// Relative to the writable folder. Few names, so that sessions meet.
    fn file(&mut self) -> String {
        let name = self.pick(&["a", "b", "c.txt", "-dash", "ü", "sp ace"]);
        match self.roll(3) {
            0 => format!("./{name}"),
            _ => format!("./{}/{name}", self.folder()),
        }
    }
}

/// One thing that a program does. Whether it succeeds makes no difference.
fn deed(dice: &mut Dice) -> String {
    let (p, q) = (dice.file(), dice.file());
    let (d, e) = (dice.folder(), dice.folder());
    let n = dice.roll(1000);
    let date = format!("20{:02}-0{}-1{} 01:02:03.{n:03}456789", n % 30, n % 9 + 1, n % 10);
    match dice.roll(26) {
        0 | 1 => format!("mkdir -p '{d}'; printf 'text {n}' > '{p}'"),
        2 => format!("printf 'more {n}' >> '{p}'"),
        3 => format!("truncate -s {n} '{p}'"),
        4 => format!(": > '{p}'"),
        // In place, of the same length: nothing but the change date of the file shows it.
        5 => format!(
            "touch -r '{p}' /tmp/then && printf {} | dd of='{p}' conv=notrunc bs=1 count=1 && touch -r /tmp/then '{p}'",
            n % 10
        ),
        6 => format!("rm -f '{p}'"),
        7 => format!("cp -p '{p}' /tmp/kept; rm -f '{p}'; cp -p /tmp/kept '{p}'"),
        8 => format!("rm -f '{p}'; printf 'again {n}' > '{p}'"),
        9 => format!("rm -rf '{d}'"),
        10 => format!("rm -rf '{d}'; mkdir -p '{d}'"),
        11 => format!("rm -f '{p}'; mkdir '{p}' && printf x > '{p}/in'"),
        12 => format!("rm -rf '{d}'; printf 'a file now' > '{d}'"),
        13 => format!("mkdir -p '{d}/hollow/{n}'"),
        14 => format!("chmod {} '{p}'", dice.pick(&["600", "755", "444", "640", "1644"])),
        15 => format!("chmod {} '{d}'", dice.pick(&["700", "755", "750", "1777"])),
        16 => format!("mv '{p}' '{q}'"),
        17 => format!("mv '{d}' '{e}'"),
        18 => format!("ln -sfn '{q}' '{p}'; ln -s nowhere/{n} 'link-{}'", n % 5),
        19 | 20 => format!("ln -f '{p}' '{q}'"),
        21 => format!(
            "ln '{p}' 'hard-{}'; printf 'through {n}' >> 'hard-{}'",
            n % 3,
            n % 3
        ),
        22 => format!("touch '{p}'; touch -h -d '{date}' 'link-{}'", n % 5),
        23 => format!("touch -d '{date}' '{p}' '{d}'"),
        24 => format!(
            "head -c {} /dev/zero | tr '\\0' {} > large-{}",
            500_000 + n * 700,
            n % 10,
            n % 2
        ),
        _ => format!("cp -a '{d}' '{e}/copy'; sed -i s/e/E/ '{p}'; printf {n} > \"$(printf 'raw\\377')\""),
    }
}

fn call(dice: &mut Dice) -> Value {
    let path = format!("work/{}", dice.file().trim_start_matches("./"));
    match dice.roll(5) {
        0 => {
            json!({"name": "file-write", "arguments": {"path": path, "content": format!("written {}\n", dice.roll(1000))}})
        }
        1 => json!({"name": "file-edit", "arguments": {"path": path, "old_text": "te", "new_text": "TE"}}),
        _ => {
            let deeds: Vec<String> = (0..=dice.roll(4))
                .map(|_| format!("( {} )", deed(dice)))
                .collect();
            json!({"name": "shell", "arguments": {"command": format!("cd work; {}; true", deeds.join("; "))}})
        }
    }
}

/// What a session says in its two turns: the scenes of the scripted model.
fn scenes(dice: &mut Dice) -> Value {
    let mut scenes = Vec::new();
    for session in 0..SESSIONS {
        for turn in ["first", "then"] {
            let mut steps = Vec::new();
            for _ in 0..=dice.roll(2) {
                let calls: Vec<Value> = (0..=dice.roll(2)).map(|_| call(dice)).collect();
                steps.push(json!({ "call": calls }));
            }
            steps.push(json!({"say": "Done."}));
            scenes.push(json!({"user": format!("{turn} of {session:03}"), "steps": steps}));
        }
    }
    json!({ "scenes": scenes })
}

/// One session: its id, what stood before it and between its two turns.
struct Past {
    id: String,
    before: Tree,
    between: Tree,
}

fn told(agent: &Agent, args: &[&str]) -> Value {
    let output = agent.clawk([]).args(args).output().unwrap();
    let value = serde_json::from_slice(&output.stdout);
    value.unwrap_or_else(|_| panic!("{args:?}: {} {}", text(&output.stdout), text(&output.stderr)))
}

/// The last event of the session's first turn.
fn first_turn_ends(agent: &Agent, session: &str) -> String {
    let output = agent
        .clawk(["trace", "export", "--agent", "tested", "--session", session])
        .output()
        .unwrap();
    let lines = text(&output.stdout);
    let events = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let ended = events.filter(|event| event["event_type"] == "ckp.message.answered");
    let first = ended.into_iter().next().expect("a turn has ended");
    first["sequence"].to_string()
}

/// Puts back all that it may and checks the tree; every fault it finds is in the answer.
fn undo(agent: &Agent, session: &str, more: &[&str], wanted: &Tree) -> Result<(), String> {
    let args = [&["undo", session, "--yes", "--format", "json"], more].concat();
    let report = told(agent, &args);
    let none = Value::Array(Vec::new());
    let faults: Vec<&Value> = [&report["conflicts"], &report["not_undone"], &report["failed"]]
        .into_iter()
        .filter(|found| !found.is_null() && **found != none)
        .collect();
    let differs = difference(wanted, &tree(&agent.path("work")));
    if faults.is_empty() && differs.is_empty() {
        return Ok(());
    }
    Err(format!("{faults:#?}\n{}", differs.join("\n")))
}

#[test]
fn a_hundred_random_sessions_of_file_edits_are_undone_to_the_byte_the_mode_and_the_date() {
    let given = std::env::var("CLAWK_UNDO_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    println!("CLAWK_UNDO_SEED={seed}");
    let agent = Agent::new();
    agent.may(MANIFEST);
    std::fs::write(agent.path("clawk.toml"), "[undo]\nmax_mb = 64\ntotal_mb = 4096\n").unwrap();
    let script = scenes(&mut Dice(seed));
    std::fs::write(agent.path("script.yaml"), script.to_string()).unwrap();
    let work = agent.path("work");
    std::fs::create_dir_all(work.join("empty")).unwrap();
    let mut past: Vec<Past> = Vec::new();
    let mut served = Served::start(&agent);
    let mut n = 10;
    for session in 0..SESSIONS {
        let before = tree(&work);
        let mut say = |turn: &str| {
            n += 1;
            let params = json!({
                "text": format!("{turn} of {session:03}"), "conversation": format!("c{session}"),
                "request_id": crate::stop::request(n),
            });
            served.send(n, "claw.message.send", &params);
            let answer = served.answer(n);
            assert_eq!(answer["result"]["stop"], "answered", "seed {seed}: {answer}");
            answer["result"]["session_id"].as_str().unwrap().to_owned()
        };
        let id = say("first");
        let between = tree(&work);
        assert_eq!(say("then"), id);
        past.push(Past { id, before, between });
    }
    drop(served);
    let last = tree(&work);
    let busy = past.iter().filter(|one| one.before != one.between).count();
    assert!(
        busy > SESSIONS / 2,
        "seed {seed}: only {busy} first turns changed something"
    );
    // A preview changes nothing.
    let preview = told(&agent, &["undo", &past[SESSIONS - 1].id, "--format", "json"]);
    assert_eq!(difference(&last, &tree(&work)), [""; 0], "{preview:#}");
    for (at, one) in past.iter().enumerate().rev() {
        let fault = |told: String| {
            format!(
                "seed {seed}, session {at}: {told}\n{:#}",
                script["scenes"][2 * at + 1]
            )
        };
        if at % 4 == 0 {
            let to = first_turn_ends(&agent, &one.id);
            undo(&agent, &one.id, &["--to", &to], &one.between)
                .map_err(fault)
                .unwrap();
        }
        undo(&agent, &one.id, &[], &one.before).map_err(fault).unwrap();
    }
    agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .assert()
        .success();
}
