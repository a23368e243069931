//! Requests to a speech model: paid and recorded like a model request, repeated once if that may help. The record has the digest of
//! the input, and no sound.

use std::time::Duration;

use clawk_manifest::model::{ModelModality, Provider as Spec};
use tokio_util::sync::CancellationToken;

use super::{InferenceAttempt, InferenceContext, ModelServices, NoAnswer, NotBegun, provider_error, used_up};
use crate::event::{canonical, digest};
use crate::ports::{
    AudioRecording, AudioTranscript, BoxFuture, FaultKind, ModelCompletion, ModelProvider, ProviderError,
    SPEECH_MAX_CHARS, SpokenAudio, StopReason, Usage, speech_usage, transcription_usage,
};
use crate::purse::NoRoom;
use crate::screen::answer;

/// Time limit for one attempt.
const ATTEMPT: Duration = Duration::from_secs(120);
/// Number of attempts; default and longest delay between them, in milliseconds.
const ATTEMPTS: u32 = 2;
const WAIT_MS: u64 = 1_000;
const LONGEST_WAIT_MS: u64 = 30_000;

/// The answer of a speech model.
trait SpeechAnswer: Send {
    /// Returns its usage.
    fn usage_mut(&mut self) -> &mut Usage;
    /// Returns the text that is recorded with it.
    fn recorded_text(&self) -> &str;
}

impl SpeechAnswer for AudioTranscript {
    fn usage_mut(&mut self) -> &mut Usage {
        &mut self.usage
    }

    fn recorded_text(&self) -> &str {
        &self.text
    }
}

impl SpeechAnswer for SpokenAudio {
    fn usage_mut(&mut self) -> &mut Usage {
        &mut self.usage
    }

    fn recorded_text(&self) -> &'static str {
        ""
    }
}

/// The input, for the budget and the record.
struct SentSpeech {
    digest: clawk_proto::Digest,
    bytes: u64,
    usage: Usage,
}

/// Transcribes a recording.
///
/// # Errors
/// The reason for people.
pub(crate) async fn transcribe_audio(
    models: &ModelServices,
    place: InferenceContext<'_>,
    provider: &str,
    audio: &AudioRecording,
    cancel: &CancellationToken,
) -> Result<String, NoAnswer> {
    let sent = SentSpeech {
        digest: audio.digest,
        bytes: u64::try_from(audio.data.len()).unwrap_or(u64::MAX),
        usage: transcription_usage(audio.length_ms),
    };
    let answer = run_attempts(models, place, provider, &sent, cancel, |server| {
        server.transcribe_audio(audio, cancel)
    });
    Ok(answer.await?.text)
}

/// Converts a text to speech, without known secrets.
///
/// # Errors
/// The reason for people.
pub(crate) async fn synthesize_speech(
    models: &ModelServices,
    place: InferenceContext<'_>,
    (provider, voice): (&str, &str),
    text: &str,
    cancel: &CancellationToken,
) -> Result<SpokenAudio, NoAnswer> {
    let mut text = text.to_owned();
    models.screens.without_known(&mut text);
    let chars = text.chars().count();
    if chars > SPEECH_MAX_CHARS {
        return Err(NoAnswer::Failed(format!(
            "the text has {chars} characters; at most {SPEECH_MAX_CHARS} are spoken at a time"
        )));
    }
    let request = canonical(&serde_json::json!({ "input": text, "voice": voice }));
    let sent = SentSpeech {
        digest: digest(&request),
        bytes: u64::try_from(request.len()).unwrap_or(u64::MAX),
        usage: speech_usage(u64::try_from(chars).unwrap_or(u64::MAX)),
    };
    run_attempts(models, place, provider, &sent, cancel, |server| {
        server.synthesize_speech(voice, &text, cancel)
    })
    .await
}

async fn run_attempts<'a, A: SpeechAnswer>(
    models: &'a ModelServices,
    place: InferenceContext<'_>,
    provider: &str,
    sent: &SentSpeech,
    cancel: &CancellationToken,
    ask: impl Fn(&'a dyn ModelProvider) -> BoxFuture<'a, Result<A, ProviderError>>,
) -> Result<A, NoAnswer> {
    let (Some(spec), Some(server)) = (models.manifest.provider(provider), models.providers.get(provider))
    else {
        return Err(NoAnswer::Failed(format!(
            "provider `{provider}` is not connected"
        )));
    };
    if !spec.capabilities.contains(&ModelModality::Audio) {
        return Err(NoAnswer::Failed(format!(
            "provider `{provider}` does not have `audio` in its `capabilities`"
        )));
    }
    for attempt in 1.. {
        let error = match run_attempt(models, place, (spec, attempt), sent, ask(&**server)).await? {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if error.kind == FaultKind::Cancelled {
            return Err(NoAnswer::Cancelled);
        }
        let wait_ms = error.retry_after_ms.unwrap_or(WAIT_MS);
        if attempt >= ATTEMPTS || !error.kind.is_retryable() || wait_ms > LONGEST_WAIT_MS {
            return Err(NoAnswer::Failed(error.message));
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(models.scribe.clock().patience_ms(wait_ms))) => {}
            () = cancel.cancelled() => return Err(NoAnswer::Cancelled),
        }
    }
    Err(NoAnswer::Cancelled)
}

/// Makes one attempt: reserves and records before, settles and records after.
async fn run_attempt<A: SpeechAnswer>(
    models: &ModelServices,
    place: InferenceContext<'_>,
    (spec, attempt): (&Spec, u32),
    sent: &SentSpeech,
    asked: BoxFuture<'_, Result<A, ProviderError>>,
) -> Result<Result<A, ProviderError>, NoAnswer> {
    let failed = |why: String| NoAnswer::Failed(why);
    let name = &spec.name;
    let now = models.scribe.now();
    let set = match models
        .purses
        .reserve_speech(place.purse, name, (sent.bytes, sent.usage), now)
    {
        Ok(set) => set,
        Err(NoRoom::Quota(error)) => return Err(NoAnswer::Quota(error.to_string())),
        Err(NoRoom::Unpriced(reason)) => return Err(failed(reason)),
        Err(NoRoom::Later { wait_ms }) => return Ok(Err(used_up(spec, wait_ms))),
    };
    let limit = ATTEMPT.min(Duration::from_millis(set.reservation.amount.busy_ms));
    let open = match InferenceAttempt::begin(models, place, spec, attempt, sent.digest, set).await {
        Ok(open) => open,
        Err(NotBegun::Later { wait_ms }) => return Ok(Err(used_up(spec, wait_ms))),
        Err(error) => return Err(failed(error.to_string())),
    };
    let mut outcome = match tokio::time::timeout(limit, asked).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let message = format!("provider `{name}`: no answer within {} s", limit.as_secs());
            Err(provider_error(FaultKind::Timeout, message, None))
        }
    };
    match &mut outcome {
        Ok(answer) => *answer.usage_mut() = open.counted_usage(*answer.usage_mut()),
        Err(error) => {
            error.usage = error.usage.map(|usage| open.counted_usage(usage));
            answer::screen_failure(&models.screens, error);
        }
    }
    let told = match &mut outcome {
        Ok(answer) => Ok(ModelCompletion {
            text: answer.recorded_text().to_owned(),
            calls: Vec::new(),
            stop: StopReason::End,
            usage: *answer.usage_mut(),
            model: spec.model.clone(),
            state: None,
        }),
        Err(error) => Err(error.clone()),
    };
    open.settle_outcome(&told, Vec::new())
        .await
        .map_err(|error| failed(error.to_string()))?;
    Ok(outcome)
}
