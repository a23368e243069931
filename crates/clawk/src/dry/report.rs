//! The report of a dry run: every call with its verdict and its prediction. It is printed for people, written as JSON, and used as
//! a plan that a person approves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::witness::digest_of;
use clawk_kernel::{ApprovalQuestion, SessionNotice, TurnEnd};
use clawk_proto::RequestId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::CallPredictions;
use crate::out::{self, TerminalStyle};

/// Version of the report's format.
const FORM: u32 = 1;
/// Largest report that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// A dry run's report. `--plan` takes its JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DryRunReport {
    /// Version of the format.
    pub(crate) dry_run: u32,
    /// The manifest's resolved path and the SHA-256 of its file.
    pub(crate) manifest: PathBuf,
    pub(crate) manifest_hash: String,
    /// The message to the agent.
    pub(crate) message: String,
    /// The agent's answer.
    pub(crate) answer: String,
    /// `answered`, `cancelled` or `failed`, and why.
    pub(crate) end: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The calls, in the order in which the model made them.
    pub(crate) steps: Vec<DryRunStep>,
    /// Number of calls that were predicted.
    pub(crate) predicted: usize,
    /// Number of calls that ran, because they only read.
    pub(crate) read: usize,
    /// Number of calls that were refused.
    pub(crate) refused: usize,
    /// Model tokens that the dry run really used.
    pub(crate) tokens: u64,
}

/// One call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DryRunStep {
    /// Number of the step, from 1.
    pub(crate) number: usize,
    pub(crate) tool: String,
    pub(crate) arguments: Map<String, Value>,
    /// SHA-256 of the arguments' canonical JSON; only for a predicted call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parameters_hash: Option<String>,
    /// `predicted`, `read` or `refused`.
    pub(crate) outcome: String,
    /// The policy's verdict, in the form of the trace.
    pub(crate) verdict: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rule_id: Option<String>,
    /// The part of the runtime that refused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused_by: Option<String>,
    /// Why a real run would ask for approval; `None`: it would not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asks: Option<String>,
    /// The expected cost, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<String>,
    /// SHA-256 of the text that the person would read: the diff, the request, the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sheet_hash: Option<String>,
    /// The predicted effects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) prediction: Vec<String>,
}

/// Collects the report from the session's notices.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    predictions: CallPredictions,
    order: Vec<RequestId>,
    steps: BTreeMap<RequestId, DryRunStep>,
    questions: BTreeMap<RequestId, DryRunQuestion>,
    answer: String,
    tokens: u64,
    end: Option<TurnEnd>,
}

#[derive(Debug)]
struct DryRunQuestion {
    reason: String,
    cost: Option<String>,
    sheet_hash: String,
}

impl Recorder {
    pub(crate) fn new(predictions: CallPredictions) -> Self {
        Self {
            predictions,
            ..Self::default()
        }
    }

    /// Takes one notice.
    pub(crate) fn record_notice(&mut self, notice: &SessionNotice) {
        match notice {
            SessionNotice::Said(text) => self.answer.clone_from(text),
            SessionNotice::Asking(question) => self.record_question(question),
            SessionNotice::Planned(plan) => plan.steps.iter().for_each(|step| self.record_question(step)),
            SessionNotice::CallDecided {
                request_id,
                tool,
                arguments,
                verdict,
                rule_id,
                refused_by,
            } => {
                if !self.steps.contains_key(request_id) {
                    self.order.push(request_id.clone());
                }
                let step = DryRunStep {
                    number: 0,
                    tool: tool.clone(),
                    arguments: arguments.clone(),
                    parameters_hash: None,
                    outcome: String::new(),
                    verdict: verdict.clone(),
                    rule_id: rule_id.clone(),
                    refused_by: refused_by.map(str::to_owned),
                    asks: None,
                    cost: None,
                    sheet_hash: None,
                    prediction: Vec::new(),
                };
                self.steps.insert(request_id.clone(), step);
            }
            SessionNotice::TurnEnded { end, usage, .. } => {
                self.tokens += usage.total();
                self.end = Some(end.clone());
            }
            SessionNotice::TurnStarted { .. }
            | SessionNotice::Delta(_)
            | SessionNotice::Thought(_)
            | SessionNotice::Missed(_)
            | SessionNotice::Retrying { .. }
            | SessionNotice::Screened { .. }
            | SessionNotice::CallFinished { .. }
            | SessionNotice::Handed(_)
            | SessionNotice::Shown(..)
            | SessionNotice::Warned(_)
            | SessionNotice::Unreachable(_) => {}
        }
    }

    fn record_question(&mut self, question: &ApprovalQuestion) {
        let asked = DryRunQuestion {
            reason: question.reason.clone(),
            cost: question.cost.clone(),
            sheet_hash: question.sheet.digest().to_hex(),
        };
        self.questions.insert(question.request_id.clone(), asked);
    }

