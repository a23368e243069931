//! The ports that play a tape.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawk_manifest::model::Store;
use clawk_plan::{Level, ObtainedEnforcement, Plan, SandboxRefusal};
use clawk_policy::path::RealLocations;
use clawk_proto::RequestId;
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntrySearchResult};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::said::{TapedCallEnd, TapedModelAnswer};
use super::tape::{ReplayTape, TapePlayer};
use super::{StaticCheck, ToolFacts};
use crate::call::Permit;
use crate::error::CallError;
use crate::event::{canonical, digest};
use crate::place::PathSearch;
use crate::ports::{
    Batch, BoxFuture, CompletionDelta, Executor, FaultKind, InferRequest, InspectedCall, MarkedContent,
    Memory, MemoryError, MemorySearch, ModelCompletion, ModelProvider, ProviderError, RunError, RunOutcome,
    Scope, StoreQuery, TaintedFiles, ToolDescription, ToolRunner, UnembeddedEntry, Usage,
};
use crate::sheet::ExecutorPreview;
use crate::time::{Clock, Timestamp};
use crate::witness::{GrantPrecondition, RECORDED};

fn ready_future<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

/// A model that says what was said.
#[derive(Debug)]
pub(super) struct TapedModel {
    name: String,
    tapes: Arc<TapePlayer>,
}

impl TapedModel {
    pub(super) const fn new(name: String, tapes: Arc<TapePlayer>) -> Self {
        Self { name, tapes }
    }
}

impl ModelProvider for TapedModel {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        _on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        self.tapes.record_request(request.clone());
        ready_future(match self.tapes.next_answer(&self.name) {
            Some(TapedModelAnswer::Completion(completion)) => Ok(*completion),
            Some(TapedModelAnswer::Fault {
                kind,
                reason,
                status,
                retry_after_ms,
                input_tokens,
                output_tokens,
                estimated,
                told,
                cause,
            }) => Err(ProviderError {
                kind,
                message: reason,
                status,
                retry_after_ms,
                usage: Some(Usage {
                    input_tokens,
                    output_tokens,
                    estimated,
                    told,
                    ..Usage::default()
                }),
                cause: cause.map(Box::new),
            }),
            None => Err(ProviderError {
                kind: FaultKind::Rejected,
                message: format!("the record has no further answer of `{}`", self.name),
                status: None,
                retry_after_ms: None,
                usage: None,
                cause: None,
            }),
        })
    }
}

/// Tools that end as they ended.
#[derive(Debug)]
pub(super) struct TapedTools {
    facts: BTreeMap<String, ToolFacts>,
    /// Static checks that are made again, of these tools.
    checks: Option<(StaticCheck, BTreeSet<String>)>,
    tapes: Arc<TapePlayer>,
}

impl TapedTools {
    pub(super) fn new(tape: &ReplayTape, tapes: Arc<TapePlayer>) -> Self {
        Self {
            facts: tape.tools.clone(),
            checks: tape.shadow.as_ref().and_then(|shadow| shadow.checks.clone()),
            tapes,
        }
    }

    /// The static checks, where the sandbox is not the recorded one; `None`: it ends as it ended.
    fn check_sandbox(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Option<Result<(), SandboxRefusal>> {
        let (check, _) = self.checks.as_ref().filter(|(_, tools)| tools.contains(tool))?;
        check(tool, arguments, plan, workdir)
    }
}

impl ToolRunner for TapedTools {
    fn describe_tool<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<ToolDescription, RunError>> {
        ready_future(match self.facts.get(tool) {
            None => Err(RunError::Unavailable(
                "the record does not describe it".to_owned(),
            )),
            Some(facts) => Ok(ToolDescription {
                description: facts.description.clone(),
                input_schema: facts.input_schema.clone(),
                output_schema: facts.output_schema.clone(),
                trusted_annotations: facts.annotations.clone(),
                // One short text per tool of the manifest: no growth.
                category: match facts.executor {
                    Executor::Unrecorded => facts.labels.get("category"),
                    Executor::Builtin
                    | Executor::Command
                    | Executor::Http
                    | Executor::Mcp
                    | Executor::A2a => facts.own_category.as_ref(),
                }
                .map(|category| &*category.clone().leak()),
                executor: facts.executor,
            }),
        })
    }

