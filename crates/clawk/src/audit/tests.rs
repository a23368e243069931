use std::fs;
use std::io::Read as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clawk_kernel::testing::{MemJournal, Rig, manifest};
use clawk_kernel::{EntryPoint, Kernel};
use clawk_manifest::model::Policy;
use clawk_proto::RequestId;
use clawk_proto::method::{CallContext, ToolCallParams};
use clawk_secrets::EnvironmentSource;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::record::{AuditContents, AuditedEvent};
use super::{Audit, AuditedState, Settings, of};

const KEY: &str = "AKIAQ3EGRJ7XZ4T2MWPL";

fn policy(audit: Value) -> Vec<Policy> {
    serde_json::from_value(json!([{"name": "p", "audit": audit,
        "rules": [{"id": "watch", "action": "audit-only", "scope": "all"}]}]))
    .unwrap()
}

fn audits(
    audit: Value,
    settings: &Settings,
    state: &Path,
    journal: &Arc<MemJournal>,
    writable: &Arc<AtomicBool>,
) -> anyhow::Result<Vec<Audit>> {
    let state = AuditedState {
        path: state,
        encrypted: false,
    };
    audits_of(audit, settings, state, journal, writable)
}

fn audits_of(
    audit: Value,
    settings: &Settings,
    state: AuditedState<'_>,
    journal: &Arc<MemJournal>,
    writable: &Arc<AtomicBool>,
) -> anyhow::Result<Vec<Audit>> {
    let journal: Arc<dyn clawk_kernel::ports::Journal> = Arc::clone(journal) as _;
    of(
        &policy(audit),
        settings,
        state,
        &journal,
        &EnvironmentSource::from_pairs::<&str, &str>([]),
        writable,
    )
}

fn rig() -> Rig {
    Rig::new(manifest(
        json!({"tools": [{"name": "write", "description": "w", "input_schema": {"type": "object"}}],
        "policies": [{"name": "p", "rules": [{"id": "watch", "action": "audit-only", "scope": "all"}]}]}),
    ))
}

async fn call(kernel: &Kernel, n: u32, arguments: Value) {
    let door = EntryPoint::from_launcher("test");
    let session = kernel.open_session(door).await.unwrap().id;
    let params = ToolCallParams {
        name: "write".to_owned(),
        arguments: arguments.as_object().cloned().unwrap(),
        context: CallContext {
            request_id: RequestId::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap(),
            identity: "t".to_owned(),
            sandbox: None,
            policy: None,
        },
    };
    kernel.call(session, params).await.unwrap();
}

fn start(audits: Vec<Audit>) -> (CancellationToken, Vec<tokio::task::JoinHandle<()>>) {
    let over = CancellationToken::new();
    #[expect(clippy::disallowed_methods, reason = "ends by the token")]
    let tasks = audits
        .into_iter()
        .map(|audit| tokio::spawn(audit.serve(over.clone())))
        .collect();
    (over, tasks)
}

async fn end((over, tasks): (CancellationToken, Vec<tokio::task::JoinHandle<()>>)) {
    over.cancel();
    for task in tasks {
        task.await.unwrap();
    }
}

fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn a_file_gets_every_record_once_without_secrets_and_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig();
    let writable = Arc::new(AtomicBool::new(true));
    let wanted = json!({"destination": "file", "log_inputs": true});
    let kernel = rig.start().await;
    for n in 1..=2 {
        call(&kernel, n, json!({"token": KEY, "n": n})).await;
        let made = audits(
            wanted.clone(),
            &Settings::default(),
            dir.path(),
            &rig.journal,
            &writable,
        )
        .unwrap();
        end(start(made)).await;
    }
    let file = dir.path().join("audit/p.jsonl");
    let found = lines(&file);
    let of = |kind: &str| found.iter().filter(|line| line["type"] == kind).count();
    assert_eq!(
        (
            of("action.requested"),
            of("action.executed"),
            of("ckp.policy.audited")
        ),
        (2, 2, 2)
    );
    let text = fs::read_to_string(&file).unwrap();
    assert!(!text.contains(KEY), "no secret");
    assert!(
        found.iter().any(|line| line["input"]["n"] == 1),
        "inputs are wanted"
    );
    assert!(
        found.iter().all(|line| line.get("output").is_none()),
        "outputs are not"
    );
}

#[tokio::test]
async fn a_full_file_is_put_aside_and_an_old_one_goes() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig();
    let writable = Arc::new(AtomicBool::new(true));
    fs::create_dir_all(dir.path().join("audit")).unwrap();
    fs::write(dir.path().join("audit/p.jsonl.1000"), "old").unwrap();
    call(&rig.start().await, 1, json!({})).await;
    let settings = Settings {
        max_file_bytes: 10,
        ..Settings::default()
    };
    let made = audits(
        json!({"destination": "file", "retention": "1d"}),
        &settings,
        dir.path(),
        &rig.journal,
        &writable,
    )
    .unwrap();
    end(start(made)).await;
    let names: Vec<String> = fs::read_dir(dir.path().join("audit"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names
            .iter()
            .any(|name| name.starts_with("p.jsonl.") && name != "p.jsonl.1000"),
        "{names:?}"
    );
    assert!(!names.contains(&"p.jsonl.1000".to_owned()), "{names:?}");
}

