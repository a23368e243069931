//! R1, R2, R3a: the judgement before anything starts.

use clawk_proto::method::MethodGroup;
use serde_json::{Value, json};

use super::{judge, negotiate};

fn params(change: impl FnOnce(&mut Value)) -> String {
    let mut params = json!({
        "protocolVersion": "0.2.0",
        "clientInfo": {"name": "t", "version": "1"},
        "manifest": {"kind": "Claw"},
        "capabilities": {},
    });
    change(&mut params);
    params.to_string()
}

#[test]
fn r1_the_answered_version_is_the_lower_one_of_major_0() {
    for (requested, answered) in [
        ("0.2.0", "0.2.0"),
        ("0.3.0", "0.3.0"),
        ("0.1.0", "0.1.0"),
        ("0.0.1", "0.0.1"),
        ("0.3.1", "0.3.0"),
        ("0.99.0", "0.3.0"),
        ("0.3.0-beta.1", "0.3.0-beta.1"),
        ("0.4.0-alpha", "0.3.0"),
        ("0.3.0+build.7", "0.3.0"),
    ] {
        let asked = judge(&params(|p| p["protocolVersion"] = json!(requested))).expect(requested);
        assert_eq!(asked.version, answered, "{requested}");
    }
}

#[test]
fn r1_other_majors_are_minus_32001_and_say_what_is_supported() {
    for requested in ["1.0.0", "9.0.0", "2.0.0-rc.1", "18446744073709551615.0.0"] {
        let error = judge(&params(|p| p["protocolVersion"] = json!(requested))).expect_err(requested);
        assert_eq!(error.code, -32001, "{requested}");
        assert_eq!(error.data.expect("data")["supported"], json!(["0.2.0", "0.3.0"]));
    }
}

#[test]
fn r1_what_is_no_semantic_version_is_minus_32602() {
    for garbage in [
        json!("0.3"),
        json!("v0.2.0"),
        json!(""),
        json!("latest"),
        json!("0.2.0 "),
        json!(2),
        json!(null),
    ] {
        let error = judge(&params(|p| p["protocolVersion"] = garbage.clone())).expect_err("refused");
        assert_eq!(error.code, -32602, "{garbage}");
    }
}

#[test]
fn r3a_shape_comes_before_version() {
    let error = judge(&params(|p| {
        p["protocolVersion"] = json!("9.0.0");
        p["manifest"] = json!(7);
    }));
    assert_eq!(error.expect_err("refused").code, -32602);
}

#[test]
fn a_manifest_may_be_a_canonical_uri() {
    judge(&params(|p| {
        p["manifest"] = json!("claw://registry/agents/helper@1.0.0")
    }))
    .expect("well-formed");
}

#[test]
fn r3a_every_member_is_required_and_has_its_shape() {
    for member in ["protocolVersion", "clientInfo", "manifest", "capabilities"] {
        let error = judge(&params(|p| {
            p.as_object_mut().expect("an object").remove(member);
        }));
        assert_eq!(error.expect_err(member).code, -32602, "{member}");
    }
    for (member, wrong) in [
        ("clientInfo", json!({"name": "t"})),
        ("clientInfo", json!("t")),
        ("manifest", json!([])),
        ("manifest", json!("https://example.com/claw.yaml")),
        ("manifest", json!("claw://identity/alias")),
        ("manifest", json!(null)),
        ("capabilities", json!([])),
        ("capabilities", json!(null)),
        ("capabilities", json!({"tools": true})),
    ] {
        assert_eq!(
            judge(&params(|p| p[member] = wrong.clone()))
                .expect_err(member)
                .code,
            -32602,
            "{member}: {wrong}"
        );
    }
    for text in ["[]", "[1]", "{}"] {
        assert_eq!(judge(text).expect_err(text).code, -32602);
    }
}

#[test]
fn r2_capabilities_are_all_or_the_intersection() {
    let answer = |capabilities: Value, served: &[MethodGroup]| {
        let asked = judge(&params(|p| p["capabilities"] = capabilities)).expect("well-formed");
        Value::Object(negotiate(&asked, |group| served.contains(&group)))
    };
    let all = [MethodGroup::Tools, MethodGroup::Swarm, MethodGroup::Memory];
    assert_eq!(
        answer(json!({}), &all),
        json!({"tools": {}, "swarm": {}, "memory": {}})
    );
    assert_eq!(answer(json!({}), &[MethodGroup::Tools]), json!({"tools": {}}));
    assert_eq!(answer(json!({}), &[]), json!({}), "Level 1 answers {{}}");
    assert_eq!(answer(json!({"memory": {}}), &all), json!({"memory": {}}));
    assert_eq!(
        answer(json!({"tools": {}, "memory": {}}), &[MethodGroup::Tools]),
        json!({"tools": {}})
    );
    assert_eq!(answer(json!({"telepathy": {}}), &all), json!({}));
    let notify = json!({"tools": {"approvals": "notify"}});
    assert_eq!(answer(notify.clone(), &all), notify, "R18a");
}
