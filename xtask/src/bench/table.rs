//! The benchmark's rows and their display.

use serde_json::{Value, json};

use super::machine::Machine;

/// The goal of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// The value must be at most this.
    AtMost(f64),
    /// The value must be at least this.
    AtLeast(f64),
    /// The ratio of the value to the reference must be at most this.
    RatioAtMost(f64),
    /// No goal; the number is for information.
    None,
}

/// A reference value, measured in the same run and unit.
#[derive(Debug, Clone)]
pub(crate) struct Neighbour {
    pub(crate) what: String,
    pub(crate) value: f64,
}

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) neighbour: Neighbour,
    pub(crate) goal: Goal,
}

/// The benchmark's table.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

impl Row {
    fn ratio(&self) -> f64 {
        self.value / self.neighbour.value
    }

    fn reached(&self) -> Option<bool> {
        match self.goal {
            Goal::AtMost(most) => Some(self.value <= most),
            Goal::AtLeast(least) => Some(self.value >= least),
            Goal::RatioAtMost(most) => Some(self.ratio() <= most),
            Goal::None => None,
        }
    }

    fn goal_text(&self) -> String {
        match self.goal {
            Goal::AtMost(most) => format!("≤ {} {}", number(most), self.unit),
            Goal::AtLeast(least) => format!("≥ {} {}", number(least), self.unit),
            Goal::RatioAtMost(most) => format!("≤ {}×", number(most)),
            Goal::None => "–".to_owned(),
        }
    }

    /// Returns the row's six cells.
    fn cells(&self) -> [String; 6] {
        [
            self.what.clone(),
            format!("{} {}", number(self.value), self.unit),
            format!("{}: {}", self.neighbour.what, number(self.neighbour.value)),
            format!("{}×", number(self.ratio())),
            self.goal_text(),
            self.reached()
                .map_or("–", |yes| if yes { "yes" } else { "no" })
                .to_owned(),
        ]
    }

    /// Returns a line that is printed before the table is complete.
    fn line(&self) -> String {
        format!("| {} |", self.cells().join(" | "))
    }

    fn json(&self) -> Value {
        let goal = match self.goal {
            Goal::AtMost(most) => json!({ "at_most": most }),
            Goal::AtLeast(least) => json!({ "at_least": least }),
            Goal::RatioAtMost(most) => json!({ "ratio_at_most": most }),
            Goal::None => Value::Null,
        };
        json!({
            "what": self.what, "value": self.value, "unit": self.unit, "ratio": self.ratio(), "goal": goal,
            "neighbour": { "what": self.neighbour.what, "value": self.neighbour.value }, "reached": self.reached(),
        })
    }
}

impl Table {
    /// Adds a row. Also prints it to standard error at once, so that an interrupted run still shows its results.
    pub(crate) fn add(
        &mut self,
        what: impl Into<String>,
        (value, unit): (f64, &'static str),
        (neighbour, neighbour_value): (impl Into<String>, f64),
        goal: Goal,
    ) {
        let neighbour = Neighbour {
            what: neighbour.into(),
            value: neighbour_value,
        };
        let row = Row {
            what: what.into(),
            value,
            unit,
            neighbour,
            goal,
        };
        super::progress(&row.line());
        self.0.push(row);
    }

    /// Returns a Markdown table that is also readable as plain text, and the description of the machine.
    pub(crate) fn text(&self, machine: &Machine) -> String {
        let mut lines = vec![
            [
                "what",
                "measured",
                "neighbour in the same run",
                "ratio",
                "goal",
                "reached",
            ]
            .map(str::to_owned),
        ];
        lines.extend(self.0.iter().map(Row::cells));
        let mut text = String::new();
        for (at, line) in lines.iter().enumerate() {
            let cells: Vec<String> = (0..)
                .zip(line)
                .map(|(column, cell)| pad(cell, width(&lines, column)))
                .collect();
            text.push_str(&format!("| {} |\n", cells.join(" | ")));
            if at == 0 {
                let rules: Vec<String> = (0..line.len())
                    .map(|column| "-".repeat(width(&lines, column)))
                    .collect();
                text.push_str(&format!("| {} |\n", rules.join(" | ")));
            }
        }
        text.push_str(&format!("\n{}", machine.text()));
        text
    }

    /// Returns the table as JSON.
    pub(crate) fn json(&self, machine: &Machine) -> String {
        let rows: Vec<Value> = self.0.iter().map(Row::json).collect();
        json!({ "machine": machine.json(), "rows": rows }).to_string()
    }
}

fn width(lines: &[[String; 6]], column: usize) -> usize {
    let cells = lines.iter().filter_map(|line| line.get(column));
    cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
}

fn pad(cell: &str, width: usize) -> String {
    let missing = width.saturating_sub(cell.chars().count());
    format!("{cell}{}", " ".repeat(missing))
}

/// Formats a number with three significant digits and separated thousands.
fn number(value: f64) -> String {
    let digits = if value.abs() < 10.0 {
        2
    } else if value.abs() < 100.0 {
        1
    } else {
        0
    };
    let text = format!("{value:.digits$}");
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 && digit != '-' {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if rest.is_empty() {
        grouped
    } else {
        format!("{grouped}.{rest}")
    }
}

#[cfg(test)]
mod tests {
    use super::{Goal, Neighbour, Row, number};

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(0.5), "0.50");
        assert_eq!(number(999.0), "999");
    }

    #[test]
    fn a_row_is_a_line_of_the_table() {
        let row = Row {
            what: "a call".to_owned(),
            value: 3.0,
            unit: "ms",
            neighbour: Neighbour {
                what: "one `fdatasync`".to_owned(),
                value: 2.0,
            },
            goal: Goal::RatioAtMost(1.2),
        };
        assert_eq!(
            row.line(),
            "| a call | 3.00 ms | one `fdatasync`: 2.00 | 1.50× | ≤ 1.20× | no |"
        );
    }

    #[test]
    fn a_goal_judges_the_value_or_the_ratio() {
        let row = |value, goal| Row {
            what: String::new(),
            value,
            unit: "ms",
            neighbour: Neighbour {
                what: String::new(),
                value: 2.0,
            },
            goal,
        };
        assert_eq!(row(3.0, Goal::RatioAtMost(1.5)).reached(), Some(true));
        assert_eq!(row(3.1, Goal::RatioAtMost(1.5)).reached(), Some(false));
        assert_eq!(row(3.1, Goal::AtLeast(3.0)).reached(), Some(true));
        assert_eq!(row(3.1, Goal::AtMost(3.0)).reached(), Some(false));
        assert_eq!(row(3.1, Goal::None).reached(), None);
    }
}
