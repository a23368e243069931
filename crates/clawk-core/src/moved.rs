//! The tables of a state as they cross from one kind of store to another (`clawk state move`, R48). Each store reads and writes its own
//! tables in this shape; what a row means is known to the store alone.

mod sealed;

pub use sealed::RowSealer;

/// How a column's values cross.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Int,
    /// 0 or 1.
    Flag,
    /// A text of ours, or JSON: it holds no NUL.
    Text,
    /// A text that came from outside.
    Said,
    /// Bytes.
    Bytes,
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MovedCell {
    /// Absent.
    Null,
    /// A number, or a flag.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// The values of one row, in the order of [`Table::columns`].
pub type MovedRow = Vec<MovedCell>;

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Its name, in every store.
    pub name: &'static str,
    /// Its columns.
    pub columns: &'static [(&'static str, Kind)],
    /// In which order its rows cross; all of them are columns of the table.
    pub order: &'static str,
}

/// Rows that cross at once, at most; contents and events are large.
pub const PAGE: usize = 2_000;

use Kind::{Bytes, Flag, Int, Said, Text};

/// Sessions with the heads of their chains.
pub const SESSIONS: &str = "sessions";
/// The contents that events refer to. A store may keep them elsewhere than in a table.
pub const CONTENTS: &str = "contents";
/// Events.
pub const EVENTS: &str = "events";
/// Entries of memory.
pub const MEMORY: &str = "memory";
/// Their vectors, as `clawk_recall::packed` keeps them.
pub const VECTORS: &str = "memory_vectors";

/// Every table, in the order in which they cross: what others refer to comes first. Who serves a state, its leases, and caches that
/// are made anew do not cross.
pub const TABLES: [Table; 17] = [
    Table {
        name: SESSIONS,
        columns: &[
            ("session", Bytes),
            ("trace_id", Bytes),
            ("events", Int),
            ("head", Bytes),
            ("started", Int),
            ("last", Int),
            ("verified", Int),
            ("verified_hash", Bytes),
        ],
        order: "session",
    },
    Table {
        name: EVENTS,
        columns: &[
            ("row", Int),
            ("session", Bytes),
            ("sequence", Int),
            ("at", Int),
            ("kind", Text),
            ("event_id", Bytes),
            ("span", Bytes),
            ("parent", Bytes),
            ("payload", Text),
            ("hash", Bytes),
            ("content_digest", Bytes),
        ],
        order: "row",
    },
    Table {
        name: CONTENTS,
        columns: &[("digest", Bytes), ("bytes", Bytes)],
        order: "digest",
    },
    Table {
        name: "inbox",
        columns: &[
            ("message", Bytes),
            ("session", Bytes),
            ("state", Text),
            ("reason", Said),
        ],
        order: "n",
    },
    Table {
        name: "answers",
        columns: &[("key", Bytes), ("row", Int), ("at", Int)],
        order: "row",
    },
    Table {
        name: "conversations",
        columns: &[
            ("channel", Said),
            ("conversation", Said),
            ("sender", Said),
            ("session", Bytes),
        ],
        order: "session",
    },
    Table {
        name: "platform_ids",
        columns: &[
            ("channel", Said),
            ("id", Said),
            ("message", Bytes),
            ("session", Bytes),
            ("until", Int),
        ],
        order: "until",
    },
    Table {
        name: "outbox",
        columns: &[
            ("message", Bytes),
            ("session", Bytes),
            ("channel", Said),
            ("conversation", Said),
            ("sender", Said),
            ("reply_to", Said),
            ("text", Bytes),
            ("at", Int),
            ("attempts", Int),
            ("next_at", Int),
            ("doubt", Flag),
            ("dead", Flag),
            ("reason", Said),
        ],
        order: "n",
    },
    Table {
        name: "spent",
        columns: &[
            ("hour", Int),
            ("purse", Said),
            ("tokens", Int),
            ("cost_microusd", Int),
            ("busy_ms", Int),
            ("calls", Int),
            ("bytes_out", Int),
        ],
        order: "hour",
    },
    Table {
        name: "effects_open",
        columns: &[
            ("request", Text),
            ("session", Bytes),
            ("tool", Said),
            ("parameters", Bytes),
            ("at", Int),
        ],
        order: "n",
    },
    Table {
        name: "heads",
        columns: &[
            ("size", Int),
            ("root", Bytes),
            ("peaks", Bytes),
            ("at", Int),
            ("lines", Text),
        ],
        order: "size",
    },
    Table {
        name: "deliveries",
        columns: &[("place", Text), ("size", Int), ("failures", Int), ("error", Said)],
        order: "place",
    },
    Table {
        name: "marks",
        columns: &[("name", Text), ("value", Int)],
        order: "name",
    },
    Table {
        name: "memory_parts",
        columns: &[("id", Int), ("store", Text), ("scope", Text), ("entries", Int)],
        order: "id",
    },
    Table {
        name: MEMORY,
        columns: &[
            ("n", Int),
            ("part", Int),
            ("id", Text),
            ("key", Text),
            ("content", Text),
            ("metadata", Text),
            ("at", Int),
            ("mark", Text),
            ("whose", Int),
        ],
        order: "n",
    },
    Table {
        name: VECTORS,
        columns: &[
            ("n", Int),
            ("part", Int),
            ("whose", Int),
            ("model", Text),
            ("vector", Bytes),
        ],
        order: "v",
    },
    Table {
        name: "memory_aside",
        columns: &[
            ("n", Int),
            ("part", Int),
            ("id", Text),
            ("key", Text),
            ("content", Text),
            ("metadata", Text),
            ("at", Int),
            ("mark", Text),
            ("whose", Int),
            ("instead", Text),
            ("since", Int),
        ],
        order: "n",
    },
];

impl Table {
    /// The names of its columns, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}

/// A state's numbers, by which both sides of a move are compared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateTotals {
    /// Rows of each table, by name.
    pub rows: std::collections::BTreeMap<&'static str, u64>,
    /// Chains, and SHA-256 over all of their heads in the order of their sessions, hexadecimal.
    pub chains: u64,
    /// See `chains`.
    pub heads: String,
}

/// Adds up what has crossed.
#[derive(Debug, Default)]
pub struct StateTally {
    sum: StateTotals,
    heads: std::collections::BTreeMap<Vec<u8>, (i64, Vec<u8>)>,
}

impl StateTally {
    /// Counts rows of a table.
    pub fn add(&mut self, table: &Table, rows: &[MovedRow]) {
        let count = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        *self.sum.rows.entry(table.name).or_default() += count;
        if table.name != SESSIONS {
            return;
        }
        for row in rows {
            if let [
                MovedCell::Bytes(session),
                _,
                MovedCell::Int(events),
                MovedCell::Bytes(head),
                ..,
            ] = row.as_slice()
            {
                self.heads.insert(session.clone(), (*events, head.clone()));
            }
        }
    }

    /// The numbers.
    #[must_use]
    pub fn sum(mut self) -> StateTotals {
        use sha2::{Digest as _, Sha256};
        let mut hash = Sha256::new();
        for (session, (events, head)) in &self.heads {
            hash.update(session);
            hash.update(events.to_be_bytes());
            hash.update(head);
        }
        self.sum.chains = u64::try_from(self.heads.len()).unwrap_or(u64::MAX);
        self.sum.heads = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        self.sum
    }
}
