//! Room on the host's disks: a run that may write there is ended before they are full. Journal and host need what is left.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use super::{LaunchOutcome, Launcher, LimitHit, SandboxedService, Spec};
use clawk_plan::level::{Level, ObtainedEnforcement};
use clawk_plan::plan::FsMode;
use clawk_plan::preflight::path::lexical;

/// Free space that every disk must keep that a run may write to; 0 means no check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinFree {
    /// `[sandbox] min_free_disk_mb`, MiB.
    pub disk_mb: u64,
    /// `[sandbox] min_free_files`: how many more files there is room for. Empty ones take no bytes.
    pub files: u64,
}

impl Default for MinFree {
    fn default() -> Self {
        Self {
            disk_mb: 512,
            files: 1 << 16,
        }
    }
}

/// Between two looks at the disks.
const LOOK: Duration = Duration::from_millis(100);

/// What a run without a file view of its own may fill.
const HOST: [&str; 3] = ["/", "/tmp", "/home"];

/// The disks that a run may write to, by a place on each, and how much of them must stay free.
pub(super) struct DiskQuota {
    places: Vec<PathBuf>,
    min_free: MinFree,
}

impl Launcher {
    /// With so much of every disk left free.
    #[must_use]
    pub fn leaving_free(mut self, min_free: MinFree) -> Self {
        self.min_free = min_free;
        self
    }

    /// `None`: the run can write nothing of the host's.
    pub(super) fn room(&self, spec: &Spec) -> Option<DiskQuota> {
        let min_free = self.min_free;
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
        let looks = min_free.disk_mb > 0 || min_free.files > 0;
        (looks && !places.is_empty()).then_some(DiskQuota { places, min_free })
    }
}

impl DiskQuota {
    /// Ends when a disk has less left than it must. A disk that does not answer, behind a network that is gone, holds a thread of its
    /// own up and nobody else.
    pub(super) async fn used_up(self) -> LimitHit {
        let min_free = self.min_free;
        let mut looked = tokio::task::spawn_blocking(move || self.floors()).await;
        while let Ok(floors) = looked
            && !floors.is_empty()
        {
            if let Some(hit) = floors.iter().find_map(|floor| floor.reached(min_free)) {
                return hit;
            }
            tokio::time::sleep(LOOK).await;
            looked =
                tokio::task::spawn_blocking(move || floors.into_iter().map(DiskFloor::again).collect()).await;
        }
        std::future::pending().await // nothing to look at, or the agent ends
    }

    fn floors(self) -> Vec<DiskFloor> {
        let MinFree { disk_mb, files } = self.min_free;
        // Where less is free already, work goes on, with what can be spared of it.
        let least = |free: u64, least: u64| if free > least { least } else { free / 2 };
        let places = self.places.into_iter();
        let found = places.filter_map(|place| {
            let free = free(&place)?;
            let least = FreeDiskSpace {
                bytes: least(free.bytes, disk_mb.saturating_mul(1 << 20)),
                files: least(free.files, files),
            };
            Some(DiskFloor { place, free, least })
        });
        found
            .filter(|floor| floor.least.bytes > 0 || floor.least.files > 0)
            .collect()
    }
}

/// A disk, what is free on it, and what must stay free.
struct DiskFloor {
    place: PathBuf,
    free: FreeDiskSpace,
    least: FreeDiskSpace,
}

/// For ordinary users. A file system that makes room for files as it needs it says that there is none: its `least` is 0.
struct FreeDiskSpace {
    bytes: u64,
    files: u64,
}

impl DiskFloor {
    fn reached(&self, min_free: MinFree) -> Option<LimitHit> {
        if self.free.bytes < self.least.bytes {
            return Some(LimitHit::Disk(min_free.disk_mb));
        }
        (self.free.files < self.least.files).then_some(LimitHit::Files(min_free.files))
    }

    fn again(self) -> Self {
        let free = free(&self.place).unwrap_or(self.free);
        Self { free, ..self }
    }
}

/// `None`: there is no such place, or it can't say.
fn free(place: &std::path::Path) -> Option<FreeDiskSpace> {
    let found = rustix::fs::statvfs(place).ok()?; // silent-ok: what isn't there is not written to; the mount itself tells
    Some(FreeDiskSpace {
        bytes: found.f_bavail.saturating_mul(found.f_frsize),
        files: found.f_favail,
    })
}

/// Of a run that was ended for it: its processes die with the future that ran it. `obtained`: what holds every run of its level, since
/// its own words ended with it.
pub(super) fn ended(obtained: ObtainedEnforcement, hit: LimitHit, duration: Duration) -> LaunchOutcome {
    LaunchOutcome {
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

impl SandboxedService {
    /// Ends it when a disk that it may write to has too little left.
    pub(super) fn within(self, room: Option<DiskQuota>) -> Self {
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
pub(super) type ServiceCutReason = std::sync::Arc<OnceLock<LimitHit>>;
