//! `voice`: recordings come in and become messages, answers go out as sound too. Both by Providers of the manifest.

mod shelf;
mod words;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::AudioRecording;
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{Channel, ModelModality, Provider};
use tokio::sync::{OwnedMutexGuard, Semaphore};

use self::shelf::RecordingStore;
pub(super) use self::shelf::{RecordingUpload, VoiceRecording};
use super::log::{Log, PageEntry, PageEntryAuthor};
use crate::adapter::{InboundPipeline, IngestOutcome, PlatformMessage};
use crate::config::ChannelConfig;
use crate::sealed_file::FileSeal;

/// The longest recording, milliseconds.
pub(super) const MAX_MS: u64 = 300_000;
/// The voice where none is named.
const VOICE: &str = "alloy";
/// How long a message that could not be kept waits before it is handed in again.
const AGAIN: Duration = Duration::from_secs(5);
/// Recordings of one channel that are asked about at a time.
const AT_ONCE: usize = 4;
/// Conversations whose recordings are in work; beyond, all idle ones are forgotten.
const MAX_LINES: usize = 256;

/// What turns recordings into words and words into recordings.
pub(super) struct VoicePipeline {
    transcribe: String,
    /// Provider and voice; none: answers are text only.
    speak: Option<(String, String)>,
    shelf: RecordingStore,
    log: Arc<Log>,
    /// One recording of a conversation at a time, in their order.
    lines: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Memory holds so many recordings.
    at_once: Semaphore,
}

/// What is wrong with the Providers that a channel names, for `clawk validate` and the start.
pub(crate) fn provider_faults(
    channel: &Channel,
    config: &ChannelConfig,
    providers: &[Provider],
) -> Vec<String> {
    let table = format!("`[channels.{}] settings", channel.name);
    let mut faults = Vec::new();
    for key in ["transcribe", "speak"] {
        let Some(name) = config.settings.get(key) else {
            continue;
        };
        match providers.iter().find(|provider| provider.name == *name) {
            None => faults.push(format!(
                "{table}.{key}` names the provider `{name}`, which is not declared"
            )),
            Some(provider) if !provider.capabilities.contains(&ModelModality::Audio) => {
                faults.push(format!(
                    "{table}.{key}`: the provider `{name}` does not have `audio` in its `capabilities`"
                ));
            }
            Some(_) => {}
        }
    }
    if !config.settings.contains_key("transcribe") {
        faults.push(format!(
            "{table}.transcribe` is missing: name the provider that turns recordings into text"
        ));
    }
    if config.settings.contains_key("voice") && !config.settings.contains_key("speak") {
        faults.push(format!("{table}.voice` means nothing without `settings.speak`"));
    }
    faults
}

impl VoicePipeline {
    pub(super) fn new(
        config: &ChannelConfig,
        (folder, seal): (std::path::PathBuf, FileSeal),
        log: Arc<Log>,
    ) -> Result<Self, String> {
        let named = |key: &str| config.settings.get(key).cloned();
        let voice = named("voice").unwrap_or_else(|| VOICE.to_owned());
        Ok(Self {
            transcribe: named("transcribe").ok_or("`settings.transcribe` is missing")?,
            speak: named("speak").map(|provider| (provider, voice)),
            shelf: RecordingStore::new(folder, u64::from(config.max_attachment_mb) << 20, seal),
            log,
            lines: Mutex::default(),
            at_once: Semaphore::new(AT_ONCE),
        })
    }

    pub(super) const fn can_speak(&self) -> bool {
        self.speak.is_some()
    }

    /// Begins to take a recording.
    ///
    /// # Errors
    /// For the program.
    pub(super) fn begin_recording(&self, media_type: &str) -> Result<RecordingUpload, String> {
        self.shelf.begin_recording(media_type)
    }

    /// A recording is whole: durable from here on.
    ///
    /// # Errors
    /// For the program.
    pub(super) fn store_recording(
        &self,
        taking: RecordingUpload,
        of: &PlatformMessage,
        id: &str,
        at: Timestamp,
    ) -> Result<VoiceRecording, String> {
        self.shelf.store_recording(taking, of, id, at)
    }

    /// Whether a recording of this id waits to be understood.
    pub(super) fn is_waiting(&self, conversation: &str, id: &str) -> bool {
        self.shelf.is_waiting(conversation, id)
    }

    /// A place in the conversation's line: what came before has ended.
    pub(super) async fn wait_turn(&self, conversation: &str) -> OwnedMutexGuard<()> {
        let line = {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() >= MAX_LINES {
                lines.retain(|_, line| Arc::strong_count(line) > 1);
            }
            Arc::clone(lines.entry(conversation.to_owned()).or_default())
        };
        line.lock_owned().await
    }

