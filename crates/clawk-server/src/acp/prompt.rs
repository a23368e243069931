//! One session of the editor, and its turns.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clawk_kernel::sheet::PreviewReceipt;
use clawk_kernel::{
    ApprovalAnswer, ApprovalQuestion, ApprovalReply, GrantScope, Kernel, KnownPerson, SessionHandle,
    SessionNotice, TurnEnd,
};
use clawk_proto::{MessageId, RequestId};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::client::EditorClient;
use super::{AcpError, calls};
use crate::telling::{RECORD, TurnTextBuffer};

/// The options of a permission question and their meaning. Each covers exactly this call.
const OPTIONS: [(&str, &str, &str, ApprovalAnswer); 3] = [
    ("allow", "Allow this call", "allow_once", ApprovalAnswer::Approve),
    (
        "allow-session",
        "Allow exactly this call for the rest of the session",
        "allow_always",
        ApprovalAnswer::ApproveForSession,
    ),
    ("deny", "Deny", "reject_once", ApprovalAnswer::Deny),
];

/// One session of the editor.
#[derive(Debug)]
pub(super) struct Conversation {
    kernel: Kernel,
    session: SessionHandle,
    /// The session's id, as the editor names it.
    id: String,
    /// The editor's name. The record shows it as the person who answers.
    editor: String,
    workdir: Arc<Path>,
    cwd: PathBuf,
    /// The agent has been told the editor's working directory.
    told_cwd: AtomicBool,
    busy: AtomicBool,
    cancelled: AtomicBool,
}

/// The right to run a session's only active turn.
#[derive(Debug)]
pub(super) struct PromptTurnGuard(Arc<Conversation>);

impl Drop for PromptTurnGuard {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::SeqCst);
    }
}

/// How much of a turn the editor has received.
#[derive(Debug, Default)]
struct PromptProgress {
    telling: TurnTextBuffer,
    /// Bytes of text that were sent.
    told: usize,
    calls: HashSet<RequestId>,
    /// What the turn did, from the record.
    record: Option<Value>,
}

