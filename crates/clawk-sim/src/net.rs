//! The network: messages in transit between hosts.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::ports::{BoxFuture, MemberRoute, RemoteResult, RemoteTask, RemoteWorkers, ReportReceiver};
use clawk_proto::RequestId;
use clawk_proto::method::{DelegateParams, ReportParams};
use clawk_trace::checkpoint::PublicKey;
use serde_json::json;

/// A message in transit.
#[derive(Debug, Clone)]
pub(crate) enum SimPacket {
    /// From the leader to a worker.
    Task(Box<DelegateParams>),
    /// From a worker to the leader.
    Report(Box<ReportParams>),
}

/// All messages in transit, in the order of sending. A message stays until it is removed.
#[derive(Clone, Default)]
pub(crate) struct SimNetwork(Arc<Mutex<VecDeque<SimPacket>>>);

impl fmt::Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Net({})", self.lock().len())
    }
}

impl SimNetwork {
    fn lock(&self) -> MutexGuard<'_, VecDeque<SimPacket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send_packet(&self, packet: SimPacket) {
        self.lock().push_back(packet);
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// A copy of the message at this position.
    pub(crate) fn peek_packet(&self, at: usize) -> Option<SimPacket> {
        self.lock().get(at).cloned()
    }

    /// Removes and returns the message at this position.
    pub(crate) fn take_packet(&self, at: usize) -> Option<SimPacket> {
        self.lock().remove(at)
    }

    /// Removes and returns the oldest message.
    pub(crate) fn take_oldest(&self) -> Option<SimPacket> {
        self.lock().pop_front()
    }

    /// Removes all messages.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Puts a message back at its position, or at the end.
    pub(crate) fn put_back(&self, at: usize, packet: SimPacket) {
        let mut packets = self.lock();
        let at = at.min(packets.len());
        packets.insert(at, packet);
    }

    /// Removes a message that has arrived.
    pub(crate) fn drop_at(&self, at: usize) {
        self.lock().remove(at);
    }
}

/// The leader's view of the bus: every other identity is remote.
#[derive(Debug)]
pub(crate) struct Bus(pub(crate) SimNetwork);

impl RemoteWorkers for Bus {
    fn member_route(&self, identity: &str) -> Option<MemberRoute> {
        (identity == "hand").then_some(MemberRoute::Bus)
    }

    fn is_gone(&self, _identity: &str) -> bool {
        false
    }

    fn lives_here(&self, _identity: &str) -> bool {
        false
    }

    fn timeout_ms(&self, _identity: &str) -> Option<u64> {
        None
    }

    fn allowed_tools(&self, _identity: &str) -> Option<Vec<String>> {
        None
    }

    fn report_key(&self, _identity: &str) -> Option<PublicKey> {
        None
    }

    fn perform_task<'a>(
        &'a self,
        errand: RemoteTask,
        _reports: Arc<dyn ReportReceiver>,
    ) -> BoxFuture<'a, RemoteResult> {
        Box::pin(async move {
            let params = json!({
                "task_id": errand.id, "task": {"description": errand.text},
                "context": {"request_id": errand.request_id, "swarm": errand.swarm, "member": errand.member,
                    "report_token": errand.report_token, "limits": errand.limits},
            });
            let params = serde_json::from_value(params).expect("what is sent can be read");
            self.0.send_packet(SimPacket::Task(Box::new(params)));
            std::future::pending().await
        })
    }

    fn may_begin<'a>(&'a self, _run: &'a RequestId) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
