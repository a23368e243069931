//! `clawk mcp add`: declares an MCP server as a tool, with a sandbox that fits it and a rule where none speaks for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clawk_egress::Url;
use clawk_manifest::model::{McpUri, NetworkMode};
use serde_json::{Map, Value, json};

use super::tool_rule::{NewTool, add_asking_rule};
use super::{AgentEdit, EditArgs, check_new_name};
use crate::out;

/// Flags of `clawk mcp add`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    edit: EditArgs,

    /// A file with `mcpServers`, as other programs keep it; every server of it is added, or only NAME
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,

    /// A variable of the server: NAME=VALUE. A secret is written as a reference: NAME alone
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// What its tools are named after; all of them are offered as `NAME-TOOL`
    #[arg(value_name = "NAME", required_unless_present = "from")]
    name: Option<String>,

    /// The server's address, or after `--` its program and arguments
    #[arg(value_name = "URL|COMMAND", conflicts_with = "from")]
    server: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  clawk mcp add tickets https://mcp.example.com/mcp
  clawk mcp add files --manifest my-agent -- /opt/fs-server --root data
  clawk mcp add github --env GITHUB_TOKEN -- github-mcp-server stdio
  clawk mcp add --from ~/.config/other/mcp.json

The difference is shown before anything is written. A server over HTTP gets a sandbox with network to its host only; a
program runs in the agent's first sandbox.";

/// Words in the name of a variable whose value is a secret.
const SECRET_WORDS: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];

/// A server to add.
#[derive(Debug, Default)]
struct ServerDraft {
    name: String,
    uri: String,
    env: BTreeMap<String, String>,
    /// Variable to secret reference.
    secret_env: BTreeMap<String, String>,
    /// Header to secret reference.
    secret_headers: BTreeMap<String, String>,
}

/// Adds the servers.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let mut edit = AgentEdit::open(&args.edit, config)?;
    let drafts = match (&args.from, &args.name) {
        (Some(file), wanted) => read_server_file(file, wanted.as_deref(), &mut edit)?,
        (None, Some(name)) => vec![draft_of_words(name, &args.server, args, &edit)?],
        (None, None) => bail!("name the server, or a file with `--from`"),
    };
    for draft in &drafts {
        add_server(&mut edit, draft)?;
    }
    edit.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn draft_of_words(name: &str, words: &[String], args: &Args, edit: &AgentEdit<'_>) -> Result<ServerDraft> {
    let Some((first, rest)) = words.split_first() else {
        bail!(
            "what is `{name}`? Give its address, or its program after `--`: `clawk mcp add {name} -- PROGRAM ARGUMENTS`"
        );
    };
    let mut draft = ServerDraft {
        name: name.to_owned(),
        ..ServerDraft::default()
    };
    draft.uri = match first.contains("://") {
        true if rest.is_empty() => first.clone(),
        true => bail!(
            "`{}` follows the address; an address takes no arguments",
            rest.join(" ")
        ),
        false => program_uri(first, rest, &edit.manifest.dir)?,
    };
    for given in &args.env {
        match given.split_once('=') {
            Some((variable, value)) => add_variable(&mut draft, variable, value)?,
            None => {
                draft.secret_env.insert(given.clone(), given.clone());
            }
        }
    }
    Ok(draft)
}

/// Adds a variable. The value of a secret is not written.
fn add_variable(draft: &mut ServerDraft, variable: &str, value: &str) -> Result<()> {
    let reference = value
        .strip_prefix("${")
        .and_then(|inner| inner.strip_suffix('}'))
        .map(|inner| inner.strip_prefix("env:").unwrap_or(inner));
    let capital = variable.to_ascii_uppercase();
    let secret = SECRET_WORDS.iter().any(|word| capital.contains(word))
        || clawk_proto::secret_name::looks_like_key(value);
    match (reference, secret) {
        (Some(name), _) => {
            draft.secret_env.insert(variable.to_owned(), secret_name(name)?);
        }
        (None, true) => {
            draft
                .secret_env
                .insert(variable.to_owned(), secret_name(variable)?);
        }
        (None, false) => {
            draft.env.insert(variable.to_owned(), value.to_owned());
        }
    }
    Ok(())
}

fn secret_name(name: &str) -> Result<String> {
    let fits = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !fits {
        bail!("a secret's name has letters, digits and `_` only");
    }
    Ok(name.to_owned())
}

