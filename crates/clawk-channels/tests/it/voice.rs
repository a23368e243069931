//! `voice`: a recording is accepted once it is durable, becomes one message, and its answer is spoken. The speech servers are
//! scripted here; `clawk-providers` tries the HTTP side against a strict server, and `clawk` all of it through the program.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clawk_channels::Channels;
use clawk_kernel::Kernel;
use clawk_kernel::ports::{
    AudioRecording, AudioTranscript, BoxFuture, CompletionDelta, FaultKind, InferRequest, ModelCompletion,
    ModelMessage, ModelProvider, ProviderError, SocketFrame, SpokenAudio, speech_usage, transcription_usage,
};
use clawk_kernel::testing::{Rig, ScriptedModel, calls, manifest, says};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::frames::{Client, LONG};
use crate::suite::{asking, until};

/// Understands recordings as their own bytes, and speaks texts as theirs.
#[derive(Debug, Default)]
struct Ear {
    heard: AtomicU32,
    spoken: Mutex<Vec<String>>,
    /// It fails so often, and takes so long.
    fails: AtomicU32,
    takes_ms: AtomicU32,
    mute: std::sync::atomic::AtomicBool,
    /// It hears these words in everything, and speaks a second of silence, which a browser plays.
    says: Mutex<Option<String>>,
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
            self.heard.fetch_add(1, Ordering::SeqCst);
            let takes = u64::from(self.takes_ms.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(takes)).await;
            if self.fails.load(Ordering::SeqCst) > 0 {
                self.fails.fetch_sub(1, Ordering::SeqCst);
                return Err(ScriptedModel::fault(FaultKind::ServerFault, "not now"));
            }
            if let Some(text) = self.says.lock().unwrap().clone() {
                let usage = transcription_usage(audio.length_ms);
                return Ok(AudioTranscript { text, usage });
            }
            let text = String::from_utf8_lossy(&audio.data)
                .trim_matches(char::from(0))
                .to_owned();
            let usage = transcription_usage(audio.length_ms);
            Ok(AudioTranscript { text, usage })
        })
    }

    fn synthesize_speech<'a>(
        &'a self,
        voice: &'a str,
        text: &'a str,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<SpokenAudio, ProviderError>> {
        Box::pin(async move {
            if self.mute.load(Ordering::SeqCst) {
                return Err(ScriptedModel::fault(FaultKind::Auth, "the key is wrong"));
            }
            let takes = u64::from(self.takes_ms.load(Ordering::SeqCst));
            tokio::time::sleep(Duration::from_millis(takes)).await;
            self.spoken.lock().unwrap().push(text.to_owned());
            if self.says.lock().unwrap().is_some() {
                let (media_type, data, usage) = ("audio/wav", silence(), speech_usage(5));
                return Ok(SpokenAudio {
                    media_type,
                    data,
                    usage,
                });
            }
            Ok(SpokenAudio {
                media_type: "audio/mpeg",
                data: format!("<{voice}>{text}").into_bytes(),
                usage: speech_usage(5),
            })
        })
    }
}

