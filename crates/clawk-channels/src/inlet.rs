//! Takes messages in, the same way for every platform (C1 to C4, C8, C10). It finds duplicates, checks who may speak, and applies the
//! limits of length and rate. Then it stores the message durably, and the adapter may acknowledge it.
//!
//! Long because the checks of one message run in one order for all platforms, and are read from top to bottom.

mod commands;
mod heard;
mod reaction;
mod recent;
mod shown;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use clawk_kernel::ports::{Delivery, MessageContext, QuoteKind};
use clawk_kernel::time::{Clock, Timestamp};
use clawk_kernel::{ChannelFact, ChannelMessage, Kernel, KernelError, REMEMBERED_DAYS, Role};
use clawk_manifest::model::{AccessControl, Channel};
use clawk_proto::{MessageId, SessionId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adapter::{ButtonPress, ChannelAdapter, OutboundMessage, PlatformMessage};
use crate::config::{ChannelConfig, RefusalPolicy, ResponsePolicy};
use crate::cursor::Cursor;
use crate::details;
use crate::files::{FileOwner, InboundFileStore};
use crate::gate::{AccessDecision, NOBODY, SenderAccessControl};
use crate::live::LiveAnswers;
use crate::markup::dress;
use crate::platform_kit::profile::PlatformProfile;
use crate::questions::{PressOutcome, QuestionRegistry};
use crate::sealed_file::FileSeal;
use crate::shares::{ShareGuard, ShareLimiter, ShareLimits};
use crate::state::{ChannelStatus, IngestKind, State};
use crate::waiting::VoiceMessageStore;

/// How long sending a notice (a pairing code, a refusal) may take, milliseconds. It is not tried again.
const ASIDE_MS: u64 = 20_000;
/// How many such notices each channel sends at the same time.
const ASIDES: ShareLimits = ShareLimits {
    total: 16,
    each: 6,
    for_admins: 4,
};
/// How long a message waits for room in the mailbox before the platform is asked to send it again, and how often it checks, milliseconds.
const ROOM_MS: u64 = 20_000;
const ROOM_LOOK_MS: u64 = 50;
/// How many answers to questions are remembered by their message id. If the platform sends one again, it does not become a message.
const ANSWERS: usize = 1_000;

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngestOutcome {
    /// It is stored durably and will be answered.
    Accepted {
        /// Its id here.
        message: MessageId,
        /// Its conversation's session.
        session: SessionId,
        /// It is a duplicate.
        duplicate: bool,
    },
    /// It was refused. Sending it again gives the same result.
    Refused(String),
    /// It is not for the agent, or it answered a question, or it has a recording: then it is kept durably and understood later.
    Ignored,
    /// It could not be stored now. It is not acknowledged, so the platform sends it again.
    Later(String),
}

impl IngestOutcome {
    /// Whether the message may be acknowledged, so that the platform does not send it again.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        !matches!(self, Self::Later(_))
    }
}

/// Takes in the messages of one channel. Each adapter gets its own.
#[derive(Debug)]
pub struct InboundPipeline {
    channel: Channel,
    platform: PlatformProfile,
    config: ChannelConfig,
    kernel: Kernel,
    clock: Arc<dyn Clock>,
    pub(crate) gate: SenderAccessControl,
    pub(crate) status: ChannelStatus,
    cursor: Cursor,
    files: InboundFileStore,
    pub(crate) live: Arc<LiveAnswers>,
    pub(crate) recent: recent::RecentMessages,
    questions: Arc<QuestionRegistry>,
    adapter: OnceLock<Weak<dyn ChannelAdapter>>,
    tasks: TaskTracker,
    /// Conversations that wait for an answer, where the platform shows that somebody writes.
    writing: Arc<Mutex<HashSet<String>>>,
    reactions: Arc<reaction::ReactionRegistry>,
    /// Messages with recordings that are not understood yet, and that one came.
    shelf: Arc<VoiceMessageStore>,
    recorded: tokio::sync::Notify,
    /// Ids of messages that answered a question. They are not in the inbox.
    answers: Mutex<VecDeque<String>>,
    asides: Arc<ShareLimiter>,
    connected: tokio::sync::Notify,
    over: CancellationToken,
}

