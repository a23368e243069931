//! Exact grants: what was approved is what runs, or nothing runs; questions outlive the process that asked them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_manifest::model::Role;
use serde_json::{Value, json};

use super::{agent, id, params, rig, rpc, soon};
use crate::error::CallError;
use crate::notice::Answer;
use crate::sheet::Seen;
use crate::testing::{Behaviour, Rig};
use crate::witness::Fact;
use crate::{Breadth, Kernel, Lasting, Person, Reception, Reply, kind};

fn asking() -> Value {
    let mut spec = agent(json!([
        {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "write"}},
        {"id": "rest", "action": "allow", "scope": "all"}]));
    spec["tools"][1]["labels"] = json!({"category": "filesystem"});
    spec
}

fn rig_in(dir: &Path) -> Rig {
    let mut rig = rig(asking());
    rig.workdir = dir.to_path_buf();
    rig
}

fn reply(answer: Answer) -> Reply {
    Reply {
        answer,
        breadth: Breadth::Exact,
        person: Person::admin("terminal", "ann"),
        reason: None,
        seen: Seen::Short,
    }
}

/// Asks for a write of `arguments`, swaps, approves: what came of it.
async fn approved_after(rig: &Rig, arguments: Value, swap: impl FnOnce()) -> Result<(), CallError> {
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.questions();
    let call = tokio::spawn(kernel.call(session, params("write", arguments, 1)));
    soon(questions.recv()).await.unwrap();
    swap();
    assert_eq!(
        kernel.reply(&id(1), reply(Answer::Approve)).await,
        Reception::Taken
    );
    call.await.unwrap().map(drop)
}

fn void(rig: &Rig, outcome: &Result<(), CallError>, what: &str) {
    let Err(CallError::ApprovalVoid { changed, .. }) = outcome else {
        panic!("{what}: {outcome:?}")
    };
    assert!(changed.contains(what), "{what}: {changed}");
    assert_eq!(rig.runner.runs(), [], "{what}: nothing ran");
    let kinds = rig.journal.kinds();
    assert!(kinds.contains(&kind::APPROVAL_VOIDED.to_owned()), "{what}");
    assert!(!kinds.contains(&kind::ACTION_APPROVED.to_owned()), "{what}");
}

/// A fresh folder with a file, and the rig that works in it.
fn place() -> (tempfile::TempDir, Rig, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().canonicalize().unwrap();
    fs::create_dir(real.join("sub")).unwrap();
    fs::write(real.join("sub/f"), "one").unwrap();
    let rig = rig_in(&real);
    (dir, rig, real)
}

#[tokio::test]
async fn unchanged_is_approved() {
    let (_dir, rig, _) = place();
    approved_after(&rig, json!({"path": "sub/f"}), || {})
        .await
        .unwrap();
    assert_eq!(rig.runner.runs().len(), 1);
}

/// What was granted for one attempt is granted for the next only while it still stands.
#[tokio::test(start_paused = true)]
async fn a_swap_between_two_attempts_ends_them() {
    for (swapped, runs) in [(false, 3), (true, 1)] {
        let (_dir, _, at) = place();
        let mut spec = asking();
        spec["tools"][1]["annotations"] = json!({"idempotentHint": true});
        spec["tools"][1]["retry"] = json!({"max_attempts": 3, "backoff": "constant"});
        let mut rig = rig(spec);
        rig.workdir = at;
        rig.runner.set("write", Behaviour::Flaky(2));
        rig.runner.stand_on("the program `git`", "/usr/bin/git");
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let mut questions = kernel.questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"path": "sub/f"}), 1)));
        soon(questions.recv()).await.unwrap();
        let _taken = kernel.reply(&id(1), reply(Answer::Approve)).await;
        soon(async {
            while rig.runner.runs().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        if swapped {
            rig.runner.stand_on("the program `git`", "/tmp/git");
        }
        let outcome = call.await.unwrap();
        assert_eq!(rig.runner.runs().len(), runs, "{outcome:?}");
        assert_eq!(outcome.is_err(), swapped);
    }
}

