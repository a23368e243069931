//! Identity, Provider and Channel (CKP §5.1 to §5.3).

use clawk_proto::uri::Kind;

use super::{AT_LEAST_ONE, COUNT, SHARE, SMALL_AT_LEAST_ONE, Shape, TEXTS, Type, opt, req};
use crate::model::{
    AccessMode, AuthType, Autonomy, Backoff, ChannelType, DbEvent, Modality, OverlapPolicy, ProviderProtocol,
    ProviderTransport, Role, Transport,
};

pub(super) static IDENTITY: Shape = Shape {
    title: "an Identity",
    doc: "Who the agent is (CKP 5.1).",
    fields: &[
        req(
            "personality",
            Type::FullText,
            "Who the agent is and how it behaves; the model's system context.",
        ),
        opt(
            "context_files",
            Type::TextMap,
            "Files kept across sessions: role to path, relative to the manifest.",
        ),
        opt("locale", Type::FullText, "Locale of answers; `en-US` by default."),
        opt("capabilities", TEXTS, "Declared abilities; informational."),
        opt(
            "autonomy",
            Type::Word(Autonomy::WORDS),
            "What may be done without approval; `supervised` by default.",
        ),
    ],
};

pub(super) static PROVIDER: Shape = Shape {
    title: "a Provider",
    doc: "An inference endpoint (CKP 5.2).",
    fields: &[
        req(
            "protocol",
            Type::Word(ProviderProtocol::WORDS),
            "The protocol that the endpoint speaks.",
        ),
        req("endpoint", Type::FullText, "Base URL of the inference API."),
        req("model", Type::FullText, "Model identifier."),
        req("auth", Type::Map(&PROVIDER_AUTH), "Authentication."),
        opt("streaming", Type::Bool, "Ask for a stream; `false` by default."),
        opt("hints", Type::Map(&HINTS), "Selection hints."),
        opt(
            "fallback",
            Type::List {
                of: &Type::Map(&FALLBACK),
                min: 0,
            },
            "Providers to try, in order.",
        ),
        opt("limits", Type::Map(&LIMITS), "Usage limits."),
        opt(
            "retry",
            Type::Map(&PROVIDER_RETRY),
            "Retry of transient failures.",
        ),
        opt(
            "capabilities",
            Type::List {
                of: &Type::Word(Modality::WORDS),
                min: 0,
            },
            "What the model takes and gives; `[text]` by default.",
        ),
        opt(
            "transport",
            Type::Word(ProviderTransport::WORDS),
            "How bytes reach the provider; `http` by default.",
        ),
    ],
};

static PROVIDER_AUTH: Shape = Shape {
    title: "a provider's auth",
    doc: "Authentication of a provider.",
    fields: &[
        req("type", Type::Word(AuthType::WORDS), "The method."),
        opt(
            "secret_ref",
            Type::SecretRef,
            "Name of the secret; required unless the type is `none`.",
        ),
    ],
};

static HINTS: Shape = Shape {
    title: "a provider's hints",
    doc: "Weights from 0 (ignore) to 1 (matters most).",
    fields: &[
        opt("cost_priority", SHARE, "Minimise cost."),
        opt("speed_priority", SHARE, "Minimise latency."),
        opt("intelligence_priority", SHARE, "Maximise quality."),
    ],
};

static FALLBACK: Shape = Shape {
    title: "a fallback",
    doc: "One link of a fallback chain.",
    fields: &[req(
        "provider_ref",
        Type::Ref(Kind::Provider),
        "A declared provider.",
    )],
};

static LIMITS: Shape = Shape {
    title: "a provider's limits",
    doc: "Usage limits.",
    fields: &[
        opt("tokens_per_day", COUNT, "Tokens per UTC day."),
        opt("tokens_per_request", COUNT, "Tokens of one request."),
        opt("requests_per_minute", COUNT, "Requests in a minute."),
        opt(
            "max_context_window",
            COUNT,
            "Tokens that the model's context holds.",
        ),
    ],
};

static PROVIDER_RETRY: Shape = Shape {
    title: "a provider's retry",
    doc: "Retry of transient failures.",
    fields: &[
        opt(
            "max_attempts",
            SMALL_AT_LEAST_ONE,
            "Attempts in all; 3 by default.",
        ),
        opt(
            "backoff",
            Type::Word(Backoff::WORDS),
            "How the delay grows; `exponential` by default.",
        ),
        opt(
            "initial_delay_ms",
            COUNT,
            "Before the second attempt; 1000 by default.",
        ),
    ],
};

