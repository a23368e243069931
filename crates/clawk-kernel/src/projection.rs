//! Checks the journal's projections against its events (S.14): the inbox, the spending, stored answers, unknown effects. A damaged
//! projection would repeat work, or forget spending or an approval request.

use std::collections::{BTreeMap, HashMap, VecDeque};

use clawk_proto::{MessageId, RequestId};
use serde::Deserialize;
use uuid::Uuid;

use crate::dedup::{DedupMethod, key};

use crate::effect::{self, EffectLedger};
use crate::event::kind;
use crate::ports::{ANSWER_KEPT_MS, AnswerKey, OpenEffect, RecordedEvent, SpentAmount};
use crate::purse::{BudgetAmount, BudgetUnit, hour_of};
use crate::time::Timestamp;
use clawk_events::shape::{BudgetUse, DryRunCost};

/// Largest number of differences that are listed.
const NAMED: usize = 20;

/// The stored projections.
#[derive(Debug, Clone, Default)]
pub struct StoredProjections {
    /// Messages and their state: `open`, `answered`, `refused` or `dead`.
    pub inbox: Vec<(MessageId, String)>,
    /// Sums by hour and budget.
    pub spent: Vec<SpentAmount>,
    /// Request keys, and the row of their stored answer.
    pub answers: Vec<(AnswerKey, u64)>,
    /// Answers before this row may be missing. They expire by a separate clock, so the events' times don't tell when.
    pub answers_since: u64,
    /// Effects with an unknown outcome.
    pub effects: Vec<OpenEffect>,
}

/// A message's state by the events.
#[derive(Debug, Clone, Copy)]
struct ProjectedMessage {
    state: &'static str,
    /// The event of its acceptance was seen, too.
    accepted: bool,
}

impl ProjectedMessage {
    /// Returns whether the stored state is the same. The details of a closed message are compared only if the events have them.
    fn agrees(self, kept: &str) -> bool {
        match kept {
            "open" | "answered" | "dead" => kept == self.state,
            _ => self.state != "open",
        }
    }
}

/// Computes the state from the events seen so far. Pass every event in the order of rows, from the first one or from a later one.
#[derive(Debug)]
pub struct ProjectionFold {
    /// The fold began with the journal's first event, so stored rows without an event are faults.
    whole: bool,
    first_hour: Option<i64>,
    inbox: BTreeMap<MessageId, ProjectedMessage>,
    /// The budgets of running model requests.
    asked: HashMap<Uuid, Vec<String>>,
    spent: BTreeMap<(String, i64), BudgetAmount>,
    ledger: EffectLedger,
    /// Answers of the last minutes, which must be stored.
    recent: VecDeque<(AnswerKey, u64, Timestamp)>,
    /// Stored answers by row, until their event is seen.
    unseen: BTreeMap<u64, AnswerKey>,
    last_row: u64,
    first_row: u64,
}

/// The payload fields from which projections are computed.
#[derive(Debug, Default, Deserialize)]
struct ProjectionFields {
    message_id: Option<Uuid>,
    inference_id: Option<Uuid>,
    #[serde(default)]
    purses: Vec<String>,
    #[serde(default)]
    input_tokens: u64,
    #[serde(default)]
    output_tokens: u64,
    cost_microusd: Option<u64>,
    #[serde(default)]
    took: Vec<BudgetUse>,
    #[serde(default)]
    paid: Vec<DryRunCost>,
    request_id: Option<RequestId>,
    /// The tool that stored entries; its call has the answer.
    by: Option<serde_json::Value>,
    fork: Option<ProjectedFork>,
}

#[derive(Debug, Deserialize)]
struct ProjectedFork {
    turn: Option<Uuid>,
}

impl ProjectionFold {
    /// Makes a fold. `whole`: the first event passed is the journal's first.
    #[must_use]
    pub fn new(kept: &StoredProjections, whole: bool) -> Self {
        Self {
            whole,
            first_hour: None,
            inbox: BTreeMap::new(),
            asked: HashMap::new(),
            spent: BTreeMap::new(),
            ledger: EffectLedger::default(),
            recent: VecDeque::new(),
            unseen: kept
                .answers
                .iter()
                .filter(|(key, _)| key.method <= DedupMethod::Delegate as u8)
                .map(|(key, row)| (*row, *key))
                .collect(),
            last_row: 0,
            first_row: u64::MAX,
        }
    }

