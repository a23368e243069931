//! What the stand-in model says. It follows from the conversation that it is shown alone, so that any vendor can go on with another
//! one's turn; a conversation that lost or doubled something is refused.

use serde_json::Value;

/// One entry of a conversation, whatever the dialect.
#[derive(Debug, Clone)]
pub(crate) enum StoryEntry {
    User(String),
    Assistant { text: String, calls: Vec<StoryCall> },
    ToolResult { call_id: String, text: String },
}

#[derive(Debug, Clone)]
pub(crate) struct StoryCall {
    pub(crate) id: String,
    pub(crate) arguments: Value,
}

/// What is said next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NextAnswer {
    /// Reads files by these numbers.
    Calls(Vec<u32>),
    Words(String),
}

/// Where a conversation stands, and what is said there.
#[derive(Debug, Clone)]
pub(crate) struct StoryPlace {
    pub(crate) task: u32,
    /// 0: nothing is said in this turn yet.
    pub(crate) step: u32,
    pub(crate) next: NextAnswer,
}

/// The words of a task: how many files are to be read, one after the other.
pub(crate) fn task_words(task: u32, steps: u32) -> String {
    format!("task {task}: read {steps} files, please.")
}

/// What the turn of a task ends with.
pub(crate) fn task_answer(task: u32) -> String {
    format!("answer {task}: all is read.")
}

/// The file of this number, and its text.
pub(crate) fn file_name(number: u32) -> String {
    format!("n{number}.txt")
}

pub(crate) fn file_text(number: u32) -> String {
    format!("This is file {number}. It has a few words, as files do.")
}

/// Every third step reads two files at once.
const fn files_of(step: u32) -> [Option<u32>; 2] {
    let second = if step % 3 == 2 { Some(100 + step) } else { None };
    [Some(step), second]
}

fn task_of(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.rsplit_once("task ")?;
    let (task, rest) = rest.split_once(": read ")?;
    let steps = rest.split(' ').next()?;
    Some((task.parse().ok()?, steps.parse().ok()?))
}

fn number_of(call: &StoryCall) -> Result<u32, String> {
    let path = call.arguments["path"].as_str();
    path.and_then(|path| path.strip_prefix('n')?.strip_suffix(".txt")?.parse().ok())
        .ok_or_else(|| format!("story: arguments were changed: {}", call.arguments))
}

/// Where this conversation stands.
///
/// # Errors
/// A turn is missing, doubled or out of order, or a result is not that of its call.
pub(crate) fn find_place(entries: &[StoryEntry]) -> Result<StoryPlace, String> {
    let mut open: Option<(u32, u32, u32)> = None;
    let mut calls: Vec<StoryCall> = Vec::new();
    for entry in entries {
        match entry {
            StoryEntry::User(text) => {
                let Some((task, steps)) = task_of(text) else {
                    continue;
                };
                if let Some((before, _, _)) = open {
                    if task != before + 1 {
                        return Err(format!("story: task {task} stands behind task {before}"));
                    }
                    return_unless_answered(entries, before)?;
                }
                open = Some((task, steps, 0));
            }
            StoryEntry::Assistant { calls: asked, .. } => {
                let (Some((_, _, step)), Some(first)) = (open.as_mut(), asked.first()) else {
                    continue;
                };
                let number = number_of(first)?;
                // Earlier steps may be left out where a window is small; none may come twice or out of order.
                if number < *step {
                    return Err(format!("story: step {number} stands behind step {}", *step));
                }
                *step = number + 1;
                calls.extend(asked.iter().cloned());
            }
            StoryEntry::ToolResult { call_id, text } => {
                let at = calls.iter().position(|call| call.id == *call_id);
                let call = calls.remove(at.ok_or_else(|| format!("story: no call {call_id}"))?);
                let number = number_of(&call)?;
                let is_whole = text.contains(&file_text(number));
                if !is_whole && !text.contains('[') {
                    return Err(format!("story: file {number} was read as `{text}`"));
                }
            }
        }
    }
    if let Some(call) = calls.first() {
        return Err(format!("story: call {} has no result", call.id));
    }
    let (task, steps, step) = open.ok_or("story: no task is asked")?;
    let next = match step < steps {
        true => NextAnswer::Calls(files_of(step).into_iter().flatten().collect()),
        false => NextAnswer::Words(task_answer(task)),
    };
    Ok(StoryPlace { task, step, next })
}

fn return_unless_answered(entries: &[StoryEntry], task: u32) -> Result<(), String> {
    let answer = task_answer(task);
    let count = entries
        .iter()
        .filter(|entry| matches!(entry, StoryEntry::Assistant { text, .. } if text.contains(&answer)));
    match count.count() {
        1 => Ok(()),
        count => Err(format!("story: task {task} is answered {count} times")),
    }
}
