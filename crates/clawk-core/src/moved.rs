//! The tables of a state in the form in which they are moved between stores (`clawk state move`, R48). Each store reads and writes
//! its own tables in this form. Only the store knows the meaning of a row.

mod sealed;

pub use sealed::RowSealer;

/// The type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An integer.
    Int,
    /// 0 or 1.
    Flag,
    /// Text written by clawk, or JSON. It holds no NUL.
    Text,
    /// Text from outside.
    Said,
    /// Bytes.
    Bytes,
}

/// The value of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MovedCell {
    /// No value.
    Null,
    /// A number or a flag.
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
    /// Name of the table in every store.
    pub name: &'static str,
    /// Its columns: name and type.
    pub columns: &'static [(&'static str, Kind)],
    /// The order in which its rows are moved. It names only columns of the table.
    pub order: &'static str,
}

/// Largest number of rows moved at once. Contents and events are large.
pub const PAGE: usize = 2_000;

use Kind::{Bytes, Flag, Int, Said, Text};

/// Sessions, with the heads of their chains.
pub const SESSIONS: &str = "sessions";
/// The contents that events refer to. A store may keep them outside a table.
pub const CONTENTS: &str = "contents";
/// The events.
pub const EVENTS: &str = "events";
/// The memory entries.
pub const MEMORY: &str = "memory";
/// Their vectors, in the format of `clawk_recall::packed`.
pub const VECTORS: &str = "memory_vectors";

/// All tables in the order of moving: referenced tables first. Hosts, leases and caches are not moved.
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
    /// Returns the column names, separated by commas.
    #[must_use]
    pub fn column_names(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}

/// Totals of a state, by which both sides of a move are compared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateTotals {
    /// Number of rows of each table, by name.
    pub rows: std::collections::BTreeMap<&'static str, u64>,
    /// Number of chains.
    pub chains: u64,
    /// SHA-256 over the heads of all chains in the order of their sessions, hexadecimal.
    pub heads: String,
}

/// Adds up the moved rows.
#[derive(Debug, Default)]
pub struct StateTally {
    sum: StateTotals,
    heads: std::collections::BTreeMap<Vec<u8>, (i64, Vec<u8>)>,
}

impl StateTally {
    /// Counts rows of a table.
    pub fn add_rows(&mut self, table: &Table, rows: &[MovedRow]) {
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

    /// Returns the totals.
    #[must_use]
    pub fn into_totals(mut self) -> StateTotals {
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
