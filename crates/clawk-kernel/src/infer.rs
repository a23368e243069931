//! Asking models: limits before, the record after, retries with back-off, and the fallback chain in order (CKP §5.2).
//!
//! Long because an inference is one way through purse, provider, retries and record, and is read downward.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clawk_events::count_of;
use clawk_events::payload::{ProviderCompleted, ProviderFailed, ProviderRequested};
use clawk_events::shape::BudgetUse;
use clawk_manifest::model::{Manifest, ModelModality, Provider as Spec};
use clawk_proto::SessionId;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::attach;
use crate::budget_events;
use crate::error::CallError;
use crate::event::{
    ChainText, Draft, EventWords, JournalWriter, Thread, WordField, budget_uses, canonical, digest,
};
use crate::member::{Member, MemberFailure};
use crate::notice::SessionNotice;
use crate::output::TruncatedOutputs;
use crate::pictures::ToolPictures;
use crate::ports::{
    BatchConditions, CompletionDelta, FaultKind, InferRequest, JournalError, ModelCompletion, ModelProvider,
    ProviderError, ProviderRate, StopReason, UnmetCondition, Usage,
};
use crate::purse::{AttemptReservation, BudgetAccount, BudgetAmount, BudgetTree, NoRoom, hour_of};
use crate::retry_policy::{ModelOptions, RetryPolicy};
use crate::screen::AgentScreening;
use crate::screen::answer::{self, StreamScreen};
use crate::watch::NoticeSender;

mod blank;
mod cache_key;
pub(crate) mod embed;
pub(crate) mod forms;
pub(crate) mod speech;

use forms::RefusalChanges;
pub(crate) use forms::{KnownForm, LearntForm, LearntForms};

/// What asking a model needs.
#[derive(Debug)]
pub(crate) struct ModelServices {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) providers: BTreeMap<String, Arc<dyn ModelProvider>>,
    /// What is local about asking them, by name.
    pub(crate) options: BTreeMap<String, ModelOptions>,
    pub(crate) purses: Arc<BudgetTree>,
    pub(crate) screens: Arc<AgentScreening>,
    pub(crate) scribe: JournalWriter,
    /// Pictures in the results of tools.
    pub(crate) pictures: ToolPictures,
    /// Results that can be read again.
    pub(crate) cuts: Arc<TruncatedOutputs>,
    /// What was learnt of how they are asked.
    pub(crate) forms: LearntForms,
}

impl ModelServices {
    /// The first provider of the manifest; validation says that there is one.
    pub(crate) fn primary(&self) -> &str {
        self.manifest
            .providers
            .first()
            .map(|provider| provider.name.as_str())
            .unwrap_or_default()
    }

    /// A provider and its fallbacks in order, each once (CKP §5.2).
    fn chain(&self, provider: &str) -> Vec<&Spec> {
        let Some(first) = self.manifest.provider(provider) else {
            return Vec::new();
        };
        let mut chain = vec![first];
        for fallback in &first.fallback {
            if let Some(next) = self.manifest.provider(&fallback.provider_ref)
                && !chain.iter().any(|known| known.name == next.name)
            {
                chain.push(next);
            }
        }
        chain
    }

    /// What is local about asking this provider.
    pub(crate) fn local(&self, provider: &str) -> ModelOptions {
        self.options.get(provider).cloned().unwrap_or_default()
    }
}

/// Why no model answered.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    Cancelled,
    /// For people: why, and what would mend it.
    Failed(String),
    /// A purse has no room; for people.
    Quota(String),
}

/// Where an inference belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InferenceContext<'a> {
    pub(crate) thread: Thread,
    pub(crate) turn: Uuid,
    pub(crate) notices: &'a NoticeSender,
    /// What pays for it.
    pub(crate) purse: &'a BudgetAccount,
    /// The member of the swarm that asks.
    pub(crate) member: Option<&'a Member>,
}

