#![allow(missing_docs, reason="skeleton")]
fn main() {}
