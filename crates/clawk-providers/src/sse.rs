//! Server-sent events, decoded from bytes as they come, without I/O (WHATWG HTML §9.2.6).

/// One dispatched event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field; empty when there was none.
    pub name: String,
    /// The `data:` lines, joined by newlines.
    pub data: String,
}

/// An event or a line larger than the decoder's bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {0} bytes")]
pub struct TooLarge(pub usize);

/// An incremental decoder. It takes LF, CR and CRLF, split anywhere; comments and unknown fields are passed over; bytes that
/// are not UTF-8 become replacement characters; an event without its closing blank line is never dispatched.
#[derive(Debug)]
pub struct Decoder {
    max_bytes: usize,
    line: Vec<u8>,
    /// The last byte was CR: an LF now belongs to it.
    after_cr: bool,
    first_line: bool,
    name: String,
    data: String,
    has_data: bool,
}

impl Decoder {
    /// A decoder that holds at most about `max_bytes` of one event.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            line: Vec::new(),
            after_cr: false,
            first_line: true,
            name: String::new(),
            data: String::new(),
            has_data: false,
        }
    }

    /// Takes the next bytes and hands each event that they complete to `dispatch`, in order.
    ///
    /// # Errors
    /// [`TooLarge`], or what `dispatch` returns; the rest of `bytes` is dropped then.
    pub fn push<E: From<TooLarge>>(
        &mut self,
        bytes: &[u8],
        mut dispatch: impl FnMut(Event) -> Result<(), E>,
    ) -> Result<(), E> {
        for &byte in bytes {
            let lf_of_crlf = self.after_cr && byte == b'\n';
            self.after_cr = byte == b'\r';
            if lf_of_crlf {
                continue;
            }
            if byte != b'\n' && byte != b'\r' {
                if self.line.len() + self.data.len() >= self.max_bytes {
                    return Err(TooLarge(self.max_bytes).into());
                }
                self.line.push(byte);
                continue;
            }
            if let Some(event) = self.end_line() {
                dispatch(event)?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> Option<Event> {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        let line = if std::mem::take(&mut self.first_line) {
            line.strip_prefix('\u{feff}').unwrap_or(&line)
        } else {
            line.as_str()
        };
        if line.is_empty() {
            let event = Event {
                name: std::mem::take(&mut self.name),
                data: std::mem::take(&mut self.data),
            };
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}
