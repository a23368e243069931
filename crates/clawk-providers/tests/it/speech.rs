//! Speech, against a strict fake of the API.

use std::sync::Arc;

use clawk_core::ports::{AudioRecording, FaultKind};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::*;

fn audio(media_type: &str, data: &[u8]) -> AudioRecording {
    AudioRecording {
        media_type: media_type.to_owned(),
        digest: clawk_proto::Digest([7; 32]),
        length_ms: 2_000,
        data: Arc::from(data),
    }
}

#[tokio::test]
async fn a_recording_goes_as_a_file_with_its_format_and_bare_samples_become_wav() {
    let cancel = CancellationToken::new();
    for (kind, extension, head) in [
        ("audio/wav", "wav", "RIFF-x"),
        ("audio/webm", "webm", "webm-x"),
        ("audio/pcm;rate=16000", "wav", "pcm-x"),
    ] {
        let server = Server::start(vec![Reply::Bytes(whole(&json!({"text": " hello \n"})))]).await;
        let provider = provider(spec("openai-compatible", &server.url(), true), quick());
        let heard = provider
            .transcribe_audio(&audio(kind, head.as_bytes()), &cancel)
            .await
            .unwrap();
        assert_eq!(heard.text, "hello");
        assert_eq!(
            (heard.usage.input_tokens, heard.usage.estimated),
            (34, true),
            "two seconds"
        );
        let (request, body) = &server.requests()[0];
        assert!(request.starts_with("post /v1/audio/transcriptions "), "{request}");
        assert!(request.contains(&format!("authorization: bearer {}", CANARY.to_lowercase())));
        let boundary = request
            .split("boundary=")
            .nth(1)
            .unwrap()
            .split("\r\n")
            .next()
            .unwrap();
        let Value::String(body) = body else {
            panic!("{body}")
        };
        let parts: Vec<&str> = body.split(&format!("--{boundary}")).collect();
        assert_eq!(parts.len(), 5, "three fields and the end: {body}");
        assert!(
            parts[1].contains("name=\"model\"\r\n\r\ntest-model\r\n"),
            "{body}"
        );
        assert!(
            parts[2].contains("name=\"response_format\"\r\n\r\njson\r\n"),
            "{body}"
        );
        assert!(
            parts[3].contains(&format!("name=\"file\"; filename=\"audio.{extension}\"")),
            "{body}"
        );
        assert!(parts[3].ends_with(&format!("{head}\r\n")), "{body}");
        assert_eq!(
            parts[3].contains("WAVEfmt "),
            kind.starts_with("audio/pcm"),
            "{body}"
        );
        assert_eq!(parts[4], "--\r\n");
    }
}

#[tokio::test]
async fn a_text_is_spoken_and_an_answer_without_sound_is_none() {
    let sound = answer("200 OK", "content-type: audio/mpeg\r\n", "ID3sound");
    let none = whole(&json!({"error": "no voice"}));
    let server = Server::start(vec![Reply::Bytes(sound), Reply::Bytes(none)]).await;
    let provider = provider(spec("openai-compatible", &server.url(), true), quick());
    let cancel = CancellationToken::new();
    let spoken = provider
        .synthesize_speech("alloy", "Good morning.", &cancel)
        .await
        .unwrap();
    assert_eq!(
        (spoken.media_type, spoken.data.as_slice()),
        ("audio/mpeg", b"ID3sound".as_slice())
    );
    let (head, body) = &server.requests()[0];
    assert!(head.starts_with("post /v1/audio/speech "), "{head}");
    let wanted =
        json!({"model": "test-model", "input": "Good morning.", "voice": "alloy", "response_format": "mp3"});
    assert_eq!(*body, wanted);
    let error = provider
        .synthesize_speech("alloy", "x", &cancel)
        .await
        .unwrap_err();
    assert_eq!(error.kind, FaultKind::Malformed);
    assert!(error.usage.is_some(), "the server worked");
}

#[tokio::test]
async fn refusals_of_a_speech_server_are_told_and_what_no_server_takes_is_not_sent() {
    let cancel = CancellationToken::new();
    for (status, headers, kind, after) in [
        ("401 Unauthorized", "", FaultKind::Auth, None),
        (
            "429 Too Many Requests",
            "retry-after: 3\r\n",
            FaultKind::RateLimited,
            Some(3_000),
        ),
        ("503 Service Unavailable", "", FaultKind::ServerFault, None),
    ] {
        let server = Server::start(vec![Reply::Bytes(answer(status, headers, "{}"))]).await;
        let provider = provider(spec("openai-compatible", &server.url(), true), quick());
        let error = provider
            .transcribe_audio(&audio("audio/wav", b"RIFF"), &cancel)
            .await
            .unwrap_err();
        assert_eq!(
            (error.kind, error.retry_after_ms, error.usage),
            (kind, after, None),
            "{error}"
        );
        assert!(!error.message.contains(CANARY), "{error}");
    }
    let server = Server::start(vec![Reply::Bytes(whole(&json!({"text": "x"})))]).await;
    let openai = provider(spec("openai-compatible", &server.url(), true), quick());
    for kind in ["audio/pcm", "audio/pcm;rate=9", "video/mp4", "text/plain"] {
        let error = openai
            .transcribe_audio(&audio(kind, b"x"), &cancel)
            .await
            .unwrap_err();
        assert_eq!(error.kind, FaultKind::Rejected, "{kind}: {error}");
    }
    let anthropic = provider(spec("anthropic-native", &server.url(), true), quick());
    let error = anthropic
        .synthesize_speech("alloy", "x", &cancel)
        .await
        .unwrap_err();
    assert!(error.message.contains("openai-compatible"), "{error}");
    assert_eq!(server.requests(), []);
}
