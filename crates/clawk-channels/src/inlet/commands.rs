//! Words with which a person acts on the conversation itself, before a model and without it (R55): `/help`, `/new`, `/stop`, `/status`,
//! `/model`, `/usage`. Any other text, also a command followed by more words, is an ordinary
//! message. Only `/model` takes arguments: a model and an effort.

use std::fmt::Write as _;
use std::time::Duration;

use clawk_kernel::{ConversationStatus, EntryPoint, ModelInUse, Role};

use super::InboundPipeline;
use crate::adapter::PlatformMessage;
use crate::plain_name::harmless;
use crate::state::State;

/// How long the answer to a command waits for what it does. What was begun goes on.
const PATIENCE: Duration = Duration::from_secs(8);

/// A command that is known in chats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChatCommand {
    /// Which commands there are.
    Help,
    /// What was said before is sent to no model any more.
    New,
    /// What runs ends.
    Stop,
    /// How the channel and the conversation stand.
    Status,
    /// Which model answers, or is to answer.
    Model,
    /// What the conversation has used.
    Usage,
}

/// Each command by the words for it, the first one as it is shown, with what it does.
const COMMANDS: &[(&[&str], ChatCommand, &str)] = &[
    (&["/help", "/commands"], ChatCommand::Help, "this list"),
    (
        &["/new", "/reset", "/clear"],
        ChatCommand::New,
        "begin anew: what was said before is forgotten here",
    ),
    (
        &["/stop", "/cancel", "/abort"],
        ChatCommand::Stop,
        "end what I am doing",
    ),
    (&["/status"], ChatCommand::Status, "how this conversation stands"),
    (
        &["/model"],
        ChatCommand::Model,
        "which model answers; `/model NAME EFFORT` chooses another one, `/model default` goes back",
    ),
    (
        &["/usage", "/cost"],
        ChatCommand::Usage,
        "what this conversation has used",
    ),
];

impl ChatCommand {
    /// The role that it takes.
    const fn least_role(self) -> Role {
        match self {
            Self::Help | Self::Status => Role::Viewer,
            Self::New | Self::Stop | Self::Model | Self::Usage => Role::User,
        }
    }
}

/// Words behind `/model`: a model and an effort.
const MODEL_WORDS: usize = 2;

/// A command that a person typed, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenCommand {
    pub(super) command: ChatCommand,
    /// A name stands in it: the platform says whose it is.
    pub(super) named: bool,
    /// What stands behind it.
    pub(super) words: Vec<String>,
}

/// The command that a text is, alone, also with the agent's name before or behind it.
pub(super) fn read_command(text: &str) -> Option<WrittenCommand> {
    let mut words = text.split_whitespace();
    let mut word = words.next()?;
    let mut named = false;
    if word.starts_with('@') || word.starts_with("<@") {
        named = true;
        word = words.next()?;
    }
    let words: Vec<String> = words.map(str::to_owned).take(MODEL_WORDS + 1).collect();
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
    let known = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(word));
    let (_, command, _) = COMMANDS.iter().find(|(names, ..)| known(names))?;
    let most = match command {
        ChatCommand::Model => MODEL_WORDS,
        ChatCommand::Help
        | ChatCommand::New
        | ChatCommand::Stop
        | ChatCommand::Status
        | ChatCommand::Usage => 0,
    };
    (words.len() <= most).then_some(WrittenCommand {
        command: *command,
        named,
        words,
    })
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
        if !matches!(command, ChatCommand::New | ChatCommand::Stop)
            && !self.gate.admit_rate(sender, self.now())
        {
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
                        self.told_of(command, &status)
                    }
                    Err(error) => failure_text(&error),
                }
            }
        };
        self.send_notice(place, told);
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
            ChatCommand::Status | ChatCommand::Help | ChatCommand::New | ChatCommand::Stop => {
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
    let mut lines = vec!["Write to me as to a person. These words I know myself:".to_owned()];
    for (names, command, does) in COMMANDS {
        if let Some(name) = names.first().filter(|_| role >= command.least_role()) {
            lines.push(format!("{name}: {does}"));
        }
    }
    lines.push("/details, /why: what I did for my last answer".to_owned());
    lines.join("\n")
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

    use super::{ChatCommand, cost_text, help_text, read_command};

    #[test]
    fn a_command_stands_alone_and_may_name_the_agent() {
        use ChatCommand::{Help, Model, New, Status, Stop, Usage};
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
    fn help_names_what_the_role_may() {
        assert!(help_text(Role::User).contains("/stop") && help_text(Role::Admin).contains("/new"));
        assert!(!help_text(Role::Viewer).contains("/stop") && help_text(Role::Viewer).contains("/status"));
        assert_eq!(
            (cost_text(0).as_str(), cost_text(1_230_000).as_str()),
            ("", ", for $1.2300")
        );
    }
}
