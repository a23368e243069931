//! Policy tests: the file `NAME.tests.yaml` beside the policy `NAME.yaml`. Format: docs/how-to/policies.md.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_manifest::model::{self, AutonomyLevel};
use clawk_manifest::{LoadOptions, LoadedDocument, Severity, load_manifest, load_policy, render_diagnostics};
use clawk_policy::{Engine, PolicyLayers, PolicySubject, ToolResult, UsageView, ValueSources, Verdict};
use clawk_tools::builtin;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::config::Config;
use crate::manifest::load_options;
use crate::out;

/// Largest test file, in bytes.
const MAX_BYTES: u64 = 4 << 20;
const ENDING: &str = ".tests.yaml";

/// The content of a test file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyTests {
    /// The folder for relative paths; a case can replace it.
    #[serde(default = "default_workdir")]
    workdir: PathBuf,
    /// Default autonomy level of the cases. In the default `autonomous` only the rules decide.
    #[serde(default = "default_autonomy")]
    autonomy: AutonomyLevel,
    /// Labels and annotations of tools that are not built-in, or that the manifest describes differently.
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

/// One test case: a call and its expected decision.
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
    /// Sources of untrusted text in the context of the call, such as `web https://example.com`.
    #[serde(default)]
    taint: Vec<String>,
    /// The person's message. Values in it count as given by the person.
    said: Option<String>,
    /// Earlier tool results, in order.
    #[serde(default)]
    results: Vec<GivenResult>,
    expect: ExpectedVerdict,
    /// The rule that must decide; `null`: no rule may decide; absent: any rule.
    #[serde(default, deserialize_with = "deserialize_present")]
    rule: Option<Option<String>>,
}

/// An earlier tool result in the conversation of a test case.
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

fn default_workdir() -> PathBuf {
    PathBuf::from("/workspace")
}

const fn default_autonomy() -> AutonomyLevel {
    AutonomyLevel::Autonomous
}

/// Deserialises a field so that `null` and absent differ.
fn deserialize_present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// The results of one test file.
#[derive(Debug)]
pub(crate) struct PolicyTestReport {
    pub(crate) policy: PathBuf,
    pub(crate) tests: PathBuf,
    pub(crate) cases: usize,
    pub(crate) failures: Vec<PolicyTestFailure>,
}

/// A test case that failed.
#[derive(Debug)]
pub(crate) struct PolicyTestFailure {
    /// The case's name, or its number and tool.
    pub(crate) case: String,
    pub(crate) tool: String,
    pub(crate) expected: String,
    pub(crate) got: String,
    /// Explanation of each rule that was evaluated.
    pub(crate) why: Vec<String>,
}

/// Runs the tests for a command-line argument: a policy, a test file, or every policy file of a manifest.
///
/// # Errors
/// A file can't be read or is not valid. The error names the place.
pub(crate) fn of_argument(file: &Path, config: &Config) -> Result<Vec<PolicyTestReport>> {
    let file = match file.to_str().and_then(|text| text.strip_suffix(ENDING)) {
        Some(stem) => ["yaml", "yml"]
            .map(|ending| PathBuf::from(format!("{stem}.{ending}")))
            .into_iter()
            .find(|policy| policy.exists())
            .with_context(|| format!("there is no policy `{stem}.yaml` beside `{}`", file.display()))?,
        None => file.to_owned(),
    };
    let options = load_options(config);
    let (loaded, found) = load_policy(&file, &options);
    match found {
        Some(found) => Ok(run_adjacent_tests(&file, &found)?.into_iter().collect()),
        None if loaded.kind == Some("Claw") => {
            let loaded = load_manifest(&file, &options);
            if !loaded.is_valid() {
                bail!("{}", format_errors(&loaded));
            }
            of_manifest(&loaded)
        }
        None if loaded.is_valid() => bail!("`{}` is neither a policy nor a manifest", file.display()),
        None => bail!("{}", format_errors(&loaded)),
    }
}

/// Runs the tests of every policy file that belongs to a manifest.
///
/// # Errors
/// A test file can't be read or is not valid.
pub(crate) fn of_manifest(loaded: &LoadedDocument) -> Result<Vec<PolicyTestReport>> {
    let mut reports = Vec::new();
    for file in loaded.sources.files() {
        if tests_path(file).is_some_and(|tests| tests.exists())
            && let (_, Some(found)) = load_policy(file, &LoadOptions::default())
        {
            reports.extend(run_adjacent_tests(file, &found)?);
        }
    }
    Ok(reports)
}

fn format_errors(loaded: &LoadedDocument) -> String {
    let errors: Vec<_> = loaded
        .diagnostics
        .iter()
        .filter(|found| found.severity == Severity::Error)
        .cloned()
        .collect();
    render_diagnostics(&errors, &loaded.sources, false)
        .trim_end()
        .to_owned()
}

/// Returns the path of a policy file's tests, if they exist.
pub(crate) fn tests_path(policy: &Path) -> Option<PathBuf> {
    let name = policy.file_name()?.to_str()?;
    let stem = name.strip_suffix(".yaml").or_else(|| name.strip_suffix(".yml"))?;
    let is_tests = name.ends_with(ENDING);
    (!is_tests).then(|| policy.with_file_name(format!("{stem}{ENDING}")))
}

/// Runs the tests of a policy file; `None` if it has none.
fn run_adjacent_tests(file: &Path, found: &model::Policy) -> Result<Option<PolicyTestReport>> {
    let Some(tests) = tests_path(file).filter(|tests| tests.exists()) else {
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
        .filter_map(|(at, case)| parsed.check_case(at, case, &engine))
        .collect();
    Ok(Some(PolicyTestReport {
        policy: file.to_owned(),
        cases: parsed.cases.len(),
        tests,
        failures,
    }))
}

impl PolicyTests {
    /// Runs one case; `None` if it passes.
    fn check_case(&self, at: usize, case: &PolicyTestCase, engine: &Engine) -> Option<PolicyTestFailure> {
        let (labels, annotations, schema) = self.tool_facts(case);
        let values = self.value_sources(case);
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
            // The files named in cases need not exist.
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
            expected: format_expected(case),
            got: format_verdict(&verdict),
            why,
        })
    }

    /// Returns the texts in which the case's values are looked up. No other text counts.
    fn value_sources(&self, case: &PolicyTestCase) -> ValueSources {
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

    /// Returns the properties of the case's tool: those of the built-in, replaced by those of the file, replaced by those of the
    /// case.
    fn tool_facts(
        &self,
        case: &PolicyTestCase,
    ) -> (BTreeMap<String, String>, Map<String, Value>, Option<Value>) {
        let mut labels = BTreeMap::new();
        let mut annotations = Map::new();
        let mut schema = None;
        if let Some(known) = builtin::describe_builtin(&case.tool) {
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

fn format_expected(case: &PolicyTestCase) -> String {
    let effect = case.expect.name();
    match &case.rule {
        None => effect.to_owned(),
        Some(None) => format!("{effect} by no rule"),
        Some(Some(rule)) => format!("{effect} by rule `{rule}`"),
    }
}

fn format_verdict(verdict: &Verdict) -> String {
    let effect = verdict.effect.name();
    verdict.rule_id.as_deref().map_or_else(
        || format!("{effect} by no rule"),
        |rule| format!("{effect} by rule `{rule}`"),
    )
}

/// Returns one line for a refused start, which names the first failed case; `None` if all cases pass.
pub(crate) fn first_failure_message(reports: &[PolicyTestReport]) -> Option<String> {
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
        out::clip_line(&first.case, 80),
        first.expected,
        first.got,
        report.policy.display()
    ))
}
