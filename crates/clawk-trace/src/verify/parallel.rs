//! Verifies on all cores. Workers check chunks of whole lines; one merger combines their results in order.
//!
//! A worker only ever reports "every event of this chunk is valid, and so are the links inside", with one [`LinkedRun`] per
//! session. If it can't, or if a run does not fit the events before it, the merger checks that chunk line by line with the ordinary
//! [`Verifier`]. So the report always equals that of a single thread, and a fault costs the time of one chunk.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufRead};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, available_parallelism};

use clawk_proto::{Digest, SessionId};
use memchr::memchr_iter;

use super::chunk::{Chunk, ChunkPiece, ChunkReader};
use super::profile::{ProfileSet, satisfied_profiles};
use super::{ChainTip, VerificationReport, Verifier};
use crate::chain::HashBuffer;
use crate::event::RawEvent;

/// The size of a worker's chunk, bytes: large enough for a cheap hand-over, small enough for the cache.
const CHUNK_BYTES: usize = 512 * 1024;

/// The number of chunks queued for one worker or for the merger.
const DEPTH: usize = 3;

/// The largest number of workers; more would only wait for the reader.
const MAX_WORKERS: usize = 16;

/// How the work is divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) chunk_bytes: usize,
    pub(super) workers: usize,
}

impl Plan {
    /// The division for this machine.
    pub(super) fn of_machine() -> Self {
        Self {
            chunk_bytes: CHUNK_BYTES,
            workers: available_parallelism().map_or(1, usize::from).min(MAX_WORKERS), // silent-ok: one works everywhere
        }
    }
}

pub(super) fn verify_parallel(reader: impl BufRead, plan: Plan) -> io::Result<VerificationReport> {
    let mut chunks = ChunkReader::new(reader, plan.chunk_bytes);
    let mut merger = ChunkMerger::default();
    std::thread::scope(|scope| {
        let mut workers: Vec<Worker> = Vec::new();
        // Chunk `n` goes to worker `n % workers` and returns from it, so the order needs no bookkeeping.
        let (mut sent, mut merged) = (0usize, 0usize);
        loop {
            let piece = chunks.next()?;
            let alone = match &piece {
                ChunkPiece::End | ChunkPiece::TooLong => true,
                ChunkPiece::Lines(chunk) => chunk.is_large() || (sent == 0 && chunks.is_at_end()),
            };
            let in_flight = if alone { 0 } else { plan.workers * DEPTH - 1 };
            while sent - merged > in_flight {
                let worker = workers.get(merged % plan.workers).ok_or_else(worker_lost_error)?;
                let looked = worker.looked.recv().map_err(|_| worker_lost_error())?; // silent-ok: says no more
                merged += 1;
                merger.merge_chunk(&looked);
                chunks.recycle(looked.chunk);
            }
            match piece {
                ChunkPiece::End => return io::Result::Ok(()),
                ChunkPiece::TooLong => merger.too_long(),
                ChunkPiece::Lines(chunk) if alone => merger.by_line(chunk.bytes()),
                ChunkPiece::Lines(chunk) => {
                    if workers.len() < plan.workers {
                        workers.push(Worker::start(scope)?);
                    }
                    let worker = workers.get(sent % plan.workers).ok_or_else(worker_lost_error)?;
                    worker.chunks.send(chunk).map_err(|_| worker_lost_error())?; // silent-ok: says no more
                    sent += 1;
                }
            }
        }
    })?;
    Ok(merger.verifier.finish())
}

fn worker_lost_error() -> io::Error {
    io::Error::other("a verifying thread ended early")
}

struct Worker {
    chunks: SyncSender<Chunk>,
    looked: Receiver<CheckedChunk>,
}

