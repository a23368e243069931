//! Where paths really lead. The caller looks at the files and passes these facts to a decision; nothing here reads a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The real place of one path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealLocation {
    /// The real place, links followed; what is not there is named as it would be. Then the file's other names, where such a
    /// name lies in the root of a rule.
    pub at: Vec<PathBuf>,
    /// Something is there.
    pub exists: bool,
    /// Why it can't be told where the path leads. It is refused then.
    pub unknown: Option<String>,
}

/// The real place of the root of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootPlace {
    /// When the agent started. A permissive rule speaks for this place alone: a link that was put there since widens nothing.
    pub then: PathBuf,
    /// Now.
    pub now: PathBuf,
}

/// The real places of a call's paths and of the roots of the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealLocations {
    /// By the path as [`wanted`](super::wanted) gives it.
    pub paths: BTreeMap<PathBuf, RealLocation>,
    /// By the root as [`Engine::roots`](crate::Engine::roots) gives it.
    pub roots: BTreeMap<PathBuf, RootPlace>,
}

impl RealLocations {
    /// What is known of a path. A root is known as a path, too.
    pub(super) fn of(&self, path: &Path) -> Option<RealLocation> {
        let root = || {
            self.roots.get(path).map(|root| RealLocation {
                at: vec![root.now.clone()],
                exists: true,
                unknown: None,
            })
        };
        self.paths.get(path).cloned().or_else(root)
    }
}

/// The roots of one rule, by their names and by where they lead.
#[derive(Debug, Default)]
pub struct RuleRoots {
    named: Vec<PathBuf>,
    then: Vec<PathBuf>,
    now: Vec<PathBuf>,
    /// Places were looked up.
    looked: bool,
}

impl RuleRoots {
    /// These roots, absolute.
    #[must_use]
    pub fn new(named: Vec<PathBuf>, places: Option<&RealLocations>) -> Self {
        let found = || {
            let known = |places| {
                named
                    .iter()
                    .filter_map(move |root| RealLocations::root(places, root))
            };
            places.into_iter().flat_map(known)
        };
        let (then, now) = found().map(|root| (root.then.clone(), root.now.clone())).unzip();
        Self {
            then,
            now,
            looked: places.is_some(),
            named,
        }
    }

    pub(super) const fn looked(&self) -> bool {
        self.looked
    }

    /// A name lies in one of the roots, as it is written.
    pub(super) fn name(&self, path: &Path) -> bool {
        within(path, &self.named)
    }

    /// A place is in what one of the roots was when the agent started.
    pub(super) fn place(&self, path: &Path) -> bool {
        within(path, &self.then)
    }

    /// A name or a place lies in a root by any of its names.
    pub(super) fn touches(&self, path: &Path) -> bool {
        within(path, &self.named) || within(path, &self.then) || within(path, &self.now)
    }
}

impl RealLocations {
    fn root(&self, root: &Path) -> Option<&RootPlace> {
        self.roots.get(root)
    }
}

/// `Path::starts_with` compares whole components, so `/workspace-2` is not inside `/workspace`.
fn within(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}
