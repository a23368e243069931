//! Screening of a model's own words; that of everything else is [`clawk_govern::screen`].

pub(crate) mod answer;

pub use clawk_govern::screen::*;
