//! Files of channels are sealed anew when the vault's key changes.

use std::path::Path;

use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::SealKeyring;

use crate::platforms::ENTRIES;
use crate::sealed_file::{ResealScope, paths_below, seal_channel_files};

/// Seals what pages show of their conversations, and files of channels, with the vault's current key, for all channels below `folder`. A
/// file that can't be sealed stops no other; the report names it.
#[must_use]
pub fn seal_conversations_anew(folder: &Path, vault: &SealKeyring) -> ResealReport {
    let scope = ResealScope::PlainAndOlder;
    let mut report = seal_channel_files(folder, vault, scope);
    for path in paths_below(folder, &mut ResealReport::default()) {
        for stored in ENTRIES.iter().filter_map(|entry| entry.stored) {
            if path
                .extension()
                .is_some_and(|extension| extension == stored.extension)
            {
                report.add_report((stored.seal)(&path, vault, scope));
            }
        }
    }
    report
}
