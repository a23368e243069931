//! One of several hosts: a process that serves the agent on the shared state, as the real program does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{FaultKind, JournalError};
use clawk_kernel::testing::{Rig, ScriptedModel};
use clawk_kernel::{AgentDependencies, EntryPoint, Kernel, KernelError, StartError, kind};
use clawk_proto::SessionId;
use tokio::runtime::{Builder, Runtime};

use super::handle::Handle;
use super::own::{HostProcessState, WriterFaults};
use super::server::SimStateServer;
use super::users::SharedClusterUserFacts;
use crate::host::{LOOK, RunTokenUsage, SwarmHostParameters, build_rig};
use crate::judge::SimInvariant;
use crate::rng::SeededRng;

/// The pause before a failed start is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// The distance between two hosts' first ids, so that ids never collide.
const IDS: u64 = 1 << 40;

/// The running agent of one start.
#[derive(Clone)]
pub(super) struct ServedAgent {
    pub(super) kernel: Kernel,
    /// The session in which the client calls tools.
    pub(super) desk: SessionId,
    /// The session that delegates tasks.
    pub(super) session: SessionId,
}

type ServedAgentSlot = Arc<Mutex<Option<ServedAgent>>>;

struct Process {
    runtime: Runtime,
    own: Arc<HostProcessState>,
    served: ServedAgentSlot,
    /// Whether the agent has ended after it was told to.
    ended: Arc<AtomicBool>,
    ends: bool,
}

/// A host. Its tools' records of effects and its clock survive its processes.
pub(super) struct ClusterHost {
    number: usize,
    pub(super) rig: Rig,
    server: SimStateServer,
    /// The clock's drift in thousandths; positive is faster.
    drift: i64,
    process: Option<Process>,
    /// The current process's state, for tools and models.
    own: Arc<Mutex<Option<Arc<HostProcessState>>>>,
    pub(super) used: RunTokenUsage,
    /// When the host last worked.
    seen_ms: u64,
    /// The time until which the host is asleep.
    asleep_until_ms: u64,
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The reason why an agent does not start.
#[derive(Debug)]
enum AgentStartFailure {
    #[expect(dead_code, reason = "told by its debug form")]
    Away(JournalError),
    #[expect(dead_code, reason = "told by its debug form")]
    Start(StartError),
    #[expect(dead_code, reason = "told by its debug form")]
    Open(KernelError),
}

async fn start_agent(
    own: &Arc<HostProcessState>,
    mut parts: AgentDependencies,
) -> Result<ServedAgent, AgentStartFailure> {
    own.begin_run().await.map_err(AgentStartFailure::Away)?;
    parts.journal = Arc::new(Handle::new(Arc::clone(own)));
    let kernel = Kernel::start(parts).await.map_err(AgentStartFailure::Start)?;
    let session = kernel
        .open_session(EntryPoint::from_launcher("sim"))
        .await
        .map_err(AgentStartFailure::Open)?;
    let desk = kernel
        .open_session(EntryPoint::from_launcher("desk"))
        .await
        .map_err(AgentStartFailure::Open)?;
    Ok(ServedAgent {
        kernel,
        desk: desk.id,
        session: session.id,
    })
}

/// Serves the agent. Starts again if another host has taken over or the server was unreachable.
async fn serve_agent(own: Arc<HostProcessState>, rig: Rig, slot: ServedAgentSlot) {
    let mut outages = own.watch_outages();
    loop {
        let served = loop {
            match start_agent(&own, rig.parts()).await {
                Ok(served) => break served,
                Err(_) => tokio::time::sleep(AGAIN).await, // silent-ok: it is tried again
            }
        };
        let kernel = served.kernel.clone();
        *lock_mutex(&slot) = Some(served);
        let fenced = own.fence_signal();
        let reason = tokio::select! {
            biased;
            () = fenced.cancelled() => "session_moved",
            _ = outages.changed() => "state_unavailable",
        };
        kernel.give_way(reason).await;
        *lock_mutex(&slot) = None;
    }
}

impl ClusterHost {
    pub(super) fn new(
        make: SwarmHostParameters,
        server: &SimStateServer,
        facts: &SharedClusterUserFacts,
    ) -> Self {
        let own: Arc<Mutex<Option<Arc<HostProcessState>>>> = Arc::default();
        let mine = Arc::clone(&own);
        let fresh = move || {
            let own = lock_mutex(&mine).clone();
            own.map_or(Ok(()), |own| own.check_fresh())
        };
        let may_ask = move || {
            fresh().map_err(|why| {
                ScriptedModel::fault(FaultKind::Cancelled, &format!("nothing was asked: {why}"))
            })
        };
        let (rig, used) = build_rig(make, may_ask);
        let number = usize::from(make.number);
        rig.clock.ids_from(IDS * u64::from(make.number + 1));
        let mine = Arc::clone(&own);
        rig.runner.license(move || {
            let own = lock_mutex(&mine).clone();
            Box::pin(async move {
                match own {
                    Some(own) => own.wait_until_granted().await,
                    None => Ok(()),
                }
            })
        });
        let (mine, at, known) = (Arc::clone(&own), server.clone(), facts.clone());
        rig.runner.watch(move |request, tool| {
            known.record_effect_begin(&at, request, tool);
            let gone = lock_mutex(&mine)
                .as_ref()
                .is_some_and(|own| at.is_gone(own.number()));
            let what = format!("{tool} of {request} on host {number}");
            if gone && tool != LOOK {
                known
                    .told
                    .record_violation(SimInvariant::LeaseHolds, what.clone());
            }
            let decided = at.journal.look(|events, _| {
                events.iter().rev().any(|event| {
                    event.kind == kind::ACTION_APPROVED && event.payload.contains(request.as_str())
                })
            });
            if !decided && tool != LOOK {
                known.told.record_violation(SimInvariant::DecidedFirst, what);
            }
        });
        Self {
            number,
            rig,
            server: server.clone(),
            drift: make.drift,
            process: None,
            own,
            used,
            seen_ms: 0,
            asleep_until_ms: 0,
        }
    }

