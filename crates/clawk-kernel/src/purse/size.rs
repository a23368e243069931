//! How much a model writes and reads at most, for the models of the price table.

use super::price::is_version_of;

/// Tokens of one answer, and of prompt and answer together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) output: u64,
    pub(super) window: u64,
}

impl Size {
    /// What is known of this model; dates of versions do not count.
    pub(super) fn of(model: &str) -> Option<Self> {
        let bare = model.rsplit('/').next().unwrap_or(model);
        let (_, output, window) = *TABLE.iter().find(|(name, ..)| is_version_of(bare, name))?;
        Some(Self { output, window })
    }
}

/// Model, most output tokens, window. Where a vendor's lists differ by plan or region, the smaller one.
const TABLE: &[(&str, u64, u64)] = &[
    ("gpt-5", 128_000, 400_000),
    ("gpt-5-mini", 128_000, 400_000),
    ("gpt-5-nano", 128_000, 400_000),
    ("gpt-5-pro", 128_000, 400_000),
    ("gpt-5-codex", 128_000, 400_000),
    ("gpt-5.1", 128_000, 400_000),
    ("gpt-5.2", 128_000, 400_000),
    ("gpt-5.4", 128_000, 400_000),
    ("gpt-5.4-mini", 128_000, 400_000),
    ("gpt-5.4-pro", 128_000, 400_000),
    ("gpt-5.5", 128_000, 400_000),
    ("gpt-4.1", 32_768, 1_000_000),
    ("gpt-4.1-mini", 32_768, 1_000_000),
    ("gpt-4.1-nano", 32_768, 1_000_000),
    ("gpt-4o", 16_384, 128_000),
    ("gpt-4o-mini", 16_384, 128_000),
    ("o4-mini", 100_000, 200_000),
    ("o3", 100_000, 200_000),
    ("o3-mini", 100_000, 200_000),
    ("o3-pro", 100_000, 200_000),
    ("o1", 100_000, 200_000),
    ("o1-pro", 100_000, 200_000),
    ("claude-opus-4-6", 64_000, 200_000),
    ("claude-opus-4-5", 64_000, 200_000),
    ("claude-opus-4-1", 32_000, 200_000),
    ("claude-opus-4-0", 32_000, 200_000),
    ("claude-opus-4", 32_000, 200_000),
    ("claude-3-opus", 4_096, 200_000),
    ("claude-sonnet-4-6", 64_000, 200_000),
    ("claude-sonnet-4-5", 64_000, 200_000),
    ("claude-sonnet-4-0", 64_000, 200_000),
    ("claude-sonnet-4", 64_000, 200_000),
    ("claude-3-7-sonnet", 64_000, 200_000),
    ("claude-3-5-sonnet", 8_192, 200_000),
    ("claude-haiku-4-5", 64_000, 200_000),
    ("claude-3-5-haiku", 8_192, 200_000),
    ("claude-3-haiku", 4_096, 200_000),
    ("gemini-3.5-flash", 65_535, 1_000_000),
    ("gemini-3.1-pro", 65_535, 1_000_000),
    ("gemini-3.1-flash-lite", 65_535, 1_000_000),
    ("gemini-2.5-pro", 65_535, 1_000_000),
    ("gemini-2.5-flash", 65_535, 1_000_000),
    ("gemini-2.5-flash-lite", 65_535, 1_000_000),
];

#[cfg(test)]
mod tests {
    use super::{Size, TABLE};
    use crate::purse::Prices;

    #[test]
    fn every_model_of_the_price_table_has_a_size_and_no_other() {
        assert_eq!(Size::of("openai/gpt-4o-2024-08-06").unwrap().output, 16_384);
        assert_eq!(Size::of("claude-3-5-haiku-latest").unwrap().output, 8_192);
        assert_eq!(Size::of("gpt-4o-ultra"), None);
        assert_eq!(Size::of("llama3"), None);
        let mut sized: Vec<&str> = TABLE.iter().map(|(name, ..)| *name).collect();
        let mut priced = Prices::shipped();
        sized.sort_unstable();
        priced.sort_unstable();
        assert_eq!(sized, priced);
    }
}
