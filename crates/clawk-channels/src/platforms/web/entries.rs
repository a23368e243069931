//! What the agent says, as entries of a conversation.

use clawk_kernel::ports::Delivery;

use super::log::{PageEntry, PageEntryAuthor, PageFile};
use super::{MAX_FILES, WebAdapter};
use crate::adapter::{OutFile, OutboundMessage};
use crate::files::on_disk;

impl WebAdapter {
    fn kept_files(&self, files: &[OutFile]) -> std::io::Result<Vec<PageFile>> {
        let mut kept = Vec::new();
        for file in files.iter().take(MAX_FILES) {
            let id = on_disk(&file.name, &file.data);
            std::fs::create_dir_all(&self.files)?;
            let path = self.files.join(&id);
            std::fs::write(&path, self.seal.seal_bytes(&path, file.data.to_vec())?)?;
            kept.push(PageFile {
                id,
                name: file.name.clone(),
            });
        }
        Ok(kept)
    }

    /// Puts an entry of the agent into a conversation.
    pub(super) fn add_entry(
        &self,
        out: &OutboundMessage,
        with: impl FnOnce(PageEntry) -> PageEntry,
    ) -> Delivery {
        if !out.conversation.contains('/') {
            return Delivery::Failed {
                reason: "a conversation of a page is `PERSON/NAME`".to_owned(),
            };
        }
        self.lock_typing().remove(&out.conversation);
        let shown = self.kept_files(&out.files).and_then(|files| {
            let entry = PageEntry {
                files,
                live: is_live(out),
                of: self.answered_id(out),
                markdown: out.markdown.clone(),
                ..PageEntry::new(&out.id, PageEntryAuthor::Agent, out.text.clone())
            };
            self.log.put_entry(&out.conversation, with(entry))
        });
        match shown {
            Ok(()) => Delivery::Delivered {
                platform_id: Some(out.id.clone()),
            },
            Err(error) => Delivery::Retry {
                after_ms: None,
                reason: format!("the conversation can't be written: {error}"),
            },
        }
    }

    /// Puts another text in the place of an entry.
    pub(super) fn replace_entry(
        &self,
        of: &str,
        out: &OutboundMessage,
        with: impl FnOnce(&PageEntry, PageEntry) -> PageEntry,
    ) -> Delivery {
        let known = self.log.get(&out.conversation, of);
        let Ok(Some(before)) = known.map(|known| known.filter(|entry| entry.who == PageEntryAuthor::Agent))
        else {
            return Delivery::Failed {
                reason: "the page has no such message any more".to_owned(),
            };
        };
        let changed = OutboundMessage {
            id: of.to_owned(),
            ..out.clone()
        };
        self.add_entry(&changed, |entry| {
            let entry = with(&before, entry);
            PageEntry {
                live: is_live(out),
                ..entry
            }
        })
    }

    /// The program's id of the message that is answered. Later pieces of an answer say it as the first one did.
    fn answered_id(&self, out: &OutboundMessage) -> Option<String> {
        let own = |id: &str| {
            id.strip_prefix(&out.conversation)?
                .strip_prefix(':')
                .map(str::to_owned)
        };
        if let Some(id) = &out.reply_to {
            return own(id);
        }
        let (first, _) = out.id.split_once('.')?;
        let live = format!("{first}.live");
        let known = |id: &str| self.log.get(&out.conversation, id).ok().flatten(); // silent-ok: it says less then
        known(first).or_else(|| known(&live))?.of
    }
}

/// Whether it is a part of an answer that is being written.
fn is_live(out: &OutboundMessage) -> bool {
    out.id.ends_with(".live")
}
