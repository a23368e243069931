//! A program that lives on, spoken to over its standard streams: an MCP server.

use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use super::room::ServiceCutReason;
use super::run::{SupervisorControl, SupervisorParts, pipe_pair};
use super::streams::OutputTail;
use super::wire::{GRACE_MS, SupervisorReport};
use super::{LaunchError, LaunchInput, Launcher, LimitHit, Spec};
use clawk_plan::level::{CodeOrigin, ObtainedEnforcement};

/// How long a service's start may take until its program runs, milliseconds.
const START_MS: u64 = 10_000;

/// The end of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEnd {
    /// Exit code of the program, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The limit that it hit.
    pub limit: Option<LimitHit>,
}

/// A running service. Dropping it kills every process of it.
#[derive(Debug)]
pub struct SandboxedService {
    /// Its standard input; taken by who speaks to it.
    pub stdin: Option<pipe::Sender>,
    /// Its standard output; taken by who listens to it.
    pub stdout: Option<pipe::Receiver>,
    obtained: ObtainedEnforcement,
    stderr: OutputTail,
    pub(super) stop: mpsc::Sender<()>,
    pub(super) end: watch::Receiver<Option<ServiceEnd>>,
    /// Why it was ended from here, if it was.
    pub(super) cut: ServiceCutReason,
    /// What goes with the service: its container's files, its way out.
    kept: std::sync::Mutex<Vec<super::EgressServerHandle>>,
}

impl Launcher {
    /// Starts a service in `spec`'s plan, without a time limit. Its standard error is drained; the last 16 KiB are kept.
    ///
    /// # Errors
    /// [`LaunchError::Refused`]: nothing ran.
    pub async fn serve(&self, spec: &Spec) -> Result<SandboxedService, LaunchError> {
        let resolved = spec.resolved();
        let spec = resolved.as_ref().unwrap_or(spec);
        spec.plan.available()?;
        let room = self.room(spec);
        let service = match self.above_serve(spec).await {
            Some(service) => service,
            None => self.serve_process(spec).await,
        };
        Ok(service?.within(room))
    }

    async fn serve_process(&self, spec: &Spec) -> Result<SandboxedService, LaunchError> {
        let order = spec.order(None)?;
        let (input, stdin) = match &spec.stdin {
            LaunchInput::Given(_) => (super::run::input(spec)?.0, None),
            LaunchInput::Null | LaunchInput::Bytes(_) => {
                let (input, stdin) = pipe_pair(spec)?;
                (input, Some(stdin))
            }
        };
        let mut parts = self.start(spec, &order, &input)?;
        drop(input);
        let starting = await_start(spec, &mut parts.control);
        let obtained = match tokio::time::timeout(Duration::from_millis(START_MS), starting).await {
            Ok(started) => started?,
            Err(_elapsed) => return Err(spec.setup("its supervisor does not answer")),
        };
        let stderr = OutputTail::default();
        let SupervisorParts {
            output: [stdout, err],
            control,
            gone: _,
        } = parts;
        let draining = stderr.clone().drain(Some(err));
        let (stop, stopping) = mpsc::channel(1);
        let (ended, end) = watch::channel(None);
        let limits = *spec.plan.limits();
        let tending = tend(control, stopping, draining, limits, ended);
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with the service, which its `Service` handle owns"
        )]
        tokio::spawn(tending);
        Ok(SandboxedService {
            stdin,
            stdout: Some(stdout),
            obtained,
            stderr,
            stop,
            end,
            cut: ServiceCutReason::default(),
            kept: std::sync::Mutex::default(),
        })
    }
}

async fn await_start(
    spec: &Spec,
    control: &mut SupervisorControl,
) -> Result<ObtainedEnforcement, LaunchError> {
    let mut obtained = ObtainedEnforcement::default();
    loop {
        match control.next().await {
            Ok(Some(SupervisorReport::Enclosed {
                mechanisms, missing, ..
            })) => {
                obtained = ObtainedEnforcement {
                    level: spec.plan.level(),
                    place: CodeOrigin::Local,
                    mechanisms,
                    missing,
                };
            }
            Ok(Some(SupervisorReport::Started)) => return Ok(obtained),
            Ok(Some(SupervisorReport::Refused { reason })) => return Err(spec.not_started(&reason)),
            Ok(Some(SupervisorReport::Waiting { .. } | SupervisorReport::Ended { .. }) | None) => {
                return Err(spec.setup("its supervisor ended at once"));
            }
            Err(error) => return Err(spec.setup(&error.to_string())),
        }
    }
}

/// Owns the supervisor until the service has ended or its handle is dropped.
async fn tend(
    mut control: SupervisorControl,
    mut stopping: mpsc::Receiver<()>,
    draining: impl Future<Output = ()>,
    limits: clawk_plan::plan::Limits,
    ended: watch::Sender<Option<ServiceEnd>>,
) {
    let mut draining = std::pin::pin!(draining);
    let mut drained = false;
    let mut asked = false;
    let report = loop {
        tokio::select! {
            report = control.next() => break report,
            () = &mut draining, if !drained => drained = true,
            stop = stopping.recv(), if !asked => match stop {
                Some(()) => {
                    asked = true;
                    control.terminate().await;
                }
                // The handle is gone: closing the socket kills all of it.
                None => break Ok(None),
            },
        }
    };
    control.close().await;
    if !drained {
        // What it said last is worth a moment; a process that left the tree may hold the stream open for longer.
        let _ = tokio::time::timeout(Duration::from_millis(200), &mut draining).await; // silent-ok: see above
    }
    let end = match report {
        Ok(Some(SupervisorReport::Ended {
            exit_code,
            signal,
            hit,
            swept: _,
        })) => ServiceEnd {
            exit_code,
            signal,
            limit: hit.map(|hit| LimitHit::of(hit, &limits, limits.timeout_ms)),
        },
        // silent-ok: whatever else the supervisor said or failed to say, the service is over
        Ok(Some(_) | None) | Err(_) => ServiceEnd {
            exit_code: None,
            signal: None,
            limit: None,
        },
    };
    ended.send_replace(Some(end));
}

impl SandboxedService {
    /// With the walls of another level around it, which last as long as it does.
    pub(crate) fn enclosed(
        mut self,
        obtained: ObtainedEnforcement,
        kept: Vec<super::EgressServerHandle>,
    ) -> Self {
        self.obtained = obtained;
        self.kept = std::sync::Mutex::new(kept);
        self
    }

    /// The isolation that the service really has.
    #[must_use]
    pub fn obtained(&self) -> &ObtainedEnforcement {
        &self.obtained
    }

    /// The end of its standard error, up to 16 KiB.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.stderr.text()
    }

    /// The end of the service; `None` while it runs.
    #[must_use]
    pub fn ended(&self) -> Option<ServiceEnd> {
        self.end.borrow().clone().map(|end| self.told(end))
    }

    fn told(&self, end: ServiceEnd) -> ServiceEnd {
        ServiceEnd {
            limit: end.limit.or(self.cut.get().copied()),
            ..end
        }
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Option<ServiceEnd> {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().map(|end| self.told(end)),
            Err(_closed) => None, // silent-ok: the runtime is going down
        }
    }

    /// SIGTERM to all of it, SIGKILL after the grace; returns when no process of it lives.
    pub async fn stop(&self) -> Option<ServiceEnd> {
        let _ = self.stop.send(()).await; // silent-ok: it has ended
        let patience = Duration::from_millis(GRACE_MS + 5_000);
        tokio::time::timeout(patience, self.wait()).await.ok().flatten() // silent-ok: a process that can't be killed
    }
}
