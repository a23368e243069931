//! Encrypted stores of an agent whose state lies on PostgreSQL: nothing that it heard or remembers can be read in any table of the
//! database, and the key is its own.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};
use crate::postgres::database::Server as Database;
use crate::sealed::{MANIFEST, NEW, OLD, PLANTED, anywhere, json_of, said};

const KEY: (&str, &str) = ("MEMORY_KEY", OLD);
const NEXT: (&str, &str) = ("NEXT_KEY", NEW);
/// Nothing here takes longer, on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(60);

fn configure(agent: &Agent, database: &Database, key: &str) {
    let secrets = agent.path("secrets.toml");
    std::fs::write(&secrets, format!("PG_PASSWORD = \"{}\"\n", Database::PASSWORD)).unwrap();
    std::fs::set_permissions(secrets, std::fs::Permissions::from_mode(0o600)).unwrap();
    // The state directory is the one that verbs look into by themselves.
    let config = format!(
        "[memory]\nencryption_key = \"{key}\"\n[secrets_store]\nfile = \"secrets.toml\"\n[state]\nurl = \"{url}\"\nschema = \"tested\"\n\
         dir = \"state/clawk/tested\"\nhost = \"a\"\nlease_ms = 4000\npassword = \"PG_PASSWORD\"\n[postgres]\nurl = \"{url}\"\n\
         secret_ref = \"PG_PASSWORD\"\ntls = \"disable\"\nschema = \"elsewhere\"\n",
        url = database.url()
    );
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
}

fn agent(database: &Database) -> Agent {
    let agent = crate::sealed::agent();
    configure(&agent, database, KEY.0);
    agent
}

fn tables(database: &Database) -> Vec<String> {
    let sql = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables \
        WHERE schemaname IN ('tested', 'elsewhere', 'moved') ORDER BY 1";
    database.sql(sql).lines().map(str::to_owned).collect()
}

/// Tables that hold these words anywhere: as text, or within bytes, which the server prints in hexadecimal.
fn hold(database: &Database, words: &str) -> Vec<String> {
    let hex: String = words.bytes().map(|byte| format!("{byte:02x}")).collect();
    let mut found = tables(database);
    assert!(found.len() > 20, "{found:?}");
    found.retain(|table| {
        let rows = database.sql(&format!("COPY {table} TO STDOUT"));
        rows.contains(words) || rows.contains(&hex)
    });
    found
}

#[track_caller]
fn is_dark(agent: &Agent, database: &Database) {
    is_dark_in(&agent.state(), database, "tested");
}

#[track_caller]
fn is_dark_in(folder: &Path, database: &Database, schema: &str) {
    assert_eq!(hold(database, "zanzibar"), [] as [&str; 0]);
    assert_eq!(anywhere(folder, "zanzibar"), [] as [PathBuf; 0]);
    let words = format!(
        "SELECT count(*) FROM {schema}.memory WHERE words <> '' OR mark <> '' OR metadata IS NOT NULL"
    );
    assert_eq!(database.sql(&words), "0");
    let vectors =
        format!("SELECT count(*) FROM {schema}.memory_vectors WHERE vector IS NOT NULL OR sealed IS NULL");
    assert_eq!(database.sql(&vectors), "0");
}

#[track_caller]
fn refused(agent: &Agent, key: (&str, &str), args: &[&str], why: &[&str]) {
    let done = agent.clawk([]).args(args).env(key.0, key.1).assert().failure();
    let said = text(&done.get_output().stderr);
    for why in why {
        assert!(said.contains(why), "{why}: {said}");
    }
    assert!(!said.contains(key.1) && !said.contains(PLANTED), "{said}");
}

const RUN: [&str; 4] = ["run", "claw.yaml", "-m", "again"];

