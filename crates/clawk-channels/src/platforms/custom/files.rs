//! Files that a `custom` channel's program names: opened beneath its folder, where no link and no name leads out of it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

/// The bytes of a file below `folder`, at most `max_bytes`.
///
/// # Errors
/// For the model and people: it lies elsewhere, is not a file, or is too large.
pub(super) fn read(folder: &Path, named: &str, max_bytes: u64) -> Result<Bytes, String> {
    let below = beneath(folder, named).ok_or("it lies outside of the program's folder")?;
    let root = openat(CWD, folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("the program's folder can't be opened: {error}"))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(&root, &below, flags, Mode::empty(), resolve)
        .map_err(|error| format!("it can't be opened in the program's folder: {error}"))?;
    let file = File::from(file);
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is not a file".to_owned());
    }
    let mut data = Vec::new();
    file.take(max_bytes.saturating_add(1))
        .read_to_end(&mut data)
        .map_err(|error| error.to_string())?;
    if u64::try_from(data.len()).unwrap_or(u64::MAX) > max_bytes {
        return Err("it is larger than `max_attachment_mb`".to_owned());
    }
    Ok(data.into())
}

/// The way from the folder to a file that is named by it, or by its absolute path.
fn beneath(folder: &Path, named: &str) -> Option<PathBuf> {
    let named = Path::new(named);
    let below = match named.is_absolute() {
        true => named.strip_prefix(folder).ok()?, // silent-ok: it lies elsewhere
        false => named,
    };
    let plain = below.components().all(|part| {
        matches!(
            part,
            std::path::Component::Normal(_) | std::path::Component::CurDir
        )
    });
    (plain && below.components().next().is_some()).then(|| below.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::read;

    #[test]
    fn only_files_of_the_folder_are_read() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("bridge");
        fs::create_dir_all(folder.join("in")).unwrap();
        fs::write(outer.path().join("secret"), "secret").unwrap();
        fs::write(folder.join("in/a.txt"), "hello").unwrap();
        symlink(outer.path().join("secret"), folder.join("link")).unwrap();
        symlink(outer.path(), folder.join("up")).unwrap();
        symlink("in/a.txt", folder.join("inner")).unwrap();
        let whole = folder.join("in/a.txt");
        for good in ["in/a.txt", "./in/a.txt", whole.to_str().unwrap()] {
            assert_eq!(read(&folder, good, 100).unwrap(), "hello".as_bytes(), "{good}");
        }
        let absolute = outer.path().join("secret");
        for bad in [
            "../secret",
            "in/../../secret",
            absolute.to_str().unwrap(),
            "link",
            "up/secret",
            "inner",
            "in",
            "",
            ".",
            "/",
            "/etc/passwd",
            "/proc/self/environ",
            "absent",
            "a\0b",
        ] {
            let refused = read(&folder, bad, 100).unwrap_err();
            assert!(
                !refused.contains("hello") && !refused.contains("secret/"),
                "{bad}: {refused}"
            );
        }
        assert!(
            read(&folder, "in/a.txt", 4)
                .unwrap_err()
                .contains("max_attachment_mb")
        );
    }
}
