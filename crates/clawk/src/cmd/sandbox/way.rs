//! The network path of the box: the egress proxy that tools use, and its report.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clawk_egress::proxy::{self, Options};
use clawk_egress::{ConnectionLedger, ConnectionReport, HostAllowList, HostPattern, Proxy};
use clawk_plan::{Level, NetworkMode};
use clawk_sandbox::{EgressGate, EgressServerHandle, Spec};
use clawk_secrets::EnvironmentSource;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::asked::BoxRequest;

/// Time limit at the end for reports of connections.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The egress proxy of one run.
pub(super) struct SandboxEgress {
    ledger: Option<Arc<ConnectionLedger>>,
    tasks: TaskTracker,
}

/// Parses the proxy's host entries. An invalid one is an error here, because a person waits for the result.
fn parse_patterns(texts: &[String]) -> Result<Vec<HostPattern>> {
    let read = |text: &String| HostPattern::try_from(text.to_lowercase());
    texts.iter().map(|text| Ok(read(text)?)).collect()
}

impl SandboxEgress {
    /// Adds a proxy for the hosts that the plan allows to the specification.
    ///
    /// # Errors
    /// A host can't be parsed, or the proxy can't be set up.
    pub(super) fn open(asked: &BoxRequest, spec: &mut Spec) -> Result<Self> {
        let tasks = TaskTracker::new();
        let network = asked.plan.network();
        let guest = asked.plan.level() == Level::Wasm;
        if (network.mode == NetworkMode::Deny && !guest) || asked.plan.level() == Level::None {
            return Ok(Self { ledger: None, tasks });
        }
        let hosts = match network.mode {
            NetworkMode::AllowAll => parse_patterns(&["*".to_owned()])?,
            NetworkMode::Deny => Vec::new(),
            NetworkMode::Allowlist => parse_patterns(&network.allowed_hosts)?,
        };
        let rules = HostAllowList {
            hosts,
            allow_private: parse_patterns(&asked.allow_private)?,
            any_private: !network.block_private_ips,
            any_port: network.mode == NetworkMode::AllowAll,
            ..HostAllowList::default()
        };
        let options = Options {
            rules,
            ..Options::default()
        };
        let proxy = Proxy::new(options, &EnvironmentSource::Process).context("the egress proxy")?;
        let call = proxy.call(&["sandbox"]).context("the egress proxy")?;
        if !guest {
            let door = ([127, 0, 0, 1], clawk_sandbox::launch::door::PORT).into();
            spec.env.extend(proxy::proxy_variables(door, None));
        }
        let ledger = Some(Arc::clone(call.ledger()));
        let (tracker, lane_tracker, lanes) = (tasks.clone(), tasks.clone(), call.clone());
        let doors = EgressGate::new(move |door| {
            let listener = tokio::net::TcpListener::from_std(door.listener)?;
            let stop = CancellationToken::new();
            let (stopped, call) = (stop.clone(), call.clone());
            tracker.spawn(async move { call.serve_listener(listener, stopped.cancelled_owned()).await });
            Ok(Box::new(stop.drop_guard()) as EgressServerHandle)
        });
        spec.gate = Some(doors.with_lanes(move |lane| {
            let stop = CancellationToken::new();
            let (stopped, call) = (stop.clone(), lanes.clone());
            lane_tracker.spawn(async move { call.serve_guest(lane, stopped.cancelled_owned()).await });
            Box::new(stop.drop_guard()) as EgressServerHandle
        }));
        Ok(Self { ledger, tasks })
    }

    /// Ends the proxy after the run. Returns the connections.
    pub(super) async fn into_report(self) -> ConnectionReport {
        self.tasks.close();
        let _ = tokio::time::timeout(LAST_WORDS, self.tasks.wait()).await; // silent-ok: then they are told without their ends
        self.ledger.map(|ledger| ledger.take_report()).unwrap_or_default()
    }
}
