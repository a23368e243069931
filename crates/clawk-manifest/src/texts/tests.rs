use super::{cron, glob, host, json_schema, regex, secret_ref, url};
use crate::tree::Node;

#[test]
fn cron_expressions() {
    for good in [
        "0 */6 * * *",
        "*/5 * * * *",
        "0 9-17/2 1,15 jan-mar MON-fri",
        "59 23 31 12 7",
        "0,30 0 * * 0",
    ] {
        assert_eq!(cron(good), Ok(()), "{good}");
    }
    for bad in [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "5-1 * * * *",
        "*/0 * * * *",
        "a * * * *",
        "1- * * * *",
        "-1 * * * *",
        "@daily",
        "+1 * * * *",
    ] {
        assert!(cron(bad).is_err(), "{bad}");
    }
}

#[test]
fn urls_and_hosts() {
    for good in [
        "https://api.example.com/v1",
        "http://localhost:11434/v1",
        "http://[::1]:80/x",
        "https://h",
    ] {
        assert_eq!(url(good), Ok(()), "{good}");
    }
    for bad in [
        "",
        "ftp://x",
        "https://",
        "https:///v1",
        "http://a b",
        "https://u:p@h/",
        "http://h:0/",
        "http://h:99999",
    ] {
        assert!(url(bad).is_err(), "{bad}");
    }
    for good in [
        "api.example.com",
        "*.googleapis.com",
        "*",
        "127.0.0.1",
        "::1",
        "localhost:8080",
    ] {
        assert_eq!(host(good), Ok(()), "{good}");
    }
    for bad in ["", "https://x", "a/b", "a.*.b", "*x.com", "a..b", "a b", "h:p"] {
        assert!(host(bad).is_err(), "{bad}");
    }
}

#[test]
fn patterns_and_secret_names() {
    assert_eq!(regex(r"\|\s*bash"), Ok(()));
    assert!(regex("(").unwrap_err().contains("unclosed group"));
    assert!(regex(r"\w{1000}{1000}").is_err());
    assert!(glob("mcp-*").is_ok() && glob("[").is_err() && glob("").is_err());
    assert!(secret_ref("LLM_API_KEY").is_ok());
    for bad in ["", "../etc/passwd", "a b", ".hidden", "a/b"] {
        assert!(secret_ref(bad).is_err(), "{bad}");
    }
    let pasted = secret_ref("sk-live-0123456789").unwrap_err();
    assert!(
        pasted.contains("the secret itself") && !pasted.contains("sk-live"),
        "{pasted}"
    );
    assert!(!secret_ref("sk-very secret").unwrap_err().contains("very"));
}

#[test]
fn json_schemas_are_checked_to_the_leaves() {
    let schema = serde_json::json!({"type": "object", "required": "x", "properties": {
        "a": {"type": "strnig"}, "b": 5, "c": {"items": {"enum": 1}}, "ok": {"type": ["string", "null"]}, "any": true}});
    let node = Node::from_json(&schema).unwrap();
    let mut out = Vec::new();
    json_schema(&node, "/s", &mut out);
    let mut paths: Vec<&str> = out.iter().map(|(path, _, _)| path.as_str()).collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        [
            "/s/properties/a/type",
            "/s/properties/b",
            "/s/properties/c/items/enum",
            "/s/required"
        ]
    );
}