#[test]
fn nothing_of_an_encrypted_agent_can_be_read_in_its_database() {
    let database = Database::start();
    let agent = agent(&database);
    // Without a key it does not start, and the stores are named. Nothing was made.
    refused(
        &agent,
        ("OTHER", OLD),
        &RUN,
        &["`notes`", "`diary`", "MEMORY_KEY"],
    );
    assert_eq!(
        database.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'tested'"),
        "0"
    );

    assert!(said(&agent, KEY, "keep").contains(PLANTED));
    assert!(said(&agent, KEY, &format!("what of the {PLANTED}?")).contains(PLANTED));
    is_dark(&agent, &database);
    assert_ne!(
        database.sql("SELECT count(*) FROM tested.memory_vectors WHERE sealed IS NOT NULL"),
        "0"
    );

    // With the key it is all there, for the verbs as well.
    let prompt = json_of(&agent, KEY, &["sessions", "prompt", "last", "--turn", "1"]);
    let system = prompt["system"].as_str().unwrap();
    assert!(
        system.contains("4711") && system.contains("store=\"diary\""),
        "{system}"
    );
    let search = ["memory", "search", "code", "zanzibar", "--store", "notes"];
    let found = json_of(&agent, KEY, &search);
    assert!(
        found["entries"][0]["content"].as_str().unwrap().contains("4711"),
        "{found}"
    );
    let shown = json_of(&agent, KEY, &["memory", "show", PLANTED, "--store", "facts"]);
    assert_eq!(shown["entries"][0]["key"], json!(PLANTED));
    assert_eq!(json_of(&agent, KEY, &["trace", "verify"])["valid"], json!(true));

    // What is forgotten is gone from the tables; nothing of it was written on the way.
    let listed = json_of(&agent, KEY, &["memory", "list", "--store", "notes"]);
    let id = listed["entries"][0]["id"].as_str().unwrap().to_owned();
    let entries = "SELECT count(*) FROM tested.memory m JOIN tested.memory_parts p ON p.id = m.part WHERE p.store = 'notes'";
    let before: u32 = database.sql(entries).parse().unwrap();
    let forget = [
        "memory",
        "forget",
        &id,
        "--store",
        "notes",
        "--reason",
        "asked for",
    ];
    let forgotten = json_of(&agent, KEY, &forget);
    assert!(forgotten["copies"].as_u64().unwrap() > 0, "{forgotten}");
    assert_eq!(database.sql(entries).parse::<u32>().unwrap(), before - 1);
    assert_eq!(json_of(&agent, KEY, &["trace", "verify"])["valid"], json!(true));
    is_dark(&agent, &database);

    // A verb without the key says what it lacks; one with another key, too. A wrong key starts nothing and names the store.
    refused(
        &agent,
        ("OTHER", OLD),
        &["memory", "list", "--store", "notes"],
        &["MEMORY_KEY"],
    );
    refused(
        &agent,
        ("MEMORY_KEY", NEW),
        &["sessions", "prompt", "last", "--turn", "1"],
        &["MEMORY_KEY"],
    );
    refused(&agent, ("MEMORY_KEY", NEW), &RUN, &["`diary`", "MEMORY_KEY"]);
    refused(&agent, ("OTHER", OLD), &RUN, &["MEMORY_KEY"]);
    // The manifest can't take the encryption back.
    std::fs::write(
        agent.path("claw.yaml"),
        MANIFEST.replace(", encryption: true", ""),
    )
    .unwrap();
    refused(&agent, KEY, &RUN, &["encryption: true"]);
}

#[test]
fn the_first_start_with_a_key_seals_what_the_database_holds() {
    let database = Database::start();
    let agent = agent(&database);
    std::fs::write(
        agent.path("claw.yaml"),
        MANIFEST.replace(", encryption: true", ""),
    )
    .unwrap();
    said(&agent, KEY, "keep");
    // This is how the planted word is found where it can be read.
    let plain = hold(&database, "zanzibar");
    for table in ["tested.contents", "tested.memory"] {
        assert!(plain.iter().any(|found| found == table), "{plain:?}");
    }
    std::fs::write(agent.path("claw.yaml"), MANIFEST).unwrap();
    assert!(said(&agent, KEY, &format!("what of the {PLANTED}?")).contains(PLANTED));
    is_dark(&agent, &database);
    let prompt = json_of(&agent, KEY, &["sessions", "prompt", "last", "--turn", "1"]);
    assert!(prompt["system"].as_str().unwrap().contains("4711"));
    assert_eq!(json_of(&agent, KEY, &["trace", "verify"])["valid"], json!(true));
}

fn rekey(agent: &Agent, more: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .args(["memory", "rekey", "--to", NEXT.0])
        .args(more)
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .env(KEY.0, KEY.1)
        .env(NEXT.0, NEXT.1);
    command
}

/// A session that holds a lock on a table until it is dropped.
struct Holding<'a> {
    database: &'a Database,
    client: Child,
}

impl<'a> Holding<'a> {
    fn table(database: &'a Database, table: &str) -> Self {
        let sql = format!("BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE; SELECT pg_sleep(600)");
        let mut command = database.psql(&sql);
        let client = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let holds = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND wait_event = 'PgSleep'";
        until("the lock", || database.sql(holds) == "1");
        Self { database, client }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.database.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND pid <> pg_backend_pid()");
        let _ended = self.client.kill();
        let _reaped = self.client.wait();
    }
}

