//! What an event says, as three numbers; read in one pass that builds no value.
//!
//! The numbers are keyed anew in every run, so an attacker can't prepare two different events with the same mark.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher as _, RandomState};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::fields::{Weight, weight, weight_in_event};

/// An event in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    /// Of all that is compared.
    pub(super) full: u64,
    /// Of all but the values of minor members.
    pub(super) major: u64,
    /// Of the session's ordinal, the event's type and its action.
    pub(super) place: u64,
}

/// Sessions in order of appearance: their ids differ from run to run, their order does not.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<u64, usize>);

pub(super) fn mark(text: &str, sessions: &mut Sessions, keys: &RandomState) -> serde_json::Result<Marks> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let found = reader.deserialize_map(Event(keys))?;
    reader.end()?;
    let count = sessions.0.len();
    let session = *sessions.0.entry(found.session).or_insert(count);
    Ok(Marks {
        full: keys.hash_one((session, found.content.full)),
        major: keys.hash_one((session, found.content.major)),
        place: keys.hash_one((session, found.event_type, found.action)),
    })
}

#[derive(Debug, Clone, Copy, Default)]
struct Content {
    full: u64,
    major: u64,
    /// The hash of the member `action_id`, else of `tool`, of an object.
    action: u64,
}

#[derive(Debug, Default)]
struct Found {
    content: Content,
    session: u64,
    event_type: u64,
    action: u64,
}

struct Event<'a>(&'a RandomState);

impl<'de> Visitor<'de> for Event<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event: an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found, A::Error> {
        let keys = self.0;
        let mut found = Found::default();
        while let Some(name) = map.next_key_seed(Name(keys, weight_in_event))? {
            match (name.what, name.weight) {
                (What::Session, _) => found.session = map.next_value_seed(Node(keys))?.full,
                (_, Weight::Ignored) => drop(map.next_value::<IgnoredAny>()?),
                (what, Weight::Minor | Weight::Major) => {
                    let inner = map.next_value_seed(Node(keys))?;
                    found.content.add(keys, &name, inner);
                    match what {
                        What::EventType => found.event_type = inner.full,
                        What::Payload => found.action = inner.action,
                        What::Action | What::Tool | What::Session | What::Other => {}
                    }
                }
            }
        }
        Ok(found)
    }
}

impl Content {
    /// Takes a member in; the order of members does not matter, so sums do.
    fn add(&mut self, keys: &RandomState, name: &Named, inner: Self) {
        self.full = self.full.wrapping_add(keys.hash_one((name.hash, inner.full)));
        let major = match name.weight {
            Weight::Minor => 0,
            Weight::Ignored | Weight::Major => inner.major,
        };
        self.major = self.major.wrapping_add(keys.hash_one((name.hash, major)));
    }

    fn leaf(keys: &RandomState, value: impl Hash) -> Self {
        let full = keys.hash_one(value);
        Self {
            full,
            major: full,
            action: 0,
        }
    }
}

/// Names that the alignment looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    EventType,
    Session,
    Payload,
    Action,
    Tool,
    Other,
}

struct Named {
    hash: u64,
    weight: Weight,
    what: What,
}

struct Name<'a>(&'a RandomState, fn(&str) -> Weight);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Named;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Named, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Named;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E>(self, text: &str) -> Result<Named, E> {
        Ok(Named {
            hash: self.0.hash_one(text),
            weight: (self.1)(text),
            what: match text {
                "event_type" => What::EventType,
                "session_id" => What::Session,
                "payload" => What::Payload,
                "action_id" => What::Action,
                "tool" => What::Tool,
                _ => What::Other,
            },
        })
    }
}

/// Any value.
#[derive(Clone, Copy)]
struct Node<'a>(&'a RandomState);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Content;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::leaf(self.0, 0u8))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::leaf(self.0, (1u8, value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::leaf(self.0, (2u8, value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::leaf(self.0, (3u8, value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        Ok(Content::leaf(self.0, (4u8, value.to_bits())))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::leaf(self.0, value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let (mut full, mut major) = (self.0.build_hasher(), self.0.build_hasher());
        while let Some(item) = items.next_element_seed(self)? {
            full.write_u64(item.full);
            major.write_u64(item.major);
        }
        Ok(Content {
            full: self.0.hash_one((5u8, full.finish())),
            major: self.0.hash_one((5u8, major.finish())),
            action: 0,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut sum = Content::default();
        let mut tool = 0;
        while let Some(name) = map.next_key_seed(Name(self.0, weight))? {
            if name.weight == Weight::Ignored {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let inner = map.next_value_seed(self)?;
            sum.add(self.0, &name, inner);
            match name.what {
                What::Action => sum.action = inner.full,
                What::Tool => tool = inner.full,
                What::EventType | What::Session | What::Payload | What::Other => {}
            }
        }
        Ok(Content {
            full: self.0.hash_one((6u8, sum.full)),
            major: self.0.hash_one((6u8, sum.major)),
            action: if sum.action == 0 { tool } else { sum.action },
        })
    }
}
