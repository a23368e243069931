use serde_json::json;

use super::*;

fn signer(seed: u8) -> TraceSigner {
    TraceSigner::from_seed(&[seed; 32])
}

#[test]
fn only_the_words_that_were_signed_by_the_bound_key_count() {
    let (own, other) = (signer(1), signer(2));
    let said = json!({"task_id": "a", "status": "completed", "result": {"text": "done"}});
    let proof = sign(ProofSubject::Report, &said, &own).unwrap();
    assert_eq!(
        check(ProofSubject::Report, &said, Some(&proof), &own.public()),
        Ok(())
    );

    let (expected, shown) = (other.public().id(), own.public().id());
    let error = check(ProofSubject::Report, &said, Some(&proof), &other.public()).unwrap_err();
    assert_eq!(
        error,
        ProofError::OtherKey {
            expected: expected.clone(),
            shown: shown.clone()
        }
    );
    assert!(error.to_string().contains(&expected) && error.to_string().contains(&shown));

    let expected = own.public().id();
    let unsigned = check(ProofSubject::Report, &said, None, &own.public());
    assert_eq!(
        unsigned,
        Err(ProofError::Unsigned {
            expected: expected.clone()
        })
    );
    let changed = Err(ProofError::Changed { expected });
    let replayed = json!({"task_id": "b", "status": "completed", "result": {"text": "done"}});
    assert_eq!(
        check(ProofSubject::Report, &replayed, Some(&proof), &own.public()),
        changed
    );
    // A report is no task, whatever it says.
    assert_eq!(
        check(ProofSubject::Task, &said, Some(&proof), &own.public()),
        changed
    );
    // Whoever names the key without holding it.
    let lied = HostSignature {
        key: written(&own.public()),
        ..sign(ProofSubject::Report, &said, &other).unwrap()
    };
    assert_eq!(
        check(ProofSubject::Report, &said, Some(&lied), &own.public()),
        changed
    );
}

#[test]
fn a_key_is_read_as_it_is_written() {
    let key = signer(3).public();
    assert_eq!(read(&written(&key)), Some(key.clone()));
    for wrong in [
        "",
        "ed25519:",
        "ed25519:00",
        &key.to_hex(),
        &format!("rsa:{}", key.to_hex()),
        // A point of small order, under which anything can be signed.
        "ed25519:0100000000000000000000000000000000000000000000000000000000000000",
    ] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
}

#[test]
fn numbers_are_signed_as_the_other_side_reads_them() {
    let signer = signer(4);
    // Each of them has more digits than a double.
    let numbers: Vec<f64> = (1_u32..2000).map(|n| f64::from(n).sqrt() * 1e-7 / 3.0).collect();
    let said = settled(json!({"result": numbers}));
    let proof = sign(ProofSubject::Report, &said, &signer).unwrap();
    let mut read = said;
    for round in 0..3 {
        read = serde_json::from_str(&read.to_string()).unwrap();
        assert_eq!(
            check(ProofSubject::Report, &read, Some(&proof), &signer.public()),
            Ok(()),
            "{round}"
        );
    }
}

#[test]
fn a_task_counts_in_its_own_queue_and_for_some_days() {
    let key = signer(5);
    let given = 1_764_000_000_000;
    let mut task: DelegateParams = serde_json::from_value(json!({
        "task_id": "0195f1c2-6d3e-7aaa-8bbb-0123456789ab",
        "task": {"description": "do it"},
        "context": {"request_id": "0195f1c2-6d3e-7aaa-8bbb-0123456789ac", "swarm": "team", "member": "hand"},
    }))
    .unwrap();
    let check = |task: &DelegateParams, to: &str, after_ms: i64| {
        check_task(task, to, (given + after_ms, 6), &key.public())
    };
    let expected = key.public().id();
    let unsigned = ProofError::Unsigned {
        expected: expected.clone(),
    };
    assert_eq!(check(&task, "hand", 0), Err(unsigned));
    task.context.proof = sign_task(&task, "hand", given, &key);
    assert_eq!(check(&task, "hand", 0), Ok(()));
    assert_eq!(check(&task, "hand", 6 * DAY_MS), Ok(()));

    let old = Err(ProofError::Old {
        expected: expected.clone(),
        days: 6,
    });
    assert_eq!(check(&task, "hand", 6 * DAY_MS + 1), old);
    assert_eq!(check(&task, "hand", -AHEAD_MS - 1), old);

    let changed = Err(ProofError::Changed { expected });
    assert_eq!(check(&task, "other", 0), changed, "another queue");
    let mut again = task.clone();
    again.context.proof.as_mut().unwrap().at_ms = Some(given + 6 * DAY_MS);
    assert_eq!(check(&again, "hand", 6 * DAY_MS + 1), changed, "made younger");
    again.context.proof.as_mut().unwrap().at_ms = None;
    assert_eq!(check(&again, "hand", 0), changed, "without its time");
    let mut again = task;
    again.task.description = "do more".to_owned();
    assert_eq!(check(&again, "hand", 0), changed);
}
