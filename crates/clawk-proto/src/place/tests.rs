use super::*;

fn rules(toml: &str) -> HostAllowList {
    toml::from_str(toml).unwrap()
}

fn judged(rules: &HostAllowList, url: &str) -> Result<PermittedTarget, UrlRefusal> {
    rules.judge_url(&Url::parse(url).unwrap())
}

const PUBLIC: &str = "
    1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 192.0.1.1 198.17.255.255
    198.20.0.0 223.255.255.255 2606:4700:4700::1111 2a00:1450::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8
    2002:0808:0808::1 2001:4860:4860::8888
";

const SPECIAL: &str = "
    0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255
    198.51.100.7 203.0.113.7 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 ::7f00:1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
    64:ff9b:1::1 2002:7f00:1:: 2002:a9fe:a9fe::1 2001::1 2001:db8::1 2001:10::1 3fff::1 100::1
    fc00::1 fd12::1 fe80::1 fec0::1 ff02::1 5f00::1 2a00::5efe:7f00:1 4000::1
";

#[test]
fn addresses_are_public_or_named() {
    for address in PUBLIC.split_whitespace() {
        assert_eq!(
            super::address::judge_address(address.parse().unwrap()),
            Ok(()),
            "{address}"
        );
    }
    for address in SPECIAL.split_whitespace() {
        assert!(
            super::address::judge_address(address.parse().unwrap()).is_err(),
            "{address}"
        );
    }
}

#[test]
fn every_spelling_of_a_literal_is_seen_through() {
    let open = rules("hosts = ['*']");
    for host in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[0:0:0:0:0:0:0:1]",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "127。0。0。1",
        "169.254.169.254",
        "[64:ff9b::a9fe:a9fe]",
        "0",
        "0.0.0.0",
        "[::]",
        "8.8.8.8",
    ] {
        let answer = judged(&open, &format!("http://{host}/"));
        assert!(
            matches!(answer, Err(UrlRefusal::Literal(_))),
            "{host}: {answer:?}"
        );
    }
    // Named, a public literal is fine and a private one still is not.
    let named = rules("hosts = ['8.8.8.8', '127.0.0.1', '::1']");
    assert!(judged(&named, "https://8.8.8.8/").is_ok());
    assert!(matches!(
        judged(&named, "http://127.1/"),
        Err(UrlRefusal::Address { .. })
    ));
    assert!(matches!(
        judged(&named, "http://[::1]/"),
        Err(UrlRefusal::Address { .. })
    ));
}

#[test]
fn hosts_ports_and_schemes_are_judged() {
    let some = rules("hosts = ['Example.com', '*.example.org', 'bücher.example', 'alt.example:8443']");
    for url in [
        "https://example.com/",
        "http://EXAMPLE.com./x",
        "https://a.example.org/",
        "https://a.b.example.org/",
        "https://xn--bcher-kva.example/",
        "https://alt.example:8443/",
    ] {
        assert!(judged(&some, url).is_ok(), "{url}");
    }
    for url in [
        "https://a.example.com/",
        "https://example.org/",
        "https://notexample.org/",
        "https://example.com.evil.test/",
    ] {
        assert!(matches!(judged(&some, url), Err(UrlRefusal::Host(_))), "{url}");
    }
    for url in [
        "https://example.com:8443/",
        "http://example.com:22/",
        "https://alt.example/",
    ] {
        assert!(
            matches!(judged(&some, url), Err(UrlRefusal::Port { .. })),
            "{url}"
        );
    }
    assert!(matches!(
        judged(&some, "ftp://example.com/"),
        Err(UrlRefusal::Scheme(_))
    ));
    assert!(matches!(
        judged(&some, "file:///etc/passwd"),
        Err(UrlRefusal::Scheme(_))
    ));
    assert_eq!(
        judged(&some, "https://u:p@example.com/"),
        Err(UrlRefusal::Credentials)
    );
    assert!(matches!(
        judged(&HostAllowList::default(), "https://example.com/"),
        Err(UrlRefusal::Host(_))
    ));
}

#[test]
fn a_private_host_is_open_at_its_port_only() {
    let some = rules("hosts = ['*']\nallow_private = ['localhost:8080', '127.0.0.1:9']");
    assert!(judged(&some, "http://localhost:8080/").unwrap().private);
    assert!(!judged(&some, "http://localhost/").unwrap().private);
    assert!(judged(&some, "http://127.0.0.1:9/").unwrap().private);
    assert!(matches!(
        judged(&some, "http://127.0.0.1/"),
        Err(UrlRefusal::Literal(_))
    ));
    // A wildcard never opens the own network.
    assert!(
        !judged(&rules("hosts = ['*']\nallow_private = ['*']"), "http://x.test/")
            .unwrap()
            .private
    );
}

#[test]
fn patterns_are_checked_and_print_as_they_read() {
    for text in [
        "example.com",
        "*.example.com:8443",
        "*",
        "[::1]:80",
        "[::1]",
        "10.0.0.1:5",
    ] {
        let pattern = HostPattern::try_from(text.to_owned()).unwrap();
        assert_eq!(pattern.to_string(), text);
    }
    for text in [
        "", "*.", "a/b", "http://a", "a:b", "a:99999", "a@b", "a*b", "*.*.a", "a b", "a?x", "a#x",
    ] {
        assert!(HostPattern::try_from(text.to_owned()).is_err(), "{text:?}");
    }
    assert!(toml::from_str::<HostAllowList>("host = ['a']").is_err());
}
