//! Sends answers, the same way for every platform (C5, C6). An answer is written in the platform's markup, split where it is too long,
//! and sent piece by piece. The kernel's outbox decides when it is sent, and how often.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use clawk_kernel::ports::{BoxFuture, ChannelDelivery, Delivery, OutgoingAnswer};
use clawk_proto::MessageId;
use tokio_util::sync::CancellationToken;

use crate::adapter::{
    ChannelAdapter, DeliveryLookup, EDIT, FileSupport, OutFile, OutboundMessage, PlatformCapabilities,
};
use crate::handle::ChannelHandle;
use crate::inlet::InboundPipeline;
use crate::live::ShownAnswer;
use crate::markup::dress;
use crate::message::RUN;
use crate::split::{split_markdown, text_length};

/// The note on an answer that may have been delivered before.
pub(crate) const REPEAT: &str = "(this may be a repeat)";
/// For how many answers the number of delivered pieces is remembered.
const REMEMBERED: usize = 1_024;

/// Delivers the answers of one channel.
#[derive(Debug)]
pub(crate) struct OutboundPipeline {
    adapter: Arc<dyn ChannelAdapter>,
    inlet: Arc<InboundPipeline>,
    /// Where a trigger's answers go, and the channel that delivers them.
    target: Option<(String, String)>,
    lanes: Arc<OnceLock<Weak<HashMap<String, ChannelHandle>>>>,
    /// Answers of which some pieces were delivered.
    begun: Mutex<HashMap<String, usize>>,
}

impl OutboundPipeline {
    pub(crate) fn new(
        adapter: Arc<dyn ChannelAdapter>,
        inlet: Arc<InboundPipeline>,
        lanes: Arc<OnceLock<Weak<HashMap<String, ChannelHandle>>>>,
    ) -> Self {
        let target = inlet.config().deliver_to.as_ref().and_then(|target| {
            let (channel, conversation) = target.split_once(':')?;
            Some((channel.to_owned(), conversation.to_owned()))
        });
        Self {
            adapter,
            inlet,
            target,
            lanes,
            begun: Mutex::default(),
        }
    }