#[tokio::test]
async fn approve_then_swap_is_void() {
    let (_dir, rig, at) = place();
    let file = at.join("sub/f");
    let outcome = approved_after(&rig, json!({"path": "sub/f"}), || {
        fs::write(&file, "two").unwrap()
    })
    .await;
    void(&rig, &outcome, "content");

    let (_dir, rig, at) = place();
    let file = at.join("sub/f");
    let outcome = approved_after(&rig, json!({"files": ["sub/f"]}), || {
        let time = fs::metadata(&file).unwrap().modified().unwrap();
        fs::rename(&file, at.join("away")).unwrap();
        fs::write(&file, "six").unwrap();
        let open = fs::File::options().write(true).open(&file).unwrap();
        open.set_modified(time).unwrap();
    })
    .await;
    void(&rig, &outcome, "content");

    let (_dir, rig, at) = place();
    let outcome = approved_after(&rig, json!({"path": "sub/new"}), || {
        fs::write(at.join("sub/new"), "x").unwrap()
    })
    .await;
    void(&rig, &outcome, "does not exist");

    let (_dir, rig, at) = place();
    fs::write(at.join("other"), "one").unwrap();
    symlink("sub/f", at.join("link")).unwrap();
    let outcome = approved_after(&rig, json!({"path": "link"}), || {
        fs::remove_file(at.join("link")).unwrap();
        symlink("other", at.join("link")).unwrap();
    })
    .await;
    void(&rig, &outcome, "the link");

    let (_dir, rig, at) = place();
    let outcome = approved_after(&rig, json!({"path": "sub/f"}), || {
        fs::create_dir(at.join("twin")).unwrap();
        fs::hard_link(at.join("sub/f"), at.join("twin/f")).unwrap();
        fs::rename(at.join("sub"), at.join("gone")).unwrap();
        fs::rename(at.join("twin"), at.join("sub")).unwrap();
    })
    .await;
    // A hard link changes the inode's own time as well; the folder is told first.
    void(&rig, &outcome, "the folders on the way");

    let (_dir, rig, _) = place();
    rig.runner.stand_on("the program `git`", "/usr/bin/git");
    let runner = Arc::clone(&rig.runner);
    let outcome = approved_after(&rig, json!({}), || {
        runner.stand_on("the program `git`", "/tmp/git")
    })
    .await;
    void(&rig, &outcome, "the program `git`");

    let (_dir, rig, _) = place();
    let clock = Arc::clone(&rig.clock);
    let outcome = approved_after(&rig, json!({}), || clock.advance_ms(300_001)).await;
    void(&rig, &outcome, "lapsed");
}

/// Crashes while a question is open; the journal and the files stay.
async fn crashed_asking(rig: &Rig, arguments: Value) -> clawk_proto::SessionId {
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.questions();
    let call = tokio::spawn(kernel.call(session, params("write", arguments, 1)));
    soon(questions.recv()).await.unwrap();
    call.abort();
    let _aborted = call.await;
    session
}

async fn retried(kernel: &Kernel, arguments: Value) -> Result<(), CallError> {
    let session = rpc(kernel).await;
    kernel
        .call(session, params("write", arguments, 1))
        .await
        .map(drop)
}

#[tokio::test]
async fn a_question_survives_a_restart_and_its_answer_counts_once() {
    let (_dir, rig, _) = place();
    crashed_asking(&rig, json!({"path": "sub/f"})).await;
    let kernel = rig.start().await;
    let open = kernel.pending();
    assert_eq!(open.len(), 1, "open again");
    assert_eq!(open[0].tool, "write");
    assert_eq!(
        kernel.reply(&id(1), reply(Answer::Approve)).await,
        Reception::Taken
    );
    assert_eq!(
        kernel.reply(&id(1), reply(Answer::Deny)).await,
        Reception::Nothing,
        "once"
    );
    assert_eq!(kernel.pending().len(), 0);
    drop(kernel);
    // The answer is durable, too: yet another start finds it.
    let kernel = rig.start().await;
    retried(&kernel, json!({"path": "sub/f"})).await.unwrap();
    assert_eq!(rig.runner.runs().len(), 1);
    retried(&kernel, json!({"path": "sub/f"})).await.unwrap();
    assert_eq!(rig.runner.runs().len(), 1, "the stored answer");
    rig.clock.advance_ms(290_000);
    let kernel = rig.start().await;
    assert_eq!(kernel.pending(), [], "used up");
    let past = kernel.answered(10).await.unwrap();
    assert_eq!(past.len(), 1);
    assert_eq!(
        (
            past[0].by.as_str(),
            past[0].channel.as_str(),
            past[0].role.as_str()
        ),
        ("ann", "terminal", "admin")
    );
}

