//! Budgets as one purse: what the whole tree of agent, sessions, turns, skills, composite tools and delegated tasks may use
//! up is set aside before and settled after. A child's purse is a slice of its parent's: whatever it spends, every purse
//! above it has spent as well.
//!
//! What is set aside lives in memory and dies with the process; what was spent is kept by the journal, in the commit of the
//! event that says so. An inference that was under way when the process died is settled at what was set aside for it.

mod amount;
mod book;
mod limit;
mod model;
mod price;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_manifest::model::{Manifest, Policy, SwarmLimits};

pub use amount::{BudgetAmount, BudgetUnit};
pub use book::{BudgetReservation, BudgetWarning};
pub use limit::{BudgetAllowance, BudgetSettings, NamedBudget, UnpricedRule, Window, hour_of, hour_start};
pub use model::{AttemptReservation, NoRoom};
pub use price::{PriceTable, TokenPrice, UnknownPriceRule, UnknownWord};
pub use report::{BudgetAccountState, BudgetReport, LimitState, ModelPrice};

use book::{BudgetAccountId, BudgetLedger};
use limit::Limit;
use model::ModelBudget;

use crate::error::CallError;
use crate::ports::SpentAmount;
use crate::retry_policy::ModelOptions;
use crate::time::Timestamp;

/// One account of the tree. Clones are cheap and share it; it is closed when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct BudgetAccount(Arc<BudgetAccountInner>);

#[derive(Debug)]
struct BudgetAccountInner {
    book: Arc<BudgetLedger>,
    id: BudgetAccountId,
    /// This account, those beside it, and all above.
    path: Arc<[BudgetAccountId]>,
    parent: Option<BudgetAccount>,
}

impl Drop for BudgetAccountInner {
    fn drop(&mut self) {
        self.book.close_account(self.id);
    }
}

impl BudgetAccount {
    /// A slice of this purse. What it spends is counted in the accounts `beside` it, too.
    fn open_child(
        &self,
        label: String,
        limits: Vec<Limit>,
        beside: &[BudgetAccountId],
        now: Timestamp,
    ) -> Self {
        let book = &self.0.book;
        let id = book.open_account(Some(self.0.id), label, limits, None, now);
        let beside = beside.iter().filter(|side| !self.0.path.contains(side));
        let path = [id].iter().chain(beside).chain(&*self.0.path).copied().collect();
        Self(Arc::new(BudgetAccountInner {
            book: Arc::clone(book),
            id,
            path,
            parent: Some(self.clone()),
        }))
    }

    /// What it has spent since it was opened.
    pub fn spent_amount(&self) -> BudgetAmount {
        self.0.book.total_spent(self.0.id)
    }

    /// Takes this amount off the count, here and in the purses above: it was assumed to be spent, and was not. Of purses that outlive a
    /// restart (the agent's days and months), [`BudgetTree::take_back`] takes it.
    pub fn give_back(&self, amount: BudgetAmount) {
        self.0.book.refund_amount(&self.0.path, amount);
    }

    /// The purse that this one is a slice of.
    pub fn parent_account(&self) -> Option<&Self> {
        self.0.parent.as_ref()
    }

    /// Counts what was spent from it before it was opened; the purses above know it already.
    pub fn add_earlier_spending(&self, amount: BudgetAmount) {
        self.0.book.add_earlier_spending(self.0.id, amount);
    }
}

/// The accounts of a tool or skill that has budgets of its own.
#[derive(Debug)]
struct NamedBudgetAccounts {
    day: BudgetAccountId,
    run: BudgetAllowance,
}

/// What was set aside for a task that others work on; none: not limited.
#[derive(Debug)]
pub struct BudgetShare {
    /// What is set aside.
    pub reservation: BudgetReservation,
    /// Tokens at most.
    pub tokens: Option<u64>,
    /// Millionths of a dollar at most.
    pub cost_microusd: Option<u64>,
}

