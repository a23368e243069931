//! An answer while it is being written (C6): where messages can be edited, one message is sent after a moment and edited at the
//! platform's pace. The outbox's delivery is its last edit; it alone decides what the answer is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::Delivery;
use clawk_kernel::{SessionNotice, Watcher};
use clawk_proto::MessageId;
use tokio::time::Instant;

use crate::adapter::{ChannelAdapter, OutboundMessage};
use crate::markup::dress;
use crate::split::text_length;

/// A quicker answer is sent whole.
const FIRST: Duration = Duration::from_millis(1_500);
/// Between two edits; platforms allow about one a second.
const PACE: Duration = Duration::from_millis(1_500);
/// How long one edit may take.
const EDIT: Duration = Duration::from_secs(10);
/// How long a conversation is followed without anything new.
const QUIET: Duration = Duration::from_secs(600);
/// Conversations that are followed at a time, for each channel.
const MAX_FOLLOWED: usize = 64;
/// Answers that are shown and not delivered yet.
const MAX_SHOWN: usize = 1_024;

#[derive(Debug, Default)]
struct State {
    /// Messages whose turns have not ended as their follower knows, by conversation.
    waiting: HashMap<String, HashSet<MessageId>>,
    /// The platform's ids of messages that are being written, the oldest first.
    shown: BTreeMap<MessageId, String>,
    /// Messages that the platform may or may not have, the oldest first: their sending was not answered.
    doubtful: BTreeMap<MessageId, OutboundMessage>,
    /// Answers that the outbox delivers, and whose follower does not know yet that they are over. Only the outbox edits these.
    ///
    /// INVARIANT: each is in `waiting`, too, which bounds both. What a follower has let go it never shows again.
    over: HashSet<MessageId>,
}

impl State {
    fn is_followed(&self, message: MessageId) -> bool {
        self.waiting.values().any(|waiting| waiting.contains(&message))
    }

    /// The follower has seen the end of a turn. Returns whether it waits for another one; else it ends.
    fn finish_turn(&mut self, conversation: &str, message: MessageId) -> bool {
        self.over.remove(&message);
        let Some(waiting) = self.waiting.get_mut(conversation) else {
            return false;
        };
        waiting.remove(&message);
        if waiting.is_empty() {
            self.waiting.remove(conversation);
            return false;
        }
        true
    }

    /// Nobody follows this conversation any more.
    fn remove_follower(&mut self, conversation: &str) {
        for message in self.waiting.remove(conversation).into_iter().flatten() {
            self.over.remove(&message);
        }
    }
}

/// What is being written in one channel.
#[derive(Debug, Default)]
pub(crate) struct LiveAnswers {
    state: Mutex<State>,
    /// Held while the platform is told something: an edit never comes after the last one.
    alone: tokio::sync::Mutex<()>,
}

/// What the platform has of an answer that was shown while it was being written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShownAnswer {
    /// Nothing.
    Nothing,
    /// The message with this id of the platform's.
    Message(String),
    /// Perhaps this message: its sending was not answered.
    Perhaps(OutboundMessage),
}

/// What is written in one turn.
#[derive(Debug)]
struct AnswerDraft {
    message: MessageId,
    text: String,
    /// What comes next begins a text of its own.
    ended: bool,
    changed: bool,
    given_up: bool,
    next: Instant,
}

impl LiveAnswers {
    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message was accepted. Returns `true` when its conversation has no follower yet: the caller must call [`Self::follow_session`] or
    /// [`Self::cancel_follow`]. It comes before the follower's watcher is made, so that an answer that the follower can see is one that
    /// [`Self::take_over_answer`] knows to be followed.
    pub(crate) fn expect_answer(&self, conversation: &str, message: MessageId) -> bool {
        let mut state = self.lock_state();
        if let Some(waiting) = state.waiting.get_mut(conversation) {
            waiting.insert(message);
            return false;
        }
        if state.waiting.len() >= MAX_FOLLOWED {
            return false;
        }
        state
            .waiting
            .insert(conversation.to_owned(), HashSet::from([message]));
        true
    }

    /// What the platform shows of an answer. From here on, only the caller edits it.
    pub(crate) async fn take_over_answer(&self, message: MessageId) -> ShownAnswer {
        let _alone = self.alone.lock().await;
        let mut state = self.lock_state();
        if state.is_followed(message) {
            state.over.insert(message);
        }
        match (state.shown.get(&message), state.doubtful.get(&message)) {
            (Some(id), _) => ShownAnswer::Message(id.clone()),
            (None, Some(out)) => ShownAnswer::Perhaps(out.clone()),
            (None, None) => ShownAnswer::Nothing,
        }
    }

    /// Whether the platform may show a part of an answer under an id that is not known.
    pub(crate) fn is_doubtful(&self, message: MessageId) -> bool {
        self.lock_state().doubtful.contains_key(&message)
    }

    /// The platform has told which message it is.
    pub(crate) fn set_message_id(&self, message: MessageId, id: String) {
        let mut state = self.lock_state();
        state.doubtful.remove(&message);
        state.shown.insert(message, id);
    }

    /// The conversation is not followed after all.
    pub(crate) fn cancel_follow(&self, conversation: &str) {
        self.lock_state().remove_follower(conversation);
    }

    /// The message that was being written is the answer now, or is gone.
    pub(crate) fn forget_message(&self, message: MessageId) {
        let mut state = self.lock_state();
        state.shown.remove(&message);
        state.doubtful.remove(&message);
    }

