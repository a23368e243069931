//! The shape of every document as data: one table for the checker and for the JSON Schema.
//!
//! The table describes single fields; `rules` checks combinations of fields.

mod agent;
mod claw;
mod governance;
mod memory;
mod team;
mod tool;

use clawk_proto::uri::Kind;

pub(crate) use claw::{CLAW_SPEC, ENVELOPE_FIELDS, METADATA, slot_kind};

/// The allowed values of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldType {
    /// Any text.
    Text,
    /// Text that is not empty.
    FullText,
    Bool,
    /// A whole number within these bounds.
    Count {
        min: u64,
        max: u64,
    },
    /// A number; `max` `None` means no upper bound.
    Real {
        min: f64,
        max: Option<f64>,
    },
    /// One word of a closed set.
    Word(&'static [&'static str]),
    /// A name in the URI grammar (R8).
    Name,
    /// A name, or a `claw://` URI, of a primitive in the same manifest.
    Ref(Kind),
    Semver,
    Duration,
    /// Name of a secret.
    SecretRef,
    /// A regular expression.
    Regex,
    /// A glob over names.
    Glob,
    /// Five-field cron expression.
    Cron,
    /// An `http` or `https` URL.
    Url,
    /// A host name; `*.` matches subdomains.
    Host,
    /// An MCP transport URI.
    McpUri,
    /// The JSON Schema of an object. `type: object` may be omitted.
    ObjectSchema,
    /// Any JSON Schema.
    Schema,
    List {
        of: &'static FieldType,
        min: usize,
    },
    /// A closed map.
    Map(&'static MapShape),
    /// An open map of text.
    TextMap,
    /// An open map with any values (R10).
    AnyMap,
    /// An open map in which the members of [`HINTS`] are booleans (R10).
    Hints,
    /// A reference to a primitive, or an inline primitive.
    Item(Kind),
    /// One item of this kind, or a list of items.
    Items(Kind),
}

/// The MCP annotations that affect a runtime.
pub(crate) const HINTS: [&str; 4] = [
    "readOnlyHint",
    "destructiveHint",
    "idempotentHint",
    "openWorldHint",
];

/// A closed map.
#[derive(Debug)]
pub(crate) struct MapShape {
    /// Its name in messages: `a provider's `auth``.
    pub(crate) title: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) fields: &'static [Field],
}

/// A member of a closed map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) ty: FieldType,
    pub(crate) required: bool,
    /// New in protocol 0.3.0.
    pub(crate) newer: bool,
    pub(crate) doc: &'static str,
}

/// A required field.
pub(crate) const fn required_field(name: &'static str, ty: FieldType, doc: &'static str) -> Field {
    Field {
        name,
        ty,
        required: true,
        newer: false,
        doc,
    }
}

/// An optional field.
pub(crate) const fn optional_field(name: &'static str, ty: FieldType, doc: &'static str) -> Field {
    Field {
        name,
        ty,
        required: false,
        newer: false,
        doc,
    }
}

impl Field {
    /// Marks the field as new in protocol 0.3.0.
    pub(crate) const fn since_v03(self) -> Self {
        Self { newer: true, ..self }
    }
}

impl MapShape {
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The largest whole number that every JSON parser represents exactly.
const EXACT: u64 = 1 << 53;
const SMALL_MAX: u64 = u32::MAX as u64;
pub(crate) const COUNT: FieldType = FieldType::Count { min: 0, max: EXACT };
pub(crate) const AT_LEAST_ONE: FieldType = FieldType::Count { min: 1, max: EXACT };
pub(crate) const SMALL: FieldType = FieldType::Count {
    min: 0,
    max: SMALL_MAX,
};
pub(crate) const SMALL_AT_LEAST_ONE: FieldType = FieldType::Count {
    min: 1,
    max: SMALL_MAX,
};
pub(crate) const MONEY: FieldType = FieldType::Real { min: 0.0, max: None };
pub(crate) const SHARE: FieldType = FieldType::Real {
    min: 0.0,
    max: Some(1.0),
};
pub(crate) const TEXTS: FieldType = FieldType::List {
    of: &FieldType::Text,
    min: 0,
};

/// The `spec` of a primitive.
pub(crate) fn spec_of(kind: Kind) -> &'static MapShape {
    match kind {
        Kind::Identity => &agent::IDENTITY,
        Kind::Provider => &agent::PROVIDER,
        Kind::Channel => &agent::CHANNEL,
        Kind::Tool => &tool::TOOL,
        Kind::Skill => &tool::SKILL,
        Kind::Memory => &memory::MEMORY,
        Kind::Sandbox => &governance::SANDBOX,
        Kind::Policy => &governance::POLICY,
        Kind::Swarm => &team::SWARM,
        Kind::Telemetry => &team::TELEMETRY,
        Kind::WorldModel => &memory::WORLD_MODEL,
    }
}
