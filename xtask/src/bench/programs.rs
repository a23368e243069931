//! The measured programs, built once, and temporary folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::dist;

/// The measured programs.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Path of clawk.
    pub(crate) clawk: PathBuf,
    /// Path of the program for library measurements.
    pub(crate) library: PathBuf,
    /// The library measurements include WebAssembly.
    pub(crate) wasm: bool,
}

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Programs {
    /// Builds the programs with this profile. A `given` clawk is used as it is. `wasm` adds that back end to the library
    /// measurements; clawk has it.
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

    /// Returns the programs' folder. Measurements write beside them, on a real disk.
    pub(crate) fn folder(&self) -> &Path {
        self.library.parent().unwrap_or(Path::new("."))
    }

    /// Makes a new temporary folder.
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
    /// Returns the folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // silent-ok: it lies in the build folder, which is thrown away as a whole
    }
}
