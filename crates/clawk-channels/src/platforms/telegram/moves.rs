//! What Telegram names as the reason of a refusal, and groups that have another id since they became supergroups.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::message::TelegramMessage;
use crate::adapter::InboundPipeline;

/// Groups that are remembered.
const MAX_MOVES: usize = 10_000;

/// The reason of a refusal, by which the request is changed or given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TelegramRefusal {
    /// The group is a supergroup with this id now.
    Moved(i64),
    /// The topic is gone or closed: the group itself takes the message.
    ThreadGone,
    /// The message that is answered is gone.
    RepliedGone,
    /// The markup can't be read.
    Markup,
    /// An edit that changes nothing.
    NotModified,
    /// Nobody will ever get it: why.
    Final(&'static str),
    /// No refusal, or one whose status says enough.
    Other,
}

/// Parts of the platform's descriptions, in small letters, and what they mean. The first one that is found counts.
const REFUSALS: &[(&str, TelegramRefusal)] = &[
    ("message thread not found", TelegramRefusal::ThreadGone),
    ("topic_deleted", TelegramRefusal::ThreadGone),
    ("topic_closed", TelegramRefusal::ThreadGone),
    ("topic deleted", TelegramRefusal::ThreadGone),
    ("topic closed", TelegramRefusal::ThreadGone),
    ("topic_id_invalid", TelegramRefusal::ThreadGone),
    ("message to be replied not found", TelegramRefusal::RepliedGone),
    ("message to reply not found", TelegramRefusal::RepliedGone),
    ("replied message not found", TelegramRefusal::RepliedGone),
    ("reply message not found", TelegramRefusal::RepliedGone),
    ("reply_message_id_invalid", TelegramRefusal::RepliedGone),
    ("can't parse entities", TelegramRefusal::Markup),
    ("can't parse message text", TelegramRefusal::Markup),
    ("entity_bounds_invalid", TelegramRefusal::Markup),
    ("message is not modified", TelegramRefusal::NotModified),
    ("message_not_modified", TelegramRefusal::NotModified),
    (
        "bot was blocked",
        TelegramRefusal::Final("the person has blocked the bot"),
    ),
    (
        "user is deactivated",
        TelegramRefusal::Final("the person's account is deleted"),
    ),
    (
        "bot was kicked",
        TelegramRefusal::Final("the bot was removed from the chat"),
    ),
    (
        "bot is not a member",
        TelegramRefusal::Final("the bot is not in the chat"),
    ),
    (
        "group chat was deleted",
        TelegramRefusal::Final("the group is deleted"),
    ),
    (
        "group chat was deactivated",
        TelegramRefusal::Final("the group is deleted"),
    ),
    (
        "chat not found",
        TelegramRefusal::Final("the chat is not there, or the bot never was in it"),
    ),
    (
        "peer_id_invalid",
        TelegramRefusal::Final("the chat is not there, or the bot never was in it"),
    ),
    (
        "can't initiate conversation",
        TelegramRefusal::Final("the person has to write to the bot first"),
    ),
    (
        "can't send messages to bots",
        TelegramRefusal::Final("bots get no messages of bots"),
    ),
    (
        "can't send messages to the bot",
        TelegramRefusal::Final("bots get no messages of bots"),
    ),
    (
        "not enough rights",
        TelegramRefusal::Final("the bot may not write in the chat"),
    ),
    (
        "have no rights to send",
        TelegramRefusal::Final("the bot may not write in the chat"),
    ),
    (
        "chat_write_forbidden",
        TelegramRefusal::Final("the bot may not write in the chat"),
    ),
    (
        "chat_restricted",
        TelegramRefusal::Final("the bot may not write in the chat"),
    ),
    (
        "message is too long",
        TelegramRefusal::Final("the message is too long for the platform"),
    ),
    (
        "message_too_long",
        TelegramRefusal::Final("the message is too long for the platform"),
    ),
    (
        "request entity too large",
        TelegramRefusal::Final("the file is too large for the platform"),
    ),
    (
        "file is too big",
        TelegramRefusal::Final("the file is too large for the platform"),
    ),
    (
        "user not found",
        TelegramRefusal::Final("the platform knows no such person"),
    ),
    (
        "need administrator rights",
        TelegramRefusal::Final("the bot may not write in the chat"),
    ),
];

