//! What is told, what is not, and in which form.

use clawk_manifest::model::{EventSampling, Events, MetricSettings, Redaction, Telemetry};
use clawk_proto::Digest;
use uuid::Uuid;

use super::{
    Batch, DeliveryError, ErrorFact, ExporterMetrics, FileSink, InferenceFact, Label, Metric, SqliteSink,
    TelemetryAssembler, TelemetryFact, TelemetryFactKind, TelemetryRecord, TelemetryResource,
    TelemetrySelection, TelemetrySink, ToolCallFact,
};

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn fact(sequence: u64, what: TelemetryFactKind) -> TelemetryFact {
    TelemetryFact {
        at_us: 1_700_000_000_000_000,
        session: id(1),
        sequence,
        what,
    }
}

fn telemetry() -> Telemetry {
    Telemetry {
        name: "t".to_owned(),
        version: None,
        labels: std::collections::BTreeMap::default(),
        exporters: Vec::new(),
        events: Events::default(),
        metrics: MetricSettings::default(),
        sampling: EventSampling::default(),
        redaction: Redaction::default(),
    }
}

fn call(fault: Option<&str>) -> TelemetryFactKind {
    TelemetryFactKind::Called(ToolCallFact {
        request: id(7),
        turn: Some(id(2)),
        tool: Label::from_declared("shell"),
        outcome: "executed",
        duration_ms: 12,
        result: Some(Digest([3; 32])),
        fault: fault.map(Label::from_declared),
    })
}

fn inferred() -> TelemetryFactKind {
    TelemetryFactKind::Inferred(InferenceFact {
        inference: id(9),
        attempt: 1,
        turn: id(2),
        provider: Label::from_declared("main"),
        model: Label::from_declared("m"),
        input_tokens: 100,
        output_tokens: 20,
        cost_microusd: Some(1500),
        duration_ms: 40,
        fault: None,
    })
}

fn one_of_each() -> Vec<(&'static str, TelemetryFactKind)> {
    let label = |name: &str| Label::from_declared(name);
    let memory = TelemetryFactKind::Memory {
        op: "queried",
        store: label("notes"),
        count: 1,
        hit: Some(true),
        turn: Some(id(2)),
    };
    let swarm = TelemetryFactKind::Swarm {
        op: label("delegated"),
        member: Some(label("worker")),
        task: Some(Digest([5; 32])),
        status: None,
        duration_ms: 1,
    };
    let skill = TelemetryFactKind::Skill {
        op: "invoked",
        skill: label("tidy"),
        turn: Some(id(2)),
    };
    let compared = TelemetryFactKind::Compared {
        skill: label("tidy"),
        world_model: label("wm"),
        error_permille: 120,
        turn: Some(id(2)),
    };
    let trouble = ErrorFact {
        kind: label("ckp.message.dead"),
        turn: Some(id(2)),
    };
    let (from, to) = (label("INIT"), label("READY"));
    vec![
        ("tool_calls", call(None)),
        ("memory_ops", memory),
        ("swarm_ops", swarm),
        ("planning_ops", skill),
        ("world_model_ops", compared),
        ("lifecycle", TelemetryFactKind::Lifecycle { from, to }),
        ("errors", TelemetryFactKind::Trouble(trouble)),
    ]
}

fn events(on: &[&str]) -> Events {
    let has = |name: &str| on.contains(&name);
    Events {
        tool_calls: has("tool_calls"),
        memory_ops: has("memory_ops"),
        swarm_ops: has("swarm_ops"),
        lifecycle: has("lifecycle"),
        errors: has("errors"),
        world_model_ops: has("world_model_ops"),
        planning_ops: has("planning_ops"),
    }
}

fn assembler(telemetry: &Telemetry) -> TelemetryAssembler {
    TelemetryAssembler::new(TelemetrySelection::from_manifest(telemetry, "agent"))
}

#[test]
fn each_category_is_told_when_it_is_wanted_and_only_then() {
    for (category, what) in one_of_each() {
        let mut wanted = telemetry();
        wanted.events = events(&[category]);
        let item = assembler(&wanted)
            .assemble_record(&fact(1, what.clone()))
            .unwrap();
        assert_eq!(item.category.name(), category);
        let others: Vec<&str> = one_of_each()
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| *name != category)
            .collect();
        wanted.events = events(&others);
        assert!(
            assembler(&wanted).assemble_record(&fact(1, what)).is_none(),
            "{category}"
        );
    }
    // Errors of a category that is off are told as long as `errors` is on.
    let mut wanted = telemetry();
    wanted.events = events(&["errors"]);
    assert!(
        assembler(&wanted)
            .assemble_record(&fact(1, call(Some("failed"))))
            .is_some()
    );
    wanted.events = events(&[]);
    assert!(
        assembler(&wanted)
            .assemble_record(&fact(1, call(Some("failed"))))
            .is_none()
    );
}

