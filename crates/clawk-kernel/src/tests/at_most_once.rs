//! Promise 4 and R19: the same request, one execution.

use std::time::Duration;

use clawk_proto::Digest;
use serde_json::json;

use super::{agent, allow_all, id, params, rig, rpc};
use crate::dedup::{self, Claim, DedupMethod, DedupTable};
use crate::error::CallError;
use crate::ports::RunError;
use crate::testing::{Behaviour, Rig};
use crate::{Kernel, kind};

#[tokio::test]
async fn a_repeated_request_gets_the_stored_answer() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let first = kernel
        .call(session, params("write", json!({"n": 1}), 1))
        .await
        .unwrap();
    let second = kernel
        .call(session, params("write", json!({"n": 1}), 1))
        .await
        .unwrap();
    assert_eq!(first, second);
    assert_eq!(rig.runner.runs().len(), 1);
    let other = kernel
        .call(session, params("write", json!({"n": 2}), 1))
        .await
        .unwrap_err();
    assert_eq!(other, CallError::RequestIdReused { request_id: id(1) });
}

#[tokio::test]
async fn errors_are_stored_answers_too() {
    let rig = rig(agent(json!([{"id": "no", "action": "deny", "scope": "all"}])));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let first = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    let before = rig.journal.events().len();
    assert_eq!(
        kernel
            .call(session, params("write", json!({}), 1))
            .await
            .unwrap_err(),
        first
    );
    assert_eq!(
        rig.journal.events().len(),
        before,
        "a repetition leaves no second decision"
    );
}

#[tokio::test(start_paused = true)]
async fn the_second_waits_while_the_first_runs() {
    let rig = rig(agent(allow_all()));
    rig.runner.set("write", Behaviour::Sleep(500));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let (one, two) = tokio::join!(
        kernel.call(session, params("write", json!({}), 1)),
        kernel.call(session, params("write", json!({}), 1)),
    );
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(rig.runner.runs().len(), 1);
}

#[tokio::test]
async fn answers_survive_a_restart() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let first = kernel
        .call(session, params("write", json!({"n": 1}), 1))
        .await
        .unwrap();
    let denied = kernel
        .call(session, params("nope", json!({}), 2))
        .await
        .unwrap_err();
    drop(kernel);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    assert_eq!(
        kernel
            .call(session, params("write", json!({"n": 1}), 1))
            .await
            .unwrap(),
        first
    );
    assert_eq!(
        kernel
            .call(session, params("nope", json!({}), 2))
            .await
            .unwrap_err(),
        denied
    );
    assert!(matches!(
        kernel.call(session, params("write", json!({"n": 9}), 1)).await,
        Err(CallError::RequestIdReused { .. })
    ));
    assert_eq!(rig.runner.runs().len(), 1);
}

#[tokio::test]
async fn a_call_that_the_host_might_not_begin_runs_when_it_is_sent_again() {
    let rig = rig(agent(allow_all()));
    let away = RunError::NotBegun("the state is away".to_owned());
    rig.runner.set("write", Behaviour::Error(away));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = || kernel.call(session, params("write", json!({"n": 1}), 1));
    let refused = call().await.unwrap_err();
    assert!(matches!(refused, CallError::NotBegun { .. }), "{refused}");
    assert_eq!(kernel.open_effects().await.unwrap(), [], "nothing is unknown");
    rig.runner.set("write", Behaviour::Echo);
    let ran = call().await.unwrap();
    assert_eq!(call().await.unwrap(), ran);
    assert_eq!(rig.runner.runs().len(), 2, "once refused, once run");
}

/// Waits on a slow disk.
async fn on_disk<T>(rig: &Rig, future: impl Future<Output = T>) -> T {
    tokio::pin!(future);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return done,
            () = tokio::task::yield_now() => rig.journal.commit(1),
        }
    }
}

/// Calls `write` as request 1, and ends the agent while the decision is on its way to the disk.
async fn cut_off(rig: &Rig, kernel: &Kernel, session: clawk_proto::SessionId) -> CallError {
    rig.journal.slow();
    let call = kernel.call(session, params("write", json!({"n": 1}), 1));
    tokio::pin!(call);
    while !rig.journal.waits_with(kind::ACTION_APPROVED) {
        assert!(futures::poll!(&mut call).is_pending());
        tokio::task::yield_now().await;
    }
    let shutdown = kernel.shutdown("restart", 0);
    tokio::pin!(shutdown);
    while !kernel.is_cut_off() {
        assert!(futures::poll!(&mut shutdown).is_pending());
        tokio::task::yield_now().await;
    }
    let (refused, _) = on_disk(rig, async { tokio::join!(call, shutdown) }).await;
    refused.unwrap_err()
}

