//! The real locations of paths. The caller looks them up and passes them to a decision; this module reads no files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The real location of one path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealLocation {
    /// The location with links resolved; for a missing file, the location it would have. Then the file's other names (hard links)
    /// that are inside the root of a rule.
    pub at: Vec<PathBuf>,
    /// Whether something exists there.
    pub exists: bool,
    /// Why the location can't be determined. Such a path is refused.
    pub unknown: Option<String>,
}

/// The real location of a rule's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootPlace {
    /// The location when the agent started. A permissive rule applies only to it: a link created later must not widen the rule.
    pub then: PathBuf,
    /// The present location.
    pub now: PathBuf,
}

/// The real locations of a call's paths and of the rules' roots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealLocations {
    /// By path, as [`paths_to_resolve`](super::paths_to_resolve) returns it.
    pub paths: BTreeMap<PathBuf, RealLocation>,
    /// By root, as [`Engine::path_rule_roots`](crate::Engine::path_rule_roots) returns it.
    pub roots: BTreeMap<PathBuf, RootPlace>,
}

impl RealLocations {
    /// The location of a path. A root's location counts too.
    pub(super) fn location_of(&self, path: &Path) -> Option<RealLocation> {
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

/// The roots of one rule, by name and by real location.
#[derive(Debug, Default)]
pub struct RuleRoots {
    named: Vec<PathBuf>,
    then: Vec<PathBuf>,
    now: Vec<PathBuf>,
    /// The locations were looked up.
    looked: bool,
}

impl RuleRoots {
    /// Makes the set from absolute roots.
    #[must_use]
    pub fn new(named: Vec<PathBuf>, places: Option<&RealLocations>) -> Self {
        let found = || {
            let known = |places| {
                named
                    .iter()
                    .filter_map(move |root| RealLocations::root_place(places, root))
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

    pub(super) const fn is_looked_up(&self) -> bool {
        self.looked
    }

    /// Whether a path is inside a root, by its text.
    pub(super) fn name(&self, path: &Path) -> bool {
        is_within(path, &self.named)
    }

    /// Whether a location is inside one of the roots, as they were when the agent started.
    pub(super) fn contains_place(&self, path: &Path) -> bool {
        is_within(path, &self.then)
    }

    /// Whether a path or location is inside a root, by any of the root's names.
    pub(super) fn touches_path(&self, path: &Path) -> bool {
        is_within(path, &self.named) || is_within(path, &self.then) || is_within(path, &self.now)
    }
}

impl RealLocations {
    fn root_place(&self, root: &Path) -> Option<&RootPlace> {
        self.roots.get(root)
    }
}

/// `Path::starts_with` compares whole components, so `/workspace-2` is not inside `/workspace`.
fn is_within(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}
