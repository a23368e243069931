//! A swarm's bus. Tasks of an identity are in `claw.SWARM.IDENTITY.inbox`; one host takes each task. Its report goes to
//! `claw.SWARM.IDENTITY.outbox`, where the host that owns the run reads it. A task leaves the queue only when its report is in a
//! queue, so the task of a crashed host goes to another one.

mod hear;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clawk_client::queue::QueueNames;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, RemoteResult, RemoteTask};
use clawk_kernel::time::{Clock, SteadyClock};
use clawk_kernel::{EntryPoint, Kernel, Role};
use clawk_proto::RequestId;
use clawk_proto::method::Method;
use clawk_trace::checkpoint::PublicKey;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::claims::Claims;
use crate::queue::sqlite::CkpSqliteBroker;
use crate::queue::{Broker, BrokerSubscription, QueueError};

/// If its host sends no sign of life for this long, a task goes to another host.
pub(super) const VISIBLE_AGAIN: Duration = Duration::from_secs(30);
/// How long to wait after an error of the bus.
const BREATH: Duration = Duration::from_secs(1);
/// How long sending one message to the bus may take.
const PUT: Duration = Duration::from_secs(10);
/// How long the bus may take to become reachable at the start.
const START: Duration = Duration::from_secs(30);
/// The back end of a swarm's bus.
#[derive(Debug, Clone)]
pub enum BusKind {
    /// NATS JetStream.
    Nats(Url),
    /// Redis Streams.
    Redis(Url),
    /// A SQLite file, for processes of one host.
    File(PathBuf),
}

/// Settings of a swarm's bus.
#[derive(Debug, Clone)]
pub struct BusOptions {
    /// The back end.
    pub kind: BusKind,
    /// The swarm's name.
    pub swarm: String,
    /// This host's unique name.
    pub host: String,
    /// Identities whose tasks the bus carries, each with the largest number of simultaneous tasks.
    pub identities: BTreeMap<String, usize>,
    /// Identities that this host works for.
    pub serve: Vec<String>,
    /// The highest role that tasks from the bus get.
    pub role: Role,
    /// The name and key of the only host whose tasks are accepted. `None`: tasks of every host that can write to the bus.
    pub giver: Option<(String, PublicKey)>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// A swarm's bus, with any back end.
pub(super) trait SwarmBus: Send + Sync {
    fn carries_identity(&self, identity: &str) -> bool;

    fn is_gone(&self) -> bool;

    fn run_task<'a>(&'a self, errand: &'a RemoteTask) -> BoxFuture<'a, RemoteResult>;

    /// See [`clawk_kernel::ports::RemoteWorkers::may_begin`].
    fn may_begin<'a>(&'a self, run: &'a RequestId) -> BoxFuture<'a, Result<(), String>>;

