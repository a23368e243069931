use clawk_proto::trace::{SealedEvent, TraceEvent};
use clawk_proto::{Digest, SessionId};
use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::*;
use crate::canonical::{Profile, payload_of};
use crate::chain::{Draft, HashBuffer, SessionChain};

fn trace(session: u128, count: u64) -> Vec<SealedEvent> {
    let mut chain = SessionChain::new(
        SessionId(Uuid::from_u128(session)),
        Uuid::from_u128(session + 1000),
    );
    let mut scratch = HashBuffer::default();
    (0..count)
        .map(|n| {
            let payload =
                payload_of(&json!({"tool": "echo", "n": n, "who": "Grüße", "nested": {"b": [n], "a": null}}))
                    .unwrap();
            let draft = Draft {
                event_id: Uuid::from_u128(u128::from(n) + 77),
                span: Uuid::from_u128(5),
                parent: Some(Uuid::from_u128(4)),
                timestamp: "2026-11-21T22:00:00.123456Z",
                event_type: "action.executed",
                payload: payload.get(),
            };
            chain.link_event(&draft, &mut scratch).unwrap()
        })
        .collect()
}

fn jsonl(events: &[SealedEvent]) -> String {
    events
        .iter()
        .map(|e| serde_json::to_string(e).unwrap() + "\n")
        .collect()
}

fn parsed(events: &[SealedEvent]) -> Vec<TraceEvent> {
    events
        .iter()
        .map(|e| serde_json::from_str(&serde_json::to_string(e).unwrap()).unwrap())
        .collect()
}

fn kind_at(text: &str) -> (FaultKind, u64) {
    let report = verify(text.as_bytes()).unwrap();
    assert!(!report.valid);
    let fault = report.fault.expect("a fault");
    (fault.kind, fault.index)
}

#[test]
fn a_whole_trace_holds_and_names_its_profiles() {
    let events = trace(1, 50);
    let report = verify(jsonl(&events).as_bytes()).unwrap();
    assert_eq!((report.valid, report.event_count), (true, 50));
    assert_eq!(report.profiles, [Profile::Jcs]);
    assert_eq!(report.sessions[0].head, events[49].event_hash);
    assert_eq!(events[0].parent_span_id, None);
    assert_eq!(verify_events(parsed(&events)), report);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["valid"], true);
    assert_eq!(json["error"], serde_json::Value::Null);
    assert_eq!(json["error_at"], serde_json::Value::Null);
}

#[test]
fn sessions_may_be_interleaved() {
    let (a, b) = (trace(1, 3), trace(2, 3));
    let mixed: Vec<_> = a.into_iter().zip(b).flat_map(|(x, y)| [x, y]).collect();
    let report = verify(jsonl(&mixed).as_bytes()).unwrap();
    assert!(report.valid);
    assert_eq!(
        report.sessions.iter().map(|s| s.events).collect::<Vec<_>>(),
        [3, 3]
    );
}

#[test]
fn every_single_byte_corruption_is_found_where_it_is() {
    let events = trace(1, 50);
    // The state before each line, so that a case costs one line and not the whole trace.
    let mut before = Verifier::default();
    for (index, event) in events.iter().enumerate() {
        let line = jsonl(std::slice::from_ref(event)).into_bytes();
        let next = events
            .get(index + 1)
            .map(|e| jsonl(std::slice::from_ref(e)))
            .unwrap_or_default();
        for at in 0..line.len() {
            for new in [line[at] ^ 1, line[at] ^ 0x20, b' '] {
                if new == line[at] {
                    continue;
                }
                let mut corrupt = line.clone();
                corrupt[at] = new;
                corrupt.extend_from_slice(next.as_bytes());
                let mut verifier = before.clone();
                for line in corrupt.split_inclusive(|b| *b == b'\n') {
                    let text = line.strip_suffix(b"\n").unwrap_or(line);
                    verifier.push_line(text, 1, text.len() < line.len());
                }
                let fault = verifier
                    .finish()
                    .fault
                    .unwrap_or_else(|| panic!("event {index}, byte {at} -> {new:#x}"));
                assert_eq!(fault.index, index as u64, "byte {at} -> {new:#x}: {fault:?}");
            }
        }
        before.push_line(line.trim_ascii_end(), 1, true);
    }
    assert!(before.finish().valid);
}

