//! What a whole manifest asks for and does not get, beyond what `coverage` says leaf by leaf.

use clawk_manifest::model::SandboxLevel;
use clawk_manifest::{Diagnostic, Manifest};

/// One warning for each.
pub(crate) fn of(manifest: &Manifest) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if let Err(reason) = clawk_policy::Screen::compile(&manifest.policies) {
        found.push(Diagnostic::warning(
            "unserved-screening",
            "/spec/policies",
            format!("the agent will not start: {reason}"),
        ));
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
