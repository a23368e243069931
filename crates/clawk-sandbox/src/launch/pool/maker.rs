//! The thread that makes sandboxes for the pool.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{PoolState, PooledSandbox, PrewarmRequest, SupervisorHandle};
use crate::launch::nursery::ForkServerClient;
use crate::launch::run::{receive_descriptor, send_with};
use crate::launch::wire::{MAX_REPORT_BYTES, SandboxOrder, SupervisorId, SupervisorReport};

/// The time limit for making a sandbox, in milliseconds.
const MAKING_MS: u64 = 5_000;

/// The pause after a failure to make a sandbox, in milliseconds. In the meantime calls make their own, and report why they can't.
const AFTER_FAILURE_MS: u64 = 10_000;

pub(super) struct SandboxMaker {
    shelf: Arc<PoolState>,
    nursery: Arc<ForkServerClient>,
    /// Configurations for which no sandbox is made for some time.
    failed: HashMap<Vec<u8>, Instant>,
}

impl SandboxMaker {
    pub(super) fn new(shelf: Arc<PoolState>, nursery: Arc<ForkServerClient>) -> Self {
        Self {
            shelf,
            nursery,
            failed: HashMap::new(),
        }
    }

    /// Runs until the pool is dropped.
    pub(super) fn serve_requests(mut self, wanted: &Receiver<PrewarmRequest>) {
        let mut open: VecDeque<PrewarmRequest> = VecDeque::new();
        loop {
            let now = Instant::now();
            let expiry = self.shelf.remove_expired(now);
            self.shelf.remove_leftovers();
            self.failed.retain(|_, until| *until > now);
            let next = [open.front().map(|wish| wish.due), expiry]
                .into_iter()
                .flatten()
                .min();
            let said = match next {
                Some(next) => wanted.recv_timeout(next.saturating_duration_since(now)),
                None => wanted.recv().map_err(|_closed| RecvTimeoutError::Disconnected),
            };
            match said {
                Ok(wish) => {
                    // One request per configuration at a time: it is filled up to the wanted number.
                    if !open.iter().any(|other| other.key == wish.key) {
                        open.push_back(wish);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if open.front().is_some_and(|wish| wish.due <= Instant::now())
                && let Some(wish) = open.pop_front()
            {
                self.fill_pool(&wish);
            }
        }
    }

    fn fill_pool(&mut self, wish: &PrewarmRequest) {
        while !self.failed.contains_key(&wish.key) && self.shelf.needs_more(&wish.key) {
            match self.create_sandbox(wish) {
                Ok(made) => {
                    if !self.shelf.add_sandbox(made) {
                        return;
                    }
                }
                // silent-ok: the next call makes its own sandbox and reports the reason
                Err(_) => {
                    let until = Instant::now() + Duration::from_millis(AFTER_FAILURE_MS);
                    self.failed.insert(wish.key.clone(), until);
                }
            }
        }
    }

    fn create_sandbox(&self, wish: &PrewarmRequest) -> io::Result<PooledSandbox> {
        let epoch = self.shelf.epoch();
        let (control, theirs) = UnixStream::pair()?;
        let (calls, called) = UnixStream::pair()?;
        self.nursery.fork_supervisor(&theirs)?;
        drop(theirs);
        let patience = Some(Duration::from_millis(MAKING_MS));
        control.set_write_timeout(patience)?;
        control.set_read_timeout(patience)?;
        let wants_door = wish.order.enclosure.as_ref().is_some_and(|walls| walls.door);
        let door = wants_door.then(UnixStream::pair).transpose()?;
        let text = &wish.key;
        let length = u32::try_from(text.len()).map_err(io::Error::other)?;
        let mut fds = vec![called.as_fd()];
        fds.extend(door.as_ref().map(|(_, theirs)| theirs.as_fd()));
        send_with(control.as_fd(), &length.to_le_bytes(), &fds)?;
        (&control).write_all(text)?;
        drop(called);
        let (held, supervisor, seen) = read_prewarm_report(&control)?;
        let (mechanisms, missing) = held;
        let door = match door {
            Some((ours, _)) => Some(receive_descriptor(&ours)?),
            None => None,
        };
        control.set_nonblocking(true)?;
        calls.set_nonblocking(true)?;
        Ok(PooledSandbox {
            key: text.clone(),
            control,
            calls,
            door,
            mechanisms,
            missing,
            supervisor: SupervisorHandle::from_id(supervisor)?,
            order: Arc::clone(&wish.order),
            seen,
            epoch,
            made: Instant::now(),
        })
    }
}

type PrewarmReport = (
    (Vec<String>, Vec<String>),
    SupervisorId,
    Vec<super::HostObservation>,
);

/// Reads a sandbox's reports until it waits.
fn read_prewarm_report(control: &UnixStream) -> io::Result<PrewarmReport> {
    let mut reader = BufReader::new(control);
    let mut held = None;
    loop {
        let mut line = Vec::new();
        (&mut reader)
            .take(MAX_REPORT_BYTES)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::Error::other("the box ended while it was made"));
        }
        match (serde_json::from_slice(&line)?, held.take()) {
            (
                SupervisorReport::Enclosed {
                    mechanisms, missing, ..
                },
                _,
            ) => held = Some((mechanisms, missing)),
            (SupervisorReport::Waiting { supervisor, seen }, Some(held)) => {
                return Ok((held, supervisor, seen));
            }
            (SupervisorReport::Refused { reason }, _) => return Err(io::Error::other(reason)),
            (
                SupervisorReport::Waiting { .. } | SupervisorReport::Started | SupervisorReport::Ended { .. },
                _,
            ) => {
                return Err(io::Error::other("the box speaks out of turn"));
            }
        }
    }
}

/// The order for a waiting sandbox: the same isolation, without the parts of the call. `None`: the order can't wait.
pub(in crate::launch) fn without_call(order: &SandboxOrder) -> Option<SandboxOrder> {
    let enclosure = order.enclosure.as_ref()?;
    // Files in memory belong to the call.
    if !order.timed || enclosure.probe || !enclosure.files.is_empty() {
        return None;
    }
    Some(SandboxOrder {
        call: None,
        timed: true,
        workdir: order.workdir.clone(),
        level: order.level,
        memory_mb: order.memory_mb,
        cpu_shares: order.cpu_shares,
        max_processes: order.max_processes,
        max_open_files: order.max_open_files,
        enclosure: Some(enclosure.clone()),
    })
}