#[test]
fn each_metric_is_counted_when_it_is_wanted_and_only_then() {
    let planned = TelemetryFactKind::Planned {
        skill: Label::from_declared("tidy"),
        world_model: Label::from_declared("wm"),
        candidates: 2,
        revisions: 3,
        turn: None,
    };
    let mut all: Vec<TelemetryFactKind> = one_of_each().into_iter().map(|(_, what)| what).collect();
    all.extend([inferred(), planned]);
    let counted = |wanted: &MetricSettings| {
        let mut meter = ExporterMetrics::new(wanted.clone(), Vec::new());
        all.iter().for_each(|what| {
            meter.count_fact(&fact(1, what.clone()));
        });
        let mut metrics: Vec<Metric> = meter.points().iter().map(|point| point.metric).collect();
        metrics.dedup();
        metrics
    };
    let none = MetricSettings {
        token_usage: false,
        cost_usd: false,
        latency_histogram: false,
        prediction_error: false,
        retrieval_hit_rate: false,
        plan_revision_count: false,
    };
    assert_eq!(counted(&none), []);
    let with = |set: fn(&mut MetricSettings)| {
        let mut wanted = none.clone();
        set(&mut wanted);
        counted(&wanted)
    };
    assert_eq!(with(|m| m.token_usage = true), [Metric::Tokens]);
    assert_eq!(with(|m| m.cost_usd = true), [Metric::Cost]);
    assert_eq!(
        with(|m| m.latency_histogram = true),
        [Metric::InferenceTime, Metric::ToolTime]
    );
    assert_eq!(with(|m| m.prediction_error = true), [Metric::PredictionError]);
    assert_eq!(with(|m| m.retrieval_hit_rate = true), [Metric::Retrievals]);
    assert_eq!(with(|m| m.plan_revision_count = true), [Metric::PlanRevisions]);
}

#[test]
fn series_are_bounded_and_go_on_where_an_earlier_run_ended() {
    let mut meter = ExporterMetrics::new(MetricSettings::default(), Vec::new());
    for number in 0..1000 {
        let mut what = call(None);
        if let TelemetryFactKind::Called(call) = &mut what {
            call.tool = Label::from_declared(&format!("tool-{number}"));
        }
        meter.count_fact(&fact(number, what));
    }
    let points = meter.points();
    assert!(points.len() <= 257, "{}", points.len());
    assert_eq!(points.iter().map(|point| point.series.count).sum::<u64>(), 1000);
    let mut next = ExporterMetrics::new(MetricSettings::default(), points);
    next.count_fact(&fact(1, call(None)));
    assert_eq!(
        next.points().iter().map(|point| point.series.count).sum::<u64>(),
        1001
    );
}

#[test]
fn a_session_is_told_whole_or_not_at_all() {
    let mut wanted = telemetry();
    wanted.sampling.rate = 0.25;
    let mut told = 0;
    for session in 0..2000 {
        let mut all = Vec::new();
        for sequence in 0..3 {
            let mut one = fact(sequence, call(if sequence == 1 { Some("failed") } else { None }));
            one.session = id(session);
            all.push(assembler(&wanted).assemble_record(&one).is_some());
        }
        assert!(all.iter().all(|one| *one == all[0]));
        told += u32::from(all[0]);
    }
    assert!((400..600).contains(&told), "{told}");
    wanted.sampling.rate = 0.0;
    assert!(TelemetrySelection::from_manifest(&wanted, "agent").is_off());
}

#[test]
fn digests_of_arguments_and_results_are_removed_when_the_manifest_says_so() {
    for (strip_arguments, strip_results) in [(false, false), (true, false), (false, true)] {
        let mut wanted = telemetry();
        wanted.redaction = Redaction {
            strip_arguments,
            strip_results,
        };
        let mut made = assembler(&wanted);
        let arguments = Digest([2; 32]);
        let request = id(7);
        assert!(
            made.assemble_record(&fact(1, TelemetryFactKind::CallWanted { request, arguments }))
                .is_none()
        );
        let item = made.assemble_record(&fact(2, call(None))).unwrap();
        let value = |name: &str| {
            let found = item.attributes.iter().find(|(one, _)| *one == name).unwrap();
            found.1.text().unwrap()
        };
        let (arguments, result) = (
            value("clawk.tool.arguments_digest"),
            value("clawk.tool.result_digest"),
        );
        assert_eq!(arguments == "[REDACTED]", strip_arguments);
        assert_eq!(result == "[REDACTED]", strip_results);
    }
}

