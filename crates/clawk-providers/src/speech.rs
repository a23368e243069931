//! Speech in OpenAI's API, which others implement, too: `POST BASE/audio/transcriptions` and `POST BASE/audio/speech`.

use bytes::{Bytes, BytesMut};
use clawk_core::ports::{
    AudioRecording, AudioTranscript, FaultKind, SpokenAudio, Usage, speech_usage, transcription_usage,
};
use clawk_egress::Url;
use http::HeaderValue;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::attempt::{next, unreadable_answer};
use crate::endpoint::Endpoint;
use crate::fault::AttemptFault;

/// Largest recording that these servers accept, in bytes.
const MAX_BYTES: usize = 25 << 20;
/// Longest transcript that is accepted, in bytes. Five minutes of fast speech need a tenth of it.
const MAX_TRANSCRIPT_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct TranscriptionResponse {
    text: String,
}

/// Returns `BASE/audio/LAST`, where `chat` is `BASE/chat/completions`.
fn audio_url(chat: &Url, last: &str) -> Url {
    let mut url = chat.clone();
    let base = chat.path().strip_suffix("/chat/completions").unwrap_or_default();
    let path = format!("{base}/audio/{last}");
    url.set_path(&path);
    url
}

/// Makes one attempt to transcribe a recording.
pub(crate) async fn transcribe_audio(
    endpoint: &Endpoint,
    model: &str,
    audio: &AudioRecording,
    cancel: &CancellationToken,
) -> Result<AudioTranscript, (AttemptFault, Option<Usage>)> {
    let file = audio_upload(audio).map_err(|fault| (fault, None))?;
    // The recording can't contain the boundary: the boundary is made of the recording's own digest and of a value that is not known
    // before.
    let boundary = format!("clawk-{}", audio.digest.to_string().replace(':', "-"));
    let body = multipart_form(&boundary, model, &file);
    let kind = HeaderValue::try_from(format!("multipart/form-data; boundary={boundary}"))
        .map_err(|_invalid| (AttemptFault::malformed("the recording has no digest"), None))?;
    let bytes = fetch_body(endpoint, "transcriptions", (kind, body), cancel).await;
    let usage = transcription_usage(audio.length_ms);
    let bytes = bytes.map_err(|(fault, worked)| (fault, worked.then_some(usage)))?;
    let spent = |fault| (fault, Some(usage));
    let answer: TranscriptionResponse = serde_json::from_slice(&bytes)
        .map_err(unreadable_answer)
        .map_err(spent)?;
    if answer.text.len() > MAX_TRANSCRIPT_BYTES {
        let message = format!("the transcript is longer than {MAX_TRANSCRIPT_BYTES} bytes");
        return Err(spent(AttemptFault::malformed(message)));
    }
    Ok(AudioTranscript {
        text: answer.text.trim().to_owned(),
        usage,
    })
}

/// Makes one attempt to convert a text to speech.
pub(crate) async fn speak_text(
    endpoint: &Endpoint,
    (model, voice): (&str, &str),
    text: &str,
    cancel: &CancellationToken,
) -> Result<SpokenAudio, (AttemptFault, Option<Usage>)> {
    let body = json!({ "model": model, "input": text, "voice": voice, "response_format": "mp3" });
    let body = Bytes::from(body.to_string());
    let kind = HeaderValue::from_static("application/json");
    let usage = speech_usage(u64::try_from(text.chars().count()).unwrap_or(u64::MAX));
    let data = fetch_body(endpoint, "speech", (kind, body), cancel)
        .await
        .map_err(|(fault, worked)| (fault, worked.then_some(usage)))?;
    if data.is_empty() || data.first() == Some(&b'{') {
        return Err((AttemptFault::malformed("the answer holds no sound"), Some(usage)));
    }
    Ok(SpokenAudio {
        media_type: "audio/mpeg",
        data: data.to_vec(),
        usage,
    })
}

