//! Unpacks an image from a folder in the OCI layout. Every blob is verified by its digest. The result is unpacked once and cached
//! by the digest of its manifest.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::layer::{self, UnpackBudget};

/// The maximum size of a JSON document of a layout, in bytes.
const MAX_JSON_BYTES: u64 = 4 << 20;

/// The maximum number of layers.
const MAX_LAYERS: usize = 128;

/// The maximum number of files of all layers together.
const MAX_ENTRIES: u64 = 1_000_000;

/// The annotation in an index that has the image's name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// Which image to unpack, and its limits.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// The layout's folder.
    pub layout: PathBuf,
    /// The image's name in the layout.
    pub tag: Option<String>,
    /// The manifest's digest.
    pub digest: Option<String>,
    /// The maximum total size of all unpacked layers, in bytes.
    pub max_bytes: u64,
    /// The user that should own the files, if that can be chosen.
    pub owner: u32,
}

/// An unpacked image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRootfs {
    /// The folder with its files.
    pub path: PathBuf,
    /// `sha256:…` of its manifest.
    pub digest: String,
}

/// The reason why an image is not used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file can't be read or written.
    #[error("{what}: {error}")]
    Io {
        /// The file or the step.
        what: String,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The bytes do not match their digest.
    #[error("the content of `{0}` does not match its digest: the image was changed or damaged")]
    Digest(String),
    /// The layout is invalid.
    #[error("{0}")]
    Broken(String),
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<OciDescriptor>,
}

#[derive(Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
struct OciDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize, Clone)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    config: OciDescriptor,
    layers: Vec<OciDescriptor>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: DiffIds,
}

#[derive(Deserialize)]
struct DiffIds {
    diff_ids: Vec<String>,
}

/// Unpacks the image below `cache`, unless it is there already.
///
/// # Errors
/// The layout is invalid, a digest does not match, a layer tries to leave its root, or the image is larger than allowed.
pub fn unpack_image(wanted: &ImageRequest, cache: &Path) -> Result<ImageRootfs, ImageError> {
    let chosen = choose_manifest(wanted)?;
    let hash = hash_of(&chosen.digest)?;
    let home = cache.join(hash);
    let path = home.join("rootfs");
    let digest = chosen.digest.clone();
    if path.is_dir() {
        return Ok(ImageRootfs { path, digest });
    }
    let manifest: Manifest = read_json_blob(&wanted.layout, &chosen.digest)?;
    let config: Config = read_json_blob(&wanted.layout, &manifest.config.digest)?;
    let ids = config.rootfs.diff_ids;
    if manifest.layers.len() != ids.len() || ids.len() > MAX_LAYERS {
        return Err(ImageError::Broken(
            "the image's manifest and configuration name different layers".to_owned(),
        ));
    }
    create_private_folder(cache)?;
    // Unpacked beside its final place and then renamed, so that an interrupted unpacking is never used as an image.
    let work = tempdir_in(cache)?;
    let unpacked = work.0.join("rootfs");
    create_private_folder(&unpacked)?;
    let root = layer::open_root(&unpacked).map_err(io_at(&unpacked))?;
    let mut budget = UnpackBudget {
        bytes: wanted.max_bytes,
        entries: MAX_ENTRIES,
    };
    for (descriptor, id) in manifest.layers.iter().zip(&ids) {
        one_layer(wanted, descriptor, id, &root, &mut budget)?;
    }
    rustix::fs::fchmod(&root, rustix::fs::Mode::from_raw_mode(0o755))
        .map_err(|e| io_at(&unpacked)(e.into()))?;
    for place in ["proc", "dev", "tmp", "etc"] {
        let _ = rustix::fs::mkdirat(&root, place, rustix::fs::Mode::from_raw_mode(0o755)); // silent-ok: the image has it; else the mount says so
    }
    // Some runtimes give an in-memory file system the mode of the folder below it.
    let tmp = rustix::fs::openat(
        &root,
        "tmp",
        rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .and_then(|tmp| rustix::fs::fchmod(tmp, rustix::fs::Mode::from_raw_mode(0o1777)));
    tmp.map_err(|error| io_at(&unpacked.join("tmp"))(error.into()))?;
    match fs::rename(&work.0, &home) {
        Ok(()) => {}
        Err(_) if path.is_dir() => {} // silent-ok: another agent was faster
        Err(error) => return Err(io_at(&home)(error)),
    }
    Ok(ImageRootfs { path, digest })
}

fn one_layer(
    wanted: &ImageRequest,
    descriptor: &OciDescriptor,
    id: &str,
    root: &std::os::fd::OwnedFd,
    budget: &mut UnpackBudget,
) -> Result<(), ImageError> {
    let path = blob_path(&wanted.layout, &descriptor.digest)?;
    let mut file = HashingReader::new(open_regular(&path)?);
    let plain: Box<dyn Read + '_> = match descriptor.media_type.rsplit(['.', '+']).next() {
        Some("tar") => Box::new(&mut file),
        Some("gzip") => Box::new(MultiGzDecoder::new(&mut file)),
        _ => {
            let text = format!(
                "layers of type `{}` are not read; convert the image to gzip",
                descriptor.media_type
            );
            return Err(ImageError::Broken(text));
        }
    };
    let mut plain = HashingReader::new(plain);
    let unpacked = layer::unpack_layer(&mut plain, root, wanted.owner, budget);
    // Bytes after the end of the archive count for the digest. More than the budget can't be padding.
    let drained = io::copy(&mut (&mut plain).take(budget.bytes.max(1 << 20)), &mut io::sink());
    let got = plain.digest();
    drop(io::copy(&mut (&mut file).take(1 << 20), &mut io::sink())); // the checksum below judges what was read
    // Check the digest first: other errors of wrong bytes do not matter.
    if file.digest() != descriptor.digest {
        return Err(ImageError::Digest(descriptor.digest.clone()));
    }
    unpacked.map_err(|error| ImageError::Io {
        what: format!("layer `{}`", descriptor.digest),
        error,
    })?;
    drained.map_err(|error| ImageError::Io {
        what: format!("layer `{}`", descriptor.digest),
        error,
    })?;
    if got != id {
        return Err(ImageError::Digest(id.to_owned()));
    }
    Ok(())
}

