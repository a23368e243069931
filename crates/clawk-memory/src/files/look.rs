//! Looking at stores in folders from outside of the agent, and changing what they hold while it does not run.

use std::io;
use std::path::Path;
use std::sync::Arc;

use clawk_core::ports::{MemoryError, StoreQuery};
use clawk_manifest::model::Store;
use clawk_recall::entry::{ConversationFilter, EntryHit};
use clawk_recall::seal::SealKeyring;

use super::part::FolderScopeStore;
use super::places::{self, FolderScopeLocation};

/// One scope of a store in a folder.
#[derive(Debug)]
pub struct FolderScopeView {
    /// The store's name in the manifest.
    pub store: String,
    /// `identity/NAME`, `channel/IDENTITY/CHANNEL`, or empty for everybody's.
    pub scope: String,
    part: FolderScopeStore,
    spec: Store,
}

impl FolderScopeView {
    /// Every scope of every store in folders that an agent has used. `root`: `memory` in its state directory; `vault`: what opens
    /// encrypted ones.
    ///
    /// # Errors
    /// A folder can't be read, or is encrypted and has no key here.
    pub fn all(root: &Path, vault: Option<&Arc<SealKeyring>>) -> io::Result<Vec<Self>> {
        let open = |FolderScopeLocation { store, scope, folder }| {
            let spec = Store::named(&store);
            Ok(Self {
                part: FolderScopeStore::open(&folder, (&spec, &scope), vault)?,
                store,
                scope,
                spec,
            })
        };
        places::known(root)?.into_iter().map(open).collect()
    }

    /// Seals an encrypted store with the current key of its vault.
    ///
    /// # Errors
    /// The folder can't be written; what is there can still be read with both keys.
    pub fn seal_anew(&mut self) -> Result<(), MemoryError> {
        self.part.seal_anew()
    }

    /// How many entries.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.part.count()
    }

    /// The newest first, at most `limit`; or those that compaction set aside.
    #[must_use]
    pub fn newest(&self, aside: bool, limit: usize) -> Vec<EntryHit> {
        self.part.newest(aside, limit)
    }

    /// By their words, the best first.
    #[must_use]
    pub fn search(&self, words: &str, limit: usize) -> Vec<EntryHit> {
        let ask = clawk_core::ports::MemorySearch {
            whose: ConversationFilter::All,
            query: StoreQuery::Text(words.to_owned()),
            vector: None,
            limit,
        };
        self.part.ask(&self.spec, &ask).hits
    }

    /// Entries with this id or key; those set aside by their id, too.
    #[must_use]
    pub fn named(&self, name: &str) -> Vec<EntryHit> {
        self.part.named(name)
    }

    /// Removes an entry for good, what was set aside for it, and summaries that were made from it.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn forget(&mut self, id: &str) -> Result<Option<EntryHit>, MemoryError> {
        self.part.remove(&ConversationFilter::All, id)
    }

    /// Brings back what compaction set aside: one entry or what a summary stands for, or everything; how many.
    ///
    /// # Errors
    /// The folder can't be written.
    pub fn restore(&mut self, id: Option<&str>) -> Result<u64, MemoryError> {
        self.part.restore(id)
    }
}