impl InferenceContext<'_> {
    /// What the swarm is told of a turn that fails.
    fn note(&self, trouble: MemberFailure) {
        if let Some(member) = self.member {
            member.note(trouble);
        }
    }
}

/// One answer, from the first provider of the chain that gives one. `max_output_tokens` of the request only narrows what the purse
/// and the settings allow; 0 leaves it to them.
pub(crate) async fn infer(
    models: &ModelServices,
    place: InferenceContext<'_>,
    provider: &str,
    mut request: InferRequest,
    cancel: &CancellationToken,
) -> Result<ModelCompletion, NoAnswer> {
    answer::prompt(&models.screens, &mut request);
    let chain = models.chain(provider);
    let mut troubles = Vec::new();
    for (at, spec) in chain.iter().enumerate() {
        let next = chain.get(at + 1).map(|next| next.name.as_str());
        let asked = ChainedProvider {
            first: provider,
            spec,
            next,
        };
        match exhaust(models, place, asked, &request, cancel).await? {
            Ok(completion) => return Ok(completion),
            Err(trouble) => troubles.push(trouble),
        }
    }
    Err(NoAnswer::Failed(format!(
        "no provider answered: {}",
        troubles.join("; ")
    )))
}

/// A provider of a chain that is asked.
#[derive(Debug, Clone, Copy)]
struct ChainedProvider<'a> {
    /// The chain's first.
    first: &'a str,
    spec: &'a Spec,
    /// Who is asked after it.
    next: Option<&'a str>,
}

/// All attempts at one provider. The outer error ends the whole chain, the inner one only this provider.
async fn exhaust(
    models: &ModelServices,
    place: InferenceContext<'_>,
    asked: ChainedProvider<'_>,
    request: &InferRequest,
    cancel: &CancellationToken,
) -> Result<Result<ModelCompletion, String>, NoAnswer> {
    let ChainedProvider { spec, next, .. } = asked;
    let time_ms = models.local(&spec.name).retry_time_ms;
    let mut patience = RetryPolicy::new(spec.retry.clone().unwrap_or_default(), time_ms, next.is_none());
    let mut changes = RefusalChanges::default();
    let mut shaped = match models.shape(place, (asked.first, spec), request) {
        Ok(shaped) => shaped,
        Err(why) => return Ok(Err(why)),
    };
    for attempt in 1..=u32::MAX {
        let error = match once(models, place, spec, attempt, &shaped, cancel).await? {
            Ok(completion) => return Ok(Ok(completion)),
            Err(error) => error,
        };
        // A refusal that names its cause is answered with a changed request. It is no fault that time would mend: no wait, and it does
        // not count as one of the provider's attempts.
        if let Some(cause) = error.cause.as_deref()
            && models
                .adapt(place, spec, (cause, &shaped), &mut changes)
                .map_err(|error| NoAnswer::Failed(error.to_string()))?
        {
            tell(place, spec, &error, 0, &spec.name).await;
            shaped = match models.shape(place, (asked.first, spec), request) {
                Ok(shaped) => shaped,
                Err(why) => return Ok(Err(why)),
            };
            continue;
        }
        let Some(wait_ms) = patience.after(&error, models.scribe.clock().random()) else {
            if let Some(next) = next {
                tell(place, spec, &error, 0, next).await;
            }
            if error.kind != FaultKind::Unpriced {
                place.note(MemberFailure::NoProvider);
            }
            return Ok(Err(error.message + &patience.tried()));
        };
        tell(place, spec, &error, wait_ms, &spec.name).await;
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_millis(models.scribe.clock().patience_ms(wait_ms))) => {}
            () = cancel.cancelled() => return Err(NoAnswer::Cancelled),
        }
    }
    Ok(Err(format!("provider `{}`: no attempts are left", spec.name)))
}

