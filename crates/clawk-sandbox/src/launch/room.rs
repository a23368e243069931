//! Room on the host's disks: a run that may write there is ended before they are full. Journal and host need what is left.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Launcher, LimitHit, Outcome, Service, Spec};
use crate::level::{Level, Obtained};
use crate::plan::FsMode;
use crate::preflight::path::lexical;

/// `[sandbox] min_free_disk_mb`, MiB, where nothing is said.
pub const MIN_FREE_DISK_MB: u64 = 512;

/// Between two looks at the disks.
const LOOK: Duration = Duration::from_millis(100);

/// What a run without a file view of its own may fill.
const HOST: [&str; 3] = ["/", "/tmp", "/home"];

/// The disks that a run may write to, by a place on each, and how much of them must stay free.
pub(super) struct Room {
    places: Vec<PathBuf>,
    min_free_mb: u64,
}

impl Launcher {
    /// With so much of every disk left free, MiB; 0 looks at none.
    #[must_use]
    pub fn leaving_free(mut self, mb: u64) -> Self {
        self.min_free_disk_mb = mb;
        self
    }

    /// `None`: the run can write nothing of the host's.
    pub(super) fn room(&self, spec: &Spec) -> Option<Room> {
        let min_free_mb = self.min_free_disk_mb;
        let base = spec.base.as_ref().or(spec.workdir.as_ref());
        let base = base.map_or_else(|| PathBuf::from("/"), PathBuf::clone);
        let files = spec.plan.filesystem();
        let mut places: Vec<PathBuf> = Vec::new();
        if spec.plan.level() == Level::None || files.mode == FsMode::Full {
            places.extend(HOST.map(PathBuf::from));
            places.push(base.clone());
        }
        let writable = files.shown_mounts().into_iter().filter(|(_, writable)| *writable);
        places.extend(writable.map(|(path, _)| lexical(&base, &path)));
        (min_free_mb > 0 && !places.is_empty()).then_some(Room { places, min_free_mb })
    }
}

impl Room {
    /// Ends when a disk has less left than it must. A disk that does not answer, behind a network that is gone, holds a thread of its
    /// own up and nobody else.
    pub(super) async fn used_up(self) -> LimitHit {
        let hit = LimitHit::Disk(self.min_free_mb);
        let mut looked = tokio::task::spawn_blocking(move || self.floors()).await;
        while let Ok(floors) = looked
            && !floors.is_empty()
        {
            if floors.iter().any(Floor::is_reached) {
                return hit;
            }
            tokio::time::sleep(LOOK).await;
            looked =
                tokio::task::spawn_blocking(move || floors.into_iter().map(Floor::again).collect()).await;
        }
        std::future::pending().await // nothing to look at, or the agent ends
    }

    fn floors(self) -> Vec<Floor> {
        let least = self.min_free_mb.saturating_mul(1 << 20);
        let places = self.places.into_iter();
        let found = places.filter_map(|place| {
            let free = free(&place)?;
            // Where less is free already, work goes on, with what can be spared of it.
            let least = if free > least { least } else { free / 2 };
            Some(Floor { place, free, least })
        });
        found.filter(|floor| floor.least > 0).collect()
    }
}

/// A disk, bytes that are free on it, and that must stay free.
struct Floor {
    place: PathBuf,
    free: u64,
    least: u64,
}

impl Floor {
    fn is_reached(&self) -> bool {
        self.free < self.least
    }

    fn again(self) -> Self {
        let free = free(&self.place).unwrap_or(self.free);
        Self { free, ..self }
    }
}

/// Bytes free for ordinary users; `None`: there is no such place, or it can't say.
fn free(place: &std::path::Path) -> Option<u64> {
    let found = rustix::fs::statvfs(place).ok()?; // silent-ok: what isn't there is not written to; the mount itself tells
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Of a run that was ended for it: its processes die with the future that ran it. `obtained`: what holds every run of its level, since
/// its own words ended with it.
pub(super) fn ended(obtained: Obtained, hit: LimitHit, duration: Duration) -> Outcome {
    Outcome {
        exit_code: None,
        signal: Some(9),
        stdout: Vec::new(),
        stderr: Vec::new(),
        truncated: true,
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        obtained,
        limit: Some(hit),
        swept: 0,
    }
}

impl Service {
    /// Ends it when a disk that it may write to has too little left.
    pub(super) fn within(self, room: Option<Room>) -> Self {
        let Some(room) = room else { return self };
        let (stop, mut end, cut) = (self.stop.downgrade(), self.end.clone(), self.cut.clone());
        let watching = async move {
            tokio::select! {
                hit = room.used_up() => {
                    let _ = cut.set(hit); // silent-ok: it is set once
                    if let Some(stop) = stop.upgrade() {
                        let _ = stop.send(()).await; // silent-ok: it has ended
                    }
                }
                () = async { let _ = end.wait_for(Option::is_some).await; } => {}
            }
        };
        #[expect(clippy::disallowed_methods, reason = "ends with the service")]
        tokio::spawn(watching);
        self
    }
}

/// Why the service was ended from here.
pub(super) type Cut = std::sync::Arc<OnceLock<LimitHit>>;
