//! Reads the image archive that an engine exports: an OCI layout, or docker's format before version 25, which is converted to a
//! layout.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// The maximum number of files of an image.
const MAX_FILES: usize = 1024;

/// The maximum size of an archive's manifest list, in bytes.
const MAX_LIST_BYTES: u64 = 4 << 20;

/// The manifest list of an archive that is not a layout.
const LIST: &str = "manifest.json";

/// One entry of that list.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerArchiveEntry {
    config: String,
    layers: Vec<String>,
}

/// Extracts an image's files, and nothing else, from an archive. `into` is a layout afterwards. `id` is the image's id, which is
/// checked if the archive is not a layout.
///
/// # Errors
/// The archive contains no image, another one, or more than `max_bytes`.
pub(super) fn extract_layout(archive: &Path, into: &Path, id: &str, max_bytes: u64) -> io::Result<()> {
    let blobs = into.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let mut taken = DockerArchiveParts::default();
    let mut left = max_bytes;
    for entry in tar::Archive::new(File::open(archive)?).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        if taken.files.len() + taken.links.len() >= MAX_FILES {
            return Err(io::Error::other("it holds more files than an image has"));
        }
        if entry.header().entry_type().is_symlink() {
            let target = entry.link_name()?.unwrap_or_default();
            taken.add_link(&path, &target);
            continue;
        }
        let Some(name) = ArchiveMember::from_path(&path).filter(|_| entry.header().entry_type().is_file())
        else {
            continue;
        };
        left = left
            .checked_sub(entry.size())
            .ok_or_else(|| io::Error::other("it is larger than `max_image_mb`"))?;
        match name {
            ArchiveMember::Layout(name) => {
                io::copy(&mut entry, &mut File::create_new(into.join(&name))?)?;
            }
            ArchiveMember::List => {
                (&mut entry).take(MAX_LIST_BYTES).read_to_end(&mut taken.list)?;
            }
            ArchiveMember::Part(name) => {
                let size = entry.size();
                let digest = write_blob(&mut entry, &blobs)?;
                taken.files.insert(name, Blob { digest, size });
            }
        }
    }
    match into.join("index.json").is_file() {
        true => Ok(()),
        false => taken.make_layout(into, &blobs, id),
    }
}

/// What a member of an archive is.
enum ArchiveMember {
    /// A file of a layout, with its path there.
    Layout(String),
    List,
    /// A configuration or a layer.
    Part(String),
}

impl ArchiveMember {
    fn from_path(path: &Path) -> Option<Self> {
        let text = path.to_str()?;
        let text = text.strip_prefix("./").unwrap_or(text);
        let layout = text == "index.json" || text == "oci-layout";
        if layout || text.strip_prefix("blobs/sha256/").is_some_and(is_hash) {
            return Some(Self::Layout(text.to_owned()));
        }
        let part = text.strip_suffix(".json").or(text.strip_suffix("/layer.tar"));
        match part {
            Some("manifest") => Some(Self::List),
            Some(part) if is_hash(part) => Some(Self::Part(text.to_owned())),
            Some(_) | None => None,
        }
    }
}

