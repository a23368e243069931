//! Budgets: one purse over the whole tree, kept over restarts; the loop guard.

mod crowd;

use std::sync::Arc;

use serde_json::{Value, json};

use super::limits::say;
use super::{agent, allow_all, params, rig, rpc};
use crate::Kernel;
use crate::error::CallError;
use crate::kind;
use crate::notice::{SessionNotice, TurnEnd};
use crate::ports::{FaultKind, ModelCompletion, ProviderError, ToolUse, Usage};
use crate::purse::{BudgetAllowance, LimitState, NamedBudget, TokenPrice, UnknownPriceRule, UnknownWord};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};

/// A rig whose one model belongs to a real server, so that it has a price or none.
fn priced(model: &str) -> Rig {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([{"name": "model", "protocol": "openai-compatible", "endpoint": "https://x.example",
        "model": model, "auth": {"type": "none"}}]);
    rig(spec)
}

/// Answers that cost so many tokens.
fn costing(input: u64, output: u64) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(move |_, _| {
        let mut completion = says("dear");
        completion.usage.input_tokens = input;
        completion.usage.output_tokens = output;
        Ok(completion)
    }))
}

fn failing(kind: FaultKind, usage: Option<Usage>) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(move |_, _| {
        let fault = ScriptedModel::fault(kind, "cut");
        Err(ProviderError { usage, ..fault })
    }))
}

fn limit(kernel: &Kernel, purse: &str, name: &str) -> LimitState {
    let budget = kernel.budget_report();
    let found = budget.purses.into_iter().filter(|state| state.name == purse);
    let mut limits = found.flat_map(|state| state.limits);
    limits
        .find(|limit| limit.name == name)
        .unwrap_or_else(|| panic!("{purse} has no {name}"))
}

fn spent_today(kernel: &Kernel) -> (u64, u64) {
    let agent = kernel.budget_report().purses.remove(0);
    assert_eq!(agent.name, "agent");
    assert!(agent.reserved.is_zero(), "nothing runs, and nothing is set aside");
    (agent.spent.tokens, agent.spent.cost_microusd)
}

fn count(rig: &Rig, kind: &str) -> usize {
    rig.journal.kinds().iter().filter(|k| *k == kind).count()
}

#[tokio::test]
async fn money_is_counted_by_the_price_and_stops_at_the_limit() {
    let mut rig = priced("gpt-4o");
    rig.budgets.day.cost_microusd = Some(20_000);
    rig.models.insert("model".to_owned(), costing(1_000, 100));
    let kernel = rig.start().await;
    // 1000 × 2.50 + 100 × 10.00 dollars per million: 3,500 millionths each.
    for _ in 0..4 {
        assert_eq!(say(&kernel, "spend").await.0, TurnEnd::Answered);
    }
    assert_eq!(spent_today(&kernel), (4_400, 14_000));
    let mut ends = Vec::new();
    for _ in 0..9 {
        ends.push(say(&kernel, "spend").await.0);
    }
    let Some(TurnEnd::Failed(why)) = ends.pop() else {
        panic!("the money is used up")
    };
    assert!(
        why.contains("budgets.day.cost_microusd is 20000") && why.contains("begins anew at"),
        "{why}"
    );
    drop(kernel);
    let kernel = rig.start().await;
    let limit = limit(&kernel, "agent", "budgets.day.cost_microusd");
    // This model counts more input than its request has bytes: it can be over by that, once.
    assert_eq!((limit.spent, limit.left), (21_000, Some(0)));
}

#[tokio::test]
async fn an_unknown_price_is_refused_where_money_is_limited() {
    let mut rig = priced("house-model");
    let kernel = rig.start().await;
    assert_eq!(
        say(&kernel, "free").await.0,
        TurnEnd::Answered,
        "nothing limits money"
    );
    drop(kernel);
    rig.budgets.month.cost_microusd = Some(1_000_000);
    let asked = rig.models["model"].asked().len();
    let kernel = rig.start().await;
    let TurnEnd::Failed(why) = say(&kernel, "x").await.0 else {
        panic!("the price is not known")
    };
    assert!(why.contains("[prices.\"house-model\"]"), "{why}");
    assert_eq!(rig.models["model"].asked().len(), asked, "it was not asked");
    let told = kernel.budget_report().models.remove(0);
    assert_eq!(
        (told.model.as_str(), told.price),
        ("house-model", None),
        "and the report says so"
    );
    drop(kernel);
    let shipped = priced("gpt-4o").start().await.budget_report().models.remove(0);
    assert!(shipped.shipped && shipped.price.is_some(), "{shipped:?}");
    rig.prices.unknown = UnknownPriceRule::Word(UnknownWord::Free);
    assert_eq!(say(&rig.start().await, "x").await.0, TurnEnd::Answered);
    rig.prices.unknown = UnknownPriceRule::As(TokenPrice {
        input: 1_000_000,
        output: 1_000_000,
        cached_input: None,
        cache_write: None,
    });
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "x").await.0, TurnEnd::Answered);
    assert_eq!(spent_today(&kernel).1, 15);
}