    /// Applies the next event.
    pub fn see(&mut self, event: &RecordedEvent) {
        self.first_hour.get_or_insert(hour_of(event.at));
        self.first_row = self.first_row.min(event.row);
        self.last_row = event.row;
        let Ok(found) = serde_json::from_str::<ProjectionFields>(&event.payload) else {
            return; // silent-ok: a foreign payload changes no projection
        };
        self.message(&event.kind, &found);
        let answers = event.kind != kind::MEMORY_STORED || found.by.is_none();
        self.answer(event, found.request_id.as_ref().filter(|_| answers));
        for took in &found.took {
            let sum = self.spent.entry((took.purse.to_string(), took.hour)).or_default();
            *sum = sum.plus(BudgetAmount {
                busy_ms: took.busy_ms,
                bytes_out: took.bytes_out,
                calls: took.calls,
                ..BudgetAmount::default()
            });
        }
        for paid in found.paid.iter().filter(|_| event.kind == kind::DRY_RUN_SPENT) {
            let sum = self.spent.entry((paid.purse.to_string(), paid.hour)).or_default();
            *sum = sum.plus(BudgetAmount {
                tokens: paid.tokens,
                cost_microusd: paid.cost_microusd,
                ..BudgetAmount::default()
            });
        }
        self.inference(event, found);
        if effect::KINDS.contains(&event.kind.as_str()) {
            self.ledger.see(&event.kind, event.session, "", &event.payload);
        }
    }

    fn message(&mut self, event: &str, found: &ProjectionFields) {
        let forked = found.fork.as_ref().and_then(|fork| fork.turn);
        let (id, state) = match event {
            kind::MESSAGE_ACCEPTED => (found.message_id, "open"),
            kind::SESSION_STARTED => (forked, "open"),
            kind::MESSAGE_ANSWERED => (found.message_id, "answered"),
            kind::MESSAGE_DEAD => (found.message_id, "dead"),
            _ => return,
        };
        let Some(id) = id.map(MessageId) else { return };
        let told = self.inbox.entry(id).or_insert(ProjectedMessage {
            state: "open",
            accepted: false,
        });
        if state == "open" {
            told.accepted = true;
        } else if told.state == "open" {
            told.state = state;
        }
    }

    fn answer(&mut self, event: &RecordedEvent, request_id: Option<&RequestId>) {
        let method = match event.kind.as_str() {
            kind::ACTION_EXECUTED | kind::ACTION_FAILED | kind::ACTION_DENIED => DedupMethod::Call,
            kind::MEMORY_STORED => DedupMethod::MemoryStore,
            kind::SWARM_RUN | kind::SWARM_DELEGATED => DedupMethod::Delegate,
            _ => return,
        };
        let Some(request_id) = request_id else { return };
        let key = key(method, request_id);
        if self.unseen.get(&event.row) == Some(&key) {
            self.unseen.remove(&event.row);
        }
        self.recent.push_back((key, event.row, event.at));
        let oldest = event.at.plus_millis(-ANSWER_KEPT_MS);
        while self.recent.front().is_some_and(|(_, _, at)| *at < oldest) {
            self.recent.pop_front();
        }
    }

    fn inference(&mut self, event: &RecordedEvent, found: ProjectionFields) {
        let Some(id) = found.inference_id else { return };
        match event.kind.as_str() {
            kind::PROVIDER_REQUESTED => {
                self.asked.insert(id, found.purses);
            }
            kind::PROVIDER_COMPLETED | kind::PROVIDER_FAILED => {
                let hour = hour_of(event.at);
                let amount = BudgetAmount {
                    tokens: found.input_tokens.saturating_add(found.output_tokens),
                    cost_microusd: found.cost_microusd.unwrap_or(0),
                    ..BudgetAmount::default()
                };
                for purse in self.asked.remove(&id).unwrap_or_default() {
                    let sum = self.spent.entry((purse, hour)).or_default();
                    *sum = sum.plus(amount);
                }
            }
            _ => {}
        }
    }

    /// The differences between the stored tables and the events, at most twenty. An empty list means that they agree.
    #[must_use]
    pub fn differences(self, kept: &StoredProjections) -> Vec<String> {
        let mut found = Vec::new();
        self.inbox_differs(kept, &mut found);
        self.spent_differs(kept, &mut found);
        self.answers_differ(kept, &mut found);
        self.effects_differ(kept, &mut found);
        found.truncate(NAMED);
        found
    }