    fn lock_begun(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a trigger's answer. The run has ended, even if the answer is never delivered.
    async fn of_trigger(&self, out: &OutgoingAnswer, cancel: &CancellationToken) -> Delivery {
        let delivery = match &self.target {
            // Back to where the event came from, where its source takes answers; else it is kept in the journal alone.
            None => self.send_answer(out, &[], cancel).await,
            Some((channel, conversation)) => match self.outlet_of(channel) {
                Some(outlet) => {
                    let onward = OutgoingAnswer {
                        channel: channel.clone(),
                        conversation: conversation.clone(),
                        reply_to: None,
                        ..out.clone()
                    };
                    outlet.send_answer(&onward, &[], cancel).await
                }
                None => Delivery::Failed {
                    reason: format!("`deliver_to` names the channel `{channel}`, which is not connected"),
                },
            },
        };
        self.adapter.on_run_finished(&out.conversation).await;
        delivery
    }

    fn outlet_of(&self, channel: &str) -> Option<Arc<Self>> {
        let lanes = self.lanes.get()?.upgrade()?;
        lanes.get(channel)?.outlet.clone()
    }

    /// Sends the pieces of an answer that the platform does not have yet, and its files.
    pub(crate) async fn send_answer(
        &self,
        out: &OutgoingAnswer,
        files: &[OutFile],
        cancel: &CancellationToken,
    ) -> Delivery {
        let abilities = self.adapter.capabilities();
        if let (Err(reason), false) = (self.takes_files(abilities), files.is_empty()) {
            return Delivery::Failed { reason };
        }
        let doubt = out.repeat && !abilities.idempotent;
        // A part of it may stand there already, under an id that nobody knows.
        let shown = !abilities.idempotent && self.inlet.live.is_doubtful(out.id);
        let marked = shown || doubt && self.last_piece(out, abilities).await == DeliveryLookup::CantKnow;
        let text = if marked {
            format!("{REPEAT}\n{}", out.text)
        } else {
            out.text.clone()
        };
        let inside = abilities.files == FileSupport::Inside;
        let pieces = match (text.trim().is_empty() && !files.is_empty(), inside) {
            // Files that nothing is said of.
            (true, true) => vec![String::new()],
            (true, false) => Vec::new(),
            (false, _) => pieces(&text, abilities),
        };
        let id = out.id.to_string();
        let begun = self.lock_begun().get(&id).copied();
        let from = begun.filter(|_| !marked).unwrap_or(0);
        let mut platform_id = None;
        for (n, markdown) in pieces.iter().enumerate().skip(from) {
            let last = inside && n + 1 == pieces.len();
            let piece = OutboundMessage {
                id: if n == 0 { id.clone() } else { format!("{id}.{n}") },
                conversation: out.conversation.clone(),
                reply_to: out.reply_to.clone().filter(|id| n == 0 && names_message(id)),
                text: dress(markdown, abilities.markup),
                markdown: markdown.clone(),
                files: if last { files.to_vec() } else { Vec::new() },
            };
            let live = (n == 0).then_some(out.id);
            let delivery = tokio::select! {
                delivery = self.send_piece(&piece, live, doubt && !marked) => delivery,
                () = cancel.cancelled() => Delivery::Unknown {
                    reason: "the agent ended while it was being sent".to_owned(),
                },
            };
            match delivery {
                Delivery::Delivered {
                    platform_id: id_there,
                } => {
                    if let Some(id) = &id_there {
                        self.inlet
                            .recent
                            .remember_outbound(id, &out.conversation, markdown);
                    }
                    platform_id = platform_id.or(id_there);
                    self.record_pieces(&id, n + 1);
                }
                other => return other,
            }
        }
        if abilities.files == FileSupport::Beside {
            match self.send_files(out, files, !pieces.is_empty(), cancel).await {
                Delivery::Delivered {
                    platform_id: id_there,
                } => platform_id = platform_id.or(id_there),
                other => return other,
            }
        }
        self.lock_begun().remove(&id);
        self.inlet.live.forget_message(out.id);
        self.inlet.status.note_sent(self.inlet.clock().now());
        Delivery::Delivered { platform_id }
    }

    /// Why no file goes out here.
    fn takes_files(&self, abilities: PlatformCapabilities) -> Result<(), String> {
        let channel = self.inlet.channel();
        if let FileSupport::Nothing(why) = abilities.files {
            let kind = channel.kind.as_str();
            return Err(format!(
                "nothing was sent: files can't go out on `{kind}` ({why})"
            ));
        }
        if channel.features.files == Some(false) {
            let name = &channel.name;
            return Err(format!(
                "nothing was sent: `features.files` of the channel `{name}` is off"
            ));
        }
        Ok(())
    }

    /// Sends one piece. `live` is set for the first piece of an answer: if the answer was shown while it was being written, that message
    /// is edited instead. With `look`, the platform is asked first whether it already has the piece.
    async fn send_piece(&self, piece: &OutboundMessage, live: Option<MessageId>, look: bool) -> Delivery {
        if look && let DeliveryLookup::Yes(platform_id) = self.adapter.sent_before(piece).await {
            return Delivery::Delivered { platform_id };
        }
        let shown = match live {
            Some(message) => match self.live_message_id(message).await {
                Ok(id) => id.map(|id| (message, id)),
                Err(delivery) => return delivery,
            },
            None => None,
        };
        if let Some((message, id)) = shown {
            match self.adapter.edit_message(&id, piece).await {
                Delivery::Delivered { platform_id } => {
                    self.inlet.live.forget_message(message);
                    return Delivery::Delivered {
                        platform_id: platform_id.or(Some(id)),
                    };
                }
                later @ Delivery::Retry { .. } => return later,
                // The same edit twice is one; a new message beside this one would be the answer twice.
                Delivery::Unknown { reason } => {
                    return Delivery::Retry {
                        after_ms: None,
                        reason,
                    };
                }
                // It is not there any more.
                Delivery::Failed { .. } => self.inlet.live.forget_message(message),
            }
        }
        self.adapter.send_message(piece).await
    }

    /// The platform's id of the message in which an answer was being written, if there is one.
    ///
    /// # Errors
    /// The platform can't say now; the attempt ends so.
    async fn live_message_id(&self, message: MessageId) -> Result<Option<String>, Delivery> {
        let live = &self.inlet.live;
        match live.take_over_answer(message).await {
            ShownAnswer::Nothing => Ok(None),
            ShownAnswer::Message(id) => Ok(Some(id)),
            // The same id again is the same message, and the platform tells which one it is.
            ShownAnswer::Perhaps(out) if self.adapter.capabilities().idempotent => {
                match self.adapter.send_message(&out).await {
                    Delivery::Delivered {
                        platform_id: Some(id),
                    } => {
                        live.set_message_id(message, id.clone());
                        Ok(Some(id))
                    }
                    Delivery::Delivered { platform_id: None } | Delivery::Failed { .. } => Ok(None),
                    later @ Delivery::Retry { .. } => Err(later),
                    Delivery::Unknown { reason } => Err(Delivery::Retry {
                        after_ms: None,
                        reason,
                    }),
                }
            }
            // The answer says that it may be a repeat.
            ShownAnswer::Perhaps(_) => Ok(None),
        }
    }

    /// Sends each file as a message. If one fails, the pieces and files before it are remembered and not sent again.
    async fn send_files(
        &self,
        out: &OutgoingAnswer,
        files: &[OutFile],
        mut said: bool,
        cancel: &CancellationToken,
    ) -> Delivery {
        let mut first = None;
        for (n, file) in files.iter().enumerate() {
            let place = OutboundMessage {
                id: format!("{}.f{n}", out.id),
                conversation: out.conversation.clone(),
                reply_to: None,
                text: String::new(),
                markdown: String::new(),
                files: Vec::new(),
            };
            let delivery = tokio::select! {
                delivery = self.adapter.send_file(&place, file) => delivery,
                () = cancel.cancelled() => Delivery::Unknown {
                    reason: "the agent ended while it was being sent".to_owned(),
                },
            };
            match delivery {
                Delivery::Delivered { platform_id } => {
                    said = true;
                    first = first.or(platform_id);
                }
                Delivery::Retry { reason, .. } | Delivery::Failed { reason } if said => {
                    return Delivery::Failed {
                        reason: format!(
                            "what stands before `{}` was sent, `{}` was not: {reason}",
                            file.name, file.name
                        ),
                    };
                }
                other => return other,
            }
        }
        Delivery::Delivered { platform_id: first }
    }

    /// Whether the platform can say what it has of an answer.
    async fn last_piece(&self, out: &OutgoingAnswer, abilities: PlatformCapabilities) -> DeliveryLookup {
        let piece = OutboundMessage {
            id: out.id.to_string(),
            conversation: out.conversation.clone(),
            reply_to: None,
            text: dress(&out.text, abilities.markup),
            markdown: out.text.clone(),
            files: Vec::new(),
        };
        self.adapter.sent_before(&piece).await
    }

    fn record_pieces(&self, id: &str, pieces: usize) {
        let mut begun = self.lock_begun();
        if begun.len() >= REMEMBERED {
            begun.clear();
        }
        begun.insert(id.to_owned(), pieces);
    }
}

impl ChannelDelivery for OutboundPipeline {
    fn deliver_answer<'a>(
        &'a self,
        out: &'a OutgoingAnswer,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Delivery> {
        Box::pin(async move {
            self.inlet.stop_typing(&out.conversation);
            if self.inlet.platform().is_trigger {
                return self.of_trigger(out, cancel).await;
            }
            let delivery = self.send_answer(out, &[], cancel).await;
            // One that is sent again later is still worked on.
            let over = matches!(delivery, Delivery::Delivered { .. } | Delivery::Failed { .. });
            let of = out.reply_to.as_deref().filter(|id| names_message(id));
            if let (true, Some(id)) = (over, of) {
                self.inlet.hide_reaction(&out.conversation, id);
            }
            delivery
        })
    }
}

/// Whether an id is that of a message on the platform: not of a schedule's run, nor of an edit.
fn names_message(id: &str) -> bool {
    !id.starts_with(RUN) && !id.starts_with(EDIT)
}

/// Splits Markdown into pieces that each fit the platform's limit in the platform's own markup.
pub(crate) fn pieces(text: &str, abilities: PlatformCapabilities) -> Vec<String> {
    let (max, unit) = abilities.limit;
    let pieces = split_markdown(text, &|piece| {
        text_length(&dress(piece, abilities.markup), unit) <= max
    });
    if pieces.is_empty() {
        vec!["(an empty answer)".to_owned()]
    } else {
        pieces
    }
}