    /// Works on tasks of the bus and reads its reports, until `over`.
    fn attach_kernel<'a>(
        self: Arc<Self>,
        kernel: Kernel,
        tasks: &'a TaskTracker,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ()>;
}

/// Connects to the bus.
///
/// # Errors
/// The bus was not reachable for [`START`].
pub(super) async fn open_bus(options: BusOptions) -> Result<Arc<dyn SwarmBus>, QueueError> {
    unsupported_bus(&options.kind)?;
    let until = tokio::time::Instant::now() + START;
    loop {
        match connect_bus(&options).await {
            Err(error) if tokio::time::Instant::now() < until => {
                tracing::warn!(%error, "the swarm's bus is not ready");
                tokio::time::sleep(BREATH).await;
            }
            outcome => return outcome,
        }
    }
}

/// The error if this build lacks the back end.
fn unsupported_bus(kind: &BusKind) -> Result<(), QueueError> {
    let lacks = |name: &str| {
        Err(QueueError::Broker(format!(
            "this build has no `{name}`; build with `--features {name}`"
        )))
    };
    match kind {
        BusKind::Nats(_) if cfg!(not(feature = "nats")) => lacks("nats"),
        BusKind::Redis(_) if cfg!(not(feature = "redis")) => lacks("redis"),
        BusKind::Nats(_) | BusKind::Redis(_) | BusKind::File(_) => Ok(()),
    }
}

async fn connect_bus(options: &BusOptions) -> Result<Arc<dyn SwarmBus>, QueueError> {
    match &options.kind {
        BusKind::File(path) => {
            let clock = &options.clock;
            let open = |lane: BrokerSubscription| async move { CkpSqliteBroker::open(clock, path, lane) };
            Ok(Arc::new(Bus::new(options, open).await?))
        }
        #[cfg(feature = "nats")]
        BusKind::Nats(server) => {
            let open = |lane: BrokerSubscription| async move {
                crate::queue::nats::CkpJetStreamBroker::open(server, &lane).await
            };
            Ok(Arc::new(Bus::new(options, open).await?))
        }
        #[cfg(feature = "redis")]
        BusKind::Redis(server) => {
            let open = |lane: BrokerSubscription| async move {
                let streams = crate::queue::redis::CkpRedisStreamsBroker::new(server, lane)?;
                streams.connect_reader().await?;
                Ok(streams)
            };
            Ok(Arc::new(Bus::new(options, open).await?))
        }
        #[cfg(not(feature = "nats"))]
        BusKind::Nats(_) => unsupported_bus(&options.kind).and(Err(QueueError::Broker("nats".to_owned()))),
        #[cfg(not(feature = "redis"))]
        BusKind::Redis(_) => unsupported_bus(&options.kind).and(Err(QueueError::Broker("redis".to_owned()))),
    }
}

/// The queues of one identity.
struct IdentityQueues<B> {
    names: QueueNames,
    /// Where this host takes tasks; `None`: this host does not work for the identity.
    inbox: Option<B>,
    /// Where reports are read. The same client puts tasks into the inbox.
    outbox: B,
    places: Arc<Semaphore>,
}

struct Bus<B> {
    swarm: String,
    host: String,
    role: Role,
    giver: Option<(String, PublicKey)>,
    clock: Arc<dyn Clock>,
    ends: BTreeMap<String, IdentityQueues<B>>,
    gone: AtomicBool,
    claims: Claims,
    steady: SteadyClock,
}

impl<B: Broker> Bus<B> {
    async fn new<F: Future<Output = Result<B, QueueError>>>(
        options: &BusOptions,
        open: impl Fn(BrokerSubscription) -> F,
    ) -> Result<Self, QueueError> {
        let mut ends = BTreeMap::new();
        for (identity, at_once) in &options.identities {
            let names = QueueNames::new(&options.swarm, identity);
            let lane = |take: &str, shared: bool, group: String, puts| BrokerSubscription {
                take: take.to_owned(),
                shared,
                group,
                reader: options.host.clone(),
                ack_wait: VISIBLE_AGAIN,
                at_once: 1,
                puts,
                dead: format!("claw.{}.dead", options.swarm),
                owners: (!shared).then(|| format!("claw.{}.begun", options.swarm)),
            };
            let inbox = if options.serve.contains(identity) {
                let puts = vec![(names.outbox.clone(), false)];
                Some(open(lane(&names.inbox, false, "clawk-swarm".to_owned(), puts)).await?)
            } else {
                None
            };
            let group = format!("host-{}", options.host);
            let outbox = open(lane(
                &names.outbox,
                true,
                group,
                vec![(names.inbox.clone(), true)],
            ))
            .await?;
            let end = IdentityQueues {
                names,
                inbox,
                outbox,
                places: Arc::new(Semaphore::new((*at_once).max(1))),
            };
            ends.insert(identity.clone(), end);
        }
        Ok(Self {
            swarm: options.swarm.clone(),
            host: options.host.clone(),
            role: options.role,
            giver: options.giver.clone(),
            clock: Arc::clone(&options.clock),
            ends,
            gone: AtomicBool::new(false),
            claims: Claims::default(),
            steady: SteadyClock::new(Arc::clone(&options.clock)),
        })
    }

