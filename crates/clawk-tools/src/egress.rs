//! Network access of a tool: the proxy of its sandbox, the placeholders of its secrets, and the records of its connections.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_egress::proxy::{self, Options};
use clawk_egress::{
    ConnectionLedger, EgressError, EgressSecret, HostAllowList, HostPattern, HostPort, Proxy, ProxyCall,
    SecretScreen,
};
use clawk_kernel::ports::{self, ConnectionCollector};
use clawk_plan::plan::SecretInjectionMode;
use clawk_plan::{Level, Network, NetworkMode, Plan, SandboxRefusal};
use clawk_sandbox::{EgressGate, EgressServerHandle, InMemoryFile, Spec};
use clawk_secrets::EnvironmentSource;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The certificate file's name in the sandbox.
const BUNDLE: &str = "ca-bundle.pem";

/// The maximum number of cached proxies, one per set of rules.
const MAX_KEPT: usize = 16;

/// How long the end of a call waits for the last connection records.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// `[egress]` and `[secrets]` of `clawk.toml`, resolved; and the screen for requests.
#[derive(Debug, Clone, Default)]
pub struct EgressSettings {
    /// Private addresses that a manifest's hosts may name: exact names or IP literals.
    pub allow_private: Vec<HostPattern>,
    /// Strict mode: the proxy terminates TLS for every host.
    pub terminate_tls: bool,
    /// Secrets, and the hosts that they may be sent to.
    pub bindings: Vec<Arc<EgressSecret>>,
    /// Finds secrets in outgoing data.
    pub screen: Option<Arc<dyn SecretScreen>>,
}

/// Network access for all tools of an agent.
pub(crate) struct EgressProxies {
    egress: EgressSettings,
    env: EnvironmentSource,
    known: Mutex<Vec<(HostAllowList, Proxy)>>,
    closed: Mutex<Option<Proxy>>,
}

impl fmt::Debug for EgressProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exits({:?})", self.egress)
    }
}

impl EgressProxies {
    pub(crate) fn new(egress: EgressSettings, env: EnvironmentSource) -> Self {
        Self {
            egress,
            env,
            known: Mutex::default(),
            closed: Mutex::default(),
        }
    }

    /// The plan's rules, combined with what this machine's operator allows.
    pub(crate) fn network_rules(&self, network: &Network) -> HostAllowList {
        let rules = network.host_rules();
        let hosts = &rules.hosts;
        // Both are needed: the manifest names the host, and the operator opens the private network for it.
        let named = |entry: &&HostPattern| {
            let host = entry.exact_host().unwrap_or_default();
            network.mode == NetworkMode::AllowAll
                || hosts.iter().any(|own| {
                    own.is_for_host(host)
                        && (own.port().is_none() || entry.port().is_none_or(|port| own.port() == Some(port)))
                })
        };
        let allow_private = self.egress.allow_private.iter().filter(named).cloned().collect();
        HostAllowList {
            allow_private,
            ..rules
        }
    }

