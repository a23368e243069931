//! The root document and the envelope that every document has (CKP §5, §6).

use clawk_proto::uri::Kind;

use super::{Field, FieldType, MapShape, optional_field, required_field};

/// Members of a document besides `spec`.
pub(crate) const ENVELOPE_FIELDS: [&str; 4] = ["claw", "kind", "metadata", "spec"];

pub(crate) static METADATA: MapShape = MapShape {
    title: "metadata",
    doc: "Name, version and labels of a document.",
    fields: &[
        required_field(
            "name",
            FieldType::Name,
            "Unique among primitives of the same kind: 1 to 63 letters, digits and hyphens.",
        ),
        optional_field("version", FieldType::Semver, "Semantic version of this document."),
        optional_field("description", FieldType::Text, "For people."),
        optional_field(
            "labels",
            FieldType::TextMap,
            "Text labels, for filtering and policy matching.",
        ),
        optional_field(
            "annotations",
            FieldType::AnyMap,
            "Free data; only `heartbeat_interval_ms` of the Claw is read.",
        ),
    ],
};

/// A member of the root's `spec`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RootMember {
    pub(crate) kind: Kind,
    /// The member is a list of primitives.
    pub(crate) many: bool,
    /// The member is a single primitive, never a list.
    pub(crate) lone: bool,
}

/// The kind of primitives in the root's member of this name.
pub(crate) fn slot_kind(name: &str) -> Option<RootMember> {
    let slot = |kind, many, lone| Some(RootMember { kind, many, lone });
    let one = |kind| slot(kind, false, true);
    let many = |kind| slot(kind, true, false);
    match name {
        "identity" => one(Kind::Identity),
        "providers" => many(Kind::Provider),
        "channels" => many(Kind::Channel),
        "tools" => many(Kind::Tool),
        "skills" => many(Kind::Skill),
        "memory" => one(Kind::Memory),
        "world_models" => many(Kind::WorldModel),
        "sandbox" => slot(Kind::Sandbox, true, true),
        "policies" => many(Kind::Policy),
        "swarm" => one(Kind::Swarm),
        "telemetry" => one(Kind::Telemetry),
        _ => None,
    }
}

const fn list_field(name: &'static str, of: &'static FieldType, doc: &'static str) -> Field {
    optional_field(name, FieldType::List { of, min: 0 }, doc)
}

pub(crate) static CLAW_SPEC: MapShape = MapShape {
    title: "the Claw's spec",
    doc: "All primitives of an agent: each a file path, a glob, a `claw://` URI, `inline`, or the name of a built-in tool.",
    fields: &[
        required_field("identity", FieldType::Item(Kind::Identity), "Who the agent is."),
        required_field(
            "providers",
            FieldType::List {
                of: &FieldType::Item(Kind::Provider),
                min: 1,
            },
            "Where the model answers; the first is the primary.",
        ),
        list_field(
            "channels",
            &FieldType::Item(Kind::Channel),
            "How people and events reach the agent.",
        ),
        list_field(
            "tools",
            &FieldType::Item(Kind::Tool),
            "What the agent can call. The name of a built-in tool, such as `file-read`, is enough.",
        ),
        list_field(
            "skills",
            &FieldType::Item(Kind::Skill),
            "What the agent knows how to do.",
        ),
        optional_field("memory", FieldType::Item(Kind::Memory), "What the agent keeps."),
        list_field(
            "world_models",
            &FieldType::Item(Kind::WorldModel),
            "What skills plan with (0.3.0).",
        )
        .since_v03(),
        optional_field(
            "sandbox",
            FieldType::Items(Kind::Sandbox),
            "Where tools run: one, or a list. A tool names its own by `sandbox_ref`; the first holds for all others.",
        ),
        list_field(
            "policies",
            &FieldType::Item(Kind::Policy),
            "What is allowed; the rules form one list in this order.",
        ),
        optional_field(
            "swarm",
            FieldType::Item(Kind::Swarm),
            "Several agents at one task.",
        ),
        optional_field(
            "telemetry",
            FieldType::Item(Kind::Telemetry),
            "What is told about the agent.",
        ),
    ],
};
