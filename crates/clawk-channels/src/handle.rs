//! One channel of a running agent: its adapter and its two pipelines.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use tokio_util::sync::CancellationToken;

use crate::adapter::ChannelAdapter;
use crate::inlet::InboundPipeline;
use crate::outlet::OutboundPipeline;

/// The channels, once they are all made.
pub(crate) type SharedChannelHandles = Arc<OnceLock<Weak<HashMap<String, ChannelHandle>>>>;

/// One channel.
#[derive(Debug)]
pub(crate) struct ChannelHandle {
    pub(crate) inlet: Arc<InboundPipeline>,
    pub(crate) adapter: Option<Arc<dyn ChannelAdapter>>,
    pub(crate) outlet: Option<Arc<OutboundPipeline>>,
    /// What it installed elsewhere was taken away: it does not connect again in this run of the agent.
    pub(crate) removed: CancellationToken,
}
