//! The one program says of every call what separate programs, one for each list, would have said together.

use super::*;
use seccompiler::sock_filter;

/// What the kernel gives a filter: number, architecture, place, six arguments.
fn data(call: u32, arch: u32, args: [u64; 6]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(call.to_le_bytes());
    bytes.extend(arch.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    args.iter().for_each(|arg| bytes.extend(arg.to_le_bytes()));
    bytes
}

/// Runs a program as the kernel does.
fn run(program: &[sock_filter], data: &[u8]) -> u32 {
    let (mut at, mut held) = (0_usize, 0_u32);
    loop {
        let one = &program[at];
        let jump = |taken: bool| 1 + usize::from(if taken { one.jt } else { one.jf });
        at += match one.code {
            0x20 => {
                let place = one.k as usize;
                held = u32::from_le_bytes(data[place..place + 4].try_into().unwrap());
                1
            }
            0x54 => {
                held &= one.k;
                1
            }
            0x05 => 1 + one.k as usize,
            0x15 => jump(held == one.k),
            0x25 => jump(held > one.k),
            0x35 => jump(held >= one.k),
            0x06 => return one.k,
            other => panic!("no such instruction here: {other:#x}"),
        };
    }
}

/// The most severe answer of several filters; of equals that of the one installed last, which is asked first.
fn all(programs: &[BpfProgram], data: &[u8]) -> u32 {
    let answers = programs.iter().rev().map(|program| run(program, data));
    answers
        .reduce(|kept, next| {
            if severity(next) < severity(kept) {
                next
            } else {
                kept
            }
        })
        .unwrap()
}

fn severity(answer: u32) -> i32 {
    (answer & 0xffff_0000).cast_signed()
}

/// As they were before there was one program: the allow-list, what is unknown, families, the guard, the deny-list.
fn separate(strict: bool, own: bool, judged: GuardedCalls) -> Vec<BpfProgram> {
    let lists = SyscallLists::for_box_kind(strict, own, judged).unwrap();
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let build = |rules: SyscallRules, other: SeccompAction, hit: SeccompAction| -> BpfProgram {
        SeccompFilter::new(rules, other, hit, arch)
            .unwrap()
            .try_into()
            .unwrap()
    };
    let refuse = |number: i32| SeccompAction::Errno(number.unsigned_abs());
    let plain =
        |calls: &BTreeSet<i64>| -> SyscallRules { calls.iter().map(|call| (*call, Vec::new())).collect() };
    let mut programs = Vec::new();
    if let Some(allowed) = &lists.allowed {
        let mut calls = plain(allowed);
        calls.extend(UNKNOWN.iter().map(|call| (*call, Vec::new())));
        programs.push(build(calls, refuse(libc::EPERM), SeccompAction::Allow));
    }
    let mut foreign = vec![
        sock_filter {
            code: 0x20,
            jt: 0,
            jf: 0,
            k: 0,
        },
        sock_filter {
            code: 0x35,
            jt: 0,
            jf: 1,
            k: FOREIGN,
        },
        sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 0x0005_0000 | 38,
        },
    ];
    foreign.extend(build(
        plain(&lists.unknown),
        SeccompAction::Allow,
        refuse(libc::ENOSYS),
    ));
    programs.push(foreign);
    programs.push(build(
        lists.family,
        SeccompAction::Allow,
        refuse(libc::EAFNOSUPPORT),
    ));
    if judged != GuardedCalls::Nothing {
        let mut guard = build(lists.guarded, SeccompAction::Allow, SeccompAction::Trace(0));
        for one in guard
            .iter_mut()
            .filter(|one| one.code == 0x06 && one.k == 0x7ff0_0000)
        {
            one.k = guard::USER_NOTIF;
        }
        programs.push(guard);
    }
    programs.push(build(lists.never, SeccompAction::Allow, refuse(libc::EPERM)));
    programs
}

fn kinds() -> impl Iterator<Item = (bool, bool, GuardedCalls)> {
    let judged = [GuardedCalls::Nothing, GuardedCalls::All, GuardedCalls::Changes];
    (0..12).map(move |at| (at & 1 > 0, at & 2 > 0, judged[at / 4]))
}

