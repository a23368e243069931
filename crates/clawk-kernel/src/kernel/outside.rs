//! Queries for other entry points: the tools that a client may see, and the location and state of a message.

pub use clawk_events::payload::PushGivenUp;
use clawk_manifest::model::{AutonomyLevel, Role};
use clawk_policy::{Effect, PolicySubject};
use clawk_proto::{MessageId, SessionId};
use serde_json::Map;

use super::Kernel;
use crate::catalog::CatalogEntry;
use crate::error::KernelError;
use crate::notice::SessionNotice;
use crate::ports::ToolOffer;
use crate::roles;
use crate::talk::told::TurnResult;
use crate::talk::{self, MessageStatus};

impl Kernel {
    /// Returns the agent's tools that this role could call with some arguments, by the current rules. Each call is still decided
    /// separately.
    pub async fn offered_tools(&self, role: Role) -> Vec<ToolOffer> {
        let calls = &self.agent.calls;
        if !roles::may_trigger(role) || calls.manifest.identity.autonomy == AutonomyLevel::Observer {
            return Vec::new();
        }
        let mut offers = Vec::new();
        for declared in calls.catalog.iter() {
            let found = match calls.catalog.offered_entries(declared, &*calls.runner).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(%error, tool = %declared.name, "a tool is not offered");
                    continue;
                }
            };
            for entry in found {
                if !calls.carp.hides_tool(&entry.name) {
                    offers.extend(self.tool_offer(&entry).await);
                }
            }
        }
        offers
    }

    /// Returns the tool's offer; `None` if the rules deny it for all arguments.
    async fn tool_offer(&self, entry: &CatalogEntry) -> Option<ToolOffer> {
        let calls = &self.agent.calls;
        let described = match calls.describe_tool(entry).await {
            Ok(described) => described,
            Err(error) => {
                tracing::warn!(%error, tool = %entry.name, "a tool is not offered");
                return None;
            }
        };
        let arguments = Map::new();
        let subject = PolicySubject {
            tool: &entry.name,
            labels: &described.labels,
            annotations: &described.annotations,
            arguments: &arguments,
            schema: Some(&described.input_schema),
            workdir: &calls.workdir,
            usage: calls.usage_view(),
            places: None,
            taint: Some(&[]),
            values: None,
        };
        let denied = calls.engine.decide(&subject).effect == Effect::Deny;
        let never = denied && !calls.engine.arguments_matter(&subject);
        (!never).then(|| entry.tool_offer(&described))
    }

    /// Cancels the running turn of this session. Returns `false` if the session is not open.
    pub fn cancel_turn(&self, session: SessionId) -> bool {
        let state = self.agent.sessions.table.get(session);
        state.inspect(|state| state.cancel_turn()).is_some()
    }

    /// Returns the state of a message that `client` sent at its own entry point; `None` for another client's or an unknown message.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn message_status(
        &self,
        message: MessageId,
        client: &str,
    ) -> Result<Option<MessageStatus>, KernelError> {
        talk::message_status(&self.agent.sessions, message, client).await
    }

    /// Waits for the answer to a message that `client` sent at its own entry point, in this run or an earlier one; `None`: the
    /// message is unknown. `begun`: its turn had begun at the client's last notice. `tell` receives the notices and must not block.
    ///
    /// # Errors
    /// The agent ends before the turn, or the journal can't be read.
    pub async fn rejoin_message(
        &self,
        (message, begun): (MessageId, bool),
        client: &str,
        tell: &(dyn Fn(MessageId, &SessionNotice) + Send + Sync),
    ) -> Result<Option<TurnResult>, KernelError> {
        talk::rejoin_message(&self.agent.sessions, (message, begun), client, tell).await
    }

    /// Records durably that a push notification was given up.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn record_push(&self, dead: &PushGivenUp) -> Result<(), KernelError> {
        let scribe = &self.agent.scribe;
        let draft = scribe.draft_event(&self.agent.life.root, dead);
        Ok(scribe.write(vec![draft]).await?)
    }
}
