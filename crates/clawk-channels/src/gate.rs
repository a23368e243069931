//! Who is let in, with which role, and how often (C3, C4, C8). It only decides and makes pairing codes; [`crate::inlet`] writes the
//! record and tells the sender.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clawk_kernel::time::Timestamp;
use clawk_kernel::{ChannelFact, Role, admitted_role};
use clawk_manifest::model::{AccessControl, Channel, MessageRate};

use crate::config::ChannelConfig;
use crate::pairing::{PairingOffer, PairingRegistry, PendingPairing};

/// Senders whose rate, refusals or notes are remembered; the longest unused go first.
const REMEMBERED: usize = 10_000;
/// Refusals of one sender for one reason are recorded once in so long, with their number.
const RECORD_EVERY_MS: i64 = 60_000;
/// A sender who is not let in is told so once in so long.
const TELL_EVERY_MS: i64 = 3_600_000;
/// The sender of a message when the platform does not verify who wrote it (C3a).
pub(crate) const NOBODY: &str = "(unverified)";

/// The decision about a sender.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AccessDecision {
    /// Let in.
    In(Role),
    /// Not let in.
    Out(&'static str),
    /// Not let in yet. The sender is told this code once the record has it.
    Code(String, PendingPairing),
}

/// One channel's door.
#[derive(Debug)]
pub(crate) struct SenderAccessControl {
    channel: Channel,
    /// Events of the channel start runs: no person speaks through it.
    is_trigger: bool,
    admins: Vec<String>,
    inner: Mutex<AccessState>,
}

