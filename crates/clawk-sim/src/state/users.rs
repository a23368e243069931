//! The users of the agent, at any host: clients that repeat requests at other hosts, people who answer, an operator, and a driver
//! that gives runs to the swarm.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::stop::Level;
use clawk_kernel::{ApprovalAnswer, KnownPerson};
use clawk_proto::RequestId;

use super::host::{ClusterHost, ServedAgent};
use super::server::{LEASE_MS, SimStateServer};
use crate::desk::{self, kept_answer, tool_call};
use crate::host::DANGER;
use crate::judge::SimInvariant;
use crate::rng::SeededRng;
use crate::world::{delegate_params, id};

/// What the users know. It is independent of the hosts.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedClusterUserFacts {
    pub(super) told: desk::SharedHostUserFacts,
    known: Arc<Mutex<ClusterUserFacts>>,
}

#[derive(Debug, Default)]
struct ClusterUserFacts {
    /// When the current stop was confirmed. `None` as soon as somebody begins to lift it.
    stopped_ms: Option<u64>,
    /// The host whose answer the operator waits for.
    operating: Option<usize>,
    /// Runs that were acknowledged.
    given: BTreeSet<usize>,
    /// Running requests, by host.
    open: Vec<(usize, String)>,
}

/// Whether the person approves this request. They approve about half of them.
fn may_be_approved(request: &str) -> bool {
    request.bytes().last().is_some_and(|last| last % 2 == 1)
}

impl SharedClusterUserFacts {
    fn lock(&self) -> MutexGuard<'_, ClusterUserFacts> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when an effect begins.
    pub(super) fn record_effect_begin(&self, server: &SimStateServer, request: &RequestId, tool: &str) {
        let what = format!("{tool} of {request}");
        // Hosts see a stop with a delay. A host begins no effect if it has heard nothing for two thirds of its lease.
        let stopped = self.lock().stopped_ms;
        if stopped.is_some_and(|since| server.now_ms() > since + LEASE_MS) {
            self.told.record_violation(SimInvariant::StopHolds, what.clone());
        }
        if tool == DANGER && !may_be_approved(request.as_str()) {
            self.told.record_violation(SimInvariant::AskedFirst, what);
        }
    }
}

/// All users.
#[derive(Debug)]
pub(super) struct ClusterUsers {
    calls: usize,
    messages: usize,
    pub(super) tasks: Vec<(RequestId, String)>,
    pub(super) facts: SharedClusterUserFacts,
}

fn call_id(n: usize) -> RequestId {
    id(300, n)
}

fn message_id(n: usize) -> RequestId {
    id(400, n)
}

impl ClusterUsers {
    pub(super) fn new(calls: usize, messages: usize, tasks: Vec<(RequestId, String)>) -> Self {
        Self {
            calls,
            messages,
            tasks,
            facts: SharedClusterUserFacts::default(),
        }
    }

    /// Called when a host's process is gone: its open requests get no result.
    pub(super) fn forget_host(&self, host: usize) {
        let mut known = self.facts.lock();
        known.open.retain(|(at, _)| *at != host);
        if known.operating == Some(host) {
            known.operating = None;
        }
    }

    /// A request whose result was not received since the faults ended.
    pub(super) fn waits_for(&self) -> Option<String> {
        let told = &self.facts.told;
        let call = (0..self.calls).map(call_id).find(|call| !told.is_settled(call));
        let message = || {
            (0..self.messages)
                .map(message_id)
                .find(|message| !told.is_told(message))
        };
        if let Some(request) = call.or_else(message) {
            return Some(format!("nobody is told the end of {request}"));
        }
        let given = self.facts.lock().given.clone();
        let run = (0..self.tasks.len()).find(|n| !given.contains(n))?;
        let open = self.facts.lock().open.clone();
        Some(format!("run {run} is not acknowledged; under way: {open:?}"))
    }

    /// Lets the users act at this host, with some probability.
    pub(super) fn act_randomly(&self, (at, host): (usize, &ClusterHost), rng: &mut SeededRng, quiet: bool) {
        let Some(served) = host.served_agent() else { return };
        if self.calls > 0 && rng.one_in(3) {
            self.call((at, host), &served, rng.next_below(self.calls), quiet);
        }
        if self.messages > 0 && rng.one_in(4) {
            self.send_message((at, host), &served, rng.next_below(self.messages), quiet);
        }
        if !self.tasks.is_empty() && rng.one_in(4) {
            self.give_run((at, host), &served, rng.next_below(self.tasks.len()), quiet);
        }
        if quiet || rng.one_in(3) {
            self.answer_question((at, host), &served, rng);
        }
        if quiet || rng.one_in(80) {
            self.operate_stop((at, host), &served, quiet);
        }
    }

