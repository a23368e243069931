use clawk_manifest::model::{BackoffStrategy, ProviderRetry};
use proptest::prelude::*;

use super::{ModelOptions, RetryPolicy, backoff_ms};
use crate::ports::{FaultKind, ProviderError};

fn error(kind: FaultKind, retry_after_ms: Option<u64>) -> ProviderError {
    ProviderError {
        kind,
        message: "no".to_owned(),
        status: None,
        retry_after_ms,
        usage: None,
        cause: None,
    }
}

fn retry(max_attempts: u32, initial_delay_ms: u64) -> ProviderRetry {
    ProviderRetry {
        max_attempts,
        backoff: BackoffStrategy::Exponential,
        initial_delay_ms,
    }
}

/// The waits until it is given up.
fn waits(mut patience: RetryPolicy, error: &ProviderError) -> Vec<u64> {
    std::iter::from_fn(|| patience.after(error, 0))
        .take(10_000)
        .collect()
}

#[test]
fn a_rate_limit_is_waited_out_and_counts_as_no_attempt() {
    let limited = error(FaultKind::RateLimited, None);
    let last = || RetryPolicy::new(retry(3, 1000), ModelOptions::RETRY_TIME_MS, true);
    assert_eq!(
        waits(last(), &limited),
        [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
    );
    let minute = error(FaultKind::RateLimited, Some(55_000));
    assert_eq!(
        waits(last(), &minute),
        [55_000, 55_000],
        "what the server says is kept"
    );
    assert_eq!(
        waits(last(), &error(FaultKind::RateLimited, Some(119_000))),
        [119_000]
    );
    assert!(
        waits(last(), &error(FaultKind::RateLimited, Some(121_000))).is_empty(),
        "longer than there is time"
    );
    // Rate limits between use up no attempt of another fault.
    let mut mixed = last();
    let down = error(FaultKind::ServerFault, None);
    let found: Vec<bool> = [&limited, &down, &limited, &down, &limited, &down]
        .map(|error| mixed.after(error, 0).is_some())
        .into();
    assert_eq!(found, [true, true, true, true, true, false]);
}

#[test]
fn other_faults_end_after_their_attempts() {
    for (kind, tries) in [
        (FaultKind::ServerFault, 2),
        (FaultKind::Unreachable, 2),
        (FaultKind::Auth, 0),
    ] {
        let patience = RetryPolicy::new(retry(3, 1000), ModelOptions::RETRY_TIME_MS, true);
        assert_eq!(waits(patience, &error(kind, None)).len(), tries, "{kind:?}");
    }
}

#[test]
fn where_another_provider_could_answer_a_rate_limit_counts() {
    let limited = error(FaultKind::RateLimited, Some(2_000));
    let next = RetryPolicy::new(retry(2, 10), ModelOptions::RETRY_TIME_MS, false);
    assert_eq!(waits(next, &limited), [2_000]);
    let next = RetryPolicy::new(retry(2, 10), ModelOptions::RETRY_TIME_MS, false);
    assert!(
        waits(next, &error(FaultKind::RateLimited, Some(61_000))).is_empty(),
        "the next one answers sooner"
    );
    let without_time = RetryPolicy::new(retry(2, 10), 0, true);
    assert_eq!(waits(without_time, &limited), [2_000]);
}

#[test]
fn waits_grow_as_declared_and_stay_bounded() {
    assert_eq!(backoff_ms(BackoffStrategy::Exponential, 1000, 1, 0), 1000);
    assert_eq!(backoff_ms(BackoffStrategy::Exponential, 1000, 3, 0), 4000);
    assert_eq!(backoff_ms(BackoffStrategy::Linear, 1000, 3, 0), 3000);
    assert_eq!(backoff_ms(BackoffStrategy::Constant, 1000, 9, 0), 1000);
}

proptest! {
    #[test]
    fn whatever_fails_the_time_and_the_attempts_are_bounded(
        faults in prop::collection::vec((0usize..4, prop_oneof![Just(None), any::<u64>().prop_map(Some), (0u64..100_000).prop_map(Some)]), 1..400),
        max_attempts in 0u32..5, initial in prop_oneof![Just(0u64), 0u64..5000, any::<u64>()],
        time_ms in 1u64..300_000, last: bool, random: u64,
    ) {
        const KINDS: [FaultKind; 4] = [FaultKind::RateLimited, FaultKind::ServerFault, FaultKind::Cut, FaultKind::Timeout];
        let mut patience = RetryPolicy::new(retry(max_attempts, initial), time_ms, last);
        let (mut waited, mut asked) = (0u64, 0u64);
        for (kind, retry_after) in faults {
            let Some(wait) = patience.after(&error(KINDS[kind], retry_after), random) else { break };
            asked += 1;
            waited += wait;
            prop_assert!(wait >= retry_after.unwrap_or(0), "`Retry-After` is kept");
        }
        prop_assert!(waited <= time_ms);
        prop_assert!(asked <= time_ms / 1000 + u64::from(max_attempts), "{asked} requests");
    }
}
