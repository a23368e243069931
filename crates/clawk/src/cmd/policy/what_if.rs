//! `clawk policy what-if`: decides past calls again with other rules.

mod past;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::state::kept::{StateReader, read_only};
use anyhow::{Result, bail};
use clawk_manifest::model::{self, AutonomyLevel};
use clawk_manifest::{LoadOptions, Manifest, load_policy, render_diagnostics};
use clawk_policy::{Engine, PolicyLayers, PolicySubject, UsageView, ValueSources, Verdict, VerdictOutcome};
use serde_json::{Map, Value, json};

use self::past::{PastCall, PastCallRecord};
use super::facts::PolicyToolFacts;
use super::paint_effect;
use crate::cmd::trace::source::TraceSource;
use crate::config::{AllowOutsideArgs, Config};
use crate::out::{self, Format, TerminalStyle};
use crate::{manifest, state};

/// The options of the query.
pub(in crate::cmd) struct WhatIfQuery<'a> {
    pub(in crate::cmd) policies: &'a [PathBuf],
    pub(in crate::cmd) manifest: Option<&'a Path>,
    pub(in crate::cmd) trace: Option<&'a Path>,
    pub(in crate::cmd) session: Option<&'a str>,
    pub(in crate::cmd) autonomy: Option<AutonomyLevel>,
    pub(in crate::cmd) which: &'a state::StateSelector,
    pub(in crate::cmd) outside: AllowOutsideArgs,
}

/// A call that would now get another decision.
#[derive(Debug)]
struct ChangedVerdict {
    call: PastCall,
    then: Verdict,
}

/// The counts of a replay.
#[derive(Debug, Default)]
struct WhatIfTally {
    same: usize,
    differs: Vec<ChangedVerdict>,
    /// Calls whose relevant arguments are no longer stored.
    unread: Vec<PastCall>,
    /// Calls that no policy decided: unknown tool, bad arguments, sandbox, cancelled.
    undecided: usize,
}

impl WhatIfTally {
    fn count_to(&self, outcome: VerdictOutcome) -> usize {
        self.differs
            .iter()
            .filter(|differs| VerdictOutcome::from(differs.then.effect) == outcome)
            .count()
    }
}

