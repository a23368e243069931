//! Whose words a recalled entry is, for the person who asks (R50): the same entry is one person's own and a stranger's for another.

use clawk_events::payload::MessageAccepted;
use clawk_proto::SessionId;
use clawk_recall::entry::{EntryProvenance, EntrySearchResult};

use super::foreign_origins;
use crate::author::TextAuthor;
use crate::door::Origin;
use crate::event::kind;
use crate::ports::JournalScan;
use crate::services::KernelServices;
use crate::taint;

/// Decides for each entry whether the requester may take it as trusted. `place`: the requester's own conversation, as marks name it.
pub(crate) async fn judge_entries(
    calls: &KernelServices,
    found: &mut EntrySearchResult,
    (requester, place): (&TextAuthor, &str),
) {
    for hit in &mut found.hits {
        let id = hit.entry.id.clone();
        if is_unjudged(&hit.mark)
            && !is_own_place(&hit.mark.whose, place)
            && let Some(origin) = author_of(calls, &hit.mark, &id).await
        {
            hit.mark.untrusted = true;
            hit.mark.made_from.push(origin);
        }
        settle_trust(&mut hit.mark, requester);
    }
}

/// An entry that is made from nothing but the requester's own words is trusted.
fn settle_trust(mark: &mut EntryProvenance, requester: &TextAuthor) {
    // A summary is made from memory: what that was made from is listed.
    let origins: Vec<&str> = foreign_origins(mark)
        .filter(|origin| *origin != "memory")
        .collect();
    let own = !origins.is_empty() && origins.iter().all(|origin| requester.is_own_origin(origin));
    mark.untrusted &= !own;
}

/// An entry of an earlier version, which knew no authors.
fn is_unjudged(mark: &EntryProvenance) -> bool {
    mark.author.is_empty() && !mark.untrusted && !mark.whose.is_empty()
}

/// The entry is of the requester's own direct conversation, or of the terminal.
fn is_own_place(whose: &str, place: &str) -> bool {
    whose == "cli/of/owner" || (whose == place && !whose.contains("/in/"))
}

/// The origin of such an entry's author, by the record of the message that it was made in; by its conversation where that is not
/// found. `None`: it was the owner.
async fn author_of(calls: &KernelServices, mark: &EntryProvenance, id: &str) -> Option<String> {
    let message = mark
        .made_from
        .iter()
        .find_map(|source| source.strip_prefix("message "));
    let message = message.or_else(|| id.rsplit_once('-').map(|(message, _)| message));
    if let (Some(message), Ok(session)) = (message, mark.session.parse())
        && let Some(author) = recorded_author(calls, SessionId(session), message).await
    {
        return author.own_origin();
    }
    let (door, name) = mark.whose.split_once('/').unwrap_or(("unknown", &mark.whose));
    let name = name.split_once('/').map_or(name, |(_, name)| name);
    Some(taint::of_sender(name, door))
}

/// The author of a message, by its record.
async fn recorded_author(calls: &KernelServices, session: SessionId, message: &str) -> Option<TextAuthor> {
    let mut found = None;
    let scan = JournalScan {
        session: Some(session),
        kinds: &[kind::MESSAGE_ACCEPTED],
        ..JournalScan::default()
    };
    let looked = calls.scribe.read_each(scan, |event| {
        let accepted: MessageAccepted = event.read_as()?;
        if accepted.message_id.to_string() == message {
            found = Some(TextAuthor::from_origin(
                &Origin::from_record(accepted.into()),
                &calls.manifest,
            ));
        }
        Ok(())
    });
    looked.await.ok()?; // silent-ok: of what can't be read, the entry's conversation is the author
    found
}
