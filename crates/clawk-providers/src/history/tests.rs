use clawk_core::ports::{InferRequest, ModelMessage, ProviderState, ToolUse};
use proptest::prelude::*;

use super::{HistoryEntry, HistoryRules, build_history};
use crate::call_ids::IdRule;
use crate::state::StateOwner;

const OWNER: StateOwner<'_> = StateOwner {
    provider: "main",
    host: "h",
    model: "m",
};

fn rules(alternates: bool) -> HistoryRules {
    HistoryRules {
        ids: IdRule::Chat,
        alternates,
        user_first: false,
    }
}

fn user(text: &str) -> ModelMessage {
    ModelMessage::User {
        text: text.to_owned(),
        images: Vec::new(),
        frame: String::new(),
        author: clawk_core::author::TextAuthor::from_runtime(),
    }
}

fn agent(text: &str, ids: &[&str]) -> ModelMessage {
    let call = |id: &&str| ToolUse {
        id: (*id).to_owned(),
        name: "t".to_owned(),
        arguments: Ok(serde_json::Map::new()),
    };
    ModelMessage::assistant(text.to_owned(), ids.iter().map(call).collect())
}

fn result(id: &str, text: &str) -> ModelMessage {
    ModelMessage::ToolResult {
        call_id: id.to_owned(),
        text: text.to_owned(),
        is_error: false,
        from_tool: true,
    }
}

/// One letter for each entry, and its words.
fn shape(messages: Vec<ModelMessage>, alternates: bool) -> String {
    let request = InferRequest {
        messages,
        ..InferRequest::default()
    };
    let entries = build_history(&request, OWNER, rules(alternates));
    let shown = entries.iter().map(|entry| match entry {
        HistoryEntry::User { text, .. } => format!("u({text})"),
        HistoryEntry::Assistant(entry) => {
            let ids: Vec<&str> = entry.calls.iter().map(|call| call.id.as_str()).collect();
            format!(
                "a({}{}{})",
                entry.text,
                if ids.is_empty() { "" } else { "!" },
                ids.join(",")
            )
        }
        HistoryEntry::Results(results) => {
            let all: Vec<String> = results
                .iter()
                .map(|one| format!("{}={}", one.id, one.text))
                .collect();
            format!("r({})", all.join(","))
        }
    });
    shown.collect::<Vec<_>>().join(" ").replace("\n\n", "+")
}

#[test]
fn every_history_becomes_a_well_formed_one() {
    let none = super::NO_RESULT;
    for (messages, plain, strict) in [
        (vec![user("a"), user("b")], "u(a+b)".to_owned(), None),
        (
            vec![user("a"), agent("", &[]), user("b")],
            "u(a+b)".to_owned(),
            None,
        ),
        (
            vec![user("a"), agent(" \n", &[]), user("b")],
            "u(a+b)".to_owned(),
            None,
        ),
        (
            vec![user("a"), agent("x", &[]), agent("y", &[]), user("b")],
            "u(a) a(x+y) u(b)".to_owned(),
            None,
        ),
        (
            vec![user("a"), agent("x", &[]), agent("y", &["1"]), result("1", "r")],
            "u(a) a(x+y!1) r(1=r)".to_owned(),
            None,
        ),
        (
            vec![user("a"), agent("x", &["1"]), user("b")],
            format!("u(a) a(x!1) r(1={none}) u(b)"),
            Some(format!("u(a) a(x!1) r(1={none}) a((no answer was given)) u(b)")),
        ),
        (
            vec![user("a"), agent("x", &["1"])],
            format!("u(a) a(x!1) r(1={none})"),
            None,
        ),
        (
            vec![
                user("a"),
                agent("", &["1", "2"]),
                result("2", "two"),
                result("1", "one"),
            ],
            "u(a) a(!1,2) r(1=one,2=two)".to_owned(),
            None,
        ),
        (
            vec![user("a"), agent("", &["1", "2"]), result("2", "two")],
            format!("u(a) a(!1,2) r(1={none},2=two)"),
            None,
        ),
        (vec![result("0", "lost"), user("a")], "u(a)".to_owned(), None),
        (
            vec![
                user("a"),
                agent("", &["1"]),
                result("1", "one"),
                result("9", "lost"),
                agent("x", &[]),
            ],
            "u(a) a(!1) r(1=one) a(x)".to_owned(),
            None,
        ),
        (
            vec![agent("x", &[]), user("a")],
            "a(x) u(a)".to_owned(),
            Some("u((earlier messages are not shown)) a(x) u(a)".to_owned()),
        ),
        (
            vec![user("a"), agent("", &["1"]), result("1", "one"), user("b")],
            "u(a) a(!1) r(1=one) u(b)".to_owned(),
            Some("u(a) a(!1) r(1=one) a((no answer was given)) u(b)".to_owned()),
        ),
        (vec![], String::new(), None),
    ] {
        assert_eq!(shape(messages.clone(), false), plain);
        assert_eq!(shape(messages, true), strict.unwrap_or(plain));
    }
}

