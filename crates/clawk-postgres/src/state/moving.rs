//! A state's tables, out of a server and into a schema that holds none (`clawk state move`).
//!
//! A target is one transaction: a move that is cut off leaves nothing. Deadlines are per statement, because a whole state takes as long as
//! it takes.

use std::collections::BTreeMap;

use clawk_kernel::moved::{
    CONTENTS, Cell, Kind, MEMORY, PAGE, Row, SESSIONS, Sum, TABLES, Table, Tally, VECTORS,
};
use clawk_recall::{packed, words};
use tokio_postgres::types::ToSql;

use super::PgStateError;
use crate::connect::Session;
use crate::error::Failure;
use crate::memory::folded;
use crate::pool::{Database, Mode, Transaction};

/// Columns that the server numbers by itself, and that cross because others refer to them.
const NUMBERED: [(&str, &str); 2] = [("memory_parts", "id"), (MEMORY, "n")];

/// A state that is read from its beginning to its end, as of one moment.
#[derive(Debug)]
pub struct Export {
    tx: Transaction,
    table: &'static str,
    tally: Tally,
}

impl Export {
    /// Begins to read. The caller makes sure that no host serves the state meanwhile.
    ///
    /// # Errors
    /// The server is away, the schema holds no state, or one with encrypted stores.
    pub async fn begin(database: &Database) -> Result<Self, PgStateError> {
        let tx = database.begin(Mode::Read).await?;
        let sealed: bool = tx
            .value("SELECT EXISTS (SELECT 1 FROM memory_seals)", &[])
            .await?;
        if sealed {
            return Err(PgStateError::Broken(
                "the state holds encrypted stores, whose move is not supported".to_owned(),
            ));
        }
        Ok(Self {
            tx,
            table: "",
            tally: Tally::default(),
        })
    }

    /// The next rows of a table; none at its end.
    ///
    /// # Errors
    /// The server is away.
    pub async fn page(&mut self, table: &'static Table) -> Result<Vec<Row>, PgStateError> {
        let rows = self.next(table).await?;
        self.tally.add(table, &rows);
        Ok(rows)
    }

    async fn next(&mut self, table: &'static Table) -> Result<Vec<Row>, Failure> {
        if self.table != table.name {
            let (names, name, order) = (table.names(), table.name, table.order);
            self.tx
                .batch(&format!(
                    "DECLARE \"moving_{name}\" NO SCROLL CURSOR FOR SELECT {names} FROM {name} ORDER BY {order}"
                ))
                .await?;
            self.table = name;
        }
        let most = if table.name == CONTENTS { PAGE / 40 } else { PAGE };
        let fetched = self
            .tx
            .rows(&format!("FETCH {most} FROM \"moving_{}\"", table.name), &[])
            .await?;
        if fetched.is_empty() {
            self.tx.batch(&format!("CLOSE \"moving_{}\"", table.name)).await?;
            self.table = "";
        }
        fetched.iter().map(|row| cells(table, row)).collect()
    }

    /// What has crossed.
    pub fn sum(&mut self) -> Sum {
        std::mem::take(&mut self.tally).sum()
    }
}

fn cells(table: &Table, row: &tokio_postgres::Row) -> Result<Row, Failure> {
    let mut cells = Row::with_capacity(table.columns.len());
    for (at, (_, kind)) in table.columns.iter().enumerate() {
        let cell = match kind {
            Kind::Int => row.try_get::<_, Option<i64>>(at)?.map(Cell::Int),
            Kind::Flag => row
                .try_get::<_, Option<bool>>(at)?
                .map(|flag| Cell::Int(flag.into())),
            Kind::Text => row.try_get::<_, Option<String>>(at)?.map(Cell::Text),
            Kind::Said => super::row::maybe_text(row, at)?.map(Cell::Text),
            Kind::Bytes if table.name == VECTORS => row
                .try_get::<_, Option<Vec<f32>>>(at)?
                .map(|vector| Cell::Bytes(packed::pack(&vector))),
            Kind::Bytes => row.try_get::<_, Option<Vec<u8>>>(at)?.map(Cell::Bytes),
        };
        cells.push(cell.unwrap_or(Cell::Null));
    }
    Ok(cells)
}