    fn create_proxy(&self, network: &Network) -> Result<Proxy, EgressError> {
        let rules = self.network_rules(network);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, proxy)) = known.iter().find(|(of, _)| *of == rules) {
            return Ok(proxy.clone());
        }
        let options = Options {
            rules: rules.clone(),
            bindings: self.egress.bindings.clone(),
            terminate_all: self.egress.terminate_tls,
            screen: self.egress.screen.clone(),
            ..Options::default()
        };
        let proxy = Proxy::new(options, &self.env)?;
        if known.len() >= MAX_KEPT {
            known.remove(0);
        }
        known.push((rules, proxy.clone()));
        Ok(proxy)
    }

    /// A proxy that allows nothing, for guests whose plan has no network.
    fn deny_all_proxy(&self) -> Result<Proxy, EgressError> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(proxy) = &*closed {
            return Ok(proxy.clone());
        }
        let proxy = Proxy::deny_all()?;
        *closed = Some(proxy.clone());
        Ok(proxy)
    }

    /// The secret bindings that are granted to any of these tools.
    fn granted_secrets(&self, tools: &[&str]) -> impl Iterator<Item = &Arc<EgressSecret>> {
        let is_for = move |binding: &&Arc<EgressSecret>| tools.iter().any(|tool| binding.is_for(tool));
        self.egress.bindings.iter().filter(is_for)
    }

    /// The network access of a run for any of `tools`: environment variables, files and the proxy connection.
    ///
    /// # Errors
    /// This plan can't keep the secrets at the boundary, or the proxy can't be set up. The run is refused.
    pub(crate) fn way_out(&self, tools: &[&str], plan: &Plan) -> Result<WayOut, SandboxRefusal> {
        let mut way = WayOut::default();
        match plan.injection() {
            SecretInjectionMode::HostBoundary => {}
            SecretInjectionMode::Environment => {
                let value =
                    |binding: &Arc<EgressSecret>| (binding.env.clone(), binding.secret.expose().to_owned());
                way.env.extend(self.granted_secrets(tools).map(value));
            }
            SecretInjectionMode::FileMount => {
                for binding in self.granted_secrets(tools) {
                    let name = binding.env.to_ascii_lowercase();
                    way.env.push((
                        format!("{}_FILE", binding.env),
                        format!("{}/{name}", InMemoryFile::FOLDER),
                    ));
                    way.files.push(InMemoryFile {
                        name,
                        bytes: binding.secret.expose().as_bytes().to_vec(),
                    });
                }
            }
        }
        let bound = plan.injection() == SecretInjectionMode::HostBoundary
            && self.granted_secrets(tools).next().is_some();
        if plan.level() == Level::None {
            return if bound {
                Err(no_boundary(plan.level()))
            } else {
                Ok(way)
            };
        }
        let guest = plan.level() == Level::Wasm;
        if guest && !way.files.is_empty() {
            return Err(no_files());
        }
        let denied = plan.network().mode == NetworkMode::Deny;
        if denied && !guest {
            return Ok(way);
        }
        let setup = |error: EgressError| SandboxRefusal::Setup {
            program: "the egress proxy".to_owned(),
            reason: error.to_string(),
        };
        let proxy = match denied {
            // A guest gets an answer with the refusal, and it is recorded. A sandboxed process without network has nothing to send
            // a request to.
            true => self.deny_all_proxy().map_err(setup)?,
            false => self.create_proxy(plan.network()).map_err(setup)?,
        };
        let granted: &[&str] = if bound && !denied { tools } else { &[] };
        let call = proxy.call(granted).map_err(setup)?;
        if guest {
            way.env.extend(call.placeholders());
            way.call = Some(call);
            return Ok(way);
        }
        // If no TLS is terminated, the tool's own root certificates are right.
        let bundle = proxy
            .trust_bundle()
            .filter(|_| bound || self.egress.terminate_tls);
        if let Some(bundle) = bundle {
            way.files.push(InMemoryFile {
                name: BUNDLE.to_owned(),
                bytes: bundle.as_bytes().to_vec(),
            });
        }
        let path = bundle.map(|_| format!("{}/{BUNDLE}", InMemoryFile::FOLDER));
        let door = ([127, 0, 0, 1], clawk_sandbox::launch::door::PORT).into();
        way.env.extend(proxy::proxy_variables(door, path.as_deref()));
        way.env.extend(call.placeholders());
        way.call = Some(call);
        Ok(way)
    }

    /// The secret headers for a request of clawk to this host: names and values.
    pub(crate) fn secret_headers(
        &self,
        tool: &str,
        host: &str,
        port: u16,
        secure: bool,
    ) -> Vec<(&EgressSecret, String)> {
        self.granted_secrets(&[tool])
            .filter(|binding| binding.is_bound(host, port) && (secure || binding.plain_http))
            .map(|binding| {
                let value = format!("{}{}", binding.prefix, binding.secret.expose());
                (&**binding, value)
            })
            .collect()
    }

    /// The screen for requests of clawk itself.
    pub(crate) fn secret_screen(&self) -> Option<&Arc<dyn SecretScreen>> {
        self.egress.screen.as_ref()
    }
}

fn no_boundary(level: Level) -> SandboxRefusal {
    SandboxRefusal::Unavailable {
        level,
        mechanism: "host-boundary secrets".to_owned(),
        missing: format!(
            "level `{level}` has no boundary: a tool there reaches the network without the proxy"
        ),
        hint: "set the Sandbox's `level` to `process`, or its `secrets.injection` to `environment`"
            .to_owned(),
    }
}

fn no_files() -> SandboxRefusal {
    SandboxRefusal::Unavailable {
        level: Level::Wasm,
        mechanism: "file-mount secrets".to_owned(),
        missing: "a WebAssembly guest has no files but those of its mounts".to_owned(),
        hint: "set the Sandbox's `secrets.injection` to `host-boundary` or `environment`".to_owned(),
    }
}

/// The network access of one run.
#[derive(Default)]
pub(crate) struct WayOut {
    env: Vec<(String, String)>,
    files: Vec<InMemoryFile>,
    call: Option<ProxyCall>,
    /// The connection records of an HTTP client, for an endpoint instead of a program.
    client: Option<Arc<ConnectionLedger>>,
    tasks: TaskTracker,
    connections: Option<ConnectionCollector>,
}

