use clawk_plan::{Plan, PlanDefaults};
use serde_json::{Value, json};

use super::{check_urls, parse_host_port};

fn plan(network: &Value) -> Plan {
    let sandbox = json!({"name": "s", "level": "none", "capabilities": {"network": network}});
    let sandbox = serde_json::from_value(sandbox).expect("a sandbox");
    Plan::compile(Some(&sandbox), &PlanDefaults::default())
}

fn refused(network: &Value, arguments: &Value) -> bool {
    let schema = json!({"type": "object", "properties": {
        "url": {"type": "string", "format": "uri"},
        "many": {"type": "array", "items": {"type": "string", "format": "uri"}},
        "text": {"type": "string"}}});
    check_urls(&schema, arguments.as_object().expect("an object"), &plan(network)).is_err()
}

#[test]
fn declared_urls_meet_the_network_rules() {
    let allowlist = json!({"mode": "allowlist", "allowed_hosts": ["example.com"]});
    for (arguments, expected) in [
        (json!({"url": "https://example.com/a"}), false),
        (json!({"url": "https://EXAMPLE.com."}), false),
        (json!({"url": "http://169.254.169.254/metadata"}), true),
        (json!({"url": "https://example.com@evil.test/"}), true),
        (json!({"url": "https://evil.test\\@example.com/"}), true),
        (json!({"url": "https://evil.test#@example.com/"}), true),
        (json!({"url": "https://example.com:443@evil.test"}), true),
        (json!({"url": "https://[::1]:8080/"}), true),
        (json!({"url": "https://example.com:x/"}), true),
        (
            json!({"many": ["https://example.com", "https://evil.test"]}),
            true,
        ),
        (json!({"text": "https://evil.test"}), false),
        (json!({"url": "data:text/plain,x"}), false),
        (json!({"url": 7}), false),
        (json!({}), false),
    ] {
        assert_eq!(refused(&allowlist, &arguments), expected, "{arguments}");
    }
    assert!(refused(
        &json!({"mode": "deny"}),
        &json!({"url": "https://example.com"})
    ));
    assert!(!refused(
        &json!({"mode": "allow-all"}),
        &json!({"url": "https://example.com"})
    ));
}

#[test]
fn a_place_has_a_host_and_a_port() {
    for (url, expected) in [
        ("http://a.b/c", Some(("a.b", 80))),
        ("wss://a.b:81?x", Some(("a.b", 81))),
        ("https://[fe80::1]/", Some(("fe80::1", 443))),
        ("mailto:x@y.z", None),
        ("no url", None),
    ] {
        assert_eq!(
            parse_host_port(url),
            expected.map(|(host, port)| (host.to_owned(), port)),
            "{url}"
        );
    }
}
