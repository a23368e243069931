//! Recording and playing on the page of a `voice` channel. The page is known by its cookie, as for everything else that it asks: the
//! cookie is `SameSite=Strict`, and a body of type `application/json` can't come from another site without its leave.

use std::sync::{Arc, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use super::asked::is_of;
use super::log::PageEntryAuthor;
use super::sound::VoicePipeline;
use super::{WebAdapter, id_fits};
use crate::adapter::{HookReply, HookResponse, InboundPipeline, IngestOutcome, PlatformMessage};

/// Pieces of answers that were spoken to pages and are remembered: none is paid twice in this run.
const REMEMBERED: usize = 4_096;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageRecording {
    id: String,
    conversation: String,
    media_type: String,
    /// Base64.
    data: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeechRequest {
    conversation: String,
    entry: String,
    piece: usize,
}

impl WebAdapter {
    /// Accepts a recording of a page: durable, understood after.
    pub(super) async fn accept_recording(
        &self,
        inlet: &Arc<InboundPipeline>,
        user: &str,
        body: &[u8],
    ) -> HookReply {
        let Some(sound) = &self.sockets.sound else {
            return HookReply::refusal(404, "this channel takes no recordings");
        };
        let recorded = match serde_json::from_slice::<PageRecording>(body) {
            Ok(recorded) if id_fits(&recorded.id) && is_of(&recorded.conversation, user) => recorded,
            Ok(_) | Err(_) => return HookReply::refusal(400, "the body is wrong"),
        };
        let accepted = HookReply::json(202, &json!({ "accepted": true }));
        let incoming = PlatformMessage {
            ids: vec![format!("{}:{}", recorded.conversation, recorded.id)],
            conversation: recorded.conversation,
            direct: true,
            mention: true,
            sender: Some(user.to_owned()),
            ..PlatformMessage::default()
        };
        if sound.is_waiting(&incoming.conversation, &recorded.id) || inlet.came_before(&incoming).await {
            return accepted;
        }
        // Nothing is taken from somebody who is not let in; the refusal is the one of any message.
        if !inlet.lets_in(user) {
            return match inlet.ingest_message(incoming).await {
                IngestOutcome::Refused(reason) => HookReply::refusal(403, &reason),
                IngestOutcome::Accepted { .. } | IngestOutcome::Ignored | IngestOutcome::Later(_) => {
                    HookReply::refusal(503, "it could not be kept now; send it again")
                }
            };
        }
        let Ok(data) = STANDARD.decode(recorded.data) else {
            return HookReply::refusal(400, "the recording is not base64");
        };
        let kept = sound
            .begin_recording(&recorded.media_type)
            .and_then(|mut taking| {
                taking.push(&data)?;
                sound.store_recording(taking, &incoming, &recorded.id, inlet.clock().now())
            });
        let recording = match kept {
            Ok(recording) => recording,
            Err(reason) => return HookReply::refusal(422, &reason),
        };
        let (sound, of) = (Arc::clone(sound), Arc::clone(inlet));
        inlet.spawn_task(async move {
            let place = sound.wait_turn(&incoming.conversation).await;
            sound.transcribe_recording(&of, recording, place).await;
        });
        accepted
    }

    /// One piece of an answer as sound; 404 after the last one. A piece is spoken once in a run: it is paid for.
    pub(super) async fn speech_piece(
        &self,
        inlet: &Arc<InboundPipeline>,
        user: &str,
        body: &[u8],
    ) -> HookResponse {
        let Some(sound) = self.sockets.sound.as_ref().filter(|sound| sound.can_speak()) else {
            return HookReply::refusal(404, "this channel does not speak").into();
        };
        let wanted = match serde_json::from_slice::<SpeechRequest>(body) {
            Ok(wanted) if is_of(&wanted.conversation, user) && inlet.lets_in(user) => wanted,
            Ok(_) | Err(_) => return HookReply::refusal(400, "the body is wrong").into(),
        };
        let entry = match self.log.get(&wanted.conversation, &wanted.entry) {
            Ok(entry) => entry,
            Err(error) => return super::storage_failure(&error).into(),
        };
        let entry =
            entry.filter(|entry| entry.who == PageEntryAuthor::Agent && !entry.live && !entry.refused);
        let pieces = entry
            .map(|entry| VoicePipeline::spoken_pieces(&entry.markdown))
            .unwrap_or_default();
        let Some(piece) = pieces.get(wanted.piece) else {
            return HookReply::refusal(404, "nothing more is said").into();
        };
        let first = {
            let mut spoken = self.spoken.lock().unwrap_or_else(PoisonError::into_inner);
            if spoken.len() >= REMEMBERED {
                spoken.clear();
            }
            spoken.insert(format!(
                "{} {} {}",
                wanted.conversation, wanted.entry, wanted.piece
            ))
        };
        if !first {
            return HookReply::refusal(409, "it was spoken already").into();
        }
        match sound.speak_piece(inlet, piece).await {
            Ok((media_type, data)) => {
                let (send, stream) = mpsc::channel(1);
                // silent-ok: there is room for one
                let _sent = send.try_send(Bytes::from(data));
                HookResponse {
                    reply: HookReply {
                        status: 200,
                        content_type: Some(media_type),
                        body: String::new(),
                    },
                    headers: Vec::new(),
                    stream: Some(stream),
                    talk: None,
                }
            }
            Err(reason) => {
                tracing::warn!(reason, "an answer could not be spoken");
                HookReply::refusal(503, "this answer could not be spoken").into()
            }
        }
    }
}
