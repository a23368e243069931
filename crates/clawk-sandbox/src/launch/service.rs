//! A program that keeps running and communicates over its standard streams, such as an MCP server.

use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};

use super::room::ServiceCutReason;
use super::run::{SupervisorControl, SupervisorParts, pipe_pair};
use super::streams::OutputTail;
use super::wire::{GRACE_MS, SupervisorReport};
use super::{LaunchError, LaunchInput, Launcher, LimitHit, Spec};
use clawk_plan::level::{CodeOrigin, ObtainedEnforcement};

/// How long a service may take until its program runs, in milliseconds.
const START_MS: u64 = 10_000;

/// How a service ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEnd {
    /// The program's exit code, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if any.
    pub signal: Option<i32>,
    /// The limit that it exceeded, if any.
    pub limit: Option<LimitHit>,
}

/// A running service. Dropping it kills all of its processes.
#[derive(Debug)]
pub struct SandboxedService {
    /// Its standard input; the user of the service takes it.
    pub stdin: Option<pipe::Sender>,
    /// Its standard output; the user of the service takes it.
    pub stdout: Option<pipe::Receiver>,
    obtained: ObtainedEnforcement,
    stderr: OutputTail,
    pub(super) stop: mpsc::Sender<()>,
    pub(super) end: watch::Receiver<Option<ServiceEnd>>,
    /// The limit for which the launcher ended it, if any.
    pub(super) cut: ServiceCutReason,
    /// Kept for the lifetime of the service: its container's files, its network access.
    kept: std::sync::Mutex<Vec<super::EgressServerHandle>>,
}

impl Launcher {
    /// Starts a service in `spec`'s plan, without a time limit. Its standard error is read; the last 16 KiB are kept.
    ///
    /// # Errors
    /// [`LaunchError::Refused`]: nothing ran.
    pub async fn start_service(&self, spec: &Spec) -> Result<SandboxedService, LaunchError> {
        let resolved = spec.with_resolved_denials();
        let spec = resolved.as_ref().unwrap_or(spec);
        spec.plan.check_available()?;
        let room = self.disk_quota(spec);
        let service = match self.above_serve(spec).await {
            Some(service) => service,
            None => self.serve_process(spec).await,
        };
        Ok(service?.with_quota(room))
    }

    async fn serve_process(&self, spec: &Spec) -> Result<SandboxedService, LaunchError> {
        let order = spec.sandbox_order(None)?;
        let (input, stdin) = match &spec.stdin {
            LaunchInput::Given(_) => (super::run::open_input(spec)?.0, None),
            LaunchInput::Null | LaunchInput::Bytes(_) => {
                let (input, stdin) = pipe_pair(spec)?;
                (input, Some(stdin))
            }
        };
        let mut parts = self.start_supervisor(spec, &order, &input)?;
        drop(input);
        let starting = await_start(spec, &mut parts.control);
        let obtained = match tokio::time::timeout(Duration::from_millis(START_MS), starting).await {
            Ok(started) => started?,
            Err(_elapsed) => return Err(spec.setup_error("its supervisor does not answer")),
        };
        let stderr = OutputTail::default();
        let SupervisorParts {
            output: [stdout, err],
            control,
            gone: _,
        } = parts;
        let draining = stderr.clone().drain_stream(Some(err));
        let (stop, stopping) = mpsc::channel(1);
        let (ended, end) = watch::channel(None);
        let limits = *spec.plan.limits();
        let tending = watch_service(control, stopping, draining, limits, ended);
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
                return Err(spec.setup_error("its supervisor ended at once"));
            }
            Err(error) => return Err(spec.setup_error(&error.to_string())),
        }
    }
}

/// Owns the supervisor until the service has ended or its handle is dropped.
async fn watch_service(
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
                // The handle was dropped: closing the socket kills all processes.
                None => break Ok(None),
            },
        }
    };
    control.close().await;
    if !drained {
        // Wait a moment for its last output. A process that left the tree may keep the stream open for longer.
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
            limit: hit.map(|hit| LimitHit::from_report(hit, &limits, limits.timeout_ms)),
        },
        // silent-ok: whatever else the supervisor reported, the service is over
        Ok(Some(_) | None) | Err(_) => ServiceEnd {
            exit_code: None,
            signal: None,
            limit: None,
        },
    };
    ended.send_replace(Some(end));
}

impl SandboxedService {
    /// Adds the isolation of another level, which lasts as long as the service.
    pub(crate) fn with_enclosure(
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
    pub fn obtained_enforcement(&self) -> &ObtainedEnforcement {
        &self.obtained
    }

    /// The last part of its standard error, up to 16 KiB.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.stderr.text()
    }

    /// How the service ended; `None` while it runs.
    #[must_use]
    pub fn service_end(&self) -> Option<ServiceEnd> {
        self.end.borrow().clone().map(|end| self.add_quota_limit(end))
    }

    fn add_quota_limit(&self, end: ServiceEnd) -> ServiceEnd {
        ServiceEnd {
            limit: end.limit.or(self.cut.get().copied()),
            ..end
        }
    }

    /// Waits for the end of the service.
    pub async fn wait(&self) -> Option<ServiceEnd> {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().map(|end| self.add_quota_limit(end)),
            Err(_closed) => None, // silent-ok: the runtime is going down
        }
    }

    /// Sends SIGTERM to all processes, and SIGKILL after the grace period. Returns when all of them have ended.
    pub async fn stop(&self) -> Option<ServiceEnd> {
        let _ = self.stop.send(()).await; // silent-ok: it has ended
        let patience = Duration::from_millis(GRACE_MS + 5_000);
        tokio::time::timeout(patience, self.wait()).await.ok().flatten() // silent-ok: a process that can't be killed
    }
}
