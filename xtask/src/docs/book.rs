//! The user guide: the pages in `docs/SUMMARY.md`. Checks that every page is listed and that every link and anchor exists, and
//! writes HTML.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, TagEnd, html};

use crate::run;
use crate::tidy::Finding;

const DOCS: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";
/// Files of the book that are not pages.
const BESIDE: [&str; 1] = [SUMMARY];
/// Base URL in the HTML for links to files outside the book.
const REPOSITORY: &str = "https://github.com/clawk/clawk/blob/main/";
const STYLE: &str = include_str!("book.css");

/// One line of the summary: depth, title, page (relative to the root). The title of a part has no page.
struct Entry {
    depth: usize,
    title: String,
    page: Option<PathBuf>,
}

/// Checks that the summary lists every page of `docs` once, that every listed page exists, and that every relative link in a
/// document leads to an existing file and, after `#`, to an existing heading.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut listed = BTreeMap::new();
    for page in summary(root)?.into_iter().filter_map(|entry| entry.page) {
        if !root.join(&page).is_file() {
            findings.push(format!("{SUMMARY}: `{}` does not exist", page.display()));
        }
        *listed.entry(page).or_insert(0_usize) += 1;
    }
    let pages = documents(root)?;
    for page in pages.iter().filter(|page| page.starts_with(DOCS)) {
        if BESIDE.iter().any(|beside| page == Path::new(beside)) {
            continue;
        }
        match listed.get(page) {
            Some(1) => {}
            Some(_) => findings.push(format!("{SUMMARY}: `{}` is listed twice", page.display())),
            None => findings.push(format!("{SUMMARY}: `{}` is not listed", page.display())),
        }
    }
    let mut anchors = BTreeMap::new();
    for page in &pages {
        let text = fs::read_to_string(root.join(page))?;
        for link in links(&text) {
            findings.extend(dead(root, page, &link, &mut anchors));
        }
    }
    Ok(findings)
}

/// Returns what is wrong with a link, if anything.
fn dead(
    root: &Path,
    page: &Path,
    link: &str,
    anchors: &mut BTreeMap<PathBuf, BTreeSet<String>>,
) -> Option<Finding> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        page.to_owned()
    } else {
        tidied(&page.parent().unwrap_or(Path::new("")).join(path))
    };
    if !root.join(&target).exists() {
        return Some(format!("{}: the link `{link}` leads nowhere", page.display()));
    }
    if anchor.is_empty() || target.extension().is_none_or(|extension| extension != "md") {
        return None;
    }
    let known = anchors.entry(target.clone()).or_insert_with(|| {
        let text = fs::read_to_string(root.join(&target)).unwrap_or_default(); // silent-ok: then no anchor is known
        headings(&text)
    });
    (!known.contains(anchor)).then(|| {
        format!(
            "{}: the link `{link}` leads to no heading of {}",
            page.display(),
            target.display()
        )
    })
}

/// Writes every page as HTML. Returns the folder and the number of pages.
///
/// # Errors
/// A page can't be read or written.
pub(super) fn render(root: &Path) -> Result<(PathBuf, usize)> {
    let folder = run::target()?.join("book");
    let entries = summary(root)?;
    let pages: Vec<&PathBuf> = entries.iter().filter_map(|entry| entry.page.as_ref()).collect();
    for (index, page) in pages.iter().enumerate() {
        let text = fs::read_to_string(root.join(page))?;
        let near = [
            index.checked_sub(1).and_then(|before| pages.get(before)),
            pages.get(index + 1),
        ];
        let place = folder.join(place(page));
        fs::create_dir_all(place.parent().unwrap_or(&folder))?;
        let page = whole(
            &entries,
            page,
            &body(page, &text, &pages),
            near.map(|near| near.copied()),
        );
        fs::write(&place, page).with_context(|| format!("can't write `{}`", place.display()))?;
    }
    for name in files(&root.join(DOCS), "svg")?
        .into_iter()
        .chain(files(&root.join(DOCS), "py")?)
    {
        let to = folder.join(&name);
        fs::create_dir_all(to.parent().unwrap_or(&folder))?;
        fs::copy(root.join(DOCS).join(&name), to)?;
    }
    Ok((folder, pages.len()))
}

