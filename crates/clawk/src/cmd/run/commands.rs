//! The slash commands of the prompt.

use anyhow::Result;
use clawk_channels::chat_command::{COMMANDS, ChatCommand, SlashWord, read_slash_word};
use clawk_kernel::ports::JournalScan;
use clawk_kernel::{ConversationStatus, KnownPerson, ModelInUse, SessionHandle};
use clawk_proto::SessionId;

use crate::compose::Agent;
use crate::out::{self, TerminalStyle, clip_line, one_line, sanitize_block};

const LINES_OF_TRACE: usize = 20;

/// A command of the prompt alone: it shows what the person at the terminal may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TerminalCommand {
    Tools,
    Policy,
    Trace,
    Session,
    Undo,
}

/// Commands of the prompt, by their words.
const TERMINAL_COMMANDS: &[(&str, TerminalCommand, &str)] = &[
    (
        "/tools",
        TerminalCommand::Tools,
        "the agent's tools, what may be done with them",
    ),
    (
        "/policy",
        TerminalCommand::Policy,
        "the rules, in the order they are asked",
    ),
    (
        "/trace",
        TerminalCommand::Trace,
        "the last events of this session, as recorded",
    ),
    ("/session", TerminalCommand::Session, "which session this is"),
    (
        "/undo",
        TerminalCommand::Undo,
        "what could be put back of what this session's calls changed",
    ),
];
/// Words that leave the prompt.
const LEAVING: &[&str] = &["/quit", "/exit", "/q"];

/// What a line at the prompt is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PromptLine {
    Message,
    Leave,
    Terminal(TerminalCommand),
    Chat(ChatCommand),
    /// An unknown slash word, with the answer to it.
    Unknown(String),
}

/// Reads a line. Words with a slash that are no command are the agent's, unless such a word stands alone and is no path.
pub(super) fn read_prompt_line(line: &str) -> PromptLine {
    let line = line.trim();
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    if !word.starts_with('/') {
        return PromptLine::Message;
    }
    let lower = word.to_ascii_lowercase();
    if LEAVING.contains(&lower.as_str()) && rest.is_empty() {
        return PromptLine::Leave;
    }
    if let Some((_, command, _)) = TERMINAL_COMMANDS
        .iter()
        .find(|(name, ..)| *name == lower && rest.is_empty())
    {
        return PromptLine::Terminal(*command);
    }
    let is_alone = rest.is_empty();
    match read_slash_word(&lower) {
        SlashWord::Command(command) if command.takes_words(rest.split_whitespace().count()) => {
            PromptLine::Chat(command)
        }
        SlashWord::Misspelt(name) if is_alone => {
            PromptLine::Unknown(format!("no command `{}`; did you mean `{name}`?", one_line(word)))
        }
        SlashWord::Other if lower == "/?" => PromptLine::Chat(ChatCommand::Help),
        SlashWord::Other if is_alone && !word.get(1..).unwrap_or_default().contains('/') => {
            PromptLine::Unknown(format!("no command `{}`; /help lists them", one_line(word)))
        }
        SlashWord::Command(_) | SlashWord::Misspelt(_) | SlashWord::Other => PromptLine::Message,
    }
}

/// The words that the prompt completes.
pub(super) fn completed_words() -> Vec<String> {
    let shared = COMMANDS.iter().filter_map(|entry| entry.names.first());
    let own = TERMINAL_COMMANDS.iter().map(|(name, ..)| name);
    shared
        .chain(own)
        .chain(LEAVING.first())
        .map(|name| (*name).to_owned())
        .collect()
}

/// Runs a command of the prompt.
pub(super) async fn run_terminal_command(
    agent: &Agent,
    session: &SessionHandle,
    command: TerminalCommand,
) -> Result<()> {
    match command {
        TerminalCommand::Tools => print_tools(agent),
        TerminalCommand::Policy => print_policy(agent),
        TerminalCommand::Trace => print_trace(agent, session.id).await?,
        TerminalCommand::Session => print_session(agent, session).await?,
        TerminalCommand::Undo => {
            crate::cmd::undo::show_plan(&agent.state_dir, session.id)?;
            out::print_note(format!(
                "  to do it, leave and run `clawk undo {} --state {} --yes`",
                session.id,
                one_line(&agent.state_dir.to_string_lossy())
            ));
        }
    }
    Ok(())
}

