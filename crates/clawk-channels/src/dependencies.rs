//! What the channels of an agent are made of: the same for the service and for each platform.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use clawk_kernel::Kernel;
use clawk_kernel::time::Clock;
use clawk_recall::seal::SealKeyring;
use clawk_sandbox::{Launcher, Spec};
use clawk_secrets::SecretResolver;

use crate::config::ChannelConfig;

/// What the channels of an agent are made of.
pub struct ChannelDependencies {
    /// The agent.
    pub kernel: Kernel,
    /// Its clock.
    pub clock: Arc<dyn Clock>,
    /// Resolves secrets.
    pub secrets: SecretResolver,
    /// `[channels]`.
    pub configs: BTreeMap<String, ChannelConfig>,
    /// `[approvals] to`: `CHANNEL:CONVERSATION`.
    pub approvals: Vec<String>,
    /// Where cursors lie.
    pub folder: PathBuf,
    /// Seals what people and the agent said there, where the state is encrypted.
    pub vault: Option<SealKeyring>,
    /// The tools' working directory, below which files of messages are kept; none: they are named only.
    pub workdir: Option<PathBuf>,
    /// Starts the programs of `custom` channels.
    pub launcher: Launcher,
    /// These programs, by channel, each in its box; or why it can't be had.
    pub programs: BTreeMap<String, Result<Spec, String>>,
    /// Requests to `/channels/NAME` come in somewhere.
    pub listening: bool,
}

impl fmt::Debug for ChannelDependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parts({} configured)", self.configs.len())
    }
}