impl Worker {
    fn start<'scope>(scope: &'scope Scope<'scope, '_>) -> io::Result<Self> {
        let (chunks, inbox) = sync_channel::<Chunk>(DEPTH);
        let (outbox, looked) = sync_channel(DEPTH);
        std::thread::Builder::new()
            .name("trace-verify".to_owned())
            .spawn_scoped(scope, move || {
                let mut scratch = HashBuffer::default();
                for chunk in inbox {
                    let findings = inspect_chunk(chunk.bytes(), &mut scratch);
                    if outbox.send(CheckedChunk { chunk, findings }).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { chunks, looked })
    }
}

struct CheckedChunk {
    chunk: Chunk,
    /// `None`: the merger must check the chunk line by line.
    findings: Option<ChunkFindings>,
}

struct ChunkFindings {
    /// One run per session, in order of appearance.
    runs: Vec<LinkedRun>,
    lines: u64,
}

/// Valid events of one session that are linked to each other.
struct LinkedRun {
    session: SessionId,
    /// The sequence number of the first event.
    first: u64,
    previous: Digest,
    events: u64,
    /// The hash of the last event.
    head: Digest,
    /// That hash as text.
    head_text: [u8; 64],
    profiles: ProfileSet,
}

/// Checks a chunk without knowing the events before it.
fn inspect_chunk(bytes: &[u8], scratch: &mut HashBuffer) -> Option<ChunkFindings> {
    let text = simdutf8::basic::from_utf8(bytes).ok()?; // silent-ok: judged line by line
    let (mut runs, mut places) = (Vec::<LinkedRun>::new(), HashMap::new());
    let (mut lines, mut start, mut last) = (0, 0, ("", 0));
    for end in memchr_iter(b'\n', bytes) {
        let line = text.get(start..end)?;
        start = end + 1;
        lines += 1;
        if line.is_empty() {
            continue;
        }
        let event = RawEvent::parse(line).ok()?; // silent-ok: judged line by line
        let place = if event.session_id == last.0 {
            last.1
        } else {
            let session = event.session().ok()?; // silent-ok: as above
            match places.entry(session) {
                Entry::Occupied(place) => *place.get(),
                Entry::Vacant(free) => {
                    runs.push(LinkedRun::before_event(session, &event)?);
                    *free.insert(runs.len() - 1)
                }
            }
        };
        runs.get_mut(place)?.extend_with(&event, scratch)?;
        // A session id with escapes is valid too, but it is not cached.
        last = match event.session_id {
            std::borrow::Cow::Borrowed(text) => (text, place),
            std::borrow::Cow::Owned(_) => ("", 0),
        };
    }
    (start == bytes.len()).then_some(ChunkFindings { runs, lines })
}

impl LinkedRun {
    /// The empty run before `event`.
    fn before_event(session: SessionId, event: &RawEvent<'_>) -> Option<Self> {
        let previous = Digest::from_hex(&event.previous_event_hash)?;
        Some(Self {
            session,
            first: event.sequence,
            previous,
            events: 0,
            head: previous,
            head_text: event.previous_event_hash.as_bytes().try_into().ok()?, // silent-ok: never; 64 digits
            profiles: ProfileSet::ALL,
        })
    }

    fn extend_with(&mut self, event: &RawEvent<'_>, scratch: &mut HashBuffer) -> Option<()> {
        let linked = event.previous_event_hash.as_bytes() == self.head_text;
        if !linked || self.first.checked_add(self.events) != Some(event.sequence) {
            return None;
        }
        let (profiles, head) = satisfied_profiles(event, self.profiles, scratch).ok()?; // silent-ok: judged line by line
        (self.profiles, self.head) = (profiles, head);
        self.head_text = event.event_hash.as_bytes().try_into().ok()?; // silent-ok: never; it equals 64 digits
        self.events += 1;
        Some(())
    }
}

#[derive(Default)]
struct ChunkMerger {
    verifier: Verifier,
    /// The number of lines before the next chunk.
    lines: u64,
}

impl ChunkMerger {
    fn merge_chunk(&mut self, looked: &CheckedChunk) {
        match &looked.findings {
            Some(findings) if self.can_accept(findings) => {
                for run in &findings.runs {
                    self.verifier.apply_run(run);
                }
                self.lines += findings.lines;
            }
            _ => self.by_line(looked.chunk.bytes()),
        }
    }

    fn can_accept(&self, findings: &ChunkFindings) -> bool {
        let room = super::MAX_SESSIONS.saturating_sub(self.verifier.sessions.len());
        self.verifier.fault.is_none()
            && findings.runs.len() <= room
            && findings.runs.iter().all(|run| self.verifier.goes_on_with(run))
    }

    fn by_line(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.lines += 1;
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            if !text.is_empty() {
                self.verifier.push_line(text, self.lines, text.len() < line.len());
            }
        }
    }

    fn too_long(&mut self) {
        self.lines += 1;
        self.verifier.refuse_long(self.lines);
    }
}

impl Verifier {
    fn chain_tip(&self, session: &SessionId) -> ChainTip {
        self.sessions.get(session).copied().unwrap_or(ChainTip::START)
    }

    /// Whether a check of the run's events one by one would accept all of them.
    fn goes_on_with(&self, run: &LinkedRun) -> bool {
        let tip = self.chain_tip(&run.session);
        // INVARIANT: `run.profiles` is exact for every profile that `tip` still has, because the worker's candidates are always a
        // superset.
        tip.events == run.first
            && tip.head == run.previous
            && !tip.profiles.intersection(run.profiles).is_none()
    }

    fn apply_run(&mut self, run: &LinkedRun) {
        let tip = self.chain_tip(&run.session);
        let next = ChainTip {
            events: tip.events + run.events,
            head: run.head,
            profiles: tip.profiles.intersection(run.profiles),
        };
        if self.sessions.insert(run.session, next).is_none() {
            self.order.push(run.session);
        }
        self.count += run.events;
    }
}
