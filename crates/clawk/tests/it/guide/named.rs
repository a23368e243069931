//! The page of the command line is the program's own help, and no page names a verb or a flag that does not exist.

use std::collections::BTreeMap;
use std::fs;

use assert_cmd::Command;

use super::root;

/// The sections of the page: `clawk trace show` to its help.
fn sections() -> BTreeMap<String, String> {
    let page = fs::read_to_string(root().join("docs/reference/cli.md")).unwrap();
    let mut sections = BTreeMap::new();
    for part in page.split("\n```text\n").collect::<Vec<_>>().windows(2) {
        let title = part[0].lines().rev().find(|line| line.starts_with('#')).unwrap();
        let title = title.trim_start_matches(['#', ' ']).to_owned();
        let help = part[1].split("\n```").next().unwrap().to_owned();
        sections.insert(title, help);
    }
    sections
}

fn help(title: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_clawk"))
        .args(title.split_whitespace().skip(1))
        .arg("--help")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
        .trim_end()
        .to_owned()
}

fn below(help: &str) -> Vec<&str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

#[test]
fn the_command_line_reference_is_the_help_of_every_verb() {
    let sections = sections();
    let mut open = vec!["clawk".to_owned()];
    let mut seen = 0;
    while let Some(title) = open.pop() {
        if title.starts_with("clawk conformance") && cfg!(not(feature = "conformance")) {
            seen += sections
                .keys()
                .filter(|key| key.starts_with("clawk conformance"))
                .count();
            continue;
        }
        let told = help(&title);
        open.extend(below(&told).into_iter().map(|verb| format!("{title} {verb}")));
        assert_eq!(
            sections.get(&title),
            Some(&told),
            "docs/reference/cli.md: `{title}` is not what the program says; run `cargo xtask docs`"
        );
        seen += 1;
    }
    assert_eq!(seen, sections.len(), "a verb in the page does not exist");
}

#[test]
fn no_page_names_a_verb_or_a_flag_that_does_not_exist() {
    let sections = sections();
    let mut faults = Vec::new();
    let mut open = vec![root().join("docs")];
    let mut pages = vec![root().join("README.md")];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("adr") {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("cli.md")
            {
                pages.push(path);
            }
        }
    }
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let mut block = None;
        for (number, line) in text.lines().enumerate() {
            if let Some(language) = line.trim().strip_prefix("```") {
                block = block.is_none().then_some(language);
                continue;
            }
            let commands: Vec<&str> = match block {
                None => line.split('`').skip(1).step_by(2).collect(),
                Some("sh") => vec![line.trim()],
                Some("console") => line.strip_prefix("$ ").into_iter().collect(),
                Some(_) => Vec::new(),
            };
            for command in commands {
                // The first line of what a checkpoint's key signs.
                if !command.starts_with("clawk ") || command.ends_with(" v1") {
                    continue;
                }
                if let Some(fault) = wrong(command, &sections) {
                    faults.push(format!("{}:{}: `{command}`: {fault}", page.display(), number + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What does not exist in a command.
fn wrong(command: &str, sections: &BTreeMap<String, String>) -> Option<String> {
    // One command: what stands behind a pipe or a comment is another program's.
    let command = command.split(['|', '#', '>', '&', ';']).next().unwrap();
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let mut title = "clawk".to_owned();
    for word in &words {
        let next = format!("{title} {word}");
        if sections.contains_key(&next) {
            title = next;
        } else if below(&sections[&title]).is_empty()
            || word.starts_with('-')
            || !word.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        {
            break;
        } else {
            return Some(format!("`{title}` has no verb `{word}`"));
        }
    }
    let help = &sections[&title];
    let inner = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    words[..inner]
        .iter()
        .filter(|word| word.starts_with("--"))
        .map(|word| word.split('=').next().unwrap())
        .find(|flag| !help.contains(*flag))
        .map(|flag| format!("`{title}` has no flag `{flag}`"))
}
