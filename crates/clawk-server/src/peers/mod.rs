//! Members of a swarm that run elsewhere: a separate agent over a connection (`link`), or any host that takes tasks from a bus
//! (`bus`). Both implement the kernel's port [`RemoteWorkers`].

mod bus;
mod claims;
mod link;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_client::AgentAddress;
use clawk_kernel::Kernel;
use clawk_kernel::ports::{
    BoxFuture, MemberRoute, RemoteResult, RemoteTask, RemoteWorkers, ReportReceiver, RetryReason,
};
use clawk_proto::RequestId;
use clawk_trace::checkpoint::PublicKey;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use bus::{BusKind, BusOptions};
pub use link::LinkOptions;

use crate::queue::QueueError;
use bus::SwarmBus;
use link::PeerLink;

/// How long the shutdown waits for connections to close.
const FAREWELL: Duration = Duration::from_secs(5);

/// A member that uses another protocol. It gets a task as text and answers; it sends no reports.
pub trait ForeignMember: fmt::Debug + Send + Sync {
    /// Gives the member one try and waits for the result. Dropping the future gives up.
    fn run_task<'a>(&'a self, errand: &'a RemoteTask) -> BoxFuture<'a, RemoteResult>;
}

/// The settings of a [`ForeignMember`].
#[derive(Debug)]
pub struct ForeignOptions {
    /// The member.
    pub member: Arc<dyn ForeignMember>,
    /// The time limit of one try, milliseconds.
    pub timeout_ms: Option<u64>,
}

/// A [`ForeignMember`], and whether the last attempt to reach it failed.
#[derive(Debug)]
struct ForeignPeer {
    options: ForeignOptions,
    gone: AtomicBool,
}

impl ForeignPeer {
    async fn run_task(&self, errand: &RemoteTask) -> RemoteResult {
        if link::is_narrow(errand) {
            return RemoteResult::Refused {
                reason: "rights_not_conveyed".to_owned(),
                message: "an agent of another protocol can't be told to use less than it has; give the task with a wider role and without `tools`"
                    .to_owned(),
                tokens: Some(0),
            };
        }
        let worked = self.options.member.run_task(errand).await;
        let gone = matches!(worked, RemoteResult::Lost { .. });
        self.gone.store(gone, Ordering::Relaxed);
        worked
    }
}

/// All remote members.
pub struct RemoteMembers {
    links: BTreeMap<String, Arc<PeerLink>>,
    strangers: BTreeMap<String, ForeignPeer>,
    bus: Option<Arc<dyn SwarmBus>>,
    keys: BTreeMap<String, PublicKey>,
    tasks: TaskTracker,
    over: CancellationToken,
    /// Cancelled when the agent's present run ends.
    current: Mutex<CancellationToken>,
}

impl fmt::Debug for RemoteMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peers({:?}, bus: {})", self.links.keys(), self.bus.is_some())
    }
}

impl RemoteMembers {
    /// Creates the members: peers by the names of their identities, the swarm's bus (it must be reachable now), and the keys that
    /// verify the identities' reports.
    ///
    /// # Errors
    /// The bus can't be reached.
    pub async fn new(
        links: BTreeMap<String, LinkOptions>,
        foreign: BTreeMap<String, ForeignOptions>,
        bus: Option<BusOptions>,
        keys: BTreeMap<String, PublicKey>,
    ) -> Result<Arc<Self>, QueueError> {
        let bus = match bus {
            Some(options) => Some(bus::open_bus(options).await?),
            None => None,
        };
        let links = links
            .into_iter()
            .map(|(name, options)| (name.clone(), PeerLink::new(name, options)));
        Ok(Arc::new(Self {
            links: links.collect(),
            strangers: foreign
                .into_iter()
                .map(|(name, options)| {
                    let gone = AtomicBool::new(false);
                    (name, ForeignPeer { options, gone })
                })
                .collect(),
            bus,
            keys,
            tasks: TaskTracker::new(),
            over: CancellationToken::new(),
            current: Mutex::default(),
        }))
    }

