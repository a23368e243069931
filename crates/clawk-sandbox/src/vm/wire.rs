//! The messages between the launcher, the stage in the sandbox and the agent in the machine. A frame is a kind, a length (4 bytes,
//! little endian) and a body. The stage forwards the launcher's frames to the machine unchanged. Frames from the machine are
//! untrusted: lengths are limited, and output goes only to the run's own streams.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::Filesystem;

/// The maximum length of a frame to the machine, in bytes: arguments and environment.
pub(super) const MAX_JOB_BYTES: usize = 8 << 20;

/// The maximum length of a frame of output or input, in bytes.
pub(super) const CHUNK: usize = 32 << 10;

/// The maximum length of a frame from the machine, in bytes.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Kinds of frames to the stage and from there to the machine.
pub(super) const WHO: u8 = b'u';
pub(super) const JOB: u8 = b'j';
/// Standard input; an empty frame is its end.
pub(super) const INPUT: u8 = b'i';

/// Kinds of frames from the machine.
pub(super) const HELLO: u8 = b'h';
pub(super) const STARTED: u8 = b's';
pub(super) const FAULT: u8 = b'f';
pub(super) const OUT: u8 = b'o';
pub(super) const ERR: u8 = b'e';
pub(super) const END: u8 = b'x';
/// From the stage: the machine could not be started, with the reason.
pub(super) const BROKEN: u8 = b'b';

/// How the stage must start the machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MachineSetup {
    pub(super) qemu: PathBuf,
    /// qemu's arguments, without the descriptors.
    pub(super) args: Vec<String>,
    /// The file server's rules.
    pub(super) rules: FileServerRules,
    /// How long the machine may take until its agent answers, in milliseconds.
    pub(super) boot_ms: u64,
}

/// The denied paths of the view.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FileServerRules {
    pub(super) filesystem: Filesystem,
    pub(super) base: PathBuf,
    /// Device and inode of denied files that have other hard links.
    pub(super) aliases: Vec<(u64, u64)>,
    /// The agent's own files, as they are on the host.
    #[serde(default)]
    pub(super) kept: RuntimeFileGuard,
}

/// The program that the machine runs. It has no `Debug`, because its environment may contain secrets.
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

/// The tool's user in the machine: the user of the sandbox, so that files have the same owner on both sides.
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
    /// How many processes it left behind.
    pub(super) swept: u64,
}

/// Encodes one frame.
pub(super) fn encode_frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut whole = Vec::with_capacity(body.len() + 5);
    whole.push(kind);
    whole.extend_from_slice(&length.to_le_bytes());
    whole.extend_from_slice(body);
    whole
}

/// Writes a frame with one call.
pub(super) fn send_frame(mut to: impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    to.write_all(&encode_frame(kind, body))
}

/// Parses the first five bytes of a frame: kind and length.
pub(super) fn parse_header(bytes: [u8; 5], longest: usize) -> io::Result<(u8, usize)> {
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
    let (kind, length) = parse_header(first, longest)?;
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok(Some((kind, body)))
}
