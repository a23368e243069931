//! Access to folder stores for operators: reads them from outside the agent, and changes them while the agent does not run.

use std::io;
use std::path::Path;
use std::sync::Arc;

use clawk_core::ports::{MemoryError, StoreQuery};
use clawk_manifest::model::Store;
use clawk_recall::entry::{ConversationFilter, EntryHit};
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::SealKeyring;

use super::part::FolderScopeStore;
use super::places::{self, FolderScopeLocation};

/// One scope of a folder store.
#[derive(Debug)]
pub struct FolderScopeView {
    /// The store's name in the manifest.
    pub store: String,
    /// `identity/NAME`, `channel/IDENTITY/CHANNEL`, or empty for the common scope.
    pub scope: String,
    part: FolderScopeStore,
    spec: Store,
}

impl FolderScopeView {
    /// Lists every scope of every folder store that an agent has used. `root` is the folder `memory` of the state directory;
    /// `vault` has the keys of encrypted stores.
    ///
    /// # Errors
    /// A folder can't be read, or is encrypted and its key is missing.
    pub fn all_scopes(root: &Path, vault: Option<&Arc<SealKeyring>>) -> io::Result<Vec<Self>> {
        let open = |place| Self::open(place, vault);
        places::known_scopes(root)?.into_iter().map(open).collect()
    }

    fn open(place: FolderScopeLocation, vault: Option<&Arc<SealKeyring>>) -> io::Result<Self> {
        let FolderScopeLocation { store, scope, folder } = place;
        let spec = Store::with_name(&store);
        Ok(Self {
            part: FolderScopeStore::open(&folder, (&spec, &scope), vault)?,
            store,
            scope,
            spec,
        })
    }

    /// Seals the encrypted stores in folders with the current key of this vault; returns how many folders there are. A folder that can't
    /// be sealed stops no other and can still be read with both keys; the report names it.
    #[must_use]
    pub fn seal_all_anew(root: &Path, vault: &Arc<SealKeyring>) -> (usize, ResealReport) {
        let mut report = ResealReport::default();
        let places = match places::known_scopes(root) {
            Ok(places) => places,
            Err(error) => {
                report.add_fault(root.display(), error);
                return (0, report);
            }
        };
        let count = places.len();
        for place in places {
            let folder = place.folder.clone();
            match Self::open(place, Some(vault)) {
                Ok(mut held) => report.add_outcome(folder.display(), held.part.seal_anew()),
                Err(error) => report.add_fault(folder.display(), error),
            }
        }
        (count, report)
    }

    /// The number of entries.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.part.count()
    }

    /// The newest entries first, at most `limit`. With `aside`: the entries that compaction set aside.
    #[must_use]
    pub fn newest_entries(&self, aside: bool, limit: usize) -> Vec<EntryHit> {
        self.part.newest_entries(aside, limit)
    }

    /// Searches entries by words, best first.
    #[must_use]
    pub fn search_words(&self, words: &str, limit: usize) -> Vec<EntryHit> {
        let ask = clawk_core::ports::MemorySearch {
            whose: ConversationFilter::All,
            query: StoreQuery::Text(words.to_owned()),
            vector: None,
            limit,
        };
        self.part.search_entries(&self.spec, &ask).hits
    }

    /// Entries with this id or key. Entries that were set aside are found by their id, too.
    #[must_use]
    pub fn entries_named(&self, name: &str) -> Vec<EntryHit> {
        self.part.entries_named(name)
    }

    /// Removes an entry permanently, together with entries that were set aside for it and summaries made from it.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn forget_entry(&mut self, id: &str) -> Result<Option<EntryHit>, MemoryError> {
        self.part.remove(&ConversationFilter::All, id)
    }

    /// Restores entries that compaction set aside: one entry, the entries of one summary, or all. Returns how many were restored.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn restore_entries(&mut self, id: Option<&str>) -> Result<u64, MemoryError> {
        self.part.restore_entries(id)
    }
}
