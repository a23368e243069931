//! Test cases of the HTTP API: requests in order, with their expected responses.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result};
use clawk_core::time::{Clock, SystemClock};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::{CraApi, CraAuth, CraResponse};
use super::report::CraShortfall;
use super::target::CraTarget;
use super::{golden, stream};
use crate::pattern;
use crate::vector::each_string;

/// One step.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum CraHttpStep {
    /// Opens an event stream. The expected events must arrive while the steps run, or soon after.
    Stream {
        path: String,
        steps: Vec<Self>,
        expect: Vec<Value>,
    },
    #[serde(untagged)]
    Send(Box<CraExchange>),
}

/// A request and its response.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CraExchange {
    send: CraRequest,
    expect: ExpectedResponse,
    /// Names for parts of the response, as JSON pointers.
    #[serde(default)]
    capture: BTreeMap<String, String>,
}

/// A request. `{name}` in the path and in strings is replaced by a captured value.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct CraRequest {
    method: String,
    path: String,
    #[serde(default)]
    body: Option<Value>,
    #[serde(default)]
    auth: CraAuth,
    #[serde(default)]
    accept: Option<String>,
}

/// The patterns for a response, as in `vectors/ckp`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedResponse {
    status: ExpectedStatus,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    body: Option<Value>,
    /// Pattern for the body as JSON Lines.
    #[serde(default)]
    lines: Option<Value>,
}

/// One status, or several if the protocol allows them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum ExpectedStatus {
    One(u16),
    Any(Vec<u16>),
}

impl ExpectedStatus {
    fn matches_status(&self, found: u16) -> bool {
        match self {
            Self::One(status) => *status == found,
            Self::Any(statuses) => statuses.contains(&found),
        }
    }
}

impl fmt::Display for ExpectedStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(status) => write!(f, "{status}"),
            Self::Any(statuses) => write!(f, "one of {statuses:?}"),
        }
    }
}

/// Runs the steps against the API under the Atlas of `multi-action`.
pub(super) fn judge_steps(target: &CraTarget, steps: &[CraHttpStep]) -> Result<(), CraShortfall> {
    if !target.has_api() {
        return Err(CraShortfall::Skipped(
            "there is no API; give a URL or a command with `{port}`".to_owned(),
        ));
    }
    let Some(served) = target.serve_api(&[golden::load_package("multi-action")?])? else {
        return Ok(());
    };
    let now = SystemClock::default().now();
    let mut player = CraHttpPlayer {
        api: &served.api,
        known: Map::from_iter([("now".to_owned(), json!(now.to_string()))]),
    };
    steps.iter().try_for_each(|step| player.play_step(step))
}

struct CraHttpPlayer<'a> {
    api: &'a CraApi,
    known: Map<String, Value>,
}

impl CraHttpPlayer<'_> {
    fn play_step(&mut self, step: &CraHttpStep) -> Result<(), CraShortfall> {
        match step {
            CraHttpStep::Send(send) => self.send_exchange(send),
            CraHttpStep::Stream { path, steps, expect } => {
                let stream = stream::open_stream(self.api, &self.fill_placeholders(path))?;
                steps.iter().try_for_each(|step| self.play_step(step))?;
                let wanted: Vec<Value> = expect.iter().map(|pattern| self.with_known(pattern)).collect();
                stream.expect_events(self.api, &wanted)
            }
        }
    }

    fn send_exchange(&mut self, step: &CraExchange) -> Result<(), CraShortfall> {
        let CraRequest {
            method,
            path,
            body,
            auth,
            accept,
        } = &step.send;
        if !self.api.has_token()
            && matches!(auth, CraAuth::Wrong | CraAuth::None)
            && step.expect.status.matches_status(401)
        {
            let why = "the API was given no token (`--token-env`), so it need not ask for one";
            return Err(CraShortfall::Skipped(why.to_owned()));
        }
        let path = self.fill_placeholders(path);
        let body = body.as_ref().map(|body| self.with_known(body));
        let answer = self
            .api
            .send_request(method, &path, body.as_ref(), *auth, accept.as_deref())?;
        let asked = format!("{method} {path}");
        let expected = &step.expect;
        if !expected.status.matches_status(answer.status) {
            let got = format!("{}: {}", answer.status, describe_response(&answer));
            return Err(CraShortfall::from_mismatch(
                format!("{asked} to be answered {}", expected.status),
                got,
                json!(body),
            ));
        }
        if let Some(kind) = &expected.content_type
            && !answer.content_type.starts_with(kind.as_str())
        {
            return Err(CraShortfall::from_mismatch(
                format!("{asked} as `{kind}`"),
                format!("`{}`", answer.content_type),
                Value::Null,
            ));
        }
        if let Some(wanted) = &expected.body {
            self.check_match(&asked, wanted, &answer.body_json())?;
        }
        if let Some(wanted) = &expected.lines {
            self.check_match(&asked, wanted, &Value::from(answer.body_lines()?))?;
        }
        for (name, pointer) in &step.capture {
            let found = answer.body_json().pointer(pointer).cloned();
            let found = found.with_context(|| format!("{asked}: nothing at `{pointer}`"))?;
            self.known.insert(name.clone(), found);
        }
        Ok(())
    }

    fn check_match(&self, asked: &str, wanted: &Value, found: &Value) -> Result<(), CraShortfall> {
        pattern::match_pattern(&self.with_known(wanted), found).map_err(|misfit| CraShortfall::Failed {
            error: format!("{asked}: at `{}` expected {}", misfit.at, misfit.wanted),
            details: found.clone(),
        })
    }

    /// Replaces `{name}` in a text.
    fn fill_placeholders(&self, text: &str) -> String {
        self.known.iter().fold(text.to_owned(), |text, (name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.replace(&format!("{{{name}}}"), &value)
        })
    }

    /// Replaces `{name}` in every string.
    fn with_known(&self, value: &Value) -> Value {
        let mut value = value.clone();
        each_string(&mut value, &mut |text| {
            text.contains('{')
                .then(|| Value::String(self.fill_placeholders(text)))
        });
        value
    }
}

fn describe_response(answer: &CraResponse) -> String {
    answer.text.chars().take(300).collect()
}
