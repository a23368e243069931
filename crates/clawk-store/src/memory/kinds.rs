//! The types of stores that SQLite supports.

use clawk_kernel::ports::MemoryError;
use clawk_manifest::model::{Store, StoreBackend};
use clawk_recall::keys::StateSealer;
use clawk_recall::seal::{NO_KEY, STAYS};

/// Rejects settings that this back end does not support, at the start instead of during the work.
pub(super) fn check_store(store: &Store, seals: &StateSealer) -> Result<(), MemoryError> {
    let refuse = |what: String| Err(MemoryError::Backend(format!("store `{}`: {what}", store.name)));
    match store.backend {
        None | Some(StoreBackend::Sqlite | StoreBackend::SqliteVec) => {}
        Some(
            other @ (StoreBackend::Postgresql
            | StoreBackend::Filesystem
            | StoreBackend::Pgvector
            | StoreBackend::Qdrant
            | StoreBackend::Custom),
        ) => return refuse(format!("backend `{}` is not kept in SQLite", other.as_str())),
    }
    match (
        store.encryption,
        seals.vault().is_some(),
        seals.is_encrypted(&store.name),
    ) {
        (true, true, true) | (false, _, false) => Ok(()),
        (true, _, _) => refuse(NO_KEY.to_owned()),
        (false, _, true) => refuse(STAYS.to_owned()),
    }
}
