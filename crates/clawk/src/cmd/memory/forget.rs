//! `clawk memory forget`: deletes an entry and every copy of its text in one command, on the record.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_proto::method::MemoryEntry;
use clawk_proto::{Digest, SessionId};
use clawk_recall::words::text_of;
use clawk_tools::undo;
use clawk_trace::chain::digest_of;
use serde_json::{Value, json};

use super::PartArgs;
use super::copies::{are_in, content_texts, find_copies};
use super::held::{LocatedEntry, OpenedMemory, ScopedStore, format_location};
use crate::compose::{self, UNDO};
use crate::out::{self, Format, one_line};
use crate::state::kept::{self, ErasureSelection, MAX_FORGOTTEN, RememberedEntry, StateDir, StateReader};

/// Longest reason, in bytes.
const MAX_REASON_BYTES: usize = 1000;

pub(super) fn run(which: &PartArgs, ids: &[String], reason: &str, format: Format) -> Result<ExitCode> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES {
        bail!("`--reason` takes 1 to {MAX_REASON_BYTES} bytes");
    }
    let by = format!("local user {}", rustix::process::getuid().as_raw());
    // Check the names before taking the lock.
    let OpenedMemory { reader, parts, .. } = which.open_memory()?;
    resolve_entries(&reader, &parts, ids)?;
    drop((reader, parts));
    let (
        state,
        OpenedMemory {
            reader, mut parts, ..
        },
    ) = which.open_exclusive("an agent that runs may be writing what is to be forgotten")?;
    let gone = resolve_entries(&reader, &parts, ids)?;
    let (texts, embedded) = collect_texts(&reader, &parts, &gone)?;
    let (copies, texts) = find_copies(&reader, &texts)?;
    drop(reader);
    let (gone, copies, originals) = compose::build_runtime()?.block_on(async {
        record_erasure(&state, &gone, embedded, reason, &by).await?;
        erase_entries(&mut parts, &gone)?;
        let erased = erase_contents(&state, &copies, reason, &by).await?;
        let originals = undo::erase_contents(&state.path().join(UNDO), state.vault(), |bytes| {
            are_in(&texts, bytes)
        })
        .context("what calls overwrote can't be looked through")?;
        if state.is_signed()? {
            state.seal(&state.signer()?, SystemClock::default().now()).await?;
        }
        state.close();
        Ok::<_, anyhow::Error>((gone, erased, originals))
    })?;
    let ids: Vec<&str> = gone.iter().map(|one| one.hit.entry.id.as_str()).collect();
    if format == Format::Json {
        out::print_json(
            &json!({ "copies": copies, "forgotten": ids, "originals": originals, "reason": reason }),
        )?;
    } else {
        for id in &ids {
            out::print_line(format!("{} is forgotten", one_line(id)))?;
        }
        out::print_line(format!(
            "{copies} contents of the trace that held the same text are erased; the chain stays valid, and says that something was \
             forgotten, not what"
        ))?;
        if originals > 0 {
            out::print_line(format!(
                "{originals} files that calls had overwritten held it, too: they can't be put back by `clawk undo` any more"
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds exactly one entry for each name. Otherwise nothing is deleted.
fn resolve_entries(reader: &StateReader, parts: &[ScopedStore], ids: &[String]) -> Result<Vec<LocatedEntry>> {
    let mut gone: Vec<LocatedEntry> = Vec::new();
    for id in ids {
        let mut found = Vec::new();
        for part in parts {
            found.extend(part.find_named(reader, id)?);
        }
        match found.as_slice() {
            [] => bail!(
                "nothing is remembered as `{}`; nothing is forgotten",
                one_line(id)
            ),
            [one] if gone.iter().any(|known| is_same(known, one)) => {}
            [one] => gone.push(one.clone()),
            several => {
                let places: Vec<String> = several
                    .iter()
                    .map(|one| format_location(&one.store, &one.scope))
                    .collect();
                bail!(
                    "`{}` is in {}; say which by `--store` and `--scope`, or by its id; nothing is forgotten",
                    one_line(id),
                    places.join(", ")
                );
            }
        }
    }
    if gone.len() > MAX_FORGOTTEN {
        bail!("`clawk memory forget` takes at most {MAX_FORGOTTEN} entries at once; no entry was forgotten");
    }
    Ok(gone)
}

fn is_same(a: &LocatedEntry, b: &LocatedEntry) -> bool {
    (&a.store, &a.scope, &a.hit.entry.id) == (&b.store, &b.scope, &b.hit.entry.id)
}

/// Returns the texts of the entries and of summaries made from them, and the digests under which the embeddings of these texts are
/// stored.
fn collect_texts(
    reader: &StateReader,
    parts: &[ScopedStore],
    gone: &[LocatedEntry],
) -> Result<(Vec<String>, Vec<Digest>)> {
    let digest = |entry: &MemoryEntry| digest_of(text_of(&entry.content, entry.key.as_deref()).as_bytes());
    let mut embedded: Vec<Digest> = gone.iter().map(|one| digest(&one.hit.entry)).collect();
    let mut ids: Vec<String> = gone.iter().map(|one| one.hit.entry.id.clone()).collect();
    let mut found: Vec<String> = gone
        .iter()
        .flat_map(|one| content_texts(&one.hit.entry.content))
        .collect();
    let mut summaries = Vec::new();
    for part in parts {
        let summary = |found: LocatedEntry| {
            let of = found.hit.entry.metadata.as_ref();
            let of = of.and_then(|about| about.get("ids")).and_then(Value::as_array);
            let of: Option<Vec<String>> =
                of.map(|ids| ids.iter().filter_map(Value::as_str).map(str::to_owned).collect());
            summaries.extend(of.map(|of| (found.hit.entry, of)));
            Ok(())
        };
        part.for_each_entry(reader, summary)?;
        for aside in part.newest_entries(reader, true, usize::MAX)? {
            if let Some(of) = aside
                .hit
                .entry
                .metadata
                .as_ref()
                .and_then(|about| about.get("ids"))
            {
                let of = of.as_array().into_iter().flatten().filter_map(Value::as_str);
                let of = of.map(str::to_owned).collect();
                summaries.push((aside.hit.entry, of));
            }
        }
    }
    // Includes summaries of summaries.
    loop {
        let (made, rest): (Vec<_>, Vec<_>) = summaries
            .into_iter()
            .partition(|(_, of)| of.iter().any(|id| ids.contains(id)));
        summaries = rest;
        if made.is_empty() {
            return Ok((found, embedded));
        }
        for (entry, _) in made {
            found.extend(content_texts(&entry.content));
            embedded.push(digest(&entry));
            ids.push(entry.id);
        }
    }
}

/// Records what will be deleted, then deletes from the state's database: entries, their vectors and embeddings, entries set aside
/// for them, and summaries made from them.
async fn record_erasure(
    state: &StateDir,
    gone: &[LocatedEntry],
    embedded: Vec<Digest>,
    reason: &str,
    by: &str,
) -> Result<()> {
    let clock = SystemClock::default();
    let rows: Vec<RememberedEntry> = gone.iter().filter_map(|one| one.row.clone()).collect();
    if !rows.is_empty() {
        state.forget(&rows, reason, by, &clock).await?;
    }
    let elsewhere = gone.iter().filter(|one| one.row.is_none());
    // Record first: an unrecorded deletion would be worse than a recorded one that did not happen.
    let told: Vec<(&str, &str, &str)> = elsewhere
        .map(|one| (one.store.as_str(), one.scope.as_str(), one.hit.entry.id.as_str()))
        .collect();
    let entries = if told.is_empty() {
        Vec::new()
    } else {
        kept::forgotten_journal_entries(&told, reason, by, &clock)?
    };
    state.forgotten_elsewhere(entries, embedded).await?;
    Ok(())
}

/// Deletes from folders and servers.
fn erase_entries(parts: &mut [ScopedStore], gone: &[LocatedEntry]) -> Result<()> {
    for one in gone.iter().filter(|one| one.row.is_none()) {
        for part in &mut *parts {
            if part.store() != one.store || part.scope() != one.scope {
                continue;
            }
            match part {
                ScopedStore::Rows(_) => None,
                ScopedStore::Folder(held) => held.forget_entry(&one.hit.entry.id)?,
                ScopedStore::Server(held) => held.forget_entry(&one.hit.entry.id)?,
            };
        }
    }
    Ok(())
}

/// Deletes contents of the journal with the same text. Returns their number.
async fn erase_contents(
    state: &StateDir,
    copies: &[(SessionId, Digest)],
    reason: &str,
    by: &str,
) -> Result<u64> {
    let mut erased = 0;
    for (session, digest) in copies {
        let what = ErasureSelection::Digest(*session, *digest);
        erased += state
            .erase(what, reason, by, &SystemClock::default())
            .await?
            .contents;
    }
    // Rewrite the database file, because rebuilt pages may hold old copies. A server's files are its operator's responsibility.
    if !kept::is_on_server(state) {
        state.rewrite().await?;
    }
    Ok(erased)
}
