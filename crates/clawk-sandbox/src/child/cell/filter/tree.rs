//! Combines all rules of a sandbox into one program that finds a call by binary search. The kernel then translates, checks and runs
//! a few hundred instructions per sandbox; separate lists would need two thousand.

use std::io;

use seccompiler::{BpfProgram, sock_filter};

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// The maximum length of a program that the kernel accepts, in instructions.
const MAX_LENGTH: usize = 4096;

/// The complete rules for one call: every path through them returns.
pub(super) type FilterLeaf = BpfProgram;

fn bpf_instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// An instruction that returns this answer.
pub(super) fn return_instruction(action: u32) -> sock_filter {
    bpf_instruction(RETURN, 0, 0, action)
}

/// Builds the program. `check` checks the architecture and continues after its end. `runs` has, for each run of consecutive calls,
/// its first number (ascending from 0) and the rules for all of its calls.
pub(super) fn build_program(check: BpfProgram, runs: &[(u32, FilterLeaf)]) -> io::Result<BpfProgram> {
    if runs.first().is_none_or(|(first, _)| *first != 0) {
        return Err(io::Error::other("seccomp: nothing is said about the first call"));
    }
    let mut whole = check;
    whole.push(bpf_instruction(LOAD, 0, 0, 0));
    whole.extend(build_search_tree(runs)?);
    match whole.len() <= MAX_LENGTH {
        true => Ok(whole),
        false => Err(io::Error::other("seccomp: the filter is too long")),
    }
}

/// Encodes a program as bytes, for [`program_of`].
pub(super) fn program_bytes(program: &[sock_filter]) -> Vec<u8> {
    let one = |one: &sock_filter| {
        let [a, b] = one.code.to_ne_bytes();
        let [c, d, e, f] = one.k.to_ne_bytes();
        [a, b, one.jt, one.jf, c, d, e, f]
    };
    program.iter().flat_map(one).collect()
}

/// Decodes a program.
pub(super) fn program_of(bytes: &[u8]) -> io::Result<BpfProgram> {
    let (all, rest) = bytes.as_chunks::<8>();
    if all.is_empty() || !rest.is_empty() {
        return Err(io::Error::other("seccomp: half a filter"));
    }
    let one = |[a, b, jt, jf, c, d, e, f]: &[u8; 8]| {
        let (code, k) = (u16::from_ne_bytes([*a, *b]), u32::from_ne_bytes([*c, *d, *e, *f]));
        bpf_instruction(code, *jt, *jf, k)
    };
    Ok(all.iter().map(one).collect())
}

fn build_search_tree(runs: &[(u32, FilterLeaf)]) -> io::Result<BpfProgram> {
    let (below, above) = runs.split_at(runs.len() / 2);
    let Some((first, leaf)) = above.first() else {
        return Ok(BpfProgram::new());
    };
    if below.is_empty() {
        return Ok(leaf.clone());
    }
    let (low, high) = (build_search_tree(below)?, build_search_tree(above)?);
    let mut both = match u8::try_from(low.len()) {
        Ok(over) => vec![bpf_instruction(JUMP_AT_LEAST, over, 0, *first)],
        // A comparison can't jump this far.
        Err(_) => vec![
            bpf_instruction(JUMP_AT_LEAST, 0, 1, *first),
            bpf_instruction(JUMP, 0, 0, u32::try_from(low.len()).map_err(io::Error::other)?),
        ],
    };
    both.extend(low);
    both.extend(high);
    Ok(both)
}
