//! One session in the terminal: turns, with approval requests in between.
//!
//! Long because one loop serves what is typed, the questions and the notices of a turn.

mod plan;
mod typed;

use std::collections::VecDeque;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use clawk_kernel::sheet::{PreviewReceipt, visible_text};
use clawk_kernel::{
    ApprovalAnswer, ApprovalQuestion, GrantScope, KnownPerson, ReplyOutcome, SessionHandle, SessionNotice,
    TurnEnd,
};
use clawk_proto::{MessageId, SessionId};
use clawk_secrets::env;
use clawk_tools::AskUserHandler;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use typed::{QuestionInput, parse};

use super::attach::attach_files;
use super::commands::PromptLine;
use super::{ApproveMode, commands};
use crate::compose::Agent;
use crate::dry::{ApprovedPlan, Recorder};
use crate::out::{TerminalStyle, one_line};
use crate::terminal::input::{LineEditor, LineOutcome};
use crate::terminal::show::{NoticePrinter, QuestionResponder};

/// Largest number of notices kept while a person reads a request.
const HELD: usize = 1024;

/// Reply to a yes while part of the request is still folded.
const UNSEEN: &str = "  not yet: `v` shows all of it, then answer";

/// Reason for the answer no, if the request could not be shown.
const NOT_SHOWN: &str = "the question could not be shown";
const OPEN: &str = "  the turn is not over: it goes on when the agent is started again";

const LEAVING: &str = "(Ctrl-C once more, or Ctrl-D, to leave)";

/// How a turn ended for the waiting caller.
pub(crate) enum TurnWaitOutcome {
    /// It ended by itself, or was cancelled at the keyboard.
    Turn(TurnEnd),
    /// SIGTERM: the turn stays open and continues after the next start.
    Terminated,
}

/// What the person did at the prompt.
pub(crate) enum PromptAction {
    /// A message to the agent.
    Say(String),
    /// A slash command, already executed.
    Done,
    /// Leave the conversation.
    Leave,
}

/// A question of the tool `ask-user`, and the channel for its answer.
pub(super) type PendingElicitation = (
    clawk_tools::UserQuestion,
    oneshot::Sender<clawk_tools::UserAnswer>,
);

/// Makes the channel on which `ask-user` sends its questions to the conversation.
pub(super) fn question_channel() -> (AskUserHandler, mpsc::Receiver<PendingElicitation>) {
    let (sender, asked) = mpsc::channel(8);
    let ask: AskUserHandler = Arc::new(move |question| {
        let sender = sender.clone();
        Box::pin(async move {
            let (reply, answer) = oneshot::channel();
            // silent-ok: the conversation has ended, so nobody can answer
            let _ = sender.send((question, reply)).await;
            answer.await.unwrap_or(clawk_tools::UserAnswer::Nobody)
        })
    });
    (ask, asked)
}

/// How approval requests are answered before a person is asked.
#[derive(Debug, Default)]
pub(crate) enum AnswerScript {
    /// Not at all: the person answers.
    #[default]
    Nobody,
    /// Dry run: nothing really happens, so the answer is always yes.
    Dry {
        /// Collects the report.
        recorder: Box<Recorder>,
        /// Standard output is used for the report only.
        quiet: bool,
    },
    /// By a report that the person has approved.
    Plan(ApprovedPlan),
}

/// A conversation and its terminal.
pub(crate) struct Conversation<'a> {
    pub(crate) script: AnswerScript,
    agent: &'a Agent,
    session: SessionHandle,
    input: Option<LineEditor>,
    asked: mpsc::Receiver<PendingElicitation>,
    approve: ApproveMode,
    show: NoticePrinter,
    interrupts: Signal,
    ends: Signal,
    leaving: bool,
    /// The turn belongs to another sender. Showing its answer here does not count as delivery.
    for_somebody_else: bool,
    /// SIGTERM was received.
    terminated: bool,
    gone: bool,
    /// Notices that arrived while a person was reading a request.
    held: VecDeque<SessionNotice>,
    /// Messages whose answers were shown here. The journal may not have recorded it yet.
    shown: Vec<MessageId>,
}