fn rig(access: Value) -> Rig {
    let provider = |name: &str, capabilities: Value| {
        json!({"name": name, "protocol": "custom", "endpoint": "script:none", "model": name, "auth": {"type": "none"},
            "capabilities": capabilities})
    };
    let mut rig = Rig::new(manifest(json!({
        "channels": [{"name": "page", "type": "voice", "transport": "websocket", "auth": {"secret_ref": "TOKEN"},
            "access_control": access}],
        "providers": [provider("model", json!(["text"])), provider("ear", json!(["audio"]))],
        "tools": [{"name": "write", "description": "write", "input_schema": {"type": "object"}}],
        "policies": [{"name": "policy", "rules": [
            {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "write"}, "reason": "Files are precious",
             "approval": {"timeout_seconds": 300}},
            {"id": "rest", "action": "allow", "scope": "all"}]}],
    })));
    let model = ScriptedModel::new(|request, _| {
        Ok(match request.messages.last() {
            Some(ModelMessage::User { text, .. }) if text.starts_with("write") => {
                calls(&[("write", json!({}))])
            }
            Some(ModelMessage::User { text, .. }) => says(&format!("You said {text}.")),
            _ => says("It is over."),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig.outbox.first_wait_ms = 20;
    rig
}

async fn serve(rig: &Rig, ear: &Arc<Ear>, folder: &Path) -> Channels {
    let mut parts = rig.parts();
    parts.providers.insert("ear".to_owned(), Arc::clone(ear) as _);
    let kernel = Kernel::start(parts).await.unwrap();
    let config = json!({"users": {"ann": "ANN"}, "admins": ["ann"], "max_attachment_mb": 1,
        "settings": {"transcribe": "ear", "speak": "ear", "voice": "echo"}});
    let configs = BTreeMap::from([("page".to_owned(), serde_json::from_value(config).unwrap())]);
    let tokens = [("TOKEN", "shared-token"), ("ANN", "token-of-ann")];
    let channels = asking(rig, kernel, configs, &tokens, (folder, "")).await;
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
    channels
}

impl Client {
    async fn starts(&self, id: &str) {
        let start = json!({"type": "audio-start", "id": id, "media_type": "audio/pcm;rate=16000"});
        self.say(start).await;
    }

    async fn bytes(&self, bytes: &[u8]) {
        self.0
            .heard
            .send(SocketFrame::Bytes(bytes.to_vec()))
            .await
            .unwrap();
    }

    async fn records(&self, id: &str, words: &str) {
        self.starts(id).await;
        let (head, tail) = words.as_bytes().split_at(words.len() / 2);
        self.bytes(head).await;
        self.bytes(tail).await;
        self.say(json!({"type": "audio-end", "id": id})).await;
    }

    /// The next sound: its `audio` frame and its bytes, up to `audio-done`.
    async fn sound(&mut self) -> (Value, String) {
        let head = self.next().await.unwrap();
        assert_eq!(head["type"], "audio", "{head}");
        let mut bytes = Vec::new();
        loop {
            match tokio::time::timeout(LONG, self.0.said.recv())
                .await
                .expect("in time")
            {
                Some(SocketFrame::Bytes(more)) => bytes.extend(more),
                Some(SocketFrame::Text(text)) => {
                    let done: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(done, json!({"type": "audio-done", "seq": head["seq"]}));
                    return (head, String::from_utf8(bytes).unwrap());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn shelf(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("page.sound")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn what_is_said_becomes_one_message_and_its_answer_is_spoken() {
    let (folder, ear) = (tempfile::tempdir().unwrap(), Arc::new(Ear::default()));
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, &ear, folder.path()).await;
    let (mut client, hello) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    client.records("a1", "see https://x.example").await;
    let told = client.all(3).await;
    assert_eq!(told[0], json!({"type": "accepted", "id": "a1"}));
    assert_eq!(
        told[1],
        json!({"type": "transcript", "of": "a1", "text": "see https://x.example"})
    );
    assert_eq!(
        (&told[2]["type"], &told[2]["of"]),
        (&json!("message"), &json!("a1"))
    );
    assert!(
        told[2]["text"]
            .as_str()
            .unwrap()
            .starts_with("You said see https://x.example.")
    );
    let (head, sound) = client.sound().await;
    assert_eq!(
        head,
        json!({"type": "audio", "of": "a1", "seq": 1, "media_type": "audio/mpeg"})
    );
    assert!(sound.starts_with("<echo>You said see a link"), "{sound}");
    // The same again is the same: no second turn, and nobody is asked for its words.
    client.records("a1", "something else").await;
    assert_eq!(
        client.next().await.unwrap(),
        json!({"type": "accepted", "id": "a1"})
    );
    // A text on the same socket needs no words, and its answer is spoken, too.
    client.message("m2", "hi").await;
    assert_eq!(client.all(2).await[1]["of"], "m2");
    client.sound().await;
    assert_eq!(
        (ear.heard.load(Ordering::SeqCst), rig.journal.inbox().len()),
        (1, 2)
    );
    assert_eq!(shelf(folder.path()), 0, "what was understood is not kept");
    let trace = format!("{:?}", rig.journal.trace());
    assert!(!trace.contains("something else"));
    client.say(json!({"type": "ack", "seq": 2})).await;
    client.is_quiet().await;
    drop(client);
    // What was acknowledged is not spoken again.
    let session = hello["session"].clone();
    let (mut again, _) = Client::hello(&channels, "shared-token", session, json!(0)).await;
    let told = again.all(3).await;
    assert_eq!(
        told.iter().filter(|frame| frame["type"] == "message").count(),
        2,
        "{told:?}"
    );
    again.is_quiet().await;
    channels.close().await;
}

#[tokio::test]
async fn what_can_not_be_understood_is_refused_and_kept_and_silence_is_no_turn() {
    let (folder, ear) = (tempfile::tempdir().unwrap(), Arc::new(Ear::default()));
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, &ear, folder.path()).await;
    let (mut client, hello) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    client.records("silence", "\0\0\0").await;
    let told = client.all(2).await;
    assert_eq!(
        told[1],
        json!({"type": "refused", "id": "silence", "reason": "nothing was said", "seq": 1})
    );
    assert_eq!(shelf(folder.path()), 0);
    // One retry, then it is refused, and the recording stays on disk.
    ear.fails.store(2, Ordering::SeqCst);
    client.records("a1", "one").await;
    let told = client.all(2).await;
    assert_eq!(
        (&told[1]["type"], &told[1]["id"]),
        (&json!("refused"), &json!("a1"))
    );
    assert!(
        told[1]["reason"].as_str().unwrap().contains("not now"),
        "{}",
        told[1]
    );
    assert_eq!((ear.heard.load(Ordering::SeqCst), shelf(folder.path())), (3, 1));
    ear.fails.store(1, Ordering::SeqCst);
    client.records("a2", "two").await;
    let told = client.all(3).await;
    assert_eq!(told[2]["type"], "message", "the second try counts: {told:?}");
    client.sound().await;
    for (start, bytes, word) in [
        (
            json!({"type": "audio-start", "id": "b1", "media_type": "audio/aiff"}),
            10,
            "recordings are",
        ),
        (
            json!({"type": "audio-start", "id": "b2", "media_type": "audio/webm"}),
            (1 << 20) + 1,
            "1 MiB",
        ),
        (
            json!({"type": "audio-start", "id": "b3", "media_type": "audio/pcm;rate=8000"}),
            0,
            "empty",
        ),
    ] {
        let id = start["id"].clone();
        client.say(start).await;
        if bytes > 0 {
            client.bytes(&vec![0; bytes]).await;
        }
        client.say(json!({"type": "audio-end", "id": id})).await;
        let told = client.next().await.unwrap();
        assert_eq!((&told["type"], &told["id"]), (&json!("refused"), &id));
        assert!(told["reason"].as_str().unwrap().contains(word), "{told}");
    }
    assert_eq!(rig.journal.inbox().len(), 1);
    drop(client);
    // The refusal waits for whoever was away.
    let (mut again, _) = Client::hello(&channels, "shared-token", hello["session"].clone(), json!(1)).await;
    let told = again.all(3).await;
    assert!(
        told.iter()
            .any(|frame| frame["type"] == "refused" && frame["id"] == "a1"),
        "{told:?}"
    );
    channels.close().await;
}

#[tokio::test]
async fn nothing_of_a_stranger_is_kept_or_sent_to_a_speech_server() {
    let (folder, ear) = (tempfile::tempdir().unwrap(), Arc::new(Ear::default()));
    let rig = rig(json!({"mode": "allowlist", "allowed_ids": ["ann"]}));
    let channels = serve(&rig, &ear, folder.path()).await;
    let (mut client, _) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    client.records("a1", "let me in").await;
    let told = client.next().await.unwrap();
    assert_eq!((&told["type"], &told["id"]), (&json!("refused"), &json!("a1")));
    assert_eq!((ear.heard.load(Ordering::SeqCst), shelf(folder.path())), (0, 0));
    assert_eq!(rig.journal.inbox().len(), 0);
    // Sound that nobody announced, and recordings in each other.
    client.bytes(b"x").await;
    assert_eq!(client.next().await, Err(1003));
    let long = "x".repeat(200);
    let starts = |id: &str| json!({"type": "audio-start", "id": id, "media_type": "audio/wav"});
    let ends = |id: &str| json!({"type": "audio-end", "id": id});
    for frames in [
        vec![starts("a"), starts("b")],
        vec![starts("a"), ends("b")],
        vec![ends("a")],
        vec![starts(&long)],
    ] {
        let (mut ann, _) = Client::hello(&channels, "token-of-ann", Value::Null, json!(0)).await;
        for frame in frames {
            ann.say(frame).await;
        }
        assert_eq!(ann.next().await, Err(1008));
    }
    assert_eq!(
        shelf(folder.path()),
        0,
        "a recording that was cut off is not kept"
    );
    channels.close().await;
}

#[tokio::test]
async fn a_spoken_yes_presses_nothing() {
    let (folder, ear) = (tempfile::tempdir().unwrap(), Arc::new(Ear::default()));
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, &ear, folder.path()).await;
    let (mut ann, _) = Client::hello(&channels, "token-of-ann", Value::Null, json!(0)).await;
    ann.message("m1", "write it").await;
    let ask = ann.all(2).await.remove(1);
    assert_eq!(ask["type"], "ask", "{ask}");
    ann.records("a1", "yes").await;
    let told = ann.all(2).await;
    assert_eq!(told[1], json!({"type": "transcript", "of": "a1", "text": "yes"}));
    ann.is_quiet().await;
    assert_eq!(rig.runner.runs().len(), 0);
    ann.say(json!({"type": "press", "question": ask["question"], "choice": "yes"}))
        .await;
    until(|| async { rig.runner.runs().len() == 1 }).await;
    channels.close().await;
}

#[tokio::test]
async fn a_cancel_stops_the_sound_and_a_mute_server_costs_no_text() {
    let (folder, ear) = (tempfile::tempdir().unwrap(), Arc::new(Ear::default()));
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, &ear, folder.path()).await;
    let (mut client, _) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    ear.takes_ms.store(1_500, Ordering::SeqCst);
    client.message("m1", "one").await;
    assert_eq!(client.all(2).await[1]["type"], "message");
    client.say(json!({"type": "cancel"})).await;
    tokio::time::sleep(Duration::from_millis(1_700)).await;
    client.is_quiet().await;
    assert_eq!(*ear.spoken.lock().unwrap(), Vec::<String>::new());
    // The next answer is spoken again.
    ear.takes_ms.store(0, Ordering::SeqCst);
    client.message("m2", "two").await;
    client.all(2).await;
    assert!(client.sound().await.1.contains("You said two"));
    ear.mute.store(true, Ordering::SeqCst);
    client.message("m3", "three").await;
    let told = client.all(3).await;
    assert_eq!(
        (&told[1]["type"], &told[1]["of"]),
        (&json!("message"), &json!("m3"))
    );
    let notice = told[2]["text"].as_str().unwrap();
    assert!(
        notice.contains("could not be spoken") && notice.contains("the key is wrong"),
        "{notice}"
    );
    channels.close().await;
}

#[tokio::test]
async fn an_accepted_recording_is_understood_after_a_restart() {
    let (folder, ear) = (tempfile::tempdir().unwrap(), Arc::new(Ear::default()));
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, &ear, folder.path()).await;
    ear.takes_ms.store(60_000, Ordering::SeqCst);
    let (mut client, hello) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    client.records("a1", "one").await;
    client.records("a2", "two").await;
    assert_eq!(client.all(2).await[1], json!({"type": "accepted", "id": "a2"}));
    until(|| async { ear.heard.load(Ordering::SeqCst) == 1 }).await;
    channels.close().await;
    assert_eq!((rig.journal.inbox().len(), shelf(folder.path())), (0, 4));
    ear.takes_ms.store(0, Ordering::SeqCst);
    let channels = serve(&rig, &ear, folder.path()).await;
    until(|| async { rig.journal.inbox().len() == 2 }).await;
    let (mut client, _) = Client::hello(&channels, "shared-token", hello["session"].clone(), json!(0)).await;
    let mut texts = Vec::new();
    while texts.len() < 2 {
        if let Some(SocketFrame::Text(text)) = client.0.said.recv().await {
            let frame: Value = serde_json::from_str(&text).unwrap();
            if frame["type"] == "message" {
                texts.push(frame["of"].clone());
            }
        }
    }
    assert_eq!(texts, ["a1", "a2"], "in their order, each once");
    until(|| async { shelf(folder.path()) == 0 }).await;
    channels.close().await;
}

/// Two seconds of 16-bit mono at 8 kHz.
fn silence() -> Vec<u8> {
    let mut wav =
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data".to_vec();
    wav.extend(32_000_u32.to_le_bytes());
    wav.resize(44 + 32_000, 0);
    let size = u32::try_from(wav.len() - 8).unwrap();
    wav[4..8].copy_from_slice(&size.to_le_bytes());
    wav
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_records_in_a_browser_and_hears_the_answer() {
    let (folder, ear) = (tempfile::tempdir().unwrap(), Arc::new(Ear::default()));
    *ear.says.lock().unwrap() = Some("what time is it <b>now</b>".to_owned());
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, &ear, folder.path()).await;
    let router = axum::Router::new()
        .route("/channels/page", axum::routing::any(crate::web::door))
        .with_state(channels.clone());
    let url = format!("{}/channels/page", crate::fakes::serve(router).await);
    let seen = crate::web::driven("voice_page.js", &url, folder.path(), "voice.png").await;
    assert_eq!(seen["failed"], Value::Null, "{seen}");
    assert_eq!(
        (&seen["errors"], &seen["violations"]),
        (&json!([]), &json!([])),
        "{seen}"
    );
    assert_eq!(seen["thrown"], 0, "what is discarded is no message: {seen}");
    assert!(
        seen["while"].as_str().unwrap().starts_with("Recording … 0:0"),
        "{seen}"
    );
    assert_eq!(seen["you"], "what time is it <b>now</b>", "{seen}");
    assert!(seen["agent"].as_str().unwrap().contains("You said"), "{seen}");
    assert_eq!(
        (&seen["played"], &seen["hushed"]),
        (&json!(true), &json!(true)),
        "{seen}"
    );
    assert_eq!(seen["phone"], json!([true, true, true]), "{seen}");
    assert_eq!(seen["room"], true, "there is room to write on a phone: {seen}");
    // Spoken once; another's conversation, a foreign kind and a body of another type are refused.
    assert_eq!(
        seen["again"],
        json!([409, 404, 400, 400, 422, 415, 401]),
        "{seen}"
    );
    assert_eq!(ear.heard.load(Ordering::SeqCst), 2);
    assert_eq!(rig.journal.inbox().len(), 2);
    assert_eq!(shelf(folder.path()), 0);
    channels.close().await;
}
