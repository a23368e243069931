//! The providers' requests and answers.

use clawk_egress::Url;
use serde_json::{Value, json};

use super::super::html;
use super::super::web::WebRequest;
use super::SearchHit;
use crate::call::truncate_text;
use crate::config::SearchProvider;

/// The longest title, in bytes.
const MAX_TITLE_BYTES: usize = 300;

/// The longest snippet, in bytes.
const MAX_SNIPPET_BYTES: usize = 1_500;

/// The longest URL; a longer one is left out with its result.
const MAX_URL_BYTES: usize = 2_000;

/// The request that asks `provider` at `base` for `most` results.
pub(super) fn build_request(provider: SearchProvider, base: &Url, query: &str, most: usize) -> WebRequest {
    let mut url = base.clone();
    let path = format!("{}{}", base.path().trim_end_matches('/'), provider.path());
    url.set_path(&path);
    let count = most.to_string();
    let mut request = WebRequest {
        url: String::new(),
        headers: [("accept".to_owned(), "application/json".to_owned())].into(),
        ..WebRequest::default()
    };
    match provider {
        SearchProvider::Searxng => {
            url.query_pairs_mut()
                .append_pair("q", query)
                .append_pair("format", "json");
        }
        SearchProvider::Brave => {
            url.query_pairs_mut()
                .append_pair("q", query)
                .append_pair("count", &count)
                .append_pair("result_filter", "web")
                .append_pair("text_decorations", "false");
        }
        SearchProvider::Kagi => {
            url.query_pairs_mut()
                .append_pair("q", query)
                .append_pair("limit", &count);
        }
        SearchProvider::Tavily => {
            request.method = Some("POST".to_owned());
            request
                .headers
                .insert("content-type".to_owned(), "application/json".to_owned());
            request.body = Some(
                json!({"query": query, "max_results": most, "search_depth": "basic", "include_answer": false})
                    .to_string(),
            );
        }
    }
    request.url = url.into();
    request
}

/// The results of an answer; `None`: it has not the provider's form.
pub(super) fn read_hits(provider: SearchProvider, body: &Value) -> Option<Vec<SearchHit>> {
    let (list, snippet) = match provider {
        SearchProvider::Searxng | SearchProvider::Tavily => (body.get("results")?.as_array()?, "content"),
        SearchProvider::Brave => {
            // An answer without web results has no `web`.
            let Some(web) = body.get("web") else {
                return (body.get("type")? == "search").then(Vec::new);
            };
            (web.get("results")?.as_array()?, "description")
        }
        SearchProvider::Kagi => (body.get("data")?.as_array()?, "snippet"),
    };
    let hits = list
        .iter()
        // Kagi mixes results (0) with related searches (1).
        .filter(|one| provider != SearchProvider::Kagi || one.get("t") == Some(&json!(0)))
        .filter_map(|one| read_hit(one, snippet));
    Some(hits.collect())
}

fn read_hit(one: &Value, snippet: &str) -> Option<SearchHit> {
    let text = |name: &str| one.get(name).and_then(Value::as_str).unwrap_or_default();
    let url = Url::parse(text("url")).ok()?; // silent-ok: a result without a page
    let fits = matches!(url.scheme(), "http" | "https") && url.as_str().len() <= MAX_URL_BYTES;
    let title = plain_line(text("title"), MAX_TITLE_BYTES);
    fits.then(|| SearchHit {
        title: if title.is_empty() { url.to_string() } else { title },
        url: url.to_string(),
        snippet: plain_line(text(snippet), MAX_SNIPPET_BYTES),
    })
}

/// Text without markup, on one line.
fn plain_line(text: &str, most: usize) -> String {
    let plain = if text.contains(['<', '&']) {
        html::extract_readable(text).1
    } else {
        text.to_owned()
    };
    let line = plain
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    match truncate_text(&line, most) {
        (cut, true) => format!("{cut}…"),
        (whole, false) => whole.to_owned(),
    }
}

/// The provider's own words about an error.
pub(super) fn error_text(body: &Value) -> Option<String> {
    let places = [
        "/error/detail", // Brave
        "/detail/error", // Tavily
        "/error/0/msg",  // Kagi
        "/detail",
        "/message",
        "/error",
    ];
    let said = places
        .iter()
        .find_map(|place| body.pointer(place).and_then(Value::as_str))?;
    Some(plain_line(said, MAX_TITLE_BYTES))
}

#[cfg(test)]
mod tests;
