//! `denied_paths`: an entry is a path (including everything below it) or a pattern. Sandboxes and file checks compare real paths.
//! So each entry is also resolved to its real paths on this host: through links, `..` and mount names.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};

use super::Filesystem;
use crate::preflight::path::lexical_path;

/// The maximum number of links in one path; the kernel has the same limit.
const MAX_LINKS: usize = 40;
/// A chain with more links than this is treated as a cycle.
const MAX_CHAIN: usize = 1_024;

/// For one `denied_paths` entry: how many folder entries are checked for links that match a pattern.
const MAX_ENTRIES: usize = 50_000;

/// The maximum number of rules in one plan.
const MAX_RULES: usize = 4_096;

/// The maximum number of alternatives (`{a,b}`) in one pattern.
const MAX_ALTERNATIVES: usize = 64;

/// All home folders. `~` in an entry means each of them, because the entry does not say which user it means.
const HOMES: &str = "{/root,/home/*,/Users/*}";

/// Characters that make an entry a pattern.
const SPECIAL: [char; 4] = ['*', '?', '[', '{'];

/// One `denied_paths` entry: a path (including everything below it), or a glob.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "SerializedDenied", try_from = "SerializedDenied")]
pub struct Denied {
    text: String,
    glob: Option<GlobMatcher>,
    /// The entry that this place was resolved from; `None` for an entry of the manifest.
    origin: Option<String>,
}

/// The form of a [`Denied`] that is sent between processes. A separate field marks patterns, because a path may contain pattern
/// characters.
#[derive(Clone, Serialize, Deserialize)]
struct SerializedDenied {
    text: String,
    pattern: bool,
}

impl From<Denied> for SerializedDenied {
    fn from(denied: Denied) -> Self {
        Self {
            pattern: denied.is_pattern(),
            text: denied.text,
        }
    }
}

impl TryFrom<SerializedDenied> for Denied {
    type Error = String;

    fn try_from(written: SerializedDenied) -> Result<Self, String> {
        match written.pattern {
            true => Self::try_from(written.text),
            false => Ok(Self::from_path(written.text)),
        }
    }
}

impl TryFrom<String> for Denied {
    /// The message if the pattern can't be compiled.
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let pattern = pattern_of(&text);
        if !pattern.contains(SPECIAL) {
            return Ok(Self::from_path(text));
        }
        let built = GlobBuilder::new(pattern.trim_end_matches('/'))
            .literal_separator(true)
            .build();
        let built = built
            .map_err(|error| format!("`denied_paths` entry `{text}` can't be read: {}", error.kind()))?;
        Ok(Self {
            text,
            glob: Some(built.compile_matcher()),
            origin: None,
        })
    }
}

/// The text with `~` expanded.
fn pattern_of(text: &str) -> String {
    match text.strip_prefix('~') {
        Some(below) if below.is_empty() || below.starts_with('/') => format!("{HOMES}{below}"),
        Some(_) | None => text.to_owned(),
    }
}

impl Denied {
    /// A rule that denies exactly this path and everything below it.
    #[must_use]
    pub fn from_path(path: impl AsRef<Path>) -> Self {
        Self {
            text: path.as_ref().to_string_lossy().into_owned(),
            glob: None,
            origin: None,
        }
    }

    /// The entry as written in the manifest.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The entry that leads to this place through a link, a `..` or a mount name. `None`: this is an entry of the manifest itself.
    #[must_use]
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// Returns the same rule with its fixed part replaced by `fixed`.
    pub fn with_fixed_part(&self, fixed: &Path) -> Result<Self, String> {
        match self.is_pattern() {
            true => {
                let rest = self.text.get(self.fixed_part().len()..).unwrap_or_default();
                Self::try_from(pattern_below(fixed, &[rest.to_owned()]))
            }
            false => Ok(Self::from_path(fixed)),
        }
    }