    /// Whether tasks go through a bus.
    #[must_use]
    pub fn has_bus(&self) -> bool {
        self.bus.is_some()
    }

    /// Called when an agent has started. As soon as this host coordinates the swarm, it reads reports from the bus and works on
    /// tasks of the bus.
    pub async fn attach_kernel(&self, kernel: &Kernel) {
        if let Some(bus) = &self.bus {
            // The work for an earlier run of the agent ends.
            let fresh = self.over.child_token();
            let earlier = {
                let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *current, fresh.clone())
            };
            earlier.cancel();
            let (bus, kernel) = (Arc::clone(bus), kernel.clone());
            if tokio::time::timeout(Duration::ZERO, kernel.wait_until_coordinating())
                .await
                .is_ok()
            {
                return bus.attach_kernel(kernel, &self.tasks, &fresh).await;
            }
            let tasks = self.tasks.clone();
            self.tasks.spawn(async move {
                tokio::select! {
                    () = kernel.wait_until_coordinating() => bus.attach_kernel(kernel, &tasks, &fresh).await,
                    () = fresh.cancelled() => {}
                }
            });
        }
    }

    /// Ends all connections.
    pub async fn close(&self) {
        self.over.cancel();
        self.tasks.close();
        let farewell = async {
            for link in self.links.values() {
                link.close().await;
            }
            self.tasks.wait().await;
        };
        if tokio::time::timeout(FAREWELL, farewell).await.is_err() {
            tracing::warn!("a peer did not say good-bye in time");
        }
    }
}

impl RemoteWorkers for RemoteMembers {
    fn member_route(&self, identity: &str) -> Option<MemberRoute> {
        if self.links.contains_key(identity) || self.strangers.contains_key(identity) {
            return Some(MemberRoute::Peer);
        }
        let carried = self
            .bus
            .as_ref()
            .is_some_and(|bus| bus.carries_identity(identity));
        carried.then_some(MemberRoute::Bus)
    }

    fn is_gone(&self, identity: &str) -> bool {
        if let Some(stranger) = self.strangers.get(identity) {
            return stranger.gone.load(Ordering::Relaxed);
        }
        match self.links.get(identity) {
            Some(link) => link.is_gone(),
            None => self.bus.as_ref().is_some_and(|bus| bus.is_gone()),
        }
    }

    fn lives_here(&self, identity: &str) -> bool {
        let target = self.links.get(identity).map(|link| &link.options().target);
        matches!(target, Some(AgentAddress::Command(_)))
    }

    fn timeout_ms(&self, identity: &str) -> Option<u64> {
        match self.strangers.get(identity) {
            Some(stranger) => stranger.options.timeout_ms,
            None => self.links.get(identity)?.options().timeout_ms,
        }
    }

    fn allowed_tools(&self, identity: &str) -> Option<Vec<String>> {
        self.links.get(identity)?.options().tools.clone()
    }

    fn report_key(&self, identity: &str) -> Option<PublicKey> {
        self.keys.get(identity).cloned()
    }

    fn perform_task<'a>(
        &'a self,
        errand: RemoteTask,
        reports: Arc<dyn ReportReceiver>,
    ) -> BoxFuture<'a, RemoteResult> {
        Box::pin(async move {
            if let Some(stranger) = self.strangers.get(&errand.identity) {
                return stranger.run_task(&errand).await;
            }
            match (self.links.get(&errand.identity), &self.bus) {
                (Some(link), _) => {
                    let key = self.keys.get(&errand.identity);
                    link.run_task(&errand, &reports, key).await
                }
                (None, Some(bus)) => bus.run_task(&errand).await,
                (None, None) => RemoteResult::Lost {
                    why: RetryReason::Unreached,
                    message: format!("`{}` is bound nowhere", errand.identity),
                    tokens: Some(0),
                },
            }
        })
    }

    fn may_begin<'a>(&'a self, run: &'a RequestId) -> BoxFuture<'a, Result<(), String>> {
        match &self.bus {
            Some(bus) => bus.may_begin(run),
            None => Box::pin(std::future::ready(Err(
                "it came out of a bus that this host does not have any more".to_owned(),
            ))),
        }
    }
}
