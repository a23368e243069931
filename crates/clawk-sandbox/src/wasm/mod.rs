//! Level `wasm`: a WebAssembly guest inside wasmtime, which sees what its imports give it and nothing else (CKP §5.7).
//!
//! Components of the world `wasi:cli/command`, and WASI preview 1 modules, which become such components. No socket, no
//! thread, no process: what reaches the host is the files of the plan, through [`files`], and HTTP, through [`http`] and the
//! call's own way out. Start reading at [`guest`].

mod engine;
mod files;
mod guest;
mod http;
mod names;
mod output;

use std::path::PathBuf;
use std::sync::OnceLock;

pub(crate) use guest::launch;

use clawk_plan::level::{Level, SandboxRefusal};

/// The level's state in one agent. Nothing is made, and no memory used, until the first guest.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    /// Where compiled guests are kept.
    pub(crate) cache: Option<PathBuf>,
    engine: OnceLock<Result<engine::Engine, String>>,
}

impl Backend {
    pub(crate) fn new(cache: Option<PathBuf>) -> Self {
        Self {
            cache,
            engine: OnceLock::new(),
        }
    }

    /// The engine, made at the first need.
    pub(crate) fn engine(&self) -> Result<&engine::Engine, SandboxRefusal> {
        let made = self
            .engine
            .get_or_init(|| engine::Engine::new(self.cache.as_deref()));
        made.as_ref()
            .map_err(|missing| refusal(missing, "run clawk on a processor that wasmtime compiles for"))
    }

    /// Has every guest that computes give way once, and look whether it is over for it.
    fn interrupt(&self) {
        if let Some(Ok(engine)) = self.engine.get() {
            engine.raw().increment_epoch();
        }
    }
}

pub(crate) fn refusal(missing: &str, hint: &str) -> SandboxRefusal {
    SandboxRefusal::Unavailable {
        level: Level::Wasm,
        mechanism: "wasmtime".to_owned(),
        missing: missing.to_owned(),
        hint: hint.to_owned(),
    }
}
