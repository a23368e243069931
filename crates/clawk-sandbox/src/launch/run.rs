//! One run from order to outcome, and the part of it that services share.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::door::{EgressGate, EgressServerHandle, SandboxListener};
use super::nursery::SupervisorHandle;
use super::pool::without_call;
use super::streams::{CapturedOutput, OutputBudget, ToolOutputStream, capture_output};
use super::warm::{create_output_pipes, hand_over, named_by_tool};
use super::wire::{GRACE_MS, MAX_REPORT_BYTES, SandboxOrder, SupervisorReport};
use super::{LaunchError, LaunchInput, LaunchOutcome, Launcher, LimitHit, Spec, room};
use crate::passing;
use clawk_plan::level::{CodeOrigin, ObtainedEnforcement};
use clawk_plan::plan::Plan;

/// How long the supervisor may take beyond time limit and grace period before it is given up, in milliseconds.
const PATIENCE_MS: u64 = 10_000;

/// How long to wait for a supervisor that was told to end.
const CLOSING: Duration = Duration::from_secs(2);

impl Launcher {
    /// Runs a program to its end. Reads all of its output, and keeps it up to the limit. Returns when every process that it started
    /// has ended. Dropping the future kills them at once. A full disk also ends the run ([`Launcher::leaving_free`]); its output is
    /// then lost.
    ///
    /// # Errors
    /// [`LaunchError::Refused`]: nothing ran (R36). [`LaunchError::Lost`]: the supervisor died; the outcome is unknown.
    pub async fn launch(&self, spec: &Spec) -> Result<LaunchOutcome, LaunchError> {
        let resolved = spec.with_resolved_denials();
        let spec = resolved.as_ref().unwrap_or(spec);
        spec.plan.check_available()?;
        let started = Instant::now();
        let work = async {
            match self.launch_above_process(spec).await {
                Some(result) => result,
                None => self.launch_as(spec, false).await,
            }
        };
        let Some(room) = self.disk_quota(spec) else {
            return work.await;
        };
        tokio::select! {
            biased;
            result = work => result,
            hit = room.used_up() => {
                // The program did run. A failing probe at this moment must not be reported as a refusal.
                match self.probe_level(spec.plan.level()).await {
                    Ok(obtained) => Ok(room::quota_exceeded_outcome(obtained, hit, started.elapsed())),
                    Err(refusal) => Err(lost_error(spec, &format!("{hit}; what held it is not known: {refusal}"))),
                }
            }
        }
    }

    pub(super) async fn launch_as(&self, spec: &Spec, probe: bool) -> Result<LaunchOutcome, LaunchError> {
        let started = Instant::now();
        let timeout_ms = spec.effective_timeout_ms();
        let mut order = spec.sandbox_order(Some(timeout_ms))?;
        if let Some(enclosure) = &mut order.enclosure {
            enclosure.probe = probe;
        }
        if let Some((pool, same)) = self.pool.as_ref().zip(without_call(&order))
            && let Some(waiting) = pool.take_sandbox(same)
            && let Some(call) = &order.call
            && let Some(ended) = hand_over(spec, waiting, call, started).await
        {
            pool.record_served();
            return ended;
        }
        let (input, feed) = open_input(spec)?;
        let mut parts = self.start_supervisor(spec, &order, &input)?;
        drop(input);
        let [out, err] = parts.output;
        let supervisor = Arc::clone(&parts.control.supervisor);
        let run = RunFollower {
            control: &mut parts.control,
            gone: &parts.gone,
            give_up: &|| {
                supervisor
                    .get()
                    .into_iter()
                    .for_each(SupervisorHandle::give_up_now)
            },
        };
        let output = (Some(out), Some(err));
        let (reports, kept) = run.until_end(spec, output, feed, timeout_ms).await?;
        outcome_from_reports(spec, reports, timeout_ms).map(|outcome| kept.into_outcome(outcome, started))
    }