/// A state in the making.
#[derive(Debug)]
pub struct Import {
    tx: Transaction,
}

/// One column of several rows, as the server takes it.
enum Column {
    Ints(Vec<Option<i64>>),
    Flags(Vec<Option<bool>>),
    Texts(Vec<Option<String>>),
    Bytes(Vec<Option<Vec<u8>>>),
}

impl Column {
    fn of(kind: Kind, at: usize, rows: &[Row]) -> Self {
        let cells = || rows.iter().map(|row| row.get(at).unwrap_or(&Cell::Null));
        let int = |cell: &Cell| match cell {
            Cell::Int(number) => Some(*number),
            Cell::Null | Cell::Text(_) | Cell::Bytes(_) => None,
        };
        let text = |cell: &Cell| match cell {
            Cell::Text(text) => Some(text.clone()),
            Cell::Null | Cell::Int(_) | Cell::Bytes(_) => None,
        };
        let bytes = |cell: &Cell| match cell {
            Cell::Bytes(bytes) => Some(bytes.clone()),
            Cell::Text(text) => Some(text.clone().into_bytes()),
            Cell::Null | Cell::Int(_) => None,
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

    fn param(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Ints(all) => all,
            Self::Flags(all) => all,
            Self::Texts(all) => all,
            Self::Bytes(all) => all,
        }
    }
}

impl Import {
    /// Begins a state of this agent. The schema is made when it is missing, and must hold no state.
    ///
    /// # Errors
    /// It holds one, a host serves it, or the server is away.
    pub async fn begin(database: &Database, agent: &str) -> Result<Self, PgStateError> {
        let tx = database.begin(Mode::Write).await?;
        // Whoever starts an agent here waits for this row.
        let sql = "SELECT last_row, agent IS NOT NULL OR moved IS NOT NULL OR EXISTS (SELECT 1 FROM memory_parts) \
            OR EXISTS (SELECT 1 FROM leases) FROM journal WHERE id = 1 FOR UPDATE";
        let row = tx.first(sql, &[]).await?;
        let row = row.ok_or_else(|| PgStateError::Broken("the table `journal` has no row".to_owned()))?;
        let (rows, used): (i64, bool) = (
            row.try_get(0).map_err(Failure::from)?,
            row.try_get(1).map_err(Failure::from)?,
        );
        if rows > 0 || used {
            return Err(PgStateError::Broken(
                "the target's schema holds a state already; name another one with `?schema=NAME`".to_owned(),
            ));
        }
        tx.run("UPDATE journal SET agent = $1 WHERE id = 1", &[&agent])
            .await?;
        // A new schema may have marks of its own making.
        tx.batch("DELETE FROM marks").await.map_err(Failure::from)?;
        Ok(Self { tx })
    }

    /// Takes rows of a table.
    ///
    /// # Errors
    /// The server is away, or a row does not fit.
    pub async fn rows(&mut self, table: &'static Table, rows: &[Row]) -> Result<(), PgStateError> {
        if !rows.is_empty() {
            match table.name {
                VECTORS => vectors(&self.tx, rows).await?,
                _ => insert(&self.tx, table, rows).await?,
            }
        }
        Ok(())
    }

    /// What is stored now, read back.
    ///
    /// # Errors
    /// The server is away.
    pub async fn stored(&self) -> Result<Sum, PgStateError> {
        Ok(stored(&self.tx).await?)
    }

    /// From here on it is a state. `keys`: the public keys that the source's hosts signed with.
    ///
    /// # Errors
    /// The server is away, or refuses.
    pub async fn commit(self, keys: &[String]) -> Result<(), PgStateError> {
        let done = self.finish(keys).await;
        Ok(self.tx.end(done).await?)
    }

