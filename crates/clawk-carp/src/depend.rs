//! Checks the dependencies between the Atlases of a set: all exist, their versions match, and there is no cycle.

use std::collections::HashMap;
use std::sync::Arc;

use semver::{Version, VersionReq};

use crate::atlas::Atlas;

/// Why Atlases can't form a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DependError {
    /// Two Atlases have the same id.
    #[error("the Atlas `{id}` is loaded twice (versions {first} and {second})")]
    Twice {
        /// The id.
        id: Arc<str>,
        /// The version of one Atlas.
        first: Version,
        /// The version of the other one.
        second: Version,
    },
    /// A dependency is not in the set.
    #[error("`{atlas}` needs `{needs}` {range}, which is not loaded")]
    Missing {
        /// The Atlas with the dependency.
        atlas: Arc<str>,
        /// The missing Atlas.
        needs: String,
        /// The required versions.
        range: VersionReq,
    },
    /// A dependency is in the set, but its version does not match.
    #[error("`{atlas}` needs `{needs}` {range}; version {found} is loaded")]
    Version {
        /// The Atlas with the dependency.
        atlas: Arc<str>,
        /// The required Atlas.
        needs: String,
        /// The required versions.
        range: VersionReq,
        /// The version in the set.
        found: Version,
    },
    /// Atlases depend on each other in a cycle.
    #[error("Atlases depend on each other: {}", .0.join(" → "))]
    Cycle(
        /// The ids in the cycle; the first one is repeated at the end.
        Vec<String>,
    ),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VisitState {
    Open,
    Done,
}

/// Checks the dependencies of all Atlases.
///
/// # Errors
/// All faults. For cycles: one per cycle that a walk in id order finds.
pub fn check_dependencies(atlases: &[Arc<Atlas>]) -> Result<(), Vec<DependError>> {
    let mut errors = Vec::new();
    let mut known: HashMap<&str, &Arc<Atlas>> = HashMap::new();
    for atlas in atlases {
        if let Some(other) = known.insert(&atlas.id, atlas) {
            errors.push(DependError::Twice {
                id: Arc::clone(&atlas.id),
                first: other.version.clone(),
                second: atlas.version.clone(),
            });
        }
    }
    for atlas in atlases {
        for (needs, range) in &atlas.dependencies {
            let (atlas, needs, range) = (Arc::clone(&atlas.id), needs.clone(), range.clone());
            match known.get(needs.as_str()) {
                None => errors.push(DependError::Missing { atlas, needs, range }),
                Some(found) if !range.matches(&found.version) => {
                    let found = found.version.clone();
                    errors.push(DependError::Version {
                        atlas,
                        needs,
                        range,
                        found,
                    });
                }
                Some(_) => {}
            }
        }
    }
    find_cycles(atlases, &known, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Searches depth-first with an explicit stack, so that a long chain of Atlases can't overflow the thread's stack.
fn find_cycles<'a>(
    atlases: &'a [Arc<Atlas>],
    known: &HashMap<&str, &'a Arc<Atlas>>,
    errors: &mut Vec<DependError>,
) {
    let mut marks: HashMap<&str, VisitState> = HashMap::new();
    for start in atlases {
        if marks.contains_key(&*start.id) {
            continue;
        }
        marks.insert(&start.id, VisitState::Open);
        let mut path = vec![(&*start.id, start.dependencies.keys())];
        while let Some((id, rest)) = path.last_mut() {
            let Some(next) = rest.next() else {
                marks.insert(id, VisitState::Done);
                path.pop();
                continue;
            };
            let Some(found) = known.get(next.as_str()) else {
                continue;
            };
            match marks.get(next.as_str()) {
                Some(VisitState::Done) => {}
                Some(VisitState::Open) => {
                    let ids = path
                        .iter()
                        .map(|(id, _)| *id)
                        .skip_while(|id| *id != next.as_str());
                    let mut ids: Vec<String> = ids.map(str::to_owned).collect();
                    ids.push(next.clone());
                    errors.push(DependError::Cycle(ids));
                }
                None => {
                    marks.insert(&found.id, VisitState::Open);
                    path.push((&found.id, found.dependencies.keys()));
                }
            }
        }
    }
}