#[tokio::test]
async fn syslog_gets_rfc_5424() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig();
    let writable = Arc::new(AtomicBool::new(true));
    let place = dir.path().join("log");
    let settings = Settings {
        syslog: format!("unix:{}", place.display()),
        ..Settings::default()
    };
    let wanted = json!({"destination": "syslog"});
    let refused = audits(wanted.clone(), &settings, dir.path(), &rig.journal, &writable);
    assert!(refused.is_err(), "nobody listens: no start");
    let socket = UnixDatagram::bind(&place).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    call(&rig.start().await, 1, json!({})).await;
    end(start(
        audits(wanted, &settings, dir.path(), &rig.journal, &writable).unwrap(),
    ))
    .await;
    let mut buffer = vec![0; 16 << 10];
    let read = socket.recv(&mut buffer).unwrap();
    let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
    assert!(
        text.starts_with("<109>1 2026-01-02T03:04:05.") && text.contains(" - clawk "),
        "{text}"
    );
}

#[tokio::test]
async fn a_webhook_that_is_away_loses_nothing_and_holds_what_must_be_audited() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig();
    let writable = Arc::new(AtomicBool::new(true));
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let settings = Settings {
        webhook: Some(format!("http://127.0.0.1:{port}/audit")),
        ..Settings::default()
    };
    let wanted = json!({"destination": "webhook"});
    assert!(
        audits(
            wanted.clone(),
            &Settings::default(),
            dir.path(),
            &rig.journal,
            &writable
        )
        .is_err(),
        "no address, no start"
    );
    call(&rig.start().await, 1, json!({})).await;
    let running = start(audits(wanted, &settings, dir.path(), &rig.journal, &writable).unwrap());
    while writable.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut text = String::new();
        let mut buffer = [0; 4096];
        while !text.contains("action.executed") {
            let read = stream.read(&mut buffer).unwrap();
            text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        std::io::Write::write_all(
            &mut stream,
            b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
        text
    });
    while !writable.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    end(running).await;
    let text = server.join().unwrap();
    assert!(text.contains("ckp.policy.audited"), "{text}");
}

fn kept(dir: &Path) -> Vec<crate::state::kept::AuditRow> {
    crate::state::kept::AuditDb::new(dir.join("audit/p.db"))
        .read_rows()
        .unwrap()
}

