//! The built-in embeddings: a static table distilled from MiniLM-L6 (Apache-2.0). A text's vector is the mean of its tokens' rows.
//! No model runs.
//!
//! The table knows words, not sentences. Of 16 paraphrases it finds 11, where words alone find 2. But with full weight it makes
//! results worse for questions that words answer. So fusion gives it [`WEIGHT`].

use crate::pieces::text_tokens;

/// The number of dimensions of a vector.
pub const DIMENSIONS: usize = 256;

/// The table's name in search results.
pub const NAME: &str = "static";

/// The weight of this table's ranking in fusion; the ranking by words has weight 1.
pub const WEIGHT: f64 = 0.25;

/// Texts with a smaller cosine than this are treated as unrelated.
pub const FLOOR: f64 = 0.35;

/// The table: for each token, one row of 8-bit integers.
const ROWS: &[u8] = include_bytes!("../data/static256.i8");
/// The scale factor of each row: 32-bit floats, little-endian.
const FACTORS: &[u8] = include_bytes!("../data/static256.f32");

/// The text's vector, of length 1. `None` if no word of the text is in the vocabulary.
#[must_use]
pub fn embed_text(text: &str) -> Option<Vec<f32>> {
    let mut sum = vec![0.0_f32; DIMENSIONS];
    for row in text_tokens(text).into_iter().map(usize::from) {
        let factor = FACTORS.get(row * 4..row * 4 + 4)?.try_into().ok()?; // silent-ok: the vocabulary is as long as the table
        let factor = f32::from_le_bytes(factor);
        let values = ROWS.get(row * DIMENSIONS..(row + 1) * DIMENSIONS)?;
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += f32::from(value.cast_signed()) * factor;
        }
    }
    normalize_vector(sum)
}

/// Normalizes a vector to length 1. `None` if its length is 0.
#[must_use]
pub fn normalize_vector(mut vector: Vec<f32>) -> Option<Vec<f32>> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    if !length.is_normal() {
        return None;
    }
    vector.iter_mut().for_each(|x| *x /= length);
    Some(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: &str, b: &str) -> f32 {
        let (a, b) = (embed_text(a).unwrap(), embed_text(b).unwrap());
        a.iter().zip(&b).map(|(x, y)| x * y).sum()
    }

    #[test]
    fn the_table_is_whole() {
        assert_eq!(ROWS.len() / DIMENSIONS, FACTORS.len() / 4);
        let vector = embed_text("hello").unwrap();
        assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4);
        assert_eq!(embed_text(""), None);
    }

    #[test]
    fn what_means_the_same_is_nearer() {
        let question = "Which animal does she own?";
        assert!(close(question, "Her dog is called Rex.") > close(question, "The invoice is due in March."));
        assert!(close("doctor", "physician") > close("doctor", "bicycle"));
    }
}
