//! Chat platforms: maps the members of an old configuration to secrets, settings and rules of a channel.

use crate::draft::{Channel, Draft, fit_name, to_upper_snake};
use crate::settings::Settings;

/// The members of one platform. The first word of `secrets` becomes `auth.secret_ref`.
struct Platform {
    names: &'static [&'static str],
    kind: &'static str,
    transport: &'static str,
    /// Members with secrets: their spellings, the key in `[channels.NAME] secrets`, the usual variable.
    secrets: &'static [(&'static [&'static str], &'static str, &'static str)],
    /// Members with ids: their spellings, the key in `[channels.NAME] settings`.
    settings: &'static [(&'static [&'static str], &'static str)],
}

const PLATFORMS: &[Platform] = &[
    Platform {
        names: &["telegram"],
        kind: "telegram",
        transport: "polling",
        secrets: &[
            (&["token", "bot_token"], "", "TELEGRAM_BOT_TOKEN"),
            (&["webhook_secret"], "webhook_secret", "TELEGRAM_WEBHOOK_SECRET"),
        ],
        settings: &[],
    },
    Platform {
        names: &["discord"],
        kind: "discord",
        transport: "websocket",
        secrets: &[(&["token", "bot_token"], "", "DISCORD_BOT_TOKEN")],
        settings: &[],
    },
    Platform {
        names: &["slack"],
        kind: "slack",
        transport: "websocket",
        secrets: &[
            (&["bot_token", "token"], "", "SLACK_BOT_TOKEN"),
            (&["app_token"], "app_token", "SLACK_APP_TOKEN"),
            (&["signing_secret"], "signing_secret", "SLACK_SIGNING_SECRET"),
        ],
        settings: &[],
    },
    Platform {
        names: &["whatsapp_cloud", "whatsapp"],
        kind: "whatsapp",
        transport: "webhook",
        secrets: &[
            (&["access_token", "token"], "", "WHATSAPP_ACCESS_TOKEN"),
            (&["app_secret"], "app_secret", "WHATSAPP_APP_SECRET"),
            (
                &["verify_token", "webhook_verify_token"],
                "verify_token",
                "WHATSAPP_VERIFY_TOKEN",
            ),
        ],
        settings: &[(&["phone_number_id"], "phone_number_id")],
    },
    Platform {
        names: &["matrix"],
        kind: "matrix",
        transport: "polling",
        secrets: &[(&["access_token", "token"], "", "MATRIX_ACCESS_TOKEN")],
        settings: &[(&["user_id"], "user_id")],
    },
    Platform {
        names: &["email"],
        kind: "email",
        transport: "polling",
        secrets: &[(
            &["password", "imap_password", "smtp_password"],
            "",
            "EMAIL_PASSWORD",
        )],
        settings: &[(
            &["address", "from_address", "username", "imap_username"],
            "address",
        )],
    },
    Platform {
        names: &["line"],
        kind: "line",
        transport: "webhook",
        secrets: &[
            (
                &["channel_access_token", "access_token"],
                "",
                "LINE_CHANNEL_ACCESS_TOKEN",
            ),
            (&["channel_secret"], "channel_secret", "LINE_CHANNEL_SECRET"),
        ],
        settings: &[],
    },
    Platform {
        names: &["lark", "feishu"],
        kind: "lark",
        transport: "websocket",
        secrets: &[
            (&["app_secret"], "", "LARK_APP_SECRET"),
            (
                &["verification_token"],
                "verification_token",
                "LARK_VERIFICATION_TOKEN",
            ),
            (&["encrypt_key"], "encrypt_key", "LARK_ENCRYPT_KEY"),
        ],
        settings: &[(&["app_id"], "app_id")],
    },
    Platform {
        names: &["qq"],
        kind: "qq",
        transport: "websocket",
        secrets: &[(&["app_secret", "secret"], "", "QQ_APP_SECRET")],
        settings: &[(&["app_id"], "app_id")],
    },
    Platform {
        names: &["dingtalk"],
        kind: "dingtalk",
        transport: "websocket",
        secrets: &[(&["client_secret", "app_secret"], "", "DINGTALK_CLIENT_SECRET")],
        settings: &[(&["client_id", "app_key"], "client_id")],
    },
    Platform {
        names: &["webhook"],
        kind: "webhook",
        transport: "webhook",
        secrets: &[(&["secret", "token", "auth_token"], "", "WEBHOOK_SECRET")],
        settings: &[],
    },
    Platform {
        names: &["web", "webchat", "websocket"],
        kind: "web",
        transport: "websocket",
        secrets: &[(&["token", "token_issue_secret"], "", "WEB_TOKEN")],
        settings: &[],
    },
];