async fn tell(place: InferenceContext<'_>, spec: &Spec, error: &ProviderError, wait_ms: u64, next: &str) {
    let notice = SessionNotice::Retrying {
        provider: spec.name.clone(),
        reason: error.message.clone(),
        wait_ms,
        next: next.to_owned(),
    };
    place.notices.send(notice).await;
}

/// The request as a provider is sent it: with the pictures of messages and of results, where it takes pictures.
async fn with_pictures(
    models: &ModelServices,
    session: SessionId,
    request: &InferRequest,
    takes_images: bool,
) -> Result<InferRequest, NoAnswer> {
    let journal = &**models.scribe.journal();
    let failed = |error: JournalError| NoAnswer::Failed(error.to_string());
    let shown = attach::shown(journal, request.clone(), takes_images)
        .await
        .map_err(failed)?;
    if !takes_images {
        return Ok(shown);
    }
    models
        .pictures
        .show(journal, session, shown)
        .await
        .map_err(failed)
}

/// One attempt: set aside and recorded before, settled and recorded after.
async fn once(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    attempt: u32,
    request: &InferRequest,
    cancel: &CancellationToken,
) -> Result<Result<ModelCompletion, ProviderError>, NoAnswer> {
    let Some(provider) = models.providers.get(&spec.name).map(Arc::clone) else {
        return Ok(Err(absent(spec)));
    };
    let bytes = canonical(request);
    // The bound on output, still 0 here, will usually have four digits.
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX).saturating_add(3);
    let takes_images = spec.capabilities.contains(&ModelModality::Image);
    let of_tools = models.pictures.count(place.thread.session, request);
    let size = size.saturating_add(attach::counted(request, of_tools, takes_images));
    let set = match set_aside(models, place, spec, attempt, (digest(&bytes), size)).await? {
        Ok(set) => set,
        Err(error) => return Ok(Err(error)),
    };
    // Where the window is known, prompt and answer fit it together.
    let room = models.answer_room(place.thread.session, &spec.name, set.input_tokens);
    let mut request = InferRequest {
        // Behind the digest: it says nothing to the model.
        cache_key: Some(cache_key::cache_key(models, place)),
        max_output_tokens: match request.max_output_tokens {
            0 => set.max_output_tokens.min(room),
            wanted => wanted.min(set.max_output_tokens).min(room),
        },
        ..with_pictures(models, place.thread.session, request, takes_images).await?
    };
    let mut limit_ms = set.reservation.amount.busy_ms;
    let asked = digest(&bytes);
    let open = match InferenceAttempt::begin(models, place, spec, attempt, asked, set).await {
        Ok(open) => open,
        // Other hosts have spent what was free by this one's count. By the new count there may be room for less.
        Err(NotBegun::Later { wait_ms }) => return Ok(Err(used_up(spec, wait_ms))),
        Err(NotBegun::Quota(_)) => {
            let set = match set_aside(models, place, spec, attempt, (asked, size)).await? {
                Ok(set) => set,
                Err(error) => return Ok(Err(error)),
            };
            limit_ms = set.reservation.amount.busy_ms;
            request.max_output_tokens = request.max_output_tokens.min(set.max_output_tokens);
            InferenceAttempt::begin(models, place, spec, attempt, asked, set).await?
        }
        Err(error) => return Err(error.into()),
    };
    let on_delta = telling(models, place.notices, &open.received);
    let limit = Duration::from_millis(limit_ms);
    let mut outcome = match tokio::time::timeout(limit, provider.infer(&request, &on_delta, cancel)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(fault(
            FaultKind::Timeout,
            format!(
                "provider `{}`: no answer within {limit_ms} ms, the time that was left",
                spec.name
            ),
            None,
        )),
    };
    blank::refuse_blank(spec, &mut outcome);
    match &mut outcome {
        Ok(completion) => completion.usage = open.settled(completion.usage),
        Err(error) => error.usage = error.usage.map(|usage| open.settled(usage)),
    }
    if let Ok(completion) = &outcome {
        models.purses.learn(&spec.name, size, &completion.usage);
    }
    let found = screened(models, place, spec, &mut outcome).await;
    // What a model said counts only once it is recorded: a restart must find the same conversation.
    open.end(&outcome, found)
        .await
        .map_err(|error| NoAnswer::Failed(error.to_string()))?;
    match outcome {
        Err(error) if error.kind == FaultKind::Cancelled => Err(NoAnswer::Cancelled),
        outcome => Ok(outcome),
    }
}

