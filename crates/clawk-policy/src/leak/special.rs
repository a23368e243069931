//! Keys that can't be recognised by prefix and length alone. Each has its own exact check.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::MAX_SECRET_BYTES;
use super::check::{
    CharacterSet, byte_entropy, contains_word, has_letters_and_digits, is_key, is_placeholder, is_word_start,
    run, run_back, three_classes,
};

/// The first byte and the byte after the last one.
pub(super) type Span = Option<(usize, usize)>;

/// Skips the separator between a name and its value: quotes, colons, equals signs, blanks.
fn value_start(text: &[u8], from: usize) -> usize {
    let between = |byte: &u8| {
        matches!(
            byte,
            b' ' | b'\t' | b'"' | b'\'' | b':' | b'=' | b'\\' | b'>' | b'`'
        )
    };
    from + text
        .get(from..)
        .unwrap_or_default()
        .iter()
        .take(12)
        .take_while(|byte| between(byte))
        .count()
}

/// Matches exactly `len` of these characters and no more.
fn exact_run(text: &[u8], from: usize, len: usize, set: CharacterSet) -> Option<usize> {
    let end = run(text, from, len, set);
    (end - from == len).then_some(end)
}

/// Forty characters of base64 after the name.
pub(super) fn aws_secret(text: &[u8], _start: usize, end: usize) -> Span {
    let from = value_start(text, end);
    if from == end {
        return None;
    }
    let to = exact_run(text, from, 40, CharacterSet::Base64)?;
    let body = text.get(from..to)?;
    (is_key(body, CharacterSet::Base64) && byte_entropy(body) > 3.8 && has_letters_and_digits(body))
        .then_some((from, to))
}

/// The path of a webhook: at least 40 characters, with upper case, lower case and digits.
pub(super) fn path_key(text: &[u8], start: usize, end: usize) -> Span {
    let path = |byte: &u8| CharacterSet::Url.contains(*byte) || *byte == b'/';
    let rest = text.get(end..)?;
    let body: &[u8] = rest.get(..rest.iter().take(300).take_while(|byte| path(byte)).count())?;
    let last = body.rsplit(|byte| *byte == b'/').next()?;
    let fits = body.len() >= 40 && last.len() >= 20 && three_classes(body);
    (fits && is_key(last, CharacterSet::Url)).then_some((start, end + body.len()))
}

/// `sk-` and 48 letters and digits: the old format, or with a project marker inside.
pub(super) fn openai_classic(text: &[u8], start: usize, end: usize) -> Span {
    if !is_word_start(text, start) {
        return None;
    }
    let to = run(text, end, 60, CharacterSet::Alnum);
    let body = text.get(end..to)?;
    let fits = (body.len() == 48 || body.len() == 32 || contains_word(body, b"T3BlbkFJ"))
        && has_letters_and_digits(body);
    let goes_on = text.get(to).is_some_and(|byte| CharacterSet::Url.contains(*byte));
    (fits && !goes_on && is_key(body, CharacterSet::Alnum)).then_some((start, to))
}

/// `SG.`, 22 characters, `.`, 43 characters.
pub(super) fn sendgrid_span(text: &[u8], start: usize, end: usize) -> Span {
    let dot = exact_run(text, end, 22, CharacterSet::Url)?;
    (text.get(dot) == Some(&b'.')).then_some(())?;
    let to = exact_run(text, dot + 1, 43, CharacterSet::Url)?;
    let body = text.get(end..to)?;
    (is_word_start(text, start) && is_key(body, CharacterSet::Url)).then_some((start, to))
}

/// Eight to ten digits, `:AA`, and 33 more characters.
pub(super) fn telegram_span(text: &[u8], start: usize, _end: usize) -> Span {
    let before = text.get(..start)?;
    let digits = before
        .iter()
        .rev()
        .take(11)
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let from = start - digits;
    let fits = (8..=10).contains(&digits);
    let to = exact_run(text, start + 1, 35, CharacterSet::Url)?;
    let body = text.get(start + 3..to)?;
    let named = is_word_start(text, from) || text.get(..from)?.ends_with(b"bot");
    (fits && named && is_key(body, CharacterSet::Url)).then_some((from, to))
}

