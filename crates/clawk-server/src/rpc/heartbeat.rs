//! `claw.heartbeat` (CKP §9.3.1): sent in READY and in ERROR (the agent runs but reaches no model), and only while the client
//! reads.

use std::time::Duration;

use clawk_kernel::time::Clock;
use clawk_proto::method::{HeartbeatParams, LifecycleState, Method};
use clawk_proto::rpc::write_notification;
use tokio::sync::watch;

use super::ServedRun;
use crate::transport::outbox::Outbox;

/// Sends heartbeats for the current run in `pulse`, until the connection ends.
pub(crate) async fn send_heartbeats(
    mut pulse: watch::Receiver<Option<ServedRun>>,
    outbox: &Outbox,
    clock: &dyn Clock,
) {
    loop {
        let run = pulse.borrow_and_update().clone();
        let Some(run) = run else {
            if pulse.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut ticks =
            tokio::time::interval(Duration::from_millis(run.kernel.heartbeat_interval_ms().max(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await; // the first is immediate: initialize itself was the sign of life
        loop {
            tokio::select! {
                biased;
                changed = pulse.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return, // silent-ok: the connection is over
                },
                _ = ticks.tick() => send_heartbeat(&run, outbox, clock),
            }
        }
    }
}

fn send_heartbeat(run: &ServedRun, outbox: &Outbox, clock: &dyn Clock) {
    let status = run.kernel.status();
    let lives = matches!(status.state, LifecycleState::Ready | LifecycleState::Error);
    if !lives || outbox.is_saturated() || !outbox.is_heard() {
        return;
    }
    let params = HeartbeatParams {
        state: status.state,
        uptime_ms: status.uptime_ms,
        timestamp: clock.now().to_string(),
    };
    let mut line = Vec::new();
    if write_notification(&mut line, Method::Heartbeat.name(), &params) {
        line.push(b'\n');
        outbox.take(&mut line);
    }
}