/// All purses of an agent.
#[derive(Debug)]
pub struct BudgetTree {
    book: Arc<BudgetLedger>,
    root: BudgetAccount,
    models: BTreeMap<String, ModelBudget>,
    /// What embedding models of stores cost, by model.
    embedders: BTreeMap<String, price::PriceQuote>,
    tools: BTreeMap<String, NamedBudgetAccounts>,
    skills: BTreeMap<String, NamedBudgetAccounts>,
    budgets: BudgetSettings,
    /// When the catalogue of models was gathered.
    catalogue_date: String,
    /// A rule of a policy looks at money.
    rules_count_money: bool,
}

/// What a tool is to its purse.
#[derive(Debug, Clone, Copy)]
pub struct CallBudgetRequest<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// The skill of a composite tool, and what it is said to take.
    pub skill: Option<&'a str>,
    /// Tokens that an inner turn is said to take.
    pub tokens: u64,
    /// How long it may take, milliseconds.
    pub timeout_ms: u64,
    /// Bytes that leave this host.
    pub bytes_out: u64,
    /// The provider whose day must not be used up.
    pub provider: &'a str,
}

/// A call's place in the purse.
#[derive(Debug)]
pub struct CallBudget {
    /// What is set aside.
    pub reservation: BudgetReservation,
    /// What an inner turn draws from.
    pub purse: BudgetAccount,
    /// How long it may take, milliseconds.
    pub timeout_ms: u64,
    /// It has an inner turn.
    pub composite: bool,
}

impl CallBudget {
    /// What a call took that ran so long. An inner turn's own work has been counted where it was done.
    pub fn amount_taken(&self, duration_ms: u64) -> BudgetAmount {
        BudgetAmount {
            calls: 1,
            busy_ms: if self.composite { 0 } else { duration_ms },
            bytes_out: self.reservation.amount.bytes_out,
            ..BudgetAmount::default()
        }
    }
}

impl BudgetTree {
    /// `local`: what is local about asking a model, and what models cost.
    pub fn new(
        manifest: &Manifest,
        budgets: &BudgetSettings,
        (prices, local): (&PriceTable, &BTreeMap<String, ModelOptions>),
        now: Timestamp,
    ) -> Self {
        let book = BudgetLedger::new(budgets.warn_at_percent);
        let mut limits = limit::limits_from_allowance(&budgets.day, Window::Day, "budgets.day");
        limits.extend(limit::limits_from_allowance(
            &budgets.month,
            Window::Month,
            "budgets.month",
        ));
        limits.extend(manifest.policies.iter().flat_map(of_policy));
        // Counted in any case: rules ask for them, and people.
        for unit in [BudgetUnit::Tokens, BudgetUnit::CostMicrousd] {
            for window in [Window::Hour, Window::Day, Window::Month] {
                limits.push(Limit {
                    unit,
                    window,
                    bound: u64::MAX,
                    scope: String::new(),
                    name: String::new(),
                });
            }
        }
        let id = book.open_account(None, "agent".to_owned(), limits, Some("agent".to_owned()), now);
        let root = BudgetAccount(Arc::new(BudgetAccountInner {
            book: Arc::clone(&book),
            id,
            path: [id].into(),
            parent: None,
        }));
        let models = manifest.providers.iter();
        let models = models.map(|spec| {
            (
                spec.name.clone(),
                ModelBudget::new(&book, spec, (prices, local, budgets.unpriced), now),
            )
        });
        let own = |what: &str, named: &BTreeMap<String, NamedBudget>| {
            let open = |(name, given): (&String, &NamedBudget)| {
                let prefix = format!("budgets.{what}s.{name}.day");
                let limits = limit::limits_from_allowance(&given.day, Window::Day, &prefix);
                let label = format!("{what} {name}");
                let day = book.open_account(Some(id), label, limits, Some(format!("{what}:{name}")), now);
                let run = given.run.clone();
                (name.clone(), NamedBudgetAccounts { day, run })
            };
            named.iter().map(open).collect()
        };
        let rules = manifest.policies.iter().flat_map(|policy| &policy.rules);
        let mut rates = rules.filter_map(|rule| rule.rate_limit.as_ref());
        let stores = manifest.memory.iter().flat_map(|memory| &memory.stores);
        let embedders = stores.filter_map(|store| store.embedding.as_ref());
        Self {
            embedders: embedders
                .map(|embedding| (embedding.model.clone(), prices.quote_price(&embedding.model)))
                .collect(),
            models: models.collect(),
            tools: own("tool", &budgets.tools),
            skills: own("skill", &budgets.skills),
            rules_count_money: rates.any(|rate| rate.cost_per_day_usd.is_some()),
            budgets: budgets.clone(),
            catalogue_date: prices.catalogue.date().to_owned(),
            root,
            book,
        }
    }

