//! All channels of an agent: each on its own, so that a bad one never stops the others (C12).
//!
//! Long because it is what others see of all channels: one handle with every order and question.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{ChannelDelivery, Delivery, OutgoingAnswer};
use clawk_kernel::time::Clock;
use clawk_kernel::{ChannelFact, EntryPoint, Kernel, KernelError, PairingChange};
use clawk_manifest::model::{AccessControl, Channel, Transport};
use clawk_proto::{MessageId, SessionId};
use clawk_secrets::{Secret, SecretResolver};
use futures::FutureExt as _;
use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::adapter::{ChannelAdapter, ChannelDisconnect, HookReply, HookRequest, HookResponse, OutFile};
use crate::check;
use crate::config::ChannelConfig;
use crate::cursor::Cursor;
use crate::dependencies::ChannelDependencies;
use crate::files::InboundFileStore;
use crate::handle::{ChannelHandle, SharedChannelHandles};
use crate::inlet::{self, InboundPipeline};
use crate::outlet::OutboundPipeline;
use crate::pairing::{GuessLimiter, PendingPairing};
use crate::platform_kit::RemoveRequest;
use crate::platforms;
use crate::questions::QuestionRegistry;
use crate::schedules::{ScheduleRegistry, ScheduleRequest};
use crate::sealed_file::{FileSeal, ResealScope, seal_channel_files};
use crate::state::{ChannelReport, State};

/// The first wait before a channel is connected again, milliseconds; it doubles.
const FIRST_WAIT_MS: u64 = 1_000;
/// The longest such wait; where a person has to mend it, the first and longest one.
const LONGEST_WAIT_MS: u64 = 60_000;
const FATAL_WAIT_MS: u64 = 300_000;
/// The longest wait that a platform may impose, milliseconds.
const LONGEST_IMPOSED_MS: u64 = 3_600_000;
/// A channel that was connected for so long begins with the first wait again, milliseconds.
const WELL_MS: u64 = 30_000;
/// The longest wait of one that was connected for less: the platform is there again, so its people do not wait a minute for it.
const FLAPPING_WAIT_MS: u64 = 8_000;
/// The largest request of a platform, bytes; WhatsApp's are up to 3 MB.
const MAX_HOOK_BYTES: usize = 4 << 20;
/// Rows of the outbox that are counted.
const COUNTED: usize = 100_000;
/// How long the end of all channels may take, milliseconds.
const END_MS: u64 = 10_000;

/// The channels of an agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Channels(Arc<ChannelsState>);

#[derive(Debug)]
struct ChannelsState {
    kernel: Kernel,
    clock: Arc<dyn Clock>,
    lanes: Arc<HashMap<String, ChannelHandle>>,
    /// Secrets of channels that a listener serves: what proves that it is this agent's.
    proofs: HashMap<String, Secret>,
    questions: Arc<QuestionRegistry>,
    schedules: Arc<ScheduleRegistry>,
    /// In the manifest's order.
    names: Vec<String>,
    guesses: Mutex<GuessLimiter>,
    tasks: TaskTracker,
    over: CancellationToken,
}

/// Why an order about a pairing was not obeyed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotDone {
    /// No code that waits is this one.
    WrongCode,
    /// Too many wrong codes were typed within the last minute.
    Closed,
    /// Nobody of this id is paired.
    NotPaired,
    /// The manifest declares no such channel, or it is not connected.
    NoChannel,
    /// The channel is not a trigger.
    NoTrigger,
    /// Something else, for people.
    Failed(String),
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongCode => {
                "no code that waits is this one; `clawk channels pairing list` shows who waits"
            }
            Self::Closed => "too many wrong codes; none is looked at for a minute",
            Self::NotPaired => "nobody of this id is paired",
            Self::NoChannel => "no channel of this name is connected; `clawk channels` lists them",
            Self::NoTrigger => "this channel is not a trigger; `cron` channels can be fired",
            Self::Failed(reason) => reason,
        })
    }
}