#[test]
fn a_hostile_name_forges_neither_a_line_nor_a_label() {
    let label = Label::from_declared("x\n{\"clawk_telemetry\":1}\"},secret=\u{202e}\u{1b}[2J");
    assert!(
        label
            .as_str()
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-.:/".contains(&b))
    );
    assert!(Label::from_declared(&"x".repeat(1000)).as_str().len() <= 64);
    assert_eq!(Label::one_of("password123", &["READY"]).as_str(), "other");
}

#[test]
fn a_swarm_task_is_one_trace_on_both_hosts() {
    let task = Digest([5; 32]);
    let mut wanted = telemetry();
    wanted.events.swarm_ops = true;
    // The host that delegates.
    let reported = TelemetryFactKind::Swarm {
        op: Label::from_declared("reported"),
        member: None,
        task: Some(task),
        status: Some(Label::from_declared("completed")),
        duration_ms: 5,
    };
    let root = assembler(&wanted).assemble_record(&fact(1, reported));
    // The member's.
    let mut member = assembler(&wanted);
    let turn = id(2);
    member.assemble_record(&fact(
        1,
        TelemetryFactKind::TurnBegan {
            turn,
            task: Some(task),
        },
    ));
    let called = member.assemble_record(&fact(2, call(None))).unwrap();
    let tokens = (1, 2);
    let ended = TelemetryFactKind::TurnEnded {
        turn,
        duration_ms: 4,
        tokens,
    };
    let ended = member.assemble_record(&fact(3, ended)).unwrap();
    let root = root.unwrap();
    assert_eq!(ended.parent, Some(root.span));
    assert_eq!(called.parent, Some(ended.span));
    assert_eq!([root.trace, called.trace], [ended.trace, ended.trace]);
}

fn batch(number: u64) -> (Batch, TelemetryResource) {
    let mut made = assembler(&telemetry());
    let items: Vec<TelemetryRecord> = (0..number)
        .filter_map(|sequence| made.assemble_record(&fact(sequence, call(None))))
        .collect();
    let mut meter = ExporterMetrics::new(MetricSettings::default(), Vec::new());
    meter.count_fact(&fact(1, inferred()));
    let batch = Batch {
        items,
        points: meter.points(),
        times: (1_700_000_000_000_000, 1_700_000_001_000_000),
    };
    let agent = Label::from_declared("agent");
    (batch, TelemetryResource { agent })
}

fn put(sink: &TelemetrySink, batch: &Batch, resource: &TelemetryResource) -> Result<(), DeliveryError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(sink.deliver_batch(batch, resource, None))
}

#[test]
fn a_file_rotates_within_its_bound_and_no_file_of_others_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let (batch, resource) = batch(3);
    let sink = |path| {
        TelemetrySink::File(FileSink {
            path,
            max_bytes: 100,
            kept: 2,
        })
    };
    for _ in 0..9 {
        put(&sink(path.clone()), &batch, &resource).unwrap();
    }
    let mut names: Vec<_> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["t.jsonl.1", "t.jsonl.2"]);
    let others = dir.path().join("authorized_keys");
    std::fs::write(&others, "ssh-ed25519 AAAA").unwrap();
    assert!(matches!(
        put(&sink(others.clone()), &batch, &resource),
        Err(DeliveryError::NotOurs(_))
    ));
    let link = dir.path().join("link.jsonl");
    std::os::unix::fs::symlink(&others, &link).unwrap();
    assert!(put(&sink(link), &batch, &resource).is_err());
    assert_eq!(std::fs::read_to_string(&others).unwrap(), "ssh-ed25519 AAAA");
}

#[test]
fn a_database_keeps_each_record_once_and_no_database_of_others_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let (batch, resource) = batch(3);
    let sink = TelemetrySink::Sqlite(SqliteSink { path: path.clone() });
    put(&sink, &batch, &resource).unwrap();
    put(&sink, &batch, &resource).unwrap();
    let db = rusqlite::Connection::open(&path).unwrap();
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(
        count("SELECT count(*) FROM events WHERE category = 'tool_calls'"),
        3
    );
    assert_eq!(count("SELECT count(*) FROM metrics"), 3);
    let others = dir.path().join("others.db");
    let db = rusqlite::Connection::open(&others).unwrap();
    db.execute_batch("CREATE TABLE mine (a)").unwrap();
    let theirs = TelemetrySink::Sqlite(SqliteSink { path: others });
    assert!(matches!(
        put(&theirs, &batch, &resource),
        Err(DeliveryError::NotOurs(_))
    ));
}
