//! `claw.message.send` (R40): a client talks to the agent and receives the turn's text and steps as they happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clawk_kernel::shown::TurnCallSummary;
use clawk_kernel::{AttachedPicture, EntryPoint, SessionNotice, TalkRequest, TalkStop, TurnResult};
use clawk_proto::MessageId;
use clawk_proto::message::{DELTA, MessagePart, SEND, STEP, SendParams, SendResult, Tokens, TurnStopCode};
use clawk_proto::rpc::write_notification;
use clawk_proto::{ErrorCode, RpcError};
use serde_json::{Value, json};

use super::dispatch::AdmittedRequest;
use super::{RpcConnection, gate, questions};
use crate::access::Scope;
use crate::error::ckp as error;
use crate::transport::outbox::Outbox;

impl RpcConnection {
    /// `claw.message.send`. If the client disconnects, the turn continues, and its answer is stored under the request id.
    pub(super) async fn message_send(&mut self, ask: AdmittedRequest<'_>) {
        let run = match gate::admit_extension(&self.phase, &self.rights, Scope::Message) {
            Ok(run) => Arc::clone(run),
            Err(error) => return self.refuse_request(&ask, &error),
        };
        let params: SendParams = match error::decode(SEND, ask.params) {
            Ok(params) => params,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        let (text, images) = match message_content(&params) {
            Ok(said) => said,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        self.flush();
        let permit = self.lanes.enter_message().await;
        let asked = TalkRequest {
            images,
            ..TalkRequest::new(self.rights.name(), params.conversation, text, params.request_id)
        };
        let door = EntryPoint::Rpc {
            client: run.client.clone(),
            role: self.rights.role(),
        };
        let reply = self.reply_guard(ask);
        let teller = params.stream.then(|| TurnNotifier::new(Arc::clone(&self.outbox)));
        self.start_task(async move {
            let tell = |turn: MessageId, notice: &SessionNotice| {
                if let Some(teller) = &teller {
                    teller.report_notice(turn, notice);
                }
            };
            let outcome = run.kernel.send_message(door, asked, &tell).await;
            drop(permit);
            reply.send_outcome(outcome.map(send_result).map_err(|e| error::from_kernel(&e)));
        })
        .await;
    }
}

/// The message as text and pictures. Other parts become notes.
fn message_content(params: &SendParams) -> Result<(String, Vec<AttachedPicture>), RpcError> {
    let invalid = |message: &str| {
        RpcError::new(ErrorCode::InvalidParams, message)
            .with(json!({"reason": "invalid_params", "method": SEND}))
    };
    match (&params.parts, &params.text) {
        (None, Some(text)) => Ok((text.clone(), Vec::new())),
        (Some(parts), None) => self::parse_parts(parts).map_err(|reason| invalid(&reason)),
        (Some(_), Some(_)) | (None, None) => Err(invalid("a message has either `parts` or `text`")),
    }
}

/// The parts as text and pictures. Other parts become notes.
///
/// # Errors
/// A picture's content does not match its type; the text is for people.
pub(super) fn parse_parts(parts: &[MessagePart]) -> Result<(String, Vec<AttachedPicture>), String> {
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for part in parts {
        match parse_picture(part)? {
            Some(image) => images.push(image),
            None => texts.push(part.as_text()),
        }
    }
    Ok((texts.join("\n\n"), images))
}

/// A part that holds a picture of a type that models accept.
fn parse_picture(part: &MessagePart) -> Result<Option<AttachedPicture>, String> {
    match part {
        MessagePart::Image {
            mime_type,
            data,
            name,
        } => AttachedPicture::read(mime_type, name.as_deref(), data),
        MessagePart::Text { .. } | MessagePart::File { .. } | MessagePart::Audio { .. } => Ok(None),
    }
}

fn send_result(told: TurnResult) -> SendResult {
    let parts = match told.text.as_str() {
        "" => Vec::new(),
        text => vec![MessagePart::Text {
            text: text.to_owned(),
        }],
    };
    SendResult {
        conversation: told.conversation,
        session_id: told.session,
        turn_id: told.turn,
        parts,
        stop: match told.stop {
            TalkStop::Answered => TurnStopCode::Answered,
            TalkStop::Refused => TurnStopCode::Refused,
            TalkStop::Cancelled => TurnStopCode::Cancelled,
            TalkStop::Budget => TurnStopCode::Budget,
            TalkStop::Stopped => TurnStopCode::Stopped,
            TalkStop::Failed => TurnStopCode::Failed,
        },
        reason: told.reason,
        record: told.shown.as_ref().and_then(TurnCallSummary::to_json),
        usage: Tokens {
            input_tokens: told.usage.input_tokens,
            output_tokens: told.usage.output_tokens,
        },
    }
}

/// Sends the notifications of one turn. A client that does not read misses some, and gets their number.
struct TurnNotifier {
    outbox: Arc<Outbox>,
    missed: AtomicU64,
}

impl TurnNotifier {
    const fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            outbox,
            missed: AtomicU64::new(0),
        }
    }

