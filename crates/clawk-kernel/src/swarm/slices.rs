//! The budgets of runs and their tasks: slices of other budgets, and the amounts spent before a restart or in an earlier attempt.

use std::collections::HashMap;
use std::sync::Arc;

use clawk_proto::SessionId;
use clawk_swarm::coord::{TaskConstraints, TaskId, TryStart, TryUsage};

use super::{SwarmServices, lock};
use crate::purse::{BudgetAccount, BudgetAmount};
use crate::team::Origin;

/// The slices of all tasks.
#[derive(Debug, Default)]
pub(super) struct TaskSlices {
    /// Slices in use, or that pay for a subtask in use.
    open: HashMap<TaskId, TaskSlice>,
    /// By run: the amount that each inactive task has spent of its slice, including its subtasks.
    spent: HashMap<TaskId, HashMap<TaskId, BudgetAmount>>,
    /// By task: the amount that its subtasks spent of its slice before a restart.
    below: HashMap<TaskId, BudgetAmount>,
    /// By session: the part of its earlier spending that is already reported.
    told: HashMap<SessionId, BudgetAmount>,
    /// The earlier spending on each run, and the part of it on tasks that have not ended.
    runs: HashMap<TaskId, (BudgetAmount, BudgetAmount)>,
    /// The amounts counted before a restart for attempts elsewhere, of tasks that have not ended.
    settled: HashMap<(TaskId, u32), TryUsage>,
    /// By session with open runs: its earlier spending, without tasks that have not ended.
    givers: HashMap<SessionId, BudgetAmount>,
}

#[derive(Debug)]
struct TaskSlice {
    purse: BudgetAccount,
    holders: usize,
}

/// The spending on one run before a restart.
#[derive(Debug, Default)]
pub(super) struct EarlierRunSpending {
    /// By task, including its subtasks.
    pub(super) spent: HashMap<TaskId, BudgetAmount>,
    /// By task, its subtasks only.
    pub(super) below: HashMap<TaskId, BudgetAmount>,
    /// The part that is already reported, by session.
    pub(super) told: HashMap<SessionId, BudgetAmount>,
    /// The spending of all tasks.
    pub(super) whole: BudgetAmount,
    /// The spending of tasks that have not ended.
    pub(super) open: BudgetAmount,
    /// The amounts already counted for attempts elsewhere, of tasks that have not ended.
    pub(super) settled: HashMap<(TaskId, u32), TryUsage>,
}

impl TaskSlices {
    /// Counts the spending before a restart. Its slices are opened later.
    pub(super) fn add_earlier_spending(&mut self, run: &TaskId, before: EarlierRunSpending) {
        self.spent.insert(run.clone(), before.spent);
        self.below.extend(before.below);
        self.told.extend(before.told);
        self.runs.insert(run.clone(), (before.whole, before.open));
        self.settled.extend(before.settled);
    }

    /// Stores the earlier spending of a session that gave runs.
    pub(super) fn recall_giver(&mut self, session: SessionId, spent: BudgetAmount) {
        self.givers.insert(session, spent);
    }

    /// Returns the earlier spending of a session that gave runs; `None`: it has given none.
    pub(super) fn of_giver(&self, session: SessionId) -> Option<BudgetAmount> {
        self.givers.get(&session).copied()
    }

    /// Takes the amount counted before a restart for an attempt elsewhere. It is returned once.
    pub(super) fn take_settled_usage(&mut self, task: &TaskId, attempt: u32) -> Option<TryUsage> {
        self.settled.remove(&(task.clone(), attempt))
    }

    /// Takes the earlier spending on a run, and the part of it on tasks that have not ended. It is returned once.
    pub(super) fn of_run(&mut self, run: &TaskId) -> (BudgetAmount, BudgetAmount) {
        self.runs.remove(run).unwrap_or_default() // silent-ok: nothing was spent on it
    }

    /// Forgets a run that has ended.
    pub(super) fn forget_run(&mut self, run: &TaskId) {
        for task in self.spent.remove(run).into_iter().flat_map(HashMap::into_keys) {
            self.below.remove(&task);
            self.settled.retain(|(of, _), _| *of != task);
        }
    }

    /// Reduces the amount counted for a task's slice. Returns the budget that gets the rest, if the slice is open.
    fn give_back(&mut self, run: &TaskId, task: &TaskId, amount: BudgetAmount) -> Option<BudgetAccount> {
        if let Some(slice) = self.open.get(task) {
            return Some(slice.purse.clone());
        }
        if let Some(spent) = self.spent.get_mut(run).and_then(|of| of.get_mut(task)) {
            *spent = spent.minus(amount);
        }
        None
    }

