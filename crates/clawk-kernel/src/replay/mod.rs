//! Replay: a recorded session run again by the same kernel, with the record in place of the world.
//!
//! Nothing here interprets a turn. Models, tools, people and time are ports made of a [`ReplayTape`]; the messages and calls that came from
//! outside are handed in again; what the kernel then writes is compared with the record. No provider, runner or network exists.

mod compare;
pub(crate) mod facts;
mod ports;
mod read;
mod said;
mod shadow;
mod tape;

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use clawk_manifest::model::{Manifest, Role};
use clawk_proto::method::{CallContext, ToolCallParams};
use clawk_proto::{Digest, RequestId, SessionId};
use serde::Serialize;
use serde_json::value::RawValue;

pub use crate::carp::{AtlasRef, CarpFacts, atlas_of};
pub use facts::{AgentFacts, ToolFacts};
pub use shadow::{
    ComparedDecision, DecisionDifference, SessionShadowReport, ShadowAgent, StaticCheck, replay_shadow,
};
pub use tape::{ReplayTape, TapeError};

use clawk_secrets::ResolvedSecrets;

use crate::ModelOptions;
use crate::call::{ApprovalReply, GrantScope};
use crate::ports::{
    Batch, InferRequest, Journal as _, JournalEntry, JournalError, ModelProvider, RecordedEvent,
};
use crate::roles::KnownPerson;
use crate::screen::JudgeSettings;
use crate::sheet::PreviewReceipt;
use crate::testing::MemJournal;
use crate::time::Timestamp;
use crate::{AgentDependencies, ApprovalAnswer, EntryPoint, Kernel, Options, SessionHandle, SessionNotice};
use ports::{TapedClock, TapedMemory, TapedModel, TapedTools};
use said::TapedReply;
use tape::{TapePlayer, TapedInput};

/// How long one message or call may take; a replay waits for nothing but itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayResult {
    /// The session.
    pub session_id: SessionId,
    /// Events of the record that were compared.
    pub compared: u64,
    /// Events that have no replay: a resumption after a crash, an erasure, what other sessions did here.
    pub skipped: u64,
    /// Messages and calls that were handed in again.
    pub inputs: u64,
    /// The first difference; `None`: the record is what the kernel does.
    pub divergence: Option<ReplayDivergence>,
}

/// The first event that came out otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayDivergence {
    /// The recorded event; of a surplus one, the event before which it came.
    pub sequence: u64,
    /// Its type.
    pub event_type: String,
    /// For people.
    pub detail: String,
}

/// Why there can be no replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The record lacks what it takes.
    #[error(transparent)]
    Missing(#[from] TapeError),
    /// The kernel does not start or take the session on these facts.
    #[error("the recorded agent can't be started: {0}")]
    Start(String),
    /// It takes for ever.
    #[error("the replay of event {sequence} does not end within {} s", PATIENCE.as_secs())]
    Stuck {
        /// The input.
        sequence: u64,
    },
}

/// Runs a tape and compares. `context_dir` holds the agent's context files as [`AgentFacts::context_files`] has them, or nothing.
///
/// # Errors
/// See [`ReplayError`]; a divergence is no error here but the answer.
pub async fn replay_tape(tape: ReplayTape, context_dir: &Path) -> Result<ReplayResult, ReplayError> {
    let PlayedTape {
        session,
        events,
        again,
        inputs,
        ..
    } = play_tape(tape, context_dir).await?;
    let (compared, skipped, divergence) = compare::compare(&events, &again);
    Ok(ReplayResult {
        session_id: session,
        compared,
        skipped,
        inputs,
        divergence,
    })
}

/// What the models were asked, in order, built again from the record: what each was sent, but for the bound on its answer.
/// Whoever takes them compares [`Prompt::request_hash`] with the record's.
///
/// # Errors
/// See [`ReplayError`].
pub async fn rebuild_prompts(tape: ReplayTape, context_dir: &Path) -> Result<Vec<Prompt>, ReplayError> {
    let asked = play_tape(tape, context_dir).await?.asked;
    let prompt = |request: InferRequest| {
        let request = InferRequest {
            max_output_tokens: 0,
            // Set behind the digest, like the bound.
            cache_key: None,
            ..request
        };
        Prompt {
            request_hash: crate::event::digest(&crate::event::canonical(&request)),
            request,
        }
    };
    Ok(asked.into_iter().map(prompt).collect())
}

/// One question to a model, as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// As `ckp.provider.requested` has it.
    pub request_hash: Digest,
    /// System prompt, messages, tools.
    pub request: InferRequest,
}

/// What came of a tape.
struct PlayedTape {
    session: SessionId,
    /// The record.
    events: Vec<RecordedEvent>,
    /// What the kernel wrote.
    again: Vec<RecordedEvent>,
    /// Messages and calls that were handed in.
    inputs: u64,
    /// What models were asked.
    asked: Vec<InferRequest>,
}

