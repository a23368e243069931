//! Help at the prompt: completion of commands and paths, and messages of several lines.

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

/// A backslash at the end of a line: the message goes on in the next one.
const GOES_ON: char = '\\';

/// What the line editor knows of the words that are typed at the prompt.
pub(super) struct PromptHelper {
    files: FilenameCompleter,
    commands: Vec<String>,
    /// A message is typed, and not an answer to a question.
    pub(super) is_message: bool,
}

impl PromptHelper {
    pub(super) fn new(commands: Vec<String>) -> Self {
        Self {
            files: FilenameCompleter::new(),
            commands,
            is_message: true,
        }
    }
}

/// Returns the commands that begin as the text does.
fn complete_command(commands: &[String], text: &str) -> Vec<Pair> {
    let found = commands.iter().filter(|command| command.starts_with(text));
    found
        .map(|command| Pair {
            display: command.clone(),
            replacement: command.clone(),
        })
        .collect()
}

/// Returns whether the word before the cursor names a file: `@FILE`, or a path.
fn names_file(before: &str) -> bool {
    let word = before.rsplit(char::is_whitespace).next().unwrap_or_default();
    word.starts_with('@') || word.contains('/')
}

/// Joins the lines of a message that backslashes continue.
pub(super) fn join_lines(line: &str) -> String {
    line.replace("\\\n", "\n")
}

impl Completer for PromptHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = line.get(..position).unwrap_or_default();
        if !self.is_message {
            return Ok((position, Vec::new()));
        }
        let found = complete_command(&self.commands, before);
        if before.starts_with('/') && !found.is_empty() {
            return Ok((0, found));
        }
        if names_file(before) {
            return self.files.complete(line, position, context);
        }
        Ok((position, Vec::new()))
    }
}

impl Hinter for PromptHelper {
    type Hint = String;
}

impl Highlighter for PromptHelper {}

impl Validator for PromptHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if self.is_message && context.input().ends_with(GOES_ON) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Helper for PromptHelper {}

#[cfg(test)]
mod tests {
    use super::{complete_command, join_lines, names_file};

    #[test]
    fn commands_complete_from_their_beginning_and_paths_where_a_word_names_one() {
        let commands = ["/status", "/stop", "/help"].map(str::to_owned);
        let found = |text| -> Vec<String> {
            complete_command(&commands, text)
                .into_iter()
                .map(|pair| pair.replacement)
                .collect()
        };
        assert_eq!(found("/st"), ["/status", "/stop"]);
        assert_eq!(found("/help"), ["/help"]);
        assert!(found("/x").is_empty() && found("say /st").is_empty());
        assert!(names_file("read @no") && names_file("read src/ma") && names_file("/etc/ho"));
        assert!(!names_file("read no") && !names_file("a@b c"));
    }

    #[test]
    fn a_backslash_joins_two_lines_and_its_end_stays() {
        assert_eq!(join_lines("one\\\ntwo\nthree"), "one\ntwo\nthree");
        assert_eq!(join_lines("C:\\dir"), "C:\\dir");
    }
}
