//! Bringing back what compaction set aside, and forgetting.

use clawk_core::ports::MemoryError;
use clawk_recall::entry::{ConversationFilter, EntryHit};
use serde_json::{Value, json};

use super::row::{ASIDE, LIVE, PointPayload, is};
use super::{QdrantCollection, QdrantPoint};

fn aside(scope: &str) -> Vec<Value> {
    vec![is("scope", scope), is("state", ASIDE)]
}

impl QdrantCollection<'_> {
    async fn back(self, points: Vec<QdrantPoint>) -> Result<u64, MemoryError> {
        let points: Vec<String> = points.into_iter().map(|point| point.id).collect();
        self.set(&points, json!({"state": LIVE, "instead": ""})).await?;
        Ok(u64::try_from(points.len()).unwrap_or(u64::MAX))
    }

    /// What a summary stands for comes back, and the summary goes: in this order, so that a stop between loses nothing.
    async fn dissolve(self, scope: &str, summary: &str) -> Result<u64, MemoryError> {
        let mut stood = aside(scope);
        stood.push(is("instead", summary));
        let back = self.back(self.every(stood).await?).await?;
        let summary = self.every(vec![is("scope", scope), is("id", summary)]).await?;
        let points: Vec<String> = summary.into_iter().map(|point| point.id).collect();
        self.delete(&points).await?;
        Ok(back)
    }

    pub(super) async fn restore(self, scope: &str, id: Option<&str>) -> Result<u64, MemoryError> {
        let mut back = 0;
        if let Some(id) = id {
            let mut one = aside(scope);
            one.push(is("id", id));
            back += self.back(self.every(one).await?).await?;
            let mut stood = aside(scope);
            stood.push(is("instead", id));
            if self.count(stood).await? > 0 {
                back += self.dissolve(scope, id).await?;
            }
            return Ok(back);
        }
        loop {
            // The newest first: a summary of summaries dissolves before they do.
            let newest = self.ordered(aside(scope), ("n", true), 1).await?;
            let Some(PointPayload { instead, .. }) = newest.into_iter().next() else {
                return Ok(back);
            };
            if instead.is_empty() {
                let mut alone = aside(scope);
                alone.push(is("instead", ""));
                back += self.back(self.every(alone).await?).await?;
            } else {
                back += self.dissolve(scope, &instead).await?;
            }
        }
    }

    /// Removes an entry, what it stands for with it; a summary that was made of it goes, and what else that stood for comes back.
    pub(super) async fn remove(
        self,
        scope: &str,
        whose: &ConversationFilter,
        id: &str,
    ) -> Result<Option<EntryHit>, MemoryError> {
        let found = self.every(vec![is("scope", scope), is("id", id)]).await?;
        let Some((point, row)) = found
            .into_iter()
            .find_map(|point| Some((point.id, point.payload?)))
        else {
            return Ok(None);
        };
        let hit = row.hit();
        if !whose.holds(&hit.mark.whose) {
            return Ok(None);
        }
        let stood = self.every(vec![is("scope", scope), is("instead", id)]).await?;
        let mut gone = vec![point];
        gone.extend(stood.into_iter().map(|point| point.id));
        self.delete(&gone).await?;
        if !row.instead.is_empty() {
            self.dissolve(scope, &row.instead).await?;
        }
        Ok(Some(hit))
    }
}
