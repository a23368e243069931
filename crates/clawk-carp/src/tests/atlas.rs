use std::sync::Arc;

use clawk_proto::carp::ContentType;
use serde_json::{Value, json};

use super::{actions, atlas, manifest, paths, read, read_with, resolution, set_of};
use crate::atlas::{Executor, token_estimate};
use crate::depend::DependError;
use crate::set::SetError;
use crate::{Atlas, AtlasSet, Options};

fn faults(change: impl Fn(&mut Value)) -> Vec<String> {
    let mut value = manifest("com.example.test", &json!({}));
    change(&mut value);
    match read(&value) {
        Ok(_) => Vec::new(),
        Err(faults) => paths(&faults).into_iter().map(str::to_owned).collect(),
    }
}

#[test]
fn identifiers_follow_their_patterns() {
    for (id, good) in [
        ("com.example", true),
        ("com.example.a-b", true),
        ("c.1a", false),
        ("com", false),
        ("com-x.example", false),
        ("Com.example", false),
        ("com..example", false),
        ("com.example.", false),
        ("com.example\n", false),
    ] {
        assert_eq!(faults(|v| v["atlas_id"] = json!(id)).is_empty(), good, "{id}");
    }
    for (id, good) in [
        ("a.b", true),
        ("ticket.lookup2", true),
        ("a", false),
        ("a.b-c", false),
        ("a.2b", false),
    ] {
        assert_eq!(
            faults(|v| v["actions"] = json!([{"action_id": id, "name": "n", "description": "d"}])).is_empty(),
            good,
            "{id}"
        );
    }
    for (version, good) in [
        ("1.0.0", true),
        ("1.0.0-rc.1+b", true),
        ("1.0", false),
        ("v1.0.0", false),
        ("01.0.0", false),
    ] {
        assert_eq!(
            faults(|v| v["version"] = json!(version)).is_empty(),
            good,
            "{version}"
        );
    }
}

#[test]
fn all_faults_are_told_at_once_with_pointers() {
    let found = faults(|v| {
        v["polices"] = json!([]);
        v["name"] = json!("");
        v["atlas_version"] = json!("2.0");
        v["actions"] = json!([
            {"action_id": "a.b", "name": "n", "description": "d", "risk_tier": "hihg", "timeout_seconds": 301},
            {"action_id": "a.b", "name": "n", "description": "d", "parameters_schema": {"type": "strng"}},
            {"action_id": "a.c", "name": "n", "description": "d", "executor": "ftp://x", "rate_limit": {"max_calls": 0}},
            3,
        ]);
        v["policies"] = json!([
            {"policy_id": "p", "type": "rate_limit", "parameters": {"max_call": 1}},
            {"policy_id": "p", "type": "scope"},
            {"type": "forbid", "reason": "x"},
            {"policy_id": "b", "type": "budget", "parameters": {"max_cost": -1, "window_seconds": 1}},
        ]);
        v["dependencies"] = json!({"com.example.test": "^1", "com.other": "one"});
    });
    assert_eq!(
        found,
        [
            "/polices",
            "/atlas_version",
            "/name",
            "/actions/0/risk_tier",
            "/actions/0/timeout_seconds",
            "/actions/1/parameters_schema",
            "/actions/2/executor",
            "/actions/2/rate_limit/max_calls",
            "/actions/2/rate_limit/window_seconds",
            "/actions/3",
            "/policies/0/parameters/max_calls",
            "/policies/0/parameters/window_seconds",
            "/policies/1/actions",
            "/policies/2/reason",
            "/policies/2/policy_id",
            "/policies/2/type",
            "/policies/3/parameters/max_cost",
            "/dependencies/com.example.test",
            "/dependencies/com.other",
        ]
    );
}

#[test]
fn duplicates_and_loose_ends_are_faults() {
    let twice = json!([{"action_id": "a.b", "name": "n", "description": "d"}, {"action_id": "a.b", "name": "n", "description": "d"}]);
    assert_eq!(faults(|v| v["actions"] = twice.clone()), ["/actions/1/action_id"]);
    assert_eq!(
        faults(
            |v| v["capabilities"] = json!([{"capability_id": "c", "name": "C", "context_packs": ["none"]}])
        ),
        ["/capabilities/0/context_packs/0"]
    );
    assert_eq!(
        faults(|v| v["capabilities"] = json!([{"capability_id": "c", "actions": ["no.such"]}])),
        ["/capabilities/0/name", "/capabilities/0/actions/0"]
    );
    let two = json!([{"policy_id": "p", "type": "deny"}, {"policy_id": "p", "type": "deny"}]);
    assert_eq!(faults(|v| v["policies"] = two.clone()), ["/policies/1/policy_id"]);
}

#[test]
fn suggestions_and_warnings() {
    let error = read(&manifest("com.example.test", &json!({"polices": []}))).expect_err("misspelt");
    assert!(error.to_string().contains("did you mean `policies`?"), "{error}");
    let odd = atlas(
        "com.example.test",
        &json!({
            "policies": [{"policy_id": "p", "type": "deny", "parameters": {"reasn": "x"}}],
        }),
    );
    let warned: Vec<&str> = odd.warnings.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(warned, ["/policies/0/parameters/reasn"]);
}

