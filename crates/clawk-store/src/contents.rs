//! Checks the contents that events refer to: present and correct, erased on the record, or lost.

use std::collections::{BTreeMap, HashSet};

use clawk_events::payload::ContentRedacted;
use clawk_proto::{Digest, SessionId};
use clawk_trace::chain::digest_of;
use rusqlite::params;
use serde::Serialize;

use crate::append::{digest_at, unsigned_at};
use crate::erase::REDACTED;
use crate::error::StateError;
use crate::reader::StateDirReader;

/// The number of lost contents that are listed.
const NAMED: usize = 64;

/// The state of all contents that a journal's events refer to. Each digest counts once.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ContentInventory {
    /// Contents that exist with the right digest.
    pub present: u64,
    /// Contents that a `ckp.content.redacted` event records as erased.
    pub erased: u64,
    /// Contents that are absent without such an event.
    pub missing: u64,
    /// Contents that exist with other bytes.
    pub corrupt: u64,
    /// The first 64 missing or corrupt contents.
    pub lost: Vec<LostContent>,
    /// Unreadable records of erasures. The contents that they cover count as missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableRecord>,
}

/// An event that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnreadableRecord {
    /// The event's session.
    pub session_id: SessionId,
    /// The event's sequence number.
    pub sequence: u64,
    /// The error: type, field and position.
    pub why: String,
}

/// A missing or corrupt content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LostContent {
    /// Its digest.
    pub digest: Digest,
    /// `missing` or `corrupt`.
    pub how: &'static str,
    /// The event's session.
    pub session_id: SessionId,
    /// The event's sequence number.
    pub sequence: u64,
}

impl ContentInventory {
    /// Whether no content is missing or corrupt.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.missing == 0 && self.corrupt == 0 && self.unreadable.is_empty()
    }

    fn add_lost(&mut self, digest: Digest, how: &'static str, (session_id, sequence): (SessionId, u64)) {
        if self.lost.len() < NAMED {
            self.lost.push(LostContent {
                digest,
                how,
                session_id,
                sequence,
            });
        }
    }
}

impl StateDirReader {
    /// Reads and hashes every content of one session, or of all.
    ///
    /// # Errors
    /// The database or a file can't be read.
    pub fn contents(&self, session: Option<SessionId>) -> Result<ContentInventory, StateError> {
        let (erased, unreadable) = self.redacted()?;
        let mut found = ContentInventory {
            unreadable,
            ..ContentInventory::default()
        };
        for (digest, place) in self.referred(session)? {
            match self.stored_content(digest)? {
                Some(bytes) if digest_of(&bytes) == digest => found.present += 1,
                Some(_) => {
                    found.corrupt += 1;
                    found.add_lost(digest, "corrupt", place);
                }
                None if erased.contains(&digest) => found.erased += 1,
                None => {
                    found.missing += 1;
                    found.add_lost(digest, "missing", place);
                }
            }
        }
        Ok(found)
    }

    /// Every digest that a `ckp.content.redacted` event names. Unreadable events excuse nothing and are returned.
    pub(crate) fn redacted(&self) -> Result<(HashSet<Digest>, Vec<UnreadableRecord>), StateError> {
        let events = self.with(|connection| {
            let mut select = connection.prepare(
                "SELECT s.session, e.sequence, e.payload FROM events e JOIN sessions s ON s.id = e.session WHERE e.kind = ?1",
            )?;
            let rows = select.query_map([REDACTED], |row| {
                let session = SessionId(crate::append::uuid_at(row, 0)?);
                Ok((session, unsigned_at(row, 1)?, row.get::<_, String>(2)?))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let (mut erased, mut unreadable) = (HashSet::new(), Vec::new());
        for (session_id, sequence, payload) in events {
            match ContentRedacted::read(REDACTED, &payload) {
                Ok(redacted) => erased.extend(redacted.contents),
                Err(error) => unreadable.push(UnreadableRecord {
                    session_id,
                    sequence,
                    why: error.to_string(),
                }),
            }
        }
        Ok((erased, unreadable))
    }

    /// Every digest with the first event that refers to it.
    fn referred(&self, session: Option<SessionId>) -> Result<BTreeMap<Digest, (SessionId, u64)>, StateError> {
        self.with(|connection| {
            let mut select = connection.prepare(
                "SELECT e.content_digest, s.session, e.sequence FROM events e JOIN sessions s ON s.id = e.session \
                 WHERE e.content_digest IS NOT NULL AND (?1 IS NULL OR s.session = ?1) ORDER BY e.row",
            )?;
            let mut rows = select.query(params![session.map(|session| session.0.into_bytes())])?;
            let mut digests = BTreeMap::new();
            while let Some(row) = rows.next()? {
                let place = (SessionId(crate::append::uuid_at(row, 1)?), unsigned_at(row, 2)?);
                digests.entry(digest_at(row, 0)?).or_insert(place);
            }
            Ok(digests)
        })
    }
}
