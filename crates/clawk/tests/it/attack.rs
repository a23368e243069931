//! The most telling attacks of `tests/attack`, against the program itself. All of them, with what each found: docs/security/attacks.md.

use std::path::Path;
use std::process::Command;

use crate::agent::{program, text};

/// Runs the quick cases of these areas; one that breaks fails the test with its words.
fn held(areas: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attack/attack.py");
    let done = Command::new("python3")
        .arg(script)
        .arg("--quick")
        .args(areas)
        .env("CLAWK", program())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let said = format!("{}{}", text(&done.stdout), text(&done.stderr));
    assert!(done.status.success(), "{said}");
    assert!(said.matches(": held").count() >= 5, "no case ran: {said}");
}

#[test]
fn hostile_documents_are_held() {
    held(&["yaml", "refs", "regex", "schema", "companion", "budgets"]);
}

#[test]
fn hostile_skills_atlases_and_guests_are_held() {
    held(&["skills", "atlas", "wasm", "container"]);
}

#[test]
fn hostile_clients_of_the_standard_streams_and_sockets_are_held() {
    held(&["stdio", "control", "send", "outbox", "swarm"]);
}

#[test]
fn hostile_clients_of_http_are_held() {
    held(&["http"]);
}

#[test]
fn hostile_states_and_records_are_held() {
    held(&["state", "trace", "replay", "fork", "plans", "clock", "looks"]);
}

#[test]
fn hostile_servers_models_and_clones_are_held() {
    held(&["mcp", "provider", "cloned"]);
}

#[test]
fn foreign_words_choose_nothing_whatever_way_they_come_back() {
    held(&["washing", "values", "redirects", "doors"]);
}

#[test]
fn names_paths_secrets_and_screens_are_held() {
    held(&["names", "paths", "egress", "secrets", "shown"]);
}
