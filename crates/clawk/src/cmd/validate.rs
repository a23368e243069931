//! `clawk validate FILE`: checks a whole manifest or one primitive, and prints all findings.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clawk_manifest::{
    Diagnostic, LoadOptions, LoadedDocument, Severity, load_policy, render_diagnostics, validate_file,
};

use crate::companion::{self, PolicyTestReport};
use crate::compose::{lacks, own};
use crate::config::{AllowOutsideArgs, Config};
use crate::manifest::{about_rules, load_options};
use crate::out::{self, Format, TerminalStyle};
use crate::{build, inert_parts, trust, unapplied};

/// Flags of `clawk validate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A `claw.yaml`, or the file of one primitive
    #[arg(value_name = "FILE", default_value = ".", value_parser = crate::manifest::manifest_path_parser())]
    file: PathBuf,

    #[command(flatten)]
    outside: AllowOutsideArgs,

    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk validate claw.yaml                 everything that is wrong, with what would mend it
  clawk validate tools/search.yaml         one primitive
  clawk validate claw.yaml --format json   for scripts and editors";

/// Reads the file and prints the findings. Exit code 1: the file is not valid.
pub(crate) fn run(args: &Args, config: Option<&Path>) -> Result<ExitCode> {
    let config = Config::load(config, Some(&args.file))?.with_outside_access(args.outside);
    let loaded = check_document(&args.file, &config)?;
    let warned = loaded
        .diagnostics
        .iter()
        .any(|found| found.severity == Severity::Warning);
    let manifest = loaded.manifest.as_ref();
    let runs = manifest.map_or_else(Vec::new, |manifest| {
        trust::find_startup_programs(&config, Some(manifest))
    });
    match args.format {
        Format::Json => {
            let mut report = serde_json::to_value(loaded.report())?;
            if let Some(report) = report.as_object_mut() {
                report.insert("runs".to_owned(), serde_json::to_value(&runs)?);
            }
            out::print_json(&report)?;
        }
        Format::Human => {
            print_human(&loaded, &args.file)?;
            for entry in &runs {
                let line = format!("a start would run {}", entry.display_line());
                out::print_line(TerminalStyle::for_stdout().dim(&line))?;
            }
        }
    }
    let good = loaded.is_valid() && !(args.strict && warned);
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns all findings for a document together with this configuration.
pub(crate) fn check_document(file: &Path, config: &Config) -> Result<LoadedDocument> {
    let options = load_options(config);
    let mut loaded = validate_file(file, &options);
    check_mounts(&mut loaded, file, config)?;
    check_policies(&mut loaded, file, (&options, config));
    if let Some(manifest) = &loaded.manifest {
        let absent = build::missing_from_build(manifest, &config.settings);
        // What the build lacks is an error already; the machine's word for the same says no more.
        let missing = lacks::find_missing(manifest, config)
            .into_iter()
            .filter(|found| absent.is_empty() || !found.message.contains("--features "));
        let missing: Vec<_> = missing.collect();
        loaded.diagnostics.extend(missing);
        loaded.diagnostics.extend(absent);
    }
    Ok(loaded)
}

/// Adds findings for writable mounts of a folder that a start reads, and for stores that are open to everybody.
fn check_mounts(loaded: &mut LoadedDocument, file: &Path, config: &Config) -> Result<()> {
    let Some(manifest) = &loaded.manifest else {
        return Ok(());
    };
    let workdir = config.settings.workdir.as_ref().unwrap_or(&manifest.dir);
    let workdir = std::path::absolute(if workdir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        workdir
    })?;
    let own = own::collect_runtime_files(file, &loaded.sources, config, manifest, &workdir)?;
    for text in own::denied_in_vain(config, manifest, &workdir) {
        let warning = Diagnostic::warning("denied-path-unknown", "/spec/sandbox", text);
        loaded.diagnostics.push(warning);
    }
    loaded
        .diagnostics
        .extend(inert_parts::inert_part_warnings(manifest, &workdir));
    for text in config.settings.memory.open_to_all() {
        loaded
            .diagnostics
            .push(Diagnostic::warning("memory-across-senders", "/spec/memory", text));
    }
    if let Err(error) = own::check_mounts(config, manifest, &own.files, &workdir) {
        let error = Diagnostic::error("own-files-mount", "/spec/sandbox", error.to_string());
        loaded.diagnostics.push(error);
    }
    Ok(())
}

/// Adds findings for the rules of a valid document: rules that never decide, and failed policy tests.
fn check_policies(loaded: &mut LoadedDocument, file: &Path, (options, config): (&LoadOptions, &Config)) {
    let found = match &loaded.manifest {
        Some(manifest) => {
            let mut found = about_rules(&manifest.policies, &loaded.sources);
            found.extend(unapplied::unapplied_warnings(manifest, &config.settings));
            found
        }
        None if loaded.is_valid() && loaded.kind == Some("Policy") => {
            let (_, lone) = load_policy(file, options);
            about_rules(lone.as_slice(), &loaded.sources)
        }
        None => return,
    };
    loaded.diagnostics.extend(found);
    match companion::of_manifest(loaded) {
        Ok(reports) => loaded
            .diagnostics
            .extend(reports.iter().flat_map(failure_diagnostics)),
        Err(error) => {
            let error = Diagnostic::error("policy-tests", "", format!("{error:#}"));
            loaded
                .diagnostics
                .push(error.with_help("docs/how-to/policies.md shows the format"));
        }
    }
    if !loaded.is_valid() {
        loaded.manifest = None;
    }
}

fn failure_diagnostics(report: &PolicyTestReport) -> impl Iterator<Item = Diagnostic> {
    report.failures.iter().map(|failure| {
        let message = format!(
            "{}: expected {}, got {}",
            failure.case, failure.expected, failure.got
        );
        let mut error = Diagnostic::error("policy-test-failed", "", message);
        error.file = Some(report.tests.clone());
        error.with_help(format!(
            "`clawk policy test {}` says why",
            report.policy.display()
        ))
    })
}

fn print_human(loaded: &LoadedDocument, file: &Path) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    if !loaded.diagnostics.is_empty() {
        out::lines(&render_diagnostics(
            &loaded.diagnostics,
            &loaded.sources,
            paint.is_on(),
        ))?;
    }
    let name = out::one_line(&file.display().to_string());
    if !loaded.is_valid() {
        return Ok(out::print_line(format!("{name} is not valid"))?);
    }
    let report = loaded.report();
    let able = report.about.capabilities.join(", ");
    let Some(level) = report.conformance_level else {
        let kind = report.kind.unwrap_or("primitive");
        return Ok(out::print_line(format!("{name} is a valid {kind}"))?);
    };
    out::print_line(format!(
        "{name} is valid: conformance {level} with {}",
        report.primitives.join(", ")
    ))?;
    for text in report
        .about
        .description
        .iter()
        .chain((!able.is_empty()).then_some(&able))
    {
        out::lines(&paint.dim(&out::sanitize_block(text)))?;
    }
    if let Some(missing) = report.missing_for_next {
        let text = format!("for {} it needs {}", missing.level, missing.primitives.join(", "));
        out::print_line(paint.dim(&text))?;
    }
    Ok(())
}
