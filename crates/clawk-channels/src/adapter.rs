//! The one trait that a platform implements, in the shape of the line protocol. An adapter decodes what comes in and encodes what
//! goes out. Shared code decides who is let in, what is a repetition, what is tried again, and how long texts are split.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery};
use tokio_util::sync::CancellationToken;

pub use crate::inlet::{InboundPipeline, IngestOutcome};
pub(crate) use crate::message::EDIT;
pub use crate::message::{
    Attachment, AttachmentContent, ButtonPress, ChannelDisconnect, CodeBlock, Decision, DeliveryLookup,
    FileSupport, HookReply, HookRequest, HookResponse, HookWebSocket, LengthUnit, MarkupFormat, OutFile,
    OutboundMessage, PlatformCapabilities, PlatformMessage, QuestionMessage, carried,
};
pub use crate::questions::MessageFrame;

/// A platform.
pub trait ChannelAdapter: Send + Sync + fmt::Debug {
    /// What it can.
    fn capabilities(&self) -> PlatformCapabilities;

    /// Listens until `over` fires or it fails, and says by [`InboundPipeline::report_ready`] when it is connected. A platform is told that it may
    /// forget a message only after [`InboundPipeline::ingest_message`] has returned something that is [`IngestOutcome::is_settled`].
    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect>;

    /// Sends one message: one attempt, told truly.
    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery>;

    /// Whether a message that may have been sent before is there. Asked only where [`PlatformCapabilities::idempotent`] is not given.
    fn sent_before<'a>(&'a self, _out: &'a OutboundMessage) -> BoxFuture<'a, DeliveryLookup> {
        Box::pin(std::future::ready(DeliveryLookup::CantKnow))
    }

    /// Sends one file as a message of its own; `out` says where, under which id, and has no text. One attempt, told truly.
    fn send_file<'a>(&'a self, _out: &'a OutboundMessage, _file: &'a OutFile) -> BoxFuture<'a, Delivery> {
        Box::pin(std::future::ready(Delivery::Failed {
            reason: "the platform takes no files".to_owned(),
        }))
    }

    /// Changes a message that was sent under this id.
    fn edit_message<'a>(&'a self, _of: &'a str, _out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(std::future::ready(Delivery::Failed {
            reason: "the platform can't change messages".to_owned(),
        }))
    }

    /// Sends a question; where there are no buttons, its text says how to answer.
    fn send_question<'a>(&'a self, asking: &'a QuestionMessage) -> BoxFuture<'a, Delivery> {
        self.send_message(&asking.out)
    }

    /// Shows how a question was decided that was sent under this id; `out` is the question's text with the decision.
    fn show_decision<'a>(
        &'a self,
        of: &'a str,
        out: &'a OutboundMessage,
        _decision: &'a Decision,
    ) -> BoxFuture<'a, Delivery> {
        self.edit_message(of, out)
    }

    /// Shows that somebody writes.
    fn show_typing<'a>(&'a self, _conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Shows that a message was read.
    fn read<'a>(&'a self, _conversation: &'a str, _id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// The conversation of the thread that a message in a group begins (`features.threads`). It is asked once the message's sender is let
    /// in. `None`: it stands in a thread already, or none can begin there.
    fn begin_thread<'a>(
        &'a self,
        _inlet: &'a InboundPipeline,
        _incoming: &'a PlatformMessage,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(std::future::ready(None))
    }

    /// Shows by a reaction that a message is worked on. Returns what [`ChannelAdapter::remove_reaction`] is given, where the platform names a reaction.
    ///
    /// The error says why it is not shown, for the log.
    fn add_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        _id: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(std::future::ready(
            Err("the platform has no reactions".to_owned()),
        ))
    }

    /// Takes the agent's reaction away. `mark` is what [`ChannelAdapter::add_reaction`] returned; `None` also when an earlier run of the agent put it.
    ///
    /// The error says why it is still there, for the log.
    fn remove_reaction<'a>(
        &'a self,
        _conversation: &'a str,
        _id: &'a str,
        _mark: Option<&'a str>,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// A request to `/channels/NAME`. Its signature is checked over the raw body before anything is read from it.
    fn receive_hook<'a>(
        &'a self,
        _inlet: &'a InboundPipeline,
        _hook: HookRequest,
    ) -> BoxFuture<'a, HookReply> {
        Box::pin(std::future::ready(HookReply::refusal(
            404,
            "this channel takes no requests",
        )))
    }

    /// The same with headers, streams and sockets, for a channel that people reach without a platform. This is what the listener calls.
    fn serve_hook<'a>(
        &'a self,
        inlet: &'a Arc<InboundPipeline>,
        hook: HookRequest,
    ) -> BoxFuture<'a, HookResponse> {
        Box::pin(async move { self.receive_hook(inlet, hook).await.into() })
    }

    /// Fetches an attachment's bytes by its [`AttachmentContent::At`], at most `max_bytes` of them.
    ///
    /// The error says why it can't be had, for the model and people.
    fn fetch_attachment<'a>(&'a self, _at: &'a str, _max_bytes: u64) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(std::future::ready(Err(
            "this channel can't fetch files".to_owned()
        )))
    }

    /// What the platform puts around what somebody says.
    fn message_frame(&self) -> MessageFrame {
        MessageFrame::default()
    }

    /// Whether what is said in `answered` is said where a question was asked: a question to a person by their id is answered in the
    /// conversation with that person.
    fn is_same_place(&self, asked: &str, answered: &str) -> bool {
        asked == answered
    }

    /// Takes away what the channel installed elsewhere (a trigger, a table, a webhook), for `clawk channels remove`. Returns what
    /// it removed, in words for people; an empty list when the channel installs nothing.
    fn remove<'a>(&'a self) -> BoxFuture<'a, Result<Vec<String>, String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Begins a run by hand, for `clawk channels fire`. `Ok(false)` means that this channel is not a trigger.
    fn fire_trigger<'a>(&'a self, _inlet: &'a InboundPipeline) -> BoxFuture<'a, Result<bool, String>> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// A run that this trigger began has its answer.
    fn on_run_finished<'a>(&'a self, _conversation: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}
