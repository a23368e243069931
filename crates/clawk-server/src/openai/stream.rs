//! Streams an answer of either API: the turn's text as it arrives, then the end.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use clawk_kernel::{KernelError, TurnResult};

use super::serve::Turn;
use crate::http::ApiError;
use crate::http::auth::StreamEndSignal;
use crate::telling::TurnTextStep;

/// How an API writes a streamed answer.
pub(super) trait AnswerStreamFormat: Send + Sized + 'static {
    /// The events before the first text.
    fn begin_events(&mut self) -> Vec<Event>;
    /// The events for more text.
    fn text_events(&mut self, more: &str) -> Vec<Event>;
    /// The events for the turn's end.
    fn end_events(&mut self, outcome: &Result<TurnResult, KernelError>) -> Vec<Event>;
    /// The event for a stream that ends before the turn does.
    fn failure_event(&mut self, error: &ApiError) -> Event;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerStreamStage {
    Begin,
    Words,
    Done,
}

struct AnswerStream<P> {
    pieces: P,
    turn: Turn,
    ending: StreamEndSignal,
    /// Bytes of text that were sent.
    at: usize,
    stage: AnswerStreamStage,
}

/// The answer as a stream of events.
pub(super) fn stream_response(
    pieces: impl AnswerStreamFormat,
    turn: Turn,
    ending: StreamEndSignal,
) -> Response {
    let stream = AnswerStream {
        pieces,
        turn,
        ending,
        at: 0,
        stage: AnswerStreamStage::Begin,
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

impl<P: AnswerStreamFormat> AnswerStream<P> {
    async fn next(&mut self) -> Option<Vec<Event>> {
        match self.stage {
            AnswerStreamStage::Begin => {
                self.stage = AnswerStreamStage::Words;
                Some(self.pieces.begin_events())
            }
            AnswerStreamStage::Words => Some(self.next_events().await),
            AnswerStreamStage::Done => None,
        }
    }

    async fn next_events(&mut self) -> Vec<Event> {
        let telling = Arc::clone(&self.turn.telling);
        let next = tokio::select! {
            next = telling.next(self.at) => next,
            () = self.ending.wait_end() => {
                self.stage = AnswerStreamStage::Done;
                let gone = ApiError::unavailable("the server ends, or its tokens are others now; the turn goes on");
                return vec![self.pieces.failure_event(&gone)];
            }
        };
        match next {
            TurnTextStep::Text(more) => {
                self.at += more.len();
                self.pieces.text_events(&more)
            }
            TurnTextStep::End(outcome) => {
                self.stage = AnswerStreamStage::Done;
                self.pieces.end_events(&outcome)
            }
        }
    }
}
