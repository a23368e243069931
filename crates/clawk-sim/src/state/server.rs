//! The state on a server, like clawk's PostgreSQL schema: the journal, host runs, session leases, orders, claims and reservations.
//! Commits run one at a time, because the real schema locks the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use clawk_kernel::kind;
use clawk_kernel::ports::{
    AnswerKey, BESIDE, Batch, BatchConditions, BoxFuture, BudgetDemand, HostNews, HostOrder, Journal,
    JournalError, SessionHolder, UnmetCondition,
};
use clawk_kernel::purse::BudgetAmount;
use clawk_kernel::testing::MemJournal;
use clawk_proto::SessionId;
use uuid::Uuid;

/// A host's run is over this long after its last renewal, in milliseconds. Shorter than in production, as all times here.
pub(crate) const LEASE_MS: u64 = 1_500;
/// How many sessions one host takes over at a time. The number is small, so that several hosts share the work.
const AT_ONCE: usize = 3;
/// The minimum time between two notifications of hosts about commits, in milliseconds.
const RING_MS: u64 = 1_000;

/// One start of the agent on one host.
#[derive(Debug)]
struct SimHostRun {
    host: usize,
    expires_ms: u64,
    gone: bool,
    rang_ms: u64,
}

/// The lease of a session. `run` is the owning run; `None`: no owner.
#[derive(Debug)]
struct Lease {
    host: usize,
    run: Option<usize>,
    epoch: u64,
}

#[derive(Debug)]
struct StoredHostOrder {
    order: HostOrder,
    outcome: Option<Vec<u8>>,
}

/// A reservation by a run, for a session.
#[derive(Debug)]
struct SimReservation {
    id: Uuid,
    purse: Arc<str>,
    run: usize,
    session: Option<SessionId>,
    amount: BudgetAmount,
}

#[derive(Debug)]
struct SimServerState {
    now_ms: u64,
    up: bool,
    line: u32,
    cut: BTreeSet<usize>,
    runs: Vec<SimHostRun>,
    leases: BTreeMap<SessionId, Lease>,
    leader: Option<usize>,
    orders: Vec<StoredHostOrder>,
    claims: BTreeMap<AnswerKey, SessionId>,
    answered_ms: BTreeMap<AnswerKey, u64>,
    reserved: Vec<SimReservation>,
    secrets: BTreeMap<Uuid, [u8; 32]>,
    rung: BTreeSet<usize>,
    taken_over: usize,
}

/// The server. Cloning it is cheap and shares the state.
#[derive(Debug, Clone)]
pub(crate) struct SimStateServer {
    pub(crate) journal: Arc<MemJournal>,
    inner: Arc<Mutex<SimServerState>>,
}

/// The result of committing a batch.
#[derive(Debug, Clone)]
pub(crate) enum SimCommitOutcome {
    /// Durable, unless the batch was rejected with this error. The host now owns the listed sessions, with their epochs.
    Written(Option<JournalError>, Vec<(SessionId, u64)>),
    /// The run is over.
    Gone,
}

/// The result of a future that is ready at once, as those of an in-memory journal are.
fn resolve_now<T>(mut later: BoxFuture<'_, T>) -> T {
    match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
    .expect("a journal in memory answers at once")
}

pub(crate) fn name(host: usize) -> String {
    format!("host-{host}")
}

impl SimServerState {
    fn is_gone(&self, run: usize) -> bool {
        self.runs.get(run).is_none_or(|run| run.gone)
    }

    fn is_free(&self, session: SessionId) -> bool {
        self.leases.get(&session).is_none_or(|lease| lease.run.is_none())
    }

    /// Assigns the batch's new sessions to the run. Fails if another run owns one of the sessions, or if one was released.
    fn claim_sessions(&mut self, run: usize, batch: &Batch) -> Result<Vec<(SessionId, u64)>, JournalError> {
        let own = batch.entries.iter().filter(|entry| !BESIDE.contains(&entry.kind));
        let sessions: BTreeSet<SessionId> = own.map(|entry| entry.session).collect();
        let foreign = |session: &SessionId| {
            let lease = self.leases.get(session).filter(|lease| lease.run != Some(run))?;
            Some(JournalError::Fenced {
                host: name(lease.host),
            })
        };
        if let Some(fenced) = sessions.iter().find_map(foreign) {
            return Err(fenced);
        }
        let host = self.runs.get(run).map_or(0, |run| run.host);
        let taken = sessions.into_iter().map(|session| {
            let lease = self.leases.entry(session).or_insert(Lease {
                host,
                run: Some(run),
                epoch: 1,
            });
            (session, lease.epoch)
        });
        Ok(taken.collect())
    }

    fn used_budget(&self, room: &BudgetDemand, spent: u64) -> u64 {
        let aside = self.reserved.iter().filter(|aside| aside.purse == room.purse);
        spent + aside.map(|aside| aside.amount.get(room.unit)).sum::<u64>()
    }

