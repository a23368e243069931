//! The commands of a conversation: which there are, who may use each, and what each is for. Channels and the terminal share this
//! one table.

use clawk_kernel::Role;

/// Words behind `/model`: a model and an effort.
const MODEL_WORDS: usize = 2;
/// Words behind `/approve` and `/deny`: a code, and a reason.
const ANSWER_WORDS: usize = 64;
/// Least letters of a word that is taken for a misspelt command.
const LEAST_MISSPELT: usize = 4;

/// A command that a person types in a conversation. It acts before a model and without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatCommand {
    /// Lists the commands.
    Help,
    /// Begins the conversation anew.
    New,
    /// Ends the running turn.
    Stop,
    /// Says how the conversation stands.
    Status,
    /// Says which model answers, or chooses one.
    Model,
    /// Says what the conversation has used.
    Usage,
    /// Says what was done for the last answer.
    Why,
    /// Lifts an emergency stop of this conversation.
    Resume,
    /// Approves a waiting question.
    Approve,
    /// Denies a waiting question.
    Deny,
}

/// One row of the table.
#[derive(Debug)]
pub struct CommandEntry {
    /// The command.
    pub command: ChatCommand,
    /// The words for it; the first one is shown.
    pub names: &'static [&'static str],
    /// The least role that may use it.
    pub least_role: Role,
    /// The most words that may follow it.
    max_words: usize,
    /// What it is for, as `/help` says it.
    pub purpose: &'static str,
}

/// All commands, in the order of `/help`.
pub const COMMANDS: &[CommandEntry] = &[
    CommandEntry {
        command: ChatCommand::Help,
        names: &["/help", "/commands"],
        least_role: Role::Viewer,
        max_words: 0,
        purpose: "this list",
    },
    CommandEntry {
        command: ChatCommand::New,
        names: &["/new", "/reset", "/clear"],
        least_role: Role::User,
        max_words: 0,
        purpose: "begin anew: what was said before is forgotten here",
    },
    CommandEntry {
        command: ChatCommand::Stop,
        names: &["/stop", "/cancel", "/abort"],
        least_role: Role::User,
        max_words: 0,
        purpose: "end what I am doing",
    },
    CommandEntry {
        command: ChatCommand::Status,
        names: &["/status"],
        least_role: Role::Viewer,
        max_words: 0,
        purpose: "how this conversation stands, and what it waits for",
    },
    CommandEntry {
        command: ChatCommand::Model,
        names: &["/model"],
        least_role: Role::User,
        max_words: MODEL_WORDS,
        purpose: "which model answers; `/model NAME EFFORT` chooses another one, `/model default` goes back",
    },
    CommandEntry {
        command: ChatCommand::Usage,
        names: &["/usage", "/cost"],
        least_role: Role::User,
        max_words: 0,
        purpose: "what this conversation has used",
    },
    CommandEntry {
        command: ChatCommand::Why,
        names: &["/why", "/details"],
        least_role: Role::Viewer,
        max_words: 0,
        purpose: "what I did for my last answer",
    },
    CommandEntry {
        command: ChatCommand::Approve,
        names: &["/approve"],
        least_role: Role::Admin,
        max_words: 1,
        purpose: "approve the question that waits here; with several, `/approve CODE` or the beginning of the code",
    },
    CommandEntry {
        command: ChatCommand::Deny,
        names: &["/deny"],
        least_role: Role::Admin,
        max_words: ANSWER_WORDS,
        purpose: "deny it; `/deny CODE REASON` says why",
    },
    CommandEntry {
        command: ChatCommand::Resume,
        names: &["/resume"],
        least_role: Role::Admin,
        max_words: 0,
        purpose: "lift an emergency stop of this conversation",
    },
];

/// What a word with a slash is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlashWord {
    /// A command.
    Command(ChatCommand),
    /// No command, but one letter away from this one.
    Misspelt(&'static str),
    /// Neither: words for the agent.
    Other,
}

impl ChatCommand {
    /// The command's row of the table.
    fn entry(self) -> Option<&'static CommandEntry> {
        COMMANDS.iter().find(|entry| entry.command == self)
    }

    /// Returns the least role that may use the command.
    #[must_use]
    pub fn least_role(self) -> Role {
        self.entry().map_or(Role::Admin, |entry| entry.least_role)
    }

    /// Returns whether so many words may follow the command.
    #[must_use]
    pub fn takes_words(self, count: usize) -> bool {
        self.entry().is_some_and(|entry| count <= entry.max_words)
    }
}

