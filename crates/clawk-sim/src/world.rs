//! The world: a leader, workers, the network, and what a seed does to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_proto::RequestId;
use clawk_proto::method::{DelegateContext, DelegateParams, ReportParams, Task, TaskStatus};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::host::Host;
use crate::judge::{self, Broken};
use crate::net::{Bus, Net, Packet};
use crate::rng::Rng;

/// Steps before the faults end, and before everything must have ended.
const FAULTY: usize = 400;
const STEPS: usize = 6_000;
/// What a forged report says.
pub(crate) const FORGED: &str = "forged";

/// How a seed went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// SHA-256 over every host's journal, hexadecimal.
    pub digest: String,
    /// Crashes that happened.
    pub crashes: usize,
    /// Messages that were delivered more than once.
    pub repeated: usize,
    /// Effects that tools did, on all hosts.
    pub effects: usize,
    /// Events in all journals.
    pub events: usize,
}

/// Hosts and what is between them. The first is the leader.
pub struct World {
    rng: Rng,
    pub(crate) hosts: Vec<Host>,
    net: Net,
    pub(crate) tasks: Vec<(RequestId, String)>,
    given: BTreeMap<usize, bool>,
    crashes: usize,
    repeated: usize,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World({} hosts, {:?})", self.hosts.len(), self.net)
    }
}

fn id(kind: usize, n: usize) -> RequestId {
    RequestId::parse(&format!("00000000-0000-4000-8{kind:03}-{n:012}")).expect("an id")
}