#[test]
fn kinds_of_faults_are_told_apart() {
    let events = trace(1, 6);
    let lines: Vec<String> = events.iter().map(|e| serde_json::to_string(e).unwrap()).collect();
    let join = |lines: &[String]| lines.join("\n");
    let without = |n: usize| {
        let mut left = lines.clone();
        left.remove(n);
        join(&left)
    };
    assert_eq!(kind_at(&without(3)), (FaultKind::Gap, 3));
    assert_eq!(kind_at(&without(0)), (FaultKind::WrongGenesis, 0));
    let mut twice = lines.clone();
    twice.insert(3, lines[2].clone());
    assert_eq!(kind_at(&join(&twice)), (FaultKind::Duplicate, 3));
    let mut swapped = lines.clone();
    swapped.swap(3, 4);
    assert_eq!(kind_at(&join(&swapped)), (FaultKind::Gap, 3));
    assert_eq!(
        kind_at(&join(&lines).replacen("\"n\":2", "\"n\":9", 1)),
        (FaultKind::BadHash, 2)
    );
    // Event 2 rewritten with a hash of its own: the next link shows it.
    let mut other = events.clone();
    let mut chain = SessionChain {
        session: other[2].session_id,
        trace_id: other[2].trace_id,
        next_sequence: 2,
        head: other[1].event_hash,
    };
    let draft = Draft {
        event_id: other[2].event_id,
        span: other[2].span_id,
        parent: other[2].parent_span_id,
        timestamp: &events[2].timestamp,
        event_type: "action.executed",
        payload: "{\"tool\":\"other\"}",
    };
    other[2] = chain.link_event(&draft, &mut HashBuffer::default()).unwrap();
    assert_eq!(kind_at(&jsonl(&other)), (FaultKind::BrokenLink, 3));
    let mut genesis = parsed(&events);
    genesis[0].previous_event_hash = Digest([1; 32]);
    assert_eq!(
        verify_events(&genesis).fault.unwrap().kind,
        FaultKind::WrongGenesis
    );
}

#[test]
fn what_cannot_be_read_is_malformed_and_counted() {
    let text = jsonl(&trace(1, 3));
    let cut = &text.as_bytes()[..text.len() - 20];
    let report = verify(cut).unwrap();
    let fault = report.fault.unwrap();
    assert_eq!(
        (fault.kind, fault.index, fault.line, report.event_count),
        (FaultKind::Malformed, 2, 3, 3)
    );
    assert!(fault.detail.contains("cut off"), "{}", fault.detail);
    // A missing last newline alone is no fault.
    assert!(verify(text.trim_end().as_bytes()).unwrap().valid);
    let unhashed = text.replacen("{\"trace_version\"", "{\"note\":1,\"trace_version\"", 1);
    assert_eq!(kind_at(&unhashed), (FaultKind::Malformed, 0));
    let not_uuid = text.replacen("\"span_id\":\"00000000", "\"span_id\":\"0000000x", 1);
    assert_eq!(kind_at(&not_uuid), (FaultKind::Malformed, 0));
    assert_eq!(kind_at("{\"a\":\"\u{0}\"}\n"), (FaultKind::Malformed, 0));
    assert!(verify(&b""[..]).unwrap().valid);
}

