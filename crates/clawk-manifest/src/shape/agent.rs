//! Identity, Provider and Channel (CKP §5.1 to §5.3).

use clawk_proto::uri::Kind;

use super::{
    AT_LEAST_ONE, COUNT, FieldType, MapShape, SHARE, SMALL_AT_LEAST_ONE, TEXTS, optional_field,
    required_field,
};
use crate::model::{
    AccessMode, AuthType, AutonomyLevel, BackoffStrategy, ChannelType, DbEvent, ModelModality, OverlapPolicy,
    ProviderProtocol, ProviderTransport, Role, Transport,
};

pub(super) static IDENTITY: MapShape = MapShape {
    title: "an Identity",
    doc: "Who the agent is (CKP 5.1).",
    fields: &[
        required_field(
            "personality",
            FieldType::FullText,
            "Who the agent is and how it behaves. The model reads it as its instructions.",
        ),
        optional_field(
            "context_files",
            FieldType::TextMap,
            "Files that join the prompt: role to path, relative to the manifest.",
        ),
        optional_field(
            "locale",
            FieldType::FullText,
            "Language of answers; `en-US` by default.",
        ),
        optional_field(
            "capabilities",
            TEXTS,
            "Abilities that the agent announces; nothing depends on them.",
        ),
        optional_field(
            "autonomy",
            FieldType::Word(AutonomyLevel::WORDS),
            "What the agent may do without asking; `supervised` by default. `observer`: no tools. `supervised`: asks before side effects. `autonomous`: the policy alone decides.",
        ),
    ],
};

pub(super) static PROVIDER: MapShape = MapShape {
    title: "a Provider",
    doc: "An inference endpoint (CKP 5.2).",
    fields: &[
        required_field(
            "protocol",
            FieldType::Word(ProviderProtocol::WORDS),
            "The protocol that the endpoint speaks.",
        ),
        required_field(
            "endpoint",
            FieldType::FullText,
            "The base URL of the inference API; `script:FILE` and `auto:FILE` for `custom`.",
        ),
        required_field("model", FieldType::FullText, "The model's name at the endpoint."),
        required_field(
            "auth",
            FieldType::Map(&PROVIDER_AUTH),
            "How clawk authenticates at the endpoint.",
        ),
        optional_field(
            "streaming",
            FieldType::Bool,
            "Asks for a stream, so that text appears while the model writes; `false` by default.",
        ),
        optional_field(
            "hints",
            FieldType::Map(&HINTS),
            "Hints for the choice of a provider.",
        ),
        optional_field(
            "fallback",
            FieldType::List {
                of: &FieldType::Map(&FALLBACK),
                min: 0,
            },
            "Providers to ask if this one fails, in order.",
        ),
        optional_field(
            "limits",
            FieldType::Map(&LIMITS),
            "Limits for this provider; clawk refuses or waits beyond them.",
        ),
        optional_field(
            "retry",
            FieldType::Map(&PROVIDER_RETRY),
            "How clawk retries a transient failure.",
        ),
        optional_field(
            "capabilities",
            FieldType::List {
                of: &FieldType::Word(ModelModality::WORDS),
                min: 0,
            },
            "What the model reads and writes; `[text]` by default.",
        ),
        optional_field(
            "transport",
            FieldType::Word(ProviderTransport::WORDS),
            "How bytes reach the provider; `http` by default.",
        ),
    ],
};

static PROVIDER_AUTH: MapShape = MapShape {
    title: "a provider's auth",
    doc: "Authentication of a provider.",
    fields: &[
        required_field("type", FieldType::Word(AuthType::WORDS), "How the key is sent."),
        optional_field(
            "secret_ref",
            FieldType::SecretRef,
            "The name under which clawk looks the key up, never the key itself; required unless the type is `none`.",
        ),
    ],
};

static HINTS: MapShape = MapShape {
    title: "a provider's hints",
    doc: "Weights from 0 (ignore) to 1 (matters most).",
    fields: &[
        optional_field("cost_priority", SHARE, "How much low cost matters, 0 to 1."),
        optional_field("speed_priority", SHARE, "How much low latency matters, 0 to 1."),
        optional_field(
            "intelligence_priority",
            SHARE,
            "How much quality matters, 0 to 1.",
        ),
    ],
};

static FALLBACK: MapShape = MapShape {
    title: "a fallback",
    doc: "One link of a fallback chain.",
    fields: &[required_field(
        "provider_ref",
        FieldType::Ref(Kind::Provider),
        "The name of a provider of this manifest.",
    )],
};

static LIMITS: MapShape = MapShape {
    title: "a provider's limits",
    doc: "Usage limits.",
    fields: &[
        optional_field("tokens_per_day", COUNT, "Tokens per UTC day."),
        optional_field(
            "tokens_per_request",
            COUNT,
            "Tokens of one request; a larger request is never sent.",
        ),
        optional_field("requests_per_minute", COUNT, "Requests per minute."),
        optional_field(
            "max_context_window",
            COUNT,
            "Tokens of the model's context. A longer conversation is cut at a user message, and the model is told.",
        ),
    ],
};

static PROVIDER_RETRY: MapShape = MapShape {
    title: "a provider's retry",
    doc: "Retry of transient failures.",
    fields: &[
        optional_field(
            "max_attempts",
            SMALL_AT_LEAST_ONE,
            "Attempts in total; 3 by default.",
        ),
        optional_field(
            "backoff",
            FieldType::Word(BackoffStrategy::WORDS),
            "How the wait between attempts grows; `exponential` by default.",
        ),
        optional_field(
            "initial_delay_ms",
            COUNT,
            "Milliseconds before the second attempt; 1000 by default.",
        ),
    ],
};