    /// Whether this entry is a pattern.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.glob.is_some()
    }

    /// Whether moving a parent folder could take a denied path out of the rule. A pattern for a last name applies everywhere, so it
    /// does not depend on the place.
    pub fn depends_on_place(&self) -> bool {
        let anywhere = self
            .text
            .strip_prefix("**/")
            .is_some_and(|last| !last.contains('/'));
        !(self.is_pattern() && anywhere)
    }

    /// The longest folder that contains all matches of a pattern, as far as the text shows. For a plain path: the whole path.
    pub fn fixed_part(&self) -> &str {
        if !self.is_pattern() {
            return &self.text;
        }
        if self.text.starts_with('~') {
            return "/";
        }
        let end = self.text.find(SPECIAL).unwrap_or(self.text.len());
        self.text
            .get(..end)
            .and_then(|fixed| fixed.rfind('/').and_then(|at| fixed.get(..=at)))
            .unwrap_or(".")
    }

    /// Whether the path is denied: it is the denied path or below it, or the glob matches the path or one of its parents.
    #[must_use]
    pub fn covers_path(&self, absolute: &Path, workdir: &Path) -> bool {
        match &self.glob {
            None => absolute.starts_with(lexical_path(workdir, Path::new(&self.text))),
            Some(glob) => absolute.ancestors().any(|part| {
                glob.is_match(part) || part.strip_prefix(workdir).is_ok_and(|below| glob.is_match(below))
            }),
        }
    }

    /// Whether something with this name exists now. A pattern always counts as existing, because a matching file may appear at any
    /// time.
    #[must_use]
    pub fn names_something(&self, base: &Path) -> bool {
        self.is_pattern() || base.join(&self.text).symlink_metadata().is_ok()
    }

    /// The real paths that this entry leads to now and that its own text does not cover.
    fn leads_to(&self, base: &Path) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        let wholes: Vec<PathBuf> = match self.is_pattern() {
            true => expand_alternatives(&pattern_of(&self.text))?,
            false => vec![self.text.clone()],
        }
        .iter()
        .map(|text| base.join(text))
        .collect();
        for whole in &wholes {
            let parts = match self.is_pattern() {
                true => DeniedPathPart::of_pattern(whole),
                false => DeniedPathPart::of_path(whole),
            };
            let mut ways = LinkWalkResults::default();
            ways.follow_walk(LinkWalk::from_root(parts))?;
            for (folder, rest) in ways.found {
                let one = match rest.is_empty() {
                    true => Self::from_path(folder),
                    false => Self::try_from(pattern_below(&folder, &rest))?,
                };
                if one.text != whole.to_string_lossy() {
                    all.push(one);
                }
            }
        }
        // A file name may look like a pattern.
        let literal = lexical_path(base, Path::new(&self.text));
        if self.is_pattern() && literal.symlink_metadata().is_ok() {
            all.push(Self::from_path(literal));
        }
        all.retain(|one| one.is_pattern() || !self.covers_path(Path::new(&one.text), base));
        Ok(all.into_iter().map(|one| self.mark_origin(one)).collect())
    }

    /// Marks `place` as resolved from this entry.
    fn mark_origin(&self, place: Self) -> Self {
        let origin = self.origin.as_ref().unwrap_or(&self.text);
        Self {
            origin: Some(origin.clone()),
            ..place
        }
    }

    /// This rule under a mount's name: the mount shows the folder `real` as `named`.
    fn in_mount(&self, real: &Path, named: &Path, base: &Path) -> Option<Self> {
        let fixed = lexical_path(base, Path::new(self.fixed_part()));
        let moved = named.join(fixed.strip_prefix(real).ok()?); // silent-ok: it lies elsewhere
        let place = self.with_fixed_part(&moved.components().collect::<PathBuf>());
        place.ok().map(|place| self.mark_origin(place)) // silent-ok: the rest was read before
    }
}

/// The pattern `rest` below `folder`. The folder's own name may contain pattern characters.
fn pattern_below(folder: &Path, rest: &[String]) -> String {
    let fixed = globset::escape(&folder.to_string_lossy());
    format!("{}/{}", fixed.trim_end_matches('/'), rest.join("/"))
}