    fn note_failure(&self, error: &dyn std::fmt::Display) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the swarm's bus is gone; tasks wait");
        }
    }

    /// Puts a task into the inbox. The caller then waits for the report.
    async fn publish_task(&self, errand: &RemoteTask) -> RemoteResult {
        let Some(ends) = self.ends.get(&errand.identity) else {
            return std::future::pending().await;
        };
        let request = json!({
            "jsonrpc": "2.0", "id": errand.request_id, "method": Method::SwarmDelegate.name(), "params": errand.delegate_params(),
        });
        let line = request.to_string().into_bytes();
        loop {
            let put =
                ends.outbox
                    .publish_line(&ends.names.inbox, &self.host, &line, errand.request_id.as_str());
            match tokio::time::timeout(PUT, put).await {
                Ok(Ok(())) => break,
                Ok(Err(error @ QueueError::TooLong(_))) => {
                    return RemoteResult::Refused {
                        reason: "task_too_long".to_owned(),
                        message: error.to_string(),
                        tokens: Some(0),
                    };
                }
                Ok(Err(error)) => self.note_failure(&error),
                Err(_) => self.note_failure(&"no answer"), // silent-ok: the deadline is the whole cause
            }
            tokio::time::sleep(BREATH).await;
        }
        self.gone.store(false, Ordering::Relaxed);
        std::future::pending().await
    }
}

impl<B: Broker> SwarmBus for Bus<B> {
    fn carries_identity(&self, identity: &str) -> bool {
        self.ends.contains_key(identity)
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn run_task<'a>(&'a self, errand: &'a RemoteTask) -> BoxFuture<'a, RemoteResult> {
        Box::pin(self.publish_task(errand))
    }

    fn may_begin<'a>(&'a self, run: &'a RequestId) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let held = self.claims.wait_fresh_claim(run).await?;
            if held.is_owner() {
                return Ok(());
            }
            let inbox = self.ends.get(&held.identity).and_then(|ends| ends.inbox.as_ref());
            let inbox = inbox.ok_or("this host does not work for it any more")?;
            let owned = tokio::time::timeout(PUT, inbox.claim_task(run.as_str(), &self.host)).await;
            match owned {
                Ok(Ok(owner)) if owner == self.host => {
                    held.mark_owned();
                    Ok(())
                }
                Ok(Ok(owner)) => {
                    held.mark_lost();
                    Err(format!("the host `{owner}` has begun effects of this task"))
                }
                Ok(Err(error)) => {
                    self.note_failure(&error);
                    held.mark_lost();
                    Err("the bus did not confirm that this host holds the task".to_owned())
                }
                // silent-ok: the deadline is the only cause
                Err(_) => {
                    held.mark_lost();
                    Err("the bus did not confirm in time that this host holds the task".to_owned())
                }
            }
        })
    }

    fn attach_kernel<'a>(
        self: Arc<Self>,
        kernel: Kernel,
        tasks: &'a TaskTracker,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let door = EntryPoint::Peer {
                identity: format!("swarm {}", self.swarm),
                task_id: self.swarm.clone(),
                role: self.role,
            };
            let session = match kernel.open_session(door).await {
                Ok(session) => session.id,
                Err(error) => return tracing::error!(%error, "this host can't work for its swarm"),
            };
            let desk = kernel.report_receiver();
            for (identity, ends) in &self.ends {
                let hear = Arc::clone(&self).read_reports(identity.clone(), Arc::clone(&desk), over.clone());
                tasks.spawn(hear);
                if ends.inbox.is_some() {
                    let on = (kernel.clone(), session);
                    let take =
                        Arc::clone(&self).take_tasks(identity.clone(), on, (tasks.clone(), over.clone()));
                    tasks.spawn(take);
                }
            }
        })
    }
}
