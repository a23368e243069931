//! Level `wasm`: a WebAssembly guest inside wasmtime. The guest sees only what its imports provide (CKP §5.7).
//!
//! It runs components of the world `wasi:cli/command`, and WASI preview 1 modules, which are converted to such components. There
//! are no sockets, threads or processes. A guest reaches the host only through the plan's files ([`files`]) and through HTTP
//! ([`http`]) over the call's own network access. Start reading at [`guest`].

mod engine;
mod files;
mod guest;
mod http;
mod names;
mod output;

use std::path::PathBuf;
use std::sync::OnceLock;

pub(crate) use guest::launch_guest;

use clawk_plan::level::{Level, SandboxRefusal};

/// The state of this level in one agent. Nothing is created, and no memory used, before the first guest.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    /// Where compiled guests are cached.
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

    /// The engine, created at the first use.
    pub(crate) fn engine(&self) -> Result<&engine::Engine, SandboxRefusal> {
        let made = self
            .engine
            .get_or_init(|| engine::Engine::new(self.cache.as_deref()));
        made.as_ref()
            .map_err(|missing| wasm_refusal(missing, "run clawk on a processor that wasmtime compiles for"))
    }

    /// Makes every computing guest yield once, and check whether it must end.
    fn interrupt_guests(&self) {
        if let Some(Ok(engine)) = self.engine.get() {
            engine.raw().increment_epoch();
        }
    }
}

pub(crate) fn wasm_refusal(missing: &str, hint: &str) -> SandboxRefusal {
    SandboxRefusal::Unavailable {
        level: Level::Wasm,
        mechanism: "wasmtime".to_owned(),
        missing: missing.to_owned(),
        hint: hint.to_owned(),
    }
}
