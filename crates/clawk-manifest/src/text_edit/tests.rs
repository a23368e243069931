use super::{ListInsertion, TextEditRefusal, insert_list_item, list_item_names};

const ITEM: &str = "inline:\n  name: new\n  mcp_source: { uri: \"https://a.example/mcp\" }";

fn add(text: &str) -> Result<String, TextEditRefusal> {
    insert_list_item(
        text,
        ListInsertion {
            parent: "spec",
            section: "tools",
            item: ITEM,
            before: None,
        },
    )
}

/// Every line of the old text is in the new one, in the old order.
fn keeps_lines(old: &str, new: &str) -> bool {
    let mut rest = new.lines();
    old.lines()
        .filter(|line| !line.contains("[]"))
        .all(|line| rest.any(|other| other == line))
}

/// A name, and a document.
const LAYOUTS: [(&str, &str); 16] = [
    (
        "block",
        "spec:\n  # before\n  tools:\n    - inline:\n        name: a # why\n        description: x\n\n  # after\n  memory: {}\n",
    ),
    (
        "at the dash's column",
        "spec:\n  tools:\n  - ./a.yaml\n  - ./b.yaml # kept\n  memory: {}\n",
    ),
    ("last of all", "spec:\n  memory: {}\n  tools:\n    - ./a.yaml"),
    ("missing", "spec:\n  memory: {}\n  # the end\n"),
    ("missing, wide", "spec:\n      memory: {}\n"),
    ("nothing in it", "spec:\n  tools:\n  memory: {}\n"),
    ("empty", "spec:\n  tools: [] # none yet\n  memory: {}\n"),
    (
        "a flow list",
        "spec:\n  tools: [\"./a.yaml\", \"./b.yaml\"] # two\n  memory: {}\n",
    ),
    (
        "a block text at the end",
        "spec:\n  tools:\n    - inline:\n        name: a\n        description: |\n          one\n          # not a comment\n\n  # a comment\n  memory: {}\n",
    ),
    (
        "Windows",
        "spec:\r\n  tools:\r\n    - ./a.yaml\r\n  memory: {}\r\n",
    ),
    ("with a mark", "\u{feff}spec:\n  tools:\n    - ./a.yaml\n"),
    (
        "umlauts",
        "spec:\n  identity: { inline: { personality: \"größer\" } }\n  tools:\n    - inline: { name: ä, description: ö }\n",
    ),
    (
        "a text on several lines",
        "spec:\n  tools:\n    - inline:\n        name: a\n        description: one\n          two\n  memory: {}\n",
    ),
    (
        "the dash alone",
        "spec:\n  tools:\n    -\n      inline:\n        name: a\n  memory: {}\n",
    ),
    (
        "quotes to the end",
        "spec:\n  tools:\n    - \"./a.yaml\"\n    # - ./old.yaml\n  memory: {}\n",
    ),
    (
        "a section below",
        "spec:\n  tools:\n    - inline: { name: a, input_schema: { type: object,\n        properties: {} } }\nmetadata: { name: x }\n",
    ),
];

#[test]
fn the_usual_layouts_are_edited_and_nothing_else_changes() {
    for (layout, text) in LAYOUTS {
        let edited = add(text).unwrap_or_else(|refusal| panic!("{layout}: {refusal}"));
        if !text.contains("[\"./a") {
            assert!(keeps_lines(text, &edited), "{layout}:\n{edited}");
        }
        assert_eq!(
            list_item_names(&edited, "tools").last(),
            Some(&Some("new".to_owned())),
            "{layout}"
        );
        assert_eq!(
            text.contains("\r\n"),
            !edited.replace("\r\n", "").contains('\n') && edited.contains("\r\n"),
            "{layout}"
        );
        for comment in [
            "# before",
            "# why",
            "# after",
            "# kept",
            "# the end",
            "# none yet",
            "# two",
            "# a comment",
        ] {
            assert_eq!(
                text.contains(comment),
                edited.contains(comment),
                "{layout}: {comment}"
            );
        }
        // A second edit works on what the first one wrote.
        let twice = add(&edited).unwrap_or_else(|refusal| panic!("{layout}, twice: {refusal}"));
        assert_eq!(
            list_item_names(&twice, "tools").len(),
            list_item_names(text, "tools").len() + 2
        );
    }
}

#[test]
fn what_can_not_be_edited_safely_is_refused() {
    for text in [
        "a: 1\n",
        "spec: [1]\n",
        "spec:\n  tools: { a: 1 }\n",
        "spec:\n  tools: text\n",
        "spec:\n\ttools: []\n",
        "common: &c\n  - ./a.yaml\nspec:\n  tools: *c\n",
    ] {
        assert!(add(text).is_err(), "{text:?} gave {:?}", add(text));
    }
}

#[test]
fn a_rule_goes_before_the_one_that_is_named_and_its_comment() {
    let text = "spec:\n  rules:\n    - id: first\n      action: allow\n    # what is left\n    - id: last\n      action: deny\n";
    let item = "id: new\naction: require-approval";
    let before = list_item_names(text, "rules")
        .iter()
        .position(|name| name.as_deref() == Some("last"));
    let edited = insert_list_item(
        text,
        ListInsertion {
            parent: "spec",
            section: "rules",
            item,
            before,
        },
    )
    .unwrap();
    assert_eq!(
        edited,
        "spec:\n  rules:\n    - id: first\n      action: allow\n    - id: new\n      action: require-approval\n    # what is left\n    - id: last\n      action: deny\n"
    );
}

#[test]
fn a_lone_sandbox_becomes_a_list_and_keeps_its_comments() {
    let item = "inline: { level: vm }";
    for (text, wanted) in [
        (
            "spec:\n  # where\n  sandbox:\n    inline:\n      level: process # why\n\n      # what\n      capabilities: {}\n\n  # next\n  memory: {}\n",
            "spec:\n  # where\n  sandbox:\n    - inline:\n        level: process # why\n\n        # what\n        capabilities: {}\n    - inline: { level: vm }\n\n  # next\n  memory: {}\n",
        ),
        (
            "spec:\n  sandbox: { inline: { level: process } } # one\n",
            "spec:\n  sandbox: [{ inline: { level: process } }, {\"inline\":{\"level\":\"vm\"}}] # one\n",
        ),
        (
            "spec:\n  sandbox: ./sandbox.yaml\n",
            "spec:\n  sandbox: [./sandbox.yaml, {\"inline\":{\"level\":\"vm\"}}]\n",
        ),
    ] {
        let edited = insert_list_item(
            text,
            ListInsertion {
                parent: "spec",
                section: "sandbox",
                item,
                before: None,
            },
        );
        assert_eq!(edited.as_deref(), Ok(wanted));
    }
}

#[test]
fn a_list_of_the_document_itself_is_edited() {
    let insertion = ListInsertion {
        parent: "",
        section: "cases",
        item: "tool: x\nexpect: deny",
        before: None,
    };
    let edited = insert_list_item(
        "# head\ncases:\n  - { tool: a, expect: allow } # kept\n",
        insertion,
    );
    assert_eq!(
        edited.as_deref(),
        Ok("# head\ncases:\n  - { tool: a, expect: allow } # kept\n  - tool: x\n    expect: deny\n")
    );
}
