//! The calls of one answer, put together from pieces whose index and id servers give, repeat, mix up or leave out.

use clawk_core::ports::NAME_MAX_BYTES;
use serde::de::IgnoredAny;

use crate::draft::shorten;

/// A piece of a call as it came.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct CallPiece<'a> {
    /// The server's index.
    pub(crate) index: Option<u64>,
    /// The place of the piece in its list.
    pub(crate) position: usize,
    /// Empty: none.
    pub(crate) id: &'a str,
    /// Empty: none.
    pub(crate) name: &'a str,
    pub(crate) arguments: &'a str,
}

/// A call so far.
#[derive(Debug, Default)]
pub(crate) struct CallSlot {
    pub(crate) index: Option<u64>,
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
    /// Its name was told to whoever watches.
    pub(crate) told: bool,
}

impl CallSlot {
    /// Its arguments are one JSON text, and not an empty one.
    fn is_whole(&self) -> bool {
        !self.arguments.trim().is_empty() && serde_json::from_str::<IgnoredAny>(&self.arguments).is_ok()
    }

    fn is_begun(&self) -> bool {
        !self.arguments.trim().is_empty()
    }
}

/// The calls of one answer in their order.
#[derive(Debug, Default)]
pub(crate) struct CallSlots {
    slots: Vec<CallSlot>,
}

impl CallSlots {
    pub(crate) const fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &CallSlot> {
        self.slots.iter()
    }

    /// The place of the call that this piece belongs to; [`Self::len`]: it begins a new one.
    pub(crate) fn place_of(&self, piece: &CallPiece<'_>) -> usize {
        let id = shorten(piece.id, NAME_MAX_BYTES);
        let same_id = (!id.is_empty())
            .then(|| self.slots.iter().rposition(|slot| slot.id == id))
            .flatten();
        if let Some(at) = same_id {
            return self.place_of_known_id(piece, at);
        }
        let at_index = piece
            .index
            .and_then(|index| self.slots.iter().rposition(|slot| slot.index == Some(index)));
        match (piece.index, at_index) {
            // A head, or a tail whose head came under another index.
            (Some(_), None) if !piece.name.is_empty() || !id.is_empty() => self.len(),
            (Some(_), None) => self.last_or_new(),
            (Some(_), Some(at)) if self.goes_on(piece, at) => at,
            (Some(_), Some(_)) => self.len(),
            // Two heads in one list are two calls.
            (None, _) if piece.position > 0 && !piece.name.is_empty() => self.len(),
            (None, _) => match self.slots.len().checked_sub(1) {
                Some(at) if self.goes_on(piece, at) => at,
                Some(_) | None => self.len(),
            },
        }
    }

    fn last_or_new(&self) -> usize {
        self.slots.len().saturating_sub(1)
    }

    /// Some servers give all calls of an answer the same id.
    fn place_of_known_id(&self, piece: &CallPiece<'_>, at: usize) -> usize {
        let Some(slot) = self.slots.get(at) else {
            return self.len();
        };
        let other_index = matches!((piece.index, slot.index), (Some(one), Some(two)) if one != two);
        let begins_again = slot.is_whole() && piece.arguments.trim_start().starts_with('{');
        let repeated = slot.arguments == piece.arguments && piece.index.is_some() && !other_index;
        if !piece.name.is_empty() && (other_index || (begins_again && !repeated)) {
            return self.len();
        }
        at
    }

    /// Whether the piece is more of the call at this place, by its name and arguments.
    fn goes_on(&self, piece: &CallPiece<'_>, at: usize) -> bool {
        let Some(slot) = self.slots.get(at) else {
            return false;
        };
        if piece.name.is_empty() {
            // A tail; an id that differs from piece to piece says nothing.
            return true;
        }
        let other_id = !piece.id.is_empty() && !slot.id.is_empty();
        let other_name = !slot.name.is_empty() && slot.name != piece.name;
        let begins = piece.arguments.trim().is_empty() || piece.arguments.trim_start().starts_with('{');
        match (other_id, other_name) {
            (_, true) => false,
            // A new id for each piece, under the name of the call.
            (true, false) => slot.is_begun() && !slot.is_whole() && !begins,
            (false, false) => !slot.is_whole(),
        }
    }

    /// The call at this place; a new one behind the last.
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut CallSlot> {
        if place >= self.slots.len() {
            self.slots.push(CallSlot::default());
        }
        let last = self.slots.len().saturating_sub(1);
        self.slots.get_mut(place.min(last))
    }

    /// The place of the call with exactly this index.
    pub(crate) fn place_of_index(&self, index: u64) -> usize {
        let found = self.slots.iter().position(|slot| slot.index == Some(index));
        found.unwrap_or(self.len())
    }

    /// The finished calls. Arguments of several calls that came one behind the other in the last of them are dealt out.
    pub(crate) fn into_calls(mut self) -> Vec<CallSlot> {
        for at in 0..self.slots.len() {
            let texts = match self.slots.get(at) {
                Some(slot) if slot.is_begun() && !slot.is_whole() => json_texts(&slot.arguments),
                Some(_) | None => continue,
            };
            let Some(first) = (at + 1).checked_sub(texts.len()).filter(|_| texts.len() > 1) else {
                continue;
            };
            let before = self.slots.get(first..at).unwrap_or_default();
            if before.iter().any(CallSlot::is_begun) {
                continue;
            }
            for (slot, text) in self.slots.iter_mut().skip(first).zip(texts) {
                slot.arguments = text;
            }
        }
        self.slots
    }
}

/// The JSON objects that stand one behind the other in this text; none, where it is anything else.
fn json_texts(text: &str) -> Vec<String> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    let mut found = Vec::new();
    for value in &mut stream {
        match value {
            Ok(value) if value.is_object() => found.push(value.to_string()),
            Ok(_) | Err(_) => return Vec::new(), // silent-ok: then the text stays as it came
        }
    }
    found
}
