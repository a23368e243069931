//! Tests that lie beside a policy: `NAME.tests.yaml` beside `NAME.yaml`. Format: docs/how-to/policies.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_manifest::model::{self, AutonomyLevel};
use clawk_manifest::{LoadOptions, LoadedDocument, Severity, load, policy, render};
use clawk_policy::{Engine, PolicyLayers, PolicySubject, ToolResult, UsageView, ValueSources, Verdict};
use clawk_tools::builtin;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::config::Config;
use crate::manifest::options;
use crate::out;

/// Largest companion, bytes.
const MAX_BYTES: u64 = 4 << 20;
const ENDING: &str = ".tests.yaml";

/// The document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyTests {
    /// Where relative paths start, unless a case says otherwise.
    #[serde(default = "workspace")]
    workdir: PathBuf,
    /// `autonomous`, where the rules alone decide, unless a case says otherwise.
    #[serde(default = "autonomous")]
    autonomy: AutonomyLevel,
    /// Labels and annotations of tools that are no built-ins, or that the manifest describes otherwise.
    #[serde(default)]
    tools: BTreeMap<String, TestedTool>,
    cases: Vec<PolicyTestCase>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TestedTool {
    labels: BTreeMap<String, String>,
    annotations: Map<String, Value>,
}

/// A call and the answer that it must get.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyTestCase {
    name: Option<String>,
    tool: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: Map<String, Value>,
    #[serde(default)]
    arguments: Map<String, Value>,
    workdir: Option<PathBuf>,
    autonomy: Option<AutonomyLevel>,
    #[serde(default)]
    tokens_today: u64,
    #[serde(default)]
    cost_today_microusd: u64,
    /// Origins of untrusted text in the context that asks, such as `web https://example.com`.
    #[serde(default)]
    taint: Vec<String>,
    /// What the person said: values that stand there are the person's own.
    said: Option<String>,
    /// What tools gave before, in their order.
    #[serde(default)]
    results: Vec<GivenResult>,
    expect: ExpectedVerdict,
    /// The rule that must decide; `null`: none may; absent: any will do.
    #[serde(default, deserialize_with = "given")]
    rule: Option<Option<String>>,
}

/// What a tool gave in the conversation of a case.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenResult {
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ExpectedVerdict {
    Allow,
    AuditOnly,
    RequireApproval,
    Deny,
}

impl ExpectedVerdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::AuditOnly => "audit-only",
            Self::RequireApproval => "require-approval",
            Self::Deny => "deny",
        }
    }
}

fn workspace() -> PathBuf {
    PathBuf::from("/workspace")
}

const fn autonomous() -> AutonomyLevel {
    AutonomyLevel::Autonomous
}

/// Tells `null` from absent.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// How the cases of one companion went.
#[derive(Debug)]
pub(crate) struct PolicyTestReport {
    pub(crate) policy: PathBuf,
    pub(crate) tests: PathBuf,
    pub(crate) cases: usize,
    pub(crate) failures: Vec<PolicyTestFailure>,
}

/// A case that does not hold.
#[derive(Debug)]
pub(crate) struct PolicyTestFailure {
    /// Its name, or its number and tool.
    pub(crate) case: String,
    pub(crate) tool: String,
    pub(crate) expected: String,
    pub(crate) got: String,
    /// Each rule that was looked at.
    pub(crate) why: Vec<String>,
}

