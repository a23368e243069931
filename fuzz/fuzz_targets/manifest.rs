//! `cargo +nightly fuzz run manifest --features libfuzzer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| clawk_fuzz::check_manifest(data));
