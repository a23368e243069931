//! Reads the host's mounts and their owners, before the sandbox has its own view.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::order::SandboxEnclosure;
use super::pieces::{open_host, open_mount};
use clawk_plan::plan::FsMode;

/// The owner of the file behind a descriptor.
pub(super) fn fd_owner(fd: impl AsFd) -> io::Result<(u32, u32)> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_uid, stat.st_gid))
}

/// The mount points of this namespace below `/` that mode `full` shows, parents first.
pub(super) fn mount_points() -> io::Result<Vec<PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    let mut points: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(4))
        .map(unescape_mount_path)
        .filter(|path| path != Path::new("/"))
        .filter(|path| {
            !["/proc", "/sys", "/dev"]
                .iter()
                .any(|root| path.starts_with(root))
        })
        .collect();
    points.sort_by_key(|path| path.components().count());
    points.dedup();
    Ok(points)
}

/// Decodes the octal escapes of mountinfo: blanks, tabs, line ends and backslashes.
fn unescape_mount_path(text: &str) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, octal.and_then(|digits| u8::from_str_radix(digits, 8).ok())) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// The owners of everything that will be mounted, so that their id maps can be made while this process has the privilege. Something
/// that can't be read here has no id map, and is refused when it is mounted.
pub(super) fn bind_owners(order: &SandboxEnclosure) -> Vec<(u32, u32)> {
    let writable = clawk_plan::place::writable_places(&order.filesystem, &order.base);
    let mut owners: Vec<(u32, u32)> = order
        .host_binds()
        .iter()
        .filter_map(|bind| fd_owner(open_mount(&bind.path, &writable).ok()?).ok())
        .collect();
    if order.filesystem.mode == FsMode::Full {
        owners.push((0, 0));
        let points = mount_points().unwrap_or_default();
        owners.extend(
            points
                .iter()
                .filter_map(|path| fd_owner(open_host(path).ok()?).ok()),
        );
    }
    owners.sort_unstable();
    owners.dedup();
    owners
}
