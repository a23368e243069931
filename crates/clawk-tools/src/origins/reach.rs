//! Computes which files a call could read and write, from its tool, arguments and sandbox.

use std::path::{Path, PathBuf};

use clawk_plan::plan::FsMode;
use clawk_plan::{Level, Plan};
use serde_json::Value;

use super::TrackedCall;
use crate::builtin::{BuiltinTool, write_target};
use crate::mcp::McpServerSource;
use crate::runner::ExecutorBinding;

/// What the call may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileReads {
    /// No file.
    Nothing,
    /// Everything below these paths; a path may also be a file.
    Trees(Vec<PathBuf>),
    /// Any file of the machine.
    Everything,
}

/// What the call may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FileWrites {
    /// No file.
    Nothing,
    /// This file only.
    File {
        /// The file's path.
        place: PathBuf,
        /// Whether it is completely rewritten.
        whole: bool,
    },
    /// Anything below these folders.
    Trees(Vec<PathBuf>),
    /// Any file of the machine.
    Everything,
}

/// What the call may read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileReach {
    pub(super) reads: FileReads,
    pub(super) writes: FileWrites,
}

impl FileReach {
    const NONE: Self = Self {
        reads: FileReads::Nothing,
        writes: FileWrites::Nothing,
    };

    /// Computes the reach of a call. Blocking, because paths are resolved.
    pub(super) fn for_call(binding: &ExecutorBinding, asked: &TrackedCall) -> Self {
        let (plan, workdir) = (&*asked.plan, &*asked.workdir);
        let text = |name: &str| asked.arguments.get(name).and_then(Value::as_str);
        match binding {
            ExecutorBinding::Builtin(builtin) => match builtin {
                BuiltinTool::FileRead => Self::for_reading(workdir, text("path")),
                // File names are text as well.
                BuiltinTool::FileList | BuiltinTool::FileSearch => {
                    Self::for_reading(workdir, Some(text("path").unwrap_or(".")))
                }
                BuiltinTool::FileEdit | BuiltinTool::FileWrite => {
                    let whole = *builtin == BuiltinTool::FileWrite;
                    let place = text("path").and_then(|path| write_target(plan, workdir, path));
                    let reads = match (&place, whole) {
                        (Some(place), false) => FileReads::Trees(vec![place.clone()]),
                        (Some(_), true) | (None, _) => FileReads::Nothing,
                    };
                    let writes = place.map_or(FileWrites::Nothing, |place| FileWrites::File { place, whole });
                    Self { reads, writes }
                }
                BuiltinTool::Shell => Self::for_program(plan, workdir, &[]),
                BuiltinTool::Echo
                | BuiltinTool::WebFetch
                | BuiltinTool::Sleep
                | BuiltinTool::HttpRequest
                | BuiltinTool::AskUser
                | BuiltinTool::MemoryStore
                | BuiltinTool::MemoryQuery
                | BuiltinTool::MemoryForget
                | BuiltinTool::ContextWrite
                | BuiltinTool::Date
                | BuiltinTool::WebSearch
                | BuiltinTool::ChannelSend
                | BuiltinTool::Schedule => Self::NONE,
            },
            ExecutorBinding::Command(command) => {
                let mut shown = command.read_paths.clone();
                shown.extend(command.start_in.clone());
                Self::for_program(plan, workdir, &shown)
            }
            ExecutorBinding::Mcp(tool) => match tool.server.source() {
                // The server runs in the sandbox of its first tool.
                McpServerSource::Program { spec, .. } => {
                    let server = Self::for_program(&spec.plan, workdir, &spec.read_paths);
                    server.merged_with(Self::for_program(plan, workdir, &[]))
                }
                McpServerSource::Endpoint(_) => Self::NONE,
            },
            ExecutorBinding::Http(_)
            | ExecutorBinding::A2a(_)
            | ExecutorBinding::Search(_)
            | ExecutorBinding::Extra(_) => Self::NONE,
        }
    }

    fn for_reading(workdir: &Path, path: Option<&str>) -> Self {
        // silent-ok: a path that does not exist can't be read
        let place = path.and_then(|path| workdir.join(path).canonicalize().ok());
        Self {
            reads: place.map_or(FileReads::Nothing, |place| FileReads::Trees(vec![place])),
            writes: FileWrites::Nothing,
        }
    }

    /// A program can reach what its sandbox shows.
    fn for_program(plan: &Plan, workdir: &Path, shown: &[PathBuf]) -> Self {
        let files = plan.filesystem();
        if plan.level() == Level::None || files.mode == FsMode::Full {
            return Self {
                reads: FileReads::Everything,
                writes: FileWrites::Everything,
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
            reads: match outermost_paths(reads) {
                none if none.is_empty() => FileReads::Nothing,
                trees => FileReads::Trees(trees),
            },
            writes: match outermost_paths(writes) {
                none if none.is_empty() => FileWrites::Nothing,
                trees => FileWrites::Trees(trees),
            },
        }
    }

    fn merged_with(self, other: Self) -> Self {
        let reads = match (self.reads, other.reads) {
            (FileReads::Everything, _) | (_, FileReads::Everything) => FileReads::Everything,
            (FileReads::Nothing, reads) | (reads, FileReads::Nothing) => reads,
            (FileReads::Trees(one), FileReads::Trees(two)) => {
                FileReads::Trees(outermost_paths(one.into_iter().chain(two).collect()))
            }
        };
        let writes = match (self.writes, other.writes) {
            (FileWrites::Everything, _) | (_, FileWrites::Everything) => FileWrites::Everything,
            (FileWrites::Nothing, writes) | (writes, FileWrites::Nothing) => writes,
            (FileWrites::Trees(one), FileWrites::Trees(two)) => {
                FileWrites::Trees(outermost_paths(one.into_iter().chain(two).collect()))
            }
            (one, FileWrites::File { place, .. }) | (FileWrites::File { place, .. }, one) => match one {
                FileWrites::Trees(trees) => {
                    FileWrites::Trees(outermost_paths(trees.into_iter().chain([place]).collect()))
                }
                FileWrites::Nothing | FileWrites::File { .. } | FileWrites::Everything => {
                    FileWrites::File { place, whole: false }
                }
            },
        };
        Self { reads, writes }
    }
}

/// Removes paths that are below another path.
pub(super) fn outermost_paths(mut all: Vec<PathBuf>) -> Vec<PathBuf> {
    all.sort();
    let mut roots: Vec<PathBuf> = Vec::new();
    for path in all {
        if !roots.iter().any(|root| path.starts_with(root)) {
            roots.push(path);
        }
    }
    roots
}