/// The companion of what the command line names: a policy, its tests, or every policy file of a manifest.
///
/// # Errors
/// A file can't be read or is not valid; its place is said.
pub(crate) fn of_argument(file: &Path, config: &Config) -> Result<Vec<PolicyTestReport>> {
    let file = match file.to_str().and_then(|text| text.strip_suffix(ENDING)) {
        Some(stem) => ["yaml", "yml"]
            .map(|ending| PathBuf::from(format!("{stem}.{ending}")))
            .into_iter()
            .find(|policy| policy.exists())
            .with_context(|| format!("there is no policy `{stem}.yaml` beside `{}`", file.display()))?,
        None => file.to_owned(),
    };
    let options = options(config);
    let (loaded, found) = policy(&file, &options);
    match found {
        Some(found) => Ok(beside(&file, &found)?.into_iter().collect()),
        None if loaded.kind == Some("Claw") => {
            let loaded = load(&file, &options);
            if !loaded.is_valid() {
                bail!("{}", findings(&loaded));
            }
            of_manifest(&loaded)
        }
        None if loaded.is_valid() => bail!("`{}` is neither a policy nor a manifest", file.display()),
        None => bail!("{}", findings(&loaded)),
    }
}

/// The companions of every policy file that was read for a manifest.
///
/// # Errors
/// A companion can't be read or is not valid.
pub(crate) fn of_manifest(loaded: &LoadedDocument) -> Result<Vec<PolicyTestReport>> {
    let mut reports = Vec::new();
    for file in loaded.sources.files() {
        if companion(file).is_some_and(|tests| tests.exists())
            && let (_, Some(found)) = policy(file, &LoadOptions::default())
        {
            reports.extend(beside(file, &found)?);
        }
    }
    Ok(reports)
}

fn findings(loaded: &LoadedDocument) -> String {
    let errors: Vec<_> = loaded
        .diagnostics
        .iter()
        .filter(|found| found.severity == Severity::Error)
        .cloned()
        .collect();
    render(&errors, &loaded.sources, false).trim_end().to_owned()
}

/// Where the tests of a policy file lie, if it has any.
pub(crate) fn companion(policy: &Path) -> Option<PathBuf> {
    let name = policy.file_name()?.to_str()?;
    let stem = name.strip_suffix(".yaml").or_else(|| name.strip_suffix(".yml"))?;
    let is_tests = name.ends_with(ENDING);
    (!is_tests).then(|| policy.with_file_name(format!("{stem}{ENDING}")))
}

/// Runs the tests beside a policy file; `None`: there are none.
fn beside(file: &Path, found: &model::Policy) -> Result<Option<PolicyTestReport>> {
    let Some(tests) = companion(file).filter(|tests| tests.exists()) else {
        return Ok(None);
    };
    let shown = tests.display();
    if fs::metadata(&tests).map_or(0, |data| data.len()) > MAX_BYTES {
        bail!("`{shown}` is larger than {} MiB", MAX_BYTES >> 20);
    }
    let text = fs::read_to_string(&tests).with_context(|| format!("can't read `{shown}`"))?;
    let options = serde_saphyr::options! { strict_booleans: true };
    let parsed: PolicyTests = serde_saphyr::from_str_with_options(&text, options)
        .with_context(|| format!("`{shown}` is not a valid list of tests"))?;
    let engine = Engine::compile(std::slice::from_ref(found))?;
    let failures = parsed
        .cases
        .iter()
        .enumerate()
        .filter_map(|(at, case)| parsed.judge(at, case, &engine))
        .collect();
    Ok(Some(PolicyTestReport {
        policy: file.to_owned(),
        cases: parsed.cases.len(),
        tests,
        failures,
    }))
}

