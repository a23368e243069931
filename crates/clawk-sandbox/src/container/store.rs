//! Exports an image from the store of docker or podman, with their command line, as an OCI layout, which is then used like any
//! other. The engine starts nothing: the runtime that an engine would use runs clawk's own bundle, so the engine's defaults have no
//! effect.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archive;
use super::image::create_private_folder;
use crate::launch::{LaunchOutcome, Launcher, Spec};
use clawk_plan::level::Level;
use clawk_plan::plan::MINIMAL_PATH;
use clawk_plan::plan::{Limits, Plan, PlanDefaults};

/// The time limit for a question to an engine, in milliseconds. It is long because images are large.
const ASK_MS: u64 = 20_000;
const SAVE_MS: u64 = 600_000;

/// How many bytes of an engine's output are kept.
const SAID_BYTES: u64 = 16 << 10;

/// An engine and one of its images.
#[derive(Debug)]
pub(super) struct EngineImage<'a> {
    /// `docker` or `podman`, as a name or a full path.
    pub(super) engine: &'a str,
    /// The image's name in the engine.
    pub(super) image: &'a str,
    /// The required image id, if any.
    pub(super) id: Option<&'a str>,
    /// The maximum size of the export, in bytes.
    pub(super) max_bytes: u64,
}

/// The image's layout below `cache`. It is exported unless it is there already.
pub(super) async fn ensure_layout(
    launcher: &Launcher,
    stored: &EngineImage<'_>,
    cache: &Path,
) -> Result<PathBuf, String> {
    if stored.image.is_empty() || stored.image.starts_with('-') {
        return Err(format!("`{}` is not a valid name of an image", stored.image));
    }
    let id = id(launcher, stored).await?;
    if let Some(wanted) = stored.id
        && wanted != format!("sha256:{id}")
    {
        return Err(format!("`{}` is `sha256:{id}` and not `{wanted}`", stored.image));
    }
    let home = cache.join(&id);
    if home.is_dir() {
        return Ok(home);
    }
    create_private_folder(cache).map_err(|error| error.to_string())?;
    // Exported beside its final place and then renamed.
    let work = ExportFolder(cache.join(format!(".{}", crate::container::fresh_name())));
    create_private_folder(&work.0).map_err(|error| error.to_string())?;
    let archive = work.0.join("image.tar");
    let outcome = run_engine(
        launcher,
        stored,
        &save_command(stored.engine, &archive, &id),
        SAVE_MS,
    )
    .await?;
    if !outcome.is_success() {
        return Err(engine_failure_text(stored, &outcome));
    }
    let unpacked = work.0.join("layout");
    let (max, into, named) = (stored.max_bytes, unpacked.clone(), id.clone());
    tokio::task::spawn_blocking(move || archive::extract_layout(&archive, &into, &named, max))
        .await
        .map_err(|error| error.to_string())?
        .map_err(|error| format!("what `{}` gave: {error}", stored.engine))?;
    match fs::rename(&unpacked, &home) {
        Ok(()) => Ok(home),
        Err(_) if home.is_dir() => Ok(home), // silent-ok: another agent was quicker
        Err(error) => Err(error.to_string()),
    }
}

/// The image's id in the store, which identifies its content. The export uses the id, so the name may change its meaning in
/// between.
async fn id(launcher: &Launcher, stored: &EngineImage<'_>) -> Result<String, String> {
    let words = ["image", "inspect", "--format", "{{.Id}}", stored.image];
    let outcome = run_engine(launcher, stored, &words.map(str::to_owned), ASK_MS).await?;
    let text = String::from_utf8_lossy(&outcome.stdout);
    let id = text.trim();
    let id = id.strip_prefix("sha256:").unwrap_or(id);
    let whole = id.len() == 64 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if outcome.is_success() && whole {
        Ok(id.to_owned())
    } else {
        Err(engine_failure_text(stored, &outcome))
    }
}

/// The command line that exports the image as one archive.
pub(super) fn save_command(engine: &str, archive: &Path, id: &str) -> Vec<String> {
    let podman = Path::new(engine)
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("podman"));
    let archive = archive.to_string_lossy().into_owned();
    let words: &[&str] = match podman {
        true => &["image", "save", "--quiet", "--format", "oci-archive", "--output"],
        false => &["image", "save", "--output"],
    };
    let words = words.iter().map(|word| (*word).to_owned());
    words.chain([archive, id.to_owned()]).collect()
}

fn engine_failure_text(stored: &EngineImage<'_>, outcome: &LaunchOutcome) -> String {
    let said = String::from_utf8_lossy(&outcome.stderr);
    let said: String = said.trim().chars().take(300).collect();
    match &outcome.limit {
        Some(limit) => format!("`{}` was {limit}", stored.engine),
        None => format!("`{}` does not give `{}`: {said}", stored.engine, stored.image),
    }
}

/// Runs the engine, which is a program of the operator: without isolation, but with limits on time and output.
async fn run_engine(
    launcher: &Launcher,
    stored: &EngineImage<'_>,
    words: &[String],
    timeout_ms: u64,
) -> Result<LaunchOutcome, String> {
    let limits = Limits {
        timeout_ms,
        max_output_bytes: SAID_BYTES,
        memory_mb: 4096,
        max_processes: 1024,
        max_open_files: 65_536,
        ..Limits::default()
    };
    let plan = Plan::for_undeclared(&PlanDefaults::default())
        .at_level(Level::None)
        .with_limits(limits);
    let mut spec = Spec::new(stored.engine, Arc::new(plan));
    spec.args = words.to_vec();
    spec.env = engine_environment();
    let running = Box::pin(launcher.launch(&spec));
    running.await.map_err(|error| error.to_string())
}

/// The environment by which an engine finds this user's store. Nothing else of the agent's environment is passed.
fn engine_environment() -> Vec<(String, String)> {
    let user = nix::unistd::geteuid();
    let mut env = vec![("PATH".to_owned(), MINIMAL_PATH.to_owned())];
    if let Ok(Some(about)) = nix::unistd::User::from_uid(user) {
        env.push(("HOME".to_owned(), about.dir.to_string_lossy().into_owned()));
    }
    if !user.is_root() {
        env.push(("XDG_RUNTIME_DIR".to_owned(), format!("/run/user/{user}")));
    }
    env
}

/// A temporary folder. Dropping it removes it with its content.
struct ExportFolder(PathBuf);

impl Drop for ExportFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // silent-ok: what is left has a name of its own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_is_asked_in_its_own_words() {
        let words = |engine: &str| save_command(engine, Path::new("/c/image.tar"), "abc").join(" ");
        assert_eq!(words("docker"), "image save --output /c/image.tar abc");
        assert_eq!(
            words("/usr/bin/podman"),
            "image save --quiet --format oci-archive --output /c/image.tar abc"
        );
    }
}
