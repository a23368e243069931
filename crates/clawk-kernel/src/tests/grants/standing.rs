//! Standing grants: what they cover, and what ends them.

use std::fs;

use clawk_manifest::model::Role;
use serde_json::{Value, json};

use super::super::{id, params, rig, rpc, soon};
use super::{asking, place, reply, void};
use crate::notice::ApprovalAnswer;
use crate::witness::GrantPrecondition;
use crate::{ApprovalReply, GrantLifetime, GrantScope, Kernel, KnownPerson, ReplyOutcome, kind};

#[tokio::test]
async fn standing_grants_cover_what_was_shown_survive_and_are_revocable() {
    let (_dir, rig, at) = place();
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut questions = kernel.subscribe_questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({"path": "sub/f"}), 1)));
    let question = soon(questions.recv()).await.unwrap();
    assert_eq!(question.folder, Some(at.join("sub")));
    let always = ApprovalReply {
        breadth: GrantScope::Folder,
        ..reply(ApprovalAnswer::Always)
    };
    assert_eq!(
        kernel.reply_to_question(&id(1), always).await,
        ReplyOutcome::Taken
    );
    call.await.unwrap().unwrap();
    drop(kernel);
    let kernel = rig.start().await;
    let held = kernel.standing_grants();
    assert_eq!(
        (held.len(), held[0].lasting, held[0].by.as_str()),
        (1, GrantLifetime::Always, "ann")
    );
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("write", json!({"path": "sub/g"}), 2))
        .await
        .unwrap();
    let asks = async |kernel: &Kernel, arguments: Value, n: u32| {
        let mut questions = kernel.subscribe_questions();
        let call = tokio::spawn(kernel.call(session, params("write", arguments, n)));
        soon(questions.recv()).await.unwrap();
        kernel
            .reply_to_question(&id(n), reply(ApprovalAnswer::Deny))
            .await;
        soon(call).await.unwrap().unwrap_err();
    };
    asks(&kernel, json!({"path": "f"}), 3).await;
    asks(&kernel, json!({"path": "sub/../f"}), 4).await;
    asks(&kernel, json!({"path": "subway/f"}), 5).await;
    let user = KnownPerson {
        role: Role::User,
        ..KnownPerson::admin("slack", "eve")
    };
    assert!(!kernel.revoke_grant(&held[0].id, &user).await.unwrap());
    assert!(
        kernel
            .revoke_grant(&held[0].id, &KnownPerson::admin("control", "ann"))
            .await
            .unwrap()
    );
    asks(&kernel, json!({"path": "sub/g"}), 6).await;
    drop(kernel);
    assert_eq!(rig.start().await.standing_grants(), []);
}

/// Calls `write` with the same arguments as ever: whether a person was asked, and the reason that they read.
async fn asked(kernel: &Kernel, n: u32) -> Option<String> {
    let session = rpc(kernel).await;
    let mut questions = kernel.subscribe_questions();
    let mut call = tokio::spawn(kernel.call(session, params("write", json!({"n": 1}), n)));
    let reason = tokio::select! {
        question = questions.recv() => {
            kernel.reply_to_question(&id(n), reply(ApprovalAnswer::Deny)).await;
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
            GrantPrecondition::new("the program `tool`", "/usr/bin/tool"),
            GrantPrecondition::new("the folders on the way to `/usr/bin/tool`", inode.to_string()),
            GrantPrecondition::new("`/usr/bin/tool`", identity),
            GrantPrecondition::new("the MCP server", "https://one.example/mcp"),
        ]
    };
    for lasting in [ApprovalAnswer::Always, ApprovalAnswer::ApproveForSession] {
        let mut rig = rig(asking());
        rig.runner.stand_on_all(program(1, "aa"));
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let mut questions = kernel.subscribe_questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"n": 1}), 1)));
        soon(questions.recv()).await.unwrap();
        kernel.reply_to_question(&id(1), reply(lasting)).await;
        soon(call).await.unwrap().unwrap();
        let again = |n| kernel.call(session, params("write", json!({"n": 1}), n));
        again(2).await.expect("it stands");
        rig.runner.stand_on_all(program(7, "aa"));
        again(3)
            .await
            .expect("the same content in a new file is the same program");
        if lasting != ApprovalAnswer::Always {
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
            assert!(
                reason.contains(&kernel.standing_grants()[0].id),
                "{other:?}: {reason}"
            );
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
    let mut questions = kernel.subscribe_questions();
    let call = tokio::spawn(kernel.call(session, params("write", json!({"path": "sub/f"}), 1)));
    soon(questions.recv()).await.unwrap();
    fs::write(at.join("sub/f"), "another").unwrap();
    assert_eq!(
        kernel
            .reply_to_question(&id(1), reply(ApprovalAnswer::Always))
            .await,
        ReplyOutcome::Taken
    );
    let outcome = call.await.unwrap().map(drop);
    void(&rig, &outcome, "changed");
    assert_eq!(kernel.standing_grants(), []);
    drop(kernel);
    assert_eq!(rig.start().await.standing_grants(), []);
    assert!(!rig.journal.kinds().contains(&kind::APPROVAL_GRANTED.to_owned()));
}