    fn takes_over<'a>(&'a self, tool: &'a str) -> BoxFuture<'a, Result<Option<Vec<String>>, RunError>> {
        if self.facts.contains_key(tool) {
            return ready_future(Ok(None));
        }
        let taken = self
            .facts
            .iter()
            .filter(|(_, facts)| facts.from.as_deref() == Some(tool));
        ready_future(Ok(Some(taken.map(|(name, _)| name.clone()).collect())))
    }

    fn preflight_call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        let refusal = self.tapes.next_refusal(tool, digest(&canonical(arguments)));
        let checked = self.check_sandbox(tool, arguments, plan, workdir);
        checked.unwrap_or_else(|| refusal.map_or(Ok(()), Err))
    }

    fn preflight_later(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        plan: &Plan,
        workdir: &Path,
    ) -> Result<(), SandboxRefusal> {
        let refusal = self.tapes.peek_refusal(tool, digest(&canonical(arguments)));
        let checked = self.check_sandbox(tool, arguments, plan, workdir);
        checked.unwrap_or_else(|| refusal.map_or(Ok(()), Err))
    }

    fn run<'a>(
        &'a self,
        permit: Permit,
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<RunOutcome, RunError>> {
        ready_future(match self.tapes.next_call_end(permit.tool(), permit.digest()) {
            None => Err(RunError::Unavailable(format!(
                "the record has no such call of `{}`",
                permit.tool()
            ))),
            Some(ended) => {
                permit.sources().add_files(ended.read.clone());
                run_outcome(ended)
            }
        })
    }

    fn preview_call<'a>(&'a self, _look: InspectedCall<'a>) -> BoxFuture<'a, ExecutorPreview> {
        ready_future(ExecutorPreview::default())
    }

    fn stands_on<'a>(&'a self, look: InspectedCall<'a>) -> BoxFuture<'a, Vec<GrantPrecondition>> {
        let changed = self
            .tapes
            .changed_since_asked(look.tool, digest(&canonical(look.arguments)));
        let facts = changed.map(|words| GrantPrecondition::new(words, RECORDED));
        ready_future(facts.into_iter().collect())
    }

    fn was_asked(&self, look: InspectedCall<'_>) -> Option<bool> {
        Some(
            self.tapes
                .was_asked(look.tool, digest(&canonical(look.arguments))),
        )
    }

    /// What was found was recorded with its mark; context files are marked as they were then.
    fn marked_origins<'a>(&'a self, contents: Vec<MarkedContent>) -> BoxFuture<'a, TaintedFiles> {
        let mut marked = self.tapes.marked_files();
        marked.retain(|file, _| {
            contents.iter().any(|content| match content {
                MarkedContent::File(path) => path.ends_with(file),
                MarkedContent::Text { .. } => false,
            })
        });
        ready_future(marked)
    }

    /// The files are not those of then: words alone are judged.
    fn locate_paths<'a>(
        &'a self,
        _look: InspectedCall<'a>,
        search: PathSearch,
    ) -> BoxFuture<'a, RealLocations> {
        ready_future(search.without_lookup())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        ready_future(())
    }
}

fn run_outcome(ended: TapedCallEnd) -> Result<RunOutcome, RunError> {
    let obtained = obtained_enforcement(&ended.payload);
    match ended.outcome {
        Ok(result) => Ok(RunOutcome {
            content: result.content,
            is_error: result.is_error,
            structured: result.structured_content,
            obtained,
        }),
        Err(CallError::Sandbox(refusal)) => Err(RunError::Sandbox(refusal)),
        Err(CallError::Timeout { timeout_ms, .. }) => Err(RunError::Timeout { timeout_ms, obtained }),
        Err(CallError::Unavailable { reason, .. }) => Err(RunError::Unavailable(reason)),
        Err(CallError::NotBegun { reason, .. }) => Err(RunError::NotBegun(reason)),
        Err(CallError::Unknown { reason, .. }) => Err(RunError::Unknown(reason)),
        Err(CallError::ApprovalVoid { changed, .. }) => Err(RunError::Changed(changed)),
        Err(other) => Err(RunError::Unavailable(other.to_string())),
    }
}