    /// What every model costs, by provider.
    fn model_prices(&self) -> Vec<ModelPrice> {
        let models = self.models.iter();
        models
            .map(|(provider, model)| model.model_price(provider))
            .collect()
    }

    /// What is wrong with the budgets of `clawk.toml`: names that the manifest does not know.
    pub fn find_faults(manifest: &Manifest, budgets: &BudgetSettings) -> Vec<String> {
        let tools = budgets.tools.keys().filter(|name| manifest.tool(name).is_none());
        let skills = budgets
            .skills
            .keys()
            .filter(|name| manifest.skill(name).is_none());
        let percent = (budgets.warn_at_percent > 100)
            .then(|| "`[budgets] warn_at_percent` is more than 100".to_owned());
        let fault = |what: &str, name: &String| {
            format!("`[budgets.{what}s.{name}]` of clawk.toml: the manifest has no such {what}")
        };
        tools
            .map(|name| fault("tool", name))
            .chain(skills.map(|name| fault("skill", name)))
            .chain(percent)
            .collect()
    }

    /// The agent's own purse.
    pub const fn root_account(&self) -> &BudgetAccount {
        &self.root
    }

    /// The ledger behind all accounts.
    pub(crate) const fn ledger(&self) -> &Arc<BudgetLedger> {
        &self.book
    }

    /// The settings.
    pub const fn budgets(&self) -> &BudgetSettings {
        &self.budgets
    }

    /// A session's purse; a delegated task's is a slice of its asker's.
    pub fn session_account(&self, parent: &BudgetAccount, id: &str, now: Timestamp) -> BudgetAccount {
        let limits = limit::limits_from_allowance(&self.budgets.session, Window::Whole, "budgets.session");
        parent.open_child(format!("session {id}"), limits, &[], now)
    }

    /// The purse of a swarm's run: everybody who works on it pays from it.
    pub fn run(
        &self,
        parent: &BudgetAccount,
        id: &str,
        limits: &SwarmLimits,
        now: Timestamp,
    ) -> BudgetAccount {
        let tokens = limits
            .max_total_tokens
            .map(|bound| (BudgetUnit::Tokens, SWARM_TOKENS, bound));
        let money = limits.max_total_cost_usd.map(|usd| {
            // What can't be counted in millionths is no money at all.
            (
                BudgetUnit::CostMicrousd,
                SWARM_COST,
                clawk_policy::micro_usd(usd).unwrap_or(0),
            )
        });
        let limits = limits_of(tokens.into_iter().chain(money));
        parent.open_child(format!("swarm {id}"), limits, &[], now)
    }

    /// The purse of a task of a run: at most what who asked for it gives it.
    pub fn task_account(
        &self,
        parent: &BudgetAccount,
        id: &str,
        (tokens, cost): (Option<u64>, Option<u64>),
        now: Timestamp,
    ) -> BudgetAccount {
        let tokens = tokens.map(|bound| (BudgetUnit::Tokens, TASK_TOKENS, bound));
        let money = cost.map(|bound| (BudgetUnit::CostMicrousd, TASK_COST, bound));
        let limits = limits_of(tokens.into_iter().chain(money));
        parent.open_child(format!("task {id}"), limits, &[], now)
    }

    /// Sets aside what a task may use up that others work on: its wish, else its part of what is left; nothing where nothing is
    /// limited.
    ///
    /// # Errors
    /// -32021: nothing is left.
    pub fn reserve_remote_share(
        &self,
        purse: &BudgetAccount,
        wanted: (Option<u64>, Option<u64>, u64),
        now: Timestamp,
    ) -> Result<BudgetShare, CallError> {
        self.reserve_share(Arc::clone(&purse.0.path), wanted, now)
    }

