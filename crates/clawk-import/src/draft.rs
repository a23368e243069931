//! The agent as it is gathered from the other runtime's files, before it is written down.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;

use crate::report::ImportReport;

/// Everything that a `claw.yaml` and a `clawk.toml` can say of an imported agent.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// The agent's name, as found; made to fit when it is written.
    pub(crate) name: Option<String>,
    /// Texts of the prompt, with the file that each came from.
    pub(crate) personality: Vec<(String, String)>,
    /// Files that are read into the prompt: name and content.
    pub(crate) context: BTreeMap<String, String>,
    /// Further files that are copied as they are.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    /// The first one answers, the others are its fallbacks in order.
    pub(crate) providers: Vec<ProviderDraft>,
    /// The first model that was configured and whose address is not known.
    pub(crate) unplaced: Option<UnplacedModel>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) servers: Vec<McpServerDraft>,
    pub(crate) skills: Vec<Skill>,
    pub(crate) members: Vec<Member>,
    /// The swarm's name and the member that leads it.
    pub(crate) swarm: Option<(String, String)>,
    /// Whether the agent may run commands, each asked for.
    pub(crate) shell: bool,
    /// Whether it may fetch pages, each asked for.
    pub(crate) web: bool,
    /// Whether it looked only and never acted.
    pub(crate) observer: bool,
    /// Millionths of a US dollar in a day and in a month.
    pub(crate) day_microusd: Option<u64>,
    pub(crate) month_microusd: Option<u64>,
    /// Model answers in one turn.
    pub(crate) steps_per_turn: Option<u64>,
    /// Whether it remembered across conversations.
    pub(crate) memory: bool,
    pub(crate) report: ImportReport,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProviderDraft {
    pub(crate) name: String,
    pub(crate) protocol: &'static str,
    pub(crate) endpoint: String,
    pub(crate) model: String,
    /// The secret's reference; none: no key.
    pub(crate) secret: Option<String>,
}

/// A model that was configured and whose address is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnplacedModel {
    /// The vendor, as a name that every primitive takes.
    pub(crate) vendor: String,
    pub(crate) model: String,
}

/// A channel of the manifest with what is local about it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) transport: &'static str,
    /// `auth.secret_ref`.
    pub(crate) secret: String,
    /// Further secrets by their key in `[channels.NAME] secrets`.
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) settings: BTreeMap<String, String>,
    /// Who is let in; none: pairing.
    pub(crate) allowed: Vec<String>,
    /// Other keys of `[channels.NAME]`, as TOML values.
    pub(crate) local: BTreeMap<String, String>,
    /// `trigger`, for `cron`.
    pub(crate) schedule: Option<String>,
}

/// An MCP server, all of whose tools are taken over.
#[derive(Debug, Clone, Default)]
pub(crate) struct McpServerDraft {
    pub(crate) name: String,
    /// `stdio:///…` or `https://…`.
    pub(crate) uri: String,
    /// Variables that are no secrets.
    pub(crate) env: BTreeMap<String, String>,
    /// Variables whose values are secrets, by reference.
    pub(crate) secret_env: BTreeMap<String, String>,
    /// Headers whose values are secrets, by reference.
    pub(crate) secret_headers: BTreeMap<String, String>,
}

/// A skill from a folder with a `SKILL.md`.
#[derive(Debug, Clone)]
pub(crate) struct Skill {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) instruction: String,
    /// Where it lay, relative to the old runtime's folder.
    pub(crate) place: String,
}

/// A member of a swarm.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
}

impl Draft {
    /// A reference for the secret that a setting holds: the variable it names (`${NAME}`), else `fallback`. The value itself
    /// goes nowhere.
    pub(crate) fn secret(&mut self, value: &str, fallback: &str, place: &str) -> String {
        let name = variable(value).unwrap_or_else(|| fallback.to_owned());
        self.report.secret(&name, place);
        name
    }

    /// Adds a provider unless an equal one is there.
    pub(crate) fn provider(&mut self, mut provider: ProviderDraft) {
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

    /// Adds a channel; one of its name gets a number behind it.
    pub(crate) fn channel(&mut self, mut channel: Channel) {
        channel.name = free_name(&channel.name, |name| {
            self.channels.iter().any(|known| known.name == name)
        });
        if channel.schedule.is_none() {
            self.report.carried(format!("channel `{}`", channel.name));
        }
        self.channels.push(channel);
    }

    /// Adds an MCP server; the name of a tool or of another server gets a number behind it.
    pub(crate) fn server(&mut self, mut server: McpServerDraft) {
        server.name = free_name(&server.name, |name| {
            crate::tools::BUILTINS.contains(&name) || self.servers.iter().any(|known| known.name == name)
        });
        self.report.carried(format!("MCP server `{}`", server.name));
        self.servers.push(server);
    }

    /// A name for a member of the swarm that no other one has.
    pub(crate) fn free_member(&self, name: &str) -> String {
        free_name(name, |name| self.members.iter().any(|known| known.name == name))
    }

    /// Adds a skill unless one of its name is there: the first place that has it wins. Says whether it was added.
    pub(crate) fn skill(&mut self, skill: Skill) -> bool {
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
                .left(format!("skill `{}` in `{}`", skill.name, skill.place), reason);
            return false;
        }
        self.report
            .carried(format!("skill `{}` from `{}`", skill.name, skill.place));
        self.skills.push(skill);
        true
    }

    /// Adds a text to the prompt.
    pub(crate) fn says(&mut self, from: &str, text: &str) {
        if !text.trim().is_empty() {
            self.personality.push((from.to_owned(), text.trim().to_owned()));
        }
    }
}

/// The name itself, or with the first number behind it that nobody has.
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

/// The name in `${NAME}`, `$NAME` or `{"env": "NAME"}`-like texts.
pub(crate) fn variable(value: &str) -> Option<String> {
    let name = value.strip_prefix('$')?;
    let name = name
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .unwrap_or(name);
    let name = name.strip_prefix("env:").unwrap_or(name);
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!name.is_empty() && name.chars().all(fits)).then(|| name.to_owned())
}

/// Letters, digits and hyphens, at most 63: a name that every primitive takes.
pub(crate) fn fit(name: &str) -> String {
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

/// Upper case with underscores: a name that environments take.
pub(crate) fn shout(name: &str) -> String {
    let fit = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_uppercase()
        } else {
            '_'
        }
    };
    name.chars().map(fit).collect()
}

/// A secret of the `{"source": "env", "id": "NAME"}` kind, or a text.
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
