//! The users of a host besides the swarm: a client that calls tools and chats, and repeats requests; a person who answers
//! questions; an operator who stops and resumes the agent. They keep their state when the host crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::stop::Level;
use clawk_kernel::{ApprovalAnswer, CallError, EntryPoint, Kernel, KnownPerson, TalkRequest};
use clawk_proto::method::{CallContext, ToolCallParams};
use clawk_proto::{RequestId, SessionId};
use serde_json::{Map, json};

use crate::host::{DANGER, LOOK, PAID, SwarmHost};
use crate::judge::SimInvariant;
use crate::rng::SeededRng;
use crate::world::id;

/// The tools that the client calls, in turn.
const TOOLS: [&str; 8] = [
    "write",
    DANGER,
    PAID,
    LOOK,
    "flaky",
    "slow",
    PAID,
    crate::host::FORBIDDEN,
];

/// What the users know. It survives crashes of the host.
#[derive(Debug, Default)]
pub(crate) struct HostUserFacts {
    /// Requests of [`DANGER`] whose last answer from a person was yes.
    approved: BTreeSet<String>,
    /// Whether a stop was confirmed and has not been lifted.
    stopped: bool,
    /// By request: the first result that the client got.
    told: BTreeMap<String, String>,
    /// Requests whose result was received again since the faults ended.
    last: BTreeSet<String>,
    wrong: Vec<(SimInvariant, String)>,
    /// The number of repeated requests.
    pub(crate) again: usize,
    /// The number of questions that a person answered.
    pub(crate) answers: usize,
    /// The number of confirmed stops.
    pub(crate) stops: usize,
}

/// The facts, shared with the host's tool runner, which reports every effect that begins.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedHostUserFacts(Arc<Mutex<HostUserFacts>>);

impl SharedHostUserFacts {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HostUserFacts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called when an effect begins.
    pub(crate) fn record_effect_begin(&self, request: &RequestId, tool: &str) {
        let mut known = self.lock();
        let what = format!("{tool} of {request}");
        if known.stopped {
            known.wrong.push((SimInvariant::StopHolds, what.clone()));
        }
        if tool == DANGER && !known.approved.contains(request.as_str()) {
            known.wrong.push((SimInvariant::AskedFirst, what));
        }
    }

    /// Records that an invariant was broken.
    pub(crate) fn record_violation(&self, invariant: SimInvariant, what: String) {
        self.lock().wrong.push((invariant, what));
    }

    /// Whether the request's result was received since the faults ended.
    pub(crate) fn is_told(&self, request: &RequestId) -> bool {
        self.lock().last.contains(request.as_str())
    }

    /// As [`Self::is_told`], or no result was ever received.
    pub(crate) fn is_settled(&self, request: &RequestId) -> bool {
        let known = self.lock();
        known.last.contains(request.as_str()) || !known.told.contains_key(request.as_str())
    }

    /// A result that was received once and that the host no longer knows.
    pub(crate) fn missing_answer(&self) -> Option<String> {
        let known = self.lock();
        let told = known.told.keys().find(|request| !known.last.contains(*request));
        told.map(|request| format!("{request} was told once, and is not told again"))
    }

    pub(crate) fn first_violation(&self) -> Option<(SimInvariant, String)> {
        self.lock().wrong.first().cloned()
    }

    /// Records the result of a request. It must be the same as the first one.
    pub(crate) fn record_answer(&self, request: &RequestId, said: String, quiet: bool) {
        let mut known = self.lock();
        let key = request.as_str().to_owned();
        if quiet {
            known.last.insert(key.clone());
        }
        match known.told.get(&key) {
            None => {
                known.told.insert(key, said);
            }
            Some(before) if *before == said => known.again += 1,
            Some(before) => {
                let seen = format!("{request} was told `{before}` and then `{said}`");
                known.wrong.push((SimInvariant::SameAnswer, seen));
            }
        }
    }
}

/// The client, the person and the operator of one host.
#[derive(Debug)]
pub(crate) struct HostUser {
    number: usize,
    calls: usize,
    messages: usize,
    pub(crate) facts: SharedHostUserFacts,
    /// Requests that are running since the host's last start.
    open: Arc<Mutex<Vec<String>>>,
}

