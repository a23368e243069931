//! The key that signs heads: `keys/checkpoint.key` (mode 0600, a seed of 32 random bytes in hex). The first start creates it,
//! together with `keys/checkpoint.pub` for verification elsewhere.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clawk_trace::checkpoint::{PublicKey, TraceSigner};

use zeroize::Zeroizing;

use crate::dir::{StateDir, make_private};
use crate::error::StateError;

const PRIVATE: &str = "checkpoint.key";
const PUBLIC: &str = "checkpoint.pub";

impl StateDir {
    /// The signing key of this state directory. Creates it if none exists and nothing was signed yet.
    ///
    /// # Errors
    /// The key can't be read or created, other users may read it, or heads were signed with a key that is missing.
    pub fn signer(&self) -> Result<TraceSigner, StateError> {
        let folder = self.path().join("keys");
        let path = folder.join(PRIVATE);
        match fs::read_to_string(&path).map(Zeroizing::new) {
            Ok(text) => load_existing(self.path(), &path, &text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if self.is_signed()? {
                    return Err(key_fault(
                        self.path(),
                        "the key that signed this journal is gone; put it back".to_owned(),
                    ));
                }
                create_signer(&folder, &path)
            }
            Err(e) => Err(StateError::io_error("can't read", &path)(e)),
        }
    }
}

/// The signing key of a host whose state is on a server. Creates it if none exists.
///
/// # Errors
/// The key can't be read or created, or other users may read it.
pub fn signer_of(state: &Path) -> Result<TraceSigner, StateError> {
    let folder = state.join("keys");
    let path = folder.join(PRIVATE);
    match fs::read_to_string(&path).map(Zeroizing::new) {
        Ok(text) => load_existing(state, &path, &text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => create_signer(&folder, &path),
        Err(e) => Err(StateError::io_error("can't read", &path)(e)),
    }
}

fn load_existing(state: &Path, path: &Path, text: &str) -> Result<TraceSigner, StateError> {
    let mode = fs::metadata(path)
        .map_err(StateError::io_error("can't look at", path))?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        let detail = format!(
            "others may read `{}`: `chmod 600` it, or trust it no more",
            path.display()
        );
        return Err(key_fault(state, detail));
    }
    let mut seed = Zeroizing::new([0; 32]);
    match hex::decode_to_slice(text.trim(), &mut *seed) {
        Ok(()) => Ok(TraceSigner::from_seed(&seed)),
        Err(_) => Err(key_fault(state, format!("`{}` holds no key", path.display()))), // silent-ok: the text is secret
    }
}

fn key_fault(state: &Path, detail: String) -> StateError {
    StateError::Unvouched {
        path: state.to_owned(),
        detail,
    }
}

/// The public key of a state directory; `None`: there is no key yet.
///
/// # Errors
/// The key can't be read.
pub fn public_key(state: &Path) -> Result<Option<PublicKey>, StateError> {
    let path = state.join("keys").join(PUBLIC);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StateError::io_error("can't read", &path)(e)),
    };
    PublicKey::parse(&text)
        .map(Some)
        .map_err(|e| StateError::Unvouched {
            path: state.to_owned(),
            detail: format!("`{}`: {e}", path.display()),
        })
}

fn create_signer(folder: &Path, path: &Path) -> Result<TraceSigner, StateError> {
    make_private(folder)?;
    let mut seed = Zeroizing::new([0; 32]);
    fill_seed(&mut seed).map_err(StateError::io_error("can't get random bytes for", path))?;
    let signer = TraceSigner::from_seed(&seed);
    let write = |path: PathBuf, text: &[u8]| -> Result<(), StateError> {
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all(text)?;
            file.sync_all()
        };
        write().map_err(StateError::io_error("can't write", &path))
    };
    let public = folder.join(PUBLIC);
    if public.exists() {
        fs::remove_file(&public).map_err(StateError::io_error("can't replace", &public))?;
    }
    write(public, (signer.public().to_hex() + "\n").as_bytes())?;
    // The buffer has its final size, so that no shorter copy of the key stays in memory.
    let mut text = Zeroizing::new(vec![b'\n'; 65]);
    if let Some(room) = text.get_mut(..64) {
        hex::encode_to_slice(*seed, room)
            .map_err(|e| StateError::io_error("can't write", path)(io::Error::other(e)))?;
    }
    write(path.to_owned(), &text)?;
    Ok(signer)
}

/// Reads random bytes from the kernel, which blocks until its generator is seeded.
fn fill_seed(seed: &mut [u8; 32]) -> io::Result<()> {
    let mut filled = 0;
    while let Some(rest) = seed.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}