    fn notify_hosts(&mut self) {
        self.rung
            .extend(self.runs.iter().filter(|run| !run.gone).map(|run| run.host));
    }

    /// Sessions with an open message or order.
    fn open_sessions(&self, journal: &MemJournal) -> BTreeSet<SessionId> {
        let open = resolve_now(journal.open_messages()).unwrap_or_default(); // silent-ok: a journal in memory can always be read
        let orders = self.orders.iter().filter(|asked| asked.outcome.is_none());
        let orders = orders.map(|asked| asked.order.session);
        open.into_iter().map(|open| open.session).chain(orders).collect()
    }

    fn give_session(&mut self, session: SessionId, run: usize) -> u64 {
        let host = self.runs.get(run).map_or(0, |run| run.host);
        let lease = self.leases.entry(session).or_insert(Lease {
            host,
            run: None,
            epoch: 0,
        });
        (lease.host, lease.run, lease.epoch) = (host, Some(run), lease.epoch + 1);
        lease.epoch
    }
}

impl SimStateServer {
    pub(crate) fn new() -> Self {
        let inner = SimServerState {
            now_ms: 0,
            up: true,
            line: 1,
            cut: BTreeSet::new(),
            runs: Vec::new(),
            leases: BTreeMap::new(),
            leader: None,
            orders: Vec::new(),
            claims: BTreeMap::new(),
            answered_ms: BTreeMap::new(),
            reserved: Vec::new(),
            secrets: BTreeMap::new(),
            rung: BTreeSet::new(),
            taken_over: 0,
        };
        Self {
            journal: Arc::default(),
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SimServerState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pass_time(&self, ms: u64) {
        self.lock().now_ms += ms;
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.lock().now_ms
    }

    /// Stops the server, or starts it again.
    pub(crate) fn set_available(&self, up: bool) {
        self.lock().up = up;
    }

    /// Replaces the server by a standby. The standby has all acknowledged commits.
    pub(crate) fn fails_over(&self) {
        let mut inner = self.lock();
        (inner.line, inner.up) = (inner.line + 1, true);
    }

    pub(crate) fn set_cut_off(&self, host: usize, off: bool) {
        let mut inner = self.lock();
        if off {
            inner.cut.insert(host);
        } else {
            inner.cut.remove(&host);
        }
    }

    pub(crate) fn is_cut(&self, host: usize) -> bool {
        self.lock().cut.contains(&host)
    }

    /// Whether the host can reach the server.
    pub(crate) fn is_near(&self, host: usize) -> bool {
        let inner = self.lock();
        inner.up && !inner.cut.contains(&host)
    }

    /// Whether the host was notified since its last check.
    pub(crate) fn has_rung(&self, host: usize) -> bool {
        self.lock().rung.remove(&host)
    }

    /// The number of sessions that were taken over from lost hosts.
    pub(crate) fn taken_over(&self) -> usize {
        self.lock().taken_over
    }

    /// The reservations that still exist.
    pub(crate) fn reserved_amounts(&self) -> Vec<String> {
        let inner = self.lock();
        let aside = inner.reserved.iter();
        aside
            .map(|aside| format!("{:?} of `{}` by run {}", aside.amount, aside.purse, aside.run))
            .collect()
    }

    /// Begins a new run. The host's previous run, if any, is over.
    pub(crate) fn join_run(&self, host: usize, before: Option<usize>) -> usize {
        let mut inner = self.lock();
        if let Some(before) = before.and_then(|before| inner.runs.get_mut(before)) {
            before.gone = true;
        }
        let (expires_ms, run) = (inner.now_ms + LEASE_MS, inner.runs.len());
        inner.runs.push(SimHostRun {
            host,
            expires_ms,
            gone: false,
            rang_ms: 0,
        });
        run
    }

    /// Extends the run. Returns false if it is over.
    pub(crate) fn renew_run(&self, run: usize) -> bool {
        let mut inner = self.lock();
        let expires_ms = inner.now_ms + LEASE_MS;
        let run = inner.runs.get_mut(run).filter(|run| !run.gone);
        run.map(|run| run.expires_ms = expires_ms).is_some()
    }

    pub(crate) fn is_gone(&self, run: usize) -> bool {
        self.lock().is_gone(run)
    }

    /// Ends a host's run in order. Its sessions are released, except those in `left`, which other hosts take over.
    pub(crate) fn end_run(&self, run: usize, left: &BTreeSet<SessionId>) {
        let mut inner = self.lock();
        if let Some(run) = inner.runs.get_mut(run) {
            run.gone = true;
        }
        let own = inner
            .leases
            .iter_mut()
            .filter(|(session, lease)| lease.run == Some(run) && !left.contains(*session));
        for (_, lease) in own {
            lease.run = None;
        }
        if inner.leader == Some(run) {
            inner.leader = None;
        }
    }

    /// Commits one batch.
    pub(crate) fn commit_batch(&self, run: usize, batch: &Batch) -> SimCommitOutcome {
        let mut inner = self.lock();
        if inner.is_gone(run) {
            return SimCommitOutcome::Gone;
        }
        if let Some(unmet) = self.find_unmet(&inner, batch) {
            return SimCommitOutcome::Written(Some(JournalError::Unmet(unmet)), Vec::new());
        }
        let taken = match inner.claim_sessions(run, batch) {
            Ok(taken) => taken,
            Err(fenced) => return SimCommitOutcome::Written(Some(fenced), Vec::new()),
        };
        let of = batch.entries.first().map(|entry| entry.session);
        if let Some(terms) = &batch.terms {
            apply_conditions(&mut inner, (run, of), terms);
        }
        let now_ms = inner.now_ms;
        let keys = batch.entries.iter().filter_map(|entry| entry.answers);
        inner.answered_ms.extend(keys.map(|key| (key, now_ms)));
        let submitted = self.journal.submit_batch(batch.clone());
        let last = inner.runs.get_mut(run).map(|run| &mut run.rang_ms);
        if let Some(last) = last
            && !batch.entries.is_empty()
            && now_ms.saturating_sub(*last) >= RING_MS
        {
            *last = now_ms;
            inner.notify_hosts();
        }
        SimCommitOutcome::Written(submitted.err(), taken)
    }

    /// The first condition of the batch that does not hold.
    fn find_unmet(&self, inner: &SimServerState, batch: &Batch) -> Option<UnmetCondition> {
        let terms = batch.terms.as_deref()?;
        let of = batch.entries.first().map(|entry| entry.session);
        let claimed = terms.claim.and_then(|key| inner.claims.get(&key));
        if claimed.is_some_and(|by| Some(*by) != of) {
            return Some(UnmetCondition::Claimed);
        }
        if terms.stops.is_some_and(|known| self.has_stop_behind(known)) {
            return Some(UnmetCondition::Stopped);
        }
        terms.room.iter().enumerate().find_map(|(at, room)| {
            let spent = resolve_now(self.journal.spent_since(room.since_hour)).unwrap_or_default(); // silent-ok: as above
            let spent = spent.iter().filter(|spent| spent.purse == room.purse);
            let used = inner.used_budget(room, spent.map(|spent| spent.amount.get(room.unit)).sum());
            (used.saturating_add(room.wanted) > room.bound).then_some(UnmetCondition::Room { at, used })
        })
    }

    fn has_stop_behind(&self, row: u64) -> bool {
        self.journal.look(|events, _| {
            let later = events.iter().rev().take_while(|event| event.row > row);
            later.into_iter().any(|event| event.kind == kind::STOP_ENGAGED)
        })
    }

    /// Whether a recent event has this id.
    pub(crate) fn has_event(&self, event: Uuid) -> bool {
        self.journal
            .look(|_, sealed| sealed.iter().rev().any(|sealed| sealed.event_id == event))
    }

    pub(crate) fn answer_age_us(&self, key: AnswerKey) -> Option<i64> {
        let inner = self.lock();
        let stored = inner.answered_ms.get(&key)?;
        i64::try_from(inner.now_ms.saturating_sub(*stored) * 1000).ok() // silent-ok: a world does not last so long
    }

    /// Releases a session, unless it was acquired again since.
    pub(crate) fn release_session(&self, run: usize, session: SessionId, epoch: u64) {
        let mut inner = self.lock();
        let lease = inner.leases.get_mut(&session);
        if let Some(lease) = lease.filter(|lease| lease.run == Some(run) && lease.epoch == epoch) {
            lease.run = None;
        }
    }

    /// Acquires a session, unless an active run owns it. `None`: the caller's own run is over.
    pub(crate) fn take_session(&self, run: usize, session: SessionId) -> Option<(SessionHolder, u64)> {
        let mut inner = self.lock();
        if inner.is_gone(run) {
            return None;
        }
        let foreign = inner
            .leases
            .get(&session)
            .filter(|lease| lease.run.is_some_and(|by| by != run && !inner.is_gone(by)));
        if let Some(lease) = foreign {
            return Some((SessionHolder::There(name(lease.host)), 0));
        }
        let epoch = inner.give_session(session, run);
        let holder = if epoch > 1 {
            SessionHolder::Taken
        } else {
            SessionHolder::Here
        };
        Some((holder, epoch))
    }

    /// Whether the host is the leader, and the sessions that it took over. `None`: the run is over.
    pub(crate) fn take_over_sessions(&self, run: usize) -> Option<(bool, Vec<(SessionId, u64)>)> {
        let mut inner = self.lock();
        if inner.is_gone(run) {
            return None;
        }
        let now_ms = inner.now_ms;
        let late = |(at, other): &(usize, &mut SimHostRun)| *at != run && other.expires_ms <= now_ms;
        for (_, other) in inner.runs.iter_mut().enumerate().filter(late) {
            other.gone = true;
        }
        if inner.leader.is_none_or(|leader| inner.is_gone(leader)) {
            inner.leader = Some(run);
        }
        let lost = inner
            .leases
            .iter()
            .filter(|(_, lease)| lease.run.is_some_and(|run| inner.is_gone(run)));
        let mut sessions: Vec<SessionId> = lost.map(|(session, _)| *session).take(AT_ONCE).collect();
        inner.taken_over += sessions.len();
        if sessions.is_empty() {
            let wanted = inner.open_sessions(&self.journal).into_iter();
            sessions = wanted
                .filter(|session| inner.is_free(*session))
                .take(AT_ONCE)
                .collect();
        }
        let taken = sessions
            .into_iter()
            .map(|session| (session, inner.give_session(session, run)));
        let taken = taken.collect();
        Some((inner.leader == Some(run), taken))
    }

    pub(crate) fn host_news(&self, run: usize, look: bool) -> HostNews {
        let inner = self.lock();
        let held = |session: SessionId| {
            inner
                .leases
                .get(&session)
                .is_some_and(|lease| lease.run == Some(run))
        };
        let open = inner.orders.iter().filter(|asked| asked.outcome.is_none());
        let orders = open.map(|asked| asked.order.clone());
        HostNews {
            last_row: self
                .journal
                .look(|events, _| events.last().map_or(0, |event| event.row)),
            line: inner.line,
            orders: orders.filter(|order| held(order.session)).collect(),
            due: look && self.is_due(&inner, run),
        }
    }

    fn is_due(&self, inner: &SimServerState, run: usize) -> bool {
        let late =
            |(at, other): (usize, &SimHostRun)| at != run && !other.gone && other.expires_ms <= inner.now_ms;
        let lost = |lease: &Lease| lease.run.is_some_and(|run| inner.is_gone(run));
        inner.is_gone(run)
            || inner.runs.iter().enumerate().any(late)
            || inner.leases.values().any(lost)
            || inner.leader.is_none()
            || inner
                .open_sessions(&self.journal)
                .iter()
                .any(|session| inner.is_free(*session))
    }

    /// Settles what lost hosts had reserved for these sessions.
    pub(crate) fn mark_settled(&self, run: usize, sessions: &[SessionId]) {
        let of = |aside: &SimReservation| aside.session.is_some_and(|session| sessions.contains(&session));
        self.lock()
            .reserved
            .retain(|aside| aside.run == run || !of(aside));
    }

    pub(crate) fn ensure_secret(&self, id: Uuid, fresh: [u8; 32]) -> [u8; 32] {
        *self.lock().secrets.entry(id).or_insert(fresh)
    }

    pub(crate) fn add_order(&self, order: HostOrder) {
        let mut inner = self.lock();
        if !inner.orders.iter().any(|asked| asked.order.id == order.id) {
            inner.orders.push(StoredHostOrder { order, outcome: None });
        }
        inner.notify_hosts();
    }

    /// Returns the stored result, and removes it.
    pub(crate) fn take_outcome(&self, id: Uuid) -> Option<Vec<u8>> {
        let mut inner = self.lock();
        let at = inner
            .orders
            .iter()
            .position(|asked| asked.order.id == id && asked.outcome.is_some())?;
        inner.orders.remove(at).outcome
    }

    pub(crate) fn record_outcome(&self, id: Uuid, outcome: Vec<u8>) {
        let mut inner = self.lock();
        if let Some(asked) = inner.orders.iter_mut().find(|asked| asked.order.id == id) {
            asked.outcome = Some(outcome);
        }
    }
}

/// Applies the batch's conditions: makes its reservations.
fn apply_conditions(
    inner: &mut SimServerState,
    (run, of): (usize, Option<SessionId>),
    terms: &BatchConditions,
) {
    if let (Some(key), Some(of)) = (terms.claim, of) {
        inner.claims.insert(key, of);
    }
    if let Some(key) = terms.disclaim
        && inner.claims.get(&key).copied() == of
    {
        inner.claims.remove(&key);
    }
    if let Some(aside) = &terms.aside
        && !inner.reserved.iter().any(|known| known.id == aside.id)
    {
        let purses = aside.purses.iter().map(|purse| SimReservation {
            id: aside.id,
            purse: Arc::clone(purse),
            run,
            session: of,
            amount: aside.amount,
        });
        inner.reserved.extend(purses);
    }
    if let Some(settles) = terms.settles {
        inner.reserved.retain(|aside| aside.id != settles);
    }
}