/// Runs a command that chats have, too. `line`: with its words.
pub(super) async fn run_chat_command(
    agent: &Agent,
    session: &SessionHandle,
    command: ChatCommand,
    line: &str,
    person: &str,
) -> Result<()> {
    let status = session.conversation_status();
    match command {
        ChatCommand::Help => print_help(),
        ChatCommand::New => {
            session.clear_conversation().await?;
            out::print_note("  the agent has forgotten this conversation; the trace has not");
        }
        ChatCommand::Stop => out::print_note("  nothing runs here; Ctrl-C ends a turn while it runs"),
        ChatCommand::Approve | ChatCommand::Deny => {
            out::print_note("  no question waits here: a question is asked here as it comes");
        }
        ChatCommand::Status => {
            out::print_note(format!("  model    {}", answers(status.model.as_ref())));
            out::print_note(format!("  context  {} messages", status.messages));
            print_usage(&status);
        }
        ChatCommand::Usage => print_usage(&status),
        ChatCommand::Model => model(session, line).await?,
        ChatCommand::Why => match session.last_record().await? {
            Some(record) => out::notes(&sanitize_block(&clawk_channels::render_details(&record))),
            None => out::print_note("  nothing was answered here yet"),
        },
        ChatCommand::Resume => {
            let by = KnownPerson::admin("terminal", person);
            let told = match agent.kernel.lift_stop(Some(session.id), &by).await? {
                true => "the stop of this session is lifted",
                false => "this session is not stopped; `clawk stop --status` shows all stops",
            };
            out::print_note(format!("  {told}"));
        }
    }
    Ok(())
}

fn print_usage(status: &ConversationStatus) {
    out::print_note(format!(
        "  used     {} tokens, {} calls, ${}.{:04}",
        status.tokens,
        status.calls,
        status.cost_microusd / 1_000_000,
        status.cost_microusd % 1_000_000 / 100
    ));
}

/// `/help`
fn print_help() {
    let shared = COMMANDS
        .iter()
        // Questions are asked here as they come.
        .filter(|entry| !matches!(entry.command, ChatCommand::Approve | ChatCommand::Deny))
        .filter_map(|entry| Some((*entry.names.first()?, entry.purpose)));
    let own = TERMINAL_COMMANDS
        .iter()
        .map(|(name, _, purpose)| (*name, *purpose));
    for (name, purpose) in shared.chain(own) {
        out::print_note(format!("  {name:<10} {purpose}"));
    }
    out::notes(
        "  /quit      leave; so do Ctrl-D and two Ctrl-C

  Ctrl-C while the agent works cancels the turn. Arrow keys bring back earlier lines, Tab completes commands and paths.
  A backslash at the end of a line begins another one; pasted lines stay one message. `@FILE` sends a file's text along.",
    );
}

/// `/tools`
fn print_tools(agent: &Agent) {
    let paint = TerminalStyle::for_stderr();
    let manifest = &agent.manifest;
    if manifest.tools.is_empty() && manifest.skills.is_empty() {
        out::print_note("  this agent has no tools");
    }
    for tool in &manifest.tools {
        let source = match (&tool.mcp_source, &tool.skill_ref) {
            (Some(source), _) => format!("MCP {}", source.uri),
            (None, Some(skill)) => format!("runs the skill `{skill}`"),
            (None, None) => "local".to_owned(),
        };
        let category = tool
            .category()
            .map(|category| format!(" · category {category}"))
            .unwrap_or_default();
        out::print_note(format!(
            "  {} {}",
            paint.cyan(&tool.name),
            paint.dim(&format!("{source}{category}"))
        ));
        if let Some(description) = &tool.description {
            out::print_note(format!("    {}", clip_line(description, 96)));
        }
    }
    for skill in &manifest.skills {
        out::print_note(format!("  {} {}", paint.cyan(&skill.name), paint.dim("skill")));
        out::print_note(format!("    {}", clip_line(&skill.description, 96)));
    }
}

