//! Fingerprints of events: three numbers, computed in one pass without building a value.
//!
//! The hash key is random in every run, so an attacker can't prepare two different events with the same fingerprint.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher as _, RandomState};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::fields::{MemberWeight, member_weight, weight_in_event};

/// The fingerprint of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventFingerprint {
    /// Over all compared members.
    pub(super) full: u64,
    /// Over all compared members except the values of minor ones.
    pub(super) major: u64,
    /// Over the session's ordinal, the event's type and its action.
    pub(super) place: u64,
}

/// The sessions in order of appearance: their ids differ between runs, but their order does not.
#[derive(Debug, Default)]
pub(super) struct SessionOrdinals(HashMap<u64, usize>);

pub(super) fn fingerprint_event(
    text: &str,
    sessions: &mut SessionOrdinals,
    keys: &RandomState,
) -> serde_json::Result<EventFingerprint> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let found = reader.deserialize_map(Event(keys))?;
    reader.end()?;
    let count = sessions.0.len();
    let session = *sessions.0.entry(found.session).or_insert(count);
    Ok(EventFingerprint {
        full: keys.hash_one((session, found.content.full)),
        major: keys.hash_one((session, found.content.major)),
        place: keys.hash_one((session, found.event_type, found.action)),
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct ValueFingerprint {
    full: u64,
    major: u64,
    /// The hash of an object's member `action_id`, or else `tool`.
    action: u64,
}

#[derive(Debug, Default)]
struct FingerprintParts {
    content: ValueFingerprint,
    session: u64,
    event_type: u64,
    action: u64,
}

struct Event<'a>(&'a RandomState);

impl<'de> Visitor<'de> for Event<'_> {
    type Value = FingerprintParts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event: an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FingerprintParts, A::Error> {
        let keys = self.0;
        let mut found = FingerprintParts::default();
        while let Some(name) = map.next_key_seed(MemberNameSeed(keys, weight_in_event))? {
            match (name.what, name.weight) {
                (AlignmentMember::Session, _) => found.session = map.next_value_seed(Node(keys))?.full,
                (_, MemberWeight::Ignored) => drop(map.next_value::<IgnoredAny>()?),
                (what, MemberWeight::Minor | MemberWeight::Major) => {
                    let inner = map.next_value_seed(Node(keys))?;
                    found.content.add_member(keys, &name, inner);
                    match what {
                        AlignmentMember::EventType => found.event_type = inner.full,
                        AlignmentMember::Payload => found.action = inner.action,
                        AlignmentMember::Action
                        | AlignmentMember::Tool
                        | AlignmentMember::Session
                        | AlignmentMember::Other => {}
                    }
                }
            }
        }
        Ok(found)
    }
}

impl ValueFingerprint {
    /// Adds a member. The order of members does not matter, so the hashes are summed.
    fn add_member(&mut self, keys: &RandomState, name: &WeighedMember, inner: Self) {
        self.full = self.full.wrapping_add(keys.hash_one((name.hash, inner.full)));
        let major = match name.weight {
            MemberWeight::Minor => 0,
            MemberWeight::Ignored | MemberWeight::Major => inner.major,
        };
        self.major = self.major.wrapping_add(keys.hash_one((name.hash, major)));
    }

    fn from_leaf(keys: &RandomState, value: impl Hash) -> Self {
        let full = keys.hash_one(value);
        Self {
            full,
            major: full,
            action: 0,
        }
    }
}

/// Member names that the alignment uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AlignmentMember {
    EventType,
    Session,
    Payload,
    Action,
    Tool,
    Other,
}

struct WeighedMember {
    hash: u64,
    weight: MemberWeight,
    what: AlignmentMember,
}

struct MemberNameSeed<'a>(&'a RandomState, fn(&str) -> MemberWeight);

impl<'de> DeserializeSeed<'de> for MemberNameSeed<'_> {
    type Value = WeighedMember;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<WeighedMember, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for MemberNameSeed<'_> {
    type Value = WeighedMember;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E>(self, text: &str) -> Result<WeighedMember, E> {
        Ok(WeighedMember {
            hash: self.0.hash_one(text),
            weight: (self.1)(text),
            what: match text {
                "event_type" => AlignmentMember::EventType,
                "session_id" => AlignmentMember::Session,
                "payload" => AlignmentMember::Payload,
                "action_id" => AlignmentMember::Action,
                "tool" => AlignmentMember::Tool,
                _ => AlignmentMember::Other,
            },
        })
    }
}

/// Any value.
#[derive(Clone, Copy)]
struct Node<'a>(&'a RandomState);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ValueFingerprint;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ValueFingerprint, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ValueFingerprint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<ValueFingerprint, E> {
        Ok(ValueFingerprint::from_leaf(self.0, 0u8))
    }

    fn visit_bool<E>(self, value: bool) -> Result<ValueFingerprint, E> {
        Ok(ValueFingerprint::from_leaf(self.0, (1u8, value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<ValueFingerprint, E> {
        Ok(ValueFingerprint::from_leaf(self.0, (2u8, value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<ValueFingerprint, E> {
        Ok(ValueFingerprint::from_leaf(self.0, (3u8, value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<ValueFingerprint, E> {
        Ok(ValueFingerprint::from_leaf(self.0, (4u8, value.to_bits())))
    }

    fn visit_str<E>(self, value: &str) -> Result<ValueFingerprint, E> {
        Ok(ValueFingerprint::from_leaf(self.0, value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ValueFingerprint, A::Error> {
        let (mut full, mut major) = (self.0.build_hasher(), self.0.build_hasher());
        while let Some(item) = items.next_element_seed(self)? {
            full.write_u64(item.full);
            major.write_u64(item.major);
        }
        Ok(ValueFingerprint {
            full: self.0.hash_one((5u8, full.finish())),
            major: self.0.hash_one((5u8, major.finish())),
            action: 0,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ValueFingerprint, A::Error> {
        let mut sum = ValueFingerprint::default();
        let mut tool = 0;
        while let Some(name) = map.next_key_seed(MemberNameSeed(self.0, member_weight))? {
            if name.weight == MemberWeight::Ignored {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let inner = map.next_value_seed(self)?;
            sum.add_member(self.0, &name, inner);
            match name.what {
                AlignmentMember::Action => sum.action = inner.full,
                AlignmentMember::Tool => tool = inner.full,
                AlignmentMember::EventType
                | AlignmentMember::Session
                | AlignmentMember::Payload
                | AlignmentMember::Other => {}
            }
        }
        Ok(ValueFingerprint {
            full: self.0.hash_one((6u8, sum.full)),
            major: self.0.hash_one((6u8, sum.major)),
            action: if sum.action == 0 { tool } else { sum.action },
        })
    }
}
