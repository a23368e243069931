//! `claw.message.send` (R40): one turn per request id, also across a restart; conversations keep their words.

use std::sync::{Arc, Mutex};

use clawk_manifest::model::Role;
use serde_json::json;

use super::{agent, allow_all, id, rig, soon};
use crate::error::KernelError;
use crate::kind;
use crate::notice::SessionNotice;
use crate::ports::{FaultKind, ModelCompletion, ModelMessage, ProviderError, StopReason};
use crate::testing::{Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel, TalkRequest, TalkStop, TurnResult};

fn talking() -> Rig {
    let mut rig = rig(agent(allow_all()));
    let model = ScriptedModel::new(|request, _| {
        let said = request
            .messages
            .iter()
            .filter(|message| matches!(message, ModelMessage::User { .. }));
        Ok(says(&format!("answer {}", said.count())))
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

fn message(owner: &str, conversation: Option<&str>, text: &str, n: u32) -> TalkRequest {
    TalkRequest::new(owner, conversation.map(str::to_owned), text.to_owned(), id(n))
}

async fn send(kernel: &Kernel, asked: TalkRequest) -> Result<TurnResult, KernelError> {
    soon(kernel.send_message(EntryPoint::from_launcher("test"), asked, &|_, _| ())).await
}

fn accepted(rig: &Rig) -> usize {
    rig.journal
        .kinds()
        .iter()
        .filter(|known| *known == kind::MESSAGE_ACCEPTED)
        .count()
}

#[tokio::test]
async fn a_conversation_goes_on_and_is_its_owners_alone() {
    let rig = talking();
    let kernel = rig.start().await;
    let one = send(&kernel, message("ann", Some("desk"), "hello", 1))
        .await
        .unwrap();
    assert_eq!((one.text.as_str(), one.stop), ("answer 1", TalkStop::Answered));
    assert_eq!((one.conversation.as_str(), one.usage.input_tokens), ("desk", 10));
    let two = send(&kernel, message("ann", Some("desk"), "and now?", 2))
        .await
        .unwrap();
    assert_eq!((two.text.as_str(), two.session), ("answer 2", one.session));
    // The same name of somebody else, and no name, are other conversations.
    let other = send(&kernel, message("bob", Some("desk"), "hello", 1))
        .await
        .unwrap();
    assert_eq!(other.text, "answer 1");
    assert_ne!(other.session, one.session);
    let nameless = send(&kernel, message("ann", None, "hello", 3)).await.unwrap();
    assert_eq!(nameless.text, "answer 1");
    let went_on = message("ann", Some(&nameless.conversation), "more", 4);
    assert_eq!(send(&kernel, went_on).await.unwrap().text, "answer 2");
    for name in ["", "a\nb", &"x".repeat(300)] {
        let refused = send(&kernel, message("ann", Some(name), "hello", 9)).await;
        assert!(matches!(
            refused,
            Err(KernelError::BadParameter {
                member: "conversation",
                ..
            })
        ));
    }
}

#[tokio::test]
async fn the_same_request_is_one_turn_and_other_words_are_refused() {
    let rig = talking();
    let kernel = rig.start().await;
    let asked = || message("ann", Some("desk"), "hello", 1);
    let (one, two) = tokio::join!(send(&kernel, asked()), send(&kernel, asked()));
    let one = one.unwrap();
    assert_eq!(one, two.unwrap());
    assert_eq!(send(&kernel, asked()).await.unwrap(), one);
    assert_eq!(accepted(&rig), 1);
    for changed in [
        message("ann", Some("desk"), "something else", 1),
        message("ann", Some("other"), "hello", 1),
    ] {
        assert!(matches!(
            send(&kernel, changed).await,
            Err(KernelError::RequestIdReused(_))
        ));
    }
}

#[tokio::test]
async fn after_a_restart_the_same_request_finds_its_answer_in_the_record() {
    let rig = talking();
    let kernel = rig.start().await;
    let one = send(&kernel, message("ann", Some("desk"), "hello", 1))
        .await
        .unwrap();
    kernel.shutdown("test", 1000).await;
    let mut again = talking();
    again.journal = Arc::clone(&rig.journal);
    let kernel = again.start().await;
    let kept = send(&kernel, message("ann", Some("desk"), "hello", 1))
        .await
        .unwrap();
    assert_eq!(
        (kept.text, kept.turn, kept.session),
        (one.text, one.turn, one.session)
    );
    assert_eq!(accepted(&rig), 1);
    let changed = send(&kernel, message("ann", Some("desk"), "other words", 1)).await;
    assert!(
        matches!(changed, Err(KernelError::RequestIdReused(_))),
        "{changed:?}"
    );
    // The conversation is rebuilt from its chain.
    let two = send(&kernel, message("ann", Some("desk"), "and now?", 2))
        .await
        .unwrap();
    assert_eq!((two.text.as_str(), two.session), ("answer 2", one.session));
}

/// A rig whose model answers so, each message for itself.
fn ending(answer: impl Fn() -> Result<ModelCompletion, ProviderError> + Send + Sync + 'static) -> Rig {
    let mut rig = rig(agent(allow_all()));
    let model = ScriptedModel::new(move |_, _| answer());
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

#[tokio::test]
async fn each_way_a_turn_ends_is_told_apart_also_after_a_restart() {
    let refuses = || {
        let stop = StopReason::Refusal;
        Ok(ModelCompletion { stop, ..says("no") })
    };
    let fails = || Err(ScriptedModel::fault(FaultKind::Rejected, "no such model"));
    let repeats = || Ok(calls(&[("echo", json!({"text": "again"}))]));
    let mut poor = ending(|| Ok(says("hi")));
    poor.budgets.day.tokens = Some(1);
    for (rig, stop) in [
        (ending(|| Ok(says("hi"))), TalkStop::Answered),
        (ending(refuses), TalkStop::Refused),
        (ending(fails), TalkStop::Failed),
        (ending(repeats), TalkStop::Stopped),
        (poor, TalkStop::Budget),
    ] {
        let kernel = rig.start().await;
        let told = send(&kernel, message("ann", None, "hello", 1)).await.unwrap();
        assert_eq!(told.stop, stop, "{told:?}");
        let reason = told.reason.is_some();
        assert_eq!(reason, !matches!(stop, TalkStop::Answered | TalkStop::Refused));
        kernel.shutdown("test", 1000).await;
        let kernel = rig.start().await;
        let kept = send(&kernel, message("ann", None, "hello", 1)).await.unwrap();
        assert_eq!((kept.stop, kept.text), (stop, told.text));
    }
}

#[tokio::test]
async fn an_answer_that_nobody_read_is_there_for_seven_days() {
    let rig = talking();
    let kernel = rig.start().await;
    // Who asked goes away as soon as the message is taken.
    let asked = message("ann", Some("desk"), "hello", 1);
    let talk = kernel.send_message(EntryPoint::from_launcher("test"), asked, &|_, _| ());
    let gone = tokio::time::timeout(std::time::Duration::ZERO, talk).await;
    assert!(gone.is_err(), "nobody hears the answer");
    while accepted(&rig) == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..7 {
        rig.clock.advance_ms(86_400_000);
        let told = send(&kernel, message("ann", Some("desk"), "hello", 1))
            .await
            .unwrap();
        assert_eq!((told.text.as_str(), told.stop), ("answer 1", TalkStop::Answered));
    }
    kernel.shutdown("test", 1000).await;
    let kernel = rig.start().await;
    let told = send(&kernel, message("ann", Some("desk"), "hello", 1))
        .await
        .unwrap();
    assert_eq!(told.text, "answer 1");
    assert_eq!(accepted(&rig), 1, "it was said once");
}

#[tokio::test]
async fn a_turn_that_a_crash_cut_off_answers_who_asks_again() {
    let rig = talking();
    let kernel = rig.start().await;
    send(&kernel, message("ann", Some("desk"), "hello", 1))
        .await
        .unwrap();
    let at = rig
        .journal
        .kinds()
        .iter()
        .position(|known| known == kind::MESSAGE_ACCEPTED)
        .unwrap();
    let mut again = talking();
    again.journal = Arc::new(rig.journal.cut(at + 1));
    let kernel = again.start().await;
    let told = send(&kernel, message("ann", Some("desk"), "hello", 1))
        .await
        .unwrap();
    assert_eq!((told.text.as_str(), told.stop), ("answer 1", TalkStop::Answered));
    assert_eq!(accepted(&again), 1, "it was said once");
}

/// Another host took the session over, and has answered, when the turn ends here.
#[tokio::test]
async fn a_turn_that_was_answered_elsewhere_is_told_by_that_answer() {
    let rig = talking();
    let kernel = rig.start().await;
    rig.journal.slow();
    let asks = kernel.clone();
    let talk = tokio::spawn(async move { send(&asks, message("ann", Some("desk"), "hello", 1)).await });
    let has = |wanted: &str| rig.journal.kinds().iter().any(|known| known == wanted);
    while !has(kind::PROVIDER_COMPLETED) {
        rig.journal.commit(1);
        tokio::task::yield_now().await;
    }
    let (message, _) = rig.journal.inbox()[0];
    let session = rig
        .journal
        .events()
        .into_iter()
        .find(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .unwrap()
        .session;
    rig.journal
        .answered_elsewhere(session, message, "by another host");
    rig.journal.fail_after(0);
    while !talk.is_finished() {
        rig.journal.commit(1);
        tokio::task::yield_now().await;
    }
    let told = talk.await.unwrap().unwrap();
    assert_eq!(
        (told.text.as_str(), told.stop, told.reason),
        ("by another host", TalkStop::Answered, None)
    );
}

#[tokio::test]
async fn who_asks_hears_its_own_turn_and_watchers_hear_it_too() {
    let rig = talking();
    let kernel = rig.start().await;
    let one = send(&kernel, message("ann", Some("desk"), "hello", 1))
        .await
        .unwrap();
    let watchers = [
        kernel.watch_session(one.session).unwrap(),
        kernel.watch_session(one.session).unwrap(),
    ];
    let heard = Mutex::new(Vec::new());
    let door = EntryPoint::Rpc {
        client: "test".to_owned(),
        role: Role::User,
    };
    let asked = message("ann", Some("desk"), "again", 2);
    let told = soon(kernel.send_message(door, asked, &|turn, notice| {
        heard.lock().unwrap().push((turn, notice.clone()));
    }))
    .await
    .unwrap();
    let heard = heard.into_inner().unwrap();
    assert!(heard.iter().all(|(turn, _)| *turn == told.turn));
    let said = SessionNotice::Said("answer 2".to_owned());
    assert!(heard.iter().any(|(_, notice)| *notice == said));
    for watcher in watchers {
        let mut all = Vec::new();
        while !matches!(all.last(), Some(SessionNotice::TurnEnded { .. })) {
            all.push(soon(watcher.next()).await.unwrap());
        }
        let own: Vec<SessionNotice> = heard.iter().map(|(_, notice)| notice.clone()).collect();
        assert_eq!(all, own);
    }
    let record = rig.journal.events();
    let last = record
        .iter()
        .rfind(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .unwrap();
    assert!(last.payload.contains("\"role\":\"user\""), "{}", last.payload);
}
