//! Channels: who was not let in, pairings, triggers, push notifications.

use clawk_proto::Digest;

use crate::field::payloads;
use crate::shape::PairingStep;

payloads! {
    /// `ckp.channel.refused`. A channel did not let somebody or something in.
    ChannelRefused {
        /// The channel.
        channel: String,
        /// The conversation on its platform.
        conversation: String,
        /// How many.
        count: u64,
        /// `refused`, `pairing` or `run`, as in the type.
        fact: String,
        /// Why.
        reason: String,
        /// Who, as the entry point knows them.
        sender: String,
    }

    /// `ckp.channel.pairing`. A code was given out, approved or denied, or somebody's pairing was revoked.
    ChannelPairing {
        /// Who did it.
        by: Option<String>,
        /// The channel.
        channel: String,
        /// The refusal's code, or the digest of a pairing code.
        code: Option<Digest>,
        /// When it lapses, RFC 3339.
        expires_at: Option<String>,
        /// `refused`, `pairing` or `run`, as in the type.
        fact: String,
        /// Who, as the entry point knows them.
        sender: String,
        /// What happened.
        step: PairingStep,
    }

    /// `ckp.channel.run`. A trigger began a run, or did not.
    ChannelRun {
        /// The channel.
        channel: String,
        /// `refused`, `pairing` or `run`, as in the type.
        fact: String,
        /// Why.
        reason: Option<String>,
        /// The run.
        run: String,
        /// `started`, `skipped`, `queued` or `missed`.
        what: String,
    }

    /// `ckp.push.given_up`. A push notification of a task was given up.
    PushGivenUp {
        /// How many attempts there were.
        attempts: u32,
        /// The host.
        host: String,
        /// Whose it is.
        owner: String,
        /// Why.
        reason: String,
        /// The receiver's id.
        receiver: String,
        /// The state.
        state: String,
        /// The task.
        task: String,
    }
}
