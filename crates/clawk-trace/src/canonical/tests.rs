use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[test]
fn payloads_with_disputed_numbers_are_refused() {
    for bad in [
        "{\"a\":1.5}",
        "{\"a\":[1e3]}",
        "{\"a\":9007199254740993}",
        "{\"a\":-9007199254740993}",
        "{\"a\":-0}",
    ] {
        assert!(
            matches!(payload_text(bad), Err(CanonicalError::Number(_))),
            "{bad}"
        );
        assert!(!is_payload(bad), "{bad}");
    }
    assert!(matches!(
        payload_of(&json!({ "cost": 0.1 })),
        Err(CanonicalError::Number(_))
    ));
    assert_eq!(
        payload_of(&json!({"b": 9_007_199_254_740_992_u64, "a": -3}))
            .unwrap()
            .get(),
        "{\"a\":-3,\"b\":9007199254740992}"
    );
}

#[test]
fn duplicates_depth_and_lone_surrogates_are_refused() {
    assert!(
        matches!(transcode_json(Profile::Jcs, "{\"a\":1,\"\\u0061\":2}"), Err(CanonicalError::DuplicateKey(k)) if k == "a")
    );
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert!(transcode_json(Profile::Jcs, &deep).is_err());
    assert!(scan_canonical(&deep).is_none());
    assert!(matches!(
        transcode_json(Profile::Jcs, "\"\\ud800\""),
        Err(CanonicalError::Json(_))
    ));
    assert!(transcode_json(Profile::AppendixB, "{\"a\":1e999}").is_err());
}

#[test]
fn each_profile_has_its_own_number_text() {
    let cases = [
        ("1.0", "1", "1.0", "1.0"),
        ("1e16", "10000000000000000", "1e+16", "1e+16"),
        (
            "1e15",
            "1000000000000000",
            "1000000000000000.0",
            "1000000000000000.0",
        ),
        ("1e-5", "0.00001", "1e-05", "0.00001"),
        ("1.5e-7", "1.5e-7", "1.5e-07", "1.5e-7"),
        ("0.0001", "0.0001", "0.0001", "0.0001"),
        ("-0.0", "0", "-0.0", "-0.0"),
        ("123456.789", "123456.789", "123456.789", "123456.789"),
        (
            "18446744073709551616",
            "18446744073709552000",
            "18446744073709551616",
            "1.8446744073709552e+19",
        ),
    ];
    for (literal, jcs, appendix_b, cra_core) in cases {
        assert_eq!(
            transcode_json(Profile::Jcs, literal).unwrap(),
            jcs,
            "jcs of {literal}"
        );
        assert_eq!(
            transcode_json(Profile::AppendixB, literal).unwrap(),
            appendix_b,
            "appendix-b of {literal}"
        );
        assert_eq!(
            transcode_json(Profile::CraCore, literal).unwrap(),
            cra_core,
            "cra-core of {literal}"
        );
    }
}

#[test]
fn the_scan_admits_only_canonical_text() {
    for good in [
        "{}",
        "{\"a\":[1,-2,null,true,\"x\\n\\u001f\"],\"b\":{}}",
        "0",
        "\"ü\"",
    ] {
        assert!(scan_canonical(good).is_some(), "{good}");
    }
    let bad = [
        "{ }",
        "{\"b\":1,\"a\":2}",
        "{\"a\":1,\"a\":2}",
        "01",
        "-0",
        "-",
        "",
        "1.5",
        "1e2",
        "\"\\u0041\"",
        "\"\\u001F\"",
        "\"\\u000a\"",
        "\"\\/\"",
        "[1,]",
        "{\"a\"}",
        "{\"a\":1}x",
        "\"a\nb\"",
        "nul",
        "9007199254740993",
        "{\"a\":}",
    ];
    for bad in bad {
        assert!(scan_canonical(bad).is_none(), "{bad}");
    }
    assert_eq!(
        scan_canonical("\"\u{7f}\""),
        Some(CanonicalPlainness::JcsOnly),
        "DEL differs between readings"
    );
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-(1i64 << 53)..=(1i64 << 53)).prop_map(Value::from),
        ".{0,12}".prop_map(Value::String),
        any::<char>().prop_map(|c| Value::String(c.to_string())),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn keys_in_order(text: &str) {
    fn look(value: &serde_json::value::RawValue) {
        let text = value.get();
        if text.starts_with('[') {
            let items: Vec<&serde_json::value::RawValue> = serde_json::from_str(text).unwrap();
            items.into_iter().for_each(look);
        } else if text.starts_with('{') {
            let members = super::transcode::members_of(text);
            let keys: Vec<Vec<u16>> = members.iter().map(|(k, _)| k.encode_utf16().collect()).collect();
            assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{text}");
            members
                .iter()
                .for_each(|(_, inner)| look(serde_json::from_str(inner).unwrap()));
        }
    }
    look(serde_json::from_str(text).unwrap());
}

proptest! {
    #[test]
    fn canonical_text_is_a_fixed_point_with_keys_in_order(value in any_json()) {
        for profile in [Profile::Jcs, Profile::AppendixB] {
            let once = transcode_json(profile, &value.to_string()).unwrap();
            prop_assert_eq!(&transcode_json(profile, &once).unwrap(), &once);
            prop_assert_eq!(serde_json::from_str::<Value>(&once).unwrap(), value.clone());
        }
        let jcs = text_of(&value).unwrap();
        keys_in_order(&jcs);
        prop_assert_eq!(&jcs, &serde_json_canonicalizer::to_string(&value).unwrap());
        if scan_canonical(&jcs) == Some(CanonicalPlainness::Everywhere) {
            for profile in Profile::ALL {
                prop_assert_eq!(&transcode_json(profile, &jcs).unwrap(), &jcs);
            }
        }
    }

    #[test]
    fn what_the_scan_admits_is_its_own_canonical_text(text in "[\\[\\]{}\":,0-9a-c\\\\u \u{7f}ü🦀-]{0,24}") {
        if scan_canonical(&text).is_some() {
            prop_assert_eq!(transcode_json(Profile::Jcs, &text).unwrap(), text);
        }
    }

    #[test]
    fn doubles_read_back(value in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
        for profile in Profile::ALL {
            let text = transcode_json(profile, &format!("{value:e}")).unwrap();
            prop_assert_eq!(text.parse::<f64>().unwrap(), value, "{}", text);
        }
    }
}
