//! Tests.

use super::{answer_webhook_probe, of_date, webhook_proof};
use clawk_secrets::Secret;
use http::Method;

#[test]
fn a_date_is_read_and_nothing_else() {
    let at = of_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
    assert_eq!(at.0, 784_111_777_000_000);
    for bad in [
        "",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun, 06 Nov 1994 08:49:37 CET",
    ] {
        assert!(of_date(bad).is_none(), "{bad}");
    }
}

#[test]
fn only_a_nonce_of_the_right_form_is_answered_and_only_with_the_secret() {
    let secret = Secret::new("T", "s3cret-of-more-than-32-characters-in-all");
    let nonce = "0123456789abcdef0123456789abcdef";
    let ask = |method: &Method, query: &str| answer_webhook_probe(method, query, "chat", Some(&secret));
    let query = format!("clawk-doctor={nonce}");
    let told = ask(&Method::GET, &query).unwrap();
    assert!(told.body.contains(&webhook_proof(&secret, "chat", nonce)));
    assert_ne!(
        webhook_proof(&secret, "chat", nonce),
        webhook_proof(&secret, "other", nonce)
    );
    assert!(!told.body.contains("s3cret"));
    assert!(ask(&Method::POST, &query).is_none());
    assert!(ask(&Method::GET, "clawk-doctor=short").is_none());
    assert!(ask(&Method::GET, &format!("{query}&x=1")).is_none());
    assert!(answer_webhook_probe(&Method::GET, &query, "chat", None).is_none());
    let short = Secret::new("T", "a-secret-that-can-be-guessed");
    assert!(
        answer_webhook_probe(&Method::GET, &query, "chat", Some(&short)).is_none(),
        "a short one could be guessed"
    );
}
