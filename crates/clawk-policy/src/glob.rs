//! Name patterns: `*` matches any run of characters, `?` matches one, all others match themselves. The whole name must match.
//!
//! Atlas patterns have the same syntax (R29). The matcher backtracks only to the last star, so a hostile name costs at most pattern
//! × name.

/// A pattern, or a plain name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NamePattern {
    /// Without a wildcard: equality.
    Exact(Box<str>),
    /// With at least one wildcard.
    Glob(WildcardPattern),
}

impl NamePattern {
    pub(crate) fn new(text: &str) -> Self {
        if text.contains(['*', '?']) {
            Self::Glob(WildcardPattern::new(text))
        } else {
            Self::Exact(text.into())
        }
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(text) => &**text == name,
            Self::Glob(glob) => glob.matches(name),
        }
    }

    /// The text in the manifest.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Exact(text) => text,
            Self::Glob(glob) => &glob.text,
        }
    }

    /// Whether every name that matches `other` also matches this (`None`: any name). `true` is certain; `false` may be wrong.
    pub(crate) fn covers_pattern(&self, other: Option<&Self>) -> bool {
        match (self, other) {
            (_, None) => self.text() == "*",
            (name, Some(Self::Exact(text))) => name.matches(text),
            (Self::Exact(_), Some(Self::Glob(_))) => false,
            // A star in the other pattern can match anything, so only a star of ours may cover it.
            (Self::Glob(ours), Some(Self::Glob(theirs))) => {
                matches_pattern(ours.text.as_bytes(), theirs.text.as_bytes(), true)
            }
        }
    }
}

/// A pattern with wildcards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WildcardPattern {
    text: Box<str>,
}

impl WildcardPattern {
    fn new(text: &str) -> Self {
        Self { text: text.into() }
    }

    fn matches(&self, name: &str) -> bool {
        matches_pattern(self.text.as_bytes(), name.as_bytes(), false)
    }

    /// The characters before the first wildcard.
    pub(crate) fn prefix(&self) -> &str {
        self.text.split(['*', '?']).next().unwrap_or_default()
    }

    /// The characters after the last wildcard.
    pub(crate) fn suffix(&self) -> &str {
        self.text.rsplit(['*', '?']).next().unwrap_or_default()
    }
}

/// Whether `text` matches `pattern`. With `symbolic`, `text` is a pattern too, and only a `*` matches its `*`.
fn matches_pattern(pattern: &[u8], text: &[u8], symbolic: bool) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(at), text.get(from)) {
            (Some(b'*'), _) => {
                retry = Some((at, from));
                at += 1;
            }
            (Some(b'?'), Some(&found)) if !is_continuation(found) && (found != b'*' || !symbolic) => {
                at += 1;
                from += 1;
                while text.get(from).is_some_and(|&byte| is_continuation(byte)) {
                    from += 1;
                }
            }
            (Some(wanted), Some(found)) if wanted == found && *wanted != b'?' => {
                at += 1;
                from += 1;
            }
            (None, None) => return true,
            (_, _) => match retry {
                // The last star takes one more byte.
                Some((star, taken)) if taken < text.len() => {
                    retry = Some((star, taken + 1));
                    at = star + 1;
                    from = taken + 1;
                }
                _ => return false,
            },
        }
    }
}

/// Whether the byte continues a UTF-8 character.
const fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}
