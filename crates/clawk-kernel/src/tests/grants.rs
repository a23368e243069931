//! Exact grants: what was approved is what runs, or nothing runs; questions outlive the process that asked them.

mod restart;
mod standing;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_manifest::model::Role;
use serde_json::{Value, json};

use super::{agent, id, params, rig, rpc, soon};
use crate::error::CallError;
use crate::notice::ApprovalAnswer;
use crate::sheet::PreviewReceipt;
use crate::testing::{Behaviour, Rig};
use crate::{ApprovalReply, GrantScope, Kernel, KnownPerson, ReplyOutcome, kind};

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

fn reply(answer: ApprovalAnswer) -> ApprovalReply {
    ApprovalReply {
        answer,
        breadth: GrantScope::Exact,
        person: KnownPerson::admin("terminal", "ann"),
        reason: None,
        seen: PreviewReceipt::Short,
    }
}

/// Asks for a write of `arguments`, swaps, approves: what came of it.
async fn approved_after(rig: &Rig, arguments: Value, swap: impl FnOnce()) -> Result<(), CallError> {
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.subscribe_questions();
    let call = tokio::spawn(kernel.call(session, params("write", arguments, 1)));
    soon(questions.recv()).await.unwrap();
    swap();
    assert_eq!(
        kernel
            .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
            .await,
        ReplyOutcome::Taken
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
        let mut questions = kernel.subscribe_questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"path": "sub/f"}), 1)));
        soon(questions.recv()).await.unwrap();
        let _taken = kernel
            .reply_to_question(&id(1), reply(ApprovalAnswer::Approve))
            .await;
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

#[tokio::test]
async fn roles_decide_who_may_answer() {
    let (_dir, rig, _) = place();
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.subscribe_questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({}), 1)));
    soon(questions.recv()).await.unwrap();
    let with = |role, answer| ApprovalReply {
        person: KnownPerson {
            role,
            ..KnownPerson::admin("slack", "eve")
        },
        ..reply(answer)
    };
    for (role, answer) in [
        (Role::Viewer, ApprovalAnswer::Approve),
        (Role::User, ApprovalAnswer::Approve),
        (Role::User, ApprovalAnswer::Always),
        (Role::Viewer, ApprovalAnswer::Deny),
    ] {
        assert_eq!(
            kernel.reply_to_question(&id(1), with(role, answer)).await,
            ReplyOutcome::NotAllowed
        );
    }
    assert_eq!(kernel.pending_questions().len(), 1);
    assert_eq!(
        kernel
            .reply_to_question(&id(1), with(Role::User, ApprovalAnswer::Deny))
            .await,
        ReplyOutcome::Taken
    );
    call.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_yes_to_a_folded_question_counts_from_who_has_seen_the_whole() {
    let rig = rig(asking());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.subscribe_questions();
    let long = json!({"n": format!("{}; rm -rf /; {}", "a".repeat(900), "b".repeat(900))});
    for (n, seen) in [(1, None), (2, Some(PreviewReceipt::Sent))] {
        let call = tokio::spawn(kernel.call(session, params("write", long.clone(), n)));
        let question = soon(questions.recv()).await.unwrap();
        assert!(!question.sheet.short().join("\n").contains("rm -rf"));
        assert!(question.sheet.whole().contains("; rm -rf /; "));
        for unseen in [
            PreviewReceipt::Short,
            PreviewReceipt::Whole(Vec::new()),
            PreviewReceipt::Whole(vec![clawk_proto::Digest::ZERO]),
        ] {
            for answer in [
                ApprovalAnswer::Approve,
                ApprovalAnswer::ApproveForSession,
                ApprovalAnswer::Always,
            ] {
                let reply = ApprovalReply {
                    seen: unseen.clone(),
                    ..reply(answer)
                };
                assert_eq!(
                    soon(kernel.reply_to_question(&id(n), reply)).await,
                    ReplyOutcome::Unseen
                );
            }
        }
        assert_eq!(kernel.pending_questions().len(), 1, "it waits on");
        let seen = seen.unwrap_or_else(|| PreviewReceipt::Whole(vec![question.sheet.digest()]));
        let reply = ApprovalReply {
            seen,
            ..reply(ApprovalAnswer::Approve)
        };
        assert_eq!(
            soon(kernel.reply_to_question(&id(n), reply)).await,
            ReplyOutcome::Taken
        );
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
        soon(kernel.reply_to_question(&id(3), reply(ApprovalAnswer::Deny))).await,
        ReplyOutcome::Taken
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
        let mut questions = kernel.subscribe_questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"n": "a".repeat(900)}), 1)));
        let question = soon(questions.recv()).await.unwrap();
        call.abort();
        let _aborted = call.await;
        (session, question.sheet.digest())
    };
    let kernel = rig.start().await;
    let _session = session;
    let open = kernel.pending_questions();
    assert_eq!(open.len(), 1, "it is open again");
    assert_eq!(open[0].sheet.digest(), digest, "with the same text");
    assert_eq!(
        soon(kernel.reply_to_question(&id(1), reply(ApprovalAnswer::Approve))).await,
        ReplyOutcome::Unseen
    );
    let read = ApprovalReply {
        seen: PreviewReceipt::Whole(vec![digest]),
        ..reply(ApprovalAnswer::Approve)
    };
    assert_eq!(
        soon(kernel.reply_to_question(&id(1), read)).await,
        ReplyOutcome::Taken
    );
}

#[tokio::test]
async fn a_question_says_where_its_paths_lead() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a")).unwrap();
    symlink("../b", dir.path().join("a/l")).unwrap();
    let rig = rig_in(dir.path());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.subscribe_questions();
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
    breadth: GrantScope,
) -> bool {
    let mut questions = kernel.subscribe_questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({"path": path}), n)));
    tokio::select! {
        question = questions.recv() => {
            question.unwrap();
            let always = ApprovalReply { breadth, ..reply(ApprovalAnswer::Always) };
            assert_eq!(kernel.reply_to_question(&id(n), always).await, ReplyOutcome::Taken);
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
    let (folder, exact) = (GrantScope::Folder, GrantScope::Exact);
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
    let held = kernel.standing_grants();
    assert!(
        held.iter()
            .any(|held| held.folder.as_ref() == Some(&root.join("a"))),
        "{held:?}"
    );
    kernel.shutdown("tested", 100).await;
}
