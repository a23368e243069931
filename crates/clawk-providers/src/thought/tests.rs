use super::{SplitPiece, ThoughtSplitter};

/// The answer and the thoughts, when the text comes in pieces of so many characters.
fn split(text: &str, size: usize, holds: bool) -> (String, String) {
    let mut splitter = ThoughtSplitter::new(holds);
    let (mut answer, mut thoughts) = (String::new(), String::new());
    let chars: Vec<char> = text.chars().collect();
    let mut pieces: Vec<SplitPiece> = Vec::new();
    for piece in chars.chunks(size) {
        pieces.extend(splitter.push(&piece.iter().collect::<String>()));
    }
    pieces.extend(splitter.finish());
    for piece in pieces {
        match piece {
            SplitPiece::Answer(text) => answer.push_str(&text),
            SplitPiece::Thought(text) => thoughts.push_str(&text),
            SplitPiece::Retract => thoughts = std::mem::take(&mut answer) + &thoughts,
        }
    }
    (answer, thoughts)
}

#[test]
fn thoughts_are_separated_in_every_form_however_they_are_cut() {
    for (text, answer) in [
        ("<think>\nmusing\n</think>\n\nIt is 4.", "It is 4."),
        ("\n <think>musing</think>It is 4.", "It is 4."),
        ("<think></think>It is 4.", "It is 4."),
        ("musing\n</think>\n\nIt is 4.", "It is 4."),
        ("musing, more musing.</think>It is 4.", "It is 4."),
        ("musing. </think> It is 4.", "It is 4."),
        ("musing</thought>\nIt is 4.", "It is 4."),
        ("<thought>musing</thought>It is 4.", "It is 4."),
        ("<thinking>musing</thinking>\nIt is 4.", "It is 4."),
        ("<reasoning>musing</reasoning>It is 4.", "It is 4."),
        ("<seed:think>musing</seed:think>It is 4.", "It is 4."),
        ("[THINK]musing[/THINK]It is 4.", "It is 4."),
        ("◁think▷musing◁/think▷It is 4.", "It is 4."),
        (
            "<|begin_of_thought|>musing<|end_of_thought|>\nIt is 4.",
            "It is 4.",
        ),
        (
            "<|channel|>analysis<|message|>musing<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
            "It is 4.",
        ),
        (
            "<|channel|>analysis<|message|>musing <|x|><|end|><|start|>assistant<|channel|>commentary<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 4.",
            "It is 4.",
        ),
        (
            "<|start|>assistant<|channel|>final<|message|>It is 4.<|end|>",
            "It is 4.",
        ),
        (
            "<think>musing</think>It is 4.\n<think>more musing</think>\nYes.",
            "It is 4.\n\nYes.",
        ),
        ("<think>musing that never ends", ""),
        ("<think>the tag </thin is not an end</think>It is 4.", "It is 4."),
    ] {
        for size in [1, 2, 3, 5, 8, 13, 1000] {
            for holds in [false, true] {
                let (said, thought) = split(text, size, holds);
                assert_eq!(said, answer, "{text:?} in pieces of {size}");
                assert!(!said.contains("musing"));
                assert!(
                    thought.contains("musing") == text.contains("musing"),
                    "{text:?}: {thought:?}"
                );
            }
        }
    }
}

#[test]
fn what_is_no_thought_stays() {
    for text in [
        "It is 4.",
        "Use the <think> tag like this: `<think>x</think>`.",
        "Close it with `</think>`, then answer.",
        "Close it with </think> and go on.",
        "The tag \"</think>\" ends it.",
        "```\nmusing\n</think>\n```\nis how it looks.",
        "a < b, a <t b, </thing>",
        "<div>hello</div>",
        "[THINKING] is a word",
        "  indented",
        "The open <think> comes first, the end\n</think>\nlater.",
        "<",
        "",
    ] {
        for size in [1, 2, 3, 7, 1000] {
            assert_eq!(
                split(text, size, false),
                (text.to_owned(), String::new()),
                "{text:?} in pieces of {size}"
            );
        }
    }
}

#[test]
fn a_model_whose_template_opens_the_thought_tells_nothing_before_it_ends() {
    let mut splitter = ThoughtSplitter::new(true);
    assert!(splitter.push("secret ").is_empty());
    assert!(splitter.push("musing\n</thi").is_empty());
    let told: Vec<SplitPiece> = splitter.push("nk>\n\nIt is 4.");
    assert_eq!(
        told,
        [
            SplitPiece::Thought("secret musing\n".to_owned()),
            SplitPiece::Answer("It is 4.".to_owned())
        ]
    );
    assert!(splitter.was_opened());
}
