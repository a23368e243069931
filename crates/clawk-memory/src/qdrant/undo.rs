//! Restoring entries that compaction set aside, and deleting entries.

use clawk_core::ports::MemoryError;
use clawk_recall::entry::{ConversationFilter, EntryHit};
use serde_json::{Value, json};

use super::row::{ASIDE, LIVE, PointPayload, match_condition};
use super::{QdrantCollection, QdrantPoint};

fn aside_conditions(scope: &str) -> Vec<Value> {
    vec![match_condition("scope", scope), match_condition("state", ASIDE)]
}

impl QdrantCollection<'_> {
    async fn restore_points(self, points: Vec<QdrantPoint>) -> Result<u64, MemoryError> {
        let points: Vec<String> = points.into_iter().map(|point| point.id).collect();
        self.set_payload(&points, json!({"state": LIVE, "instead": ""}))
            .await?;
        Ok(u64::try_from(points.len()).unwrap_or(u64::MAX))
    }

    /// Restores the entries that a summary replaced, then deletes the summary. In this order, a stop between the steps loses
    /// nothing.
    async fn undo_summary(self, scope: &str, summary: &str) -> Result<u64, MemoryError> {
        let mut stood = aside_conditions(scope);
        stood.push(match_condition("instead", summary));
        let back = self.restore_points(self.all_points(stood).await?).await?;
        let summary = self
            .all_points(vec![
                match_condition("scope", scope),
                match_condition("id", summary),
            ])
            .await?;
        let points: Vec<String> = summary.into_iter().map(|point| point.id).collect();
        self.delete_entries(&points).await?;
        Ok(back)
    }

    pub(super) async fn restore_entries(self, scope: &str, id: Option<&str>) -> Result<u64, MemoryError> {
        let mut back = 0;
        if let Some(id) = id {
            let mut one = aside_conditions(scope);
            one.push(match_condition("id", id));
            back += self.restore_points(self.all_points(one).await?).await?;
            let mut stood = aside_conditions(scope);
            stood.push(match_condition("instead", id));
            if self.count_entries(stood).await? > 0 {
                back += self.undo_summary(scope, id).await?;
            }
            return Ok(back);
        }
        loop {
            // The newest first: a summary of summaries is dissolved before them.
            let newest = self
                .ordered_entries(aside_conditions(scope), ("n", true), 1)
                .await?;
            let Some(PointPayload { instead, .. }) = newest.into_iter().next() else {
                return Ok(back);
            };
            if instead.is_empty() {
                let mut alone = aside_conditions(scope);
                alone.push(match_condition("instead", ""));
                back += self.restore_points(self.all_points(alone).await?).await?;
            } else {
                back += self.undo_summary(scope, &instead).await?;
            }
        }
    }

    /// Removes an entry and the entries that it replaced. A summary made from it is removed too, and its other entries are
    /// restored.
    pub(super) async fn remove(
        self,
        scope: &str,
        whose: &ConversationFilter,
        id: &str,
    ) -> Result<Option<EntryHit>, MemoryError> {
        let found = self
            .all_points(vec![match_condition("scope", scope), match_condition("id", id)])
            .await?;
        let Some((point, row)) = found
            .into_iter()
            .find_map(|point| Some((point.id, point.payload?)))
        else {
            return Ok(None);
        };
        let hit = row.entry_hit();
        if !whose.includes_owner(&hit.mark.whose) {
            return Ok(None);
        }
        let stood = self
            .all_points(vec![
                match_condition("scope", scope),
                match_condition("instead", id),
            ])
            .await?;
        let mut gone = vec![point];
        gone.extend(stood.into_iter().map(|point| point.id));
        self.delete_entries(&gone).await?;
        if !row.instead.is_empty() {
            self.undo_summary(scope, &row.instead).await?;
        }
        Ok(Some(hit))
    }
}