#[tokio::test]
async fn a_call_that_the_agents_end_kept_from_running_runs_when_it_is_sent_again() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let refused = cut_off(&rig, &kernel, session).await;
    assert!(matches!(refused, CallError::NotReady { .. }), "{refused}");
    assert_eq!(rig.runner.runs().len(), 0);
    for restart in 0..2 {
        let kernel = on_disk(&rig, rig.start()).await;
        assert_eq!(
            on_disk(&rig, kernel.open_effects()).await.unwrap(),
            [],
            "nothing is unknown"
        );
        let session = on_disk(&rig, rpc(&kernel)).await;
        let again = on_disk(&rig, kernel.call(session, params("write", json!({"n": 1}), 1))).await;
        assert!(again.is_ok(), "{again:?}");
        assert_eq!(rig.runner.runs().len(), 1, "start {restart}");
    }
    let ended = rig.journal.events();
    let ended = ended.iter().filter(|event| event.kind == kind::ACTION_FAILED);
    assert_eq!(
        ended.count(),
        1,
        "the call that did not run has an end of its own"
    );
}

#[tokio::test]
async fn answers_beyond_those_at_hand_come_from_the_journal() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    for n in 0..3000 {
        kernel
            .call(session, params("write", json!({"n": n}), n))
            .await
            .unwrap();
    }
    let runs = rig.runner.runs().len();
    for n in (0..3000).step_by(97) {
        kernel
            .call(session, params("write", json!({"n": n}), n))
            .await
            .unwrap();
    }
    assert_eq!(rig.runner.runs().len(), runs);
}

#[tokio::test]
async fn after_five_minutes_an_id_is_new() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.call(session, params("write", json!({}), 1)).await.unwrap();
    rig.clock.advance_ms(299_000);
    kernel.call(session, params("write", json!({}), 1)).await.unwrap();
    assert_eq!(rig.runner.runs().len(), 1);
    rig.clock.advance_ms(2_000);
    kernel.call(session, params("write", json!({}), 1)).await.unwrap();
    assert_eq!(rig.runner.runs().len(), 2);
}

#[tokio::test]
async fn a_wall_clock_that_jumps_makes_no_id_new() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    for (n, off_ms) in [(1, 86_400_000), (2, -3_600_000), (3, 0)] {
        let asked = || params("write", json!({"n": n}), n);
        kernel.call(session, asked()).await.unwrap();
        rig.clock.set_off_ms(off_ms);
        kernel.call(session, asked()).await.unwrap();
        rig.clock.advance_ms(200_000);
        kernel.call(session, asked()).await.unwrap();
        assert_eq!(
            rig.runner.runs().len(),
            usize::try_from(n).unwrap(),
            "after a jump to {off_ms} ms"
        );
        rig.clock.advance_ms(120_000);
    }
    // What has really passed still counts.
    kernel
        .call(session, params("write", json!({"n": 3}), 3))
        .await
        .unwrap();
    assert_eq!(rig.runner.runs().len(), 4);
}

/// The clock is set while the agent is down: what was answered right before is not done again, and it is not known for ever.
#[tokio::test]
async fn a_clock_that_is_set_between_a_crash_and_the_next_start_makes_no_id_new() {
    for off_ms in [365 * 86_400_000, 86_400_000, -3_600_000, -365 * 86_400_000] {
        let rig = rig(agent(allow_all()));
        let asked = || params("write", json!({"n": 1}), 1);
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        kernel.call(session, asked()).await.unwrap();
        rig.clock.set_off_ms(off_ms);
        let kernel = rig.start().await;
        assert_eq!(kernel.is_clock_behind(), off_ms < 0);
        let session = rpc(&kernel).await;
        rig.clock.advance_ms(200_000);
        kernel.call(session, asked()).await.unwrap();
        assert_eq!(rig.runner.runs().len(), 1, "the clock is off by {off_ms} ms");
        // Five minutes after that answer is at hand here, it is a new request, whatever the clock says.
        rig.clock.advance_ms(301_000);
        kernel.call(session, asked()).await.unwrap();
        assert_eq!(rig.runner.runs().len(), 2, "the clock is off by {off_ms} ms");
    }
}

