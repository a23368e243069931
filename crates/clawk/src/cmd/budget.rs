//! `clawk budget`: the spent, reserved and remaining amounts, by time window and by budget; and what was spent on what.

mod spending;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use crate::state::kept::read_only;
use anyhow::{Context, Result};
use clawk_kernel::purse::{
    BudgetAccountState, BudgetAmount, BudgetReport, BudgetUnit, LimitState, ModelPrice, Window, hour_of,
};
use clawk_kernel::time::{Clock, SystemClock};
use clawk_server::{ControlClient, ControlError};
use serde_json::json;

use crate::out::{self, Format, TerminalStyle};
use crate::time_range::{RangeBound, TimeRangeArgs, parse_bound};
use crate::{compose, state};
use spending::SpendingGroup;

/// Flags of `clawk budget`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    which: state::StateSelector,

    /// One row for each of these, by the record [default with a range of time: `model`]
    #[arg(long, value_enum, value_name = "GROUP")]
    by: Option<SpendingGroup>,

    /// Only this day: `today`, `yesterday`, or `2026-11-27` (UTC)
    #[arg(long, value_name = "DAY", value_parser = parse_day, conflicts_with_all = ["since", "until"])]
    day: Option<RangeBound>,

    #[command(flatten)]
    range: TimeRangeArgs,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  clawk budget --agent hello
  clawk budget --format json
  clawk budget --day yesterday                         by model
  clawk budget --day yesterday --by person
  clawk budget --since 7d --by day
  clawk budget --by tool --since 2026-11-01 --until 2026-11-07

A running agent tells every purse with its limits, from the agent down to the turns and calls that run now. Of an agent that does
not run, what it has spent is read from its state.";