#[derive(Debug, Default)]
struct AccessState {
    pairings: PairingRegistry,
    buckets: HashMap<String, SenderRateBucket>,
    told: HashMap<String, Timestamp>,
    refused: HashMap<(String, &'static str), RefusalTally>,
    /// The direct conversations of people who were given a code.
    asked_in: HashMap<String, String>,
}

#[derive(Debug)]
struct SenderRateBucket {
    left: f64,
    at: Timestamp,
}

#[derive(Debug)]
struct RefusalTally {
    recorded: Timestamp,
    since: u64,
}

impl SenderAccessControl {
    pub(crate) fn new(
        channel: Channel,
        is_trigger: bool,
        config: &ChannelConfig,
        facts: &[ChannelFact],
    ) -> Self {
        let pairings = PairingRegistry::from_facts(&channel.name, facts);
        Self {
            admins: config.admins.clone(),
            channel,
            is_trigger,
            inner: Mutex::new(AccessState {
                pairings,
                ..AccessState::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, AccessState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The role of a sender who is let in. Gives no pairing code to others.
    pub(crate) fn role(&self, sender: &str) -> Option<Role> {
        if self.is_trigger {
            return (sender == self.channel.name).then_some(Role::User);
        }
        let roles = matches!(self.channel.access_control, Some(AccessControl::RoleBased { .. }));
        if !roles && sender != NOBODY && self.admins.iter().any(|admin| admin == sender) {
            return Some(Role::Admin);
        }
        let paired = self.lock().pairings.is_paired(sender);
        admitted_role(&self.channel, sender, paired)
    }

    /// Whether a sender is let in, and as what.
    pub(crate) fn judge_sender(&self, sender: &str, direct: bool, now: Timestamp) -> AccessDecision {
        if let Some(role) = self.role(sender) {
            return AccessDecision::In(role);
        }
        let Some(AccessControl::Pairing { pairing }) = &self.channel.access_control else {
            return AccessDecision::Out(match &self.channel.access_control {
                None => "the channel declares no `access_control`: it lets in nobody",
                Some(_) => "the sender is not listed",
            });
        };
        if sender == NOBODY {
            return AccessDecision::Out("the platform does not vouch for the sender");
        }
        if !direct {
            return AccessDecision::Out("the sender is not paired");
        }
        match self.lock().pairings.offer_pairing(sender, pairing, now) {
            Ok(PairingOffer::Code(code, pending)) => AccessDecision::Code(code, pending),
            Ok(PairingOffer::Waiting) => {
                AccessDecision::Out("the sender is not paired, and has a code that waits")
            }
            Ok(PairingOffer::Full) => {
                AccessDecision::Out("the sender is not paired, and too many codes wait")
            }
            Err(error) => {
                tracing::error!(%error, "no code could be made");
                AccessDecision::Out("the sender is not paired, and no code could be made")
            }
        }
    }

    /// Remembers where somebody asked to be paired: the answer goes there.
    pub(crate) fn note_conversation(&self, sender: &str, conversation: &str) {
        let mut inner = self.lock();
        if inner.asked_in.len() >= REMEMBERED {
            inner.asked_in.clear();
        }
        inner.asked_in.insert(sender.to_owned(), conversation.to_owned());
    }

    /// Where somebody asked to be paired, if it was in this run of the agent.
    pub(crate) fn conversation_of(&self, sender: &str) -> Option<String> {
        self.lock().asked_in.get(sender).cloned()
    }

    /// With the pairings, for whoever decides on them.
    pub(crate) fn with_pairings<T>(&self, with: impl FnOnce(&mut PairingRegistry) -> T) -> T {
        with(&mut self.lock().pairings)
    }

    /// Takes a token of the sender's bucket; `false`: it is empty.
    pub(crate) fn admit_rate(&self, sender: &str, now: Timestamp) -> bool {
        let Some(MessageRate {
            messages_per_minute: Some(per_minute),
            burst,
        }) = self.channel.processing.rate_limit
        else {
            return true;
        };
        let many = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let room = burst.map_or_else(|| many(per_minute.max(1)), |burst| 1.0 + many(burst));
        let mut inner = self.lock();
        if inner.buckets.len() >= REMEMBERED && !inner.buckets.contains_key(sender) {
            // A full bucket is the same as a new one: it can be forgotten.
            let full_ms = room * 60_000.0 / many(per_minute.max(1));
            inner
                .buckets
                .retain(|_, bucket| many_ms(bucket.at, now) < full_ms);
            if inner.buckets.len() >= REMEMBERED {
                return false;
            }
        }
        let bucket = inner
            .buckets
            .entry(sender.to_owned())
            .or_insert(SenderRateBucket { left: room, at: now });
        let gained = many_ms(bucket.at, now) * many(per_minute) / 60_000.0;
        bucket.left = (bucket.left + gained).min(room);
        bucket.at = now;
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }

    /// Whether this refusal goes on the record now, and for how many it stands.
    pub(crate) fn note_refusal(&self, sender: &str, reason: &'static str, now: Timestamp) -> Option<u64> {
        let mut inner = self.lock();
        if inner.refused.len() >= REMEMBERED {
            inner
                .refused
                .retain(|_, known| now.0 - known.recorded.0 < RECORD_EVERY_MS * 1000);
            if inner.refused.len() >= REMEMBERED {
                inner.refused.clear();
            }
        }
        let known = inner.refused.get_mut(&(sender.to_owned(), reason));
        match known {
            Some(known) if now.0 - known.recorded.0 < RECORD_EVERY_MS * 1000 => {
                known.since += 1;
                None
            }
            Some(known) => {
                known.recorded = now;
                Some(std::mem::take(&mut known.since) + 1)
            }
            None => {
                let first = RefusalTally {
                    recorded: now,
                    since: 0,
                };
                inner.refused.insert((sender.to_owned(), reason), first);
                Some(1)
            }
        }
    }

    /// Whether the sender is told now that they are not let in.
    pub(crate) fn should_tell_sender(&self, sender: &str, now: Timestamp) -> bool {
        let mut inner = self.lock();
        inner.told.retain(|_, at| now.0 - at.0 < TELL_EVERY_MS * 1000);
        if inner.told.len() >= REMEMBERED || inner.told.contains_key(sender) {
            return false;
        }
        inner.told.insert(sender.to_owned(), now);
        true
    }
}

/// Milliseconds between two times.
fn many_ms(from: Timestamp, to: Timestamp) -> f64 {
    let ms = (to.0 - from.0).max(0) / 1000;
    f64::from(u32::try_from(ms).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use clawk_kernel::Role;
    use clawk_kernel::time::Timestamp;
    use clawk_manifest::model::Channel;
    use serde_json::{Value, json};

    use super::{AccessDecision, NOBODY, SenderAccessControl};
    use crate::config::ChannelConfig;

    const NOW: Timestamp = Timestamp(1_790_000_000_000_000);

    fn gate(kind: &str, more: &Value, admins: &[&str]) -> SenderAccessControl {
        let mut spec =
            json!({"name": "c", "type": kind, "transport": "polling", "auth": {"secret_ref": "T"}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let channel: Channel = serde_json::from_value(spec).unwrap();
        let config = ChannelConfig {
            admins: admins.iter().map(|id| (*id).to_owned()).collect(),
            ..ChannelConfig::default()
        };
        let is_trigger = crate::platforms::is_trigger(channel.kind);
        SenderAccessControl::new(channel, is_trigger, &config, &[])
    }

    #[test]
    fn each_mode_lets_in_whom_it_says_with_the_role_it_says() {
        let closed = gate("telegram", &json!({}), &[]);
        assert!(matches!(
            closed.judge_sender("1", true, NOW),
            AccessDecision::Out(_)
        ));
        let open = gate("telegram", &json!({"access_control": {"mode": "open"}}), &["7"]);
        assert_eq!(open.judge_sender("1", false, NOW), AccessDecision::In(Role::User));
        assert_eq!(
            open.judge_sender("7", false, NOW),
            AccessDecision::In(Role::Admin)
        );
        assert_eq!(
            open.judge_sender(NOBODY, false, NOW),
            AccessDecision::In(Role::User)
        );
        let list = json!({"access_control": {"mode": "allowlist", "allowed_ids": ["1"]}});
        let list = gate("telegram", &list, &["7"]);
        assert_eq!(list.judge_sender("1", true, NOW), AccessDecision::In(Role::User));
        assert_eq!(list.judge_sender("7", true, NOW), AccessDecision::In(Role::Admin));
        assert!(matches!(
            list.judge_sender("2", true, NOW),
            AccessDecision::Out(_)
        ));
        assert!(matches!(
            list.judge_sender(NOBODY, true, NOW),
            AccessDecision::Out(_)
        ));
        let roles =
            json!({"access_control": {"mode": "role-based", "roles": [{"id": "1", "role": "viewer"}]}});
        let roles = gate("telegram", &roles, &["1"]);
        assert_eq!(
            roles.judge_sender("1", true, NOW),
            AccessDecision::In(Role::Viewer),
            "the role is the manifest's"
        );
        assert!(matches!(
            roles.judge_sender("2", true, NOW),
            AccessDecision::Out(_)
        ));
        let trigger = json!({"trigger": {"schedule": "* * * * *"}});
        let trigger = gate("cron", &trigger, &[]);
        assert_eq!(
            trigger.judge_sender("c", true, NOW),
            AccessDecision::In(Role::User)
        );
        assert!(matches!(
            trigger.judge_sender("1", true, NOW),
            AccessDecision::Out(_)
        ));
    }

    #[test]
    fn pairing_gives_a_code_in_direct_messages_alone() {
        let pairing = json!({"mode": "pairing", "pairing": {"code_expiry_minutes": 5, "max_pending": 3}});
        let gate = gate("telegram", &json!({"access_control": pairing}), &[]);
        assert!(matches!(
            gate.judge_sender("1", false, NOW),
            AccessDecision::Out(_)
        ));
        assert!(matches!(
            gate.judge_sender(NOBODY, true, NOW),
            AccessDecision::Out(_)
        ));
        let AccessDecision::Code(code, pending) = gate.judge_sender("1", true, NOW) else {
            panic!("no code");
        };
        gate.with_pairings(|pairings| {
            pairings.add_pending(pending);
            assert_eq!(pairings.owner_of_code(&code, NOW).as_deref(), Some("1"));
            pairings.record_change("1", clawk_kernel::PairingChange::Approved);
        });
        assert_eq!(gate.judge_sender("1", true, NOW), AccessDecision::In(Role::User));
    }

    #[test]
    fn a_senders_bucket_fills_with_time_and_is_their_own() {
        let rate = json!({"processing": {"rate_limit": {"messages_per_minute": 6, "burst": 2}}});
        let gate = gate("telegram", &rate, &[]);
        let mut at = NOW;
        let taken = (0..5).filter(|_| gate.admit_rate("1", at)).count();
        assert_eq!(taken, 3, "one, and a burst of two");
        assert!(gate.admit_rate("2", at));
        at = at.plus_millis(10_000);
        assert!(gate.admit_rate("1", at));
        assert!(!gate.admit_rate("1", at));
    }

    #[test]
    fn a_flood_of_refusals_is_recorded_with_its_number_and_told_once() {
        let gate = gate("telegram", &json!({}), &[]);
        assert_eq!(gate.note_refusal("1", "no", NOW), Some(1));
        for _ in 0..50 {
            assert_eq!(gate.note_refusal("1", "no", NOW), None);
        }
        assert_eq!(gate.note_refusal("1", "no", NOW.plus_millis(60_001)), Some(51));
        assert!(gate.should_tell_sender("1", NOW));
        assert!(!gate.should_tell_sender("1", NOW.plus_millis(3_599_000)));
        assert!(gate.should_tell_sender("1", NOW.plus_millis(3_601_000)));
    }
}