/// Returns the page's text as HTML, with links changed for the HTML folder.
fn body(page: &Path, text: &str, pages: &[&PathBuf]) -> String {
    let mut events: Vec<Event> = Parser::new_ext(text, options()).collect();
    let mut start = None;
    let mut slugs = BTreeMap::new();
    for index in 0..events.len() {
        match events.get(index) {
            Some(Event::Start(Tag::Heading { .. })) => start = Some(index),
            Some(Event::End(TagEnd::Heading(_))) => {
                let from = start.take().unwrap_or(index);
                let text = words(events.get(from..index).unwrap_or_default());
                let slug = numbered(&text, &mut slugs);
                if let Some(Event::Start(Tag::Heading { id, .. })) = events.get_mut(from) {
                    *id = Some(CowStr::from(slug));
                }
            }
            _ => {}
        }
    }
    for event in &mut events {
        if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event {
            *dest_url = CowStr::from(moved(page, dest_url, pages));
        }
    }
    let mut out = String::new();
    html::push_html(&mut out, events.into_iter());
    out
}

/// Returns the target in the HTML of a page's link.
fn moved(page: &Path, link: &str, pages: &[&PathBuf]) -> String {
    if link.contains("://") || link.starts_with('#') || link.starts_with("mailto:") {
        return link.to_owned();
    }
    let (path, anchor) = link
        .split_once('#')
        .map_or((link, String::new()), |(path, anchor)| {
            (path, format!("#{anchor}"))
        });
    let target = tidied(&page.parent().unwrap_or(Path::new("")).join(path));
    if pages.iter().any(|known| **known == target) {
        return format!("{}{}{anchor}", up(page), place(&target).display());
    }
    match target.strip_prefix(DOCS) {
        Ok(inside) if target.extension().is_some_and(|e| e == "svg" || e == "py") => {
            format!("{}{}", up(page), inside.display())
        }
        _ => format!("{REPOSITORY}{}{anchor}", target.display()),
    }
}

/// Returns the complete HTML page: the list of all pages, the text, and links to the previous and the next page.
fn whole(entries: &[Entry], page: &Path, body: &str, near: [Option<&PathBuf>; 2]) -> String {
    let up = up(page);
    let mut list = String::new();
    let mut title = "clawk";
    for entry in entries {
        let line = match &entry.page {
            None => format!("<p>{}</p>", entry.title),
            Some(path) => {
                let here = if path == page { " class=here" } else { "" };
                if path == page {
                    title = &entry.title;
                }
                format!(
                    "<a{here} style=\"--depth:{}\" href=\"{up}{}\">{}</a>",
                    entry.depth,
                    place(path).display(),
                    entry.title
                )
            }
        };
        list.push_str(&line);
        list.push('\n');
    }
    let [before, after] = near.map(|near| near.map(|near| format!("{up}{}", place(near).display())));
    let before = before.map_or_else(String::new, |link| format!("<a href=\"{link}\">← previous</a>"));
    let after = after.map_or_else(String::new, |link| format!("<a href=\"{link}\">next →</a>"));
    format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}: clawk</title>\n<style>\n{STYLE}</style>\n<nav>\n{list}</nav>\n<main>\n{body}<footer>{before} {after}</footer>\n</main>\n</html>\n"
    )
}

/// Returns the summary's lines in order.
fn summary(root: &Path) -> Result<Vec<Entry>> {
    let text = fs::read_to_string(root.join(SUMMARY)).with_context(|| format!("can't read {SUMMARY}"))?;
    let mut entries = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("# ").filter(|title| *title != "Summary") {
            entries.push(Entry {
                depth: 0,
                title: title.to_owned(),
                page: None,
            });
        }
        let Some((title, rest)) = line.split_once('[').and_then(|(_, rest)| rest.split_once("](")) else {
            continue;
        };
        let path = rest.split(')').next().unwrap_or_default();
        let indent = line.len() - line.trim_start().len();
        entries.push(Entry {
            depth: indent / 2,
            title: title.to_owned(),
            page: Some(tidied(&Path::new(DOCS).join(path))),
        });
    }
    Ok(entries)
}

/// Returns the documents whose links are checked: those of the book, and those in the root.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages: Vec<PathBuf> = files(&root.join(DOCS), "md")?
        .into_iter()
        .map(|page| Path::new(DOCS).join(page))
        .collect();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        if root.join(name).is_file() {
            pages.push(name.into());
        }
    }
    Ok(pages)
}

