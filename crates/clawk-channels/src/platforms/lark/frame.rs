//! Frames of Lark's long connection: protobuf, eight fields that count. Read and written by hand, within bounds.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Parts of one event, how many events wait for theirs, and for how long.
const MAX_PARTS: usize = 64;
const MAX_JOINED: usize = 64;
const PARTS_WAIT: Duration = Duration::from_secs(10);
/// Headers of one frame.
const MAX_HEADERS: usize = 64;

/// A frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LarkFrame {
    pub(super) seq: u64,
    pub(super) log: u64,
    pub(super) service: u64,
    /// 0: control, 1: data.
    pub(super) method: u64,
    pub(super) headers: Vec<(String, String)>,
    pub(super) payload: Vec<u8>,
}

impl LarkFrame {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// `None`: the bytes are not a frame.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut frame = Self::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            match field(&mut rest)? {
                (1, Value::Number(n)) => frame.seq = n,
                (2, Value::Number(n)) => frame.log = n,
                (3, Value::Number(n)) => frame.service = n,
                (4, Value::Number(n)) => frame.method = n,
                (5, Value::Bytes(header)) if frame.headers.len() < MAX_HEADERS => {
                    frame.headers.push(pair(header)?);
                }
                (5, _) => return None,
                (8, Value::Bytes(payload)) => frame.payload = payload.to_vec(),
                _ => {}
            }
        }
        Some(frame)
    }

    pub(super) fn encode_frame(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, value) in [(1, self.seq), (2, self.log), (3, self.service), (4, self.method)] {
            varint(&mut bytes, number << 3);
            varint(&mut bytes, value);
        }
        for (name, value) in &self.headers {
            let mut header = Vec::new();
            text(&mut header, 1, name.as_bytes());
            text(&mut header, 2, value.as_bytes());
            text(&mut bytes, 5, &header);
        }
        text(&mut bytes, 8, &self.payload);
        bytes
    }
}

/// Parts of events that come in several frames.
#[derive(Default)]
pub(super) struct LarkFrameAssembler(HashMap<String, LarkFrameParts>);

/// When the first part came, and all that are there.
type LarkFrameParts = (Instant, Vec<Option<Vec<u8>>>);

impl LarkFrameAssembler {
    /// The whole event, once all of it is there.
    pub(super) fn add_frame(&mut self, frame: &LarkFrame) -> Option<Vec<u8>> {
        let number = |name: &str| frame.header(name).and_then(|text| text.parse::<usize>().ok()); // silent-ok: one part
        let (sum, seq) = (number("sum").unwrap_or(1), number("seq").unwrap_or(0));
        if sum <= 1 {
            return Some(frame.payload.clone());
        }
        if sum > MAX_PARTS || seq >= sum {
            return None;
        }
        self.0.retain(|_, (since, _)| since.elapsed() < PARTS_WAIT);
        let id = frame.header("message_id")?.to_owned();
        if self.0.len() >= MAX_JOINED && !self.0.contains_key(&id) {
            return None;
        }
        let (_, parts) = self
            .0
            .entry(id.clone())
            .or_insert_with(|| (Instant::now(), vec![None; sum]));
        *parts.get_mut(seq)? = Some(frame.payload.clone());
        if parts.iter().any(Option::is_none) {
            return None;
        }
        let (_, parts) = self.0.remove(&id)?;
        Some(parts.into_iter().flatten().flatten().collect())
    }
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a width that none of ours has.
    Other,
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let key = number(rest)?;
    let value = match key & 7 {
        0 => Value::Number(number(rest)?),
        1 => taken(rest, 8).map(|_| Value::Other)?,
        2 => {
            let length = usize::try_from(number(rest)?).ok()?; // silent-ok: too long is no frame
            Value::Bytes(taken(rest, length)?)
        }
        5 => taken(rest, 4).map(|_| Value::Other)?,
        _ => return None,
    };
    Some((key >> 3, value))
}

fn taken<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *taken(rest, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn pair(mut header: &[u8]) -> Option<(String, String)> {
    let (mut name, mut value) = (String::new(), String::new());
    while !header.is_empty() {
        // silent-ok: what is no text is no header
        match field(&mut header)? {
            (1, Value::Bytes(bytes)) => name = String::from_utf8(bytes.to_vec()).ok()?, // silent-ok: no header
            (2, Value::Bytes(bytes)) => value = String::from_utf8(bytes.to_vec()).ok()?, // silent-ok: no header
            _ => {}
        }
    }
    Some((name, value))
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = (value & 0x7f).to_le_bytes();
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

fn text(bytes: &mut Vec<u8>, number: u64, content: &[u8]) {
    varint(bytes, number << 3 | 2);
    varint(bytes, u64::try_from(content.len()).unwrap_or(u64::MAX));
    bytes.extend_from_slice(content);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::LarkFrame;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let frame = LarkFrame {
            seq: 1,
            log: u64::MAX,
            service: 300,
            method: 1,
            headers: vec![("type".to_owned(), "event".to_owned())],
            payload: b"{}".to_vec(),
        };
        // 08 01: field 1, varint 1, as protobuf's own example has it.
        assert!(frame.encode_frame().starts_with(&[0x08, 0x01]));
        assert_eq!(LarkFrame::read(&frame.encode_frame()), Some(frame));
        for broken in [&[0x2a, 0x7f][..], &[0x0b], &[0x08], &[0x80; 12]] {
            assert_eq!(LarkFrame::read(broken), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            LarkFrame::read(&bytes);
        }
    }
}
