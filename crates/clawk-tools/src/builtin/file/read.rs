//! `file-read`: reads lines of a text file.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};

use clawk_kernel::ports::RunOutcome;
use serde::Deserialize;
use serde_json::json;

use super::{FileToolStop, Job};
use crate::call::success_outcome;

/// The maximum size of one call's result, in bytes.
const MAX_RETURN_BYTES: usize = 256 << 10;

/// How many bytes one call reads in order to find its lines.
const MAX_SCAN_BYTES: u64 = 256 << 20;

/// The maximum size of a file that is loaded as a whole, in bytes.
const MAX_WHOLE_BYTES: u64 = 8 << 20;

/// How many bytes are checked to distinguish text from binary data.
const SNIFF_BYTES: usize = 8 << 10;

#[derive(Deserialize)]
struct Args {
    path: String,
    #[serde(default)]
    start_line: Option<u64>,
    #[serde(default)]
    end_line: Option<u64>,
}

pub(super) fn read(job: &Job) -> Result<RunOutcome, FileToolStop> {
    let args: Args = job.parse()?;
    let place = job.resolve_path(&args.path, false)?;
    let (file, stat) = job.open_file(&place.root, &place.below, false)?;
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let first = args.start_line.unwrap_or(1).max(1);
    let last = args.end_line.unwrap_or(u64::MAX);
    if last < first {
        return Err(FileToolStop::Failed(format!(
            "`end_line` {last} lies before `start_line` {first}"
        )));
    }
    let mut reader = BufReader::with_capacity(SNIFF_BYTES, file);
    let beginning = reader
        .fill_buf()
        .map_err(|error| FileToolStop::for_path(&args.path, error))?;
    if is_binary(beginning) {
        return Err(FileToolStop::Failed(format!(
            "`{}` is a binary file of {bytes} bytes",
            args.path
        )));
    }
    let taken = take_lines(job, &args.path, reader.take(MAX_SCAN_BYTES), first, last)?;
    if taken.lines == 0 && first > 1 {
        return Err(FileToolStop::Failed(format!(
            "`{}` has no line {first}; it has {}",
            args.path, taken.passed
        )));
    }
    let mut text =
        String::from_utf8(taken.text).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
    if taken.truncated {
        let next = first + taken.lines;
        text.push_str(&format!(
            "\n[cut at {MAX_RETURN_BYTES} bytes; go on with start_line {next}]"
        ));
    }
    let facts = json!({"path": args.path, "bytes": bytes, "start_line": first, "lines": taken.lines, "truncated": taken.truncated});
    Ok(success_outcome(text, facts))
}

struct LineExcerpt {
    text: Vec<u8>,
    lines: u64,
    /// The number of lines read so far, including the returned ones.
    passed: u64,
    truncated: bool,
}

fn take_lines(
    job: &Job,
    path: &str,
    mut reader: impl BufRead,
    first: u64,
    last: u64,
) -> Result<LineExcerpt, FileToolStop> {
    let mut taken = LineExcerpt {
        text: Vec::new(),
        lines: 0,
        passed: 0,
        truncated: false,
    };
    let mut line = Vec::new();
    while taken.passed < last {
        if job.stop.is_cancelled() {
            return Err(FileToolStop::Failed("stopped".to_owned()));
        }
        line.clear();
        let room = MAX_RETURN_BYTES.saturating_sub(taken.text.len());
        let (read, whole) =
            read_line(&mut reader, &mut line, room).map_err(|error| FileToolStop::for_path(path, error))?;
        if read == 0 {
            break;
        }
        taken.passed += 1;
        if taken.passed < first {
            continue;
        }
        // Only the first line is cut if it does not fit. Otherwise the next call starts with the line.
        if !whole && taken.lines > 0 {
            taken.truncated = true;
            break;
        }
        taken.text.extend_from_slice(&line);
        taken.lines += 1;
        if !whole {
            taken.truncated = true;
            break;
        }
    }
    Ok(taken)
}

/// Reads one line and keeps at most `room` bytes of it. Returns how many bytes were read, and whether all were kept.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>, room: usize) -> std::io::Result<(usize, bool)> {
    let mut read = 0;
    loop {
        let piece = reader.fill_buf()?;
        if piece.is_empty() {
            return Ok((read, read <= room));
        }
        let (end, found) = match piece.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (piece.len(), false),
        };
        let keep = end.min(room.saturating_sub(read));
        line.extend_from_slice(piece.get(..keep).unwrap_or_default());
        reader.consume(end);
        read += end;
        if found {
            return Ok((read, read <= room));
        }
    }
}

/// Whether there is a null byte near the beginning.
pub(super) fn is_binary(beginning: &[u8]) -> bool {
    beginning.iter().take(SNIFF_BYTES).any(|byte| *byte == 0)
}

/// Reads a whole file, if it is small enough and is text.
pub(super) fn whole_text(file: File, path: &str) -> Result<String, FileToolStop> {
    let mut bytes = Vec::new();
    file.take(MAX_WHOLE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| FileToolStop::for_path(path, error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_WHOLE_BYTES {
        return Err(FileToolStop::Failed(format!(
            "`{path}` is larger than {MAX_WHOLE_BYTES} bytes"
        )));
    }
    if is_binary(&bytes) {
        return Err(FileToolStop::Failed(format!("`{path}` is a binary file")));
    }
    String::from_utf8(bytes).map_err(|_invalid| FileToolStop::Failed(format!("`{path}` is not UTF-8 text")))
}
