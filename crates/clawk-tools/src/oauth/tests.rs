//! What is kept is sealed, and what is said by others is checked. The whole way with an authorization server:
//! `tests/real/oauth.rs` of the binary.

use std::os::unix::fs::PermissionsExt as _;

use clawk_egress::{HostPattern, Url};
use clawk_secrets::EnvironmentSource;
use http::{HeaderMap, HeaderValue, header::WWW_AUTHENTICATE};

use super::discover::{BearerChallenge, ProtectedResource, canonical_url};
use super::login::returned_for_tests as returned;
use super::store::{ClientRegistration, OAuthClientSecret, Store, TokenRecord};
use super::wire::OAuthClient;

fn entry(resource: &str) -> TokenRecord {
    TokenRecord {
        resource: resource.to_owned(),
        client: ClientRegistration {
            issuer: "https://issuer.example".into(),
            resource: resource.to_owned(),
            token_endpoint: "https://issuer.example/token".into(),
            id: "me".into(),
            secret: Some(OAuthClientSecret("client-canary".into())),
            in_form: false,
        },
        access_token: "access-canary".into(),
        refresh_token: Some("refresh-canary".into()),
        until_s: Some(1),
        scope: None,
    }
}

#[test]
fn what_is_kept_is_sealed_for_one_server() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::of_state(state.path());
    let (one, two) = (entry("https://one.example/mcp"), entry("https://two.example/mcp"));
    assert_eq!(store.read(&one.resource).unwrap(), None);
    store.write(&one).unwrap();
    store.write(&two).unwrap();
    assert_eq!(store.read(&one.resource).unwrap(), Some(one.clone()));
    assert!(!format!("{one:?}").contains("canary"), "{one:?}");

    let files: Vec<_> = std::fs::read_dir(state.path().join("oauth"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    assert_eq!(files.len(), 2);
    for file in files.iter().chain([&state.path().join("keys/oauth.key")]) {
        assert_eq!(
            std::fs::metadata(file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let bytes = std::fs::read(file).unwrap();
        assert!(
            !bytes.windows(6).any(|six| six == b"canary"),
            "{}",
            file.display()
        );
    }
    // One server's file in the place of another's, a changed byte, another key: none is opened.
    let (first, second) = (
        std::fs::read(&files[0]).unwrap(),
        std::fs::read(&files[1]).unwrap(),
    );
    std::fs::write(&files[0], &second).unwrap();
    std::fs::write(&files[1], &first).unwrap();
    assert!(store.read(&one.resource).is_err() && store.read(&two.resource).is_err());
    store.write(&one).unwrap();
    for file in &files {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[20] ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
    assert!(store.read(&one.resource).is_err());
    store.write(&one).unwrap();
    std::fs::write(state.path().join("keys/oauth.key"), [7; 32]).unwrap();
    assert!(store.read(&one.resource).is_err());
    // A key that others may read is not used.
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(state.path().join("keys/oauth.key"), open).unwrap();
    assert!(
        store
            .write(&one)
            .unwrap_err()
            .to_string()
            .contains("others may read")
    );
    assert!(store.forget_token(&one.resource).unwrap() && !store.forget_token(&one.resource).unwrap());
}

#[test]
fn a_challenge_is_read_as_it_is_written() {
    let read = |text: &'static str| {
        let headers = HeaderMap::from_iter([(WWW_AUTHENTICATE, HeaderValue::from_static(text))]);
        BearerChallenge::read(&headers)
    };
    let both = BearerChallenge {
        metadata: Some("https://a.example/x".into()),
        scope: Some("one two".into()),
    };
    assert_eq!(
        read("Bearer realm=\"a, b=c\", resource_metadata=\"https://a.example/x\", scope=\"one two\""),
        both
    );
    assert_eq!(
        read("bearer scope=\"one two\" , RESOURCE_METADATA=https://a.example/x"),
        both
    );
    for nothing in ["Bearer", "Basic realm=\"x\"", "Bearer x", ""] {
        assert_eq!(read(nothing), BearerChallenge::default(), "{nothing}");
    }
}

#[test]
fn addresses_that_others_tell_must_be_safe() {
    let private: Vec<HostPattern> = vec!["127.0.0.1".to_owned().try_into().unwrap()];
    let web = OAuthClient::new(&private, &EnvironmentSource::from_pairs::<&str, &str>([])).unwrap();
    for fine in [
        "https://issuer.example/token",
        "http://127.0.0.1:8080/token",
        "https://issuer.example:8443/",
    ] {
        assert!(web.safe_url(fine).is_ok(), "{fine}");
    }
    for wrong in [
        "http://issuer.example/",
        "file:///etc/passwd",
        "https://user:pass@issuer.example/",
        "javascript:1",
        "http://10.0.0.1/",
        "x",
    ] {
        assert!(web.safe_url(wrong).is_err(), "{wrong}");
    }
    let server = |text: &str| canonical_url(&Url::parse(text).unwrap());
    assert_eq!(server("https://A.example:443/"), "https://a.example");
    assert_eq!(server("https://a.example/mcp#x"), "https://a.example/mcp");
}

#[test]
fn only_the_browser_that_was_sent_brings_the_code() {
    let place = ProtectedResource {
        resource: "https://a.example".into(),
        issuer: "https://issuer.example".into(),
        scope: None,
        authorization_endpoint: None,
        token_endpoint: String::new(),
        registration_endpoint: None,
        device_endpoint: None,
        methods: Vec::new(),
        names_issuer: true,
        has_s256: true,
        offline: false,
    };
    let bring = |target: &str| returned(&format!("GET {target} HTTP/1.1\r\n\r\n"), "s", &place);
    let fine = bring("/callback?code=c&state=s&iss=https%3A%2F%2Fissuer.example");
    assert_eq!(fine.unwrap().unwrap(), "c");
    // Another page's request is not the browser's: the wait goes on.
    for nothing in [
        "/callback?code=c&state=other",
        "/callback?code=c",
        "/favicon.ico",
        "/callback",
    ] {
        assert!(bring(nothing).is_none(), "{nothing}");
    }
    for refused in [
        "/callback?code=c&state=s",
        "/callback?code=c&state=s&iss=https%3A%2F%2Fevil.example",
        "/callback?error=access_denied&state=s&iss=https%3A%2F%2Fissuer.example",
        "/callback?state=s&iss=https%3A%2F%2Fissuer.example",
    ] {
        assert!(bring(refused).unwrap().is_err(), "{refused}");
    }
}