    /// Gets a supervisor from the fork server and sends it the order.
    pub(super) fn start_supervisor(
        &self,
        spec: &Spec,
        order: &SandboxOrder,
        input: &OwnedFd,
    ) -> Result<SupervisorParts, LaunchError> {
        let failed = |error: std::io::Error| spec.setup_error(&format!("the supervisor: {error}"));
        let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
        self.nursery.fork_supervisor(&theirs).map_err(failed)?;
        // End of file must mean that the supervisor is gone.
        drop(theirs);
        let (output, [out, err]) = create_output_pipes().map_err(failed)?;
        let text = serde_json::to_vec(order).map_err(|error| spec.setup_error(&error.to_string()))?;
        let length = u32::try_from(text.len())
            .map_err(|_large| spec.setup_error("arguments and environment are too long"))?;
        let door = match (&order.enclosure, spec.way_out()) {
            (Some(enclosure), Some(gate)) if enclosure.door => {
                let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
                let plan = spec.plan.clone();
                let gate = gate.clone();
                Some((
                    ListenerHandoff {
                        socket: ours,
                        gate,
                        plan,
                    },
                    OwnedFd::from(theirs),
                ))
            }
            _ => None,
        };
        let mut fds = vec![input.as_fd(), out.as_fd(), err.as_fd()];
        fds.extend(door.as_ref().map(|(_, theirs)| theirs.as_fd()));
        let mut whole = length.to_le_bytes().to_vec();
        whole.extend(text);
        ours.set_nonblocking(true).map_err(failed)?;
        let sent = send_some(ours.as_fd(), &whole, &fds).map_err(failed)?;
        let rest = whole.split_off(sent);
        let stream = UnixStream::from_std(ours).map_err(failed)?;
        let (gone_sender, gone) = tokio::sync::watch::channel(false);
        let (reader, writer) = stream.into_split();
        let control = SupervisorControl {
            reader: BufReader::new(reader),
            writer,
            order: Some(rest).filter(|rest| !rest.is_empty()),
            line: Vec::new(),
            gone: gone_sender,
            door: door.map(|(entrance, _)| entrance),
            keep: None,
            supervisor: Arc::default(),
        };
        Ok(SupervisorParts {
            output,
            control,
            gone,
        })
    }
}

/// The tool's standard input, and the data to be written to it.
pub(super) type InputFeed<'a> = (OwnedFd, Option<(pipe::Sender, &'a [u8])>);

pub(super) fn open_input(spec: &Spec) -> Result<InputFeed<'_>, LaunchError> {
    match &spec.stdin {
        LaunchInput::Null => Ok((open_null(spec)?, None)),
        LaunchInput::Bytes(bytes) => {
            let (reader, writer) = pipe_pair(spec)?;
            Ok((reader, Some((writer, bytes))))
        }
        LaunchInput::Given(given) => {
            let copy = given.0.try_clone();
            Ok((
                copy.map_err(|error| spec.setup_error(&format!("its input: {error}")))?,
                None,
            ))
        }
    }
}

/// Follows a running program.
pub(super) struct RunFollower<'a> {
    pub(super) control: &'a mut SupervisorControl,
    pub(super) gone: &'a tokio::sync::watch::Receiver<bool>,
    /// Ends what is left if the supervisor was lost.
    pub(super) give_up: &'a (dyn Fn() + Sync),
}

/// The kept part of a run's output.
pub(super) struct KeptOutput {
    stdout: CapturedOutput,
    stderr: CapturedOutput,
    limit: u64,
}

impl KeptOutput {
    pub(super) fn into_outcome(self, outcome: LaunchOutcome, started: Instant) -> LaunchOutcome {
        let truncated = self.stdout.truncated || self.stderr.truncated;
        let limit = outcome.limit;
        LaunchOutcome {
            stdout: self.stdout.bytes,
            stderr: self.stderr.bytes,
            truncated,
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            limit: limit.or_else(|| truncated.then_some(LimitHit::Output(self.limit))),
            ..outcome
        }
    }
}

impl RunFollower<'_> {
    /// Collects all reports and the kept part of the output, which is read to its end.
    pub(super) async fn until_end<O, E>(
        self,
        spec: &Spec,
        (out, err): (Option<O>, Option<E>),
        feed: Option<(pipe::Sender, &[u8])>,
        timeout_ms: u64,
    ) -> Result<(ReportBatch, KeptOutput), LaunchError>
    where
        O: AsyncRead + Unpin,
        E: AsyncRead + Unpin,
    {
        let Self {
            control,
            gone,
            give_up,
        } = self;
        let budget = OutputBudget::new(spec.effective_output_bytes());
        let feeding = async {
            if let Some((mut writer, bytes)) = feed {
                let _ = writer.write_all(bytes).await; // silent-ok: a program need not read its input
            }
        };
        let reports = async {
            let reports = control.read_reports().await;
            if !matches!(
                reports.0.last(),
                Some(SupervisorReport::Ended { .. } | SupervisorReport::Refused { .. })
            ) {
                // The supervisor is gone, perhaps killed by the tool: the rest of its session must be ended.
                give_up();
            }
            reports
        };
        let whole = async {
            tokio::join!(
                reports,
                capture_output(out, &budget, (ToolOutputStream::Out, spec.tee.as_ref())),
                capture_output(err, &budget, (ToolOutputStream::Err, spec.tee.as_ref())),
                until_gone(feeding, gone),
            )
        };
        let patience = Duration::from_millis(timeout_ms.saturating_add(GRACE_MS + PATIENCE_MS));
        let (reports, stdout, stderr, ()) =
            tokio::time::timeout(patience, whole).await.map_err(|_elapsed| {
                give_up();
                lost_error(spec, "it does not answer")
            })?;
        let kept = KeptOutput {
            stdout,
            stderr,
            limit: budget.limit(),
        };
        Ok((reports, kept))
    }
}