/// Reads the platform's answer.
pub(super) fn refusal(status: u16, body: &Value) -> TelegramRefusal {
    if !(400..500).contains(&status) || status == 429 {
        return TelegramRefusal::Other;
    }
    if let Some(to) = body
        .pointer("/parameters/migrate_to_chat_id")
        .and_then(Value::as_i64)
    {
        return TelegramRefusal::Moved(to);
    }
    let said = body
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let said = said.to_lowercase().replace('\u{2019}', "'");
    let known = REFUSALS.iter().find(|(words, _)| said.contains(words));
    known.map_or(TelegramRefusal::Other, |(_, refusal)| *refusal)
}

/// Groups that became supergroups. Their conversations keep the first id as their name, so that session, schedules and grants stay.
#[derive(Debug, Default)]
pub(super) struct TelegramGroupMoves(Mutex<TelegramMoveState>);

#[derive(Debug, Default)]
struct TelegramMoveState {
    /// The id now, by the first one.
    moved: BTreeMap<String, String>,
    /// There is something new, which is not kept yet.
    fresh: bool,
}

/// As it is kept beside the channel.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredTelegramMoves {
    moved: BTreeMap<String, String>,
}

impl TelegramGroupMoves {
    fn lock(&self) -> MutexGuard<'_, TelegramMoveState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what earlier runs of the agent learnt.
    pub(super) fn restore_moves(&self, inlet: &InboundPipeline) {
        let kept = inlet.read_cursor().map(|text| {
            let text = text.unwrap_or_else(|| "{}".to_owned());
            serde_json::from_str::<StoredTelegramMoves>(&text)
        });
        match kept {
            Ok(Ok(kept)) => {
                let mut known = self.lock();
                for (from, to) in kept.moved {
                    known.moved.entry(from).or_insert(to);
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "which groups have moved can't be read; it is learnt again")
            }
            Err(error) => tracing::warn!(%error, "which groups have moved can't be read; it is learnt again"),
        }
    }

    /// Keeps what is new, durably.
    pub(super) fn save_moves(&self, inlet: &InboundPipeline) {
        let kept = {
            let mut known = self.lock();
            if !std::mem::take(&mut known.fresh) {
                return;
            }
            StoredTelegramMoves {
                moved: known.moved.clone(),
            }
        };
        let text = serde_json::to_string(&kept).map_err(std::io::Error::other);
        if let Err(error) = text.and_then(|text| inlet.set_cursor(&text)) {
            tracing::warn!(%error, "that a group has moved can't be kept; it is learnt again after the next start");
            self.lock().fresh = true;
        }
    }

    /// A group has another id from now on.
    pub(super) fn add_move(&self, from: &str, to: &str) {
        if from.is_empty() || from == to {
            return;
        }
        let mut known = self.lock();
        // A group that moved before is known by its first id.
        let first = known.moved.iter().find(|(_, now)| *now == from);
        let first = first.map_or_else(|| from.to_owned(), |(first, _)| first.clone());
        if first == to
            || known.moved.len() >= MAX_MOVES
            || known.moved.get(&first).is_some_and(|now| now == to)
        {
            return;
        }
        known.moved.insert(first, to.to_owned());
        known.fresh = true;
    }

    /// Learns from the platform's notes in the old group and in the new one.
    pub(super) fn learn_from_message(&self, message: &TelegramMessage) {
        let chat = message.chat.id.to_string();
        if let Some(to) = message.migrate_to_chat_id {
            self.add_move(&chat, &to.to_string());
        }
        if let Some(from) = message.migrate_from_chat_id {
            self.add_move(&from.to_string(), &chat);
        }
    }

    /// The id that a chat has now.
    pub(super) fn current_id(&self, chat: &str) -> String {
        let known = self.lock();
        known.moved.get(chat).cloned().unwrap_or_else(|| chat.to_owned())
    }

    /// The id that a chat had first.
    pub(super) fn first_id(&self, chat: &str) -> String {
        let known = self.lock();
        let first = known.moved.iter().find(|(_, now)| *now == chat);
        first.map_or_else(|| chat.to_owned(), |(first, _)| first.clone())
    }
}

#[cfg(test)]
mod tests;
