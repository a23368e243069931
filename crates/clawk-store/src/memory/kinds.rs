//! What the types of stores have in common, and what of a store SQLite serves.

use clawk_kernel::ports::{MemoryError, Scope};
use clawk_manifest::model::{Store, StoreBackend, StoreScope, StoreType};

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

/// Whose part of the store; absent means per identity. A workspace's `isolation` says the same of files.
pub(super) fn scope_of(store: &Store, place: &Scope) -> String {
    use clawk_manifest::model::Isolation;
    let scope = match (store.kind, store.isolation) {
        (StoreType::Workspace, Some(Isolation::Shared)) => StoreScope::Global,
        (StoreType::Workspace, Some(Isolation::PerIdentity)) => StoreScope::PerIdentity,
        (StoreType::Workspace, Some(Isolation::PerChannel)) => StoreScope::PerChannel,
        _ => store.scope.unwrap_or(StoreScope::PerIdentity),
    };
    match scope {
        StoreScope::Global => String::new(),
        StoreScope::PerIdentity => format!("identity/{}", place.identity),
        StoreScope::PerChannel => format!("channel/{}/{}", place.identity, place.channel),
    }
}
