//! Vectors stored with one byte per dimension, and the exact scan over them.

use std::collections::BinaryHeap;

/// Packs a vector for storage: its scale factor (32-bit float, little-endian), then one signed byte per dimension.
#[must_use]
pub fn pack_vector(vector: &[f32]) -> Vec<u8> {
    let top = vector.iter().fold(0.0_f32, |top, x| top.max(x.abs()));
    let factor = if top > 0.0 { top / 127.0 } else { 1.0 };
    let mut bytes = factor.to_le_bytes().to_vec();
    bytes.extend(vector.iter().map(|x| quantize_value(x / factor)));
    bytes
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded and within -127..=127 by its factor"
)]
fn quantize_value(x: f32) -> u8 {
    (x.round().clamp(-127.0, 127.0) as i8).cast_unsigned()
}

/// Restores the vector that [`pack_vector`] packed, with rounding errors. `None` if the bytes are not a packed vector.
#[must_use]
pub fn unpack_floats(bytes: &[u8]) -> Option<Vec<f32>> {
    let (factor, rest) = split_packed(bytes)?;
    Some(
        rest.iter()
            .map(|byte| f32::from(byte.cast_signed()) * factor)
            .collect(),
    )
}

/// Splits packed bytes into the scale factor and the dimensions.
fn split_packed(bytes: &[u8]) -> Option<(f32, &[u8])> {
    let (factor, rest) = bytes.split_first_chunk::<4>()?;
    Some((f32::from_le_bytes(*factor), rest))
}

/// Packed vectors of one length, in memory. Each row has a number `n` and a conversation hash `whose`.
#[derive(Debug, Default)]
pub struct PackedVectors {
    dimensions: usize,
    rows: Vec<PackedVectorRow>,
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct PackedVectorRow {
    n: i64,
    whose: i64,
    factor: f32,
}

/// A candidate row in the result heap. The farthest candidate is on top.
#[derive(Debug, PartialEq)]
struct NearestRow(f32, i64);

impl Eq for NearestRow {}

impl PartialOrd for NearestRow {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NearestRow {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0).then(self.1.cmp(&other.1).reverse())
    }
}

impl PackedVectors {
    /// The number of vectors.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no vectors.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a packed vector. A vector of another length than the first is ignored.
    pub fn add(&mut self, n: i64, whose: i64, packed: &[u8]) {
        let Some((factor, values)) = split_packed(packed) else {
            return;
        };
        if self.rows.is_empty() {
            self.dimensions = values.len();
        }
        if values.len() == self.dimensions && !values.is_empty() {
            self.bytes.extend_from_slice(values);
            self.rows.push(PackedVectorRow { n, whose, factor });
        }
    }

    /// Finds the nearest rows, nearest first, with their cosine within 0..1. `keep` gets the row's `whose` and decides whether it
    /// counts. Every row is compared, so the result is exact.
    #[must_use]
    pub fn nearest_rows(&self, query: &[f32], limit: usize, keep: impl Fn(i64) -> bool) -> Vec<(i64, f64)> {
        let packed = pack_vector(query);
        let Some((factor, wanted)) =
            split_packed(&packed).filter(|(_, wanted)| wanted.len() == self.dimensions)
        else {
            return Vec::new();
        };
        // Widened once here, not again for each row.
        let wanted: Vec<i16> = wanted.iter().map(|byte| i16::from(byte.cast_signed())).collect();
        let mut best: BinaryHeap<NearestRow> = BinaryHeap::with_capacity(limit + 1);
        if limit == 0 || self.dimensions == 0 {
            return Vec::new();
        }
        for (row, values) in self.rows.iter().zip(self.bytes.chunks_exact(self.dimensions)) {
            if !keep(row.whose) {
                continue;
            }
            let near = cosine_similarity(&wanted, values) * factor * row.factor;
            if near <= 0.0 {
                continue;
            }
            if best.len() < limit {
                best.push(NearestRow(near, row.n));
            } else if best.peek().is_some_and(|least| NearestRow(near, row.n) < *least) {
                best.pop();
                best.push(NearestRow(near, row.n));
            }
        }
        let sorted = best.into_sorted_vec();
        sorted
            .into_iter()
            .map(|NearestRow(near, n)| (n, f64::from(near).clamp(0.0, 1.0)))
            .collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ranking")]
fn cosine_similarity(wanted: &[i16], values: &[u8]) -> f32 {
    let product = |(x, y): (&i16, &u8)| i32::from(*x) * i32::from(y.cast_signed());
    wanted.iter().zip(values).map(product).sum::<i32>() as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table::normalize_vector;

    #[test]
    fn the_nearest_come_first() {
        let mut matrix = PackedVectors::default();
        matrix.add(1, 0, &pack_vector(&[1.0, 0.0, 0.0]));
        matrix.add(2, 0, &pack_vector(&[0.7, 0.7, 0.0]));
        matrix.add(3, 7, &pack_vector(&[0.9, 0.1, 0.0]));
        matrix.add(4, 0, &pack_vector(&[-1.0, 0.0, 0.0]));
        matrix.add(5, 0, &pack_vector(&[1.0, 0.0]));
        let found = |keep: fn(i64) -> bool, limit| {
            let found = matrix.nearest_rows(&[1.0, 0.0, 0.0], limit, keep);
            found.into_iter().map(|(n, _)| n).collect::<Vec<_>>()
        };
        assert_eq!(found(|_| true, 9), [1, 3, 2]);
        assert_eq!(found(|_| true, 2), [1, 3]);
        assert_eq!(found(|whose| whose == 0, 9), [1, 2]);
        assert!(matrix.nearest_rows(&[1.0], 3, |_| true).is_empty());
        assert!(PackedVectors::default().nearest_rows(&[], 3, |_| true).is_empty());
    }

    proptest! {
        #[test]
        fn a_packed_vector_is_nearly_the_vector(values in proptest::collection::vec(-1.0_f32..1.0, 64)) {
            prop_assume!(values.iter().any(|x| x.abs() > 0.01));
            let vector = normalize_vector(values).unwrap();
            let mut matrix = PackedVectors::default();
            matrix.add(1, 0, &pack_vector(&vector));
            let found = matrix.nearest_rows(&vector, 1, |_| true);
            prop_assert!(found[0].1 > 0.99, "{found:?}");
        }
    }
}
