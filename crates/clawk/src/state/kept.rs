//! What an agent keeps, as the verbs read and change it. This is the one module of the binary that names the store (`cargo xtask tidy`
//! sees to it): whatever keeps a state in another way comes in here, and no verb knows.

pub(crate) use clawk_store::{
    AuditDb, AuditRow, Contents, Delivery, Durability, Erase, Filter, Head, MAX_FORGOTTEN, MemoryPart,
    Options, Reader, Remembered, Restore, StateDir, StateError, StoredEvent, public_key,
};
