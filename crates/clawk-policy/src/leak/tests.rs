use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::known::forms_of;
use super::shapes::{SHAPES, SHORT};
use super::{KnownSecret, MAX_SECRET_BYTES, Scanner};
use crate::testing::{Dice, secrets, texts};

const CORPUS: &str = include_str!("../../../../vectors/policy/secrets.json");

fn known(values: &[&str]) -> Scanner {
    Scanner::known_only(
        values
            .iter()
            .enumerate()
            .map(|(at, value)| KnownSecret::new(format!("K{at}"), value)),
    )
}

fn streamed(scanner: &Scanner, text: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut stream = scanner.stream();
    let (mut out, mut rest, mut at) = (Vec::new(), text, 0);
    while !rest.is_empty() {
        let size = sizes[at % sizes.len()].clamp(1, rest.len());
        out.extend(stream.push(&rest[..size]));
        rest = &rest[size..];
        at += 1;
    }
    out.extend(stream.finish());
    out
}

#[test]
fn there_are_enough_shapes() {
    assert!(Scanner::shape_count() >= 50, "{}", Scanner::shape_count());
}

#[test]
fn every_shape_is_found_in_every_context_and_nothing_of_it_is_left() {
    let scanner = Scanner::new([]);
    let mut missed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let cases = secrets(CORPUS, 7);
    assert!(cases.len() >= 600, "{}", cases.len());
    for case in &cases {
        let redacted = scanner.redact(&case.text);
        let (clean, tally) = redacted.unwrap_or_else(|| (case.text.clone(), Default::default()));
        let right = tally.iter().any(|(kind, _)| kind == case.kind);
        let left = case.parts.iter().any(|part| clean.contains(part.as_str()));
        if !right || left {
            missed
                .entry(case.template.clone())
                .or_default()
                .push(case.text.clone());
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn every_kind_has_a_case() {
    let cases = secrets(CORPUS, 7);
    for shape in SHAPES {
        let covered = cases.iter().any(|case| case.kind == shape.kind);
        assert!(covered || shape.kind == "fly-token", "{}", shape.kind);
    }
}

#[test]
fn examples_and_placeholders_pass() {
    let scanner = Scanner::new([]);
    let data: serde_json::Value = serde_json::from_str(CORPUS).unwrap();
    for text in texts(&data["clean"]) {
        assert_eq!(scanner.redact(&text), None, "{text}");
    }
}

#[test]
fn known_values_are_found_in_every_encoding() {
    let value = "hunter2/with \"quote\" and+plus=é";
    let scanner = known(&[value]);
    let encoded = [
        value.to_owned(),
        serde_json::to_string(value).unwrap(),
        serde_json::to_string(&serde_json::to_string(value).unwrap()).unwrap(),
        "68756e746572322f776974682022".to_owned() + "71756f7465222061" + "6e642b706c75733dc3a9",
        "68756E746572322F776974682022".to_owned() + "71756F7465222061" + "6E642B706C75733DC3A9",
        "hunter2%2Fwith%20%22quote%22%20and%2Bplus%3D%C3%A9".to_owned(),
        "hunter2%2fwith+%22quote%22+and%2bplus%3d%c3%a9".to_owned(),
        "hunter2/with \\\"quote\\\" and+plus=\\u00e9".to_owned(),
        // Each character that is no letter and no digit by its number, as serializers for HTML, mail and shells write it.
        "hunter2\\u002fwith\\u0020\\u0022quote\\u0022\\u0020and\\u002bplus\\u003d\\u00e9".to_owned(),
        "hunter2\\u002Fwith\\u0020\\u0022quote\\u0022\\u0020and\\u002Bplus\\u003D\\u00E9".to_owned(),
        "hunter2\\x2fwith\\x20\\x22quote\\x22\\x20and\\x2bplus\\x3d\\xc3\\xa9".to_owned(),
        "hunter2&#47;with&#32;&#34;quote&#34;&#32;and&#43;plus&#61;&#233;".to_owned(),
        "hunter2&#x2F;with&#x20;&#x22;quote&#x22;&#x20;and&#x2B;plus&#x3D;&#xE9;".to_owned(),
        "hunter2=2Fwith=20=22quote=22=20and=2Bplus=3D=C3=A9".to_owned(),
    ];
    for text in encoded {
        let (clean, tally) = scanner
            .redact(&format!("a {text} b"))
            .unwrap_or_else(|| panic!("{text}"));
        assert!(clean.contains("[redacted:known-secret K0]"), "{clean}");
        assert_eq!(tally.iter().collect::<Vec<_>>(), [("known-secret", 1)]);
    }
}

/// RFC 3986 leaves `-`, `.`, `_` and `~` as they are, but not every program does.
#[test]
fn a_known_value_is_found_with_its_unreserved_marks_escaped() {
    let scanner = known(&["sk-canary_4f9a2b7c.8d1e6f30~5a9b"]);
    for text in [
        "sk%2Dcanary%5F4f9a2b7c%2E8d1e6f30%7E5a9b",
        "sk%2dcanary%5f4f9a2b7c%2e8d1e6f30%7e5a9b",
        "sk\\u002dcanary\\u005f4f9a2b7c\\u002e8d1e6f30\\u007e5a9b",
        "sk&#45;canary&#95;4f9a2b7c&#46;8d1e6f30&#126;5a9b",
    ] {
        let (clean, _) = scanner.redact(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(clean, "[redacted:known-secret K0]");
    }
}

#[test]
fn base64_at_every_alignment_also_wrapped_over_lines() {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    let value = "correct-horse/battery?staple~42";
    let scanner = known(&[value]);
    for lead in 0..64 {
        let whole = format!("{}{value} and more of it", "x".repeat(lead));
        for text in [STANDARD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
            let wrapped: Vec<String> = text
                .as_bytes()
                .chunks(19)
                .map(|c| String::from_utf8(c.to_vec()).unwrap())
                .collect();
            for text in [text, wrapped.join("\n"), wrapped.join("\r\n")] {
                assert!(scanner.redact(&text).is_some(), "{lead}: {text}");
            }
        }
    }
}

#[test]
fn trivial_values_hide_nothing() {
    let scanner = known(&[
        "test",
        "password",
        "12345678",
        "aaaaaaaaaaaaaaaa",
        "",
        "localhost",
    ]);
    assert_eq!(
        scanner.redact("a test of the password 12345678 on localhost aaaaaaaaaaaaaaaa"),
        None
    );
    assert_eq!(scanner.passed_over().len(), 5);
}

#[test]
fn a_key_file_is_found_line_by_line_and_in_pieces() {
    let mut dice = Dice::new(3);
    let lines: Vec<String> = (0..40)
        .map(|_| {
            (0..64)
                .map(|_| char::from(b"abcdefghijklmnopqrstuvwxyzABCDEFG0123456789"[dice.below(43)]))
                .collect()
        })
        .collect();
    let file = lines.join("\n");
    let scanner = known(&[&file]);
    for line in &lines {
        let (clean, _) = scanner.redact(&format!("12: {line}")).unwrap();
        assert!(!clean.contains(line.split_at(40).0), "{clean}");
    }
    let (clean, tally) = scanner.redact(&format!("before\n{file}\nafter")).unwrap();
    assert_eq!(clean, "before\n[redacted:known-secret K0]\nafter");
    assert_eq!(tally.iter().collect::<Vec<_>>(), [("known-secret", 1)]);
}

#[test]
fn nothing_prints_a_known_value() {
    let scanner = known(&["s3cr3t-value-of-mine"]);
    let shown = format!(
        "{scanner:?} {:?} {:?}",
        KnownSecret::new("N", "s3cr3t-value-of-mine"),
        scanner.stream()
    );
    assert!(!shown.contains("s3cr3t"), "{shown}");
}

#[test]
fn json_is_redacted_in_texts_keys_and_numbers() {
    let scanner = known(&["s3cr3t-value-of-mine", "4929123412341234"]);
    let mut value =
        json!({"s3cr3t-value-of-mine": 1, "a": ["x s3cr3t-value-of-mine y", 4_929_123_412_341_234_u64]});
    let tally = scanner.redact_json(&mut value);
    let text = value.to_string();
    assert!(
        !text.contains("s3cr3t") && !text.contains("4929123412341234"),
        "{text}"
    );
    assert_eq!(tally.iter().collect::<Vec<_>>(), [("known-secret", 3)]);
}

#[test]
fn a_stream_holds_little() {
    let mut stream = Scanner::new([]).stream();
    let (mut given, mut taken) = (0, 0);
    for _ in 0..200 {
        given += 4096;
        taken += stream.push(&[b'x'; 4096]).len();
        assert!(given - taken <= SHORT + 1);
    }
    // What may be the beginning of a long one is held, and no longer than such a one goes on.
    taken += stream.push(b"-----BEGIN ").len();
    given += 11;
    for _ in 0..200 {
        given += 4096;
        taken += stream.push(&[b'x'; 4096]).len();
        assert!(given - taken <= MAX_SECRET_BYTES + 1);
    }
    assert_eq!(taken + stream.finish().len(), given);
}

#[test]
fn every_shape_is_found_in_small_pieces() {
    let scanner = Scanner::new([]);
    for case in secrets(CORPUS, 11).iter().step_by(3) {
        // So much behind it that the stream lets go of it before the end.
        let text = format!("{}\n{}", case.text, "and so on ".repeat(100));
        let whole = scanner
            .redact(&text)
            .map_or_else(|| text.clone(), |(clean, _)| clean);
        let out = streamed(&scanner, text.as_bytes(), &[7]);
        assert_eq!(String::from_utf8_lossy(&out), whole);
    }
}

#[test]
fn a_secret_over_any_edge_of_a_stream_is_found_in_every_encoding() {
    let value = "tok/en+with=42&more~stuff";
    let scanner = known(&[value]);
    for form in forms_of(value) {
        // The edge where the stream lets go moves over the whole secret.
        for lead in (MAX_SECRET_BYTES..MAX_SECRET_BYTES + 8).chain([0, 1]) {
            let mut text = vec![b'.'; lead];
            text.extend(&form);
            text.extend(vec![b'.'; MAX_SECRET_BYTES + 40]);
            let whole = scanner
                .redact(&String::from_utf8(text.clone()).unwrap())
                .unwrap()
                .0;
            for sizes in [
                &[MAX_SECRET_BYTES + 1 + lead + form.len() / 2][..],
                &[4099],
                &[lead + form.len() / 3, 5000],
            ] {
                let out = streamed(&scanner, &text, sizes);
                assert_eq!(
                    String::from_utf8_lossy(&out),
                    whole,
                    "{}",
                    String::from_utf8_lossy(&form)
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is known and however it is encoded, nothing of it is left.
    #[test]
    fn redacting_leaves_no_known_value_in_any_encoding(
        values in proptest::collection::vec("[ -~é]{8,40}", 1..4),
        filler in "[a-z \\n]{0,40}",
        order in proptest::collection::vec((0_usize..4, 0_usize..64), 1..8),
    ) {
        let names: Vec<&str> = values.iter().map(String::as_str).collect();
        let scanner = known(&names);
        let looked_for: Vec<Vec<u8>> = values.iter()
            .filter(|value| !scanner.passed_over().iter().any(|name| **name == *format!("K{}", values.iter().position(|v| v == *value).unwrap())))
            .flat_map(|value| forms_of(value)).collect();
        prop_assume!(!looked_for.is_empty());
        let mut text = Vec::new();
        for (_, which) in &order {
            text.extend(filler.as_bytes());
            text.extend(&looked_for[which % looked_for.len()]);
        }
        let text = String::from_utf8(text).unwrap();
        let (clean, _) = scanner.redact(&text).unwrap();
        for form in &looked_for {
            let form = String::from_utf8(form.clone()).unwrap();
            prop_assert!(!clean.contains(&form), "`{form}` is left of `{text}`: `{clean}`");
        }
    }

    /// A stream says what the whole says, wherever it is cut.
    #[test]
    fn a_stream_equals_the_whole(
        seed in any::<u64>(),
        sizes in proptest::collection::vec(1_usize..6000, 1..6),
        gaps in proptest::collection::vec(0_usize..9000, 1..8),
    ) {
        let cases = secrets(CORPUS, seed);
        let scanner = Scanner::new([KnownSecret::new("K", "tok/en+with=42&more~stuff")]);
        let mut dice = Dice::new(seed);
        let mut text = String::new();
        for gap in gaps {
            text.push_str(&"word \n".repeat(gap / 6));
            text.push_str(&dice.pick(&cases).unwrap().text);
            if dice.below(3) == 0 { text.push_str("tok/en+with=42&more~stuff"); }
        }
        let whole = scanner.redact(&text).map_or_else(|| text.clone(), |(clean, _)| clean);
        let out = streamed(&scanner, text.as_bytes(), &sizes);
        prop_assert_eq!(String::from_utf8_lossy(&out), whole);
    }
}
