//! `cargo xtask docs`: generates pages from data, then checks every link of the book and writes HTML to `target/book`.
//!
//! The book is an mdBook (`docs/book.toml`, `docs/SUMMARY.md`), so `mdbook serve docs` works if mdbook is installed. The build
//! needs no other program: [`book`] renders the same pages with a Markdown library (ADR 61).

mod book;
mod cli;
mod coverage;
mod manifest;
mod named;
mod tools;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::run::say;
use crate::tidy::Finding;

/// Writes the generated pages, checks the book, renders it.
///
/// # Errors
/// The program can't be built, a page can't be written, or the check has findings.
pub(crate) fn run(root: &Path) -> Result<()> {
    for (page, text) in [
        coverage::page(root)?,
        manifest::page(root)?,
        cli::page()?,
        tools::page()?,
    ] {
        fs::write(root.join(page), text).with_context(|| format!("can't write {page}"))?;
        say(page);
    }
    build(root)
}

/// Checks the book and renders it, without building the program.
///
/// # Errors
/// A page can't be read or written, or the check has findings.
pub(crate) fn build(root: &Path) -> Result<()> {
    let findings = check(root)?;
    for finding in &findings {
        say(finding);
    }
    if !findings.is_empty() {
        bail!("docs: {} findings", findings.len());
    }
    let (folder, pages) = book::render(root)?;
    say(&format!("{pages} pages in {}", folder.display()));
    Ok(())
}

/// The checks of the docs in tidy, without building the program: generated pages are current, every page is in the book, every link
/// has a target, and every file named on a page exists.
pub(crate) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (page, text) in [coverage::page(root)?, manifest::page(root)?] {
        let found = fs::read_to_string(root.join(page)).unwrap_or_default(); // silent-ok: a missing page is not current
        if found != text {
            findings.push(format!("{page}: not what its data says; run `cargo xtask docs`"));
        }
    }
    findings.extend(book::check(root)?);
    findings.extend(named::check(root)?);
    Ok(findings)
}