/// As the payload tells it: the level's word, or where no level applies.
fn obtained_enforcement(payload: &Map<String, Value>) -> ObtainedEnforcement {
    let list = |key: &str| {
        let found = payload.get(key).cloned().unwrap_or_default();
        serde_json::from_value(found).unwrap_or_default() // silent-ok: shows in the comparison
    };
    let word = payload.get("level").cloned().unwrap_or_default();
    let place = match word.as_str() {
        Some("built-in") => clawk_plan::CodeOrigin::BuiltIn,
        Some("remote") => clawk_plan::CodeOrigin::Remote,
        Some(_) | None => clawk_plan::CodeOrigin::Local,
    };
    ObtainedEnforcement {
        level: serde_json::from_value(word).unwrap_or(Level::None), // silent-ok: `place` says the rest
        place,
        mechanisms: list("mechanisms"),
        missing: list("missing"),
    }
}

/// The record's time, and ids of the replay's own.
#[derive(Debug)]
pub(super) struct TapedClock {
    tapes: Arc<TapePlayer>,
}

impl TapedClock {
    pub(super) const fn new(tapes: Arc<TapePlayer>) -> Self {
        Self { tapes }
    }
}

impl Clock for TapedClock {
    fn now(&self) -> Timestamp {
        self.tapes.now()
    }

    fn monotonic_us(&self) -> u64 {
        u64::try_from(self.tapes.now().0).unwrap_or(0)
    }

    fn new_uuid(&self) -> Uuid {
        let now = u64::try_from(self.now().as_millis()).unwrap_or(0);
        let [.., a, b, c, d, e, f, g, h] = self.tapes.id().to_be_bytes();
        uuid::Builder::from_unix_timestamp_millis(now, &[0, 0, a, b, c, d, e, f, g, h]).into_uuid()
    }

    fn random_u64(&self) -> u64 {
        0
    }

    /// Nobody waits in a replay.
    fn patience_ms(&self, _ms: u64) -> u64 {
        0
    }

    /// But for an answer that is about to come.
    fn wait_unanswered<'a>(&'a self, question: &'a RequestId, ms: u64) -> BoxFuture<'a, ()> {
        let longest = Duration::from_millis(ms);
        Box::pin(async move {
            let _ = tokio::time::timeout(longest, self.tapes.left_alone(question)).await; // silent-ok: either is silence
        })
    }
}

/// A memory that recalls what was recalled, and keeps nothing: its operations are inputs and outputs of their own.
#[derive(Debug)]
pub(super) struct TapedMemory {
    tapes: Arc<TapePlayer>,
}

impl TapedMemory {
    pub(super) const fn new(tapes: Arc<TapePlayer>) -> Self {
        Self { tapes }
    }
}

fn no_memory<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T, MemoryError>> {
    ready_future(Err(MemoryError::Backend("a replay has no memory".to_owned())))
}

impl Memory for TapedMemory {
    fn check_store(&self, _store: &Store) -> Result<(), MemoryError> {
        Ok(())
    }

    /// What the same question found in this store then.
    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        _place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        let StoreQuery::Text(text) = &ask.query else {
            return no_memory();
        };
        let found = self.tapes.next_recall(&store.name, digest(text.as_bytes()));
        ready_future(Ok(found.unwrap_or_default()))
    }

    fn store_entries<'a>(
        &'a self,
        _store: &'a Store,
        _place: &'a Scope,
        entries: Vec<EntryInsertion>,
        _at: Timestamp,
        _record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        ready_future(Ok(entries.into_iter().map(|new| new.id).collect()))
    }

    fn compaction_candidates<'a>(
        &'a self,
        _store: &'a Store,
        _place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        ready_future(Ok(Vec::new()))
    }

    fn compact_store<'a>(
        &'a self,
        _store: &'a Store,
        _place: &'a Scope,
        _at: Timestamp,
        _summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        no_memory()
    }

    fn apply_retention<'a>(
        &'a self,
        _store: &'a Store,
        _at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        ready_future(Ok(0))
    }

    fn remove<'a>(
        &'a self,
        _store: &'a Store,
        _place: &'a Scope,
        _whose: ConversationFilter,
        _id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        no_memory()
    }

    fn count_entries<'a>(
        &'a self,
        _store: &'a Store,
        _place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        ready_future(Ok(0))
    }

    fn unembedded_entries<'a>(
        &'a self,
        _store: &'a Store,
        _model: &'a str,
        _limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        ready_future(Ok(Vec::new()))
    }

    fn add_vectors<'a>(
        &'a self,
        _store: &'a Store,
        _model: &'a str,
        _vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        ready_future(Ok(()))
    }
}
