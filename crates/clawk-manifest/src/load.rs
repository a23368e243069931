//! The entry points: load a manifest from a file or from the wire, or load a single primitive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clawk_proto::uri::{ClawUri, Kind};
use semver::Version;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::diagnostic::{Diagnostic, FileFindings, Severity, SourceFiles};
use crate::envelope::{self, DocumentKind, Envelope};
use crate::leaf::LeafCheckFn;
use crate::loader::{FileRefusal, ManifestFileLoader, ResolvedFile};
use crate::model::{Identity, Manifest, Metadata, Policy, Sandbox};
use crate::primitive::UntypedPrimitive;
use crate::read::{ManifestReader, PrimitiveMetadata};
use crate::report::DocumentDescription;
use crate::rules::whole::CrossPrimitiveCheck;
use crate::shape::spec_of;
use crate::tree::{Node, members_to_json};

/// Options for finding the files of a manifest.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Allows references outside the manifest's directory (R9).
    pub allow_outside: bool,
    /// Registries by name: directories with `NAMESPACE/NAME@VERSION.yaml` or `NAMESPACE/NAME/VERSION.yaml`.
    pub registries: BTreeMap<String, PathBuf>,
    /// The runtime's comment on each leaf; `None`: no comments.
    pub judge: Option<LeafCheckFn>,
}

/// Options for a manifest that arrives over the wire (R3).
#[derive(Debug, Clone, Default)]
pub struct WireOptions {
    /// The base directory of file references; `None`: file references are refused.
    pub root: Option<PathBuf>,
    /// Allows references outside the root.
    pub allow_outside: bool,
    /// Registries by name, as in [`LoadOptions`].
    pub registries: BTreeMap<String, PathBuf>,
    /// The runtime's comment on each leaf, as in [`LoadOptions`].
    pub judge: Option<LeafCheckFn>,
}

/// The result of reading a document.
#[derive(Debug)]
pub struct LoadedDocument {
    /// The manifest; present if and only if there is no error.
    pub manifest: Option<Manifest>,
    /// Errors and warnings: by file in the order read, then by line.
    pub diagnostics: Vec<Diagnostic>,
    /// The files read, for rendering.
    pub sources: SourceFiles,
    /// The document's `kind`, if it is known.
    pub kind: Option<&'static str>,
    /// The document's own description, for people.
    pub about: DocumentDescription,
}

impl LoadedDocument {
    /// Whether there is no error.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.diagnostics
            .iter()
            .all(|diagnostic| diagnostic.severity == Severity::Warning)
    }
}

/// Reads a whole manifest (`kind: Claw`) with everything it refers to.
///
/// It never fails: [`LoadedDocument::diagnostics`] holds every error and warning at once, and [`LoadedDocument::manifest`] is absent if there is an
/// error.
///
/// ```
/// use clawk_manifest::{LoadOptions, load_manifest};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("claw.yaml");
/// std::fs::write(&file, "claw: \"0.3.0\"\nkind: Claw\nmetadata: { name: my agent }\n")?;
/// let loaded = load_manifest(&file, &LoadOptions::default());
/// assert!(loaded.manifest.is_none());
/// assert!(loaded.diagnostics.iter().any(|found| found.message.contains("`my agent`")));
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn load_manifest(path: &Path, options: &LoadOptions) -> LoadedDocument {
    read_file(path, options, ExpectedDocument::Claw)
}

/// Reads a file of any kind: a whole manifest, or one primitive whose references stay unresolved.
#[must_use]
pub fn validate_file(path: &Path, options: &LoadOptions) -> LoadedDocument {
    read_file(path, options, ExpectedDocument::Any)
}

/// Reads one primitive's file.
#[must_use]
pub fn validate_primitive(path: &Path, options: &LoadOptions) -> LoadedDocument {
    read_file(path, options, ExpectedDocument::Primitive)
}