fn absent(spec: &Spec) -> ProviderError {
    let message = format!("provider `{}` is not connected", spec.name);
    fault(FaultKind::Rejected, message, None)
}

/// `requests_per_minute`: room comes in so many milliseconds.
fn used_up(spec: &Spec, wait_ms: u64) -> ProviderError {
    let message = format!("provider `{}`: requests_per_minute is used up", spec.name);
    fault(FaultKind::RateLimited, message, Some(wait_ms))
}

/// What one attempt may take. The outer error ends the whole chain, the inner one only this attempt.
async fn set_aside(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    attempt: u32,
    (request_hash, size): (clawk_proto::Digest, u64),
) -> Result<Result<AttemptReservation, ProviderError>, NoAnswer> {
    let now = models.scribe.now();
    match models.purses.infer(place.purse, &spec.name, size, now) {
        Ok(set) => Ok(Ok(set)),
        Err(NoRoom::Later { wait_ms }) => Ok(Err(used_up(spec, wait_ms))),
        // What can't be paid for knowingly is not asked: it counts as tried and failed, and the next is tried (CKP §5.2).
        Err(NoRoom::Unpriced(reason)) => {
            let error = fault(FaultKind::Unpriced, reason, None);
            unpriced(models, place, spec, attempt, request_hash, &error)
                .await
                .map_err(|error| NoAnswer::Failed(error.to_string()))?;
            place.note(MemberFailure::Unpriced);
            Ok(Err(error))
        }
        // A limit is the operator's word, not a fault: no fallback goes around it.
        Err(NoRoom::Quota(error)) => {
            if let CallError::Quota { limit_name, .. } = &error {
                place.note(MemberFailure::Quota(limit_name.clone()));
            }
            Err(NoAnswer::Quota(error.to_string()))
        }
    }
}

/// Pieces go out as they may be shown.
fn telling(
    models: &ModelServices,
    notices: &NoticeSender,
    received: &Arc<AtomicU64>,
) -> impl Fn(CompletionDelta<'_>) + Send + Sync + use<> {
    let (notices, words) = (notices.clone(), StreamScreen::new(&models.screens));
    let received = Arc::clone(received);
    move |delta| match delta {
        CompletionDelta::Text(text) => {
            let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
            received.fetch_add(bytes, Ordering::Relaxed);
            let shown = words.piece(text);
            if !shown.is_empty() {
                notices.delta(&shown);
            }
        }
        // Thoughts are no part of the answer: nobody is shown them.
        CompletionDelta::Call(_) | CompletionDelta::Thought(_) => {}
    }
}

/// What came, as it may be kept and told; what is to be recorded of it.
async fn screened(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    outcome: &mut Result<ModelCompletion, ProviderError>,
) -> Vec<Draft> {
    match outcome {
        Ok(completion) => {
            answer::completion(
                &models.screens,
                place.thread,
                &spec.name,
                place.notices,
                completion,
            )
            .await
        }
        Err(error) => {
            answer::failure(&models.screens, error);
            Vec::new()
        }
    }
}

