//! Speech is asked for like an inference: by a Provider that has `audio`, within the purse, on the record, tried once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Kernel;
use super::models::payloads;

use crate::event::digest;
use crate::kind;
use crate::ports::{
    AudioRecording, AudioTranscript, BoxFuture, CompletionDelta, FaultKind, InferRequest, ModelCompletion,
    ModelProvider, ProviderError, SpokenAudio, speech_usage, transcription_usage,
};
use crate::testing::{Rig, ScriptedModel, manifest};

/// Fails so often, then answers.
#[derive(Debug)]
struct Ear {
    kind: FaultKind,
    fails: u32,
    asked: AtomicU32,
}

impl Ear {
    fn asked(&self) -> Result<(), ProviderError> {
        if self.asked.fetch_add(1, Ordering::SeqCst) < self.fails {
            return Err(ScriptedModel::fault(self.kind, "not now"));
        }
        Ok(())
    }
}

impl ModelProvider for Ear {
    fn infer<'a>(
        &'a self,
        _: &'a InferRequest,
        _: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(async { Err(ScriptedModel::fault(FaultKind::Rejected, "it only hears")) })
    }

    fn transcribe_audio<'a>(
        &'a self,
        audio: &'a AudioRecording,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<AudioTranscript, ProviderError>> {
        Box::pin(async {
            self.asked()?;
            let usage = transcription_usage(audio.length_ms);
            let text = "hello".to_owned();
            Ok(AudioTranscript { text, usage })
        })
    }

    fn synthesize_speech<'a>(
        &'a self,
        _: &'a str,
        text: &'a str,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<SpokenAudio, ProviderError>> {
        Box::pin(async {
            self.asked()?;
            Ok(SpokenAudio {
                media_type: "audio/mpeg",
                data: text.as_bytes().to_vec(),
                usage: speech_usage(5),
            })
        })
    }
}

async fn agent(
    capabilities: &[&str],
    limit: Option<u64>,
    kind: FaultKind,
    fails: u32,
) -> (Rig, Kernel, Arc<Ear>) {
    let rig = Rig::new(manifest(json!({"providers": [{
        "name": "ear", "protocol": "custom", "endpoint": "script:none", "model": "ear", "auth": {"type": "none"},
        "capabilities": capabilities, "limits": {"tokens_per_day": limit},
    }]})));
    let (mut parts, asked) = (rig.parts(), AtomicU32::new(0));
    let ear = Arc::new(Ear { kind, fails, asked });
    parts.providers.insert("ear".to_owned(), Arc::clone(&ear) as _);
    let kernel = Kernel::start(parts).await.unwrap();
    (rig, kernel, ear)
}

fn audio() -> AudioRecording {
    let data = b"a recording that stays out of the record";
    AudioRecording {
        media_type: "audio/wav".to_owned(),
        digest: digest(data),
        length_ms: 10_000,
        data: Arc::from(data.as_slice()),
    }
}

#[tokio::test]
async fn a_recording_is_transcribed_on_the_record_by_its_digest_after_one_more_try() {
    let (rig, kernel, ear) = agent(&["text", "audio"], None, FaultKind::ServerFault, 1).await;
    let cancel = CancellationToken::new();
    assert_eq!(
        kernel.transcribe_audio("ear", &audio(), &cancel).await.unwrap(),
        "hello"
    );
    assert_eq!(ear.asked.load(Ordering::SeqCst), 2);
    let requested = payloads(&rig, kind::PROVIDER_REQUESTED);
    assert_eq!(requested.len(), 2);
    assert_eq!(requested[1]["request_hash"], json!(audio().digest));
    assert_eq!(requested[1]["input_tokens"], 170, "ten seconds");
    assert_eq!(payloads(&rig, kind::PROVIDER_FAILED).len(), 1);
    assert_eq!(payloads(&rig, kind::PROVIDER_COMPLETED)[0]["input_tokens"], 170);
    let spoken = kernel
        .synthesize_speech(("ear", "alloy"), "Hello", &cancel)
        .await
        .unwrap();
    assert_eq!(spoken.data, b"Hello");
    let long = "x".repeat(5_000);
    assert!(
        kernel
            .synthesize_speech(("ear", "alloy"), &long, &cancel)
            .await
            .is_err()
    );
    assert_eq!(
        ear.asked.load(Ordering::SeqCst),
        3,
        "what is too long is not sent"
    );
}

#[tokio::test]
async fn speech_is_refused_without_the_capability_beyond_the_purse_and_after_a_second_failure() {
    let cancel = CancellationToken::new();
    for (capabilities, limit, kind, fails, word, asked) in [
        (vec!["text"], None, FaultKind::Auth, 0, "capabilities", 0),
        (vec!["audio"], Some(100), FaultKind::Auth, 0, "tokens_per_day", 0),
        (vec!["audio"], None, FaultKind::Auth, 9, "not now", 1),
        (vec!["audio"], None, FaultKind::ServerFault, 9, "not now", 2),
    ] {
        let (_rig, kernel, ear) = agent(&capabilities, limit, kind, fails).await;
        let error = kernel
            .transcribe_audio("ear", &audio(), &cancel)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(word), "{word}: {error}");
        assert_eq!(ear.asked.load(Ordering::SeqCst), asked, "{word}");
        assert!(
            kernel
                .transcribe_audio("nobody", &audio(), &cancel)
                .await
                .is_err()
        );
    }
}