/// A user's number in base64, then six, then at least twenty-seven characters.
pub(super) fn discord_span(text: &[u8], start: usize, _end: usize) -> Span {
    let first = run(text, start, 30, CharacterSet::Url);
    if !(22..=28).contains(&(first - start)) || text.get(first) != Some(&b'.') || !is_word_start(text, start)
    {
        return None;
    }
    let id = STANDARD_NO_PAD.decode(text.get(start..first)?).ok()?; // silent-ok: not base64 is no token
    let second = run(text, first + 1, 8, CharacterSet::Url);
    let to = run(text, second + 1, 50, CharacterSet::Url);
    let fits = id.iter().all(u8::is_ascii_digit)
        && (16..=20).contains(&id.len())
        && (5..=7).contains(&(second - first - 1))
        && text.get(second) == Some(&b'.')
        && (27..=45).contains(&to.saturating_sub(second + 1));
    let body = text.get(second + 1..to).unwrap_or_default();
    (fits && is_key(body, CharacterSet::Url)).then_some((start, to))
}

/// A private key's block, to its end line or to the end of its base64 body.
pub(super) fn pem_span(text: &[u8], start: usize, end: usize) -> Span {
    let rest = text.get(start..)?;
    let rest = rest.get(..rest.len().min(MAX_SECRET_BYTES))?;
    let title = text.get(end..)?.get(..40.min(text.len() - end))?;
    let ssh2 = rest.starts_with(b"----  BEGIN SSH2") || rest.starts_with(b"---- BEGIN SSH2");
    let title_end = memchr::memmem::find(title, b"PRIVATE KEY");
    if !ssh2 && title_end.is_none() {
        return None;
    }
    let head = end - start + title_end.map_or(0, |at| at + b"PRIVATE KEY".len());
    let body = rest.get(head..)?;
    let stop = memchr::memmem::find(body, b"-----END");
    let inside = body.get(..stop.unwrap_or_else(|| pem_run(body)))?;
    // Escaped line ends and header lines are not part of the key.
    let letters = inside
        .split(|byte| !CharacterSet::Base64.contains(*byte))
        .filter(|part| part.len() >= 16);
    let key: Vec<u8> = letters.flatten().copied().collect();
    if key.len() < 40
        || byte_entropy(&key) < 4.0
        || is_placeholder(key.get(..key.len().min(24)).unwrap_or_default())
    {
        return None;
    }
    let tail = match stop {
        Some(stop) => {
            let line = body.get(stop..)?;
            stop + memchr::memmem::find(line.get(8..)?, b"-----")
                .map_or(8, |at| at + 13)
                .min(64)
        }
        None => inside.len(),
    };
    Some((start, (start + head + tail).min(text.len())))
}

/// The length of a key's body without an end line.
fn pem_run(body: &[u8]) -> usize {
    let inside = |byte: &u8| {
        CharacterSet::Base64.contains(*byte)
            || matches!(
                byte,
                b'\n' | b'\r' | b' ' | b'\\' | b'-' | b':' | b',' | b'"' | b'|'
            )
    };
    body.iter().take_while(|byte| inside(byte)).count()
}

/// `Private-Lines: 14`, then lines of base64.
pub(super) fn putty_span(text: &[u8], start: usize, end: usize) -> Span {
    let digits = run(text, end, 3, CharacterSet::Upper);
    let rest = text.get(digits..)?;
    let body = rest
        .iter()
        .take(8192)
        .take_while(|byte| CharacterSet::Base64.contains(**byte) || matches!(byte, b'\n' | b'\r'))
        .count();
    let key = rest.get(..body)?;
    (body >= 64 && byte_entropy(key) > 4.0).then_some((start, digits + body))
}

