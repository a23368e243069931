//! Identity, Provider and Channel (CKP §5.1 to §5.3).

use clawk_proto::uri::Kind;

use super::{AT_LEAST_ONE, COUNT, FieldType, MapShape, SHARE, SMALL_AT_LEAST_ONE, TEXTS, opt, req};
use crate::model::{
    AccessMode, AuthType, AutonomyLevel, BackoffStrategy, ChannelType, DbEvent, ModelModality, OverlapPolicy,
    ProviderProtocol, ProviderTransport, Role, Transport,
};

pub(super) static IDENTITY: MapShape = MapShape {
    title: "an Identity",
    doc: "Who the agent is (CKP 5.1).",
    fields: &[
        req(
            "personality",
            FieldType::FullText,
            "Who the agent is and how it behaves. The model reads it as its instructions.",
        ),
        opt(
            "context_files",
            FieldType::TextMap,
            "Files that join the prompt: role to path, relative to the manifest.",
        ),
        opt(
            "locale",
            FieldType::FullText,
            "Language of answers; `en-US` by default.",
        ),
        opt(
            "capabilities",
            TEXTS,
            "Abilities that the agent announces; nothing depends on them.",
        ),
        opt(
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
        req(
            "protocol",
            FieldType::Word(ProviderProtocol::WORDS),
            "The protocol that the endpoint speaks.",
        ),
        req(
            "endpoint",
            FieldType::FullText,
            "The base URL of the inference API; `script:FILE` and `auto:FILE` for `custom`.",
        ),
        req("model", FieldType::FullText, "The model's name at the endpoint."),
        req(
            "auth",
            FieldType::Map(&PROVIDER_AUTH),
            "How clawk authenticates at the endpoint.",
        ),
        opt(
            "streaming",
            FieldType::Bool,
            "Asks for a stream, so that text appears while the model writes; `false` by default.",
        ),
        opt(
            "hints",
            FieldType::Map(&HINTS),
            "Hints for the choice of a provider.",
        ),
        opt(
            "fallback",
            FieldType::List {
                of: &FieldType::Map(&FALLBACK),
                min: 0,
            },
            "Providers to ask if this one fails, in order.",
        ),
        opt(
            "limits",
            FieldType::Map(&LIMITS),
            "Limits for this provider; clawk refuses or waits beyond them.",
        ),
        opt(
            "retry",
            FieldType::Map(&PROVIDER_RETRY),
            "How clawk retries a transient failure.",
        ),
        opt(
            "capabilities",
            FieldType::List {
                of: &FieldType::Word(ModelModality::WORDS),
                min: 0,
            },
            "What the model reads and writes; `[text]` by default.",
        ),
        opt(
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
        req("type", FieldType::Word(AuthType::WORDS), "How the key is sent."),
        opt(
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
        opt("cost_priority", SHARE, "How much low cost matters, 0 to 1."),
        opt("speed_priority", SHARE, "How much low latency matters, 0 to 1."),
        opt(
            "intelligence_priority",
            SHARE,
            "How much quality matters, 0 to 1.",
        ),
    ],
};

static FALLBACK: MapShape = MapShape {
    title: "a fallback",
    doc: "One link of a fallback chain.",
    fields: &[req(
        "provider_ref",
        FieldType::Ref(Kind::Provider),
        "The name of a provider of this manifest.",
    )],
};

static LIMITS: MapShape = MapShape {
    title: "a provider's limits",
    doc: "Usage limits.",
    fields: &[
        opt("tokens_per_day", COUNT, "Tokens per UTC day."),
        opt(
            "tokens_per_request",
            COUNT,
            "Tokens of one request; a larger request is never sent.",
        ),
        opt("requests_per_minute", COUNT, "Requests per minute."),
        opt(
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
        opt(
            "max_attempts",
            SMALL_AT_LEAST_ONE,
            "Attempts in total; 3 by default.",
        ),
        opt(
            "backoff",
            FieldType::Word(BackoffStrategy::WORDS),
            "How the wait between attempts grows; `exponential` by default.",
        ),
        opt(
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
        req(
            "type",
            FieldType::Word(ChannelType::WORDS),
            "The platform or event source.",
        ),
        req(
            "transport",
            FieldType::Word(Transport::WORDS),
            "How messages reach clawk.",
        ),
        req(
            "auth",
            FieldType::Map(&SECRET_AUTH),
            "Authentication with the platform.",
        ),
        opt(
            "access_control",
            FieldType::Map(&ACCESS_CONTROL),
            "Who may talk to the agent through this channel.",
        ),
        opt(
            "processing",
            FieldType::Map(&PROCESSING),
            "How clawk handles messages.",
        ),
        opt(
            "features",
            FieldType::Map(&FEATURES),
            "Abilities of the platform that the channel uses.",
        ),
        opt(
            "trigger",
            FieldType::Map(&TRIGGER),
            "For `cron`, `queue`, `imap` and `db-trigger`: what starts a run.",
        ),
    ],
};

pub(super) static SECRET_AUTH: MapShape = MapShape {
    title: "auth",
    doc: "Authentication by one named secret.",
    fields: &[req(
        "secret_ref",
        FieldType::SecretRef,
        "Name of the secret, never its value.",
    )],
};

static ACCESS_CONTROL: MapShape = MapShape {
    title: "access_control",
    doc: "Who may talk to the agent; each mode takes its own field only.",
    fields: &[
        req(
            "mode",
            FieldType::Word(AccessMode::WORDS),
            "How clawk decides who may talk to the agent.",
        ),
        opt(
            "allowed_ids",
            TEXTS,
            "User ids of the platform that may talk to the agent; for `allowlist`.",
        ),
        opt("pairing", FieldType::Map(&PAIRING), "For `pairing`."),
        opt(
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
        req(
            "code_expiry_minutes",
            AT_LEAST_ONE,
            "Minutes until a pairing code expires.",
        ),
        req(
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
        req("id", FieldType::FullText, "Platform user id."),
        req("role", FieldType::Word(Role::WORDS), "The role."),
    ],
};

static PROCESSING: MapShape = MapShape {
    title: "processing",
    doc: "Message handling.",
    fields: &[
        opt(
            "max_message_length",
            AT_LEAST_ONE,
            "The longest message, in characters.",
        ),
        opt(
            "rate_limit",
            FieldType::Map(&MESSAGE_RATE),
            "How many messages of a sender clawk accepts.",
        ),
        opt(
            "typing_indicator",
            FieldType::Bool,
            "Show that the agent is writing.",
        ),
        opt(
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
        opt("messages_per_minute", COUNT, "Messages per minute, sustained."),
        opt("burst", COUNT, "Messages that may come at once beyond the rate."),
    ],
};

static FEATURES: MapShape = MapShape {
    title: "features",
    doc: "Abilities of the platform to use; all off by default.",
    fields: &[
        opt("voice", FieldType::Bool, "Voice messages."),
        opt("files", FieldType::Bool, "File attachments."),
        opt("reactions", FieldType::Bool, "Reactions."),
        opt("threads", FieldType::Bool, "Threads."),
        opt("inline_images", FieldType::Bool, "Images inside messages."),
    ],
};

static TRIGGER: MapShape = MapShape {
    title: "a trigger",
    doc: "When an event-driven channel runs the agent.",
    fields: &[
        opt(
            "schedule",
            FieldType::Cron,
            "Five-field cron expression; required for `cron`.",
        ),
        opt(
            "queue_name",
            FieldType::FullText,
            "Queue or topic; required for `queue`.",
        ),
        opt("mailbox", FieldType::FullText, "Mailbox; required for `imap`."),
        opt("table", FieldType::FullText, "Table; required for `db-trigger`."),
        opt(
            "events",
            FieldType::List {
                of: &FieldType::Word(DbEvent::WORDS),
                min: 1,
            },
            "Which operations start a run; for `db-trigger`.",
        ),
        opt(
            "max_parallel",
            SMALL_AT_LEAST_ONE,
            "Runs at the same time; 1 by default.",
        ),
        opt(
            "overlap_policy",
            FieldType::Word(OverlapPolicy::WORDS),
            "What happens to events beyond `max_parallel`; `skip` by default.",
        ),
    ],
};
