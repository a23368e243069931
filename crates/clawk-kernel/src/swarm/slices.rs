//! What pays for runs and their tasks: slices of purses, and what was spent of each before a restart or in an earlier try.

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
    /// Those that somebody works on, or that pay for a task below.
    open: HashMap<TaskId, TaskSlice>,
    /// By run: what each task that nobody works on now has spent of its slice so far. This includes the tasks below it.
    spent: HashMap<TaskId, HashMap<TaskId, BudgetAmount>>,
    /// By task: what the tasks below it spent of its slice before a restart.
    below: HashMap<TaskId, BudgetAmount>,
    /// By session: the part of its spending before a restart that is reported already.
    told: HashMap<SessionId, BudgetAmount>,
    /// What was spent on each run before a restart, and of that, on tasks that have not ended.
    runs: HashMap<TaskId, (BudgetAmount, BudgetAmount)>,
    /// What was counted before a restart for tries that others work on, of tasks that have not ended.
    settled: HashMap<(TaskId, u32), TryUsage>,
    /// By session that gave runs which have not ended: what it had spent before a restart, without tasks that have not ended.
    givers: HashMap<SessionId, BudgetAmount>,
}

#[derive(Debug)]
struct TaskSlice {
    purse: BudgetAccount,
    holders: usize,
}

/// What was spent before a restart, of one run.
#[derive(Debug, Default)]
pub(super) struct EarlierRunSpending {
    /// By task, with the tasks below it.
    pub(super) spent: HashMap<TaskId, BudgetAmount>,
    /// By task, the tasks below it alone.
    pub(super) below: HashMap<TaskId, BudgetAmount>,
    /// What is reported already, by session.
    pub(super) told: HashMap<SessionId, BudgetAmount>,
    /// By all tasks.
    pub(super) whole: BudgetAmount,
    /// By those that have not ended.
    pub(super) open: BudgetAmount,
    /// What was counted already for tries that others work on, of tasks that have not ended.
    pub(super) settled: HashMap<(TaskId, u32), TryUsage>,
}

impl TaskSlices {
    /// Counts what was spent before a restart. The slices that it was spent of are opened later.
    pub(super) fn recall(&mut self, run: &TaskId, before: EarlierRunSpending) {
        self.spent.insert(run.clone(), before.spent);
        self.below.extend(before.below);
        self.told.extend(before.told);
        self.runs.insert(run.clone(), (before.whole, before.open));
        self.settled.extend(before.settled);
    }

    /// Keeps what a session that gave runs had spent before a restart.
    pub(super) fn recall_giver(&mut self, session: SessionId, spent: BudgetAmount) {
        self.givers.insert(session, spent);
    }

    /// What a session that gave runs had spent before a restart; none: it has given none.
    pub(super) fn of_giver(&self, session: SessionId) -> Option<BudgetAmount> {
        self.givers.get(&session).copied()
    }

    /// What was counted already, before a restart, for a try that others work on: once.
    pub(super) fn settled(&mut self, task: &TaskId, attempt: u32) -> Option<TryUsage> {
        self.settled.remove(&(task.clone(), attempt))
    }

    /// What was spent on a run before a restart, and of that, on tasks that have not ended: once.
    pub(super) fn of_run(&mut self, run: &TaskId) -> (BudgetAmount, BudgetAmount) {
        self.runs.remove(run).unwrap_or_default() // silent-ok: nothing was spent on it
    }

    /// Forgets a run that has ended.
    pub(super) fn forget(&mut self, run: &TaskId) {
        for task in self.spent.remove(run).into_iter().flat_map(HashMap::into_keys) {
            self.below.remove(&task);
            self.settled.retain(|(of, _), _| *of != task);
        }
    }

    /// Counts so much less of a task's slice. Returns the purse that the rest is given back to, if the slice is open.
    fn give_back(&mut self, run: &TaskId, task: &TaskId, amount: BudgetAmount) -> Option<BudgetAccount> {
        if let Some(slice) = self.open.get(task) {
            return Some(slice.purse.clone());
        }
        if let Some(spent) = self.spent.get_mut(run).and_then(|of| of.get_mut(task)) {
            *spent = spent.minus(amount);
        }
        None
    }

