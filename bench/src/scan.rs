//! Measures the exact vector search in memory, compared with one read of the same bytes.

use std::hint::black_box;
use std::time::Instant;

use clawk_recall::packed::{PackedVectors, pack_vector};

/// Number of searches and reads. The fastest counts.
const ROUNDS: u32 = 15;
/// Number of different vectors.
const DIFFERENT: usize = 997;

/// Milliseconds of a search for the ten nearest of `rows` vectors, and of one read of the same number of bytes.
pub(crate) fn milliseconds(dimensions: usize, rows: usize) -> String {
    let mut state = 7_u64;
    let mut value = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        #[expect(clippy::cast_precision_loss, reason = "a vector of a benchmark")]
        let share = (state >> 40) as f32 / (1_u64 << 24) as f32;
        share - 0.5
    };
    let mut vector = move || (0..dimensions).map(|_| value()).collect::<Vec<f32>>();
    let packed: Vec<Vec<u8>> = (0..DIFFERENT).map(|_| pack_vector(&vector())).collect();
    let mut matrix = PackedVectors::default();
    for (n, vector) in (0..).zip(packed.iter().cycle().take(rows)) {
        matrix.add(n, 0, vector);
    }
    let bytes = vec![1_u64; rows * dimensions / 8];
    let (mut scan, mut read) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        let query = vector();
        let began = Instant::now();
        black_box(matrix.nearest_rows(&query, 10, |_| true));
        scan = scan.min(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        black_box(black_box(&bytes).iter().fold(0_u64, |sum, word| sum ^ word));
        read = read.min(began.elapsed().as_secs_f64() * 1e3);
    }
    format!("{scan} {read}")
}