/// Reads the whole body of a successful response. An error also says whether the response had begun.
async fn fetch_body(
    endpoint: &Endpoint,
    last: &str,
    (kind, body): (HeaderValue, Bytes),
    cancel: &CancellationToken,
) -> Result<Bytes, (AttemptFault, bool)> {
    let asked = endpoint.post_as(audio_url(&endpoint.url, last), kind, body);
    let head = cancel.run_until_cancelled(asked).await;
    let mut response = head
        .unwrap_or_else(|| Err(AttemptFault::cancelled()))
        .map_err(|fault| (fault, false))?;
    let mut bytes = BytesMut::new();
    while let Some(piece) = next(&mut response, cancel).await.map_err(|fault| (fault, true))? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

/// The uploaded file. Servers recognise the audio format by the file name's extension.
struct AudioUpload {
    extension: &'static str,
    media_type: &'static str,
    head: Vec<u8>,
    data: std::sync::Arc<[u8]>,
}

/// Makes a file of the recording. Raw samples get a WAV header, because no server accepts them without one.
fn audio_upload(audio: &AudioRecording) -> Result<AudioUpload, AttemptFault> {
    let refused = |why: String| AttemptFault::new(FaultKind::Rejected, why);
    let mut parts = audio.media_type.split(';').map(str::trim);
    let (kind, mut head) = (parts.next().unwrap_or_default(), Vec::new());
    let (extension, media_type) = match kind {
        "audio/wav" | "audio/x-wav" | "audio/wave" => ("wav", "audio/wav"),
        "audio/webm" => ("webm", "audio/webm"),
        "audio/ogg" => ("ogg", "audio/ogg"),
        "audio/mpeg" => ("mp3", "audio/mpeg"),
        "audio/mp4" => ("m4a", "audio/mp4"),
        "audio/flac" => ("flac", "audio/flac"),
        "audio/pcm" => {
            let rate = parts.find_map(|part| part.strip_prefix("rate=")?.parse::<u32>().ok()); // silent-ok: refused below
            let rate = rate
                .filter(|rate| (8_000..=48_000).contains(rate))
                .ok_or_else(|| refused("`audio/pcm` needs `;rate=` between 8000 and 48000".to_owned()))?;
            let size =
                u32::try_from(audio.data.len()).map_err(|_large| refused("it is too large".to_owned()))?;
            head = wav_header(rate, size);
            ("wav", "audio/wav")
        }
        _ => {
            return Err(refused(
                "recordings are wav, webm, ogg, mp3, mp4, flac or pcm".to_owned(),
            ));
        }
    };
    if audio.data.len() + head.len() > MAX_BYTES {
        return Err(refused(format!(
            "the recording is larger than {} MiB",
            MAX_BYTES >> 20
        )));
    }
    Ok(AudioUpload {
        extension,
        media_type,
        head,
        data: std::sync::Arc::clone(&audio.data),
    })
}

/// Makes the WAV header for `size` bytes of 16-bit mono samples at `rate` Hz.
fn wav_header(rate: u32, size: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(44);
    head.extend_from_slice(b"RIFF");
    head.extend_from_slice(&size.saturating_add(36).to_le_bytes());
    head.extend_from_slice(b"WAVEfmt ");
    head.extend_from_slice(&16_u32.to_le_bytes());
    head.extend_from_slice(&1_u16.to_le_bytes());
    head.extend_from_slice(&1_u16.to_le_bytes());
    head.extend_from_slice(&rate.to_le_bytes());
    head.extend_from_slice(&rate.saturating_mul(2).to_le_bytes());
    head.extend_from_slice(&2_u16.to_le_bytes());
    head.extend_from_slice(&16_u16.to_le_bytes());
    head.extend_from_slice(b"data");
    head.extend_from_slice(&size.to_le_bytes());
    head
}

/// Writes the form fields `model`, `response_format` and `file` (RFC 7578).
fn multipart_form(boundary: &str, model: &str, file: &AudioUpload) -> Bytes {
    let mut body = BytesMut::with_capacity(file.data.len() + 1024);
    for (name, value) in [("model", model), ("response_format", "json")] {
        let field =
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(field.as_bytes());
    }
    let (extension, kind) = (file.extension, file.media_type);
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"audio.{extension}\"\r\nContent-Type: {kind}\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(&file.head);
    body.extend_from_slice(&file.data);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    body.freeze()
}
