//! Moves a state's tables from one server into an empty schema (`clawk state move`).
//!
//! The target is written in one transaction, so an interrupted move leaves nothing behind. Deadlines apply to each statement,
//! because the size of a state is not bounded.

use std::collections::BTreeMap;

use clawk_kernel::moved::{
    CONTENTS, Kind, MEMORY, MovedCell, MovedRow, PAGE, RowSealer, SESSIONS, StateTally, StateTotals, TABLES,
    Table, VECTORS,
};
use clawk_recall::keys::{Keys, SealKeyReferences, StateSealer, join_names};
use clawk_recall::seal::{is_sealed, is_sealed_text};
use clawk_recall::{packed, words};
use tokio_postgres::types::ToSql;

use super::{PgReader, PgStateError};
use crate::connect::PgConnection;
use crate::error::PgFailure;
use crate::memory::{fold_words, place_of as place};
use crate::pool::{Mode, PgDatabase, PgTransaction};

/// Columns with generated numbers that are copied, because other columns refer to them.
const NUMBERED: [(&str, &str); 2] = [("memory_parts", "id"), (MEMORY, "n")];

/// A whole state, read as one snapshot.
#[derive(Debug)]
pub struct PgStateExport {
    tx: PgTransaction,
    table: &'static str,
    tally: StateTally,
    /// Opens encrypted values.
    carrier: RowSealer,
    keys: Option<Keys>,
    /// The remaining bytes that may be read; `None`: no limit.
    left: Option<u64>,
}

impl PgStateExport {
    /// Begins to read, with the reader's key. For a move, the caller makes sure that no host serves the state meanwhile.
    ///
    /// # Errors
    /// The server is unreachable, the schema holds no state, or the key of its encrypted stores is missing or wrong.
    pub async fn from_reader(reader: &PgReader) -> Result<Self, PgStateError> {
        let seals = reader.state_sealer();
        let keys = keys_of(seals, reader.key_references().await?)?;
        Ok(Self {
            tx: reader.database.begin_transaction(Mode::Read).await?,
            table: "",
            tally: StateTally::default(),
            carrier: RowSealer::new(seals.clone(), place, MovedCell::Text(String::new())),
            keys,
            left: None,
        })
    }

    /// Limits the export: reading fails after more than `bytes`.
    #[must_use]
    pub fn at_most(self, bytes: u64) -> Self {
        Self {
            left: Some(bytes),
            ..self
        }
    }

    /// The key of the encrypted stores, for the target; `None`: nothing is encrypted.
    #[must_use]
    pub fn keys(&self) -> Option<Keys> {
        self.keys.clone()
    }

    /// The next rows of a table; empty at its end.
    ///
    /// # Errors
    /// The server is unreachable.
    pub async fn next_page(&mut self, table: &'static Table) -> Result<Vec<MovedRow>, PgStateError> {
        let mut rows = self.next(table).await?;
        if let Some(left) = self.left {
            let rest = left.checked_sub(rows_size(&rows));
            let too_large = || PgStateError::Broken("the state is too large to be copied".to_owned());
            self.left = Some(rest.ok_or_else(too_large)?);
        }
        self.carrier
            .unseal_rows(table, &mut rows)
            .map_err(PgStateError::Broken)?;
        self.tally.add_rows(table, &rows);
        Ok(rows)
    }

    async fn next(&mut self, table: &'static Table) -> Result<Vec<MovedRow>, PgFailure> {
        if self.table != table.name {
            let (mut names, name, order) = (table.column_names(), table.name, table.order);
            if name == VECTORS {
                names.push_str(", sealed");
            }
            self.tx
                .run_statements(&format!(
                    "DECLARE \"moving_{name}\" NO SCROLL CURSOR FOR SELECT {names} FROM {name} ORDER BY {order}"
                ))
                .await?;
            self.table = name;
        }
        let most = if table.name == CONTENTS { PAGE / 40 } else { PAGE };
        let fetched = self
            .tx
            .query_rows(&format!("FETCH {most} FROM \"moving_{}\"", table.name), &[])
            .await?;
        if fetched.is_empty() {
            self.tx
                .run_statements(&format!("CLOSE \"moving_{}\"", table.name))
                .await?;
            self.table = "";
        }
        fetched.iter().map(|row| row_cells(table, row)).collect()
    }

    /// The totals of the rows that were read.
    pub fn crossed_totals(&mut self) -> StateTotals {
        std::mem::take(&mut self.tally).into_totals()
    }
}