/// The final result of a request; `None` if the request may still get another result.
pub(crate) fn kept_answer(
    outcome: &Result<clawk_proto::method::ToolCallResult, CallError>,
) -> Option<String> {
    match outcome {
        Ok(result) => serde_json::to_string(result).ok(), // silent-ok: ours always serialise
        Err(
            error @ (CallError::Denied { .. } | CallError::ApprovalDenied { .. } | CallError::Quota { .. }),
        ) => Some(error.to_string()),
        Err(_) => None, // silent-ok: the client asks again
    }
}

/// The client's tool call number `n`.
pub(crate) fn tool_call(request: &RequestId, who: &str, n: usize) -> ToolCallParams {
    let tool = TOOLS.get(n % TOOLS.len()).copied().unwrap_or("write");
    let arguments = json!({"call": format!("{who} {n}")});
    ToolCallParams {
        name: tool.to_owned(),
        arguments: arguments.as_object().cloned().unwrap_or_else(Map::new),
        context: CallContext {
            request_id: request.clone(),
            identity: "tester".to_owned(),
            sandbox: None,
            policy: None,
        },
    }
}

/// Sends a message in one of two conversations, and records the answer.
pub(crate) fn send_message(
    kernel: Kernel,
    facts: &SharedHostUserFacts,
    (request, who, n): (&RequestId, &str, usize),
    quiet: bool,
) -> impl Future<Output = ()> + Send + use<> {
    let text = format!("chat {who} {n}");
    let asked = TalkRequest::new("client", Some(format!("talk {}", n % 2)), text, request.clone());
    let (facts, key) = (facts.clone(), request.clone());
    async move {
        let door = EntryPoint::Rpc {
            client: "client".to_owned(),
            role: clawk_kernel::Role::Admin,
        };
        // An error is not an answer: the client asks again.
        if let Ok(told) = kernel.send_message(door, asked, &|_, _| {}).await {
            facts.record_answer(&key, format!("{:?} {}", told.stop, told.text), quiet);
        }
    }
}

impl HostUser {
    pub(crate) fn new(number: usize, calls: usize, messages: usize) -> Self {
        Self {
            number,
            calls,
            messages,
            facts: SharedHostUserFacts::default(),
            open: Arc::default(),
        }
    }

    /// Whether the client calls tools.
    pub(crate) const fn is_calling_tools(&self) -> bool {
        self.calls > 0
    }

    fn call_id(&self, n: usize) -> RequestId {
        id(100 + self.number, n)
    }

    fn message_id(&self, n: usize) -> RequestId {
        id(200 + self.number, n)
    }

    /// Called when the host has crashed: its open requests get no result, and the client repeats them.
    pub(crate) fn note_crash(&mut self) {
        self.open = Arc::default();
    }

    /// Whether every request was repeated and answered since the faults ended.
    pub(crate) fn is_done(&self) -> bool {
        let mut all = (0..self.calls).map(|n| self.call_id(n));
        let mut said = (0..self.messages).map(|n| self.message_id(n));
        all.all(|request| self.facts.is_settled(&request)) && said.all(|request| self.facts.is_told(&request))
    }

