//! `docs/reference/tools.md`: the built-in tools, from the built program's own `clawk tools --format json`.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cli;
use crate::run::{command, output};

const PAGE: &str = "docs/reference/tools.md";

const HEAD: &str = "\
# Built-in tools

`cargo xtask docs` writes this page from the program's own descriptions (`clawk tools --format json`). Do not edit it.

A built-in tool needs only its name. The model gets the description and the arguments below:

```yaml
tools:
  - file-list
  - file-read
  - inline: { name: web-fetch, timeout_ms: 20000 }
```

The second form is for a tool with settings of its own: a sandbox, a policy, a time limit, or an `input_schema` that allows less. `clawk tools` lists them, `clawk tools --tool NAME`
explains one, and `clawk tools claw.yaml` lists those of an agent. Whether a call runs is decided by the agent's policies, its autonomy and the tool's sandbox.
";

/// Returns the page's path and text.
pub(super) fn page() -> Result<(&'static str, String)> {
    let told = output(command(cli::program()?).args(["tools", "--format", "json"]))?;
    let told: Value = serde_json::from_str(&told).context("`clawk tools` printed no JSON")?;
    let tools = told.get("tools").and_then(Value::as_array);
    let mut text = HEAD.to_owned();
    for tool in tools.context("`clawk tools` lists nothing")? {
        section(&mut text, tool)?;
    }
    Ok((PAGE, text))
}

/// Writes one tool.
fn section(out: &mut String, tool: &Value) -> Result<()> {
    let text = |name: &str| tool.get(name).and_then(Value::as_str);
    let name = text("name").context("a tool without a name")?;
    let description = text("description").unwrap_or_default();
    write!(out, "\n## {name}\n\n{description}\n\n")?;
    let category = text("category").unwrap_or_default();
    let effect = text("effect").unwrap_or_default();
    writeln!(out, "* Category `{category}`; {effect}.")?;
    if let Some(needs) = text("needs") {
        writeln!(out, "* Needs {needs}.")?;
    }
    let arguments = tool.get("arguments").and_then(Value::as_array);
    let arguments = arguments.filter(|all| !all.is_empty());
    if let Some(arguments) = arguments {
        writeln!(out, "\n| argument | value | |\n|---|---|---|")?;
        for argument in arguments {
            let text = |name: &str| argument.get(name).and_then(Value::as_str).unwrap_or_default();
            let required = argument.get("required").and_then(Value::as_bool) == Some(true);
            let about = text("description").trim_end_matches('.').replace('|', "\\|");
            let about = match (about.as_str(), required) {
                ("", true) => "Required.".to_owned(),
                ("", false) => String::new(),
                (about, true) => format!("{about}. Required."),
                (about, false) => format!("{about}."),
            };
            let value = text("value").replace('|', "\\|");
            writeln!(out, "| `{}` | {value} | {about} |", text("name"))?;
        }
    }
    Ok(())
}
