//! The untrusted texts that a call could read from files (R46).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// File paths, as people know them, each with the sources of the untrusted text in the file (`web https://…`).
pub type TaintedFiles = BTreeMap<String, BTreeSet<String>>;

/// Content whose origins are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProvenanceSubject {
    /// A file: relative paths start at the agent's working directory.
    File(std::path::PathBuf),
    /// A whole text, and the name of the file that it is in or goes to.
    Text {
        /// Its path, or the end of it.
        name: String,
        /// All of it.
        text: String,
    },
}

/// The place where a runner reports which untrusted files a call could read. Clones share what is told.
#[derive(Debug, Clone, Default)]
pub struct ProvenanceCollector(Arc<Mutex<TaintedFiles>>);

impl ProvenanceCollector {
    /// The most files that are named; the origins of further ones are told under the name of the last.
    pub const NAMED: usize = 32;

    /// Tells more of them.
    pub fn add_files(&self, more: TaintedFiles) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (file, origins) in more {
            if told.len() < Self::NAMED || told.contains_key(&file) {
                told.entry(file).or_default().extend(origins);
            } else if let Some(mut last) = told.last_entry() {
                last.get_mut().extend(origins);
            }
        }
    }

    /// Everything told so far.
    #[must_use]
    pub fn collected_files(&self) -> TaintedFiles {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes everything told so far.
    pub fn take_files(&self) -> TaintedFiles {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
