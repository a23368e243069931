//! The files that a container sees: the system's programs or an image, the plan's mounts, and the covers over parts of them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::bundle::{ContainerBind, ContainerIdentity};
use super::container_refusal;
use super::engine::guest_uid;
use super::guard::{ContainerGuardRules, ContainerGuardedCalls, denied_inside};
use super::image::ImageRootfs;
use super::mask::{VisibleMount, find_covers, find_masks, with_holders};
use super::root;
use super::run::{container_identity, root_user};
use super::stage::IdmappedMount;
use crate::launch::{InMemoryFile, LaunchError, Spec};
use clawk_plan::level::SandboxRefusal;
use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::{Filesystem, FsMode};
use clawk_plan::preflight::path::lexical_path;

/// What the container sees in addition to its root.
#[derive(Debug, Default)]
pub(super) struct ContainerView {
    pub(super) binds: Vec<ContainerBind>,
    /// Host paths that the stage mounts into the root that it makes.
    pub(super) system: Vec<PathBuf>,
    /// Mounts that the stage makes first, with the guest's user as owner.
    pub(super) places: Vec<IdmappedMount>,
    shown: Vec<VisibleMount>,
    pub(super) masks: Vec<PathBuf>,
    /// Device and inode of denied files that have other hard links.
    aliases: BTreeSet<(u64, u64)>,
    /// The agent's own files that writable mounts show, also under the container's names.
    kept: RuntimeFileGuard,
    /// The real paths of writable mounts.
    owned: Vec<PathBuf>,
}

impl ContainerView {
    /// The view of this run's container. Files that must be made for it are put into `folder`.
    pub(super) fn from_spec(
        spec: &Spec,
        image: Option<&ImageRootfs>,
        folder: &Path,
    ) -> Result<Self, LaunchError> {
        let fs = spec.plan.filesystem();
        let mounts = match fs.mode {
            FsMode::Deny => &[][..],
            FsMode::ReadOnly | FsMode::Scoped => &fs.mounts,
            FsMode::Full => {
                let missing = "a container shows its image and the mounts, never the host's whole view";
                return Err(container_refusal(
                    "filesystem.mode: full",
                    missing,
                    "use `scoped` with `mount_paths`, or level `process`",
                )
                .into());
            }
        };
        let base = spec.path_base();
        let mut view = Self {
            owned: clawk_plan::place::writable_places(fs, &base),
            ..Self::default()
        };
        if image.is_none() {
            view.add_system_mounts();
        }
        let read = spec.read_paths.iter().map(|path| (path, false));
        let given = mounts
            .iter()
            .map(|mount| (&mount.path, mount.writable && fs.mode == FsMode::Scoped));
        let absolute = read
            .chain(given)
            .map(|(path, writable)| (lexical_path(&base, path), writable));
        for (path, writable) in with_holders(absolute.collect()) {
            view.add_mount(&path, writable, folder)
                .map_err(|reason| spec.setup_error(&reason))?;
        }
        for file in &spec.files {
            view.place_file(file, folder)
                .map_err(|error| spec.setup_error(&error.to_string()))?;
        }
        view.cover_denied_paths(spec, folder)?;
        Ok(view)
    }

    /// Masks denied paths, and makes the agent's own files read-only.
    fn cover_denied_paths(&mut self, spec: &Spec, folder: &Path) -> Result<(), LaunchError> {
        let fs = spec.plan.filesystem();
        let found = find_masks(&fs.denied, &spec.path_base(), &self.shown)
            .map_err(|missing| container_refusal("mask", missing, "name fewer paths, or mount less"))?;
        (self.masks, self.aliases) = (found.paths, found.inodes);
        self.kept = RuntimeFileGuard::from_paths(&fs.own);
        let covered = find_covers(&self.kept, &self.shown, &self.masks).map_err(|missing| {
            let hint = "name the file itself, not a link to it; or mount a folder below the agent's own";
            container_refusal("own-files", missing, hint)
        })?;
        for part in self.shown.iter().filter(|part| !part.system) {
            self.kept.also_at(&part.source, &part.target);
        }
        let mut above = self.folders_above_covers(&self.masks);
        above.extend(self.folders_above_covers(&covered));
        above.sort_by_key(|folder| (folder.components().count(), folder.clone()));
        above.dedup();
        let covered = covered.into_iter().map(|path| (path, false));
        for (path, writable) in above.into_iter().map(|path| (path, true)).chain(covered) {
            self.add_mount(&path, writable, folder)
                .map_err(|reason| spec.setup_error(&reason))?;
        }
        Ok(())
    }

