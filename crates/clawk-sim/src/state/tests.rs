//! What the simulation found, each as a story of its own.

use std::sync::{Arc, Mutex, PoisonError};

use clawk_kernel::stop::Level;
use clawk_kernel::{CallError, KnownPerson, kind};
use clawk_proto::RequestId;
use clawk_proto::method::ToolCallResult;

use super::host::ClusterHost;
use super::own::WriterFaults;
use super::server::{LEASE_MS, SimStateServer};
use super::users::SharedClusterUserFacts;
use crate::desk::tool_call;
use crate::host::{DiskSpeed, SwarmHostParameters};
use crate::rng::SeededRng;
use crate::world::id;

/// The client's calls of these tools.
const WRITE: usize = 0;
const SLOW: usize = 5;

type Outcome = Result<ToolCallResult, CallError>;
type Told<T> = Arc<Mutex<Option<T>>>;

struct Town {
    server: SimStateServer,
    hosts: Vec<ClusterHost>,
    rng: SeededRng,
}

fn told<T: Clone>(slot: &Told<T>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Town {
    /// Two hosts that serve the agent.
    fn new() -> Self {
        let server = SimStateServer::new();
        let hosts = [0, 1].map(|number| {
            let make = SwarmHostParameters {
                number,
                disk: DiskSpeed::Fast,
                drift: 0,
                run_tokens: 60_000,
                faulty_model: None,
            };
            let mut host = ClusterHost::new(make, &server, &SharedClusterUserFacts::default());
            host.start();
            host
        });
        let mut town = Self {
            server,
            hosts: hosts.into(),
            rng: SeededRng::new(1),
        };
        town.until(|town| town.hosts.iter().all(|host| host.served_agent().is_some()));
        town.pass(1_000);
        town
    }

    /// One host works, and no time passes.
    fn work(&mut self, host: usize) {
        let writes = WriterFaults { most: 8, breaks: 0 };
        for _ in 0..40 {
            self.hosts[host].run_turns(40, &mut self.rng, writes);
        }
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms / 10 {
            self.server.pass_time(10);
            for host in &mut self.hosts {
                host.run_turns(40, &mut self.rng, WriterFaults { most: 8, breaks: 0 });
            }
        }
    }

    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..1_000 {
            if is_so(self) {
                return;
            }
            self.pass(20);
        }
        panic!("it takes too long");
    }

    fn call(&self, host: usize, request: &RequestId, tool: usize) -> Told<Outcome> {
        let (served, slot) = (
            self.hosts[host].served_agent().unwrap(),
            Told::<Outcome>::default(),
        );
        let (call, tell) = (
            served
                .kernel
                .call(served.desk, tool_call(request, "client", tool)),
            Arc::clone(&slot),
        );
        self.hosts[host].spawn_task(async move {
            let outcome = call.await;
            *tell.lock().unwrap() = Some(outcome);
        });
        slot
    }

    fn stop(&mut self, host: usize) {
        self.operate(host, true);
    }

    /// Stops the agent, or lets it go on, and waits until that is confirmed. No time passes.
    fn operate(&mut self, host: usize, stops: bool) {
        let (served, slot) = (self.hosts[host].served_agent().unwrap(), Told::<bool>::default());
        let tell = Arc::clone(&slot);
        self.hosts[host].spawn_task(async move {
            let by = KnownPerson::admin("control", "ann");
            let done = if stops {
                served
                    .kernel
                    .engage_stop(None, Level::NoTools, &by, None)
                    .await
                    .is_ok()
            } else {
                served.kernel.lift_stop(None, &by).await.unwrap()
            };
            *tell.lock().unwrap() = Some(done);
        });
        self.work(host);
        assert_eq!(told(&slot), Some(true), "it is confirmed");
    }

    /// How often something of this kind is told of a request.
    fn recorded(&self, kind: &str, request: &RequestId) -> usize {
        let events = self.server.journal.events();
        let of = |event: &&clawk_kernel::ports::RecordedEvent| {
            event.kind == kind && event.payload.contains(request.as_str())
        };
        events.iter().filter(of).count()
    }
}

#[test]
fn no_host_decides_behind_a_stop_that_it_does_not_know() {
    let mut town = Town::new();
    town.stop(0);
    // The other host has heard of nothing.
    assert!(
        town.hosts[1]
            .served_agent()
            .unwrap()
            .kernel
            .active_stops()
            .is_empty()
    );
    let call = town.call(1, &id(9, 1), WRITE);
    town.work(1);
    let outcome = told(&call).expect("it is told");
    assert!(matches!(outcome, Err(CallError::Denied { .. })), "{outcome:?}");
    assert!(town.hosts[1].rig.runner.runs().is_empty());
}

#[test]
fn a_stop_is_not_undone_by_what_another_host_lifted_before() {
    let mut town = Town::new();
    town.stop(0);
    town.pass(1_000);
    town.operate(1, false);
    // The first host has not heard of that yet.
    town.stop(0);
    town.pass(1_000);
    for host in 0..2 {
        let stops = town.hosts[host].served_agent().unwrap().kernel.active_stops();
        assert_eq!(stops.len(), 1, "host {host} is stopped");
    }
}

#[test]
fn nobody_is_told_a_refusal_of_what_another_host_may_have_done() {
    let mut town = Town::new();
    let request = id(9, 2);
    town.call(0, &request, SLOW);
    town.work(0);
    assert_eq!(town.hosts[0].rig.runner.runs().len(), 1, "it has begun");
    town.hosts[0].crash(false);
    town.stop(1);
    let call = town.call(1, &request, SLOW);
    town.work(1);
    assert!(told(&call).is_none(), "{:?}", told(&call));
    town.pass(4 * LEASE_MS);
    let outcome = told(&call).expect("who takes over tells it");
    assert!(matches!(outcome, Err(CallError::Unknown { .. })), "{outcome:?}");
    assert_eq!(town.recorded(kind::ACTION_DENIED, &request), 0);
}

#[test]
fn a_call_whose_end_could_not_be_written_is_told_by_whoever_is_there_later() {
    let mut town = Town::new();
    let request = id(9, 3);
    town.call(0, &request, SLOW);
    town.work(0);
    town.server.set_available(false);
    town.pass(2 * LEASE_MS);
    town.server.set_available(true);
    town.pass(6 * LEASE_MS);
    assert_eq!(
        town.recorded(kind::ACTION_FAILED, &request),
        1,
        "its outcome is told unknown"
    );
    assert!(
        town.server.reserved_amounts().is_empty(),
        "{:?}",
        town.server.reserved_amounts()
    );
}