    /// Follows a session until all turns that are waited for have ended.
    pub(crate) async fn follow_session(
        &self,
        watcher: Watcher,
        adapter: Arc<dyn ChannelAdapter>,
        conversation: String,
        first: MessageId,
    ) {
        let begin = |message| AnswerDraft {
            message,
            text: String::new(),
            ended: false,
            changed: false,
            given_up: false,
            next: Instant::now() + FIRST,
        };
        // Its start may have been told before anybody watched.
        let mut writing = begin(first);
        loop {
            let look = if writing.changed && !writing.given_up {
                writing.next
            } else {
                Instant::now() + QUIET
            };
            tokio::select! {
                notice = watcher.next() => match notice {
                    None => break,
                    Some(SessionNotice::TurnStarted { message }) => writing = begin(message),
                    Some(SessionNotice::Delta(piece)) => {
                        if std::mem::take(&mut writing.ended) {
                            writing.text.clear();
                        }
                        writing.text.push_str(&piece);
                        writing.changed = true;
                    }
                    Some(SessionNotice::Said(_)) => writing.ended = true,
                    Some(SessionNotice::TurnEnded { message, .. }) => {
                        writing.given_up |= writing.message == message;
                        if !self.lock_state().finish_turn(&conversation, message) {
                            return;
                        }
                    }
                    Some(_) => {}
                },
                () = tokio::time::sleep_until(look) => {
                    if !writing.changed {
                        break;
                    }
                    self.show_draft(&*adapter, &conversation, &mut writing).await;
                }
            }
        }
        self.cancel_follow(&conversation);
    }

    async fn show_draft(&self, adapter: &dyn ChannelAdapter, conversation: &str, writing: &mut AnswerDraft) {
        writing.changed = false;
        let abilities = adapter.capabilities();
        let markdown = format!("{} …", writing.text);
        let text = dress(&markdown, abilities.markup);
        if writing.text.trim().is_empty() || text_length(&text, abilities.limit.1) > abilities.limit.0 {
            return;
        }
        let _alone = self.alone.lock().await;
        let known = {
            let state = self.lock_state();
            if state.over.contains(&writing.message) {
                writing.given_up = true;
                return;
            }
            state.shown.get(&writing.message).cloned()
        };
        let out = OutboundMessage {
            id: format!("{}.live", writing.message),
            conversation: conversation.to_owned(),
            reply_to: None,
            text,
            markdown,
            files: Vec::new(),
        };
        let told = async {
            match &known {
                Some(id) => adapter.edit_message(id, &out).await,
                None => adapter.send_message(&out).await,
            }
        };
        match tokio::time::timeout(EDIT, told).await {
            Ok(Delivery::Delivered { platform_id }) => {
                writing.next = Instant::now() + PACE;
                match (known, platform_id) {
                    (None, Some(id)) => {
                        let mut state = self.lock_state();
                        if state.shown.len() >= MAX_SHOWN {
                            // An answer that was never delivered; if it is one day, it is sent anew.
                            state.shown.pop_first();
                        }
                        state.shown.insert(writing.message, id);
                    }
                    // A message that can't be named can't be edited.
                    (None, None) => writing.given_up = true,
                    (Some(_), _) => {}
                }
            }
            Ok(Delivery::Retry { after_ms, .. }) => {
                writing.changed = true;
                writing.next = Instant::now() + after_ms.map_or(PACE * 4, Duration::from_millis).max(PACE);
            }
            Ok(Delivery::Failed { .. }) => writing.given_up = true,
            Ok(Delivery::Unknown { .. }) | Err(_) => {
                writing.given_up = true;
                // An edit that was not answered leaves the message that is known.
                if known.is_none() {
                    let mut state = self.lock_state();
                    if state.doubtful.len() >= MAX_SHOWN {
                        state.doubtful.pop_first();
                    }
                    state.doubtful.insert(writing.message, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clawk_proto::MessageId;

    use super::{LiveAnswers, ShownAnswer};

    fn message(n: u32) -> MessageId {
        serde_json::from_value(serde_json::json!(format!("00000000-0000-7000-8000-{n:012}"))).unwrap()
    }

    #[tokio::test]
    async fn an_answer_that_is_delivered_is_never_shown_again_however_many_come_after_it() {
        let live = LiveAnswers::default();
        assert!(live.expect_answer("ann", message(1)));
        assert!(!live.expect_answer("ann", message(2)), "one follower");
        assert_eq!(live.take_over_answer(message(1)).await, ShownAnswer::Nothing);
        for n in 10..5_000 {
            let _not_shown = live.take_over_answer(message(n)).await;
        }
        assert!(live.lock_state().over.contains(&message(1)));
        assert_eq!(live.lock_state().over.len(), 1, "nobody follows the others");
        // Its follower sees its end, and lets it go.
        assert!(
            live.lock_state().finish_turn("ann", message(1)),
            "another turn is waited for"
        );
        assert!(live.lock_state().over.is_empty());
        assert!(!live.lock_state().finish_turn("ann", message(2)));
        assert!(live.lock_state().waiting.is_empty());
        assert!(live.expect_answer("ann", message(3)));
        let _not_shown = live.take_over_answer(message(3)).await;
        live.cancel_follow("ann");
        assert!(live.lock_state().waiting.is_empty() && live.lock_state().over.is_empty());
    }
}