/// A running supervisor.
pub(super) struct SupervisorParts {
    /// The tool's standard output and standard error.
    pub(super) output: [pipe::Receiver; 2],
    pub(super) control: SupervisorControl,
    /// Becomes true when no more reports come.
    pub(super) gone: tokio::sync::watch::Receiver<bool>,
}

/// The launcher's end of the socket. Dropping it kills the run.
pub(super) struct SupervisorControl {
    reader: BufReader<tokio::net::unix::OwnedReadHalf>,
    writer: tokio::net::unix::OwnedWriteHalf,
    /// The rest of the order that did not fit into the socket at once.
    order: Option<Vec<u8>>,
    /// The report being read. It is stored here so that a cancelled wait loses nothing.
    line: Vec<u8>,
    gone: tokio::sync::watch::Sender<bool>,
    door: Option<ListenerHandoff>,
    /// Serves the sandbox's network access for as long as the sandbox lives.
    keep: Option<EgressServerHandle>,
    /// The supervisor; set as soon as something may run.
    supervisor: Arc<OnceLock<SupervisorHandle>>,
}

/// The socket on which the sandbox's listening socket arrives, and the gate that serves it.
struct ListenerHandoff {
    socket: StdUnixStream,
    gate: EgressGate,
    plan: Arc<Plan>,
}

impl ListenerHandoff {
    fn serve_listener(self) -> std::io::Result<EgressServerHandle> {
        let listener = receive_descriptor(&self.socket)?;
        self.gate.serve_listener(SandboxListener {
            listener: listener.into(),
            plan: self.plan,
        })
    }
}

impl SupervisorControl {
    /// The control of a sandbox that already has its call.
    pub(super) fn from_socket(
        socket: StdUnixStream,
        keep: Option<EgressServerHandle>,
    ) -> std::io::Result<(Self, tokio::sync::watch::Receiver<bool>)> {
        let (gone_sender, gone) = tokio::sync::watch::channel(false);
        let (reader, writer) = UnixStream::from_std(socket)?.into_split();
        let control = Self {
            reader: BufReader::new(reader),
            writer,
            order: None,
            line: Vec::new(),
            gone: gone_sender,
            door: None,
            keep,
            supervisor: Arc::default(),
        };
        Ok((control, gone))
    }