/// What an inlet is made of.
pub(crate) struct InboundDependencies {
    pub(crate) channel: Channel,
    /// What is known of its type.
    pub(crate) platform: PlatformProfile,
    pub(crate) config: ChannelConfig,
    pub(crate) kernel: Kernel,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) facts: Arc<Vec<ChannelFact>>,
    pub(crate) cursor: Cursor,
    pub(crate) seal: FileSeal,
    pub(crate) files: InboundFileStore,
    pub(crate) questions: Arc<QuestionRegistry>,
    pub(crate) tasks: TaskTracker,
    pub(crate) over: CancellationToken,
}

impl InboundPipeline {
    pub(crate) fn new(parts: InboundDependencies) -> Self {
        let InboundDependencies {
            channel,
            platform,
            config,
            kernel,
            clock,
            facts,
            cursor,
            seal,
            files,
            questions,
            tasks,
            over,
        } = parts;
        Self {
            gate: SenderAccessControl::new(channel.clone(), platform.is_trigger, &config, &facts),
            status: ChannelStatus::new(&channel.name, channel.kind.as_str(), channel.transport.as_str()),
            asides: ShareLimiter::new(ASIDES),
            adapter: OnceLock::new(),
            writing: Arc::default(),
            reactions: Arc::default(),
            shelf: Arc::new(VoiceMessageStore::new(cursor.folder(), &channel.name, seal)),
            recorded: tokio::sync::Notify::new(),
            answers: Mutex::default(),
            connected: tokio::sync::Notify::new(),
            channel,
            platform,
            config,
            kernel,
            clock,
            cursor,
            files,
            live: Arc::default(),
            recent: recent::RecentMessages::default(),
            questions,
            tasks,
            over,
        }
    }

    /// The adapter that sends notices.
    pub(crate) fn set_adapter(&self, adapter: &Arc<dyn ChannelAdapter>) {
        let _first = self.adapter.set(Arc::downgrade(adapter)); // silent-ok: there is one
    }

    pub(crate) fn adapter(&self) -> Option<Arc<dyn ChannelAdapter>> {
        self.adapter.get().and_then(Weak::upgrade)
    }

