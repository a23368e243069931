//! Reconstructs from the record the Atlases in force at each judgement: those of a run's configuration, with those loaded and
//! removed over the API since (ADR 24).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::state::kept::StateReader;
use anyhow::{Context, Result, anyhow, bail};
use clawk_carp::{Atlas, AtlasSet, Options};
use clawk_events::payload::{AtlasLoaded, AtlasRemoved};
use clawk_kernel::carp::CarpFacts;
use clawk_kernel::kind;
use clawk_kernel::ports::{JournalScan, RecordedEvent};
use clawk_kernel::replay::{AgentFacts, atlas_of};
use clawk_kernel::time::Timestamp;

use super::tapes::recorded_atlases;

/// A position in a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordPosition {
    /// The row in the journal; `None`: the event was read from a file.
    pub(super) row: Option<u64>,
    pub(super) at: Timestamp,
}

impl RecordPosition {
    fn is_behind(&self, event: &RecordedEvent) -> bool {
        self.row.map_or(self.at > event.at, |row| row > event.row)
    }
}

/// One start of the agent.
struct RecordedStart {
    described: RecordedEvent,
    /// The recorded Atlases; `None`: the run had none, or an earlier version did not record them.
    carp: Option<CarpFacts>,
}

/// Key of a set: the run, and the number of changes before it.
type AtlasSetKey = (usize, usize);

/// The sets of Atlases that made judgements. Each is built at its first use.
pub(super) struct RecordedAtlasSets<'a> {
    reader: &'a StateReader,
    runs: Vec<RecordedStart>,
    changes: Vec<RecordedEvent>,
    made: BTreeMap<AtlasSetKey, AtlasSet>,
}

impl<'a> RecordedAtlasSets<'a> {
    /// Reads the record without building a set.
    pub(super) fn from_reader(reader: &'a StateReader) -> Result<Self> {
        let scan = |kinds, with_content| JournalScan {
            kinds,
            with_content,
            limit: usize::MAX,
            ..JournalScan::default()
        };
        let mut runs = Vec::new();
        for described in reader.recorded_events(&scan(&[kind::AGENT_DESCRIBED], true))? {
            let content = described.content.as_ref();
            // silent-ok: an earlier version recorded no Atlases
            let facts = content.and_then(|content| serde_json::from_slice::<AgentFacts>(&content.bytes).ok());
            runs.push(RecordedStart {
                carp: facts.and_then(|facts| facts.carp),
                described,
            });
        }
        Ok(Self {
            changes: reader.recorded_events(&scan(&[kind::ATLAS_LOADED, kind::ATLAS_REMOVED], true))?,
            made: BTreeMap::new(),
            reader,
            runs,
        })
    }

    /// Builds the set for a judgement at `place` that was made after `changes`.
    ///
    /// # Errors
    /// The record does not hold the Atlases.
    pub(super) fn make_set(&mut self, place: RecordPosition, changes: Option<u64>) -> Result<AtlasSetKey> {
        let run = self.runs.partition_point(|run| place.is_behind(&run.described));
        let run = run
            .checked_sub(1)
            .context("the state directory has no run of an agent before it")?;
        let carp = self.runs.get(run).and_then(|run| run.carp.as_ref());
        let carp = carp.context("it was recorded by an earlier version, or the recorded agent is erased")?;
        let before = || self.changes.partition_point(|change| place.is_behind(change));
        let changes = match (carp.served, carp.counted) {
            (false, _) => 0,
            (true, true) => usize::try_from(changes.unwrap_or(0))?,
            (true, false) => before(),
        };
        let name = (run, changes);
        if !self.made.contains_key(&name) {
            let set = self.compile_set(carp, changes)?;
            self.made.insert(name, set);
        }
        Ok(name)
    }

    /// Returns a set that was built.
    pub(super) fn get(&self, name: AtlasSetKey) -> Option<&AtlasSet> {
        self.made.get(&name)
    }

    /// Combines the configuration's Atlases with those loaded over the API and not removed, in the order of a start.
    fn compile_set(&self, carp: &CarpFacts, changes: usize) -> Result<AtlasSet> {
        let configured = recorded_atlases(self.reader, &carp.atlases)?;
        let changed = self.changes.get(..changes);
        let changed = changed.context("it names a change of Atlases that is not in the state directory")?;
        let mut uploaded: Vec<(String, &RecordedEvent)> = Vec::new();
        for change in changed {
            if change.kind == kind::ATLAS_REMOVED {
                let id = change.read_as::<AtlasRemoved>()?.atlas_id;
                uploaded.retain(|(known, _)| *known != id);
                continue;
            }
            let id = change.read_as::<AtlasLoaded>()?.atlas_id;
            let known = configured.iter().any(|atlas| *atlas.id == *id)
                || uploaded.iter().any(|(known, _)| *known == id);
            if !known {
                uploaded.push((id, change));
            }
        }
        let uploaded = uploaded.iter().map(|(id, change)| self.load_atlas(id, change));
        let all: Vec<Arc<Atlas>> = configured
            .iter()
            .cloned()
            .map(Ok)
            .chain(uploaded)
            .collect::<Result<_>>()?;
        let options = Options {
            strict: carp.strict,
            ttl_seconds: carp.ttl_seconds,
        };
        AtlasSet::compile(all, options).context("the recorded Atlases cannot be loaded together")
    }

    fn load_atlas(&self, id: &str, change: &RecordedEvent) -> Result<Arc<Atlas>> {
        let erased = || {
            anyhow!(
                "the Atlas `{}` that came over the API is erased or not in this state directory; give all of them with `--atlas PATH`",
                crate::out::one_line(id)
            )
        };
        let content = change.content.as_ref().ok_or_else(erased)?;
        let named = change.read_as::<AtlasLoaded>()?.upload_hash;
        if named != clawk_trace::chain::digest_of(&content.bytes) {
            bail!(
                "the content of the Atlas `{}` is not what was recorded",
                crate::out::one_line(id)
            );
        }
        let atlas = atlas_of(&content.bytes);
        Ok(Arc::new(
            atlas.with_context(|| format!("the recorded Atlas `{id}`"))?,
        ))
    }
}
