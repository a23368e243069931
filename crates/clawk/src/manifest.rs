//! Reading a manifest for a verb that needs a valid one.

use std::path::Path;

use anyhow::{Result, bail};
use clawk_manifest::{LoadOptions, Manifest, Severity, load, render};

use crate::config::Config;
use crate::out::{self, Paint};

/// The manifest, and where to read of its warnings, if it has any.
///
/// # Errors
/// It is invalid; every finding has been shown on standard error.
pub(crate) fn read(path: &Path, config: &Config) -> Result<(Manifest, Option<String>)> {
    let options = LoadOptions {
        registries: config.settings.registries.clone(),
        ..LoadOptions::default()
    };
    let loaded = load(path, &options);
    let count = |severity| {
        loaded
            .diagnostics
            .iter()
            .filter(|found| found.severity == severity)
            .count()
    };
    let Some(manifest) = loaded.manifest else {
        out::note(render(&loaded.diagnostics, &loaded.sources, Paint::stderr().is_on()).trim_end());
        let (errors, plural) = match count(Severity::Error) {
            1 => (1, ""),
            errors => (errors, "s"),
        };
        bail!("`{}` is not valid: {errors} error{plural}", path.display());
    };
    let warnings = count(Severity::Warning);
    let warning = (warnings > 0).then(|| {
        format!(
            "{warnings} warnings; `clawk validate {}` shows them",
            path.display()
        )
    });
    Ok((manifest, warning))
}
