//! The kinds of stores that SQLite serves.

use clawk_kernel::ports::MemoryError;
use clawk_manifest::model::{Store, StoreBackend};

/// Refuses what this back end can't do, at start rather than in the middle of the work.
pub(super) fn check(store: &Store) -> Result<(), MemoryError> {
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
    if store.encryption {
        return refuse(
            "`encryption: true` comes with a later version; nothing is written unencrypted instead"
                .to_owned(),
        );
    }
    Ok(())
}
