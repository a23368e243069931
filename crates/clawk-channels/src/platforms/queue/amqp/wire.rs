//! AMQP 0-9-1 on the wire: frames, and the few methods of a consumer and a publisher. Pure but for reading and writing one frame.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What a client says first.
pub(super) const HELLO: [u8; 8] = *b"AMQP\0\0\x09\x01";
/// Bytes of a frame, both ways; a server may want less.
pub(super) const MAX_FRAME: u32 = 131_072;
/// What a frame has beside its payload.
pub(super) const FRAME_ROOM: u32 = 8;
const END: u8 = 0xce;

/// Class and method.
pub(super) type AmqpMethodId = (u16, u16);

pub(super) const START: AmqpMethodId = (10, 10);
pub(super) const START_OK: AmqpMethodId = (10, 11);
pub(super) const TUNE: AmqpMethodId = (10, 30);
pub(super) const TUNE_OK: AmqpMethodId = (10, 31);
pub(super) const OPEN: AmqpMethodId = (10, 40);
pub(super) const OPEN_OK: AmqpMethodId = (10, 41);
pub(super) const CLOSE: AmqpMethodId = (10, 50);
pub(super) const CLOSE_OK: AmqpMethodId = (10, 51);
pub(super) const CHANNEL_OPEN: AmqpMethodId = (20, 10);
pub(super) const CHANNEL_OPEN_OK: AmqpMethodId = (20, 11);
pub(super) const CHANNEL_CLOSE: AmqpMethodId = (20, 40);
pub(super) const CHANNEL_CLOSE_OK: AmqpMethodId = (20, 41);
pub(super) const DECLARE: AmqpMethodId = (50, 10);
pub(super) const DECLARE_OK: AmqpMethodId = (50, 11);
pub(super) const QOS: AmqpMethodId = (60, 10);
pub(super) const QOS_OK: AmqpMethodId = (60, 11);
pub(super) const CONSUME: AmqpMethodId = (60, 20);
pub(super) const CONSUME_OK: AmqpMethodId = (60, 21);
pub(super) const CANCEL: AmqpMethodId = (60, 30);
pub(super) const PUBLISH: AmqpMethodId = (60, 40);
pub(super) const RETURN: AmqpMethodId = (60, 50);
pub(super) const DELIVER: AmqpMethodId = (60, 60);
pub(super) const ACK: AmqpMethodId = (60, 80);
pub(super) const NACK: AmqpMethodId = (60, 120);
pub(super) const CONFIRM: AmqpMethodId = (85, 10);
pub(super) const CONFIRM_OK: AmqpMethodId = (85, 11);

/// What a frame holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AmqpFrame {
    Method {
        id: AmqpMethodId,
        rest: Vec<u8>,
    },
    /// The size of a content's body, and its properties.
    Header {
        size: u64,
        properties: Vec<u8>,
    },
    Body(Vec<u8>),
    Heartbeat,
}

/// Reads one frame.
///
/// # Errors
/// The connection broke, or the bytes are not of the protocol.
pub(super) async fn read(input: &mut (impl AsyncRead + Unpin)) -> Result<AmqpFrame, String> {
    let mut head = [0_u8; 7];
    input
        .read_exact(&mut head)
        .await
        .map_err(|error| error.to_string())?;
    // One channel is open: which one it says tells nothing.
    let [kind, _, _, s0, s1, s2, s3] = head;
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    if head.starts_with(b"AMQP") {
        return Err("the broker speaks another version of AMQP".to_owned());
    }
    if size > MAX_FRAME {
        return Err("the broker sent a frame that is too large".to_owned());
    }
    let mut payload = vec![0; usize::try_from(size).unwrap_or(0)];
    input
        .read_exact(&mut payload)
        .await
        .map_err(|error| error.to_string())?;
    if input.read_u8().await.map_err(|error| error.to_string())? != END {
        return Err("the broker sent a frame without its end".to_owned());
    }
    let wrong = || "the broker sent a frame that can't be read".to_owned();
    let mut fields = AmqpFieldReader(&payload);
    match kind {
        1 => {
            let id = (
                fields.read_short().ok_or_else(wrong)?,
                fields.read_short().ok_or_else(wrong)?,
            );
            Ok(AmqpFrame::Method {
                id,
                rest: fields.0.to_vec(),
            })
        }
        2 => {
            let (_class, _weight) = (fields.read_short(), fields.read_short());
            let size = fields.read_longlong().ok_or_else(wrong)?;
            Ok(AmqpFrame::Header {
                size,
                properties: fields.0.to_vec(),
            })
        }
        3 => Ok(AmqpFrame::Body(payload)),
        8 => Ok(AmqpFrame::Heartbeat),
        _ => Err(wrong()),
    }
}

