//! Writes the configuration of the measured agent.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Settings of the agent's journal, tool and memory store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    /// `durability = "relaxed"`.
    pub(crate) relaxed: bool,
    /// `echo` is declared as a tool with side effects.
    pub(crate) side_effects: bool,
    /// Mode of the sandbox's file system view.
    pub(crate) view: &'static str,
    /// `search.strategy` of the store `notes`.
    pub(crate) search: &'static str,
    /// Port of an embeddings server for that store; `None`: the built-in table of word vectors.
    pub(crate) embedder: Option<u16>,
}

impl Setup {
    /// The default setup: durable journal, tool without side effects, default view.
    pub(crate) const PLAIN: Self = Self {
        relaxed: false,
        side_effects: false,
        view: "deny",
        search: "hybrid",
        embedder: None,
    };
}

/// Writes `claw.yaml` and `clawk.toml`.
pub(crate) fn write(folder: &Path, setup: Setup) -> Result<()> {
    let read_only = !setup.side_effects;
    let durability = if setup.relaxed { "relaxed" } else { "durable" };
    let (embedder, embedding) = match setup.embedder {
        Some(port) => (
            EMBEDDER.replace("PORT", &port.to_string()),
            format!(
                ", embedding: {{ provider_ref: embedder, model: bag, dimensions: {} }}",
                super::embeddings::DIMENSIONS
            ),
        ),
        None => Default::default(),
    };
    let manifest = MANIFEST
        .replace("READ_ONLY", &read_only.to_string())
        .replace("VIEW", setup.view)
        .replace("SEARCH", setup.search)
        .replace("EMBEDDER", &embedder)
        .replace("EMBEDDING", &embedding);
    for (name, text) in [
        ("claw.yaml", manifest),
        ("clawk.toml", CONFIG.replace("DURABILITY", durability)),
        ("model.yaml", "scenes: []\n".to_owned()),
    ] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("can't write `{}`", path.display()))?;
    }
    Ok(())
}

const EMBEDDER: &str = r#"    - inline: { name: embedder, protocol: openai-compatible, endpoint: "http://127.0.0.1:PORT/v1", model: bag, auth: { type: none } }
"#;

const MANIFEST: &str = r#"claw: "0.3.0"
kind: Claw
metadata:
  name: bench
  annotations: { heartbeat_interval_ms: 3600000 }
spec:
  identity:
    inline: { personality: Answers whoever measures., autonomy: autonomous }
  providers:
    - inline: { name: scripted, protocol: custom, endpoint: "script:./model.yaml", model: scripted, auth: { type: none } }
EMBEDDER  channels:
    - inline: { name: terminal, type: cli, transport: stdio, auth: { secret_ref: NONE } }
  sandbox:
    inline: { name: box, level: process, capabilities: { shell: { mode: full }, filesystem: { mode: VIEW } } }
  tools:
    - inline:
        name: echo
        description: Says it again
        input_schema:
          type: object
          properties: { text: { type: string, maxLength: 4000 } }
          required: [text]
          additionalProperties: false
        annotations: { readOnlyHint: READ_ONLY }
    - inline:
        name: run-true
        description: A program that does nothing
        input_schema: { type: object }
  memory:
    inline:
      name: notes
      stores:
        - { name: notes, type: semantic, backend: sqlite, search: { strategy: SEARCH }EMBEDDING }
  policies:
    - inline:
        name: rules
        rules:
          - { id: no-destruction, action: deny, scope: tool, match: { annotations: { destructiveHint: true } } }
          - { id: no-deploys, action: deny, scope: tool, match: { name: "deploy-*" } }
          - { id: echo, action: allow, scope: tool, match: { name: echo } }
          - { id: rest, action: allow, scope: all }
"#;

const CONFIG: &str = r#"state = "state"
durability = "DURABILITY"

[sandbox]
allow_none = true

[tools.run-true]
command = ["/bin/true"]
"#;
