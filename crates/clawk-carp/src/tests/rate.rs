use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::rate::{BucketSpend, MAX_WINDOWS, RateLedger, RateLimitBucket, SpendError};

fn bucket(key: &str, limit: u64, window_seconds: u64) -> RateLimitBucket {
    RateLimitBucket {
        key: Arc::from(key),
        limit,
        window_seconds,
    }
}

fn one(bucket: &RateLimitBucket) -> BucketSpend {
    BucketSpend {
        bucket: bucket.clone(),
        amount: 1,
    }
}

fn ms(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).expect("in range")
}

#[test]
fn a_window_slides() {
    let mut ledger = RateLedger::new();
    let bucket = bucket("b", 2, 10);
    assert_eq!(ledger.spend("a", &[one(&bucket)], ms(0)), Ok(()));
    assert_eq!(ledger.spend("a", &[one(&bucket)], ms(4_000)), Ok(()));
    let refused = ledger.spend("a", &[one(&bucket)], ms(9_000));
    assert_eq!(
        refused,
        Err(SpendError::Exceeded {
            key: "b".into(),
            retry_after_ms: 1_000
        })
    );
    assert_eq!(ledger.used_amount("a", &bucket, ms(9_999)), 2);
    assert_eq!(ledger.used_amount("a", &bucket, ms(10_000)), 1);
    assert_eq!(ledger.spend("a", &[one(&bucket)], ms(10_000)), Ok(()));
    assert_eq!(ledger.used_amount("other", &bucket, ms(10_000)), 0);
}

#[test]
fn spending_is_all_or_nothing() {
    let mut ledger = RateLedger::new();
    let (wide, narrow) = (bucket("wide", 10, 10), bucket("narrow", 1, 10));
    assert_eq!(ledger.spend("a", &[one(&wide), one(&narrow)], ms(0)), Ok(()));
    assert!(ledger.spend("a", &[one(&wide), one(&narrow)], ms(1)).is_err());
    assert_eq!(ledger.used_amount("a", &wide, ms(1)), 1);
}

#[test]
fn what_can_never_fit_says_so() {
    let mut ledger = RateLedger::new();
    let dear = BucketSpend {
        bucket: bucket("b", 5, 10),
        amount: 6,
    };
    let refused = ledger.spend("a", &[dear], ms(0));
    assert_eq!(
        refused,
        Err(SpendError::Exceeded {
            key: "b".into(),
            retry_after_ms: u64::MAX
        })
    );
    assert!(ledger.is_empty());
}

#[test]
fn a_clock_set_back_frees_nothing() {
    let mut ledger = RateLedger::new();
    let bucket = bucket("b", 2, 10);
    ledger.spend("a", &[one(&bucket)], ms(100_000)).expect("room");
    ledger.spend("a", &[one(&bucket)], ms(50_000)).expect("room");
    assert_eq!(ledger.used_amount("a", &bucket, ms(50_000)), 2);
    assert_eq!(ledger.used_amount("a", &bucket, ms(109_999)), 2);
}

#[test]
fn memory_is_bounded_per_window_and_in_all() {
    let mut ledger = RateLedger::new();
    let many = bucket("many", u64::MAX, 10);
    for n in 0..100_000 {
        ledger.spend("a", &[one(&many)], ms(n / 10)).expect("room");
    }
    assert_eq!(ledger.used_amount("a", &many, ms(9_999)), 100_000);
    let spends: Vec<BucketSpend> = (0..1000).map(|n| one(&bucket(&format!("b{n}"), 9, 10))).collect();
    for agent in 0..MAX_WINDOWS / 1000 {
        ledger
            .spend(&format!("agent{agent}"), &spends, ms(20_000))
            .expect("room");
    }
    assert_eq!(ledger.spend("late", &spends, ms(20_001)), Err(SpendError::Full));
    // Once the windows are over there is room again.
    assert_eq!(ledger.spend("late", &spends, ms(40_000)), Ok(()));
    assert_eq!(ledger.len(), 1000);
}

proptest! {
    /// Against all calls kept: exact while few, never too lenient and hardly stricter when many.
    #[test]
    fn a_window_counts_what_it_should(steps in prop::collection::vec((0i64..400, 1u64..4), 1..900)) {
        let mut ledger = RateLedger::new();
        let bucket = bucket("b", u64::MAX, 10);
        let (mut now, mut all) = (0, Vec::new());
        for (step, amount) in steps {
            now += step % 40;
            ledger.spend("a", &[BucketSpend { bucket: bucket.clone(), amount }], ms(now)).expect("room");
            all.push((now, amount));
            let exact: u64 = all.iter().filter(|(at, _)| now - at < 10_000).map(|(_, amount)| amount).sum();
            let slack: u64 = all.iter().filter(|(at, _)| now - at < 10_010).map(|(_, amount)| amount).sum();
            let used = ledger.used_amount("a", &bucket, ms(now));
            prop_assert!(exact <= used && used <= slack, "{exact} {used} {slack}");
        }
    }
}
