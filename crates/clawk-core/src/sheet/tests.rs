//! The text of a question against what runs: from the whole text every argument can be read back.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{CallPreview, ExecutorPreview, PreviewDisplay, PreviewLine, PreviewReceipt, visible_text};

fn sheet(arguments: Value) -> CallPreview {
    let Value::Object(arguments) = arguments else {
        panic!("an object")
    };
    CallPreview::of(&arguments, ExecutorPreview::default(), Vec::new())
}

/// What [`visible`] made visible, as it was. Knows nothing of how it was made.
fn unseen(shown: &str) -> String {
    let mut out = String::new();
    let mut rest = shown;
    while let Some((before, behind)) = rest.split_once('⟨') {
        out.push_str(&before.replace('⇥', "\t"));
        let (mark, after) = behind.split_once('⟩').unwrap();
        match mark.strip_prefix("U+") {
            Some(hex) => out.push(char::from_u32(u32::from_str_radix(hex, 16).unwrap()).unwrap()),
            None => {
                let (count, name) = mark.split_once(' ').unwrap();
                let blank = match name.trim_end_matches('s') {
                    "space" => " ",
                    "tab" => "\t",
                    "empty line" => "\n",
                    other => panic!("{other}"),
                };
                out.push_str(&blank.repeat(count.parse().unwrap()));
            }
        }
        rest = after;
    }
    out + &rest.replace('⇥', "\t")
}

/// Reads values back from the lines of a whole text.
struct Reader<'a> {
    lines: std::iter::Peekable<std::str::Split<'a, char>>,
}

impl Reader<'_> {
    fn members(&mut self, depth: usize, most: usize) -> Vec<(String, Value)> {
        let indent = "  ".repeat(depth);
        let mut found = Vec::new();
        while found.len() < most {
            let Some(line) = self.lines.next_if(|line| line.starts_with(&indent)) else {
                break;
            };
            let line = line.get(indent.len()..).unwrap();
            let (name, value) = match line.strip_prefix('"') {
                Some(quoted) => {
                    let (name, value) = quoted.split_once("\": ").unwrap();
                    (unseen(name), value)
                }
                None => {
                    let (name, value) = line.split_once(": ").unwrap();
                    (name.to_owned(), value)
                }
            };
            found.push((name, self.value(depth, value)));
        }
        found
    }

    fn value(&mut self, depth: usize, text: &str) -> Value {
        if let Some(text) = text.strip_prefix('"') {
            return unseen(text.strip_suffix('"').unwrap()).into();
        }
        let (count, what) = text.split_once(' ').unwrap_or((text, ""));
        let Ok(count) = count.parse::<usize>() else {
            return serde_json::from_str(text).unwrap();
        };
        match what {
            "" => serde_json::from_str(text).unwrap(),
            "members" => Value::Object(self.members(depth + 1, count).into_iter().collect()),
            "items" => {
                let items = self.members(depth + 1, count).into_iter();
                items.map(|(_, item)| item).collect::<Vec<_>>().into()
            }
            lines => {
                let mark = "  ".repeat(depth) + "  | ";
                let mut all = String::new();
                let mut read = 0;
                while read < count {
                    let line = self.lines.next().unwrap().get(mark.len()..).unwrap();
                    let text = unseen(line);
                    let empty = line
                        .strip_prefix('⟨')
                        .and_then(|mark| mark.strip_suffix(" empty lines⟩"));
                    if empty.is_some_and(|count| count.parse::<usize>().is_ok()) {
                        read += text.len();
                        all.push_str(&text);
                    } else {
                        read += 1;
                        all.push_str(&text);
                        all.push('\n');
                    }
                }
                if lines.ends_with("no line end at the end") {
                    all.pop();
                }
                all.into()
            }
        }
    }
}

fn read_back(whole: &str) -> Map<String, Value> {
    let mut reader = Reader {
        lines: whole.split('\n').peekable(),
    };
    if whole.is_empty() {
        return Map::new();
    }
    let found = reader.members(0, usize::MAX);
    assert_eq!(reader.lines.next(), None);
    found.into_iter().collect()
}

