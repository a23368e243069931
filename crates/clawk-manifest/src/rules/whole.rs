//! Rules across primitives: names, references, cycles, and facts that no single document shows (CKP §5, §6, R7).

use std::collections::{HashMap, HashSet};

use clawk_proto::uri::Kind;

use super::LocatedNode;
use crate::check::RefUse;
use crate::diagnostic::{Diagnostic, FileFindings, did_you_mean, quote_text};
use crate::primitive::UntypedPrimitive;

/// All primitives of one manifest, and the findings of each file.
#[derive(Debug)]
pub(crate) struct CrossPrimitiveCheck<'a> {
    pub(crate) primitives: &'a [UntypedPrimitive],
    pub(crate) files: &'a mut [FileFindings],
}

impl CrossPrimitiveCheck<'_> {
    pub(crate) fn check_all(&mut self, pending: &[(usize, RefUse)]) {
        self.check_names();
        self.check_references(pending);
        self.fallback_cycles();
        self.composite_cycles();
        self.unreachable_rules();
        self.check_effects();
    }

    fn push(&mut self, file: usize, diagnostic: Diagnostic) {
        if let Some(findings) = self.files.get_mut(file) {
            findings.push(diagnostic);
        }
    }

    fn primitives_of_kind(&self, kind: Kind) -> impl Iterator<Item = &UntypedPrimitive> {
        self.primitives
            .iter()
            .filter(move |primitive| primitive.kind == kind)
    }

    /// ` of FILE`, if its file differs from that of `beside`.
    fn of_file(&self, one: &UntypedPrimitive, beside: &UntypedPrimitive) -> String {
        let file = self
            .files
            .get(one.file)
            .and_then(|findings| findings.file.as_ref());
        file.filter(|_| one.file != beside.file)
            .map_or_else(String::new, |file| {
                format!(" of {}", quote_text(&file.to_string_lossy()))
            })
    }

    fn check_names(&mut self) {
        let mut first: HashMap<(Kind, &str), &UntypedPrimitive> = HashMap::new();
        for primitive in self.primitives {
            let other = *first
                .entry((primitive.kind, &primitive.name))
                .or_insert(primitive);
            if std::ptr::eq(other, primitive) {
                continue;
            }
            let at = primitive.name_pointer();
            let message = format!(
                "two {} primitives are called {}; the first is at {}{}",
                primitive.kind,
                quote_text(&primitive.name),
                other.name_pointer(),
                self.of_file(other, primitive)
            );
            let help = if other.generated || primitive.generated {
                "a name was made up for one of them; give it a `name` of its own"
            } else {
                "names are unique within a kind; rename one"
            };
            let error = Diagnostic::error("name-collision", at, message);
            self.push(
                primitive.file,
                error.with_location(primitive.place).with_help(help),
            );
        }
    }

    fn check_references(&mut self, pending: &[(usize, RefUse)]) {
        let index: HashMap<(Kind, &str), &UntypedPrimitive> = self
            .primitives
            .iter()
            .map(|primitive| ((primitive.kind, primitive.name.as_str()), primitive))
            .collect();
        let inner = self
            .primitives
            .iter()
            .flat_map(|primitive| primitive.refs.iter().map(|used| (primitive.file, used)));
        let outer = pending.iter().map(|(file, used)| (*file, used));
        for (file, used) in outer.chain(inner) {
            let full = self.files.get(file).is_none_or(FileFindings::is_full);
            let found = index.get(&(used.kind, used.name.as_str())).copied();
            if let Some(error) = (!full).then(|| self.unresolved_finding(used, found)).flatten() {
                self.push(file, error);
            }
        }
    }

    /// The finding for a reference to a missing primitive.
    fn unresolved_finding(&self, used: &RefUse, found: Option<&UntypedPrimitive>) -> Option<Diagnostic> {
        if let Some(found) = found {
            let asked = used.version.as_ref()?;
            if found.version.as_ref() == Some(asked) {
                return None;
            }
            let has = found.version.as_deref().unwrap_or("none");
            let message = format!("{} has version {has}, not {asked}", quote_text(&used.name));
            return Some(
                Diagnostic::error("version-mismatch", used.pointer.clone(), message)
                    .with_location(used.place),
            );
        }
        let declared: Vec<&UntypedPrimitive> = self.primitives_of_kind(used.kind).collect();
        let stores: Vec<&str> = match used.kind {
            Kind::Memory => declared.iter().flat_map(|memory| store_names(memory)).collect(),
            _ => Vec::new(),
        };
        if stores.contains(&used.name.as_str()) {
            return None;
        }
        let names = declared
            .iter()
            .map(|primitive| primitive.name.as_str())
            .chain(stores.iter().copied());
        let help = match (did_you_mean(&used.name, names.clone()), names.clone().next()) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, None) => format!("the manifest declares no {}", used.kind),
            (None, Some(_)) => {
                let all: Vec<String> = names.take(10).map(|name| format!("`{name}`")).collect();
                format!("declared: {}", all.join(", "))
            }
        };
        let message = format!("no {} is called {}", used.kind, quote_text(&used.name));
        Some(
            Diagnostic::error("unresolved-reference", used.pointer.clone(), message)
                .with_location(used.place)
                .with_help(help),
        )
    }

    fn fallback_cycles(&mut self) {
        let mut graph = ReferenceGraph::new();
        for provider in self.primitives_of_kind(Kind::Provider) {
            graph.insert(provider.name.clone(), reference_edges(provider, "/fallback/", ""));
        }
        let starts = self
            .primitives
            .iter()
            .filter(|primitive| primitive.kind == Kind::Provider);
        self.check_cycles(&graph, starts, "", |next, own| {
            let message = format!(
                "falling back to {} leads back to {}",
                quote_text(next),
                quote_text(own)
            );
            (
                "fallback-cycle",
                message,
                "a fallback chain must end; remove one of its links",
            )
        });
    }

    /// Checks that no composite tool needs itself, directly or through others.
    fn composite_cycles(&mut self) {
        let mut graph = ReferenceGraph::new();
        for tool in self.primitives_of_kind(Kind::Tool) {
            graph.insert(
                format!("tool {}", tool.name),
                reference_edges(tool, "/skill_ref", "skill "),
            );
        }
        for skill in self.primitives_of_kind(Kind::Skill) {
            graph.insert(
                format!("skill {}", skill.name),
                reference_edges(skill, "/tools_required/", "tool "),
            );
        }
        let starts = self
            .primitives
            .iter()
            .filter(|primitive| primitive.kind == Kind::Tool);
        self.check_cycles(&graph, starts, "tool ", |next, own| {
            let message = format!("skill {} needs {} itself", quote_text(next), quote_text(own));
            (
                "composite-cycle",
                message,
                "a composite tool's skill must not need that tool, directly or through others",
            )
        });
    }

    fn check_cycles<'p>(
        &mut self,
        graph: &ReferenceGraph,
        starts: impl Iterator<Item = &'p UntypedPrimitive>,
        prefix: &str,
        words: impl Fn(&str, &str) -> (&'static str, String, &'static str),
    ) {
        let mut checked = 0;
        for start in starts {
            let own = format!("{prefix}{}", start.name);
            for (next, used) in graph.get(&own).into_iter().flatten() {
                checked += 1;
                if checked > MOST_LINKS {
                    let message = format!("more than {MOST_LINKS} links between primitives");
                    return self.push(
                        start.file,
                        Diagnostic::error("too-large", used.pointer.clone(), message),
                    );
                }
                if can_reach(graph, next, &own) {
                    let (code, message, help) = words(&used.name, &start.name);
                    let error = Diagnostic::error(code, used.pointer.clone(), message);
                    self.push(start.file, error.with_location(used.place).with_help(help));
                }
            }
        }
    }

    /// Warns about unreachable rules: all policies' rules form one list, and rules after one that always matches are never reached.
    fn unreachable_rules(&mut self) {
        let mut blocker: Option<String> = None;
        let mut seen: HashSet<String> = HashSet::new();
        let mut found = Vec::new();
        for policy in self.primitives_of_kind(Kind::Policy) {
            let spec = LocatedNode {
                node: &policy.spec,
                pointer: policy.pointer.clone(),
            };
            let mut own: HashSet<String> = HashSet::new();
            for rule in spec.get("rules").map(|rules| rules.items()).unwrap_or_default() {
                let id = rule.text_at("id").unwrap_or_default().to_owned();
                if let Some(before) = &blocker {
                    let message = format!(
                        "rule {} is never reached: {} before it matches everything",
                        quote_text(&id),
                        quote_text(before)
                    );
                    found.push((policy.file, rule.warning("unreachable-rule", message)));
                } else if always_matches(&rule) {
                    blocker = Some(id.clone());
                }
                if !own.contains(&id) && seen.contains(&id) {
                    let message = format!(
                        "another policy has a rule {} too; the trace cannot tell them apart",
                        quote_text(&id)
                    );
                    found.push((policy.file, rule.warning("repeated-rule-id", message)));
                }
                own.insert(id);
            }
            seen.extend(own);
        }
        found
            .into_iter()
            .for_each(|(file, warning)| self.push(file, warning));
    }

    fn check_effects(&mut self) {
        let tools = self.primitives_of_kind(Kind::Tool).next().is_some();
        let observer = self
            .primitives_of_kind(Kind::Identity)
            .any(|id| id.spec.get("autonomy").and_then(|a| a.text()) == Some("observer"));
        let first = self
            .primitives_of_kind(Kind::Tool)
            .next()
            .map(|tool| (tool.file, tool.pointer.clone(), tool.place));
        let Some((file, pointer, place)) = first.filter(|_| tools) else {
            return;
        };
        if observer {
            let warning = Diagnostic::warning(
                "observer-with-tools",
                pointer.clone(),
                "an `observer` never runs a tool",
            );
            self.push(
                file,
                warning
                    .with_location(place)
                    .with_help("write `autonomy: \"supervised\"`, or drop the tools"),
            );
        }
        if self.primitives_of_kind(Kind::Policy).next().is_none() {
            let warning = Diagnostic::warning(
                "no-policy",
                pointer,
                "no policy is declared: every tool call will be denied",
            );
            self.push(file, warning.with_location(place).with_help("add `policies`"));
        }
    }
}

