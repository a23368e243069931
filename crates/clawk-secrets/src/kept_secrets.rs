//! Secrets that `clawk login` keeps: one file for each name in the user's own folder, which only the owner can read.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::store::{SecretLookup, StoreError, read_file};
use crate::{EnvironmentSource, ResolveError, Secret};

/// Returns the folder of the kept secrets: `$XDG_CONFIG_HOME/clawk/secrets`, else `~/.config/clawk/secrets`. `None`: neither
/// variable is set.
#[must_use]
pub fn kept_secrets_dir(env: &EnvironmentSource) -> Option<PathBuf> {
    let configured = env
        .path_variable("XDG_CONFIG_HOME")
        .filter(|path| path.is_absolute());
    let base = configured.or_else(|| {
        let home = env.path_variable("HOME").filter(|path| path.is_absolute())?;
        Some(home.join(".config"))
    })?;
    Some(base.join("clawk").join("secrets"))
}

/// Keeps a secret under its name and returns the file. The file has mode 0600, its folder 0700; an earlier value is replaced.
///
/// # Errors
/// The name is not a plain file name, no folder is known, or the file can't be written.
pub fn keep_secret(env: &EnvironmentSource, secret: &Secret) -> Result<PathBuf, ResolveError> {
    let name = secret.name();
    super::resolve::check_name(name)?;
    let failed = |path: &Path, source| ResolveError::Store {
        name: name.to_owned(),
        source: StoreError::File {
            path: path.to_owned(),
            source,
        },
    };
    if !super::resolve::is_file_name(name) {
        return Err(ResolveError::BadName {
            name: name.chars().take(60).collect(),
            why: "it is not a plain file name",
        });
    }
    let Some(folder) = kept_secrets_dir(env) else {
        let source = io::Error::new(io::ErrorKind::NotFound, "neither HOME nor XDG_CONFIG_HOME is set");
        return Err(failed(Path::new("secrets"), source));
    };
    let file = folder.join(name);
    write_private(&folder, &file, secret).map_err(|source| failed(&file, source))?;
    Ok(file)
}

fn write_private(folder: &Path, file: &Path, secret: &Secret) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    // A name that no secret has, because `.` begins it; `create_new` follows no link.
    let draft = folder.join(format!(".{}.new", std::process::id()));
    let _ = std::fs::remove_file(&draft); // silent-ok: usually there is none
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let written = out
        .write_all(secret.expose().as_bytes())
        .and_then(|()| out.sync_all())
        .and_then(|()| std::fs::rename(&draft, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft); // silent-ok: the error that is returned says what went wrong
    }
    written
}

/// Looks a kept secret up. A file that others can read is refused.
pub(crate) fn look_up_kept(
    env: &EnvironmentSource,
    name: &str,
    max_bytes: usize,
) -> Result<SecretLookup, StoreError> {
    let Some(folder) = kept_secrets_dir(env).filter(|_| super::resolve::is_file_name(name)) else {
        return Ok(SecretLookup::Absent(String::new()));
    };
    let path = folder.join(name);
    match std::fs::metadata(&path) {
        Ok(found) if found.mode() & 0o077 != 0 => Err(StoreError::Permissions {
            mode: found.mode() & 0o7777,
            path,
        }),
        Ok(_) => read_file(&path, &describe_kept(name), max_bytes),
        // silent-ok: a secret that was never kept is not a place that was asked
        Err(_) => Ok(SecretLookup::Absent(String::new())),
    }
}

pub(crate) fn describe_kept(name: &str) -> String {
    format!("the file that `clawk login` keeps for `{name}`")
}
