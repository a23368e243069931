//! A streamed answer of either form: the turn's words as they come, then its end.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use clawk_kernel::{KernelError, Told};

use super::serve::Turn;
use crate::http::ApiError;
use crate::http::auth::Ending;
use crate::telling::Next;

/// How a form writes a streamed answer.
pub(super) trait Pieces: Send + Sized + 'static {
    /// What is sent before the first word.
    fn begin(&mut self) -> Vec<Event>;
    /// More words.
    fn words(&mut self, more: &str) -> Vec<Event>;
    /// The turn's end.
    fn end(&mut self, outcome: &Result<Told, KernelError>) -> Vec<Event>;
    /// The stream ends before the turn does.
    fn failed(&mut self, error: &ApiError) -> Event;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begin,
    Words,
    Done,
}

struct Stream<P> {
    pieces: P,
    turn: Turn,
    ending: Ending,
    /// Bytes of the text that were sent.
    at: usize,
    stage: Stage,
}

/// The answer as a stream of events.
pub(super) fn respond(pieces: impl Pieces, turn: Turn, ending: Ending) -> Response {
    let stream = Stream {
        pieces,
        turn,
        ending,
        at: 0,
        stage: Stage::Begin,
    };
    let groups = futures::stream::unfold(stream, |mut stream| async move {
        let events = stream.next().await?;
        Some((
            futures::stream::iter(events.into_iter().map(Ok::<_, Infallible>)),
            stream,
        ))
    });
    Sse::new(futures::StreamExt::flatten(groups))
        .keep_alive(KeepAlive::default())
        .into_response()
}

impl<P: Pieces> Stream<P> {
    async fn next(&mut self) -> Option<Vec<Event>> {
        match self.stage {
            Stage::Begin => {
                self.stage = Stage::Words;
                Some(self.pieces.begin())
            }
            Stage::Words => Some(self.heard().await),
            Stage::Done => None,
        }
    }

    async fn heard(&mut self) -> Vec<Event> {
        let telling = Arc::clone(&self.turn.telling);
        let next = tokio::select! {
            next = telling.next(self.at) => next,
            () = self.ending.comes() => {
                self.stage = Stage::Done;
                let gone = ApiError::unavailable("the server ends, or its tokens are others now; the turn goes on");
                return vec![self.pieces.failed(&gone)];
            }
        };
        match next {
            Next::Text(more) => {
                self.at += more.len();
                self.pieces.words(&more)
            }
            Next::End(outcome) => {
                self.stage = Stage::Done;
                self.pieces.end(&outcome)
            }
        }
    }
}
