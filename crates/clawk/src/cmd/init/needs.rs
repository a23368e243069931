//! The table behind `clawk init --channel`: the settings that each channel type needs, and where a person finds them.

use clap::ValueEnum;

/// A type of channel that `clawk init` writes. Only `cli` is missing: it is the terminal of `clawk run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A bot of Telegram
    Telegram,
    /// An app of Slack, by Socket Mode
    Slack,
    /// A bot of Discord
    Discord,
    /// A user of a Matrix homeserver
    Matrix,
    /// A mailbox, by IMAP and SMTP
    Email,
    /// Signed HTTP requests of a program of yours
    Webhook,
    /// A page in the browser
    Web,
    /// Recordings in, speech out, over a WebSocket
    Voice,
    /// A number of WhatsApp, by Meta's Cloud API
    Whatsapp,
    /// A Messaging API channel of LINE
    Line,
    /// A custom app of Lark or Feishu
    Lark,
    /// A robot of DingTalk, in Stream mode
    Dingtalk,
    /// An official account of WeChat
    Wechat,
    /// A bot of QQ
    Qq,
    /// Runs at set times
    Cron,
    /// A run for each message of a queue: RabbitMQ, NATS, Redis
    Queue,
    /// A run for each mail of a mailbox
    Imap,
    /// A run for each change of a table: PostgreSQL, SQLite
    DbTrigger,
    /// A program of yours that speaks the line protocol
    Custom,
}

/// Where an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerTarget {
    /// Under `settings` of `[channels.NAME]`.
    Setting,
    /// As a key of `[channels.NAME]`.
    Key,
    /// As an optional key of `[channels.NAME]`.
    Optional,
    /// Under `trigger` of the manifest's channel.
    Trigger,
    /// As `command` of `[channels.NAME]`: words separated by spaces.
    Command,
    /// As the provider for speech recognition and speech output.
    Speech,
}

/// One question to the person.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChannelQuestion {
    pub(super) name: &'static str,
    pub(super) place: AnswerTarget,
    /// The question's subject, as text for people.
    pub(super) what: &'static str,
}

/// Who may talk to the agent at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LetIn {
    /// Unknown senders get a pairing code.
    Pairing,
    /// The person whose id `--admin` gives.
    Admin,
    /// The sender `user`, who owns the channel's own token.
    User,
    /// Nobody: the channel is an event source.
    Nobody,
}

/// The needs of a channel type.
#[derive(Debug)]
pub(super) struct ChannelNeeds {
    pub(super) transport: &'static str,
    /// Variable of the first secret; `NONE` if there is no secret.
    pub(super) secret: &'static str,
    /// Where to get the secret.
    pub(super) how: &'static str,
    /// Further secrets: key in `clawk.toml`, and variable.
    pub(super) secrets: &'static [(&'static str, &'static str)],
    pub(super) asks: Vec<ChannelQuestion>,
    pub(super) lets_in: LetIn,
    /// The platform or a browser connects over HTTP, so `clawk serve` needs `--listen`.
    pub(super) listens: bool,
}

const fn new_question(name: &'static str, place: AnswerTarget, what: &'static str) -> ChannelQuestion {
    ChannelQuestion { name, place, what }
}

const PUBLIC: ChannelQuestion = new_question(
    "public_url",
    AnswerTarget::Optional,
    "the address under which the platform reaches this agent, for example https://agent.example.org",
);
const APP_ID: ChannelQuestion = new_question(
    "app_id",
    AnswerTarget::Setting,
    "the app id that the platform's console shows",
);
const PROMPT: ChannelQuestion = new_question(
    "prompt",
    AnswerTarget::Optional,
    "what the agent is to do then, for example `Look at this: {event}`",
);
const DELIVER: ChannelQuestion = new_question(
    "deliver_to",
    AnswerTarget::Optional,
    "where the answer goes, `CHANNEL:CONVERSATION`",
);
const IMAP_URL: ChannelQuestion = new_question(
    "url",
    AnswerTarget::Key,
    "the IMAP server, for example imaps://USER@imap.example.org",
);
const AUTHSERV: ChannelQuestion = new_question(
    "authserv_id",
    AnswerTarget::Setting,
    "the first word of Authentication-Results in a mail that you received there",
);

/// A chat that needs only a token and uses WebSocket and pairing.
const fn chat_needs() -> ChannelNeeds {
    ChannelNeeds {
        transport: "websocket",
        secret: "NONE",
        how: "",
        secrets: &[],
        asks: Vec::new(),
        lets_in: LetIn::Pairing,
        listens: false,
    }
}

/// A chat whose platform sends HTTP requests.
fn webhook_needs() -> ChannelNeeds {
    ChannelNeeds {
        transport: "webhook",
        listens: true,
        ..chat_needs()
    }
}

/// A source of events.
fn source() -> ChannelNeeds {
    ChannelNeeds {
        transport: "stdio",
        lets_in: LetIn::Nobody,
        ..chat_needs()
    }
}

