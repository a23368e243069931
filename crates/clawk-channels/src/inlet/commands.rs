//! Words with which a person acts on the conversation itself, before a model and without it (R55), as [`crate::chat_command`] lists
//! them. Any other text, also a command followed by words that it does not take, is an ordinary message. A word alone that is one
//! letter away from a command is answered with that command.

use std::fmt::Write as _;
use std::time::Duration;

use clawk_kernel::{ConversationStatus, EntryPoint, KnownPerson, ModelInUse, Role};

use super::InboundPipeline;
use crate::adapter::PlatformMessage;
use crate::chat_command::{ChatCommand, SlashWord, list_commands, read_slash_word};
use crate::plain_name::harmless;
use crate::questions::{PressOutcome, TypedAnswer};
use crate::state::State;

/// How long the answer to a command waits for what it does. What was begun goes on.
const PATIENCE: Duration = Duration::from_secs(8);

/// A command that a person typed, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenCommand {
    pub(super) command: ChatCommand,
    /// A name stands in it: the platform says whose it is.
    pub(super) named: bool,
    /// What stands behind it.
    pub(super) words: Vec<String>,
}

/// Most words behind a command that are read.
const MAX_WORDS: usize = 64;

/// A slash word of a message, with the words behind it, and whether a name stands in it.
struct SlashMessage {
    word: String,
    named: bool,
    words: Vec<String>,
}

/// The message that begins with a slash word, also with the agent's name before or behind it.
fn split_slash_message(text: &str) -> Option<SlashMessage> {
    let mut words = text.split_whitespace();
    let mut word = words.next()?;
    let mut named = false;
    if word.starts_with('@') || word.starts_with("<@") {
        named = true;
        word = words.next()?;
    }
    let words: Vec<String> = words.map(str::to_owned).take(MAX_WORDS + 1).collect();
    if !word.starts_with('/') {
        return None;
    }
    let word = match word.split_once('@') {
        Some((word, name)) if !name.is_empty() => {
            named = true;
            word
        }
        Some(_) => return None,
        None => word,
    };
    Some(SlashMessage {
        word: word.to_owned(),
        named,
        words,
    })
}

/// The command that a text is, with the words that it takes.
pub(super) fn read_command(text: &str) -> Option<WrittenCommand> {
    let SlashMessage { word, named, words } = split_slash_message(text)?;
    let SlashWord::Command(command) = read_slash_word(&word) else {
        return None;
    };
    command.takes_words(words.len()).then_some(WrittenCommand {
        command,
        named,
        words,
    })
}

/// The command that a text of one word nearly is.
pub(super) fn read_misspelt(text: &str) -> Option<&'static str> {
    let written = split_slash_message(text).filter(|written| written.words.is_empty())?;
    match read_slash_word(&written.word) {
        SlashWord::Misspelt(name) => Some(name),
        SlashWord::Command(_) | SlashWord::Other => None,
    }
}

impl InboundPipeline {
    /// The command that a message is. An edit, and what comes from no person, is none.
    pub(super) fn parse_command(&self, incoming: &PlatformMessage, spoken: &str) -> Option<WrittenCommand> {
        if self.platform.is_trigger || incoming.context.edited || !incoming.attachments.is_empty() {
            return None;
        }
        // What the frame took off named somebody.
        let framed = || {
            let written = read_command(spoken)?;
            Some(WrittenCommand {
                named: true,
                ..written
            })
        };
        read_command(&incoming.text).or_else(framed)
    }

    /// Answers a word that is one letter away from a command. Returns whether it is one.
    pub(super) fn answers_misspelt(&self, incoming: &PlatformMessage, spoken: &str) -> bool {
        if self.platform.is_trigger || incoming.context.edited || !incoming.attachments.is_empty() {
            return false;
        }
        let Some(name) = read_misspelt(&incoming.text).or_else(|| read_misspelt(spoken)) else {
            return false;
        };
        let told = format!("Did you mean `{name}`? I did nothing yet. `/help` lists the commands.");
        self.send_notice(&incoming.conversation, told);
        true
    }

