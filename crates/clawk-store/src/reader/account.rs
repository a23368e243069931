//! Reads spending, and effects with unknown outcome.

use clawk_kernel::ports::{OpenEffect, SpentAmount};
use clawk_kernel::purse::BudgetAmount;
use clawk_kernel::time::Timestamp;
use clawk_proto::{RequestId, SessionId};
use rusqlite::types::Type;

use super::StateDirReader;
use crate::append::{digest_at, unsigned_at, uuid_at};
use crate::error::StateError;

impl StateDirReader {
    /// The spending from this hour on (hours since the epoch), by hour and budget.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn spent_since(&self, hour: i64) -> Result<Vec<SpentAmount>, StateError> {
        let sql = "SELECT hour, purse, tokens, cost_microusd, busy_ms, calls, bytes_out FROM spent WHERE hour >= ?1 ORDER BY hour, purse";
        let read = || {
            let mut select = self.connection.prepare_cached(sql)?;
            let rows = select.query_map([hour], |row| {
                let purse: String = row.get(1)?;
                Ok(SpentAmount {
                    hour: row.get(0)?,
                    purse: purse.into(),
                    amount: BudgetAmount {
                        tokens: unsigned_at(row, 2)?,
                        cost_microusd: unsigned_at(row, 3)?,
                        busy_ms: unsigned_at(row, 4)?,
                        calls: unsigned_at(row, 5)?,
                        bytes_out: unsigned_at(row, 6)?,
                    },
                })
            })?;
            rows.collect()
        };
        self.sql(read())
    }

    /// Effects whose outcome is unknown, oldest first.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn open_effects(&self) -> Result<Vec<OpenEffect>, StateError> {
        let sql = "SELECT request, session, tool, parameters, at FROM effects_open ORDER BY n";
        let read = || {
            let mut select = self.connection.prepare_cached(sql)?;
            let rows = select.query_map([], |row| {
                let request: String = row.get(0)?;
                let request_id = RequestId::parse(&request)
                    .map_err(|e| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(e)))?;
                Ok(OpenEffect {
                    request_id,
                    session: SessionId(uuid_at(row, 1)?),
                    tool: row.get(2)?,
                    parameters: digest_at(row, 3)?,
                    at: Timestamp(row.get(4)?),
                })
            })?;
            rows.collect()
        };
        self.sql(read())
    }
}
