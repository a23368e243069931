//! The imported agent while it is collected, before it is written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::report::ImportReport;

/// Everything that the new `claw.yaml` and `clawk.toml` contain.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// The agent's name as found; it is adapted when it is written.
    pub(crate) name: Option<String>,
    /// The texts of the prompt, each with its source file.
    pub(crate) personality: Vec<(String, String)>,
    /// Files that become part of the prompt: name and content.
    pub(crate) context: BTreeMap<String, String>,
    /// Further files, copied unchanged.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    /// The providers: the first one is used, the others are its fallbacks in order.
    pub(crate) providers: Vec<ProviderDraft>,
    /// The first configured model whose address is unknown.
    pub(crate) unplaced: Option<UnplacedModel>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) servers: Vec<McpServerDraft>,
    pub(crate) skills: Vec<Skill>,
    pub(crate) members: Vec<Member>,
    /// The swarm's name and its head.
    pub(crate) swarm: Option<(String, String)>,
    /// Whether the agent may run commands, each with an approval.
    pub(crate) shell: bool,
    /// Whether the agent may fetch pages, each with an approval.
    pub(crate) web: bool,
    /// Whether the agent only observed and never acted.
    pub(crate) observer: bool,
    /// The budget per day, millionths of a US dollar. `month_microusd` is the budget per month.
    pub(crate) day_microusd: Option<u64>,
    pub(crate) month_microusd: Option<u64>,
    /// The largest number of model answers in one turn.
    pub(crate) steps_per_turn: Option<u64>,
    /// Whether it had memory across conversations.
    pub(crate) memory: bool,
    pub(crate) report: ImportReport,
}

/// An imported model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProviderDraft {
    pub(crate) name: String,
    pub(crate) protocol: &'static str,
    pub(crate) endpoint: String,
    pub(crate) model: String,
    /// The reference of its secret; `None`: no key.
    pub(crate) secret: Option<String>,
}

/// A configured model whose address is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnplacedModel {
    /// The vendor, in a form that every primitive accepts as a name.
    pub(crate) vendor: String,
    pub(crate) model: String,
}

/// A channel of the manifest with its local settings.
#[derive(Debug, Clone, Default)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) transport: &'static str,
    /// The value of `auth.secret_ref`.
    pub(crate) secret: String,
    /// Further secrets, by their key in `[channels.NAME] secrets`.
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) settings: BTreeMap<String, String>,
    /// The allowed users; empty: pairing.
    pub(crate) allowed: Vec<String>,
    /// Other keys of `[channels.NAME]`, as TOML values.
    pub(crate) local: BTreeMap<String, String>,
    /// The schedule of a `cron` channel.
    pub(crate) schedule: Option<String>,
}

/// An MCP server. All its tools are imported.
#[derive(Debug, Clone, Default)]
pub(crate) struct McpServerDraft {
    pub(crate) name: String,
    /// `stdio:///…` or `https://…`.
    pub(crate) uri: String,
    /// Variables that are not secrets.
    pub(crate) env: BTreeMap<String, String>,
    /// Variables whose values are secrets, as references.
    pub(crate) secret_env: BTreeMap<String, String>,
    /// Headers whose values are secrets, as references.
    pub(crate) secret_headers: BTreeMap<String, String>,
}

/// A skill from a folder with a `SKILL.md`.
#[derive(Debug, Clone)]
pub(crate) struct Skill {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) instruction: String,
    /// Its original path, relative to the old runtime's folder.
    pub(crate) place: String,
}

/// A member of a swarm.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
}

impl Draft {
    /// The reference for a setting's secret: the variable that it names (`${NAME}`), or else `fallback`. The value itself is not
    /// stored anywhere.
    pub(crate) fn add_secret(&mut self, value: &str, fallback: &str, place: &str) -> String {
        let name = variable_name(value).unwrap_or_else(|| fallback.to_owned());
        self.report.add_secret(&name, place);
        name
    }