/// Plays one seed to its end.
///
/// # Errors
/// What must hold did not.
pub fn run(seed: u64) -> Result<Report, Broken> {
    let mut world = World::new(seed);
    world.play()?;
    Ok(world.report())
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let net = Net::default();
        let bus = Arc::new(Bus(net.clone()));
        let workers = 1 + rng.below(2);
        let tasks = 1 + rng.below(4);
        let mut hosts = vec![Host::new(0, Some(bus))];
        hosts.extend((1..=workers).map(|at| Host::new(u8::try_from(at).unwrap_or(1), None)));
        Self {
            rng,
            hosts,
            net,
            tasks: (0..tasks).map(|n| (id(1, n), format!("task {n}"))).collect(),
            given: BTreeMap::new(),
            crashes: 0,
            repeated: 0,
        }
    }

    fn play(&mut self) -> Result<(), Broken> {
        for host in &mut self.hosts {
            host.start();
        }
        for step in 0..STEPS {
            let faulty = step < FAULTY;
            let at = self.rng.below(self.hosts.len());
            if self.hosts.get(at).is_some_and(|host| host.running().is_none()) {
                if !faulty || self.rng.one_in(4) {
                    self.start(at);
                }
            } else if faulty && self.rng.one_in(40) {
                self.crash(at);
            }
            self.work(at);
            if self.rng.one_in(3) {
                self.give();
            }
            if self.rng.one_in(2) {
                self.deliver(faulty);
            }
            if step % 50 == 0 {
                judge::always(self)?;
            }
            if !faulty && judge::all_ended(self) {
                break;
            }
        }
        judge::always(self)?;
        judge::at_the_end(self)
    }

    fn start(&mut self, at: usize) {
        if let Some(host) = self.hosts.get_mut(at) {
            host.start();
        }
        if at == 0 {
            // The driver asks again after a crash of the leader, with the same ids.
            self.given.clear();
        }
    }

    fn crash(&mut self, at: usize) {
        self.crashes += 1;
        if let Some(host) = self.hosts.get_mut(at) {
            host.crash();
        }
    }

    fn work(&mut self, at: usize) {
        let turns = self.rng.below(30);
        let pass_ms = if self.rng.one_in(4) { 20 } else { 0 };
        if let Some(host) = self.hosts.get(at) {
            host.work(turns, pass_ms);
        }
    }

    /// The driver gives the next task that the leader has not acknowledged since its start.
    fn give(&mut self) {
        let next = (0..self.tasks.len()).find(|n| !self.given.contains_key(n));
        let Some((n, leader)) = next.zip(self.hosts.first().and_then(Host::running)) else {
            return;
        };
        let Some((task_id, text)) = self.tasks.get(n).cloned() else {
            return;
        };
        let params = DelegateParams {
            task_id,
            task: Task {
                description: text,
                input: None,
            },
            context: DelegateContext {
                request_id: id(2, n),
                swarm: "team".to_owned(),
                member: Some("hand".to_owned()),
                report_token: None,
                limits: None,
            },
        };
        let taken = leader
            .runtime
            .block_on(leader.kernel.delegate(leader.session, params));
        if taken.is_ok() {
            self.given.insert(n, true);
        }
    }

    /// One message arrives, maybe not for the last time, and not always the oldest one.
    fn deliver(&mut self, faulty: bool) {
        if self.net.len() == 0 {
            return;
        }
        let at = self.rng.below(self.net.len());
        // Out of the queue while it is delivered: a report takes tasks out as well, and positions move.
        let Some(packet) = self.net.take(at) else { return };
        let kept = packet.clone();
        let again = faulty && self.rng.one_in(4);
        let arrived = match packet {
            Packet::Task(params) => self.give_worker(*params, faulty),
            Packet::Report(params) => {
                if faulty && self.rng.one_in(8) {
                    self.forge(&params);
                }
                self.give_leader(*params)
            }
        };
        if arrived && again {
            self.repeated += 1;
        }
        if !arrived || again {
            self.net.put_back(at, kept);
        }
    }

    /// A worker takes a task; it tells the end of it by the network.
    fn give_worker(&mut self, params: DelegateParams, faulty: bool) -> bool {
        // Who has taken a task gets it again, unless it is given to another one after a crash.
        let first = usize::from(
            Sha256::digest(params.task_id.as_str())
                .first()
                .copied()
                .unwrap_or(0),
        );
        let workers = self.hosts.len().saturating_sub(1).max(1);
        let moved = usize::from(faulty && self.rng.one_in(16));
        let at = 1 + (first + moved) % workers;
        let Some(worker) = self.hosts.get(at).and_then(Host::running) else {
            return false;
        };
        let (task, token) = (params.task_id.clone(), params.context.report_token.clone());
        let (kernel, net) = (worker.kernel.clone(), self.net.clone());
        let taken = worker
            .runtime
            .block_on(worker.kernel.delegate(worker.session, params.clone()));
        if taken.is_err() {
            return false;
        }
        worker.runtime.spawn(async move {
            let Some(result) = kernel.swarm_result(&task).await else {
                // It crashes or ends: the task is given out again.
                return net.send(Packet::Task(Box::new(params)));
            };
            net.send(Packet::Report(Box::new(ReportParams {
                task_id: task,
                status: result.status,
                result: json!({"text": result.text}),
                token_usage: Some(result.tokens),
                duration_ms: Some(result.duration_ms),
                cost_microusd: Some(result.cost_microusd),
                report_token: token,
            })));
        });
        // It stays on its way until its report is: a crash of the worker loses nothing.
        false
    }

    fn give_leader(&mut self, params: ReportParams) -> bool {
        let Some(leader) = self.hosts.first().and_then(Host::running) else {
            return false;
        };
        let (task, token) = (params.task_id.clone(), params.report_token.clone());
        let reports = leader.kernel.reports();
        if !reports.knows(&task) {
            return false;
        }
        let told = leader.runtime.block_on(reports.report(None, params));
        if told.is_ok() {
            self.forget_try(&task, token.as_deref());
        }
        told.is_ok()
    }

    /// Its report has arrived: this try is out of the queue. A later try of the same task is a message of its own.
    fn forget_try(&self, task: &RequestId, token: Option<&str>) {
        let mut at = 0;
        while let Some(packet) = self.net.look(at) {
            match packet {
                Packet::Task(params)
                    if params.task_id == *task && params.context.report_token.as_deref() == token =>
                {
                    self.net.drop_at(at)
                }
                Packet::Task(_) | Packet::Report(_) => at += 1,
            }
        }
    }

    /// Somebody reports a task that is not theirs.
    fn forge(&self, real: &ReportParams) {
        let Some(leader) = self.hosts.first().and_then(Host::running) else {
            return;
        };
        let forged = ReportParams {
            status: TaskStatus::Completed,
            result: json!({"text": FORGED}),
            report_token: Some("0".repeat(32)),
            ..real.clone()
        };
        let _refused = leader
            .runtime
            .block_on(leader.kernel.reports().report(None, forged));
    }

    fn report(&self) -> Report {
        let mut hash = Sha256::new();
        let mut events = 0;
        for host in &self.hosts {
            for event in host.rig.journal.trace() {
                hash.update(serde_json::to_vec(&event).expect("an event serialises"));
                events += 1;
            }
        }
        let digest = hash.finalize();
        Report {
            digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            crashes: self.crashes,
            repeated: self.repeated,
            effects: self.hosts.iter().map(|host| host.rig.runner.runs().len()).sum(),
            events,
        }
    }
}
