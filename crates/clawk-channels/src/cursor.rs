//! Where an adapter has read to, on disk: one small file a channel. Losing it costs repetitions, which are found by their ids, and
//! never a message: a cursor moves only after what lies before it is durable.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;

/// Bytes of a cursor.
const MAX_BYTES: u64 = 1 << 20;

/// One channel's cursor.
#[derive(Debug, Clone)]
pub(crate) struct Cursor(PathBuf);

impl Cursor {
    /// In `folder`; a channel's name has no path in it, by the manifest's grammar, and is encoded all the same.
    pub(crate) fn new(folder: &std::path::Path, channel: &str) -> Self {
        let name: String = channel
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
                other => format!("%{other:02x}"),
            })
            .collect();
        Self(folder.join(format!("{name}.cursor")))
    }

    /// Where it lies.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.0.parent().unwrap_or_else(|| std::path::Path::new("."))
    }

    /// What was kept last; none at first.
    pub(crate) fn get(&self) -> io::Result<Option<String>> {
        match fs::metadata(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
            Ok(found) if found.len() > MAX_BYTES => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the cursor is too large",
                ));
            }
            Ok(_) => {}
        }
        fs::read_to_string(&self.0).map(Some)
    }

    /// Keeps it durably: whole, or what was there before.
    pub(crate) fn store_text(&self, text: &str) -> io::Result<()> {
        let folder = self.folder();
        fs::create_dir_all(folder)?;
        let fresh = self.0.with_extension("cursor.new");
        let mut file = File::create(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &self.0)?;
        File::open(folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;

    #[test]
    fn a_cursor_is_kept_under_its_channel_alone() {
        let folder = tempfile::tempdir().unwrap();
        let one = Cursor::new(&folder.path().join("channels"), "../x");
        let two = Cursor::new(&folder.path().join("channels"), "x");
        assert_eq!(one.get().unwrap(), None);
        one.store_text("5").unwrap();
        one.store_text("6").unwrap();
        assert_eq!(one.get().unwrap().as_deref(), Some("6"));
        assert_eq!(two.get().unwrap(), None);
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "nothing beside the folder"
        );
    }
}