/// Finds the command of a word that begins with a slash, in upper or lower case.
#[must_use]
pub fn read_slash_word(word: &str) -> SlashWord {
    // Two slashes begin an address or a comment.
    if !word.starts_with('/') || word.starts_with("//") {
        return SlashWord::Other;
    }
    let word = word.to_ascii_lowercase();
    let names = || {
        COMMANDS
            .iter()
            .flat_map(|entry| entry.names.iter().map(move |name| (entry, *name)))
    };
    if let Some((entry, _)) = names().find(|(_, name)| *name == word) {
        return SlashWord::Command(entry.command);
    }
    let long = word.chars().count() > LEAST_MISSPELT;
    let near = names().find(|(_, name)| long && is_one_edit_apart(name, &word));
    near.map_or(SlashWord::Other, |(_, name)| SlashWord::Misspelt(name))
}

/// Returns whether one letter is wrong, missing, too many, or two neighbours are swapped.
fn is_one_edit_apart(name: &str, word: &str) -> bool {
    let (name, word): (Vec<char>, Vec<char>) = (name.chars().collect(), word.chars().collect());
    let same = name.iter().zip(&word).take_while(|(a, b)| a == b).count();
    let (name, word) = (
        name.get(same..).unwrap_or_default(),
        word.get(same..).unwrap_or_default(),
    );
    let tail = |text: &[char], from: usize| text.get(from..).unwrap_or_default().to_vec();
    let swapped = match (name, word) {
        ([a, b, rest @ ..], [c, d, others @ ..]) => a == d && b == c && rest == others,
        _ => false,
    };
    let (is_name_left, is_word_left) = (!name.is_empty(), !word.is_empty());
    swapped
        || (is_name_left && is_word_left && tail(name, 1) == tail(word, 1))
        || (is_name_left && tail(name, 1) == word)
        || (is_word_left && name == tail(word, 1))
}

/// Returns the commands that a role may use, one on each line.
#[must_use]
pub fn list_commands(role: Role) -> String {
    let allowed = COMMANDS.iter().filter(|entry| role >= entry.least_role);
    let lines = allowed.filter_map(|entry| Some(format!("{}: {}", entry.names.first()?, entry.purpose)));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clawk_kernel::Role;

    use super::{COMMANDS, ChatCommand, SlashWord, list_commands, read_slash_word};

    #[test]
    fn a_misspelt_command_is_near_one_and_other_words_are_the_agents() {
        for (word, near) in [
            ("/stopp", "/stop"),
            ("/sotp", "/stop"),
            ("/sto", "/stop"),
            ("/stpo", "/stop"),
            ("/stob", "/stop"),
            ("/aprove", "/approve"),
            ("/Hlep", "/help"),
            ("/modle", "/model"),
        ] {
            let wanted = match word {
                // A word of three letters is too short to be sure.
                "/sto" => SlashWord::Other,
                _ => SlashWord::Misspelt(near),
            };
            assert_eq!(read_slash_word(word), wanted, "{word}");
        }
        for word in [
            "/weather",
            "/",
            "//stop",
            "stop",
            "/start",
            "/stopping",
            "/tmp",
            "/etc/hosts",
            "/né",
        ] {
            assert_eq!(read_slash_word(word), SlashWord::Other, "{word}");
        }
        assert_eq!(read_slash_word("/STOP"), SlashWord::Command(ChatCommand::Stop));
    }

    #[test]
    fn each_command_is_found_by_each_of_its_names_and_is_listed_to_whom_it_is() {
        for entry in COMMANDS {
            for name in entry.names {
                assert_eq!(read_slash_word(name), SlashWord::Command(entry.command), "{name}");
            }
            for role in [Role::Viewer, Role::User, Role::Admin] {
                let listed = list_commands(role).contains(&format!("{}: ", entry.names[0]));
                assert_eq!(listed, role >= entry.least_role, "{} {role:?}", entry.names[0]);
            }
            assert_eq!(entry.command.least_role(), entry.least_role);
        }
        assert!(ChatCommand::Deny.takes_words(5) && !ChatCommand::Approve.takes_words(2));
    }
}