fn is_hash(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A file of the layout, identified by its content.
struct Blob {
    /// The digest in hexadecimal.
    digest: String,
    size: u64,
}

/// Parts of an archive that is not a layout.
#[derive(Default)]
struct DockerArchiveParts {
    files: HashMap<String, Blob>,
    /// Layers that are links to another layer: only the first of several identical layers has content.
    links: HashMap<String, String>,
    list: Vec<u8>,
}

impl DockerArchiveParts {
    fn add_link(&mut self, path: &Path, target: &Path) {
        let Some(ArchiveMember::Part(name)) = ArchiveMember::from_path(path) else {
            return;
        };
        // `../HASH/layer.tar`, relative to the folder beside it.
        let mut parts = target.components();
        if parts.next() == Some(Component::ParentDir)
            && let Some(ArchiveMember::Part(target)) = ArchiveMember::from_path(parts.as_path())
        {
            self.links.insert(name, target);
        }
    }

    fn find_blob(&self, name: &str) -> io::Result<&Blob> {
        let name = self.links.get(name).map_or(name, String::as_str);
        let found = self.files.get(name);
        found.ok_or_else(|| io::Error::other(format!("it has no `{}`", name.escape_debug())))
    }

    fn make_layout(&self, into: &Path, blobs: &Path, id: &str) -> io::Result<()> {
        if self.list.is_empty() {
            return Err(io::Error::other(format!(
                "it holds no image: neither an OCI layout nor a `{LIST}`"
            )));
        }
        let list: Vec<DockerArchiveEntry> = serde_json::from_slice(&self.list)?;
        let [image] = list.as_slice() else {
            return Err(io::Error::other("it holds not exactly one image"));
        };
        let config = self.find_blob(&image.config)?;
        if config.digest != id {
            return Err(io::Error::other(format!(
                "it holds `{}` and not `{id}`",
                config.digest
            )));
        }
        let described = |kind: &str, blob: &Blob| {
            json!({
                "mediaType": format!("application/vnd.oci.image.{kind}"),
                "digest": format!("sha256:{}", blob.digest),
                "size": blob.size,
            })
        };
        let mut layers = Vec::new();
        for layer in &image.layers {
            layers.push(described("layer.v1.tar", self.find_blob(layer)?));
        }
        let manifest = json!({
            "schemaVersion": 2,
            "config": described("config.v1+json", config),
            "layers": layers,
        });
        let manifest = serde_json::to_vec(&manifest)?;
        let size = u64::try_from(manifest.len()).map_err(io::Error::other)?;
        let digest = write_blob(&mut manifest.as_slice(), blobs)?;
        let index = json!({"manifests": [described("manifest.v1+json", &Blob { digest, size })]});
        fs::write(into.join("index.json"), serde_json::to_vec(&index)?)
    }
}

/// Writes a blob under its digest, which is returned.
fn write_blob(from: &mut impl Read, blobs: &Path) -> io::Result<String> {
    let work = blobs.join("part");
    let mut file = File::create(&work)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0_u8; 64 << 10];
    loop {
        let read = from.read(&mut buffer)?;
        let Some(piece) = buffer.get(..read).filter(|piece| !piece.is_empty()) else {
            break;
        };
        hash.update(piece);
        file.write_all(piece)?;
    }
    let digest = hex::encode(hash.finalize());
    fs::rename(&work, blobs.join(&digest))?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with these files. Content that begins with `-> ` makes a link.
    fn archive(at: &Path, files: &[(&str, &[u8])]) {
        let mut tar = tar::Builder::new(File::create(at).unwrap());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_mode(0o644);
            let target = content.strip_prefix(b"-> ");
            if let Some(target) = target {
                header.set_entry_type(tar::EntryType::Symlink);
                header
                    .set_link_name(std::str::from_utf8(target).unwrap())
                    .unwrap();
            }
            let content = if target.is_some() { &[][..] } else { content };
            header.set_size(content.len() as u64);
            header.set_cksum();
            tar.append(&header, content).unwrap();
        }
        tar.finish().unwrap();
    }

    fn digest(bytes: &[u8]) -> String {
        hex::encode(Sha256::digest(bytes))
    }

    #[test]
    fn nothing_but_a_layout_is_taken_out_of_an_archive() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tar");
        let hash = "a".repeat(64);
        let blob = format!("blobs/sha256/{hash}");
        archive(
            &file,
            &[
                ("index.json", b"{}"),
                (&blob, b"blob"),
                ("../outside", b"x"),
                ("blobs/sha256/../../../outside", b"x"),
                ("manifest.json", b"[]"),
            ],
        );
        let into = folder.path().join("layout");
        extract_layout(&file, &into, &hash, 1 << 20).unwrap();
        assert_eq!(fs::read(into.join(blob)).unwrap(), b"blob");
        assert!(!folder.path().join("outside").exists() && !into.join("manifest.json").exists());
        let again = extract_layout(&file, &folder.path().join("again"), &hash, 4);
        assert!(again.unwrap_err().to_string().contains("max_image_mb"));
    }

    #[test]
    fn what_docker_wrote_before_is_made_a_layout() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tar");
        let (config, layer) = (b"{\"rootfs\":{}}".as_slice(), b"layer".as_slice());
        let id = digest(config);
        let (first, second) = ("1".repeat(64), "2".repeat(64));
        let list =
            format!(r#"[{{"Config":"{id}.json","Layers":["{first}/layer.tar","{second}/layer.tar"]}}]"#);
        let link = format!("-> ../{first}/layer.tar");
        let names = [
            format!("{id}.json"),
            format!("{first}/layer.tar"),
            format!("{second}/layer.tar"),
        ];
        let files: [(&str, &[u8]); 5] = [
            (&names[0], config),
            (&names[1], layer),
            (&names[2], link.as_bytes()),
            ("manifest.json", list.as_bytes()),
            ("repositories", b"{}"),
        ];
        archive(&file, &files);
        let into = folder.path().join("layout");
        extract_layout(&file, &into, &id, 1 << 20).unwrap();
        let index: serde_json::Value =
            serde_json::from_slice(&fs::read(into.join("index.json")).unwrap()).unwrap();
        let named = index["manifests"][0]["digest"].as_str().unwrap();
        let blob = |named: &str| fs::read(into.join("blobs").join(named.replace(':', "/"))).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&blob(named)).unwrap();
        assert_eq!(blob(manifest["config"]["digest"].as_str().unwrap()), config);
        for at in [0, 1] {
            assert_eq!(
                manifest["layers"][at]["digest"],
                format!("sha256:{}", digest(layer))
            );
        }
        assert_eq!(blob(manifest["layers"][0]["digest"].as_str().unwrap()), layer);
        // Not the requested image; a missing part; links that lead elsewhere.
        let other = extract_layout(&file, &folder.path().join("other"), &"0".repeat(64), 1 << 20);
        assert!(other.unwrap_err().to_string().contains("and not `0000"));
        for wrong in ["-> /etc/passwd", "-> ../../etc/passwd", "-> ../x/layer.tar"] {
            let mut files = files;
            files[2].1 = wrong.as_bytes();
            archive(&file, &files);
            let missing = extract_layout(&file, &folder.path().join(digest(wrong.as_bytes())), &id, 1 << 20);
            assert!(missing.unwrap_err().to_string().contains("it has no"), "{wrong}");
        }
    }
}