/// Returns the URI of a program, with its absolute path.
fn program_uri(program: &str, arguments: &[String], folder: &Path) -> Result<String> {
    let path = match program.strip_prefix("./") {
        Some(below) if folder.join(below).is_file() => format!("./{below}"),
        Some(_) => bail!("there is no `{program}` in the agent's folder"),
        None if program.starts_with('/') => program.to_owned(),
        None => find_program(program)?,
    };
    if path.starts_with('/') && !Path::new(&path).is_file() {
        bail!("there is no file `{path}`");
    }
    let mut uri = format!("stdio://{}", encode_uri_part(&path));
    for (n, argument) in arguments.iter().enumerate() {
        uri.push_str(if n == 0 { "?arg=" } else { "&arg=" });
        uri.push_str(&encode_uri_part(argument));
    }
    Ok(uri)
}

/// Finds a program by its name, as a shell does.
fn find_program(program: &str) -> Result<String> {
    let path = clawk_secrets::env::get("PATH").unwrap_or_default();
    let folders = path.split(':').filter(|folder| folder.starts_with('/'));
    let mut found = folders.map(|folder| Path::new(folder).join(program));
    let found = found.find(|file| file.is_file()).with_context(|| {
        format!("there is no program `{program}` on this machine; install it, or give its path")
    })?;
    Ok(found.display().to_string())
}

fn encode_uri_part(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z'
            | b'a'..=b'z'
            | b'0'..=b'9'
            | b'-'
            | b'.'
            | b'_'
            | b'~'
            | b'/'
            | b':'
            | b'@'
            | b',' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Reads `mcpServers` (or `servers`) of another program's file. Its text is data: nothing of it is run here.
fn read_server_file(file: &Path, wanted: Option<&str>, edit: &mut AgentEdit<'_>) -> Result<Vec<ServerDraft>> {
    /// The largest file, in bytes.
    const MAX_BYTES: u64 = 1 << 20;
    let size = std::fs::metadata(file)
        .with_context(|| format!("can't read `{}`", file.display()))?
        .len();
    if size > MAX_BYTES {
        bail!("`{}` is larger than 1 MiB", file.display());
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("can't read `{}`", file.display()))?;
    // The parser's message is left out: it may quote a secret.
    let document: Value = serde_json::from_str(&text).map_err(|error| {
        anyhow::anyhow!(
            "`{}` is not JSON at line {}, column {}",
            file.display(),
            error.line(),
            error.column()
        )
    })?;
    let servers = ["mcpServers", "servers", "mcp_servers"]
        .iter()
        .find_map(|key| document.get(key)?.as_object())
        .with_context(|| format!("`{}` has no `mcpServers`", file.display()))?;
    let mut drafts = Vec::new();
    for (name, server) in servers {
        if wanted.is_some_and(|wanted| wanted != name) {
            continue;
        }
        let server = server
            .as_object()
            .with_context(|| format!("`{name}` is not an object"))?;
        drafts.push(
            draft_of_entry(name, server, edit)
                .with_context(|| format!("the server `{}`", out::clip_line(name, 60)))?,
        );
    }
    match (drafts.is_empty(), wanted) {
        (true, Some(wanted)) => bail!("`{}` has no server `{wanted}`", file.display()),
        (true, None) => bail!("`{}` lists no server", file.display()),
        (false, _) => Ok(drafts),
    }
}

fn draft_of_entry(name: &str, server: &Map<String, Value>, edit: &mut AgentEdit<'_>) -> Result<ServerDraft> {
    let text = |key: &str| server.get(key).and_then(Value::as_str);
    let plain: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    let mut draft = ServerDraft {
        name: plain.trim_matches('-').to_owned(),
        ..ServerDraft::default()
    };
    draft.uri = match (text("url"), text("command")) {
        (Some(url), _) => url.to_owned(),
        (None, Some(command)) => {
            let given = server.get("args").and_then(Value::as_array);
            let words: Option<Vec<String>> = given
                .into_iter()
                .flatten()
                .map(|word| word.as_str().map(str::to_owned))
                .collect();
            let words = words.context("`args` is not a list of texts")?;
            if words
                .iter()
                .any(|word| clawk_proto::secret_name::looks_like_key(word))
            {
                bail!("an argument looks like a secret; give it to the server in a variable (`env`)");
            }
            program_uri(command, &words, &edit.manifest.dir)?
        }
        (None, None) => bail!("it has neither `command` nor `url`"),
    };
    for (variable, value) in server.get("env").and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().context("a variable in `env` is not a text")?;
        add_variable(&mut draft, variable, value)?;
    }
    for (header, _) in server
        .get("headers")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let capital = format!("{}_{}", draft.name, header).to_ascii_uppercase();
        let reference: String = capital
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
            .collect();
        draft.secret_headers.insert(header.clone(), reference);
    }
    let known = ["type", "url", "command", "args", "env", "headers"];
    let left: Vec<&str> = server
        .keys()
        .map(String::as_str)
        .filter(|key| !known.contains(key))
        .collect();
    if !left.is_empty() {
        edit.note(format!(
            "not taken over from `{}`: {}",
            draft.name,
            out::one_line(&left.join(", "))
        ));
    }
    Ok(draft)
}

