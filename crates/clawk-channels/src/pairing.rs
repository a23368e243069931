//! Pairing (C3): an unknown sender of a direct message gets a code, an admin approves it. The journal is what it is rebuilt from.

use std::collections::BTreeSet;
use std::fmt;

use clawk_kernel::time::Timestamp;
use clawk_kernel::{ChannelFact, PairingChange};
use clawk_manifest::model;
use clawk_proto::Digest;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What codes are made of: nothing that looks like something else.
const ALPHABET: &[u8; 32] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";
/// Characters of a code: 40 bits.
const CODE_CHARS: usize = 8;
/// The most codes that are open at once. A manifest cannot raise it.
const MOST_PENDING: u64 = 1_000;
/// Wrong codes within [`WINDOW_MS`] after which none is looked at for the rest of it.
const WRONG_CODES: usize = 5;
const WINDOW_MS: i64 = 60_000;

/// A code that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingPairing {
    /// Who asked.
    pub sender: String,
    /// When it lapses, RFC 3339.
    pub expires_at: String,
    #[serde(skip)]
    digest: Digest,
    #[serde(skip)]
    until: i64,
}

/// Who is paired with a channel, and who waits.
#[derive(Debug, Default)]
pub(crate) struct PairingRegistry {
    paired: BTreeSet<String>,
    pending: Vec<PendingPairing>,
}

/// What an unknown sender gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PairingOffer {
    /// A new code, to be shown once, and what goes on the record before it is.
    Code(String, PendingPairing),
    /// They have one that waits.
    Waiting,
    /// Too many wait.
    Full,
}

/// A new code.
///
/// # Errors
/// The machine gives no randomness.
pub(crate) fn new_code() -> Result<String, getrandom::Error> {
    let mut bytes = [0; CODE_CHARS];
    getrandom::fill(&mut bytes)?;
    let letter = |byte: &u8| {
        ALPHABET
            .get(usize::from(byte % 32))
            .copied()
            .map_or('2', char::from)
    };
    Ok(bytes.iter().map(letter).collect())
}

/// SHA-256 of a typed code. Case and separators are ignored.
pub(crate) fn code_digest(code: &str) -> Digest {
    let plain: String = code
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '-')
        .flat_map(char::to_uppercase)
        .collect();
    Digest(Sha256::digest(plain.as_bytes()).into())
}

impl PairingRegistry {
    /// From the record of one channel.
    pub(crate) fn from_facts(channel: &str, facts: &[ChannelFact]) -> Self {
        let mut all = Self::default();
        for fact in facts {
            if let ChannelFact::Pairing {
                channel: own,
                sender,
                step,
                code,
                expires_at,
                ..
            } = fact
                && own == channel
            {
                all.apply_change(sender, *step, *code, expires_at.as_deref());
            }
        }
        all
    }

    fn apply_change(
        &mut self,
        sender: &str,
        step: PairingChange,
        code: Option<Digest>,
        expires_at: Option<&str>,
    ) {
        self.pending.retain(|pending| pending.sender != sender);
        match step {
            PairingChange::Asked => {
                if let (Some(digest), Some(expires_at)) = (code, expires_at) {
                    // silent-ok: a time of ours always reads; else the code has lapsed
                    let until = Timestamp::parse(expires_at).map_or(0, |at| at.0);
                    self.pending.push(PendingPairing {
                        sender: sender.to_owned(),
                        expires_at: expires_at.to_owned(),
                        digest,
                        until,
                    });
                }
            }
            PairingChange::Approved => {
                self.paired.insert(sender.to_owned());
            }
            PairingChange::Revoked => {
                self.paired.remove(sender);
            }
            PairingChange::Denied => {}
        }
    }

    pub(crate) fn is_paired(&self, sender: &str) -> bool {
        self.paired.contains(sender)
    }

    pub(crate) fn paired_senders(&self) -> impl Iterator<Item = &str> {
        self.paired.iter().map(String::as_str)
    }

    /// What waits now.
    pub(crate) fn pending_pairings(&mut self, now: Timestamp) -> &[PendingPairing] {
        self.pending.retain(|pending| pending.until > now.0);
        &self.pending
    }

    /// A code for somebody unknown. [`Self::add_pending`] keeps it once it is on the record.
    pub(crate) fn offer_pairing(
        &mut self,
        sender: &str,
        rules: &model::PairingSettings,
        now: Timestamp,
    ) -> Result<PairingOffer, getrandom::Error> {
        let pending = self.pending_pairings(now);
        if pending.iter().any(|pending| pending.sender == sender) {
            return Ok(PairingOffer::Waiting);
        }
        let room = rules.max_pending.min(MOST_PENDING);
        if u64::try_from(pending.len()).unwrap_or(u64::MAX) >= room {
            return Ok(PairingOffer::Full);
        }
        let minutes = i64::try_from(rules.code_expiry_minutes).unwrap_or(i64::MAX);
        let until = now.plus_millis(minutes.saturating_mul(60_000));
        let code = new_code()?;
        let pending = PendingPairing {
            sender: sender.to_owned(),
            expires_at: until.to_string(),
            digest: code_digest(&code),
            until: until.0,
        };
        Ok(PairingOffer::Code(code, pending))
    }

