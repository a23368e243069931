//! `docs/verify_trace.py`, written apart from this crate, says the same as this crate.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clawk_proto::SessionId;
use clawk_trace::canonical::payload_of;
use clawk_trace::verify::Verifier;
use clawk_trace::{Draft, HashBuffer, MAX_LINE_BYTES, SessionChain, verify};
use serde_json::json;
use uuid::Uuid;

use crate::vectors;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// What Python prints, and whether it ended well.
fn python(script: &Path, words: &[&Path]) -> (String, bool) {
    #[expect(clippy::disallowed_methods, reason = "a test of another program starts it")]
    let mut command = std::process::Command::new("python3");
    let output = command.arg(script).args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{errors}");
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

fn driven(mode: &str, text: &str) -> String {
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/independent.py");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let (printed, ended_well) = python(&driver, &[&docs(), Path::new(mode), file.path()]);
    assert!(ended_well);
    printed
}

/// Events of interleaved sessions with all kinds of payload that the runtime writes.
fn generated(count: u64, sessions: u64) -> String {
    let chain = |n| SessionChain::new(SessionId(Uuid::from_u128(n)), Uuid::from_u128(n << 64));
    let mut chains: Vec<SessionChain> = (0..u128::from(sessions)).map(|n| chain(n + 1)).collect();
    let (mut scratch, mut text, mut seed) = (HashBuffer::default(), String::new(), 1u64);
    let words = [
        "echo",
        "Grüße 你好 🦀",
        "a\"b\\c/d\n\u{1f}\u{7f}",
        "",
        "\u{2028}<é>",
        "plain text",
    ];
    for n in 0..count {
        // Numbers of a linear congruential generator: the same in every run.
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let word = *words
            .get(usize::try_from(seed >> 33).unwrap() % words.len())
            .unwrap();
        let payload = match n % 4 {
            0 => json!({ "action_id": word, "n": seed >> 12, "nothing": null }),
            1 => json!({ "b": [n, -3, true, [word]], word: { "Z": 1, "a": {}, "é": [] } }),
            2 => json!({}),
            _ => json!({ "duration_ms": n, "result_hash": format!("{seed:064x}"), "is_error": false }),
        };
        let payload = payload_of(&payload).unwrap();
        let draft = Draft {
            event_id: Uuid::from_u128(u128::from(seed)),
            span: Uuid::from_u128(u128::from(n)),
            parent: Some(Uuid::from_u128(7)),
            timestamp: "2026-11-22T00:00:00.000001Z",
            event_type: if n % 4 == 0 {
                "action.requested"
            } else {
                "ckp.message.accepted"
            },
            payload: payload.get(),
        };
        let which = usize::try_from(seed >> 40).unwrap() % chains.len();
        let event = chains
            .get_mut(which)
            .unwrap()
            .link_event(&draft, &mut scratch)
            .unwrap();
        text += &serde_json::to_string(&event).unwrap();
        text.push('\n');
    }
    text
}

fn report_of(text: &str) -> (serde_json::Value, bool) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let (printed, ended_well) = python(&docs().join("verify_trace.py"), &[file.path()]);
    (serde_json::from_str(&printed).unwrap(), ended_well)
}

#[test]
fn it_is_short() {
    let script = std::fs::read_to_string(docs().join("verify_trace.py")).unwrap();
    assert!(script.lines().count() <= 80);
}

#[test]
fn it_knows_every_vector() {
    let (mut lines, mut expected) = (String::new(), String::new());
    for vector in vectors() {
        let jcs = vector.alternatives.get("jcs").and_then(|a| a["hash"].as_str());
        // Floats and integers beyond 2^53 have no agreed text under `jcs` (R27).
        let is_disputed = ["floats", "large_ints"].contains(&vector.name.as_str());
        lines += &(vector.event.line(&vector.expected_hash) + "\n");
        expected += if jcs.is_some() {
            "appendix-b\n"
        } else {
            "appendix-b jcs\n"
        };
        if let Some(hash) = jcs {
            lines += &(vector.event.line(hash) + "\n");
            expected += if is_disputed { "malformed\n" } else { "jcs\n" };
        }
    }
    assert_eq!(driven("vectors", &lines), expected);
}

#[test]
fn it_agrees_on_the_largest_event() {
    let line = |text: usize| {
        let payload = format!("{{\"a\":\"{}\"}}", "x".repeat(text));
        let draft = Draft {
            event_id: Uuid::from_u128(1),
            span: Uuid::from_u128(2),
            parent: None,
            timestamp: "2026-11-22T00:00:00.000001Z",
            event_type: "action.requested",
            payload: &payload,
        };
        let mut chain = SessionChain::new(SessionId(Uuid::from_u128(3)), Uuid::from_u128(4));
        let event = chain.link_event(&draft, &mut HashBuffer::default()).unwrap();
        serde_json::to_string(&event).unwrap() + "\n"
    };
    let frame = line(0).len() - 1;
    for (bytes, taken) in [(MAX_LINE_BYTES, true), (MAX_LINE_BYTES + 1, false)] {
        let text = line(bytes - frame);
        assert_eq!(text.len(), bytes + 1);
        let (theirs, ended_well) = report_of(&text);
        assert_eq!(
            (verify(text.as_bytes()).unwrap().valid, ended_well),
            (taken, taken),
            "{bytes}"
        );
        assert_eq!(
            theirs["error"],
            if taken { json!(null) } else { json!("malformed") }
        );
    }
}