    /// Sends the order if it was not sent yet, and returns the next report; `None` at the end.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<SupervisorReport>> {
        if let Some(text) = self.order.take() {
            self.writer.write_all(&text).await?;
        }
        (&mut self.reader)
            .take(MAX_REPORT_BYTES)
            .read_until(b'\n', &mut self.line)
            .await?;
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Ok(None);
        }
        let report = serde_json::from_slice(&line)?;
        if let SupervisorReport::Enclosed { supervisor, .. } = &report
            && let Ok(supervisor) = SupervisorHandle::from_id(supervisor.clone())
        {
            let _ = self.supervisor.set(supervisor); // silent-ok: it is told once
        }
        if matches!(report, SupervisorReport::Enclosed { .. })
            && let Some(entrance) = self.door.take()
        {
            // The sandbox waits for this before it starts the tool.
            match entrance.serve_listener() {
                Ok(keep) => self.keep = Some(keep),
                Err(error) => {
                    let reason = format!("its way out can't be served: {error}");
                    return Ok(Some(SupervisorReport::Refused { reason }));
                }
            }
            self.writer.write_all(&[super::wire::OPENED]).await?;
        }
        Ok(Some(report))
    }

    /// Asks for an orderly end.
    pub(super) async fn terminate(&mut self) {
        let _ = self.writer.write_all(&[super::wire::TERMINATE]).await; // silent-ok: it ended meanwhile
    }

    /// Ends everything that is left, and waits for the supervisor's end.
    pub(super) async fn close(mut self) {
        let _ = self.writer.shutdown().await; // silent-ok: it has ended
        let mut nowhere = tokio::io::sink();
        let rest = tokio::io::copy(&mut self.reader, &mut nowhere);
        let _ = tokio::time::timeout(CLOSING, rest).await; // silent-ok: whoever can't be killed is not waited for
    }

    /// Reads all reports. If the last one is not the end, also returns the reason.
    async fn read_reports(&mut self) -> ReportBatch {
        let mut all = Vec::new();
        let fault = loop {
            match self.next().await {
                Ok(Some(
                    report @ (SupervisorReport::Enclosed { .. }
                    | SupervisorReport::Waiting { .. }
                    | SupervisorReport::Started),
                )) => {
                    all.push(report);
                }
                Ok(Some(report @ (SupervisorReport::Ended { .. } | SupervisorReport::Refused { .. }))) => {
                    all.push(report);
                    break None;
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        self.gone.send_replace(true);
        (all, fault)
    }
}

/// Runs `work`, but stops it when nobody is left to read its data.
async fn until_gone(work: impl Future<Output = ()>, gone: &tokio::sync::watch::Receiver<bool>) {
    let mut gone = gone.clone();
    tokio::select! {
        () = work => {}
        _ = gone.wait_for(|gone| *gone) => {}
    }
}

pub(super) type ReportBatch = (Vec<SupervisorReport>, Option<std::io::Error>);

pub(super) fn outcome_from_reports(
    spec: &Spec,
    (reports, fault): ReportBatch,
    timeout_ms: u64,
) -> Result<LaunchOutcome, LaunchError> {
    let mut obtained = None;
    for report in reports {
        match report {
            SupervisorReport::Enclosed {
                mechanisms, missing, ..
            } => {
                obtained = Some(ObtainedEnforcement {
                    level: spec.plan.level(),
                    place: CodeOrigin::Local,
                    mechanisms,
                    missing,
                });
            }
            SupervisorReport::Waiting { .. } | SupervisorReport::Started => {}
            SupervisorReport::Refused { reason } => return Err(spec.not_started(&reason)),
            SupervisorReport::Ended {
                exit_code,
                signal,
                hit,
                swept,
            } => {
                let (stdout, stderr) = (Vec::new(), Vec::new());
                let obtained = obtained.unwrap_or_default();
                let limit = hit.map(|hit| LimitHit::from_report(hit, spec.plan.limits(), timeout_ms));
                let (truncated, duration_ms) = (false, 0);
                return Ok(LaunchOutcome {
                    exit_code,
                    signal,
                    stdout,
                    stderr,
                    truncated,
                    duration_ms,
                    obtained,
                    limit,
                    swept,
                });
            }
        }
    }
    let reason = fault.map_or("it ended without a report".to_owned(), |error| error.to_string());
    Err(match obtained {
        Some(_) => lost_error(spec, &reason),
        None => spec.setup_error(&format!(
            "the supervisor failed before it started the program: {reason}"
        )),
    })
}

fn lost_error(spec: &Spec, reason: &str) -> LaunchError {
    LaunchError::Lost {
        program: spec.program.chars().take(200).collect(),
        reason: reason.to_owned(),
    }
}

/// Both ends of a pipe: one for the tool, and one for clawk to write asynchronously.
pub(super) fn pipe_pair(spec: &Spec) -> Result<(OwnedFd, pipe::Sender), LaunchError> {
    let failed = |error: std::io::Error| spec.setup_error(&format!("its input: {error}"));
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    named_by_tool(&reader).map_err(failed)?;
    Ok((reader, pipe::Sender::from_owned_fd(writer).map_err(failed)?))
}

fn open_null(spec: &Spec) -> Result<OwnedFd, LaunchError> {
    std::fs::File::open("/dev/null")
        .map(OwnedFd::from)
        .map_err(|error| spec.setup_error(&format!("its input: {error}")))
}

/// Receives the one descriptor that the sandbox sends.
pub(crate) fn receive_descriptor(socket: &StdUnixStream) -> std::io::Result<OwnedFd> {
    let (_, fds) = passing::receive_with_fds(socket, &mut [0], RecvFlags::DONTWAIT)?;
    let fd = fds.into_iter().next();
    fd.ok_or_else(|| std::io::Error::other("the box sent no socket"))
}

/// Sends one message with descriptors attached.
pub(crate) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    match send_some(socket, bytes, fds)? == bytes.len() {
        true => Ok(()),
        false => Err(std::io::Error::other("the socket took a part only")),
    }
}

/// Sends as much of a message as the socket accepts now; the descriptors go with the first byte. It does not wait for space,
/// because the reader may have stopped.
pub(super) fn send_some(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> std::io::Result<usize> {
    Ok(passing::send_with_fds(
        socket,
        &[IoSlice::new(bytes)],
        fds,
        SendFlags::DONTWAIT,
    )?)
}