async fn play_tape(tape: ReplayTape, context_dir: &Path) -> Result<PlayedTape, ReplayError> {
    context_at_start(&tape, context_dir)?;
    let tapes = Arc::new(TapePlayer::new(&tape)?);
    let journal = Arc::new(MemJournal::default());
    let mut manifest = tape.facts.manifest.clone();
    manifest.dir = context_dir.to_owned();
    let providers: BTreeMap<String, Arc<dyn ModelProvider>> = manifest
        .providers
        .iter()
        .map(|spec| {
            let model = TapedModel::new(spec.name.clone(), Arc::clone(&tapes));
            (spec.name.clone(), Arc::new(model) as Arc<dyn ModelProvider>)
        })
        .collect();
    let parts = replay_dependencies(&tape, &tapes, &journal, manifest, providers);
    let began = tape.events.first().map_or(Timestamp(0), |event| event.at);
    let (before, beside): (Vec<_>, Vec<_>) = tape.past.iter().partition(|event| event.at < began);
    restore_past(&journal, &before).map_err(|e| ReplayError::Start(e.to_string()))?;
    let kernel = Kernel::start(parts)
        .await
        .map_err(|e| ReplayError::Start(e.to_string()))?;
    let session = open_session(&kernel, &tape).await?;
    let people = answer_questions(kernel.clone(), Arc::clone(&tapes));
    tokio::pin!(people);
    let inputs = async {
        let mut count = 0;
        let mut beside = beside.into_iter().peekable();
        for given in &tape.inputs {
            while let Some(event) = beside.next_if(|event| event.at <= given.at) {
                tapes.turn_to(event.at);
                kernel.repeat_event(event, tape.session).await;
            }
            tapes.turn_to(given.at);
            context_of(&tape, context_dir, &given.turn)?;
            for form in tape.forms.iter().filter(|form| form.turn == given.turn) {
                kernel.learn_form(&form.provider, form.form.clone());
            }
            let one = tokio::time::timeout(PATIENCE, hand_in(&kernel, &session, &given.input));
            let sequence = given.sequence;
            one.await.map_err(|_| ReplayError::Stuck { sequence })??; // silent-ok: Elapsed says no more
            count += 1;
        }
        Ok::<u64, ReplayError>(count)
    };
    let inputs = tokio::select! {
        outcome = inputs => outcome?,
        () = &mut people => 0,
    };
    kernel.shutdown("replayed", 1_000).await;
    let again: Vec<RecordedEvent> = journal
        .events()
        .into_iter()
        .filter(|event| event.session == session.id)
        .collect();
    Ok(PlayedTape {
        session: tape.session,
        events: tape.events,
        again,
        inputs,
        asked: tapes.requests(),
    })
}

/// Lays the context files as the agent had them when it started: an earlier run of the same tape changed them.
fn context_at_start(tape: &ReplayTape, dir: &Path) -> Result<(), ReplayError> {
    for change in tape.context_changes() {
        let text = tape.facts.context_files.get(&change.file);
        write_context_file(dir, &change.file, text.map(String::as_bytes))?;
    }
    Ok(())
}

/// Lays the context files as this turn found them.
fn context_of(tape: &ReplayTape, dir: &Path, turn: &str) -> Result<(), ReplayError> {
    for change in tape.context_changes().filter(|change| change.turn == turn) {
        write_context_file(dir, &change.file, change.text.as_deref())?;
    }
    Ok(())
}

fn write_context_file(dir: &Path, file: &str, text: Option<&[u8]>) -> Result<(), ReplayError> {
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if !Path::new(file).components().all(plain) {
        return Ok(()); // no prompt holds such a file
    }
    let path = dir.join(file);
    let done = match text {
        Some(text) => path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&path, text)),
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other,
        },
    };
    done.map_err(|error| ReplayError::Start(format!("the context file `{file}` can't be laid: {error}")))
}

/// The agent again, with ports that play the tape.
fn replay_dependencies(
    tape: &ReplayTape,
    tapes: &Arc<TapePlayer>,
    journal: &Arc<MemJournal>,
    manifest: Manifest,
    providers: BTreeMap<String, Arc<dyn ModelProvider>>,
) -> AgentDependencies {
    let facts = tape.facts.carp.as_ref();
    AgentDependencies {
        manifest: Arc::new(manifest),
        providers,
        runner: Arc::new(TapedTools::new(tape, Arc::clone(tapes))),
        journal: Arc::clone(journal) as _,
        memory: Some(Arc::new(TapedMemory::new(Arc::clone(tapes)))),
        clock: Arc::new(TapedClock::new(Arc::clone(tapes))),
        atlases: facts.map_or_else(Default::default, |carp| carp.to_settings(tape.atlases.clone())),
        options: Options {
            workdir: tape.facts.workdir.clone(),
            origin: String::new(),
            sandbox: tape.facts.sandbox,
            own: clawk_plan::RuntimeFiles {
                state: None,
                files: tape.facts.own.clone(),
            },
            suggestions: None,
            audit_writable: Arc::new(true.into()),
            budgets: Default::default(),
            prices: Default::default(),
            planning: tape.facts.planning,
            judge: JudgeSettings::default(),
            claims: tape.facts.claims.clone(),
            shown: tape.facts.shown,
            models: model_options(tape),
            reach_providers: false,
            inbox: Default::default(),
            outbox: Default::default(),
            across_senders: Default::default(),
            // Each message has the frame that it was recorded with.
            timezone: None,
            swarm: crate::SwarmOptions {
                taped: Some(tape.team.clone()),
                ..Default::default()
            },
        },
        // What was secret was taken out before it was recorded.
        secrets: ResolvedSecrets::default(),
    }
}

