//! Which turn an event is about.

use uuid::Uuid;

use crate::Event;

impl Event {
    /// The turn that the event is about. The turn that answers a message has the message's id.
    #[must_use]
    pub fn turn_id(&self) -> Option<Uuid> {
        match self {
            Self::MessageAccepted(payload) => Some(payload.message_id),
            Self::MessageAttached(payload) => Some(payload.message_id),
            Self::MessageFramed(payload) => Some(payload.message_id),
            Self::MessageTools(payload) => Some(payload.message_id),
            Self::ClientToolCalled(payload) => Some(payload.turn),
            Self::MessageRefused(payload) => Some(payload.message_id),
            Self::MessageAnswered(payload) => Some(payload.message_id),
            Self::MessageResumed(payload) => Some(payload.message_id),
            Self::MessageDead(payload) => Some(payload.message_id),
            Self::ClaimsJudged(payload) => Some(payload.message_id),
            Self::TurnStopped(payload) => Some(payload.turn),
            Self::DeliveryStarted(payload) => Some(payload.message_id),
            Self::DeliveryEnded(payload) => Some(payload.message_id),
            Self::DeliveryRequeued(payload) => Some(payload.message_id),
            Self::ProviderRequested(payload) => Some(payload.turn),
            Self::ProviderCompleted(payload) => Some(payload.turn),
            Self::ProviderFailed(payload) => Some(payload.turn),
            Self::ProviderAdapted(payload) => Some(payload.turn),
            Self::ActionRequested(payload) => payload.turn,
            Self::ActionApproved(payload) => payload.turn,
            Self::ActionDenied(payload) => payload.turn,
            Self::ActionExecuted(payload) => payload.turn,
            Self::ActionFailed(payload) => payload.turn,
            Self::ContextTrimmed(payload) => Some(payload.turn),
            Self::ContextCompacted(payload) => Some(payload.turn),
            Self::ContextRead(payload) => Some(payload.turn),
            Self::ContextTainted(payload) => payload.turn,
            Self::MemoryRecalled(payload) => Some(payload.turn),
            Self::SkillInvoked(payload) => Some(payload.turn),
            Self::SkillRepaired(payload) => Some(payload.turn),
            Self::SkillFinished(payload) => Some(payload.turn),
            Self::WorldModelPlanned(payload) => payload.turn,
            Self::WorldModelCompared(payload) => Some(payload.turn),
            Self::SessionStarted(_)
            | Self::AgentDescribed(_)
            | Self::ToolDescribed(_)
            | Self::SessionEnded(_)
            | Self::LifecycleChanged(_)
            | Self::ConversationCleared(_)
            | Self::ConversationModel(_)
            | Self::ProviderUnreachable(_)
            | Self::BudgetWarned(_)
            | Self::DryRunSpent(_)
            | Self::ActionAudited(_)
            | Self::EffectResolved(_)
            | Self::ContextWritten(_)
            | Self::ScreenSecret(_)
            | Self::ScreenInjection(_)
            | Self::ScreenInput(_)
            | Self::ScreenJudged(_)
            | crate::approval_events!()
            | crate::carp_events!()
            | crate::channel_events!()
            | crate::egress_events!()
            | Self::MemoryRequested(_)
            | Self::MemoryStored(_)
            | Self::MemoryQueried(_)
            | Self::MemoryExpired(_)
            | Self::MemoryCompacted(_)
            | Self::MemoryForgotten(_)
            | Self::MemoryRestored(_)
            | Self::ContentRedacted(_)
            | crate::swarm_events!()
            | Self::Shortened { .. }
            | Self::Unknown { .. } => None,
        }
    }
}
