//! The static check of a network host. It refuses what no resolved address could make legal. The egress guard calls the same
//! function again when the addresses are known.

use clawk_proto::place::{HostAllowList, HostPort};

use crate::level::SandboxRefusal;
use crate::plan::{Network, NetworkMode};

pub(super) fn check_host(network: &Network, host: &str, port: u16) -> Result<(), SandboxRefusal> {
    let (rule, allowed) = match network.mode {
        NetworkMode::Deny => ("network.mode: deny", "no connection at all".to_owned()),
        NetworkMode::AllowAll | NetworkMode::Allowlist if is_allowed(network, host, port) => return Ok(()),
        NetworkMode::AllowAll | NetworkMode::Allowlist => {
            ("network.allowed_hosts", list_hosts(&network.allowed_hosts))
        }
    };
    Err(SandboxRefusal::Blocked {
        rule: rule.to_owned(),
        subject: format!("a connection to `{host}:{port}`"),
        allowed,
    })
}

fn is_allowed(network: &Network, host: &str, port: u16) -> bool {
    let rules = HostAllowList {
        // The machine's operator, not the plan, decides which private addresses are open.
        any_private: true,
        ..network.host_rules()
    };
    match host_port(host, port) {
        Some(place) => rules.judge_place(&place).is_ok(),
        // No rule covers this kind of host; the egress guard checks the real connection.
        None => network.mode == NetworkMode::AllowAll,
    }
}

fn host_port(host: &str, port: u16) -> Option<HostPort> {
    let bare = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    HostPort::parse(&bare, Some(port))
}

fn list_hosts(hosts: &[String]) -> String {
    if hosts.is_empty() {
        return "none, the list is empty".to_owned();
    }
    let mut text = hosts
        .iter()
        .take(20)
        .map(|host| format!("`{host}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if hosts.len() > 20 {
        text.push_str(", …");
    }
    text
}
