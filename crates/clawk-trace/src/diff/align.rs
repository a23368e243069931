//! Aligns the events of two traces by an edit script, instead of by index.
//!
//! It goes from certain to likely pairs. First it pairs events that differ only in minor members such as timings. Between those it
//! pairs events of the same type and action, so that the fewest members differ. Equal timings decide between repeated events,
//! unless that would leave more events unpaired.

use std::collections::HashMap;
use std::ops::Range;

use super::marks::EventFingerprint;
use super::{Trace, fields};

/// One step of the script, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AlignmentStep {
    Both(usize, usize),
    First(usize),
    Second(usize),
}

/// The largest number of edits per gap for which a shortest script is searched (16 MiB of memory at this number).
const MAX_EDITS: usize = 2048;

/// How often gaps are split at unique events.
const MAX_DEPTH: usize = 48;

/// The largest number of pairs that are compared member by member to fill one gap.
const MAX_PAIRS: usize = 256;

pub(super) fn align_traces(first: &Trace<'_>, second: &Trace<'_>) -> Vec<AlignmentStep> {
    let (a, b) = (&first.marks, &second.marks);
    let whole = (0..a.len(), 0..b.len());
    let by_structure = matches_of(a, b, whole.clone(), |marks| marks.major);
    let equal = matches_of(a, b, whole.clone(), |marks| marks.full);
    let mut equal_first = Vec::with_capacity(by_structure.len());
    each_gap(&equal, &whole, &mut equal_first, |gap, pairs| {
        pairs.extend(matches_of(a, b, gap, |marks| marks.major));
    });
    let sure = if equal_first.len() >= by_structure.len() {
        equal_first
    } else {
        by_structure
    };
    let mut pairs = Vec::with_capacity(sure.len());
    each_gap(&sure, &whole, &mut pairs, |gap, pairs| {
        pairs.extend(fill_gap(first, second, &gap));
    });
    alignment_script(&pairs, &whole)
}

type AlignmentGap = (Range<usize>, Range<usize>);

/// Calls `fill` for each gap between the pairs, and collects all pairs in order.
fn each_gap(
    pairs: &[(usize, usize)],
    whole: &AlignmentGap,
    out: &mut Vec<(usize, usize)>,
    mut fill: impl FnMut(AlignmentGap, &mut Vec<(usize, usize)>),
) {
    let (mut a, mut b) = (whole.0.start, whole.1.start);
    let end = (whole.0.end, whole.1.end);
    for &(next_a, next_b) in pairs.iter().chain([&end]) {
        if a < next_a && b < next_b {
            fill((a..next_a, b..next_b), out);
        }
        if (next_a, next_b) != end {
            out.push((next_a, next_b));
        }
        (a, b) = (next_a + 1, next_b + 1);
    }
}

fn alignment_script(pairs: &[(usize, usize)], whole: &AlignmentGap) -> Vec<AlignmentStep> {
    let (mut a, mut b) = (0, 0);
    let mut steps = Vec::new();
    for &(next_a, next_b) in pairs {
        steps.extend((a..next_a).map(AlignmentStep::First));
        steps.extend((b..next_b).map(AlignmentStep::Second));
        steps.push(AlignmentStep::Both(next_a, next_b));
        (a, b) = (next_a + 1, next_b + 1);
    }
    steps.extend((a..whole.0.end).map(AlignmentStep::First));
    steps.extend((b..whole.1.end).map(AlignmentStep::Second));
    steps
}

/// Pairs events of the same type and action.
fn fill_gap(first: &Trace<'_>, second: &Trace<'_>, gap: &AlignmentGap) -> Vec<(usize, usize)> {
    if gap.0.len() * gap.1.len() > MAX_PAIRS {
        return matches_of(&first.marks, &second.marks, gap.clone(), |marks| marks.place);
    }
    let before: Vec<_> = gap.0.clone().map(|index| first.event(index)).collect();
    let after: Vec<_> = gap.1.clone().map(|index| second.event(index)).collect();
    let place = |trace: &Trace<'_>, index: usize| trace.marks.get(index).map(|marks| marks.place);
    let cost = |a: usize, b: usize| {
        if place(first, gap.0.start + a) != place(second, gap.1.start + b) {
            return None;
        }
        let mut found = Vec::new();
        fields::compare_events(0, before.get(a)?, after.get(b)?, &mut found);
        Some(found.len().min(ALONE / 1024))
    };
    cheapest_pairs(before.len(), after.len(), cost)
        .into_iter()
        .map(|(a, b)| (gap.0.start + a, gap.1.start + b))
        .collect()
}

