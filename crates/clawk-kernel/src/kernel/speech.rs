//! Speech for channels whose people talk: both ways go through the purse, the record and the limits of an inference.

use tokio_util::sync::CancellationToken;

use super::Kernel;
use crate::error::CallError;
use crate::infer::{InferenceContext, NoAnswer, speech};
use crate::ports::{AudioRecording, SpokenAudio};
use crate::watch::NoticeSender;

impl Kernel {
    /// The words of a recording, by a Provider whose `capabilities` hold `audio`. What comes is untrusted text. An attempt that
    /// fails in passing is made once more.
    ///
    /// # Errors
    /// For people: why there are none.
    pub async fn transcribe(
        &self,
        provider: &str,
        audio: &AudioRecording,
        cancel: &CancellationToken,
    ) -> Result<String, CallError> {
        let (quiet, models) = (NoticeSender::default(), &self.agent.calls.models);
        let heard = speech::transcribe(models, self.aside(&quiet)?, provider, audio, cancel);
        heard.await.map_err(|error| unserved(provider, error))
    }

    /// A text of at most [`crate::ports::SPEECH_MAX_CHARS`] characters as sound, by such a Provider, in the voice of this name.
    ///
    /// # Errors
    /// For people: why it can't be spoken.
    pub async fn speak(
        &self,
        (provider, voice): (&str, &str),
        text: &str,
        cancel: &CancellationToken,
    ) -> Result<SpokenAudio, CallError> {
        let (quiet, models) = (NoticeSender::default(), &self.agent.calls.models);
        let spoken = speech::speak(models, self.aside(&quiet)?, (provider, voice), text, cancel);
        spoken.await.map_err(|error| unserved(provider, error))
    }

    /// The record of what belongs to no session's turn. A stopped agent asks nobody.
    fn aside<'a>(&'a self, quiet: &'a NoticeSender) -> Result<InferenceContext<'a>, CallError> {
        if self.stops().iter().any(|stop| stop.session.is_none()) {
            return Err(CallError::Unavailable {
                tool: "speech".to_owned(),
                reason: "the agent is stopped; `clawk stop --lift` lets it go on".to_owned(),
            });
        }
        let (life, clock) = (&self.agent.life, self.agent.scribe.clock());
        Ok(InferenceContext {
            thread: life.root.child(clock.uuid()),
            turn: clock.uuid(),
            notices: quiet,
            purse: self.agent.calls.models.purses.root(),
            member: None,
        })
    }
}

fn unserved(provider: &str, error: NoAnswer) -> CallError {
    let reason = match error {
        NoAnswer::Cancelled => "it was cancelled".to_owned(),
        NoAnswer::Failed(reason) | NoAnswer::Quota(reason) => reason,
    };
    CallError::Unavailable {
        tool: provider.to_owned(),
        reason,
    }
}