/// Follows the index to one manifest.
fn choose_manifest(wanted: &ImageRequest) -> Result<OciDescriptor, ImageError> {
    let path = wanted.layout.join("index.json");
    let mut index: Index = parse(&read(&path)?, &path.display().to_string())?;
    if let Some(tag) = &wanted.tag {
        index
            .manifests
            .retain(|one| one.annotations.get(REF_NAME).is_some_and(|name| name == tag));
    }
    // An index may contain indexes; real images use two levels.
    for _ in 0..3 {
        let mut fitting = index
            .manifests
            .into_iter()
            .filter(|one| one.platform.as_ref().is_none_or(is_own_platform));
        let (Some(one), None) = (fitting.next(), fitting.next()) else {
            return Err(ImageError::Broken(format!(
                "`{}` holds not exactly one image of that name for this machine; name it by `tag`",
                wanted.layout.display()
            )));
        };
        if one.media_type.ends_with("image.index.v1+json")
            || one.media_type.ends_with("manifest.list.v2+json")
        {
            index = read_json_blob(&wanted.layout, &one.digest)?;
            continue;
        }
        return match &wanted.digest {
            Some(pinned) if *pinned != one.digest => Err(ImageError::Digest(pinned.clone())),
            Some(_) | None => Ok(one),
        };
    }
    Err(ImageError::Broken("its index leads to no image".to_owned()))
}

fn is_own_platform(platform: &Platform) -> bool {
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    platform.os == "linux" && platform.architecture == here
}

/// Reads a small blob and checks its digest.
fn read_json_blob<T: for<'de> Deserialize<'de>>(layout: &Path, digest: &str) -> Result<T, ImageError> {
    let bytes = read(&blob_path(layout, digest)?)?;
    if format!("sha256:{}", hex::encode(Sha256::digest(&bytes))) != digest {
        return Err(ImageError::Digest(digest.to_owned()));
    }
    parse(&bytes, digest)
}

fn parse<T: for<'de> Deserialize<'de>>(bytes: &[u8], what: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::Broken(format!("`{what}`: {error}")))
}

/// Opens a regular file. Opening a pipe could block forever.
fn open_regular(path: &Path) -> Result<File, ImageError> {
    if !std::fs::metadata(path).map_err(io_at(path))?.is_file() {
        return Err(ImageError::Broken(format!(
            "`{}` is not a regular file",
            path.display()
        )));
    }
    File::open(path).map_err(io_at(path))
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    let file = open_regular(path)?;
    file.take(MAX_JSON_BYTES)
        .read_to_end(&mut bytes)
        .map_err(io_at(path))?;
    Ok(bytes)
}

/// The hexadecimal digits of a digest. Nothing else may become part of a path.
fn hash_of(digest: &str) -> Result<&str, ImageError> {
    let hash = digest.strip_prefix("sha256:").filter(|hash| {
        hash.len() == 64
            && hash
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    });
    hash.ok_or_else(|| {
        ImageError::Broken(format!(
            "`{}` is not a valid sha256 digest",
            digest.escape_debug()
        ))
    })
}

fn blob_path(layout: &Path, digest: &str) -> Result<PathBuf, ImageError> {
    Ok(layout.join("blobs").join("sha256").join(hash_of(digest)?))
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    let what = format!("`{}`", path.display());
    move |error| ImageError::Io { what, error }
}

/// Creates a folder that only this user can enter.
pub(crate) fn create_private_folder(path: &Path) -> Result<(), ImageError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(io_at(path))
}

/// A temporary folder. Dropping it removes it with its content, unless it was moved.
struct UnpackFolder(PathBuf);

impl Drop for UnpackFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // silent-ok: it was moved to its place
    }
}

fn tempdir_in(cache: &Path) -> Result<UnpackFolder, ImageError> {
    let path = cache.join(format!(".unpacking-{}", super::run::fresh_name()));
    create_private_folder(&path)?;
    Ok(UnpackFolder(path))
}

/// Hashes everything that is read through it.
struct HashingReader<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> HashingReader<R> {
    fn new(inner: R) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
        }
    }

    fn digest(self) -> String {
        format!("sha256:{}", hex::encode(self.hash.finalize()))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}
