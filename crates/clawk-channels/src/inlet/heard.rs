//! Recordings on chat platforms (`features.voice`): a message with one is accepted once it lies on the shelf, which takes as long as a
//! write to the disk, and is understood after. A platform waits for nothing, and its retry finds the message on the shelf or in the inbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::AudioRecording;
use clawk_manifest::model::ModelModality;
use clawk_proto::Digest;
use futures::StreamExt as _;
use sha2::{Digest as _, Sha256};

use super::{InboundPipeline, IngestOutcome};
use crate::adapter::{Attachment, AttachmentContent, PlatformMessage};
use crate::files::FileOwner;
use crate::gate::NOBODY;
use crate::plain_name::harmless;
use crate::recording;
use crate::state::IngestKind;
use crate::waiting::PendingVoiceMessage;

/// The longest recording that is understood, milliseconds.
const MAX_MS: u64 = 300_000;
/// Recordings of one message that are understood.
const MAX_RECORDINGS: usize = 3;
/// Conversations of one channel whose recordings are understood at a time.
const AT_ONCE: usize = 4;
/// How long a message that could not be handed in waits.
const AGAIN: Duration = Duration::from_secs(5);
/// Characters of a transcript.
const MAX_CHARS: usize = 16_000;

impl InboundPipeline {
    /// The Provider that turns recordings into words: `settings.transcribe`, else the first one with `audio`.
    fn transcription_provider(&self) -> Option<String> {
        if let Some(named) = self.config.settings.get("transcribe") {
            return Some(named.clone());
        }
        let providers = &self.kernel.manifest().providers;
        let ear = providers
            .iter()
            .find(|provider| provider.capabilities.contains(&ModelModality::Audio));
        ear.map(|provider| provider.name.clone())
    }

    fn can_transcribe(&self) -> bool {
        self.channel.features.voice == Some(true)
            && self.platform.hears
            && self.transcription_provider().is_some()
    }

    /// Whether a message has a recording that is to be understood.
    pub(super) fn has_recording(&self, incoming: &PlatformMessage) -> bool {
        incoming.attachments.iter().any(is_sound) && self.can_transcribe()
    }

    /// Whether a message lies on the shelf.
    pub(super) fn is_shelved(&self, incoming: &PlatformMessage) -> bool {
        self.has_recording(incoming) && self.shelf.is_waiting(incoming)
    }

    /// Accepts a message with a recording. `None`: there is no room on the shelf; the recording is a file like others.
    pub(super) async fn store_recording(
        &self,
        incoming: &PlatformMessage,
        role: clawk_kernel::Role,
    ) -> Option<IngestOutcome> {
        let waiting = PendingVoiceMessage {
            incoming: incoming.clone(),
            role,
            at: self.now().0,
            words: None,
        };
        let shelf = Arc::clone(&self.shelf);
        let kept = tokio::task::spawn_blocking(move || shelf.store_message(&waiting)).await;
        match kept {
            Ok(Ok(true)) => {
                self.recorded.notify_one();
                self.show_reaction(incoming);
                Some(IngestOutcome::Ignored)
            }
            Ok(Ok(false)) => None,
            Ok(Err(error)) => Some(IngestOutcome::Later(error.to_string())),
            Err(error) => Some(IngestOutcome::Later(error.to_string())),
        }
    }

