//! Every form of a rule, from the manifest's types to the verdict.

use std::collections::BTreeMap;
use std::path::Path;

use clawk_manifest::model;
use serde_json::{Map, Value, json};

use crate::engine::{Engine, PolicySubject, UsageView};
use crate::source::{CompileError, WarningKind};
use crate::verdict::{Approval, Effect, TimeoutDefault, Verdict, autonomy_verdict};

fn policy(name: &str, rules: &Value) -> model::Policy {
    serde_json::from_value(json!({"name": name, "rules": rules})).expect("a policy")
}

pub(super) fn engine(rules: &Value) -> Engine {
    Engine::compile(&[policy("main", rules)]).expect("compiles")
}

/// A call described as JSON: tool, category, labels, annotations, arguments, tokens.
fn decide_with<T>(call: &Value, ask: impl FnOnce(&PolicySubject<'_>) -> T) -> T {
    let map = |key: &str| {
        call.get(key)
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    };
    let mut labels: BTreeMap<String, String> = map("labels")
        .iter()
        .map(|(k, v)| (k.clone(), v.as_str().expect("text").to_owned()))
        .collect();
    if let Some(category) = call.get("category").and_then(Value::as_str) {
        labels.insert("category".to_owned(), category.to_owned());
    }
    let usage = UsageView {
        tokens_today: call.get("tokens").and_then(Value::as_u64).unwrap_or(0),
        cost_today_microusd: call.get("cost").and_then(Value::as_u64).unwrap_or(0),
    };
    // `null`: nobody knows what the context was made of.
    let taint: Option<Vec<String>> = match call.get("taint") {
        None => Some(Vec::new()),
        Some(given) => serde_json::from_value(given.clone()).expect("origins"),
    };
    ask(&PolicySubject {
        tool: call["tool"].as_str().expect("tool"),
        labels: &labels,
        annotations: &map("annotations"),
        arguments: &map("arguments"),
        schema: None,
        workdir: Path::new("/workspace"),
        usage,
        places: None,
        taint: taint.as_deref(),
        values: None,
    })
}

fn decide(engine: &Engine, call: &Value) -> Verdict {
    decide_with(call, |subject| engine.decide(subject))
}

fn deciding(rules: &Value, call: &Value) -> Option<String> {
    decide(&engine(rules), call).rule_id.map(|id| id.to_string())
}

/// Scope, `match`, the call, and whether a rule made so applies (R11).
const MATCHES: &str = r#"
tool | {} | {"tool":"x"} | applies
all | {} | {"tool":"x"} | applies
category | {} | {"tool":"x"} | not
category | {} | {"tool":"x","category":"any"} | applies
category | {} | {"tool":"x","category":""} | not
tool | {"name":"x"} | {"tool":"x"} | applies
tool | {"name":"x"} | {"tool":"xy"} | not
tool | {"name":"X"} | {"tool":"x"} | not
tool | {"name":"file-*"} | {"tool":"file-read"} | applies
tool | {"name":"file-*"} | {"tool":"a-file-read"} | not
tool | {"name":"f?le"} | {"tool":"file"} | applies
tool | {"name":"[ab]"} | {"tool":"a"} | not
all | {"name":"x"} | {"tool":"y"} | not
category | {"category":"net"} | {"tool":"x","category":"net"} | applies
tool | {"category":"net"} | {"tool":"x","category":"net"} | applies
category | {"category":"net"} | {"tool":"x","category":"fs"} | not
category | {"category":"net"} | {"tool":"net"} | not
tool | {"labels":{"tier":"gold"}} | {"tool":"x","labels":{"tier":"gold"}} | applies
tool | {"labels":{"tier":"gold"}} | {"tool":"x","labels":{"tier":"iron"}} | not
tool | {"annotations":{"d":true}} | {"tool":"x","annotations":{"d":true}} | applies
tool | {"annotations":{"d":true}} | {"tool":"x","annotations":{"d":"true"}} | not
tool | {"annotations":{"d":false}} | {"tool":"x"} | not
tool | {"annotations":{"n":{"a":1}}} | {"tool":"x","annotations":{"n":{"a":1}}} | applies
tool | {"name":"x","category":"net"} | {"tool":"x","category":"fs"} | not
tool | {"name":"x","category":"net"} | {"tool":"y","category":"net"} | not
tool | {"name":"x","category":"net"} | {"tool":"x","category":"net"} | applies
"#;

#[test]
fn every_form_of_match() {
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    for row in MATCHES.trim().lines() {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [scope, matcher, call, outcome] = cells[..] else {
            panic!("{row}")
        };
        let rules = json!([{"id": "r", "action": "allow", "scope": scope, "match": json(matcher)}]);
        let verdict = decide(&engine(&rules), &json(call));
        assert_eq!(verdict.rule_id.is_some(), outcome == "applies", "{row}");
        assert_eq!(verdict.is_allowed(), outcome == "applies", "{row}");
    }
}

#[test]
fn all_four_actions() {
    let rules = json!([
        {"id": "a", "action": "allow", "scope": "tool", "match": {"name": "a"}},
        {"id": "b", "action": "deny", "scope": "tool", "match": {"name": "b"}, "reason": "no b"},
        {"id": "c", "action": "require-approval", "scope": "tool", "match": {"name": "c"},
         "approval": {"timeout_seconds": 2, "default_if_timeout": "allow"}},
        {"id": "d", "action": "require-approval", "scope": "tool", "match": {"name": "d"}},
        {"id": "e", "action": "audit-only", "scope": "tool", "match": {"name": "e"}},
    ]);
    let engine = engine(&rules);
    let ask = |timeout_ms, default_if_timeout| {
        Effect::Ask(Approval {
            timeout_ms,
            default_if_timeout,
        })
    };
    for (tool, effect, reason) in [
        ("a", Effect::Allow, None),
        ("b", Effect::Deny, Some("no b")),
        ("c", ask(2000, TimeoutDefault::Allow), None),
        ("d", ask(300_000, TimeoutDefault::Deny), None),
        ("e", Effect::AuditOnly, None),
        ("f", Effect::Deny, Some("no policy rule allows this call")),
    ] {
        let verdict = decide(&engine, &json!({"tool": tool}));
        assert_eq!(
            (verdict.effect, verdict.reason.as_deref()),
            (effect, reason),
            "{tool}"
        );
        assert_eq!(verdict.audit, tool == "e", "R16");
    }
}

#[test]
fn r14_no_policy_denies_without_a_rule() {
    let verdict = decide(&Engine::compile(&[]).expect("compiles"), &json!({"tool": "echo"}));
    assert_eq!((verdict.effect, verdict.rule_id), (Effect::Deny, None));
}

#[test]
fn first_match_wins_across_policies_in_their_order() {
    let first = policy(
        "one",
        &json!([{"id": "1", "action": "deny", "scope": "tool", "match": {"name": "sh*"}}]),
    );
    let second = policy("two", &json!([{"id": "2", "action": "allow", "scope": "all"}]));
    let call = json!({"tool": "shell"});
    let verdict = decide(
        &Engine::compile(&[first.clone(), second.clone()]).expect("compiles"),
        &call,
    );
    assert_eq!(
        (verdict.rule_id.as_deref(), verdict.policy.as_deref()),
        (Some("1"), Some("one"))
    );
    let engine = Engine::compile(&[second, first]).expect("compiles");
    assert_eq!(decide(&engine, &call).rule_id.as_deref(), Some("2"));
    assert!(
        matches!(&engine.warnings().first().expect("shadowed").kind, WarningKind::Unreachable { by, .. } if &**by == "2")
    );
}

#[test]
fn r15_named_policies_narrow() {
    let wide = policy("wide", &json!([{"id": "w", "action": "allow", "scope": "all"}]));
    let narrow = policy(
        "narrow",
        &json!([{"id": "n", "action": "allow", "scope": "tool", "match": {"name": "echo"}}]),
    );
    let engine = Engine::compile(&[wide, narrow]).expect("compiles");
    let named = |tool: &str, name: &str| {
        decide_with(&json!({"tool": tool}), |subject| {
            engine.decide_named(name, subject).map(|verdict| verdict.effect)
        })
    };
    assert_eq!(named("echo", "narrow"), Some(Effect::Allow));
    assert_eq!(
        named("shell", "narrow"),
        Some(Effect::Deny),
        "a policy alone denies by default"
    );
    assert_eq!(named("echo", "deny-all"), Some(Effect::Deny));
    assert_eq!(named("echo", "unheard-of"), None);
    assert!(engine.has_policy("deny-all") && engine.has_policy("wide") && !engine.has_policy("unheard-of"));
    let both = decide(&engine, &json!({"tool": "shell"})).stricter(
        decide_with(&json!({"tool": "shell"}), |s| engine.decide_named("narrow", s)).expect("known"),
    );
    assert_eq!(both.effect, Effect::Deny);
    let pretender = policy(
        "deny-all",
        &json!([{"id": "w", "action": "allow", "scope": "all"}]),
    );
    let engine = Engine::compile(&[pretender]).expect("compiles");
    let verdict =
        decide_with(&json!({"tool": "x"}), |s| engine.decide_named("deny-all", s)).expect("built in");
    assert_eq!(verdict.effect, Effect::Deny);
    assert!(
        engine
            .warnings()
            .iter()
            .any(|warning| warning.kind == WarningKind::ReservedName)
    );
}

#[test]
fn r17_only_a_deny_rule_that_names_it_denies_an_unknown_tool() {
    let rules = json!([
        {"id": "cat", "action": "deny", "scope": "category", "match": {"name": "rm"}},
        {"id": "spent", "action": "deny", "scope": "tool", "match": {"name": "rm"}, "rate_limit": {"tokens_per_day": 0}},
        {"id": "shell", "action": "deny", "scope": "tool", "match": {"name": "shell*"}},
        {"id": "ok", "action": "allow", "scope": "tool", "match": {"name": "dd"}},
        {"id": "late", "action": "deny", "scope": "tool", "match": {"name": "dd"}},
        {"id": "maybe", "action": "allow", "scope": "tool", "match": {"name": "mv"}, "conditions": {"path_within": "/"}},
        {"id": "mv", "action": "deny", "scope": "tool", "match": {"name": "mv"}, "conditions": {"path_within": "/etc"}},
        {"id": "rest", "action": "deny", "scope": "all"},
    ]);
    let engine = engine(&rules);
    let by = |tool| {
        engine
            .denies_by_name(tool)
            .and_then(|verdict| verdict.rule_id)
            .map(|id| id.to_string())
    };
    assert_eq!(by("shell-2").as_deref(), Some("shell"));
    assert_eq!(
        by("mv").as_deref(),
        Some("mv"),
        "conditions of a deny rule fail closed"
    );
    for tool in ["rm", "dd", "other"] {
        assert_eq!(by(tool), None, "{tool}");
    }
}

#[test]
fn conditions_fail_closed() {
    let rule = |action: &str, conditions: Value| json!([{"id": "r", "action": action, "scope": "all", "conditions": conditions}]);
    for conditions in [
        json!({"weather": "fine"}),
        json!({"path_within": 7}),
        json!({"path_within": []}),
        json!({"path_within": ["/workspace", 7]}),
        json!({"path_within": "~/x"}),
        json!({"path_within": "/workspace/.."}),
        json!({"path_within": "/workspace", "weather": "fine"}),
    ] {
        let call = json!({"tool": "x", "arguments": {"path": "/workspace/a"}});
        for (action, applies) in [
            ("allow", false),
            ("audit-only", false),
            ("deny", true),
            ("require-approval", true),
        ] {
            let rules = rule(action, conditions.clone());
            assert_eq!(
                deciding(&rules, &call).is_some(),
                applies,
                "{action} {conditions}"
            );
            let warned = engine(&rules)
                .warnings()
                .iter()
                .any(|w| matches!(w.kind, WarningKind::UnknownCondition(_)));
            assert!(warned, "{conditions}");
        }
    }
    let inside = json!({"tool": "x", "arguments": {"path": "/workspace/a"}});
    let outside = json!({"tool": "x", "arguments": {"path": "/etc/a"}});
    for (conditions, call, applies) in [
        (json!({"path_within": "/workspace"}), &inside, true),
        (json!({"path_within": "/workspace"}), &outside, false),
        (json!({"path_within": ["/workspace", "/etc"]}), &outside, true),
        (json!({"path_within": "."}), &inside, true),
        (json!({"path_within": "sub"}), &inside, false),
    ] {
        for action in ["allow", "deny"] {
            assert_eq!(
                deciding(&rule(action, conditions.clone()), call).is_some(),
                applies,
                "{action} {conditions}"
            );
        }
    }
}

#[test]
fn a_rate_limited_rule_applies_once_spent() {
    let rules = json!([
        {"id": "cap", "action": "deny", "scope": "tool", "rate_limit": {"tokens_per_day": 1000, "cost_per_day_usd": 0.29}},
        {"id": "ok", "action": "allow", "scope": "all"},
    ]);
    let engine = engine(&rules);
    for (tokens, cost, id) in [
        (999, 0, "ok"),
        (1000, 0, "cap"),
        (0, 289_999, "ok"),
        (0, 290_000, "cap"),
    ] {
        let verdict = decide(&engine, &json!({"tool": "x", "tokens": tokens, "cost": cost}));
        assert_eq!(verdict.rule_id.as_deref(), Some(id), "{tokens} {cost}");
        assert_eq!(verdict.limit_spent, id == "cap", "R16a: -32021");
    }
    let odd = json!([{"id": "x", "action": "allow", "scope": "tool", "rate_limit": {"tokens_per_day": 5}}]);
    let odd = Engine::compile(&[policy("p", &odd)]).expect("compiles");
    assert_eq!(
        odd.warnings().first().map(|w| w.kind.clone()),
        Some(WarningKind::AllowsWhenSpent)
    );
    assert_eq!(
        decide(&odd, &json!({"tool": "x", "tokens": 4})).effect,
        Effect::Deny
    );
}

#[test]
fn values_that_cannot_be_compiled() {
    let cost = |usd: f64| json!([{"id": "x", "action": "deny", "scope": "tool", "rate_limit": {"cost_per_day_usd": usd}}]);
    for usd in [-0.01, 1e10] {
        let error = Engine::compile(&[policy("p", &cost(usd))]).expect_err("refused");
        assert!(matches!(error, CompileError::Cost { .. }), "{usd}");
    }
    for seconds in [0u64, 40_000_000, u64::MAX] {
        let rules = json!([{"id": "x", "action": "require-approval", "scope": "tool", "approval": {"timeout_seconds": seconds}}]);
        let error = Engine::compile(&[policy("p", &rules)]).expect_err("refused");
        assert!(matches!(error, CompileError::Timeout { .. }), "{seconds}");
    }
}

#[test]
fn the_order_of_strictness() {
    let verdict = |effect| Verdict {
        effect,
        audit: effect == Effect::AuditOnly,
        ..Verdict::allow()
    };
    let ask = |default_if_timeout| {
        Effect::Ask(Approval {
            timeout_ms: 1,
            default_if_timeout,
        })
    };
    let order = [
        Effect::Allow,
        Effect::AuditOnly,
        ask(TimeoutDefault::Allow),
        ask(TimeoutDefault::Deny),
        Effect::Deny,
    ];
    for (i, low) in order.iter().enumerate() {
        for high in &order[i..] {
            for (a, b) in [(low, high), (high, low)] {
                let both = verdict(*a).stricter(verdict(*b));
                assert_eq!(both.effect, *high);
                assert_eq!(
                    both.audit,
                    [a, b].contains(&&Effect::AuditOnly),
                    "an audit owed stays owed (R16)"
                );
            }
        }
    }
    let first = Verdict {
        rule_id: Some("first".into()),
        ..Verdict::deny("x")
    };
    let second = Verdict {
        rule_id: Some("second".into()),
        ..Verdict::deny("x")
    };
    assert_eq!(
        first.stricter(second).rule_id.as_deref(),
        Some("first"),
        "the outer layer keeps the word"
    );
    let ruled = Verdict {
        rule_id: Some("ruled".into()),
        ..Verdict::allow()
    };
    assert_eq!(
        Verdict::allow().stricter(ruled).rule_id.as_deref(),
        Some("ruled"),
        "a layer without an opinion does not hide the rule"
    );
}

#[test]
fn r13_autonomy() {
    use model::AutonomyLevel::{Autonomous, Observer, Supervised};
    let asks = Effect::Ask(Approval::default());
    for (level, read_only, effect) in [
        (Observer, true, Effect::Deny),
        (Observer, false, Effect::Deny),
        (Supervised, true, Effect::Allow),
        (Supervised, false, asks),
        (Autonomous, true, Effect::Allow),
        (Autonomous, false, Effect::Allow),
    ] {
        assert_eq!(
            autonomy_verdict(level, read_only).effect,
            effect,
            "{level:?} {read_only}"
        );
    }
    assert!(
        autonomy_verdict(Observer, true)
            .reason
            .is_some_and(|reason| reason.contains("observer"))
    );
}

#[test]
fn an_explanation_names_each_rule_that_was_passed_over() {
    let rules = json!([
        {"id": "name", "action": "deny", "scope": "tool", "match": {"name": "rm"}},
        {"id": "cat", "action": "deny", "scope": "category"},
        {"id": "hint", "action": "deny", "scope": "tool", "match": {"annotations": {"destructiveHint": true}}},
        {"id": "cap", "action": "deny", "scope": "tool", "rate_limit": {"tokens_per_day": 5}},
        {"id": "in", "action": "allow", "scope": "tool", "conditions": {"path_within": "/workspace"}},
        {"id": "odd", "action": "allow", "scope": "tool", "conditions": {"weather": "fine"}},
        {"id": "rest", "action": "deny", "scope": "all", "reason": "nothing else"},
        {"id": "never", "action": "allow", "scope": "all"},
    ]);
    let engine = engine(&rules);
    let call = json!({"tool": "cp", "arguments": {"path": "/etc/x"}});
    let text = decide_with(&call, |subject| engine.explain(subject).to_string());
    let expected = "main/name (deny): passed over, it is for tools named `rm`
main/cat (deny): passed over, the tool has no category
main/hint (deny): passed over, the tool's annotation `destructiveHint` is not the one asked for
main/cap (deny): passed over, its rate limit is not spent
main/in (allow): passed over, `path_within` does not hold: `/etc/x` lies outside
main/odd (allow): passed over, its condition `weather` is not understood
main/rest (deny): decides
deny: nothing else";
    assert_eq!(text, expected);
}

#[test]
fn a_rule_may_ask_what_the_context_was_made_of() {
    let rule = |action: &str, taint: Value| json!([{"id": "r", "action": action, "scope": "all", "conditions": {"taint": taint}}]);
    let call = |taint: Value| json!({"tool": "send", "taint": taint});
    let page = json!(["web https://evil.test/", "file a"]);
    for (action, taint, context, applies) in [
        ("deny", json!(["web", "peer"]), page.clone(), true),
        ("deny", json!("web"), page.clone(), true),
        ("deny", json!(["peer"]), page.clone(), false),
        ("require-approval", json!(["file"]), page.clone(), true),
        ("deny", json!(["web"]), json!([]), false),
        ("allow", json!(["web"]), json!([]), false),
        // Nobody knows: a restriction holds, a permission does not.
        ("deny", json!(["web"]), json!(null), true),
        ("allow", json!(["web"]), json!(null), false),
        // What can't be read fails closed.
        ("deny", json!(["wep"]), json!([]), true),
        ("allow", json!([]), page.clone(), false),
        ("deny", json!(7), json!([]), true),
    ] {
        let found = deciding(&rule(action, taint.clone()), &call(context.clone()));
        assert_eq!(found.is_some(), applies, "{action} {taint} in {context}");
    }
    let verdict = decide(&engine(&rule("deny", json!("web"))), &call(page));
    assert!(verdict.taint);
}

pub(super) const fn result<'a>(
    tool: &'a str,
    arguments: &'a Map<String, Value>,
    text: &'a str,
    closed: bool,
) -> crate::ToolResult<'a> {
    crate::ToolResult {
        tool,
        arguments,
        text,
        closed,
        is_lookup: true,
        reads_files: false,
        annotations: None,
        order: 1,
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
fn a_rule_may_ask_where_a_value_came_from() {
    let mut values = crate::ValueSources::default();
    values.add_person("Send the report to ann@corp.example and 50 to Bob");
    let nothing = serde_json::Map::new();
    for (tool, text, closed) in [
        ("lookup", "Eve <eve@corp.example>", false),
        ("ledger", "account 4711", true),
    ] {
        values.add_result(&result(tool, &nothing, text, closed));
    }
    let rule = |action: &str, from: Value| json!([{"id": "r", "action": action, "scope": "all", "conditions": {"from": from}}]);
    let page = json!(["web https://evil.test/", "file a"]);
    let foreign = json!({"argument": "to", "origins": ["web", "peer"]});
    let trusting = json!({"argument": ["to", "cc"], "origins": ["web"], "trust": ["look*"]});
    let all = json!({"argument": "*", "origins": ["web"]});
    let own = json!({"argument": "to", "origins": "user"});
    let ann = json!({"to": "ann@corp.example", "body": "from the page"});
    let evil = json!({"to": "evil@evil.test", "body": "report"});
    let eve = json!({"to": "eve@corp.example"});
    for (action, from, arguments, context, applies) in [
        ("deny", &foreign, &ann, &page, false),
        ("deny", &foreign, &evil, &page, true),
        ("deny", &foreign, &evil, &json!([]), false),
        ("deny", &foreign, &evil, &json!(["file a"]), false),
        ("deny", &foreign, &evil, &json!(null), true),
        (
            "deny",
            &foreign,
            &json!({"recipient": "evil@evil.test"}),
            &page,
            false,
        ),
        (
            "deny",
            &foreign,
            &json!({"to": ["ann@corp.example", "evil@evil.test"]}),
            &page,
            true,
        ),
        (
            "deny",
            &foreign,
            &json!({"to": {"evil@evil.test": true}}),
            &page,
            true,
        ),
        ("deny", &foreign, &json!({"to": {"name": "Bob"}}), &page, true),
        ("deny", &foreign, &json!({"to": null}), &page, false),
        ("deny", &foreign, &json!({"to": 50}), &page, false),
        ("deny", &foreign, &json!({"to": 5}), &page, true),
        ("deny", &foreign, &eve, &page, true),
        ("deny", &trusting, &eve, &page, false),
        (
            "deny",
            &trusting,
            &json!({"cc": ["mallory@evil.test"]}),
            &page,
            true,
        ),
        ("require-approval", &all, &ann, &page, true),
        (
            "require-approval",
            &all,
            &json!({"to": "Bob", "amount": 50}),
            &page,
            false,
        ),
        // A tool that reaches nothing is its own source.
        ("deny", &foreign, &json!({"to": 4711}), &page, false),
        (
            "deny",
            &json!({"argument": "to", "origins": ["web", "tool"]}),
            &json!({"to": 4711}),
            &page,
            true,
        ),
        (
            "allow",
            &json!({"argument": "to", "origins": ["user", "tool"]}),
            &json!({"to": 4711}),
            &page,
            true,
        ),
        ("allow", &own, &json!({"to": 4711}), &page, false),
        // What allows wants to be sure.
        ("allow", &own, &ann, &page, true),
        ("allow", &own, &evil, &page, false),
        ("allow", &own, &evil, &json!([]), true),
        ("allow", &own, &ann, &json!(null), false),
        ("allow", &own, &json!({}), &page, false),
        ("allow", &foreign, &evil, &page, false),
        (
            "allow",
            &json!({"argument": "to", "origins": ["user", "web", "file"]}),
            &evil,
            &page,
            true,
        ),
        // What can't be read fails closed.
        ("deny", &json!({"argument": "to"}), &ann, &page, true),
        (
            "allow",
            &json!({"argument": "to", "origins": "moon"}),
            &ann,
            &page,
            false,
        ),
    ] {
        let engine = engine(&rule(action, from.clone()));
        let call = json!({"tool": "send", "taint": context, "arguments": arguments});
        let found = decide_with(&call, |subject| {
            let values = Some(&values);
            engine.decide(&PolicySubject { values, ..*subject })
        });
        assert_eq!(
            found.rule_id.is_some(),
            applies,
            "{action} {from} of {arguments} in {context}"
        );
    }
    // Without the texts no value is known to be clean.
    let verdict = decide(
        &engine(&rule("deny", foreign)),
        &json!({"tool": "send", "taint": page, "arguments": ann}),
    );
    assert!(verdict.rule_id.is_some() && verdict.taint);
}

#[test]
fn unreachable_rules_are_named() {
    let rules = json!([
        {"id": "glob", "action": "deny", "scope": "tool", "match": {"name": "file-*"}},
        {"id": "sub", "action": "allow", "scope": "tool", "match": {"name": "file-read"}},
        {"id": "subglob", "action": "allow", "scope": "tool", "match": {"name": "file-read-*", "category": "x"}},
        {"id": "other", "action": "allow", "scope": "tool", "match": {"name": "files"}},
        {"id": "net", "action": "deny", "scope": "category", "match": {"category": "net"}},
        {"id": "net2", "action": "allow", "scope": "tool", "match": {"category": "net", "annotations": {"a": true}}},
        {"id": "cond", "action": "allow", "scope": "all", "conditions": {"path_within": "/w"}},
        {"id": "rest", "action": "deny", "scope": "all"},
        {"id": "last", "action": "allow", "scope": "tool", "match": {"name": "x"}},
    ]);
    let engine = engine(&rules);
    let named: Vec<&str> = engine
        .warnings()
        .iter()
        .map(|warning| &*warning.rule_id)
        .collect();
    assert_eq!(named, ["sub", "subglob", "net2", "last"]);
}

#[test]
fn ten_thousand_rules_are_indexed() {
    let rules: Vec<Value> = (0..10_000)
        .map(|i| match i % 4 {
            0 => json!({"id": format!("r{i}"), "action": "deny", "scope": "tool", "match": {"name": format!("tool-{i}")}}),
            1 => json!({"id": format!("r{i}"), "action": "deny", "scope": "category", "match": {"category": format!("c{i}")}}),
            2 => json!({"id": format!("r{i}"), "action": "deny", "scope": "tool", "match": {"name": format!("g{i}-*")}}),
            _ => json!({"id": format!("r{i}"), "action": "deny", "scope": "tool", "match": {"labels": {"owner": format!("o{i}")}}}),
        })
        .chain([json!({"id": "rest", "action": "allow", "scope": "all"})])
        .collect();
    let engine = engine(&Value::Array(rules));
    assert!(engine.warnings().is_empty());
    let asked = std::cell::Cell::new(0);
    for (call, id) in [
        (json!({"tool": "tool-9996"}), "r9996"),
        (json!({"tool": "x", "category": "c9997"}), "r9997"),
        (json!({"tool": "g9998-x"}), "r9998"),
        (json!({"tool": "x", "labels": {"owner": "o9999"}}), "r9999"),
        (json!({"tool": "x"}), "rest"),
    ] {
        assert_eq!(decide(&engine, &call).rule_id.as_deref(), Some(id));
        decide_with(&call, |subject| {
            engine.index().first_match(subject, |_| {
                asked.set(asked.get() + 1);
                false
            })
        });
    }
    assert!(asked.get() <= 12, "asked {} rules for 5 calls", asked.get());
}

#[test]
fn a_guess_never_turns_a_refusal_into_a_question() {
    let rules = json!([
        {"id": "keys", "action": "require-approval", "scope": "tool", "conditions": {"path_within": "/workspace/keys"}},
        {"id": "here", "action": "allow", "scope": "tool", "conditions": {"path_within": "/workspace"}},
        {"id": "rest", "action": "deny", "scope": "all"},
    ]);
    let engine = engine(&rules);
    let about = |arguments: Value| decide(&engine, &json!({"tool": "t", "arguments": arguments}));
    for (arguments, effect, rule) in [
        (json!({"path": "keys/a"}), "require-approval", "keys"),
        (
            json!({"path": "a", "note": "keys/my a"}),
            "require-approval",
            "keys",
        ),
        (json!({"path": "/etc/a", "note": "keys/my a"}), "deny", "rest"),
        (json!({"path": "/etc/a"}), "deny", "rest"),
        (json!({"path": "a", "note": "some/my a"}), "allow", "here"),
    ] {
        let verdict = about(arguments.clone());
        assert_eq!(
            (verdict.effect.name(), verdict.rule_id.as_deref()),
            (effect, Some(rule)),
            "{arguments}"
        );
        let explained = decide_with(&json!({"tool": "t", "arguments": arguments}), |subject| {
            engine.explain(subject).verdict
        });
        assert_eq!(explained, verdict, "{arguments}");
    }
}

#[test]
fn what_readers_may_not_see_is_closed_to_everybody() {
    let rules = json!([
        {"id": "git", "action": "allow", "scope": "tool", "match": {"name": "git-*"}, "conditions": {"path_within": ".git"}},
        {"id": "public", "action": "allow", "scope": "tool", "match": {"category": "filesystem"},
            "conditions": {"path_within": "keys/public"}},
        {"id": "no-git", "action": "deny", "scope": "tool", "match": {"category": "filesystem"},
            "conditions": {"path_within": [".git", "keys"]}},
        {"id": "no-writes", "action": "deny", "scope": "tool", "match": {"name": "file-write"}, "conditions": {"path_within": "src"}},
        {"id": "asked", "action": "require-approval", "scope": "all", "conditions": {"path_within": "private"}},
        {"id": "rest", "action": "allow", "scope": "all"},
    ]);
    let engine = engine(&rules);
    let closed = |call: Value| {
        let closed = decide_with(&call, |subject| engine.hidden_roots(subject, &[]));
        let names = |roots: std::collections::BTreeSet<std::path::PathBuf>| {
            let below = |root: &std::path::PathBuf| {
                let below = root.strip_prefix("/workspace").expect("relative");
                below.to_string_lossy().into_owned()
            };
            roots.iter().map(below).collect::<Vec<_>>()
        };
        (names(closed.denied), names(closed.open))
    };
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let shell = closed(json!({"tool": "shell", "category": "shell"}));
    assert_eq!(shell.0, list(&[".git", "keys"]));
    assert_eq!(closed(json!({"tool": "git-log"})).0, list(&["keys"]));
    let read = closed(json!({"tool": "file-read", "category": "filesystem"}));
    assert_eq!(read.0, list(&[".git", "keys"]));
    assert!(read.1.contains(&"keys/public".to_owned()), "{read:?}");
    let write = closed(json!({"tool": "file-write", "category": "filesystem"}));
    assert_eq!(write.0, list(&[".git", "keys", "src"]));
}
