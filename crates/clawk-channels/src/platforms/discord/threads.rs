//! Discord's threads: one is begun from a message, and has the message's id. It is made when the first answer goes out; until then only
//! the channel in which it will stand is remembered, durably with the gateway's position, so that a crash in between loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_kernel::ports::Delivery;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::refusals;
use super::{DiscordAdapter, delivery_from_response, error_text, is_snowflake, messages_path};
use crate::adapter::PlatformMessage;
use crate::api::{PlatformFailure, PlatformResponse};
use crate::plain_name::harmless;
use crate::platform_kit::refusals::MessageRefusal;

/// Threads that are remembered; the oldest ids go first.
const REMEMBERED: usize = 1_000;
/// Characters of a thread's name; the platform takes 100.
const NAME_CHARS: usize = 60;
/// Minutes after which the platform hides a thread in which nothing is said; one of the four values that it takes.
const HIDDEN_AFTER_MINUTES: u32 = 1_440;
/// Types of channels in which a message can begin a thread: text and announcements.
const OPEN_KINDS: [u64; 2] = [0, 5];
/// The message has a thread already.
const ALREADY: u64 = 160_004;

/// A thread that begins at a message.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Thread {
    /// The channel of the message.
    parent: String,
    name: String,
}

/// By the message's id.
pub(super) type ThreadsByMessage = BTreeMap<String, Thread>;

/// What this run found out.
#[derive(Debug, Default)]
pub(super) struct DiscordThreadFacts {
    /// Whether a message in a channel can begin a thread.
    kinds: BTreeMap<String, bool>,
    /// Threads that are there.
    made: BTreeSet<String>,
    /// Threads that the platform does not let the bot make: answers go to the channel.
    refused: BTreeSet<String>,
}

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that a message begins; `None` where none can begin.
pub(super) async fn begin(discord: &DiscordAdapter, incoming: &PlatformMessage) -> Option<String> {
    let (id, parent) = (incoming.ids.first()?, &incoming.conversation);
    if !is_snowflake(id) || !is_snowflake(parent) || !holds(discord, parent).await {
        return None;
    }
    discord.with_threads(|begun| {
        while begun.len() >= REMEMBERED {
            begun.pop_first();
        }
        let thread = Thread {
            parent: parent.clone(),
            name: name(&incoming.text),
        };
        begun.entry(id.clone()).or_insert(thread);
    });
    Some(id.clone())
}

/// Whether a message in this channel can begin a thread. A thread is a channel itself, and holds none.
async fn holds(discord: &DiscordAdapter, channel: &str) -> bool {
    let known = lock(discord.thread_facts()).kinds.get(channel).copied();
    if let Some(known) = known {
        return known;
    }
    let asked = discord
        .send_request(Method::GET, &format!("channels/{channel}"), None)
        .await;
    let kind = match &asked {
        Ok(answer) if answer.status.is_success() => answer.body.get("type").and_then(Value::as_u64),
        Ok(answer) => {
            tracing::debug!(reason = error_text(answer), "a channel's type can't be read");
            None
        }
        Err(_) => None,
    };
    let Some(kind) = kind else { return false };
    let holds = OPEN_KINDS.contains(&kind);
    let mut known = lock(discord.thread_facts());
    if known.kinds.len() >= REMEMBERED {
        known.kinds.clear();
    }
    known.kinds.insert(channel.to_owned(), holds);
    holds
}

/// The words of the message in one line, without what names people.
fn name(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !word.starts_with("<@"));
    let line: String = harmless(&words.collect::<Vec<_>>().join(" "))
        .chars()
        .take(NAME_CHARS)
        .collect();
    if line.trim().is_empty() {
        "Conversation".to_owned()
    } else {
        line
    }
}

/// The platform refuses because the thread is locked or archived.
pub(super) fn is_gone(answer: &Result<PlatformResponse, PlatformFailure>) -> bool {
    answer.as_ref().is_ok_and(|answer| {
        refusals::discord_refusal(answer.status.as_u16(), &answer.body) == MessageRefusal::ThreadGone
    })
}

