//! Files that people send in chats. An order in a file of a sender below `admin` has no effect in the owner's conversation, and
//! none in copies of that file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{ORDER, World, read, shell, then, world};
use crate::serve::Server;

const LONG: Duration = Duration::from_secs(60);
const CHAT: &str = "    - inline: { name: chat, type: custom, transport: stdio, auth: { secret_ref: NONE }, access_control: { mode: role-based, \
    roles: [{ id: ann, role: user }, { id: eve, role: viewer }, { id: boss, role: admin }] } }\n";
const BOX: &str = r#"    - inline:
        name: box
        level: process
        capabilities:
          filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
"#;

/// The name under which a file of these bytes is kept.
fn kept_as(data: &[u8]) -> String {
    let digest: String = Sha256::digest(data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("attachments/{}-note.md", &digest[..12])
}

/// The world with a chat, whose file tools and commands see what comes in by it.
fn chatting(scenes: &str) -> World {
    let world = world(scenes);
    let manifest = std::fs::read_to_string(world.agent.path("claw.yaml")).unwrap();
    let parts = [
        ("  tools:\n", format!("{CHAT}  tools:\n")),
        (
            r#"[{ path: "./work", permissions: rw }]"#,
            r#"[{ path: "./work", permissions: rw }, { path: "./attachments", permissions: rw }]"#.to_owned(),
        ),
        ("  policies: ", format!("{BOX}  policies: ")),
    ];
    let manifest = parts.into_iter().fold(manifest, |manifest, (old, new)| {
        assert_eq!(manifest.matches(old).count(), 1, "{old}");
        manifest.replace(old, &new)
    });
    std::fs::write(world.agent.path("claw.yaml"), manifest).unwrap();
    std::fs::create_dir(world.agent.path("attachments")).unwrap();
    std::fs::write(
        world.agent.path("adapter.py"),
        include_str!("../channels/adapter.py"),
    )
    .unwrap();
    std::fs::write(world.agent.path("chat.in"), "").unwrap();
    let mut config = std::fs::read_to_string(world.agent.path("clawk.toml")).unwrap();
    config.push_str(
        "\n[channels.chat]\ncommand = [\"python3\", \"adapter.py\", \"chat\"]\nsandbox = \"box\"\n",
    );
    std::fs::write(world.agent.path("clawk.toml"), config).unwrap();
    world
}

fn says(world: &World, id: &str, sender: &str, files: &Value) {
    let line = json!({"type": "message", "id": id, "conversation": sender, "direct": true, "sender": {"id": sender},
        "text": "please", "attachments": files});
    let path = world.agent.path("chat.in");
    let before = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, format!("{before}{line}\n")).unwrap();
}

/// Waits until so many lines that go out hold these words.
fn wait(world: &World, words: &str, count: usize) {
    let until = Instant::now() + LONG;
    loop {
        let told = std::fs::read_to_string(world.agent.path("chat.out")).unwrap_or_default();
        if told.lines().filter(|line| line.contains(words)).count() >= count {
            return;
        }
        assert!(Instant::now() < until, "{words}: {told}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn file(data: &[u8]) -> Value {
    json!([{"name": "note.md", "media_type": "text/markdown", "data": STANDARD.encode(data)}])
}

/// A served agent gets the file from this sender, and is killed.
fn sends(world: &World, sender: &str, data: &[u8]) -> PathBuf {
    let served = Server::start(&world.agent, &["claw.yaml"]);
    says(world, "1", sender, &file(data));
    wait(world, "Hello.", 1);
    drop(served);
    let path = world.agent.path(&kept_as(data));
    assert_eq!(std::fs::read(&path).unwrap(), data);
    path
}

/// The order was not done, and the owner is told whose words it may be and in which file they stand.
fn refused(world: &World, sender: &str, file: &str, way: &str) {
    let told = world.said("later");
    assert_eq!(
        world.orders.hits().len(),
        0,
        "{way}: the order was carried out: {told}"
    );
    let whose = format!("{sender} on chat as a file (in {file})");
    assert!(told.contains(&whose), "{way}: `{whose}` is not named: {told}");
    world.verified();
}

#[test]
fn a_file_that_somebody_below_an_admin_sends_decides_nothing_for_the_owner() {
    let data = format!("{ORDER}\n").into_bytes();
    let kept = kept_as(&data);
    let again = read(&kept);
    let (copy, copied) = (shell(&format!("cp {kept} work/copy.md")), read("work/copy.md"));
    let ways: [(&str, &str, &[&str], &str); 3] = [
        ("a user's", "ann", &[&again], &kept),
        ("a viewer's", "eve", &[&again], &kept),
        ("a copy", "ann", &[&copy, &copied], "work/copy.md"),
    ];
    for (way, sender, calls, file) in ways {
        let world = chatting(&then(calls));
        sends(&world, sender, &data);
        refused(&world, sender, file, way);
    }
    // What a command takes out of a file that is no text.
    let binary = [b"\xff\xfe\x00".as_slice(), &data].concat();
    let strip = shell(&format!("tr -cd 'a-z ' < {} > work/plain.md", kept_as(&binary)));
    let world = chatting(&then(&[&strip, &read("work/plain.md")]));
    sends(&world, "ann", &binary);
    refused(&world, "ann", "work/plain.md", "no text");
}

#[test]
fn a_sent_file_that_a_person_mends_by_hand_is_still_the_senders() {
    let data = format!("{ORDER}\n").into_bytes();
    let world = chatting(&then(&[&read(&kept_as(&data))]));
    let path = sends(&world, "ann", &data);
    std::fs::write(path, format!("# Read by me\n\n{ORDER}\n\nSeen.\n")).unwrap();
    refused(&world, "ann", &kept_as(&data), "mended");
}

#[test]
fn a_file_of_an_admin_is_a_file_like_any_other() {
    let data = format!("{ORDER}\n").into_bytes();
    let world = chatting(&then(&[&read(&kept_as(&data))]));
    sends(&world, "boss", &data);
    let told = world.said("later");
    assert_eq!(world.orders.hits().len(), 1, "{told}");
    assert!(!world.agent.state().join("origins").exists());
}

#[test]
fn a_file_that_can_not_be_marked_is_not_kept_and_the_sender_is_told() {
    let world = chatting("");
    let _served = Server::start(&world.agent, &["claw.yaml"]);
    says(&world, "1", "ann", &json!([]));
    wait(&world, "Hello.", 1);
    // Nothing can be written there.
    std::fs::write(world.agent.state().join("origins"), "").unwrap();
    says(&world, "2", "ann", &file(ORDER.as_bytes()));
    wait(&world, "The file `note.md` was not kept", 1);
    wait(&world, "Hello.", 2);
    assert_eq!(
        std::fs::read_dir(world.agent.path("attachments"))
            .unwrap()
            .count(),
        0
    );
    // An admin's needs no mark.
    says(&world, "3", "boss", &file(ORDER.as_bytes()));
    wait(&world, "Hello.", 3);
    assert!(world.agent.path(&kept_as(ORDER.as_bytes())).exists());
}