    /// Turns what lies on the shelf into messages until the channel ends, also what an earlier run of the agent accepted.
    pub(crate) async fn transcribe_pending(self: Arc<Self>) {
        if !self.can_transcribe() {
            return;
        }
        loop {
            let shelf = Arc::clone(&self.shelf);
            let pending = tokio::task::spawn_blocking(move || shelf.pending_messages()).await;
            let pending = match pending {
                Ok(Ok(pending)) => pending,
                Ok(Err(error)) => {
                    tracing::error!(%error, "accepted recordings can't be read");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                Err(_) => return,
            };
            if pending.is_empty() {
                self.recorded.notified().await;
                continue;
            }
            // One of a conversation at a time, in their order.
            let mut lines: BTreeMap<String, Vec<PendingVoiceMessage>> = BTreeMap::new();
            for waiting in pending {
                let line = lines.entry(waiting.incoming.conversation.clone()).or_default();
                line.push(waiting);
            }
            let all = futures::stream::iter(lines.into_values().map(|line| self.transcribe_line(line)));
            let later = all
                .buffer_unordered(AT_ONCE)
                .fold(false, |later, done| std::future::ready(later || !done))
                .await;
            if later {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Returns `false` if a message could not be handed in now.
    async fn transcribe_line(&self, line: Vec<PendingVoiceMessage>) -> bool {
        for waiting in line {
            match self.ingest_recording(waiting.clone()).await {
                None => return false,
                Some(IngestOutcome::Refused(_)) => {
                    self.status.note_inbound(self.now(), IngestKind::Refused);
                    if let Some(id) = waiting.incoming.ids.first() {
                        self.hide_reaction(&waiting.incoming.conversation, id);
                    }
                }
                Some(IngestOutcome::Accepted { message, session, .. }) => {
                    self.status.note_inbound(self.now(), IngestKind::Accepted);
                    self.acknowledge_message(&waiting.incoming);
                    self.follow_answer(&waiting.incoming.conversation, message, session);
                    self.questions.note_speaker(
                        &self.channel.name,
                        &waiting.incoming.conversation,
                        waiting.role,
                    );
                }
                Some(IngestOutcome::Ignored | IngestOutcome::Later(_)) => {}
            }
            self.shelf.remove_message(&waiting.incoming);
        }
        true
    }

    /// Hands a message in. `None`: it stays on the shelf.
    async fn ingest_recording(&self, mut waiting: PendingVoiceMessage) -> Option<IngestOutcome> {
        let sender = waiting
            .incoming
            .sender
            .clone()
            .unwrap_or_else(|| NOBODY.to_owned());
        let mut inbound = self.inbound_message(&waiting.incoming, &sender);
        match self.kernel.find_arrival(&inbound).await {
            Ok(None) => {}
            Ok(Some(_)) => return Some(IngestOutcome::Ignored),
            Err(_) => return None,
        }
        let conversation = waiting.incoming.conversation.clone();
        let Some(role) = self.gate.role(&sender) else {
            let reason = "the sender is not let in any more";
            self.record_refusal(&conversation, &sender, reason).await;
            return Some(IngestOutcome::Refused(reason.to_owned()));
        };
        inbound.role = role.min(waiting.role);
        self.fetch_sounds(&mut waiting.incoming).await;
        let words = match waiting.words.take() {
            Some(words) => words,
            None => {
                let words = self.transcript_lines(&waiting.incoming).await?;
                waiting.words = Some(words.clone());
                // From here on it is paid, and is not asked again.
                if let Err(error) = self.shelf.store_message(&waiting) {
                    tracing::warn!(%error, "a transcript can't be kept");
                }
                words
            }
        };
        let said = waiting.incoming.text.clone();
        let lines = std::iter::once(said).filter(|said| !said.is_empty()).chain(words);
        let text = lines.collect::<Vec<_>>().join("\n");
        let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        if let Some(most) = self.channel.processing.max_message_length
            && length > most
        {
            let told = format!("The recording has {length} characters in words; at most {most} are taken.");
            let reason = "the message is longer than `max_message_length`";
            return Some(
                self.refuse_message(&waiting.incoming, &sender, reason, Some(told))
                    .await,
            );
        }
        let adapter = self.adapter();
        let whose = FileOwner::for_message(self, &inbound);
        let taken = self
            .files
            .store_attachments(adapter.as_ref(), &text, &waiting.incoming.attachments, &whose)
            .await;
        (inbound.images, inbound.text) = taken;
        match self.submit_message(inbound).await {
            IngestOutcome::Later(reason) => {
                tracing::warn!(reason, "what was said could not be handed in yet");
                None
            }
            other => Some(other),
        }
    }

    /// Fetches the recordings, once for their words and the file that is kept.
    async fn fetch_sounds(&self, incoming: &mut PlatformMessage) {
        let adapter = self.adapter();
        let sender = incoming.sender.clone().unwrap_or_else(|| NOBODY.to_owned());
        let role = self.gate.role(&sender);
        let sounds = incoming.attachments.iter_mut().filter(|file| is_sound(file));
        for file in sounds.take(MAX_RECORDINGS) {
            // silent-ok: the line of the file says why
            if let Ok(data) = self
                .files
                .read_attachment(adapter.as_ref(), file, (&sender, role))
                .await
            {
                file.content = AttachmentContent::Here(data);
            }
        }
    }

    /// A line for each recording. `None`: the agent ends; it is asked again later.
    async fn transcript_lines(&self, incoming: &PlatformMessage) -> Option<Vec<String>> {
        let mut lines = Vec::new();
        let sounds = incoming.attachments.iter().filter(|file| is_sound(file));
        for file in sounds.take(MAX_RECORDINGS) {
            let AttachmentContent::Here(data) = &file.content else {
                continue;
            };
            lines.push(match recording::measure_recording(data) {
                None => "[recording, not transcribed: its format or length can't be read]".to_owned(),
                Some((_, ms)) if ms > MAX_MS => format!(
                    "[recording, {} s, not transcribed: at most {} minutes are]",
                    ms.div_ceil(1_000),
                    MAX_MS / 60_000
                ),
                Some((media_type, ms)) => self.line_of(media_type, ms, data).await?,
            });
        }
        Some(lines)
    }

    async fn line_of(&self, media_type: &str, length_ms: u64, data: &[u8]) -> Option<String> {
        let ear = self.transcription_provider()?;
        let audio = AudioRecording {
            media_type: media_type.to_owned(),
            digest: Digest(Sha256::digest(data).into()),
            length_ms,
            data: Arc::from(data),
        };
        let seconds = length_ms.div_ceil(1_000);
        Some(
            match self.kernel.transcribe_audio(&ear, &audio, &self.over).await {
                Ok(words) if words.trim().is_empty() => format!("[recording, {seconds} s: nothing was said]"),
                Ok(words) => format!(
                    "[recording, {seconds} s, transcribed: {}]",
                    quote_transcript(&words)
                ),
                Err(_) if self.over.is_cancelled() => return None,
                Err(error) => {
                    tracing::warn!(%error, "a recording could not be understood");
                    format!(
                        "[recording, {seconds} s, not transcribed: {}]",
                        harmless(&error.to_string())
                    )
                }
            },
        )
    }
}

/// A recording by what the platform says of it. Its bytes decide whether it is understood.
fn is_sound(file: &Attachment) -> bool {
    let kind = file.media_type.to_ascii_lowercase();
    kind.starts_with("audio") || kind == "application/ogg"
}

/// A transcript as part of one line in brackets: words that were spoken or made up can't end it or begin another one.
fn quote_transcript(words: &str) -> String {
    let plain = |c: char| match c {
        '[' => '(',
        ']' => ')',
        c if c.is_whitespace() || c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => ' ',
        c => c,
    };
    let hidden = |c: &char| !matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    words
        .trim()
        .chars()
        .filter(hidden)
        .map(plain)
        .take(MAX_CHARS)
        .collect()
}
