//! The providers' forms, as recorded: what is read of them, and what is left out.

use serde_json::json;

use super::{SearchProvider, build_request, error_text, read_hits};
use clawk_egress::Url;

#[test]
fn each_provider_is_asked_in_its_own_way() {
    let ask = |provider, base: &str| build_request(provider, &Url::parse(base).unwrap(), "rain & boots", 5);
    let searxng = ask(SearchProvider::Searxng, "https://search.example/own/");
    assert_eq!(
        searxng.url,
        "https://search.example/own/search?q=rain+%26+boots&format=json"
    );
    let brave = ask(SearchProvider::Brave, "https://api.search.brave.com");
    assert!(
        brave
            .url
            .starts_with("https://api.search.brave.com/res/v1/web/search?q=rain+%26+boots&count=5&"),
        "{}",
        brave.url
    );
    let kagi = ask(SearchProvider::Kagi, "https://kagi.com");
    assert_eq!(
        kagi.url,
        "https://kagi.com/api/v0/search?q=rain+%26+boots&limit=5"
    );
    let tavily = ask(SearchProvider::Tavily, "https://api.tavily.com");
    assert_eq!(
        (tavily.url.as_str(), tavily.method.as_deref()),
        ("https://api.tavily.com/search", Some("POST"))
    );
    let body: serde_json::Value = serde_json::from_str(&tavily.body.unwrap()).unwrap();
    assert_eq!(
        (&body["query"], &body["max_results"]),
        (&json!("rain & boots"), &json!(5))
    );
}

#[test]
fn results_are_plain_text_of_real_pages() {
    let brave = json!({"type": "search", "web": {"type": "search", "results": [
        {"title": "Boots &amp; <strong>rain</strong>", "url": "https://a.example/x", "description": "line\n\u{7}two"},
        {"title": "no page", "url": "javascript:alert(1)", "description": "x"},
        {"title": "no address", "description": "x"},
        {"title": "", "url": "https://b.example/", "description": "s".repeat(5_000)},
    ]}});
    let hits = read_hits(SearchProvider::Brave, &brave).unwrap();
    let shown: Vec<_> = hits
        .iter()
        .map(|hit| (hit.title.as_str(), hit.url.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("Boots & rain", "https://a.example/x"),
            ("https://b.example/", "https://b.example/")
        ]
    );
    assert_eq!(hits[0].snippet, "line two");
    assert!(hits[1].snippet.len() < 1_510 && hits[1].snippet.ends_with('…'));
    let kagi = json!({"meta": {"id": "1"}, "data": [
        {"t": 0, "url": "https://k.example/", "title": "K", "snippet": "s"}, {"t": 1, "list": ["more"]}]});
    assert_eq!(read_hits(SearchProvider::Kagi, &kagi).unwrap().len(), 1);
}

#[test]
fn an_answer_without_results_is_empty_and_another_form_is_none() {
    assert_eq!(
        read_hits(SearchProvider::Brave, &json!({"type": "search"})),
        Some(Vec::new())
    );
    assert_eq!(
        read_hits(SearchProvider::Searxng, &json!({"results": []})),
        Some(Vec::new())
    );
    for provider in [
        SearchProvider::Searxng,
        SearchProvider::Brave,
        SearchProvider::Tavily,
        SearchProvider::Kagi,
    ] {
        assert_eq!(
            read_hits(provider, &json!({"login": "please"})),
            None,
            "{provider:?}"
        );
    }
}

#[test]
fn the_providers_words_about_an_error_are_found() {
    for (body, said) in [
        (
            json!({"type": "ErrorResponse", "error": {"code": "RATE_LIMITED", "detail": "Too many"}}),
            "Too many",
        ),
        (json!({"detail": {"error": "Unauthorized"}}), "Unauthorized"),
        (
            json!({"meta": {}, "data": null, "error": [{"code": 1, "msg": "No credit"}]}),
            "No credit",
        ),
    ] {
        assert_eq!(error_text(&body).as_deref(), Some(said));
    }
    assert_eq!(error_text(&json!({"ok": true})), None);
}