/// A frame's bytes.
pub(super) fn encode_frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(channel.to_be_bytes());
    bytes.extend(u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(payload);
    bytes.push(END);
    bytes
}

/// Writes bytes, all of them.
///
/// # Errors
/// The connection broke.
pub(super) async fn write(out: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), String> {
    out.write_all(bytes).await.map_err(|error| error.to_string())?;
    out.flush().await.map_err(|error| error.to_string())
}

/// Fields that are read one after another.
pub(super) struct AmqpFieldReader<'a>(pub(super) &'a [u8]);

impl<'a> AmqpFieldReader<'a> {
    fn read_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    pub(super) fn read_octet(&mut self) -> Option<u8> {
        self.read_bytes(1)?.first().copied()
    }

    pub(super) fn read_short(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(*self.read_bytes(2)?.first_chunk()?))
    }

    pub(super) fn read_long(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(*self.read_bytes(4)?.first_chunk()?))
    }

    pub(super) fn read_longlong(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(*self.read_bytes(8)?.first_chunk()?))
    }

    pub(super) fn read_text(&mut self) -> Option<String> {
        let length = usize::from(self.read_octet()?);
        Some(String::from_utf8_lossy(self.read_bytes(length)?).into_owned())
    }

    /// A table or a long text, passed over.
    pub(super) fn skip_long(&mut self) -> Option<()> {
        let length = usize::try_from(self.read_long()?).ok()?; // silent-ok: longer than any frame
        self.read_bytes(length).map(drop)
    }
}

/// A method that is being written.
#[derive(Debug)]
pub(super) struct Method(Vec<u8>);

impl Method {
    pub(super) fn new((class, method): AmqpMethodId) -> Self {
        let mut bytes = class.to_be_bytes().to_vec();
        bytes.extend(method.to_be_bytes());
        Self(bytes)
    }

