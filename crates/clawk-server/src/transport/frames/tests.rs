//! R24: every cut of the input gives the same lines.

use proptest::prelude::*;

use super::{InputLine, LineSplitter};

/// Gives its chunks one read at a time.
struct Chunks(std::collections::VecDeque<Vec<u8>>);

impl tokio::io::AsyncRead for Chunks {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        if let Some(mut chunk) = self.0.pop_front() {
            let now = chunk.len().min(buf.remaining());
            buf.put_slice(&chunk[..now]);
            if now < chunk.len() {
                self.0.push_front(chunk.split_off(now));
            }
        }
        std::task::Poll::Ready(Ok(()))
    }
}

/// `None` stands for a line that was too long. Also the largest buffer seen.
fn cut(chunks: Vec<Vec<u8>>, max: usize) -> (Vec<Option<Vec<u8>>>, usize) {
    let mut frames = LineSplitter::new(
        Chunks(chunks.into_iter().filter(|c| !c.is_empty()).collect()),
        max,
    );
    let mut lines = Vec::new();
    let mut largest = 0;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    loop {
        while let Some(line) = frames.next_buffered() {
            lines.push(match line {
                InputLine::Whole(line) => Some(line.to_vec()),
                InputLine::TooLong => None,
            });
        }
        if frames.is_spent() {
            return (lines, largest);
        }
        runtime.block_on(frames.fill()).expect("no error");
        largest = largest.max(frames.buffer.len());
    }
}

/// What the lines should be, from the whole input.
fn expected(input: &[u8], max: usize) -> Vec<Option<Vec<u8>>> {
    let mut lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    lines
        .into_iter()
        .map(|line| (line.len() <= max).then(|| line.to_vec()))
        .collect()
}

proptest! {
    #[test]
    fn lines_do_not_depend_on_how_the_input_is_cut(
        pieces in prop::collection::vec(prop::collection::vec(prop_oneof![4 => Just(b'a'), 1 => Just(b'\n')], 0..40), 0..20),
        max in 0usize..30,
    ) {
        let input: Vec<u8> = pieces.concat();
        prop_assert_eq!(cut(pieces, max).0, expected(&input, max));
    }
}

#[test]
fn r24_a_line_of_exactly_the_limit_passes_and_one_byte_more_does_not() {
    let max = 1000;
    for at_a_time in [1, 7, 999, 1000, 1001, 1002, 5000] {
        for (length, fits) in [(max, true), (max + 1, false)] {
            let mut input = vec![b'x'; length];
            input.extend_from_slice(b"\nnext");
            let chunks = input.chunks(at_a_time).map(<[u8]>::to_vec).collect();
            let first = fits.then(|| vec![b'x'; length]);
            assert_eq!(
                cut(chunks, max).0,
                [first, Some(b"next".to_vec())],
                "{length} by {at_a_time}"
            );
        }
    }
}

#[test]
fn r24_the_rest_of_a_long_line_is_skipped_in_bounded_memory() {
    let max = 8 * 1024 * 1024;
    let mut chunks = vec![vec![b'x'; 64 * 1024]; 1600]; // 100 MiB
    chunks.push(b"\nstill here\n".to_vec());
    let (lines, largest) = cut(chunks, max);
    assert_eq!(lines, [None, Some(b"still here".to_vec())]);
    assert!(largest <= max + 3 * 64 * 1024, "{largest} bytes were held");
}

#[test]
fn the_last_line_may_lack_its_newline() {
    assert_eq!(
        cut(vec![b"a\nb".to_vec()], 10).0,
        [Some(b"a".to_vec()), Some(b"b".to_vec())]
    );
    assert_eq!(
        cut(vec![b"a\n\n".to_vec()], 10).0,
        [Some(b"a".to_vec()), Some(Vec::new())]
    );
    assert_eq!(cut(vec![], 10).0, Vec::<Option<Vec<u8>>>::new());
}