#[test]
fn a_schema_may_neither_reach_out_nor_backtrack() {
    let schema = |schema: Value| {
        faults(|v| {
            v["actions"] =
                json!([{"action_id": "a.b", "name": "n", "description": "d", "parameters_schema": schema}]);
        })
    };
    assert_eq!(
        schema(json!({"properties": {"x": {"$ref": "file:///etc/passwd"}}})),
        ["/actions/0/parameters_schema"]
    );
    assert_eq!(
        schema(json!({"properties": {"x": {"pattern": "(?=a)b"}}})),
        ["/actions/0/parameters_schema"]
    );
    assert_eq!(
        schema(json!({"$defs": {"t": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/t"}}})),
        [""; 0]
    );
    assert_eq!(schema(json!(true)), ["/actions/0/parameters_schema"]);
}

#[test]
fn executors_name_what_runs() {
    let of = |text: &str| {
        let parts = json!({"actions": [{"action_id": "a.b", "executor": text}]});
        atlas("com.example.test", &parts).actions[0].executor.clone()
    };
    assert_eq!(of("shell"), Some(Executor::Tool("shell".into())));
    assert_eq!(of("tool:shell"), Some(Executor::Tool("shell".into())));
    assert_eq!(
        of("mcp:git/log"),
        Some(Executor::Mcp {
            server: "git".into(),
            tool: "log".into()
        })
    );
    assert_eq!(
        of("https://api.example.com/x"),
        Some(Executor::Http("https://api.example.com/x".into()))
    );
}

fn packed(packs: &Value) -> Atlas {
    let files = [
        ("low.md", "low"),
        ("high.json", "{}"),
        ("long.txt", "line one\nline two\nline three\n"),
    ];
    read_with(
        &manifest("com.example.test", &json!({"context_packs": packs})),
        &files,
    )
    .expect("valid")
}

#[test]
fn blocks_come_by_priority_then_order() {
    let atlas = packed(&json!([
        {"pack_id": "low", "priority": 10, "files": ["low.md", "none.md"]},
        {"pack_id": "default", "files": ["low.md"]},
        {"pack_id": "high", "priority": 100, "files": ["high.json", "long.txt"]},
    ]));
    assert_eq!(atlas.warnings.len(), 1);
    assert_eq!(
        (atlas.warnings[0].path.as_str(), atlas.warnings[0].code.as_str()),
        ("/context_packs/0/files/1", "missing_file")
    );
    let resolution = resolution(&set_of(vec![Arc::new(atlas)]), &json!({}));
    let blocks: Vec<(&str, ContentType)> = resolution
        .context_blocks
        .iter()
        .map(|block| (block.block_id.as_str(), block.content_type))
        .collect();
    assert_eq!(
        blocks,
        [
            ("default/low.md", ContentType::Markdown),
            ("high/high.json", ContentType::Json),
            ("high/long.txt", ContentType::Plain),
            ("low/low.md", ContentType::Markdown),
        ]
    );
    assert_eq!(
        resolution.context_blocks[0].metadata["source_pack"],
        json!("default")
    );
    assert_eq!(&*resolution.context_blocks[0].source, "com.example.test");
}

#[test]
fn conditions_hints_and_capabilities_choose_packs() {
    let value = manifest(
        "com.example.test",
        &json!({
            "actions": actions(&["a.b"]),
            "capabilities": [{"capability_id": "c", "name": "C", "actions": ["a.b"], "context_packs": ["forc"]},
                             {"capability_id": "d", "name": "D", "actions": ["a.b"]}],
            "context_packs": [
                {"pack_id": "risky", "files": ["low.md"], "conditions": {"risk_tiers": ["high"]}},
                {"pack_id": "forc", "files": ["low.md"]},
                {"pack_id": "free", "files": ["low.md"]},
            ],
        }),
    );
    let set = set_of(vec![Arc::new(
        read_with(&value, &[("low.md", "x")]).expect("valid"),
    )]);
    let packs = |task: Value| {
        let blocks = resolution(&set, &json!({"task": task})).context_blocks;
        blocks
            .iter()
            .map(|block| block.block_id.split('/').next().expect("a pack").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(packs(json!({})), ["forc", "free"]);
    assert_eq!(packs(json!({"risk_tier": "high"})), ["risky", "forc", "free"]);
    assert_eq!(
        packs(json!({"context_hints": ["risky", "unknown"]})),
        ["risky", "forc", "free"]
    );
    assert_eq!(packs(json!({"required_capabilities": ["c"]})), ["forc", "free"]);
    assert_eq!(packs(json!({"required_capabilities": ["d"]})), ["free"]);
    assert_eq!(
        packs(json!({"required_capabilities": ["d"], "context_hints": ["forc"]})),
        ["forc", "free"]
    );
}

#[test]
fn tokens_are_estimated_and_bounded_per_pack() {
    assert_eq!(
        (
            token_estimate(""),
            token_estimate("a"),
            token_estimate("abcd"),
            token_estimate("abcde")
        ),
        (0, 1, 1, 2)
    );
    assert_eq!(token_estimate("éé"), 1);
    let atlas =
        packed(&json!([{"pack_id": "p", "files": ["long.txt", "high.json", "low.md"], "max_tokens": 5}]));
    let blocks = &atlas.packs[0].blocks;
    assert_eq!(blocks[0].content, "line one\nline two\n");
    assert_eq!(
        (blocks[0].token_estimate, &blocks[0].metadata["truncated"]),
        (5, &json!(true))
    );
    assert_eq!(blocks.len(), 1, "nothing else fits");
    assert_eq!(atlas.warnings.len(), 3);
}

fn depends(id: &str, version: &str, on: &Value) -> Arc<Atlas> {
    atlas(id, &json!({"version": version, "dependencies": on}))
}

fn problems(atlases: Vec<Arc<Atlas>>) -> Vec<DependError> {
    match AtlasSet::compile(atlases, Options::default()) {
        Err(SetError::Depend(errors)) => errors,
        Err(other) => panic!("{other}"),
        Ok(_) => Vec::new(),
    }
}

#[test]
fn dependencies_are_there_and_fit() {
    let on = |range: &str| depends("com.a.x", "1.0.0", &json!({"com.b.x": range}));
    let b = || depends("com.b.x", "1.4.0", &json!({}));
    for (range, good) in [
        ("^1.2", true),
        (">=1.0.0 <2.0.0", true),
        ("~1.4.0", true),
        ("*", true),
        ("^2", false),
        ("=1.4.1", false),
    ] {
        assert_eq!(problems(vec![on(range), b()]).is_empty(), good, "{range}");
    }
    let error = problems(vec![on("^2"), b()])[0].to_string();
    assert_eq!(error, "`com.a.x` needs `com.b.x` ^2; version 1.4.0 is loaded");
    assert_eq!(
        problems(vec![on("^1")])[0].to_string(),
        "`com.a.x` needs `com.b.x` ^1, which is not loaded"
    );
    let twice = problems(vec![b(), depends("com.b.x", "2.0.0", &json!({}))])[0].to_string();
    assert_eq!(
        twice,
        "the Atlas `com.b.x` is loaded twice (versions 1.4.0 and 2.0.0)"
    );
}

#[test]
fn a_cycle_is_named() {
    let ring = vec![
        depends("com.a.x", "1.0.0", &json!({"com.b.x": "*"})),
        depends("com.b.x", "1.0.0", &json!({"com.c.x": "*", "com.d.x": "*"})),
        depends("com.c.x", "1.0.0", &json!({"com.b.x": "*"})),
        depends("com.d.x", "1.0.0", &json!({})),
    ];
    let errors = problems(ring);
    assert_eq!(errors.len(), 1);
    assert_eq!(
        errors[0].to_string(),
        "Atlases depend on each other: com.b.x → com.c.x → com.b.x"
    );
}

#[test]
fn one_action_has_one_atlas() {
    let one = atlas("com.a.x", &json!({"actions": actions(&["a.b"])}));
    let two = atlas("com.b.x", &json!({"actions": actions(&["a.b"])}));
    let error = AtlasSet::compile(vec![one, two], Options::default())
        .expect_err("twice")
        .to_string();
    assert_eq!(
        error,
        "the action `a.b` is declared by `com.a.x` and by `com.b.x`"
    );
}

#[test]
fn too_much_is_refused_not_suffered() {
    let many: Vec<Value> = (0..65)
        .map(|n| json!({"policy_id": format!("p{n}"), "type": "scope", "actions": ["*"]}))
        .collect();
    let scopes = atlas("com.a.x", &json!({"policies": many}));
    assert!(matches!(
        AtlasSet::compile(vec![scopes], Options::default()),
        Err(SetError::TooMuch(_))
    ));
    let long = Atlas::in_memory(
        &vec![b' '; crate::atlas::bounds::MANIFEST_BYTES + 1],
        &Default::default(),
    );
    assert_eq!(long.expect_err("too long").errors[0].code, "too_large");
    assert!(Atlas::in_memory(b"{\"a\":1,\"a\":2}", &Default::default()).is_err());
}

#[test]
fn patterns_that_would_take_hours_are_refused() {
    let ids: Vec<String> = (0..10_000).map(|n| format!("{}.x{n}", "a".repeat(200))).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let slow: Vec<String> = (0..5_000)
        .map(|n| format!("*a{}?b*x{n}*", "a".repeat(20)))
        .collect();
    let hostile = atlas(
        "com.a.x",
        &json!({
            "actions": actions(&ids), "policies": [{"policy_id": "p", "type": "deny", "actions": slow}],
        }),
    );
    assert!(matches!(
        AtlasSet::compile(vec![hostile], Options::default()),
        Err(SetError::TooMuch(_))
    ));
}
