//! Shows a file's old and new text as a difference by lines.

use std::path::Path;

use crate::out::{TerminalStyle, sanitize_block};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// The most lines that are compared one by one. A larger difference is shown as one piece.
const COMPARED_LINES: usize = 2_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiffLine<'t> {
    Same(&'t str),
    Gone(&'t str),
    New(&'t str),
}

/// Returns the difference. Lines of the files can't steer the terminal.
pub(super) fn render_difference(path: &Path, before: &str, after: &str, style: TerminalStyle) -> String {
    let lines = compare_lines(before, after);
    let mut shown = vec![false; lines.len()];
    for (at, line) in lines.iter().enumerate() {
        if !matches!(line, DiffLine::Same(_)) {
            let from = at.saturating_sub(CONTEXT);
            shown
                .iter_mut()
                .take(at + CONTEXT + 1)
                .skip(from)
                .for_each(|shown| *shown = true);
        }
    }
    let mut text = style.bold(&format!("--- {}", sanitize_block(&path.display().to_string())));
    let mut left_out = false;
    for (line, shown) in lines.iter().zip(shown) {
        if !shown {
            left_out = true;
            continue;
        }
        if left_out {
            text.push_str(&format!("\n{}", style.dim("  …")));
            left_out = false;
        }
        let piece = match line {
            DiffLine::Same(line) => format!("  {}", sanitize_block(line)),
            DiffLine::Gone(line) => style.red(&format!("- {}", sanitize_block(line))),
            DiffLine::New(line) => style.green(&format!("+ {}", sanitize_block(line))),
        };
        text.push('\n');
        text.push_str(&piece);
    }
    text
}

/// Finds the lines that both texts have, by the longest common subsequence between the first and the last change.
fn compare_lines<'t>(before: &'t str, after: &'t str) -> Vec<DiffLine<'t>> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let head = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(rest);
    let tail = tail.take_while(|(old, new)| old == new).count();
    let inner = |lines: &[&'t str]| -> Vec<&'t str> {
        let count = lines.len() - head - tail;
        lines.iter().skip(head).take(count).copied().collect()
    };
    let mut found: Vec<DiffLine<'t>> = old.iter().take(head).copied().map(DiffLine::Same).collect();
    found.extend(compare_changed(&inner(&old), &inner(&new)));
    found.extend(old.iter().skip(old.len() - tail).copied().map(DiffLine::Same));
    found
}

fn compare_changed<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<DiffLine<'t>> {
    if old.len().max(new.len()) > COMPARED_LINES {
        let gone = old.iter().copied().map(DiffLine::Gone);
        return gone.chain(new.iter().copied().map(DiffLine::New)).collect();
    }
    // `common[i][j]`: the length of the longest common subsequence of `old[i..]` and `new[j..]`.
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    let length = |common: &[Vec<usize>], i: usize, j: usize| {
        common
            .get(i)
            .and_then(|row| row.get(j))
            .copied()
            .unwrap_or_default()
    };
    for (i, old_line) in old.iter().enumerate().rev() {
        for (j, new_line) in new.iter().enumerate().rev() {
            let best = match old_line == new_line {
                true => length(&common, i + 1, j + 1) + 1,
                false => length(&common, i + 1, j).max(length(&common, i, j + 1)),
            };
            if let Some(cell) = common.get_mut(i).and_then(|row| row.get_mut(j)) {
                *cell = best;
            }
        }
    }
    let (mut i, mut j, mut found) = (0, 0, Vec::new());
    loop {
        match (old.get(i).copied(), new.get(j).copied()) {
            (Some(gone), Some(line)) if gone == line => {
                found.push(DiffLine::Same(gone));
                (i, j) = (i + 1, j + 1);
            }
            (Some(gone), line)
                if line.is_none() || length(&common, i + 1, j) >= length(&common, i, j + 1) =>
            {
                found.push(DiffLine::Gone(gone));
                i += 1;
            }
            (_, Some(line)) => {
                found.push(DiffLine::New(line));
                j += 1;
            }
            (_, None) => return found,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::render_difference;
    use crate::out::TerminalStyle;

    #[test]
    fn the_difference_shows_the_changed_lines_with_their_neighbours() {
        let before = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n";
        let after = "a\nb\nc\nd\ne\nnew\nf\ng\nh\nlast\nj\n";
        let shown = render_difference(
            Path::new("x.yaml"),
            before,
            after,
            TerminalStyle::for_tests(false),
        );
        assert_eq!(
            shown,
            "--- x.yaml\n  …\n  c\n  d\n  e\n+ new\n  f\n  g\n  h\n- i\n+ last\n  j"
        );
        let steering = render_difference(Path::new("x"), "", "\u{1b}[2J\n", TerminalStyle::for_tests(false));
        assert!(!steering.contains('\u{1b}'), "{steering:?}");
    }
}
