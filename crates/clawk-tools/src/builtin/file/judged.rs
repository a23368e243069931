//! Property test of the path rules against a simple reference check, on real folders with links. Whatever path a call uses, no word
//! of a file may be returned if the file is under a root that denies or asks, or outside the agent's folder.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_kernel::testing::{Rig, manifest};
use clawk_kernel::{ApprovalAnswer, ApprovalReply, EntryPoint, GrantScope, Kernel, KnownPerson};
use clawk_proto::content::ContentBlock;
use clawk_proto::method::{CallContext, ToolCallParams};
use clawk_proto::{RequestId, SessionId};
use serde_json::{Value, json};

use crate::bind_tools;
use crate::config::ToolsConfig;
use crate::testing::host;

const TREES: u64 = 150;
const CALLS: usize = 24;
const NAMES: [&str; 6] = ["a", "b", "s", ".env", "k", "l"];

/// A small seeded random generator (SplitMix64).
struct SeededDice(u64);

impl SeededDice {
    fn next_below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(n).unwrap()).unwrap()
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.next_below(of.len())]
    }

    fn random_path(&mut self, names: &[&str], most: usize) -> String {
        let length = 1 + self.next_below(most);
        let parts: Vec<&str> = (0..length).map(|_| self.pick(names)).collect();
        parts.join("/")
    }
}

/// A test folder inside a parent that no link leaves.
struct Tree {
    _all: tempfile::TempDir,
    all: PathBuf,
    work: PathBuf,
    /// By device and inode: the word in the file.
    words: BTreeMap<(u64, u64), String>,
}

impl Tree {
    fn new(dice: &mut SeededDice) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let all = folder.path().canonicalize().unwrap();
        let work = all.join("deep/w");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::create_dir_all(all.join("deep/o")).unwrap();
        let mut tree = Self {
            _all: folder,
            all,
            work,
            words: BTreeMap::new(),
        };
        tree.create_file(&tree.all.join("deep/o/f"));
        for _ in 0..8 + dice.next_below(16) {
            let way = dice.random_path(&NAMES, 3);
            tree.grow_tree(dice, &way);
        }
        tree
    }

    fn create_file(&mut self, path: &Path) {
        let word = format!("word{}end", self.words.len());
        if path.symlink_metadata().is_err() && std::fs::write(path, format!("{word}\n")).is_ok() {
            let about = path.metadata().unwrap();
            self.words.insert((about.dev(), about.ino()), word);
        }
    }

    fn grow_tree(&mut self, dice: &mut SeededDice, way: &str) {
        let path = self.work.join(way);
        let parent = path.parent().unwrap();
        let _ = std::fs::create_dir_all(parent); // a file may be in the way
        if !parent
            .canonicalize()
            .is_ok_and(|parent| parent.starts_with(&self.all))
        {
            return;
        }
        match dice.next_below(6) {
            0 => drop(std::fs::create_dir(&path)),
            1 | 2 => self.create_file(&path),
            3 | 4 => {
                let whole = self.work.to_string_lossy().into_owned();
                let inner = format!("{whole}/{}", dice.pick(&NAMES));
                let to = [
                    ".", "..", "a", "s", ".env", "../s", "../.env", "b/s", "a/../s", "../o", &whole, &inner,
                ];
                drop(symlink(dice.pick(&to), &path));
            }
            _ => {
                let from = self.work.join(dice.random_path(&NAMES, 2));
                drop(std::fs::hard_link(from, &path));
            }
        }
    }

    /// All files below a folder, found without following links.
    fn collect_files(folder: &Path, found: &mut Vec<PathBuf>) {
        let Ok(about) = folder.symlink_metadata() else {
            return;
        };
        if about.is_file() {
            found.push(folder.to_owned());
        } else if about.is_dir() {
            for entry in folder.read_dir().unwrap() {
                Self::collect_files(&entry.unwrap().path(), found);
            }
        }
    }

    /// The words of all files that are below one of `roots`, under any name, or outside the test folder.
    fn secret_words(&self, roots: &[&str]) -> BTreeSet<&str> {
        let real = roots
            .iter()
            .filter_map(|root| self.work.join(root).canonicalize().ok());
        let mut files = vec![self.all.join("deep/o/f")];
        for root in real.chain([self.all.join("deep/o")]) {
            Self::collect_files(&root, &mut files);
        }
        let id = |path: &PathBuf| {
            let about = path.metadata().unwrap();
            (about.dev(), about.ino())
        };
        files
            .iter()
            .filter_map(|file| self.words.get(&id(file)).map(String::as_str))
            .collect()
    }
}

