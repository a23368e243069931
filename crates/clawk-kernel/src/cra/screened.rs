//! Removes known secrets from CRA requests (S.10): a goal, a fact or a name is recorded before any other check. The call path
//! screens an execution's parameters.

use std::borrow::Cow;

use clawk_policy::leak::Scanner;
use clawk_proto::carp::Request;
use serde_json::{Map, Value};

use crate::carp::book::NewSession;
use crate::screen::AgentScreening;

/// Returns the request without known secrets.
pub(super) fn screen_request<'r>(screens: &AgentScreening, request: &'r Request) -> Cow<'r, Request> {
    let scanner = screens.scanner().without_shapes();
    if scanner.is_idle() {
        return Cow::Borrowed(request);
    }
    let mut clean = request.clone();
    redact_text(&scanner, &mut clean.requester.agent_id);
    if let Some(task) = &mut clean.task {
        let lists = task
            .context_hints
            .iter_mut()
            .chain(&mut task.required_capabilities);
        for said in lists.chain([&mut task.goal]) {
            redact_text(&scanner, said);
        }
    }
    redact_map(&scanner, &mut clean.context);
    Cow::Owned(clean)
}

/// Removes known secrets from a new session's description.
pub(super) fn screen_session(screens: &AgentScreening, new: &mut NewSession) {
    let scanner = screens.scanner().without_shapes();
    if scanner.is_idle() {
        return;
    }
    for said in [&mut new.agent_id, &mut new.goal] {
        redact_text(&scanner, said);
    }
    redact_map(&scanner, &mut new.metadata);
}

fn redact_text(scanner: &Scanner, text: &mut String) {
    if let Some((clean, _told)) = scanner.redact(text) {
        *text = clean;
    }
}

fn redact_map(scanner: &Scanner, map: &mut Map<String, Value>) {
    let mut value = Value::Object(std::mem::take(map));
    let _told = scanner.redact_json(&mut value);
    if let Value::Object(clean) = value {
        *map = clean;
    }
}