    pub(super) const fn server(&self) -> &SimStateServer {
        &self.server
    }

    pub(super) const fn is_running(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn served_agent(&self) -> Option<ServedAgent> {
        lock_mutex(&self.process.as_ref()?.served).clone()
    }

    /// Starts a process, which serves the agent as soon as it can.
    pub(super) fn start(&mut self) {
        self.catch_up();
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let own = HostProcessState::new(self.number, self.server.clone());
        *lock_mutex(&self.own) = Some(Arc::clone(&own));
        let served = ServedAgentSlot::default();
        runtime.spawn(serve_agent(
            Arc::clone(&own),
            self.rig.clone(),
            Arc::clone(&served),
        ));
        self.process = Some(Process {
            runtime,
            own,
            served,
            ended: Arc::default(),
            ends: false,
        });
    }

    /// Crashes the host: all memory is lost. With `writes`, the write in progress may have reached the server.
    pub(super) fn crash(&mut self, writes: bool) {
        let Some(process) = self.process.take() else {
            return;
        };
        if writes {
            process.own.last_words();
        }
        lock_mutex(&process.served).take();
    }

    /// Suspends the host until then. The host does not notice.
    pub(super) fn sleep_until(&mut self, until_ms: u64) {
        self.asleep_until_ms = until_ms;
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.server.now_ms() < self.asleep_until_ms
    }

    /// Shuts the host down in order. Returns false if it does not serve.
    pub(super) fn end_orderly(&mut self) -> bool {
        let Some(served) = self.served_agent() else {
            return false;
        };
        let Some(process) = self.process.as_mut().filter(|process| !process.ends) else {
            return false;
        };
        process.ends = true;
        let ended = Arc::clone(&process.ended);
        process.runtime.spawn(async move {
            served.kernel.shutdown("the operator ends it", 0).await;
            ended.store(true, Ordering::SeqCst);
        });
        true
    }

    /// Advances the host's clock by the time in which it was asleep, without CPU or down. Returns that time in milliseconds.
    fn catch_up(&mut self) -> u64 {
        let now_ms = self.server.now_ms();
        let passed = now_ms - std::mem::replace(&mut self.seen_ms, now_ms);
        let signed = i64::try_from(passed).unwrap_or(0);
        let drifted = signed + signed * self.drift / 1000;
        self.rig.clock.advance_ms(drifted);
        u64::try_from(drifted).unwrap_or(0)
    }

    /// Lets the host work for `turns` scheduler turns.
    pub(super) fn run_turns(&mut self, turns: usize, rng: &mut SeededRng, writes: WriterFaults) {
        if self.is_asleep() {
            return;
        }
        let passed = self.catch_up();
        let Some(process) = &self.process else { return };
        process.own.pass_time(passed);
        if self.server.is_near(self.number) && self.server.has_rung(self.number) {
            process.own.bell.notify_one();
        }
        process.runtime.block_on(async {
            tokio::time::advance(Duration::from_millis(passed)).await;
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
        });
        process.own.renew();
        process.own.write(rng, writes);
        if process.ended.load(Ordering::SeqCst) && self.server.is_near(self.number) {
            // Write the queue before the lease is given up.
            process.own.write(
                rng,
                WriterFaults {
                    most: usize::MAX,
                    breaks: 0,
                },
            );
            process.own.end_orderly();
            self.crash(false);
        }
    }

    /// Runs a future in the host until it ends, or the process does.
    pub(super) fn spawn_task(&self, what: impl Future<Output = ()> + Send + 'static) {
        if let Some(process) = &self.process {
            process.runtime.spawn(what);
        }
    }

    /// Sets the host's wall clock.
    pub(super) fn set_clock(&self, ms: i64) {
        self.rig.clock.set_off_ms(ms);
    }
}