/// `/policy`
fn print_policy(agent: &Agent) {
    let paint = TerminalStyle::for_stderr();
    let autonomy = agent.manifest.identity.autonomy;
    out::print_note(format!("  autonomy {}", paint.bold(autonomy.as_str())));
    for policy in &agent.manifest.policies {
        for rule in &policy.rules {
            let reason = rule
                .reason
                .as_deref()
                .map(|reason| clip_line(reason, 70))
                .unwrap_or_default();
            let line = format!(
                "  {:<16} {:<24} {}",
                rule.action.as_str(),
                rule.id,
                paint.dim(&reason)
            );
            out::print_note(&line);
        }
    }
    out::print_note(format!(
        "  {:<16} {}",
        "deny",
        paint.dim("whatever no rule matches")
    ));
}

/// `/trace`
async fn print_trace(agent: &Agent, session: SessionId) -> Result<()> {
    let events = agent
        .journal
        .scan_events(JournalScan {
            session: Some(session),
            with_content: true,
            ..JournalScan::default()
        })
        .await?;
    let paint = TerminalStyle::for_stderr();
    if events.is_empty() {
        out::print_note("  nothing yet");
    }
    for event in events.iter().skip(events.len().saturating_sub(LINES_OF_TRACE)) {
        let payload = clip_line(&event.payload_with_words(), 90);
        out::print_note(format!(
            "  {:>4} {} {}",
            event.sequence,
            paint.cyan(&event.kind),
            paint.dim(&payload)
        ));
    }
    Ok(())
}

/// `/model [NAME [EFFORT]]`
async fn model(session: &SessionHandle, command: &str) -> Result<()> {
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let chosen = match words.is_empty() {
        true => Ok(session.model_in_use()),
        false => session.choose_model(&words).await?,
    };
    match chosen {
        Ok(model) => out::print_note(format!("  {}", answers(model.as_ref()))),
        Err(error) => out::print_note(format!("  nothing has changed: {error}")),
    }
    Ok(())
}

/// Which model answers, in words.
fn answers(model: Option<&ModelInUse>) -> String {
    let Some(model) = model else {
        return "no model is set".to_owned();
    };
    let effort = model.effort.map(|effort| format!(", effort {}", effort.as_str()));
    format!(
        "{} by {}{}",
        model.model,
        model.provider,
        effort.unwrap_or_default()
    )
}

/// `/session`
async fn print_session(agent: &Agent, handle: &SessionHandle) -> Result<()> {
    let session = handle.id;
    let known = agent.journal.list_sessions(100).await?;
    let events = known
        .iter()
        .find(|row| row.session == session)
        .map_or(0, |row| row.events);
    out::print_note(format!("  session {session}, {events} events"));
    out::print_note(format!("  model   {}", answers(handle.model_in_use().as_ref())));
    out::print_note(format!("  state   {}", agent.state_dir.display()));
    out::print_note(format!("  again   clawk run CLAW --session {session}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clawk_channels::chat_command::ChatCommand;

    use super::{PromptLine, TerminalCommand, completed_words, read_prompt_line};

    #[test]
    fn a_line_is_a_command_alone_and_words_with_a_slash_are_the_agents() {
        for (line, wanted) in [
            ("/quit", PromptLine::Leave),
            ("/tools", PromptLine::Terminal(TerminalCommand::Tools)),
            (" /Undo ", PromptLine::Terminal(TerminalCommand::Undo)),
            ("/clear", PromptLine::Chat(ChatCommand::New)),
            ("/?", PromptLine::Chat(ChatCommand::Help)),
            ("/model big high", PromptLine::Chat(ChatCommand::Model)),
            ("/deny not today", PromptLine::Chat(ChatCommand::Deny)),
            ("/stop the presses", PromptLine::Message),
            ("/etc/hosts", PromptLine::Message),
            ("/nonsense is a word", PromptLine::Message),
            ("hello /new", PromptLine::Message),
        ] {
            assert_eq!(read_prompt_line(line), wanted, "{line}");
        }
        let told = |line| match read_prompt_line(line) {
            PromptLine::Unknown(told) => told,
            other => panic!("{other:?}"),
        };
        assert!(told("/nonsense").contains("/help lists them"));
        assert!(told("/stopp").contains("did you mean `/stop`?"));
    }

    #[test]
    fn every_completed_word_is_a_command() {
        for word in completed_words() {
            let read = read_prompt_line(&word);
            assert!(
                !matches!(read, PromptLine::Message | PromptLine::Unknown(_)),
                "{word}"
            );
        }
    }
}
