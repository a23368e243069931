//! Shown, not claimed: what a turn did, by the record and not by the model. A fold of the journal: there is no second log.

use clawk_proto::{MessageId, RequestId, SessionId};
use serde::{Deserialize, Serialize};

use crate::call::Calls;
use crate::drive::Run;
use crate::effect::is_unknown;
use crate::event::kind;
use crate::notice::Notice;
use crate::ports::{Journal, JournalError, Message, Scan};
use crate::time::Timestamp;
use crate::turn::Turn;

/// Events that say what calls came to, and where a turn ends.
const KINDS: &[&str] = &[
    kind::ACTION_REQUESTED,
    kind::ACTION_APPROVED,
    kind::ACTION_DENIED,
    kind::ACTION_EXECUTED,
    kind::ACTION_FAILED,
    kind::MESSAGE_ANSWERED,
    kind::MESSAGE_DEAD,
];
/// Calls of one turn that are looked at.
const MAX_CALLS: usize = 10_000;
/// Names in each part of the line; the others are counted.
const NAMED: usize = 5;
/// Words by which an answer says that something was done. Not a judgement: they only decide whether "nothing was done" is worth
/// saying.
const CLAIMS: &[&str] = &[
    "booked",
    "cancelled",
    "completed",
    "copied",
    "created",
    "deleted",
    "deployed",
    "done",
    "edited",
    "emailed",
    "executed",
    "finished",
    "installed",
    "moved",
    "notified",
    "ordered",
    "paid",
    "posted",
    "published",
    "ran",
    "removed",
    "renamed",
    "restarted",
    "saved",
    "scheduled",
    "sent",
    "stored",
    "updated",
    "uploaded",
    "wrote",
    "written",
];

/// The outcomes of a turn's calls by tool name, in the order of the calls. Successful calls without side effects are left
/// out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// They ran and said that they did their work.
    pub done: Vec<String>,
    /// They were refused, by a rule or a person: nothing happened.
    pub denied: Vec<String>,
    /// They ran and failed, or surely did not begin.
    pub failed: Vec<String>,
    /// They may have happened, and nobody knows.
    pub unknown: Vec<String>,
    /// The turn made no call at all.
    pub none: bool,
}

impl Shown {
    /// One line for people; none where there is nothing to say. `answer` is what the agent said: where it claims something and no
    /// call was made, the line says so.
    #[must_use]
    pub fn line(&self, answer: &str) -> Option<String> {
        let parts = [
            ("done", &self.done),
            ("denied", &self.denied),
            ("failed", &self.failed),
            ("outcome unknown", &self.unknown),
        ];
        let parts: Vec<String> = parts
            .into_iter()
            .filter(|(_, tools)| !tools.is_empty())
            .map(|(word, tools)| format!("{word}: {}", listed(tools)))
            .collect();
        if !parts.is_empty() {
            return Some(format!("Record: {}.", parts.join("; ")));
        }
        (self.none && claims(answer)).then(|| "Record: no action was taken for this answer.".to_owned())
    }

    /// Something went otherwise than an answer may say.
    #[must_use]
    pub const fn contradicts(&self) -> bool {
        !self.denied.is_empty() || !self.failed.is_empty() || !self.unknown.is_empty()
    }
}

/// Whether a text says that something was done.
fn claims(text: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric())
        .any(|word| CLAIMS.contains(&word.to_lowercase().as_str()))
}

/// Tools in their first order, each with how often. A name has no markup: manifests allow letters, digits, `-`, `_` and `.` only.
fn listed(tools: &[String]) -> String {
    let mut counted: Vec<(&String, usize)> = Vec::new();
    for tool in tools {
        match counted.iter_mut().find(|(known, _)| *known == tool) {
            Some((_, count)) => *count += 1,
            None => counted.push((tool, 1)),
        }
    }
    let mut named: Vec<String> = counted
        .iter()
        .take(NAMED)
        .map(|(tool, count)| match count {
            1 => format!("`{}`", tool.replace('`', "'")),
            count => format!("`{}` (×{count})", tool.replace('`', "'")),
        })
        .collect();
    if counted.len() > NAMED {
        named.push(format!("{} more", counted.len() - NAMED));
    }
    named.join(", ")
}

#[derive(Debug, Default, Deserialize)]
struct Fields {
    request_id: Option<RequestId>,
    action_id: Option<String>,
    side_effects: Option<bool>,
    #[serde(default)]
    is_error: bool,
    error_code: Option<String>,
    message_id: Option<uuid::Uuid>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Asked for or begun, and without an end: nobody knows.
    Open {
        begun: bool,
    },
    Done,
    Denied,
    Failed,
    Unknown,
}

#[derive(Debug)]
struct Call {
    request_id: RequestId,
    tool: String,
    pure: bool,
    fate: Fate,
}