    /// Does what a command says, and answers it.
    pub(super) async fn run_command(
        &self,
        written: &WrittenCommand,
        incoming: &PlatformMessage,
        sender: &str,
        role: Role,
    ) {
        let (place, command) = (&incoming.conversation, written.command);
        // Who may not speak more must still be able to end what runs.
        let always = matches!(
            command,
            ChatCommand::New | ChatCommand::Stop | ChatCommand::Approve | ChatCommand::Deny
        );
        if !always && !self.gate.admit_rate(sender, self.now()) {
            self.record_refusal(place, sender, "more messages than `rate_limit` lets in")
                .await;
            return;
        }
        if role < command.least_role() {
            self.record_refusal(place, sender, "the command takes a higher role")
                .await;
            self.send_notice(place, "You may not do that here.".to_owned());
            return;
        }
        let door = EntryPoint::Channel {
            channel: self.channel.name.clone(),
            conversation: place.clone(),
            direct: incoming.direct,
            sender: sender.to_owned(),
            role,
        };
        let told = match command {
            ChatCommand::Help => help_text(role),
            ChatCommand::Why => return self.send_details(incoming, sender, role).await,
            ChatCommand::Approve | ChatCommand::Deny => {
                self.answer_by_command(written, incoming, (sender, role)).await
            }
            ChatCommand::Resume => self.lift_stop(place, sender).await,
            ChatCommand::New => self.begin_anew(&door).await,
            ChatCommand::Stop => match self.kernel.stop_conversation(&door).await {
                Ok(true) => "Stopped.".to_owned(),
                Ok(false) => "Nothing runs here.".to_owned(),
                Err(error) => failure_text(&error),
            },
            ChatCommand::Model if !written.words.is_empty() => self.choose_model(&door, &written.words).await,
            ChatCommand::Status | ChatCommand::Model | ChatCommand::Usage => {
                match self.kernel.conversation_status(&door).await {
                    Ok(mut status) => {
                        // Which model answers is told to whom `/model` is.
                        status.model.take_if(|_| role < ChatCommand::Model.least_role());
                        let mut told = self.told_of(command, &status);
                        if command == ChatCommand::Status {
                            for waits in self.questions.waiting_sentences(&self.channel.name, place) {
                                told.push_str(&format!(" {waits}"));
                            }
                        }
                        told
                    }
                    Err(error) => failure_text(&error),
                }
            }
        };
        self.send_notice(place, told);
    }

    /// Answers the question that waits here, or the one whose code begins so.
    async fn answer_by_command(
        &self,
        written: &WrittenCommand,
        incoming: &PlatformMessage,
        (sender, role): (&str, Role),
    ) -> String {
        let typed = TypedAnswer {
            channel: &self.channel.name,
            conversation: &incoming.conversation,
            sender,
            role,
            yes: written.command == ChatCommand::Approve,
            words: &written.words,
        };
        match self.questions.answer_by_words(typed).await {
            Ok(PressOutcome::Taken(text) | PressOutcome::Before(text)) | Err(text) => text,
            Ok(PressOutcome::NotAllowed) => "Only an admin may answer this.".to_owned(),
            Ok(PressOutcome::Unknown) => "No question waits here.".to_owned(),
        }
    }

    /// Lifts an emergency stop of this conversation. One of the whole agent is its operator's.
    async fn lift_stop(&self, place: &str, sender: &str) -> String {
        let stops = self.kernel.active_stops();
        let is_here = |door: &EntryPoint| {
            matches!(door, EntryPoint::Channel { channel, conversation, .. }
                if *channel == self.channel.name && conversation == place)
        };
        let here = stops
            .iter()
            .filter_map(|stop| stop.session)
            .find(|session| self.kernel.door_of(*session).as_ref().is_some_and(is_here));
        let whole = stops.iter().any(|stop| stop.session.is_none());
        let by = KnownPerson {
            channel: self.channel.name.clone(),
            name: sender.to_owned(),
            role: Role::Admin,
        };
        let lifted = match here {
            Some(session) => self.kernel.lift_stop(Some(session), &by).await,
            None => Ok(false),
        };
        match (lifted, whole) {
            (Err(error), _) => failure_text(&error),
            (Ok(_), true) => {
                "The whole agent is stopped. Its operator lifts that with `clawk stop --lift --all`."
                    .to_owned()
            }
            (Ok(true), false) => "The stop is lifted. Say what comes next.".to_owned(),
            (Ok(false), false) => "Nothing is stopped here. Say what comes next.".to_owned(),
        }
    }

    async fn begin_anew(&self, door: &EntryPoint) -> String {
        let cleared = tokio::time::timeout(PATIENCE, self.kernel.clear_conversation(door));
        match cleared.await {
            Ok(Ok(true)) => {
                "We begin anew. What was said before is forgotten here; the record keeps it.".to_owned()
            }
            Ok(Ok(false)) => "Nothing was said here before.".to_owned(),
            Ok(Err(error)) => failure_text(&error),
            Err(_late) => "We begin anew as soon as what waits here has ended.".to_owned(),
        }
    }

    async fn choose_model(&self, door: &EntryPoint, words: &[String]) -> String {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match self.kernel.choose_model(door, &words).await {
            Ok(Ok(model)) => answers(model.as_ref()),
            Ok(Err(error)) => harmless(&format!("Nothing has changed: {error}.")),
            Err(error) => failure_text(&error),
        }
    }