/// A provider that was not asked, on record as an attempt that took nothing.
async fn unpriced(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    attempt: u32,
    request_hash: clawk_proto::Digest,
    error: &ProviderError,
) -> Result<(), crate::ports::JournalError> {
    let inference_id = models.scribe.clock().uuid();
    let requested = ProviderRequested {
        attempt,
        bytes_out: 0,
        cost_microusd: None,
        inference_id,
        input_tokens: 0,
        model: spec.model.to_string(),
        output_tokens: 0,
        provider: spec.name.to_string(),
        purses: Vec::new(),
        request_hash,
        turn: place.turn,
    };
    let words = EventWords::new(WordField::Reason, &error.message);
    let failed = ProviderFailed {
        attempt,
        bytes_out: 0,
        cause: None,
        cost_microusd: None,
        duration_ms: 0,
        estimated: false,
        inference_id,
        input_tokens: 0,
        kind: error.kind.as_str().to_owned(),
        output_tokens: 0,
        provider: spec.name.to_string(),
        reason: ChainText::code(error.kind.as_str()),
        retry_after_ms: None,
        status: None,
        told: None,
        took: Vec::new(),
        turn: place.turn,
        words_hash: Some(words.digest()),
    };
    let scribe = &models.scribe;
    let requested = scribe.entry(&place.thread, &requested);
    let failed = scribe.entry(&place.thread, &failed).words(words);
    scribe.write(vec![requested, failed]).await
}

/// An attempt under way. Dropped before its end, it is settled at what was sent and received.
struct InferenceAttempt<'a> {
    models: &'a ModelServices,
    place: InferenceContext<'a>,
    spec: &'a Spec,
    attempt: u32,
    id: Uuid,
    request_hash: clawk_proto::Digest,
    started_us: u64,
    /// What is set aside over all hosts.
    aside: Option<Uuid>,
    set: Option<AttemptReservation>,
    /// Bytes of the answer that have come.
    received: Arc<AtomicU64>,
}

/// Why an attempt did not begin.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Other hosts have used a limit up.
    #[error("{0}")]
    Quota(CallError),
    /// Other hosts have used the provider's minute up.
    #[error("requests_per_minute is used up for {wait_ms} ms, on all hosts together")]
    Later { wait_ms: u64 },
}

impl From<NotBegun> for NoAnswer {
    fn from(why: NotBegun) -> Self {
        match why {
            NotBegun::Journal(error) => Self::Failed(error.to_string()),
            NotBegun::Quota(error) => Self::Quota(error.to_string()),
            NotBegun::Later { .. } => Self::Failed(why.to_string()),
        }
    }
}

/// Counts what other hosts have spent.
async fn catch_up(models: &ModelServices) -> Result<(), JournalError> {
    let now = models.scribe.now();
    let (month, _) = now.month();
    let kept = models.scribe.journal().spent_since(hour_of(month)).await?;
    models.purses.catch_up(&kept, now);
    Ok(())
}

impl<'a> InferenceAttempt<'a> {
    /// Records what is set aside, durably: what the process takes with it when it dies is settled by the next start.
    async fn begin(
        models: &'a ModelServices,
        place: InferenceContext<'a>,
        spec: &'a Spec,
        attempt: u32,
        request_hash: clawk_proto::Digest,
        set: AttemptReservation,
    ) -> Result<Self, NotBegun> {
        let id = models.scribe.clock().uuid();
        let estimate = set.estimate();
        let purses = set.reservation.kept();
        let payload = ProviderRequested {
            attempt,
            bytes_out: set.reservation.amount.bytes_out,
            cost_microusd: set
                .price
                .map(|price| price.at_most(estimate.input_tokens, estimate.output_tokens)),
            inference_id: id,
            input_tokens: estimate.input_tokens,
            model: spec.model.to_string(),
            output_tokens: estimate.output_tokens,
            provider: spec.name.to_string(),
            purses: purses.iter().map(ToString::to_string).collect(),
            request_hash,
            turn: place.turn,
        };
        let draft = models.scribe.entry(&place.thread, &payload);
        // Beside other hosts, this commit decides whether there is room.
        let terms = match models.scribe.journal().shared() {
            Some(_) => BatchConditions {
                request: spec.limits.requests_per_minute.map(|per_minute| ProviderRate {
                    provider: spec.name.as_str().into(),
                    per_minute,
                }),
                ..set.reservation.terms(id)
            },
            None => BatchConditions::default(),
        };
        let (rooms, aside) = (terms.room.clone(), terms.aside.is_some());
        let begun = models.scribe.account_if(vec![draft], Default::default(), terms)?;
        let begun = begun.durable().await;
        if matches!(begun, Err(JournalError::Unmet(_))) {
            models.purses.give_back_request(&spec.name);
        }
        match begun {
            Err(JournalError::Unmet(UnmetCondition::Rate { wait_ms })) => {
                return Err(NotBegun::Later { wait_ms });
            }
            Err(JournalError::Unmet(UnmetCondition::Room { at, used })) => {
                let error = rooms.get(at).map(|room| set.reservation.used_up(room, used));
                catch_up(models).await?;
                return Err(error.map_or(
                    JournalError::Unmet(UnmetCondition::Room { at, used }).into(),
                    NotBegun::Quota,
                ));
            }
            begun => begun?,
        }
        Ok(Self {
            aside: aside.then_some(id),
            models,
            place,
            spec,
            attempt,
            id,
            request_hash,
            started_us: models.scribe.clock().monotonic_us(),
            set: Some(set),
            received: Arc::default(),
        })
    }

