use serde_json::{Value, json};

use super::parse;

fn value(text: &str) -> Value {
    let (node, findings) = parse(text);
    assert!(findings.is_empty(), "{findings:?}");
    node.unwrap().to_json()
}

fn code(text: &str) -> &'static str {
    let (_, findings) = parse(text);
    findings.first().map_or("none", |finding| finding.code)
}

#[test]
fn scalars_are_json_s_and_the_rest_is_text() {
    let yaml = "a: no\nb: 010\nc: 1\nd: -1.5e3\ne: true\nf: Yes\ng: ~\nh: '1'\ni: 0x1f\nj: .inf\nk: 1.2.3\nl:\nn: !!str 5\n";
    assert_eq!(
        value(yaml),
        json!({"a": "no", "b": "010", "c": 1, "d": -1500.0, "e": true, "f": "Yes", "g": null, "h": "1", "i": "0x1f",
               "j": ".inf", "k": "1.2.3", "l": null, "n": "5"})
    );
}

#[test]
fn places_are_lines_and_columns_from_one() {
    let (node, _) = parse("é: x\nlist:\n  - ümlaut: deep\n");
    let root = node.unwrap();
    let entry = root.get("list").and_then(|list| list.items()).unwrap()[0]
        .entry("ümlaut")
        .unwrap();
    let key = entry.key_place.unwrap();
    assert_eq!((key.line, key.column), (3, 5));
    let value = entry.value.place.unwrap();
    assert_eq!((value.line, value.column), (3, 13));
    assert_eq!(
        "é: x\nlist:\n  - ümlaut: deep\n".get(value.start..value.end),
        Some("deep")
    );
}

#[test]
fn anchors_aliases_and_merges_expand() {
    let yaml = "base: &b {x: 1, y: 2}\nuse: *b\nmerged: {<<: *b, y: 3}\n";
    assert_eq!(
        value(yaml),
        json!({"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 2}, "merged": {"y": 3, "x": 1}})
    );
}

#[test]
fn every_duplicate_key_is_reported_with_its_pointer() {
    let (node, findings) = parse("a: 1\na: 2\nb: {c: 1, c: 2}\n");
    let paths: Vec<&str> = findings.iter().map(|finding| finding.path.as_str()).collect();
    assert_eq!(paths, ["/a", "/b/c"]);
    assert_eq!(findings[0].line, Some(2));
    assert_eq!(node.unwrap().to_json(), json!({"a": 1, "b": {"c": 1}}));
}

#[test]
fn hostile_documents_end_in_one_clear_error() {
    assert_eq!(code(&"[".repeat(10_000)), "too-deep");
    assert_eq!(code(&"- ".repeat(10_000)), "too-deep");
    assert_eq!(code(&"{a: ".repeat(10_000)), "too-deep");
    let mut laughs = "l0: &l0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..12 {
        let inner = vec![format!("*l{}", level - 1); 9].join(", ");
        laughs.push_str(&format!("l{level}: &l{level} [{inner}]\n"));
    }
    assert_eq!(code(&laughs), "too-large");
    assert_eq!(code("a: &x [*x]\n"), "alias-cycle");
    assert_eq!(code("a: *nowhere\n"), "yaml-syntax");
    assert_eq!(code("a: [1, 2\nb: 3\n"), "yaml-syntax");
    assert_eq!(code("a: 1\n---\nb: 2\n"), "several-documents");
    assert_eq!(code("a: !ruby/object {}\n"), "none"); // tags on collections are ignored, nothing is built from them
    assert_eq!(code("a: !secret x\n"), "yaml-tag");
    assert_eq!(code("? [a]\n: b\n"), "key-not-text");
}

#[test]
fn an_empty_document_is_null() {
    assert_eq!(value(""), Value::Null);
    assert_eq!(value("# nothing\n"), Value::Null);
}

/// Mistakes, each with a word of the message, a word of the cure, and the line that a person must change.
#[test]
fn syntax_errors_say_what_a_person_wrote_and_how_to_mend_it() {
    let cases = [
        ("a:\n\tb: 1\n", "tab", "spaces", 2),
        ("a:\n  b: x\n\t\tc: y\n", "tab", "spaces", 3),
        ("a:\n  - b: 1\n\t  c: 2\n", "tab", "spaces", 3),
        (
            "a:\n  b:\n    c: |\n      x\n   d: 1\n",
            "`d` is indented by 3 spaces",
            "same column",
            5,
        ),
        ("a: one: two\n", "the value of `a` has a colon", "quotes", 1),
        ("- a: one: two\n", "the value of `a` has a colon", "quotes", 1),
        ("a: note: see b:\n", "the value of `a` has a colon", "quotes", 1),
        (
            "a: x\n  b: y\n",
            "`b` is indented by 2 spaces, deeper than `a`",
            "same column",
            2,
        ),
        (
            "- a:\n    b: x\n     c: y\n",
            "`c` is indented by 5 spaces, deeper than `b`",
            "same column",
            3,
        ),
        ("a: \"one\nb: 2\n", "no closing \"", "at its end", 1),
        ("a: 'one\nb: 2\n", "no closing '", "at its end", 1),
        ("a: 'It's one'\n", "ends at its second '", "twice", 1),
        ("a: \"say \"x\" now\"\n", "ends at its second \"", "\\\"", 1),
        ("a: @x\n", "can't begin with `@`", "quotes", 1),
        ("a: `x`\n", "can't begin with ``", "quotes", 1),
        ("a: %x\n", "can't begin with `%`", "quotes", 1),
        ("a: *x\n", "can't begin with `*`", "quotes", 1),
        ("- *x\n", "can't begin with `*`", "quotes", 1),
        ("a: [x, y\nb: 1\n", "`[` has no closing `]`", "`]`", 1),
        ("a: {x: y\nb: 1\n", "`{` has no closing `}`", "`}`", 1),
        ("a: 1\nb\nc: 2\n", "`b` is neither", "colon", 2),
        ("a: 1\nb:x\nc: 2\n", "a blank is missing after `b:`", "`b: …`", 2),
    ];
    for (text, word, cure, line) in cases {
        let (node, findings) = parse(text);
        assert!(node.is_none(), "{text:?} is YAML");
        let found = &findings[0];
        let help = found.help.as_deref().unwrap_or_default();
        assert_eq!(found.code, "yaml-syntax", "{text:?}");
        assert!(found.message.contains(word), "{text:?}: {}", found.message);
        assert!(help.contains(cure), "{text:?}: {help}");
        assert_eq!(found.line, Some(line), "{text:?}: {}", found.message);
        for parsers in [
            "context",
            "scalar",
            "mapping",
            "did not find",
            "at char",
            "indicator",
        ] {
            let said = format!("{} {help}", found.message);
            assert!(
                !said.contains(parsers),
                "{text:?} says the parser's word {parsers:?}: {said}"
            );
        }
    }
}

#[test]
fn a_line_with_a_key_in_it_is_not_shown() {
    for text in [
        "a: sk-proj-0123456789abcdef: x\n",
        "a: 1\nsk-proj-0123456789abcdef\nb: 2\n",
    ] {
        let (_, findings) = parse(text);
        assert_eq!(findings[0].span, None, "{text:?}");
        assert!(!format!("{findings:?}").contains("0123"), "{findings:?}");
    }
}
