//! Who wrote a mail (C3a). `From` is text that anyone may write; what counts is the verdict of the server that received the mail,
//! in its `Authentication-Results` header (RFC 8601). Pure.

/// Bytes of one header that are read.
const MAX_BYTES: usize = 8_192;

/// Whether the receiving server vouches for `from`, an address.
///
/// `headers` are the values of all `Authentication-Results` headers, topmost first. The topmost one of `authserv_id` decides: a
/// sender can write such headers too, but only below the server's own. DMARC passed; or DKIM passed for exactly the domain of
/// `from`; or SPF passed for exactly that domain.
pub(super) fn vouched(headers: &[String], authserv_id: &str, from: &str) -> bool {
    let Some((_, domain)) = from.rsplit_once('@') else {
        return false;
    };
    let ours = headers
        .iter()
        .filter(|header| header.len() <= MAX_BYTES)
        .map(|header| without_comments(header))
        .find_map(|header| {
            let (id, rest) = header.split_once(';')?;
            let id = id.split_whitespace().next()?;
            id.eq_ignore_ascii_case(authserv_id).then(|| rest.to_owned())
        });
    let Some(results) = ours else { return false };
    results.split(';').any(|result| passes(result, domain))
}

/// One result: `method=verdict property=value …`.
fn passes(result: &str, domain: &str) -> bool {
    let mut words = result.split_whitespace();
    let Some((method, verdict)) = words.next().and_then(|word| word.split_once('=')) else {
        return false;
    };
    if !verdict.eq_ignore_ascii_case("pass") {
        return false;
    }
    let method = method.split('/').next().unwrap_or(method).to_ascii_lowercase();
    let properties: Vec<(String, &str)> = words
        .filter_map(|word| word.split_once('='))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim_matches('"')))
        .collect();
    // Each property of this name must be the domain: two that differ vouch for neither.
    let is = |name: &str| {
        let mut values = properties.iter().filter(|(known, _)| known == name).peekable();
        values.peek().is_some() && values.all(|(_, value)| domain_of(value).eq_ignore_ascii_case(domain))
    };
    match method.as_str() {
        "dmarc" => is("header.from"),
        "dkim" => is("header.d"),
        "spf" => is("smtp.mailfrom"),
        _ => false,
    }
}

/// The domain of an address, or the domain itself.
fn domain_of(value: &str) -> &str {
    value.rsplit_once('@').map_or(value, |(_, domain)| domain)
}

/// The header's text without comments in parentheses; what stands in quotes stays.
fn without_comments(text: &str) -> String {
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if escaped {
            escaped = false;
            if depth == 0 {
                plain.push(c);
            }
            continue;
        }
        match c {
            '\\' => escaped = true,
            '"' if depth == 0 => {
                quoted = !quoted;
                plain.push(c);
            }
            '(' if !quoted => depth += 1,
            ')' if !quoted && depth > 0 => depth -= 1,
            // A quoted semicolon or blank would look like the end of a result.
            ';' | ' ' | '\t' | '\r' | '\n' if quoted => plain.push('_'),
            _ if depth > 0 => {}
            _ => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::vouched;

    fn is(header: &str, from: &str) -> bool {
        vouched(&[header.to_owned()], "mx.example.org", from)
    }

    #[test]
    fn the_servers_own_verdict_about_the_senders_domain_counts_and_nothing_else() {
        let from = "ann@corp.test";
        for good in [
            "mx.example.org; dmarc=pass header.from=corp.test",
            "mx.example.org 1; spf=fail smtp.mailfrom=x.test; dkim=pass (2048-bit key) header.d=CORP.test header.i=@corp.test",
            "MX.example.org; spf=pass smtp.mailfrom=bounces@corp.test",
        ] {
            assert!(is(good, from), "{good}");
        }
        for bad in [
            "",
            "mx.example.org; none",
            "mx.example.org; dmarc=fail header.from=corp.test",
            "mx.example.org; dmarc=pass header.from=evil.test",
            "mx.example.org; dmarc=pass",
            "mx.example.org; dkim=pass header.d=evil.test",
            "mx.example.org; dkim=pass header.d=test",
            "mx.example.org; dkim=pass header.d=corp.test header.d=evil.test",
            "mx.example.org; spf=pass smtp.helo=corp.test",
            "evil.example; dmarc=pass header.from=corp.test",
            "evil.example (mx.example.org; dmarc=pass header.from=corp.test)",
            "mx.example.org; x=\"; dmarc=pass header.from=corp.test\"",
            "mx.example.org; (dmarc=pass header.from=corp.test)",
            "mx.example.org.evil.test; dmarc=pass header.from=corp.test",
        ] {
            assert!(!is(bad, from), "{bad}");
        }
        assert!(!is("mx.example.org; dmarc=pass header.from=corp.test", "nobody"));
    }

    #[test]
    fn the_topmost_header_of_the_server_decides_over_what_a_sender_wrote_below_it() {
        let headers = [
            "other.test; dmarc=pass header.from=corp.test".to_owned(),
            "mx.example.org; dmarc=fail header.from=corp.test".to_owned(),
            "mx.example.org; dmarc=pass header.from=corp.test".to_owned(),
        ];
        assert!(!vouched(&headers, "mx.example.org", "ann@corp.test"));
    }
}