#[tokio::test]
async fn what_was_open_keeps_its_expiry_its_arguments_and_what_was_shown() {
    let (_dir, rig, at) = place();
    crashed_asking(&rig, json!({"path": "sub/f"})).await;
    let before = rig.start().await.pending();
    let kernel = rig.start().await;
    assert_eq!(kernel.pending()[0].expires_at, before[0].expires_at);
    let other = retried(&kernel, json!({"path": "other"})).await;
    assert!(
        matches!(other, Err(CallError::RequestIdReused { .. })),
        "{other:?}"
    );
    assert_eq!(
        kernel.pending().len(),
        1,
        "a stranger's arguments do not close it"
    );
    fs::write(at.join("sub/f"), "two").unwrap();
    kernel.reply(&id(1), reply(Answer::Approve)).await;
    let outcome = retried(&kernel, json!({"path": "sub/f"})).await;
    void(&rig, &outcome, "content");

    let (_dir, mut rig, _) = place();
    crashed_asking(&rig, json!({})).await;
    let mut spec = asking();
    spec["sandbox"] =
        json!({"name": "box", "level": "process", "capabilities": {"network": {"mode": "allow-all"}}});
    rig.manifest = Arc::new(crate::testing::manifest(spec));
    let kernel = rig.start().await;
    kernel.reply(&id(1), reply(Answer::Approve)).await;
    let outcome = retried(&kernel, json!({})).await;
    void(&rig, &outcome, "the sandbox plan");

    let (_dir, rig, _) = place();
    rig.runner.stand_on("the endpoint", "https://a.example/");
    crashed_asking(&rig, json!({})).await;
    rig.runner.stand_on("the endpoint", "https://b.example/");
    let kernel = rig.start().await;
    kernel.reply(&id(1), reply(Answer::Approve)).await;
    let outcome = retried(&kernel, json!({})).await;
    void(&rig, &outcome, "the endpoint");

    let (_dir, rig, _) = place();
    crashed_asking(&rig, json!({})).await;
    rig.clock.advance_ms(301_000);
    let kernel = rig.start().await;
    assert_eq!(kernel.pending(), []);
    assert_eq!(
        kernel.reply(&id(1), reply(Answer::Approve)).await,
        Reception::Nothing
    );
}