    fn is_wanted(&self, request: &RequestId, quiet: bool) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // Sometimes the same request twice at once, but never three times: tokio's order of waking several waiters of one value is
        // not deterministic.
        let times = open.iter().filter(|known| *known == request.as_str()).count();
        let most = if quiet { 1 } else { 2 };
        times < most && !(quiet && self.facts.is_told(request))
    }

    /// Lets the users act, with some probability.
    pub(crate) fn act_randomly(&self, host: &SwarmHost, rng: &mut SeededRng, quiet: bool) {
        let Some(running) = host.running_kernel() else {
            return;
        };
        let kernel = &running.kernel;
        if self.calls > 0 && rng.one_in(3) {
            let n = rng.next_below(self.calls);
            self.call(host, (kernel, running.desk), n, quiet);
        }
        if self.messages > 0 && rng.one_in(6) {
            let n = rng.next_below(self.messages);
            self.send_message(host, kernel, n, quiet);
        }
        if quiet || rng.one_in(3) {
            self.answer_question(host, kernel, rng, quiet);
        }
        if quiet || rng.one_in(60) {
            self.operate_stop(host, kernel, quiet);
        }
    }

    fn call(&self, host: &SwarmHost, (kernel, session): (&Kernel, SessionId), n: usize, quiet: bool) {
        let request = self.call_id(n);
        if !self.is_wanted(&request, quiet) {
            return;
        }
        let params = tool_call(&request, &self.number.to_string(), n);
        let (call, facts, asked) = (kernel.call(session, params), self.facts.clone(), request.clone());
        self.under_way(host, request, async move {
            if let Some(said) = kept_answer(&call.await) {
                facts.record_answer(&asked, said, quiet);
            }
        });
    }

    fn send_message(&self, host: &SwarmHost, kernel: &Kernel, n: usize, quiet: bool) {
        let request = self.message_id(n);
        if !self.is_wanted(&request, quiet) {
            return;
        }
        let talk = send_message(
            kernel.clone(),
            &self.facts,
            (&request, &self.number.to_string(), n),
            quiet,
        );
        self.under_way(host, request, talk);
    }

    /// Runs a future in the host. The request is open until the future ends.
    fn under_way(
        &self,
        host: &SwarmHost,
        request: RequestId,
        what: impl Future<Output = ()> + Send + 'static,
    ) {
        let Some(running) = host.running_kernel() else {
            return;
        };
        let open = Arc::clone(&self.open);
        let lock = |open: &Mutex<Vec<String>>, add: bool, key: &str| {
            let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
            if add {
                open.push(key.to_owned());
            } else {
                let at = open.iter().position(|known| known == key);
                at.map(|at| open.swap_remove(at));
            }
        };
        lock(&open, true, request.as_str());
        running.runtime.spawn(async move {
            what.await;
            lock(&open, false, request.as_str());
        });
    }

    /// The person answers a question, sometimes twice with different answers. The first accepted answer counts.
    fn answer_question(&self, host: &SwarmHost, kernel: &Kernel, rng: &mut SeededRng, quiet: bool) {
        let pending = kernel.pending_questions();
        if pending.is_empty() {
            return;
        }
        let Some(question) = pending.get(rng.next_below(pending.len())) else {
            return;
        };
        let request = question.request_id.clone();
        let yes = rng.one_in(2);
        let twice = !quiet && rng.one_in(4);
        for yes in [Some(yes), twice.then_some(!yes)].into_iter().flatten() {
            let key = request.as_str().to_owned();
            let before = self.facts.lock().approved.contains(&key);
            if yes {
                self.facts.lock().approved.insert(key.clone());
            }
            let (kernel, asked) = (kernel.clone(), request.clone());
            let answer = if yes {
                ApprovalAnswer::Approve
            } else {
                ApprovalAnswer::Deny
            };
            let taken =
                host.run_to_end(async move { kernel.answer_question(&asked, answer, None, "ann").await });
            let mut known = self.facts.lock();
            match (taken, yes) {
                (Some(true), true) => known.answers += 1,
                (Some(true), false) => {
                    known.answers += 1;
                    known.approved.remove(&key);
                }
                // It was answered before, or no question is open any more.
                (Some(false), _) if !before => {
                    known.approved.remove(&key);
                }
                (Some(false) | None, _) => {}
            }
        }
    }

    /// The operator stops or resumes the agent.
    fn operate_stop(&self, host: &SwarmHost, kernel: &Kernel, quiet: bool) {
        let (by, stopped) = (
            KnownPerson::admin("control", "ann"),
            !kernel.active_stops().is_empty(),
        );
        let kernel = kernel.clone();
        if stopped {
            self.facts.lock().stopped = false;
            let _lifted = host.run_to_end(async move { kernel.lift_stop(None, &by).await });
        } else if !quiet {
            let engaged =
                host.run_to_end(async move { kernel.engage_stop(None, Level::NoTools, &by, None).await });
            if engaged.is_some_and(|engaged| engaged.is_ok()) {
                let mut known = self.facts.lock();
                known.stopped = true;
                known.stops += 1;
            }
        }
    }
}