impl PolicyTests {
    /// `None`: the case holds.
    fn judge(&self, at: usize, case: &PolicyTestCase, engine: &Engine) -> Option<PolicyTestFailure> {
        let (labels, annotations, schema) = self.about(case);
        let values = self.values(case);
        let subject = PolicySubject {
            tool: &case.tool,
            labels: &labels,
            annotations: &annotations,
            arguments: &case.arguments,
            schema: schema.as_ref(),
            workdir: case.workdir.as_deref().unwrap_or(&self.workdir),
            usage: UsageView {
                tokens_today: case.tokens_today,
                cost_today_microusd: case.cost_today_microusd,
            },
            // The cases' files need not be there.
            places: None,
            taint: Some(&case.taint),
            values: Some(&values),
        };
        let layers = PolicyLayers {
            autonomy: case.autonomy.unwrap_or(self.autonomy),
            named: &[],
        };
        let verdict = layers.decide(engine, &subject);
        let rule_holds = case
            .rule
            .as_ref()
            .is_none_or(|wanted| wanted.as_deref() == verdict.rule_id.as_deref());
        if verdict.effect.name() == case.expect.name() && rule_holds {
            return None;
        }
        let account = layers.explain(engine, &subject);
        let mut why = Vec::new();
        for said in &account.layers {
            why.push(format!("{}: {}", said.layer, said.verdict.effect.name()));
            why.extend(said.steps.iter().map(|step| {
                let outcome = step
                    .why_not
                    .map_or_else(|| "decides".to_owned(), |why| format!("passed over, {why}"));
                let detail = step
                    .detail
                    .as_deref()
                    .map(|d| format!(": {d}"))
                    .unwrap_or_default();
                format!("  {} ({}): {outcome}{detail}", step.rule_id, step.effect.name())
            }));
        }
        let name = case.name.clone();
        Some(PolicyTestFailure {
            case: name.unwrap_or_else(|| format!("case {}: {}", at + 1, case.tool)),
            tool: case.tool.clone(),
            expected: wanted(case),
            got: got(&verdict),
            why,
        })
    }

    /// The texts in which the case's values are looked up: nothing else was read.
    fn values(&self, case: &PolicyTestCase) -> ValueSources {
        let mut sources = ValueSources::default();
        case.said.iter().for_each(|said| sources.add_person(said));
        for (result, order) in case.results.iter().zip(1..) {
            let annotations = self.tools.get(&result.tool).map(|about| &about.annotations);
            let hint = |name: &str| annotations.and_then(|annotations| annotations.get(name));
            sources.add_result(&ToolResult {
                tool: &result.tool,
                arguments: &result.arguments,
                text: &result.text,
                closed: hint("openWorldHint") == Some(&Value::Bool(false)),
                is_lookup: true,
                reads_files: false,
                annotations,
                order,
            });
        }
        sources
    }

    /// What counts of the case's tool: the built-in's own words, the file's, the case's.
    fn about(&self, case: &PolicyTestCase) -> (BTreeMap<String, String>, Map<String, Value>, Option<Value>) {
        let mut labels = BTreeMap::new();
        let mut annotations = Map::new();
        let mut schema = None;
        if let Some(known) = builtin::describe(&case.tool) {
            labels.extend(known.category.map(|c| ("category".to_owned(), c.to_owned())));
            annotations = known.trusted_annotations;
            schema = Some(known.input_schema);
        }
        if let Some(about) = self.tools.get(&case.tool) {
            labels.extend(about.labels.clone());
            annotations.extend(about.annotations.clone());
        }
        labels.extend(case.labels.clone());
        annotations.extend(case.annotations.clone());
        (labels, annotations, schema)
    }
}

fn wanted(case: &PolicyTestCase) -> String {
    let effect = case.expect.name();
    match &case.rule {
        None => effect.to_owned(),
        Some(None) => format!("{effect} by no rule"),
        Some(Some(rule)) => format!("{effect} by rule `{rule}`"),
    }
}

fn got(verdict: &Verdict) -> String {
    let effect = verdict.effect.name();
    verdict.rule_id.as_deref().map_or_else(
        || format!("{effect} by no rule"),
        |rule| format!("{effect} by rule `{rule}`"),
    )
}

/// One line for a start that is refused, naming the first case that fails. `None`: all hold.
pub(crate) fn refusal(reports: &[PolicyTestReport]) -> Option<String> {
    let failed: usize = reports.iter().map(|report| report.failures.len()).sum();
    let report = reports.iter().find(|report| !report.failures.is_empty())?;
    let first = report.failures.first()?;
    let others = match failed - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!(
        "a policy does not do what its tests say: `{}`, {}: expected {}, got {}{others}; `clawk policy test {}` says why",
        report.tests.display(),
        out::clipped(&first.case, 80),
        first.expected,
        first.got,
        report.policy.display()
    ))
}