#[test]
fn a_line_beyond_the_cap_is_refused_in_bounded_memory() {
    struct Endless(u64);
    impl std::io::Read for Endless {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let take = out.len().min(usize::try_from(self.0).unwrap());
            out[..take].fill(b'a');
            self.0 -= take as u64;
            Ok(take)
        }
    }
    let reader = std::io::BufReader::new(Endless(MAX_LINE_BYTES as u64 * 3));
    let report = verify(reader).unwrap();
    assert_eq!(report.event_count, 1);
    assert!(report.fault.unwrap().detail.contains("longer than"));
}

#[test]
fn the_general_form_verifies_as_the_written_one() {
    let events = parsed(&trace(1, 4));
    // Other member order, blanks, an escape in a string: the same event.
    let text: String = events
        .iter()
        .map(|e| {
            let value = serde_json::to_value(e).unwrap();
            let spaced = serde_json::to_string(&value)
                .unwrap()
                .replace("\",\"", "\", \"")
                .replace("action.executed", "action\\u002eexecuted");
            spaced + "\n"
        })
        .collect();
    assert!(verify(text.as_bytes()).unwrap().valid);
}

/// What one thread says that takes line by line.
fn line_by_line(bytes: &[u8]) -> VerificationReport {
    let mut verifier = Verifier::default();
    for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        if !text.is_empty() {
            verifier.push_line(text, number, text.len() < line.len());
        }
    }
    verifier.finish()
}

/// Three sessions interleaved: plain ASCII, non-ASCII, and one written by a reader of another profile.
fn mixed() -> Vec<String> {
    let plain = |line: &SealedEvent| {
        let text = serde_json::to_string(line).unwrap();
        // Blanks in the payload: the general form, hashed as its canonical text.
        text.replacen("\"payload\":{", "\"payload\":{ ", 1)
    };
    let (a, b, c) = (trace(1, 9), trace(2, 9), ascii(3, 9));
    let lines = |events: &[SealedEvent]| events.iter().map(|e| serde_json::to_string(e).unwrap()).collect();
    let (a, c): (Vec<String>, Vec<String>) = (lines(&a), lines(&c));
    let b: Vec<String> = b.iter().map(plain).collect();
    (0..9)
        .flat_map(|n| [a[n].clone(), c[n].clone(), b[n].clone()])
        .collect()
}

fn ascii(session: u128, count: u64) -> Vec<SealedEvent> {
    let mut chain = SessionChain::new(SessionId(Uuid::from_u128(session)), Uuid::from_u128(9));
    let link = |n| {
        let draft = Draft {
            event_id: Uuid::from_u128(n),
            span: Uuid::from_u128(5),
            parent: Some(Uuid::from_u128(4)),
            timestamp: "2026-11-21T22:00:00.123456Z",
            event_type: "action.requested",
            payload: "{\"action_id\":\"echo\",\"parameters_hash\":\"0123456789abcdef0123456789abcdef\"}",
        };
        chain.link_event(&draft, &mut HashBuffer::default()).unwrap()
    };
    (0..u128::from(count)).map(link).collect()
}

fn on_threads(bytes: &[u8], chunk_bytes: usize, workers: usize) -> VerificationReport {
    parallel::verify_parallel(bytes, parallel::Plan { chunk_bytes, workers }).unwrap()
}