async fn start_kernel(tree: &Tree, denied: &[&str], asked: &[&str]) -> Kernel {
    let names = ["file-read", "file-list", "file-search", "file-edit"];
    let tools: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
    let declared = manifest(json!({
        "tools": tools,
        "sandbox": {"name": "s", "level": "none", "capabilities": {
            "filesystem": {"mode": "scoped", "mount_paths": [{"path": ".", "permissions": "rw"}]}}},
        "policies": [{"name": "p", "rules": [
            {"id": "no", "action": "deny", "scope": "tool", "conditions": {"path_within": denied}},
            {"id": "ask", "action": "require-approval", "scope": "tool", "conditions": {"path_within": asked}},
            {"id": "here", "action": "allow", "scope": "tool", "conditions": {"path_within": "."}},
        ]}],
    }));
    let mut host = host(&tree.work);
    host.defaults.allow_none = true;
    let runner = bind_tools(&declared, &ToolsConfig::default(), host).unwrap();
    let mut rig = Rig::new(declared);
    rig.workdir.clone_from(&tree.work);
    let mut parts = rig.parts();
    parts.runner = Arc::new(runner);
    Kernel::start(parts).await.unwrap()
}

/// Answers every approval request with no.
#[expect(clippy::disallowed_methods, reason = "the test ends it itself")]
fn refuse_approvals(kernel: &Kernel) -> tokio::task::JoinHandle<()> {
    let mut questions = kernel.subscribe_questions();
    let kernel = kernel.clone();
    tokio::spawn(async move {
        while let Ok(question) = questions.recv().await {
            let no = ApprovalReply {
                answer: ApprovalAnswer::Deny,
                breadth: GrantScope::Exact,
                person: KnownPerson::admin("terminal", "ann"),
                reason: None,
                seen: clawk_kernel::sheet::PreviewReceipt::Short,
            };
            kernel.reply_to_question(&question.request_id, no).await;
        }
    })
}

/// The call's output; `None`: the call was refused.
async fn call_tool(
    kernel: &Kernel,
    session: SessionId,
    n: usize,
    tool: &str,
    arguments: Value,
) -> Option<String> {
    let params = ToolCallParams {
        name: tool.to_owned(),
        arguments: arguments.as_object().cloned().unwrap(),
        context: CallContext {
            request_id: RequestId::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap(),
            identity: "tester".to_owned(),
            sandbox: None,
            policy: None,
        },
    };
    let outcome = kernel.call(session, params).await.ok()?;
    let texts: Vec<_> = outcome.content.iter().map(ContentBlock::as_model_text).collect();
    Some(texts.join("\n"))
}

fn random_attack(dice: &mut SeededDice, work: &Path) -> (&'static str, Value) {
    let ways = [NAMES.as_slice(), &["..", ".", "f", "o", "w"]].concat();
    let mut way = dice.random_path(&ways, 4);
    if dice.next_below(4) == 0 {
        way.push('/');
    }
    if dice.next_below(4) == 0 {
        way = format!("{}/{way}", work.display());
    }
    match dice.next_below(6) {
        0 => ("file-search", json!({"pattern": "word"})),
        1 => ("file-search", json!({"pattern": "word", "path": way})),
        2 => ("file-list", json!({"path": way, "recursive": true})),
        3 => (
            "file-edit",
            json!({"path": way, "old_text": "word", "new_text": "taken"}),
        ),
        _ => ("file-read", json!({"path": way})),
    }
}

