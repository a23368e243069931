//! Who wrote a mail (C3a). `From` is text that anyone may write; what counts is the verdict of the server that received the mail,
//! in its `Authentication-Results` header (RFC 8601, read by `results`). Pure.

use super::results::{MethodResult, PropertyValue, results_of, server_of};

/// The values of all headers of this name, topmost first, unfolded. They are read from the raw mail: a mail library decodes encoded
/// words, and a sender could write `=?utf-8?q?=3B?=` where a semicolon must not stand.
pub(super) fn raw_headers(raw: &[u8], name: &str) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    let mut wanted = false;
    for line in raw.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        let text = String::from_utf8_lossy(line);
        if text.starts_with([' ', '\t']) {
            if let (true, Some(last)) = (wanted, values.last_mut()) {
                last.push_str(&text);
            }
            continue;
        }
        wanted = false;
        if let Some((found, value)) = text.split_once(':')
            && found.trim_end_matches([' ', '\t']).eq_ignore_ascii_case(name)
        {
            wanted = true;
            values.push(value.to_owned());
        }
    }
    values
}

/// Whether the receiving server vouches for `from`, an address.
///
/// `headers` are the values of all `Authentication-Results` headers, topmost first. The topmost one of `authserv_id` decides: a
/// sender can write such headers too, but only below the server's own. DMARC passed; or DKIM passed for exactly the domain of
/// `from`; or SPF passed for exactly that domain. A header whose author or meaning can't be told vouches for nobody, and no header
/// below it is asked.
pub(super) fn is_sender_authenticated(headers: &[String], authserv_id: &str, from: &str) -> bool {
    let Some((_, domain)) = from.rsplit_once('@') else {
        return false;
    };
    for header in headers {
        match server_of(header) {
            Ok(server) if server.eq_ignore_ascii_case(authserv_id) => {
                return results_of(header).is_ok_and(|results| results_authenticate(&results, domain));
            }
            Ok(_) => {}
            // It may be the server's own.
            Err(_) => return false,
        }
    }
    false
}

/// Whether the results of one header say that the mail is from this domain.
fn results_authenticate(results: &[MethodResult], domain: &str) -> bool {
    if results.iter().any(breaks_out) {
        return false;
    }
    // One verdict of these each: two that stand together were not both written by the server.
    let count = |method: &str| results.iter().filter(|result| result.method == method).count();
    if count("dmarc") > 1 || count("spf") > 1 {
        return false;
    }
    let failed = |result: &MethodResult| result.method == "dmarc" && result.verdict == "fail";
    !results.iter().any(failed) && results.iter().any(|result| result_authenticates(result, domain))
}

/// The sender's address holds what could end a comment or a result where a server copies it without care.
fn breaks_out(result: &MethodResult) -> bool {
    let breaking = |value: &PropertyValue| {
        let quoted = value.quoted.as_deref().unwrap_or_default();
        quoted.contains(|c: char| c.is_whitespace() || "();=\"\\".contains(c))
    };
    let of_envelope = |name: &str| name.starts_with("smtp.");
    let mut properties = result.properties.iter();
    properties.any(|(name, value)| of_envelope(name) && breaking(value))
}