/// Members that list the allowed users, in every known spelling.
const ALLOW: &[&str] = &[
    "allow_from",
    "allowlist",
    "allowed_users",
    "allowed_ids",
    "dm.allow_from",
    "allowed_numbers",
    "allowed_senders",
];
/// Members that allow everybody.
const POLICY: &[&str] = &["dm_policy", "dm.policy", "dm.enabled"];
/// Members with the platform's address.
const ADDRESS: &[&str] = &["homeserver", "api_base", "base_url"];

/// Reads every platform below `at`. The report names platforms that clawk does not support.
pub(crate) fn read(draft: &mut Draft, settings: &Settings, at: &str) {
    read_some(draft, settings, at, &|_| true);
}

/// As [`read`], only for the wanted platforms; the others were switched off.
pub(crate) fn read_some(draft: &mut Draft, settings: &Settings, at: &str, wanted: &dyn Fn(&str) -> bool) {
    for name in settings.names(at).into_iter().filter(|name| wanted(name)) {
        let here = format!("{at}.{name}");
        if !settings
            .peek_value(&here)
            .is_some_and(serde_json::Value::is_object)
        {
            continue;
        }
        let Some(platform) = find_platform(&name) else {
            settings.take_value(&here);
            if settings.peek_value(&format!("{here}.enabled")) != Some(&serde_json::Value::Bool(false)) {
                let reason =
                    format!("clawk has no channel type for `{name}`; a `custom` channel can carry it");
                draft.report.add_left_out(settings.display_path(&here), reason);
            }
            continue;
        };
        let accounts = find_accounts(settings, &here, platform);
        for (account, path) in accounts {
            import_account(draft, settings, platform, &path, account.as_deref());
        }
    }
}

fn find_platform(name: &str) -> Option<&'static Platform> {
    let folded = name.to_ascii_lowercase().replace('-', "_");
    PLATFORMS
        .iter()
        .find(|platform| platform.names.contains(&folded.as_str()))
}

/// Finds the accounts of a platform: below `accounts`, or each in its own table.
fn find_accounts(settings: &Settings, here: &str, platform: &Platform) -> Vec<(Option<String>, String)> {
    let below = format!("{here}.accounts");
    let listed = settings.names(&below);
    if !listed.is_empty() {
        return listed
            .into_iter()
            .map(|name| (Some(name.clone()), format!("{below}.{name}")))
            .collect();
    }
    let own = platform.secrets.iter().flat_map(|(words, _, _)| words.iter());
    let own = own.chain(&["enabled", "allow_from", "bridge_url"]);
    let mut own = own;
    if own.any(|word| settings.peek_value(&format!("{here}.{word}")).is_some()) {
        return vec![(None, here.to_owned())];
    }
    let tables = settings.names(here).into_iter().filter(|name| {
        settings
            .peek_value(&format!("{here}.{name}"))
            .is_some_and(serde_json::Value::is_object)
    });
    let tables: Vec<_> = tables
        .map(|name| (Some(name.clone()), format!("{here}.{name}")))
        .collect();
    if tables.is_empty() {
        vec![(None, here.to_owned())]
    } else {
        tables
    }
}

