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
            "Who the agent is and how it behaves. The model reads it as its instructions.",
        ),
        opt(
            "context_files",
            Type::TextMap,
            "Files that join the prompt: role to path, relative to the manifest.",
        ),
        opt(
            "locale",
            Type::FullText,
            "Language of answers; `en-US` by default.",
        ),
        opt(
            "capabilities",
            TEXTS,
            "Abilities that the agent announces; nothing depends on them.",
        ),
        opt(
            "autonomy",
            Type::Word(Autonomy::WORDS),
            "What the agent may do without asking; `supervised` by default. `observer`: no tools. `supervised`: asks before side effects. `autonomous`: the policy alone decides.",
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
        req(
            "endpoint",
            Type::FullText,
            "The base URL of the inference API; `script:FILE` and `auto:FILE` for `custom`.",
        ),
        req("model", Type::FullText, "The model's name at the endpoint."),
        req(
            "auth",
            Type::Map(&PROVIDER_AUTH),
            "How clawk authenticates at the endpoint.",
        ),
        opt(
            "streaming",
            Type::Bool,
            "Asks for a stream, so that text appears while the model writes; `false` by default.",
        ),
        opt("hints", Type::Map(&HINTS), "Hints for the choice of a provider."),
        opt(
            "fallback",
            Type::List {
                of: &Type::Map(&FALLBACK),
                min: 0,
            },
            "Providers to ask if this one fails, in order.",
        ),
        opt(
            "limits",
            Type::Map(&LIMITS),
            "Limits for this provider; clawk refuses or waits beyond them.",
        ),
        opt(
            "retry",
            Type::Map(&PROVIDER_RETRY),
            "How clawk retries a transient failure.",
        ),
        opt(
            "capabilities",
            Type::List {
                of: &Type::Word(Modality::WORDS),
                min: 0,
            },
            "What the model reads and writes; `[text]` by default.",
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
        req("type", Type::Word(AuthType::WORDS), "How the key is sent."),
        opt(
            "secret_ref",
            Type::SecretRef,
            "The name under which clawk looks the key up, never the key itself; required unless the type is `none`.",
        ),
    ],
};

static HINTS: Shape = Shape {
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

static FALLBACK: Shape = Shape {
    title: "a fallback",
    doc: "One link of a fallback chain.",
    fields: &[req(
        "provider_ref",
        Type::Ref(Kind::Provider),
        "The name of a provider of this manifest.",
    )],
};

static LIMITS: Shape = Shape {
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

static PROVIDER_RETRY: Shape = Shape {
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
            Type::Word(Backoff::WORDS),
            "How the wait between attempts grows; `exponential` by default.",
        ),
        opt(
            "initial_delay_ms",
            COUNT,
            "Milliseconds before the second attempt; 1000 by default.",
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
        req(
            "transport",
            Type::Word(Transport::WORDS),
            "How messages reach clawk.",
        ),
        req(
            "auth",
            Type::Map(&SECRET_AUTH),
            "Authentication with the platform.",
        ),
        opt(
            "access_control",
            Type::Map(&ACCESS_CONTROL),
            "Who may talk to the agent through this channel.",
        ),
        opt(
            "processing",
            Type::Map(&PROCESSING),
            "How clawk handles messages.",
        ),
        opt(
            "features",
            Type::Map(&FEATURES),
            "Abilities of the platform that the channel uses.",
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
        req(
            "mode",
            Type::Word(AccessMode::WORDS),
            "How clawk decides who may talk to the agent.",
        ),
        opt(
            "allowed_ids",
            TEXTS,
            "User ids of the platform that may talk to the agent; for `allowlist`.",
        ),
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
        opt(
            "max_message_length",
            AT_LEAST_ONE,
            "The longest message, in characters.",
        ),
        opt(
            "rate_limit",
            Type::Map(&MESSAGE_RATE),
            "How many messages of a sender clawk accepts.",
        ),
        opt("typing_indicator", Type::Bool, "Show that the agent is writing."),
        opt("read_receipts", Type::Bool, "Confirm that a message was read."),
    ],
};

static MESSAGE_RATE: Shape = Shape {
    title: "a message rate",
    doc: "Messages let in per sender.",
    fields: &[
        opt("messages_per_minute", COUNT, "Messages per minute, sustained."),
        opt("burst", COUNT, "Messages that may come at once beyond the rate."),
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
            "Which operations start a run; for `db-trigger`.",
        ),
        opt(
            "max_parallel",
            SMALL_AT_LEAST_ONE,
            "Runs at the same time; 1 by default.",
        ),
        opt(
            "overlap_policy",
            Type::Word(OverlapPolicy::WORDS),
            "What happens to events beyond `max_parallel`; `skip` by default.",
        ),
    ],
};
