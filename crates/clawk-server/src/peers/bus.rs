//! A swarm's bus: tasks of an identity lie in `claw.SWARM.IDENTITY.inbox`, from which one host takes each; its report goes to
//! `claw.SWARM.IDENTITY.outbox`, where the host reads it whose run it is. A task is out of the queue when its report is in one, so
//! a host that dies gives it back.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clawk_client::queue::Names;
use clawk_egress::Url;
use clawk_kernel::ports::{Errand, Later, Reports, Worked};
use clawk_kernel::time::{Clock, Steady};
use clawk_kernel::{Door, Kernel, KernelError, Role};
use clawk_proto::method::{DelegateParams, Method, ReportParams};
use clawk_proto::{RequestId, SessionId};
use clawk_trace::checkpoint::PublicKey;
use clawk_trace::proof;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::claims::Claims;
use crate::queue::sqlite::File;
use crate::queue::{Broker, Lane, Parcel, QueueError};
use crate::rpc::reports;

/// The time without a sign of life from its host after which a task goes to another host.
pub(super) const VISIBLE_AGAIN: Duration = Duration::from_secs(30);
/// How often a host says that it is at it.
const SIGN: Duration = Duration::from_secs(10);
/// How long a bus that fails is left alone.
const BREATH: Duration = Duration::from_secs(1);
/// How long one message may take into the bus.
const PUT: Duration = Duration::from_secs(10);
/// How long a bus may take to come up at the start.
const START: Duration = Duration::from_secs(30);
/// How often a task is given out before it becomes a dead letter, if every host that took it died.
const TRIES: u64 = 5;
/// How often a report that nobody here waits for is looked at: its try may not have been taken up again yet.
const LOOKS: u64 = 3;
/// How long a signed task may be taken: less than the bus keeps which host began it ([`crate::queue::KEPT`]), so that a copy which
/// somebody puts there later is not done again.
const PROVEN_DAYS: i64 = 6;

/// The back end of a swarm's bus.
#[derive(Debug, Clone)]
pub enum BusKind {
    /// NATS JetStream.
    Nats(Url),
    /// Redis Streams.
    Redis(Url),
    /// A file, for processes of one host.
    File(PathBuf),
}

/// Settings of a swarm's bus.
#[derive(Debug, Clone)]
pub struct BusOptions {
    /// What it is.
    pub kind: BusKind,
    /// The swarm.
    pub swarm: String,
    /// This host, by a name that no other one has.
    pub host: String,
    /// Identities whose tasks it carries, each with how many of them may be worked on at once.
    pub identities: BTreeMap<String, usize>,
    /// Those that this host works for.
    pub serve: Vec<String>,
    /// With which role tasks come out of it, at most.
    pub role: Role,
    /// Whose tasks alone are worked on, by its name and its key; none: those of every host that can write to the bus.
    pub giver: Option<(String, PublicKey)>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// A bus, whatever it is.
pub(super) trait Carries: Send + Sync {
    fn carries(&self, identity: &str) -> bool;

    fn is_gone(&self) -> bool;

    fn work<'a>(&'a self, errand: &'a Errand) -> Later<'a, Worked>;

    /// See [`clawk_kernel::ports::Elsewhere::may_begin`].
    fn may_begin<'a>(&'a self, run: &'a RequestId) -> Later<'a, Result<(), String>>;

    /// Works for the bus and hears its reports, until `over`.
    fn attach<'a>(
        self: Arc<Self>,
        kernel: Kernel,
        tasks: &'a TaskTracker,
        over: &'a CancellationToken,
    ) -> Later<'a, ()>;
}

/// Connects.
///
/// # Errors
/// It can't be reached for [`START`].
pub(super) async fn open(options: BusOptions) -> Result<Arc<dyn Carries>, QueueError> {
    absent(&options.kind)?;
    let until = tokio::time::Instant::now() + START;
    loop {
        match connect(&options).await {
            Err(error) if tokio::time::Instant::now() < until => {
                tracing::warn!(%error, "the swarm's bus is not ready");
                tokio::time::sleep(BREATH).await;
            }
            outcome => return outcome,
        }
    }
}

