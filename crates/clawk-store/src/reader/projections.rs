//! Compares the stored tables with the events, and finds why a start would refuse the state.

use clawk_kernel::ports::{AnswerKey, JournalScan};
use clawk_kernel::projection::{ProjectionFold, StoredProjections};
use clawk_proto::MessageId;
use clawk_trace::checkpoint::PublicKey;
use rusqlite::types::Type;

use super::StateDirReader;
use crate::append::{unsigned_at, uuid_at};
use crate::check;
use crate::error::StateError;

/// The number of events read at once.
const PAGE: usize = 1000;

impl StateDirReader {
    /// Compares the stored tables with the events, and returns the differences. With `last`, reads only the newest `last`
    /// events.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn projections(&self, last: Option<u64>) -> Result<Vec<String>, StateError> {
        self.at_one_moment(|| {
            let kept = self.kept()?;
            let mut after_row = match last {
                Some(last) => self.last_row()?.saturating_sub(last),
                None => 0,
            };
            let mut fold = ProjectionFold::new(&kept, after_row == 0);
            loop {
                let page = self.recorded_events(&JournalScan {
                    after_row,
                    limit: PAGE,
                    ..JournalScan::default()
                })?;
                page.iter().for_each(|event| fold.apply_event(event));
                match page.last() {
                    Some(event) if page.len() == PAGE => after_row = event.row,
                    Some(_) | None => return Ok(fold.find_differences(&kept)),
                }
            }
        })
    }

    /// Why a start would refuse this directory, judged by the directory alone; `None`: it would not.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn refused_at_start(&self, key: Option<&PublicKey>) -> Result<Option<String>, StateError> {
        self.at_one_moment(|| {
            if let Some(found) = self.with(check::first_broken)? {
                return Ok(Some(found.to_string()));
            }
            if let Some(detail) = self.with(check::check_rows)? {
                return Ok(Some(detail));
            }
            match key {
                Some(key) => match self.check_heads(key) {
                    Err(StateError::Unvouched { detail, .. }) => Ok(Some(detail)),
                    other => other.map(|()| None),
                },
                None if self.heads_after(0, 1)?.is_empty() => Ok(None),
                None => Ok(Some(
                    "there are signed heads, and the key that signed them is gone".to_owned(),
                )),
            }
        })
    }

    /// Runs several reads on one snapshot of the database; an agent may write meanwhile.
    fn at_one_moment<T>(&self, read: impl FnOnce() -> Result<T, StateError>) -> Result<T, StateError> {
        let moment = self.sql(self.connection.unchecked_transaction())?;
        let found = read();
        self.sql(moment.finish())?;
        found
    }

    fn kept(&self) -> Result<StoredProjections, StateError> {
        let (inbox, answers) = self.with(|connection| {
            let mut select = connection.prepare("SELECT message, state FROM inbox ORDER BY n")?;
            let rows = select.query_map([], |row| Ok((MessageId(uuid_at(row, 0)?), row.get(1)?)))?;
            let inbox = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            let mut select = connection.prepare("SELECT key, row FROM answers ORDER BY bucket")?;
            let rows = select.query_map([], |row| Ok((key_at(row)?, unsigned_at(row, 1)?)))?;
            Ok((inbox, rows.collect::<rusqlite::Result<Vec<_>>>()?))
        })?;
        Ok(StoredProjections {
            inbox,
            answers,
            answers_since: 0,
            spent: self.spent_since(i64::MIN)?,
            effects: self.open_effects()?,
        })
    }
}

fn key_at(row: &rusqlite::Row<'_>) -> rusqlite::Result<AnswerKey> {
    let bytes = row.get_ref(0)?.as_blob()?;
    let wrong = || {
        let reason = format!("a key of {} bytes", bytes.len());
        rusqlite::Error::FromSqlConversionFailure(0, Type::Blob, reason.into())
    };
    let (method, id) = bytes.split_first().ok_or_else(wrong)?;
    Ok(AnswerKey {
        method: *method,
        request_id: id.try_into().map_err(|_| wrong())?, // silent-ok: the length is told
    })
}
