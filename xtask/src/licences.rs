//! Every package that the lock file names is under a licence that lets us ship it.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::run::{command, output, say};

/// Licences that ask for no more than their text and the authors' names.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Compares the licences of all packages with [`ALLOWED`].
///
/// # Errors
/// `cargo metadata` failed, or a package has another licence; all such packages are named.
pub(crate) fn check() -> Result<()> {
    let mut cargo = command("cargo");
    let text = output(cargo.args(["metadata", "--format-version", "1", "--locked", "--all-features"]))?;
    let metadata: Value = serde_json::from_str(&text).context("`cargo metadata` printed no JSON")?;
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.context("`cargo metadata` names no packages")?;
    let faults = find_faults(packages);
    if !faults.is_empty() {
        bail!(
            "{}: leave the package out, or allow the licence in xtask/src/licences.rs and say why in its commit",
            faults.join("; ")
        );
    }
    say(&format!("licences of {} packages: all allowed", packages.len()));
    Ok(())
}

fn find_faults(packages: &[Value]) -> Vec<String> {
    packages
        .iter()
        .filter_map(|package| {
            let text = |key: &str| package.get(key).and_then(Value::as_str).unwrap_or_default();
            let licence = text("license");
            (!is_allowed(licence))
                .then(|| format!("{} {} is under `{licence}`", text("name"), text("version")))
        })
        .collect()
}

/// Whether an SPDX expression can be met with [`ALLOWED`] alone. Older packages write `/` for `OR`.
fn is_allowed(expression: &str) -> bool {
    let alternatives = expression.replace('/', " OR ").replace(['(', ')'], " ");
    // `A OR (B AND C)` is read as `(A OR B) AND C`: stricter than it says, never laxer with one pair of parentheses.
    let parts: Vec<&str> = alternatives.split(" AND ").map(str::trim).collect();
    parts.iter().all(|part| {
        part.split(" OR ")
            .map(str::trim)
            .any(|name| ALLOWED.contains(&name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{find_faults, is_allowed};

    #[test]
    fn one_alternative_is_enough_and_each_part_counts() {
        assert!(is_allowed("MIT OR GPL-3.0"));
        assert!(is_allowed("MIT/Apache-2.0"));
        assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception OR MIT"));
        assert!(!is_allowed("GPL-3.0-only"));
        assert!(!is_allowed("MIT AND GPL-2.0"));
        assert!(!is_allowed(""));
    }

    #[test]
    fn a_fault_names_the_package() {
        let packages = [
            json!({ "name": "good", "version": "1.0.0", "license": "MIT" }),
            json!({ "name": "bad", "version": "2.0.0", "license": "AGPL-3.0" }),
            json!({ "name": "silent", "version": "3.0.0", "license": null }),
        ];
        assert_eq!(
            find_faults(&packages),
            ["bad 2.0.0 is under `AGPL-3.0`", "silent 3.0.0 is under ``"]
        );
    }
}