/// Reads the file of a Policy. The policy is absent if and only if there is an error. [`LoadedDocument::kind`] names the kind of any file.
#[must_use]
pub fn load_policy(path: &Path, options: &LoadOptions) -> (LoadedDocument, Option<Policy>) {
    load_primitive(path, options, Kind::Policy)
}

/// Reads the file of a Sandbox. The sandbox is absent if and only if there is an error. [`LoadedDocument::kind`] names the kind of any file.
#[must_use]
pub fn load_sandbox(path: &Path, options: &LoadOptions) -> (LoadedDocument, Option<Sandbox>) {
    load_primitive(path, options, Kind::Sandbox)
}

/// Reads the file of an Identity. The identity is absent if and only if there is an error. [`LoadedDocument::kind`] names the kind
/// of any file.
#[must_use]
pub fn load_identity(path: &Path, options: &LoadOptions) -> (LoadedDocument, Option<Identity>) {
    load_primitive(path, options, Kind::Identity)
}

fn load_primitive<P: DeserializeOwned>(
    path: &Path,
    options: &LoadOptions,
    kind: Kind,
) -> (LoadedDocument, Option<P>) {
    let mut found = None;
    let loaded = read_file_with(path, options, ExpectedDocument::Primitive, |reader| {
        found = reader
            .typed_primitives::<P>(kind)
            .and_then(|all| all.into_iter().next());
    });
    let found = found.filter(|_| loaded.is_valid());
    (loaded, found)
}

/// Reads a manifest from the wire: an object, or the `claw://registry/…` URI of a manifest (R3, R3a).
#[must_use]
pub fn from_value(value: &Value, options: &WireOptions) -> LoadedDocument {
    let loader = ManifestFileLoader::new(
        options.root.as_deref(),
        options.allow_outside,
        options.registries.clone(),
    );
    let mut reader = match loader {
        Ok(loader) => ManifestReader::new(loader, options.judge),
        Err(refusal) => return refused_document(refusal, None),
    };
    if let Value::String(text) = value {
        return from_uri(text, options, reader);
    }
    reader.open_wire();
    let Some(root) = Node::from_json(value) else {
        let error = Diagnostic::error("too-deep", "", "the manifest is nested too deep");
        return LoadedDocument {
            manifest: None,
            diagnostics: vec![error],
            sources: SourceFiles::default(),
            kind: None,
            about: DocumentDescription::default(),
        };
    };
    load_document(reader, &root, true, ExpectedDocument::Claw, |_| {})
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedDocument {
    Claw,
    Primitive,
    Any,
}

fn from_uri(text: &str, options: &WireOptions, reader: ManifestReader) -> LoadedDocument {
    let found = match ClawUri::parse_canonical(text) {
        Ok(ClawUri::Registry {
            namespace,
            name,
            version,
        }) => reader.loader.find_registered(&namespace, &name, &version),
        Ok(ClawUri::Local { .. }) => Err(FileRefusal {
            code: "bad-uri",
            message: "a local URI names a part of a manifest, not a manifest".to_owned(),
            help: Some("send the manifest itself, or a `claw://registry/…` URI".to_owned()),
        }),
        Err(error) => Err(FileRefusal {
            code: "bad-uri",
            message: error.to_string(),
            help: None,
        }),
    };
    match found {
        Err(refusal) => refused_document(refusal, None),
        Ok(found) => {
            let options = LoadOptions {
                allow_outside: false,
                registries: options.registries.clone(),
                judge: options.judge,
            };
            load_manifest(&found.path, &options)
        }
    }
}

/// The cure for a path that leads nowhere: what lies there instead.
fn manifests_beside(dir: &Path) -> String {
    let is_yaml = |path: &Path| {
        let ending = path.extension().and_then(std::ffi::OsStr::to_str);
        matches!(ending, Some("yaml" | "yml")) || path.join("claw.yaml").is_file()
    };
    let Ok(entries) = std::fs::read_dir(dir) else {
        return format!("there is no folder `{}` either; check the path", dir.display());
    };
    // silent-ok: an entry that can't be read is not offered
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| is_yaml(path))
        .filter_map(|path| Some(format!("`{}`", path.file_name()?.to_string_lossy())))
        .collect();
    names.sort();
    names.truncate(5);
    match names.is_empty() {
        true => "check the path, or write an agent: `clawk init DIR`".to_owned(),
        false => format!("check the path; beside it: {}", names.join(", ")),
    }
}