/// Parses a whole day.
fn parse_day(text: &str) -> Result<RangeBound, String> {
    match parse_bound(text)? {
        day @ RangeBound::Day(_) => Ok(day),
        RangeBound::Moment(_) => Err(format!(
            "`{text}` is not a day (example: `yesterday`); `--since` and `--until` take times"
        )),
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let dir = args.which.find_dir()?;
    let range = args.day.map_or(args.range, TimeRangeArgs::of_day);
    if args.by.is_some() || range.is_given() {
        let group = args.by.unwrap_or(SpendingGroup::Model);
        spending::print_spending(&read_only(&dir)?, group, range, args.format)?;
        return Ok(ExitCode::SUCCESS);
    }
    match fetch_running_report(&dir)? {
        Some(budget) => print_budget(&budget, args.format)?,
        None => print_stored_spending(&dir, args.format)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks the running agent; `None` if none runs.
fn fetch_running_report(dir: &Path) -> Result<Option<BudgetReport>> {
    compose::build_runtime()?.block_on(async {
        match ControlClient::connect(dir).await {
            Ok(mut client) => {
                let answer = client.call_method("clawk.budget", &json!({})).await;
                let answer = answer.context("the running agent refused")?;
                Ok(Some(serde_json::from_value(answer)?))
            }
            Err(ControlError::NotRunning { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    })
}

fn print_budget(budget: &BudgetReport, format: Format) -> Result<()> {
    if format == Format::Json {
        return out::print_json(
            &json!({"running": true, "at": budget.at, "purses": budget.purses, "models": budget.models, "table_date": budget.table_date}),
        );
    }
    let paint = TerminalStyle::for_stdout();
    for purse in &budget.purses {
        let indent = "  ".repeat(purse.depth);
        let name = out::one_line(&purse.name);
        out::print_line(format!(
            "{indent}{}  {}",
            paint.bold(&name),
            paint.dim(&format_sums(purse))
        ))?;
        for limit in &purse.limits {
            if let Some(line) = line_of(limit, paint) {
                out::print_line(format!("{indent}  {line}"))?;
            }
        }
    }
    for model in &budget.models {
        out::print_line(format_price(model, &budget.table_date, paint))?;
    }
    Ok(())
}

/// Returns the known price of a model as text.
fn format_price(of: &ModelPrice, table_date: &str, paint: TerminalStyle) -> String {
    let (provider, model) = (out::one_line(&of.provider), out::one_line(&of.model));
    let Some(price) = of.price else {
        return format!(
            "{} the model `{model}` of `{provider}` has no known price: where money is limited it is not asked; `[prices.\"{model}\"]` of clawk.toml gives one",
            paint.yellow("no price:")
        );
    };
    let source = match (of.shipped, of.guessed) {
        (_, true) => " (not known: as the dearest model of the catalogue, `[budgets] unpriced`)".to_owned(),
        (true, false) => format!(" (the catalogue of {table_date}; `[prices]` comes first)"),
        (false, false) => String::new(),
    };
    let cached = match price.cached_input {
        Some(cached) => format!(" ({} from the cache)", format_dollars(cached)),
        None => String::new(),
    };
    let share = match of.cached_tokens.saturating_mul(100).checked_div(of.read_tokens) {
        Some(percent) => format!(
            "; {percent} % of {} tokens read since the start came from the cache",
            of.read_tokens
        ),
        None => String::new(),
    };
    format!(
        "price of `{model}` of `{provider}`, per million tokens: {} in{cached}, {} out{}{share}",
        format_dollars(price.input),
        format_dollars(price.output),
        paint.dim(&source)
    )
}

fn format_sums(purse: &BudgetAccountState) -> String {
    let aside = if purse.reserved.is_zero() {
        String::new()
    } else {
        format!(", set aside {}", format_amount(&purse.reserved))
    };
    format!("spent {}{aside}", format_amount(&purse.spent))
}

fn line_of(limit: &LimitState, paint: TerminalStyle) -> Option<String> {
    let unit = |count: u64| format_count(limit.unit, count);
    let Some(bound) = limit.bound else {
        let counted = limit.spent > 0 && limit.window != Window::Whole;
        return counted.then(|| format!("{}: {}", window_label(limit.window), unit(limit.spent)));
    };
    let left = limit.left.unwrap_or(0);
    let left = if left == 0 {
        paint.red("nothing left")
    } else {
        format!("{} left", unit(left))
    };
    let scope = if limit.scope.is_empty() {
        String::new()
    } else {
        format!(" of {}", out::one_line(&limit.scope))
    };
    let resets = limit.resets_at.as_ref().map(|at| format!(", until {at}"));
    Some(format!(
        "{}{scope}: {} of {}, {left}{}",
        out::one_line(&limit.name),
        unit(limit.spent),
        unit(bound),
        resets.unwrap_or_default()
    ))
}

const fn window_label(window: Window) -> &'static str {
    match window {
        Window::Hour => "this hour",
        Window::Day => "today",
        Window::Month => "this month",
        Window::Whole => "in all",
    }
}

fn format_count(unit: BudgetUnit, count: u64) -> String {
    match unit {
        BudgetUnit::Tokens => format!("{count} tokens"),
        BudgetUnit::CostMicrousd => format_dollars(count),
        BudgetUnit::BusyMs => format!("{}.{:03} s", count / 1000, count % 1000),
        BudgetUnit::Calls => format!("{count} calls"),
        BudgetUnit::BytesOut => format!("{count} bytes"),
    }
}

fn format_dollars(microusd: u64) -> String {
    format!("${}.{:06}", microusd / 1_000_000, microusd % 1_000_000)
}

fn format_amount(amount: &BudgetAmount) -> String {
    let parts = BudgetUnit::ALL.map(|unit| (unit, amount.get(unit)));
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(unit, count)| format_count(unit, count))
        .collect();
    if parts.is_empty() {
        "nothing".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Shows the amounts of this month, hour and day that the state directory stores.
fn print_stored_spending(dir: &Path, format: Format) -> Result<()> {
    let now = SystemClock::default().now();
    let rows = read_only(dir)?.spent_since(hour_of(now.month_bounds().0))?;
    let mut purses: BTreeMap<&str, [BudgetAmount; 3]> = BTreeMap::new();
    for row in &rows {
        let sums = purses.entry(&row.purse).or_default();
        for (sum, window) in sums.iter_mut().zip([Window::Hour, Window::Day, Window::Month]) {
            if row.hour >= hour_of(window.bounds_at(now).0) {
                *sum = sum.plus(row.amount);
            }
        }
    }
    if format == Format::Json {
        let purses: Vec<_> = purses
            .iter()
            .map(|(name, [hour, day, month])| json!({"name": name, "hour": hour, "day": day, "month": month}))
            .collect();
        return out::print_json(&json!({"running": false, "at": now.to_string(), "purses": purses}));
    }
    if purses.is_empty() {
        out::print_line("nothing spent this month")?;
    }
    let paint = TerminalStyle::for_stdout();
    for (name, [hour, day, month]) in &purses {
        out::print_line(paint.bold(&out::one_line(name)))?;
        for (sum, window) in [(hour, Window::Hour), (day, Window::Day), (month, Window::Month)] {
            out::print_line(format!("  {}: {}", window_label(window), format_amount(sum)))?;
        }
    }
    Ok(())
}