    /// What has been sent and has come, at four bytes a token.
    fn passed(&self, set: &AttemptReservation) -> Usage {
        Usage {
            output_tokens: self.received.load(Ordering::Relaxed).div_ceil(4),
            ..set.estimate()
        }
    }

    /// What is counted of what a provider said: see [`AttemptReservation::settled`].
    fn settled(&self, usage: Usage) -> Usage {
        self.set.as_ref().map_or(usage, |set| set.settled(usage))
    }

    fn duration_ms(&self) -> u64 {
        self.models
            .scribe
            .clock()
            .monotonic_us()
            .saturating_sub(self.started_us)
            / 1000
    }

    /// Settles and records how it ended, in one commit.
    async fn end(
        mut self,
        outcome: &Result<ModelCompletion, ProviderError>,
        found: Vec<Draft>,
    ) -> Result<(), crate::ports::JournalError> {
        let Some(set) = self.set.take() else { return Ok(()) };
        let duration_ms = self.duration_ms();
        let usage = match outcome {
            Ok(completion) => completion.usage,
            Err(error) => spent_by(error, self.passed(&set), set.estimate()),
        };
        let cost = set.cost(&usage);
        let took = set.took(&usage, duration_ms);
        let settled = set.reservation.settle(took, self.models.scribe.now());
        let told = budget_uses(&settled.told);
        let draft = match outcome {
            Ok(completion) => self.completed(completion, cost, (took, told), duration_ms),
            Err(error) => self.failed(error, usage, cost, (took, told)),
        };
        let mut drafts = found;
        drafts.push(draft);
        drafts.extend(budget_events::warned(
            &self.models.scribe,
            &self.place.thread,
            &settled.warnings,
        ));
        let terms = BatchConditions {
            settles: self.aside,
            ..BatchConditions::default()
        };
        self.models
            .scribe
            .account_if(drafts, (settled.spent, Vec::new()), terms)?
            .durable()
            .await?;
        for warning in &settled.warnings {
            self.place
                .notices
                .send(SessionNotice::Warned(warning.to_string()))
                .await;
        }
        Ok(())
    }