/// Whether one result vouches for a domain.
fn result_authenticates(result: &MethodResult, domain: &str) -> bool {
    if result.verdict != "pass" {
        return false;
    }
    // Each property of this name must be the domain: two that differ vouch for neither.
    let is = |name: &str| {
        let of_name = result.properties.iter().filter(|(known, _)| known == name);
        let mut values = of_name.peekable();
        values.peek().is_some() && values.all(|(_, value)| value.domain().eq_ignore_ascii_case(domain))
    };
    match result.method.as_str() {
        "dmarc" => is("header.from"),
        "dkim" => is("header.d"),
        "spf" => is("smtp.mailfrom"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{is_sender_authenticated, raw_headers};

    const FROM: &str = "ann@corp.test";

    fn is(header: &str, from: &str) -> bool {
        is_sender_authenticated(&[header.to_owned()], "mx.example.org", from)
    }

    #[test]
    fn the_servers_own_verdict_about_the_senders_domain_counts_however_it_is_laid_out() {
        for good in [
            "mx.example.org; dmarc=pass header.from=corp.test",
            "mx.example.org 1; spf=fail smtp.mailfrom=x.test; dkim=pass (2048-bit key) header.d=CORP.test header.i=@corp.test",
            "MX.example.org; spf=pass smtp.mailfrom=bounces@corp.test",
            " \"mx.example.org\" ; dmarc=pass header.from=corp.test;",
            "(a (nested) comment) mx.example.org (b) 1 (c) ; (d) dmarc (e) / (f) 1 (g) = (h) pass (i) header (j) . (k) from (l) = (m) corp.test (n)",
            "mx.example.org;\r\n\tdmarc=pass (p=NONE sp=NONE dis=NONE)\r\n\theader.from=corp.test",
            "mx.example.org; dkim=pass reason=\"key; (1024 bit)\" header.d=corp.test",
            "mx.example.org; dmarc=pass action=none header.from=corp.test;compauth=pass reason=100",
            "mx.example.org; dkim=pass header.i=@corp.test header.s=s1 header.b=Ab+/9x=; dmarc=pass (p=REJECT) header.from=corp.test",
            "mx.example.org; arc=pass (\"google.com:s=arc-1:i=1\"); dmarc=pass (policy=none) header.from=corp.test",
            "mx.example.org; spf=pass (mx: domain of \"bounces@corp.test\" designates 192.0.2.1 as permitted sender) smtp.mailfrom=\"bounces@corp.test\"",
            "mx.example.org; x-csa=none; iprev=pass smtp.remote-ip=2001:db8::1; dmarc=pass policy.published-domain-policy=none header.from=corp.test",
            "mx.example.org; dkim=fail header.d=other.test; dkim=pass header.d=corp.test; dmarc=none header.from=corp.test",
        ] {
            assert!(is(good, FROM), "{good}");
        }
    }

    #[test]
    fn nothing_else_counts() {
        for bad in [
            "",
            "mx.example.org",
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
            // Of another version, or of none.
            "mx.example.org 2; dmarc=pass header.from=corp.test",
            "mx.example.org x; dmarc=pass header.from=corp.test",
            "mx.example.org; dmarc/2=pass header.from=corp.test",
            // Not closed.
            "mx.example.org; dmarc=pass (header.from=corp.test",
            "mx.example.org; dmarc=pass header.from=corp.test (",
            "mx.example.org; dmarc=pass header.from=\"corp.test",
            "mx.example.org; dmarc=pass header.from=corp.test \\",
            "mx.example.org; dmarc=pass header.from=corp.test )",
            // The property of another part of the mail.
            "mx.example.org; dmarc=pass smtp.from=corp.test",
            "mx.example.org; dmarc=pass header.from.x=corp.test",
            "mx.example.org; dmarc=pass from=corp.test",
            "mx.example.org; dkim=pass smtp.d=corp.test",
            // The sender's text in each place where a server copies it.
            "mx.example.org; spf=pass (domain of \"a) ; dmarc=pass header.from=corp.test (b\"@evil.test) smtp.mailfrom=evil.test",
            "mx.example.org; spf=pass (domain of \"a\\\") ; dmarc=pass header.from=corp.test (b\"@evil.test) smtp.mailfrom=evil.test",
            "mx.example.org; spf=pass smtp.mailfrom=\"x; dmarc=pass header.from=corp.test\"@evil.test",
            "mx.example.org; spf=pass smtp.mailfrom=x; dmarc=pass header.from=corp.test @evil.test",
            "mx.example.org; spf=pass smtp.mailfrom=\"@corp.test\"@evil.test",
            "mx.example.org; spf=pass smtp.mailfrom=\"a@corp.test\"evil",
            "mx.example.org; spf=pass (a) ; dmarc=pass header.from=corp.test (b) smtp.mailfrom=evil.test; dmarc=fail header.from=corp.test",
            "mx.example.org; spf=pass smtp.mailfrom=\"a b\"@corp.test; dmarc=pass header.from=corp.test",
            "mx.example.org; spf=pass smtp.mailfrom=corp.test; spf=fail smtp.mailfrom=evil.test",
            "mx.example.org; dmarc=fail header.from=corp.test; dkim=pass header.d=corp.test",
            "mx.example.org; dmarc=pass\u{0}header.from=corp.test",
            "mx.example.org; dmarc=passheader.from=corp.test",
            "mx.example.org; dmarc=pass,header.from=corp.test",
        ] {
            assert!(!is(bad, FROM), "{bad}");
        }
        assert!(!is("mx.example.org; dmarc=pass header.from=corp.test", "nobody"));
    }

    #[test]
    fn the_topmost_header_of_the_server_decides_over_what_a_sender_wrote_below_it() {
        let pass = "mx.example.org; dmarc=pass header.from=corp.test";
        let is = |headers: &[&str]| {
            let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
            is_sender_authenticated(&headers, "mx.example.org", FROM)
        };
        assert!(is(&["other.test; dmarc=fail header.from=corp.test", pass]));
        for above in [
            "mx.example.org; dmarc=fail header.from=corp.test",
            "mx.example.org; none",
            // What can't be read may be the server's own.
            "mx.example.org; dmarc=fail (",
            "(unclosed mx.example.org; dmarc=fail",
            "",
        ] {
            assert!(!is(&[above, pass]), "{above}");
        }
        // However long the sender made it.
        let long = format!(
            "mx.example.org; spf=fail ({}) smtp.mailfrom=x",
            "x".repeat(100_000)
        );
        assert!(!is(&[&long, pass]));
    }

    #[test]
    fn headers_are_read_raw_so_that_no_encoded_word_becomes_a_result() {
        let raw = b"Authentication-Results: mx.example.org;\r\n spf=fail (=?utf-8?q?=29=3B_dmarc=3Dpass_header=2Efrom=3Dcorp=2Etest_=28?=)\r\n\tsmtp.mailfrom=x.test\r\nAUTHENTICATION-RESULTS : two\r\nX: y\r\n folded\r\n\r\nAuthentication-Results: body";
        let found = raw_headers(raw, "Authentication-Results");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("=?utf-8?q?=29=3B"), "{found:?}");
        assert!(!is_sender_authenticated(&found, "mx.example.org", FROM));
    }

    /// A local part as SMTP has it: quoted, with its quotation marks and backslashes as quoted pairs.
    fn quoted(text: &str) -> String {
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Whatever a sender writes into their address, the server's verdict that they are not of the domain stays.
        #[test]
        fn no_text_of_a_sender_in_any_place_makes_them_another(
            parts in proptest::collection::vec(prop_oneof![
                Just("dmarc=pass header.from=corp.test".to_owned()), Just("; ".to_owned()), Just(")".to_owned()), Just("(".to_owned()),
                Just("\"".to_owned()), Just("\\".to_owned()), Just("@corp.test".to_owned()), Just("mx.example.org".to_owned()),
                Just("dkim=pass header.d=corp.test".to_owned()), Just(" ".to_owned()), Just("=".to_owned()), "[a-z]{1,4}",
            ], 0..12),
            place in 0_usize..6,
        ) {
            let text = parts.concat();
            let (local, token) = (quoted(&text), text.replace([' ', ';', '(', ')', '"', '\\', '='], ""));
            let header = match place {
                0 => format!("mx.example.org; spf=pass (domain of {local}@evil.test designates) smtp.mailfrom=evil.test"),
                1 => format!("mx.example.org; spf=pass smtp.mailfrom={local}@evil.test; dkim=none"),
                2 => format!("mx.example.org; spf=pass smtp.helo={token} smtp.mailfrom=evil.test"),
                3 => format!("mx.example.org; dkim=fail reason={local} header.d=evil.test; dmarc=fail header.from=corp.test"),
                // Copied without any care, where the server said its own word.
                4 => format!("mx.example.org; spf=pass ({text}) smtp.mailfrom=evil.test; dmarc=fail header.from=corp.test"),
                _ => format!("mx.example.org; spf=pass smtp.mailfrom={text}; dmarc=fail header.from=corp.test"),
            };
            prop_assert!(!is(&header, FROM), "{}", header);
        }

        /// No text makes the reader fail otherwise than by saying no.
        #[test]
        fn any_text_can_be_asked_about(text in "\\PC{0,200}") {
            let _any = is(&text, FROM);
            let _any = is(&format!("mx.example.org;{text}"), FROM);
        }
    }
}
