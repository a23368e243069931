//! The identity of a state: an id that lives in its directory, and the manifest that it belongs to. A manifest that was moved or
//! copied finds its state by them, or a person is asked; it never begins with an empty state unnoticed (ADR 0355).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::time::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Origin, state_home};
use crate::out;
use crate::terminal::{can_ask, input};

/// File in a default state directory that names the manifest it belongs to.
const OWNER: &str = "manifest";
/// File in a state directory with the agent's id and name.
const IDENTITY: &str = "agent.json";
/// The lock of a state directory, which its process holds.
const LOCK: &str = "lock";
/// Hexadecimal digits behind the name of a second state of one name.
const SUFFIX_DIGITS: usize = 8;

/// Which agent a state directory belongs to. It goes along when the directory is moved, backed up or restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StateIdentity {
    /// Random, made with the state.
    pub(crate) id: Uuid,
    /// The agent's name.
    pub(crate) agent: String,
}

impl StateIdentity {
    /// Reads the identity; `None`: an earlier version made the directory, or there is none.
    ///
    /// # Errors
    /// The file can't be read.
    pub(crate) fn read_from(dir: &Path) -> Result<Option<Self>> {
        let file = dir.join(IDENTITY);
        match read_small_file(&file)? {
            Some(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .with_context(|| format!("`{}` is not valid", file.display())),
            None => Ok(None),
        }
    }

    /// Returns the identity, and makes it if the directory has none.
    ///
    /// # Errors
    /// The file can't be read or written.
    pub(crate) fn ensure_in(dir: &Path, agent: &str) -> Result<Self> {
        if let Some(known) = Self::read_from(dir)? {
            return Ok(known);
        }
        let made = Self {
            id: SystemClock::default().new_uuid(),
            agent: agent.to_owned(),
        };
        write_once(dir, IDENTITY, &serde_json::to_vec(&made)?)?;
        Ok(Self::read_from(dir)?.unwrap_or(made))
    }

    /// Writes the identity in the place of the one that is there.
    ///
    /// # Errors
    /// The file can't be written.
    pub(crate) fn replace_in(&self, dir: &Path) -> Result<()> {
        replace_file(dir, IDENTITY, &serde_json::to_vec(self)?)
    }
}

/// A state in the folder of all default states.
#[derive(Debug, Clone)]
pub(crate) struct KnownState {
    pub(crate) dir: PathBuf,
    /// The agent's name: its identity's, else that of the directory.
    pub(crate) agent: String,
    /// Its id; `None`: an earlier version made it, and it has not been started since.
    pub(crate) id: Option<Uuid>,
    /// The manifest that it belongs to; `None`: an earlier version made it.
    pub(crate) owner: Option<OsString>,
}

impl KnownState {
    /// Returns the manifest's path, if the state belongs to a file.
    pub(crate) fn manifest(&self) -> Option<&Path> {
        let path = Path::new(self.owner.as_deref()?);
        path.is_absolute().then_some(path)
    }