/// The keys that a target needs.
fn keys_of(seals: &StateSealer, references: Option<SealKeyReferences>) -> Result<Option<Keys>, PgStateError> {
    let refused = |why: &str| PgStateError::Sealed {
        stores: join_names(seals.stores().iter().cloned()),
        why: why.to_owned(),
    };
    match (references, seals.vault()) {
        (
            Some(SealKeyReferences {
                previous: Some(_), ..
            }),
            _,
        ) => Err(refused(
            "a change of the key is not finished: run `clawk memory rekey` again",
        )),
        (Some(references), Some(vault)) => Ok(Some(Keys {
            vault: vault.clone(),
            reference: references.current,
            stores: seals.stores().clone(),
        })),
        (Some(_), None) => Err(refused(
            seals.missing_key_reason().unwrap_or("its key is not given"),
        )),
        (None, _) => Ok(None),
    }
}

fn rows_size(rows: &[MovedRow]) -> u64 {
    let cell = |cell: &MovedCell| match cell {
        MovedCell::Null | MovedCell::Int(_) => 8,
        MovedCell::Text(text) => text.len(),
        MovedCell::Bytes(bytes) => bytes.len(),
    };
    let all: usize = rows.iter().flatten().map(cell).sum();
    u64::try_from(all).unwrap_or(u64::MAX)
}

fn row_cells(table: &Table, row: &tokio_postgres::Row) -> Result<MovedRow, PgFailure> {
    let mut cells = MovedRow::with_capacity(table.columns.len());
    for (at, (_, kind)) in table.columns.iter().enumerate() {
        let cell = match kind {
            Kind::Int => row.try_get::<_, Option<i64>>(at)?.map(MovedCell::Int),
            Kind::Flag => row
                .try_get::<_, Option<bool>>(at)?
                .map(|flag| MovedCell::Int(flag.into())),
            Kind::Text => row.try_get::<_, Option<String>>(at)?.map(MovedCell::Text),
            Kind::Said => super::row::maybe_text(row, at)?.map(MovedCell::Text),
            Kind::Bytes if table.name == VECTORS => {
                let vector = row.try_get::<_, Option<Vec<f32>>>(at)?;
                let packed = vector.map(|vector| packed::pack_vector(&vector));
                packed.or(row.try_get(table.columns.len())?).map(MovedCell::Bytes)
            }
            Kind::Bytes => row.try_get::<_, Option<Vec<u8>>>(at)?.map(MovedCell::Bytes),
        };
        cells.push(cell.unwrap_or(MovedCell::Null));
    }
    Ok(cells)
}

/// A state that is being written.
#[derive(Debug)]
pub struct PgStateImport {
    tx: PgTransaction,
    /// Seals the values that were sealed in the source.
    carrier: RowSealer,
}

/// One column of several rows, in the server's type.
enum Column {
    Ints(Vec<Option<i64>>),
    Flags(Vec<Option<bool>>),
    Texts(Vec<Option<String>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

impl Column {
    fn from_rows(kind: Kind, at: usize, rows: &[MovedRow]) -> Self {
        let cells = || rows.iter().map(|row| row.get(at).unwrap_or(&MovedCell::Null));
        let int = |cell: &MovedCell| match cell {
            MovedCell::Int(number) => Some(*number),
            MovedCell::Null | MovedCell::Text(_) | MovedCell::Bytes(_) => None,
        };
        let text = |cell: &MovedCell| match cell {
            MovedCell::Text(text) => Some(text.clone()),
            MovedCell::Null | MovedCell::Int(_) | MovedCell::Bytes(_) => None,
        };
        let bytes = |cell: &MovedCell| match cell {
            MovedCell::Bytes(bytes) => Some(bytes.clone()),
            MovedCell::Text(text) => Some(text.clone().into_bytes()),
            MovedCell::Null | MovedCell::Int(_) => None,
        };
        match kind {
            Kind::Int => Self::Ints(cells().map(int).collect()),
            Kind::Flag => Self::Flags(cells().map(|cell| int(cell).map(|flag| flag != 0)).collect()),
            Kind::Text => Self::Texts(cells().map(text).collect()),
            Kind::Said | Kind::Bytes => Self::Bytes(cells().map(bytes).collect()),
        }
    }

    const fn kind(&self) -> &'static str {
        match self {
            Self::Ints(_) => "bigint[]",
            Self::Flags(_) => "boolean[]",
            Self::Texts(_) => "text[]",
            Self::Bytes(_) => "bytea[]",
        }
    }

    fn sql_param(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Ints(all) => all,
            Self::Flags(all) => all,
            Self::Texts(all) => all,
            Self::Bytes(all) => all,
        }
    }
}