impl<'a> Conversation<'a> {
    /// Makes a conversation. It catches Ctrl-C and SIGTERM from now on.
    pub(crate) fn new(
        agent: &'a Agent,
        session: SessionHandle,
        input: Option<LineEditor>,
        asked: mpsc::Receiver<PendingElicitation>,
        approve: ApproveMode,
    ) -> Result<Self> {
        let mut show = NoticePrinter::new();
        if input.is_none() {
            show.asks = QuestionResponder::Nobody;
        }
        Ok(Self {
            script: AnswerScript::Nobody,
            agent,
            session,
            input,
            asked,
            approve,
            show,
            interrupts: signal(SignalKind::interrupt())?,
            ends: signal(SignalKind::terminate())?,
            leaving: false,
            for_somebody_else: false,
            terminated: false,
            gone: false,
            held: VecDeque::new(),
            shown: Vec::new(),
        })
    }

    /// Switches to a dry run: every request is answered with yes, and nothing happens.
    pub(crate) fn start_dry_run(&mut self, recorder: Recorder, quiet: bool) {
        self.show.asks = QuestionResponder::DryRun;
        self.script = AnswerScript::Dry {
            recorder: Box::new(recorder),
            quiet,
        };
    }

    /// Returns the messages whose answers were shown.
    pub(crate) fn shown_messages(&self) -> Vec<MessageId> {
        self.shown.clone()
    }

    /// Returns whether the agent has ended by itself.
    pub(crate) const fn has_ended(&self) -> bool {
        self.gone
    }

    /// Sends `text` and shows everything until its turn ends.
    pub(crate) async fn run_turn(&mut self, text: String) -> Result<TurnWaitOutcome> {
        let message = self.session.send_text(text).await?;
        self.until_end(Some(message)).await
    }

    /// Sends a recorded message again, as its original sender's. Its answer is shown here and is still delivered to the sender.
    pub(crate) async fn turn_again(&mut self, accepted: &str, text: String) -> Result<TurnWaitOutcome> {
        self.for_somebody_else = true;
        let message = self.session.send_again(accepted, text).await?;
        self.until_end(Some(message)).await
    }

    /// Shows the rest of a turn that is already running.
    pub(crate) async fn finish_turn(&mut self) -> Result<TurnWaitOutcome> {
        self.until_end(None).await
    }

