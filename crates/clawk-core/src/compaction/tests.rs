use super::*;

fn turns(count: usize, bytes: usize) -> Vec<ModelMessage> {
    let turn = |n: usize| {
        [
            ModelMessage::User {
                text: format!("{n} {}", "u".repeat(bytes)),
                images: Vec::new(),
                frame: String::new(),
                author: TextAuthor::from_runtime(),
            },
            ModelMessage::Assistant {
                text: "yes".to_owned(),
                calls: Vec::new(),
                state: None,
            },
        ]
    };
    (0..count).flat_map(turn).collect()
}

fn size(messages: &[ModelMessage]) -> usize {
    messages.iter().map(|message| canonical(message).len()).sum()
}

#[test]
fn beyond_four_fifths_whole_turns_leave_until_half_is_free() {
    let history = turns(20, 500);
    let all = size(&history);
    for strategy in [CompactionStrategy::Summarize, CompactionStrategy::Truncate] {
        assert_eq!(
            plan_compaction(&history, all * 5 / 4 + 5, strategy),
            None,
            "exactly four fifths"
        );
        let share = all * 6 / 5;
        let found = plan_compaction(&history, share, strategy).unwrap();
        let (old, rest) = history.split_at(found.messages);
        assert!(matches!(rest[0], ModelMessage::User { .. }) && !old.is_empty());
        assert!(size(rest) + found.summary_bytes <= share / 2);
        let one_turn = all / 20;
        assert!(
            size(rest) + found.summary_bytes + one_turn > share / 2,
            "no more than needed"
        );
    }
    // One turn that is larger than everything leaves whole.
    assert_eq!(
        plan_compaction(&turns(1, 5000), 1000, CompactionStrategy::Truncate)
            .unwrap()
            .messages,
        2
    );
}

#[test]
fn a_summary_lists_what_it_replaces_an_earlier_summary_too() {
    let mut old = summary_messages("they spoke of a dog");
    old.extend(turns(1, 3));
    assert_eq!(
        replaced_digests(&old),
        [digest(b"they spoke of a dog"), digest(b"0 uuu")]
    );
    let told = conversation_text(&old, 10_000);
    assert_eq!(told, "agent: they spoke of a dog\nperson: 0 uuu\nagent: yes\n");
}

#[test]
fn texts_are_bounded() {
    let history = turns(100, 9000);
    let text = conversation_text(&history, 20_000);
    assert!(
        text.len() <= 20_100 && text.contains("earlier messages are too long"),
        "{}",
        text.len()
    );
    assert!(extract_summary(&history, 1000).len() <= 1000);
    assert_eq!(clip_text("äöü", 6), "äöü");
    assert!(clip_text(&"ä".repeat(100), 21).len() <= 21);
}