    pub(crate) fn add_pending(&mut self, pending: PendingPairing) {
        self.pending.push(pending);
    }

    /// Whose code this is. All are compared, each in constant time.
    pub(crate) fn owner_of_code(&mut self, code: &str, now: Timestamp) -> Option<String> {
        let typed = code_digest(code);
        let mut found = None;
        for pending in self.pending_pairings(now) {
            if bool::from(pending.digest.0.ct_eq(&typed.0)) {
                found = Some(pending.sender.clone());
            }
        }
        found
    }

    /// The step is on the record: it counts.
    pub(crate) fn record_change(&mut self, sender: &str, step: PairingChange) {
        self.apply_change(sender, step, None, None);
    }
}

impl PendingPairing {
    /// What goes on the record.
    pub(crate) fn pairing_fact(&self, channel: &str) -> ChannelFact {
        ChannelFact::Pairing {
            channel: channel.to_owned(),
            sender: self.sender.clone(),
            step: PairingChange::Asked,
            code: Some(self.digest),
            expires_at: Some(self.expires_at.clone()),
            by: None,
        }
    }
}

/// Wrong codes at one door.
#[derive(Default)]
pub(crate) struct GuessLimiter(std::collections::VecDeque<i64>);

impl fmt::Debug for GuessLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guesses({})", self.0.len())
    }
}

impl GuessLimiter {
    /// Whether a code is looked at now.
    pub(crate) fn is_guess_allowed(&mut self, now: Timestamp) -> bool {
        let begins = now.plus_millis(-WINDOW_MS).0;
        self.0.retain(|at| *at > begins);
        self.0.len() < WRONG_CODES
    }

    pub(crate) fn note_wrong_guess(&mut self, now: Timestamp) {
        self.0.push_back(now.0);
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::time::Timestamp;
    use clawk_kernel::{ChannelFact, PairingChange};
    use clawk_manifest::model;

    use super::{GuessLimiter, PairingOffer, PairingRegistry};

    const RULES: model::PairingSettings = model::PairingSettings {
        code_expiry_minutes: 30,
        max_pending: 2,
    };

    fn at(minute: i64) -> Timestamp {
        Timestamp(1_790_000_000_000_000).plus_millis(minute * 60_000)
    }

    fn asked(pairings: &mut PairingRegistry, sender: &str, minute: i64) -> (String, ChannelFact) {
        let PairingOffer::Code(code, pending) = pairings.offer_pairing(sender, &RULES, at(minute)).unwrap()
        else {
            panic!("no code");
        };
        let fact = pending.pairing_fact("chat");
        pairings.add_pending(pending);
        (code, fact)
    }

    #[test]
    fn a_code_is_used_once_lapses_and_survives_a_restart() {
        let mut pairings = PairingRegistry::default();
        let (code, fact) = asked(&mut pairings, "ann", 0);
        assert_eq!(code.len(), 8);
        assert_eq!(
            pairings.offer_pairing("ann", &RULES, at(1)).unwrap(),
            PairingOffer::Waiting
        );
        let mut again = PairingRegistry::from_facts("chat", std::slice::from_ref(&fact));
        let (head, tail) = code.split_at(4);
        let typed = format!(" {}-{tail} ", head.to_lowercase());
        assert_eq!(again.owner_of_code(&typed, at(29)).as_deref(), Some("ann"));
        assert_eq!(again.owner_of_code(&code, at(30)), None, "lapsed");
        assert_eq!(
            PairingRegistry::from_facts("other", &[fact]).owner_of_code(&code, at(1)),
            None
        );
        pairings.record_change("ann", PairingChange::Approved);
        assert!(pairings.is_paired("ann"));
        assert_eq!(pairings.owner_of_code(&code, at(2)), None, "used once");
        pairings.record_change("ann", PairingChange::Revoked);
        assert!(!pairings.is_paired("ann"));
    }

    #[test]
    fn at_most_so_many_codes_wait() {
        let mut pairings = PairingRegistry::default();
        asked(&mut pairings, "ann", 0);
        asked(&mut pairings, "bob", 1);
        assert_eq!(
            pairings.offer_pairing("eve", &RULES, at(2)).unwrap(),
            PairingOffer::Full
        );
        assert!(matches!(
            pairings.offer_pairing("eve", &RULES, at(30)).unwrap(),
            PairingOffer::Code(..)
        ));
    }

    #[test]
    fn five_wrong_codes_close_the_door_for_a_minute() {
        let mut guesses = GuessLimiter::default();
        for _ in 0..5 {
            assert!(guesses.is_guess_allowed(at(0)));
            guesses.note_wrong_guess(at(0));
        }
        assert!(!guesses.is_guess_allowed(at(0)));
        assert!(guesses.is_guess_allowed(at(2)));
    }
}
