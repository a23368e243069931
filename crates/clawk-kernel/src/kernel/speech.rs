//! Speech for channels: recognition and output use the budget, the record and the limits of a model request.

use tokio_util::sync::CancellationToken;

use super::Kernel;
use crate::error::CallError;
use crate::infer::{InferenceContext, NoAnswer, speech};
use crate::ports::{AudioRecording, SpokenAudio};
use crate::watch::NoticeSender;

impl Kernel {
    /// Transcribes a recording with a Provider whose `capabilities` contain `audio`. The result is untrusted text. A temporary
    /// failure is tried once more.
    ///
    /// # Errors
    /// The reason for people.
    pub async fn transcribe_audio(
        &self,
        provider: &str,
        audio: &AudioRecording,
        cancel: &CancellationToken,
    ) -> Result<String, CallError> {
        let (quiet, models) = (NoticeSender::default(), &self.agent.calls.models);
        let heard =
            speech::transcribe_audio(models, self.background_context(&quiet)?, provider, audio, cancel);
        heard.await.map_err(|error| unserved_error(provider, error))
    }

    /// Converts a text of at most [`crate::ports::SPEECH_MAX_CHARS`] characters to speech with such a Provider, in the named voice.
    ///
    /// # Errors
    /// The reason for people.
    pub async fn synthesize_speech(
        &self,
        (provider, voice): (&str, &str),
        text: &str,
        cancel: &CancellationToken,
    ) -> Result<SpokenAudio, CallError> {
        let (quiet, models) = (NoticeSender::default(), &self.agent.calls.models);
        let spoken = speech::synthesize_speech(
            models,
            self.background_context(&quiet)?,
            (provider, voice),
            text,
            cancel,
        );
        spoken.await.map_err(|error| unserved_error(provider, error))
    }

    /// Returns the context for requests outside any session's turn. A stopped agent makes none.
    fn background_context<'a>(&'a self, quiet: &'a NoticeSender) -> Result<InferenceContext<'a>, CallError> {
        if self.active_stops().iter().any(|stop| stop.session.is_none()) {
            return Err(CallError::Unavailable {
                tool: "speech".to_owned(),
                reason: "the agent is stopped; `clawk stop --lift` lets it go on".to_owned(),
            });
        }
        let (life, clock) = (&self.agent.life, self.agent.scribe.clock());
        Ok(InferenceContext {
            thread: life.root.child(clock.new_uuid()),
            turn: clock.new_uuid(),
            notices: quiet,
            purse: self.agent.calls.models.purses.root_account(),
            member: None,
        })
    }
}

fn unserved_error(provider: &str, error: NoAnswer) -> CallError {
    let reason = match error {
        NoAnswer::Cancelled => "it was cancelled".to_owned(),
        NoAnswer::Failed(reason) | NoAnswer::Quota(reason) => reason,
    };
    CallError::Unavailable {
        tool: provider.to_owned(),
        reason,
    }
}
