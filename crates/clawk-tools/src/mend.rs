//! How the outcome of an interrupted run is found out: `reconcile` and `idempotency_key` of `[tools.NAME]`.

use clawk_egress::{EgressClient, Request, Url};
use clawk_kernel::ports::{ReconcileMethod, RunError, RunOutcome};
use clawk_plan::ObtainedEnforcement;
use http::{HeaderMap, HeaderName, Method};
use serde_json::{Map, Value, json};

use crate::builtin::BuiltinContext;
use crate::call::ExecutorCall;
use crate::executor::{Command, parse_reply, run_error};

/// Where the idempotency key of a request is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdempotencyKeySlot {
    /// In a header; for `http` executors.
    Header(HeaderName),
    /// In an additional argument.
    Argument(String),
}

impl IdempotencyKeySlot {
    /// Parses `header:NAME` or `argument:NAME`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("`idempotency_key` is `header:NAME` or `argument:NAME`, not `{text}`");
        match text.split_once(':') {
            Some(("header", name)) => HeaderName::from_bytes(name.as_bytes())
                .map(Self::Header)
                .map_err(|_invalid| bad()),
            Some(("argument", name)) if !name.is_empty() => Ok(Self::Argument(name.to_owned())),
            _ => Err(bad()),
        }
    }
}

/// How to find out whether a call did its work.
#[derive(Debug)]
pub(crate) enum ReconcileCheck {
    Command(Command),
    Http(Box<ReconcileEndpoint>),
    /// A declared tool without side effects.
    Tool(String),
}

/// A URL with placeholders for the call's id and arguments.
#[derive(Debug)]
pub(crate) struct ReconcileEndpoint {
    pub(crate) template: String,
    pub(crate) headers: HeaderMap,
    pub(crate) client: EgressClient,
}

/// The reconcile settings of one tool in `clawk.toml`.
#[derive(Debug, Default)]
pub(crate) struct ReconcilePlan {
    pub(crate) key: Option<IdempotencyKeySlot>,
    pub(crate) check: Option<ReconcileCheck>,
}

impl ReconcilePlan {
    /// The method to use. A check is preferred, because it changes nothing.
    pub(crate) fn reconcile_method(&self) -> ReconcileMethod {
        match (&self.check, &self.key) {
            (Some(ReconcileCheck::Tool(name)), _) => ReconcileMethod::Tool(name.clone()),
            (Some(ReconcileCheck::Command(_) | ReconcileCheck::Http(_)), _) => ReconcileMethod::Check,
            (None, Some(_)) => ReconcileMethod::SameKey,
            (None, None) => ReconcileMethod::Person,
        }
    }

    pub(crate) async fn check_outcome(
        &self,
        call: &ExecutorCall<'_>,
        shared: &BuiltinContext,
    ) -> Result<RunOutcome, RunError> {
        match &self.check {
            Some(ReconcileCheck::Command(command)) => command.run(call, shared).await,
            Some(ReconcileCheck::Http(get)) => tokio::time::timeout(call.timeout(), get.run(call.arguments))
                .await
                .unwrap_or_else(|_| {
                    Err(RunError::Timeout {
                        timeout_ms: call.timeout_ms,
                        obtained: ObtainedEnforcement::for_remote("declared-endpoint"),
                    })
                }),
            Some(ReconcileCheck::Tool(_)) | None => Err(RunError::Unavailable("it has no check".to_owned())),
        }
    }
}

impl ReconcileEndpoint {
    async fn run(&self, facts: &Map<String, Value>) -> Result<RunOutcome, RunError> {
        let url = Url::parse(&fill_template(&self.template, facts))
            .map_err(|error| RunError::Unavailable(format!("`reconcile.http`: {error}")))?;
        let request = Request {
            method: Method::GET,
            url,
            headers: self.headers.clone(),
            body: Vec::new().into(),
        };
        let response = self.client.send(request).await.map_err(run_error)?;
        let status = response.status();
        let body = response.bytes().await.map_err(run_error)?;
        let facts = Map::from_iter([("status_code".to_owned(), json!(status.as_u16()))]);
        let mut outcome = parse_reply(
            &String::from_utf8_lossy(&body),
            facts,
            ObtainedEnforcement::for_remote("declared-endpoint"),
        );
        outcome.is_error |= !status.is_success();
        Ok(outcome)
    }
}

/// Fills in `{request_id}` and `{arguments.NAME}`. Each value is encoded as one part of the URL, so that it can't change the
/// target.
pub(crate) fn fill_template(template: &str, facts: &Map<String, Value>) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let Some((name, behind)) = after.split_once('}') else {
            rest = after;
            break;
        };
        let value = match name.strip_prefix("arguments.") {
            Some(name) => facts.get("arguments").and_then(|arguments| arguments.get(name)),
            None => facts.get(name),
        };
        out.push_str(&encode_value(value));
        rest = behind;
    }
    out.push_str(rest);
    out
}

fn encode_value(value: Option<&Value>) -> String {
    use std::fmt::Write as _;
    let text = match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}"); // silent-ok: writing to a String
        }
        out
    })
}

#[cfg(test)]
mod tests;
