//! Files of channels that hold what somebody said: sealed where the state is encrypted.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::{SealError, SealKeyring, is_sealed};

/// Ends of the names of folders whose files are sealed.
const FOLDERS: [&str; 3] = ["files", "recordings", "sound"];
/// The end of the name of a file that is sealed, beside those folders.
const THREADS: &str = "threads";
/// The end of the name of that file's copy until it takes the file's place.
const THREADS_COPY: &str = "threads.new";
/// Ends of the names of copies that have not taken their file's place yet; the last one is of an earlier version.
const PARTIAL: [&str; 3] = ["new", "part", "sealing"];

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
    pub(crate) fn seal_bytes(&self, path: &Path, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        match &self.0 {
            Some(vault) => vault.seal(&place_of(path), &bytes).map_err(io::Error::other),
            None => Ok(bytes),
        }
    }

    /// What was written to this file. What an earlier run left in plain is as it is.
    pub(crate) fn unseal_bytes(&self, path: &Path, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        match &self.0 {
            Some(vault) if is_sealed(&bytes) => {
                let opened = vault.open(&place_of(path), &bytes).map_err(io::Error::other)?;
                Ok(opened.unwrap_or(bytes))
            }
            Some(_) | None => Ok(bytes),
        }
    }
}

/// Which files a pass seals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResealScope {
    /// Those that lie in plain.
    Plain,
    /// Those that lie in plain, and those that an older key of the vault sealed.
    PlainAndOlder,
}

/// Seals the files of channels below `folder`. A file that can't be sealed stops no other; the report names it.
pub(crate) fn seal_channel_files(folder: &Path, vault: &SealKeyring, scope: ResealScope) -> ResealReport {
    let mut report = ResealReport::default();
    for path in paths_below(folder, &mut report) {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
        if end == THREADS || path.to_string_lossy().ends_with(THREADS_COPY) {
            report.add_outcome(path.display(), seal_file(&path, vault, scope));
        } else if FOLDERS.contains(&end) {
            for file in paths_below(&path, &mut report) {
                report.add_outcome(file.display(), seal_file(&file, vault, scope));
            }
        }
    }
    report
}

/// What lies in a folder, as far as it can be read. A folder that is not there is empty; a link to one is not followed.
pub(crate) fn paths_below(folder: &Path, report: &mut ResealReport) -> Vec<PathBuf> {
    let entries = match std::fs::symlink_metadata(folder).and_then(|facts| {
        if facts.is_dir() {
            std::fs::read_dir(folder)
        } else {
            Err(io::Error::other("it is not a folder"))
        }
    }) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            report.add_fault(folder.display(), error);
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => found.push(entry.path()),
            Err(error) => report.add_fault(folder.display(), error),
        }
    }
    found.sort();
    found
}

/// Returns whether this is a regular file. Only regular files are sealed: a channel stores nothing in links or folders.
pub(crate) fn is_plain_file(path: &Path) -> io::Result<bool> {
    Ok(std::fs::symlink_metadata(path)?.is_file())
}

/// A value that begins like a sealed one and opens with no key. Somebody may have sent it like this before the encryption, so it may lie
/// in plain.
pub(crate) fn unopened(error: &SealError) -> io::Error {
    io::Error::other(format!(
        "it begins like an encrypted file and can't be opened: {error}. It is as it was, and may be in plain. Remove it, or put it back \
         from a backup, and do this again"
    ))
}

fn seal_file(path: &Path, vault: &SealKeyring, scope: ResealScope) -> io::Result<()> {
    if !is_plain_file(path)? {
        return Ok(());
    }
    let bytes = std::fs::read(path)?;
    let place = place_of(path);
    let plain = match vault.open(&place, &bytes) {
        Ok(Some(_)) if scope == ResealScope::Plain || vault.is_current(&bytes) => return Ok(()),
        Ok(Some(opened)) => opened,
        Ok(None) => bytes,
        // The copy of a write that was cut off is sealed for the name that it never got. The writer may be at work, unless the agent does
        // not run.
        Err(_) if is_partial_copy(path) => {
            return match scope {
                ResealScope::Plain => Ok(()),
                ResealScope::PlainAndOlder => std::fs::remove_file(path),
            };
        }
        Err(error) => return Err(unopened(&error)),
    };
    let sealed = vault.seal(&place, &plain).map_err(io::Error::other)?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(".new");
    replace_file(path, Path::new(&partial), &sealed)
}

