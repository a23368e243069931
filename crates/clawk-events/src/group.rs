//! Events by what they are about, as patterns: for a match that takes none of them, or takes some of them before.
//!
//! An event that a later change adds is in no group until somebody puts it there.

/// Questions to people, standing grants, emergency stops and undo.
#[macro_export]
macro_rules! approval_events {
    () => {
        $crate::Event::ApprovalRequested(_)
            | $crate::Event::ApprovalAnswered(_)
            | $crate::Event::ApprovalVoided(_)
            | $crate::Event::ApprovalGranted(_)
            | $crate::Event::ApprovalRevoked(_)
            | $crate::Event::StopEngaged(_)
            | $crate::Event::StopLifted(_)
            | $crate::Event::UndoStarted(_)
            | $crate::Event::UndoEnded(_)
    };
}

/// CARP and its Atlases.
#[macro_export]
macro_rules! carp_events {
    () => {
        $crate::Event::CarpRequestReceived(_)
            | $crate::Event::CarpResolutionCompleted(_)
            | $crate::Event::CarpErrorOccurred(_)
            | $crate::Event::PolicyEvaluated(_)
            | $crate::Event::PolicyViolated(_)
            | $crate::Event::ContextInjected(_)
            | $crate::Event::ContextRedacted(_)
            | $crate::Event::CarpSessionOpened(_)
            | $crate::Event::CarpResolutionIssued(_)
            | $crate::Event::CarpLimitsCharged(_)
            | $crate::Event::CarpApprovalAnswered(_)
            | $crate::Event::AtlasDescribed(_)
            | $crate::Event::AtlasLoaded(_)
            | $crate::Event::AtlasRemoved(_)
    };
}

/// Channels, their triggers and pairings.
#[macro_export]
macro_rules! channel_events {
    () => {
        $crate::Event::ChannelRefused(_)
            | $crate::Event::ChannelPairing(_)
            | $crate::Event::ChannelRun(_)
            | $crate::Event::PushGivenUp(_)
    };
}

/// What calls reached on the network.
#[macro_export]
macro_rules! egress_events {
    () => {
        $crate::Event::EgressConnected(_) | $crate::Event::EgressRefused(_) | $crate::Event::EgressSummed(_)
    };
}

/// Entries that an agent remembers, and contents that were erased.
#[macro_export]
macro_rules! memory_events {
    () => {
        $crate::Event::ContentRedacted(_)
            | $crate::Event::MemoryRequested(_)
            | $crate::Event::MemoryStored(_)
            | $crate::Event::MemoryQueried(_)
            | $crate::Event::MemoryRecalled(_)
            | $crate::Event::MemoryExpired(_)
            | $crate::Event::MemoryCompacted(_)
            | $crate::Event::MemoryForgotten(_)
            | $crate::Event::MemoryRestored(_)
    };
}

/// Swarms: runs, tasks, tries.
#[macro_export]
macro_rules! swarm_events {
    () => {
        $crate::Event::SwarmRun(_)
            | $crate::Event::SwarmTry(_)
            | $crate::Event::SwarmRefused(_)
            | $crate::Event::SwarmCircuit(_)
            | $crate::Event::SwarmDeadLettered(_)
            | $crate::Event::SwarmAggregated(_)
            | $crate::Event::SwarmEnded(_)
            | $crate::Event::SwarmLed(_)
            | $crate::Event::SwarmDelegated(_)
            | $crate::Event::SwarmReported(_)
            | $crate::Event::SwarmBroadcast(_)
    };
}
