//! Disk quota: a run is ended before the host's disks are full, because journal and host need the remaining space.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use super::{LaunchOutcome, Launcher, LimitHit, SandboxedService, Spec};
use clawk_plan::level::{Level, ObtainedEnforcement};
use clawk_plan::plan::FsMode;
use clawk_plan::preflight::path::lexical_path;

/// How much must stay free on every disk to which a run may write. 0: no check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinFree {
    /// `[sandbox] min_free_disk_mb`: free space in MiB.
    pub disk_mb: u64,
    /// `[sandbox] min_free_files`: for how many more files there must be space. Empty files use no bytes.
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

/// The pause between two checks of the disks.
const LOOK: Duration = Duration::from_millis(100);

/// The places that a run without its own file view may fill.
const HOST: [&str; 3] = ["/", "/tmp", "/home"];

/// The disks to which a run may write, each by one path on it, and how much must stay free.
pub(super) struct DiskQuota {
    places: Vec<PathBuf>,
    min_free: MinFree,
}

impl Launcher {
    /// Returns this launcher with a minimum of free space on every disk.
    #[must_use]
    pub fn leaving_free(mut self, min_free: MinFree) -> Self {
        self.min_free = min_free;
        self
    }

    /// The disk quota of a run; `None`: the run can't write to the host's disks.
    pub(super) fn disk_quota(&self, spec: &Spec) -> Option<DiskQuota> {
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
        places.extend(writable.map(|(path, _)| lexical_path(&base, &path)));
        let looks = min_free.disk_mb > 0 || min_free.files > 0;
        (looks && !places.is_empty()).then_some(DiskQuota { places, min_free })
    }
}

impl DiskQuota {
    /// Waits until a disk has too little free space. If a disk does not answer, for example behind a broken network, it blocks only
    /// its own thread.
    pub(super) async fn used_up(self) -> LimitHit {
        let min_free = self.min_free;
        let mut looked = tokio::task::spawn_blocking(move || self.disk_floors()).await;
        while let Ok(floors) = looked
            && !floors.is_empty()
        {
            if let Some(hit) = floors.iter().find_map(|floor| floor.limit_hit(min_free)) {
                return hit;
            }
            tokio::time::sleep(LOOK).await;
            looked = tokio::task::spawn_blocking(move || {
                floors.into_iter().map(DiskFloor::measure_again).collect()
            })
            .await;
        }
        std::future::pending().await // nothing to look at, or the agent ends
    }

    fn disk_floors(self) -> Vec<DiskFloor> {
        let MinFree { disk_mb, files } = self.min_free;
        // If less is free from the start, the run may still use half of it.
        let least = |free: u64, least: u64| if free > least { least } else { free / 2 };
        let places = self.places.into_iter();
        let found = places.filter_map(|place| {
            let free = free_disk_space(&place)?;
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

/// A disk, its free space, and how much must stay free.
struct DiskFloor {
    place: PathBuf,
    free: FreeDiskSpace,
    least: FreeDiskSpace,
}

/// The space that is free for ordinary users. A file system that creates file entries on demand reports none; its `least` is 0.
struct FreeDiskSpace {
    bytes: u64,
    files: u64,
}

impl DiskFloor {
    fn limit_hit(&self, min_free: MinFree) -> Option<LimitHit> {
        if self.free.bytes < self.least.bytes {
            return Some(LimitHit::Disk(min_free.disk_mb));
        }
        (self.free.files < self.least.files).then_some(LimitHit::Files(min_free.files))
    }

    fn measure_again(self) -> Self {
        let free = free_disk_space(&self.place).unwrap_or(self.free);
        Self { free, ..self }
    }
}

/// The free space at this path; `None`: the path does not exist, or the file system does not report it.
fn free_disk_space(place: &std::path::Path) -> Option<FreeDiskSpace> {
    let found = rustix::fs::statvfs(place).ok()?; // silent-ok: what isn't there is not written to; the mount itself tells
    Some(FreeDiskSpace {
        bytes: found.f_bavail.saturating_mul(found.f_frsize),
        files: found.f_favail,
    })
}

/// The outcome of a run that was ended for its quota. Its processes end when the future that ran it is dropped. `obtained` has the
/// mechanisms of every run of its level, because the run's own report is lost.
pub(super) fn quota_exceeded_outcome(
    obtained: ObtainedEnforcement,
    hit: LimitHit,
    duration: Duration,
) -> LaunchOutcome {
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
    /// Ends the service when a disk to which it may write has too little free space.
    pub(super) fn with_quota(self, room: Option<DiskQuota>) -> Self {
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

/// The limit for which the launcher ended the service, if any.
pub(super) type ServiceCutReason = std::sync::Arc<OnceLock<LimitHit>>;
