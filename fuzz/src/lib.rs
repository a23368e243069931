//! What holds for every input, whatever its bytes: one check per reader of untrusted bytes. `cargo fuzz` looks for inputs that break
//! one; `cargo test -p clawk-fuzz` tries a fixed number of mutated seeds.
//!
//! *Owns:* the checks, their seeds and the programs of `cargo fuzz`.
//! *Depends on:* the crates whose readers it calls.
//! *Must not know:* the runtime; nothing here does I/O.
//! *Start reading at:* [`TARGETS`].

use std::io::Cursor;

use clawk_channels::authentication_results::{results_of, server_of};
use clawk_events::Event;
use clawk_manifest::WireOptions;
use clawk_proto::rpc::{self, InboundRpc, RpcMessage};
use clawk_providers::sse::{self, Decoder, TooLarge};

/// A check panics when an input breaks what must hold.
pub type FuzzCheck = fn(&[u8]);

/// Each target's name, which is also the name of its folder of seeds, and its check.
pub const TARGETS: &[(&str, FuzzCheck)] = &[
    ("event", check_event),
    ("frames", check_frames),
    ("mail", check_mail),
    ("manifest", check_manifest),
    ("stream", check_stream),
    ("trace", check_trace),
];

/// A JSON-RPC frame: every input has an outcome, a request's params are one JSON text, and its id is written as it was read.
pub fn check_frames(data: &[u8]) {
    match rpc::parse(data) {
        InboundRpc::One(message) => check_message(&message),
        InboundRpc::Batch(messages) => {
            assert!(
                !messages.is_empty() && messages.len() <= rpc::MAX_BATCH,
                "a batch of {} messages",
                messages.len()
            );
            messages.iter().for_each(check_message);
        }
    }
}

fn check_message(message: &RpcMessage<'_>) {
    match message {
        RpcMessage::Request(request) => {
            let params = serde_json::from_str::<serde_json::Value>(request.params);
            assert!(
                params.is_ok_and(|params| params.is_object() || params.is_array()),
                "params that are no structure: {}",
                request.params
            );
            if let Some(id) = &request.id {
                let mut answer = Vec::new();
                rpc::write_result(&mut answer, id, &());
                let text = String::from_utf8_lossy(&answer).into_owned();
                assert!(
                    text.contains(id.as_json()),
                    "the answer {text} lacks the id {id:?}"
                );
            }
        }
        RpcMessage::Refused(refused) => assert!(!refused.error.message.is_empty(), "a refusal without words"),
        RpcMessage::Ignored => {}
    }
}

/// A manifest from the wire: it is valid, or a diagnostic says why not.
pub fn check_manifest(data: &[u8]) {
    let Ok(value) = serde_json::from_slice(data) else {
        return;
    };
    let loaded = clawk_manifest::from_value(&value, &WireOptions::default());
    assert_eq!(
        loaded.manifest.is_some(),
        loaded.is_valid(),
        "{:?}",
        loaded.diagnostics
    );
    let words = clawk_manifest::render_diagnostics(&loaded.diagnostics, &loaded.sources, false);
    assert!(
        loaded.diagnostics.is_empty() || !words.trim().is_empty(),
        "diagnostics without words: {:?}",
        loaded.diagnostics
    );
}

/// A trace: the verifier ends, and says no more events than the input has lines.
///
/// # Panics
/// Reading from memory failed.
pub fn check_trace(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n').count();
    let report = clawk_trace::verify(Cursor::new(data));
    let counted = report.map(|report| report.event_count);
    assert!(
        counted.as_ref().is_ok_and(|count| *count <= lines as u64),
        "{lines} lines, counted {counted:?}"
    );
}

/// A model's stream: its events don't depend on where the network cut it.
pub fn check_stream(data: &[u8]) {
    let whole = decode_stream(data, data.len().max(1));
    for cut in [1, 2, 7] {
        assert_eq!(
            decode_stream(data, cut),
            whole,
            "pieces of {cut} bytes give other events"
        );
    }
}

const STREAM_BYTES: usize = 1 << 16;

#[derive(Debug, PartialEq)]
struct StreamTooLarge;

impl From<TooLarge> for StreamTooLarge {
    fn from(_: TooLarge) -> Self {
        Self
    }
}

fn decode_stream(data: &[u8], piece: usize) -> (Vec<sse::Event>, Option<StreamTooLarge>) {
    let mut decoder = Decoder::new(STREAM_BYTES);
    let mut events = Vec::new();
    for bytes in data.chunks(piece) {
        let taken = decoder.push(bytes, |event| {
            events.push(event);
            Ok(())
        });
        if let Err(error) = taken {
            return (events, Some(error));
        }
    }
    let ended = decoder.finish(|event| {
        events.push(event);
        Ok::<(), StreamTooLarge>(())
    });
    (events, ended.err())
}

/// The value of a mail's `Authentication-Results`: a method and a verdict are words of the grammar, and a sender's text in a comment
/// or in quotation marks never becomes one.
pub fn check_mail(data: &[u8]) {
    let header = String::from_utf8_lossy(data);
    let Ok(results) = results_of(&header) else {
        return;
    };
    assert!(server_of(&header).is_ok(), "results of a server without a name");
    for result in &results {
        for word in [&result.method, &result.verdict] {
            assert!(
                !word.is_empty()
                    && word
                        .chars()
                        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '.')),
                "`{word}` is no word of a result"
            );
        }
    }
    // What an attacker writes into a comment changes nothing.
    let commented = format!("{header} (dmarc=pass; spf=pass)");
    assert_eq!(
        results_of(&commented).map(|results| results.len()),
        Ok(results.len()),
        "a comment added a result"
    );
}

/// A payload of the journal, its type on the first line: what was read is written the same from then on.
pub fn check_event(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some((kind, payload)) = text.split_once('\n') else {
        return;
    };
    let Ok(event) = Event::read(kind, payload) else {
        return;
    };
    assert_eq!(event.kind(), kind);
    let written = event.canonical_payload();
    let again = Event::read(kind, written.get()).map(|again| again.canonical_payload());
    assert_eq!(
        again.as_ref().map(|again| again.get()).ok(), // silent-ok: the message has the error
        Some(written.get()),
        "`{kind}` is not read as it was written: {again:?}"
    );
}