#[tokio::test]
async fn a_rule_that_counts_money_applies_when_it_is_spent() {
    let mut spec = agent(json!([
        {"id": "broke", "action": "deny", "scope": "all", "rate_limit": {"cost_per_day_usd": 0.003}},
        {"id": "rest", "action": "allow", "scope": "all"}]));
    spec["providers"] = json!([{"name": "model", "protocol": "openai-compatible", "endpoint": "https://x.example",
        "model": "gpt-4o", "auth": {"type": "none"}}]);
    let mut rig = rig(spec);
    rig.models.insert("model".to_owned(), costing(1_000, 100));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.call(session, params("write", json!({}), 1)).await.unwrap();
    assert_eq!(say(&kernel, "spend").await.0, TurnEnd::Answered);
    let error = kernel
        .call(session, params("write", json!({}), 2))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Quota { .. }), "{error:?}");
}

#[tokio::test]
async fn a_policys_rates_bound_tokens_of_an_hour_and_money_of_a_day() {
    let mut spec = agent(allow_all());
    spec["policies"][0]["rate_limits"] = json!({"tokens_per_hour": 2_000, "cost_per_day_usd": 1.5});
    let mut rig = rig(spec);
    rig.models.insert("model".to_owned(), costing(1_990, 10));
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "spend").await.0, TurnEnd::Answered);
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    let CallError::Quota {
        scope,
        limit_name,
        limit: bound,
        used,
        resets_at,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(
        (scope.as_str(), limit_name.as_str(), bound, used),
        ("policy policy", "tokens_per_hour", 2_000, 2_000)
    );
    assert_eq!(resets_at.as_deref(), Some("2026-01-02T04:00:00.000000Z"));
    assert_eq!(
        limit(&kernel, "agent", "cost_per_day_microusd").bound,
        Some(1_500_000)
    );
    rig.clock.advance_ms(3_600_000);
    kernel.call(session, params("write", json!({}), 2)).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_is_cut_costs_what_was_sent_and_received() {
    let estimated = Usage {
        input_tokens: 40,
        output_tokens: 11,
        estimated: true,
        ..Usage::default()
    };
    let counted = Usage {
        input_tokens: 7,
        output_tokens: 2,
        ..Usage::default()
    };
    for (kind, usage, counts) in [
        // Nothing came: what was sent counts, a request of some hundred bytes.
        (FaultKind::Timeout, None, 60..400),
        // Something came, and nobody counted it.
        (FaultKind::Cut, None, 3_000..3_001),
        (FaultKind::Cut, Some(estimated), 51..52),
        (FaultKind::Malformed, Some(estimated), 51..52),
        (FaultKind::Malformed, Some(counted), 9..10),
        (FaultKind::Unreachable, None, 0..1),
        (FaultKind::Auth, None, 0..1),
    ] {
        let mut spec = agent(allow_all());
        spec["providers"] = json!([{"name": "model", "protocol": "custom", "endpoint": "script:x", "model": "m",
            "auth": {"type": "none"}, "retry": {"max_attempts": 1}, "limits": {"tokens_per_request": 3_000}}]);
        let mut rig = rig(spec);
        rig.models.insert("model".to_owned(), failing(kind, usage));
        let kernel = rig.start().await;
        assert!(matches!(say(&kernel, "x").await.0, TurnEnd::Failed(_)));
        let (tokens, _) = spent_today(&kernel);
        assert!(counts.contains(&tokens), "{kind:?} {usage:?}: {tokens}");
        drop(kernel);
        assert_eq!(spent_today(&rig.start().await).0, tokens, "and it is kept");
    }
}

#[tokio::test]
async fn an_inference_that_died_with_the_process_is_settled_once_at_what_was_set_aside() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([{"name": "model", "protocol": "custom", "endpoint": "script:x", "model": "m",
        "auth": {"type": "none"}, "limits": {"tokens_per_request": 3_000, "tokens_per_day": 100_000}}]);
    let rig = rig(spec);
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "one").await.0, TurnEnd::Answered);
    let kinds = rig.journal.kinds();
    let requested = kinds.iter().position(|k| k == kind::PROVIDER_REQUESTED).unwrap();
    for stop in 1..=kinds.len() {
        let mut after = rig.clone();
        after.journal = Arc::new(rig.journal.cut(stop));
        // The model must not be asked again: what is counted is what the dead one left.
        after
            .models
            .insert("model".to_owned(), failing(FaultKind::Auth, None));
        for _ in 0..2 {
            let kernel = after.start().await;
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            let want = match stop {
                stop if stop <= requested => 0,
                stop if stop == requested + 1 => 3_000,
                _ => 15,
            };
            assert_eq!(
                kernel.budget_report().purses[0].spent.tokens,
                want,
                "stopped at {stop}"
            );
            let provider = kernel
                .budget_report()
                .purses
                .into_iter()
                .find(|p| p.name == "provider model")
                .unwrap();
            assert_eq!(
                (provider.spent.tokens, provider.reserved.tokens),
                (want, 0),
                "stopped at {stop}"
            );
            drop(kernel);
        }
    }
}

