//! Cases of the HTTP API: requests in order, with what each must be answered.

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
    /// A stream of events is opened; what is expected of it must come while the steps are played, or soon after.
    Stream {
        path: String,
        steps: Vec<Self>,
        expect: Vec<Value>,
    },
    #[serde(untagged)]
    Send(Box<CraExchange>),
}

/// A request and its answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CraExchange {
    send: CraRequest,
    expect: ExpectedResponse,
    /// Names for parts of the answer: JSON pointers.
    #[serde(default)]
    capture: BTreeMap<String, String>,
}

/// A request. `{name}` in the path and in strings stands for what was captured.
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

/// Patterns, as in `vectors/ckp`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedResponse {
    status: ExpectedStatus,
    #[serde(default)]
    content_type: Option<String>,
    #[serde(default)]
    body: Option<Value>,
    /// The body as JSON Lines.
    #[serde(default)]
    lines: Option<Value>,
}

/// One status, or any of several where the protocol leaves it open.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum ExpectedStatus {
    One(u16),
    Any(Vec<u16>),
}

impl ExpectedStatus {
    fn holds(&self, found: u16) -> bool {
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

/// Plays the steps against the API under the Atlas of `multi-action`.
pub(super) fn judge(target: &CraTarget, steps: &[CraHttpStep]) -> Result<(), CraShortfall> {
    if !target.has_api() {
        return Err(CraShortfall::Skipped(
            "there is no API; give a URL or a command with `{port}`".to_owned(),
        ));
    }
    let Some(served) = target.serve(&[golden::package("multi-action")?])? else {
        return Ok(());
    };
    let now = SystemClock::default().now();
    let mut player = CraHttpPlayer {
        api: &served.api,
        known: Map::from_iter([("now".to_owned(), json!(now.to_string()))]),
    };
    steps.iter().try_for_each(|step| player.play(step))
}

struct CraHttpPlayer<'a> {
    api: &'a CraApi,
    known: Map<String, Value>,
}

impl CraHttpPlayer<'_> {
    fn play(&mut self, step: &CraHttpStep) -> Result<(), CraShortfall> {
        match step {
            CraHttpStep::Send(send) => self.send(send),
            CraHttpStep::Stream { path, steps, expect } => {
                let stream = stream::open(self.api, &self.filled(path))?;
                steps.iter().try_for_each(|step| self.play(step))?;
                let wanted: Vec<Value> = expect.iter().map(|pattern| self.with_known(pattern)).collect();
                stream.expect(self.api, &wanted)
            }
        }
    }

    fn send(&mut self, step: &CraExchange) -> Result<(), CraShortfall> {
        let CraRequest {
            method,
            path,
            body,
            auth,
            accept,
        } = &step.send;
        if !self.api.guarded()
            && matches!(auth, CraAuth::Wrong | CraAuth::None)
            && step.expect.status.holds(401)
        {
            let why = "the API was given no token (`--token-env`), so it need not ask for one";
            return Err(CraShortfall::Skipped(why.to_owned()));
        }
        let path = self.filled(path);
        let body = body.as_ref().map(|body| self.with_known(body));
        let answer = self
            .api
            .send(method, &path, body.as_ref(), *auth, accept.as_deref())?;
        let asked = format!("{method} {path}");
        let expected = &step.expect;
        if !expected.status.holds(answer.status) {
            let got = format!("{}: {}", answer.status, shown(&answer));
            return Err(CraShortfall::other(
                format!("{asked} to be answered {}", expected.status),
                got,
                json!(body),
            ));
        }
        if let Some(kind) = &expected.content_type
            && !answer.content_type.starts_with(kind.as_str())
        {
            return Err(CraShortfall::other(
                format!("{asked} as `{kind}`"),
                format!("`{}`", answer.content_type),
                Value::Null,
            ));
        }
        if let Some(wanted) = &expected.body {
            self.check(&asked, wanted, &answer.json())?;
        }
        if let Some(wanted) = &expected.lines {
            self.check(&asked, wanted, &Value::from(answer.lines()?))?;
        }
        for (name, pointer) in &step.capture {
            let found = answer.json().pointer(pointer).cloned();
            let found = found.with_context(|| format!("{asked}: nothing at `{pointer}`"))?;
            self.known.insert(name.clone(), found);
        }
        Ok(())
    }

    fn check(&self, asked: &str, wanted: &Value, found: &Value) -> Result<(), CraShortfall> {
        pattern::fits(&self.with_known(wanted), found).map_err(|misfit| CraShortfall::Failed {
            error: format!("{asked}: at `{}` expected {}", misfit.at, misfit.wanted),
            details: found.clone(),
        })
    }

    /// `{name}` within a text.
    fn filled(&self, text: &str) -> String {
        self.known.iter().fold(text.to_owned(), |text, (name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.replace(&format!("{{{name}}}"), &value)
        })
    }

    /// `{name}` within every string.
    fn with_known(&self, value: &Value) -> Value {
        let mut value = value.clone();
        each_string(&mut value, &mut |text| {
            text.contains('{').then(|| Value::String(self.filled(text)))
        });
        value
    }
}

fn shown(answer: &CraResponse) -> String {
    answer.text.chars().take(300).collect()
}
