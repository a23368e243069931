//! What the pipelines know of a channel's type. Plain data.

use clawk_manifest::model::Transport;

/// Which of the manifest's words for `transport` a type has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TransportChoice {
    /// These. A channel with another word can't be served.
    OneOf(&'static [Transport]),
    /// The type works in one way, and the word is not read. These words describe that way.
    Fixed(&'static [Transport]),
}

/// What is true of every channel of a type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlatformProfile {
    /// The platform's name as people write it.
    pub(crate) name: &'static str,
    /// Its transports.
    pub(crate) transports: TransportChoice,
    /// Its events start runs, and no person speaks through it.
    pub(crate) is_trigger: bool,
    /// The platform's API lets a bot put a reaction on a message.
    pub(crate) reacts: bool,
    /// A message in a group can begin a thread that an answer goes to.
    pub(crate) threads: bool,
    /// Why `features.threads` does nothing, where it does nothing.
    pub(crate) without_threads: &'static str,
    /// Recordings come as files that are turned into words. `voice` has a way of its own.
    pub(crate) hears: bool,
    /// People speak to it: `features.voice` is what it is made for.
    pub(crate) speaks: bool,
    /// It shows that somebody writes. The adapter's own `typing` says the same.
    pub(crate) typing: bool,
    /// It shows that a message was read. The adapter's own `receipts` says the same.
    pub(crate) receipts: bool,
    /// The platform reaches the channel by requests to this listener, with any transport.
    pub(crate) is_served_here: bool,
    /// Without `public_url`, a channel with the transport `webhook` can't work.
    pub(crate) needs_public_url: bool,
}

impl PlatformProfile {
    /// A type on which people write, and which can nothing beside that.
    pub(crate) const fn people(name: &'static str, transports: TransportChoice) -> Self {
        Self {
            name,
            transports,
            is_trigger: false,
            reacts: false,
            threads: false,
            without_threads: "the platform has no threads that begin at a message",
            hears: false,
            speaks: false,
            typing: false,
            receipts: false,
            is_served_here: false,
            needs_public_url: false,
        }
    }

    /// A type whose events start runs.
    pub(crate) const fn trigger(name: &'static str) -> Self {
        Self {
            is_trigger: true,
            ..Self::people(
                name,
                TransportChoice::Fixed(&[Transport::Stdio, Transport::Polling]),
            )
        }
    }
}