#[tokio::test]
async fn a_limit_warns_once_in_its_window() {
    let mut rig = rig(agent(allow_all()));
    rig.budgets.day.tokens = Some(20_000);
    rig.models.insert("model".to_owned(), costing(7_000, 1_000));
    let kernel = rig.start().await;
    let warned = |told: &[SessionNotice]| {
        told.iter()
            .filter(|n| matches!(n, SessionNotice::Warned(_)))
            .count()
    };
    let (_, first) = say(&kernel, "8,000").await;
    assert_eq!(warned(&first), 0);
    let (_, second) = say(&kernel, "16,000").await;
    assert_eq!((warned(&second), count(&rig, kind::BUDGET_WARNED)), (1, 1));
    drop(kernel);
    let kernel = rig.start().await;
    let (end, third) = say(&kernel, "24,000: the model took more than it was to").await;
    assert_eq!(
        (end, warned(&third), count(&rig, kind::BUDGET_WARNED)),
        (TurnEnd::Answered, 0, 1)
    );
    assert!(matches!(say(&kernel, "over").await.0, TurnEnd::Failed(_)));
    rig.clock.advance_ms(86_400_000);
    say(&kernel, "8,000").await;
    let (_, again) = say(&kernel, "16,000").await;
    assert_eq!((warned(&again), count(&rig, kind::BUDGET_WARNED)), (1, 2));
}