impl WayOut {
    /// Adds the network access to the launch spec.
    pub(crate) fn add_to_spec(&self, spec: &mut Spec) {
        spec.env
            .retain(|(name, _)| !self.env.iter().any(|(own, _)| own == name));
        spec.env.extend(self.env.iter().cloned());
        spec.files.extend(self.files.iter().cloned());
        spec.gate = self
            .call
            .clone()
            .map(|call| egress_gate(call, self.tasks.clone()));
    }

    /// Reports the run's connections to `connections`, also if the run is abandoned.
    pub(crate) fn with_collector(mut self, connections: &ConnectionCollector) -> Self {
        self.connections = Some(connections.clone());
        self
    }

    /// Ends the network access, and waits until the last connections are recorded.
    pub(crate) async fn finish_run(self) {
        self.tasks.close();
        let _ = tokio::time::timeout(LAST_WORDS, self.tasks.wait()).await; // silent-ok: then they are told without their ends
    }

    /// The network access of an endpoint, recorded by its client.
    pub(crate) fn of_client(ledger: Arc<ConnectionLedger>) -> Self {
        Self {
            env: Vec::new(),
            files: Vec::new(),
            call: None,
            client: Some(ledger),
            tasks: TaskTracker::new(),
            connections: None,
        }
    }

    /// Reports the connections so far. For servers that outlive calls.
    pub(crate) fn report_connections(&self, connections: &ConnectionCollector) {
        if let Some(ledger) = &self.client {
            report_ledger(ledger, connections);
        }
        if let Some(call) = &self.call {
            report_ledger(call.ledger(), connections);
        }
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
        if let Some(connections) = &self.connections {
            self.report_connections(connections);
        }
    }
}

impl fmt::Debug for WayOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("WayOut")
            .field("env", &names)
            .finish_non_exhaustive()
    }
}

/// Runs the proxy for as long as the sandbox lives, and for each request of a guest.
fn egress_gate(call: ProxyCall, tasks: TaskTracker) -> EgressGate {
    let (lanes, lane_tasks) = (call.clone(), tasks.clone());
    let doors = EgressGate::new(move |door| {
        let listener = tokio::net::TcpListener::from_std(door.listener)?;
        let stop = CancellationToken::new();
        let (stopped, call) = (stop.clone(), call.clone());
        tasks.spawn(async move { call.serve_listener(listener, stopped.cancelled_owned()).await });
        Ok(Box::new(stop.drop_guard()) as EgressServerHandle)
    });
    doors.with_lanes(move |lane| {
        let stop = CancellationToken::new();
        let (stopped, call) = (stop.clone(), lanes.clone());
        lane_tasks.spawn(async move { call.serve_guest(lane, stopped.cancelled_owned()).await });
        Box::new(stop.drop_guard()) as EgressServerHandle
    })
}

/// Converts the egress crate's records to the kernel's.
pub(crate) fn report_ledger(ledger: &ConnectionLedger, connections: &ConnectionCollector) {
    let reached = ledger.take_report();
    let one = |one: clawk_egress::ConnectionRecord| ports::CallConnection {
        via: one.via.as_str(),
        host: one.host,
        port: one.port,
        address: one.address,
        rule: one.rule,
        private: one.private,
        terminated: one.terminated,
        bytes_out: one.bytes_out,
        bytes_in: one.bytes_in,
        duration_ms: one.duration_ms,
        secrets: one.secrets,
        findings: one.findings,
        refused: one.refused.map(|denial| (denial.code, denial.reason)),
    };
    connections.add_connections(ports::ReachedConnections {
        connections: reached.connections.into_iter().map(one).collect(),
        more_connected: reached.more.connected,
        more_refused: reached.more.refused,
        more_bytes_out: reached.more.bytes_out,
        more_bytes_in: reached.more.bytes_in,
    });
}

/// A ledger whose records are reported when this is dropped.
pub(crate) struct LedgerGuard<'a>(
    pub(crate) Arc<ConnectionLedger>,
    pub(crate) &'a ConnectionCollector,
);

impl Drop for LedgerGuard<'_> {
    fn drop(&mut self) {
        report_ledger(&self.0, self.1);
    }
}

/// The host and port of a URL.
pub(crate) fn host_port(url: &clawk_egress::Url) -> HostPort {
    HostPort {
        host: url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .trim_end_matches('.')
            .to_ascii_lowercase(),
        port: url.port_or_known_default().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
