//! Decodes server-sent events from bytes as they arrive, without I/O (WHATWG HTML §9.2.6). It also decodes what some servers send
//! instead: lines of JSON, one JSON text, events without a blank line between them.

use serde::de::IgnoredAny;

/// One decoded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field; empty if there is none.
    pub name: String,
    /// The `data:` lines, joined by newlines.
    pub data: String,
}

/// The error for an event or a line larger than the decoder's limit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is larger than {0} bytes")]
pub struct TooLarge(pub usize);

/// An incremental decoder. Line ends may be LF, CR or CRLF, split at any byte. Comments and unknown fields are ignored; bytes that
/// are not UTF-8 become replacement characters. An event ends at its blank line, or where the JSON text of its data is complete and
/// another one begins. A line with a JSON text but no field name begins its own event, which lasts as long as the JSON text.
/// [`Self::finish`] returns the rest when the stream has ended.
#[derive(Debug)]
pub struct Decoder {
    max_bytes: usize,
    line: Vec<u8>,
    /// The last byte was CR, so an LF that follows belongs to the same line end.
    after_cr: bool,
    first_line: bool,
    name: String,
    data: String,
    has_data: bool,
    /// The data is a JSON text without a field name.
    bare: bool,
}

impl Decoder {
    /// Makes a decoder that stores at most about `max_bytes` of one event.
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
            bare: false,
        }
    }

    /// Takes the next bytes and passes each completed event to `dispatch`, in order.
    ///
    /// # Errors
    /// [`TooLarge`], or the error of `dispatch`. The rest of `bytes` is then dropped.
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
            for event in self.end_line() {
                dispatch(event)?;
            }
        }
        Ok(())
    }

    /// Ends the stream and passes the last event to `dispatch`, if one was begun.
    ///
    /// # Errors
    /// The error of `dispatch`.
    pub fn finish<E: From<TooLarge>>(
        &mut self,
        mut dispatch: impl FnMut(Event) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut events = Vec::new();
        if !self.line.is_empty() {
            events = self.end_line();
        }
        events.extend(self.take_event());
        events.into_iter().try_for_each(&mut dispatch)
    }

    fn take_event(&mut self) -> Option<Event> {
        let event = Event {
            name: std::mem::take(&mut self.name),
            data: std::mem::take(&mut self.data),
        };
        self.bare = false;
        std::mem::take(&mut self.has_data).then_some(event)
    }

    fn end_line(&mut self) -> Vec<Event> {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        let line = if std::mem::take(&mut self.first_line) {
            line.strip_prefix('\u{feff}').unwrap_or(&line)
        } else {
            line.as_str()
        };
        if self.bare {
            return self.go_on(line).into_iter().collect();
        }
        if line.is_empty() {
            return self.take_event().into_iter().collect();
        }
        if line.starts_with(['{', '[']) {
            let mut events: Vec<Event> = self.take_event().into_iter().collect();
            self.bare = true;
            events.extend(self.go_on(line));
            return events;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => {
                // The next event began without a blank line.
                let whole = self.ends_object().then(|| self.take_event()).flatten();
                value.clone_into(&mut self.name);
                return whole.into_iter().collect();
            }
            "data" => {
                let next = value.trim_start();
                let begins = next.starts_with('{') || next.starts_with("[DONE]");
                let whole = (begins && self.ends_object())
                    .then(|| self.take_event())
                    .flatten();
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                return whole.into_iter().collect();
            }
            _ => {}
        }
        Vec::new()
    }

    /// Returns whether the data ends a JSON object. A `{` after its `}` must begin another JSON text.
    fn ends_object(&self) -> bool {
        self.has_data && self.data.trim_end().ends_with('}')
    }

    /// Adds a line to a JSON text that has no field name.
    fn go_on(&mut self, line: &str) -> Option<Event> {
        if std::mem::replace(&mut self.has_data, true) {
            self.data.push('\n');
        }
        let first = self.data.is_empty();
        self.data.push_str(line);
        // Parse only where the text can end, not at every line of a long text.
        let may_end = match first {
            true => line.trim_end().ends_with(['}', ']']),
            false => matches!(line.trim_end(), "}" | "]"),
        };
        let whole = may_end && serde_json::from_str::<IgnoredAny>(&self.data).is_ok();
        whole.then(|| self.take_event()).flatten()
    }
}
