//! Tools: MCP servers in their common configuration, and the built-in tools of an imported agent.

use serde_json::Value;

use crate::draft::{Draft, McpServerDraft, fit_name, secret_text, to_upper_snake, variable_name};
use crate::settings::Settings;

/// Words in the name of a variable or header that mark its value as a secret.
const SECRET_WORDS: &[&str] = &[
    "key",
    "token",
    "secret",
    "password",
    "passwd",
    "auth",
    "credential",
    "cookie",
];

/// Reads `{NAME: {command, args, env} | {url, headers}}` below `at`, the form that all runtimes share.
pub(crate) fn import_servers(draft: &mut Draft, settings: &Settings, at: &str) {
    for name in settings.names(at) {
        let here = format!("{at}.{name}");
        let off = settings.flag(&format!("{here}.enabled")) == Some(false)
            || settings.flag(&format!("{here}.disabled")) == Some(true);
        if off || !settings.peek_value(&here).is_some_and(Value::is_object) {
            settings.take_value(&here);
            continue;
        }
        import_server(draft, settings, &name, &here);
    }
}

fn import_server(draft: &mut Draft, settings: &Settings, name: &str, at: &str) {
    let mut server = McpServerDraft {
        name: fit_name(name),
        ..McpServerDraft::default()
    };
    if let Some(url) = settings.text(&format!("{at}.url")) {
        if !url.starts_with("https://") && !url.starts_with("http://") {
            let reason = "its address is not an HTTP URL, and clawk speaks MCP over HTTP and by commands";
            draft
                .report
                .add_left_out(settings.display_path(&format!("{at}.url")), reason);
            return;
        }
        server.uri = url;
    } else if let Some(command) = settings.text(&format!("{at}.command")) {
        let mut args = settings.list(&format!("{at}.args"));
        let mut words = command.split_whitespace().map(str::to_owned);
        let program = words.next().unwrap_or_default();
        let mut all: Vec<String> = words.collect();
        all.append(&mut args);
        server.uri = stdio_uri(&program, &all);
        if !program.starts_with('/') {
            let reason = format!(
                "`{program}` was looked up in PATH; clawk wants a full path, so it starts through `/usr/bin/env`"
            );
            draft
                .report
                .add_left_out(settings.display_path(&format!("{at}.command")), reason);
        }
    } else {
        draft
            .report
            .add_left_out(settings.display_path(at), "neither `command` nor `url` is given");
        return;
    }
    for (member, headers) in [("env", false), ("headers", true)] {
        let below = format!("{at}.{member}");
        for key in settings.names(&below) {
            let path = format!("{below}.{key}");
            let Some(value) = settings.take_value(&path).and_then(secret_text) else {
                continue;
            };
            let place = settings.display_path(&path);
            // Every header counts as a secret, whatever its name: most are `Authorization: Bearer …`.
            if headers {
                let bare = value.strip_prefix("Bearer ").unwrap_or(&value);
                let reference = draft.add_secret(bare, &to_upper_snake(&format!("{name}_{key}")), &place);
                server.secret_headers.insert(key, reference);
            } else if is_secret(&key) || variable_name(&value).is_some() {
                let reference = draft.add_secret(&value, &key, &place);
                server.secret_env.insert(key, reference);
            } else {
                server.env.insert(key, value);
            }
        }
    }
    draft.add_server(server);
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// A program with its arguments, as an MCP transport URI (CKP §5.4).
fn stdio_uri(program: &str, args: &[String]) -> String {
    let (program, first) = if program.starts_with('/') {
        (program, None)
    } else {
        ("/usr/bin/env", Some(program))
    };
    let mut uri = format!("stdio://{}", percent_encode(program));
    let all = first.into_iter().chain(args.iter().map(String::as_str));
    for (index, arg) in all.enumerate() {
        uri.push(if index == 0 { '?' } else { '&' });
        uri.push_str("arg=");
        uri.push_str(&percent_encode(arg));
    }
    uri
}

fn percent_encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@,".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Built-in tools that an imported agent may have. No server gets one of these names.
pub(crate) const BUILTINS: &[&str] = &[
    "file-read",
    "file-list",
    "file-search",
    "file-write",
    "file-edit",
    "shell",
    "web-fetch",
    "ask-user",
];
