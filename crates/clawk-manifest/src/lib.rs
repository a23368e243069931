//! `claw.yaml`: parse, resolve references, validate, explain.
//!
//! *Owns:* the manifest's syntax and rules, diagnostics, conformance levels, the JSON Schema.
//! *Depends on:* clawk-proto (URIs), a YAML event parser.
//! *Must not know:* execution, network; files are read in `loader` only.
//! *Start reading at:* [`model`].

pub mod model;

pub use model::{ConformanceLevel, Manifest};
