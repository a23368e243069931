//! What a program says: messages, recordings, presses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clawk_kernel::ports::SocketFrame;
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    ClientFrame, MAX_ID, POLICY, SocketCloseReason, SocketInput, SocketSession, UNSUPPORTED, close_on_error,
    is_valid_id, lock, name_of, read,
};
use crate::adapter::{ButtonPress, IngestOutcome, PlatformMessage};
use crate::platforms::web::sound::{RecordingUpload, VoicePipeline};

impl SocketSession<'_> {
    /// The message of this id without its words.
    fn empty_message(&self, id: &str) -> PlatformMessage {
        PlatformMessage {
            ids: vec![format!("{}:{id}", self.speaker.conversation)],
            conversation: self.speaker.conversation.clone(),
            direct: true,
            mention: true,
            sender: Some(self.speaker.sender.clone()),
            ..PlatformMessage::default()
        }
    }

    /// Reads frames. Presses are not behind messages: a message may wait for the turn whose question is answered.
    pub(super) async fn read_frames(
        &self,
        mut hears: mpsc::Receiver<SocketFrame>,
        queue: mpsc::Sender<SocketInput>,
    ) -> Result<(), SocketCloseReason> {
        // The recording that is coming in; without a place to keep it, it is passed over.
        let mut recording: Option<(String, Option<RecordingUpload>)> = None;
        while let Some(frame) = hears.recv().await {
            if let (SocketFrame::Bytes(bytes), Some((id, taking))) = (&frame, &mut recording) {
                if let Some(Err(reason)) = taking.as_mut().map(|taking| taking.push(bytes)) {
                    *taking = None;
                    self.out.send_refusal(id, &reason).await?;
                }
                continue;
            }
            match (read(frame)?, &self.sockets.sound) {
                (ClientFrame::Hello { .. }, _) => return Err((POLICY, "`hello` comes once")),
                (ClientFrame::Message { id, .. }, _) if !is_valid_id(&id) => {
                    let reason = format!("an id has 1 to {MAX_ID} printable ASCII characters");
                    let id: String = id.chars().take(MAX_ID).collect();
                    self.out.send_refusal(&id, &reason).await?;
                }
                (ClientFrame::AudioStart { id, .. }, Some(_)) if !is_valid_id(&id) => {
                    return Err((POLICY, "an id has 1 to 128 printable ASCII characters"));
                }
                (ClientFrame::Message { id, text }, _) => {
                    lock(&self.pending.taking).insert(id.clone());
                    if queue.send(SocketInput::Text(id, text)).await.is_err() {
                        return Ok(());
                    }
                }
                (
                    ClientFrame::Press {
                        question,
                        choice,
                        reason,
                    },
                    _,
                ) => self.handle_press(question, &choice, reason).await?,
                (ClientFrame::Ack { seq }, _) => {
                    let done = self.sockets.log.acknowledge_seq(&self.speaker.conversation, seq);
                    done.map_err(close_on_error)?;
                }
                (
                    ClientFrame::AudioStart { .. } | ClientFrame::AudioEnd { .. } | ClientFrame::Cancel {},
                    None,
                ) => {
                    return Err((UNSUPPORTED, "this channel takes no recordings"));
                }
                (ClientFrame::AudioStart { .. }, Some(_)) if recording.is_some() => {
                    return Err((POLICY, "the recording before has no `audio-end`"));
                }
                (ClientFrame::AudioStart { id, media_type }, Some(sound)) => {
                    let taking = self.begin_recording(sound, &id, &media_type, &queue).await?;
                    recording = Some((id, taking));
                }
                (ClientFrame::AudioEnd { id }, Some(sound)) => match recording.take() {
                    Some((begun, taking)) if begun == id => {
                        self.end_recording(sound, &id, taking, &queue).await?
                    }
                    _ => return Err((POLICY, "no recording of this id has begun")),
                },
                (ClientFrame::Cancel {}, Some(_)) => {
                    let newest = self.pending.aloud.load(Ordering::Relaxed);
                    self.pending.hushed.store(newest, Ordering::Relaxed);
                    self.pending.hush.notify_one();
                }
            }
        }
        Ok(())
    }

    /// A recording begins. `None`: its bytes are not wanted, and the program knows.
    async fn begin_recording(
        &self,
        sound: &VoicePipeline,
        id: &str,
        media_type: &str,
        queue: &mpsc::Sender<SocketInput>,
    ) -> Result<Option<RecordingUpload>, SocketCloseReason> {
        let repeated = sound.is_waiting(&self.speaker.conversation, id);
        if repeated || self.inlet.came_before(&self.empty_message(id)).await {
            self.out.send_json(&json!({"type": "accepted", "id": id})).await?;
            return Ok(None);
        }
        // Nothing is taken from somebody who is not let in; the refusal is the one of any message.
        if !self.inlet.lets_in(&self.speaker.sender) {
            lock(&self.pending.taking).insert(id.to_owned());
            let _gone = queue.send(SocketInput::Text(id.to_owned(), String::new())).await; // silent-ok: the socket ends
            return Ok(None);
        }
        match sound.begin_recording(media_type) {
            Ok(taking) => Ok(Some(taking)),
            Err(reason) => {
                self.out.send_refusal(id, &reason).await?;
                Ok(None)
            }
        }
    }

    async fn end_recording(
        &self,
        sound: &VoicePipeline,
        id: &str,
        taking: Option<RecordingUpload>,
        queue: &mpsc::Sender<SocketInput>,
    ) -> Result<(), SocketCloseReason> {
        let Some(taking) = taking else { return Ok(()) };
        let at = self.inlet.clock().now();
        match sound.store_recording(taking, &self.empty_message(id), id, at) {
            Err(reason) => self.out.send_refusal(id, &reason).await,
            Ok(recording) => {
                self.out.send_json(&json!({"type": "accepted", "id": id})).await?;
                let _gone = queue.send(SocketInput::Sound(recording)).await; // silent-ok: the socket ends; it is on disk
                Ok(())
            }
        }
    }

    /// Takes messages in, one after the other.
    pub(super) async fn ingest_inputs(
        &self,
        mut queued: mpsc::Receiver<SocketInput>,
    ) -> Result<(), SocketCloseReason> {
        while let Some(item) = queued.recv().await {
            let sound = self.sockets.sound.as_ref();
            let place = match sound {
                Some(sound) => Some(sound.wait_turn(&self.speaker.conversation).await),
                None => None,
            };
            match (item, sound, place) {
                (SocketInput::Text(id, text), _, _place) => self.take_text(&id, text).await?,
                (SocketInput::Sound(recording), Some(sound), Some(place)) => {
                    // It goes on when this socket has closed.
                    let (sound, inlet) = (Arc::clone(sound), Arc::clone(self.inlet));
                    self.inlet.spawn_task(async move {
                        sound.transcribe_recording(&inlet, recording, place).await;
                    });
                }
                (SocketInput::Sound(_), ..) => {}
            }
        }
        Ok(())
    }

    async fn take_text(&self, id: &str, text: String) -> Result<(), SocketCloseReason> {
        let incoming = PlatformMessage {
            text,
            ..self.empty_message(id)
        };
        match self.inlet.ingest_message(incoming).await {
            IngestOutcome::Accepted { message, .. } => {
                self.sockets.log.remember_called(message, id);
                self.out.send_json(&json!({"type": "accepted", "id": id})).await?;
            }
            IngestOutcome::Ignored => self.out.send_json(&json!({"type": "accepted", "id": id})).await?,
            IngestOutcome::Refused(reason) => self.out.send_refusal(id, &reason).await?,
            IngestOutcome::Later(reason) => {
                tracing::warn!(reason, "a message could not be taken in");
                self.out
                    .send_refusal(id, "it could not be kept now; send it again")
                    .await?;
            }
        }
        lock(&self.pending.taking).remove(id);
        self.sockets.log.wake_pages();
        Ok(())
    }

    async fn handle_press(
        &self,
        question: String,
        choice: &str,
        reason: Option<String>,
    ) -> Result<(), SocketCloseReason> {
        let entries = self.sockets.log.entries_after(&self.speaker.conversation, 0);
        let entries = entries.map_err(close_on_error)?;
        let asked = entries
            .iter()
            .find(|entry| entry.question.as_deref() == Some(question.as_str()));
        let offered = asked.and_then(|asked| {
            let mut all = asked.choices.iter();
            all.find(|(id, label)| name_of(id, label) == choice)
        });
        let press = ButtonPress {
            question,
            // One that was not offered answers nothing, and is recorded.
            choice: offered.map_or_else(String::new, |(id, _)| id.clone()),
            reason,
            sender: self.speaker.sender.clone(),
            conversation: self.speaker.conversation.clone(),
        };
        let _told = self.inlet.handle_press(&press).await; // What became of it comes as `decided`, or as a message.
        Ok(())
    }
}