/// Whether this is the copy of a file until it takes the file's place, as channels name them. The names are the channels' own, never a
/// sender's.
fn is_partial_copy(path: &Path) -> bool {
    let end = path.extension().and_then(|end| end.to_str());
    end.is_some_and(|end| PARTIAL.contains(&end))
}

/// Puts these bytes in the place of a file, durably: after a crash the file holds what it held, or these bytes whole.
pub(crate) fn replace_file(path: &Path, partial: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut open = std::fs::OpenOptions::new();
    let mut file = open
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(partial, path)?;
    match path.parent() {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clawk_recall::seal::{SealKey, SealKeyring};

    use super::{FileSeal, ResealScope, seal_channel_files};

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
        assert!(seal_channel_files(folder.path(), &vault("ab"), ResealScope::Plain).is_complete());
        let sealed = std::fs::read(&one).unwrap();
        assert!(!sealed.windows(6).any(|part| part == b"canary"));
        let seal = FileSeal::new(Some(vault("ab")));
        assert_eq!(seal.unseal_bytes(&one, sealed.clone()).unwrap(), b"canary one");
        assert!(seal.unseal_bytes(&other, sealed.clone()).is_err());
        assert!(
            FileSeal::new(Some(vault("cd")))
                .unseal_bytes(&one, sealed)
                .is_err()
        );
        // Another key: the older one still opens while everything is sealed anew.
        let both = vault("cd").with_older(SealKey::from_hex(&"ab".repeat(32)).unwrap());
        assert!(seal_channel_files(folder.path(), &both, ResealScope::PlainAndOlder).is_complete());
        let sealed = std::fs::read(&other).unwrap();
        let seal = FileSeal::new(Some(vault("cd")));
        assert_eq!(seal.unseal_bytes(&other, sealed).unwrap(), b"canary two");
    }

    /// A damaged file, one of another place, and a plain one that imitates a sealed one are named; the files around them are sealed.
    #[test]
    fn a_file_that_cannot_be_opened_is_reported_and_stops_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = folder.path().join("page.files");
        std::fs::create_dir(&shelf).unwrap();
        let seal = FileSeal::new(Some(vault("ab")));
        let path = |name: &str| shelf.join(name);
        let sealed = |name: &str| seal.seal_bytes(&path(name), b"canary sealed".to_vec()).unwrap();
        let mut damaged = sealed("b-damaged");
        *damaged.last_mut().unwrap() ^= 1;
        let mut imitated = sealed("d-imitated")[..12].to_vec();
        imitated.extend(b"canary in plain");
        let unknown = b"clawk\0s1????canary in plain".to_vec();
        for (name, bytes) in [
            ("a-plain", b"canary plain".to_vec()),
            ("b-damaged", damaged),
            ("c-sealed", sealed("c-sealed")),
            ("d-imitated", imitated),
            ("e-unknown", unknown),
            ("f-moved", sealed("c-sealed")),
            ("z-plain", b"canary plain".to_vec()),
        ] {
            std::fs::write(path(name), bytes).unwrap();
        }
        std::os::unix::fs::symlink(path("a-plain"), path("g-link")).unwrap();
        std::fs::write(path("z-plain.sealing"), sealed("z-plain")).unwrap();
        std::fs::write(folder.path().join("y.sound"), "not a folder").unwrap();
        let both = vault("cd").with_older(SealKey::from_hex(&"ab".repeat(32)).unwrap());
        for (vault, scope, opens) in [
            (vault("ab"), ResealScope::Plain, "ab"),
            (both, ResealScope::PlainAndOlder, "cd"),
        ] {
            let report = seal_channel_files(folder.path(), &vault, scope);
            let named: Vec<&str> = report
                .faults()
                .iter()
                .map(|fault| fault.value.rsplit('/').next().unwrap())
                .collect();
            assert_eq!(
                named,
                ["b-damaged", "d-imitated", "e-unknown", "f-moved", "y.sound"],
                "{report:?}"
            );
            assert!(report.faults().iter().all(|fault| !fault.why.contains("canary")));
            let seal = FileSeal::new(Some(self::vault(opens)));
            for (name, text) in [
                ("a-plain", "canary plain"),
                ("c-sealed", "canary sealed"),
                ("z-plain", "canary plain"),
            ] {
                let bytes = std::fs::read(path(name)).unwrap();
                assert!(!bytes.windows(6).any(|part| part == b"canary"), "{name}");
                assert_eq!(
                    seal.unseal_bytes(&path(name), bytes).unwrap(),
                    text.as_bytes(),
                    "{name}"
                );
            }
        }
        assert!(!path("z-plain.sealing").exists());
    }
}