    /// What a session's purse has to count that is not the session's own, and how much of the session's own is reported: once.
    pub(super) fn before(&mut self, task: &TaskId, session: SessionId) -> (BudgetAmount, BudgetAmount) {
        let below = self.below.remove(task).unwrap_or_default(); // silent-ok: nothing was spent below it
        let told = self.told.remove(&session).unwrap_or_default(); // silent-ok: nothing of it is reported
        (below, told)
    }

    fn open(
        &mut self,
        run: &TaskId,
        task: &TaskId,
        holders: usize,
        make: impl FnOnce() -> BudgetAccount,
    ) -> BudgetAccount {
        let before = self.spent.get(run).and_then(|of| of.get(task)).copied();
        let slice = self.open.entry(task.clone()).or_insert_with(|| {
            let purse = make();
            purse.recall(before.unwrap_or_default()); // silent-ok: nothing was spent before
            TaskSlice { purse, holders: 0 }
        });
        slice.holders += holders;
        slice.purse.clone()
    }

    fn release(&mut self, run: &TaskId, task: &TaskId) {
        let Some(slice) = self.open.get_mut(task) else {
            return;
        };
        slice.holders = slice.holders.saturating_sub(1);
        if slice.holders == 0
            && let Some(slice) = self.open.remove(task)
        {
            let of = self.spent.entry(run.clone()).or_default();
            of.insert(task.clone(), slice.purse.spent());
        }
    }
}

/// A task that is worked on: its slice, and those above it, stay open for as long.
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
            slices.release(&self.run, task);
        }
        // The run has ended meanwhile: nobody asks again.
        if !lock(&self.peers.purses).contains_key(&self.run) {
            slices.forget(&self.run);
        }
    }
}

/// Opens the slice of a task, and holds it.
pub(super) fn hold(peers: &Arc<SwarmServices>, start: &TryStart, origin: Origin) -> TaskSliceGuard {
    let line = line(peers, start);
    opened(peers, (start, &line), origin, 1);
    TaskSliceGuard {
        peers: Arc::clone(peers),
        run: start.run.clone(),
        line: line.into_iter().map(|(task, _)| task).collect(),
    }
}

/// The task, who asked for it, who asked for that one, and so on.
fn line(peers: &SwarmServices, start: &TryStart) -> Vec<(TaskId, TaskConstraints)> {
    let mut line = vec![(start.task.clone(), start.wish.clone())];
    let Some(team) = &peers.calls.team else {
        return line;
    };
    team.look(|coord| {
        let mut next = start.asker.clone();
        while let Some(task) = next.take().and_then(|asker| coord.task(&asker)) {
            // No task is its own asker's asker; a record that says so ends here.
            if line.iter().any(|(known, _)| known == task.id()) {
                break;
            }
            line.push((task.id().clone(), task.new.wish.clone()));
            next.clone_from(&task.new.parent);
        }
    });
    line
}

/// A task's try has used so much less than was assumed: its run, if it goes on, has that again.
pub(super) fn give_back(peers: &SwarmServices, run: &TaskId, task: &TaskId, amount: BudgetAmount) {
    let open = lock(&peers.slices).give_back(run, task, amount);
    let purse = open.or_else(|| lock(&peers.purses).get(run).cloned());
    if let Some(purse) = purse {
        purse.give_back(amount);
    }
}

/// The purse of a task: a slice of its asker's, or of the run's.
pub(super) fn purse(peers: &SwarmServices, start: &TryStart, origin: Origin) -> BudgetAccount {
    opened(peers, (start, &line(peers, start)), origin, 0)
}

/// Opens the slices of a line from the run downwards, for so many more holders each.
fn opened(
    peers: &SwarmServices,
    (start, line): (&TryStart, &[(TaskId, TaskConstraints)]),
    origin: Origin,
    holders: usize,
) -> BudgetAccount {
    let mut above = peers.purse_of(&start.run, origin);
    let mut own = above.clone();
    for (task, wish) in line.iter().rev() {
        let wish = (wish.tokens, wish.cost_microusd);
        own = lock(&peers.slices).open(&start.run, task, holders, || {
            let now = peers.scribe.now();
            peers.calls.purses.task(&above, task.as_str(), wish, now)
        });
        let session = lock(&peers.tries).get(task).map(|running| running.session);
        let state = session.and_then(|session| peers.sessions.table.get(session));
        above = state.map_or_else(|| own.clone(), |state| state.purse.clone());
    }
    own
}
