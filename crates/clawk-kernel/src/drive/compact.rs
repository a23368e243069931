//! Compacts the history of a turn that is about to begin, if it nearly fills its share of the window.

use std::collections::BTreeSet;

use clawk_events::count_of;
use clawk_events::payload::ContextCompacted;
use clawk_manifest::model::CompactionStrategy;

use super::RunningTurn;
use crate::author::TextAuthor;
use crate::compaction::{self, CompactionContent};
use crate::event::{canonical, digest};
use crate::infer::{self, InferenceContext, NoAnswer};
use crate::ports::{InferRequest, JournalError, ModelMessage};
use crate::state::State;
use crate::turn::Turn;
use crate::watch::NoticeSender;

impl RunningTurn<'_> {
    /// Replaces the oldest turns by a summary, recorded before a model sees it.
    ///
    /// # Errors
    /// The journal can't be written.
    pub(super) async fn compact_history(
        &mut self,
        turn: &mut Turn,
        state: &State,
    ) -> Result<(), JournalError> {
        let Some(strategy) = compaction::compaction_strategy(&self.calls.manifest) else {
            return Ok(());
        };
        let Some((_, history)) = turn.messages().split_last().filter(|_| !turn.has_begun()) else {
            return Ok(());
        };
        let share = self.history_share();
        let Some(leaving) = compaction::plan_compaction(history, share, strategy) else {
            return Ok(());
        };
        let old = history.get(..leaving.messages).unwrap_or_default();
        let untrusted = self.taint_of(old).await;
        let (method, text) = match strategy {
            CompactionStrategy::Summarize => {
                let told = compaction::conversation_text(old, share);
                match self.summarise_text(told).await {
                    Some(text) => ("model", compaction::clip_text(&text, leaving.summary_bytes)),
                    None => (
                        "extracts",
                        compaction::extract_summary(old, leaving.summary_bytes),
                    ),
                }
            }
            CompactionStrategy::Truncate | CompactionStrategy::SlidingWindow => ("none", String::new()),
        };
        let replaced = CompactionContent {
            replaces: compaction::replaced_digests(old),
            text,
        };
        let content = canonical(&replaced);
        let origins: Vec<String> = untrusted.iter().cloned().collect();
        let payload = ContextCompacted {
            kept_messages: count_of(history.len() - leaving.messages),
            method: method.to_owned(),
            replaced_messages: count_of(leaving.messages),
            strategy: strategy.as_str().to_owned(),
            summary_hash: digest(&content),
            turn: self.turn_id,
            untrusted: origins.to_vec(),
        };
        let scribe = &self.calls.scribe;
        let draft = scribe.draft_event(&self.thread, &payload);
        scribe
            .write(vec![draft.with_content(payload.summary_hash, content)])
            .await?;
        turn.set_aside(leaving.messages, compaction::summary_messages(&replaced.text));
        // A summary has the provenance of the text it was made from.
        self.base.extend(untrusted);
        state.remember_labels(self.base.clone());
        Ok(())
    }

    /// Returns a model's summary of a conversation; `None` if no model gives one.
    async fn summarise_text(&self, told: String) -> Option<String> {
        let request = InferRequest {
            system: compaction::ORDER.to_owned(),
            messages: vec![ModelMessage::User {
                text: told,
                images: Vec::new(),
                frame: String::new(),
                author: TextAuthor::from_runtime(),
            }],
            tools: Vec::new(),
            max_output_tokens: 0,
            ..InferRequest::default()
        };
        let quiet = NoticeSender::default();
        let place = InferenceContext {
            thread: self.thread,
            // Uses an own turn id, so that no conversation is rebuilt with this request.
            turn: self.calls.clock().new_uuid(),
            notices: &quiet,
            purse: &self.purse,
            member: None,
        };
        match infer::infer_with_fallback(&self.calls.models, place, self.provider, request, self.cancel).await
        {
            Ok(completion) => Some(completion.text).filter(|text| !text.trim().is_empty()),
            Err(NoAnswer::Cancelled | NoAnswer::Failed(_) | NoAnswer::Quota(_)) => None, // silent-ok: the attempt is in the journal
        }
    }

    async fn taint_of(&self, messages: &[ModelMessage]) -> BTreeSet<String> {
        let brings = self.brings_of(messages).await;
        crate::taint::of_messages(messages, |tool| {
            brings
                .get(tool)
                .copied()
                .unwrap_or(crate::taint::ToolTextOrigin::Web)
        })
    }
}
