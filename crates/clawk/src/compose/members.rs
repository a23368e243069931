//! The Identities of a swarm's members: documents beside the manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clawk_manifest::Manifest;
use clawk_manifest::model::Identity;
use clawk_swarm::plan::identity_name;

use crate::config::Config;
use crate::manifest;

/// Folder beside a manifest for members' Identities.
const FOLDER: &str = "identities";

type MemberIdentities = (BTreeMap<String, Arc<Identity>>, Vec<PathBuf>);

/// Reads the Identities beside the manifest, by name, with their files.
///
/// # Errors
/// An Identity is not valid.
pub(super) fn load_identities(manifest: &Manifest, config: &Config) -> Result<MemberIdentities> {
    let mut found = MemberIdentities::default();
    let Some(swarm) = &manifest.swarm else {
        return Ok(found);
    };
    if manifest.dir.as_os_str().is_empty() {
        return Ok(found);
    }
    let names = swarm
        .agents
        .iter()
        .map(|agent| identity_name(&agent.identity_ref));
    for name in names.filter(|name| *name != manifest.identity.name && clawk_proto::uri::is_name(name)) {
        let files = ["yaml", "json"].map(|form| manifest.dir.join(FOLDER).join(format!("{name}.{form}")));
        let bound = config.settings.peers.get(&name);
        let given = bound
            .and_then(|peer| peer.identity.as_ref())
            .map(|file| config.folder().join(file));
        let beside = || files.into_iter().find(|file| file.is_file() && bound.is_none());
        let Some(file) = given.or_else(beside) else {
            continue;
        };
        let (loaded, identity) = clawk_manifest::load_identity(&file, &manifest::load_options(config));
        let Some(identity) = identity else {
            let text = clawk_manifest::render_diagnostics(&loaded.diagnostics, &loaded.sources, false);
            bail!(
                "`{}` is not a valid Identity:\n{}",
                file.display(),
                text.trim_end()
            );
        };
        found.0.insert(name, Arc::new(identity));
        found.1.push(file);
    }
    Ok(found)
}