    /// The same for a run that another host of this agent pays for: it counts in the agent's own purses there, so only what is below
    /// them is set aside.
    ///
    /// # Errors
    /// -32021: nothing is left.
    pub fn reserve_run_share(
        &self,
        purse: &BudgetAccount,
        parts: u64,
        now: Timestamp,
    ) -> Result<BudgetShare, CallError> {
        let path = purse.0.path.iter().filter(|id| **id != self.root.0.id).copied();
        self.reserve_share(path.collect(), (None, None, parts), now)
    }

    fn reserve_share(
        &self,
        path: Arc<[BudgetAccountId]>,
        (tokens, cost, parts): (Option<u64>, Option<u64>, u64),
        now: Timestamp,
    ) -> Result<BudgetShare, CallError> {
        let part = |left: u64, wish: Option<u64>, unit: BudgetUnit| match (left, wish) {
            (0, _) => Err((unit, 1)),
            (u64::MAX, wish) => Ok(wish),
            (left, Some(wish)) => Ok(Some(wish.min(left))),
            (left, None) => Ok(Some((left / parts.max(1)).max(1))),
        };
        let (mut of_tokens, mut of_cost) = (None, None);
        let reservation = self.book.reserve_amount(path, now, |left| {
            of_tokens = part(left.tokens, tokens, BudgetUnit::Tokens)?;
            of_cost = part(left.cost_microusd, cost, BudgetUnit::CostMicrousd)?;
            Ok(BudgetAmount {
                tokens: of_tokens.unwrap_or(0),
                cost_microusd: of_cost.unwrap_or(0),
                ..BudgetAmount::default()
            })
        })?;
        Ok(BudgetShare {
            reservation,
            tokens: of_tokens,
            cost_microusd: of_cost,
        })
    }

    /// Sets nothing aside: for what was spent already, and has to be counted.
    ///
    /// # Errors
    /// None that a caller can meet: nothing always fits.
    pub fn nothing_aside(
        &self,
        purse: &BudgetAccount,
        now: Timestamp,
    ) -> Result<BudgetReservation, CallError> {
        let path = Arc::clone(&purse.0.path);
        self.book
            .reserve_amount(path, now, |_| Ok(BudgetAmount::default()))
    }

    /// Takes this off the agent's days and months: it was assumed to be spent, and was not. The journal has done so, too.
    pub fn take_back(&self, unspent: &[SpentAmount], now: Timestamp) {
        self.book.unspend_kept(unspent, now);
    }

    /// What a model costs, millionths of a dollar for so many tokens in and out; none: not known.
    pub fn price_of(&self, provider: &str, input: u64, output: u64) -> Option<u64> {
        self.models
            .get(provider)?
            .price()
            .map(|price| price.at_most(input, output))
    }

    /// A turn's purse.
    pub fn turn_account(&self, session: &BudgetAccount, id: &str, now: Timestamp) -> BudgetAccount {
        let limits = limit::limits_from_allowance(&self.budgets.turn, Window::Whole, "budgets.turn");
        session.open_child(format!("turn {id}"), limits, &[], now)
    }

    /// The purse of a turn from the invocation of a skill on.
    pub fn skill_account(&self, turn: &BudgetAccount, name: &str, now: Timestamp) -> BudgetAccount {
        let Some(own) = self.skills.get(name) else {
            return turn.clone();
        };
        let prefix = format!("budgets.skills.{name}.run");
        let limits = limit::limits_from_allowance(&own.run, Window::Whole, &prefix);
        turn.open_child(format!("skill {name}"), limits, &[own.day], now)
    }