/// How long each provider is asked again: as then.
fn model_options(tape: &ReplayTape) -> BTreeMap<String, ModelOptions> {
    let providers = tape.facts.manifest.providers.iter();
    providers
        .map(|spec| {
            let counted = || ModelOptions {
                retry_time_ms: 0,
                fits_turns: false,
                converts_arguments: false,
                ..ModelOptions::default()
            };
            let known = tape.facts.models.get(&spec.name).cloned();
            (spec.name.clone(), known.unwrap_or_else(counted))
        })
        .collect()
}

/// What the agent knew from before: who may do what without being asked, what was spent that day.
fn restore_past(journal: &MemJournal, events: &[&RecordedEvent]) -> Result<(), JournalError> {
    let kinds = ReplayTape::BEFORE.into_iter().chain(ReplayTape::BESIDE);
    for event in events {
        let Some(kind) = kinds.clone().find(|kind| *kind == event.kind) else {
            continue;
        };
        let payload = RawValue::from_string(event.payload.clone())
            .map_err(|e| JournalError::Unreadable(e.to_string()))?;
        // An older record may hold larger events than are written now.
        let payload = clawk_trace::bounded(payload);
        let entry = JournalEntry {
            session: event.session,
            event_id: event.session.0,
            span: event.session.0,
            parent: None,
            at: event.at,
            kind,
            payload,
            content: event.content.clone(),
            answers: None,
        };
        let _ticket = journal.submit_batch(Batch {
            entries: vec![entry],
            ..Batch::default()
        })?;
    }
    Ok(())
}

async fn open_session(kernel: &Kernel, tape: &ReplayTape) -> Result<SessionHandle, ReplayError> {
    // Calls of a door have the rights of who opened the session; messages have their own.
    let door = if tape.door == "rpc" || tape.role != Role::Admin {
        EntryPoint::Rpc {
            client: "replay".to_owned(),
            role: tape.role,
        }
    } else {
        EntryPoint::Cli
    };
    let opened = kernel.open_session(door).await;
    opened.map_err(|e| ReplayError::Start(e.to_string()))
}

/// Answers every question as it was answered then; a question that lapsed then is left alone.
async fn answer_questions(kernel: Kernel, tapes: Arc<TapePlayer>) {
    let mut questions = kernel.subscribe_questions();
    let mut seen = HashSet::new();
    while let Ok(question) = questions.recv().await {
        // A plan's question is told with the plan, and again when its call comes before its answer.
        if !seen.insert(question.request_id.clone()) {
            continue;
        }
        // Of a question that the record leaves open, nothing is known.
        let Some(answered) = tapes.next_reply(&question) else {
            if tapes.is_shadow() {
                tapes.leave_alone(&question.request_id);
            }
            continue;
        };
        let TapedReply {
            folder, by, reason, ..
        } = answered;
        let Some(answer) = answered.answer else {
            tapes.leave_alone(&question.request_id);
            continue;
        };
        let reply = ApprovalReply {
            answer,
            breadth: if folder {
                GrantScope::Folder
            } else {
                GrantScope::Exact
            },
            person: KnownPerson::admin("replay", &by),
            reason,
            seen: PreviewReceipt::Sent,
        };
        kernel.reply_to_question(&question.request_id, reply).await;
    }
}

async fn hand_in(kernel: &Kernel, session: &SessionHandle, input: &TapedInput) -> Result<(), ReplayError> {
    match input {
        TapedInput::Message { said, origin } => {
            if session.send_as(origin.clone(), said.clone()).await.is_err() {
                // It was taken then; that it is not now shows in the comparison.
                return Ok(());
            }
            while let Some(notice) = session.next_notice().await {
                if let SessionNotice::TurnEnded { .. } = notice {
                    break;
                }
            }
        }
        TapedInput::Call {
            tool,
            arguments,
            request_id,
            identity,
            policy,
            sandbox,
        } => {
            let Ok(request_id) = RequestId::parse(request_id) else {
                return Ok(());
            };
            let params = ToolCallParams {
                name: tool.clone(),
                arguments: arguments.clone(),
                context: CallContext {
                    request_id,
                    identity: identity.clone(),
                    sandbox: sandbox.clone(),
                    policy: policy.clone(),
                },
            };
            // silent-ok: how it ended is in the journal, which is compared
            let _outcome = kernel.call(session.id, params).await;
        }
    }
    Ok(())
}

/// What a person said, as the trace's word has it; `None`: nobody did in time.
fn answer_of(word: &str) -> Option<ApprovalAnswer> {
    match word {
        "approve" => Some(ApprovalAnswer::Approve),
        "approve-for-session" => Some(ApprovalAnswer::ApproveForSession),
        "always" => Some(ApprovalAnswer::Always),
        "deny" => Some(ApprovalAnswer::Deny),
        _ => None,
    }
}
