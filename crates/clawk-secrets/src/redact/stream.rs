//! Redaction of byte streams: a secret is also found if it is split between two pieces.

use std::fmt;

use zeroize::Zeroizing;

use super::SecretRedactor;

impl SecretRedactor {
    /// Starts the redaction of a stream, which is passed piece by piece.
    #[must_use]
    pub fn redact_stream(&self) -> RedactStream<'_> {
        RedactStream {
            redactor: self,
            held: Zeroizing::new(Vec::new()),
            found: 0,
        }
    }

    /// Returns whether the redactor has no secrets to search for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

/// Made by [`SecretRedactor::redact_stream`]. It holds back only bytes that may be the beginning of a secret.
pub struct RedactStream<'a> {
    redactor: &'a SecretRedactor,
    held: Zeroizing<Vec<u8>>,
    found: usize,
}

impl RedactStream<'_> {
    /// Takes the next piece. Appends to `out` the bytes that are surely clean.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.held.extend_from_slice(piece);
        self.redact_held(false, out);
    }

    /// Ends the stream. Appends the bytes that were held back.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.redact_held(true, out);
    }

    /// Returns the number of secrets found so far.
    #[must_use]
    pub fn found_count(&self) -> usize {
        self.found
    }

    fn redact_held(&mut self, last: bool, out: &mut Vec<u8>) {
        let Some(search) = &self.redactor.search else {
            // As in `SecretRedactor::redact_text`: if the search could not be built, nothing is shown.
            self.held.clear();
            return;
        };
        let hold = if last { self.held.len() } else { self.open_end() };
        let mut at = 0;
        for found in search.find_iter(self.held.as_slice()) {
            if found.start() >= hold {
                break;
            }
            out.extend_from_slice(self.held.get(at..found.start()).unwrap_or_default());
            let mark = self.redactor.marks.get(found.pattern().as_usize());
            out.extend_from_slice(mark.map(String::as_bytes).unwrap_or_default());
            self.found += 1;
            at = found.end();
        }
        let hold = hold.max(at);
        out.extend_from_slice(self.held.get(at..hold).unwrap_or_default());
        let rest = Zeroizing::new(self.held.get(hold..).unwrap_or_default().to_vec());
        self.held = rest;
    }

    /// Returns the offset of the first form that may continue in the next piece.
    fn open_end(&self) -> usize {
        let forms = &self.redactor.forms;
        let longest = forms.iter().map(|form| form.len()).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        (from..self.held.len())
            .find(|at| {
                let rest = self.held.get(*at..).unwrap_or_default();
                forms
                    .iter()
                    .any(|form| form.len() > rest.len() && form.as_bytes().starts_with(rest))
            })
            .unwrap_or(self.held.len())
    }
}

impl fmt::Debug for RedactStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedactStream({} found)", self.found)
    }
}
