//! The short way through a line and through its hash says what the long way says, or nothing.

use proptest::prelude::*;
use serde_json::json;
use uuid::Uuid;

use super::{RawEvent, as_we_write, general};
use crate::canonical::payload_of;
use crate::chain::HashBuffer;
use crate::verify::{ProfileSet, satisfied_profiles};
use crate::{Draft, SessionChain};
use clawk_proto::SessionId;

/// A line as we write it, the same on every run.
fn line(word: &str, number: u64, parent: bool, time: &str) -> String {
    let session = Uuid::from_u128(7);
    let mut chain = SessionChain::new(SessionId(session), session);
    chain.next_sequence = u64::from(parent) * number;
    let payload = payload_of(&json!({
        "action_id": word, "duration_ms": number, "nested": { "a": [word, null, true], "b": {} }, word: -1,
    }))
    .unwrap();
    let draft = Draft {
        event_id: Uuid::from_u128(u128::from(number)),
        span: Uuid::from_u128(2),
        parent: Some(Uuid::from_u128(3)),
        timestamp: time,
        event_type: "action.executed",
        payload: payload.get(),
    };
    let event = chain.link_event(&draft, &mut HashBuffer::default()).unwrap();
    serde_json::to_string(&event).unwrap()
}

/// The two ways through one line: where the short one has an answer, it is the long one's; where the line as a whole is judged by
/// both, what is said of its hash is the same.
fn agree(line: &str) -> Result<bool, TestCaseError> {
    let long = general(line);
    let short = as_we_write(line);
    if let Some(short) = &short {
        let long = long
            .as_ref()
            .map_err(|why| TestCaseError::fail(format!("only the short way reads it: {why}\n{line}")))?;
        prop_assert_eq!(format!("{short:?}"), format!("{long:?}"));
    }
    if let Ok(known) = RawEvent::parse(line) {
        let unknown = RawEvent {
            plainness: None,
            ..known.clone()
        };
        for candidates in [
            ProfileSet::ALL,
            ProfileSet::ALL.intersection(ProfileSet::SAME_WHEN_PLAIN),
        ] {
            let of = |event: &RawEvent<'_>| satisfied_profiles(event, candidates, &mut HashBuffer::default());
            prop_assert_eq!(of(&known), of(&unknown), "{}", line);
        }
    }
    Ok(short.is_some())
}

const WORDS: [&str; 7] = [
    "echo",
    "",
    "a\"b\\c\n",
    "Grüße 你好",
    "\u{7f}\u{1f}",
    "🦀",
    "plain text",
];
const TIMES: [&str; 4] = [
    "2026-11-22T00:00:00.000001Z",
    "2026-11-22T00:00:00Z",
    "2026-11-22T01:00:00.000001+01:00",
    "yesterday",
];

#[test]
fn the_short_way_is_taken_for_what_we_write() {
    assert!(agree(&line("echo", 12, true, TIMES[0])).unwrap());
    assert!(agree(&line("echo", 12, false, TIMES[0])).unwrap());
}

#[test]
fn every_byte_changed_in_turn_is_read_alike() {
    let line = line("a\"b é", 3, true, TIMES[0]);
    for at in 0..line.len() {
        for new in [
            0, 1, b' ', b'"', b'\\', b'0', b'9', b'A', b'f', b'}', b'{', b',', 0x7f,
        ] {
            let mut bytes = line.clone().into_bytes();
            bytes[at] = new;
            if let Ok(text) = std::str::from_utf8(&bytes) {
                agree(text).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn the_short_way_says_what_the_long_one_says(
        (word, number, parent, time) in (prop::sample::select(&WORDS[..]), any::<u64>(), any::<bool>(), prop::sample::select(&TIMES[..])),
        damages in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4, prop_oneof![any::<u8>(), prop::sample::select(&b"\"\\{}[]:, \t-0129aAfFeE.\n"[..])]), 0..4),
    ) {
        let written = line(word, number % (1 << 53), parent, time);
        if let Some(event) = as_we_write(&written) {
            prop_assert_eq!(event.line_bytes(), written.len());
        }
        let mut bytes = written.into_bytes();
        for (at, what, byte) in damages {
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                _ => {
                    let other = usize::from(byte) % bytes.len();
                    bytes.swap(at, other);
                }
            }
        }
        if let Ok(text) = std::str::from_utf8(&bytes) {
            agree(text)?;
        }
    }
}