impl PgStateImport {
    /// Begins to write a state of this agent. Creates the schema if it is missing; it must hold no state. `keys`: those of the
    /// encrypted stores.
    ///
    /// # Errors
    /// The schema holds a state, a host serves it, or the server is unreachable.
    pub async fn begin(database: &PgDatabase, agent: &str, keys: Option<Keys>) -> Result<Self, PgStateError> {
        let reference = keys.as_ref().map(|keys| keys.reference.clone());
        let carrier = RowSealer::of_target(keys, place, MovedCell::Text(String::new()));
        let tx = database.begin_transaction(Mode::Write).await?;
        // An agent that starts here waits for this row.
        let sql = "SELECT last_row, agent IS NOT NULL OR moved IS NOT NULL OR EXISTS (SELECT 1 FROM memory_parts) \
            OR EXISTS (SELECT 1 FROM leases) FROM journal WHERE id = 1 FOR UPDATE";
        let row = tx.query_first(sql, &[]).await?;
        let row = row.ok_or_else(|| PgStateError::Broken("the table `journal` has no row".to_owned()))?;
        let (rows, used): (i64, bool) = (
            row.try_get(0).map_err(PgFailure::from)?,
            row.try_get(1).map_err(PgFailure::from)?,
        );
        if rows > 0 || used {
            return Err(PgStateError::Broken(
                "the target's schema holds a state already; name another one with `?schema=NAME`".to_owned(),
            ));
        }
        tx.run("UPDATE journal SET agent = $1 WHERE id = 1", &[&agent])
            .await?;
        // A new schema may already have marks.
        tx.run_statements("DELETE FROM marks")
            .await
            .map_err(PgFailure::from)?;
        for (store, proof) in carrier.key_proofs().map_err(PgStateError::Broken)? {
            let sql = "INSERT INTO seals (store, reference, proof) VALUES ($1, $2, $3)";
            tx.run(sql, &[&store, &reference, &proof]).await?;
        }
        Ok(Self { tx, carrier })
    }

    /// Writes rows of a table.
    ///
    /// # Errors
    /// The server is unreachable, or a row does not fit.
    pub async fn add_rows(
        &mut self,
        table: &'static Table,
        mut rows: Vec<MovedRow>,
    ) -> Result<(), PgStateError> {
        if !rows.is_empty() {
            self.carrier
                .seal_rows(table, &mut rows)
                .map_err(PgStateError::Broken)?;
            match table.name {
                VECTORS => import_vectors(&self.tx, &rows).await?,
                _ => insert(&self.tx, table, &rows).await?,
            }
        }
        Ok(())
    }

    /// Reads back the stored totals.
    ///
    /// # Errors
    /// The server is unreachable.
    pub async fn stored_totals(&self) -> Result<StateTotals, PgStateError> {
        Ok(stored_totals(&self.tx).await?)
    }

    /// Commits: the schema now holds a state. `keys`: the public signing keys of the source's hosts.
    ///
    /// # Errors
    /// The server is unreachable or refuses.
    pub async fn commit(self, keys: &[String]) -> Result<(), PgStateError> {
        let done = self.finish_import(keys).await;
        Ok(self.tx.commit_or_rollback(done).await?)
    }

    async fn finish_import(&self, keys: &[String]) -> Result<(), PgFailure> {
        let tx = &self.tx;
        tx.run_statements(
            "UPDATE journal SET last_row = coalesce((SELECT max(row) FROM events), 0) WHERE id = 1",
        )
        .await?;
        tx.run_statements(
            "UPDATE memory_parts p SET bytes = (SELECT coalesce(sum(octet_length(content) + coalesce(octet_length(metadata), 0)), 0) \
             FROM memory m WHERE m.part = p.id)",
        )
        .await?;
        for (table, column) in NUMBERED {
            // Entries that were set aside use numbers of `memory` too.
            let also = if table == MEMORY {
                ", (SELECT max(n) FROM memory_aside)"
            } else {
                ""
            };
            tx.run_statements(&format!(
                "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), \
                 coalesce(greatest((SELECT max({column}) FROM {table}){also}), 0) + 1, false)"
            ))
            .await?;
        }
        let carried = self.carrier.encrypted_stores();
        for (store, proof) in self.carrier.key_proofs().map_err(PgFailure::Schema)? {
            if carried.contains(store.as_str()) {
                let sql = "INSERT INTO memory_seals (agent, store, proof) SELECT agent, $1, $2 FROM journal WHERE id = 1";
                tx.run(sql, &[&store, &proof]).await?;
            }
        }
        for (n, key) in keys.iter().enumerate() {
            let sql = "INSERT INTO hosts (host, pid, seen, key) VALUES ($1, 0, clock_timestamp(), $2) ON CONFLICT DO NOTHING";
            tx.run(sql, &[&format!("before-the-move-{}", n + 1), key]).await?;
        }
        Ok(())
    }
}

