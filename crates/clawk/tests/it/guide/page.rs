//! A page as steps: what its blocks and comments ask for, in their order.

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A file of this content.
    File { path: String, text: String },
    /// Commands that must succeed.
    Run { script: String, line: usize },
    /// A command and what it prints; `…` stands for anything.
    Shown {
        command: String,
        output: String,
        line: usize,
    },
    /// A program on a terminal: what it shows, and what a person types after `▸`.
    Typed {
        command: String,
        shown: Vec<String>,
        line: usize,
    },
    /// A fragment of a configuration, in this language.
    Fragment {
        language: String,
        text: String,
        line: usize,
    },
}

/// The steps of a page.
pub(super) fn steps(name: &str, text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut comment = None;
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim();
        if let Some(inside) = trimmed
            .strip_prefix("<!-- ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        {
            match inside.split_once(": ") {
                Some(("setup", script)) => steps.push(Step::Run {
                    script: script.to_owned(),
                    line: number,
                }),
                Some(("file" | "not run", _)) => comment = Some(inside),
                _ => panic!("{name}:{number}: `{trimmed}` is not a comment that the guide's test knows"),
            }
            continue;
        }
        let Some(language) = trimmed.strip_prefix("```") else {
            assert!(
                trimmed.is_empty() || comment.is_none(),
                "{name}:{number}: a comment must stand directly before its block"
            );
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let block: Vec<String> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| line.trim() != "```")
            .map(|line| line.get(indent..).unwrap_or_default().to_owned())
            .collect();
        let text = block.join("\n") + "\n";
        match comment.take().and_then(|comment| comment.split_once(": ")) {
            Some(("file", path)) => steps.push(Step::File {
                path: path.to_owned(),
                text,
            }),
            Some(("not run", why)) => assert!(why.len() > 10, "{name}:{number}: say why it is not run"),
            _ => block_steps(name, number, language, &block, &mut steps),
        }
    }
    steps
}

fn block_steps(name: &str, line: usize, language: &str, block: &[String], steps: &mut Vec<Step>) {
    match language {
        "text" => {}
        "sh" => steps.push(Step::Run {
            script: block.join("\n"),
            line,
        }),
        "console" => console(name, line, block, steps),
        "yaml" | "toml" | "json" => steps.push(Step::Fragment {
            language: language.to_owned(),
            text: block.join("\n") + "\n",
            line,
        }),
        other => panic!(
            "{name}:{line}: a block of `{other}`; known are sh, console, yaml, toml, json and text (which is only read)"
        ),
    }
}

/// `$ COMMAND`, then what it prints, and again.
fn console(name: &str, line: usize, block: &[String], steps: &mut Vec<Step>) {
    let mut parts: Vec<(String, Vec<String>)> = Vec::new();
    for text in block {
        if let Some(command) = text.strip_prefix("$ ") {
            parts.push((command.to_owned(), Vec::new()));
        } else if let Some((command, output)) = parts.last_mut() {
            // A command that goes on in the next line.
            if command.ends_with('\\') && output.is_empty() {
                command.push('\n');
                command.push_str(text);
            } else {
                output.push(text.clone());
            }
        } else {
            panic!("{name}:{line}: a console block begins with `$ `");
        }
    }
    for (command, output) in parts {
        if output.iter().any(|line| typed(line).is_some()) {
            steps.push(Step::Typed {
                command,
                shown: output,
                line,
            });
        } else {
            steps.push(Step::Shown {
                command,
                output: output.join("\n"),
                line,
            });
        }
    }
}

/// What is typed behind a prompt: the prompt and the words.
pub(super) fn typed(line: &str) -> Option<(&str, &str)> {
    let (prompt, words) = line.rsplit_once("▸ ")?;
    (!words.trim().is_empty()).then_some((prompt, words.trim()))
}

/// Whether a text is what a page shows, where `…` stands for anything.
pub(super) fn fits(shown: &str, actual: &str) -> Result<(), String> {
    let mut rest = actual.trim();
    let pieces: Vec<&str> = shown.trim().split('…').collect();
    let last = pieces.len() - 1;
    for (index, piece) in pieces.iter().enumerate() {
        // A line of `…` alone may stand for nothing, so its ends of line may be missing.
        let piece = match (index, index == last) {
            (0, true) => *piece,
            (0, false) => piece.trim_end_matches('\n'),
            (_, true) => piece.trim_start_matches('\n'),
            (_, false) => piece.trim_matches('\n'),
        };
        let found = match (index, index == last) {
            (0, true) => (rest == piece).then_some(0),
            (0, false) => rest.starts_with(piece).then_some(0),
            (_, true) if piece.is_empty() => Some(rest.len()),
            (_, true) => rest.ends_with(piece).then(|| rest.len() - piece.len()),
            (_, false) => rest.find(piece),
        };
        let Some(at) = found else {
            return Err(piece.to_owned());
        };
        rest = rest.get(at + piece.len()..).unwrap_or_default();
    }
    Ok(())
}

#[test]
fn blocks_and_comments_become_steps() {
    let text = "\
<!-- setup: true -->
<!-- file: a/b.yaml -->
```yaml
x: 1
```
```console
$ echo a
a
$ clawk run x
you ▸ hi
```
<!-- not run: it needs a machine of its own -->
```sh
false
```
   ```toml
   [run]
   ```
";
    let found = steps("test", text);
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(matches!(&found[1], Step::File { path, text } if path == "a/b.yaml" && text == "x: 1\n"));
    assert!(matches!(&found[2], Step::Shown { command, output, .. } if command == "echo a" && output == "a"));
    assert!(matches!(&found[3], Step::Typed { .. }));
    assert!(matches!(&found[4], Step::Fragment { text, .. } if text == "[run]\n"));
}

#[test]
fn an_ellipsis_stands_for_anything_and_nothing_else_does() {
    for (shown, actual) in [
        ("a\n…\nb", "a\nx\ny\nb"),
        ("a\n…\nb", "a\nb"),
        ("a … c\n…", "a b c"),
        ("…b", "a b"),
        ("", ""),
    ] {
        assert_eq!(fits(shown, actual), Ok(()), "{shown:?} {actual:?}");
    }
    for (shown, actual) in [("a", "a b"), ("a\nb", "b\na"), ("a…", "b a"), ("", "x")] {
        assert!(fits(shown, actual).is_err(), "{shown:?} {actual:?}");
    }
}
