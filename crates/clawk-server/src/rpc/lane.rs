//! Limits on requests in flight (R25), by number and bytes. A request that waits for a person does not count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_proto::RequestId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest number of requests in progress; above it, reading pauses.
pub(crate) const MAX_IN_FLIGHT: u32 = 256;
/// The largest size of their frames, KiB; above it, reading pauses.
const MAX_IN_FLIGHT_KIB: u32 = 64 * 1024;
/// The largest number of calls that wait for a person without counting; later ones count.
pub(crate) const MAX_PARKED: u32 = 4096;
/// The largest size of their frames, KiB.
const MAX_PARKED_KIB: u32 = 256 * 1024;
/// The largest number of approvals and denials that wait for their call to ask (R18); above it, reading pauses.
pub(crate) const MAX_ANSWERS: u32 = 1024;

/// The largest number of messages whose turns run or wait; above it, reading pauses.
const MAX_MESSAGES: u32 = 1024;

#[derive(Debug)]
struct InFlightLimit {
    count: Arc<Semaphore>,
    kib: Arc<Semaphore>,
    most_kib: u32,
}

/// The permits of one request in one lane.
#[derive(Debug)]
struct InFlightPermits {
    count: OwnedSemaphorePermit,
    #[expect(dead_code, reason = "held until the request ends")]
    kib: OwnedSemaphorePermit,
}

impl InFlightLimit {
    fn new(count: u32, kib: u32) -> Self {
        Self {
            count: new_semaphore(count),
            kib: new_semaphore(kib),
            most_kib: kib,
        }
    }

    async fn enter(&self, kib: u32) -> Option<InFlightPermits> {
        let kib = kib.min(self.most_kib);
        let count = Arc::clone(&self.count).acquire_owned().await.ok()?; // silent-ok: our semaphores are never closed
        let kib = Arc::clone(&self.kib).acquire_many_owned(kib).await.ok()?; // silent-ok: as above
        Some(InFlightPermits { count, kib })
    }

    fn try_enter(&self, kib: u32) -> Option<InFlightPermits> {
        let kib = kib.min(self.most_kib);
        let count = Arc::clone(&self.count).try_acquire_owned().ok()?; // silent-ok: full is the answer
        let kib = Arc::clone(&self.kib).try_acquire_many_owned(kib).ok()?; // silent-ok: as above
        Some(InFlightPermits { count, kib })
    }
}

fn new_semaphore(permits: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(
        usize::try_from(permits).unwrap_or(Semaphore::MAX_PERMITS),
    ))
}

/// A request in flight, from its reading to its answer.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    kib: u32,
    permits: Mutex<Option<InFlightPermits>>,
}

/// A tool call in flight. It can be found by its id, so that its question frees its place. Dropping it ends the flight.
#[derive(Debug)]
pub(crate) struct InFlightCall {
    lanes: Arc<ConnectionLimits>,
    call: RequestId,
    slot: Arc<InFlightRequest>,
}

/// The limits of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionLimits {
    work: InFlightLimit,
    parked: InFlightLimit,
    answers: Arc<Semaphore>,
    messages: Arc<Semaphore>,
    calls: Mutex<HashMap<RequestId, Vec<Arc<InFlightRequest>>>>,
}

impl ConnectionLimits {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            work: InFlightLimit::new(MAX_IN_FLIGHT, MAX_IN_FLIGHT_KIB),
            parked: InFlightLimit::new(MAX_PARKED, MAX_PARKED_KIB),
            answers: new_semaphore(MAX_ANSWERS),
            messages: new_semaphore(MAX_MESSAGES),
            calls: Mutex::default(),
        })
    }

    /// Waits for a place among the requests in progress.
    pub(crate) async fn enter(&self, frame_bytes: usize) -> Arc<InFlightRequest> {
        let kib = u32::try_from(frame_bytes / 1024 + 1).unwrap_or(u32::MAX);
        Arc::new(InFlightRequest {
            kib,
            permits: Mutex::new(self.work.enter(kib).await),
        })
    }

    /// Waits for a place among the answers to questions.
    pub(crate) async fn enter_answer(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.answers).acquire_owned().await.ok() // silent-ok: our semaphores are never closed
    }

    /// Waits for a place among the messages to the agent.
    pub(crate) async fn enter_message(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.messages).acquire_owned().await.ok() // silent-ok: our semaphores are never closed
    }

    fn lock_calls(&self) -> MutexGuard<'_, HashMap<RequestId, Vec<Arc<InFlightRequest>>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call in flight. Several requests may wait for the outcome of one id (R19).
    pub(crate) fn begin_call(self: &Arc<Self>, call: &RequestId, slot: Arc<InFlightRequest>) -> InFlightCall {
        let mut calls = self.lock_calls();
        let same = calls.entry(call.clone()).or_default();
        // A parked call has the same id: the new request waits for the same person.
        if same.iter().any(|other| other.is_parked(&self.parked)) {
            slot.park_request(&self.parked);
        }
        same.push(Arc::clone(&slot));
        drop(calls);
        InFlightCall {
            lanes: Arc::clone(self),
            call: call.clone(),
            slot,
        }
    }

    /// Frees the place of a call that waits for a person.
    pub(crate) fn park_call(&self, call: &RequestId) {
        for slot in self.lock_calls().get(call).into_iter().flatten() {
            slot.park_request(&self.parked);
        }
    }
}

impl Drop for InFlightCall {
    fn drop(&mut self) {
        let mut calls = self.lanes.lock_calls();
        if let Some(same) = calls.get_mut(&self.call) {
            same.retain(|other| !Arc::ptr_eq(other, &self.slot));
            if same.is_empty() {
                calls.remove(&self.call);
            }
        }
    }
}

impl InFlightRequest {
    fn park_request(&self, parked: &InFlightLimit) {
        let mut permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        if !holds_permits(permits.as_ref(), parked)
            && let Some(place) = parked.try_enter(self.kib)
        {
            *permits = Some(place);
        }
    }

    fn is_parked(&self, parked: &InFlightLimit) -> bool {
        holds_permits(
            self.permits
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .as_ref(),
            parked,
        )
    }
}

fn holds_permits(permits: Option<&InFlightPermits>, lane: &InFlightLimit) -> bool {
    permits.is_some_and(|held| Arc::ptr_eq(held.count.semaphore(), &lane.count))
}
