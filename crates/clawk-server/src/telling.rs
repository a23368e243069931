//! What a turn says, gathered for one reader that may be slow: nothing of the text is lost to it, and what is kept is bounded by
//! the answer itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::{KernelError, SessionNotice, TurnResult};
use tokio::sync::Notify;

/// Where protocols have room for members of others, the record of a turn stands under this name.
pub(crate) const RECORD: &str = "clawk/record";
/// What stands between two texts of one turn: before and after a tool call, for example.
const BETWEEN: &str = "\n\n";

/// The words of one turn as they come, and its end.
#[derive(Debug, Default)]
pub(crate) struct TurnTextBuffer {
    said: Mutex<TurnTextState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct TurnTextState {
    /// Everything that may be told so far.
    text: String,
    /// Where the text of the model's present answer begins.
    begins: usize,
    /// Pieces of the present answer were missed, or it was begun anew: its whole text decides.
    gap: bool,
    /// The present answer is told whole; what comes is another one.
    whole: bool,
    end: Option<Arc<Result<TurnResult, KernelError>>>,
}

/// What comes next.
#[derive(Debug)]
pub(crate) enum TurnTextStep {
    /// More text.
    Text(String),
    /// The end of the turn; everything was told.
    End(Arc<Result<TurnResult, KernelError>>),
}

impl TurnTextBuffer {
    fn lock(&self) -> MutexGuard<'_, TurnTextState> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what happened; does not block.
    pub(crate) fn tell(&self, notice: &SessionNotice) {
        {
            let mut said = self.lock();
            match notice {
                SessionNotice::Delta(piece) => said.piece(piece),
                SessionNotice::Said(text) => said.answer(text),
                // What comes now may repeat what was told, or lacks a part.
                SessionNotice::Missed(_) | SessionNotice::Retrying { .. } => said.gap = true,
                _ => return,
            }
        }
        self.changed.notify_waiters();
    }

    /// The turn is over.
    pub(crate) fn end(&self, outcome: Result<TurnResult, KernelError>) {
        {
            let mut said = self.lock();
            // The answer to a request that was made before: nothing was told of its turn.
            if let (true, Ok(told)) = (said.text.is_empty(), &outcome) {
                said.text.clone_from(&told.text);
            }
            said.end = Some(Arc::new(outcome));
        }
        self.changed.notify_waiters();
    }

    /// What comes behind the first `told` bytes; waits for it.
    pub(crate) async fn next(&self, told: usize) -> TurnTextStep {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(next) = self.lock().behind(told) {
                return next;
            }
            changed.await;
        }
    }

    /// What the turn did by the record, once it has ended and where the record has something to say.
    pub(crate) fn record(&self) -> Option<serde_json::Value> {
        let said = self.lock();
        let told = said.end.as_ref()?.as_ref().as_ref().ok()?; // silent-ok: a turn without an end has no record
        told.shown.as_ref()?.facts()
    }

    /// All that was said.
    pub(crate) fn text(&self) -> String {
        self.lock().text.clone()
    }
}

impl TurnTextState {
    fn behind(&self, told: usize) -> Option<TurnTextStep> {
        match self.text.get(told..) {
            Some(more) if !more.is_empty() => Some(TurnTextStep::Text(more.to_owned())),
            Some(_) | None => self.end.clone().map(TurnTextStep::End),
        }
    }

    /// The present answer's text so far; a new one is begun behind a whole one.
    fn present(&mut self) {
        if self.whole {
            self.whole = false;
            if !self.text.is_empty() {
                self.text.push_str(BETWEEN);
            }
            self.begins = self.text.len();
        }
    }

    fn piece(&mut self, piece: &str) {
        if piece.is_empty() || self.gap {
            return;
        }
        self.present();
        self.text.push_str(piece);
    }

    /// The whole text of the present answer.
    fn answer(&mut self, text: &str) {
        self.present();
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
        notices.iter().for_each(|notice| telling.tell(notice));
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