const HERE: u32 = if cfg!(target_arch = "x86_64") {
    0xc000_003e
} else {
    0xc000_00b7
};

#[test]
fn one_program_says_what_all_lists_say() {
    // Every value that a rule compares with, its neighbours, and what lies in the upper half of a register.
    let mut values: Vec<u64> = vec![
        0,
        1,
        2,
        3,
        5,
        10,
        16,
        17,
        0x80002,
        0x5413,
        0xffff_ffff,
        u64::MAX,
        1 << 40,
    ];
    values.extend(TERMINAL.iter().chain(&SET_ID).chain(&KINDS));
    values.extend((0..32).step_by(3).chain([7, 17, 25, 28]).map(|bit| 1_u64 << bit));
    values.push(NAMESPACES);
    values.extend([
        0o102_755,
        0o4755,
        0o2755,
        0o20_000_000 | 2,
        0o101,
        0x5412 | 7 << 32,
        0x7e02_0011,
    ]);
    for (strict, own, judged) in kinds() {
        let (one, many) = (
            SyscallLists::for_box_kind(strict, own, judged)
                .unwrap()
                .build_program()
                .unwrap(),
            separate(strict, own, judged),
        );
        let same = |call: u32, arch: u32, args: [u64; 6]| {
            let data = data(call, arch, args);
            let (ours, theirs) = (run(&one, &data), all(&many, &data));
            assert_eq!(
                ours, theirs,
                "call {call} {args:x?} of {strict} {own} {judged:?}: {ours:x} {theirs:x}"
            );
        };
        let lists = SyscallLists::for_box_kind(strict, own, judged).unwrap();
        for call in (0..700).chain([FOREIGN - 1, FOREIGN, FOREIGN + 41, 1 << 31, u32::MAX]) {
            same(call, HERE, [0; 6]);
            same(call, HERE, [u64::MAX; 6]);
            // i386, and no architecture at all.
            same(call, 0x4000_0003, [0; 6]);
            same(call, 0, [0; 6]);
            let looked_at = [&lists.never, &lists.family, &lists.guarded]
                .iter()
                .any(|rules| rules.get(&i64::from(call)).is_some_and(|rules| !rules.is_empty()));
            // The rules for arguments are the same in all kinds: pairs of values are tried in two that differ in all else.
            if !looked_at || strict == own {
                continue;
            }
            for a in &values {
                for b in &values {
                    for (first, second) in [(0, 1), (1, 2), (2, 3)] {
                        let mut args = [0; 6];
                        (args[first], args[second]) = (*a, *b);
                        same(call, HERE, args);
                    }
                }
            }
        }
    }
}

#[test]
fn a_filter_is_short() {
    for (strict, own, judged) in kinds() {
        let program = &shared_filter(strict, own, judged).unwrap().program;
        assert!(program.len() < 900, "{}", program.len());
        // As the process that boxes are forked from gets it.
        assert_eq!(tree::program_of(&tree::program_bytes(program)).unwrap(), *program);
    }
}

#[test]
fn the_common_filters_that_are_handed_over_are_those_that_a_box_would_make() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let told = std::thread::spawn(move || tell_common(writer.into()));
    hear_common(reader.into()).unwrap();
    told.join().unwrap().unwrap();
    for (strict, own, judged) in COMMON {
        let made = MADE[kind_of(strict, own, judged)].get().unwrap();
        let wanted = SyscallLists::for_box_kind(strict, own, judged)
            .unwrap()
            .build_program()
            .unwrap();
        assert_eq!(tree::program_bytes(&made.program), tree::program_bytes(&wanted));
        assert_eq!(made.notifies, judged != GuardedCalls::Nothing);
    }
}

#[test]
fn half_a_filter_is_not_taken() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut writer = File::from(writer);
    writer.write_all(&4096_u32.to_ne_bytes()).unwrap();
    writer.write_all(&[0; 100]).unwrap();
    drop(writer);
    assert!(hear_common(reader.into()).is_err());
}