/// Maps each name to the names that it refers to, each with its reference.
type ReferenceGraph = HashMap<String, Vec<(String, RefUse)>>;

/// The largest number of references followed in the search for cycles. Each one may cost a walk over all of them.
const MOST_LINKS: usize = 2_000;

fn reference_edges(primitive: &UntypedPrimitive, member: &str, prefix: &str) -> Vec<(String, RefUse)> {
    let inside = |used: &&RefUse| {
        used.pointer
            .strip_prefix(&primitive.pointer)
            .is_some_and(|p| p.starts_with(member))
    };
    primitive
        .refs
        .iter()
        .filter(inside)
        .map(|used| (format!("{prefix}{}", used.name), used.clone()))
        .collect()
}

fn store_names(memory: &UntypedPrimitive) -> Vec<&str> {
    let stores = memory
        .spec
        .get("stores")
        .and_then(|stores| stores.items())
        .unwrap_or_default();
    stores
        .iter()
        .filter_map(|store| store.get("name")?.text())
        .collect()
}

fn always_matches(rule: &LocatedNode<'_>) -> bool {
    let empty = |key: &str| {
        rule.get(key)
            .is_none_or(|spot| spot.node.entries().is_some_and(<[_]>::is_empty))
    };
    matches!(rule.text_at("scope"), Some("all" | "tool"))
        && empty("match")
        && empty("conditions")
        && !rule.has_member("rate_limit")
}

fn can_reach(graph: &ReferenceGraph, from: &str, to: &str) -> bool {
    let mut open = vec![from];
    let mut seen = HashSet::new();
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        if seen.insert(at) {
            open.extend(graph.get(at).into_iter().flatten().map(|(next, _)| next.as_str()));
        }
    }
    false
}