#[test]
fn whole_traces_hold_at_every_chunk_size() {
    let text = mixed().join("\n") + "\n";
    let expected = line_by_line(text.as_bytes());
    assert!(expected.valid);
    assert_eq!((expected.event_count, expected.sessions.len()), (27, 3));
    assert_eq!(expected.sessions[1].profiles, [Profile::Jcs, Profile::AppendixB]);
    for chunk_bytes in (1..3000).step_by(7) {
        for workers in 1..4 {
            assert_eq!(
                on_threads(text.as_bytes(), chunk_bytes, workers),
                expected,
                "{chunk_bytes}"
            );
        }
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    LineGone(prop::sample::Index),
    LineTwice(prop::sample::Index),
    LinesSwapped(prop::sample::Index, prop::sample::Index),
    BlankLine(prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        1 => (at(), Just(b'\n')).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        1 => at().prop_map(Damage::Cut),
        1 => at().prop_map(Damage::LineGone),
        1 => at().prop_map(Damage::LineTwice),
        1 => (at(), at()).prop_map(|(a, b)| Damage::LinesSwapped(a, b)),
        1 => at().prop_map(Damage::BlankLine),
    ]
}

fn damaged(damages: &[Damage]) -> Vec<u8> {
    let mut lines = mixed();
    for damage in damages {
        match damage {
            Damage::LineGone(at) => drop(lines.remove(at.index(lines.len()))),
            Damage::LineTwice(at) => {
                lines.insert(at.index(lines.len()), lines[at.index(lines.len())].clone())
            }
            Damage::LinesSwapped(a, b) => {
                let count = lines.len();
                lines.swap(a.index(count), b.index(count));
            }
            Damage::BlankLine(at) => lines.insert(at.index(lines.len()), String::new()),
            Damage::Byte(..) | Damage::Cut(_) => {}
        }
    }
    let mut bytes = (lines.join("\n") + "\n").into_bytes();
    for damage in damages {
        match damage {
            Damage::Byte(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len()) + 1),
            _ => {}
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_core_says_what_one_says(
        damages in prop::collection::vec(damage(), 0..3),
        chunk_bytes in prop_oneof![1usize..64, 64usize..4000, 4000usize..20_000],
        workers in 1usize..4,
    ) {
        let bytes = damaged(&damages);
        prop_assert_eq!(on_threads(&bytes, chunk_bytes, workers), line_by_line(&bytes));
    }
}

#[test]
fn long_lines_between_short_ones_are_judged_in_their_place() {
    let lines = mixed();
    let long = "a".repeat(MAX_LINE_BYTES + 1);
    let text = [lines[0].as_str(), &lines[1], &long, &lines[2], ""].join("\n");
    for chunk_bytes in [100, 1 << 20] {
        let report = on_threads(text.as_bytes(), chunk_bytes, 2);
        let fault = report.fault.unwrap();
        assert_eq!((fault.index, fault.line, report.event_count), (2, 3, 4));
        assert!(fault.detail.contains("longer than"));
    }
    // A line of exactly the limit is read, with and without its newline.
    let long = format!("{}\n{}", lines[0], "a".repeat(MAX_LINE_BYTES));
    for text in [long.clone() + "\n", long] {
        let fault = on_threads(text.as_bytes(), 1000, 2).fault.unwrap();
        assert!(!fault.detail.contains("longer than"), "{}", fault.detail);
    }
}

#[test]
fn a_file_and_a_state_directory_are_measured_alike() {
    let sealed = |text: usize| {
        let payload = format!("{{\"a\":\"{}\"}}", "x".repeat(text));
        let draft = Draft {
            event_id: Uuid::from_u128(3),
            span: Uuid::from_u128(4),
            parent: None,
            timestamp: "2026-01-02T03:04:05.000006Z",
            event_type: "action.executed",
            payload: &payload,
        };
        let mut chain = SessionChain::new(SessionId(Uuid::from_u128(1)), Uuid::from_u128(2));
        chain.link_event(&draft, &mut HashBuffer::default()).unwrap()
    };
    let frame = serde_json::to_string(&sealed(0)).unwrap().len();
    for (bytes, taken) in [(MAX_LINE_BYTES, true), (MAX_LINE_BYTES + 1, false)] {
        let event = sealed(bytes - frame);
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line.len(), bytes);
        let of_file = verify((line + "\n").as_bytes()).unwrap();
        let mut verifier = Verifier::default();
        verifier.push(&RawEvent::of_sealed(&event), 1);
        let of_state = verifier.finish();
        assert_eq!((of_file.valid, of_state.valid), (taken, taken), "{bytes} bytes");
        let detail = |report: VerificationReport| report.fault.map(|fault| fault.detail);
        assert_eq!(detail(of_file), detail(of_state));
    }
}
