//! Several hosts of one agent on one shared state, as on a PostgreSQL server. Any host takes any request, one of them coordinates
//! the swarm, and other hosts continue the work of a lost host. Hosts crash, sleep and are cut off; the server restarts and fails
//! over; connections break in the middle of commits.

mod handle;
mod host;
mod judge;
mod own;
mod server;
#[cfg(test)]
mod tests;
mod users;

use sha2::{Digest as _, Sha256};

use crate::host::{DiskSpeed, SwarmHostParameters};
use crate::judge::BrokenInvariant;
use crate::rng::SeededRng;
use crate::world::{SeedReport, id};
use host::ClusterHost;
use own::WriterFaults;
use server::SimStateServer;
use users::ClusterUsers;

/// The number of steps with faults, and the number of steps after which everything must have ended.
const FAULTY: usize = 1_200;
const STEPS: usize = 12_000;
/// The simulated time of one step, in milliseconds.
const STEP_MS: u64 = 10;

/// The simulated world: hosts, users and the shared state.
pub(crate) struct ClusterWorld {
    rng: SeededRng,
    server: SimStateServer,
    hosts: Vec<ClusterHost>,
    users: ClusterUsers,
    /// The token budget of one run.
    run_tokens: u64,
    /// The simulated time in milliseconds until which the server is down, and whether a standby then replaces it.
    down: Option<(u64, bool)>,
    report: SeedReport,
}

/// Plays one seed completely.
///
/// # Errors
/// The invariant that was broken.
pub(crate) fn run(seed: u64) -> Result<SeedReport, BrokenInvariant> {
    let mut world = ClusterWorld::new(seed);
    world.play()?;
    Ok(world.report())
}

/// Plays one seed, and returns the journal's events, one line each.
pub(crate) fn tell(seed: u64) -> (Result<(), BrokenInvariant>, Vec<String>) {
    let mut world = ClusterWorld::new(seed);
    let played = world.play();
    (
        played,
        crate::world::journal_lines("state", &world.server.journal),
    )
}

impl ClusterWorld {
    fn new(seed: u64) -> Self {
        // A different random stream than in the other world of this seed.
        let mut rng = SeededRng::new(seed ^ 0x5EED);
        let server = SimStateServer::new();
        let run_tokens = match rng.next_below(3) {
            0 => 60_000,
            1 => 30_000,
            _ => 14_000,
        };
        let tasks = (0..rng.next_below(4)).map(|n| {
            let word = if rng.one_in(3) { "team" } else { "task" };
            (id(1, n), format!("{word} {n}"))
        });
        let tasks = tasks.collect();
        let calls = if rng.one_in(3) { 40 } else { 9 };
        let users = ClusterUsers::new(rng.next_below(calls), rng.next_below(5), tasks);
        let hosts = (0..2 + rng.next_below(3)).map(|at| {
            let make = SwarmHostParameters {
                number: u8::try_from(at).unwrap_or(0),
                disk: DiskSpeed::Fast,
                drift: i64::try_from(rng.next_below(200)).unwrap_or(0) - 100,
                run_tokens,
                faulty_model: rng.one_in(3).then(|| 3 + rng.next_below(5)),
            };
            ClusterHost::new(make, &server, &users.facts)
        });
        Self {
            hosts: hosts.collect(),
            rng,
            server,
            users,
            run_tokens,
            down: None,
            report: SeedReport::default(),
        }
    }

    fn play(&mut self) -> Result<(), BrokenInvariant> {
        for step in 0..STEPS {
            let faulty = step < FAULTY;
            self.server.pass_time(STEP_MS);
            self.befall_server(faulty);
            let at = self.rng.next_below(self.hosts.len());
            self.befall(at, faulty);
            self.work(at, faulty);
            if step % 100 == 0 {
                judge::check_always(self)?;
            }
            if !faulty && step % 20 == 0 && judge::is_done(self) {
                break;
            }
        }
        judge::check_always(self)?;
        judge::at_the_end(self)
    }

    fn befall_server(&mut self, faulty: bool) {
        match self.down {
            Some((until_ms, fails_over)) if !faulty || self.server.now_ms() >= until_ms => {
                self.down = None;
                if fails_over {
                    self.report.failovers += 1;
                    self.server.fails_over();
                } else {
                    self.server.set_available(true);
                }
            }
            None if faulty && self.rng.one_in(600) => {
                self.report.outages += 1;
                let away_ms = 100 + self.rng.next_below(3_000);
                let until_ms = self.server.now_ms() + u64::try_from(away_ms).unwrap_or(0);
                self.down = Some((until_ms, self.rng.one_in(2)));
                self.server.set_available(false);
            }
            Some(_) | None => {}
        }
    }

    /// Applies faults to a host before it works.
    fn befall(&mut self, at: usize, faulty: bool) {
        let Some(host) = self.hosts.get_mut(at) else {
            return;
        };
        let rng = &mut self.rng;
        let near = self.server.is_near(at);
        if !host.is_running() {
            if near && (!faulty || rng.one_in(8)) {
                host.start();
            }
        } else if faulty && rng.one_in(120) {
            self.report.crashes += 1;
            host.crash(rng.one_in(2));
            self.users.forget_host(at);
        } else if faulty && rng.one_in(200) && host.end_orderly() {
            self.report.ends += 1;
        }
        if self.server.is_cut(at) {
            if !faulty || rng.one_in(40) {
                self.server.set_cut_off(at, false);
            }
        } else if faulty && rng.one_in(150) {
            self.report.cuts += 1;
            self.server.set_cut_off(at, true);
        }
        if !faulty {
            host.sleep_until(0);
        } else if rng.one_in(120) {
            self.report.asleep += 1;
            let for_ms = u64::try_from(200 + rng.next_below(4_000)).unwrap_or(0);
            host.sleep_until(self.server.now_ms() + for_ms);
        }
        if faulty && rng.one_in(150) {
            self.report.jumps += 1;
            let ms = i64::try_from(rng.next_below(7_200_000)).unwrap_or(0) - 3_600_000;
            host.set_clock(ms);
        }
    }

    fn work(&mut self, at: usize, faulty: bool) {
        let Some(host) = self.hosts.get_mut(at) else {
            return;
        };
        if host.is_asleep() {
            return;
        }
        self.users.act_randomly((at, host), &mut self.rng, !faulty);
        let (turns, writes) = if faulty {
            let writes = WriterFaults {
                most: self.rng.next_below(4),
                breaks: 60,
            };
            (self.rng.next_below(40), writes)
        } else {
            let writes = WriterFaults { most: 16, breaks: 0 };
            (60, writes)
        };
        host.run_turns(turns, &mut self.rng, writes);
        if !host.is_running() {
            self.users.forget_host(at);
        }
    }

    fn report(mut self) -> SeedReport {
        let mut hash = Sha256::new();
        self.report.events = self.server.journal.look(|_, sealed| {
            for event in sealed {
                hash.update(serde_json::to_vec(event).expect("an event serialises"));
            }
            sealed.len()
        });
        let digest = hash.finalize();
        self.report.digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let told = self.users.facts.told.lock();
        (self.report.again, self.report.answers, self.report.stops) = (told.again, told.answers, told.stops);
        drop(told);
        self.report.taken_over = self.server.taken_over();
        self.report.effects = self.hosts.iter().map(|host| host.rig.runner.runs().len()).sum();
        self.report
    }
}