/// What the calls of a message's turn came to: those after the turn before it, up to its own end or the end of the record. With
/// `since`, the turn began then.
///
/// # Errors
/// The journal can't be read.
pub(crate) async fn of(
    journal: &dyn Journal,
    session: SessionId,
    message: MessageId,
    since: Option<Timestamp>,
) -> Result<Shown, JournalError> {
    let mut calls: Vec<Call> = Vec::new();
    let mut scan = Scan {
        session: Some(session),
        kinds: KINDS,
        since,
        ..Scan::default()
    };
    'record: loop {
        let page = journal.scan(scan.clone()).await?;
        let Some(last) = page.last() else { break };
        scan.after_row = last.row;
        for event in &page {
            let Ok(fields) = serde_json::from_str::<Fields>(&event.payload) else {
                continue; // silent-ok: a foreign payload is no call of ours
            };
            if event.kind == kind::MESSAGE_ANSWERED || event.kind == kind::MESSAGE_DEAD {
                if fields.message_id == Some(message.0) {
                    break 'record;
                }
                calls.clear();
                continue;
            }
            see(&mut calls, &event.kind, fields);
        }
    }
    let mut shown = Shown {
        none: calls.is_empty(),
        ..Shown::default()
    };
    for call in calls {
        match call.fate {
            Fate::Denied => shown.denied.push(call.tool),
            _ if call.pure && call.fate != Fate::Failed => {}
            Fate::Done => shown.done.push(call.tool),
            Fate::Failed => shown.failed.push(call.tool),
            Fate::Unknown | Fate::Open { begun: true } => shown.unknown.push(call.tool),
            Fate::Open { begun: false } => shown.failed.push(call.tool),
        }
    }
    Ok(shown)
}

/// Tells whoever watches what the turn's calls came to.
pub(crate) async fn tell(calls: &Calls, run: &Run<'_>, message: MessageId, turn: &Turn) {
    // A member's answer is its asker's to judge.
    if run.member.is_some() || !run.notices.attached() {
        return;
    }
    let called = turn
        .messages()
        .iter()
        .any(|said| matches!(said, Message::ToolResult { .. }));
    let shown = if called {
        of(&**calls.scribe.journal(), run.thread.session, message, None).await
    } else {
        Ok(Shown {
            none: true,
            ..Shown::default()
        })
    };
    match shown {
        Ok(shown) => {
            if let Some(line) = shown.line(turn.said()) {
                run.notices.send(Notice::Shown(shown, line)).await;
            }
        }
        Err(error) => tracing::warn!(%error, "what a turn did can't be read"),
    }
}

fn see(calls: &mut Vec<Call>, event: &str, fields: Fields) {
    let Some(request_id) = fields.request_id else {
        return;
    };
    let known = calls.iter_mut().rev().find(|call| call.request_id == request_id);
    if event == kind::ACTION_REQUESTED {
        let goes_on = known.is_some_and(|call| matches!(call.fate, Fate::Open { .. } | Fate::Unknown));
        if !goes_on && calls.len() < MAX_CALLS {
            calls.push(Call {
                request_id,
                tool: fields.action_id.unwrap_or_default(),
                pure: false,
                fate: Fate::Open { begun: false },
            });
        }
        return;
    }
    let Some(call) = known else { return };
    call.fate = match event {
        kind::ACTION_APPROVED => {
            call.pure = fields.side_effects == Some(false);
            Fate::Open { begun: true }
        }
        kind::ACTION_DENIED => Fate::Denied,
        kind::ACTION_EXECUTED if fields.is_error => Fate::Failed,
        kind::ACTION_EXECUTED => Fate::Done,
        kind::ACTION_FAILED if fields.error_code.as_deref().is_some_and(is_unknown) => Fate::Unknown,
        kind::ACTION_FAILED => Fate::Failed,
        _ => return,
    };
}

#[cfg(test)]
mod tests {
    use super::Shown;

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_line_is_quiet_where_nothing_is_to_be_said() {
        let quiet = Shown {
            none: true,
            ..Shown::default()
        };
        assert_eq!(quiet.line("The weather is fine."), None);
        assert_eq!(
            quiet.line("Abandoned ships transcend."),
            None,
            "no claim hides in a longer word"
        );
        assert_eq!(
            quiet.line("Done!").as_deref(),
            Some("Record: no action was taken for this answer.")
        );
        let read = Shown::default();
        assert_eq!(read.line("Done!"), None, "calls were made, and none had effects");
        let shown = Shown {
            done: names(&["a", "b", "a"]),
            unknown: names(&["c"]),
            ..Shown::default()
        };
        assert_eq!(
            shown.line("").as_deref(),
            Some("Record: done: `a` (×2), `b`; outcome unknown: `c`.")
        );
        let many = Shown {
            done: names(&["a", "b", "c", "d", "e", "f", "g"]),
            ..Shown::default()
        };
        assert!(many.line("").unwrap().ends_with("`e`, 2 more."));
    }
}
