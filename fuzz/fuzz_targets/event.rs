//! `cargo +nightly fuzz run event --features libfuzzer`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| clawk_fuzz::check_event(data));
