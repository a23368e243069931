use clawk_proto::trace::SealedEvent;
use uuid::Uuid;

use super::*;
use crate::chain::{Draft, HashBuffer, SessionChain};
use crate::verify;

fn trace(goal: &str, count: u64) -> Vec<SealedEvent> {
    let mut chain = SessionChain::new(SessionId(Uuid::from_u128(1)), Uuid::from_u128(2));
    let payload = format!("{{\"goal\":\"{goal}\"}}");
    let draft = |n| Draft {
        event_id: Uuid::from_u128(n),
        span: Uuid::from_u128(3),
        parent: None,
        timestamp: "2026-11-22T00:00:00.000000Z",
        event_type: "session.started",
        payload: &payload,
    };
    (0..u128::from(count))
        .map(|n| chain.link_event(&draft(n), &mut HashBuffer::default()).unwrap())
        .collect()
}

fn signer() -> TraceSigner {
    TraceSigner::from_seed(&[7; 32])
}

fn checkpoint(events: &[SealedEvent]) -> String {
    let last = events.last().unwrap();
    let statement = CheckpointStatement {
        session_id: last.session_id,
        events: events.len() as u64,
        head: last.event_hash,
        timestamp: last.timestamp.clone(),
    };
    serde_json::to_string(&signer().sign(statement)).unwrap() + "\n"
}

fn judged(events: &[SealedEvent], checkpoints: &str) -> VerificationReport {
    let text: String = events
        .iter()
        .map(|e| serde_json::to_string(e).unwrap() + "\n")
        .collect();
    let mut report = verify(text.as_bytes()).unwrap();
    assert!(report.valid, "the chain alone shows nothing");
    let mut witness = CheckpointVerifier::new(checkpoints, &signer().public(), true, |_| true).unwrap();
    for event in events {
        witness.see(event.session_id, event.sequence, event.event_hash);
    }
    witness.judge(&mut report);
    report
}

#[test]
fn a_trace_that_went_on_since_holds() {
    let events = trace("a", 9);
    let checkpoints = checkpoint(&events[..3]) + &checkpoint(&events[..7]) + "\n" + &checkpoint(&events);
    assert!(judged(&events, &checkpoints).valid);
    assert!(judged(&events, &checkpoint(&events[..3])).valid);
}

#[test]
fn a_cut_off_trace_is_found_out() {
    let events = trace("a", 9);
    let fault = judged(&events[..6], &checkpoint(&events[..7])).fault.unwrap();
    assert_eq!(
        (fault.kind, fault.index, fault.sequence),
        (FaultKind::Gap, 6, Some(6))
    );
    assert!(fault.detail.contains("had 7 events"), "{}", fault.detail);
}

#[test]
fn a_trace_written_anew_is_found_out() {
    let (events, forged) = (trace("a", 9), trace("b", 9));
    let fault = judged(&forged, &checkpoint(&events[..7])).fault.unwrap();
    assert_eq!((fault.kind, fault.index), (FaultKind::BrokenLink, 6));
    // Under another session's id, the signed one is missing.
    let mut other =
        CheckpointVerifier::new(&checkpoint(&events), &signer().public(), true, |_| true).unwrap();
    other.see(SessionId(Uuid::from_u128(5)), 8, events[8].event_hash);
    let mut report = verify(&b""[..]).unwrap();
    other.judge(&mut report);
    assert_eq!(report.fault.unwrap().kind, FaultKind::Gap);
}

#[test]
fn only_the_keys_own_and_unchanged_statements_count() {
    let line = checkpoint(&trace("a", 3));
    let stranger = TraceSigner::from_seed(&[8; 32]).public();
    let refused =
        |text: &str, key: &PublicKey| CheckpointVerifier::new(text, key, true, |_| true).unwrap_err();
    assert!(matches!(
        refused(&line, &stranger),
        CheckpointError::Signature { line: 1, .. }
    ));
    let key = signer().public();
    for (from, to) in [
        ("\"events\":3", "\"events\":2"),
        ("T00", "T01"),
        ("000000000001", "000000000002"),
    ] {
        let changed = line.replacen(from, to, 1);
        assert_ne!(changed, line);
        assert!(
            matches!(refused(&changed, &key), CheckpointError::Signature { .. }),
            "{from}"
        );
    }
    assert!(matches!(
        refused("{}", &key),
        CheckpointError::Line { line: 1, .. }
    ));
    assert!(matches!(refused("\n", &key), CheckpointError::Empty));
    assert_eq!(PublicKey::parse(&format!("{}\n", key.to_hex())).unwrap(), key);
    for bad in ["", "00", &"0".repeat(64), &"zz".repeat(32)] {
        assert!(PublicKey::parse(bad).is_err(), "{bad}");
    }
    assert!(!format!("{:?}", signer()).contains("7, 7"));
}
