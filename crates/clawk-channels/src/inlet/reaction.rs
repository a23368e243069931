//! A reaction on a message while it is worked on (`features.reactions`). It is only shown: it comes after the message is durable, nobody
//! waits for it, and a platform that refuses it is written to the log at level debug.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::{ASIDE_MS, InboundPipeline};
use crate::adapter::PlatformMessage;

/// Reactions of one channel at a time; beyond, the oldest one is taken away.
const MOST: usize = 256;
/// Requests about reactions that are under way at a time, for each channel.
const AT_ONCE: usize = 4;

/// One reaction.
#[derive(Debug)]
struct MessageReaction {
    conversation: String,
    id: String,
    stage: ReactionStage,
}

#[derive(Debug)]
enum ReactionStage {
    /// The platform is being asked.
    Coming,
    /// The answer was quicker.
    Over,
    /// It is there; with what the platform calls it.
    Shown(Option<String>),
}

/// The reactions of one channel.
#[derive(Debug)]
pub(super) struct ReactionRegistry {
    all: Mutex<VecDeque<MessageReaction>>,
    at_once: Semaphore,
}

impl Default for ReactionRegistry {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            at_once: Semaphore::new(AT_ONCE),
        }
    }
}

impl ReactionRegistry {
    fn lock_reactions(&self) -> MutexGuard<'_, VecDeque<MessageReaction>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reaction is being put on a message. Returns an older one that has to go for it.
    fn begin_reaction(&self, incoming: &PlatformMessage, id: &str) -> Option<MessageReaction> {
        let mut all = self.lock_reactions();
        let oldest = if all.len() >= MOST { all.pop_front() } else { None };
        all.push_back(MessageReaction {
            conversation: incoming.conversation.clone(),
            id: id.to_owned(),
            stage: ReactionStage::Coming,
        });
        oldest
    }

    /// The platform took it, or not. Returns `true` if it has to go again: its answer was quicker, or it is one too many.
    fn confirm_reaction(&self, id: &str, mark: Option<&Option<String>>) -> bool {
        let mut all = self.lock_reactions();
        let Some(at) = all.iter().position(|reaction| reaction.id == id) else {
            return mark.is_some();
        };
        let over = all
            .get(at)
            .is_some_and(|reaction| matches!(reaction.stage, ReactionStage::Over));
        match mark {
            Some(mark) if !over => {
                if let Some(reaction) = all.get_mut(at) {
                    reaction.stage = ReactionStage::Shown(mark.clone());
                }
                false
            }
            _ => {
                all.remove(at);
                over && mark.is_some()
            }
        }
    }

    /// The message has its answer. Returns the reaction that has to go; `None` if it was not shown yet.
    fn end_reaction(&self, conversation: &str, id: &str) -> Option<MessageReaction> {
        let mut all = self.lock_reactions();
        let Some(at) = all.iter().position(|reaction| reaction.id == id) else {
            // Perhaps an earlier run of the agent put one.
            return Some(MessageReaction {
                conversation: conversation.to_owned(),
                id: id.to_owned(),
                stage: ReactionStage::Over,
            });
        };
        if let Some(reaction) = all.get_mut(at)
            && !matches!(reaction.stage, ReactionStage::Shown(_))
        {
            reaction.stage = ReactionStage::Over;
            return None;
        }
        all.remove(at)
    }
}

impl InboundPipeline {
    fn shows_reactions(&self) -> bool {
        self.channel.features.reactions == Some(true) && self.platform.reacts
    }

    /// Shows by a reaction that a message that was accepted is worked on, where the manifest asks for it and the platform can. In a
    /// flood, messages that find no place get none.
    pub(super) fn show_reaction(&self, incoming: &PlatformMessage) {
        let (Some(adapter), Some(id)) = (self.adapter(), incoming.ids.first()) else {
            return;
        };
        if !self.shows_reactions() || self.reactions.at_once.available_permits() == 0 {
            return;
        }
        if let Some(oldest) = self.reactions.begin_reaction(incoming, id) {
            self.take_away(oldest);
        }
        let (reactions, conversation, id) = (
            Arc::clone(&self.reactions),
            incoming.conversation.clone(),
            id.clone(),
        );
        self.spawn_task(async move {
            let Ok(_place) = reactions.at_once.acquire().await else {
                return;
            };
            let shown = with_timeout(adapter.add_reaction(&conversation, &id)).await;
            let mark = match &shown {
                Ok(mark) => Some(mark),
                Err(reason) => {
                    tracing::debug!(reason, "a reaction could not be shown");
                    None
                }
            };
            if reactions.confirm_reaction(&id, mark) {
                let mark = mark.and_then(Option::as_deref);
                log_failure(with_timeout(adapter.remove_reaction(&conversation, &id, mark)).await);
            }
        });
    }

    /// The message has its answer, or never gets one: the reaction goes.
    pub(crate) fn hide_reaction(&self, conversation: &str, id: &str) {
        if self.shows_reactions()
            && let Some(reaction) = self.reactions.end_reaction(conversation, id)
        {
            self.take_away(reaction);
        }
    }

    fn take_away(&self, reaction: MessageReaction) {
        let Some(adapter) = self.adapter() else { return };
        let reactions = Arc::clone(&self.reactions);
        let mark = match reaction.stage {
            ReactionStage::Shown(mark) => mark,
            // Not known to be there: it is tried only where nothing else waits.
            ReactionStage::Coming | ReactionStage::Over if reactions.at_once.available_permits() == 0 => {
                return;
            }
            ReactionStage::Coming | ReactionStage::Over => None,
        };
        self.spawn_task(async move {
            let Ok(_place) = reactions.at_once.acquire().await else {
                return;
            };
            let gone = adapter.remove_reaction(&reaction.conversation, &reaction.id, mark.as_deref());
            log_failure(with_timeout(gone).await);
        });
    }
}

/// A request that runs by itself. Nothing waits for its end.
async fn with_timeout<T>(asked: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let asked = tokio::time::timeout(Duration::from_millis(ASIDE_MS), asked);
    asked
        .await
        .unwrap_or_else(|_late| Err("the platform did not answer in time".to_owned()))
}

fn log_failure(gone: Result<(), String>) {
    if let Err(reason) = gone {
        tracing::debug!(reason, "a reaction could not be taken away");
    }
}