    /// Returns the report of an ended turn.
    pub(crate) fn build_report(&self, manifest: &Path, message: &str) -> Result<DryRunReport> {
        let (manifest, manifest_hash) = manifest_identity(manifest)?;
        let mut steps = Vec::new();
        for (number, id) in (1..).zip(&self.order) {
            let Some(mut step) = self.steps.get(id).cloned() else {
                continue;
            };
            step.number = number;
            let predicted = self.predictions.get(id);
            step.outcome = match (&step.refused_by, &predicted) {
                (Some(_), _) => "refused",
                (None, Some(_)) => "predicted",
                (None, None) => "read",
            }
            .to_owned();
            if let Some(predicted) = predicted {
                step.parameters_hash = Some(predicted.parameters);
                step.prediction = predicted.lines;
            }
            if let Some(asked) = self.questions.get(id) {
                step.asks = Some(asked.reason.clone());
                step.cost.clone_from(&asked.cost);
                step.sheet_hash = Some(asked.sheet_hash.clone());
                step.verdict = "ask".to_owned();
            }
            steps.push(step);
        }
        let count = |outcome: &str| steps.iter().filter(|step| step.outcome == outcome).count();
        let (end, reason) = match &self.end {
            Some(TurnEnd::Answered) => ("answered", None),
            Some(TurnEnd::Cancelled) | None => ("cancelled", None),
            Some(TurnEnd::Failed(why)) => ("failed", Some(why.clone())),
        };
        Ok(DryRunReport {
            dry_run: FORM,
            manifest,
            manifest_hash,
            message: message.to_owned(),
            answer: self.answer.clone(),
            end: end.to_owned(),
            reason,
            predicted: count("predicted"),
            read: count("read"),
            refused: count("refused"),
            steps,
            tokens: self.tokens,
        })
    }
}

/// Returns the manifest's resolved path and the digest of its content.
fn manifest_identity(manifest: &Path) -> Result<(PathBuf, String)> {
    let failed = || format!("can't read `{}`", manifest.display());
    let path = manifest.canonicalize().with_context(failed)?;
    let bytes = fs::read(&path).with_context(failed)?;
    Ok((path, digest_of(&bytes).to_hex()))
}

impl DryRunReport {
    /// Reads a report that `clawk run --dry-run --report FILE` wrote for this manifest.
    ///
    /// # Errors
    /// The file is not a report, or belongs to another manifest or an older version of it.
    pub(crate) fn read(file: &Path, manifest: &Path) -> Result<Self> {
        let failed = || format!("can't read the report `{}`", file.display());
        if fs::metadata(file).with_context(failed)?.len() > MAX_BYTES {
            bail!("the report `{}` is larger than {MAX_BYTES} bytes", file.display());
        }
        let report: Self = serde_json::from_slice(&fs::read(file).with_context(failed)?)
            .with_context(|| format!("`{}` is not the report of a dry run", file.display()))?;
        if report.dry_run != FORM {
            bail!(
                "`{}` was written by another version of clawk; do the dry run again",
                file.display()
            );
        }
        let (path, hash) = manifest_identity(manifest)?;
        if path != report.manifest || hash != report.manifest_hash {
            bail!(
                "the report `{}` is about another manifest, or the manifest has changed since; do the dry run again",
                file.display()
            );
        }
        Ok(report)
    }

    /// Prints the report as text.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub(crate) fn print_human(&self, paint: TerminalStyle) -> Result<()> {
        let calls = if self.predicted == 1 { "call" } else { "calls" };
        out::print_line(format!(
            "{} {} {calls} would change something, {} only read and ran, {} refused; nothing was changed",
            paint.bold("dry run:"),
            self.predicted,
            self.read,
            self.refused
        ))?;
        for step in &self.steps {
            let outcome = match step.outcome.as_str() {
                "predicted" => paint.yellow("would run"),
                "read" => paint.green("ran      "),
                _ => paint.red("refused  "),
            };
            let rule = step
                .rule_id
                .as_ref()
                .map(|rule| format!(" by rule {rule}"))
                .unwrap_or_default();
            let verdict = format!("{}{rule}", step.verdict);
            out::print_line(format!(
                "{:>3}. {outcome} {}  {}",
                step.number,
                paint.bold(&out::one_line(&step.tool)),
                paint.dim(&out::one_line(&verdict))
            ))?;
            if let Some(why) = &step.asks {
                let cost = step
                    .cost
                    .as_ref()
                    .map(|cost| format!("; {cost}"))
                    .unwrap_or_default();
                out::print_line(format!(
                    "     a person is asked: {}{}",
                    out::one_line(why),
                    out::one_line(&cost)
                ))?;
            }
            for line in &step.prediction {
                out::print_line(format!("     {}", out::one_line(line)))?;
            }
        }
        if let Some(why) = &self.reason {
            out::print_line(format!("the turn {}: {}", self.end, out::one_line(why)))?;
        }
        out::print_line(format!("models used {} tokens", self.tokens))?;
        Ok(())
    }
}

/// A report that a person approved. It answers each of its requests once, if a request is identical.
#[derive(Debug)]
pub(crate) struct ApprovedPlan {
    /// Remaining approvals, by tool and digest of the shown text.
    left: BTreeMap<(String, String), usize>,
}

impl ApprovedPlan {
    pub(crate) fn new(report: &DryRunReport) -> Self {
        let mut left = BTreeMap::new();
        let asked = report.steps.iter().filter(|step| step.outcome == "predicted");
        for step in asked {
            if let Some(sheet) = &step.sheet_hash {
                *left.entry((step.tool.clone(), sheet.clone())).or_insert(0) += 1;
            }
        }
        Self { left }
    }

    /// Returns whether the person approved exactly this request. If so, uses up one approval.
    pub(crate) fn consume_approval(&mut self, question: &ApprovalQuestion) -> bool {
        let key = (question.tool.clone(), question.sheet.digest().to_hex());
        match self.left.get_mut(&key) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            Some(_) | None => false,
        }
    }
}
