//! `[atlases]` of `clawk.toml`: the Atlases that govern the agent, and the executors of their actions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clawk_carp::atlas::{AtlasAction, Executor};
use clawk_kernel::AtlasSettings;
use clawk_kernel::call::Permit;
use clawk_kernel::ports::{BoxFuture, RunError, RunOutcome, ToolDescription};
use clawk_manifest::Manifest;
use clawk_manifest::model::{McpUri, Tool};
use clawk_plan::ObtainedEnforcement;
use clawk_proto::content::ContentBlock;
use clawk_tools::{ExternalBuiltin, HttpTool, ToolConfig, ToolsConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use crate::config::Config;

/// The tool that replaces every action without an executor (`simulate = true`).
pub(crate) const SIMULATE: &str = "atlas-simulate";

/// `[atlases]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AtlasConfig {
    /// Folders with an `atlas.json`, such files, or packs; relative to the folder of `clawk.toml`.
    pub(crate) paths: Vec<PathBuf>,
    /// How an action is treated that no policy mentions (R29).
    pub(crate) default: UnmatchedAction,
    /// Lifetime of a resolution, in seconds. Actions can be executed until it ends.
    pub(crate) ttl_seconds: u32,
    /// Allowed deviation of a request's timestamp, in seconds; 0: any.
    pub(crate) clock_skew_seconds: u32,
    /// Largest context for one turn over all packs, in tokens.
    pub(crate) max_context_tokens: u64,
    /// Actions without an executor return their parameters and have no effect.
    pub(crate) simulate: bool,
    /// The MCP servers for executors `mcp:NAME/TOOL`: name to URI, as in a tool's `mcp_source`.
    pub(crate) mcp: BTreeMap<String, String>,
}

/// How an action is treated that no policy mentions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UnmatchedAction {
    /// The action is allowed, unless a loaded policy has the effect `allow`.
    #[default]
    Pass,
    /// The action is denied.
    Deny,
}

impl Default for AtlasConfig {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            default: UnmatchedAction::Pass,
            ttl_seconds: 3600,
            clock_skew_seconds: 300,
            max_context_tokens: 8_000,
            simulate: false,
            mcp: BTreeMap::new(),
        }
    }
}

/// Loads the configured Atlases, and adds a tool to the manifest for every action that needs one.
///
/// # Errors
/// An Atlas is not valid, or actions can't run here. The error names all of them.
pub(crate) fn bind_actions(manifest: &mut Manifest, config: &mut Config) -> Result<AtlasSettings> {
    let wanted = config.settings.atlases.clone();
    let folder = config.folder();
    let mut loaded = Vec::new();
    for path in &wanted.paths {
        let path = folder.join(path);
        let atlas = crate::pack::load_atlas(&path)
            .with_context(|| format!("`[atlases] paths` names `{}`", path.display()))?;
        for warning in &atlas.warnings {
            tracing::warn!(atlas = %atlas.id, path = warning.path, "{}", warning.message);
        }
        loaded.push(Arc::new(atlas));
    }
    let mut unbound = Vec::new();
    for action in loaded.iter().flat_map(|atlas| &atlas.actions) {
        if let Err(reason) = bind_action(manifest, &mut config.settings.tools, &wanted, action) {
            unbound.push(format!("action `{}`: {reason}", action.shown.action_id));
        }
    }
    if !unbound.is_empty() {
        bail!("{}", unbound.join("; "));
    }
    if wanted.simulate {
        manifest.tools.push(build_tool(
            SIMULATE,
            "answers with what it was given; nothing is done",
            json!({"type": "object"}),
            json!({}),
        )?);
    }
    Ok(AtlasSettings {
        loaded,
        strict: wanted.default == UnmatchedAction::Deny,
        ttl_seconds: wanted.ttl_seconds,
        clock_skew_ms: (wanted.clock_skew_seconds > 0).then(|| u64::from(wanted.clock_skew_seconds) * 1000),
        max_context_tokens: wanted.max_context_tokens,
        fallback: wanted.simulate.then(|| SIMULATE.to_owned()),
        served: false,
    })
}