    /// Returns the manifest in words, and whether it is still there.
    pub(crate) fn describe_owner(&self) -> String {
        match (self.manifest(), &self.owner) {
            (Some(path), _) if path.is_file() => format!("of `{}`", out::one_line(&path.to_string_lossy())),
            (Some(path), _) => format!("of `{}`, which is gone", out::one_line(&path.to_string_lossy())),
            (None, Some(owner)) => format!("of a client ({})", out::one_line(&owner.to_string_lossy())),
            (None, None) => "of an earlier version".to_owned(),
        }
    }
}

/// Lists the states in the folder of all default states, by name.
///
/// # Errors
/// An identity can't be read.
pub(crate) fn known_states() -> Result<Vec<KnownState>> {
    let home = state_home()?;
    let entries = match fs::read_dir(&home) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("can't look at `{}`", home.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // Hidden folders are the unfinished parts of a move or of a restore.
        if !entry.file_type()?.is_dir() || name.to_string_lossy().starts_with('.') {
            continue;
        }
        let dir = entry.path();
        let (identity, owner) = (StateIdentity::read_from(&dir)?, owner_of(&dir)?);
        found.push(KnownState {
            agent: identity.as_ref().map_or_else(
                || name.to_string_lossy().into_owned(),
                |known| known.agent.clone(),
            ),
            id: identity.map(|known| known.id),
            dir,
            owner,
        });
    }
    found.sort_by(|a, b| a.dir.cmp(&b.dir));
    Ok(found)
}

/// Returns the states that may be those of this manifest, which has none of its own: one of its name whose manifest is gone (moved)
/// or is the same text (copied), and one of the same manifest under another name (renamed).
///
/// # Errors
/// The states can't be listed.
pub(super) fn doubtful_states(agent: &str, origin: &Origin) -> Result<Vec<KnownState>> {
    let Origin::File(path) = origin else {
        return Ok(Vec::new());
    };
    let owner = origin.owner();
    let own_text = fs::read(path).ok(); // silent-ok: a manifest that can't be read is no copy; its loader says what is wrong
    let mut found = known_states()?;
    found.retain(|state| {
        if state.owner.as_ref() == Some(&owner) {
            return state.agent != agent;
        }
        let same_name = state.agent == agent
            || state.id.is_none() && is_second_name(state.dir.file_name().unwrap_or_default(), agent);
        let Some(other) = state.manifest().filter(|_| same_name) else {
            return false;
        };
        // silent-ok: a manifest that can't be read is gone
        let text = fs::read(other).ok();
        text.is_none() || text == own_text
    });
    found.retain(|state| super::kept::holds_state(&state.dir));
    Ok(found)
}

/// Whether the directory's name is the agent's with the digits that a second state of one name gets.
fn is_second_name(dir: &OsStr, agent: &str) -> bool {
    let name = dir.to_string_lossy();
    name.strip_prefix(agent)
        .and_then(|rest| rest.strip_prefix('-'))
        .is_some_and(|rest| rest.len() == SUFFIX_DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns the state in the folder of all default states that was adopted for this manifest, under whatever name.
///
/// # Errors
/// The states can't be listed.
pub(super) fn adopted_state(agent: &str, owner: &OsStr) -> Result<Option<PathBuf>> {
    let adopted = |state: &KnownState| state.agent == agent && state.owner.as_deref() == Some(owner);
    Ok(known_states()?.into_iter().find(adopted).map(|state| state.dir))
}

/// What a person wants with a manifest that may have a state already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StateChoice {
    /// It is this agent: the state now belongs to this manifest.
    Adopt(PathBuf),
    /// It is another agent: it begins with an empty state.
    BeginNew,
}

/// Says which states there are, and how to say what is wanted.
pub(super) fn describe_doubt(agent: &str, origin: &Origin, states: &[KnownState]) -> String {
    let lines: Vec<String> = states
        .iter()
        .map(|state| format!("`{}` {}", state.dir.display(), state.describe_owner()))
        .collect();
    let dir = states.first().map(|state| state.dir.display().to_string());
    format!(
        "the agent `{agent}` of `{origin}` has no state yet, and there may be one: {}; if it is the same agent, `clawk state adopt {} \
         --claw {origin}`; if it is another one, `clawk state new --claw {origin}`; nothing was started",
        lines.join("; "),
        dir.unwrap_or_default()
    )
}

/// Asks on the terminal which state the manifest has.
///
/// # Errors
/// There is no terminal, or nothing was chosen. The error says which commands decide it.
pub(super) fn ask_for_state(agent: &str, origin: &Origin, states: &[KnownState]) -> Result<StateChoice> {
    if !can_ask() {
        // A copy beside its original, such as a second checkout, gets a state of its own, and its first start says so.
        let owner = origin.owner();
        let is_copy = |state: &KnownState| {
            state.owner.as_ref() != Some(&owner) && state.manifest().is_some_and(Path::is_file)
        };
        if states.iter().all(is_copy) {
            return Ok(StateChoice::BeginNew);
        }
        bail!("{}", describe_doubt(agent, origin, states));
    }
    out::print_note(format!(
        "the agent `{}` of `{}` has no state yet, and there may be one:",
        out::one_line(agent),
        out::one_line(&origin.to_string())
    ));
    for (at, state) in (1..).zip(states) {
        out::print_note(format!(
            "  {at}  {} {}",
            out::one_line(&state.dir.to_string_lossy()),
            state.describe_owner()
        ));
    }
    let mut error = io::stderr();
    write!(
        error,
        "the number of the one that belongs to this manifest; `new`: none, begin with an empty state; Enter: stop ▸ "
    )?;
    error.flush()?;
    // Keys pressed before the question was visible do not count as an answer.
    input::discard_typed_keys().context("the terminal can't be used; say --state DIR")?;
    let mut line = String::new();
    if io::stdin().is_terminal() {
        io::stdin().lock().read_line(&mut line)?;
    } else {
        io::BufReader::new(fs::File::open("/dev/tty")?).read_line(&mut line)?;
    }
    let answer = line.trim();
    if answer == "new" {
        return Ok(StateChoice::BeginNew);
    }
    let number = answer
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_sub(1)); // silent-ok: no number is no choice
    match number.and_then(|at| states.get(at)) {
        Some(state) => Ok(StateChoice::Adopt(state.dir.clone())),
        None => bail!("{}", describe_doubt(agent, origin, states)),
    }
}

/// Makes the state belong to this manifest and name. The manifest that it belonged to has it no more.
///
/// # Errors
/// A process uses the state, or the directory can't be written.
pub(crate) fn adopt_state(dir: &Path, agent: &str, origin: &Origin) -> Result<StateIdentity> {
    refuse_running(dir)?;
    let known = StateIdentity::ensure_in(dir, agent)?;
    let renamed = StateIdentity {
        agent: agent.to_owned(),
        ..known.clone()
    };
    if renamed != known {
        renamed.replace_in(dir)?;
    }
    replace_file(dir, OWNER, origin.owner().as_encoded_bytes())?;
    Ok(renamed)
}

/// Refuses a state that a process uses.
///
/// # Errors
/// A process uses it, or its lock can't be looked at.
pub(crate) fn refuse_running(dir: &Path) -> Result<()> {
    let lock = match fs::File::open(dir.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("can't look at `{}`", dir.display())),
    };
    if lock.try_lock().is_err() {
        bail!("`{}` is in use by a running agent; stop it first", dir.display());
    }
    Ok(())
}

