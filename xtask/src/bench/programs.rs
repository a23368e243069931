//! The shipped binaries, built once, and folders to measure in.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::dist;

/// What is measured.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The product.
    pub(crate) clawk: PathBuf,
    /// The library rows.
    pub(crate) library: PathBuf,
    /// The library rows can run WebAssembly.
    pub(crate) wasm: bool,
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Programs {
    /// Builds them with this profile; a product that is given is taken as it is. `wasm`: with that back end in the
    /// library rows, not in the product.
    pub(crate) fn build(given: Option<&str>, profile: &str, wasm: bool) -> Result<Self> {
        let clawk = match given {
            Some(program) => Path::new(program)
                .canonicalize()
                .with_context(|| format!("there is no `{program}`"))?,
            None => dist::build(profile)?,
        };
        let mut words = vec!["--profile", profile, "--package", "clawk-bench"];
        if wasm {
            words.extend(["--features", "wasm"]);
        }
        let library = dist::executables(&words)?
            .into_iter()
            .find(|path| path.file_stem().is_some_and(|stem| stem == "clawk-bench"));
        Ok(Self {
            clawk,
            library: library.context("cargo built no `clawk-bench`")?,
            wasm,
        })
    }

    /// Where the programs lie; what is measured is written beside them, on a real disk.
    pub(crate) fn folder(&self) -> &Path {
        self.library.parent().unwrap_or(Path::new("."))
    }

    /// A fresh folder.
    pub(crate) fn scratch(&self) -> Result<Scratch> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self
            .folder()
            .join(format!("bench-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("can't make `{}`", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Scratch {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // silent-ok: it lies in the build folder, which is thrown away as a whole
    }
}
