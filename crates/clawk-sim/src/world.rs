//! The world of kind `bus`: a leader, workers, the network, and the faults of a seed.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_kernel::ports::{RemoteWorkers, ReportedTryState};
use clawk_kernel::testing::MemJournal;
use clawk_proto::RequestId;
use clawk_proto::method::{DelegateContext, DelegateParams, DelegateTask, ReportParams, TaskStatus};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::board::{SimBus, SimBusWorker};
use crate::desk::HostUser;
use crate::host::{DiskSpeed, SwarmHost, SwarmHostParameters};
use crate::judge::{self, BrokenInvariant};
use crate::net::{Bus, SimNetwork, SimPacket};
use crate::rng::SeededRng;

/// The number of steps with faults, and the number of steps after which everything must have ended.
const FAULTY: usize = 400;
const STEPS: usize = 8_000;
/// The simulated time of one step, in milliseconds.
const STEP_MS: u64 = 10;
/// The text of a forged report.
pub(crate) const FORGED: &str = "forged";

/// The result and the statistics of a seed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeedReport {
    /// SHA-256 over every host's journal, in hexadecimal.
    pub digest: String,
    /// Crashes of hosts.
    pub crashes: usize,
    /// Messages that were delivered more than once.
    pub repeated: usize,
    /// How often a host was cut off.
    pub cuts: usize,
    /// How often a host's clock was set.
    pub jumps: usize,
    /// Hosts with a slow disk.
    pub slow: usize,
    /// Disks that were full for some time.
    pub full: usize,
    /// Orderly restarts.
    pub ends: usize,
    /// How often the bus was down.
    pub outages: usize,
    /// Messages that were lost.
    pub lost: usize,
    /// How often a host was asleep.
    pub asleep: usize,
    /// How often a standby replaced the server.
    pub failovers: usize,
    /// Sessions that were taken over from lost hosts.
    pub taken_over: usize,
    /// Repeated client requests that got the same result.
    pub again: usize,
    /// Questions that a person answered.
    pub answers: usize,
    /// Stops that were confirmed.
    pub stops: usize,
    /// Effects of tools, on all hosts.
    pub effects: usize,
    /// Events in all journals.
    pub events: usize,
}

/// The hosts and the network between them. The first host is the leader.
pub struct SwarmWorld {
    rng: SeededRng,
    pub(crate) hosts: Vec<SwarmHost>,
    net: SimNetwork,
    board: SimBus,
    /// By worker: reports that are not on the bus yet. A crash loses them.
    leaving: Vec<SimNetwork>,
    pub(crate) tasks: Vec<(RequestId, String)>,
    given: BTreeMap<usize, bool>,
    pub(crate) desks: Vec<HostUser>,
    /// The token budget of one run.
    pub(crate) run_tokens: u64,
    /// The step before which the bus delivers nothing.
    down_until: usize,
    full: Vec<bool>,
    lost: usize,
    fulls: usize,
    ends: usize,
    outages: usize,
    crashes: usize,
    repeated: usize,
    cuts: usize,
    jumps: usize,
    slow: usize,
}

impl std::fmt::Debug for SwarmWorld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World({} hosts, {:?})", self.hosts.len(), self.net)
    }
}

pub(crate) fn id(kind: usize, n: usize) -> RequestId {
    RequestId::parse(&format!("00000000-0000-4000-8{kind:03}-{n:012}")).expect("an id")
}

/// The driver's request to delegate a task.
pub(crate) fn delegate_params(task: &RequestId, request: &RequestId, text: &str) -> DelegateParams {
    DelegateParams {
        task_id: task.clone(),
        context: DelegateContext {
            request_id: request.clone(),
            swarm: "team".to_owned(),
            member: text.starts_with("task").then(|| "hand".to_owned()),
            report_token: None,
            limits: None,
            proof: None,
        },
        task: DelegateTask {
            description: text.to_owned(),
            input: None,
        },
    }
}