/// This build does not have it.
fn absent(kind: &BusKind) -> Result<(), QueueError> {
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

async fn connect(options: &BusOptions) -> Result<Arc<dyn Carries>, QueueError> {
    match &options.kind {
        BusKind::File(path) => {
            let clock = &options.clock;
            let open = |lane: Lane| async move { File::open(clock, path, lane) };
            Ok(Arc::new(Bus::new(options, open).await?))
        }
        #[cfg(feature = "nats")]
        BusKind::Nats(server) => {
            let open = |lane: Lane| async move { crate::queue::nats::Jet::open(server, &lane).await };
            Ok(Arc::new(Bus::new(options, open).await?))
        }
        #[cfg(feature = "redis")]
        BusKind::Redis(server) => {
            let open = |lane: Lane| async move {
                let streams = crate::queue::redis::Streams::new(server, lane)?;
                streams.reader().await?;
                Ok(streams)
            };
            Ok(Arc::new(Bus::new(options, open).await?))
        }
        #[cfg(not(feature = "nats"))]
        BusKind::Nats(_) => absent(&options.kind).and(Err(QueueError::Broker("nats".to_owned()))),
        #[cfg(not(feature = "redis"))]
        BusKind::Redis(_) => absent(&options.kind).and(Err(QueueError::Broker("redis".to_owned()))),
    }
}

/// One identity's two ends.
struct Ends<B> {
    names: Names,
    /// Where its tasks are taken; none: not by this host.
    inbox: Option<B>,
    /// Where its reports are read, and by which its tasks are put into the inbox.
    outbox: B,
    places: Arc<Semaphore>,
}

struct Bus<B> {
    swarm: String,
    host: String,
    role: Role,
    giver: Option<(String, PublicKey)>,
    clock: Arc<dyn Clock>,
    ends: BTreeMap<String, Ends<B>>,
    gone: AtomicBool,
    claims: Claims,
    steady: Steady,
}

impl<B: Broker> Bus<B> {
    async fn new<F: Future<Output = Result<B, QueueError>>>(
        options: &BusOptions,
        open: impl Fn(Lane) -> F,
    ) -> Result<Self, QueueError> {
        let mut ends = BTreeMap::new();
        for (identity, at_once) in &options.identities {
            let names = Names::new(&options.swarm, identity);
            let lane = |take: &str, shared: bool, group: String, puts| Lane {
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
            let end = Ends {
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
            steady: Steady::new(Arc::clone(&options.clock)),
        })
    }

    fn failed(&self, error: &dyn std::fmt::Display) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the swarm's bus is gone; tasks wait");
        }
    }

    /// Puts a task where those are that can do it; then its report is awaited by whoever drops this.
    async fn put(&self, errand: &Errand) -> Worked {
        let Some(ends) = self.ends.get(&errand.identity) else {
            return std::future::pending().await;
        };
        let request = json!({
            "jsonrpc": "2.0", "id": errand.request_id, "method": Method::SwarmDelegate.name(), "params": errand.params(),
        });
        let line = request.to_string().into_bytes();
        loop {
            let put = ends
                .outbox
                .publish(&ends.names.inbox, &self.host, &line, errand.request_id.as_str());
            match tokio::time::timeout(PUT, put).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => self.failed(&error),
                Err(_) => self.failed(&"no answer"), // silent-ok: the deadline is the whole cause
            }
            tokio::time::sleep(BREATH).await;
        }
        self.gone.store(false, Ordering::Relaxed);
        std::future::pending().await
    }

    /// Takes tasks of one identity, as many as there are places.
    async fn take(
        self: Arc<Self>,
        identity: String,
        (kernel, session): (Kernel, SessionId),
        (tasks, over): (TaskTracker, CancellationToken),
    ) {
        let Some(ends) = self.ends.get(&identity) else {
            return;
        };
        let Some(inbox) = &ends.inbox else { return };
        while let Some(Ok(place)) = over
            .run_until_cancelled(Arc::clone(&ends.places).acquire_owned())
            .await
        {
            let mut place = Some(place);
            match over.run_until_cancelled(inbox.next()).await {
                None => return,
                Some(Ok(parcels)) => {
                    self.gone.store(false, Ordering::Relaxed);
                    for parcel in parcels {
                        let (own, identity, over) = (Arc::clone(&self), identity.clone(), over.clone());
                        let (kernel, place) = (kernel.clone(), place.take());
                        tasks.spawn(async move {
                            let work = own.work_off(&identity, &parcel, (&kernel, session));
                            over.run_until_cancelled(work).await;
                            drop(place);
                        });
                    }
                }
                Some(Err(error)) => {
                    self.failed(&error);
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }

    /// Works on one task and puts its report away. What fails comes again, here or on another host.
    async fn work_off(&self, identity: &str, parcel: &Parcel<B::Receipt>, on: (&Kernel, SessionId)) {
        let Some(ends) = self.ends.get(identity) else {
            return;
        };
        let Some(inbox) = &ends.inbox else { return };
        let buried = match self.read(identity, parcel) {
            Ok(params) => match self.worked((identity, inbox), parcel, params, on).await {
                Some(Ok(report)) => {
                    self.put_away(ends, inbox, parcel, &report).await;
                    return;
                }
                // The agent ends, or can't record: it comes again.
                None => return,
                Some(Err(refused)) => refused,
            },
            Err(reason) => reason,
        };
        tracing::warn!(reason = %buried, "a task of the bus is a dead letter");
        if let Err(error) = inbox.bury(parcel, &buried).await {
            self.failed(&error);
        }
    }

    fn read(&self, identity: &str, parcel: &Parcel<B::Receipt>) -> Result<DelegateParams, String> {
        #[derive(Deserialize)]
        struct Asked {
            method: String,
            params: DelegateParams,
        }
        if parcel.tries > TRIES {
            return Err(format!("given out {TRIES} times, and no host has reported it"));
        }
        let asked: Asked =
            serde_json::from_slice(&parcel.message).map_err(|error| format!("not readable: {error}"))?;
        if asked.method != Method::SwarmDelegate.name() || asked.params.context.swarm != self.swarm {
            return Err("it is no task for this swarm".to_owned());
        }
        if let Some((name, key)) = &self.giver {
            let now_ms = self.clock.now().as_millis();
            proof::check_task(&asked.params, identity, (now_ms, PROVEN_DAYS), key)
                .map_err(|why| format!("this task is not taken as given by `{name}`: {why}"))?;
        }
        let limits = asked.params.context.limits.as_ref();
        let most = limits
            .and_then(|limits| limits.timeout_ms)
            .map(Duration::from_millis);
        if most.is_some_and(|most| self.steady.since(parcel.put) > most) {
            return Err("its time was over before anybody took it".to_owned());
        }
        Ok(asked.params)
    }

    /// The report; none: it comes again. An error: it can't be done at all.
    async fn worked(
        &self,
        (identity, inbox): (&str, &B),
        parcel: &Parcel<B::Receipt>,
        params: DelegateParams,
        (kernel, session): (&Kernel, SessionId),
    ) -> Option<Result<(String, String), String>> {
        let (task, token) = (params.task_id.clone(), params.context.report_token.clone());
        if parcel.tries > 1
            && let Some(told) = self
                .of_another(inbox, parcel, (kernel, &task), token.as_deref())
                .await
        {
            return told.map(Ok);
        }
        let held = self.claims.hold(&task, identity);
        match kernel.delegate(session, params).await {
            Ok(_) => {}
            Err(KernelError::NotReady(_) | KernelError::Journal(_)) => return None, // silent-ok: it comes again
            Err(error) => return Some(Err(error.to_string())),
        }
        let ended = kernel.swarm_result(&task);
        tokio::pin!(ended);
        let result = loop {
            tokio::select! {
                result = &mut ended => break result?,
                () = tokio::time::sleep(SIGN) => {
                    let sent = Instant::now();
                    match tokio::time::timeout(PUT, inbox.progress(&parcel.receipt)).await {
                        Ok(Ok(())) => held.heard(sent),
                        Ok(Err(error)) => tracing::debug!(%error, "a task may be given to another host"),
                        Err(_) => tracing::debug!("a task may be given to another host"), // silent-ok: the deadline is the whole cause
                    }
                }
            }
        };
        self.claims.forget(&task);
        if !held.may_report() {
            tracing::warn!(%task, "this host was cut off while it worked: whoever holds the task now reports it");
            return None;
        }
        Some(Ok((
            task.to_string(),
            reports::text(kernel, &task, &result, token.as_deref()),
        )))
    }

    /// What is done with a task that comes again because another host began effects of it and was not heard of since; none: it is
    /// worked on. It is left to that host for a while, and then it has failed: its effects are not known here.
    async fn of_another(
        &self,
        inbox: &B,
        parcel: &Parcel<B::Receipt>,
        (kernel, task): (&Kernel, &RequestId),
        token: Option<&str>,
    ) -> Option<Option<(String, String)>> {
        let owner = match inbox.owner(task.as_str()).await {
            Ok(owner) => owner.filter(|owner| *owner != self.host)?,
            Err(error) => {
                self.failed(&error);
                return Some(None);
            }
        };
        if parcel.tries < TRIES {
            return Some(None);
        }
        let message = format!("the host `{owner}` began effects of it and has not reported");
        Some(Some((
            task.to_string(),
            reports::lost(kernel, task, ("effects_unknown", &message), token),
        )))
    }

    /// Puts a report into the outbox; then the task is out of the inbox.
    async fn put_away(
        &self,
        ends: &Ends<B>,
        inbox: &B,
        parcel: &Parcel<B::Receipt>,
        (task, report): &(String, String),
    ) {
        loop {
            let put = inbox.publish(&ends.names.outbox, &self.host, report.as_bytes(), task);
            match tokio::time::timeout(PUT, put).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) => self.failed(&error),
                Err(_) => self.failed(&"no answer"), // silent-ok: the deadline is the whole cause
            }
            tokio::time::sleep(BREATH).await;
        }
        if let Err(error) = inbox.done(&parcel.receipt).await {
            // It comes again, and its stored report is told again.
            self.failed(&error);
        }
    }

    /// Reads the reports of one identity.
    async fn hear(self: Arc<Self>, identity: String, desk: Arc<dyn Reports>, over: CancellationToken) {
        let Some(ends) = self.ends.get(&identity) else {
            return;
        };
        loop {
            match over.run_until_cancelled(ends.outbox.next()).await {
                None => return,
                Some(Ok(parcels)) => {
                    for parcel in parcels {
                        if !heard(&*desk, &parcel).await {
                            continue;
                        }
                        if let Err(error) = ends.outbox.done(&parcel.receipt).await {
                            self.failed(&error);
                        }
                    }
                }
                Some(Err(error)) => {
                    self.failed(&error);
                    tokio::time::sleep(BREATH).await;
                }
            }
        }
    }
}