    fn told_of(&self, command: ChatCommand, status: &ConversationStatus) -> String {
        let mut text = String::new();
        let _infallible = match command {
            ChatCommand::Model => write!(text, "{}", answers(status.model.as_ref())),
            ChatCommand::Usage => write!(
                text,
                "This conversation has used {} tokens and {} calls{}.",
                status.tokens,
                status.calls,
                cost_text(status.cost_microusd)
            ),
            ChatCommand::Status
            | ChatCommand::Help
            | ChatCommand::New
            | ChatCommand::Stop
            | ChatCommand::Why
            | ChatCommand::Resume
            | ChatCommand::Approve
            | ChatCommand::Deny => {
                let report = self.status.current_report();
                let channel = match report.state {
                    State::Ready => "This channel is ready.",
                    State::Degraded => "This channel works in part.",
                    State::Failed => "This channel has failed.",
                };
                let runs = if status.running {
                    "I am working on a message."
                } else {
                    "Nothing runs here."
                };
                let model = status.model.as_ref();
                let model = model.map_or_else(String::new, |model| format!(" {}", answers(Some(model))));
                write!(
                    text,
                    "{channel} {runs} {} messages are in the context.{model}",
                    status.messages
                )
            }
        }; // silent-ok: a text takes what is written
        text
    }
}

/// Which model answers, in words.
fn answers(model: Option<&ModelInUse>) -> String {
    let Some(model) = model else {
        return "No model is set.".to_owned();
    };
    let effort = model
        .effort
        .map(|effort| format!(" with effort `{}`", effort.as_str()));
    format!(
        "`{}` by `{}` answers{}.",
        sanitize_code_name(&model.model),
        sanitize_code_name(&model.provider),
        effort.unwrap_or_default()
    )
}

/// The commands that a role may use.
fn help_text(role: Role) -> String {
    format!(
        "Write to me as to a person. These words I know myself:\n{}",
        list_commands(role)
    )
}

fn failure_text(error: &clawk_kernel::KernelError) -> String {
    tracing::warn!(%error, "a command of a chat failed");
    "That is not possible now; say it again later.".to_owned()
}

fn sanitize_code_name(name: &str) -> String {
    harmless(name).replace('`', "'")
}

/// Dollars, where any were counted.
fn cost_text(microusd: u64) -> String {
    match microusd {
        0 => String::new(),
        _ => format!(
            ", for ${}.{:04}",
            microusd / 1_000_000,
            microusd % 1_000_000 / 100
        ),
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::Role;

    use super::{ChatCommand, cost_text, help_text, read_command, read_misspelt};

    #[test]
    fn a_command_stands_alone_and_may_name_the_agent() {
        use ChatCommand::{Approve, Deny, Help, Model, New, Status, Stop, Usage, Why};
        for (text, wanted) in [
            ("/new", Some((New, false))),
            (" /Reset \n", Some((New, false))),
            ("/clear", Some((New, false))),
            ("/STOP", Some((Stop, false))),
            ("/stop@my_bot", Some((Stop, true))),
            ("@my_bot /stop", Some((Stop, true))),
            ("<@U123> /stop", Some((Stop, true))),
            ("/help", Some((Help, false))),
            ("/status", Some((Status, false))),
            ("/model", Some((Model, false))),
            ("/usage", Some((Usage, false))),
            ("/cancel", Some((Stop, false))),
            ("/why", Some((Why, false))),
            ("/Details@my_bot", Some((Why, true))),
            ("/details please", None),
            ("/approve", Some((Approve, false))),
            ("/approve of this plan", None),
            ("/deny not on a Friday", Some((Deny, false))),
            ("/stop it", None),
            ("please /stop", None),
            ("/stopp", None),
            ("/stop@", None),
            ("stop", None),
            ("/unknown", None),
            ("/", None),
            ("@my_bot", None),
            ("", None),
            ("//stop", None),
        ] {
            let found = read_command(text).map(|written| (written.command, written.named));
            assert_eq!(found, wanted, "{text:?}");
        }
        for (text, words) in [
            ("/model big", Some(vec!["big"])),
            ("@my_bot /model big high", Some(vec!["big", "high"])),
            ("/model is slow today", None),
            ("/usage big", None),
        ] {
            let found = read_command(text).map(|written| written.words);
            let words = words.map(|words| words.into_iter().map(str::to_owned).collect());
            assert_eq!(found, words, "{text:?}");
        }
    }

    #[test]
    fn only_a_word_alone_is_a_misspelt_command() {
        assert_eq!(read_misspelt("/stopp"), Some("/stop"));
        assert_eq!(read_misspelt("@my_bot /stpo"), Some("/stop"));
        for text in ["/stopp it", "/stop", "stopp", "/weather", ""] {
            assert_eq!(read_misspelt(text), None, "{text:?}");
        }
    }

    #[test]
    fn help_names_what_the_role_may() {
        assert!(help_text(Role::User).contains("/stop") && help_text(Role::Admin).contains("/new"));
        assert!(!help_text(Role::Viewer).contains("/stop") && help_text(Role::Viewer).contains("/status"));
        assert_eq!(
            (cost_text(0).as_str(), cost_text(1_230_000).as_str()),
            ("", ", for $1.2300")
        );
    }
}
