//! The same, for bytes that come in pieces: a secret cut in two by a piece's edge is found all the same.

use std::fmt;

use zeroize::Zeroizing;

use super::SecretRedactor;

impl SecretRedactor {
    /// A stream of bytes to clean, piece by piece.
    #[must_use]
    pub fn stream(&self) -> RedactStream<'_> {
        RedactStream {
            redactor: self,
            held: Zeroizing::new(Vec::new()),
            found: 0,
        }
    }

    /// Whether there is nothing to look for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

/// Made by [`SecretRedactor::stream`]. It keeps back only what may be the beginning of a secret.
pub struct RedactStream<'a> {
    redactor: &'a SecretRedactor,
    held: Zeroizing<Vec<u8>>,
    found: usize,
}

impl RedactStream<'_> {
    /// Takes the next piece; appends to `out` what is clean by now.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        self.held.extend_from_slice(piece);
        self.clean(false, out);
    }

    /// The stream's end: appends what was kept back.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.clean(true, out);
    }

    /// How many secrets were found so far.
    #[must_use]
    pub fn found(&self) -> usize {
        self.found
    }

    fn clean(&mut self, last: bool, out: &mut Vec<u8>) {
        let Some(search) = &self.redactor.search else {
            // As `SecretRedactor::clean`: without a search nothing is shown.
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

    /// Where the first form begins that the piece's edge may have cut.
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