/// Discord's types of channels that are threads everybody in the channel may read.
const ANNOUNCEMENT_THREAD: u64 = 10;
const PUBLIC_THREAD: u64 = 11;

/// The path of the messages of the channel in which a public thread stands, by the path of the thread's own. `None`: the platform does not say.
pub(super) async fn channel_of(discord: &DiscordAdapter, messages_of_thread: &str) -> Option<String> {
    let thread = messages_of_thread.strip_suffix("/messages")?;
    let asked = discord.send_request(Method::GET, thread, None).await;
    let channel = asked.ok().filter(|channel| channel.status.is_success())?; // silent-ok: the refusal is told then
    // A private thread's words are not for its channel.
    let kind = channel.body.get("type").and_then(serde_json::Value::as_u64);
    if !matches!(kind, Some(ANNOUNCEMENT_THREAD | PUBLIC_THREAD)) {
        return None;
    }
    messages_path(channel.text("/parent_id")?).ok() // silent-ok: an id that is no number is none
}

/// Where a message of a conversation is now: its channel, where its thread is not made.
pub(super) fn stands(discord: &DiscordAdapter, conversation: &str) -> String {
    let parent = discord.with_threads(|begun| begun.get(conversation).map(|thread| thread.parent.clone()));
    match parent {
        Some(parent) if !lock(discord.thread_facts()).made.contains(conversation) => parent,
        Some(_) | None => conversation.to_owned(),
    }
}

/// The channel of the message at which a thread begins; else the conversation itself.
pub(super) fn of_message(discord: &DiscordAdapter, conversation: &str, id: &str) -> String {
    let begins = conversation == id;
    let parent = discord.with_threads(|begun| begun.get(id).map(|thread| thread.parent.clone()));
    parent
        .filter(|_| begins)
        .unwrap_or_else(|| conversation.to_owned())
}

/// The channel to which a message of a conversation is sent. A thread that was only begun is made now.
///
/// # Errors
/// The thread could not be made now: nothing was sent, and making it twice is making it once.
pub(super) async fn place(discord: &DiscordAdapter, conversation: &str) -> Result<String, Delivery> {
    let thread = discord.with_threads(|begun| begun.get(conversation).cloned());
    let Some(thread) = thread else {
        return Ok(conversation.to_owned());
    };
    {
        let known = lock(discord.thread_facts());
        if known.made.contains(conversation) {
            return Ok(conversation.to_owned());
        }
        if known.refused.contains(conversation) {
            return Ok(thread.parent);
        }
    }
    let path = format!("channels/{}/messages/{conversation}/threads", thread.parent);
    let body = json!({"name": thread.name, "auto_archive_duration": HIDDEN_AFTER_MINUTES});
    let asked = discord.send_request(Method::POST, &path, Some(&body)).await;
    let there = matches!(&asked, Ok(answer) if answer.status.is_success()
        || answer.body.get("code").and_then(Value::as_u64) == Some(ALREADY));
    let made = match (there, delivery_from_response(asked)) {
        (true, _) => true,
        (false, Delivery::Failed { reason }) => {
            tracing::warn!(reason, "a thread can't be made; the answer goes to the channel");
            false
        }
        (false, Delivery::Retry { after_ms, reason }) => return Err(Delivery::Retry { after_ms, reason }),
        (false, Delivery::Unknown { reason }) => {
            return Err(Delivery::Retry {
                after_ms: None,
                reason,
            });
        }
        (false, Delivery::Delivered { .. }) => false,
    };
    if made {
        discord.follow_thread(conversation);
    }
    let mut known = lock(discord.thread_facts());
    let kept = if made { &mut known.made } else { &mut known.refused };
    if kept.len() >= REMEMBERED {
        kept.clear();
    }
    kept.insert(conversation.to_owned());
    Ok(if made {
        conversation.to_owned()
    } else {
        thread.parent
    })
}
