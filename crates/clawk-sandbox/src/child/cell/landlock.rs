//! The second barrier around files: Landlock rules that repeat the view, so that one mistake in the mounts is not enough. Landlock
//! is required: without it, nothing runs at this level.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use rustix::fs::{CWD, FileType, Mode, OFlags};

use super::view::BuiltView;

/// The oldest Landlock ABI that is usable: before it, files could not be moved to another folder (Linux 5.19). Truncation is part
/// of the next one (Linux 6.2). With this one, only read-only mounts prevent truncation, and the mechanism's name says so.
const OLDEST: i32 = 2;

/// The kernel's Landlock ABI version.
fn kernel_abi() -> i32 {
    [ABI::V7, ABI::V6, ABI::V5, ABI::V4, ABI::V3, ABI::V2]
        .into_iter()
        .find(|abi| accepts_abi(*abi))
        .map_or(0, |abi| abi as i32)
}

/// Whether a rule set with all rights of this ABI can be created.
fn accepts_abi(abi: ABI) -> bool {
    let mut set = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let Ok(with_files) = set.handle_access(AccessFs::from_all(abi)) else {
        return false;
    };
    set = with_files;
    if !Scope::from_all(abi).is_empty() {
        let Ok(with_scope) = set.scope(Scope::from_all(abi)) else {
            return false;
        };
        set = with_scope;
    }
    set.create().is_ok()
}

fn abi_of(number: i32) -> ABI {
    match number {
        7.. => ABI::V7,
        6 => ABI::V6,
        5 => ABI::V5,
        4 => ABI::V4,
        3 => ABI::V3,
        _ => ABI::V2,
    }
}

/// Restricts this process and everything that it starts. `own` is a program that may be executed although the view does not contain
/// it. Returns the mechanism's name for the trace.
pub(super) fn restrict_process(view: &BuiltView, own: Option<impl AsFd>) -> io::Result<String> {
    let number = kernel_abi();
    if number < OLDEST {
        return Err(io::Error::other(
            "landlock: this kernel has no Landlock, or too old a one",
        ));
    }
    let abi = abi_of(number);
    let failed = |error: landlock::RulesetError| io::Error::other(format!("landlock: {error}"));
    let mut set = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))
        .map_err(failed)?;
    if !Scope::from_all(abi).is_empty() {
        set = set.scope(Scope::from_all(abi)).map_err(failed)?;
    }
    let mut rules = set.create().map_err(failed)?;
    let read = AccessFs::from_read(abi);
    // Creating devices and socket files is forbidden everywhere.
    let never = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock;
    let write = AccessFs::from_all(abi) & !never;
    let listing: BitFlags<AccessFs> = AccessFs::ReadDir.into();
    let paths = view
        .readable
        .iter()
        .map(|path| (path.as_path(), read))
        .chain(view.writable.iter().map(|path| (path.as_path(), write)))
        .chain([(Path::new("/"), listing)]);
    let files_only = AccessFs::from_file(abi);
    for (path, access) in paths {
        let Ok(fd) = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
            continue; // covered by a mask: no rule, no access
        };
        let folder = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) == FileType::Directory;
        let access = if folder { access } else { access & files_only };
        rules = rules.add_rule(PathBeneath::new(fd, access)).map_err(failed)?;
    }
    if let Some(own) = own {
        let access = AccessFs::Execute | AccessFs::ReadFile;
        rules = rules.add_rule(PathBeneath::new(own, access)).map_err(failed)?;
    }
    let status = rules.restrict_self().map_err(failed)?;
    if status.ruleset != landlock::RulesetStatus::FullyEnforced {
        return Err(io::Error::other("landlock: the rules are not fully enforced"));
    }
    Ok(format!("landlock:abi{number}"))
}
