//! What clawk, the stage in the box and the agent in the machine say to each other: frames of a kind, a length (4 bytes,
//! little endian) and a body. The stage passes the launcher's frames on to the machine as they are; what comes from the
//! machine is untrusted: lengths are bounded, output goes nowhere but to the run's own streams.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::Filesystem;

/// Longest frame to the machine, bytes: arguments and environment.
pub(super) const MAX_JOB_BYTES: usize = 8 << 20;

/// Longest frame of output or input, bytes.
pub(super) const CHUNK: usize = 32 << 10;

/// Longest frame from the machine, bytes.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 10;

/// To the stage, and from there to the machine.
pub(super) const WHO: u8 = b'u';
pub(super) const JOB: u8 = b'j';
/// Standard input; an empty one is its end.
pub(super) const INPUT: u8 = b'i';

/// From the machine.
pub(super) const HELLO: u8 = b'h';
pub(super) const STARTED: u8 = b's';
pub(super) const FAULT: u8 = b'f';
pub(super) const OUT: u8 = b'o';
pub(super) const ERR: u8 = b'e';
pub(super) const END: u8 = b'x';
/// From the stage: no machine, and why.
pub(super) const BROKEN: u8 = b'b';

/// How the stage is to make the machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MachineSetup {
    pub(super) qemu: PathBuf,
    /// Everything but descriptors.
    pub(super) args: Vec<String>,
    /// What the file server judges names by.
    pub(super) rules: FileServerRules,
    /// How long the machine may take until its agent speaks, milliseconds.
    pub(super) boot_ms: u64,
}

/// What of the view is denied.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FileServerRules {
    pub(super) filesystem: Filesystem,
    pub(super) base: PathBuf,
    /// Denied files that have further names, by device and inode.
    pub(super) aliases: Vec<(u64, u64)>,
    /// The agent's own files, as they are on the host.
    #[serde(default)]
    pub(super) kept: RuntimeFileGuard,
}

/// What the machine is to run. Its environment may hold secrets: no `Debug`.
#[derive(Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) program: String,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) workdir: String,
    pub(super) memory_mb: u64,
    pub(super) max_processes: u64,
    pub(super) max_open_files: u64,
}

/// Who the tool is in the machine: the user of the box, so that files have the same owner on both sides.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MachineToolUser {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// How the tool ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MachineToolExit {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) memory: bool,
    pub(super) processes: bool,
    /// Processes that it left behind.
    pub(super) swept: u64,
}

/// One frame's bytes.
pub(super) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut whole = Vec::with_capacity(body.len() + 5);
    whole.push(kind);
    whole.extend_from_slice(&length.to_le_bytes());
    whole.extend_from_slice(body);
    whole
}

/// Writes a frame in one piece.
pub(super) fn send(mut to: impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    to.write_all(&frame(kind, body))
}

/// Kind and length of a frame's first five bytes.
pub(super) fn header(bytes: [u8; 5], longest: usize) -> io::Result<(u8, usize)> {
    let [kind, a, b, c, d] = bytes;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).map_err(io::Error::other)?;
    if length > longest {
        return Err(io::Error::other(format!("a frame of {length} bytes")));
    }
    Ok((kind, length))
}

/// The next frame; `None` at the end.
pub(super) fn next(mut from: impl Read, longest: usize) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut first = [0_u8; 5];
    match from.read_exact(&mut first) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (kind, length) = header(first, longest)?;
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some((kind, body)))
}
