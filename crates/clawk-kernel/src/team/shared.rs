//! The store `swarm` of a run whose members share memory: `memory-store` and `memory-query` under that name.

use clawk_swarm::coord::NotShared;
use clawk_swarm::words;
use serde_json::{Value, json};

use super::SwarmTeam;
use crate::member::Member;
use crate::ports::RunError;

/// The name of the store.
pub(crate) const STORE: &str = "swarm";

/// What the model reads, and the facts beside it; an error is one that it reads, too.
pub(crate) type SharedStoreReply = Result<(String, Value), (String, Option<Value>)>;

impl SwarmTeam {
    /// The member's run shares a store.
    pub(crate) fn shares_store(&self, member: &Member) -> bool {
        self.with_coordinator(|coord| coord.shared_values(&member.task).is_some())
    }

    /// Puts a value into it; durable when this returns.
    ///
    /// # Errors
    /// It can't be recorded.
    pub(crate) async fn put_shared_value(
        &self,
        member: &Member,
        (key, value, version): (Option<String>, Value, Option<u64>),
    ) -> Result<SharedStoreReply, RunError> {
        let Some(key) = key else {
            return Ok(Err(("the store `swarm` needs a `key`".to_owned(), None)));
        };
        let mut own = 0;
        let kept = self.queue_decision(None, |coord, _| {
            let (version, effects) = coord.share_value(&member.task, &key, value, version)?;
            own = version;
            Ok::<_, NotShared>(effects)
        });
        match kept {
            Ok(durable) => match durable.await {
                Ok(Ok(())) => {
                    let facts = json!({"id": key, "store": STORE, "version": own});
                    Ok(Ok((
                        format!("stored in `{STORE}` as version {own} of `{key}`"),
                        facts,
                    )))
                }
                _ => Err(RunError::Unavailable("the value can't be recorded".to_owned())),
            },
            Err(NotShared::Conflict(newest)) => {
                let facts = json!({"error": {"code": -32031, "reason": "conflict"}, "version": newest});
                let text =
                    format!("not stored: the newest version of `{key}` is {newest}; read it and try again");
                Ok(Err((text, Some(facts))))
            }
            Err(NotShared::TooMuch(why)) => Ok(Err((format!("not stored: {why}"), None))),
            Err(NotShared::Nowhere) => Ok(Err(("your run shares no store".to_owned(), None))),
        }
    }

    /// Reads one key, or all of them where there is none of that name.
    pub(crate) fn read_shared(&self, member: &Member, key: &str) -> SharedStoreReply {
        self.with_coordinator(|coord| {
            let Some(shared) = coord.shared_values(&member.task) else {
                return Err(("your run shares no store".to_owned(), None));
            };
            let one = shared.get_key_value(key);
            let found: Vec<_> = match one {
                Some(one) => vec![one],
                None => shared.iter().collect(),
            };
            if found.is_empty() {
                return Ok((format!("nothing is in `{STORE}`"), json!({"hits": []})));
            }
            let hits: Vec<Value> = found
                .iter()
                .map(|(key, of)| json!({"id": key, "version": of.version, "member": of.member, "content": of.value}))
                .collect();
            let texts = found.iter().map(|(key, of)| {
                let value = match &of.value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                words::mark_text(&of.member, &format!("{key} (version {}): {value}", of.version))
            });
            Ok((texts.collect::<Vec<_>>().join("\n"), json!({"hits": hits})))
        })
    }
}
