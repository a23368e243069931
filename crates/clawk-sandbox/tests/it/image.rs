//! Images in the OCI layout, made here from a static BusyBox.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// One layer, as a list of tar entries.
#[derive(Default)]
pub(crate) struct Layer(Vec<(String, tar::EntryType, Vec<u8>, u32)>);

impl Layer {
    pub(crate) fn file(self, path: &str, content: &str) -> Self {
        self.entry(path, tar::EntryType::Regular, content.as_bytes(), 0o644)
    }

    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        self.entry(path, tar::EntryType::Symlink, target.as_bytes(), 0o777)
    }

    pub(crate) fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(path, tar::EntryType::Link, target.as_bytes(), 0o644)
    }

    pub(crate) fn entry(mut self, path: &str, kind: tar::EntryType, content: &[u8], mode: u32) -> Self {
        self.0.push((path.to_owned(), kind, content.to_vec(), mode));
        self
    }

    fn tar(&self) -> Vec<u8> {
        let mut out = tar::Builder::new(Vec::new());
        for (path, kind, content, mode) in &self.0 {
            let mut header = tar::Header::new_gnu();
            // Written byte by byte: the library refuses the very names that a bad layer has.
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            let linked = matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link);
            if linked {
                header.as_mut_bytes()[157..157 + content.len()].copy_from_slice(content);
            }
            let body: &[u8] = if linked { &[] } else { content };
            header.set_size(body.len() as u64);
            header.set_cksum();
            out.append(&header, body).expect("appended");
        }
        out.into_inner().expect("a tar")
    }
}

/// Debian's `busybox-static`.
pub(crate) struct BusyBox;

impl BusyBox {
    pub(crate) fn layer() -> Layer {
        let program =
            fs::read("/bin/busybox").expect("Debian's package `busybox-static` is needed for this test");
        let mut layer = Layer::default().entry("bin/busybox", tar::EntryType::Regular, &program, 0o4755);
        for name in ["sh", "cat", "ls", "id", "echo", "sleep", "head", "grep"] {
            layer = layer.link(&format!("bin/{name}"), "busybox");
        }
        layer
    }
}

/// Writes a layout with one image of these layers; gives its manifest's digest.
pub(crate) fn write(layout: &Path, layers: &[Layer]) -> String {
    fs::create_dir_all(layout.join("blobs/sha256")).expect("made");
    let (mut descriptors, mut ids) = (Vec::new(), Vec::new());
    for (at, layer) in layers.iter().enumerate() {
        let plain = layer.tar();
        ids.push(digest(&plain));
        // Both forms are in use.
        let (bytes, kind) = match at % 2 {
            0 => {
                let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
                gz.write_all(&plain).expect("written");
                (
                    gz.finish().expect("finished"),
                    "application/vnd.oci.image.layer.v1.tar+gzip",
                )
            }
            _ => (plain, "application/vnd.oci.image.layer.v1.tar"),
        };
        descriptors.push(blob(layout, &bytes, kind));
    }
    let config =
        json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids}});
    let config = blob(
        layout,
        config.to_string().as_bytes(),
        "application/vnd.oci.image.config.v1+json",
    );
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": descriptors});
    let manifest = blob(
        layout,
        manifest.to_string().as_bytes(),
        "application/vnd.oci.image.manifest.v1+json",
    );
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string()).expect("written");
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    manifest["digest"].as_str().expect("text").to_owned()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn blob(layout: &Path, bytes: &[u8], kind: &str) -> Value {
    let digest = digest(bytes);
    let name = digest.strip_prefix("sha256:").expect("a digest");
    fs::write(layout.join("blobs/sha256").join(name), bytes).expect("written");
    json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
}