impl Conversation {
    pub(super) fn new(
        kernel: Kernel,
        session: SessionHandle,
        editor: String,
        workdir: Arc<Path>,
        cwd: PathBuf,
    ) -> Self {
        Self {
            kernel,
            id: session.id.to_string(),
            session,
            editor,
            told_cwd: AtomicBool::new(cwd == *workdir),
            workdir,
            cwd,
            busy: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Starts the session's turn; `None` while another one runs.
    pub(super) fn begin_turn(self: &Arc<Self>) -> Option<PromptTurnGuard> {
        if self.busy.swap(true, Ordering::SeqCst) {
            return None;
        }
        self.cancelled.store(false, Ordering::SeqCst);
        Some(PromptTurnGuard(Arc::clone(self)))
    }

    /// Cancels the turn that runs or is about to run.
    pub(super) fn cancel_turn(&self) {
        if self.busy.load(Ordering::SeqCst) {
            self.cancelled.store(true, Ordering::SeqCst);
            self.session.cancel_turn();
        }
    }

    /// Sends the text to the agent, forwards events to the editor, and returns how the turn ended.
    pub(super) async fn run_turn(
        self: &Arc<Self>,
        client: &Arc<EditorClient>,
        tasks: &TaskTracker,
        mut text: String,
    ) -> Result<Value, AcpError> {
        if !self.told_cwd.swap(true, Ordering::SeqCst) {
            text = format!("[The editor's folder is {}.]\n\n{text}", self.cwd.display());
        }
        let message = self
            .session
            .send_text(text)
            .await
            .map_err(|error| AcpError::invalid_params(error.to_string()))?;
        let (mut heard, mut mine) = (PromptProgress::default(), false);
        loop {
            let Some(notice) = self.session.next_notice().await else {
                return Err(AcpError::failed(
                    "the agent has ended; the message is answered after its next start",
                ));
            };
            if let SessionNotice::TurnStarted { message: started } = &notice {
                mine = *started == message;
                if mine && self.cancelled.load(Ordering::SeqCst) {
                    self.session.cancel_turn();
                }
            }
            if mine || matches!(notice, SessionNotice::Missed(_)) {
                self.report_notice(client, tasks, &mut heard, &notice);
                client.outbox().room().await;
            }
            if let Some(end) = turn_outcome(message, &notice) {
                return end.map(|mut end| {
                    if let (Some(record), Some(end)) = (heard.record, end.as_object_mut()) {
                        end.insert("_meta".to_owned(), json!({RECORD: record}));
                    }
                    end
                });
            }
        }
    }

    fn report_notice(
        self: &Arc<Self>,
        client: &Arc<EditorClient>,
        tasks: &TaskTracker,
        heard: &mut PromptProgress,
        notice: &SessionNotice,
    ) {
        heard.telling.add_notice(notice);
        let text = heard.telling.text();
        if let Some(more) = text.get(heard.told..).filter(|more| !more.is_empty()) {
            client.send_text(&self.id, more);
            heard.told = text.len();
        }
        match notice {
            SessionNotice::Asking(question) => self.ask_editor(client, tasks, heard, question),
            SessionNotice::Planned(plan) => plan
                .steps
                .iter()
                .for_each(|step| self.ask_editor(client, tasks, heard, step)),
            SessionNotice::CallDecided {
                request_id,
                tool,
                arguments,
                refused_by,
                ..
            } => {
                let status = if refused_by.is_some() {
                    "failed"
                } else {
                    "in_progress"
                };
                let update = if heard.calls.insert(request_id.clone()) {
                    calls::call_started(request_id.as_str(), tool, arguments, &self.workdir, status)
                } else {
                    json!({"sessionUpdate": "tool_call_update", "toolCallId": request_id, "status": status})
                };
                client.send_update(&self.id, &update);
            }
            SessionNotice::CallFinished {
                request_id,
                is_error,
                summary,
                ..
            } => {
                let status = if *is_error { "failed" } else { "completed" };
                client.send_update(
                    &self.id,
                    &json!({"sessionUpdate": "tool_call_update", "toolCallId": request_id, "status": status,
                        "rawOutput": summary}),
                );
            }
            // This is separate from the answer. An editor that shows no thoughts still gets it in the prompt's result.
            SessionNotice::Shown(shown, line) => {
                heard.record = shown.to_json();
                client.send_update(
                    &self.id,
                    &json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": line},
                        "_meta": {RECORD: heard.record}}),
                );
            }
            SessionNotice::Warned(text) | SessionNotice::Unreachable(text) => client.send_update(
                &self.id,
                &json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}}),
            ),
            SessionNotice::TurnStarted { .. }
            | SessionNotice::Delta(_)
            | SessionNotice::Said(_)
            | SessionNotice::Thought(_)
            | SessionNotice::Missed(_)
            | SessionNotice::Retrying { .. }
            | SessionNotice::Screened { .. }
            // An editor provides no tools.
            | SessionNotice::Handed(_)
            | SessionNotice::TurnEnded { .. } => {}
        }
    }

    /// Asks the editor's user for approval while the turn goes on. The question may also be answered elsewhere.
    fn ask_editor(
        self: &Arc<Self>,
        client: &Arc<EditorClient>,
        tasks: &TaskTracker,
        heard: &mut PromptProgress,
        question: &ApprovalQuestion,
    ) {
        if heard.calls.insert(question.request_id.clone()) {
            let id = question.request_id.as_str();
            let call = calls::call_started(id, &question.tool, &question.arguments, &self.workdir, "pending");
            client.send_update(&self.id, &call);
        }
        let options: Vec<Value> = OPTIONS
            .iter()
            .map(|(id, name, kind, _)| json!({"optionId": id, "name": name, "kind": kind}))
            .collect();
        let params = json!({
            "sessionId": self.id,
            "toolCall": calls::question_tool_call(question, &self.workdir),
            "options": options,
        });
        let (conversation, client, id) = (Arc::clone(self), Arc::clone(client), question.request_id.clone());
        tasks.spawn(async move {
            let answered = client.send_request("session/request_permission", params).await;
            let chosen = answered
                .as_ref()
                .and_then(|answer| answer.pointer("/outcome/optionId"))
                .and_then(Value::as_str);
            let option = OPTIONS.iter().find(|(id, ..)| Some(*id) == chosen);
            // The dialog was closed without a choice, or the editor disconnected: the question waits for another person, or
            // expires.
            let Some((.., answer)) = option else { return };
            let reply = ApprovalReply {
                answer: *answer,
                breadth: GrantScope::Exact,
                person: KnownPerson::admin("acp", &conversation.editor),
                reason: None,
                seen: PreviewReceipt::Sent,
            };
            conversation.kernel.reply_to_question(&id, reply).await;
        });
    }
}

/// The turn's result, if `notice` reports its end.
fn turn_outcome(message: MessageId, notice: &SessionNotice) -> Option<Result<Value, AcpError>> {
    let SessionNotice::TurnEnded {
        message: ended, end, ..
    } = notice
    else {
        return None;
    };
    if *ended != message {
        return None;
    }
    Some(match end {
        TurnEnd::Answered => Ok(json!({"stopReason": "end_turn"})),
        TurnEnd::Cancelled => Ok(json!({"stopReason": "cancelled"})),
        TurnEnd::Failed(reason) => Err(AcpError::failed(reason.clone())),
    })
}
