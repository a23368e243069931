//! What a request is read as. The dialect as its clients see it: `tests/real/clients.rs` of the binary.

use serde_json::{Value, json};

use clawk_kernel::EarlierMessage;
use clawk_kernel::ports::ToolOffer;

use super::asked::{self, OpenAiContent, split_prompt};

fn said(role: &'static str, text: &str) -> EarlierMessage {
    EarlierMessage {
        role,
        text: text.to_owned(),
        calls: Vec::new(),
        answers: None,
    }
}

#[test]
fn the_last_message_is_said_and_the_others_were_said_before() {
    let all = vec![
        said("system", "be kind"),
        said("user", "one"),
        said("assistant", ""),
        said("user", "two"),
    ];
    let asked = split_prompt(all, Vec::new(), "messages").unwrap();
    assert_eq!(asked.text, "two");
    assert_eq!(
        asked.earlier,
        vec![said("system", "be kind"), said("user", "one")]
    );
    for wrong in [vec![], vec![said("assistant", "mine")], vec![said("user", " ")]] {
        assert!(split_prompt(wrong, Vec::new(), "messages").is_err());
    }
    let answered = EarlierMessage {
        answers: Some("call_1".into()),
        ..said("tool", "4")
    };
    let asked = split_prompt(
        vec![said("user", "2+2"), answered.clone()],
        Vec::new(),
        "messages",
    )
    .unwrap();
    assert_eq!((asked.text.as_str(), asked.earlier.len()), ("", 2));
    assert_eq!(asked.earlier[1], answered);
}

#[test]
fn parts_that_are_no_text_become_notes() {
    let parts = json!([
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "data:text/plain;base64,AAAA", "filename": "a.txt"}},
    ]);
    let content: OpenAiContent = serde_json::from_value(parts).unwrap();
    let text = content.to_text("messages").unwrap();
    for expected in [
        "look",
        "image/png, 3 bytes",
        "https://example.com/a.png",
        "audio/wav",
        "`a.txt`, text/plain",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let unknown: OpenAiContent = serde_json::from_value(json!([{"type": "hologram"}])).unwrap();
    assert!(unknown.to_text("messages").is_err());
}

#[test]
fn pictures_of_the_last_message_are_shown_and_not_described() {
    let said_now = |parts: Value| {
        let content: OpenAiContent = serde_json::from_value(parts).unwrap();
        let asked = split_prompt(vec![said("user", "x")], Vec::new(), "messages").unwrap();
        asked.with_pictures(Some(&content), "messages")
    };
    let png = "data:image/png;base64,iVBORw0KGgo=";
    let asked = said_now(json!([
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": png}},
        {"type": "input_image", "image_url": png},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]));
    let asked = asked.unwrap();
    assert_eq!(asked.images.len(), 2);
    assert!(
        asked
            .text
            .starts_with("look\n\n[image at https://example.com/a.png;"),
        "{}",
        asked.text
    );
    let lying = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]);
    assert!(said_now(lying).is_err(), "it is not a PNG");
}

#[test]
fn tools_have_names_of_their_own_and_no_call_can_be_forced() {
    let tool = |name: &str, parameters: Value| ToolOffer {
        name: name.to_owned(),
        description: String::new(),
        input_schema: parameters,
    };
    let object = || json!({"type": "object"});
    assert!(asked::tools_of(vec![tool("a", object()), tool("b-2_c", object())]).is_ok());
    for wrong in [
        vec![tool("a", object()), tool("a", object())],
        vec![tool("", object())],
        vec![tool("a b", object())],
        vec![tool("a", json!("object"))],
    ] {
        assert!(asked::tools_of(wrong).is_err());
    }
    assert!(asked::allows_tool_use(None).unwrap() && asked::allows_tool_use(Some(&json!("auto"))).unwrap());
    assert!(!asked::allows_tool_use(Some(&json!("none"))).unwrap());
    assert!(asked::allows_tool_use(Some(&json!("required"))).is_err());
}
