//! Files of channels are sealed anew when the vault's key changes.

use std::io::ErrorKind;
use std::path::Path;

use clawk_recall::seal::SealKeyring;

use crate::platforms::ENTRIES;
use crate::sealed_file::seal_channel_files;

/// Seals what pages show of their conversations, and files of channels, with the vault's current key, for all channels below `folder`.
///
/// # Errors
/// A file can't be read or written, or no key of the vault opens it.
pub fn seal_conversations_anew(folder: &Path, vault: &SealKeyring) -> std::io::Result<()> {
    let channels = match std::fs::read_dir(folder) {
        Ok(channels) => channels,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for channel in channels {
        let path = channel?.path();
        for stored in ENTRIES.iter().filter_map(|entry| entry.stored) {
            if path
                .extension()
                .is_some_and(|extension| extension == stored.extension)
            {
                (stored.seal)(&path, vault, true)?;
            }
        }
    }
    seal_channel_files(folder, vault, true)
}
