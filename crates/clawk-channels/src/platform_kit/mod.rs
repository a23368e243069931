//! What the platforms share. Nothing here imports a platform, the registry of platforms, or the service.

mod entry;
pub(crate) mod gateway;
pub(crate) mod message_line;
mod names;
mod probe;
pub(crate) mod profile;
pub(crate) mod refusals;
pub(crate) mod worded;

use clawk_egress::Url;
use clawk_manifest::model::{Channel, Trigger};
use clawk_secrets::{Secret, SecretResolver};

pub(crate) use self::entry::{
    API_KEYS, ConfigKeys, HEARING_SETTINGS, PlatformEntry, RemoveRequest, StoredConversations, TriggerOption,
};
pub(crate) use self::names::DisplayNameCache;
pub(crate) use self::probe::{CHECK_LIMIT_MS, CredentialCheck, CredentialProbe, CredentialProof, RIGHTS};
pub use self::probe::{CheckGrade, Finding};
pub(crate) use self::profile::{PlatformProfile, TransportChoice};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::plain_name::harmless;

/// The reaction on a message that is worked on.
pub(crate) const EYES: &str = "\u{1f440}";

/// A type that this build leaves out.
pub(crate) fn left_out(channel: &Channel, feature: &str) -> String {
    format!(
        "this build of clawk leaves out `{feature}`, so it can't serve the `{}` channel; build with `--features {feature}`, or use a \
         shipped build (`cargo xtask dist`)",
        channel.kind.as_str()
    )
}

/// The secret that `auth.secret_ref` names.
pub(crate) fn secret(channel: &Channel, parts: &ChannelDependencies) -> Result<Secret, String> {
    secret_of(channel, &parts.secrets)
}

pub(crate) fn secret_of(channel: &Channel, secrets: &SecretResolver) -> Result<Secret, String> {
    let named = &channel.auth.secret_ref;
    let secret = secrets.resolve(named).map_err(|error| error.to_string())?;
    if secret.expose().trim().is_empty() {
        return Err(format!("the secret `{named}` is empty"));
    }
    Ok(secret)
}

/// An option of the manifest's `trigger` without which the channel means nothing.
pub(crate) fn required(
    channel: &Channel,
    field: &str,
    of: impl Fn(&Trigger) -> Option<&str>,
) -> Result<String, String> {
    let given = channel.trigger.as_ref().and_then(of).map(str::trim);
    match given.filter(|given| !given.is_empty()) {
        Some(given) => Ok(given.to_owned()),
        None => Err(absent(channel, field)),
    }
}

/// A further secret of `[channels.NAME] secrets`.
pub(crate) fn secret_named(
    config: &ChannelConfig,
    parts: &ChannelDependencies,
    name: &str,
) -> Result<Secret, String> {
    let reference = config
        .secrets
        .get(name)
        .ok_or_else(|| format!("`secrets.{name} = \"REF\"` is missing in clawk.toml"))?;
    let secret = parts
        .secrets
        .resolve(reference)
        .map_err(|error| error.to_string())?;
    if secret.expose().trim().is_empty() {
        return Err(format!("the secret `{reference}` is empty"));
    }
    Ok(secret)
}

/// A value of `[channels.NAME] settings` that this type needs.
pub(crate) fn setting(config: &ChannelConfig, name: &str) -> Result<String, String> {
    let value = config.settings.get(name).map(|value| value.trim());
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Ok(value.to_owned()),
        None => Err(format!("`settings.{name} = \"…\"` is missing in clawk.toml")),
    }
}

/// Requests of platforms come in somewhere.
pub(crate) fn listening(parts: &ChannelDependencies) -> Result<(), String> {
    if parts.listening {
        return Ok(());
    }
    Err("it needs a listener: start `clawk serve` with `--listen ADDR`".to_owned())
}

/// A part of a path or a query, percent-encoded.
pub(crate) fn escaped(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    part.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// An address that the platform's API gave: followed to the vendor's own hosts, or to the host that `base_url` names.
pub(crate) fn own_host(url: &str, base: &Url, vendor: &str) -> Result<Url, String> {
    let parsed =
        Url::parse(url).map_err(|_invalid| "the platform gave no address to connect to".to_owned())?;
    let host = parsed.host_str().unwrap_or_default();
    let vendors = host == vendor || host.ends_with(&format!(".{vendor}"));
    if (vendors && parsed.scheme() == "wss") || Some(host) == base.host_str() {
        return Ok(parsed);
    }
    Err(format!(
        "the platform gave the host `{}`, which is not its own",
        harmless(host)
    ))
}

/// Where the platform reaches this channel.
pub(crate) fn public_url(channel: &Channel, config: &ChannelConfig) -> Result<String, String> {
    let base = config.public_url.as_deref().ok_or(
        "`public_url` is missing in clawk.toml: the address at which the platform reaches this listener",
    )?;
    let base = base.trim_end_matches('/');
    let path = format!("/channels/{}", channel.name);
    Ok(if base.ends_with(&path) {
        base.to_owned()
    } else {
        format!("{base}{path}")
    })
}

/// An option of a trigger is absent or empty: where, and the cure.
pub(crate) fn absent(channel: &Channel, field: &str) -> String {
    format!(
        "the channel `{}` (`{}`) has no `trigger.{field}`; write `trigger: {{ {field}: … }}` in the manifest",
        channel.name,
        channel.kind.as_str()
    )
}