pub(super) static CHANNEL: Shape = Shape {
    title: "a Channel",
    doc: "A communication surface (CKP 5.3).",
    fields: &[
        req(
            "type",
            Type::Word(ChannelType::WORDS),
            "The platform or event source.",
        ),
        req("transport", Type::Word(Transport::WORDS), "How messages travel."),
        req(
            "auth",
            Type::Map(&SECRET_AUTH),
            "Authentication with the platform.",
        ),
        opt(
            "access_control",
            Type::Map(&ACCESS_CONTROL),
            "Who may talk to the agent.",
        ),
        opt("processing", Type::Map(&PROCESSING), "Message handling."),
        opt(
            "features",
            Type::Map(&FEATURES),
            "Abilities of the platform to use.",
        ),
        opt(
            "trigger",
            Type::Map(&TRIGGER),
            "For `cron`, `queue`, `imap` and `db-trigger`: what starts a run.",
        ),
    ],
};

pub(super) static SECRET_AUTH: Shape = Shape {
    title: "auth",
    doc: "Authentication by one named secret.",
    fields: &[req(
        "secret_ref",
        Type::SecretRef,
        "Name of the secret, never its value.",
    )],
};

static ACCESS_CONTROL: Shape = Shape {
    title: "access_control",
    doc: "Who may talk to the agent; each mode takes its own field only.",
    fields: &[
        req("mode", Type::Word(AccessMode::WORDS), "The mode."),
        opt("allowed_ids", TEXTS, "Platform user ids; for `allowlist`."),
        opt("pairing", Type::Map(&PAIRING), "For `pairing`."),
        opt(
            "roles",
            Type::List {
                of: &Type::Map(&ROLE),
                min: 0,
            },
            "Users and their roles; for `role-based`.",
        ),
    ],
};

static PAIRING: Shape = Shape {
    title: "pairing",
    doc: "How unknown users are let in by a code.",
    fields: &[
        req("code_expiry_minutes", AT_LEAST_ONE, "Life of a code."),
        req("max_pending", COUNT, "Codes that may wait at once."),
    ],
};

static ROLE: Shape = Shape {
    title: "a role assignment",
    doc: "A user's role.",
    fields: &[
        req("id", Type::FullText, "Platform user id."),
        req("role", Type::Word(Role::WORDS), "The role."),
    ],
};

static PROCESSING: Shape = Shape {
    title: "processing",
    doc: "Message handling.",
    fields: &[
        opt("max_message_length", AT_LEAST_ONE, "In characters."),
        opt("rate_limit", Type::Map(&MESSAGE_RATE), "Messages let in."),
        opt("typing_indicator", Type::Bool, "Show that the agent is writing."),
        opt("read_receipts", Type::Bool, "Confirm that a message was read."),
    ],
};

static MESSAGE_RATE: Shape = Shape {
    title: "a message rate",
    doc: "Messages let in per sender.",
    fields: &[
        opt("messages_per_minute", COUNT, "Sustained rate."),
        opt("burst", COUNT, "Messages let in at once on top."),
    ],
};

static FEATURES: Shape = Shape {
    title: "features",
    doc: "Abilities of the platform to use; all off by default.",
    fields: &[
        opt("voice", Type::Bool, "Voice messages."),
        opt("files", Type::Bool, "File attachments."),
        opt("reactions", Type::Bool, "Reactions."),
        opt("threads", Type::Bool, "Threads."),
        opt("inline_images", Type::Bool, "Images inside messages."),
    ],
};

static TRIGGER: Shape = Shape {
    title: "a trigger",
    doc: "When an event-driven channel runs the agent.",
    fields: &[
        opt(
            "schedule",
            Type::Cron,
            "Five-field cron expression; required for `cron`.",
        ),
        opt(
            "queue_name",
            Type::FullText,
            "Queue or topic; required for `queue`.",
        ),
        opt("mailbox", Type::FullText, "Mailbox; required for `imap`."),
        opt("table", Type::FullText, "Table; required for `db-trigger`."),
        opt(
            "events",
            Type::List {
                of: &Type::Word(DbEvent::WORDS),
                min: 1,
            },
            "Operations heard; for `db-trigger`.",
        ),
        opt("max_parallel", SMALL_AT_LEAST_ONE, "Runs at once; 1 by default."),
        opt(
            "overlap_policy",
            Type::Word(OverlapPolicy::WORDS),
            "What happens to events beyond `max_parallel`; `skip` by default.",
        ),
    ],
};