    pub(super) fn with_octet(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub(super) fn with_short(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn with_long(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn with_longlong(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// At most 255 bytes; the rest is cut, which no name of ours is long enough for.
    pub(super) fn with_text(mut self, value: &str) -> Self {
        put_text(&mut self.0, value);
        self
    }

    pub(super) fn long_bytes(mut self, value: &[u8]) -> Self {
        self.0
            .extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        self.0.extend(value);
        self
    }

    pub(super) fn into_frame(self, channel: u16) -> Vec<u8> {
        encode_frame(1, channel, &self.0)
    }
}

fn put_text(bytes: &mut Vec<u8>, value: &str) {
    let value = value.get(..value.floor_char_boundary(255)).unwrap_or(value);
    bytes.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
    bytes.extend(value.as_bytes());
}

/// What a client says it can: refusals of a login are told, and so is the end of a queue.
pub(super) fn client_capabilities() -> Vec<u8> {
    let mut inner = Vec::new();
    for name in [
        "authentication_failure_close",
        "consumer_cancel_notify",
        "publisher_confirms",
        "basic.nack",
    ] {
        put_text(&mut inner, name);
        inner.extend([b't', 1]);
    }
    let mut table = Vec::new();
    put_text(&mut table, "product");
    table.push(b'S');
    table.extend(5_u32.to_be_bytes());
    table.extend(b"clawk");
    put_text(&mut table, "capabilities");
    table.push(b'F');
    table.extend(u32::try_from(inner.len()).unwrap_or(0).to_be_bytes());
    table.extend(inner);
    table
}

/// Properties of a message that this client reads and writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AmqpProperties {
    pub(super) correlation: Option<String>,
    pub(super) reply_to: Option<String>,
    pub(super) id: Option<String>,
}

impl AmqpProperties {
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = AmqpFieldReader(bytes);
        let flags = fields.read_short()?;
        let has = |bit: u16| flags & (1 << bit) != 0;
        let mut found = Self::default();
        if has(15) {
            fields.read_text()?;
        }
        if has(14) {
            fields.read_text()?;
        }
        if has(13) {
            fields.skip_long()?;
        }
        if has(12) {
            fields.read_octet()?;
        }
        if has(11) {
            fields.read_octet()?;
        }
        if has(10) {
            found.correlation = Some(fields.read_text()?);
        }
        if has(9) {
            found.reply_to = Some(fields.read_text()?);
        }
        if has(8) {
            fields.read_text()?;
        }
        if has(7) {
            found.id = Some(fields.read_text()?);
        }
        Some(found)
    }

    /// A header frame of a lasting text of so many bytes.
    pub(super) fn header_frame(&self, channel: u16, size: u64) -> Vec<u8> {
        let mut payload = 60_u16.to_be_bytes().to_vec();
        payload.extend(0_u16.to_be_bytes());
        payload.extend(size.to_be_bytes());
        let correlated = u16::from(self.correlation.is_some());
        let flags: u16 = 1 << 15 | 1 << 12 | correlated << 10 | 1 << 7;
        payload.extend(flags.to_be_bytes());
        put_text(&mut payload, "text/markdown; charset=utf-8");
        payload.push(2);
        if let Some(correlation) = &self.correlation {
            put_text(&mut payload, correlation);
        }
        put_text(&mut payload, self.id.as_deref().unwrap_or_default());
        encode_frame(2, channel, &payload)
    }
}

#[cfg(test)]
mod tests {
    use super::{AmqpFrame, AmqpProperties, Method, encode_frame, read};

    #[tokio::test]
    async fn what_is_written_is_read_and_broken_bytes_are_refused() {
        let bytes = Method::new((60, 80)).with_longlong(7).with_octet(0).into_frame(1);
        let frame = read(&mut bytes.as_slice()).await.unwrap();
        let AmqpFrame::Method { id: (60, 80), rest } = frame else {
            panic!("{frame:?}");
        };
        assert_eq!(rest, [0, 0, 0, 0, 0, 0, 0, 7, 0]);
        let mut other_end = bytes.clone();
        *other_end.last_mut().unwrap() = 0;
        assert!(read(&mut other_end.as_slice()).await.is_err());
        assert!(read(&mut &bytes[..bytes.len() - 3]).await.is_err());
        let large = [1, 0, 1, 0xff, 0xff, 0xff, 0xff];
        assert!(
            read(&mut large.as_slice())
                .await
                .unwrap_err()
                .contains("too large")
        );
        assert!(read(&mut encode_frame(1, 0, &[1]).as_slice()).await.is_err());
    }

    #[test]
    fn properties_come_back_as_they_went_and_others_are_passed_over() {
        let properties = AmqpProperties {
            correlation: Some("c1".to_owned()),
            reply_to: None,
            id: Some("m1".to_owned()),
        };
        let frame = properties.header_frame(1, 5);
        assert_eq!(AmqpProperties::read(&frame[7 + 12..]).unwrap(), properties);
        // A table of headers and a reply address, as a broker sends them.
        let mut bytes = (1_u16 << 13 | 1 << 9).to_be_bytes().to_vec();
        bytes.extend([0, 0, 0, 4, 1, b'x', b't', 1]);
        bytes.extend([2, b'q', b'1']);
        assert_eq!(
            AmqpProperties::read(&bytes).unwrap().reply_to.as_deref(),
            Some("q1")
        );
        assert_eq!(AmqpProperties::read(&[0xff, 0xff, 200]), None);
    }
}
