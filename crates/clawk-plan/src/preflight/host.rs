//! The network's static check: what no address can mend. It asks the same function as the egress guard, which judges again, with
//! the addresses, when they are known.

use clawk_proto::place::{HostAllowList, HostPort};

use crate::level::SandboxRefusal;
use crate::plan::{Network, NetworkMode};

pub(super) fn check(network: &Network, host: &str, port: u16) -> Result<(), SandboxRefusal> {
    let (rule, allowed) = match network.mode {
        NetworkMode::Deny => ("network.mode: deny", "no connection at all".to_owned()),
        NetworkMode::AllowAll | NetworkMode::Allowlist if may(network, host, port) => return Ok(()),
        NetworkMode::AllowAll | NetworkMode::Allowlist => {
            ("network.allowed_hosts", listed(&network.allowed_hosts))
        }
    };
    Err(SandboxRefusal::Blocked {
        rule: rule.to_owned(),
        subject: format!("a connection to `{host}:{port}`"),
        allowed,
    })
}

fn may(network: &Network, host: &str, port: u16) -> bool {
    let rules = HostAllowList {
        // Which addresses of the own network are open is said by this machine's operator, not by the plan.
        any_private: true,
        ..network.rules()
    };
    match place(host, port) {
        Some(place) => rules.judge_place(&place).is_ok(),
        // No rule knows it; what the call makes of it, the guard sees.
        None => network.mode == NetworkMode::AllowAll,
    }
}

fn place(host: &str, port: u16) -> Option<HostPort> {
    let bare = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    HostPort::parse(&bare, Some(port))
}

fn listed(hosts: &[String]) -> String {
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