/// Replays the calls and prints the result. Differences do not make the command fail.
pub(in crate::cmd) fn run(
    asked: &WhatIfQuery<'_>,
    config: Option<&Path>,
    format: Format,
) -> Result<ExitCode> {
    let config = Config::load(config, asked.manifest)?.with_outside_access(asked.outside);
    let manifest = asked
        .manifest
        .map(|path| manifest::load_valid_manifest(path, &config).map(|(manifest, _)| manifest))
        .transpose()?;
    let policies = match (&manifest, asked.policies) {
        // Without named rules, the manifest's own are used.
        (Some(manifest), []) => manifest.policies.clone(),
        (_, files) => files.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?,
    };
    let engine = Engine::compile(&policies)?;
    let (record, contents) = read_record(asked)?;
    let seen = record.autonomy;
    let autonomy = asked
        .autonomy
        .or_else(|| manifest.as_ref().map(|manifest| manifest.identity.autonomy))
        .unwrap_or(seen);
    let again = WhatIfEvaluator {
        engine,
        autonomy,
        workdir: match &manifest {
            Some(manifest) => super::explain::resolve_workdir(manifest, &config)?,
            None => std::env::current_dir()?,
        },
        manifest,
        config,
        contents,
        facts: BTreeMap::new(),
    };
    let tally = again.evaluate_all(record)?;
    match format {
        Format::Json => out::print_json(&json_document(&tally, autonomy))?,
        Format::Human => print_human(&tally, autonomy)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> Result<model::Policy> {
    match load_policy(file, &LoadOptions::default()) {
        (_, Some(found)) => Ok(found),
        (loaded, None) if loaded.is_valid() => bail!("`{}` is not the file of a policy", file.display()),
        (loaded, None) => bail!(
            "{}",
            render_diagnostics(&loaded.diagnostics, &loaded.sources, false).trim_end()
        ),
    }
}

/// Returns the record, and the state with the calls' arguments, if there is one.
fn read_record(asked: &WhatIfQuery<'_>) -> Result<(PastCallRecord, Option<StateReader>)> {
    let Some(file) = asked.trace else {
        let dir = asked.which.find_dir()?;
        let record = PastCallRecord::from_source(&TraceSource::from_state(&dir)?, asked.session)?;
        return Ok((record, Some(read_only(&dir)?)));
    };
    let record = PastCallRecord::from_source(&TraceSource::from_file(file.to_owned()), asked.session)?;
    let beside = asked.which.state.is_some() || asked.which.agent.is_some();
    let contents = beside
        .then(|| Ok::<_, anyhow::Error>(read_only(asked.which.find_dir()?)?))
        .transpose()?;
    Ok((record, contents))
}

/// The new rules, and what is known about the calls.
struct WhatIfEvaluator {
    engine: Engine,
    autonomy: AutonomyLevel,
    workdir: PathBuf,
    manifest: Option<Manifest>,
    config: Config,
    contents: Option<StateReader>,
    facts: BTreeMap<String, (PolicyToolFacts, Option<String>)>,
}

impl WhatIfEvaluator {
    fn evaluate_all(mut self, record: PastCallRecord) -> Result<WhatIfTally> {
        let mut tally = WhatIfTally {
            undecided: record.undecided,
            ..WhatIfTally::default()
        };
        for call in record.calls {
            match self.decide_call(&call)? {
                None => tally.unread.push(call),
                Some(then) if VerdictOutcome::from(then.effect) == call.outcome => tally.same += 1,
                Some(then) => tally.differs.push(ChangedVerdict { call, then }),
            }
        }
        Ok(tally)
    }

    /// Decides a call; `None` if the decision depends on arguments that are no longer stored.
    fn decide_call(&mut self, call: &PastCall) -> Result<Option<Verdict>> {
        self.learn_tool(&call.tool);
        let arguments = self.read_arguments(call)?;
        let values = self.value_sources(call)?;
        let Some((facts, policy_ref)) = self.facts.get(&call.tool) else {
            return Ok(None);
        };
        let none = Map::new();
        let subject = PolicySubject {
            tool: &call.tool,
            labels: &facts.labels,
            annotations: &facts.annotations,
            arguments: arguments.as_ref().unwrap_or(&none),
            schema: facts.schema.as_ref(),
            workdir: &self.workdir,
            usage: UsageView::default(),
            // Today's files differ from those at the time.
            places: None,
            taint: Some(&call.taint),
            values: Some(&values),
        };
        if arguments.is_none() && self.engine.arguments_matter(&subject) {
            return Ok(None);
        }
        // A tool's further policy counts only if the new set has it, because the new set replaces the old one.
        let named: Vec<&str> = policy_ref
            .as_deref()
            .filter(|name| self.engine.has_policy(name))
            .into_iter()
            .collect();
        let layers = PolicyLayers {
            autonomy: self.autonomy,
            named: &named,
        };
        let mut verdict = layers.decide(&self.engine, &subject);
        if let Some(value) = self.engine.value_reason(&verdict, &subject) {
            let reason = verdict
                .reason
                .as_deref()
                .map_or_else(|| value.clone(), |reason| format!("{reason}; {value}"));
            verdict.reason = Some(reason.into());
        }
        Ok(Some(verdict))
    }

    fn learn_tool(&mut self, tool: &str) {
        if self.facts.contains_key(tool) {
            return;
        }
        let declared = self.manifest.as_ref().and_then(|manifest| {
            let found = manifest.tool(tool)?;
            let facts = PolicyToolFacts::of_tool(found, manifest, &self.config.settings);
            Some((facts, found.policy_ref.clone()))
        });
        let facts = declared.unwrap_or_else(|| (PolicyToolFacts::of_name(tool), None));
        self.facts.insert(tool.to_owned(), facts);
    }

    /// Returns what the owner had said before the call, if it is stored. Tool results are not searched.
    fn value_sources(&self, call: &PastCall) -> Result<ValueSources> {
        let mut sources = ValueSources::default();
        let Some(reader) = self.contents.as_ref().filter(|_| self.engine.looks_at_values()) else {
            return Ok(sources);
        };
        for digest in &call.said {
            let bytes = reader.content(*digest)?;
            let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            text.iter().for_each(|text| sources.add_person(text));
        }
        Ok(sources)
    }

    fn read_arguments(&self, call: &PastCall) -> Result<Option<Map<String, Value>>> {
        let (Some(reader), Some(digest)) = (&self.contents, call.arguments) else {
            return Ok(None);
        };
        let bytes = reader.content(digest)?;
        // silent-ok: a content that is no longer an object counts as erased
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }
}

fn json_document(tally: &WhatIfTally, autonomy: AutonomyLevel) -> Value {
    let place = |call: &PastCall| {
        json!({
            "session": call.session, "timestamp": call.timestamp, "request_id": call.request_id, "tool": call.tool,
            "was": call.outcome.name(), "rule_was": call.rule,
        })
    };
    let differs: Vec<Value> = tally
        .differs
        .iter()
        .map(|differs| {
            let mut value = place(&differs.call);
            if let Value::Object(map) = &mut value {
                map.insert(
                    "would_be".to_owned(),
                    json!(VerdictOutcome::from(differs.then.effect).name()),
                );
                map.insert("rule".to_owned(), json!(differs.then.rule_id.as_deref()));
                map.insert("policy".to_owned(), json!(differs.then.policy.as_deref()));
                map.insert("reason".to_owned(), json!(differs.then.reason.as_deref()));
            }
            value
        })
        .collect();
    json!({
        "autonomy": autonomy, "judged": tally.same + tally.differs.len(), "same": tally.same,
        "would_block": tally.count_to(VerdictOutcome::Deny), "would_newly_allow": tally.count_to(VerdictOutcome::Allow),
        "would_newly_ask": tally.count_to(VerdictOutcome::Ask),
        "not_judged": tally.unread.len(), "never_decided": tally.undecided,
        "differences": differs, "unread": tally.unread.iter().map(place).collect::<Vec<_>>(),
    })
}

fn print_human(tally: &WhatIfTally, autonomy: AutonomyLevel) -> Result<()> {
    let paint = TerminalStyle::for_stdout();
    let judged = tally.same + tally.differs.len();
    out::print_line(format!(
        "{judged} past calls under the new rules, autonomy `{autonomy}`:"
    ))?;
    out::print_line(format!(
        "would have blocked {}, would newly allow {}, would newly ask {}; {} as before",
        tally.count_to(VerdictOutcome::Deny),
        tally.count_to(VerdictOutcome::Allow),
        tally.count_to(VerdictOutcome::Ask),
        tally.same
    ))?;
    if !tally.unread.is_empty() {
        out::print_line(format!(
            "{} not judged: their arguments are erased or not at hand, and would matter",
            tally.unread.len()
        ))?;
    }
    if tally.undecided > 0 {
        out::print_line(paint.dim(&format!(
            "{} left out: no policy decided them (unknown tool, bad arguments, sandbox, not finished)",
            tally.undecided
        )))?;
    }
    for ChangedVerdict { call, then } in &tally.differs {
        let rule =
            |rule: Option<&str>| rule.map_or_else(|| "no rule".to_owned(), |rule| format!("rule `{rule}`"));
        out::print_line(out_line(call, then, paint, &rule))?;
    }
    Ok(())
}

fn out_line(
    call: &PastCall,
    then: &Verdict,
    paint: TerminalStyle,
    rule: &dyn Fn(Option<&str>) -> String,
) -> String {
    format!(
        "  {}  {}  {}: {} ({}) → {} ({})",
        out::clip_line(&call.timestamp, 19),
        call.session,
        out::clip_line(&call.tool, 40),
        paint_effect(paint, call.outcome.name()),
        out::clip_line(&rule(call.rule.as_deref()), 60),
        paint_effect(paint, VerdictOutcome::from(then.effect).name()),
        rule(then.rule_id.as_deref()),
    )
}