    /// Takes the amount that a session's budget must count although the session did not spend it, and the reported part of its own
    /// spending. It is returned once.
    pub(super) fn take_earlier_spending(
        &mut self,
        task: &TaskId,
        session: SessionId,
    ) -> (BudgetAmount, BudgetAmount) {
        let below = self.below.remove(task).unwrap_or_default(); // silent-ok: nothing was spent below it
        let told = self.told.remove(&session).unwrap_or_default(); // silent-ok: nothing of it is reported
        (below, told)
    }

    fn open_slice(
        &mut self,
        run: &TaskId,
        task: &TaskId,
        holders: usize,
        make: impl FnOnce() -> BudgetAccount,
    ) -> BudgetAccount {
        let before = self.spent.get(run).and_then(|of| of.get(task)).copied();
        let slice = self.open.entry(task.clone()).or_insert_with(|| {
            let purse = make();
            purse.add_earlier_spending(before.unwrap_or_default()); // silent-ok: nothing was spent before
            TaskSlice { purse, holders: 0 }
        });
        slice.holders += holders;
        slice.purse.clone()
    }

    fn release_slice(&mut self, run: &TaskId, task: &TaskId) {
        let Some(slice) = self.open.get_mut(task) else {
            return;
        };
        slice.holders = slice.holders.saturating_sub(1);
        if slice.holders == 0
            && let Some(slice) = self.open.remove(task)
        {
            let of = self.spent.entry(run.clone()).or_default();
            of.insert(task.clone(), slice.purse.spent_amount());
        }
    }
}

/// Keeps a task's slice and the slices above it open while the task is worked on.
#[derive(Debug)]
pub(super) struct TaskSliceGuard {
    peers: Arc<SwarmServices>,
    run: TaskId,
    line: Vec<TaskId>,
}

impl Drop for TaskSliceGuard {
    fn drop(&mut self) {
        let mut slices = lock(&self.peers.slices);
        for task in &self.line {
            slices.release_slice(&self.run, task);
        }
        // The run has ended meanwhile, so nobody needs it.
        if !lock(&self.peers.purses).contains_key(&self.run) {
            slices.forget_run(&self.run);
        }
    }
}

/// Opens the slice of a task and holds it.
pub(super) fn hold_slice(peers: &Arc<SwarmServices>, start: &TryStart, origin: Origin) -> TaskSliceGuard {
    let line = asker_chain(peers, start);
    open_slices(peers, (start, &line), origin, 1);
    TaskSliceGuard {
        peers: Arc::clone(peers),
        run: start.run.clone(),
        line: line.into_iter().map(|(task, _)| task).collect(),
    }
}

/// Returns the task, its asker, that one's asker, and so on.
fn asker_chain(peers: &SwarmServices, start: &TryStart) -> Vec<(TaskId, TaskConstraints)> {
    let mut line = vec![(start.task.clone(), start.wish.clone())];
    let Some(team) = &peers.calls.team else {
        return line;
    };
    team.with_coordinator(|coord| {
        let mut next = start.asker.clone();
        while let Some(task) = next.take().and_then(|asker| coord.task(&asker)) {
            // A task can't be its own ancestor. A record that says so ends the list here.
            if line.iter().any(|(known, _)| known == task.id()) {
                break;
            }
            line.push((task.id().clone(), task.new.wish.clone()));
            next.clone_from(&task.new.parent);
        }
    });
    line
}

/// Returns the unused part of an assumed amount to the run, if it continues.
pub(super) fn give_back(peers: &SwarmServices, run: &TaskId, task: &TaskId, amount: BudgetAmount) {
    let open = lock(&peers.slices).give_back(run, task, amount);
    let purse = open.or_else(|| lock(&peers.purses).get(run).cloned());
    if let Some(purse) = purse {
        purse.give_back(amount);
    }
}

/// Returns the budget of a task: a slice of its asker's, or of the run's.
pub(super) fn task_account(peers: &SwarmServices, start: &TryStart, origin: Origin) -> BudgetAccount {
    open_slices(peers, (start, &asker_chain(peers, start)), origin, 0)
}

/// Opens the slices from the run downwards, each with more holders.
fn open_slices(
    peers: &SwarmServices,
    (start, line): (&TryStart, &[(TaskId, TaskConstraints)]),
    origin: Origin,
    holders: usize,
) -> BudgetAccount {
    let mut above = peers.purse_of(&start.run, origin);
    let mut own = above.clone();
    for (task, wish) in line.iter().rev() {
        let wish = (wish.tokens, wish.cost_microusd);
        own = lock(&peers.slices).open_slice(&start.run, task, holders, || {
            let now = peers.scribe.now();
            peers.calls.purses.task_account(&above, task.as_str(), wish, now)
        });
        let session = lock(&peers.tries).get(task).map(|running| running.session);
        let state = session.and_then(|session| peers.sessions.table.get(session));
        above = state.map_or_else(|| own.clone(), |state| state.purse.clone());
    }
    own
}