    fn report_notice(&self, turn: MessageId, notice: &SessionNotice) {
        if self.outbox.is_saturated() {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let missed = self.missed.swap(0, Ordering::Relaxed);
        if missed > 0 {
            self.send_notification(STEP, &json!({"turn_id": turn, "step": "missed", "count": missed}));
        }
        match notice {
            SessionNotice::Delta(text) => {
                self.send_notification(DELTA, &json!({"turn_id": turn, "text": text}))
            }
            other => {
                if let Some(mut step) = step_json(other) {
                    if let Some(facts) = step.as_object_mut() {
                        facts.insert("turn_id".into(), json!(turn));
                    }
                    self.send_notification(STEP, &step);
                }
            }
        }
    }

    fn send_notification(&self, method: &str, params: &Value) {
        let mut line = Vec::new();
        if write_notification(&mut line, method, params) {
            line.push(b'\n');
            self.outbox.take(&mut line);
        }
    }
}

/// A step as JSON for the client. `None` for the end, which the answer reports.
fn step_json(notice: &SessionNotice) -> Option<Value> {
    Some(match notice {
        // Thoughts are for the process owner's terminal alone.
        SessionNotice::Delta(_) | SessionNotice::Thought(_) | SessionNotice::TurnEnded { .. } => return None,
        SessionNotice::TurnStarted { .. } => json!({"step": "started"}),
        SessionNotice::Said(text) => json!({"step": "said", "text": text}),
        SessionNotice::Missed(count) => json!({"step": "missed", "count": count}),
        SessionNotice::Retrying {
            provider,
            reason,
            wait_ms,
            next,
        } => {
            json!({"step": "retrying", "provider": provider, "reason": reason, "wait_ms": wait_ms, "next": next})
        }
        SessionNotice::CallDecided {
            request_id,
            tool,
            arguments: _,
            verdict,
            rule_id,
            refused_by,
        } => {
            json!({"step": "decided", "request_id": request_id, "tool": tool, "verdict": verdict, "rule_id": rule_id,
                "refused_by": refused_by})
        }
        SessionNotice::Screened { place, action, kinds } => {
            json!({"step": "screened", "place": place, "action": action, "kinds": kinds})
        }
        SessionNotice::Asking(question) => {
            json!({"step": "asking", "question": questions::question_facts(question, questions::QuestionDetail::Whole)})
        }
        SessionNotice::Handed(call) => json!({"step": "handed", "tool": call.name, "call_id": call.id}),
        SessionNotice::Planned(plan) => {
            json!({"step": "planned", "plan": plan.id, "questions": questions::list_questions(plan.steps.clone(), questions::QuestionDetail::Whole)})
        }
        SessionNotice::CallFinished {
            request_id,
            tool,
            is_error,
            summary,
            duration_ms,
            level,
        } => json!({"step": "finished", "request_id": request_id, "tool": tool, "is_error": is_error,
            "summary": summary, "duration_ms": duration_ms, "level": level}),
        SessionNotice::Unreachable(text) => json!({"step": "unreachable", "text": text}),
        SessionNotice::Warned(text) => json!({"step": "warned", "text": text}),
        SessionNotice::Shown(shown, line) => {
            json!({"step": "shown", "done": shown.done, "denied": shown.denied, "failed": shown.failed,
            "unknown": shown.unknown, "read": shown.read, "judged": shown.judged, "text": line})
        }
    })
}