    fn completed(
        &self,
        completion: &ModelCompletion,
        cost_microusd: Option<u64>,
        (took, told): (BudgetAmount, Vec<BudgetUse>),
        duration_ms: u64,
    ) -> Draft {
        let bytes = canonical(completion);
        let completion_hash = digest(&bytes);
        let usage = completion.usage;
        let payload = ProviderCompleted {
            attempt: self.attempt,
            bytes_out: took.bytes_out,
            cached_tokens: usage.cached_tokens,
            call_count: count_of(completion.calls.len()),
            completion_hash,
            cost_microusd,
            duration_ms,
            estimated: usage.estimated,
            inference_id: self.id,
            input_tokens: usage.input_tokens,
            model: completion.model.to_string(),
            output_tokens: usage.output_tokens,
            provider: self.spec.name.to_string(),
            request_hash: self.request_hash,
            stop: match completion.stop {
                StopReason::End => "end",
                StopReason::ToolUse => "tool-use",
                StopReason::Length => "length",
                StopReason::Refusal => "refusal",
            }
            .to_owned(),
            told: usage.told,
            took: told,
            turn: self.place.turn,
        };
        self.models
            .scribe
            .entry(&self.place.thread, &payload)
            .content(completion_hash, bytes)
    }

    fn failed(
        &self,
        error: &ProviderError,
        spent: Usage,
        cost_microusd: Option<u64>,
        (took, told): (BudgetAmount, Vec<BudgetUse>),
    ) -> Draft {
        let words = EventWords::new(WordField::Reason, &error.message);
        let payload = ProviderFailed {
            attempt: self.attempt,
            bytes_out: took.bytes_out,
            cause: error.cause.as_deref().cloned(),
            cost_microusd,
            duration_ms: took.busy_ms,
            estimated: spent.estimated,
            inference_id: self.id,
            input_tokens: spent.input_tokens,
            kind: error.kind.as_str().to_owned(),
            output_tokens: spent.output_tokens,
            provider: self.spec.name.to_string(),
            reason: ChainText::code(error.kind.as_str()),
            retry_after_ms: error.retry_after_ms,
            status: error.status,
            told: error.usage.and_then(|usage| usage.told),
            took: told,
            turn: self.place.turn,
            words_hash: Some(words.digest()),
        };
        self.models
            .scribe
            .entry(&self.place.thread, &payload)
            .words(words)
    }
}

impl Drop for InferenceAttempt<'_> {
    fn drop(&mut self) {
        let Some(set) = self.set.take() else { return };
        let usage = self.passed(&set);
        let took = set.took(&usage, self.duration_ms());
        let error = fault(
            FaultKind::Cancelled,
            "nobody waits for it any more; settled at what was sent and received".to_owned(),
            None,
        );
        let cost = set.cost(&usage);
        let settled = set.reservation.settle(took, self.models.scribe.now());
        let draft = self.failed(&error, usage, cost, (took, budget_uses(&settled.told)));
        let terms = BatchConditions {
            settles: self.aside,
            ..BatchConditions::default()
        };
        let own = (settled.spent, Vec::new());
        if let Err(error) = self.models.scribe.account_if(vec![draft], own, terms) {
            tracing::error!(%error, "an abandoned inference could not be recorded; the next start settles it");
        }
    }
}

/// What a failed attempt cost: the server's counts where it gave them, else what was really sent and received. An answer that breaks off
/// is not free, and not the dearest that it could have become; only where nobody counted what came of it, it counts as that.
fn spent_by(error: &ProviderError, passed: Usage, aside: Usage) -> Usage {
    let (working, came) = match error.kind {
        FaultKind::Cut | FaultKind::Malformed => (true, true),
        FaultKind::Timeout | FaultKind::Cancelled => (true, false),
        FaultKind::Unreachable
        | FaultKind::RateLimited
        | FaultKind::ServerFault
        | FaultKind::Auth
        | FaultKind::Rejected
        | FaultKind::Unpriced
        | FaultKind::ContextTooLong => (false, false),
    };
    match error.usage {
        Some(counted) if !counted.estimated => counted,
        Some(come) if working => come,
        None if came => aside,
        None if working => passed,
        told => told.unwrap_or_default(),
    }
}

fn fault(kind: FaultKind, message: String, retry_after_ms: Option<u64>) -> ProviderError {
    ProviderError {
        kind,
        message,
        status: None,
        retry_after_ms,
        usage: None,
        cause: None,
    }
}
