//! `cargo +nightly fuzz run frames --features libfuzzer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| clawk_fuzz::check_frames(data));