/// The real paths of the names in a listing.
fn listed_paths(work: &Path, arguments: &Value, told: &str) -> Vec<PathBuf> {
    let folder = work.join(arguments["path"].as_str().unwrap_or("."));
    let lines = told.lines().filter(|line| !line.starts_with(['[', '(']));
    lines
        .filter_map(|line| {
            let path = folder.join(line.split("  ").next().unwrap().trim_end_matches('/'));
            Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
        })
        .collect()
}

/// Checks that an open file is never refused under its real name. Returns how many such files there are.
async fn reads_what_is_open(
    tree: &Tree,
    kernel: &Kernel,
    session: SessionId,
    closed: &[&str],
    secret: &BTreeSet<&str>,
) -> usize {
    let mut files = Vec::new();
    Tree::collect_files(&tree.work, &mut files);
    let mut read = 0;
    for (n, file) in files.iter().enumerate() {
        let about = file.metadata().unwrap();
        let Some(word) = tree.words.get(&(about.dev(), about.ino())) else {
            continue;
        };
        let below = file.strip_prefix(&tree.work).unwrap();
        if secret.contains(word.as_str()) || closed.iter().any(|root| below.starts_with(root)) {
            continue;
        }
        let told = call_tool(kernel, session, 1000 + n, "file-read", json!({ "path": below })).await;
        let about = format!("closed {closed:?}: {}: {told:?}", below.display());
        assert!(
            told.is_some_and(|told| told.contains(word) || told.contains("taken")),
            "{about}"
        );
        read += 1;
    }
    read
}

/// Checks that no edit changed a closed file.
fn assert_unchanged(tree: &Tree, closed: &[PathBuf]) {
    let mut files = vec![tree.all.join("deep/o/f")];
    closed
        .iter()
        .for_each(|root| Tree::collect_files(root, &mut files));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("taken"), "closed {closed:?}: {}", file.display());
    }
}

#[tokio::test]
async fn no_way_leads_to_what_a_naive_judge_calls_closed() {
    let (mut read, mut refused, mut closed) = (0, 0, 0);
    for seed in 0..TREES {
        let mut dice = SeededDice(seed);
        let tree = Tree::new(&mut dice);
        let roots = ["s", ".env", "a/s", "b", "l", "a/l"];
        let (denied, asked) = (
            [dice.pick(&roots), dice.pick(&roots)],
            [dice.pick(&["k", "a/b", "a/k"])],
        );
        let all = [denied.as_slice(), &asked].concat();
        let secret = tree.secret_words(&all);
        let real: Vec<PathBuf> = all
            .iter()
            .filter_map(|root| tree.work.join(root).canonicalize().ok())
            .collect();
        closed += secret.len();
        let kernel = start_kernel(&tree, &denied, &asked).await;
        let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
        let person = refuse_approvals(&kernel);
        for n in 0..CALLS {
            let (tool, arguments) = random_attack(&mut dice, &tree.work);
            let Some(told) = call_tool(&kernel, session.id, n, tool, arguments.clone()).await else {
                refused += 1;
                continue;
            };
            let about = format!("seed {seed}, closed {all:?}: {tool} {arguments}: {told}");
            assert!(!secret.iter().any(|word| told.contains(word)), "{about}");
            if tool == "file-list" {
                for name in listed_paths(&tree.work, &arguments, &told) {
                    assert!(
                        !real.iter().any(|root| name.starts_with(root)),
                        "{}: {about}",
                        name.display()
                    );
                }
            }
        }
        read += reads_what_is_open(&tree, &kernel, session.id, &all, &secret).await;
        assert_unchanged(&tree, &real);
        person.abort();
        kernel.shutdown("tested", 100).await;
    }
    // The generator must reach all cases.
    assert!(
        read > 100 && refused > 500 && closed > 100,
        "{read} {refused} {closed}"
    );
}
