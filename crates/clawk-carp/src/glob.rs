//! Patterns: `*` matches any run of characters including dots, `?` matches one character. The whole text must match (R29).
//!
//! Matching takes linear time: each part between two stars is searched once, from left to right.

/// The longest pattern, bytes.
pub(crate) const MAX_BYTES: usize = 256;
/// The longest part between two stars that contains a `?`, bytes. Such a part is tried at every position.
pub(crate) const MAX_FLOATING: usize = 32;

/// A pattern, classified by how an index finds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Pattern {
    /// `*`: matches everything.
    All,
    /// A text without a wildcard.
    Exact(Box<str>),
    /// `text*`.
    Prefix(Box<str>),
    /// `*text`.
    Suffix(Box<str>),
    /// Any other pattern.
    General(GlobPattern),
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        if !text.contains(['*', '?']) {
            return Self::Exact(text.into());
        }
        let plain = |part: &str| !part.contains(['*', '?']);
        match (text.strip_suffix('*'), text.strip_prefix('*')) {
            (Some(""), _) => Self::All,
            (Some(head), _) if plain(head) => Self::Prefix(head.into()),
            (_, Some(tail)) if plain(tail) => Self::Suffix(tail.into()),
            _ => Self::General(GlobPattern::new(text)),
        }
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        match self {
            Self::All => true,
            Self::Exact(exact) => **exact == *text,
            Self::Prefix(head) => text.starts_with(&**head),
            Self::Suffix(tail) => text.ends_with(&**tail),
            Self::General(glob) => glob.matches(text),
        }
    }

    /// The text in the manifest.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::All => "*".to_owned(),
            Self::Exact(text) => text.to_string(),
            Self::Prefix(head) => format!("{head}*"),
            Self::Suffix(tail) => format!("*{tail}"),
            Self::General(glob) => glob.text.to_string(),
        }
    }

    /// Why the pattern is refused, if it is.
    pub(crate) fn refusal(&self) -> Option<String> {
        let text = self.text();
        let floats = text.split('*').collect::<Vec<_>>();
        let inner = floats.get(1..floats.len().saturating_sub(1)).unwrap_or_default();
        if text.len() > MAX_BYTES {
            Some(format!("a pattern has at most {MAX_BYTES} bytes"))
        } else if inner
            .iter()
            .any(|part| part.contains('?') && part.len() > MAX_FLOATING)
        {
            Some(format!(
                "a part with `?` between two stars has at most {MAX_FLOATING} bytes"
            ))
        } else {
            None
        }
    }
}

/// A pattern split at its stars.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct GlobPattern {
    text: Box<str>,
    /// The text before the first star.
    head: Box<str>,
    /// The parts between the stars.
    middle: Vec<Box<str>>,
    /// The text after the last star; `None` without a star.
    tail: Option<Box<str>>,
}

impl GlobPattern {
    fn new(text: &str) -> Self {
        let mut parts = text.split('*');
        let head = parts.next().unwrap_or_default().into();
        let mut middle: Vec<Box<str>> = parts.map(Into::into).collect();
        let tail = middle.pop();
        middle.retain(|part| !part.is_empty());
        Self {
            text: text.into(),
            head,
            middle,
            tail,
        }
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        let Some(rest) = strip_head(&self.head, text) else {
            return false;
        };
        let Some(tail) = &self.tail else {
            return rest.is_empty();
        };
        let Some(mut rest) = strip_tail(tail, rest) else {
            return false;
        };
        self.middle.iter().all(|part| match text_behind(part, rest) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        })
    }

    /// The largest number of steps per byte of text.
    pub(crate) fn match_cost(&self) -> usize {
        let tried = self.middle.iter().filter(|part| part.contains('?'));
        1 + tried.map(|part| part.len()).sum::<usize>()
    }
}

/// The text after `part`, if `text` begins with it.
fn strip_head<'t>(part: &str, text: &'t str) -> Option<&'t str> {
    let mut rest = text.chars();
    for wanted in part.chars() {
        let found = rest.next()?;
        if wanted != '?' && wanted != found {
            return None;
        }
    }
    Some(rest.as_str())
}

/// The text before `part`, if `text` ends with it.
fn strip_tail<'t>(part: &str, text: &'t str) -> Option<&'t str> {
    let mut rest = text.chars();
    for wanted in part.chars().rev() {
        let found = rest.next_back()?;
        if wanted != '?' && wanted != found {
            return None;
        }
    }
    Some(rest.as_str())
}

/// The text after the first occurrence of `part`.
fn text_behind<'t>(part: &str, text: &'t str) -> Option<&'t str> {
    if !part.contains('?') {
        return text.find(part).and_then(|at| text.get(at + part.len()..));
    }
    let mut rest = text;
    loop {
        if let Some(after) = strip_head(part, rest) {
            return Some(after);
        }
        let mut chars = rest.chars();
        chars.next()?;
        rest = chars.as_str();
    }
}