/// The world in which a seed is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Hosts with their own journals, connected by a bus.
    Bus,
    /// Hosts that share one state.
    State,
}

impl Kind {
    /// All kinds of worlds.
    pub const ALL: [Self; 2] = [Self::Bus, Self::State];
}

/// Plays one seed completely.
///
/// # Errors
/// The invariant that was broken.
pub fn run(kind: Kind, seed: u64) -> Result<SeedReport, BrokenInvariant> {
    if kind == Kind::State {
        return crate::state::run(seed);
    }
    let mut world = SwarmWorld::new(seed);
    world.play()?;
    Ok(world.report())
}

/// Plays one seed, and returns every journal's events, one line each: host, event type, payload.
pub fn play_and_describe(kind: Kind, seed: u64) -> (Result<(), BrokenInvariant>, Vec<String>) {
    if kind == Kind::State {
        return crate::state::tell(seed);
    }
    let mut world = SwarmWorld::new(seed);
    let played = world.play();
    let mut lines = Vec::new();
    for (at, host) in world.hosts.iter().enumerate() {
        lines.extend(self::journal_lines(&at.to_string(), &host.rig.journal));
    }
    (played, lines)
}

/// A journal's events, one line each.
pub(crate) fn journal_lines(whose: &str, journal: &MemJournal) -> Vec<String> {
    let events = journal.events().into_iter().zip(journal.trace());
    let lines = events.map(|(event, sealed)| {
        let text = event
            .content
            .map(|content| String::from_utf8_lossy(&content.bytes).into_owned());
        let (kind, payload, text) = (&event.kind, &event.payload, text.unwrap_or_default());
        format!(
            "{whose} {} {} {} {kind} {payload} {text}",
            event.at.0, sealed.event_id, sealed.span_id
        )
    });
    lines.collect()
}