    async fn finish(&self, keys: &[String]) -> Result<(), Failure> {
        let tx = &self.tx;
        tx.batch("UPDATE journal SET last_row = coalesce((SELECT max(row) FROM events), 0) WHERE id = 1")
            .await?;
        tx.batch(
            "UPDATE memory_parts p SET bytes = (SELECT coalesce(sum(octet_length(content) + coalesce(octet_length(metadata), 0)), 0) \
             FROM memory m WHERE m.part = p.id)",
        )
        .await?;
        for (table, column) in NUMBERED {
            // Set-aside entries have numbers of `memory`, too.
            let also = if table == MEMORY {
                ", (SELECT max(n) FROM memory_aside)"
            } else {
                ""
            };
            tx.batch(&format!(
                "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), \
                 coalesce(greatest((SELECT max({column}) FROM {table}){also}), 0) + 1, false)"
            ))
            .await?;
        }
        for (n, key) in keys.iter().enumerate() {
            let sql = "INSERT INTO hosts (host, pid, seen, key) VALUES ($1, 0, clock_timestamp(), $2) ON CONFLICT DO NOTHING";
            tx.run(sql, &[&format!("before-the-move-{}", n + 1), key]).await?;
        }
        Ok(())
    }
}

/// The rows of every table, and the chains' heads.
async fn stored(session: &Session) -> Result<Sum, Failure> {
    let mut tally = Tally::default();
    let mut rows = BTreeMap::new();
    for table in &TABLES {
        let number: i64 = session
            .value(&format!("SELECT count(*) FROM {}", table.name), &[])
            .await?;
        rows.insert(table.name, u64::try_from(number).unwrap_or(0));
        if table.name != SESSIONS {
            continue;
        }
        let sql = format!(
            "SELECT {} FROM {SESSIONS} WHERE session > $1 ORDER BY session LIMIT $2",
            table.names()
        );
        let (mut last, most) = (Vec::new(), super::row::bound(PAGE));
        loop {
            let found = session.rows(&sql, &[&last, &most]).await?;
            let page = found
                .iter()
                .map(|row| cells(table, row))
                .collect::<Result<Vec<_>, _>>()?;
            match page.last().and_then(|row| row.first()) {
                Some(Cell::Bytes(session)) => last.clone_from(session),
                Some(_) | None => break,
            }
            tally.add(table, &page);
        }
    }
    Ok(Sum { rows, ..tally.sum() })
}

async fn insert(session: &Session, table: &Table, rows: &[Row]) -> Result<(), Failure> {
    let mut columns: Vec<Column> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, (_, kind))| Column::of(*kind, at, rows))
        .collect();
    let names = table.names();
    let agent = "(SELECT agent FROM journal WHERE id = 1)";
    let (into, mut what) = match table.name {
        // Words are made by the server of what is folded here.
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
    let params: Vec<&(dyn ToSql + Sync)> = columns.iter().map(Column::param).collect();
    session.run(&sql, &params).await?;
    Ok(())
}

/// An entry's words, as they are indexed.
fn words_of(row: &Row) -> String {
    let text = |at: usize| match row.get(at) {
        Some(Cell::Text(text)) => Some(text.as_str()),
        Some(Cell::Null | Cell::Int(_) | Cell::Bytes(_)) | None => None,
    };
    let content = text(4).unwrap_or_default();
    let content = serde_json::from_str(content).unwrap_or_else(|_| content.into()); // silent-ok: of an earlier version
    folded(&words::text_of(&content, text(3)))
}

async fn vectors(session: &Session, rows: &[Row]) -> Result<(), Failure> {
    let sql = "INSERT INTO memory_vectors (n, part, whose, model, vector) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    for row in rows {
        if let [
            Cell::Int(n),
            Cell::Int(part),
            Cell::Int(whose),
            Cell::Text(model),
            Cell::Bytes(bytes),
        ] = row.as_slice()
            && let Some(vector) = packed::floats(bytes)
        {
            session.run(sql, &[n, part, whose, model, &vector]).await?;
        }
    }
    Ok(())
}

/// Says where the state is now: no start serves it any more. The caller holds the lease.
///
/// # Errors
/// The server is away.
pub async fn moved(database: &Database, target: &str) -> Result<(), PgStateError> {
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