#[tokio::test]
async fn an_orderly_stop_leaves_the_question_open_and_the_turn_goes_on_with_it() {
    let (_dir, mut rig, _) = place();
    let model = crate::testing::ScriptedModel::new(|request, _| {
        let done = request
            .messages
            .iter()
            .any(|message| matches!(message, crate::ports::Message::ToolResult { .. }));
        Ok(if done {
            crate::testing::says("done")
        } else {
            crate::testing::calls(&[("write", json!({"path": "sub/f"}))])
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let kernel = rig.start().await;
    let mut questions = kernel.questions();
    let session = kernel.open(crate::Door::Cli).await.unwrap();
    session.send("write it").await.unwrap();
    let asked = soon(questions.recv()).await.unwrap();
    kernel.shutdown("test", 1).await;
    let kernel = rig.start().await;
    let again = loop {
        if let Some(question) = kernel.pending().pop() {
            break question;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(again.request_id, asked.request_id, "the same question");
    assert_eq!(
        kernel.reply(&asked.request_id, reply(Answer::Approve)).await,
        Reception::Taken
    );
    while rig.journal.inbox().iter().any(|(_, end)| end.is_none()) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(rig.runner.runs().len(), 1);
    let asked = rig
        .journal
        .kinds()
        .into_iter()
        .filter(|kind| kind == kind::APPROVAL_REQUESTED);
    assert_eq!(asked.count(), 1);
}

#[tokio::test]
async fn roles_decide_who_may_answer() {
    let (_dir, rig, _) = place();
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({}), 1)));
    soon(questions.recv()).await.unwrap();
    let with = |role, answer| Reply {
        person: Person {
            role,
            ..Person::admin("slack", "eve")
        },
        ..reply(answer)
    };
    for (role, answer) in [
        (Role::Viewer, Answer::Approve),
        (Role::User, Answer::Approve),
        (Role::User, Answer::Always),
        (Role::Viewer, Answer::Deny),
    ] {
        assert_eq!(
            kernel.reply(&id(1), with(role, answer)).await,
            Reception::NotAllowed
        );
    }
    assert_eq!(kernel.pending().len(), 1);
    assert_eq!(
        kernel.reply(&id(1), with(Role::User, Answer::Deny)).await,
        Reception::Taken
    );
    call.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn standing_grants_cover_what_was_shown_survive_and_are_revocable() {
    let (_dir, rig, at) = place();
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({"path": "sub/f"}), 1)));
    let question = soon(questions.recv()).await.unwrap();
    assert_eq!(question.folder, Some(at.join("sub")));
    let always = Reply {
        breadth: Breadth::Folder,
        ..reply(Answer::Always)
    };
    assert_eq!(kernel.reply(&id(1), always).await, Reception::Taken);
    call.await.unwrap().unwrap();
    drop(kernel);
    let kernel = rig.start().await;
    let held = kernel.granted();
    assert_eq!(
        (held.len(), held[0].lasting, held[0].by.as_str()),
        (1, Lasting::Always, "ann")
    );
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("write", json!({"path": "sub/g"}), 2))
        .await
        .unwrap();
    let asks = async |kernel: &Kernel, arguments: Value, n: u32| {
        let mut questions = kernel.questions();
        let call = tokio::spawn(kernel.call(session, params("write", arguments, n)));
        soon(questions.recv()).await.unwrap();
        kernel.reply(&id(n), reply(Answer::Deny)).await;
        soon(call).await.unwrap().unwrap_err();
    };
    asks(&kernel, json!({"path": "f"}), 3).await;
    asks(&kernel, json!({"path": "sub/../f"}), 4).await;
    asks(&kernel, json!({"path": "subway/f"}), 5).await;
    let user = Person {
        role: Role::User,
        ..Person::admin("slack", "eve")
    };
    assert!(!kernel.revoke(&held[0].id, &user).await.unwrap());
    assert!(
        kernel
            .revoke(&held[0].id, &Person::admin("control", "ann"))
            .await
            .unwrap()
    );
    asks(&kernel, json!({"path": "sub/g"}), 6).await;
    drop(kernel);
    assert_eq!(rig.start().await.granted(), []);
}

/// Calls `write` with the same arguments as ever: whether a person was asked, and the reason that they read.
async fn asked(kernel: &Kernel, n: u32) -> Option<String> {
    let session = rpc(kernel).await;
    let mut questions = kernel.questions();
    let mut call = tokio::spawn(kernel.call(session, params("write", json!({"n": 1}), n)));
    let reason = tokio::select! {
        question = questions.recv() => {
            kernel.reply(&id(n), reply(Answer::Deny)).await;
            Some(question.unwrap().reason)
        }
        outcome = &mut call => {
            outcome.unwrap().unwrap();
            return None;
        }
    };
    soon(call).await.unwrap().unwrap_err();
    reason
}

