//! The WebAssembly engine, one per agent, and the caches of compiled guests: in memory by file identity, on disk by the digest of
//! the file's bytes.

use std::collections::HashMap;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use wasmtime::component::{Component, Linker};
use wasmtime::{Config, OptLevel};
use wasmtime_wasi::p2::bindings::CommandPre;

use super::files;
use super::guest::State;

/// The maximum size of a module, in bytes.
const MAX_MODULE_BYTES: u64 = 64 << 20;

/// The name under which preview 1 modules import the system.
const PREVIEW1: &str = "wasi_snapshot_preview1";

/// The stack size of a guest, in bytes.
const STACK_BYTES: usize = 1 << 20;

type CompiledGuest = CommandPre<State>;

/// Identifies a file's state when it was compiled.
type GuestFileIdentity = (u64, u64, u64, i64, i64, i64, i64);

pub(crate) struct Engine {
    engine: wasmtime::Engine,
    linker: Linker<State>,
    cache: Option<PathBuf>,
    known: Mutex<HashMap<(PathBuf, GuestFileIdentity), CompiledGuest>>,
    /// Locked during compilation: concurrent calls compile a guest only once, and several compilations use no more memory than one.
    compiles: Mutex<()>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

impl Engine {
    pub(super) fn new(cache: Option<&Path>) -> Result<Self, String> {
        let mut config = Config::new();
        config.epoch_interruption(true);
        config.wasm_component_model(true);
        config.cranelift_opt_level(OptLevel::Speed);
        config.max_wasm_stack(STACK_BYTES);
        config.async_stack_size(STACK_BYTES * 2);
        let engine = wasmtime::Engine::new(&config).map_err(|error| format!("{error:#}"))?;
        let mut linker = Linker::new(&engine);
        let linked = wasmtime_wasi::p2::add_to_linker_async(&mut linker)
            .and_then(|()| wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker))
            .and_then(|()| files::add_to_linker(&mut linker));
        linked.map_err(|error| format!("{error:#}"))?;
        Ok(Self {
            engine,
            linker,
            cache: cache.map(|cache| cache.join("wasm")),
            known: Mutex::default(),
            compiles: Mutex::default(),
        })
    }

    pub(super) fn raw(&self) -> &wasmtime::Engine {
        &self.engine
    }

    /// The compiled guest of a file, ready to be instantiated.
    pub(super) fn load_guest(&self, path: &Path) -> Result<CompiledGuest, String> {
        let at = |error: io::Error| format!("`{}`: {error}", path.display());
        let flags = rustix::fs::OFlags::NONBLOCK.bits();
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(flags).unwrap_or(0))
            .open(path)
            .map_err(at)?;
        let meta = file.metadata().map_err(at)?;
        if !meta.is_file() {
            return Err(format!("`{}` is not a file", path.display()));
        }
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let key = (
            path.to_owned(),
            (
                meta.dev(),
                meta.ino(),
                meta.size(),
                times.0,
                times.1,
                times.2,
                times.3,
            ),
        );
        if let Some(known) = self.cached_guest(&key) {
            return Ok(known);
        }
        let _one = self.compiles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.cached_guest(&key) {
            return Ok(known);
        }
        let mut bytes = Vec::new();
        file.take(MAX_MODULE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(at)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_MODULE_BYTES {
            return Err(format!(
                "`{}` is larger than {} MiB",
                path.display(),
                MAX_MODULE_BYTES >> 20
            ));
        }
        if !bytes.starts_with(b"\0asm") {
            return Err(format!("`{}` is not WebAssembly", path.display()));
        }
        let component = self
            .load_component(&bytes)
            .map_err(|error| format!("`{}`: {error:#}", path.display()))?;
        let pre = self.linker.instantiate_pre(&component).and_then(CommandPre::new);
        let pre =
            pre.map_err(|error| format!("`{}` wants what a guest does not get: {error:#}", path.display()))?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(other, _), _| other != path);
        known.insert(key, pre.clone());
        Ok(pre)
    }

    fn cached_guest(&self, key: &(PathBuf, GuestFileIdentity)) -> Option<CompiledGuest> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).cloned()
    }

    fn load_component(&self, bytes: &[u8]) -> wasmtime::Result<Component> {
        let stored = self
            .cache
            .as_ref()
            .map(|cache| cache.join(format!("{}.cwasm", self.guest_digest(bytes))));
        if let Some(kept) = stored.as_deref().and_then(read_kept) {
            return deserialize_component(&self.engine, &kept);
        }
        let made = if wasmtime::Engine::detect_precompiled(bytes).is_some() {
            None // never: native code is taken from our own cache only
        } else if is_component(bytes) {
            Some(self.engine.precompile_component(bytes)?)
        } else {
            Some(self.engine.precompile_component(&componentize_module(bytes)?)?)
        };
        let made = made.ok_or_else(|| wasmtime::Error::msg("it is compiled already"))?;
        if let Some(path) = &stored {
            // If the guest can't be cached, it is compiled again next time.
            let _ = write_cache_file(path, &made); // silent-ok: see above
        }
        deserialize_component(&self.engine, &made)
    }

    /// A digest of the guest and of everything in this build that its compilation depends on.
    fn guest_digest(&self, bytes: &[u8]) -> String {
        struct DigestHasher(Sha256);
        impl Hasher for DigestHasher {
            fn finish(&self) -> u64 {
                0
            }
            fn write(&mut self, bytes: &[u8]) {
                self.0.update(bytes);
            }
        }
        let mut hash = DigestHasher(Sha256::new_with_prefix(bytes));
        self.engine.precompile_compatibility_hash().hash(&mut hash);
        hex::encode(hash.0.finalize())
    }
}