/// Counts the rows of every table and reads the chains' heads.
async fn stored_totals(session: &PgConnection) -> Result<StateTotals, PgFailure> {
    let mut tally = StateTally::default();
    let mut rows = BTreeMap::new();
    for table in &TABLES {
        let number: i64 = session
            .query_value(&format!("SELECT count(*) FROM {}", table.name), &[])
            .await?;
        rows.insert(table.name, u64::try_from(number).unwrap_or(0));
        if table.name != SESSIONS {
            continue;
        }
        let sql = format!(
            "SELECT {} FROM {SESSIONS} WHERE session > $1 ORDER BY session LIMIT $2",
            table.column_names()
        );
        let (mut last, most) = (Vec::new(), super::row::row_limit(PAGE));
        loop {
            let found = session.query_rows(&sql, &[&last, &most]).await?;
            let page = found
                .iter()
                .map(|row| row_cells(table, row))
                .collect::<Result<Vec<_>, _>>()?;
            match page.last().and_then(|row| row.first()) {
                Some(MovedCell::Bytes(session)) => last.clone_from(session),
                Some(_) | None => break,
            }
            tally.add_rows(table, &page);
        }
    }
    Ok(StateTotals {
        rows,
        ..tally.into_totals()
    })
}

async fn insert(session: &PgConnection, table: &Table, rows: &[MovedRow]) -> Result<(), PgFailure> {
    let mut columns: Vec<Column> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, (_, kind))| Column::from_rows(*kind, at, rows))
        .collect();
    let names = table.column_names();
    let agent = "(SELECT agent FROM journal WHERE id = 1)";
    let (into, mut what) = match table.name {
        // The server makes lexemes from the words that are folded here.
        MEMORY => {
            columns.push(Column::Texts(
                rows.iter().map(|row| Some(words_of(row))).collect(),
            ));
            let all: Vec<String> = (1..columns.len()).map(|n| format!("c{n}")).collect();
            (
                format!("{names}, words"),
                format!(
                    "{}, to_tsvector('clawk_words', c{})",
                    all.join(", "),
                    columns.len()
                ),
            )
        }
        "memory_parts" => (format!("{names}, agent"), format!("c1, c2, c3, c4, {agent}")),
        _ => (names, "*".to_owned()),
    };
    let places: Vec<String> = columns
        .iter()
        .enumerate()
        .map(|(n, column)| format!("${}::{}", n + 1, column.kind()))
        .collect();
    let aliases: Vec<String> = (1..=columns.len()).map(|n| format!("c{n}")).collect();
    if what == "*" {
        what = aliases.join(", ");
    }
    let sql = format!(
        "INSERT INTO {} ({into}) OVERRIDING SYSTEM VALUE SELECT {what} FROM unnest({}) AS given ({})",
        table.name,
        places.join(", "),
        aliases.join(", ")
    );
    let params: Vec<&(dyn ToSql + Sync)> = columns.iter().map(Column::sql_param).collect();
    session.run(&sql, &params).await?;
    Ok(())
}

/// An entry's words, as they are indexed.
fn words_of(row: &MovedRow) -> String {
    let text = |at: usize| match row.get(at) {
        Some(MovedCell::Text(text)) => Some(text.as_str()),
        Some(MovedCell::Null | MovedCell::Int(_) | MovedCell::Bytes(_)) | None => None,
    };
    let content = text(4).unwrap_or_default();
    if is_sealed_text(content) {
        return String::new(); // the words of encrypted entries are in memory alone
    }
    let content = serde_json::from_str(content).unwrap_or_else(|_| content.into()); // silent-ok: of an earlier version
    fold_words(&words::text_of(&content, text(3)))
}

async fn import_vectors(session: &PgConnection, rows: &[MovedRow]) -> Result<(), PgFailure> {
    let sql = "INSERT INTO memory_vectors (n, part, whose, model, vector, sealed) VALUES ($1, $2, $3, $4, $5, $6) \
        ON CONFLICT DO NOTHING";
    for row in rows {
        if let [
            MovedCell::Int(n),
            MovedCell::Int(part),
            MovedCell::Int(whose),
            MovedCell::Text(model),
            MovedCell::Bytes(bytes),
        ] = row.as_slice()
        {
            let vector = packed::unpack_floats(bytes).filter(|_| !is_sealed(bytes));
            let sealed = is_sealed(bytes).then_some(bytes);
            if vector.is_some() || sealed.is_some() {
                let values: [&(dyn ToSql + Sync); 6] = [n, part, whose, model, &vector, &sealed];
                session.run(sql, &values).await?;
            }
        }
    }
    Ok(())
}

/// Records the state's new location: it can no longer be served here. The caller holds the lease.
///
/// # Errors
/// The server is unreachable.
pub async fn mark_moved(database: &PgDatabase, target: &str) -> Result<(), PgStateError> {
    database
        .write(async |session| {
            let bytes = target.as_bytes();
            session
                .run("UPDATE journal SET moved = $1 WHERE id = 1", &[&bytes])
                .await
        })
        .await?;
    Ok(())
}