/// Drafts the changes for one server.
fn add_server(edit: &mut AgentEdit<'_>, draft: &ServerDraft) -> Result<()> {
    let name = draft.name.as_str();
    check_new_name(
        "tool",
        name,
        edit.manifest.tools.iter().map(|tool| tool.name.as_str()),
    )?;
    let uri = McpUri::parse(&draft.uri).with_context(|| format!("the server `{name}`"))?;
    let mut item = format!("inline:\n  name: {name}\n  labels: {{ category: service }}\n");
    if let McpUri::Http { url } = &uri
        && let Some(sandbox) = add_network_sandbox(edit, name, url)?
    {
        item.push_str(&format!("  sandbox_ref: {sandbox}\n"));
    }
    item.push_str(&format!("  mcp_source: {{ uri: {} }}", json!(draft.uri)));
    edit.add_to_manifest("tools", &item)?;
    add_settings(edit, draft)?;
    let tool = NewTool {
        called: format!("{name}-x"),
        pattern: format!("{name}-*"),
        name,
        labels: BTreeMap::from([("category".to_owned(), "service".to_owned())]),
    };
    add_asking_rule(edit, &tool)
}

fn add_settings(edit: &mut AgentEdit<'_>, draft: &ServerDraft) -> Result<()> {
    let mut settings = Map::new();
    for (key, values) in [
        ("env", &draft.env),
        ("secret_env", &draft.secret_env),
        ("secret_headers", &draft.secret_headers),
    ] {
        if !values.is_empty() {
            settings.insert(key.to_owned(), json!(values));
        }
    }
    if !settings.is_empty() {
        let table = toml::to_string(&json!({ "tools": { (draft.name.as_str()): settings } }))?;
        edit.add_to_config(&table)?;
    }
    for reference in draft.secret_env.values().chain(draft.secret_headers.values()) {
        if clawk_secrets::env::non_empty(reference).is_none() {
            edit.note(format!(
                "the secret `{reference}` is not written anywhere: put its value into the environment variable `{reference}`"
            ));
        }
    }
    Ok(())
}

/// Adds a sandbox with network to the server's host, unless the first sandbox reaches it. Returns its name.
fn add_network_sandbox(edit: &mut AgentEdit<'_>, name: &str, url: &str) -> Result<Option<String>> {
    let url = Url::parse(url).context("the address is not a URL")?;
    let host = url.host_str().context("the address names no host")?.to_owned();
    let reaches = edit.manifest.sandbox.as_ref().is_some_and(|sandbox| {
        let network = &sandbox.capabilities.network;
        network.mode == NetworkMode::AllowAll
            || network.mode == NetworkMode::Allowlist && network.allowed_hosts.contains(&host)
    });
    if reaches {
        return Ok(None);
    }
    let sandbox = format!("{name}-network");
    check_new_name(
        "sandbox",
        &sandbox,
        edit.manifest.sandboxes().map(|other| other.name.as_str()),
    )?;
    if edit.manifest.sandbox.is_none()
        && !edit
            .current_text(&edit.args.manifest)?
            .contains("name: no-rights")
    {
        // The first sandbox holds for every tool that names none, so it must not be the one with network.
        edit.add_to_manifest("sandbox", "inline: { name: no-rights, level: process }")?;
    }
    let item = format!(
        "inline:\n  name: {sandbox}\n  level: process\n  capabilities:\n    network: {{ mode: allowlist, allowed_hosts: [{}] }}",
        json!(host)
    );
    edit.add_to_manifest("sandbox", &item)?;
    Ok(Some(sandbox))
}