    /// Sets aside what a call may take.
    ///
    /// # Errors
    /// -32021.
    pub fn call(
        &self,
        purse: &BudgetAccount,
        wanted: CallBudgetRequest<'_>,
        now: Timestamp,
    ) -> Result<CallBudget, CallError> {
        let purse = self.of_call(purse, wanted, now);
        let mut path = Arc::clone(&purse.0.path);
        // A model's purse bounds what a model asks for; the call itself takes nothing of it.
        let model = self.models.get(wanted.provider).map(|model| model.id);
        let asked: Vec<BudgetAccountId> = model.into_iter().chain(path.iter().copied()).collect();
        self.book.not_used_up(&asked, now)?;
        if wanted.tokens > 0 {
            let tokens = wanted.tokens;
            let room = self.book.reserve_amount(asked.into(), now, |_| {
                Ok(BudgetAmount {
                    tokens,
                    ..BudgetAmount::default()
                })
            })?;
            drop(room);
        }
        let composite = wanted.skill.is_some();
        let mut timeout_ms = wanted.timeout_ms;
        path = Arc::clone(&path);
        let reservation = self.book.reserve_amount(path, now, |left| {
            timeout_ms = timeout_ms.min(left.busy_ms);
            if timeout_ms == 0 && wanted.timeout_ms > 0 {
                return Err((BudgetUnit::BusyMs, wanted.timeout_ms));
            }
            Ok(BudgetAmount {
                calls: 1,
                busy_ms: if composite { 0 } else { timeout_ms },
                bytes_out: wanted.bytes_out,
                ..BudgetAmount::default()
            })
        })?;
        Ok(CallBudget {
            reservation,
            purse,
            timeout_ms,
            composite,
        })
    }

    fn of_call(&self, purse: &BudgetAccount, wanted: CallBudgetRequest<'_>, now: Timestamp) -> BudgetAccount {
        let tool = self.tools.get(wanted.tool);
        let skill = wanted.skill.and_then(|name| self.skills.get(name));
        if tool.is_none() && skill.is_none() {
            return purse.clone();
        }
        let limits = |own: Option<&NamedBudgetAccounts>, what: &str, name: &str| {
            own.map_or_else(Vec::new, |own| {
                limit::limits_from_allowance(&own.run, Window::Whole, &format!("budgets.{what}s.{name}.run"))
            })
        };
        let mut all = limits(tool, "tool", wanted.tool);
        all.extend(limits(skill, "skill", wanted.skill.unwrap_or_default()));
        let beside: Vec<BudgetAccountId> = tool.into_iter().chain(skill).map(|own| own.day).collect();
        purse.open_child(format!("run of {}", wanted.tool), all, &beside, now)
    }

    /// Counts what all hosts have spent.
    pub fn catch_up(&self, kept: &[SpentAmount], now: Timestamp) {
        self.book.catch_up(kept, now);
    }

    /// Counts what earlier runs have kept.
    pub fn restore_spending(&self, kept: &[SpentAmount], now: Timestamp) {
        self.book.restore_spending(kept, now);
    }

    /// Tokens and millionths of a dollar that the agent has spent in this UTC day.
    pub fn spent_today(&self, now: Timestamp) -> (u64, u64) {
        let spent = |unit| self.book.spent_in_window(self.root.0.id, unit, Window::Day, now);
        (spent(BudgetUnit::Tokens), spent(BudgetUnit::CostMicrousd))
    }
}

/// The name of a swarm's limit of tokens, as refusals have it.
pub const SWARM_TOKENS: &str = "resource_limits.max_total_tokens";
/// The name of a swarm's limit of money, as refusals have it.
pub const SWARM_COST: &str = "resource_limits.max_total_cost_microusd";
const TASK_TOKENS: &str = "budget.tokens";
const TASK_COST: &str = "budget.cost_microusd";

fn limits_of(bounds: impl Iterator<Item = (BudgetUnit, &'static str, u64)>) -> Vec<Limit> {
    bounds
        .map(|(unit, name, bound)| Limit {
            unit,
            window: Window::Whole,
            bound,
            scope: String::new(),
            name: name.to_owned(),
        })
        .collect()
}

/// `rate_limits` of a policy that bound what models use up.
fn of_policy(policy: &Policy) -> Vec<Limit> {
    let rates = &policy.rate_limits;
    let limit = |unit, window, name: &str, bound| Limit {
        unit,
        window,
        bound,
        scope: format!("policy {}", policy.name),
        name: name.to_owned(),
    };
    let tokens = rates
        .tokens_per_hour
        .map(|bound| limit(BudgetUnit::Tokens, Window::Hour, "tokens_per_hour", bound));
    let money = rates.cost_per_day_usd.map(|usd| {
        // What can't be counted in millionths is no money at all.
        let bound = clawk_policy::micro_usd(usd).unwrap_or(0);
        limit(
            BudgetUnit::CostMicrousd,
            Window::Day,
            "cost_per_day_microusd",
            bound,
        )
    });
    tokens.into_iter().chain(money).collect()
}
