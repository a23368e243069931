//! The latest messages of a channel, in memory: platforms that name the message which is answered by its id alone do not repeat its
//! words. After a restart the agent knows none of them, and an answer is told without what it answers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_kernel::ports::{QuoteAuthor, QuoteKind, QuotedText};

use crate::adapter::PlatformMessage;

/// Messages of one channel.
const MOST: usize = 2_000;
/// Characters of one of them.
const MAX_CHARS: usize = 2_000;

/// Who wrote a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Writer {
    Agent,
    Person {
        id: Option<String>,
        name: Option<String>,
    },
}

#[derive(Debug)]
struct RecentMessage {
    conversation: String,
    writer: Writer,
    text: String,
}

/// The latest messages, by the platform's ids.
#[derive(Debug, Default)]
pub(crate) struct RecentMessages(Mutex<RecentMessagesState>);

#[derive(Debug, Default)]
struct RecentMessagesState {
    messages: HashMap<String, RecentMessage>,
    order: VecDeque<String>,
}

impl RecentMessages {
    fn lock(&self) -> MutexGuard<'_, RecentMessagesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_message(&self, id: &str, message: RecentMessage) {
        if id.is_empty() || message.text.trim().is_empty() {
            return;
        }
        let mut inner = self.lock();
        if inner.messages.insert(id.to_owned(), message).is_none() {
            inner.order.push_back(id.to_owned());
        }
        while inner.order.len() > MOST {
            if let Some(oldest) = inner.order.pop_front() {
                inner.messages.remove(&oldest);
            }
        }
    }

    /// Remembers what somebody said.
    pub(super) fn remember_inbound(&self, incoming: &PlatformMessage) {
        let Some(id) = incoming.ids.first() else { return };
        let writer = Writer::Person {
            id: incoming.sender.clone(),
            name: incoming.sender_name.clone(),
        };
        self.add_message(id, recent_message(&incoming.conversation, writer, &incoming.text));
    }

    /// Remembers what the agent said.
    pub(crate) fn remember_outbound(&self, id: &str, conversation: &str, text: &str) {
        self.add_message(id, recent_message(conversation, Writer::Agent, text));
    }

    /// Whether a message is known.
    pub(crate) fn is_known(&self, id: &str) -> bool {
        self.lock().messages.contains_key(id)
    }

    /// The message that this one answers, where it is known. One of another conversation is none: an id may be made up.
    pub(super) fn answered_by(&self, incoming: &PlatformMessage) -> Option<QuotedText> {
        let inner = self.lock();
        let found = inner.messages.get(incoming.answers.as_ref()?)?;
        if chat_of(&found.conversation) != chat_of(&incoming.conversation) {
            return None;
        }
        let author = match &found.writer {
            Writer::Agent => QuoteAuthor::Agent,
            Writer::Person { id: Some(id), .. } if incoming.sender.as_ref() == Some(id) => {
                QuoteAuthor::Sender
            }
            Writer::Person { id, name } => QuoteAuthor::Other {
                id: id.clone(),
                name: name.clone(),
            },
        };
        Some(QuotedText {
            kind: QuoteKind::Reply,
            author,
            text: found.text.clone(),
        })
    }
}

fn recent_message(conversation: &str, writer: Writer, text: &str) -> RecentMessage {
    RecentMessage {
        conversation: conversation.to_owned(),
        writer,
        text: text.chars().take(MAX_CHARS).collect(),
    }
}

/// The chat of a conversation, without its thread.
fn chat_of(conversation: &str) -> &str {
    conversation.split([' ', ':']).next().unwrap_or(conversation)
}

#[cfg(test)]
mod tests {
    use clawk_kernel::ports::QuoteAuthor;

    use super::{MOST, RecentMessages};
    use crate::adapter::PlatformMessage;

    fn said(id: &str, conversation: &str, sender: &str, text: &str) -> PlatformMessage {
        PlatformMessage {
            ids: vec![id.to_owned()],
            conversation: conversation.to_owned(),
            sender: Some(sender.to_owned()),
            text: text.to_owned(),
            ..PlatformMessage::default()
        }
    }

    #[test]
    fn an_answer_is_told_with_what_it_answers_and_whose_that_is() {
        let recent = RecentMessages::default();
        recent.remember_inbound(&said("1", "room", "zoe", "the lamp costs forty"));
        recent.remember_outbound("2", "room", "that is dear");
        recent.remember_inbound(&said("3", "room", "ann", "mine"));
        let answer = |id: &str, conversation: &str| {
            let asked = PlatformMessage {
                answers: Some(id.to_owned()),
                ..said("9", conversation, "ann", "why?")
            };
            recent.answered_by(&asked).map(|quote| (quote.author, quote.text))
        };
        let zoe = QuoteAuthor::Other {
            id: Some("zoe".to_owned()),
            name: None,
        };
        assert_eq!(
            answer("1", "room"),
            Some((zoe, "the lamp costs forty".to_owned()))
        );
        assert_eq!(
            answer("2", "room thread"),
            Some((QuoteAuthor::Agent, "that is dear".to_owned()))
        );
        assert_eq!(
            answer("3", "room"),
            Some((QuoteAuthor::Sender, "mine".to_owned()))
        );
        assert_eq!(answer("1", "another"), None, "a message of another chat");
        assert_eq!(answer("7", "room"), None);
    }

    #[test]
    fn memory_has_a_bound() {
        let recent = RecentMessages::default();
        for n in 0..MOST + 10 {
            recent.remember_outbound(&n.to_string(), "room", &"é".repeat(5_000));
        }
        let inner = recent.lock();
        assert_eq!((inner.messages.len(), inner.order.len()), (MOST, MOST));
        assert!(!inner.messages.contains_key("9") && inner.messages["10"].text.chars().count() == 2_000);
    }
}
