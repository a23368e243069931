//! What comes over CRA without the values that are known here (S.10): a goal, a fact or a name is recorded before anything else is
//! looked at. Parameters of an execution are the path's to screen.

use std::borrow::Cow;

use clawk_policy::leak::Scanner;
use clawk_proto::carp::Request;
use serde_json::{Map, Value};

use crate::carp::book::NewSession;
use crate::screen::AgentScreening;

/// The request as it goes on.
pub(super) fn request<'r>(screens: &AgentScreening, request: &'r Request) -> Cow<'r, Request> {
    let scanner = screens.scanner().without_shapes();
    if scanner.is_idle() {
        return Cow::Borrowed(request);
    }
    let mut clean = request.clone();
    text(&scanner, &mut clean.requester.agent_id);
    if let Some(task) = &mut clean.task {
        let lists = task
            .context_hints
            .iter_mut()
            .chain(&mut task.required_capabilities);
        for said in lists.chain([&mut task.goal]) {
            text(&scanner, said);
        }
    }
    map(&scanner, &mut clean.context);
    Cow::Owned(clean)
}

/// The session as it is opened.
pub(super) fn session(screens: &AgentScreening, new: &mut NewSession) {
    let scanner = screens.scanner().without_shapes();
    if scanner.is_idle() {
        return;
    }
    for said in [&mut new.agent_id, &mut new.goal] {
        text(&scanner, said);
    }
    map(&scanner, &mut new.metadata);
}

fn text(scanner: &Scanner, text: &mut String) {
    if let Some((clean, _told)) = scanner.redact(text) {
        *text = clean;
    }
}

fn map(scanner: &Scanner, map: &mut Map<String, Value>) {
    let mut value = Value::Object(std::mem::take(map));
    let _told = scanner.redact_json(&mut value);
    if let Value::Object(clean) = value {
        *map = clean;
    }
}