impl From<KernelError> for NotDone {
    fn from(error: KernelError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Who is paired with a channel, and who waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChannelPairings {
    /// The channel.
    pub channel: String,
    /// Who is let in.
    pub paired: Vec<String>,
    /// Whose code waits.
    pub pending: Vec<PendingPairing>,
}

fn read_schedules(parts: &ChannelDependencies) -> Result<Arc<ScheduleRegistry>, KernelError> {
    let schedules = ScheduleRegistry::new(parts.kernel.clone(), Arc::clone(&parts.clock), &parts.folder);
    schedules
        .map(Arc::new)
        .map_err(|reason| KernelError::Refused(format!("the agent's schedules can't be read: {reason}")))
}

impl Channels {
    /// Starts every channel of the agent's manifest.
    ///
    /// # Errors
    /// The record of pairings can't be read.
    pub async fn start(parts: ChannelDependencies) -> Result<Self, KernelError> {
        let facts = Arc::new(parts.kernel.pairings().await?);
        let lanes: SharedChannelHandles = Arc::new(OnceLock::new());
        // What is no target is a fault of `clawk.toml` with which no agent starts.
        let targets = parts.approvals.iter().filter_map(|target| {
            let (channel, conversation) = target.split_once(':')?;
            Some((channel.to_owned(), conversation.to_owned()))
        });
        let questions = QuestionRegistry::new(parts.kernel.clone(), targets.collect(), Arc::clone(&lanes));
        let questions = Arc::new(questions);
        let (tasks, over) = (TaskTracker::new(), CancellationToken::new());
        let channels = parts.kernel.manifest().channels.clone();
        seal_old_files(&parts);
        let mut made = HashMap::new();
        for channel in &channels {
            let inlet = Arc::new(InboundPipeline::new(inlet::InboundDependencies {
                channel: channel.clone(),
                platform: platforms::entry(channel.kind).profile,
                // A channel without a table has the defaults.
                config: parts.configs.get(&channel.name).cloned().unwrap_or_default(),
                kernel: parts.kernel.clone(),
                clock: Arc::clone(&parts.clock),
                facts: Arc::clone(&facts),
                cursor: Cursor::new(&parts.folder, &channel.name),
                seal: FileSeal::new(parts.vault.clone()),
                files: inbound_file_store(&parts, channel),
                questions: Arc::clone(&questions),
                tasks: tasks.clone(),
                over: over.clone(),
            }));
            made.insert(
                channel.name.clone(),
                channel_handle(&parts, inlet, &lanes, over.child_token()),
            );
        }
        let made = Arc::new(made);
        let _first = lanes.set(Arc::downgrade(&made)); // silent-ok: it was just made
        for lane in made.values() {
            if let (Some(adapter), Some(outlet)) = (&lane.adapter, &lane.outlet) {
                let work = keep_connected(
                    Arc::clone(adapter),
                    Arc::clone(&lane.inlet),
                    Arc::clone(outlet),
                    lane.removed.clone(),
                );
                let inlet = Arc::clone(&lane.inlet);
                tasks.spawn(async move {
                    // A library that breaks takes down its own channel, and that is said.
                    if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                        let reason = "its adapter broke; start the agent again".to_owned();
                        inlet.status.set_state(State::Failed, Some(reason));
                    }
                });
            }
        }
        let schedules = read_schedules(&parts)?;
        let (due, places, ending) = (Arc::clone(&schedules), Arc::clone(&made), over.clone());
        tasks.spawn(async move { due.run(&places, &ending).await });
        let (ending, asking) = (over.clone(), Arc::clone(&questions));
        tasks.spawn(async move { asking.run(&ending).await });
        Ok(Self(Arc::new(ChannelsState {
            proofs: webhook_secrets(&channels, &parts.secrets),
            kernel: parts.kernel,
            clock: parts.clock,
            lanes: made,
            questions,
            schedules,
            names: channels.into_iter().map(|channel| channel.name).collect(),
            guesses: Mutex::default(),
            tasks,
            over,
        })))
    }

    /// Ends all channels. The agent goes on.
    pub async fn close(&self) {
        self.0.over.cancel();
        self.0.tasks.close();
        if tokio::time::timeout(Duration::from_millis(END_MS), self.0.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("a channel did not end in time");
        }
    }

    /// The current state of every channel, in the manifest's order.
    ///
    /// # Errors
    /// The outbox can't be read.
    pub async fn channel_reports(&self) -> Result<Vec<ChannelReport>, KernelError> {
        let rows = self.0.kernel.read_outbox(COUNTED).await?;
        let mut reports = Vec::new();
        for name in &self.0.names {
            let Some(lane) = self.0.lanes.get(name) else {
                continue;
            };
            let mut report = lane.inlet.status.current_report();
            for row in rows.iter().filter(|row| row.owed.channel == *name) {
                if row.dead {
                    report.dead += 1;
                } else {
                    report.queued += 1;
                }
            }
            reports.push(report);
        }
        Ok(reports)
    }

    /// A request to `/channels/NAME`; the reply without what only [`Self::serve_hook`] gives.
    pub async fn receive_hook(&self, name: &str, hook: HookRequest) -> HookReply {
        self.serve_hook(name, hook).await.reply
    }

    /// A request to `/channels/NAME`.
    pub async fn serve_hook(&self, name: &str, hook: HookRequest) -> HookResponse {
        let lane = self.0.lanes.get(name);
        let Some((lane, adapter)) = lane.and_then(|lane| Some((lane, lane.adapter.as_ref()?))) else {
            return HookReply::refusal(404, "no such channel").into();
        };
        if self.0.over.is_cancelled() {
            return HookReply::refusal(503, "the agent is ending").into();
        }
        if hook.body.len() > MAX_HOOK_BYTES {
            return HookReply::refusal(413, "the body is larger than 4 MiB").into();
        }
        // Signatures cover the bytes as they were sent; no platform compresses them.
        if hook.headers.contains_key(http::header::CONTENT_ENCODING) {
            return HookReply::refusal(415, "an encoded body is not read").into();
        }
        let proof = self.0.proofs.get(name);
        if let Some(reply) = check::answer_webhook_probe(&hook.method, &hook.query, name, proof) {
            return reply.into();
        }
        adapter.serve_hook(&lane.inlet, hook).await
    }

    /// Begins a run of a trigger by hand.
    ///
    /// # Errors
    /// The channel does not exist, is not a trigger, or its run could not begin.
    pub async fn fire_trigger(&self, name: &str) -> Result<(), NotDone> {
        let lane = self.0.lanes.get(name).ok_or(NotDone::NoChannel)?;
        let adapter = lane.adapter.as_ref().ok_or(NotDone::NoChannel)?;
        match adapter.fire_trigger(&lane.inlet).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotDone::NoTrigger),
            Err(reason) => Err(NotDone::Failed(reason)),
        }
    }

    /// Takes away what a channel installed elsewhere; what was removed, in words for people.
    ///
    /// # Errors
    /// No channel has this name, or a part could not be removed.
    pub async fn remove(&self, name: &str) -> Result<Vec<String>, NotDone> {
        let lane = self.0.lanes.get(name).ok_or(NotDone::NoChannel)?;
        let adapter = lane.adapter.as_ref().ok_or(NotDone::NoChannel)?;
        lane.removed.cancel();
        let removed = adapter.remove().await.map_err(NotDone::Failed)?;
        lane.inlet.status.set_state(
            State::Failed,
            Some("it was removed; it connects again when the agent starts".to_owned()),
        );
        Ok(removed)
    }

    /// Channel and conversation of a session, for what is sent to the person who is there.
    #[must_use]
    pub fn place_of(&self, session: SessionId) -> Option<(String, String)> {
        match self.0.kernel.door_of(session) {
            Some(EntryPoint::Channel {
                channel,
                conversation,
                ..
            }) => Some((channel, conversation)),
            _ => None,
        }
    }

    /// The most bytes that one file may have on a channel, in and out.
    #[must_use]
    pub fn max_file_bytes(&self, channel: &str) -> u64 {
        let lane = self.0.lanes.get(channel);
        let most = lane.map_or(ChannelConfig::default().max_attachment_mb, |lane| {
            lane.inlet.config().max_attachment_mb
        });
        u64::from(most) << 20
    }

    /// Sends a text with files to a conversation: one attempt, whole or not at all past its first piece. `id` is unique to it.
    ///
    /// # Errors
    /// No channel has this name, or it is not connected.
    pub async fn send_text(
        &self,
        channel: &str,
        conversation: &str,
        text: &str,
        files: &[OutFile],
        id: MessageId,
    ) -> Result<Delivery, NotDone> {
        let lane = self.0.lanes.get(channel).ok_or(NotDone::NoChannel)?;
        let outlet = lane.outlet.as_ref().ok_or(NotDone::NoChannel)?;
        if lane.inlet.status.current_report().state != State::Ready {
            return Err(NotDone::NoChannel);
        }
        let out = OutgoingAnswer {
            id,
            channel: channel.to_owned(),
            conversation: conversation.to_owned(),
            sender: channel.to_owned(),
            reply_to: None,
            text: text.to_owned(),
            attempt: 1,
            repeat: false,
        };
        Ok(outlet.send_answer(&out, files, &self.0.over).await)
    }

    /// Makes, lists or cancels a schedule in the conversation of a session, for the tool `schedule`. `made_from`: origins of what its
    /// words are made from.
    ///
    /// # Errors
    /// Why not, for the model.
    pub async fn handle_schedule(
        &self,
        session: SessionId,
        wanted: ScheduleRequest,
        made_from: &[String],
    ) -> Result<serde_json::Value, String> {
        self.0.schedules.handle_request(session, wanted, made_from).await
    }

    /// Asks the person in the conversation of a session, in the agent's own words, and waits. `None`: there is nobody to ask.
    pub async fn ask_person(&self, session: SessionId, text: &str, options: &[String]) -> Option<String> {
        tokio::select! {
            answer = self.0.questions.ask_person(session, text, options) => answer,
            () = self.0.over.cancelled() => None,
        }
    }

    /// Who is paired with which channel, and who waits.
    #[must_use]
    pub fn list_pairings(&self) -> Vec<ChannelPairings> {
        let now = self.0.clock.now();
        let mut all = Vec::new();
        for (channel, lane) in self.with_pairing() {
            all.push(lane.inlet.gate.with_pairings(|pairings| ChannelPairings {
                channel: channel.clone(),
                paired: pairings.paired_senders().map(str::to_owned).collect(),
                pending: pairings.pending_pairings(now).to_vec(),
            }));
        }
        all
    }

    fn with_pairing(&self) -> impl Iterator<Item = (&String, &ChannelHandle)> {
        let lanes = self
            .0
            .names
            .iter()
            .filter_map(|name| Some((name, self.0.lanes.get(name)?)));
        lanes.filter(|(_, lane)| {
            let access = &lane.inlet.channel().access_control;
            matches!(access, Some(AccessControl::Pairing { .. }))
        })
    }

    /// Decides on a code: its owner, and the channel.
    ///
    /// # Errors
    /// The code does not wait, too many wrong codes were typed, or the decision can't be recorded.
    pub async fn decide_pairing(
        &self,
        code: &str,
        approve: bool,
        by: &str,
    ) -> Result<(String, String), NotDone> {
        let now = self.0.clock.now();
        let open = self.with_guess_limiter(|guesses| guesses.is_guess_allowed(now));
        if !open {
            return Err(NotDone::Closed);
        }
        let mut found = None;
        for (channel, lane) in self.with_pairing() {
            if let Some(sender) = lane
                .inlet
                .gate
                .with_pairings(|pairings| pairings.owner_of_code(code, now))
            {
                found = Some((channel, lane, sender));
            }
        }
        let Some((channel, lane, sender)) = found else {
            self.with_guess_limiter(|guesses| guesses.note_wrong_guess(now));
            return Err(NotDone::WrongCode);
        };
        let step = if approve {
            PairingChange::Approved
        } else {
            PairingChange::Denied
        };
        self.record_pairing(lane, &sender, step, by).await?;
        if approve {
            // Where they asked. After a restart, by their id, which most platforms take.
            let asked_in = lane.inlet.gate.conversation_of(&sender);
            let place = asked_in.unwrap_or_else(|| sender.clone());
            lane.inlet
                .send_notice(&place, "You are paired with this agent now.".to_owned());
        }
        Ok((channel.clone(), sender))
    }

    fn with_guess_limiter<T>(&self, with: impl FnOnce(&mut GuessLimiter) -> T) -> T {
        with(&mut self.0.guesses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends a pairing: the channels where it stood.
    ///
    /// # Errors
    /// Nobody of this id is paired, or the decision can't be recorded.
    pub async fn revoke_pairing(
        &self,
        sender: &str,
        channel: Option<&str>,
        by: &str,
    ) -> Result<Vec<String>, NotDone> {
        let mut ended = Vec::new();
        for (name, lane) in self.with_pairing() {
            let meant = channel.is_none_or(|channel| channel == name);
            if meant
                && lane
                    .inlet
                    .gate
                    .with_pairings(|pairings| pairings.is_paired(sender))
            {
                self.record_pairing(lane, sender, PairingChange::Revoked, by)
                    .await?;
                ended.push(name.clone());
            }
        }
        if ended.is_empty() {
            Err(NotDone::NotPaired)
        } else {
            Ok(ended)
        }
    }

    async fn record_pairing(
        &self,
        lane: &ChannelHandle,
        sender: &str,
        step: PairingChange,
        by: &str,
    ) -> Result<(), NotDone> {
        let fact = ChannelFact::Pairing {
            channel: lane.inlet.channel().name.clone(),
            sender: sender.to_owned(),
            step,
            code: None,
            expires_at: None,
            by: Some(by.to_owned()),
        };
        // What takes rights away counts at once; what gives them, once it is on the record.
        if step == PairingChange::Revoked {
            lane.inlet
                .gate
                .with_pairings(|pairings| pairings.record_change(sender, step));
        }
        self.0.kernel.record_channel(&fact).await?;
        lane.inlet
            .gate
            .with_pairings(|pairings| pairings.record_change(sender, step));
        Ok(())
    }
}

/// Takes away what a channel installed elsewhere, for an agent that does not run. `workdir` is the tools' working directory.
///
/// # Errors
/// It could not be removed, in words for people.
pub async fn remove_installed(
    channel: &Channel,
    config: &ChannelConfig,
    secrets: &SecretResolver,
    workdir: &Path,
) -> Result<Vec<String>, String> {
    let Some(remove) = platforms::entry(channel.kind).remove else {
        return Ok(Vec::new());
    };
    let request = RemoveRequest {
        channel,
        config,
        secrets,
        workdir,
    };
    remove(request).await
}

/// The secrets of channels that others reach by a request.
fn webhook_secrets(channels: &[Channel], secrets: &SecretResolver) -> HashMap<String, Secret> {
    let hooked = channels.iter().filter(|channel| {
        channel.transport == Transport::Webhook || platforms::entry(channel.kind).profile.is_served_here
    });
    let proofs = hooked.filter_map(|channel| {
        // silent-ok: a channel without its secret is not connected, and says so
        let secret = secrets.resolve(&channel.auth.secret_ref).ok()?;
        Some((channel.name.clone(), secret))
    });
    proofs.collect()
}

/// Files of channels from before the encryption are sealed now.
fn seal_old_files(parts: &ChannelDependencies) {
    let Some(vault) = &parts.vault else { return };
    for fault in seal_channel_files(&parts.folder, vault, ResealScope::Plain).faults() {
        tracing::error!(
            file = fault.value,
            why = fault.why,
            "a file of a channel from before the encryption can't be sealed"
        );
    }
}

/// Where a channel's files go.
fn inbound_file_store(parts: &ChannelDependencies, channel: &Channel) -> InboundFileStore {
    let config = parts.configs.get(&channel.name);
    let most = config.map_or(ChannelConfig::default().max_attachment_mb, |config| {
        config.max_attachment_mb
    });
    InboundFileStore::new(parts.workdir.clone(), most, channel.features)
}

/// A channel with its adapter; without one, its state says why.
fn channel_handle(
    parts: &ChannelDependencies,
    inlet: Arc<InboundPipeline>,
    lanes: &SharedChannelHandles,
    removed: CancellationToken,
) -> ChannelHandle {
    let channel: &Channel = inlet.channel();
    let made = match crate::features::dead_channel_reason(channel, inlet.config()) {
        Some((_, why)) => Err(why),
        None => (platforms::entry(channel.kind).make)(channel, inlet.config(), parts),
    };
    match made {
        Ok(Some(adapter)) => {
            inlet.set_adapter(&adapter);
            let outlet = OutboundPipeline::new(Arc::clone(&adapter), Arc::clone(&inlet), Arc::clone(lanes));
            ChannelHandle {
                adapter: Some(adapter),
                outlet: Some(Arc::new(outlet)),
                inlet,
                removed,
            }
        }
        Ok(None) => {
            inlet.report_ready();
            ChannelHandle {
                inlet,
                adapter: None,
                outlet: None,
                removed,
            }
        }
        Err(reason) => {
            inlet.status.set_state(State::Failed, Some(reason));
            ChannelHandle {
                inlet,
                adapter: None,
                outlet: None,
                removed,
            }
        }
    }
}

/// The wait before the next try to connect, by how long the channel was connected; `None`: it was not.
fn next_wait_ms(wait_ms: u64, connected: Option<Duration>) -> u64 {
    match connected {
        Some(time) if time >= Duration::from_millis(WELL_MS) => FIRST_WAIT_MS,
        Some(_) => wait_ms.min(FLAPPING_WAIT_MS),
        None => wait_ms,
    }
}

/// Keeps one channel connected, and delivers its answers while it is.
async fn keep_connected(
    adapter: Arc<dyn ChannelAdapter>,
    inlet: Arc<InboundPipeline>,
    outlet: Arc<OutboundPipeline>,
    over: CancellationToken,
) {
    let name = inlet.channel().name.clone();
    inlet.spawn_task(Arc::clone(&inlet).transcribe_pending());
    let mut wait_ms = FIRST_WAIT_MS;
    loop {
        let mut well: Option<Instant> = None;
        let mut deliveries = None;
        let ended: ChannelDisconnect = {
            let mut work = pin!(adapter.run_listener(&inlet, &over));
            loop {
                tokio::select! {
                    ended = &mut work => break ended,
                    () = inlet.wait_connected(), if deliveries.is_none() => {
                        well = Some(Instant::now());
                        deliveries = Some(inlet.kernel().deliver_channel(&name, Arc::clone(&outlet) as Arc<dyn ChannelDelivery>));
                    }
                }
            }
        };
        drop(deliveries);
        if over.is_cancelled() {
            return;
        }
        wait_ms = next_wait_ms(wait_ms, well.map(|since| since.elapsed()));
        let least = if ended.fatal { FATAL_WAIT_MS } else { wait_ms };
        // Between a half and the whole, so that many channels do not come back together.
        let jitter = inlet.clock().random_u64() % (least / 2 + 1);
        let own_ms = least / 2 + jitter;
        let pause_ms = ended.after_ms.map_or(own_ms, |ms| ms.min(LONGEST_IMPOSED_MS));
        let state = if ended.fatal {
            State::Failed
        } else {
            State::Degraded
        };
        inlet.status.set_state(state, Some(ended.reason));
        wait_ms = wait_ms.saturating_mul(2).min(LONGEST_WAIT_MS);
        tokio::select! {
            () = over.cancelled() => return,
            () = tokio::time::sleep(Duration::from_millis(pause_ms)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{FIRST_WAIT_MS, FLAPPING_WAIT_MS, LONGEST_WAIT_MS, next_wait_ms};

    #[test]
    fn a_platform_that_is_there_again_is_not_waited_for_a_minute() {
        let wait = |connected| next_wait_ms(LONGEST_WAIT_MS, connected);
        assert_eq!(wait(None), LONGEST_WAIT_MS);
        assert_eq!(wait(Some(Duration::from_secs(1))), FLAPPING_WAIT_MS);
        assert_eq!(wait(Some(Duration::from_secs(31))), FIRST_WAIT_MS);
        assert_eq!(next_wait_ms(FIRST_WAIT_MS, Some(Duration::ZERO)), FIRST_WAIT_MS);
    }
}
