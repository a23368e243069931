//! `cargo xtask screens`: draws the pictures of terminals in `docs/screens`.
//!
//! The test `screens` starts the program on a terminal, draws what it shows, and writes it; without this chore it compares.

use anyhow::Result;

use crate::run::{command, must};

/// Writes every picture.
///
/// # Errors
/// The program does not build, or it does not show what a picture needs.
pub(crate) fn run() -> Result<()> {
    must(
        command("cargo")
            .args([
                "test",
                "--package",
                "clawk",
                "--test",
                "it",
                "--",
                "screens::the_",
            ])
            .env("CLAWK_SCREENS", "write"),
    )
}
