//! Past approvals: earlier answers and the standing grants that they made.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use super::{ListArgs, ask};
use crate::out::{self, Format, TerminalStyle};

/// Largest number of listed past requests.
const LISTED: usize = 100;

/// Lists standing grants, or past answers.
pub(super) fn list(args: &ListArgs) -> Result<ExitCode> {
    let (method, member) = if args.granted {
        ("clawk.approvals.granted", "grants")
    } else {
        ("clawk.approvals.answered", "answered")
    };
    let answer = ask(&args.which.dir()?, method, &json!({"limit": LISTED}))?;
    if args.format == Format::Json {
        out::json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = answer.get(member).and_then(Value::as_array);
    let rows = rows.map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        out::line(if args.granted {
            "no standing grants"
        } else {
            "nothing was asked"
        })?;
    }
    for row in rows {
        if args.granted { grant(row)? } else { past(row)? }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(row: &Value, member: &str) -> String {
    out::one_line(row.get(member).and_then(Value::as_str).unwrap_or_default()).into()
}

fn grant(row: &Value) -> Result<()> {
    let paint = TerminalStyle::stdout();
    let covers = match row.get("folder").and_then(Value::as_str) {
        Some(folder) => format!("any path in {}", out::one_line(folder)),
        None => format!("exactly: {}", text(row, "shown")),
    };
    out::line(&format!(
        "{}  {} ({})",
        paint.bold(&text(row, "grant")),
        paint.cyan(&text(row, "tool")),
        text(row, "lasting"),
    ))?;
    out::line(&format!("  {covers}"))?;
    let line = format!("  by {}, {}", text(row, "by"), text(row, "at"));
    out::line(&paint.dim(&line))?;
    Ok(())
}

fn past(row: &Value) -> Result<()> {
    let paint = TerminalStyle::stdout();
    let why = text(row, "reason");
    let why = if why.is_empty() { why } else { format!(": {why}") };
    out::line(&format!(
        "{}  {}  {} by {} ({}){why}",
        paint.dim(&text(row, "at")),
        paint.cyan(&text(row, "tool")),
        paint.bold(&text(row, "answer")),
        text(row, "by"),
        [text(row, "channel"), text(row, "role")].join(", "),
    ))?;
    Ok(())
}

/// Revokes a standing grant. Exit code 1 if it does not exist.
pub(super) fn revoke(args: &ListArgs, grant: &str) -> Result<ExitCode> {
    let answer = ask(
        &args.which.dir()?,
        "clawk.approvals.revoke",
        &json!({"grant": grant}),
    )?;
    let revoked = answer.get("revoked") == Some(&Value::Bool(true));
    if args.format == Format::Json {
        out::json(&answer)?;
    } else if revoked {
        out::line(&format!("revoked {grant}"))?;
    } else {
        out::note(&format!("no standing grant {grant}"));
    }
    Ok(if revoked {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
