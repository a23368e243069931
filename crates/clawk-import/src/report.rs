//! What came over and what did not.

use serde::Serialize;

/// The outcome of an import, for people and as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// What came over, one sentence each.
    pub carried: Vec<String>,
    /// Settings that did not come over.
    pub left: Vec<OmittedSetting>,
    /// Secrets that the new agent refers to.
    pub secrets: Vec<NeededSecret>,
}

/// A setting that did not come over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OmittedSetting {
    /// Where it stands: a file, and the path of members in it.
    pub setting: String,
    /// Why, and what to do instead where there is something.
    pub reason: String,
}

/// A secret that has to be given to the new agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NeededSecret {
    /// The reference (`secret_ref`) in the new files.
    pub name: String,
    /// Where the old configuration has it. Never its value.
    pub found: String,
}

impl ImportReport {
    /// Notes what came over.
    pub(crate) fn carried(&mut self, what: impl Into<String>) {
        self.carried.push(what.into());
    }

    /// Notes what did not.
    pub(crate) fn left(&mut self, setting: impl Into<String>, reason: impl Into<String>) {
        let left = OmittedSetting {
            setting: setting.into(),
            reason: reason.into(),
        };
        if !self.left.contains(&left) {
            self.left.push(left);
        }
    }

    /// Notes a secret once.
    pub(crate) fn secret(&mut self, name: &str, found: &str) {
        if self.secrets.iter().all(|known| known.name != name) {
            self.secrets.push(NeededSecret {
                name: name.to_owned(),
                found: found.to_owned(),
            });
        }
    }
}
