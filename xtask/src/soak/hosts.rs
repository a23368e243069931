//! `cargo xtask soak hosts`: four hosts of one agent on PostgreSQL are killed and paused, while the server restarts and fails over.
//! Prints how long each event delayed messages.

use anyhow::Result;

use super::{number, only};
use crate::{parts, run};

pub(super) const TEST: &str = "state_pg::chaos::soak_four_hosts_lose_no_message_and_do_nothing_twice";

/// Runs the test for the given time, with the given number of conversations.
///
/// # Errors
/// The arguments are wrong, or a message was lost, answered twice, or executed twice.
pub(super) fn run(args: &[String]) -> Result<()> {
    only(args, &["--minutes", "--conversations"])?;
    let (minutes, conversations) = (
        number(args, "--minutes", 10)?,
        number(args, "--conversations", 2_000)?,
    );
    let mut command = run::command("cargo");
    command.args([
        "test",
        "--package",
        "clawk",
        "--features",
        "postgres",
        "--test",
        "it",
        "--locked",
        "--",
        TEST,
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    command
        .env(parts::VARIABLE, parts::install()?)
        .env("CLAWK_SOAK_MINUTES", minutes.to_string())
        .env("CLAWK_SOAK_CONVERSATIONS", conversations.to_string());
    run::must(&mut command)
}