    /// Adds a provider, unless an equal one exists.
    pub(crate) fn add_provider(&mut self, mut provider: ProviderDraft) {
        let same = |known: &ProviderDraft| {
            known.endpoint == provider.endpoint
                && known.model == provider.model
                && known.protocol == provider.protocol
        };
        if self.providers.iter().any(same) {
            return;
        }
        provider.name = free_name(&provider.name, |name| {
            self.providers.iter().any(|known| known.name == name)
        });
        self.providers.push(provider);
    }

    /// Adds a channel. If its name is taken, a number is appended.
    pub(crate) fn add_channel(&mut self, mut channel: Channel) {
        channel.name = free_name(&channel.name, |name| {
            self.channels.iter().any(|known| known.name == name)
        });
        if channel.schedule.is_none() {
            self.report.add_carried(format!("channel `{}`", channel.name));
        }
        self.channels.push(channel);
    }

    /// Adds an MCP server. If a tool or server has its name, a number is appended.
    pub(crate) fn add_server(&mut self, mut server: McpServerDraft) {
        server.name = free_name(&server.name, |name| {
            crate::tools::BUILTINS.contains(&name) || self.servers.iter().any(|known| known.name == name)
        });
        self.report.add_carried(format!("MCP server `{}`", server.name));
        self.servers.push(server);
    }

    /// A free name for a member of the swarm.
    pub(crate) fn free_member(&self, name: &str) -> String {
        free_name(name, |name| self.members.iter().any(|known| known.name == name))
    }

    /// Adds a skill, unless one with its name exists: the first one stays. Returns whether it was added.
    pub(crate) fn add_skill(&mut self, skill: Skill) -> bool {
        if let Some(known) = self.skills.iter().find(|known| known.name == skill.name) {
            let same = known.description == skill.description && known.instruction == skill.instruction;
            let reason = if same {
                format!("the same skill lies in `{}`, which came over", known.place)
            } else {
                format!(
                    "another skill of this name lies in `{}`, which came over instead",
                    known.place
                )
            };
            self.report
                .add_left_out(format!("skill `{}` in `{}`", skill.name, skill.place), reason);
            return false;
        }
        self.report
            .add_carried(format!("skill `{}` from `{}`", skill.name, skill.place));
        self.skills.push(skill);
        true
    }

    /// Adds a text to the prompt.
    pub(crate) fn add_prompt(&mut self, from: &str, text: &str) {
        if !text.trim().is_empty() {
            self.personality.push((from.to_owned(), text.trim().to_owned()));
        }
    }
}

/// The name, or the name with the first free number appended.
fn free_name(base: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut name = base.to_owned();
    let mut number = 2;
    while is_taken(&name) {
        let short: String = base.chars().take(58).collect();
        name = format!("{short}-{number}");
        number += 1;
    }
    name
}

/// The name of the variable in `${NAME}`, `$NAME` or similar texts.
pub(crate) fn variable_name(value: &str) -> Option<String> {
    let name = value.strip_prefix('$')?;
    let name = name
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .unwrap_or(name);
    let name = name.strip_prefix("env:").unwrap_or(name);
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(fits)).then(|| name.to_owned())
}

/// Adapts a name to what every primitive accepts: letters, digits and hyphens, at most 63.
pub(crate) fn fit_name(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        let c = if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        };
        if c != '-' || (!out.is_empty() && !out.ends_with('-')) {
            out.push(c);
        }
    }
    let out: String = out.chars().take(63).collect();
    let out = out.trim_matches('-');
    if out.is_empty() {
        "agent".to_owned()
    } else {
        out.to_owned()
    }
}

/// Adapts a name to an environment variable: upper case with underscores.
pub(crate) fn to_upper_snake(name: &str) -> String {
    let fit = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.chars().map(fit).collect()
}

/// Reads a secret: `{"source": "env", "id": "NAME"}`, or a text.
pub(crate) fn secret_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.trim().to_owned()),
        Value::Object(members) => {
            let id = members.get("id").or_else(|| members.get("env"))?.as_str()?;
            Some(format!("${{{id}}}"))
        }
        _ => None,
    }
}