    async fn until_end(&mut self, message: Option<MessageId>) -> Result<TurnWaitOutcome> {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Skip);
        second.reset();
        loop {
            if self.terminated {
                self.leaving = true;
                self.show.print_line(OPEN);
                return Ok(TurnWaitOutcome::Terminated);
            }
            while let Some(notice) = self.held.pop_front() {
                if let Some(end) = self.handle_notice(message, notice).await? {
                    return Ok(TurnWaitOutcome::Turn(end));
                }
            }
            tokio::select! {
                notice = self.session.next_notice() => match notice {
                    Some(notice) => if let Some(end) = self.handle_notice(message, notice).await? {
                        return Ok(TurnWaitOutcome::Turn(end));
                    },
                    None => {
                        self.gone = true;
                        bail!("the agent ended in the middle of the turn");
                    }
                },
                Some((question, reply)) = self.asked.recv() => {
                    let answer = self.ask_person(&question).await;
                    // silent-ok: the tool no longer waits
                    let _ = reply.send(answer);
                }
                _ = self.interrupts.recv() => self.session.cancel_turn(),
                _ = self.ends.recv() => self.terminated = true,
                _ = second.tick() => self.show.tick(),
            }
        }
    }

    async fn handle_notice(
        &mut self,
        message: Option<MessageId>,
        notice: SessionNotice,
    ) -> Result<Option<TurnEnd>> {
        let mut quiet = false;
        if let AnswerScript::Dry {
            recorder,
            quiet: only,
        } = &mut self.script
        {
            recorder.record_notice(&notice);
            quiet = *only;
        }
        if !quiet {
            self.show.print_notice(&notice)?;
        }
        match notice {
            SessionNotice::Asking(question) => self.answer_question(&question).await,
            SessionNotice::Planned(plan) => self.answer_plan(&plan).await,
            SessionNotice::TurnEnded {
                message: ended, end, ..
            } => {
                if !self.for_somebody_else {
                    // The answer was shown, so no delivery is due.
                    self.agent.kernel.mark_delivered(self.session.id, ended).await?;
                }
                self.shown.push(ended);
                return Ok(message.is_none_or(|message| message == ended).then_some(end));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Returns the answer of the script.
    async fn try_scripted_answer(&mut self, question: &ApprovalQuestion) -> bool {
        let (by, reason) = match &mut self.script {
            AnswerScript::Dry { .. } => ("dry run", "nothing happens in a dry run"),
            AnswerScript::Plan(approved) => match approved.consume_approval(question) {
                true => ("plan", "the approved plan has exactly this"),
                false => return false,
            },
            AnswerScript::Nobody => return false,
        };
        let reply = clawk_kernel::ApprovalReply {
            answer: ApprovalAnswer::Approve,
            breadth: GrantScope::Exact,
            person: KnownPerson::admin(by, &login_name()),
            reason: Some(reason.to_owned()),
            seen: PreviewReceipt::Whole(vec![question.sheet.digest()]),
        };
        self.agent
            .kernel
            .reply_to_question(&question.request_id, reply)
            .await
            == ReplyOutcome::Taken
    }

    async fn answer_question(&mut self, question: &ApprovalQuestion) {
        if self.try_scripted_answer(question).await {
            return;
        }
        let drawn = self.show.print_question(question);
        let no = |why: Option<String>| (ApprovalAnswer::Deny, GrantScope::Exact, why);
        let (answer, breadth, reason) = match (self.approve, self.input.clone()) {
            (ApproveMode::Never, _) => no(Some(
                "`--approve never` answers every question with no".to_owned(),
            )),
            (ApproveMode::Ask, None) => {
                let why =
                    "there is no terminal to ask; run it in a terminal, or let a rule of the policy allow it";
                no(Some(why.to_owned()))
            }
            (ApproveMode::Ask, Some(_)) if drawn.is_err() => no(Some(NOT_SHOWN.to_owned())),
            (ApproveMode::Ask, Some(input)) => self.ask_approval(&input, question).await,
        };
        // Nobody has answered, so the request and the turn stay open.
        if self.terminated {
            return;
        }
        if self.is_settled(question) {
            return;
        }
        let paint = TerminalStyle::for_stderr();
        if let (ApprovalAnswer::Deny, Some(reason)) = (answer, &reason) {
            self.show
                .print_line(&format!("  {} {}", paint.red("no:"), reason));
        }
        let reply = clawk_kernel::ApprovalReply {
            answer,
            breadth,
            person: KnownPerson::admin("terminal", &login_name()),
            reason,
            // `ask` accepts a yes only after everything was shown.
            seen: PreviewReceipt::Whole(vec![question.sheet.digest()]),
        };
        if self
            .agent
            .kernel
            .reply_to_question(&question.request_id, reply)
            .await
            != ReplyOutcome::Taken
        {
            self.show
                .print_line(&paint.yellow("  too late: the question had lapsed or was answered elsewhere"));
        }
    }

    /// Returns whether a notice received meanwhile settles the request.
    fn is_settled(&self, question: &ApprovalQuestion) -> bool {
        self.held.iter().any(|notice| settles_question(notice, question))
    }

    /// Reads one line. If the request expires or is answered elsewhere meanwhile, this is reported at once.
    async fn read_line(
        &mut self,
        input: &LineEditor,
        prompt: &str,
        question: &ApprovalQuestion,
    ) -> LineOutcome {
        let mut reply = pin!(input.read_line(prompt.to_owned(), false));
        let mut told = false;
        loop {
            tokio::select! {
                biased;
                reply = &mut reply => return reply,
                _ = self.ends.recv() => {
                    self.terminated = true;
                    return LineOutcome::End;
                }
                Some(notice) = self.session.next_notice(), if self.held.len() < HELD => {
                    if settles_question(&notice, question) && !told {
                        told = true;
                        self.show.print_line("");
                        self.show.print_line(&TerminalStyle::for_stderr().yellow("  settled without you: it lapsed or was answered elsewhere; press Enter"));
                    }
                    self.held.push_back(notice);
                }
            }
        }
    }

    /// Discards keys that were pressed before the request was shown. Returns `Some` if there will be no answer.
    async fn discard_typed_keys(&mut self, input: &LineEditor) -> Option<LineOutcome> {
        let mut fresh = pin!(input.discard_typed_keys());
        let mut interrupted = false;
        loop {
            tokio::select! {
                done = &mut fresh => return match done {
                    Ok(()) => interrupted.then_some(LineOutcome::Interrupted),
                    Err(error) => {
                        tracing::warn!(%error, "the terminal can't be asked");
                        Some(LineOutcome::End)
                    }
                },
                _ = self.interrupts.recv() => interrupted = true,
                _ = self.ends.recv() => {
                    self.terminated = true;
                    return Some(LineOutcome::End);
                }
            }
        }
    }

    /// Shows a question of the agent to the person.
    async fn ask_person(&mut self, question: &clawk_tools::UserQuestion) -> clawk_tools::UserAnswer {
        let Some(input) = self.input.clone() else {
            return clawk_tools::UserAnswer::Nobody;
        };
        let paint = TerminalStyle::for_stderr();
        self.show.pause();
        for (number, line) in question.question.split('\n').enumerate() {
            let mark = if number == 0 { "?" } else { " " };
            self.show
                .print_line(&format!("{} {}", paint.yellow(mark), visible_text(line)));
        }
        for (index, option) in question.options.iter().enumerate() {
            self.show
                .print_line(&format!("    {}. {}", index + 1, visible_text(option)));
        }
        let reply = match self.discard_typed_keys(&input).await {
            Some(reply) => reply,
            None => tokio::select! {
                reply = input.read_line("  answer ▸ ".to_owned(), false) => reply,
                _ = self.ends.recv() => {
                    self.terminated = true;
                    LineOutcome::End
                }
            },
        };
        match reply {
            LineOutcome::Line(line) if line.trim().is_empty() => clawk_tools::UserAnswer::Declined,
            LineOutcome::Line(line) => {
                let picked = line
                    .trim()
                    .parse::<usize>()
                    .ok()
                    .and_then(|n| question.options.get(n.checked_sub(1)?)); // silent-ok: words, then
                clawk_tools::UserAnswer::Said(picked.cloned().unwrap_or(line))
            }
            LineOutcome::Interrupted => {
                self.session.cancel_turn();
                clawk_tools::UserAnswer::Declined
            }
            LineOutcome::End => {
                self.leaving = true;
                clawk_tools::UserAnswer::Declined
            }
        }
    }

    /// Asks until the answer is valid. Ctrl-C means no, and ends the turn.
    async fn ask_approval(
        &mut self,
        input: &LineEditor,
        question: &ApprovalQuestion,
    ) -> (ApprovalAnswer, GrantScope, Option<String>) {
        let paint = TerminalStyle::for_stderr();
        let mut folded = question.sheet.hidden_bytes();
        let mut stale = true;
        loop {
            let stopped = if std::mem::take(&mut stale) {
                self.discard_typed_keys(input).await
            } else {
                None
            };
            let reply = match stopped {
                Some(reply) => reply,
                None => {
                    self.read_line(input, &format_prompt(question, folded), question)
                        .await
                }
            };
            match reply {
                LineOutcome::Line(line) => match parse(&line) {
                    Some(QuestionInput::Answer(answer, ..))
                        if folded > 0 && answer != ApprovalAnswer::Deny =>
                    {
                        self.show.print_line(&paint.yellow(UNSEEN));
                    }
                    Some(QuestionInput::Answer(answer, breadth, reason)) => return (answer, breadth, reason),
                    Some(QuestionInput::View) => match self.show.print_full_question(question) {
                        Ok(()) => (folded, stale) = (0, true),
                        Err(_) => {
                            return (
                                ApprovalAnswer::Deny,
                                GrantScope::Exact,
                                Some(NOT_SHOWN.to_owned()),
                            );
                        } // silent-ok: said so
                    },
                    Some(QuestionInput::Why) => self.show.print_reason(question),
                    None if self.is_settled(question) => {
                        return (ApprovalAnswer::Deny, GrantScope::Exact, None);
                    }
                    None => self
                        .show
                        .print_line(&paint.dim("  y, n (and why not, if you like), s, a, v or w")),
                },
                LineOutcome::Interrupted => {
                    self.session.cancel_turn();
                    return (
                        ApprovalAnswer::Deny,
                        GrantScope::Exact,
                        Some("interrupted".to_owned()),
                    );
                }
                LineOutcome::End => {
                    self.leaving = true;
                    return (
                        ApprovalAnswer::Deny,
                        GrantScope::Exact,
                        Some("the terminal was closed".to_owned()),
                    );
                }
            }
        }
    }

    /// Reads the next input at the prompt. Two Ctrl-C in a row, Ctrl-D or SIGTERM leave the conversation.
    pub(crate) async fn next(&mut self) -> Result<PromptAction> {
        let Some(input) = self.input.clone().filter(|_| !self.leaving) else {
            return Ok(PromptAction::Leave);
        };
        let prompt = format!("{} ", TerminalStyle::for_stderr().bold("you ▸"));
        let mut warned = false;
        loop {
            let mut typing = pin!(input.read_line(prompt.clone(), true));
            // The editor keeps the typed line while notices are printed.
            let reply = loop {
                tokio::select! {
                    reply = &mut typing => break reply,
                    _ = self.ends.recv() => break LineOutcome::End,
                    _ = self.interrupts.recv() => {
                        if warned {
                            break LineOutcome::End;
                        }
                        warned = true;
                        self.show.print_line(LEAVING);
                    }
                }
            };
            match reply {
                LineOutcome::Line(line) if line.trim().is_empty() => return Ok(PromptAction::Done),
                LineOutcome::Line(line) => return self.act_on_line(line).await,
                LineOutcome::Interrupted if !warned => {
                    warned = true;
                    self.show.print_line(LEAVING);
                }
                LineOutcome::Interrupted | LineOutcome::End => return Ok(PromptAction::Leave),
            }
        }
    }

    /// Runs a command, or returns the message that the line is, with the files that it names.
    async fn act_on_line(&mut self, line: String) -> Result<PromptAction> {
        match commands::read_prompt_line(&line) {
            PromptLine::Leave => Ok(PromptAction::Leave),
            PromptLine::Terminal(command) => {
                commands::run_terminal_command(self.agent, &self.session, command).await?;
                Ok(PromptAction::Done)
            }
            PromptLine::Chat(command) => {
                commands::run_chat_command(self.agent, &self.session, command, &line, &login_name()).await?;
                Ok(PromptAction::Done)
            }
            PromptLine::Unknown(told) => {
                self.show.print_line(&told);
                Ok(PromptAction::Done)
            }
            PromptLine::Message => match attach_files(&line, Path::new(".")) {
                Ok(message) => {
                    for (file, bytes) in &message.files {
                        let told = format!("  with {} ({bytes} bytes)", one_line(file));
                        self.show.print_line(&TerminalStyle::for_stderr().dim(&told));
                    }
                    Ok(PromptAction::Say(message.text))
                }
                Err(error) => {
                    let told = format!("not sent: {error:#}");
                    self.show.print_line(&TerminalStyle::for_stderr().yellow(&told));
                    Ok(PromptAction::Done)
                }
            },
        }
    }

    /// Ends the conversation. Returns its last session.
    pub(crate) async fn end_conversation(self) -> SessionId {
        self.session.id
    }
}

/// Returns whether the notice says that the call continues or has ended.
fn settles_question(notice: &SessionNotice, question: &ApprovalQuestion) -> bool {
    match notice {
        SessionNotice::CallDecided { request_id, .. } | SessionNotice::CallFinished { request_id, .. } => {
            *request_id == question.request_id
        }
        _ => false,
    }
}

/// Returns the possible answers. While part of the request is folded, yes is not one of them.
fn format_prompt(question: &ApprovalQuestion, folded: usize) -> String {
    let bold = |key| TerminalStyle::for_stderr().bold(key);
    let (no, view, why) = (bold("[n]"), bold("[v]"), bold("[w]"));
    if folded > 0 {
        return format!("  {folded} bytes are folded: {view}iew all first · {no}o [reason] · {why}hy ▸ ");
    }
    let folder = question.folder.as_ref().map_or_else(String::new, |folder| {
        let folder = visible_text(&folder.display().to_string());
        format!(": `a dir` any path in {folder}, `a` exactly this; `s dir`, `s` so")
    });
    let (yes, session, always) = (bold("[y]"), bold("[s]"), bold("[a]"));
    format!(
        "  {yes}es · {no}o [reason] · {session} this session · {always}lways{folder} · {view}iew all · {why}hy ▸ "
    )
}

/// Returns the name of the answering person for the trace: the login name from the environment, else the user id.
fn login_name() -> String {
    let uid = nix::unistd::getuid();
    let name = env::non_empty("USER")
        .or_else(|| env::non_empty("LOGNAME"))
        // silent-ok: a user without an entry is shown as a number
        .or_else(|| {
            nix::unistd::User::from_uid(uid)
                .ok()
                .flatten()
                .map(|user| user.name)
        })
        .unwrap_or_else(|| format!("uid {uid}"));
    format!("terminal:{name}")
}
