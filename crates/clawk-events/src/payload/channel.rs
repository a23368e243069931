//! Channels: refused senders, pairings, triggers, push notifications.

use clawk_proto::Digest;

use crate::field::payloads;
use crate::shape::PairingStep;

payloads! {
    /// `ckp.channel.refused`. A channel refused a sender or a message.
    ChannelRefused {
        /// Name of the channel.
        channel: String,
        /// The conversation on its platform.
        conversation: String,
        /// The count.
        count: u64,
        /// `refused`, `pairing` or `run`, as in the type.
        fact: String,
        /// The reason, as text.
        reason: String,
        /// The sender, as the entry point identifies them.
        sender: String,
    }

    /// `ckp.channel.pairing`. A pairing code was issued, approved or denied, or a pairing was revoked.
    ChannelPairing {
        /// The identity that did this.
        by: Option<String>,
        /// Name of the channel.
        channel: String,
        /// The refusal's code, or the digest of a pairing code.
        code: Option<Digest>,
        /// The time of expiry, RFC 3339.
        expires_at: Option<String>,
        /// `refused`, `pairing` or `run`, as in the type.
        fact: String,
        /// The sender, as the entry point identifies them.
        sender: String,
        /// What happened.
        step: PairingStep,
    }

    /// `ckp.channel.run`. A trigger started, skipped, queued or missed a run.
    ChannelRun {
        /// Name of the channel.
        channel: String,
        /// `refused`, `pairing` or `run`, as in the type.
        fact: String,
        /// The reason, as text.
        reason: Option<String>,
        /// Id of the run.
        run: String,
        /// `started`, `skipped`, `queued` or `missed`.
        what: String,
    }

    /// `ckp.push.given_up`. The delivery of a task's push notification was given up.
    PushGivenUp {
        /// How many attempts there were.
        attempts: u32,
        /// Name of the host.
        host: String,
        /// The owner's identity.
        owner: String,
        /// The reason, as text.
        reason: String,
        /// The receiver's id.
        receiver: String,
        /// The state.
        state: String,
        /// Id of the task.
        task: String,
    }
}