    /// Whether a writable mount shows the agent's own files.
    pub(super) fn has_own_files(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Which calls the guard must answer, if the runtime supports a guard; `guards` has the reason if not. Covers alone do not
    /// protect the agent's own files: a cover disappears if the owner's editor replaces the file.
    pub(super) fn guarded_calls(
        &self,
        spec: &Spec,
        guards: &Result<(), String>,
    ) -> Result<ContainerGuardedCalls, SandboxRefusal> {
        if let Err(missing) = guards {
            return match self.has_own_files() {
                true => Err(missing_guard_refusal(missing)),
                false => Ok(ContainerGuardedCalls::Nothing), // silent-ok: recorded as missing
            };
        }
        let shows = self.shown.iter().any(|part| !part.system);
        let denied = shows && !spec.plan.filesystem().denied.is_empty();
        Ok(match (denied, self.has_own_files()) {
            (true, _) => ContainerGuardedCalls::All,
            (false, true) => ContainerGuardedCalls::Changes,
            (false, false) => ContainerGuardedCalls::Nothing,
        })
    }

    /// The guard's rules.
    pub(super) fn guard_rules(
        &self,
        spec: &Spec,
        groups: Vec<PathBuf>,
    ) -> Result<ContainerGuardRules, LaunchError> {
        let fs = spec.plan.filesystem();
        let denied = denied_inside(&fs.denied, &spec.path_base(), &self.shown);
        let (user, mapped) = match container_identity() {
            ContainerIdentity::Fixed(user) => (user, false),
            ContainerIdentity::Mapped(..) => (0, true),
        };
        Ok(ContainerGuardRules {
            filesystem: Filesystem {
                denied: denied.map_err(|reason| spec.setup_error(&reason))?,
                ..fs.clone()
            },
            base: spec.path_base(),
            aliases: self.aliases.iter().copied().collect(),
            kept: self.kept.clone(),
            groups,
            user,
            mapped,
        })
    }

    /// Adds the host's programs and libraries.
    fn add_system_mounts(&mut self) {
        self.bind_as_is(Path::new("/usr"));
        for name in MERGED {
            let path = Path::new("/").join(name);
            if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
                self.bind_as_is(&path);
            }
        }
        for name in ETC_BINDS {
            let path = Path::new("/etc").join(name);
            if path.exists() {
                self.bind_as_is(&path);
            }
        }
    }

    fn bind_as_is(&mut self, path: &Path) {
        if root_user() {
            self.system.push(path.to_owned());
        } else {
            self.binds.push(ContainerBind {
                source: path.to_owned(),
                target: path.to_owned(),
                writable: false,
            });
        }
        self.shown.push(VisibleMount {
            source: path.to_owned(),
            target: path.to_owned(),
            system: true,
        });
    }

    fn add_mount(&mut self, path: &Path, writable: bool, folder: &Path) -> Result<(), String> {
        let source = clawk_plan::place::resolve_path(path, &self.owned)
            .map_err(|error| format!("the mount `{}`: {error}", path.display()))?;
        let reserved = ["/", "/proc", "/dev", "/sys"];
        if reserved.iter().any(|place| path == Path::new(place)) {
            return Err(format!("`{}` can't be a mount of a container", path.display()));
        }
        self.shown.push(VisibleMount {
            source: source.clone(),
            target: path.to_owned(),
            system: false,
        });
        let source = if root_user() {
            let at = root::memory_folder(folder)
                .join("m")
                .join(self.places.len().to_string());
            let owner =
                std::os::unix::fs::MetadataExt::uid(&source.metadata().map_err(|error| error.to_string())?);
            self.places.push(IdmappedMount {
                source,
                at: at.clone(),
                owner,
            });
            at
        } else {
            source
        };
        self.binds.push(ContainerBind {
            source,
            target: path.to_owned(),
            writable,
        });
        Ok(())
    }

