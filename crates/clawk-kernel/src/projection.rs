//! Checks the journal's projections against its events (S.14): the inbox, the spending, stored answers, unknown effects. A damaged
//! projection would repeat work, or forget spending or an approval request.

use std::collections::{BTreeMap, HashMap, VecDeque};

use clawk_events::Event;
use clawk_events::shape::{BudgetUse, DryRunCost};
use clawk_proto::{MessageId, RequestId};
use uuid::Uuid;

use crate::dedup::{DedupMethod, answer_key};

use crate::effect::{self, EffectLedger};
use crate::ports::{ANSWER_KEPT_MS, AnswerKey, JournalError, OpenEffect, RecordedEvent, SpentAmount};
use crate::purse::{BudgetAmount, BudgetUnit, hour_of};
use crate::time::Timestamp;

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
    fn agrees_with(self, kept: &str) -> bool {
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
    /// Events that can't be read.
    unreadable: Vec<String>,
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
            unreadable: Vec::new(),
        }
    }

    /// Takes the next event. One that can't be read is a difference: what it changed is in no sum.
    pub fn apply_event(&mut self, recorded: &RecordedEvent) {
        self.first_hour.get_or_insert(hour_of(recorded.at));
        self.first_row = self.first_row.min(recorded.row);
        self.last_row = recorded.row;
        if let Err(error) = self.fold(recorded) {
            self.unreadable.push(error.to_string());
        }
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each kind of event, and the names of those that change nothing"
    )]
    fn fold(&mut self, recorded: &RecordedEvent) -> Result<(), JournalError> {
        match recorded.read_whole()? {
            Event::MessageAccepted(accepted) => self.apply_message(accepted.message_id, "open"),
            Event::SessionStarted(started) => {
                if let Some(turn) = started.fork.and_then(|fork| fork.turn) {
                    self.apply_message(turn, "open");
                }
            }
            Event::MessageAnswered(answered) => self.apply_message(answered.message_id, "answered"),
            Event::MessageDead(dead) => self.apply_message(dead.message_id, "dead"),
            Event::ProviderRequested(requested) => {
                self.asked.insert(requested.inference_id, requested.purses);
            }
            Event::ProviderCompleted(done) => {
                let tokens = done.input_tokens.saturating_add(done.output_tokens);
                self.apply_inference(recorded, done.inference_id, (tokens, done.cost_microusd));
                self.took(&done.took);
            }
            Event::ProviderFailed(failed) => {
                let tokens = failed.input_tokens.saturating_add(failed.output_tokens);
                self.apply_inference(recorded, failed.inference_id, (tokens, failed.cost_microusd));
                self.took(&failed.took);
            }
            Event::ActionExecuted(executed) => {
                self.apply_answer(recorded, DedupMethod::Call, &executed.request_id);
                self.took(&executed.took);
            }
            Event::ActionFailed(failed) => {
                self.apply_answer(recorded, DedupMethod::Call, &failed.request_id);
                self.took(&failed.took);
            }
            Event::ActionDenied(denied) => self.apply_answer(recorded, DedupMethod::Call, &denied.request_id),
            // With `by`, the answer is the call's.
            Event::MemoryStored(stored) => {
                if stored.by.is_none() {
                    self.apply_answer(recorded, DedupMethod::MemoryStore, &stored.request_id);
                }
            }
            Event::SwarmRun(run) => {
                if let Some(request_id) = &run.request_id {
                    self.apply_answer(recorded, DedupMethod::Delegate, request_id);
                }
            }
            Event::SwarmDelegated(delegated) => {
                if let Some(request_id) = &delegated.request_id {
                    self.apply_answer(recorded, DedupMethod::Delegate, request_id);
                }
            }
            Event::DryRunSpent(spent) => self.paid(&spent.paid),
            Event::AgentDescribed(_)
            | Event::ToolDescribed(_)
            | Event::SessionEnded(_)
            | Event::LifecycleChanged(_)
            | Event::MessageAttached(_)
            | Event::MessageFramed(_)
            | Event::MessageTools(_)
            | Event::ClientToolCalled(_)
            | Event::MessageRefused(_)
            | Event::MessageResumed(_)
            | Event::ClaimsJudged(_)
            | Event::ConversationCleared(_)
            | Event::ConversationModel(_)
            | Event::TurnStopped(_)
            | Event::DeliveryStarted(_)
            | Event::DeliveryEnded(_)
            | Event::DeliveryRequeued(_)
            | Event::ProviderAdapted(_)
            | Event::ProviderUnreachable(_)
            | Event::BudgetWarned(_)
            | Event::ActionRequested(_)
            | Event::ActionApproved(_)
            | Event::ActionAudited(_)
            | Event::EffectResolved(_)
            | Event::ContextTrimmed(_)
            | Event::ContextCompacted(_)
            | Event::ContextWritten(_)
            | Event::ContextRead(_)
            | Event::ContextTainted(_)
            | Event::ScreenSecret(_)
            | Event::ScreenInjection(_)
            | Event::ScreenInput(_)
            | Event::ScreenJudged(_)
            | Event::SkillInvoked(_)
            | Event::SkillRepaired(_)
            | Event::SkillFinished(_)
            | Event::WorldModelPlanned(_)
            | Event::WorldModelCompared(_)
            | clawk_events::approval_events!()
            | clawk_events::carp_events!()
            | clawk_events::channel_events!()
            | clawk_events::egress_events!()
            | clawk_events::memory_events!()
            | clawk_events::swarm_events!()
            | Event::Shortened { .. }
            | Event::Unknown { .. } => {}
        }
        let seen = self
            .ledger
            .apply_event(&recorded.kind, recorded.session, "", &recorded.payload);
        seen.map_err(|error| recorded.unreadable(&error))
    }

    fn apply_message(&mut self, id: Uuid, state: &'static str) {
        let told = self.inbox.entry(MessageId(id)).or_insert(ProjectedMessage {
            state: "open",
            accepted: false,
        });
        if state == "open" {
            told.accepted = true;
        } else if told.state == "open" {
            told.state = state;
        }
    }

    fn apply_answer(&mut self, event: &RecordedEvent, method: DedupMethod, request_id: &str) {
        let Ok(request_id) = RequestId::parse(request_id) else {
            return; // silent-ok: what is no id of ours has no stored answer
        };
        let key = answer_key(method, &request_id);
        if self.unseen.get(&event.row) == Some(&key) {
            self.unseen.remove(&event.row);
        }
        self.recent.push_back((key, event.row, event.at));
        let oldest = event.at.plus_millis(-ANSWER_KEPT_MS);
        while self.recent.front().is_some_and(|(_, _, at)| *at < oldest) {
            self.recent.pop_front();
        }
    }

    fn apply_inference(&mut self, event: &RecordedEvent, id: Uuid, (tokens, cost): (u64, Option<u64>)) {
        let amount = BudgetAmount {
            tokens,
            cost_microusd: cost.unwrap_or(0),
            ..BudgetAmount::default()
        };
        for purse in self.asked.remove(&id).unwrap_or_default() {
            self.spend(purse, hour_of(event.at), amount);
        }
    }

    fn took(&mut self, uses: &[BudgetUse]) {
        for took in uses {
            let amount = BudgetAmount {
                busy_ms: took.busy_ms,
                bytes_out: took.bytes_out,
                calls: took.calls,
                ..BudgetAmount::default()
            };
            self.spend(took.purse.clone(), took.hour, amount);
        }
    }

    fn paid(&mut self, costs: &[DryRunCost]) {
        for paid in costs {
            let amount = BudgetAmount {
                tokens: paid.tokens,
                cost_microusd: paid.cost_microusd,
                ..BudgetAmount::default()
            };
            self.spend(paid.purse.clone(), paid.hour, amount);
        }
    }

    fn spend(&mut self, purse: String, hour: i64, amount: BudgetAmount) {
        let sum = self.spent.entry((purse, hour)).or_default();
        *sum = sum.plus(amount);
    }

    /// The differences between the stored tables and the events, at most twenty. An empty list means that they agree.
    #[must_use]
    pub fn find_differences(self, kept: &StoredProjections) -> Vec<String> {
        let mut found = self.unreadable.clone();
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
                Some(state) if told.agrees_with(state) => {}
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
        let entries = self.ledger.into_entries();
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