    fn inbox_differs(&self, kept: &StoredProjections, found: &mut Vec<String>) {
        let have: HashMap<MessageId, &str> = kept
            .inbox
            .iter()
            .map(|(id, state)| (*id, state.as_str()))
            .collect();
        for (id, told) in self.inbox.iter().filter(|(_, told)| told.accepted) {
            match have.get(id) {
                Some(state) if told.agrees(state) => {}
                Some(state) => found.push(format!(
                    "inbox: message {id} is kept as `{state}`, the events say `{}`",
                    told.state
                )),
                None => found.push(format!(
                    "inbox: message {id} is not there, the events say `{}`",
                    told.state
                )),
            }
        }
        let strange = have.keys().filter(|id| !self.inbox.contains_key(id));
        found.extend(
            strange
                .filter(|_| self.whole)
                .map(|id| format!("inbox: message {id} has no event")),
        );
    }

    /// Compares sums from their end, because an amount is counted in its event's hour or a moment later.
    fn spent_differs(&self, kept: &StoredProjections, found: &mut Vec<String>) {
        let since = |purse: &str, hour: i64| {
            let rows = kept.spent.iter().filter(move |spent| spent.hour >= hour);
            rows.filter(|spent| &*spent.purse == purse)
                .fold(BudgetAmount::default(), |sum, spent| sum.plus(spent.amount))
        };
        let mut told: BTreeMap<&str, BudgetAmount> = BTreeMap::new();
        for ((purse, hour), sum) in self.spent.iter().rev() {
            // The first hour of a partial fold is incomplete.
            if !self.whole && self.first_hour.is_none_or(|first| *hour <= first) {
                continue;
            }
            let told = told.entry(purse).or_default();
            *told = told.plus(*sum);
            let have = since(purse, *hour);
            for unit in BudgetUnit::ALL {
                let (kept, said) = (have.get(unit), told.get(unit));
                if kept < said {
                    let unit = unit.name();
                    found.push(format!(
                        "spent: purse `{purse}` since hour {hour}: {kept} {unit} are kept, the events say {said}"
                    ));
                }
            }
        }
    }

    fn answers_differ(&self, kept: &StoredProjections, found: &mut Vec<String>) {
        let have: HashMap<AnswerKey, u64> = kept.answers.iter().copied().collect();
        let newest: HashMap<AnswerKey, u64> = self.recent.iter().map(|(key, row, _)| (*key, *row)).collect();
        let named = |key: &AnswerKey| Uuid::from_bytes(key.request_id);
        for (key, row) in newest.into_iter().filter(|(_, row)| *row >= kept.answers_since) {
            if have.get(&key).is_none_or(|kept| *kept < row) {
                found.push(format!(
                    "answers: the answer to request {} in row {row} is not found",
                    named(&key)
                ));
            }
        }
        for (row, key) in self
            .unseen
            .iter()
            .filter(|(row, _)| **row >= self.first_row || self.whole)
        {
            found.push(format!(
                "answers: row {row} is kept as the answer to request {}, and its event is none",
                named(key)
            ));
        }
    }

    fn effects_differ(self, kept: &StoredProjections, found: &mut Vec<String>) {
        let mut strange: BTreeMap<RequestId, &str> = kept
            .effects
            .iter()
            .map(|effect| (effect.request_id.clone(), effect.tool.as_str()))
            .collect();
        let entries = self.ledger.entries();
        for entry in entries {
            let here = strange.remove(&entry.request_id).is_some();
            if here != (entry.state == effect::State::Unknown) {
                found.push(if here {
                    format!(
                        "effects: {} of `{}` is kept as unknown, the events say what became of it",
                        entry.request_id.as_str(),
                        entry.tool
                    )
                } else {
                    format!(
                        "effects: {} of `{}` is unknown by the events, and not kept as such",
                        entry.request_id.as_str(),
                        entry.tool
                    )
                });
            }
        }
        found.extend(
            strange
                .into_iter()
                .filter(|_| self.whole)
                .map(|(id, tool)| format!("effects: {} of `{tool}` has no event", id.as_str())),
        );
    }
}
