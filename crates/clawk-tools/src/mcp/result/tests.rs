use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use serde_json::{Value, json};

use super::outcome_from_result;

const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn read(result: &Value) -> (String, bool, usize) {
    let ran = outcome_from_result(result, 1_000, ObtainedEnforcement::for_remote("test"));
    let texts: Vec<String> = ran.content.iter().map(ContentBlock::as_model_text).collect();
    let pictures = ran
        .content
        .iter()
        .filter(|block| matches!(block, ContentBlock::Image { .. }));
    (texts.join("\n"), ran.is_error, pictures.count())
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
fn every_part_is_read_or_noted() {
    let word = json!({"type": "text", "text": "word"});
    let shapes = [
        (json!({"content": [word]}), "word"),
        (json!({"content": "word"}), "word"),
        (json!({"content": word}), "word"),
        (json!({"content": [{"text": "word"}]}), "word"),
        (json!({"content": ["word", null, 7, {}]}), "word\n7\n"),
        (json!({"content": [{"type": "text", "text": null}, word]}), "word"),
        (
            json!({"content": [{"type": "text", "text": {"a": 1}}]}),
            "{\"a\":1}",
        ),
        (
            json!({"content": [{"type": "hologram", "x": 1}, word]}),
            "`hologram`, which clawk does not know",
        ),
        (
            json!({"content": [{"type": "hologram", "x": "y".repeat(5_000)}, word]}),
            "does not know, 5026 bytes]\nword",
        ),
        (json!({"content": [{"type": "\u{202e}x"}]}), "`⟨U+202E⟩x`"),
        (
            json!({"content": [{"type": "image", "data": "no picture", "mimeType": "image/png"}, word]}),
            "is left out",
        ),
        (
            json!({"content": [{"type": "image", "mimeType": "image/png"}, word]}),
            "word",
        ),
        (
            json!({"content": [{"type": "image", "data": PNG, "mimeType": "image/tiff"}]}),
            "[image image/png",
        ),
        (
            json!({"content": [{"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}]}),
            "[audio audio/wav",
        ),
        (
            json!({"content": [{"type": "resource", "resource": {"uri": "a://b", "text": "word"}}]}),
            "word",
        ),
        (
            json!({"content": [{"type": "resource", "uri": "a://b", "text": "word"}]}),
            "word",
        ),
        (
            json!({"content": [{"type": "resource", "resource": null}]}),
            "[resource without uri]",
        ),
        (
            json!({"content": [{"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/plain", "blob": "dGhlIHdvcmQ="}}]}),
            "[resource a://b]\nthe word",
        ),
        (
            json!({"content": [{"type": "resource", "resource": {"uri": "a://b", "mimeType": "application/zip", "blob": "UEsDBAA="}}]}),
            "8 bytes as base64]",
        ),
        (
            json!({"content": [{"type": "resource_link", "uri": "a://word", "name": 7}]}),
            "a://word",
        ),
        (json!({"structuredContent": {"a": "word"}}), "{\"a\":\"word\"}"),
        (json!({"content": [], "structuredContent": [1, 2]}), "[1,2]"),
        (
            json!({"content": [{"type": "text", "text": "ok"}], "structuredContent": {"a": "word"}}),
            "ok\n{\"a\":\"word\"}",
        ),
        (
            json!({"content": [{"type": "text", "text": "{\"a\": 1}"}], "structuredContent": {"a": 1}}),
            "{\"a\": 1}",
        ),
        (json!({"toolResult": "word"}), "word"),
        (json!({"toolResult": {"content": 1}}), "{\"content\":1}"),
        (json!({}), "answered with nothing"),
        (Value::Null, "answered with nothing"),
        (json!({"content": null}), "answered with nothing"),
        (json!("word"), "word"),
        (json!([1, 2]), "[1,2]"),
    ];
    for (result, want) in shapes {
        let (text, is_error, _) = read(&result);
        assert!(
            text.contains(want),
            "{want}: {}",
            text.chars().take(200).collect::<String>()
        );
        assert!(!is_error && !text.contains(PNG), "{result}");
    }
}

#[test]
fn structure_that_the_text_says_too_is_not_said_twice() {
    for (text, structured) in [
        ("[DIR] a\n[FILE] b", json!({"content": "[DIR] a\n[FILE] b"})),
        (
            "{\"rows\": [1, 2], \"more\": false}",
            json!({"rows": [1, 2], "more": false}),
        ),
        (
            "It is 21 degrees in Rome",
            json!({"place": "Rome", "degrees": 21}),
        ),
        ("{\"a\": \"x\\ny\"}", json!({"a": "x\ny"})),
    ] {
        let result = json!({"content": [{"type": "text", "text": text}], "structuredContent": structured});
        assert_eq!(read(&result).0, text);
    }
    let result =
        json!({"content": [{"type": "text", "text": "2 rows"}], "structuredContent": {"rows": [17, 18]}});
    assert_eq!(read(&result).0, "2 rows\n{\"rows\":[17,18]}");
}

#[test]
fn an_error_is_what_the_server_calls_one() {
    for (flag, want) in [
        (json!(true), true),
        (json!("true"), true),
        (json!(1), true),
        (json!(false), false),
        (json!("false"), false),
        (json!("no"), false),
        (json!(0), false),
        (Value::Null, false),
        (json!({}), false),
        (json!([true]), false),
    ] {
        let result = json!({"content": [{"type": "text", "text": "x"}], "isError": flag});
        assert_eq!(read(&result).1, want, "{flag}");
    }
}

#[test]
fn a_long_result_is_shown_in_part_and_stays_done() {
    let result =
        json!({"content": [{"type": "text", "text": "x".repeat(1_500)}, {"type": "text", "text": "behind"}]});
    let (text, is_error, _) = read(&result);
    assert!(!is_error && text.len() < 1_200, "{}", text.len());
    assert!(
        text.contains("506 bytes above the limit of 1000 (`max_output_bytes`)"),
        "{text}"
    );
    let result = json!({"structuredContent": {"a": "x".repeat(1_500)}});
    let ran = outcome_from_result(&result, 1_000, ObtainedEnforcement::for_remote("test"));
    assert_eq!(ran.structured, Some(json!({"truncated": true})));
    assert!(!ran.is_error);
}

#[test]
fn pictures_are_bounded_and_told_by_their_bytes() {
    let picture =
        json!({"type": "image", "data": format!("data:image/png;base64,{PNG}"), "mimeType": "image/jpeg"});
    let result = json!({"content": vec![picture; 12]});
    let (text, _, pictures) = read(&result);
    assert_eq!(pictures, 8);
    assert!(text.contains("too many pictures"), "{text}");
    let blob = json!({"content": [{"type": "resource", "resource": {"uri": "a://b", "mimeType": "image/png", "blob": PNG}}]});
    assert_eq!(read(&blob).2, 1);
}