#[tokio::test]
async fn a_standing_grant_covers_nothing_of_another_program_server_or_manifest() {
    let program = |inode: u32, content: &str| {
        let identity = format!(
            "file, dev 1, inode {inode}, size 3, modified {inode}, changed {inode}, sha256 {content}"
        );
        vec![
            Fact::new("the program `tool`", "/usr/bin/tool"),
            Fact::new("the folders on the way to `/usr/bin/tool`", inode.to_string()),
            Fact::new("`/usr/bin/tool`", identity),
            Fact::new("the MCP server", "https://one.example/mcp"),
        ]
    };
    for lasting in [Answer::Always, Answer::ApproveForSession] {
        let mut rig = rig(asking());
        rig.runner.stand_on_all(program(1, "aa"));
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let mut questions = kernel.questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"n": 1}), 1)));
        soon(questions.recv()).await.unwrap();
        kernel.reply(&id(1), reply(lasting)).await;
        soon(call).await.unwrap().unwrap();
        let again = |n| kernel.call(session, params("write", json!({"n": 1}), n));
        again(2).await.expect("it stands");
        rig.runner.stand_on_all(program(7, "aa"));
        again(3)
            .await
            .expect("the same content in a new file is the same program");
        if lasting != Answer::Always {
            continue;
        }
        let mut n = 3;
        let mut server = program(1, "aa");
        server.last_mut().unwrap().value = "https://two.example/mcp".to_owned();
        let mut path = program(1, "aa");
        path[0].value = "/home/me/bin/tool".to_owned();
        for other in [program(1, "bb"), server, path, Vec::new()] {
            n += 1;
            rig.runner.stand_on_all(other.clone());
            let reason = asked(&kernel, n).await.expect("another program is asked about");
            assert!(reason.contains(&kernel.granted()[0].id), "{other:?}: {reason}");
        }
        drop(kernel);
        rig.runner.stand_on_all(program(1, "aa"));
        rig.origin = "/clones/evil/claw.yaml".to_owned();
        let kernel = rig.start().await;
        assert!(
            asked(&kernel, 20).await.is_some(),
            "another manifest in the same state"
        );
        drop(kernel);
        rig.origin = "/work/claw.yaml".to_owned();
        let kernel = rig.start().await;
        assert_eq!(asked(&kernel, 21).await, None, "the grant itself stands");
    }
}

#[tokio::test]
async fn an_always_for_a_call_that_is_void_stands_for_nothing() {
    let (_dir, rig, at) = place();
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({"path": "sub/f"}), 1)));
    soon(questions.recv()).await.unwrap();
    fs::write(at.join("sub/f"), "another").unwrap();
    assert_eq!(
        kernel.reply(&id(1), reply(Answer::Always)).await,
        Reception::Taken
    );
    let outcome = call.await.unwrap().map(drop);
    void(&rig, &outcome, "changed");
    assert_eq!(kernel.granted(), []);
    drop(kernel);
    assert_eq!(rig.start().await.granted(), []);
    assert!(!rig.journal.kinds().contains(&kind::APPROVAL_GRANTED.to_owned()));
}

#[tokio::test]
async fn a_yes_to_a_folded_question_counts_from_who_has_seen_the_whole() {
    let rig = rig(asking());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.questions();
    let long = json!({"n": format!("{}; rm -rf /; {}", "a".repeat(900), "b".repeat(900))});
    for (n, seen) in [(1, None), (2, Some(Seen::Sent))] {
        let call = tokio::spawn(kernel.call(session, params("write", long.clone(), n)));
        let question = soon(questions.recv()).await.unwrap();
        assert!(!question.sheet.short().join("\n").contains("rm -rf"));
        assert!(question.sheet.whole().contains("; rm -rf /; "));
        for unseen in [
            Seen::Short,
            Seen::Whole(Vec::new()),
            Seen::Whole(vec![clawk_proto::Digest::ZERO]),
        ] {
            for answer in [Answer::Approve, Answer::ApproveForSession, Answer::Always] {
                let reply = Reply {
                    seen: unseen.clone(),
                    ..reply(answer)
                };
                assert_eq!(soon(kernel.reply(&id(n), reply)).await, Reception::Unseen);
            }
        }
        assert_eq!(kernel.pending().len(), 1, "it waits on");
        let seen = seen.unwrap_or_else(|| Seen::Whole(vec![question.sheet.digest()]));
        let reply = Reply {
            seen,
            ..reply(Answer::Approve)
        };
        assert_eq!(soon(kernel.reply(&id(n), reply)).await, Reception::Taken);
        soon(call).await.unwrap().unwrap();
    }
    let events = rig.journal.events();
    let answered = events
        .iter()
        .filter(|event| event.kind == kind::APPROVAL_ANSWERED);
    let seen: Vec<Value> = answered
        .map(|event| serde_json::from_str::<Value>(&event.payload).unwrap()["seen"].clone())
        .collect();
    assert_eq!(seen, [json!("whole"), json!("sent")]);
    // A no needs nothing.
    let call = tokio::spawn(kernel.call(session, params("write", long, 3)));
    soon(questions.recv()).await.unwrap();
    assert_eq!(
        soon(kernel.reply(&id(3), reply(Answer::Deny))).await,
        Reception::Taken
    );
    assert!(soon(call).await.unwrap().is_err());
}