    /// Takes up the recordings that an earlier run of the agent accepted and did not understand.
    pub(super) async fn resume_recordings(&self, inlet: &InboundPipeline) {
        match self.shelf.pending_recordings() {
            Ok(waiting) => {
                for recording in waiting {
                    let place = self.wait_turn(&recording.conversation).await;
                    self.transcribe_recording(inlet, recording, place).await;
                }
            }
            Err(error) => tracing::error!(%error, "accepted recordings can't be read"),
        }
    }

    /// Turns a recording into a message. Until it is one, or is refused, it stays on the shelf.
    pub(super) async fn transcribe_recording(
        &self,
        inlet: &InboundPipeline,
        recording: VoiceRecording,
        _place: OwnedMutexGuard<()>,
    ) {
        if !self.is_waiting(&recording.conversation, &recording.id) {
            return;
        }
        let Ok(turn) = self.at_once.acquire().await else {
            return;
        };
        let words = self.recording_words(inlet, &recording).await;
        drop(turn);
        let text = match words {
            Ok(text) => text,
            Err(None) => return,
            Err(Some(reason)) => return self.refuse_recording(&recording, &reason, true),
        };
        if text.is_empty() {
            return self.refuse_recording(&recording, "nothing was said", false);
        }
        // It stands before its answer.
        let said = PageEntry {
            of: Some(recording.id.clone()),
            ..PageEntry::new(
                &format!("said-{}", recording.id),
                PageEntryAuthor::You,
                text.clone(),
            )
        };
        if let Err(error) = self.log.put_entry(&recording.conversation, said) {
            tracing::warn!(%error, "a page can't show what was said");
        }
        loop {
            match inlet
                .ingest_message(recording.to_platform_message(text.clone()))
                .await
            {
                IngestOutcome::Accepted { message, .. } => {
                    self.log.remember_called(message, &recording.id);
                    break;
                }
                IngestOutcome::Ignored => break,
                IngestOutcome::Refused(reason) => return self.refuse_recording(&recording, &reason, false),
                IngestOutcome::Later(reason) => {
                    tracing::warn!(reason, "what was said could not be kept yet");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
        self.shelf.finish_recording(&recording, false);
    }

    /// The words of a recording. `None`: the agent ends; it is asked again later.
    async fn recording_words(
        &self,
        inlet: &InboundPipeline,
        recording: &VoiceRecording,
    ) -> Result<String, Option<String>> {
        let data = self.shelf.read_sound(recording).map_err(|error| {
            tracing::error!(%error, "an accepted recording can't be read");
            Some("the recording can't be read any more; say it again".to_owned())
        })?;
        let audio = AudioRecording {
            media_type: recording.media_type.clone(),
            digest: recording.digest,
            length_ms: recording.length_ms,
            data: Arc::from(data),
        };
        let over = inlet.shutdown_token();
        let heard = inlet
            .kernel()
            .transcribe_audio(&self.transcribe, &audio, over)
            .await;
        match heard {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(_) if over.is_cancelled() => Err(None),
            Err(error) => {
                tracing::warn!(%error, "a recording could not be understood");
                Err(Some(format!("it could not be understood: {error}")))
            }
        }
    }

    /// The program is told, now or when it is back.
    fn refuse_recording(&self, recording: &VoiceRecording, reason: &str, keep: bool) {
        let entry = PageEntry {
            of: Some(recording.id.clone()),
            refused: true,
            markdown: reason.to_owned(),
            ..PageEntry::new(
                &format!("refused-{}", recording.id),
                PageEntryAuthor::Agent,
                crate::markup::page_html(&format!("Your recording was not taken: {reason}")),
            )
        };
        match self.log.put_entry(&recording.conversation, entry) {
            Ok(()) => self.shelf.finish_recording(recording, keep),
            // It stays, and is tried again after the next start.
            Err(error) => tracing::warn!(%error, "a refusal can't be kept"),
        }
    }

    /// The pieces in which an answer is spoken.
    pub(super) fn spoken_pieces(markdown: &str) -> Vec<String> {
        words::speech_pieces(&words::spoken_text(markdown))
    }

    /// A piece as sound, with its media type.
    ///
    /// # Errors
    /// For people.
    pub(super) async fn speak_piece(
        &self,
        inlet: &InboundPipeline,
        piece: &str,
    ) -> Result<(&'static str, Vec<u8>), String> {
        let (provider, voice) = self.speak.as_ref().ok_or("no `settings.speak`")?;
        let spoken = inlet
            .kernel()
            .synthesize_speech((provider, voice), piece, inlet.shutdown_token())
            .await;
        let spoken = spoken.map_err(|error| error.to_string())?;
        Ok((spoken.media_type, spoken.data))
    }
}
