//! The report of an import.

use serde::Serialize;

/// The outcome of an import, for people and as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// The imported settings, one sentence each.
    pub carried: Vec<String>,
    /// The settings that were not imported.
    pub left: Vec<OmittedSetting>,
    /// The secrets that the new agent needs.
    pub secrets: Vec<NeededSecret>,
}

/// A setting that was not imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OmittedSetting {
    /// Its location: a file, and the path of members in it.
    pub setting: String,
    /// The reason, and an alternative if there is one.
    pub reason: String,
}

/// A secret that the user must set for the new agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NeededSecret {
    /// The reference (`secret_ref`) in the new files.
    pub name: String,
    /// Its location in the old configuration. Never its value.
    pub found: String,
}

impl ImportReport {
    /// Records an imported setting.
    pub(crate) fn add_carried(&mut self, what: impl Into<String>) {
        self.carried.push(what.into());
    }

    /// Records a setting that was not imported.
    pub(crate) fn add_left_out(&mut self, setting: impl Into<String>, reason: impl Into<String>) {
        let left = OmittedSetting {
            setting: setting.into(),
            reason: reason.into(),
        };
        if !self.left.contains(&left) {
            self.left.push(left);
        }
    }

    /// Records a needed secret once.
    pub(crate) fn add_secret(&mut self, name: &str, found: &str) {
        if self.secrets.iter().all(|known| known.name != name) {
            self.secrets.push(NeededSecret {
                name: name.to_owned(),
                found: found.to_owned(),
            });
        }
    }
}