pub(super) static CHANNEL: MapShape = MapShape {
    title: "a Channel",
    doc: "A communication surface (CKP 5.3).",
    fields: &[
        required_field(
            "type",
            FieldType::Word(ChannelType::WORDS),
            "The platform or event source.",
        ),
        required_field(
            "transport",
            FieldType::Word(Transport::WORDS),
            "How messages reach clawk.",
        ),
        required_field(
            "auth",
            FieldType::Map(&SECRET_AUTH),
            "Authentication with the platform.",
        ),
        optional_field(
            "access_control",
            FieldType::Map(&ACCESS_CONTROL),
            "Who may talk to the agent through this channel.",
        ),
        optional_field(
            "processing",
            FieldType::Map(&PROCESSING),
            "How clawk handles messages.",
        ),
        optional_field(
            "features",
            FieldType::Map(&FEATURES),
            "Abilities of the platform that the channel uses.",
        ),
        optional_field(
            "trigger",
            FieldType::Map(&TRIGGER),
            "For `cron`, `queue`, `imap` and `db-trigger`: what starts a run.",
        ),
    ],
};

pub(super) static SECRET_AUTH: MapShape = MapShape {
    title: "auth",
    doc: "Authentication by one named secret.",
    fields: &[required_field(
        "secret_ref",
        FieldType::SecretRef,
        "Name of the secret, never its value.",
    )],
};

static ACCESS_CONTROL: MapShape = MapShape {
    title: "access_control",
    doc: "Who may talk to the agent; each mode takes its own field only.",
    fields: &[
        required_field(
            "mode",
            FieldType::Word(AccessMode::WORDS),
            "How clawk decides who may talk to the agent.",
        ),
        optional_field(
            "allowed_ids",
            TEXTS,
            "User ids of the platform that may talk to the agent; for `allowlist`.",
        ),
        optional_field("pairing", FieldType::Map(&PAIRING), "For `pairing`."),
        optional_field(
            "roles",
            FieldType::List {
                of: &FieldType::Map(&ROLE),
                min: 0,
            },
            "Users and their roles; for `role-based`.",
        ),
    ],
};

static PAIRING: MapShape = MapShape {
    title: "pairing",
    doc: "How unknown users are let in by a code.",
    fields: &[
        required_field(
            "code_expiry_minutes",
            AT_LEAST_ONE,
            "Minutes until a pairing code expires.",
        ),
        required_field(
            "max_pending",
            COUNT,
            "The most pairing codes that wait at the same time.",
        ),
    ],
};

static ROLE: MapShape = MapShape {
    title: "a role assignment",
    doc: "A user's role.",
    fields: &[
        required_field("id", FieldType::FullText, "Platform user id."),
        required_field("role", FieldType::Word(Role::WORDS), "The role."),
    ],
};

static PROCESSING: MapShape = MapShape {
    title: "processing",
    doc: "Message handling.",
    fields: &[
        optional_field(
            "max_message_length",
            AT_LEAST_ONE,
            "The longest message, in characters.",
        ),
        optional_field(
            "rate_limit",
            FieldType::Map(&MESSAGE_RATE),
            "How many messages of a sender clawk accepts.",
        ),
        optional_field(
            "typing_indicator",
            FieldType::Bool,
            "Show that the agent is writing.",
        ),
        optional_field(
            "read_receipts",
            FieldType::Bool,
            "Confirm that a message was read.",
        ),
    ],
};

static MESSAGE_RATE: MapShape = MapShape {
    title: "a message rate",
    doc: "Messages let in per sender.",
    fields: &[
        optional_field("messages_per_minute", COUNT, "Messages per minute, sustained."),
        optional_field("burst", COUNT, "Messages that may come at once beyond the rate."),
    ],
};

static FEATURES: MapShape = MapShape {
    title: "features",
    doc: "Abilities of the platform to use; all off by default.",
    fields: &[
        optional_field("voice", FieldType::Bool, "Voice messages."),
        optional_field("files", FieldType::Bool, "File attachments."),
        optional_field("reactions", FieldType::Bool, "Reactions."),
        optional_field("threads", FieldType::Bool, "Threads."),
        optional_field("inline_images", FieldType::Bool, "Images inside messages."),
    ],
};

static TRIGGER: MapShape = MapShape {
    title: "a trigger",
    doc: "When an event-driven channel runs the agent.",
    fields: &[
        optional_field(
            "schedule",
            FieldType::Cron,
            "Five-field cron expression; required for `cron`.",
        ),
        optional_field(
            "queue_name",
            FieldType::FullText,
            "Queue or topic; required for `queue`.",
        ),
        optional_field("mailbox", FieldType::FullText, "Mailbox; required for `imap`."),
        optional_field("table", FieldType::FullText, "Table; required for `db-trigger`."),
        optional_field(
            "events",
            FieldType::List {
                of: &FieldType::Word(DbEvent::WORDS),
                min: 1,
            },
            "Which operations start a run; for `db-trigger`.",
        ),
        optional_field(
            "max_parallel",
            SMALL_AT_LEAST_ONE,
            "Runs at the same time; 1 by default.",
        ),
        optional_field(
            "overlap_policy",
            FieldType::Word(OverlapPolicy::WORDS),
            "What happens to events beyond `max_parallel`; `skip` by default.",
        ),
    ],
};
