//! Sends exactly one answer per request, as a separate message or in the array of its batch.

use std::sync::{Arc, Mutex, PoisonError};

use clawk_proto::rpc::{RpcId, write_error, write_result};
use clawk_proto::{ErrorCode, RpcError};
use serde::Serialize;

use crate::transport::outbox::Outbox;

/// A batch that is being answered (R24).
#[derive(Debug)]
pub(crate) struct Batch {
    outbox: Arc<Outbox>,
    answers: Mutex<BatchAnswers>,
}

#[derive(Debug)]
struct BatchAnswers {
    outstanding: usize,
    array: Vec<u8>,
}

impl Batch {
    /// A batch that is complete after `outstanding` answers; at least one.
    pub(crate) fn new(outbox: Arc<Outbox>, outstanding: usize) -> Arc<Self> {
        Arc::new(Self {
            outbox,
            answers: Mutex::new(BatchAnswers {
                outstanding,
                array: b"[".to_vec(),
            }),
        })
    }

    fn put_answer(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.array.len() > 1 {
            answers.array.push(b',');
        }
        write(&mut answers.array);
        answers.outstanding = answers.outstanding.saturating_sub(1);
        if answers.outstanding == 0 {
            answers.array.extend_from_slice(b"]\n");
            self.outbox.take(&mut answers.array);
        }
    }
}

/// Where an answer goes.
#[derive(Debug, Clone)]
pub(crate) enum AnswerDestination {
    /// As a separate message.
    Alone,
    /// Into the array of its batch.
    Batch(Arc<Batch>),
}

impl AnswerDestination {
    /// Writes an answer of the reading loop, which collects its answers in `out`.
    pub(crate) fn put_answer(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::Alone => {
                write(out);
                out.push(b'\n');
            }
            Self::Batch(batch) => batch.put_answer(write),
        }
    }
}

/// The duty to answer one request, held by a task. If it is dropped without an answer, it sends an internal error.
#[derive(Debug)]
pub(crate) struct ReplyGuard {
    id: RpcId<'static>,
    place: AnswerDestination,
    outbox: Arc<Outbox>,
    answered: bool,
}

impl ReplyGuard {
    pub(crate) fn new(id: RpcId<'_>, place: AnswerDestination, outbox: Arc<Outbox>) -> Self {
        Self {
            id: id.into_owned(),
            place,
            outbox,
            answered: false,
        }
    }

    /// Sends the answer.
    pub(crate) fn send_outcome<T: Serialize>(mut self, outcome: Result<T, RpcError>) {
        self.send_reply(|out, id| match &outcome {
            Ok(result) => write_result(out, id, result),
            Err(error) => write_error(out, id, error),
        });
    }

    fn send_reply(&mut self, write: impl FnOnce(&mut Vec<u8>, &RpcId<'_>)) {
        self.answered = true;
        let mut line = Vec::new();
        self.place.put_answer(&mut line, |out| write(out, &self.id));
        self.outbox.take(&mut line);
    }
}

impl Drop for ReplyGuard {
    fn drop(&mut self) {
        if !self.answered {
            let error = RpcError::new(
                ErrorCode::Internal,
                "the request was given up by a defect of the server",
            );
            self.send_reply(|out, id| write_error(out, id, &error));
        }
    }
}