impl Kind {
    /// Returns the type's word in the manifest.
    pub(in crate::cmd) const fn manifest_word(self) -> &'static str {
        match self {
            Self::Telegram => "telegram",
            Self::Slack => "slack",
            Self::Discord => "discord",
            Self::Matrix => "matrix",
            Self::Email => "email",
            Self::Webhook => "webhook",
            Self::Web => "web",
            Self::Voice => "voice",
            Self::Whatsapp => "whatsapp",
            Self::Line => "line",
            Self::Lark => "lark",
            Self::Dingtalk => "dingtalk",
            Self::Wechat => "wechat",
            Self::Qq => "qq",
            Self::Cron => "cron",
            Self::Queue => "queue",
            Self::Imap => "imap",
            Self::DbTrigger => "db-trigger",
            Self::Custom => "custom",
        }
    }

    /// Returns the needs of this type.
    pub(super) fn needs(self) -> ChannelNeeds {
        match self {
            Self::Telegram | Self::Slack | Self::Discord | Self::Matrix => self.by_token(),
            Self::Whatsapp | Self::Line | Self::Lark | Self::Dingtalk | Self::Wechat | Self::Qq => {
                self.by_app()
            }
            Self::Email | Self::Webhook | Self::Web | Self::Voice | Self::Custom => self.by_yourself(),
            Self::Cron | Self::Queue | Self::Imap | Self::DbTrigger => self.by_event(),
        }
    }

    /// Platforms that give a bot a token.
    fn by_token(self) -> ChannelNeeds {
        match self {
            Self::Slack => ChannelNeeds {
                secret: "SLACK_BOT_TOKEN",
                how: "at api.slack.com/apps make an app with Socket Mode; OAuth & Permissions shows the bot token (xoxb-), Basic \
                      Information the app token (xapp-)",
                secrets: &[("app_token", "SLACK_APP_TOKEN")],
                ..chat_needs()
            },
            Self::Discord => ChannelNeeds {
                secret: "DISCORD_TOKEN",
                how: "at discord.com/developers/applications make an application; Bot shows the token, and MESSAGE CONTENT INTENT \
                      must be on",
                ..chat_needs()
            },
            Self::Matrix => ChannelNeeds {
                transport: "polling",
                secret: "MATRIX_TOKEN",
                how: "make a user for the agent on your homeserver; in Element, All settings, Help & About shows its access token",
                asks: vec![
                    new_question(
                        "user_id",
                        AnswerTarget::Setting,
                        "the agent's user id, for example @bot:example.org",
                    ),
                    new_question(
                        "base_url",
                        AnswerTarget::Key,
                        "the homeserver's address, for example https://matrix.example.org",
                    ),
                ],
                ..chat_needs()
            },
            _ => ChannelNeeds {
                transport: "polling",
                secret: "TELEGRAM_TOKEN",
                how: "in Telegram, write to @BotFather, send /newbot, and copy the token",
                ..chat_needs()
            },
        }
    }

    /// Platforms on which the agent is an app with an id and a secret.
    fn by_app(self) -> ChannelNeeds {
        match self {
            Self::Whatsapp => ChannelNeeds {
                secret: "WHATSAPP_TOKEN",
                how: "at developers.facebook.com make a Business app with WhatsApp: a system user gives the token, App settings > Basic \
                      the app secret; the verify token is a word of your own",
                secrets: &[
                    ("app_secret", "WHATSAPP_APP_SECRET"),
                    ("verify_token", "WHATSAPP_VERIFY_TOKEN"),
                ],
                asks: vec![
                    new_question(
                        "phone_number_id",
                        AnswerTarget::Setting,
                        "the phone number ID, not the number itself",
                    ),
                    PUBLIC,
                ],
                ..webhook_needs()
            },
            Self::Line => ChannelNeeds {
                secret: "LINE_TOKEN",
                how: "at developers.line.biz make a Messaging API channel: Messaging API issues the channel access token, Basic settings \
                      shows the channel secret",
                secrets: &[("channel_secret", "LINE_SECRET")],
                asks: vec![PUBLIC],
                ..webhook_needs()
            },
            Self::Lark => ChannelNeeds {
                secret: "LARK_SECRET",
                how: "at open.feishu.cn (or open.larksuite.com) make a custom app with a bot; Credentials shows its id and secret. \
                      Outside of China set --base-url https://open.larksuite.com",
                asks: vec![APP_ID],
                ..chat_needs()
            },
            Self::Dingtalk => ChannelNeeds {
                secret: "DINGTALK_SECRET",
                how: "at open-dev.dingtalk.com make an internal app with a robot in Stream mode; Credentials shows its client id and secret",
                asks: vec![new_question(
                    "client_id",
                    AnswerTarget::Setting,
                    "the client id (app key) that the console shows",
                )],
                ..chat_needs()
            },
            Self::Wechat => ChannelNeeds {
                secret: "WECHAT_SECRET",
                how: "at mp.weixin.qq.com, Basic configuration shows the app secret and makes the AES key of 43 characters; the token is a \
                      word of your own",
                secrets: &[("token", "WECHAT_TOKEN"), ("encoding_aes_key", "WECHAT_AES_KEY")],
                asks: vec![APP_ID, PUBLIC],
                ..webhook_needs()
            },
            _ => ChannelNeeds {
                secret: "QQ_SECRET",
                how: "at q.qq.com make a bot; its development settings show the app id and the app secret",
                asks: vec![APP_ID, PUBLIC],
                ..webhook_needs()
            },
        }
    }

    /// Channels that need no platform account.
    fn by_yourself(self) -> ChannelNeeds {
        match self {
            Self::Email => ChannelNeeds {
                transport: "polling",
                secret: "MAIL_PASSWORD",
                how: "make a mailbox for the agent alone, with a password of its own",
                asks: vec![
                    new_question("address", AnswerTarget::Setting, "the mailbox's address"),
                    AUTHSERV,
                    IMAP_URL,
                    new_question(
                        "smtp_url",
                        AnswerTarget::Key,
                        "the SMTP server, for example smtps://USER@smtp.example.org",
                    ),
                ],
                lets_in: LetIn::Admin,
                ..chat_needs()
            },
            Self::Web => ChannelNeeds {
                secret: "WEB_TOKEN",
                how: "make a long random text, for example with `openssl rand -hex 32`; it is what you sign in with",
                lets_in: LetIn::User,
                listens: true,
                ..chat_needs()
            },
            Self::Voice => ChannelNeeds {
                secret: "VOICE_TOKEN",
                how: "make a long random text, for example with `openssl rand -hex 32`; it is what you connect with",
                asks: vec![
                    new_question(
                        "speech_url",
                        AnswerTarget::Speech,
                        "a server with OpenAI's speech API, for example https://speech.example.org/v1",
                    ),
                    new_question(
                        "speech_model",
                        AnswerTarget::Speech,
                        "its model that understands speech, for example whisper-large-v3",
                    ),
                ],
                lets_in: LetIn::User,
                listens: true,
                ..chat_needs()
            },
            Self::Custom => ChannelNeeds {
                transport: "stdio",
                how: "write a program that speaks the line protocol: docs/how-to/channels.md",
                asks: vec![new_question(
                    "command",
                    AnswerTarget::Command,
                    "the program and its arguments, for example `python3 adapter.py`",
                )],
                ..chat_needs()
            },
            _ => ChannelNeeds {
                secret: "WEBHOOK_SECRET",
                how: "make a long random text, for example with `openssl rand -hex 32`; both sides sign with it",
                asks: vec![PUBLIC],
                lets_in: LetIn::Admin,
                ..webhook_needs()
            },
        }
    }

    /// Event sources.
    fn by_event(self) -> ChannelNeeds {
        match self {
            Self::Queue => ChannelNeeds {
                secret: "BROKER_PASSWORD",
                how: "the password of the user in the broker's address",
                asks: vec![
                    new_question(
                        "queue_name",
                        AnswerTarget::Trigger,
                        "the queue, stream or subject to take messages from",
                    ),
                    new_question(
                        "url",
                        AnswerTarget::Key,
                        "the broker, for example amqp://agent@mq.example.org, nats://… or redis://…",
                    ),
                    PROMPT,
                    DELIVER,
                ],
                ..source()
            },
            Self::Imap => ChannelNeeds {
                secret: "MAIL_PASSWORD",
                how: "make a mailbox for the agent alone, with a password of its own",
                asks: vec![
                    new_question("mailbox", AnswerTarget::Trigger, "the mailbox, for example INBOX"),
                    IMAP_URL,
                    AUTHSERV,
                    PROMPT,
                    DELIVER,
                ],
                ..source()
            },
            Self::DbTrigger => ChannelNeeds {
                secret: "DB_PASSWORD",
                how: "the password of the user in the database's address",
                asks: vec![
                    new_question(
                        "table",
                        AnswerTarget::Trigger,
                        "the table whose changes start a run",
                    ),
                    new_question(
                        "url",
                        AnswerTarget::Key,
                        "the database, for example postgres://agent@db.example.org/shop or sqlite:shop.db",
                    ),
                    PROMPT,
                    DELIVER,
                ],
                ..source()
            },
            _ => schedule_needs(),
        }
    }
}

/// Runs at scheduled times.
fn schedule_needs() -> ChannelNeeds {
    ChannelNeeds {
        how: "five fields say when: minute, hour, day of the month, month, day of the week",
        asks: vec![
            new_question(
                "schedule",
                AnswerTarget::Trigger,
                "when, for example `0 7 * * 1-5`",
            ),
            new_question(
                "timezone",
                AnswerTarget::Optional,
                "the time zone, for example Europe/Berlin; UTC without it",
            ),
            new_question(
                "prompt",
                AnswerTarget::Optional,
                "what the agent is to do then, for example `It is {time}. Sum up yesterday.`",
            ),
            DELIVER,
        ],
        ..source()
    }
}