fn bind_action(
    manifest: &mut Manifest,
    tools: &mut ToolsConfig,
    config: &AtlasConfig,
    action: &AtlasAction,
) -> Result<(), String> {
    let id = action.shown.action_id.to_string();
    let declared = |manifest: &Manifest, name: &str| manifest.tools.iter().any(|tool| tool.name == name);
    let mut own = |source: Value| -> Result<(), String> {
        let mut schema = action.shown.parameters_schema.clone();
        if let Some(schema) = schema.as_object_mut() {
            schema.entry("type").or_insert_with(|| json!("object"));
        }
        let made =
            build_tool(&id, &action.shown.description, schema, source).map_err(|error| error.to_string())?;
        manifest.tools.push(made);
        Ok(())
    };
    // A tool that `clawk.toml` configures under the action's own name comes first, because it may hold headers that the endpoint
    // requires.
    if tools.tools.get(&id).is_some_and(|tool| {
        tool.command.is_some() || tool.http.is_some() || tool.wasm.is_some() || tool.a2a.is_some()
    }) {
        return own(json!({}));
    }
    match &action.executor {
        Some(Executor::Http(url)) => {
            let http = HttpTool {
                url: url.to_string(),
                headers: BTreeMap::new(),
                secret_headers: BTreeMap::new(),
                secret_prefix: String::new(),
            };
            tools.tools.insert(
                id.clone(),
                ToolConfig {
                    http: Some(http),
                    ..ToolConfig::default()
                },
            );
            own(json!({}))
        }
        Some(Executor::Mcp { server, tool }) => {
            let uri = config.mcp.get(&**server).ok_or_else(|| {
                format!(
                    "it names the MCP server `{server}`; add `{server} = \"stdio:///…\"` to `[atlases.mcp]`"
                )
            })?;
            McpUri::try_from(uri.clone()).map_err(|error| format!("`[atlases.mcp] {server}`: {error}"))?;
            own(json!({"mcp_source": {"uri": uri, "tool_name": tool}}))
        }
        Some(Executor::Tool(name)) if declared(manifest, name) => Ok(()),
        // Without an agent there are no declared tools, but a built-in can be used by its name.
        Some(Executor::Tool(name)) if manifest.providers.is_empty() && clawk_tools::is_builtin(name) => {
            let made = build_tool(name, "", Value::Null, json!({})).map_err(|error| error.to_string())?;
            manifest.tools.push(made);
            Ok(())
        }
        Some(Executor::Tool(name)) => Err(format!("its executor `{name}` is not a tool of this agent")),
        None if config.simulate => Ok(()),
        // A host that only resolves has its actions executed elsewhere. Executing one here returns an error.
        None if manifest.providers.is_empty() => Ok(()),
        None => Err(format!(
            "nothing runs it; give it an `executor`, or add `[tools.\"{id}\"]` to clawk.toml"
        )),
    }
}

fn build_tool(name: &str, description: &str, schema: Value, source: Value) -> Result<Tool> {
    let mut value = json!({
        "name": name,
        "annotations": if name == SIMULATE { json!({"readOnlyHint": true}) } else { json!({}) },
    });
    if let Some(map) = value.as_object_mut() {
        if !schema.is_null() {
            map.insert("description".to_owned(), json!(description));
            map.insert("input_schema".to_owned(), schema);
        }
        map.extend(source.as_object().cloned().unwrap_or_default());
    }
    Ok(serde_json::from_value(value)?)
}

/// Makes the manifest of an agent that consists only of its Atlases: without a model or channel, and with every action that the
/// Atlases allow.
pub(crate) fn atlas_only_manifest() -> Result<Manifest> {
    Ok(Manifest {
        claw: semver::Version::new(0, 3, 0),
        metadata: clawk_manifest::model::Metadata {
            name: "cra".to_owned(),
            ..Default::default()
        },
        identity: serde_json::from_value(json!({
            "name": "cra", "personality": "Resolves and executes what its Atlases allow.", "autonomy": "autonomous",
        }))?,
        providers: Vec::new(),
        channels: Vec::new(),
        tools: Vec::new(),
        skills: Vec::new(),
        memory: None,
        world_models: Vec::new(),
        further_sandboxes: Vec::new(),
        sandbox: None,
        policies: vec![serde_json::from_value(json!({
            "name": "atlases", "rules": [{"id": "atlases-govern", "action": "allow", "scope": "all"}],
        }))?],
        swarm: None,
        telemetry: None,
        dir: PathBuf::from("."),
    })
}

/// The tool of `[atlases] simulate`: it has no effect.
#[derive(Debug)]
pub(crate) struct SimulatedActionTool;

impl ExternalBuiltin for SimulatedActionTool {
    fn describe(&self) -> ToolDescription {
        ToolDescription {
            description: "answers with what it was given; nothing is done".to_owned(),
            input_schema: json!({"type": "object"}),
            ..ToolDescription::default()
        }
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        _: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        let given = Value::Object(permit.arguments().clone());
        Box::pin(std::future::ready(Ok(RunOutcome {
            content: vec![ContentBlock::text("simulated: nothing was done")],
            is_error: false,
            structured: Some(json!({"simulated": true, "parameters": given})),
            obtained: ObtainedEnforcement::in_process("simulated"),
        })))
    }
}
