//! Collects a turn's text for one reader, which may be slow. The reader loses no text, and the memory is bounded by the answer's
//! length.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::{KernelError, SessionNotice, TurnResult};
use tokio::sync::Notify;

/// The name of a turn's record in protocols that allow extra members.
pub(crate) const RECORD: &str = "clawk/record";
/// The separator between two texts of one turn, for example before and after a tool call.
const BETWEEN: &str = "\n\n";

/// The text of one turn as it arrives, and the turn's end.
#[derive(Debug, Default)]
pub(crate) struct TurnTextBuffer {
    said: Mutex<TurnTextState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct TurnTextState {
    /// The text that readers may have so far.
    text: String,
    /// Where the model's present answer begins in the text, bytes.
    begins: usize,
    /// Pieces of the present answer were missed, or the model restarted it: only its whole text counts now.
    gap: bool,
    /// The present answer is complete; later text belongs to another one.
    whole: bool,
    end: Option<Arc<Result<TurnResult, KernelError>>>,
}

/// The next step for a reader.
#[derive(Debug)]
pub(crate) enum TurnTextStep {
    /// More text.
    Text(String),
    /// The turn has ended, and all text was delivered.
    End(Arc<Result<TurnResult, KernelError>>),
}

impl TurnTextBuffer {
    fn lock(&self) -> MutexGuard<'_, TurnTextState> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event of the turn. Does not block.
    pub(crate) fn add_notice(&self, notice: &SessionNotice) {
        {
            let mut said = self.lock();
            match notice {
                SessionNotice::Delta(piece) => said.add_piece(piece),
                SessionNotice::Said(text) => said.set_answer(text),
                // The next pieces may repeat earlier text, or may miss a part.
                SessionNotice::Missed(_) | SessionNotice::Retrying { .. } => said.gap = true,
                _ => return,
            }
        }
        self.changed.notify_waiters();
    }

    /// Records the end of the turn.
    pub(crate) fn end_turn(&self, outcome: Result<TurnResult, KernelError>) {
        {
            let mut said = self.lock();
            // The request was a repeated one, so the turn produced no text here: its stored answer is used.
            if let (true, Ok(told)) = (said.text.is_empty(), &outcome) {
                said.text.clone_from(&told.text);
            }
            said.end = Some(Arc::new(outcome));
        }
        self.changed.notify_waiters();
    }

    /// Waits for the text after the first `told` bytes.
    pub(crate) async fn next(&self, told: usize) -> TurnTextStep {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(next) = self.lock().step_after(told) {
                return next;
            }
            changed.await;
        }
    }

    /// What the turn did, from the record; only after its end, and only if the record has anything.
    pub(crate) fn turn_record(&self) -> Option<serde_json::Value> {
        let said = self.lock();
        let told = said.end.as_ref()?.as_ref().as_ref().ok()?; // silent-ok: a turn without an end has no record
        told.shown.as_ref()?.to_json()
    }

    /// The whole text so far.
    pub(crate) fn text(&self) -> String {
        self.lock().text.clone()
    }
}

impl TurnTextState {
    fn step_after(&self, told: usize) -> Option<TurnTextStep> {
        match self.text.get(told..) {
            Some(more) if !more.is_empty() => Some(TurnTextStep::Text(more.to_owned())),
            Some(_) | None => self.end.clone().map(TurnTextStep::End),
        }
    }

    /// Continues the present answer, or begins a new one after a complete one.
    fn begin_answer(&mut self) {
        if self.whole {
            self.whole = false;
            if !self.text.is_empty() {
                self.text.push_str(BETWEEN);
            }
            self.begins = self.text.len();
        }
    }

    fn add_piece(&mut self, piece: &str) {
        if piece.is_empty() || self.gap {
            return;
        }
        self.begin_answer();
        self.text.push_str(piece);
    }

    /// Sets the whole text of the present answer.
    fn set_answer(&mut self, text: &str) {
        self.begin_answer();
        let told = self.text.get(self.begins..).unwrap_or_default();
        if let Some(rest) = text.strip_prefix(told) {
            self.text.push_str(rest);
        } else if self.gap {
            self.text.push_str(BETWEEN);
            self.text.push_str(text);
        }
        (self.gap, self.whole) = (false, true);
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::SessionNotice;

    use super::TurnTextBuffer;

    fn told(notices: &[SessionNotice]) -> String {
        let telling = TurnTextBuffer::default();
        notices.iter().for_each(|notice| telling.add_notice(notice));
        telling.text()
    }

    fn delta(text: &str) -> SessionNotice {
        SessionNotice::Delta(text.to_owned())
    }

    fn said(text: &str) -> SessionNotice {
        SessionNotice::Said(text.to_owned())
    }

    #[test]
    fn pieces_and_whole_texts_make_one_text() {
        assert_eq!(told(&[delta("he"), delta("llo"), said("hello")]), "hello");
        assert_eq!(told(&[said("one"), delta("tw"), said("two")]), "one\n\ntwo");
        assert_eq!(told(&[delta("cut"), said("cut\n[short]")]), "cut\n[short]");
    }

    #[test]
    fn what_was_missed_is_made_up_for_by_the_whole_text() {
        assert_eq!(
            told(&[delta("he"), SessionNotice::Missed(2), delta("o"), said("hello")]),
            "hello"
        );
        let again = SessionNotice::Retrying {
            provider: "a".into(),
            reason: "cut".into(),
            wait_ms: 0,
            next: "b".into(),
        };
        assert_eq!(
            told(&[delta("he"), again.clone(), delta("hello"), said("hello")]),
            "hello"
        );
        assert_eq!(told(&[delta("he"), again, said("other")]), "he\n\nother");
    }
}