fn refused_document(refusal: FileRefusal, file: Option<&Path>) -> LoadedDocument {
    let mut error = Diagnostic::error(refusal.code, "", refusal.message);
    error.help = refusal.help;
    error.file = file.map(Path::to_owned);
    LoadedDocument {
        manifest: None,
        diagnostics: vec![error],
        sources: SourceFiles::default(),
        kind: None,
        about: DocumentDescription::default(),
    }
}

fn read_file(path: &Path, options: &LoadOptions, wanted: ExpectedDocument) -> LoadedDocument {
    read_file_with(path, options, wanted, |_| {})
}

/// Reads a file. `last` is called with the reader of a single primitive that has no errors so far.
fn read_file_with(
    path: &Path,
    options: &LoadOptions,
    wanted: ExpectedDocument,
    last: impl FnOnce(&mut ManifestReader),
) -> LoadedDocument {
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let canonical = match std::fs::canonicalize(path) {
        Ok(canonical) => canonical,
        Err(error) => {
            let refusal = if error.kind() == std::io::ErrorKind::NotFound {
                FileRefusal {
                    code: "file-not-found",
                    message: format!("`{}` does not exist", path.display()),
                    help: Some(manifests_beside(dir)),
                }
            } else {
                FileRefusal {
                    code: "unreadable",
                    message: format!("`{}` cannot be read: {error}", path.display()),
                    help: None,
                }
            };
            return refused_document(refusal, None);
        }
    };
    let loader = ManifestFileLoader::new(Some(dir), options.allow_outside, options.registries.clone());
    let mut reader = match loader {
        Ok(loader) => ManifestReader::new(loader, options.judge),
        Err(refusal) => return refused_document(refusal, Some(path)),
    };
    match reader.open_file(&ResolvedFile {
        path: canonical,
        shown: path.to_owned(),
    }) {
        Err(refusal) => refused_document(refusal, Some(path)),
        Ok(Some(root)) => load_document(reader, &root, false, wanted, last),
        Ok(None) => finish_document(reader, None, None),
    }
}

fn load_document(
    mut reader: ManifestReader,
    root: &Node,
    wire: bool,
    wanted: ExpectedDocument,
    last: impl FnOnce(&mut ManifestReader),
) -> LoadedDocument {
    let Some(findings) = reader.files.first_mut() else {
        return finish_document(reader, None, None);
    };
    let Some(envelope) = envelope::read(root, wire, findings) else {
        return finish_document(reader, None, None);
    };
    reader.about = DocumentDescription::from_metadata(envelope.metadata);
    match (envelope.kind, wanted) {
        (Some(DocumentKind::Claw), ExpectedDocument::Claw | ExpectedDocument::Any) => {
            read_claw(reader, &envelope)
        }
        (Some(DocumentKind::Primitive(kind)), ExpectedDocument::Primitive | ExpectedDocument::Any) => {
            if let Some(spec) = envelope.spec {
                read_primitive(&mut reader, kind, spec, &envelope);
                last(&mut reader);
            }
            finish_document(reader, None, Some(kind.title()))
        }
        (Some(DocumentKind::Primitive(kind)), ExpectedDocument::Claw) => {
            let message = format!("this is a {kind}, and a whole manifest (`kind: Claw`) belongs here");
            findings.push(
                Diagnostic::error("kind-mismatch", "/kind", message)
                    .at_node(root.get("kind").unwrap_or(root)),
            );
            finish_document(reader, None, Some(kind.title()))
        }
        (Some(DocumentKind::Claw), ExpectedDocument::Primitive) => {
            let message = "this is a whole manifest, and a primitive belongs here";
            findings.push(
                Diagnostic::error("kind-mismatch", "/kind", message)
                    .at_node(root.get("kind").unwrap_or(root)),
            );
            finish_document(reader, None, Some("Claw"))
        }
        (None, _) => finish_document(reader, None, None),
    }
}

