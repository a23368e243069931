use super::{ClawUri, Kind, UriError, is_name, is_version};

#[test]
fn the_specification_s_examples() {
    let cases = [
        (
            "claw://local/identity/research-assistant",
            "claw://local/identity/research-assistant",
        ),
        (
            "claw://identity/research-assistant",
            "claw://local/identity/research-assistant",
        ),
        (
            "claw://local/tool/web-fetch@1.2.0",
            "claw://local/tool/web-fetch@1.2.0",
        ),
        ("claw://tool/web-fetch", "claw://local/tool/web-fetch"),
        (
            "claw://registry/community-skills/deep-research@2.0.0",
            "claw://registry/community-skills/deep-research@2.0.0",
        ),
        (
            "claw://local/swarm/analysis-team",
            "claw://local/swarm/analysis-team",
        ),
        ("claw://world-model/planner", "claw://local/world-model/planner"),
        (
            "claw://local/telemetry/observability",
            "claw://local/telemetry/observability",
        ),
        ("CLAW://Local/TOOL/Web", "claw://local/tool/Web"),
        (
            "claw://registry/a.b/c@1.0.0-rc.1",
            "claw://registry/a.b/c@1.0.0-rc.1",
        ),
    ];
    for (text, canonical) in cases {
        assert_eq!(
            ClawUri::parse(text).map(|uri| uri.to_string()).as_deref(),
            Ok(canonical),
            "{text}"
        );
    }
}

#[test]
fn what_the_grammar_refuses() {
    let cases = [
        ("mcp://x/y", UriError::Scheme),
        ("claw:/", UriError::Scheme),
        ("clawé//", UriError::Scheme),
        ("claw://", UriError::Form),
        ("claw://local/tool/a/b", UriError::Form),
        ("claw://claw/x", UriError::Kind("claw".into())),
        ("claw://local/claw/x", UriError::Kind("claw".into())),
        ("claw://tool/x@1.0.0", UriError::AliasVersion),
        ("claw://tool/", UriError::Name(String::new())),
        ("claw://tool/a_b", UriError::Name("a_b".into())),
        ("claw://local/tool/x@1.0", UriError::Version("1.0".into())),
        (
            "claw://local/tool/x@1.0.0+build",
            UriError::Version("1.0.0+build".into()),
        ),
        ("claw://registry/ns/x", UriError::NoVersion),
        ("claw://registry/n s/x@1.0.0", UriError::Namespace("n s".into())),
    ];
    for (text, error) in cases {
        assert_eq!(ClawUri::parse(text), Err(error), "{text}");
    }
}

#[test]
fn names_are_1_to_63_letters_digits_hyphens() {
    assert!(is_name(&"a".repeat(63)) && !is_name(&"a".repeat(64)) && !is_name("") && !is_name("ä"));
    assert!(
        is_version("1.2.3") && is_version("01.2.3-x.y") && !is_version("1.2.3-") && !is_version("v1.2.3")
    );
}

#[test]
fn the_wire_takes_canonical_forms_only() {
    assert_eq!(ClawUri::parse_canonical("claw://tool/x"), Err(UriError::Alias));
    assert!(serde_json::from_str::<ClawUri>("\"claw://tool/x\"").is_err());
    let uri: ClawUri = serde_json::from_str("\"claw://local/tool/x\"").unwrap();
    assert_eq!(serde_json::to_string(&uri).unwrap(), "\"claw://local/tool/x\"");
}

#[test]
fn kinds_read_what_they_write() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_segment(kind.segment()), Some(kind));
        assert_eq!(Kind::from_title(kind.title()), Some(kind));
    }
}