/// Returns the files below a folder with this ending, relative to the folder and sorted.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("can't read `{}`", next.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns a page's path in the HTML folder.
fn place(page: &Path) -> PathBuf {
    let inside = page.strip_prefix(DOCS).unwrap_or(page);
    if inside.file_name().is_some_and(|name| name == "README.md") {
        return inside.with_file_name("index.html");
    }
    inside.with_extension("html")
}

/// Returns the relative path from a page's folder to the root of the HTML.
fn up(page: &Path) -> String {
    "../".repeat(place(page).components().count().saturating_sub(1))
}

/// Returns the targets of a text's links, without those in code.
fn links(text: &str) -> Vec<String> {
    Parser::new_ext(text, options())
        .filter_map(|event| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(dest_url.into_string())
            }
            _ => None,
        })
        .collect()
}

/// Returns the anchors of a text's headings.
fn headings(text: &str) -> BTreeSet<String> {
    let events: Vec<Event> = Parser::new_ext(text, options()).collect();
    let mut found = BTreeSet::new();
    let mut slugs = BTreeMap::new();
    let mut start = None;
    for (index, event) in events.iter().enumerate() {
        match event {
            Event::Start(Tag::Heading { .. }) => start = Some(index),
            Event::End(TagEnd::Heading(_)) => {
                let text = words(
                    events
                        .get(start.take().unwrap_or(index)..index)
                        .unwrap_or_default(),
                );
                found.insert(numbered(&text, &mut slugs));
            }
            _ => {}
        }
    }
    found
}

fn words(events: &[Event]) -> String {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
            _ => None,
        })
        .collect()
}

/// Returns a heading's anchor as mdBook and GitHub make it: letters, digits, `-` and `_`. A second heading with the same words gets
/// the suffix `-1`.
fn numbered(text: &str, seen: &mut BTreeMap<String, usize>) -> String {
    let slug: String = text
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c),
            _ => None,
        })
        .collect();
    let count = seen.entry(slug.clone()).or_insert(0);
    *count += 1;
    match *count {
        1 => slug,
        more => format!("{slug}-{}", more - 1),
    }
}

/// Returns the path without `.` and `..`.
fn tidied(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            Component::Normal(name) => out.push(name),
            Component::RootDir | Component::Prefix(_) => {}
        }
    }
    out
}

fn options() -> Options {
    Options::ENABLE_TABLES
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{body, check, headings, moved};

    fn docs(pages: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in pages {
            let path = root.path().join("docs").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_dead_link_a_dead_anchor_and_an_unlisted_page_are_found() {
        let good = docs(&[
            ("SUMMARY.md", "# Summary\n\n[a](a.md)\n- [b](sub/b.md)\n"),
            (
                "a.md",
                "# One `thing`\n[b](sub/b.md#two-words) [out](https://example.com)\n```\n[no](gone.md)\n```\n",
            ),
            (
                "sub/b.md",
                "## Two words\n[a](../a.md#one-thing) [here](#two-words)\n",
            ),
        ]);
        assert_eq!(check(good.path()).unwrap(), Vec::<String>::new());
        let bad = docs(&[
            ("SUMMARY.md", "[a](a.md)\n[a](a.md)\n[c](c.md)\n"),
            ("a.md", "[x](gone.md) [y](#gone)\n"),
            ("b.md", "text\n"),
        ]);
        let findings = check(bad.path()).unwrap();
        assert_eq!(findings.len(), 6, "{findings:#?}");
    }

    #[test]
    fn anchors_are_those_of_mdbook() {
        let found = headings("# `[budgets]`\n## A, b & c\n## A, b & c\n");
        let wanted = ["budgets", "a-b--c", "a-b--c-1"].map(str::to_owned);
        assert_eq!(found, wanted.into_iter().collect());
    }

    #[test]
    fn links_lead_into_the_book_or_to_the_repository() {
        let pages = [PathBuf::from("docs/README.md"), PathBuf::from("docs/how-to/a.md")];
        let pages: Vec<&PathBuf> = pages.iter().collect();
        let page = Path::new("docs/how-to/a.md");
        assert_eq!(moved(page, "../README.md#x", &pages), "../index.html#x");
        assert!(moved(page, "../../CHANGELOG.md", &pages).ends_with("/blob/main/CHANGELOG.md"));
        assert!(body(page, "# Hi there\n", &pages).contains("id=\"hi-there\""));
    }
}
