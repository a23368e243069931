//! What the program knows of a platform: one value for each channel type, in the platform's own folder.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use clawk_kernel::ports::BoxFuture;
use clawk_manifest::model::{Channel, Provider, Trigger};
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::SealKeyring;
use clawk_secrets::SecretResolver;

use super::{CredentialCheck, PlatformProfile};
use crate::adapter::ChannelAdapter;
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::sealed_file::ResealScope;

/// Makes the adapter of a channel; `None` for a type that is served elsewhere.
///
/// The error says why there is none, for people, with the cure.
pub(crate) type MakeAdapter =
    fn(&Channel, &ChannelConfig, &ChannelDependencies) -> Result<Option<Arc<dyn ChannelAdapter>>, String>;

/// What is known of one channel type.
#[derive(Clone, Copy)]
pub(crate) struct PlatformEntry {
    /// What the pipelines know of it.
    pub(crate) profile: PlatformProfile,
    /// Makes the adapter.
    pub(crate) make: MakeAdapter,
    /// What of `[channels.NAME]` means something for it.
    pub(crate) keys: ConfigKeys,
    /// How `url` begins; empty: any way.
    pub(crate) url_schemes: &'static [&'static str],
    /// The option of the manifest's `trigger` without which the channel means nothing.
    pub(crate) trigger_option: Option<TriggerOption>,
    /// Why this build can't serve such a channel, for people.
    pub(crate) build_fault: fn(&Channel, &ChannelConfig) -> Option<String>,
    /// What is wrong with its own settings, for people.
    pub(crate) setting_faults: fn(&Channel, &ChannelConfig) -> Vec<String>,
    /// What is wrong with the Providers that its settings name, for people.
    pub(crate) provider_faults: fn(&Channel, &ChannelConfig, &[Provider]) -> Vec<String>,
    /// How the platform is asked whether it takes the secret.
    pub(crate) credential: Option<CredentialCheck>,
    /// Takes away what a channel installed elsewhere, for an agent that does not run.
    pub(crate) remove: Option<RemoveInstalled>,
    /// Files of conversations that the platform keeps itself.
    pub(crate) stored: Option<StoredConversations>,
}

/// Takes away what a channel installed elsewhere; the result says in words what was removed.
pub(crate) type RemoveInstalled = for<'a> fn(RemoveRequest<'a>) -> BoxFuture<'a, Result<Vec<String>, String>>;

impl fmt::Debug for PlatformEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PlatformEntry({})", self.profile.name)
    }
}

impl PlatformEntry {
    /// An entry with nothing beside its profile, its keys and its adapter.
    pub(crate) const fn new(profile: PlatformProfile, keys: ConfigKeys, make: MakeAdapter) -> Self {
        Self {
            profile,
            make,
            keys,
            url_schemes: &[],
            trigger_option: None,
            build_fault: |_, _| None,
            setting_faults: |_, _| Vec::new(),
            provider_faults: |_, _, _| Vec::new(),
            credential: None,
            remove: None,
            stored: None,
        }
    }
}

/// An option of the manifest's `trigger`.
#[derive(Clone, Copy)]
pub(crate) struct TriggerOption {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its value.
    pub(crate) value: fn(&Trigger) -> Option<&str>,
}

/// A channel whose installed parts are to be taken away.
#[derive(Clone, Copy)]
pub(crate) struct RemoveRequest<'a> {
    pub(crate) channel: &'a Channel,
    pub(crate) config: &'a ChannelConfig,
    pub(crate) secrets: &'a SecretResolver,
    /// The tools' working directory.
    pub(crate) workdir: &'a Path,
}

/// Folders of conversations that a platform keeps below the channels' folder.
#[derive(Clone, Copy)]
pub(crate) struct StoredConversations {
    /// The folders' extension.
    pub(crate) extension: &'static str,
    /// Seals the files of one folder with the vault's current key; the report names those that can't be sealed.
    pub(crate) seal: fn(&Path, &SealKeyring, ResealScope) -> ResealReport,
}

/// Keys that every type of people's platform has.
const PEOPLE: &[&str] = &["admins", "respond", "refuse", "max_attachment_mb", "timezone"];
/// Keys that every trigger has.
const TRIGGER: &[&str] = &["prompt", "deliver_to"];
/// Keys of a platform with an API.
pub(crate) const API_KEYS: &[&str] = &["base_url", "public_url", "secrets", "settings"];
/// Settings of a type whose recordings are turned into words.
pub(crate) const HEARING_SETTINGS: &[&str] = &["transcribe"];

/// What of `[channels.NAME]` means something for a type.
#[derive(Clone, Copy)]
pub(crate) struct ConfigKeys {
    /// Keys of all types of its group.
    pub(crate) group: &'static [&'static str],
    /// Further keys.
    pub(crate) keys: &'static [&'static str],
    /// Names in `secrets`.
    pub(crate) secrets: &'static [&'static str],
    /// Names in `settings`.
    pub(crate) settings: &'static [&'static str],
}

impl ConfigKeys {
    /// None at all.
    pub(crate) const NONE: Self = Self {
        group: &[],
        keys: &[],
        secrets: &[],
        settings: &[],
    };

    /// Those of a type on which people write.
    pub(crate) const fn people(
        keys: &'static [&'static str],
        secrets: &'static [&'static str],
        settings: &'static [&'static str],
    ) -> Self {
        Self {
            group: PEOPLE,
            keys,
            secrets,
            settings,
        }
    }

    /// Those of a trigger.
    pub(crate) const fn trigger(keys: &'static [&'static str], settings: &'static [&'static str]) -> Self {
        Self {
            group: TRIGGER,
            keys,
            secrets: &[],
            settings,
        }
    }
}