/// Takes a report; `false`: it is looked at again.
async fn heard<R>(desk: &dyn Reports, parcel: &Parcel<R>) -> bool {
    #[derive(Deserialize)]
    struct Told {
        params: ReportParams,
    }
    let told = match serde_json::from_slice::<Told>(&parcel.message) {
        Ok(told) => told.params,
        Err(error) => {
            tracing::warn!(%error, "a message on the bus is no report");
            return true;
        }
    };
    if !desk.knows(&told.task_id) {
        // It is another host's; or ours, and its try is about to be taken up again.
        return parcel.tries >= LOOKS;
    }
    match desk.report(None, told).await {
        Ok(_) => true,
        Err(KernelError::NotReady(_) | KernelError::Journal(_)) => false,
        Err(error) => {
            tracing::warn!(%error, "a report was not taken");
            true
        }
    }
}

impl<B: Broker> Carries for Bus<B> {
    fn carries(&self, identity: &str) -> bool {
        self.ends.contains_key(identity)
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn work<'a>(&'a self, errand: &'a Errand) -> Later<'a, Worked> {
        Box::pin(self.put(errand))
    }

    fn may_begin<'a>(&'a self, run: &'a RequestId) -> Later<'a, Result<(), String>> {
        Box::pin(async move {
            let held = self.claims.fresh(run).await?;
            if held.is_owner() {
                return Ok(());
            }
            let inbox = self.ends.get(&held.identity).and_then(|ends| ends.inbox.as_ref());
            let inbox = inbox.ok_or("this host does not work for it any more")?;
            let owned = tokio::time::timeout(PUT, inbox.own(run.as_str(), &self.host)).await;
            match owned {
                Ok(Ok(owner)) if owner == self.host => {
                    held.own();
                    Ok(())
                }
                Ok(Ok(owner)) => {
                    held.lose();
                    Err(format!("the host `{owner}` has begun effects of this task"))
                }
                Ok(Err(error)) => {
                    self.failed(&error);
                    held.lose();
                    Err("the bus did not confirm that this host holds the task".to_owned())
                }
                // silent-ok: the deadline is the whole cause
                Err(_) => {
                    held.lose();
                    Err("the bus did not confirm in time that this host holds the task".to_owned())
                }
            }
        })
    }

    fn attach<'a>(
        self: Arc<Self>,
        kernel: Kernel,
        tasks: &'a TaskTracker,
        over: &'a CancellationToken,
    ) -> Later<'a, ()> {
        Box::pin(async move {
            let door = Door::Peer {
                identity: format!("swarm {}", self.swarm),
                task_id: self.swarm.clone(),
                role: self.role,
            };
            let session = match kernel.open(door).await {
                Ok(session) => session.id,
                Err(error) => return tracing::error!(%error, "this host can't work for its swarm"),
            };
            let desk = kernel.reports();
            for (identity, ends) in &self.ends {
                let hear = Arc::clone(&self).hear(identity.clone(), Arc::clone(&desk), over.clone());
                tasks.spawn(hear);
                if ends.inbox.is_some() {
                    let on = (kernel.clone(), session);
                    let take = Arc::clone(&self).take(identity.clone(), on, (tasks.clone(), over.clone()));
                    tasks.spawn(take);
                }
            }
        })
    }
}