#[tokio::test]
async fn answers_beyond_those_at_hand_are_found_although_the_wall_clock_was_set() {
    for off_ms in [86_400_000, -86_400_000] {
        let rig = rig(agent(allow_all()));
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let asked = |n| params("write", json!({"n": n}), n);
        rig.clock.set_off_ms(off_ms);
        for n in 0..2200 {
            kernel.call(session, asked(n)).await.unwrap();
        }
        let runs = rig.runner.runs().len();
        for n in (0..2200).step_by(97) {
            kernel.call(session, asked(n)).await.unwrap();
        }
        assert_eq!(rig.runner.runs().len(), runs, "the clock is off by {off_ms} ms");
    }
}

/// The clocks of two hosts are minutes apart: the time of another host's event says nothing, the age that the journal tells does.
#[tokio::test]
async fn the_journal_says_how_old_another_hosts_answer_is_and_not_its_time() {
    for (off_ms, age_ms, answers) in [
        (600_000, 60_000, true),
        (-600_000, 60_000, true),
        (0, 299_000, true),
        (600_000, 301_000, false),
        (-600_000, 301_000, false),
    ] {
        let rig = rig(agent(allow_all()));
        let there = rig.start().await;
        let session = rpc(&there).await;
        there.call(session, params("write", json!({}), 1)).await.unwrap();
        rig.clock.set_off_ms(off_ms);
        rig.journal.age_answers(age_ms * 1000);
        let here = DedupTable::new(rig.clock.clone(), None, true);
        let key = dedup::answer_key(DedupMethod::Call, &id(1));
        let found = here
            .recorded_outcome(key, Digest::ZERO, &*rig.journal)
            .await
            .unwrap();
        assert_eq!(found.is_some(), answers, "off by {off_ms} ms, {age_ms} ms old");
        let claim = here
            .claim_request(key, Digest::ZERO, &*rig.journal)
            .await
            .unwrap();
        assert_eq!(
            !matches!(claim, Claim::Fresh(_)),
            answers,
            "off by {off_ms} ms, {age_ms} ms old"
        );
    }
}

/// Stops the machine after every single event of a call and restarts: the effect is never repeated, and what is not
/// known is said to be unknown.
#[tokio::test]
async fn a_crash_at_any_event_never_repeats_an_effect() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("write", json!({"n": 1}), 1))
        .await
        .unwrap();
    let kinds = rig.journal.kinds();
    let decided = kinds.iter().position(|k| k == kind::ACTION_APPROVED).unwrap();
    let executed = kinds.iter().position(|k| k == kind::ACTION_EXECUTED).unwrap();
    for stop in 1..=kinds.len() {
        let mut after = rig.clone();
        after.journal = std::sync::Arc::new(rig.journal.cut(stop));
        after.runner = std::sync::Arc::default();
        let kernel = after.start().await;
        let session = rpc(&kernel).await;
        let outcome = kernel.call(session, params("write", json!({"n": 1}), 1)).await;
        if stop <= decided {
            outcome.unwrap();
            assert_eq!(after.runner.runs().len(), 1, "nothing had begun at {stop}");
        } else if stop <= executed {
            assert!(
                matches!(outcome, Err(CallError::Unknown { .. })),
                "stopped at {stop}: {outcome:?}"
            );
            assert_eq!(after.runner.runs().len(), 0);
        } else {
            outcome.unwrap();
            assert_eq!(
                after.runner.runs().len(),
                0,
                "it was done before the stop at {stop}"
            );
        }
        assert!(clawk_trace::verify_events(after.journal.trace()).valid);
    }
}

#[tokio::test(start_paused = true)]
async fn only_idempotent_tools_are_run_again() {
    let mut spec = agent(allow_all());
    let retry = json!({"max_attempts": 3, "backoff": "constant"});
    spec["tools"][1]["retry"] = retry.clone();
    spec["tools"].as_array_mut().unwrap().push(json!({
        "name": "again", "description": "x", "input_schema": {"type": "object"},
        "annotations": {"idempotentHint": true}, "retry": retry,
    }));
    let rig = rig(spec);
    rig.runner.set("write", Behaviour::Flaky(2));
    rig.runner.set("again", Behaviour::Flaky(2));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    kernel.call(session, params("again", json!({}), 2)).await.unwrap();
    let count = |tool: &str| rig.runner.runs().iter().filter(|(name, _)| name == tool).count();
    assert_eq!((count("write"), count("again")), (1, 3));
    tokio::time::sleep(Duration::from_millis(1)).await;
}