    /// The channel of the manifest.
    #[must_use]
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }

    /// What is known of the channel's type.
    pub(crate) const fn platform(&self) -> PlatformProfile {
        self.platform
    }

    /// Its settings on this machine.
    #[must_use]
    pub const fn config(&self) -> &ChannelConfig {
        &self.config
    }

    /// The agent.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Time, ids, randomness.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The platform is connected.
    pub fn report_ready(&self) {
        self.status.set_state(State::Ready, None);
        self.connected.notify_one();
    }

    /// Completes when the platform was connected since this was asked last.
    pub(crate) async fn wait_connected(&self) {
        self.connected.notified().await;
    }

    /// It is connected in part, or not now.
    pub fn report_degraded(&self, reason: impl Into<String>) {
        self.status.set_state(State::Degraded, Some(reason.into()));
    }

    /// The position up to which this adapter has read.
    ///
    /// # Errors
    /// It can't be read. Messages may come again; they are recognised by their ids.
    pub fn read_cursor(&self) -> std::io::Result<Option<String>> {
        self.cursor.get()
    }

    /// Stores the position up to which the adapter has read, durably.
    ///
    /// # Errors
    /// It can't be written. After a restart, messages may come again.
    pub fn set_cursor(&self, text: &str) -> std::io::Result<()> {
        self.cursor.store_text(text)
    }

    /// Whether a person may speak here. Sends no pairing code.
    #[must_use]
    pub fn lets_in(&self, sender: &str) -> bool {
        self.gate.role(sender).is_some()
    }

    /// The agent ends when it fires.
    pub(crate) const fn shutdown_token(&self) -> &CancellationToken {
        &self.over
    }

    /// Whether a message was taken in before. What can't be told counts as new; it is found to be a repetition later.
    pub(crate) async fn came_before(&self, incoming: &PlatformMessage) -> bool {
        let sender = incoming.sender.as_deref().unwrap_or(NOBODY);
        let known = self
            .kernel
            .find_arrival(&self.inbound_message(incoming, sender))
            .await;
        matches!(known, Ok(Some(_)))
    }

    /// The message as the agent takes it, in the least role and without its words.
    fn inbound_message(&self, incoming: &PlatformMessage, sender: &str) -> ChannelMessage {
        ChannelMessage {
            channel: self.channel.name.clone(),
            conversation: incoming.conversation.clone(),
            direct: incoming.direct,
            sender: sender.to_owned(),
            role: Role::Viewer,
            platform_ids: incoming.ids.clone(),
            remembered_days: incoming.remembered_days.unwrap_or(REMEMBERED_DAYS),
            text: String::new(),
            images: Vec::new(),
            context: self.context_of(incoming),
        }
    }

    /// What the agent is told of a message beside its words: the same for every platform.
    fn context_of(&self, incoming: &PlatformMessage) -> MessageContext {
        MessageContext {
            platform: Some(self.platform.name.to_owned()),
            sender_name: incoming.sender_name.clone(),
            timezone: self.config.timezone.clone(),
            ..incoming.context.clone()
        }
    }

    /// Takes a message in.
    pub async fn ingest_message(&self, mut incoming: PlatformMessage) -> IngestOutcome {
        if let Some(answered) = self.recent.answered_by(&incoming) {
            incoming.context.quotes.push(answered);
        }
        self.recent.remember_inbound(&incoming);
        let taken = self.ingest_judged(&mut incoming).await;
        let came = match &taken {
            IngestOutcome::Accepted { duplicate: false, .. } => IngestKind::Accepted,
            IngestOutcome::Accepted { duplicate: true, .. } => IngestKind::Duplicate,
            IngestOutcome::Refused(_) => IngestKind::Refused,
            IngestOutcome::Ignored => IngestKind::Ignored,
            IngestOutcome::Later(_) => return taken,
        };
        self.status.note_inbound(self.now(), came);
        if came == IngestKind::Accepted {
            if !incoming.context.edited {
                self.acknowledge_message(&incoming);
                self.show_reaction(&incoming);
            }
            if let IngestOutcome::Accepted { message, session, .. } = &taken {
                self.follow_answer(&incoming.conversation, *message, *session);
            }
        }
        taken
    }

    #[expect(
        clippy::too_many_lines,
        reason = "the steps of one message, in the order of C1 to C4"
    )]
    async fn ingest_judged(&self, incoming: &mut PlatformMessage) -> IngestOutcome {
        let sender = incoming
            .sender
            .as_deref()
            .filter(|sender| *sender != NOBODY)
            .unwrap_or(NOBODY);
        let mut inbound = self.inbound_message(incoming, sender);
        if self.is_shelved(incoming) {
            return IngestOutcome::Ignored;
        }
        // First of all: a platform's retry takes no token of a bucket, and is never refused for what it was let in with.
        match self.kernel.find_arrival(&inbound).await {
            Ok(Some(known)) => {
                return IngestOutcome::Accepted {
                    message: known.message_id,
                    session: known.session_id,
                    duplicate: true,
                };
            }
            Ok(None) => {}
            Err(error) => return IngestOutcome::Later(error.to_string()),
        }
        if self.has_answered(&incoming.ids, false) {
            return IngestOutcome::Ignored;
        }
        let frame = self
            .adapter()
            .map(|adapter| adapter.message_frame())
            .unwrap_or_default();
        let spoken = frame.spoken_words(&incoming.text).into_owned();
        let answers = self.questions.is_answer(&spoken);
        let command = self.parse_command(incoming, &spoken);
        // With a name behind it, the command is for whom the platform says that it names.
        let bare = command.as_ref().is_some_and(|written| !written.named);
        let addressed =
            bare || incoming.direct || incoming.mention || self.config.respond == ResponsePolicy::All;
        if !addressed && !answers {
            return IngestOutcome::Ignored;
        }
        inbound.role = match self.let_in(incoming, sender).await {
            Ok(role) => role,
            Err(taken) => return taken,
        };
        if self
            .acts_on_words(incoming, (sender, inbound.role), &spoken, command)
            .await
        {
            self.has_answered(&incoming.ids, true);
            return IngestOutcome::Ignored;
        }
        let length = u64::try_from(chars_of(incoming)).unwrap_or(u64::MAX);
        if let Some(most) = self.channel.processing.max_message_length
            && length > most
        {
            let told = format!("The message has {length} characters; at most {most} are taken.");
            return self
                .refuse_message(
                    incoming,
                    sender,
                    "the message is longer than `max_message_length`",
                    Some(told),
                )
                .await;
        }
        if !self.gate.admit_rate(sender, self.now()) {
            return self
                .refuse_message(incoming, sender, "more messages than `rate_limit` lets in", None)
                .await;
        }
        let adapter = self.adapter();
        let threads = self.channel.features.threads == Some(true) && !incoming.direct;
        if let (true, Some(adapter)) = (threads, &adapter)
            && let Some(thread) = adapter.begin_thread(self, incoming).await
        {
            // From here on it is a conversation of its own: its answer, its questions and its session.
            thread.clone_into(&mut inbound.conversation);
            incoming.conversation = thread;
        }
        if self.has_recording(incoming)
            && let Some(taken) = self.store_recording(incoming, inbound.role).await
        {
            return taken;
        }
        let whose = FileOwner::for_message(self, &inbound);
        let taken = self
            .files
            .store_attachments(adapter.as_ref(), &incoming.text, &incoming.attachments, &whose)
            .await;
        (inbound.images, inbound.text) = taken;
        let role = inbound.role;
        let taken = self.submit_message(inbound).await;
        if matches!(taken, IngestOutcome::Accepted { .. }) {
            self.questions
                .note_speaker(&self.channel.name, &incoming.conversation, role);
        }
        taken
    }

    /// Gives a message to the agent. If the mailbox is full, it waits for room first, so that a burst is slowed down and not lost.
    async fn submit_message(&self, inbound: ChannelMessage) -> IngestOutcome {
        let until = Instant::now() + Duration::from_millis(ROOM_MS);
        loop {
            match self.kernel.submit_message(inbound.clone()).await {
                Ok(accepted) => {
                    return IngestOutcome::Accepted {
                        message: accepted.message_id,
                        session: accepted.session_id,
                        duplicate: accepted.duplicate,
                    };
                }
                Err(KernelError::Full(_)) if Instant::now() < until => {
                    // Whoever brings it waits meanwhile; a place is free when a turn has ended.
                    tokio::time::sleep(Duration::from_millis(ROOM_LOOK_MS)).await;
                }
                Err(error) => return outcome_of_error(error),
            }
        }
    }

    /// Takes the message of a schedule, in the name of the person who made it. Its role is the lower one of `most` and of what the
    /// person has now. It is refused if the person may not speak here any more.
    /// `made_from`: origins of the schedule's words.
    pub(crate) async fn ingest_scheduled(
        &self,
        incoming: PlatformMessage,
        most: Role,
        made_from: &[String],
    ) -> IngestOutcome {
        let mut context = self.context_of(&incoming);
        context.made_from = made_from.to_vec();
        let PlatformMessage {
            ids,
            conversation,
            direct,
            sender,
            text,
            ..
        } = incoming;
        let sender = sender.unwrap_or_else(|| NOBODY.to_owned());
        let Some(role) = self.gate.role(&sender) else {
            return IngestOutcome::Refused("the person is not let in any more".to_owned());
        };
        let inbound = ChannelMessage {
            channel: self.channel.name.clone(),
            conversation,
            direct,
            sender,
            role: role.min(most),
            platform_ids: ids,
            remembered_days: REMEMBERED_DAYS,
            text,
            images: Vec::new(),
            context,
        };
        match self.kernel.submit_message(inbound).await {
            Ok(accepted) => IngestOutcome::Accepted {
                message: accepted.message_id,
                session: accepted.session_id,
                duplicate: accepted.duplicate,
            },
            // A run that finds no room is left out.
            Err(KernelError::Full(reason)) => IngestOutcome::Refused(reason),
            Err(error) => outcome_of_error(error),
        }
    }

    /// Whether one of these messages already answered a question. With `now`, they are remembered as answers from now on.
    fn has_answered(&self, ids: &[String], now: bool) -> bool {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.iter().any(|id| answers.contains(id)) {
            return true;
        }
        if now {
            answers.extend(ids.iter().cloned());
            let surplus = answers.len().saturating_sub(ANSWERS);
            answers.drain(..surplus);
        }
        false
    }

    /// Whether the message answers a question or is a command, so that it is not a message to the agent. A command counts also while
    /// the agent waits for words of this person: `/stop` must end that.
    async fn acts_on_words(
        &self,
        incoming: &PlatformMessage,
        (sender, role): (&str, Role),
        text: &str,
        command: Option<commands::WrittenCommand>,
    ) -> bool {
        let (name, conversation) = (&self.channel.name, &incoming.conversation);
        if let Some(pressed) = self
            .questions
            .answer_typed(name, conversation, sender, role, text)
            .await
        {
            self.tell_pressed(conversation, sender, pressed).await;
            return true;
        }
        if let Some(written) = command {
            self.run_command(&written, incoming, sender, role).await;
            return true;
        }
        self.questions
            .answer_own_question((name, conversation), sender, role, text)
            || self.answers_misspelt(incoming, text)
    }

    /// Answers `/why`: what the last turn did, call by call. Only an admin sees it, and the person whose message began the turn
    /// unless that person is a viewer.
    async fn send_details(&self, incoming: &PlatformMessage, sender: &str, role: Role) {
        let (name, place) = (&self.channel.name, &incoming.conversation);
        let found = self
            .kernel
            .last_record(name, place, (sender, incoming.direct))
            .await;
        let text = match found {
            Err(error) => {
                tracing::warn!(%error, channel = %name, "a record can't be read");
                "The record can't be read now.".to_owned()
            }
            Ok(None) => "Nothing was answered here yet.".to_owned(),
            Ok(Some(record)) => {
                let own = role >= Role::User && record.sender.as_deref() == Some(sender);
                if role != Role::Admin && !own {
                    self.record_refusal(
                        place,
                        sender,
                        "only an admin, and whose message it was, sees a record",
                    )
                    .await;
                    self.send_notice(
                        place,
                        "Only an admin, and whose message it was, may see this.".to_owned(),
                    );
                    return;
                }
                details::render_details(&record)
            }
        };
        self.send_notice(place, text);
    }

    /// The sender's role, or the outcome for the message if the sender may not speak here.
    async fn let_in(&self, incoming: &PlatformMessage, sender: &str) -> Result<Role, IngestOutcome> {
        match self.gate.judge_sender(sender, incoming.direct, self.now()) {
            AccessDecision::In(role) => Ok(role),
            AccessDecision::Out(reason) => {
                let say = self.config.refuse == RefusalPolicy::Say
                    && self.gate.should_tell_sender(sender, self.now());
                let told = say.then(|| "You are not let in here.".to_owned());
                Err(self.refuse_message(incoming, sender, reason, told).await)
            }
            AccessDecision::Code(code, pending) => {
                // On the record before anybody can use it.
                let fact = pending.pairing_fact(&self.channel.name);
                if let Err(error) = self.kernel.record_channel(&fact).await {
                    return Err(IngestOutcome::Later(error.to_string()));
                }
                self.gate.with_pairings(|pairings| pairings.add_pending(pending));
                self.gate.note_conversation(sender, &incoming.conversation);
                let minutes = match &self.channel.access_control {
                    Some(AccessControl::Pairing { pairing }) => pairing.code_expiry_minutes,
                    Some(_) | None => 0,
                };
                let told = format!(
                    "You are not paired with this agent yet. Give this code to its owner: {code}. It is valid for {minutes} minutes. \
                     What you wrote was not kept; say it again afterwards."
                );
                Err(self
                    .refuse_message(
                        incoming,
                        sender,
                        "the sender is not paired, and got a code",
                        Some(told),
                    )
                    .await)
            }
        }
    }

    /// Records a refusal, without the message's text. `told` is sent to the sender.
    async fn refuse_message(
        &self,
        incoming: &PlatformMessage,
        sender: &str,
        reason: &'static str,
        told: Option<String>,
    ) -> IngestOutcome {
        self.record_refusal(&incoming.conversation, sender, reason).await;
        if let Some(text) = told {
            self.send_notice(&incoming.conversation, text);
        }
        IngestOutcome::Refused(reason.to_owned())
    }

    /// Records that an adapter itself refused a message, without its text: for example an automatic mail.
    pub async fn record_adapter_refusal(&self, conversation: &str, sender: &str, reason: &'static str) {
        self.record_refusal(conversation, sender, reason).await;
        self.status.note_inbound(self.now(), IngestKind::Refused);
    }

    async fn record_refusal(&self, conversation: &str, sender: &str, reason: &'static str) {
        let Some(count) = self.gate.note_refusal(sender, reason, self.now()) else {
            return;
        };
        let fact = ChannelFact::Refused {
            channel: self.channel.name.clone(),
            conversation: conversation.to_owned(),
            sender: sender.to_owned(),
            reason: reason.to_owned(),
            count,
        };
        if let Err(error) = self.kernel.record_channel(&fact).await {
            tracing::error!(%error, channel = %self.channel.name, "a refusal could not be recorded");
        }
    }

    /// Handles a pressed button. Returns what the person is told, for platforms that can show it next to the button.
    pub async fn handle_press(&self, press: &ButtonPress) -> String {
        let role = self.gate.role(&press.sender);
        let pressed = self.questions.answer_press(&self.channel.name, press, role).await;
        self.tell_pressed(&press.conversation, &press.sender, pressed)
            .await
    }

    /// The same, for platforms that show nothing next to a button: what the person must know is said in the conversation.
    pub(crate) async fn press_and_say(&self, press: &ButtonPress) {
        let role = self.gate.role(&press.sender);
        let pressed = self.questions.answer_press(&self.channel.name, press, role).await;
        let says = match &pressed {
            PressOutcome::Before(_) => true,
            PressOutcome::Unknown => role.is_some(),
            // The decision is shown, and who may not decide is told already.
            PressOutcome::Taken(_) | PressOutcome::NotAllowed => false,
        };
        let told = self
            .tell_pressed(&press.conversation, &press.sender, pressed)
            .await;
        if says {
            self.send_notice(&press.conversation, told);
        }
    }

    async fn tell_pressed(&self, conversation: &str, sender: &str, pressed: PressOutcome) -> String {
        match pressed {
            PressOutcome::Taken(text) | PressOutcome::Before(text) => text,
            PressOutcome::NotAllowed => {
                self.record_refusal(conversation, sender, "only an admin answers questions")
                    .await;
                let text = "Only an admin may answer this.".to_owned();
                self.send_notice(conversation, text.clone());
                text
            }
            PressOutcome::Unknown => {
                self.record_refusal(
                    conversation,
                    sender,
                    "a press for no question that was asked here",
                )
                .await;
                let unknown = "This question is not known here.";
                if self.gate.role(sender) == Some(Role::Admin) {
                    format!("{unknown} If it still waits, it was asked again.")
                } else {
                    format!("{unknown} Only an admin may answer questions.")
                }
            }
        }
    }

    /// Runs a task in the background until it is done or the channel ends.
    pub(crate) fn spawn_task(&self, work: impl Future<Output = ()> + Send + 'static) {
        let over = self.over.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = work => {}
                () = over.cancelled() => {}
            }
        });
    }

    /// A place for a notice to a conversation. Of direct conversations most platforms use the person's id.
    fn aside_place(&self, conversation: &str) -> Option<ShareGuard> {
        self.asides.try_take(conversation, self.gate.role(conversation))
    }

    /// Sends a notice. It is not tried again.
    pub(crate) fn send_notice(&self, conversation: &str, text: String) {
        let (Some(adapter), Some(place)) = (self.adapter(), self.aside_place(conversation)) else {
            return;
        };
        let out = OutboundMessage {
            id: self.clock.new_uuid().to_string(),
            conversation: conversation.to_owned(),
            reply_to: None,
            text: dress(&text, adapter.capabilities().markup),
            markdown: text,
            files: Vec::new(),
        };
        let over = self.over.clone();
        self.tasks.spawn(async move {
            let sent = tokio::time::timeout(Duration::from_millis(ASIDE_MS), adapter.send_message(&out));
            tokio::select! {
                sent = sent => match sent {
                    Ok(Delivery::Delivered { .. }) => {}
                    Ok(other) => tracing::debug!(?other, "a message aside was not delivered"),
                    Err(_) => tracing::debug!("a message aside was not delivered in time"),
                },
                () = over.cancelled() => {}
            }
            drop(place);
        });
    }

    /// Shows the answer while it is being written, where messages can be edited.
    fn follow_answer(&self, conversation: &str, message: MessageId, session: SessionId) {
        let Some(adapter) = self.adapter() else { return };
        if self.platform.is_trigger || !adapter.capabilities().edits {
            return;
        }
        if !self.live.expect_answer(conversation, message) {
            return;
        }
        let Some(watcher) = self.kernel.watch_session(session) else {
            self.live.cancel_follow(conversation);
            return;
        };
        let (live, conversation) = (Arc::clone(&self.live), conversation.to_owned());
        self.spawn_task(async move { live.follow_session(watcher, adapter, conversation, message).await });
    }
}

/// The outcome for a message that the agent did not store. A fault of the message itself is final, so that the platform does not send
/// it again and again. Every other fault may pass, so the platform sends it again.
fn outcome_of_error(error: KernelError) -> IngestOutcome {
    let told = error.to_string();
    match error {
        KernelError::Refused(reason) => IngestOutcome::Refused(reason),
        KernelError::Screened { .. }
        | KernelError::BadParameter { .. }
        | KernelError::UnknownStore { .. }
        | KernelError::UnknownSwarm { .. }
        | KernelError::RequestIdReused(_)
        | KernelError::Swarm { .. } => IngestOutcome::Refused(told),
        KernelError::Full(_)
        | KernelError::NotReady(_)
        | KernelError::UnknownSession(_)
        | KernelError::Memory(_)
        | KernelError::Journal(_) => IngestOutcome::Later(told),
    }
}

/// Characters that a message brings: the sender's own, and those that are passed on.
fn chars_of(incoming: &PlatformMessage) -> usize {
    let quotes = incoming.context.quotes.iter();
    let passed_on = quotes.filter(|quote| quote.kind == QuoteKind::Forward);
    let others: usize = passed_on.map(|quote| quote.text.chars().count()).sum();
    incoming.text.chars().count().saturating_add(others)
}
