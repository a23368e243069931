//! The optional parts of this build: which it has, and what a manifest or a configuration needs that it lacks.

use clawk_manifest::model::{ChannelType, SandboxLevel, StoreBackend};
use clawk_manifest::{Diagnostic, Manifest};

use crate::config::Settings;
use crate::refusal::DetailedRefusal;
use crate::state::server::StateConfig;

/// The code of a finding about something that this build can't serve.
pub(crate) const NOT_IN_BUILD: &str = "not-in-build";

/// A part that a build may leave out: a cargo feature of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildFeature {
    Mail,
    Nats,
    Redis,
    Postgres,
    Vm,
    Conformance,
    Wasm,
}

impl BuildFeature {
    pub(crate) const ALL: [Self; 7] = [
        Self::Mail,
        Self::Nats,
        Self::Redis,
        Self::Postgres,
        Self::Vm,
        Self::Conformance,
        Self::Wasm,
    ];

    /// The name of the cargo feature.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mail => "mail",
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::Vm => "vm",
            Self::Conformance => "conformance",
            Self::Wasm => "wasm",
        }
    }

    /// Returns whether this build has it.
    pub(crate) const fn is_present(self) -> bool {
        match self {
            Self::Mail => cfg!(feature = "mail"),
            Self::Nats => cfg!(feature = "nats"),
            Self::Redis => cfg!(feature = "redis"),
            Self::Postgres => cfg!(feature = "postgres"),
            Self::Vm => cfg!(feature = "vm"),
            Self::Conformance => cfg!(feature = "conformance"),
            Self::Wasm => cfg!(feature = "wasm"),
        }
    }

    /// How to get a build with it.
    pub(crate) fn cure(self) -> String {
        format!(
            "build with `cargo build --release --features {}`, or use a shipped build (`cargo xtask dist`)",
            self.name()
        )
    }
}

/// The names of the parts that this build has, and of those that it lacks.
pub(crate) fn feature_names() -> (Vec<&'static str>, Vec<&'static str>) {
    let (present, absent): (Vec<_>, Vec<_>) = BuildFeature::ALL
        .into_iter()
        .partition(|feature| feature.is_present());
    let names = |all: Vec<BuildFeature>| all.into_iter().map(BuildFeature::name).collect();
    (names(present), names(absent))
}

/// The build in one line, for `clawk doctor` and `clawk --version -v`.
pub(crate) fn build_line() -> String {
    let (present, absent) = feature_names();
    let list = |names: &[&str]| match names {
        [] => "nothing".to_owned(),
        names => names.join(", "),
    };
    format!("with {}; without {}", list(&present), list(&absent))
}

/// Something that needs a part of the build.
struct FeatureUse {
    feature: BuildFeature,
    pointer: String,
    what: String,
}

/// Returns an error, with the cure, for everything that the manifest or `clawk.toml` asks for and this build leaves out.
pub(crate) fn missing_from_build(manifest: &Manifest, settings: &Settings) -> Vec<Diagnostic> {
    let missing = feature_uses(manifest, settings)
        .into_iter()
        .filter(|used| !used.feature.is_present());
    missing
        .map(|used| {
            let message = format!(
                "{} needs `{}`, and this build of clawk leaves it out",
                used.what,
                used.feature.name()
            );
            Diagnostic::error(NOT_IN_BUILD, used.pointer, message).with_help(used.feature.cure())
        })
        .collect()
}

/// Refuses an agent that needs a part that this build leaves out.
///
/// # Errors
/// The first such need with its cure; all of them as data.
pub(crate) fn check_build(manifest: &Manifest, settings: &Settings) -> anyhow::Result<()> {
    let absent = missing_from_build(manifest, settings);
    let Some(first) = absent.first() else {
        return Ok(());
    };
    let cure = first.help.as_deref().unwrap_or_default();
    let message = format!("[{NOT_IN_BUILD}] {}: {cure}", first.message);
    Err(DetailedRefusal::new(message, absent.iter()).into())
}

/// Everything that needs an optional part, whether or not this build has it.
fn feature_uses(manifest: &Manifest, settings: &Settings) -> Vec<FeatureUse> {
    let mut uses = channel_uses(manifest, settings);
    let mut add = |feature, pointer: String, what: String| {
        uses.push(FeatureUse {
            feature,
            pointer,
            what,
        });
    };
    for sandbox in manifest.sandboxes() {
        let feature = match sandbox.level {
            SandboxLevel::Wasm => BuildFeature::Wasm,
            SandboxLevel::Vm => BuildFeature::Vm,
            SandboxLevel::None | SandboxLevel::Process | SandboxLevel::Container => continue,
        };
        let what = format!("level `{}` of sandbox `{}`", sandbox.level, sandbox.name);
        add(feature, "/spec/sandbox".to_owned(), what);
    }
    for (at, tool) in manifest.tools.iter().enumerate() {
        let config = settings.tools.tools.get(&tool.name);
        if config.is_some_and(|config| config.wasm.is_some()) {
            let what = format!("`[tools.{}] wasm` of clawk.toml", tool.name);
            add(BuildFeature::Wasm, format!("/spec/tools/{at}"), what);
        }
    }
    let stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
    for (at, store) in stores.enumerate() {
        if matches!(
            store.backend,
            Some(StoreBackend::Postgresql | StoreBackend::Pgvector)
        ) {
            let what = format!("the back end of store `{}`", store.name);
            add(
                BuildFeature::Postgres,
                format!("/spec/memory/stores/{at}/backend"),
                what,
            );
        }
    }
    if let Some(StateConfig::Table(table)) = &settings.state
        && table.url.is_some()
    {
        let what = "`[state] url` of clawk.toml".to_owned();
        add(BuildFeature::Postgres, String::new(), what);
    }
    for (name, peer) in &settings.peers {
        let feature = peer.bus.as_deref().and_then(feature_of_url);
        if let Some(feature) = feature {
            let what = format!("`[peers.{name}] bus` of clawk.toml");
            add(feature, String::new(), what);
        }
    }
    uses
}

fn channel_uses(manifest: &Manifest, settings: &Settings) -> Vec<FeatureUse> {
    let uses = manifest.channels.iter().enumerate().filter_map(|(at, channel)| {
        let url = settings
            .channels
            .get(&channel.name)
            .and_then(|config| config.url.as_deref());
        let feature = match channel.kind {
            ChannelType::Email | ChannelType::Imap => Some(BuildFeature::Mail),
            ChannelType::Queue | ChannelType::DbTrigger => url.and_then(feature_of_url),
            ChannelType::Telegram
            | ChannelType::Discord
            | ChannelType::Whatsapp
            | ChannelType::Slack
            | ChannelType::Webhook
            | ChannelType::Cli
            | ChannelType::Voice
            | ChannelType::Web
            | ChannelType::Lark
            | ChannelType::Matrix
            | ChannelType::Line
            | ChannelType::Wechat
            | ChannelType::Qq
            | ChannelType::Dingtalk
            | ChannelType::Cron
            | ChannelType::Custom => None,
        };
        Some(FeatureUse {
            feature: feature?,
            pointer: format!("/spec/channels/{at}/type"),
            what: format!("channel `{}` of type `{}`", channel.name, channel.kind),
        })
    });
    uses.collect()
}

/// The part that a server's address needs.
fn feature_of_url(url: &str) -> Option<BuildFeature> {
    let (scheme, _) = url.split_once("://")?;
    match scheme {
        "nats" | "tls" => Some(BuildFeature::Nats),
        "redis" | "rediss" => Some(BuildFeature::Redis),
        "postgres" | "postgresql" => Some(BuildFeature::Postgres),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
