//! `cargo +nightly fuzz run stream --features libfuzzer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| clawk_fuzz::check_stream(data));