#[test]
fn it_agrees_on_ten_thousand_generated_events() {
    let text = generated(10_000, 5);
    let ours = verify(text.as_bytes()).unwrap();
    let (theirs, ended_well) = report_of(&text);
    assert!(ours.valid && ended_well);
    assert_eq!(
        (&theirs["valid"], &theirs["event_count"]),
        (&json!(true), &json!(10_000))
    );
}

#[test]
fn it_agrees_on_what_is_missing_moved_or_doubled() {
    let text = generated(10, 2);
    let lines: Vec<&str> = text.lines().collect();
    for at in 0..lines.len() - 1 {
        let (mut gone, mut twice, mut turned) = (lines.clone(), lines.clone(), lines.clone());
        gone.remove(at);
        twice.insert(at, lines[at]);
        turned.swap(at, at + 1);
        for changed in [gone, twice, turned].into_iter().skip(at % 3).step_by(3) {
            let changed = changed.join("\n");
            let ours = serde_json::to_value(verify(changed.as_bytes()).unwrap()).unwrap();
            let (theirs, ended_well) = report_of(&changed);
            for member in ["valid", "event_count", "error", "error_at"] {
                assert_eq!(ours[member], theirs[member], "{member} at {at}");
            }
            assert_eq!(ours["valid"], json!(ended_well));
        }
    }
}

/// What stands in the place of a byte: a control character, a quote, another digit, a flipped bit at either end, and in turns
/// another case, a blank, a backslash, a line break. `independent.py` has the same list.
fn ways(at: usize, old: u8) -> Vec<u8> {
    let digit = match old {
        b'0'..=b'9' => b'0' + (old - b'0' + 1) % 10,
        _ => b'0' + u8::try_from(at % 10).unwrap(),
    };
    let turns = match at % 4 {
        0 => old ^ 0x20,
        1 => b' ',
        2 => b'\\',
        _ => b'\n',
    };
    let mut ways: Vec<u8> = Vec::new();
    for way in [1, b'"', digit, old ^ 1, old ^ 0x80, turns] {
        if way != old && !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}

/// The verdict on a line with this byte in it, and the line behind it.
fn verdict(before: &Verifier, index: usize, bytes: &[u8], line: &[u8]) -> String {
    let mut verifier = before.clone();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        verifier.push_line(line, 1, true);
    }
    match verifier.finish().fault {
        None => {
            // `\u001f` and `\u001F` are the same text: nothing was changed.
            let value = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
            let changed = bytes.split(|byte| *byte == b'\n').next().unwrap();
            assert_eq!(value(changed), value(line), "{index}");
            "held".to_owned()
        }
        Some(fault) => format!("{} {}", fault.index - index as u64, fault.kind.code()),
    }
}

/// A line per changed byte, for every line of which `part` is the turn.
fn verdicts(text: &str, part: usize, parts: usize) -> String {
    let lines: Vec<&[u8]> = text.as_bytes().split_inclusive(|byte| *byte == b'\n').collect();
    let (mut out, mut before) = (String::new(), Verifier::default());
    for (index, line) in lines.iter().enumerate() {
        for (at, &old) in line.iter().enumerate().filter(|_| index % parts == part) {
            for new in ways(at, old) {
                let mut bytes = line.to_vec();
                *bytes.get_mut(at).unwrap() = new;
                bytes.extend_from_slice(lines.get(index + 1).copied().unwrap_or_default());
                let verdict = verdict(&before, index, &bytes, line);
                writeln!(out, "{index} {at} {new} {verdict}").unwrap();
            }
        }
        before.push_line(line.trim_ascii_end(), 1, true);
    }
    out
}

/// One run of Python per part of the trace, beside as many threads of ours.
#[test]
fn it_blames_the_same_event_for_the_same_fault_wherever_one_byte_changes_in_any_of_six_ways() {
    const PARTS: usize = 2;
    let text = generated(50, 1);
    let cases = std::thread::scope(|scope| {
        let parts = (0..PARTS).map(|part| {
            let text = text.as_str();
            let theirs = scope.spawn(move || driven(&format!("{part},{PARTS}"), text));
            (scope.spawn(move || verdicts(text, part, PARTS)), theirs)
        });
        let parts: Vec<_> = parts.collect();
        let mut cases = 0;
        for (ours, theirs) in parts {
            let (ours, theirs) = (ours.join().unwrap(), theirs.join().unwrap());
            for (ours, theirs) in ours.lines().zip(theirs.lines()) {
                assert_eq!(ours, theirs);
            }
            assert_eq!(ours.len(), theirs.len());
            cases += ours.lines().count();
        }
        cases
    });
    assert!(cases > 4 * text.len(), "{cases} of {} bytes", text.len());
}
