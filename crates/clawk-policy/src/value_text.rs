//! Finds a whole value in a text (R51), and finds addresses and accounts in a text.

/// The smallest number of digits of an account, card or telephone number.
const ACCOUNT_DIGITS: usize = 9;
/// The longest value that may consist of two values, bytes.
const MAX_JOINED_BYTES: usize = 200;

/// Escapes of escapes that are read.
const MAX_ESCAPE_ROUNDS: usize = 3;

/// The value without its spelling: small letters, no blanks and no characters that can't be seen, escapes of addresses (`%40`) read. Two
/// texts that mean the same to a tool are the same here; some that differ are, too.
pub(crate) fn unspelled(value: &str) -> String {
    let mut text = value.to_owned();
    for _ in 0..MAX_ESCAPE_ROUNDS {
        let read = unescaped(&text);
        if read == text {
            break;
        }
        text = read;
    }
    let is_spacing = |c: &char| {
        c.is_whitespace()
            || c.is_control()
            || *c == '+'
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.chars()
        .filter(|c| !is_spacing(c))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Percent escapes as the bytes that they stand for. What is no escape stays.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind
            .split_at_checked(2)
            .filter(|(digits, _)| *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let read = digits.and_then(|(digits, behind)| {
            let digits = std::str::from_utf8(digits).ok()?; // silent-ok: then it is no escape
            let byte = u8::from_str_radix(digits, 16).ok()?; // silent-ok: as above
            Some((byte, behind))
        });
        let (byte, behind) = read.unwrap_or((*first, behind));
        bytes.push(byte);
        rest = behind;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Words and blanks only: such a value means the same in capitals.
pub(crate) fn is_plain_words(value: &str) -> bool {
    value.chars().all(|c| c.is_alphabetic() || c == ' ')
}

/// Whether the text contains the value, and not only as part of a longer word, address or number.
pub(crate) fn holds_whole(text: &str, value: &str) -> bool {
    let (Some(first), Some(last)) = (value.chars().next(), value.chars().next_back()) else {
        return false;
    };
    text.match_indices(value).any(|(at, _)| {
        let (before, after) = (text.get(..at), text.get(at.saturating_add(value.len())..));
        let (Some(before), Some(after)) = (before, after) else {
            return false;
        };
        let is_part = first.is_ascii_digit() && is_digit_behind(before.chars().rev());
        !is_part
            && !before
                .chars()
                .next_back()
                .is_some_and(|c| is_joining_char(first, c))
            && is_value_end(last, after)
    })
}

/// A separator inside numbers, followed by a digit: `1,500` does not contain 500.
fn is_digit_behind(mut chars: impl Iterator<Item = char>) -> bool {
    matches!(chars.next(), Some(',' | '\'')) && chars.next().is_some_and(|c| c.is_ascii_digit())
}

/// Whether the next character continues the word, address, path or number at this end of the value.
fn is_joining_char(edge: char, next: char) -> bool {
    // Chinese, Japanese and Korean words may follow an address without a blank.
    let is_unspaced =
        matches!(next, '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}');
    !(edge.is_ascii() && is_unspaced) && (next.is_alphanumeric() || "@._-/\\:+%~#&=?$*".contains(next))
}

/// Whether the value ends here: the text after it does not continue it. A sentence's end does not continue it.
fn is_value_end(last: char, after: &str) -> bool {
    if last.is_ascii_digit() && is_digit_behind(after.chars()) {
        return false;
    }
    let rest = after.trim_start_matches(['.', ':', '?', '!']);
    rest.chars()
        .next()
        .is_none_or(|next| !is_joining_char(last, next))
}

/// Each way to read the value as two values with a blank between, such as a day and an hour. Addresses and paths are never split.
pub(crate) fn value_halves(value: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_joined = value.len() <= MAX_JOINED_BYTES && !value.contains(['@', '/', '\\']);
    let blanks = value.match_indices(' ').filter(move |_| is_joined);
    blanks.filter_map(|(at, _)| Some((value.get(..at)?, value.get(at.saturating_add(1)..)?)))
}

/// The value, and the usual short forms of the same address: without `https://`, without the slash after the host.
pub(crate) fn address_forms(value: &str) -> impl Iterator<Item = &str> {
    let bare = value.strip_prefix("https://");
    let is_host = |address: &&str| !address.contains(['/', '?', '#', '@']);
    let host =
        |address: &'_ str| -> Option<usize> { address.strip_suffix('/').filter(is_host).map(str::len) };
    let bare_host = bare.and_then(|bare| bare.get(..host(bare)?));
    let with_scheme = bare_host.and_then(|_| value.strip_suffix('/'));
    let bare = bare.filter(|bare| bare.contains('.'));
    [Some(value), bare, bare_host, with_scheme].into_iter().flatten()
}

/// Addresses, host names, mail addresses and long numbers in a text.
pub(crate) fn find_links(text: &str) -> impl Iterator<Item = &str> {
    let is_between =
        |c: char| c.is_whitespace() || c.is_control() || "'\"<>()[]{},;|`*“”‘’«»（）【】，。、；".contains(c);
    text.split(is_between)
        .map(|word| word.trim_matches(['.', ':', '!', '?', '…']))
        .filter(|word| is_link(word))
}

/// Account, card and telephone numbers that are written in groups separated by blanks.
pub(crate) fn number_groups(text: &str) -> Vec<String> {
    let digits = |word: &str| word.chars().filter(|c| c.is_numeric()).count();
    let is_date = |word: &str| word.split('-').map(str::len).eq([4, 2, 2]);
    let is_group = |word: &str| {
        let is_known = word.chars().all(|c| c.is_alphanumeric() || "+-/()".contains(c));
        let is_letters = word.len() <= 4 && word.chars().all(|c| c.is_ascii_uppercase());
        !word.is_empty() && is_known && !is_date(word) && (digits(word) > 0 || is_letters)
    };
    let words: Vec<&str> = text
        .split_whitespace()
        .map(|word| word.trim_matches([',', '.', ';', '!', '?']))
        .collect();
    words
        .split(|word| !is_group(word))
        .filter(|run| run.len() > 1)
        .map(|run| run.join(" "))
        .filter(|run| digits(run) >= ACCOUNT_DIGITS)
        .collect()
}

fn is_link(word: &str) -> bool {
    let digits = word.chars().filter(|c| c.is_numeric()).count();
    word.contains("://") || word.contains('@') || digits >= ACCOUNT_DIGITS || starts_with_host(word)
}

/// Whether the word begins with a name with a dot whose last part is letters: a host or a file. A scheme without slashes
/// (`mailto:`) counts too.
fn starts_with_host(word: &str) -> bool {
    let host = word.split(['/', ':', '?', '#', '\\']).next().unwrap_or_default();
    let is_scheme = word
        .get(host.len()..)
        .is_some_and(|rest| rest.starts_with(':') && rest.len() > 1)
        && host.chars().count() > 1
        && host.chars().all(char::is_alphabetic);
    let is_end = |end: &str| {
        let is_name = end.chars().all(|c| c.is_alphanumeric() || c == '-');
        end.chars().count() >= 2 && is_name && end.chars().any(char::is_alphabetic)
    };
    let dots = ['.', '\u{3002}', '\u{ff0e}', '\u{ff61}'];
    let is_other = |c: char| !c.is_alphanumeric() && c != '-';
    let is_dotted = !host.starts_with(dots)
        && host
            .split(dots)
            .skip(1)
            .any(|part| part.split(is_other).any(is_end));
    let is_number = |part: &str| !part.is_empty() && part.chars().all(char::is_numeric);
    let is_ip = (host.split(dots).count() == 4 && host.split(dots).all(is_number)) || word.contains("::");
    is_scheme || is_dotted || is_ip || word.starts_with("//") || word.starts_with("\\\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_somewhere_is_found_in_a_text() {
        let found = |text: &str| find_links(text).map(str::to_owned).collect::<Vec<_>>();
        for (text, leads) in [
            ("see www.evil.test/a.", vec!["www.evil.test/a"]),
            ("[here](https://evil.test/?q=1)", vec!["https://evil.test/?q=1"]),
            (
                "**evil.test** and <b@evil.test>",
                vec!["evil.test", "b@evil.test"],
            ),
            ("pay GB29NWBK60161331926819", vec!["GB29NWBK60161331926819"]),
            ("call +49-170-5551234 now", vec!["+49-170-5551234"]),
            ("mailto:boss tel:110", vec!["mailto:boss", "tel:110"]),
            ("//evil/x", vec!["//evil/x"]),
            (
                "203.0.113.7/x or 2001:db8::1",
                vec!["203.0.113.7/x", "2001:db8::1"],
            ),
            ("xn--e1afmkfd.xn--p1ai", vec!["xn--e1afmkfd.xn--p1ai"]),
            (
                "_evil.test_ www.evil.test~ evil｡test",
                vec!["_evil.test_", "www.evil.test~", "evil｡test"],
            ),
            ("Lunch at 12:00 on 2024-05-20, 3.5 stars: e.g. soup", vec![]),
            ("the 1-th most active user!", vec![]),
        ] {
            assert_eq!(found(text), leads, "{text}");
        }
    }

    #[test]
    fn spellings_of_one_value_are_the_same() {
        for other in [
            "Boss@Evil.Test",
            "boss%40evil.test",
            "boss%2540evil%2Etest",
            " boss @evil. test",
            "boss\u{200b}@evil.test",
            "boss+%40evil.test",
        ] {
            assert_eq!(unspelled(other), "boss@evil.test", "{other}");
        }
        // What is no escape is what it is.
        for same in ["100%", "%zz", "%+4", "50%4", "%é", "ä%c3"] {
            let first = same.chars().next().unwrap();
            assert!(unspelled(same).starts_with(first), "{same}");
        }
    }

    #[test]
    fn numbers_of_accounts_are_found_in_groups() {
        for (text, found) in [
            (
                "pay to GB29 NWBK 6016 1331 9268 19.",
                vec!["GB29 NWBK 6016 1331 9268 19"],
            ),
            ("call +49 170 555 12 34 now", vec!["+49 170 555 12 34"]),
            ("card 4111 1111 1111 1111", vec!["4111 1111 1111 1111"]),
            ("on 2024-05-20 at 12:00, 3 of 4 came", vec![]),
        ] {
            assert_eq!(number_groups(text), found, "{text}");
        }
        assert!(!holds_whole("pay 1,500 to Ann", "500") && !holds_whole("12,99", "12"));
        assert!(holds_whole("rooms 5, 6", "5"));
    }

    #[test]
    fn an_address_is_the_same_without_its_scheme_and_its_last_slash() {
        let forms = |value| address_forms(value).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(forms("https://a.test/b/"), ["https://a.test/b/", "a.test/b/"]);
        assert_eq!(
            forms("https://a.test/"),
            ["https://a.test/", "a.test/", "a.test", "https://a.test"]
        );
        assert_eq!(forms("http://a.test/"), ["http://a.test/"]);
        assert_eq!(
            forms("https://ann@a.test/"),
            ["https://ann@a.test/", "ann@a.test/"]
        );
        assert_eq!(forms("a.test/"), ["a.test/"]);
    }

    #[test]
    fn no_address_is_put_together_from_two_values() {
        assert_eq!(
            value_halves("2024-05-20 10:00").collect::<Vec<_>>(),
            [("2024-05-20", "10:00")]
        );
        assert_eq!(value_halves("ann @corp.example").count(), 0);
        assert_eq!(value_halves("a /etc/passwd").count(), 0);
    }
}
