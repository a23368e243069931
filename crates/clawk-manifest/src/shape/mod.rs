//! The shape of every document as data: one table that the checker reads and the JSON Schema is printed from.
//!
//! What a field is stands here; what fields mean together stands in `rules`.

mod agent;
mod claw;
mod governance;
mod memory;
mod team;
mod tool;

use clawk_proto::uri::Kind;

pub(crate) use claw::{CLAW_SPEC, ENVELOPE_FIELDS, METADATA, slot_kind};

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldType {
    /// Any text.
    Text,
    /// Text with something in it.
    FullText,
    Bool,
    /// A whole number in these bounds.
    Count {
        min: u64,
        max: u64,
    },
    /// A number; `max` absent means without bound.
    Real {
        min: f64,
        max: Option<f64>,
    },
    /// One word of a closed set.
    Word(&'static [&'static str]),
    /// A name by the URI grammar (R8).
    Name,
    /// A name, or a `claw://` URI, of a primitive declared in the same manifest.
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
    /// A host name, `*.` for subdomains.
    Host,
    /// An MCP transport URI.
    McpUri,
    /// A JSON Schema of an object: `type: object`, which may be left out.
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
    /// An open map of anything (R10).
    AnyMap,
    /// An open map in which the members of [`HINTS`] are booleans (R10).
    Hints,
    /// A reference to, or an inline form of, a primitive.
    Item(Kind),
    /// One such item, or a list of them.
    Items(Kind),
}

/// The annotations of MCP that steer a runtime.
pub(crate) const HINTS: [&str; 4] = [
    "readOnlyHint",
    "destructiveHint",
    "idempotentHint",
    "openWorldHint",
];

/// A closed map.
#[derive(Debug)]
pub(crate) struct MapShape {
    /// What it is called in messages: `a provider's `auth``.
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
    /// First in protocol 0.3.0.
    pub(crate) newer: bool,
    pub(crate) doc: &'static str,
}

/// A field that must be given.
pub(crate) const fn req(name: &'static str, ty: FieldType, doc: &'static str) -> Field {
    Field {
        name,
        ty,
        required: true,
        newer: false,
        doc,
    }
}

/// A field that may be given.
pub(crate) const fn opt(name: &'static str, ty: FieldType, doc: &'static str) -> Field {
    Field {
        name,
        ty,
        required: false,
        newer: false,
        doc,
    }
}

impl Field {
    /// First in protocol 0.3.0.
    pub(crate) const fn newer(self) -> Self {
        Self { newer: true, ..self }
    }
}

impl MapShape {
    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

/// The largest whole number that every JSON reader keeps exactly.
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
