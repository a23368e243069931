//! `claw.yaml`: parse, resolve references, validate, explain.
//!
//! *Owns:* the manifest's syntax and rules, diagnostics, conformance levels, the JSON Schema.
//! *Depends on:* clawk-proto (URIs), a YAML event parser.
//! *Must not know:* execution, network; files are read in `loader` only.
//! *Start reading at:* [`model`], then [`load_manifest`]; inside, `read` drives, `shape` says what a field is, `rules` what fields mean together.
//!
//! ```no_run
//! let loaded = clawk_manifest::load_manifest("claw.yaml".as_ref(), &Default::default());
//! let Some(manifest) = loaded.manifest else {
//!     let text = clawk_manifest::render_diagnostics(&loaded.diagnostics, &loaded.sources, false);
//!     return println!("{text}");
//! };
//! println!("{} reaches {}", manifest.metadata.name, manifest.conformance_level());
//! ```

mod check;
pub mod diagnostic;
mod envelope;
mod leaf;
mod load;
mod loader;
pub mod model;
mod primitive;
mod read;
mod render;
mod report;
mod rules;
mod schema;
mod shape;
mod text_edit;
mod texts;
mod tree;
mod yaml;

pub use diagnostic::{Diagnostic, Severity, SourceFiles};
pub use leaf::{LeafCheckFn, LeafRemark, LeafValue, ManifestLeaf};
pub use load::{
    LoadOptions, LoadedDocument, WireOptions, from_value, load_identity, load_manifest, load_policy,
    load_sandbox, validate_file, validate_primitive,
};
pub use model::{ConformanceLevel, Manifest};
pub use render::render_diagnostics;
pub use report::{DocumentDescription, ValidationReport};
pub use schema::{SCHEMA_KINDS, schema_file, schema_for_kind};
pub use text_edit::{ListInsertion, TextEditRefusal, insert_list_item, list_item_names};