/// The cost of an unpaired event: more than any pair, so that as many pairs as possible are made.
const ALONE: usize = 1 << 20;

/// The cheapest set of pairs that keeps the order on both sides.
fn cheapest_pairs(n: usize, m: usize, cost: impl Fn(usize, usize) -> Option<usize>) -> Vec<(usize, usize)> {
    // Row by row from the end: the cost of the rest, and whether it begins with a pair.
    let width = m + 1;
    let mut rest = vec![(0usize, false); (n + 1) * width];
    let at = |rest: &[(usize, bool)], a: usize, b: usize| rest.get(a * width + b).map_or(0, |cell| cell.0);
    for a in (0..=n).rev() {
        for b in (0..=m).rev() {
            let skip_a = (a < n).then(|| at(&rest, a + 1, b) + ALONE);
            let skip_b = (b < m).then(|| at(&rest, a, b + 1) + ALONE);
            let pair = if a < n && b < m {
                cost(a, b).map(|own| at(&rest, a + 1, b + 1) + own)
            } else {
                None
            };
            let alone = skip_a.into_iter().chain(skip_b).min();
            let best = match (pair, alone) {
                (Some(pair), Some(alone)) if pair <= alone => (pair, true),
                (_, Some(alone)) => (alone, false),
                (pair, None) => (pair.unwrap_or(0), pair.is_some()),
            };
            if let Some(cell) = rest.get_mut(a * width + b) {
                *cell = best;
            }
        }
    }
    let (mut a, mut b, mut pairs) = (0, 0, Vec::new());
    while a < n && b < m {
        if rest.get(a * width + b).is_some_and(|cell| cell.1) {
            pairs.push((a, b));
            (a, b) = (a + 1, b + 1);
        } else if at(&rest, a + 1, b) <= at(&rest, a, b + 1) {
            a += 1;
        } else {
            b += 1;
        }
    }
    pairs
}

/// A longest common subsequence of both gaps' numbers; only a long one if a longest would cost too much.
fn matches_of(
    a: &[EventFingerprint],
    b: &[EventFingerprint],
    gap: AlignmentGap,
    number: impl Fn(&EventFingerprint) -> u64,
) -> Vec<(usize, usize)> {
    let numbers = |marks: &[EventFingerprint], range: Range<usize>| -> Vec<u64> {
        marks.get(range).unwrap_or_default().iter().map(&number).collect()
    };
    let (a, b) = (numbers(a, gap.0.clone()), numbers(b, gap.1.clone()));
    let mut pairs = Vec::new();
    common_pairs(&a, &b, (gap.0.start, gap.1.start), 0, &mut pairs);
    pairs
}

fn common_pairs(
    mut a: &[u64],
    mut b: &[u64],
    mut base: (usize, usize),
    depth: usize,
    out: &mut Vec<(usize, usize)>,
) {
    while let (Some((x, rest_a)), Some((y, rest_b))) = (a.split_first(), b.split_first()) {
        if x != y {
            break;
        }
        out.push(base);
        (a, b, base) = (rest_a, rest_b, (base.0 + 1, base.1 + 1));
    }
    let mut tail = 0;
    while let (Some((x, rest_a)), Some((y, rest_b))) = (a.split_last(), b.split_last()) {
        if x != y {
            break;
        }
        tail += 1;
        (a, b) = (rest_a, rest_b);
    }
    if !a.is_empty() && !b.is_empty() {
        let anchors = if depth < MAX_DEPTH {
            unique_pairs(a, b)
        } else {
            Vec::new()
        };
        if anchors.is_empty() {
            out.extend(
                shortest_script(a, b)
                    .into_iter()
                    .map(|(x, y)| (base.0 + x, base.1 + y)),
            );
        } else {
            let (mut from_a, mut from_b) = (0, 0);
            for &(x, y) in anchors.iter().chain([&(a.len(), b.len())]) {
                let inner = (
                    a.get(from_a..x).unwrap_or_default(),
                    b.get(from_b..y).unwrap_or_default(),
                );
                common_pairs(
                    inner.0,
                    inner.1,
                    (base.0 + from_a, base.1 + from_b),
                    depth + 1,
                    out,
                );
                if x < a.len() {
                    out.push((base.0 + x, base.1 + y));
                }
                (from_a, from_b) = (x + 1, y + 1);
            }
        }
    }
    out.extend((0..tail).map(|n| (base.0 + a.len() + n, base.1 + b.len() + n)));
}

