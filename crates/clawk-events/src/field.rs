//! Payload fields: the type of a field that a later version added, and the macro that declares payload structs.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A field that a later version added. It is written as `null` if there is no value. Events of the first versions do not have the
/// field, and writing them again does not add it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AddedField<T> {
    /// The event was written before the field existed.
    #[default]
    Absent,
    /// The field is `null`: there is no value.
    Null,
    /// The field's value.
    Value(T),
}

impl<T> AddedField<T> {
    /// Returns whether the event was written before the field existed.
    #[must_use]
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Returns the field's value, or `None` if the field is absent or `null`.
    #[must_use]
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }
}

impl<T> AddedField<T> {
    /// As [`Self::value`], owned.
    #[must_use]
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Null => None,
        }
    }
}

/// As this version writes it: never absent.
impl<T> From<Option<T>> for AddedField<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Self::Value)
    }
}

impl<T: Serialize> Serialize for AddedField<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for AddedField<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::from)
    }
}

/// A payload struct that [`payloads`] declared.
pub(crate) trait EventPayload: Serialize + DeserializeOwned {
    /// The payload's fields, in the order in which they are written.
    const FIELDS: &'static [PayloadField];
}

/// A payload that can be read, by whoever is generic over it.
pub trait ReadPayload: Sized {
    /// As the payload's own `read`.
    ///
    /// # Errors
    /// As [`crate::Event::read`], and a payload that was cut to the size of an event.
    fn read_payload(kind: &str, payload: &str) -> Result<Self, crate::EventError>;
}

impl<P: EventPayload> ReadPayload for P {
    fn read_payload(kind: &str, payload: &str) -> Result<Self, crate::EventError> {
        crate::event::read_whole(kind, payload)
    }
}

/// One field of a payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PayloadField {
    pub(crate) name: &'static str,
    /// Checks that a JSON text is a valid value of the field's type.
    pub(crate) check: fn(&str) -> Result<(), serde_json::Error>,
}

/// Checks that a JSON text is a valid `T`. The value is dropped.
pub(crate) fn check_value<T: DeserializeOwned>(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<T>(text).map(drop)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
pub(crate) const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
pub(crate) const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How many, as payloads say it.
#[must_use]
pub const fn count_of(items: usize) -> u64 {
    items as u64
}

/// Declares payload structs whose fields are all public, each with the list of its fields.
macro_rules! payloads {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
            pub struct $name { $($(#[$attr])* pub $field: $type,)* }

            impl $name {
                /// Reads the payload of an event of type `kind`. Use it where no other type is expected.
                ///
                /// # Errors
                /// The errors of [`crate::Event::read`]. A payload that was shortened to the size limit of an event is an error,
                /// too.
                pub fn read(kind: &str, payload: &str) -> Result<Self, crate::EventError> {
                    crate::event::read_whole(kind, payload)
                }
            }

            impl crate::field::EventPayload for $name {
                const FIELDS: &'static [crate::field::PayloadField] = &[$(crate::field::PayloadField {
                    name: stringify!($field),
                    check: crate::field::check_value::<$type>,
                },)*];
            }
        )*
    };
}
pub(crate) use payloads;