fn read_primitive(reader: &mut ManifestReader, kind: Kind, spec: &Node, envelope: &Envelope<'_>) {
    let name = envelope
        .metadata
        .and_then(|metadata| metadata.get("name"))
        .and_then(Node::text);
    let given = PrimitiveMetadata {
        name: name.unwrap_or("unnamed").to_owned(),
        generated: name.is_none(),
        version: None,
        labels: serde_json::Map::new(),
        place: None,
    };
    reader.add_primitive(kind, spec.clone(), "/spec", 0, envelope.is_older_version(), given);
    reader.try_build();
}

fn read_claw(mut reader: ManifestReader, envelope: &Envelope<'_>) -> LoadedDocument {
    let Some(spec) = envelope.spec else {
        return finish_document(reader, None, Some("Claw"));
    };
    reader.read_claw(envelope.metadata, spec, envelope.is_older_version());
    CrossPrimitiveCheck {
        primitives: &reader.primitives,
        files: &mut reader.files,
    }
    .check_all(&reader.pending);
    let claw = envelope.claw.clone().unwrap_or(Version::new(0, 3, 0));
    let metadata = read_metadata(envelope.metadata, &mut reader);
    let broken = reader
        .files
        .iter()
        .flat_map(|file| &file.list)
        .any(|d| d.severity == Severity::Error);
    let manifest = if broken {
        None
    } else {
        build_manifest(&mut reader, claw, metadata)
    };
    finish_document(reader, manifest, Some("Claw"))
}

fn read_metadata(node: Option<&Node>, reader: &mut ManifestReader) -> Metadata {
    let text = |key: &str| {
        node.and_then(|node| node.get(key))
            .and_then(Node::text)
            .map(str::to_owned)
    };
    let map = |key: &str| {
        node.and_then(|node| node.get(key))
            .and_then(Node::entries)
            .map(members_to_json)
            .unwrap_or_default()
    };
    let annotations = map("annotations");
    let heartbeat = annotations.get("heartbeat_interval_ms");
    let heartbeat_interval_ms = heartbeat.and_then(Value::as_u64).filter(|interval| *interval > 0);
    if heartbeat.is_some() && heartbeat_interval_ms.is_none() {
        let at = "/metadata/annotations/heartbeat_interval_ms";
        let place = node.and_then(|node| node.get("annotations")?.get("heartbeat_interval_ms")?.place);
        let warning = Diagnostic::warning(
            "bad-heartbeat",
            at,
            "no whole number above 0; the default of 30 seconds holds",
        );
        if let Some(findings) = reader.files.first_mut() {
            findings.push(warning.with_location(place));
        }
    }
    let labels = map("labels")
        .into_iter()
        .filter_map(|(key, value)| Some((key, value.as_str()?.to_owned())));
    Metadata {
        name: text("name").unwrap_or_default(),
        version: text("version"),
        description: text("description"),
        labels: labels.collect(),
        annotations,
        heartbeat_interval_ms,
    }
}