/// A token of three parts; the first one is an object that names an algorithm.
pub(super) fn jwt_span(text: &[u8], start: usize, _end: usize) -> Span {
    if !is_word_start(text, start) {
        return None;
    }
    let first = run(text, start, 2048, CharacterSet::Url);
    let second = run(text, first + 1, 8192, CharacterSet::Url);
    let to = run(text, second + 1, 2048, CharacterSet::Url);
    let dotted = text.get(first) == Some(&b'.') && text.get(second) == Some(&b'.');
    if !dotted || to - start > MAX_SECRET_BYTES || !(16..=2048).contains(&to.saturating_sub(second + 1)) {
        return None;
    }
    let part = |from: usize, to: usize| {
        URL_SAFE_NO_PAD
            .decode(text.get(from..to).unwrap_or_default())
            .ok()
    }; // silent-ok: not base64 is no token
    let (header, claims) = (part(start, first)?, part(first + 1, second)?);
    let real = header.starts_with(b"{") && contains_word(&header, b"\"alg\"");
    // The sample token of many documentation pages, and similar ones.
    let shown = [&b"1234567890"[..], b"John Doe", b"example", b"\"foo\"", b"hello"];
    let signature = text.get(second + 1..to)?;
    let example = shown.iter().any(|word| contains_word(&claims, word)) || is_placeholder(signature);
    (real && !example && byte_entropy(signature) > 3.0).then_some((start, to))
}

/// Common example passwords.
const COMMON: &[&[u8]] = &[
    b"password",
    b"passwd",
    b"pass",
    b"secret",
    b"postgres",
    b"root",
    b"admin",
    b"guest",
    b"test",
    b"user",
    b"mysql",
    b"redis",
    b"mongo",
    b"example",
    b"pwd",
    b"pw",
    b"token",
    b"dbpass",
    b"foo",
    b"bar",
    b"qwerty",
    b"tiger",
    b"scott",
    b"hunter2",
    b"correct",
    b"mypass",
    b"changeme",
    b"letmein",
    b"1234",
];

/// `scheme://user:password@host`: only the password.
pub(super) fn url_password(text: &[u8], _start: usize, end: usize) -> Span {
    let rest = text.get(end..)?;
    let authority = rest
        .iter()
        .take(400)
        .take_while(|byte| {
            byte.is_ascii_graphic()
                && !matches!(
                    byte,
                    b'/' | b'"' | b'\'' | b'`' | b'<' | b'>' | b'|' | b',' | b')' | b'('
                )
        })
        .count();
    let authority = rest.get(..authority)?;
    let at = authority.iter().rposition(|byte| *byte == b'@')?;
    let colon = authority.get(..at)?.iter().position(|byte| *byte == b':')?;
    let (user, password) = (authority.get(..colon)?, authority.get(colon + 1..at)?);
    let host = authority.get(at + 1..)?;
    let lower = password.to_ascii_lowercase();
    let templated = |byte: &u8| matches!(byte, b'$' | b'{' | b'}' | b'*' | b'[' | b']' | b'\\' | b';');
    let plain = password.len() < 8
        || password.iter().any(templated)
        || (password.first() == Some(&b'%') && !password.get(1).is_some_and(u8::is_ascii_hexdigit))
        || lower == user.to_ascii_lowercase()
        || COMMON.iter().any(|word| contains_word(&lower, word))
        || is_placeholder(password)
        || byte_entropy(password) < 2.5
        || host.is_empty();
    // Examples use plain words; a real password has a digit or a sign.
    let chosen = password
        .iter()
        .any(|byte| !byte.is_ascii_alphabetic() && *byte != b'_' && *byte != b'-');
    (!plain && chosen).then_some((end + colon + 1, end + at))
}

/// Base64 of 88 characters, or of 44 with a final `=`. The emulator's public key is excluded.
pub(super) fn azure_storage(text: &[u8], _start: usize, end: usize) -> Span {
    let to = run(text, end, 90, CharacterSet::Base64);
    let body = text.get(end..to)?;
    let fits = body.len() == 88 || (body.len() == 44 && body.ends_with(b"="));
    (fits && is_key(body, CharacterSet::Base64) && !body.starts_with(b"Eby8vdM02xNO")).then_some((end, to))
}

/// A signature of 32 bytes, escaped for a URL, together with a service version.
pub(super) fn azure_sas(text: &[u8], start: usize, end: usize) -> Span {
    let edge = start.checked_sub(1).and_then(|at| text.get(at));
    let to = run(text, end, 90, CharacterSet::Escaped);
    let body = text.get(end..to)?;
    let fits = (43..=72).contains(&body.len())
        && (body.ends_with(b"%3D") || body.ends_with(b"%3d") || body.ends_with(b"="));
    (matches!(edge, Some(b'?' | b'&' | b';')) && fits && is_key(body, CharacterSet::Escaped))
        .then_some((end, to))
}