impl SwarmWorld {
    fn new(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed);
        let (net, board) = (SimNetwork::default(), SimBus::default());
        let workers = 1 + rng.next_below(3);
        let tasks = 1 + rng.next_below(4);
        // Worlds without users are faster, so not every seed has them.
        let (calls, messages) = (rng.next_below(9), rng.next_below(3));
        let run_tokens = match rng.next_below(3) {
            0 => 40_000,
            1 => 24_000,
            _ => 12_000,
        };
        let mut slow = 0;
        let desks: Vec<HostUser> = (0..=workers)
            .map(|at| HostUser::new(at, calls, messages))
            .collect();
        let facts = |at: usize| desks.get(at).map(|desk| desk.facts.clone()).unwrap_or_default();
        let hosts: Vec<SwarmHost> = (0..=workers)
            .map(|at| {
                let disk = if rng.one_in(2) {
                    DiskSpeed::Slow
                } else {
                    DiskSpeed::Fast
                };
                slow += usize::from(disk == DiskSpeed::Slow);
                let make = SwarmHostParameters {
                    number: u8::try_from(at).unwrap_or(1),
                    disk,
                    drift: i64::try_from(rng.next_below(400)).unwrap_or(0) - 200,
                    run_tokens,
                    faulty_model: rng.one_in(3).then(|| 3 + rng.next_below(5)),
                };
                let side: Arc<dyn RemoteWorkers> = match at {
                    0 => Arc::new(Bus(net.clone())),
                    host => Arc::new(SimBusWorker {
                        host,
                        board: board.clone(),
                    }),
                };
                SwarmHost::new(make, side, facts(at))
            })
            .collect();
        let named = |rng: &mut SeededRng, n: usize| {
            // Some tasks are for the whole swarm: the head splits them among its workers.
            let word = if rng.one_in(3) { "team" } else { "task" };
            (id(1, n), format!("{word} {n}"))
        };
        Self {
            tasks: (0..tasks).map(|n| named(&mut rng, n)).collect(),
            leaving: hosts.iter().map(|_| SimNetwork::default()).collect(),
            full: hosts.iter().map(|_| false).collect(),
            desks,
            run_tokens,
            down_until: 0,
            lost: 0,
            fulls: 0,
            ends: 0,
            outages: 0,
            rng,
            hosts,
            net,
            board,
            given: BTreeMap::new(),
            crashes: 0,
            repeated: 0,
            cuts: 0,
            jumps: 0,
            slow,
        }
    }

    fn play(&mut self) -> Result<(), BrokenInvariant> {
        for host in &mut self.hosts {
            host.start();
        }
        for step in 0..STEPS {
            let faulty = step < FAULTY;
            self.board.pass_time(STEP_MS);
            let at = self.rng.next_below(self.hosts.len());
            self.disturb_host(at, faulty);
            self.fill_disk(at, faulty);
            if let Some((desk, host)) = self.desks.get(at).zip(self.hosts.get(at)) {
                desk.act_randomly(host, &mut self.rng, !faulty);
            }
            self.run_host(at, faulty);
            if self.rng.one_in(3) {
                self.give_task();
            }
            if faulty && self.rng.one_in(150) {
                self.outages += 1;
                self.down_until = step + 20 + self.rng.next_below(60);
            }
            if step >= self.down_until && self.rng.one_in(2) {
                self.deliver_message(faulty);
            }
            if step % 50 == 0 {
                judge::check_always(self)?;
            }
            if step % FAULTY == 0 {
                judge::check_chains(self)?;
            }
            if !faulty && step % 10 == 0 && judge::all_ended(self) {
                break;
            }
        }
        judge::check_always(self)?;
        judge::check_chains(self)?;
        judge::at_the_end(self)
    }

    /// Applies faults to a host before it works: it starts, crashes, is cut off or returns, or its clock is set.
    fn disturb_host(&mut self, at: usize, faulty: bool) {
        let runs = self
            .hosts
            .get(at)
            .is_some_and(|host| host.running_kernel().is_some());
        if !runs {
            if !faulty || self.rng.one_in(4) {
                self.start_host(at);
            }
        } else if faulty && self.rng.one_in(40) {
            self.crash_host(at);
        } else if faulty && self.rng.one_in(150) {
            self.ends += 1;
            self.end_host(at);
        }
        if self.board.is_cut(at) {
            if !faulty || self.rng.one_in(30) {
                self.board.set_cut_off(at, false);
            }
        } else if faulty && self.rng.one_in(60) {
            self.cuts += 1;
            self.board.set_cut_off(at, true);
        }
        if faulty && self.rng.one_in(80) {
            self.jumps += 1;
            // An answer is stored for five minutes of wall-clock time (R19). So if clients repeat calls, the clock is never set by
            // more.
            let most = if self.desks.iter().any(HostUser::is_calling_tools) {
                120_000
            } else {
                3_600_000
            };
            let ms =
                i64::try_from(self.rng.next_below(2 * most)).unwrap_or(0) - i64::try_from(most).unwrap_or(0);
            if let Some(host) = self.hosts.get(at) {
                host.set_clock(ms);
            }
        }
    }

    /// Fills the host's disk, or frees it again.
    fn fill_disk(&mut self, at: usize, faulty: bool) {
        let Some((host, full)) = self.hosts.get(at).zip(self.full.get_mut(at)) else {
            return;
        };
        if *full && (!faulty || self.rng.one_in(10)) {
            // Whoever frees the disk also restarts the host: a turn whose end could not be recorded is continued only after a
            // start.
            host.set_disk_capacity(None);
            self.ends += 1;
            self.end_host(at);
        } else if !*full && faulty && self.rng.one_in(120) {
            *full = true;
            self.fulls += 1;
            host.set_disk_capacity(Some(self.rng.next_below(6)));
        }
    }

    fn end_host(&mut self, at: usize) {
        if let Some(host) = self.hosts.get_mut(at) {
            host.end_orderly();
        }
        self.forget_memory(at);
    }

    /// Drops what the host had in memory.
    fn forget_memory(&mut self, at: usize) {
        if let Some(leaving) = self.leaving.get(at) {
            leaving.clear();
        }
        if let Some(desk) = self.desks.get_mut(at) {
            desk.note_crash();
        }
        if let Some(full) = self.full.get_mut(at) {
            *full = false;
        }
    }

    fn start_host(&mut self, at: usize) {
        if let Some(host) = self.hosts.get_mut(at) {
            host.start();
        }
        if at == 0 {
            // After a crash of the leader, the driver repeats its requests with the same ids.
            self.given.clear();
        }
    }

    fn crash_host(&mut self, at: usize) {
        self.crashes += 1;
        if let Some(host) = self.hosts.get_mut(at) {
            host.crash();
        }
        self.forget_memory(at);
    }

    fn run_host(&mut self, at: usize, faulty: bool) {
        let turns = self.rng.next_below(30);
        let pass_ms = if self.rng.one_in(4) { 20 } else { 0 };
        let commits = if faulty { self.rng.next_below(3) } else { 8 };
        if let Some(host) = self.hosts.get(at) {
            host.run_turns(turns, pass_ms, commits);
            if host.running_kernel().is_some() {
                self.board.report_progress(at);
            }
        }
        let Some(leaving) = self.leaving.get(at).filter(|_| !self.board.is_cut(at)) else {
            return;
        };
        while let Some(packet) = leaving.take_oldest() {
            self.net.send_packet(packet);
        }
    }

    /// The driver gives the next task that the leader has not acknowledged since its start.
    fn give_task(&mut self) {
        let next = (0..self.tasks.len()).find(|n| !self.given.contains_key(n));
        let Some((n, leader)) = next.zip(self.hosts.first()) else {
            return;
        };
        let Some((running, (task_id, text))) = leader.running_kernel().zip(self.tasks.get(n).cloned()) else {
            return;
        };
        let params = delegate_params(&task_id, &id(2, n), &text);
        let (kernel, session) = (running.kernel.clone(), running.session);
        let taken = leader.run_to_end(async move { kernel.delegate_task(session, params).await });
        if taken.is_some_and(|taken| taken.is_ok()) {
            self.given.insert(n, true);
        }
    }

    /// Delivers one message; sometimes not the oldest one, and sometimes it will be delivered again.
    fn deliver_message(&mut self, faulty: bool) {
        if self.net.len() == 0 {
            return;
        }
        let at = self.rng.next_below(self.net.len());
        // Taken out of the queue during delivery, because a report removes tasks, too, and positions change.
        let Some(packet) = self.net.take_packet(at) else {
            return;
        };
        let kept = packet.clone();
        let again = faulty && self.rng.one_in(4);
        let arrived = match packet {
            SimPacket::Task(params) => self.give_worker(*params, faulty),
            SimPacket::Report(params) => {
                if faulty && self.rng.one_in(8) {
                    self.forge_report(&params);
                }
                if faulty && self.rng.one_in(10) {
                    // The task is still on the bus. It is delivered again, and the stored report is sent again.
                    self.lost += 1;
                    return;
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

    /// Gives a task to a worker, perhaps again. The worker reports its end over the network.
    fn give_worker(&mut self, params: DelegateParams, faulty: bool) -> bool {
        let workers = self.hosts.len().saturating_sub(1).max(1);
        let asking = 1 + self.rng.next_below(workers);
        let Some(at) = self.board.take_task(params.task_id.as_str(), asking) else {
            return false;
        };
        if self.board.is_cut(at) || (faulty && self.rng.one_in(8)) {
            return false;
        }
        let (task, token) = (params.task_id.clone(), params.context.report_token.clone());
        let Some((worker, leaving)) = self.hosts.get(at).zip(self.leaving.get(at)) else {
            return false;
        };
        let Some(running) = worker.running_kernel() else {
            return false;
        };
        let (kernel, session, leaving) = (running.kernel.clone(), running.session, leaving.clone());
        let taken = worker.run_to_end(async move { kernel.delegate_task(session, params).await });
        if taken.is_none_or(|taken| taken.is_err()) {
            return false;
        }
        let kernel = running.kernel.clone();
        running.runtime.spawn(async move {
            // `None`: the worker crashes or ends; the task will be delivered again.
            let Some(result) = kernel.swarm_result(&task).await else {
                return;
            };
            leaving.send_packet(SimPacket::Report(Box::new(ReportParams {
                task_id: task,
                status: result.status,
                result: json!({"text": result.text}),
                token_usage: Some(result.tokens),
                duration_ms: Some(result.duration_ms),
                cost_microusd: Some(result.cost_microusd),
                report_token: token,
                proof: None,
            })));
        });
        // The task stays on the bus until its report has arrived: a crash of the worker loses nothing.
        false
    }

    fn give_leader(&mut self, params: ReportParams) -> bool {
        if self.board.is_cut(0) {
            return false;
        }
        let Some((leader, running)) = self
            .hosts
            .first()
            .and_then(|leader| Some((leader, leader.running_kernel()?)))
        else {
            return false;
        };
        let (task, token) = (params.task_id.clone(), params.report_token.clone());
        let reports = running.kernel.report_receiver();
        if reports.try_state(&task, token.as_deref()) != ReportedTryState::Sent {
            return false;
        }
        let told = leader.run_to_end(async move { reports.accept_report(None, params).await });
        let told = told.is_some_and(|told| told.is_ok());
        if told {
            self.forget_try(&task, token.as_deref());
        }
        told
    }

    /// Removes this attempt from the queue after its report has arrived. A later attempt at the same task is another message.
    fn forget_try(&self, task: &RequestId, token: Option<&str>) {
        let mut at = 0;
        while let Some(packet) = self.net.peek_packet(at) {
            match packet {
                SimPacket::Task(params)
                    if params.task_id == *task && params.context.report_token.as_deref() == token =>
                {
                    self.net.drop_at(at)
                }
                SimPacket::Task(_) | SimPacket::Report(_) => at += 1,
            }
        }
    }

    /// A host reports a task that it does not hold.
    fn forge_report(&self, real: &ReportParams) {
        let Some((leader, running)) = self
            .hosts
            .first()
            .and_then(|leader| Some((leader, leader.running_kernel()?)))
        else {
            return;
        };
        let forged = ReportParams {
            status: TaskStatus::Completed,
            result: json!({"text": FORGED}),
            report_token: Some("0".repeat(32)),
            ..real.clone()
        };
        let reports = running.kernel.report_receiver();
        let _refused = leader.run_to_end(async move { reports.accept_report(None, forged).await });
    }

    fn report(&self) -> SeedReport {
        let mut hash = Sha256::new();
        let mut events = 0;
        for host in &self.hosts {
            host.rig.journal.look(|_, sealed| {
                for event in sealed {
                    hash.update(serde_json::to_vec(event).expect("an event serialises"));
                }
                events += sealed.len();
            });
        }
        let digest = hash.finalize();
        SeedReport {
            digest: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            crashes: self.crashes,
            repeated: self.repeated,
            cuts: self.cuts,
            jumps: self.jumps,
            slow: self.slow,
            full: self.fulls,
            ends: self.ends,
            outages: self.outages,
            lost: self.lost,
            asleep: 0,
            failovers: 0,
            taken_over: 0,
            again: self.desks.iter().map(|desk| desk.facts.lock().again).sum(),
            answers: self.desks.iter().map(|desk| desk.facts.lock().answers).sum(),
            stops: self.desks.iter().map(|desk| desk.facts.lock().stops).sum(),
            effects: self.hosts.iter().map(|host| host.rig.runner.runs().len()).sum(),
            events,
        }
    }
}
