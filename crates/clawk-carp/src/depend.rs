//! Dependencies between the Atlases of a set: all there, versions fit, no cycle.

use std::collections::HashMap;
use std::sync::Arc;

use semver::{Version, VersionReq};

use crate::atlas::Atlas;

/// Why Atlases do not make a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DependError {
    /// Two Atlases have one id.
    #[error("the Atlas `{id}` is loaded twice (versions {first} and {second})")]
    Twice {
        /// The id.
        id: Arc<str>,
        /// One version.
        first: Version,
        /// The other.
        second: Version,
    },
    /// A dependency is not in the set.
    #[error("`{atlas}` needs `{needs}` {range}, which is not loaded")]
    Missing {
        /// Who needs it.
        atlas: Arc<str>,
        /// What is needed.
        needs: String,
        /// In which versions.
        range: VersionReq,
    },
    /// A dependency is there in a version that does not fit.
    #[error("`{atlas}` needs `{needs}` {range}; version {found} is loaded")]
    Version {
        /// Who needs it.
        atlas: Arc<str>,
        /// What is needed.
        needs: String,
        /// In which versions.
        range: VersionReq,
        /// What is there.
        found: Version,
    },
    /// Atlases need each other.
    #[error("Atlases depend on each other: {}", .0.join(" → "))]
    Cycle(
        /// The ids; the last is the first again.
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
/// Everything that is wrong; of cycles, one for each that a walk in order of ids closes.
pub fn check(atlases: &[Arc<Atlas>]) -> Result<(), Vec<DependError>> {
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
    cycles(atlases, &known, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Depth first with a stack of our own: a long chain of Atlases must not exhaust the thread's.
fn cycles<'a>(
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
