//! Files of channels that hold what somebody said: sealed where the state is encrypted.

use std::io;
use std::path::Path;

use clawk_recall::seal::{SealKeyring, is_sealed};

/// Ends of the names of folders whose files are sealed.
const FOLDERS: [&str; 3] = ["files", "recordings", "sound"];
/// The end of the name of a file that is sealed, beside those folders.
const THREADS: &str = "threads";

/// Seals and opens a channel's files. Without a key they are as they are.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileSeal(Option<SealKeyring>);

/// For what a file is sealed: its folder and its name, so that none takes another one's place.
fn place_of(path: &Path) -> String {
    let part = |name: Option<&std::ffi::OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
    let folder = part(path.parent().and_then(Path::file_name));
    format!("channel file {folder}/{}", part(path.file_name()))
}

impl FileSeal {
    pub(crate) const fn new(vault: Option<SealKeyring>) -> Self {
        Self(vault)
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The bytes as they are written to this file.
    pub(crate) fn close(&self, path: &Path, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        match &self.0 {
            Some(vault) => vault.seal(&place_of(path), &bytes).map_err(io::Error::other),
            None => Ok(bytes),
        }
    }

    /// What was written to this file. What an earlier run left in plain is as it is.
    pub(crate) fn open(&self, path: &Path, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        match &self.0 {
            Some(vault) if is_sealed(&bytes) => {
                let opened = vault.open(&place_of(path), &bytes).map_err(io::Error::other)?;
                Ok(opened.unwrap_or(bytes))
            }
            Some(_) | None => Ok(bytes),
        }
    }
}

/// Seals all files of channels below `folder` that lie in plain; with `anew` those that are sealed as well, with the vault's current key.
///
/// # Errors
/// A file can't be read or written, or no key of the vault opens it.
pub(crate) fn seal_channel_files(folder: &Path, vault: &SealKeyring, anew: bool) -> io::Result<()> {
    for entry in entries(folder)? {
        let path = entry?.path();
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        if end == THREADS {
            seal_file(&path, vault, anew)?;
        } else if FOLDERS.contains(&end) {
            for file in entries(&path)? {
                let file = file?;
                if file.file_type()?.is_file() {
                    seal_file(&file.path(), vault, anew)?;
                }
            }
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> io::Result<impl Iterator<Item = io::Result<std::fs::DirEntry>>> {
    match std::fs::read_dir(folder) {
        Ok(found) => Ok(Some(found).into_iter().flatten()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

fn seal_file(path: &Path, vault: &SealKeyring, anew: bool) -> io::Result<()> {
    let bytes = std::fs::read(path)?;
    let sealed = is_sealed(&bytes);
    if sealed && (!anew || vault.is_current(&bytes)) {
        return Ok(());
    }
    let seal = FileSeal(Some(vault.clone()));
    let plain = seal.open(path, bytes)?;
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".sealing");
    std::fs::write(&fresh, seal.close(path, plain)?)?;
    std::fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use clawk_recall::seal::{SealKey, SealKeyring};

    use super::{FileSeal, seal_channel_files};

    fn vault(byte: &str) -> SealKeyring {
        SealKeyring::new(SealKey::from_hex(&byte.repeat(32)).unwrap())
    }

    #[test]
    fn files_that_were_plain_are_sealed_and_no_file_takes_anothers_place() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = folder.path().join("page.files");
        std::fs::create_dir(&shelf).unwrap();
        let (one, other) = (shelf.join("one"), shelf.join("other"));
        std::fs::write(&one, "canary one").unwrap();
        std::fs::write(&other, "canary two").unwrap();
        seal_channel_files(folder.path(), &vault("ab"), false).unwrap();
        let sealed = std::fs::read(&one).unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"canary"));
        let seal = FileSeal::new(Some(vault("ab")));
        assert_eq!(seal.open(&one, sealed.clone()).unwrap(), b"canary one");
        assert!(seal.open(&other, sealed.clone()).is_err());
        assert!(FileSeal::new(Some(vault("cd"))).open(&one, sealed).is_err());
        // Another key: the older one still opens while everything is sealed anew.
        let both = vault("cd").with_older(SealKey::from_hex(&"ab".repeat(32)).unwrap());
        seal_channel_files(folder.path(), &both, true).unwrap();
        let sealed = std::fs::read(&other).unwrap();
        let seal = FileSeal::new(Some(vault("cd")));
        assert_eq!(seal.open(&other, sealed).unwrap(), b"canary two");
    }
}