/// Returns the manifest that a state directory belongs to; `None`: the directory is missing, or an earlier version made it.
pub(crate) fn owner_of(dir: &Path) -> Result<Option<OsString>> {
    Ok(read_small_file(&dir.join(OWNER))?.map(OsString::from_vec))
}

/// Records the directory's owner, if there is no record yet.
pub(super) fn claim_dir(dir: &Path, owner: &OsStr) -> Result<()> {
    if owner_of(dir)?.is_none() {
        write_once(dir, OWNER, owner.as_encoded_bytes())?;
    }
    if owner_of(dir)?.is_some_and(|found| found != owner) {
        bail!(
            "another agent of this name took `{}` at the same time; start this one again",
            dir.display()
        );
    }
    Ok(())
}

fn read_small_file(file: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("can't read `{}`", file.display())),
    }
}

/// Writes a file that may be there already. If two processes start at once, one wins, and the other reads what the first wrote.
fn write_once(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (part, file) = (write_part(dir, name, bytes)?, dir.join(name));
    let linked = fs::hard_link(&part, &file);
    fs::remove_file(&part)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("can't write `{}`", file.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn replace_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (part, file) = (write_part(dir, name, bytes)?, dir.join(name));
    fs::rename(&part, &file).with_context(|| format!("can't write `{}`", file.display()))
}

fn write_part(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let part = dir.join(format!("{name}.{}", std::process::id()));
    let write = || -> io::Result<()> {
        let mut open = fs::OpenOptions::new();
        let mut out = open.write(true).create_new(true).mode(0o600).open(&part)?;
        out.write_all(bytes)?;
        out.sync_all()
    };
    write().with_context(|| format!("can't write `{}`", part.display()))?;
    Ok(part)
}
