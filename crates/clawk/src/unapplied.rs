//! What a manifest declares and this version does not apply: said, so that nobody relies on it.

use clawk_manifest::model::{BusBackend, ChannelType, SandboxLevel};
use clawk_manifest::{Diagnostic, Manifest};

/// One warning for each part that is read and has no effect here.
pub(crate) fn of(manifest: &Manifest) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if let Err(reason) = clawk_policy::Screen::compile(&manifest.policies) {
        found.push(Diagnostic::warning(
            "unserved-screening",
            "/spec/policies",
            format!("the agent will not start: {reason}"),
        ));
    }
    for channel in manifest
        .channels
        .iter()
        .filter(|channel| channel.kind != ChannelType::Cli)
    {
        found.push(warning(
            "/spec/channels",
            format!("the channel `{}`: only the terminal is served", channel.name),
        ));
    }
    let stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
    for store in stores.filter(|store| store.embedding.is_some()) {
        found.push(warning(
            "/spec/memory",
            format!(
                "`embedding` of the store `{}`: it is searched by words",
                store.name
            ),
        ));
    }
    if !manifest.world_models.is_empty() {
        found.push(warning(
            "/spec/world_models",
            "world models: no skill asks them".to_owned(),
        ));
    }
    if manifest.telemetry.is_some() {
        found.push(warning(
            "/spec/telemetry",
            "telemetry: nothing is exported; the trace has every event".to_owned(),
        ));
    }
    if let Some(swarm) = manifest
        .swarm
        .as_ref()
        .filter(|swarm| swarm.coordination.backend != BusBackend::InProcess)
    {
        let text = format!(
            "the bus `{}` of the swarm: peers run in this process",
            swarm.coordination.backend
        );
        found.push(warning("/spec/swarm", text));
    }
    let open = |tool| {
        let sandbox = manifest.sandbox_of(tool);
        sandbox.is_some_and(|sandbox| sandbox.level == SandboxLevel::None)
    };
    if manifest.tools.iter().any(open) {
        found.push(
            Diagnostic::warning(
                "own-files-open",
                "/spec/sandbox",
                "at level `none` nothing keeps tools from the agent's own files: a program can rewrite this manifest, its policies or \
                 `clawk.toml` for the next start",
            )
            .help("level `process` or above keeps them; see docs/reference/sandbox.md"),
        );
    }
    found
}

fn warning(path: &str, what: String) -> Diagnostic {
    Diagnostic::warning(
        "not-applied",
        path,
        format!("read, but not applied by this version: {what}"),
    )
}
