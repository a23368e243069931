//! Checks the hosts that a call of an external tool will reach, as far as its arguments name them.
//!
//! A built-in checks its own hosts. An MCP server or a command can't be asked beforehand. If a tool uses the network and its schema
//! declares an argument as a `uri`, the sandbox's network rules are applied to that argument before anything runs (-32010). The
//! sandbox itself controls what the process then does.

use clawk_plan::preflight::Request;
use clawk_plan::{Plan, SandboxRefusal};
use serde_json::{Map, Value};

/// JSON Schema `format`s of network addresses.
const FORMATS: [&str; 4] = ["uri", "url", "iri", "uri-reference"];

/// Checks every argument that the schema declares as a URL against the plan's network rules.
///
/// # Errors
/// The plan refuses a host.
pub(super) fn check_urls(
    schema: &Value,
    arguments: &Map<String, Value>,
    plan: &Plan,
) -> Result<(), SandboxRefusal> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return Ok(());
    };
    for (name, property) in properties {
        let is_url = |part: Option<&Value>| {
            part.and_then(|part| part.get("format")?.as_str())
                .is_some_and(|format| FORMATS.contains(&format))
        };
        if !is_url(Some(property)) && !is_url(property.get("items")) {
            continue;
        }
        let given = match arguments.get(name) {
            Some(Value::Array(items)) => items.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => continue,
        };
        for (host, port) in given.iter().filter_map(Value::as_str).filter_map(parse_host_port) {
            plan.preflight(&Request::Url { host: &host, port })?;
        }
    }
    Ok(())
}

/// Returns host and port of a URL with an authority. If other parsers might read it differently, returns a host that no rule
/// allows.
fn parse_host_port(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once(':')?;
    let known = match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => 80,
        "https" | "wss" => 443,
        "ftp" => 21,
        _ => 0,
    };
    if url.contains(|c: char| c == '\\' || c.is_whitespace() || c.is_control()) {
        return Some((url.chars().take(256).collect(), known));
    }
    let rest = rest.strip_prefix("//")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = match place.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((address, after)) => (address, after.strip_prefix(':')),
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    match port {
        None | Some("") => Some((host.to_owned(), known)),
        // silent-ok: a port that is not a number belongs to an address that no rule allows
        Some(port) => Some(
            port.parse()
                .map_or_else(|_| (place.to_owned(), 0), |port| (host.to_owned(), port)),
        ),
    }
}

#[cfg(test)]
mod tests;