/// Three characters, `8Q~`, and 31 to 34 more.
pub(super) fn azure_client(text: &[u8], start: usize, end: usize) -> Span {
    let secret = |byte: &u8| CharacterSet::Dotted.contains(*byte) || *byte == b'~';
    let from = start.checked_sub(3)?;
    let rest = text.get(end..)?;
    let to = end + rest.iter().take(40).take_while(|byte| secret(byte)).count();
    let fits = text.get(from..start)?.iter().all(secret) && (31..=34).contains(&(to - end));
    let body = text.get(end..to)?;
    (fits && is_key(body, CharacterSet::Dotted) && three_classes(body)).then_some((from, to))
}

/// 14 characters, `.atlasv1.`, and at least 60 more.
pub(super) fn terraform_span(text: &[u8], start: usize, end: usize) -> Span {
    let from = run_back(text, start, 14, CharacterSet::Alnum);
    let to = run(text, end, 80, CharacterSet::Url);
    let body = text.get(end..to)?;
    (start - from == 14 && (60..=80).contains(&body.len()) && is_key(body, CharacterSet::Url))
        .then_some((from, to))
}

/// 32 hex digits, `-us`, and the data centre.
pub(super) fn mailchimp_span(text: &[u8], start: usize, end: usize) -> Span {
    let from = run_back(text, start, 33, CharacterSet::HexLower);
    let to = run(text, end, 3, CharacterSet::Upper);
    let body = text.get(from..start)?;
    let centre = text.get(end..to)?;
    let fits = body.len() == 32 && (1..=2).contains(&centre.len()) && centre.iter().all(u8::is_ascii_digit);
    (fits && is_word_start(text, from) && is_key(body, CharacterSet::HexLower)).then_some((from, to))
}

/// `pat`, 14 characters, `.`, 64 hex digits.
pub(super) fn airtable_span(text: &[u8], start: usize, end: usize) -> Span {
    let dot = exact_run(text, end, 14, CharacterSet::Alnum)?;
    (text.get(dot) == Some(&b'.')).then_some(())?;
    let to = exact_run(text, dot + 1, 64, CharacterSet::HexLower)?;
    (is_word_start(text, start) && is_key(text.get(dot + 1..to)?, CharacterSet::HexLower))
        .then_some((start, to))
}

/// `PMAK-`, 24 hex digits, `-`, 34 hex digits.
pub(super) fn postman_span(text: &[u8], start: usize, end: usize) -> Span {
    let dash = exact_run(text, end, 24, CharacterSet::HexLower)?;
    (text.get(dash) == Some(&b'-')).then_some(())?;
    let to = exact_run(text, dash + 1, 34, CharacterSet::HexLower)?;
    is_key(text.get(dash + 1..to)?, CharacterSet::HexLower).then_some((start, to))
}

/// The opaque credential in a header: `Bearer`, `Basic`, `token`.
pub(super) fn authorization_span(text: &[u8], _start: usize, end: usize) -> Span {
    let from = value_start(text, end);
    let word = run(text, from, 8, CharacterSet::Alnum);
    let scheme = text.get(from..word)?.to_ascii_lowercase();
    if !matches!(scheme.as_slice(), b"bearer" | b"basic" | b"token" | b"apikey")
        || text.get(word) != Some(&b' ')
    {
        return None;
    }
    let from = word + 1;
    let rest = text.get(from..)?;
    let credential =
        |byte: &u8| CharacterSet::Base64.contains(*byte) || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let to = from + rest.iter().take(2048).take_while(|byte| credential(byte)).count();
    let body = text.get(from..to)?;
    if scheme == b"basic" {
        let bare = body.split(|byte| *byte == b'=').next()?;
        let pair = STANDARD_NO_PAD.decode(bare).ok()?; // silent-ok: not base64 is no credential
        let colon = pair.iter().position(|byte| *byte == b':')?;
        let password = pair.get(colon + 1..)?.to_ascii_lowercase();
        let plain = password.len() < 8
            || COMMON.iter().any(|word| contains_word(&password, word))
            || is_placeholder(&password);
        return (!plain).then_some((from, to));
    }
    (body.len() >= 20
        && has_letters_and_digits(body)
        && is_key(body, CharacterSet::Dotted)
        && byte_entropy(body) > 3.4)
        .then_some((from, to))
}
