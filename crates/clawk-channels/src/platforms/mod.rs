//! The platforms: each is one folder here, and one line of the list below. A platform imports the adapter's types and
//! [`crate::platform_kit`]; only this list imports a platform.

use clawk_manifest::model::ChannelType;

use crate::platform_kit::PlatformEntry;

/// Declares each platform's folder as a module, and finds its entries by their types. The types are matched without `_`.
macro_rules! platforms {
    ($($folder:ident: $($kind:ident => $entry:ident),+;)+) => {
        $(mod $folder;)+

        /// What the program knows of a channel type.
        pub(crate) const fn entry(kind: ChannelType) -> &'static PlatformEntry {
            match kind {
                $($(ChannelType::$kind => &$folder::$entry,)+)+
            }
        }

        /// All entries.
        pub(crate) const ENTRIES: &[&PlatformEntry] = &[$($(&$folder::$entry,)+)+];
    };
}

platforms! {
    cli: Cli => CLI;
    cron: Cron => CRON;
    custom: Custom => CUSTOM;
    db_trigger: DbTrigger => DB_TRIGGER;
    dingtalk: Dingtalk => DINGTALK;
    discord: Discord => DISCORD;
    lark: Lark => LARK;
    line: Line => LINE;
    mail: Email => EMAIL, Imap => IMAP;
    matrix: Matrix => MATRIX;
    qq: Qq => QQ;
    queue: Queue => QUEUE;
    slack: Slack => SLACK;
    telegram: Telegram => TELEGRAM;
    web: Web => WEB, Voice => VOICE_ENTRY;
    webhook: Webhook => WEBHOOK;
    wechat: Wechat => WECHAT;
    whatsapp: Whatsapp => WHATSAPP;
}

#[cfg(feature = "mail")]
pub use mail::authentication_results;

/// Whether events of this type start runs, and no person speaks through it.
#[must_use]
pub const fn is_trigger(kind: ChannelType) -> bool {
    entry(kind).profile.is_trigger
}