/// The same for a question that no running call holds.
#[tokio::test]
async fn an_open_question_that_is_folded_waits_for_who_reads_it() {
    let rig = rig(asking());
    let (session, digest) = {
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let mut questions = kernel.questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"n": "a".repeat(900)}), 1)));
        let question = soon(questions.recv()).await.unwrap();
        call.abort();
        let _aborted = call.await;
        (session, question.sheet.digest())
    };
    let kernel = rig.start().await;
    let _session = session;
    let open = kernel.pending();
    assert_eq!(open.len(), 1, "it is open again");
    assert_eq!(open[0].sheet.digest(), digest, "with the same text");
    assert_eq!(
        soon(kernel.reply(&id(1), reply(Answer::Approve))).await,
        Reception::Unseen
    );
    let read = Reply {
        seen: Seen::Whole(vec![digest]),
        ..reply(Answer::Approve)
    };
    assert_eq!(soon(kernel.reply(&id(1), read)).await, Reception::Taken);
}

#[tokio::test]
async fn a_question_says_where_its_paths_lead() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a")).unwrap();
    symlink("../b", dir.path().join("a/l")).unwrap();
    let rig = rig_in(dir.path());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.questions();
    let _call = tokio::spawn(kernel.call(session, params("write", json!({"path": "a/l/new"}), 1)));
    let question = soon(questions.recv()).await.unwrap();
    let real = dir.path().canonicalize().unwrap().join("b/new");
    let says = format!("leads to `{}`", real.display());
    assert!(
        question.sheet.short().last().unwrap().ends_with(&says),
        "{:?}",
        question.sheet
    );
}

/// Calls a write and answers its question, if it asks one; whether it did.
async fn asks(
    kernel: &Kernel,
    session: clawk_proto::SessionId,
    n: u32,
    path: &str,
    breadth: Breadth,
) -> bool {
    let mut questions = kernel.questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({"path": path}), n)));
    tokio::select! {
        question = questions.recv() => {
            question.unwrap();
            let always = Reply { breadth, ..reply(Answer::Always) };
            assert_eq!(kernel.reply(&id(n), always).await, Reception::Taken);
            call.await.unwrap().unwrap();
            true
        }
        () = tokio::time::sleep(std::time::Duration::from_millis(400)) => {
            call.await.unwrap().unwrap();
            false
        }
    }
}

#[tokio::test]
async fn a_grant_is_for_the_place_and_not_for_a_link_to_another() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("a/in")).unwrap();
    fs::create_dir_all(root.join("b")).unwrap();
    symlink("../b", root.join("a/l")).unwrap();
    symlink("../b/f", root.join("a/exact")).unwrap();
    fs::write(root.join("b/f"), "x").unwrap();
    let rig = rig_in(&root);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let (folder, exact) = (Breadth::Folder, Breadth::Exact);
    assert!(asks(&kernel, session, 1, "a/one", folder).await);
    assert!(!asks(&kernel, session, 2, "a/two", exact).await, "in the folder");
    assert!(!asks(&kernel, session, 3, "a/in/deep", exact).await, "below it");
    // Its words lie in the folder, the place does not.
    assert!(asks(&kernel, session, 4, "a/l/f", exact).await);
    assert!(asks(&kernel, session, 5, "a/exact", exact).await);
    // Given for exactly this, and where it led then.
    assert!(!asks(&kernel, session, 6, "a/exact", exact).await);
    fs::write(root.join("b/g"), "x").unwrap();
    fs::remove_file(root.join("a/exact")).unwrap();
    symlink("../b/g", root.join("a/exact")).unwrap();
    assert!(
        asks(&kernel, session, 7, "a/exact", exact).await,
        "it leads elsewhere now"
    );
    // What was offered is where the files are, not the link.
    let held = kernel.granted();
    assert!(
        held.iter()
            .any(|held| held.folder.as_ref() == Some(&root.join("a"))),
        "{held:?}"
    );
    kernel.shutdown("tested", 100).await;
}
