//! A client's own tools (R44): offered to the model, but never run here. A turn that calls one ends; the client runs it, and sends
//! its result as data in the next message.

use clawk_events::payload::ClientToolCalled;
use serde_json::{Map, Value};

use crate::drive::RunningTurn;
use crate::event::{canonical, digest};
use crate::notice::{ClientCall, SessionNotice};
use crate::ports::ToolOffer;
use crate::turn::Event;

impl RunningTurn<'_> {
    /// Returns the client's tools whose name no tool of the agent has. The agent's own tools take precedence.
    pub(crate) fn client_offers(&self, own: &[ToolOffer]) -> Vec<ToolOffer> {
        let taken = |name: &str| own.iter().any(|offer| offer.name == name);
        let offered = self.client.iter().filter(|offer| self.is_clients(&offer.name));
        offered.filter(|offer| !taken(&offer.name)).cloned().collect()
    }

    /// Returns whether this name is a client's tool only.
    pub(crate) fn is_clients(&self, name: &str) -> bool {
        let reads_output = self
            .calls
            .catalog
            .output_read()
            .is_some_and(|entry| *entry.name == *name);
        let granted = self
            .granted
            .as_ref()
            .is_some_and(|granted| granted.find_action(name).is_some());
        let own = reads_output
            || granted
            || self.calls.catalog.get(name).is_some()
            || self.find_skill(name).is_some();
        !own && self.client.iter().any(|offer| offer.name == name)
    }

    /// Hands a call to the client: records it first, then notifies the waiting client.
    pub(crate) async fn hand_over(&self, id: String, name: String, arguments: &Map<String, Value>) -> Event {
        let call = ClientCall {
            id,
            name,
            arguments: String::from_utf8_lossy(&canonical(arguments)).into_owned(),
        };
        let bytes = canonical(&call);
        let payload = ClientToolCalled {
            call_hash: digest(&bytes),
            call_id: call.id.to_string(),
            tool: call.name.to_string(),
            turn: self.turn_id,
        };
        let scribe = &self.calls.scribe;
        let draft = scribe.draft_event(&self.thread, &payload);
        if let Err(error) = scribe
            .write(vec![draft.with_content(payload.call_hash, bytes)])
            .await
        {
            return Event::Failed(error.to_string());
        }
        let call_id = call.id.clone();
        self.notices.send(SessionNotice::Handed(call)).await;
        Event::Handed { call_id }
    }
}