#[tokio::test]
async fn sqlite_is_a_copy_of_its_own_with_every_record_once_and_forgets_what_is_old() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let rig = rig();
    let writable = Arc::new(AtomicBool::new(true));
    let settings = Settings::default();
    let run = async |wanted: &Value| {
        end(start(
            audits(wanted.clone(), &settings, dir.path(), &rig.journal, &writable).unwrap(),
        ))
        .await;
    };
    let wanted = json!({"destination": "sqlite", "log_inputs": true});
    let kernel = rig.start().await;
    for n in 1..=2 {
        call(&kernel, n, json!({"token": KEY, "n": n})).await;
        run(&wanted).await;
    }
    let all = kept(dir.path());
    assert_eq!(all.iter().filter(|row| row.kind == "action.executed").count(), 2);
    assert!(all.iter().all(|row| !row.record.contains(KEY)), "no secret");
    let inputs = all.iter().filter(|row| row.record.contains("\"input\""));
    assert_eq!(inputs.count(), 2);
    let mode = fs::metadata(dir.path().join("audit/p.db"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // The place that was reached is lost: everything comes again, and nothing is there twice.
    fs::remove_file(dir.path().join("audit/p.cursor")).unwrap();
    run(&wanted).await;
    assert_eq!(kept(dir.path()), all);
    // The rig's clock stands in the past.
    run(&json!({"destination": "sqlite", "retention": "36500d"})).await;
    assert_eq!(kept(dir.path()).len(), all.len());
    run(&json!({"destination": "sqlite", "retention": "1d"})).await;
    assert_eq!(kept(dir.path()), [], "kept long enough");
}

#[tokio::test]
async fn approvals_inputs_and_outputs_are_there_as_the_policy_wants() {
    for (wanted, input, output) in [
        (
            json!({"destination": "sqlite", "log_inputs": true, "log_outputs": false}),
            true,
            false,
        ),
        (
            json!({"destination": "sqlite", "log_inputs": false, "log_outputs": true}),
            false,
            true,
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let rig = rig();
        let writable = Arc::new(AtomicBool::new(true));
        call(&rig.start().await, 1, json!({"n": 1})).await;
        let made = audits(wanted, &Settings::default(), dir.path(), &rig.journal, &writable).unwrap();
        end(start(made)).await;
        let all: Vec<Value> = kept(dir.path())
            .iter()
            .map(|row| serde_json::from_str(&row.record).unwrap())
            .collect();
        assert_eq!(all.iter().any(|record| record.get("input").is_some()), input);
        assert!(
            all.iter().all(|record| record.get("unreadable").is_none()),
            "{all:?}"
        );
        assert_eq!(all.iter().any(|record| record.get("output").is_some()), output);
    }
    let asked = |log: bool| json!({"destination": "file", "log_approvals": log});
    for log in [true, false] {
        let event = clawk_kernel::ports::RecordedEvent {
            kind: clawk_kernel::kind::APPROVAL_ANSWERED.to_owned(),
            payload: "{}".to_owned(),
            ..first_event().await
        };
        let audit = policy(asked(log)).remove(0).audit.unwrap();
        let audited = AuditedEvent::whole(event);
        let record = super::record::build_audit_record(&audited, &audit, "p", AuditContents::AsWanted);
        assert_eq!(record.is_some(), log);
        let says = record.is_some_and(|record| {
            record
                .line
                .contains("`ckp.approval.answered`: the field `action_id` is missing")
        });
        assert_eq!(says, log, "a record of an event that can't be read says so");
    }
}

/// In an encrypted state, the records that lie in it hold digests, whatever the policy wants; where the operator named another place, that
/// is their own word.
#[tokio::test]
async fn records_in_an_encrypted_state_hold_no_contents() {
    const CANARY: &str = "canary-in-an-argument";
    let everything = json!({"destination": "file", "log_inputs": true, "log_outputs": true});
    for elsewhere in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let rig = rig();
        let writable = Arc::new(AtomicBool::new(true));
        call(&rig.start().await, 1, json!({"text": CANARY})).await;
        let file = dir
            .path()
            .join(if elsewhere { "mine.jsonl" } else { "audit/p.jsonl" });
        let settings = Settings {
            file: elsewhere.then(|| file.clone()),
            ..Settings::default()
        };
        let state = AuditedState {
            path: dir.path(),
            encrypted: true,
        };
        let made = audits_of(everything.clone(), &settings, state, &rig.journal, &writable).unwrap();
        end(start(made)).await;
        let text = std::fs::read_to_string(file).unwrap();
        assert!(
            text.contains("parameters_hash") && text.contains("result_hash"),
            "{text}"
        );
        assert_eq!(text.contains(CANARY), elsewhere, "{text}");
    }
}

async fn first_event() -> clawk_kernel::ports::RecordedEvent {
    let rig = rig();
    let _kernel = rig.start().await;
    rig.journal.events().remove(0)
}

#[tokio::test]
async fn a_file_that_never_fills_is_put_aside_when_its_first_record_is_old() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig();
    let writable = Arc::new(AtomicBool::new(true));
    let wanted = json!({"destination": "file", "retention": "1d"});
    // The rig's clock stands long past: its records are old as soon as they are written.
    call(&rig.start().await, 1, json!({})).await;
    for _ in 0..2 {
        let made = audits(
            wanted.clone(),
            &Settings::default(),
            dir.path(),
            &rig.journal,
            &writable,
        )
        .unwrap();
        end(start(made)).await;
    }
    let names: Vec<String> = fs::read_dir(dir.path().join("audit"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().any(|name| name.starts_with("p.jsonl.")), "{names:?}");
}

/// One content that can't be read is a gap in one record: the others have theirs, later ones follow, and the destination takes records.
#[tokio::test]
async fn a_damaged_content_is_a_gap_in_its_record_and_stops_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig();
    let writable = Arc::new(AtomicBool::new(true));
    let wanted = json!({"destination": "sqlite", "log_inputs": true, "log_outputs": true});
    let kernel = rig.start().await;
    for n in 1..=3 {
        call(&kernel, n, json!({"n": n})).await;
    }
    let requested: Vec<u64> = rig
        .journal
        .events()
        .iter()
        .filter(|event| event.kind == "action.requested")
        .map(|event| event.row)
        .collect();
    rig.journal.damage_content(requested[1]);
    let run = async || {
        let made = audits(
            wanted.clone(),
            &Settings::default(),
            dir.path(),
            &rig.journal,
            &writable,
        );
        end(start(made.unwrap())).await;
    };
    run().await;
    assert!(writable.load(Ordering::SeqCst), "the destination takes records");
    // What comes later is delivered, too.
    call(&kernel, 4, json!({"n": 4})).await;
    run().await;
    let inputs: Vec<(Value, bool)> = kept(dir.path())
        .iter()
        .filter(|row| row.kind == "action.requested")
        .map(|row| {
            let record: Value = serde_json::from_str(&row.record).unwrap();
            let gap = record["unreadable_content"].is_string();
            assert!(record["facts"]["parameters_hash"].is_string(), "{record}");
            (record["input"]["n"].clone(), gap)
        })
        .collect();
    let mut inputs = inputs;
    inputs.sort_by_key(|(n, _)| n.as_u64());
    assert_eq!(
        inputs,
        [
            (json!(1), false),
            // The content is read by its digest, where only the event's copy is damaged.
            (json!(2), true),
            (json!(3), false),
            (json!(4), false)
        ]
    );
}