#[tokio::test]
async fn calls_time_and_bytes_have_limits_of_their_own() {
    let mut rig = rig(agent(allow_all()));
    rig.budgets.tools.insert(
        "write".to_owned(),
        NamedBudget {
            day: BudgetAllowance {
                calls: Some(2),
                ..BudgetAllowance::default()
            },
            run: BudgetAllowance {
                bytes_out: Some(40),
                ..BudgetAllowance::default()
            },
        },
    );
    rig.budgets.month.calls = Some(4);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let long = json!({"text": "x".repeat(40)});
    let error = kernel.call(session, params("write", long, 1)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("budgets.tools.write.run.bytes_out is 40"),
        "{error}"
    );
    for n in 2..4 {
        kernel
            .call(session, params("write", json!({"n": n}), n))
            .await
            .unwrap();
    }
    let error = kernel
        .call(session, params("write", json!({}), 4))
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("tool write: budgets.tools.write.day.calls is 2, 2 used"),
        "{error}"
    );
    drop(kernel);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    assert!(
        kernel.call(session, params("write", json!({}), 5)).await.is_err(),
        "the day goes on"
    );
    for n in 6..8 {
        kernel
            .call(session, params("echo", json!({"text": "x"}), n))
            .await
            .unwrap();
    }
    let error = kernel
        .call(session, params("echo", json!({"text": "x"}), 8))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("budgets.month.calls"), "{error}");
    assert_eq!(rig.runner.runs().len(), 4);
    // The rig's clock starts on 2 January.
    rig.clock.advance_ms(30 * 86_400_000);
    kernel.call(session, params("write", json!({}), 9)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_has_no_more_time_than_is_left() {
    let mut rig = rig(agent(allow_all()));
    rig.budgets.session.busy_ms = Some(250);
    rig.runner.set("write", Behaviour::Sleep(10_000));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    assert!(
        matches!(error, CallError::Timeout { timeout_ms: 250, .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_turn_has_a_purse_and_an_interrupted_one_keeps_what_it_spent() {
    let mut rig = rig(agent(allow_all()));
    rig.budgets.turn.calls = Some(2);
    let script = || {
        Arc::new(ScriptedModel::new(|request, _| {
            let done = request.messages.len();
            Ok(if done > 6 {
                says("enough")
            } else {
                calls(&[("write", json!({"step": done}))])
            })
        }))
    };
    rig.models.insert("model".to_owned(), script());
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "work").await.0, TurnEnd::Answered);
    assert_eq!(rig.runner.runs().len(), 2, "the third was refused and told");
    let kinds = rig.journal.kinds();
    let second = kinds
        .iter()
        .enumerate()
        .filter(|(_, k)| *k == kind::ACTION_EXECUTED)
        .nth(1)
        .unwrap()
        .0;
    let mut after = rig.clone();
    after.journal = Arc::new(rig.journal.cut(second + 1));
    after.runner = Arc::default();
    after.models.insert("model".to_owned(), script());
    let kernel = after.start().await;
    while after.journal.inbox().iter().any(|(_, end)| end.is_none()) {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        after.runner.runs().len(),
        0,
        "both calls of this turn were made before"
    );
    drop(kernel);
}

#[tokio::test]
async fn budgets_of_unknown_tools_refuse_the_start() {
    let mut rig = rig(agent(allow_all()));
    rig.budgets
        .tools
        .insert("wirte".to_owned(), NamedBudget::default());
    let error = Kernel::start(rig.parts()).await.unwrap_err();
    assert!(error.to_string().contains("budgets.tools.wirte"), "{error}");
}

async fn looped(model: ScriptedModel, change: impl FnOnce(&mut Rig)) -> (Rig, TurnEnd) {
    let mut rig = rig(agent(allow_all()));
    rig.models.insert("model".to_owned(), Arc::new(model));
    change(&mut rig);
    let kernel = rig.start().await;
    let (end, _) = say(&kernel, "go").await;
    (rig, end)
}

fn stops(rig: &Rig) -> Vec<Value> {
    let events = rig.journal.events();
    let stops = events.iter().filter(|event| event.kind == kind::TURN_STOPPED);
    stops
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .collect()
}

#[tokio::test]
async fn the_same_call_with_the_same_answer_ends_the_turn() {
    let same = || ScriptedModel::new(|_, _| Ok(calls(&[("echo", json!({"text": "again"}))])));
    let (rig, end) = looped(same(), |_| {}).await;
    let TurnEnd::Failed(why) = end else {
        panic!("{end:?}")
    };
    assert!(why.contains("`echo` was called 5 times"), "{why}");
    assert_eq!(stops(&rig)[0]["guard"], "repeat");
    assert_eq!(rig.runner.runs().len(), 5);
    let last = rig.models["model"].asked().pop().unwrap();
    let told = serde_json::to_string(&last.messages).unwrap();
    assert!(
        told.contains("once more ends the turn"),
        "the model is told in time"
    );
    let (rig, _) = looped(same(), |rig| rig.budgets.repeats_per_turn = 2).await;
    assert_eq!(rig.runner.runs().len(), 2);
    // Switched off, only the steps bound it.
    let (rig, end) = looped(same(), |rig| {
        rig.budgets.repeats_per_turn = 0;
        rig.budgets.steps_per_turn = 9;
    })
    .await;
    assert!(matches!(end, TurnEnd::Failed(why) if why.contains("limit of 9")));
    assert_eq!(
        (stops(&rig)[0]["guard"].as_str(), rig.runner.runs().len()),
        (Some("steps"), 8)
    );
}

#[tokio::test]
async fn a_cycle_of_calls_ends_the_turn_and_progress_does_not() {
    let turn = |n: usize| ["a", "b"][n % 2].to_owned();
    let cycle = ScriptedModel::new(move |_, n| Ok(calls(&[("echo", json!({"text": turn(n)}))])));
    let (rig, end) = looped(cycle, |_| {}).await;
    assert!(
        matches!(&end, TurnEnd::Failed(why) if why.contains("the same 2 calls")),
        "{end:?}"
    );
    assert_eq!(
        (stops(&rig)[0]["guard"].as_str(), rig.runner.runs().len()),
        (Some("cycle"), 6)
    );
    let onwards = ScriptedModel::new(|_, n| {
        Ok(if n > 20 {
            says("done")
        } else {
            calls(&[("echo", json!({"text": format!("{n}")}))])
        })
    });
    assert_eq!(looped(onwards, |_| {}).await.1, TurnEnd::Answered);
}

#[tokio::test]
async fn arguments_that_are_no_object_run_nothing() {
    let model = ScriptedModel::new(|_, n| {
        let wanted = ToolUse {
            id: format!("c{n}"),
            name: "write".to_owned(),
            arguments: Err("[1, 2".to_owned()),
        };
        Ok(if n == 1 {
            ModelCompletion {
                calls: vec![wanted],
                ..says("")
            }
        } else {
            says("sorry")
        })
    });
    let (rig, end) = looped(model, |_| {}).await;
    assert_eq!((end, rig.runner.runs().len()), (TurnEnd::Answered, 0));
    let told = serde_json::to_string(&rig.models["model"].asked()[1].messages).unwrap();
    assert!(told.contains("the arguments are no JSON object: [1, 2"), "{told}");
}