impl Filesystem {
    /// For each rule of `denied_paths`, adds rules for the real paths that it leads to now, and for the names that mounts give to
    /// them.
    ///
    /// # Errors
    /// An entry leads to more paths than a plan can hold.
    pub(crate) fn resolve_denied(&mut self, base: &Path) -> Result<(), String> {
        if self.denied.is_empty() {
            return Ok(());
        }
        let key = |denied: &Denied| (denied.text.clone(), denied.is_pattern());
        let mut known: BTreeSet<(String, bool)> = self.denied.iter().map(key).collect();
        let mut added = Vec::new();
        for entry in self.denied.iter().filter(|entry| entry.origin.is_none()) {
            let places = entry
                .leads_to(base)
                .map_err(|fault| format!("`denied_paths` entry `{}`: {fault}", entry.text))?;
            added.extend(places.into_iter().filter(|place| known.insert(key(place))));
        }
        for (path, _) in self.shown_mounts() {
            let named = lexical_path(base, &path);
            let Ok(real) = named.canonicalize() else {
                continue; // refused when it is mounted
            };
            if real == named {
                continue;
            }
            let all = self.denied.iter().chain(&added);
            let here: Vec<Denied> = all
                .filter_map(|entry| entry.in_mount(&real, &named, base))
                .collect();
            added.extend(here.into_iter().filter(|place| known.insert(key(place))));
        }
        if self.denied.len() + added.len() > MAX_RULES {
            return Err(format!("`denied_paths` lead to more than {MAX_RULES} places"));
        }
        self.denied.extend(added);
        Ok(())
    }
}

/// One part of a path: a plain name or a pattern.
#[derive(Clone)]
enum DeniedPathPart {
    Up,
    Name(OsString),
    Pattern(String),
}

impl DeniedPathPart {
    fn of_path(path: &Path) -> VecDeque<Self> {
        let part = |part: Component<'_>| match part {
            Component::Normal(name) => Some(Self::Name(name.to_owned())),
            Component::ParentDir => Some(Self::Up),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
        };
        path.components().filter_map(part).collect()
    }

    fn of_pattern(path: &Path) -> VecDeque<Self> {
        let part = |part: Self| match part {
            Self::Name(name) if name.to_string_lossy().contains(['*', '?', '[', '\\']) => {
                Self::Pattern(name.to_string_lossy().into_owned())
            }
            part => part,
        };
        Self::of_path(path).into_iter().map(part).collect()
    }

    /// This part as pattern text. Plain names are escaped.
    fn pattern_text(&self) -> String {
        match self {
            Self::Up => "..".to_owned(),
            Self::Name(name) => name.to_string_lossy().into_owned(),
            Self::Pattern(text) => text.clone(),
        }
    }
}

/// The state of one walk through the links of this host.
#[derive(Clone)]
struct LinkWalk {
    /// The real path reached so far.
    done: PathBuf,
    ahead: VecDeque<DeniedPathPart>,
    links: usize,
    /// Whether the walk has left the place that the entry's own text covers.
    elsewhere: bool,
}

impl LinkWalk {
    fn from_root(ahead: VecDeque<DeniedPathPart>) -> Self {
        Self {
            done: PathBuf::from("/"),
            ahead,
            links: 0,
            elsewhere: true,
        }
    }
}

impl LinkWalk {
    /// Follows a link: puts the parts of its target before the remaining parts.
    fn enter_target(&mut self, target: &Path) {
        self.links += 1;
        if target.is_absolute() {
            self.done = PathBuf::from("/");
        }
        for part in DeniedPathPart::of_path(target).into_iter().rev() {
            self.ahead.push_front(part);
        }
        self.elsewhere = true;
    }

    /// Whether the links form a cycle: there are more links than any finite chain may have.
    fn never_ends(mut self) -> bool {
        while let Some(part) = self.ahead.pop_front() {
            match part {
                DeniedPathPart::Up => {
                    self.done.pop();
                }
                DeniedPathPart::Name(name) => {
                    let next = self.done.join(name);
                    match next.read_link() {
                        Ok(_) if self.links >= MAX_CHAIN => return true,
                        Ok(target) => self.enter_target(&target),
                        Err(_) => self.done = next, // silent-ok: no link
                    }
                }
                DeniedPathPart::Pattern(_) => return false,
            }
        }
        false
    }
}

/// The results of all walks of one entry.
#[derive(Default)]
struct LinkWalkResults {
    /// A real folder, and the pattern parts below it. No parts: the folder or file itself.
    found: Vec<(PathBuf, Vec<String>)>,
    looked_at: usize,
}

