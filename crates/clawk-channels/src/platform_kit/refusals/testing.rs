//! How the tests of platforms' tables say what is to become of a refused message.

use super::MessageRefusal::{self, Final, Later, Other, PersonFirst, RepliedGone, StaleToken, ThreadGone};

/// What is to become of a message.
#[derive(Debug, PartialEq)]
pub(crate) enum Cure {
    /// The chat above the thread takes it.
    Thread,
    /// It goes without naming the message that it answers.
    Reply,
    /// Kept until the person writes.
    Person,
    /// Sent again with a new token.
    Token,
    /// Tried again after the platform's or our own wait, milliseconds.
    Wait(Option<u64>),
    /// A dead letter whose reason has this word.
    Dead(&'static str),
    /// The table says nothing.
    ByStatus,
}

pub(crate) fn is_cured(refusal: MessageRefusal, cure: &Cure) -> bool {
    match (refusal, cure) {
        (ThreadGone, Cure::Thread) | (RepliedGone, Cure::Reply) | (Other, Cure::ByStatus) => true,
        (PersonFirst, Cure::Person) | (StaleToken, Cure::Token) => true,
        (Later(own), Cure::Wait(wanted)) => own == *wanted,
        (Final(why), Cure::Dead(word)) => why.contains(word),
        _ => false,
    }
}