    fn is_wanted(&self, request: &RequestId, quiet: bool) -> bool {
        let known = self.facts.lock();
        let times = known
            .open
            .iter()
            .filter(|(_, open)| open == request.as_str())
            .count();
        // Sometimes the same request at two hosts at once.
        let most = if quiet { 1 } else { 2 };
        times < most && !(quiet && self.facts.told.is_told(request))
    }

    /// Runs a future in the host. The request is open until the future ends.
    fn under_way(
        &self,
        (at, host): (usize, &ClusterHost),
        request: &RequestId,
        what: impl Future<Output = ()> + Send + 'static,
    ) {
        let (facts, key) = (self.facts.clone(), request.as_str().to_owned());
        facts.lock().open.push((at, key.clone()));
        host.spawn_task(async move {
            what.await;
            let mut known = facts.lock();
            let open = known
                .open
                .iter()
                .position(|(host, open)| *host == at && *open == key);
            open.map(|open| known.open.swap_remove(open));
        });
    }

    fn call(&self, host: (usize, &ClusterHost), served: &ServedAgent, n: usize, quiet: bool) {
        let request = call_id(n);
        if !self.is_wanted(&request, quiet) {
            return;
        }
        let call = served.kernel.call(served.desk, tool_call(&request, "client", n));
        let (told, asked) = (self.facts.told.clone(), request.clone());
        self.under_way(host, &request, async move {
            if let Some(said) = kept_answer(&call.await) {
                told.record_answer(&asked, said, quiet);
            }
        });
    }

    fn send_message(&self, host: (usize, &ClusterHost), served: &ServedAgent, n: usize, quiet: bool) {
        let request = message_id(n);
        if !self.is_wanted(&request, quiet) {
            return;
        }
        let talk = desk::send_message(
            served.kernel.clone(),
            &self.facts.told,
            (&request, "client", n),
            quiet,
        );
        self.under_way(host, &request, talk);
    }

    /// The driver gives a run until it is acknowledged, and sometimes once more.
    fn give_run(&self, host: (usize, &ClusterHost), served: &ServedAgent, n: usize, quiet: bool) {
        let Some((task, text)) = self.tasks.get(n) else {
            return;
        };
        let request = id(2, n);
        if (quiet && self.facts.lock().given.contains(&n)) || !self.is_wanted(&request, quiet) {
            return;
        }
        let params = delegate_params(task, &request, text);
        let (facts, kernel, session) = (self.facts.clone(), served.kernel.clone(), served.session);
        self.under_way(host, &request, async move {
            if kernel.delegate_task(session, params).await.is_ok() {
                facts.lock().given.insert(n);
            }
        });
    }

    /// The person answers a question that is visible at this host. The question may come from another host.
    fn answer_question(&self, (_, host): (usize, &ClusterHost), served: &ServedAgent, rng: &mut SeededRng) {
        let pending = served.kernel.pending_questions();
        let Some(question) = pending.get(rng.next_below(pending.len())) else {
            return;
        };
        let request = question.request_id.clone();
        let yes = may_be_approved(request.as_str()) && !rng.one_in(4);
        let (kernel, facts) = (served.kernel.clone(), self.facts.clone());
        host.spawn_task(async move {
            let answer = if yes {
                ApprovalAnswer::Approve
            } else {
                ApprovalAnswer::Deny
            };
            if kernel.answer_question(&request, answer, None, "ann").await {
                facts.told.lock().answers += 1;
            }
        });
    }

    /// The operator stops or resumes the agent, and waits for the answer.
    fn operate_stop(&self, (at, host): (usize, &ClusterHost), served: &ServedAgent, quiet: bool) {
        if self.facts.lock().operating.is_some() {
            return;
        }
        let (by, stopped) = (
            KnownPerson::admin("control", "ann"),
            !served.kernel.active_stops().is_empty(),
        );
        if !stopped && quiet {
            return;
        }
        let (kernel, facts, server) = (served.kernel.clone(), self.facts.clone(), host.server().clone());
        facts.lock().operating = Some(at);
        if stopped {
            facts.lock().stopped_ms = None;
        }
        host.spawn_task(async move {
            if stopped {
                let _lifted = kernel.lift_stop(None, &by).await; // silent-ok: who sees it stopped lifts it again
            } else if kernel.engage_stop(None, Level::NoTools, &by, None).await.is_ok() {
                facts.lock().stopped_ms = Some(server.now_ms());
                facts.told.lock().stops += 1;
            }
            facts.lock().operating = None;
        });
    }
}
