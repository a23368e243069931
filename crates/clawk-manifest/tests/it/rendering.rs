//! Findings as people see them.

use clawk_manifest::{LoadOptions, load_manifest, render_diagnostics};

use crate::{load_text, manifest};

#[test]
fn findings_look_like_a_compiler_s() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claw.yaml");
    let text = manifest(
        "  tools:\n    - ./tools/gone.yaml\n    - inline:\n        nmae: \"x\"\n        mcp_source: {uri: \"mcp://x\"}\n",
    );
    std::fs::write(&path, text).unwrap();
    let loaded = load_manifest(&path, &LoadOptions::default());
    let shown = render_diagnostics(&loaded.diagnostics, &loaded.sources, false)
        .replace(&format!("{}/", dir.path().display()), "");
    let expected = r#"error[file-not-found]: `./tools/gone.yaml` does not exist
  --> claw.yaml:18:7
   |
18 |     - ./tools/gone.yaml
   |       ^^^^^^^^^^^^^^^^^
   = at /spec/tools/0
   = help: paths are relative to the manifest's directory

error[unknown-field]: a Tool has no member `nmae`
  --> claw.yaml:20:9
   |
20 |         nmae: "x"
   |         ^^^^
   = at /spec/tools/1/inline/nmae
   = help: did you mean `name`?
"#;
    assert!(shown.contains(expected), "{shown}");
    assert!(
        shown.contains("error[reserved-scheme]") && shown.ends_with("3 errors, 1 warning\n"),
        "{shown}"
    );
}

#[test]
fn control_characters_and_long_lines_cannot_harm_a_terminal() {
    let long = "x".repeat(5_000);
    let loaded = load_text(&manifest(&format!(
        "  memory: {{inline: {{stores: [{{name: \"{long}\", type: \"\\e[2J\u{202e}\"}}]}}}}\n"
    )));
    let shown = render_diagnostics(&loaded.diagnostics, &loaded.sources, false);
    assert!(
        !shown.contains('\u{1b}') && !shown.contains('\u{202e}'),
        "{shown:?}"
    );
    assert!(shown.lines().all(|line| line.chars().count() < 400), "{shown}");
    assert!(render_diagnostics(&loaded.diagnostics, &loaded.sources, true).contains("\u{1b}[1;31merror"));
}