/// Numbers that occur once on each side: the longest selection that keeps their order (longest increasing subsequence).
fn unique_pairs(a: &[u64], b: &[u64]) -> Vec<(usize, usize)> {
    let once = |numbers: &[u64]| {
        let mut seen: HashMap<u64, Option<usize>> = HashMap::with_capacity(numbers.len());
        for (index, number) in numbers.iter().enumerate() {
            seen.entry(*number)
                .and_modify(|place| *place = None)
                .or_insert(Some(index));
        }
        seen
    };
    let (in_a, in_b) = (once(a), once(b));
    let candidates: Vec<(usize, usize)> = a
        .iter()
        .enumerate()
        .filter(|(x, number)| in_a.get(*number) == Some(&Some(*x)))
        .filter_map(|(x, number)| in_b.get(number).copied().flatten().map(|y| (x, y)))
        .collect();
    // `ends` holds, by length, the candidate with the smallest end; `before` links each one to its predecessor.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (Vec::new(), Vec::new());
    let y_of = |index: usize| candidates.get(index).map_or(0, |pair| pair.1);
    for (index, (_, y)) in candidates.iter().enumerate() {
        let length = ends.partition_point(|end| y_of(*end) < *y);
        before.push(length.checked_sub(1).and_then(|last| ends.get(last).copied()));
        match ends.get_mut(length) {
            Some(end) => *end = index,
            None => ends.push(index),
        }
    }
    let mut chain = Vec::new();
    let mut next = ends.last().copied();
    while let Some(index) = next {
        chain.extend(candidates.get(index).copied());
        next = before.get(index).copied().flatten();
    }
    chain.reverse();
    chain
}

/// The greedy shortest edit script (Myers 1986); empty if it is longer than [`MAX_EDITS`].
pub(super) fn shortest_script(a: &[u64], b: &[u64]) -> Vec<(usize, usize)> {
    // Row `d`: how far each diagonal `x - y = 2i - d` gets with `d` edits; `None` outside the grid.
    let mut rows: Vec<Vec<Option<u32>>> = Vec::new();
    for d in 0..=MAX_EDITS.min(a.len() + b.len()) {
        let mut row = Vec::with_capacity(d + 1);
        for i in 0..=d {
            let reached = diagonal_entry(&rows, d, i, (a.len(), b.len())).map(|(x, y)| {
                let (rest_a, rest_b) = (a.get(x..).unwrap_or_default(), b.get(y..).unwrap_or_default());
                let snake = rest_a.iter().zip(rest_b).take_while(|(p, q)| p == q).count();
                (x + snake, y + snake)
            });
            row.push(reached.and_then(|(x, _)| u32::try_from(x).ok())); // silent-ok: never; traces are shorter
            if reached == Some((a.len(), b.len())) {
                rows.push(row);
                return backtrack_script(&rows, i, (a.len(), b.len()));
            }
        }
        rows.push(row);
    }
    Vec::new()
}

/// Where diagonal `i` of row `d` is entered from the previous row: after a removal or an insertion, whichever gets further.
fn diagonal_entry(
    rows: &[Vec<Option<u32>>],
    d: usize,
    i: usize,
    end: (usize, usize),
) -> Option<(usize, usize)> {
    if d == 0 {
        return Some((0, 0));
    }
    let before = rows.get(d - 1)?;
    let x_at = |i: usize| {
        before
            .get(i)
            .copied()
            .flatten()
            .and_then(|x| usize::try_from(x).ok())
    }; // silent-ok: never
    let inserted = x_at(i);
    let removed = i.checked_sub(1).and_then(x_at).map(|x| x + 1);
    let place = |x: usize| {
        let y = (x + d).checked_sub(2 * i)?;
        (x <= end.0 && y <= end.1).then_some((x, y))
    };
    let (inserted, removed) = (inserted.and_then(place), removed.and_then(place));
    inserted.max(removed)
}

fn backtrack_script(rows: &[Vec<Option<u32>>], mut i: usize, end: (usize, usize)) -> Vec<(usize, usize)> {
    let (mut x, mut pairs) = (end.0, Vec::new());
    for d in (0..rows.len()).rev() {
        let Some((from_x, from_y)) = diagonal_entry(rows, d, i, end) else {
            break;
        };
        pairs.extend((from_x..x).rev().map(|at| (at, from_y + (at - from_x))));
        if d == 0 {
            break;
        }
        // Which of the two it was: an insertion keeps `x`, and wins if both get equally far.
        let kept = rows.get(d - 1).and_then(|row| row.get(i).copied().flatten());
        let is_insertion = kept.and_then(|x| usize::try_from(x).ok()) == Some(from_x); // silent-ok: never
        (x, i) = if is_insertion {
            (from_x, i)
        } else {
            (from_x.saturating_sub(1), i.saturating_sub(1))
        };
    }
    pairs.reverse();
    pairs
}
