//! A pack: an Atlas's folder as one file. The same folder always gives the same bytes, and every part has its digest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clawk_carp::Atlas;
use clawk_carp::atlas::bounds;
use clawk_carp::load::{self, LoadError};
use clawk_trace::chain::digest_of;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Largest pack, in bytes: a manifest and its context, with the overhead of JSON text.
const PACK_BYTES: u64 = 128 << 20;
/// First bytes of a pack, by which it is recognised.
const BEGIN: &[u8] = b"{\"clawk_atlas_pack\":1,";

/// A pack as it is written: one line, with members in a fixed order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AtlasPack {
    clawk_atlas_pack: u8,
    /// Digest over the digests and names of all parts.
    pub(crate) digest: String,
    /// Context files, by their paths in the manifest.
    pub(crate) files: BTreeMap<String, AtlasPackPart>,
    manifest: AtlasPackPart,
}

/// A text and its SHA-256 digest.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AtlasPackPart {
    sha256: String,
    text: String,
}

impl AtlasPackPart {
    fn new(text: String) -> Self {
        Self {
            sha256: digest_of(text.as_bytes()).to_hex(),
            text,
        }
    }

    fn is_intact(&self) -> bool {
        digest_of(self.text.as_bytes()).to_hex() == self.sha256
    }
}

/// Returns one line per part, the manifest first: digest, two blanks, name.
fn combined_digest(manifest: &AtlasPackPart, files: &BTreeMap<String, AtlasPackPart>) -> String {
    let mut list = format!("{}  atlas.json\n", manifest.sha256);
    for (name, part) in files {
        list.push_str(&format!("{}  {name:?}\n", part.sha256));
    }
    digest_of(list.as_bytes()).to_hex()
}

/// Packs a folder that holds a valid Atlas.
///
/// # Errors
/// The Atlas is not valid, or can't be read.
pub(crate) fn pack_folder(folder: &Path) -> Result<(Atlas, AtlasPack)> {
    let atlas = load::load_atlas(folder)?;
    let root = if folder.is_dir() {
        folder
    } else {
        folder.parent().unwrap_or(Path::new(""))
    };
    let manifest = fs::read_to_string(root.join("atlas.json"))
        .with_context(|| format!("`{}` holds no atlas.json", root.display()))?;
    let value: Value = serde_json::from_str(&manifest)?;
    let packs = value.get("context_packs").and_then(Value::as_array);
    let names = packs
        .into_iter()
        .flatten()
        .filter_map(|pack| pack.get("files")?.as_array())
        .flatten();
    let mut files = BTreeMap::new();
    for name in names.filter_map(Value::as_str) {
        // Loading has already refused every path outside the folder. A missing file gives no context, packed or not.
        let place = [root.join(name), root.join("context").join(name)]
            .into_iter()
            .find(|path| path.is_file());
        if let Some(place) = place {
            let text =
                fs::read_to_string(&place).with_context(|| format!("can't read `{}`", place.display()))?;
            files.insert(name.to_owned(), AtlasPackPart::new(text));
        }
    }
    let manifest = AtlasPackPart::new(manifest);
    let pack = AtlasPack {
        clawk_atlas_pack: 1,
        digest: combined_digest(&manifest, &files),
        files,
        manifest,
    };
    // Check the packed text, so that the checked bytes are the written bytes.
    let packed = pack.verified_atlas()?;
    if packed.id != atlas.id || packed.version != atlas.version {
        bail!("`{}` was changed while it was packed", root.display());
    }
    Ok((packed, pack))
}

impl AtlasPack {
    /// Returns the file's bytes.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Returns the Atlas in the pack.
    ///
    /// # Errors
    /// A digest does not match.
    fn verified_atlas(&self) -> Result<Atlas> {
        let parts = self.files.values().chain([&self.manifest]);
        if self.clawk_atlas_pack != 1 || !parts.into_iter().all(AtlasPackPart::is_intact) {
            bail!("a part does not have its digest: the pack was changed");
        }
        if combined_digest(&self.manifest, &self.files) != self.digest {
            bail!("the parts do not have the pack's digest: one was added or taken away");
        }
        let context: usize = self.files.values().map(|part| part.text.len()).sum();
        if u64::try_from(context).unwrap_or(u64::MAX) > bounds::CONTEXT_BYTES {
            bail!("its context files have more than {} bytes", bounds::CONTEXT_BYTES);
        }
        let texts = self
            .files
            .iter()
            .map(|(name, part)| (name.clone(), part.text.clone()))
            .collect();
        Ok(Atlas::in_memory(self.manifest.text.as_bytes(), &texts)?)
    }
}

/// Loads an Atlas from a folder, an `atlas.json`, or a pack.
///
/// # Errors
/// The Atlas can't be read or is not valid, or a digest does not match.
pub(crate) fn load_atlas(path: &Path) -> Result<Atlas> {
    if !is_pack(path) {
        return Ok(load::load_atlas(path)?);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(PACK_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > PACK_BYTES {
        bail!("`{}` is larger than {PACK_BYTES} bytes", path.display());
    }
    let pack: AtlasPack = serde_json::from_slice(&bytes)
        .with_context(|| format!("`{}` is not a valid Atlas pack", path.display()))?;
    pack.verified_atlas()
        .with_context(|| format!("`{}`", path.display()))
}

/// Returns whether the file begins like a pack.
pub(crate) fn is_pack(path: &Path) -> bool {
    let mut begin = [0u8; BEGIN.len()];
    path.is_file()
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut begin).is_ok())
        && begin.as_slice() == BEGIN
}

/// Like [`fn@load_atlas`], for callers that print the faults of a [`LoadError`] one by one.
pub(crate) fn load_with_faults(path: &Path) -> Result<Result<Atlas, LoadError>> {
    if is_pack(path) {
        load_atlas(path).map(Ok)
    } else {
        Ok(load::load_atlas(path))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{load_atlas, pack_folder};

    #[test]
    fn the_same_folder_gives_the_same_bytes_and_they_load_as_it_does() {
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/atlas"));
        let (atlas, pack) = pack_folder(source).unwrap();
        let bytes = pack.bytes().unwrap();
        assert_eq!(bytes, pack_folder(source).unwrap().1.bytes().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("library.atlas");
        std::fs::write(&file, &bytes).unwrap();
        let loaded = load_atlas(&file).unwrap();
        assert_eq!((&loaded.id, loaded.packs.len()), (&atlas.id, atlas.packs.len()));
        let texts = |atlas: &clawk_carp::Atlas| -> Vec<String> {
            atlas
                .packs
                .iter()
                .flat_map(|pack| &pack.blocks)
                .map(|block| block.content.clone())
                .collect()
        };
        let direct = clawk_carp::load::load_atlas(source).unwrap();
        assert_eq!(texts(&loaded), texts(&direct));
        assert!(!texts(&loaded).is_empty());

        // Any changed letter of any part is found.
        let text = String::from_utf8(bytes).unwrap();
        let changed = text.replacen("records of the library", "records of the librarz", 1);
        assert_ne!(text, changed);
        std::fs::write(&file, changed).unwrap();
        assert!(
            load_atlas(&file)
                .unwrap_err()
                .chain()
                .any(|cause| cause.to_string().contains("digest"))
        );
    }
}
