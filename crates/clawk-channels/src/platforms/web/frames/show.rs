//! What a program is told: messages, questions, decisions, transcripts, sound.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use clawk_kernel::ports::SocketFrame;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{SOUND_BYTES, SocketCloseReason, SocketSession, SpokenAnswer, close_on_error, lock, name_of};
use crate::platforms::web::log::{PageEntry, PageEntryAuthor};
use crate::platforms::web::sound::VoicePipeline;

impl SocketSession<'_> {
    /// Sends what the conversation gets after a number. Of what was there before, only the newest unacknowledged answer is spoken.
    pub(super) async fn send_updates(
        &self,
        (after, acked): (u64, u64),
        speech: mpsc::Sender<SpokenAnswer>,
    ) -> Result<(), SocketCloseReason> {
        let log = &self.sockets.log;
        let speaks = self.sockets.sound.as_ref().is_some_and(|sound| sound.can_speak());
        let mut changed = log.watch_changes();
        let (mut rev, mut sent) = (0, after);
        // What was sent of an answer that is being written, by its entry.
        let mut written: HashMap<String, String> = HashMap::new();
        loop {
            changed.mark_unchanged();
            let mut entries = log
                .entries_after(&self.speaker.conversation, rev)
                .map_err(close_on_error)?;
            let early = {
                let taking = lock(&self.pending.taking);
                let mut all = entries.iter();
                all.any(|entry| entry.of.as_ref().is_some_and(|of| taking.contains(of)))
            };
            if !early {
                let first = rev == 0;
                rev = entries.iter().map(|entry| entry.rev).max().unwrap_or(rev);
                self.send_transcripts(&entries, sent).await?;
                entries.retain(|entry| entry.who == PageEntryAuthor::Agent);
                entries.sort_by_key(|entry| entry.seq.unwrap_or(u64::MAX));
                let mut aloud = Vec::new();
                for entry in &entries {
                    if entry.live {
                        self.send_delta(entry, &mut written).await?;
                        continue;
                    }
                    written.remove(&entry.id);
                    let new = self.send_entry(entry, &mut sent).await?;
                    if let (true, Some(seq), Some(of)) =
                        (new && speaks && !entry.refused, entry.seq, &entry.of)
                        && (!first || seq > acked)
                    {
                        aloud.push(SpokenAnswer {
                            seq,
                            of: of.clone(),
                            markdown: entry.markdown.clone(),
                        });
                    }
                }
                let old = if first { aloud.len().saturating_sub(1) } else { 0 };
                for answer in aloud.into_iter().skip(old) {
                    self.pending.aloud.store(answer.seq, Ordering::Relaxed);
                    // silent-ok: whoever is so far behind reads the text
                    let _queued = speech.try_send(answer);
                }
            }
            if changed.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    /// What was understood of recordings whose answers the program does not have.
    async fn send_transcripts(&self, entries: &[PageEntry], sent: u64) -> Result<(), SocketCloseReason> {
        for entry in entries.iter().filter(|entry| entry.who == PageEntryAuthor::You) {
            let Some(of) = &entry.of else { continue };
            let answered = entries.iter().any(|other| {
                other.who == PageEntryAuthor::Agent
                    && other.of.as_ref() == Some(of)
                    && other.seq.is_some_and(|seq| seq <= sent)
            });
            if !answered {
                let frame = json!({"type": "transcript", "of": of, "text": entry.text});
                self.out.send_json(&frame).await?;
            }
        }
        Ok(())
    }

    /// Speaks answers one after the other. What can't be spoken was delivered as text, and a notice says so.
    pub(super) async fn speak_answers(
        &self,
        mut answers: mpsc::Receiver<SpokenAnswer>,
    ) -> Result<(), SocketCloseReason> {
        while let Some(answer) = answers.recv().await {
            let begun = AtomicBool::new(false);
            let mut aloud = pin!(self.speak_answer(&answer, &begun));
            loop {
                if self.pending.hushed.load(Ordering::Relaxed) >= answer.seq {
                    break;
                }
                tokio::select! {
                    biased;
                    () = self.pending.hush.notified() => {}
                    done = &mut aloud => {
                        done?;
                        break;
                    }
                }
            }
            if begun.load(Ordering::Relaxed) {
                self.out
                    .send_json(&json!({"type": "audio-done", "seq": answer.seq}))
                    .await?;
            }
        }
        // Nothing more is shown.
        std::future::pending().await
    }

    async fn speak_answer(&self, answer: &SpokenAnswer, begun: &AtomicBool) -> Result<(), SocketCloseReason> {
        let Some(sound) = &self.sockets.sound else {
            return Ok(());
        };
        for piece in VoicePipeline::spoken_pieces(&answer.markdown) {
            match sound.speak_piece(self.inlet, &piece).await {
                Err(reason) => {
                    tracing::warn!(reason, "an answer could not be spoken");
                    let told = format!("This answer could not be spoken: {reason}");
                    self.inlet.send_notice(&self.speaker.conversation, told);
                    return Ok(());
                }
                Ok((media_type, data)) => {
                    if !begun.swap(true, Ordering::Relaxed) {
                        let frame = json!({"type": "audio", "of": answer.of, "seq": answer.seq, "media_type": media_type});
                        self.out.send_json(&frame).await?;
                    }
                    for bytes in data.chunks(SOUND_BYTES) {
                        self.out.send_frame(SocketFrame::Bytes(bytes.to_vec())).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends an entry unless it was sent; returns whether it was new.
    async fn send_entry(&self, entry: &PageEntry, sent: &mut u64) -> Result<bool, SocketCloseReason> {
        let Some(seq) = entry.seq else { return Ok(false) };
        let new = seq > *sent;
        if new {
            *sent = seq;
            self.out.send_json(&self.entry_frame(entry, seq)).await?;
        }
        if let Some(decided) = &entry.decided {
            let choice = decided.yes.map(|yes| if yes { "yes" } else { "no" });
            let frame =
                json!({"type": "decided", "question": decided.question, "choice": choice, "by": decided.by});
            self.out.send_json(&frame).await?;
        }
        Ok(new)
    }

    fn entry_frame(&self, entry: &PageEntry, seq: u64) -> Value {
        if entry.refused {
            return json!({"type": "refused", "id": entry.of, "reason": entry.markdown, "seq": seq});
        }
        let decided = entry.decided.as_ref().map(|decided| &decided.question);
        if let Some(question) = entry.question.as_ref().or(decided) {
            let choices = entry.choices.iter().map(|(id, label)| name_of(id, label));
            let choices: Vec<&str> = choices.collect();
            return json!({"type": "ask", "seq": seq, "question": question, "text": entry.markdown, "choices": choices});
        }
        let mut frame = json!({"type": "message", "seq": seq, "of": entry.of, "text": entry.markdown});
        if let (Some(frame), false) = (frame.as_object_mut(), entry.files.is_empty()) {
            frame.insert("files".to_owned(), self.file_links(entry));
        }
        frame
    }

    /// Where the files of a message are.
    fn file_links(&self, entry: &PageEntry) -> Value {
        let conversation = self.speaker.conversation.replace('@', "%40").replace('/', "%2F");
        let files = entry.files.iter().map(|file| {
            let url = format!("?file={}&conversation={conversation}", file.id);
            json!({"name": file.name, "url": url})
        });
        files.collect()
    }

    /// What was written since; where it does not continue what was sent, the whole message says it.
    async fn send_delta(
        &self,
        entry: &PageEntry,
        written: &mut HashMap<String, String>,
    ) -> Result<(), SocketCloseReason> {
        let message = entry.id.strip_suffix(".live").unwrap_or(&entry.id);
        let of = self.sockets.log.called_id(message);
        let text = entry.markdown.strip_suffix(" …").unwrap_or(&entry.markdown);
        let before = written.entry(entry.id.clone()).or_default();
        let (Some(of), Some(more)) = (of, text.strip_prefix(before.as_str())) else {
            return Ok(());
        };
        if more.is_empty() {
            return Ok(());
        }
        let frame = json!({"type": "delta", "of": of, "text": more});
        text.clone_into(before);
        self.out.send_json(&frame).await
    }
}