/// Builds the typed manifest from primitives without errors.
fn build_manifest(reader: &mut ManifestReader, claw: Version, metadata: Metadata) -> Option<Manifest> {
    let dir = reader.loader.dir().map(Path::to_owned).unwrap_or_default();
    let mut sandboxes = reader.typed_primitives(Kind::Sandbox)?.into_iter();
    Some(Manifest {
        claw,
        metadata,
        identity: reader.typed_primitives(Kind::Identity)?.into_iter().next()?,
        providers: reader.typed_primitives(Kind::Provider)?,
        channels: reader.typed_primitives(Kind::Channel)?,
        tools: reader.typed_primitives(Kind::Tool)?,
        skills: reader.typed_primitives(Kind::Skill)?,
        memory: reader.typed_primitives(Kind::Memory)?.into_iter().next(),
        world_models: reader.typed_primitives(Kind::WorldModel)?,
        sandbox: sandboxes.next(),
        further_sandboxes: sandboxes.collect(),
        policies: reader.typed_primitives(Kind::Policy)?,
        swarm: reader.typed_primitives(Kind::Swarm)?.into_iter().next(),
        telemetry: reader.typed_primitives(Kind::Telemetry)?.into_iter().next(),
        dir,
    })
}

fn typed_primitive<T: DeserializeOwned>(primitive: &UntypedPrimitive) -> Result<T, Box<Diagnostic>> {
    let members: Vec<&str> = spec_of(primitive.kind)
        .fields
        .iter()
        .map(|field| field.name)
        .collect();
    serde_json::from_value(primitive.to_json(&members)).map_err(|error| {
        let message = format!("this {} cannot be read: {error}", primitive.kind);
        Box::new(
            Diagnostic::error("unreadable-primitive", primitive.pointer.clone(), message)
                .with_location(primitive.place),
        )
    })
}

impl ManifestReader {
    /// All primitives of a kind as typed values. `None`, with findings, if deserialization finds an error that the checks missed.
    fn typed_primitives<T: DeserializeOwned>(&mut self, kind: Kind) -> Option<Vec<T>> {
        let mut out = Vec::new();
        for primitive in self.primitives.iter().filter(|primitive| primitive.kind == kind) {
            match typed_primitive(primitive) {
                Ok(value) => out.push(value),
                Err(error) => {
                    if let Some(findings) = self.files.get_mut(primitive.file) {
                        findings.push(*error);
                    }
                    return None;
                }
            }
        }
        Some(out)
    }

    /// Deserializes the only primitive of a file, to report errors that only this finds.
    fn try_build(&mut self) {
        use crate::model as m;
        let clean = self
            .files
            .iter()
            .all(|file| file.list.iter().all(|d| d.severity == Severity::Warning));
        let Some(kind) = self
            .primitives
            .first()
            .map(|primitive| primitive.kind)
            .filter(|_| clean)
        else {
            return;
        };
        let _ = match kind {
            Kind::Identity => self.typed_primitives::<m::Identity>(kind).is_some(),
            Kind::Provider => self.typed_primitives::<m::Provider>(kind).is_some(),
            Kind::Channel => self.typed_primitives::<m::Channel>(kind).is_some(),
            Kind::Tool => self.typed_primitives::<m::Tool>(kind).is_some(),
            Kind::Skill => self.typed_primitives::<m::Skill>(kind).is_some(),
            Kind::Memory => self.typed_primitives::<m::Memory>(kind).is_some(),
            Kind::Sandbox => self.typed_primitives::<m::Sandbox>(kind).is_some(),
            Kind::Policy => self.typed_primitives::<m::Policy>(kind).is_some(),
            Kind::Swarm => self.typed_primitives::<m::Swarm>(kind).is_some(),
            Kind::Telemetry => self.typed_primitives::<m::Telemetry>(kind).is_some(),
            Kind::WorldModel => self.typed_primitives::<m::WorldModel>(kind).is_some(),
        };
    }
}

fn finish_document(
    reader: ManifestReader,
    manifest: Option<Manifest>,
    kind: Option<&'static str>,
) -> LoadedDocument {
    let mut diagnostics = Vec::new();
    for FileFindings { mut list, .. } in reader.files {
        list.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        diagnostics.append(&mut list);
    }
    let broken = diagnostics
        .iter()
        .any(|diagnostic| diagnostic.severity == Severity::Error);
    LoadedDocument {
        manifest: manifest.filter(|_| !broken),
        diagnostics,
        sources: reader.sources,
        kind,
        about: reader.about,
    }
}
