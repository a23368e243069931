//! What a page asks for in its query, and whose a conversation is. Pure.

use std::collections::BTreeMap;

/// What a page asks for: the query's first word, and its values.
pub(super) struct PageQuery {
    pub(super) what: String,
    values: BTreeMap<String, String>,
}

impl PageQuery {
    pub(super) fn from_query(query: &str) -> Self {
        let mut values = BTreeMap::new();
        let mut what = String::new();
        for (n, pair) in query.split('&').enumerate().take(8) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if n == 0 {
                name.clone_into(&mut what);
            }
            values.insert(name.to_owned(), percent_decode(value));
        }
        Self { what, values }
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.values.get(name).map(String::as_str).unwrap_or_default()
    }
}

/// A percent-encoded value; what is not valid UTF-8 matches nothing.
fn percent_decode(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes().iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(rest.next()), digit(rest.next())) {
            (Some(high), Some(low)) => bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?')),
            _ => bytes.push(b'?'),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A conversation belongs to the person whose name it begins with.
pub(super) fn is_of(conversation: &str, user: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    conversation
        .strip_prefix(user)
        .and_then(|rest| rest.strip_prefix('/'))
        .is_some_and(|tag| (1..=64).contains(&tag.len()) && tag.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::{PageQuery, is_of};

    #[test]
    fn a_conversation_is_its_persons_alone() {
        assert!(is_of("ann/main", "ann"));
        for other in [
            "annika/main",
            "ann",
            "ann/",
            "bob/main",
            "ann/../bob/main",
            "ann/a b",
            "/main",
        ] {
            assert!(!is_of(other, "ann"), "{other}");
        }
    }

    #[test]
    fn a_query_is_read_by_its_first_word() {
        let asked = PageQuery::from_query("events&conversation=ann%2Fmain&after=3");
        assert_eq!(
            (
                asked.what.as_str(),
                asked.value("conversation"),
                asked.value("after")
            ),
            ("events", "ann/main", "3")
        );
        assert_eq!(PageQuery::from_query("").what, "");
        assert_eq!(PageQuery::from_query("file=%2").value("file"), "?");
    }
}