#[track_caller]
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "did not come: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// All is there with the new key, and the old one opens nothing any more.
#[track_caller]
fn has_new_key(agent: &Agent, database: &Database) {
    refused(agent, KEY, &RUN, &["are encrypted", "`diary`"]);
    configure(agent, database, NEXT.0);
    said(agent, NEXT, &format!("what of the {PLANTED}?"));
    let prompt = json_of(agent, NEXT, &["sessions", "prompt", "last", "--turn", "1"]);
    assert!(prompt["system"].as_str().unwrap().contains("4711"));
    assert_eq!(json_of(agent, NEXT, &["trace", "verify"])["valid"], json!(true));
    is_dark(agent, database);
    let old: String = hex(OLD).into_iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hold(database, &old), [] as [&str; 0], "the key itself is nowhere");
}

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn the_key_of_a_database_is_changed_and_a_change_that_was_killed_is_run_again() {
    let database = Database::start();
    let agent = agent(&database);
    said(&agent, KEY, "keep");
    let plain: u32 = database
        .sql("SELECT count(*) FROM tested.contents")
        .parse()
        .unwrap();
    assert!(plain > 5);

    // In the middle: contents are sealed anew, entries wait for a lock.
    let holder = Holding::table(&database, "tested.memory_parts");
    let mut child = rekey(&agent, &[]).stderr(Stdio::null()).spawn().unwrap();
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clawk' AND wait_event_type = 'Lock'";
    until("a change of the key that waits", || database.sql(waits) != "0");
    let key_ids = "SELECT count(DISTINCT substr(bytes, 9, 4)) FROM tested.contents";
    assert_eq!(database.sql(key_ids), "1");
    let proofs = "SELECT count(*) FROM tested.seals s JOIN tested.contents c ON substr(s.proof, 9, 4) = substr(c.bytes, 9, 4)";
    assert_eq!(
        database.sql(proofs),
        "0",
        "the contents have the new key, the proofs the old one"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    drop(holder);
    until("an end of its lease", || {
        database.sql("SELECT count(*) FROM tested.leases WHERE run IS NULL AND expires > clock_timestamp()")
            == "0"
    });
    // Neither key alone starts anything; nothing is lost.
    refused(&agent, KEY, &RUN, &["are encrypted", "rekey"]);
    configure(&agent, &database, NEXT.0);
    refused(&agent, NEXT, &RUN, &["are encrypted"]);
    configure(&agent, &database, KEY.0);
    is_dark(&agent, &database);

    // At whatever moment it is killed, the same command again goes on.
    for ms in [5, 20, 40, 80, 160, 320] {
        let mut child = rekey(&agent, &[])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        let _ended = child.kill();
        child.wait().unwrap();
        is_dark(&agent, &database);
    }
    let end = Instant::now() + PATIENCE;
    loop {
        let done = rekey(&agent, &["--format", "json"]).output().unwrap();
        let said = text(&done.stdout) + &text(&done.stderr);
        if done.status.success() || said.contains("name the same key") {
            break;
        }
        // The lease of one that was killed has to end first.
        assert!(said.contains("in use") || said.contains("served"), "{said}");
        assert!(Instant::now() < end, "{said}");
    }
    has_new_key(&agent, &database);
}

#[test]
fn rekey_with_the_manifest_reaches_stores_beside_the_state() {
    let database = Database::start();
    let agent = agent(&database);
    let more = "        - { name: far, type: semantic, encryption: true, backend: postgresql }\n";
    std::fs::write(agent.path("claw.yaml"), format!("{MANIFEST}{more}")).unwrap();
    said(&agent, KEY, "keep");
    let kept = |key: (&str, &str), text: &str| {
        let script = std::fs::read_to_string(agent.path("script.yaml")).unwrap();
        let scene = format!(
            "scenes:\n  - user: far\n    steps:\n      - call: [{{ name: memory-store, arguments: {{ store: far, content: \"{text}\" }} }}]\n      - say: kept\n"
        );
        std::fs::write(agent.path("script.yaml"), script.replacen("scenes:\n", &scene, 1)).unwrap();
        said(&agent, key, "far");
    };
    kept(KEY, &format!("Far away is the {PLANTED}."));
    assert_eq!(database.sql("SELECT count(*) FROM elsewhere.memory"), "1");
    is_dark(&agent, &database);
    let done = rekey(&agent, &["--claw", "claw.yaml", "--format", "json"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let done: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done["on_servers"], json!(["far"]), "{done}");
    has_new_key(&agent, &database);
    let found = json_of(
        &agent,
        NEXT,
        &[
            "memory",
            "search",
            "far",
            "away",
            "--store",
            "far",
            "--claw",
            "claw.yaml",
        ],
    );
    assert!(
        found["entries"][0]["content"]
            .as_str()
            .unwrap()
            .contains("Far away"),
        "{found}"
    );
}

fn moves(agent: &Agent, from: &str, to: &str, key: Option<&str>) -> (bool, String) {
    let mut command = agent.clawk(["state", "move", "--from", from, "--to", to, "--format", "json"]);
    if let Some(key) = key {
        command.env("MEMORY_KEY", key);
    }
    let done = command.env("PGPASSWORD", Database::PASSWORD).output().unwrap();
    (done.status.success(), text(&done.stdout) + &text(&done.stderr))
}

#[track_caller]
fn remembers(agent: &Agent, config: &str, state: &str) {
    let key = |args: &[&str]| {
        let mut command = agent.clawk([]);
        command.args(args).args(["--format", "json"]).env(KEY.0, KEY.1);
        let done = command.env("PGPASSWORD", Database::PASSWORD).assert().success();
        serde_json::from_slice::<Value>(&done.get_output().stdout).unwrap()
    };
    let mut run = agent.clawk(["run", "claw.yaml", "--config", config, "-m"]);
    run.arg(format!("what of the {PLANTED}?"))
        .env(KEY.0, KEY.1)
        .assert()
        .success();
    let prompt = key(&["sessions", "prompt", "last", "--turn", "1", "--state", state]);
    let system = prompt["system"].as_str().unwrap();
    assert!(
        system.contains("4711") && system.contains("store=\"diary\""),
        "{system}"
    );
    let shown = key(&["memory", "show", PLANTED, "--store", "facts", "--state", state]);
    assert_eq!(shown["entries"][0]["key"], json!(PLANTED));
    assert_eq!(key(&["trace", "verify", "--state", state])["valid"], json!(true));
}

#[test]
fn an_encrypted_state_goes_to_a_database_and_comes_back_and_nothing_can_be_read_on_the_way() {
    let database = Database::start();
    let agent = crate::sealed::agent();
    configure(&agent, &database, KEY.0);
    let config = std::fs::read_to_string(agent.path("clawk.toml")).unwrap();
    let memory = "[memory]\nencryption_key = \"MEMORY_KEY\"\n";
    for dir in ["home", "back"] {
        let config = format!("state = \"{dir}\"\n{memory}");
        std::fs::write(agent.path(&format!("{dir}.toml")), config).unwrap();
    }
    let server = config
        .replace("state/clawk/tested", "home")
        .replace("\"tested\"", "\"moved\"");
    std::fs::write(agent.path("server.toml"), server).unwrap();
    let keep = ["run", "claw.yaml", "--config", "home.toml", "-m", "keep"];
    agent.clawk(keep).env(KEY.0, KEY.1).assert().success();
    remembers(&agent, "home.toml", "home");

    let url = format!("{}?schema=moved", database.url());
    for (key, why) in [(None, "MEMORY_KEY"), (Some(NEW), "are encrypted")] {
        let (moved, said) = moves(&agent, "home", &url, key);
        assert!(!moved && said.contains(why), "{said}");
    }
    let (moved, said) = moves(&agent, "home", &url, Some(OLD));
    assert!(moved && said.contains("\"valid\": true"), "{said}");
    is_dark_in(&agent.path("home"), &database, "moved");
    remembers(&agent, "server.toml", "home");
    is_dark_in(&agent.path("home"), &database, "moved");
    // Without the key, and with another one, the database starts nothing.
    let run = ["run", "claw.yaml", "--config", "server.toml", "-m", "again"];
    refused(&agent, ("MEMORY_KEY", NEW), &run, &["are encrypted"]);

    let (moved, said) = moves(&agent, "home", "back", None);
    assert!(!moved && said.contains("MEMORY_KEY"), "{said}");
    let (moved, said) = moves(&agent, "home", "back", Some(OLD));
    assert!(moved && said.contains("\"valid\": true"), "{said}");
    assert_eq!(anywhere(&agent.path("back"), "zanzibar"), [] as [PathBuf; 0]);
    remembers(&agent, "back.toml", "back");
    assert_eq!(anywhere(&agent.path("back"), "zanzibar"), [] as [PathBuf; 0]);
    let run = ["run", "claw.yaml", "--config", "back.toml", "-m", "again"];
    refused(&agent, ("MEMORY_KEY", NEW), &run, &["are encrypted"]);
}
