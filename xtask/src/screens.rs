//! `cargo xtask screens`: draws the pictures of terminals in `docs/screens`.
//!
//! The test `screens` starts the program in a terminal and draws its output. Under this task it writes the pictures; otherwise it
//! compares them.

use anyhow::Result;

use crate::run::{command, must};

/// Writes every picture.
///
/// # Errors
/// The build failed, or the program's output lacks something that a picture needs.
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