/// Characters that hide, steer or fake, among plain ones.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-z \"':|]{0,12}",
        1 => Just("\n".to_owned()),
        1 => (1_usize..12).prop_map(|n| "\n".repeat(n)),
        1 => (1_usize..80).prop_map(|n| " ".repeat(n)),
        1 => (1_usize..30).prop_map(|n| "\t".repeat(n)),
        1 => (1_usize..2000).prop_map(|n| "x".repeat(n)),
        1 => proptest::sample::select(vec![
            "\u{1b}[2J", "\r", "\u{0}", "\u{9b}", "\u{202e}", "\u{200b}", "\u{2060}", "\u{feff}", "\u{e0041}", "\u{ad}",
            "\u{3164}", "\u{2028}", "\u{a0}", "\u{3000}", "\u{fe0f}", "\u{2800}", "⟨U+200B⟩", "⟨3 empty lines⟩", "⇥",
            "  | ", "2 members", "\"", "{", "[1]", "…",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        6 => text().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((text(), inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing of a call's arguments is absent from the whole text, and nothing in it can hide or steer.
    #[test]
    fn every_argument_can_be_read_back(arguments in proptest::collection::vec((text(), value()), 0..4)) {
        let arguments: Map<String, Value> = arguments.into_iter().collect();
        let whole = CallPreview::of(&arguments, ExecutorPreview::default(), Vec::new()).whole();
        prop_assert_eq!(read_back(&whole), arguments, "{}", whole);
        for c in whole.chars().filter(|c| *c != '\n') {
            prop_assert!(c == ' ' || visible_text(&c.to_string()) == c.to_string() || "⟨⇥".contains(c), "{:?}", c);
        }
    }

    /// What the short text does not have is counted, and a yes to it needs the whole.
    #[test]
    fn a_short_text_without_hidden_bytes_is_whole(arguments in proptest::collection::vec((text(), value()), 0..4)) {
        let arguments: Map<String, Value> = arguments.into_iter().collect();
        let sheet = CallPreview::of(&arguments, ExecutorPreview::default(), Vec::new());
        prop_assert_eq!(sheet.is_folded(), sheet.short().join("\n") != sheet.whole());
        prop_assert_eq!(sheet.admits(&PreviewReceipt::Short), !sheet.is_folded());
        prop_assert!(sheet.admits(&PreviewReceipt::Whole(vec![sheet.digest()])));
        prop_assert!(sheet.short().len() <= 120);
        let again: CallPreview = serde_json::from_str(&serde_json::to_string(&sheet).unwrap()).unwrap();
        prop_assert_eq!(again, sheet);
    }

    /// A text that an executor says it shows, and does not, is shown all the same.
    #[test]
    fn no_executor_can_leave_an_argument_out(text in text(), other in text()) {
        let arguments: Map<String, Value> = [("t".to_owned(), text.clone().into())].into_iter().collect();
        let mut lines = vec![PreviewLine::fact("head")];
        lines.extend(PreviewLine::all("+ ", &other));
        let own = CallPreview::from(lines.clone()).whole();
        let whole = CallPreview::of(&arguments, ExecutorPreview { lines, covers: &["t"] }, Vec::new()).whole();
        if whole == own {
            for line in text.split('\n') {
                prop_assert!(own.contains(&visible_text(line)), "{:?} in {}", text, own);
            }
        } else {
            prop_assert_eq!(read_back(whole.get(own.len() + 1..).unwrap()), arguments);
        }
    }
}

#[test]
fn every_default_ignorable_character_is_made_visible() {
    let ignorable =
        icu_properties::CodePointSetData::new::<icu_properties::props::DefaultIgnorableCodePoint>();
    let mut count = 0;
    for c in (0..=0x0010_ffff).filter_map(char::from_u32) {
        let shown = visible_text(&c.to_string());
        if ignorable.contains(c) || c.is_control() && c != '\t' {
            count += 1;
            assert_eq!(shown, format!("⟨U+{:04X}⟩", u32::from(c)));
        }
        if c.is_alphanumeric() && shown != c.to_string() {
            assert!(ignorable.contains(c), "{c:?} is hidden for nothing");
        }
    }
    assert!(count > 4000, "{count}");
}

#[test]
fn long_lines_and_long_values_show_head_and_tail_and_how_much_is_hidden() {
    let line = format!("echo {}; rm -rf /", "a".repeat(1000));
    let short = sheet(json!({"command": line})).short();
    assert_eq!(short.len(), 1);
    assert!(short[0].starts_with("command: \"echo aaa"), "{short:?}");
    assert!(short[0].ends_with("; rm -rf /\""), "{short:?}");
    assert!(short[0].contains("⟨… 666 bytes hidden …⟩"), "{short:?}");
    let many: String = (0..100).map(|n| format!("line {n}\n")).collect();
    let long = sheet(json!({"stdin": many, "then": 1}));
    let short = long.short();
    assert_eq!(short.len(), 39);
    assert_eq!(short[0], "stdin: 100 lines, 790 bytes");
    assert_eq!(short[1], "  | line 0");
    assert!(short[25].starts_with("⟨… 64 lines, "), "{short:?}");
    assert_eq!(short[37], "  | line 99");
    assert_eq!(short[38], "then: 1");
    assert!(long.is_folded() && long.whole().contains("  | line 50\n"));
    // However many values there are.
    let names: Map<String, Value> = (0..1000).map(|n| (format!("n{n:04}"), n.into())).collect();
    let short = sheet(Value::Object(names)).short();
    assert_eq!((short.len(), short[110].as_str()), (111, "n0999: 999"));
}

#[test]
fn lines_that_stay_as_they_are_are_no_secret() {
    let same = |n: usize| (0..n).map(|n| PreviewLine::same("  ", &format!("same {n}")));
    let lines: Vec<PreviewLine> = same(20)
        .chain([PreviewLine::value("+ ", "new")])
        .chain(same(20))
        .collect();
    let sheet = CallPreview::from(lines);
    assert_eq!(
        sheet.short(),
        [
            "⟨17 lines stay as they are⟩",
            "  same 17",
            "  same 18",
            "  same 19",
            "+ new",
            "  same 0",
            "  same 1",
            "  same 2",
            "⟨17 lines stay as they are⟩"
        ]
    );
    assert!(!sheet.is_folded());
    assert_eq!(sheet.whole().lines().count(), 41);
}

#[test]
fn a_surface_without_room_sends_a_file_or_says_where() {
    let long = sheet(json!({"text": "x".repeat(5000)}));
    assert_eq!(long.offer(10_000, false, ""), PreviewDisplay::Whole(long.whole()));
    let file = PreviewDisplay::File {
        short: long.short().join("\n"),
        whole: long.whole(),
    };
    assert_eq!(long.offer(1000, true, ""), file);
    for (limit, files) in [(1000, false), (100, true)] {
        let offer = long.offer(limit, files, "clawk approve 7");
        assert!(
            matches!(&offer, PreviewDisplay::Elsewhere(why) if why.contains("`clawk approve 7`")),
            "{offer:?}"
        );
    }
}