    /// The folders between a writable mount and a covered path below it. As separate mounts they can't be moved. Otherwise the next
    /// call would find the masked file under another name.
    fn folders_above_covers(&self, covered: &[PathBuf]) -> Vec<PathBuf> {
        let mut above = Vec::new();
        for mask in covered {
            let roots = self.binds.iter().filter(|bind| mask.starts_with(&bind.target));
            let Some(root) = roots.max_by_key(|bind| bind.target.components().count()) else {
                continue;
            };
            if root.writable {
                let folders = mask
                    .ancestors()
                    .skip(1)
                    .take_while(|folder| *folder != root.target);
                above.extend(folders.map(Path::to_path_buf));
            }
        }
        above
    }

    /// Adds a file in memory for this run alone.
    fn place_file(&mut self, file: &InMemoryFile, folder: &Path) -> io::Result<()> {
        let plain =
            !file.name.is_empty() && !file.name.contains('/') && file.name != "." && file.name != "..";
        if !plain {
            return Err(io::Error::other("a placed file's name is not a file name"));
        }
        let path = folder.join(format!("f-{}", file.name));
        fs::write(&path, &file.bytes)?;
        rustix::fs::chmod(&path, rustix::fs::Mode::RUSR)?;
        if root_user() {
            std::os::unix::fs::chown(&path, Some(guest_uid()), Some(guest_uid()))?;
        }
        self.binds.push(ContainerBind {
            source: path,
            target: Path::new(InMemoryFile::FOLDER).join(&file.name),
            writable: false,
        });
        Ok(())
    }

    /// The start folder: the working directory if it is visible, otherwise `/tmp`.
    pub(super) fn working_directory(&self, spec: &Spec) -> PathBuf {
        let wanted = spec.workdir.as_deref().unwrap_or(Path::new("/"));
        let seen = self
            .shown
            .iter()
            .any(|part| wanted.starts_with(&part.target) && wanted.is_dir());
        if seen {
            wanted.to_owned()
        } else {
            PathBuf::from("/tmp")
        }
    }
}

fn missing_guard_refusal(missing: &str) -> SandboxRefusal {
    let missing = format!(
        "the writable mount shows the agent's own files, and nothing keeps them when they are edited meanwhile: {missing}"
    );
    let hint = "use `runc` 1.1 or later, mount a folder below the agent's own, mount it `ro`, or use level `process`";
    container_refusal("own-files", missing, hint)
}

/// Links to `/usr` on merged systems, folders on others.
const MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Entries of the host's `/etc` that programs read. The rest of `/etc` is synthetic.
const ETC_BINDS: [&str; 6] = [
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ssl",
];

/// Makes an empty root with a synthetic `/etc`.
pub(super) fn system_root(root: &Path) -> io::Result<()> {
    for folder in ["usr", "etc", "proc", "dev", "tmp", "run", "var", "home"] {
        fs::create_dir_all(root.join(folder))?;
    }
    for name in MERGED {
        let path = Path::new("/").join(name);
        if let Ok(target) = fs::read_link(&path) {
            std::os::unix::fs::symlink(target, root.join(name))?;
        }
    }
    let (uid, gid) = match container_identity() {
        ContainerIdentity::Fixed(uid) => (uid, uid),
        ContainerIdentity::Mapped(..) => (0, 0),
    };
    let etc = root.join("etc");
    fs::write(
        etc.join("passwd"),
        format!("tool:x:{uid}:{gid}:tool:/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"),
    )?;
    fs::write(etc.join("group"), format!("tool:x:{gid}:\nnogroup:x:65534:\n"))?;
    fs::write(etc.join("hosts"), "127.0.0.1 localhost sandbox\n::1 localhost\n")?;
    fs::write(
        etc.join("nsswitch.conf"),
        "passwd: files\ngroup: files\nhosts: files\n",
    )?;
    rustix::fs::chmod(root, rustix::fs::Mode::from_raw_mode(0o755))?;
    // Some runtimes give an in-memory file system the mode of the folder below it.
    rustix::fs::chmod(root.join("tmp"), rustix::fs::Mode::from_raw_mode(0o1777))?;
    Ok(())
}
