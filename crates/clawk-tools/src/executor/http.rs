//! `[tools.NAME.http]`: the arguments are posted as JSON; the answer's body is the result.

use std::sync::Arc;

use clawk_egress::{EgressClient, EgressError, Request, Url};
use clawk_kernel::ports::{RunError, RunOutcome};
use clawk_plan::ObtainedEnforcement;
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Map, json};

use super::parse_reply;
use crate::call::ExecutorCall;
use crate::egress::LedgerGuard;

/// An HTTP endpoint that is bound to a tool.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) client: EgressClient,
}

impl Endpoint {
    pub(crate) async fn run(&self, call: &ExecutorCall<'_>) -> Result<RunOutcome, RunError> {
        call.plan.check_available().map_err(RunError::Sandbox)?;
        let body =
            serde_json::to_vec(call.arguments).map_err(|error| RunError::Unavailable(error.to_string()))?;
        let mut headers = self.headers.clone();
        if let Some((name, key)) = &call.key {
            let key = HeaderValue::from_str(key).map_err(|error| RunError::Unavailable(error.to_string()))?;
            headers.insert(name, key);
        }
        let request = Request {
            method: Method::POST,
            url: self.url.clone(),
            headers,
            body: body.into(),
        };
        let told = LedgerGuard(Arc::default(), &call.connections);
        let response = self.client.send_told(request, &told.0).await.map_err(run_error)?;
        let status = response.status();
        let body = response.bytes().await.map_err(run_error)?;
        let facts = Map::from_iter([("status_code".to_owned(), json!(status.as_u16()))]);
        let obtained = ObtainedEnforcement::for_remote("declared-endpoint");
        let mut outcome = parse_reply(&String::from_utf8_lossy(&body), facts, obtained);
        outcome.is_error |= !status.is_success();
        Ok(outcome)
    }
}

/// Converts a failed exchange: without effect if the request was not sent yet, otherwise of unknown outcome.
pub(crate) fn run_error(error: EgressError) -> RunError {
    let text = format!("the tool's endpoint: {error}");
    match error {
        EgressError::Refused(_)
        | EgressError::Setup(_)
        | EgressError::Dns { .. }
        | EgressError::Connect(_)
        | EgressError::Tls(_) => RunError::Unavailable(text),
        EgressError::Timeout { .. }
        | EgressError::TooLarge(_)
        | EgressError::Broken(_)
        | EgressError::Onward(_) => RunError::Unknown(text),
    }
}
