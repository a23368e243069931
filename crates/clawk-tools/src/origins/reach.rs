//! What a call could read and write in files, by its tool, its arguments and its sandbox.

use std::path::{Path, PathBuf};

use clawk_plan::plan::FsMode;
use clawk_plan::{Level, Plan};
use serde_json::Value;

use super::Asked;
use crate::builtin::{Builtin, reaches};
use crate::mcp::Source;
use crate::runner::Binding;

/// What may be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reads {
    /// No file.
    Nothing,
    /// Everything below these folders; a file is itself.
    Trees(Vec<PathBuf>),
    /// Any file of the machine.
    Everything,
}

/// What may be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Writes {
    /// No file.
    Nothing,
    /// This file; `whole`: nothing of what stood there stays.
    File {
        /// Where it lies.
        place: PathBuf,
        /// It is written anew.
        whole: bool,
    },
    /// Anything below these folders.
    Trees(Vec<PathBuf>),
    /// Any file of the machine.
    Everything,
}

/// Both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) reads: Reads,
    pub(super) writes: Writes,
}

impl Reach {
    const NONE: Self = Self {
        reads: Reads::Nothing,
        writes: Writes::Nothing,
    };

    /// Blocking: paths are resolved.
    pub(super) fn of(binding: &Binding, asked: &Asked) -> Self {
        let (plan, workdir) = (&*asked.plan, &*asked.workdir);
        let text = |name: &str| asked.arguments.get(name).and_then(Value::as_str);
        match binding {
            Binding::Builtin(builtin) => match builtin {
                Builtin::FileRead => Self::reading(workdir, text("path")),
                // Names are text as well.
                Builtin::FileList | Builtin::FileSearch => {
                    Self::reading(workdir, Some(text("path").unwrap_or(".")))
                }
                Builtin::FileEdit | Builtin::FileWrite => {
                    let whole = *builtin == Builtin::FileWrite;
                    let place = text("path").and_then(|path| reaches(plan, workdir, path));
                    let reads = match (&place, whole) {
                        (Some(place), false) => Reads::Trees(vec![place.clone()]),
                        (Some(_), true) | (None, _) => Reads::Nothing,
                    };
                    let writes = place.map_or(Writes::Nothing, |place| Writes::File { place, whole });
                    Self { reads, writes }
                }
                Builtin::Shell => Self::program(plan, workdir, &[]),
                Builtin::Echo
                | Builtin::WebFetch
                | Builtin::Sleep
                | Builtin::HttpRequest
                | Builtin::AskUser
                | Builtin::MemoryStore
                | Builtin::MemoryQuery
                | Builtin::MemoryForget
                | Builtin::ContextWrite => Self::NONE,
            },
            Binding::Command(command) => {
                let mut shown = command.read_paths.clone();
                shown.extend(command.start_in.clone());
                Self::program(plan, workdir, &shown)
            }
            Binding::Mcp(tool) => match tool.server.source() {
                // The server runs in the box of the first of its tools.
                Source::Program { spec, .. } => {
                    let server = Self::program(&spec.plan, workdir, &spec.read_paths);
                    server.and(Self::program(plan, workdir, &[]))
                }
                Source::Endpoint(_) => Self::NONE,
            },
            Binding::Http(_) | Binding::A2a(_) | Binding::Extra(_) => Self::NONE,
        }
    }

    fn reading(workdir: &Path, path: Option<&str>) -> Self {
        // silent-ok: what is not there can't be read
        let place = path.and_then(|path| workdir.join(path).canonicalize().ok());
        Self {
            reads: place.map_or(Reads::Nothing, |place| Reads::Trees(vec![place])),
            writes: Writes::Nothing,
        }
    }

    /// A program gets what its box shows.
    fn program(plan: &Plan, workdir: &Path, shown: &[PathBuf]) -> Self {
        let files = plan.filesystem();
        if plan.level() == Level::None || files.mode == FsMode::Full {
            return Self {
                reads: Reads::Everything,
                writes: Writes::Everything,
            };
        }
        let real = |path: &Path| workdir.join(path).canonicalize().ok(); // silent-ok: what is not there is not mounted
        let mut reads: Vec<PathBuf> = shown.iter().filter_map(|path| real(path)).collect();
        let mut writes = Vec::new();
        if files.mode != FsMode::Deny {
            for mount in &files.mounts {
                let Some(path) = real(&mount.path) else { continue };
                if mount.writable && files.mode == FsMode::Scoped {
                    writes.push(path.clone());
                }
                reads.push(path);
            }
        }
        Self {
            reads: match outermost(reads) {
                none if none.is_empty() => Reads::Nothing,
                trees => Reads::Trees(trees),
            },
            writes: match outermost(writes) {
                none if none.is_empty() => Writes::Nothing,
                trees => Writes::Trees(trees),
            },
        }
    }

    fn and(self, other: Self) -> Self {
        let reads = match (self.reads, other.reads) {
            (Reads::Everything, _) | (_, Reads::Everything) => Reads::Everything,
            (Reads::Nothing, reads) | (reads, Reads::Nothing) => reads,
            (Reads::Trees(one), Reads::Trees(two)) => {
                Reads::Trees(outermost(one.into_iter().chain(two).collect()))
            }
        };
        let writes = match (self.writes, other.writes) {
            (Writes::Everything, _) | (_, Writes::Everything) => Writes::Everything,
            (Writes::Nothing, writes) | (writes, Writes::Nothing) => writes,
            (Writes::Trees(one), Writes::Trees(two)) => {
                Writes::Trees(outermost(one.into_iter().chain(two).collect()))
            }
            (one, Writes::File { place, .. }) | (Writes::File { place, .. }, one) => match one {
                Writes::Trees(trees) => Writes::Trees(outermost(trees.into_iter().chain([place]).collect())),
                Writes::Nothing | Writes::File { .. } | Writes::Everything => {
                    Writes::File { place, whole: false }
                }
            },
        };
        Self { reads, writes }
    }
}

/// Without what lies below another.
pub(super) fn outermost(mut all: Vec<PathBuf>) -> Vec<PathBuf> {
    all.sort();
    let mut roots: Vec<PathBuf> = Vec::new();
    for path in all {
        if !roots.iter().any(|root| path.starts_with(root)) {
            roots.push(path);
        }
    }
    roots
}