#[test]
fn a_repeated_id_names_its_own_result() {
    let messages = vec![
        user("a"),
        agent("", &["call_0"]),
        result("call_0", "first"),
        agent("", &["call_0"]),
        result("call_0", "second"),
        agent("", &["x", "x"]),
        result("x", "third"),
        result("x", "fourth"),
    ];
    let shown = shape(messages, false);
    assert!(
        shown.contains("r(call_0=first)") && shown.contains("=second)"),
        "{shown}"
    );
    assert_eq!(shown.matches("call_0").count(), 2, "{shown}");
    assert!(shown.contains("=third,") && shown.contains("=fourth)"), "{shown}");
}

#[test]
fn a_state_goes_to_its_own_provider_host_and_model_only() {
    let state = |provider: &str, host: &str, model: &str| {
        Some(Box::new(ProviderState {
            provider: provider.to_owned(),
            host: host.to_owned(),
            model: model.to_owned(),
            ..ProviderState::default()
        }))
    };
    for (given, kept) in [
        (state("main", "h", "m"), true),
        (state("other", "h", "m"), false),
        (state("main", "elsewhere", "m"), false),
        (state("main", "h", "m2"), false),
        (None, false),
    ] {
        let request = InferRequest {
            messages: vec![
                user("a"),
                ModelMessage::Assistant {
                    text: "x".to_owned(),
                    calls: Vec::new(),
                    state: given,
                },
            ],
            ..InferRequest::default()
        };
        let entries = build_history(&request, OWNER, rules(false));
        let HistoryEntry::Assistant(entry) = &entries[1] else {
            panic!("{entries:?}");
        };
        assert_eq!(entry.state.is_some(), kept);
    }
}

fn message() -> impl Strategy<Value = ModelMessage> {
    let id = prop::sample::select(vec!["1", "2", "call_0", ""]);
    let text = prop::sample::select(vec!["", " ", "words"]);
    prop_oneof![
        text.clone().prop_map(user),
        (text, prop::collection::vec(id.clone(), 0..3)).prop_map(|(text, ids)| agent(text, &ids)),
        id.prop_map(|id| result(id, "r")),
    ]
}

proptest! {
    #[test]
    fn whatever_the_messages_calls_and_results_pair_and_roles_alternate(messages in prop::collection::vec(message(), 0..12)) {
        let request = InferRequest { messages, ..InferRequest::default() };
        for alternates in [false, true] {
            let entries = build_history(&request, OWNER, rules(alternates));
            let mut ids = std::collections::BTreeSet::new();
            for (at, entry) in entries.iter().enumerate() {
                let next = entries.get(at + 1);
                match entry {
                    HistoryEntry::User { .. } => prop_assert!(!matches!(next, Some(HistoryEntry::User { .. } | HistoryEntry::Results(_))), "two in a row"),
                    HistoryEntry::Assistant(entry) => {
                        prop_assert!(!entry.text.trim().is_empty() || !entry.calls.is_empty());
                        for call in &entry.calls {
                            prop_assert!(ids.insert(call.id.clone()), "{} twice", call.id);
                        }
                        match next {
                            Some(HistoryEntry::Results(results)) => {
                                let (one, two): (Vec<_>, Vec<_>) = (entry.calls.iter().map(|c| &c.id).collect(), results.iter().map(|r| &r.id).collect());
                                prop_assert_eq!(one, two);
                            }
                            Some(HistoryEntry::Assistant(_)) => prop_assert!(false, "two answers in a row"),
                            Some(HistoryEntry::User { .. }) | None => prop_assert!(entry.calls.is_empty()),
                        }
                    }
                    HistoryEntry::Results(_) => prop_assert!(!alternates || !matches!(next, Some(HistoryEntry::User { .. })), "a user behind results"),
                }
            }
        }
    }
}