fn import_account(
    draft: &mut Draft,
    settings: &Settings,
    platform: &Platform,
    at: &str,
    account: Option<&str>,
) {
    if settings.flag(&format!("{at}.enabled")) == Some(false) {
        settings.take_value(at);
        return;
    }
    let name = match account {
        Some(account) if account != "main" && account != "default" => {
            fit_name(&format!("{}-{account}", platform.kind))
        }
        Some(_) | None => platform.kind.to_owned(),
    };
    let mut channel = Channel {
        name,
        kind: platform.kind,
        transport: platform.transport,
        ..Channel::default()
    };
    let suffix = account.filter(|account| *account != "main" && *account != "default");
    for (words, key, usual) in platform.secrets {
        let usual = suffix.map_or_else(
            || (*usual).to_owned(),
            |suffix| format!("{usual}_{}", to_upper_snake(suffix)),
        );
        let found = words.iter().find_map(|word| {
            let path = format!("{at}.{word}");
            let value = settings.take_value(&path).and_then(crate::draft::secret_text)?;
            Some((value, settings.display_path(&path)))
        });
        match found {
            Some((value, place)) => {
                let reference = draft.add_secret(&value, &usual, &place);
                if key.is_empty() {
                    channel.secret = reference;
                } else {
                    channel.secrets.insert((*key).to_owned(), reference);
                }
            }
            None if key.is_empty() => {
                channel.secret =
                    draft.add_secret("", &usual, "the environment of the old runtime, or not set");
            }
            None => {}
        }
    }
    for (words, key) in platform.settings {
        if let Some(value) = words
            .iter()
            .find_map(|word| settings.text(&format!("{at}.{word}")))
        {
            channel.settings.insert((*key).to_owned(), value);
        }
    }
    let address = ADDRESS
        .iter()
        .find_map(|word| settings.text(&format!("{at}.{word}")));
    if let Some(address) = address {
        channel.local.insert("base_url".into(), quote_toml(&address));
    }
    import_mail(settings, at, &mut channel);
    let_in(draft, settings, at, &mut channel);
    import_respond_mode(settings, at, &mut channel);
    draft.add_channel(channel);
}

/// Joins the members of a mail server to a URL.
fn import_mail(settings: &Settings, at: &str, channel: &mut Channel) {
    if channel.kind != "email" {
        return;
    }
    let text = |word: &str| settings.text(&format!("{at}.{word}"));
    let user = channel
        .settings
        .get("address")
        .cloned()
        .unwrap_or_default()
        .replace('@', "%40");
    let (imap, imap_port) = (text("imap_host"), text("imap_port"));
    let (smtp, smtp_port) = (text("smtp_host"), text("smtp_port"));
    let url = |scheme: &str, host: &str, port: Option<String>| {
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        quote_toml(&format!("{scheme}://{user}@{host}{port}"))
    };
    if let Some(host) = imap {
        channel.local.insert("url".into(), url("imaps", &host, imap_port));
    }
    if let Some(host) = smtp {
        channel
            .local
            .insert("smtp_url".into(), url("smtps", &host, smtp_port));
    }
}

/// Reads who may use the channel. Open access is not imported: an open channel gets pairing.
fn let_in(draft: &mut Draft, settings: &Settings, at: &str, channel: &mut Channel) {
    let mut allowed: Vec<String> = ALLOW
        .iter()
        .flat_map(|word| settings.list(&format!("{at}.{word}")))
        .collect();
    let open = POLICY
        .iter()
        .filter_map(|word| settings.text(&format!("{at}.{word}")))
        .any(|policy| policy == "open");
    allowed.sort();
    allowed.dedup();
    if open || allowed.iter().any(|id| id.contains('*')) {
        let reason = "everybody was let in; here each new sender is let in by a pairing code (`clawk channels pairing`). Set \
                      `access_control: { mode: open }` if you want everybody";
        draft.report.add_left_out(settings.display_path(at), reason);
        allowed.retain(|id| !id.contains('*'));
    }
    // A platform's id may have a name after it (`123|alice`).
    channel.allowed = allowed
        .into_iter()
        .map(|id| id.split('|').next().unwrap_or_default().to_owned())
        .filter(|id| !id.is_empty() && !id.starts_with("YOUR_"))
        .collect();
}

/// Reads whether the agent answers in groups always, or only when it is mentioned.
fn import_respond_mode(settings: &Settings, at: &str, channel: &mut Channel) {
    let mention = settings.flag(&format!("{at}.require_mention"));
    let mode = settings.first_text(&[
        &format!("{at}.mention_mode"),
        &format!("{at}.activation_mode"),
        &format!("{at}.group_policy"),
    ]);
    if mention == Some(false) || mode.as_deref() == Some("always") {
        channel.local.insert("respond".into(), quote_toml("all"));
    }
}

/// Quotes a text for TOML; JSON's quoting is valid there.
pub(crate) fn quote_toml(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}