impl LinkWalkResults {
    fn follow_walk(&mut self, mut way: LinkWalk) -> Result<(), String> {
        while let Some(part) = way.ahead.pop_front() {
            match part {
                DeniedPathPart::Up => {
                    way.done.pop();
                    way.elsewhere = true;
                }
                DeniedPathPart::Name(name) => {
                    let next = way.done.join(name);
                    match next.read_link() {
                        Ok(target) => {
                            if !self.enter_link(&mut way, next, &target)? {
                                return Ok(());
                            }
                        }
                        Err(_) => way.done = next, // silent-ok: no link
                    }
                }
                DeniedPathPart::Pattern(text) => return self.add_pattern_matches(&way, text),
            }
        }
        match way.elsewhere {
            true => self.add_place(way.done, Vec::new()),
            false => Ok(()),
        }
    }

    /// Follows a link: the parts of its target come before the remaining parts. A link at the end is also a place itself. Returns
    /// `false` if the links form a cycle, so that nothing can be opened by this name.
    fn enter_link(&mut self, way: &mut LinkWalk, link: PathBuf, target: &Path) -> Result<bool, String> {
        if way.links >= MAX_LINKS {
            way.enter_target(target);
            return match way.clone().never_ends() {
                true => Ok(false),
                false => Err(format!("more than {MAX_LINKS} links lie on its way")),
            };
        }
        if way.ahead.is_empty() {
            self.add_place(link, Vec::new())?;
        }
        way.enter_target(target);
        Ok(true)
    }

    /// Handles a pattern part: adds the rule itself in its real folder, and follows the links that match the part. `**` is not
    /// walked here, because a sandbox searches its mounts for matches.
    fn add_pattern_matches(&mut self, way: &LinkWalk, text: String) -> Result<(), String> {
        if way.ahead.iter().any(|part| matches!(part, DeniedPathPart::Up)) {
            return Err("`..` behind a pattern leads nowhere that can be known".to_owned());
        }
        let fits = Denied::try_from(format!("/{text}"))?;
        let recursive = text.contains("**");
        if way.elsewhere {
            let rest = way.ahead.iter().map(DeniedPathPart::pattern_text);
            self.add_place(way.done.clone(), std::iter::once(text).chain(rest).collect())?;
        }
        let listing = match recursive {
            true => None,
            false => std::fs::read_dir(&way.done).ok(), // silent-ok: nothing is there
        };
        for entry in listing.into_iter().flatten().flatten() {
            self.looked_at += 1;
            if self.looked_at > MAX_ENTRIES {
                return Err(format!(
                    "more than {MAX_ENTRIES} names would have to be looked at for links"
                ));
            }
            let name = entry.file_name();
            let Ok(kind) = entry.file_type() else { continue };
            let leads = kind.is_symlink() || (kind.is_dir() && !way.ahead.is_empty());
            if leads && fits.covers_path(&Path::new("/").join(&name), Path::new("/")) {
                let mut branch = way.clone();
                branch.ahead.push_front(DeniedPathPart::Name(name));
                branch.elsewhere = false;
                self.follow_walk(branch)?;
            }
        }
        Ok(())
    }

    fn add_place(&mut self, folder: PathBuf, rest: Vec<String>) -> Result<(), String> {
        if self.found.len() >= MAX_RULES {
            return Err(format!("it leads to more than {MAX_RULES} places"));
        }
        self.found.push((folder, rest));
        Ok(())
    }
}

/// Expands braces: one pattern for each alternative.
fn expand_alternatives(pattern: &str) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    let mut open = vec![pattern.to_owned()];
    while let Some(text) = open.pop() {
        if done.len() + open.len() >= MAX_ALTERNATIVES {
            return Err(format!("more than {MAX_ALTERNATIVES} alternatives"));
        }
        match first_choice(&text) {
            None => done.push(text),
            Some((before, choices, after)) => {
                open.extend(choices.iter().map(|choice| format!("{before}{choice}{after}")));
            }
        }
    }
    Ok(done)
}

/// Splits at the first braces: the text before, the alternatives, the text after.
fn first_choice(text: &str) -> Option<(&str, Vec<&str>, &str)> {
    let start = text.find('{')?;
    let before = text.get(..start)?;
    let inner = text.get(start + 1..)?;
    let (mut depth, mut from, mut choices) = (0_usize, 0, Vec::new());
    for (at, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                choices.push(inner.get(from..at)?);
                return Some((before, choices, inner.get(at + 1..)?));
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                choices.push(inner.get(from..at)?);
                from = at + 1;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
