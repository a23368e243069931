//! Speech (CKP §5.2, `audio`): a recording that becomes text, and text that becomes a recording.

use std::sync::Arc;

use clawk_proto::Digest;

use super::Usage;

/// A recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudioRecording {
    /// For example `audio/wav`, `audio/webm` or `audio/pcm;rate=16000` (16 bit, mono, little-endian).
    pub media_type: String,
    /// SHA-256 of its bytes. The record has this and never the bytes.
    pub digest: Digest,
    /// How long it is, milliseconds; an estimate where the format does not say.
    pub length_ms: u64,
    /// Its bytes.
    pub data: Arc<[u8]>,
}

/// What was said in a recording. Untrusted text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AudioTranscript {
    /// The words; empty where nothing was said.
    pub text: String,
    /// What it cost.
    pub usage: Usage,
}

/// A text as a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpokenAudio {
    /// For example `audio/mpeg`.
    pub media_type: &'static str,
    /// Its bytes.
    pub data: Vec<u8>,
    /// What it cost.
    pub usage: Usage,
}

/// Characters of one text that is spoken; a longer one is refused.
pub const SPEECH_MAX_CHARS: usize = 4096;

/// Tokens that a second of a recording is counted for: what vendors charge for a minute, divided by their price of a token.
const SECOND_TOKENS: u64 = 17;
/// Characters that a token of text is counted for, and tokens of sound that two characters make.
const TOKEN_CHARS: u64 = 4;
const SOUND_TOKENS: u64 = 3;

/// What transcribing so many milliseconds is counted for. Servers of this API report no usage, or none in tokens.
#[must_use]
pub const fn transcription_usage(length_ms: u64) -> Usage {
    estimated_usage(length_ms.div_ceil(1000).saturating_mul(SECOND_TOKENS), 0)
}

/// What speaking so many characters is counted for.
#[must_use]
pub const fn speech_usage(chars: u64) -> Usage {
    estimated_usage(
        chars.div_ceil(TOKEN_CHARS),
        chars.saturating_mul(SOUND_TOKENS).div_ceil(2),
    )
}

const fn estimated_usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage {
        input_tokens,
        output_tokens,
        cached_tokens: 0,
        cache_write_tokens: 0,
        estimated: true,
        told: None,
        unreadable: false,
    }
}