/// Whether the bytes are a component. The layer field of the binary format is 0 for a core module and 1 for a component.
fn is_component(bytes: &[u8]) -> bool {
    bytes.get(6) == Some(&1)
}

/// Converts a preview 1 module to a component, with wasmtime's adapter.
fn componentize_module(module: &[u8]) -> wasmtime::Result<Vec<u8>> {
    let adapter = wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER;
    let encoded = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(module)
        .and_then(|encoder| encoder.adapter(PREVIEW1, adapter))
        .and_then(|mut encoder| encoder.encode());
    encoded.map_err(|error| wasmtime::Error::msg(format!("it is not a module of WASI preview 1: {error:#}")))
}

#[expect(unsafe_code, reason = "native code from our own cache")]
fn deserialize_component(engine: &wasmtime::Engine, bytes: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: `bytes` come from `precompile_component`, either just now or from a file that only we can write and whose digest was
    // checked (`read_kept`); wasmtime refuses those of another version or configuration.
    unsafe { Component::deserialize(engine, bytes) }
}

/// The length of a digest, in bytes.
const DIGEST: usize = 32;

/// Reads a cached guest, if the file belongs to this user and is complete. A file that another user could have written is not used.
fn read_kept(path: &Path) -> Option<Vec<u8>> {
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).ok()?; // silent-ok: compiled anew
    let mut file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .ok()?; // silent-ok: not there
    let own =
        |meta: fs::Metadata| meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
    let ours = file.metadata().is_ok_and(own) && path.parent()?.metadata().is_ok_and(own);
    let mut bytes = Vec::new();
    if !ours || file.read_to_end(&mut bytes).is_err() {
        return None;
    }
    let body = bytes.split_off(DIGEST.min(bytes.len()));
    (Sha256::digest(&body).as_slice() == bytes).then_some(body)
}

fn write_cache_file(path: &Path, body: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::os::unix::fs::DirBuilderExt::mode(fs::DirBuilder::new().recursive(true), 0o700).create(folder)?;
    let work = folder.join(format!(
        ".{}-{}",
        std::process::id(),
        path.file_name().unwrap_or_default().to_string_lossy()
    ));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&work)?;
    let written = io::Write::write_all(&mut file, &Sha256::digest(body))
        .and_then(|()| io::Write::write_all(&mut file, body))
        .and_then(|()| fs::rename(&work, path));
    if written.is_err() {
        let _ = fs::remove_file(&work); // silent-ok: the error is told
    }
    written
}
