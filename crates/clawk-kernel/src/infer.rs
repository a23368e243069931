//! Requests to models: limits before, the record after, retries with back-off, and the fallback chain in order (CKP §5.2).
//!
//! Long because a model request is one path through budget, provider, retries and record, and is read from top to bottom.

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
use crate::screen::answer::{self, StreamScreen, ThoughtScreen};
use crate::watch::NoticeSender;

mod blank;
mod cache_key;
pub(crate) mod embed;
pub(crate) mod forms;
pub(crate) mod speech;

use forms::RefusalChanges;
pub(crate) use forms::{KnownForm, LearntForm, LearntForms};

/// The dependencies of model requests.
#[derive(Debug)]
pub(crate) struct ModelServices {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) providers: BTreeMap<String, Arc<dyn ModelProvider>>,
    /// Local settings of each provider, by name.
    pub(crate) options: BTreeMap<String, ModelOptions>,
    pub(crate) purses: Arc<BudgetTree>,
    pub(crate) screens: Arc<AgentScreening>,
    pub(crate) scribe: JournalWriter,
    /// Images in tool results.
    pub(crate) pictures: ToolPictures,
    /// Shortened results that can be read again.
    pub(crate) cuts: Arc<TruncatedOutputs>,
    /// Adaptations of requests that were learnt from refusals.
    pub(crate) forms: LearntForms,
}

impl ModelServices {
    /// Returns the manifest's first provider. Validation ensures that there is one.
    pub(crate) fn primary_provider(&self) -> &str {
        self.manifest
            .providers
            .first()
            .map(|provider| provider.name.as_str())
            .unwrap_or_default()
    }

    /// Returns a provider and its fallbacks in order, each once (CKP §5.2).
    fn provider_chain(&self, provider: &str) -> Vec<&Spec> {
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

    /// Returns the local settings of this provider.
    pub(crate) fn local_options(&self, provider: &str) -> ModelOptions {
        self.options.get(provider).cloned().unwrap_or_default()
    }
}

/// Why no model answered.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    Cancelled,
    /// All attempts failed. Holds the reason and a fix, for people.
    Failed(String),
    /// A budget is used up. Holds the text for people.
    Quota(String),
}

/// The context of a model request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InferenceContext<'a> {
    pub(crate) thread: Thread,
    pub(crate) turn: Uuid,
    pub(crate) notices: &'a NoticeSender,
    /// The budget that pays.
    pub(crate) purse: &'a BudgetAccount,
    /// The swarm member that makes the request.
    pub(crate) member: Option<&'a Member>,
}

impl InferenceContext<'_> {
    /// Records the failure for the swarm.
    fn record_failure(&self, trouble: MemberFailure) {
        if let Some(member) = self.member {
            member.record_failure(trouble);
        }
    }
}

/// Returns the answer of the first provider in the chain that gives one. The request's `max_output_tokens` can only lower the limit
/// of budget and settings; 0 means no own limit.
pub(crate) async fn infer_with_fallback(
    models: &ModelServices,
    place: InferenceContext<'_>,
    provider: &str,
    mut request: InferRequest,
    cancel: &CancellationToken,
) -> Result<ModelCompletion, NoAnswer> {
    answer::screen_prompt(&models.screens, &mut request);
    let chain = models.provider_chain(provider);
    let mut troubles = Vec::new();
    for (at, spec) in chain.iter().enumerate() {
        let next = chain.get(at + 1).map(|next| next.name.as_str());
        let asked = ChainedProvider {
            first: provider,
            spec,
            next,
        };
        match run_attempts(models, place, asked, &request, cancel).await? {
            Ok(completion) => return Ok(completion),
            Err(trouble) => troubles.push(trouble),
        }
    }
    Err(NoAnswer::Failed(format!(
        "no provider answered: {}",
        troubles.join("; ")
    )))
}

/// The provider of a chain that is currently asked.
#[derive(Debug, Clone, Copy)]
struct ChainedProvider<'a> {
    /// The chain's first provider.
    first: &'a str,
    spec: &'a Spec,
    /// The next provider in the chain.
    next: Option<&'a str>,
}

/// Makes all attempts at one provider. The outer error ends the whole chain, the inner one only this provider.
async fn run_attempts(
    models: &ModelServices,
    place: InferenceContext<'_>,
    asked: ChainedProvider<'_>,
    request: &InferRequest,
    cancel: &CancellationToken,
) -> Result<Result<ModelCompletion, String>, NoAnswer> {
    let ChainedProvider { spec, next, .. } = asked;
    let time_ms = models.local_options(&spec.name).retry_time_ms;
    let mut patience = RetryPolicy::new(spec.retry.clone().unwrap_or_default(), time_ms, next.is_none());
    let mut changes = RefusalChanges::default();
    let mut shaped = match models.shape_request(place, (asked.first, spec), request) {
        Ok(shaped) => shaped,
        Err(why) => return Ok(Err(why)),
    };
    for attempt in 1..=u32::MAX {
        let error = match run_attempt(models, place, spec, attempt, &shaped, cancel).await? {
            Ok(completion) => return Ok(Ok(completion)),
            Err(error) => error,
        };
        // A refusal with a known cause is answered with a changed request. Waiting would not help, so there is no delay, and it
        // does not count as an attempt.
        if let Some(cause) = error.cause.as_deref()
            && models
                .adapt_request(place, spec, (cause, &shaped), &mut changes)
                .map_err(|error| NoAnswer::Failed(error.to_string()))?
        {
            notify_retry(place, spec, &error, 0, &spec.name).await;
            shaped = match models.shape_request(place, (asked.first, spec), request) {
                Ok(shaped) => shaped,
                Err(why) => return Ok(Err(why)),
            };
            continue;
        }
        let Some(wait_ms) = patience.after(&error, models.scribe.clock().random_u64()) else {
            if let Some(next) = next {
                notify_retry(place, spec, &error, 0, next).await;
            }
            if error.kind != FaultKind::Unpriced {
                place.record_failure(MemberFailure::NoProvider);
            }
            return Ok(Err(error.message + &patience.tried()));
        };
        notify_retry(place, spec, &error, wait_ms, &spec.name).await;
        tokio::select! {
            biased;
            () = tokio::time::sleep(Duration::from_millis(models.scribe.clock().patience_ms(wait_ms))) => {}
            () = cancel.cancelled() => return Err(NoAnswer::Cancelled),
        }
    }
    Ok(Err(format!("provider `{}`: no attempts are left", spec.name)))
}

async fn notify_retry(
    place: InferenceContext<'_>,
    spec: &Spec,
    error: &ProviderError,
    wait_ms: u64,
    next: &str,
) {
    let notice = SessionNotice::Retrying {
        provider: spec.name.clone(),
        reason: error.message.clone(),
        wait_ms,
        next: next.to_owned(),
    };
    place.notices.send(notice).await;
}

/// Returns the request in the form that is sent: with the images of messages and results, if the provider accepts images.
async fn with_pictures(
    models: &ModelServices,
    session: SessionId,
    request: &InferRequest,
    takes_images: bool,
) -> Result<InferRequest, NoAnswer> {
    let journal = &**models.scribe.journal();
    let failed = |error: JournalError| NoAnswer::Failed(error.to_string());
    let shown = attach::load_pictures(journal, request.clone(), takes_images)
        .await
        .map_err(failed)?;
    if !takes_images {
        return Ok(shown);
    }
    models
        .pictures
        .append_pictures(journal, session, shown)
        .await
        .map_err(failed)
}

/// One attempt: set aside and recorded before, settled and recorded after.
async fn run_attempt(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    attempt: u32,
    request: &InferRequest,
    cancel: &CancellationToken,
) -> Result<Result<ModelCompletion, ProviderError>, NoAnswer> {
    let Some(provider) = models.providers.get(&spec.name).map(Arc::clone) else {
        return Ok(Err(unconnected_error(spec)));
    };
    let bytes = canonical(request);
    // The output limit, here still 0, usually has four digits.
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX).saturating_add(3);
    let takes_images = spec.capabilities.contains(&ModelModality::Image);
    let of_tools = models.pictures.count_shown(place.thread.session, request);
    let size = size.saturating_add(attach::count_picture_bytes(request, of_tools, takes_images));
    let set = match set_aside(models, place, spec, attempt, (digest(&bytes), size)).await? {
        Ok(set) => set,
        Err(error) => return Ok(Err(error)),
    };
    // If the window is known, prompt and answer together must fit into it.
    let room = models.answer_room(place.thread.session, &spec.name, set.input_tokens);
    let mut request = InferRequest {
        // Not part of the digest, because it does not change the model's input.
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
        // Other hosts have spent what was free in this host's count. The new count may leave less.
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
    let thoughts = Arc::new(ThoughtScreen::new(&models.screens));
    let on_delta = delta_handler(models, place.notices, (&open.received, &thoughts));
    let limit = Duration::from_millis(limit_ms);
    let mut outcome = match tokio::time::timeout(limit, provider.infer(&request, &on_delta, cancel)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(provider_error(
            FaultKind::Timeout,
            format!(
                "provider `{}`: no answer within {limit_ms} ms, the time that was left",
                spec.name
            ),
            None,
        )),
    };
    if let Some(thought) = thoughts.take_thought() {
        place.notices.thought(&thought);
    }
    blank::refuse_blank(spec, &mut outcome);
    match &mut outcome {
        Ok(completion) => completion.usage = open.counted_usage(completion.usage),
        Err(error) => error.usage = error.usage.map(|usage| open.counted_usage(usage)),
    }
    if let Ok(completion) = &outcome {
        models
            .purses
            .learn_token_rate(&spec.name, size, &completion.usage);
    }
    let found = screen_completion(models, place, spec, &mut outcome).await;
    // A model's answer counts only after it is recorded, because a restart must find the same conversation.
    open.settle_outcome(&outcome, found)
        .await
        .map_err(|error| NoAnswer::Failed(error.to_string()))?;
    match outcome {
        Err(error) if error.kind == FaultKind::Cancelled => Err(NoAnswer::Cancelled),
        outcome => Ok(outcome),
    }
}

fn unconnected_error(spec: &Spec) -> ProviderError {
    let message = format!("provider `{}` is not connected", spec.name);
    provider_error(FaultKind::Rejected, message, None)
}

/// Returns the error for a used-up `requests_per_minute`, with the delay until there is room.
fn used_up(spec: &Spec, wait_ms: u64) -> ProviderError {
    let message = format!("provider `{}`: requests_per_minute is used up", spec.name);
    provider_error(FaultKind::RateLimited, message, Some(wait_ms))
}

/// Reserves the amounts of one attempt. The outer error ends the whole chain, the inner one only this attempt.
async fn set_aside(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    attempt: u32,
    (request_hash, size): (clawk_proto::Digest, u64),
) -> Result<Result<AttemptReservation, ProviderError>, NoAnswer> {
    let now = models.scribe.now();
    match models
        .purses
        .reserve_inference(place.purse, &spec.name, size, now)
    {
        Ok(set) => Ok(Ok(set)),
        Err(NoRoom::Later { wait_ms }) => Ok(Err(used_up(spec, wait_ms))),
        // A model whose price is unknown is not asked if money is limited. It counts as a failed attempt, and the next provider is
        // tried (CKP §5.2).
        Err(NoRoom::Unpriced(reason)) => {
            let error = provider_error(FaultKind::Unpriced, reason, None);
            record_unpriced(models, place, spec, attempt, request_hash, &error)
                .await
                .map_err(|error| NoAnswer::Failed(error.to_string()))?;
            place.record_failure(MemberFailure::Unpriced);
            Ok(Err(error))
        }
        // A limit is the operator's decision, not a fault, so no fallback is tried.
        Err(NoRoom::Quota(error)) => {
            if let CallError::Quota { limit_name, .. } = &error {
                place.record_failure(MemberFailure::Quota(limit_name.clone()));
            }
            Err(NoAnswer::Quota(error.to_string()))
        }
    }
}

/// Pieces go out as they may be shown; thoughts when the model goes on to its answer.
fn delta_handler(
    models: &ModelServices,
    notices: &NoticeSender,
    (received, thoughts): (&Arc<AtomicU64>, &Arc<ThoughtScreen>),
) -> impl Fn(CompletionDelta<'_>) + Send + Sync + use<> {
    let (notices, words) = (notices.clone(), StreamScreen::new(&models.screens));
    let (received, thoughts) = (Arc::clone(received), Arc::clone(thoughts));
    let end_thought = move |thoughts: &ThoughtScreen, notices: &NoticeSender| {
        if let Some(thought) = thoughts.take_thought() {
            notices.thought(&thought);
        }
    };
    move |delta| match delta {
        CompletionDelta::Text(text) => {
            end_thought(&thoughts, &notices);
            let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
            received.fetch_add(bytes, Ordering::Relaxed);
            let shown = words.push_piece(text);
            if !shown.is_empty() {
                notices.delta(&shown);
            }
        }
        CompletionDelta::Call(_) => end_thought(&thoughts, &notices),
        // Thoughts are no part of the answer: a terminal may show them, folded.
        CompletionDelta::Thought(text) => thoughts.add(text),
    }
}

/// Returns the answer in a form that may be stored and shown, and the findings to record.
async fn screen_completion(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    outcome: &mut Result<ModelCompletion, ProviderError>,
) -> Vec<Draft> {
    match outcome {
        Ok(completion) => {
            answer::screen_completion(
                &models.screens,
                place.thread,
                &spec.name,
                place.notices,
                completion,
            )
            .await
        }
        Err(error) => {
            answer::screen_failure(&models.screens, error);
            Vec::new()
        }
    }
}

/// Records a provider that was not asked as an attempt without use.
async fn record_unpriced(
    models: &ModelServices,
    place: InferenceContext<'_>,
    spec: &Spec,
    attempt: u32,
    request_hash: clawk_proto::Digest,
    error: &ProviderError,
) -> Result<(), crate::ports::JournalError> {
    let inference_id = models.scribe.clock().new_uuid();
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
        reason: ChainText::from_code(error.kind.as_str()),
        retry_after_ms: None,
        status: None,
        told: None,
        took: Vec::new(),
        turn: place.turn,
        words_hash: Some(words.digest()),
    };
    let scribe = &models.scribe;
    let requested = scribe.draft_event(&place.thread, &requested);
    let failed = scribe.draft_event(&place.thread, &failed).with_words(words);
    scribe.write(vec![requested, failed]).await
}

/// A running attempt. If it is dropped before its end, it is settled at what was sent and received.
struct InferenceAttempt<'a> {
    models: &'a ModelServices,
    place: InferenceContext<'a>,
    spec: &'a Spec,
    attempt: u32,
    id: Uuid,
    request_hash: clawk_proto::Digest,
    started_us: u64,
    /// Id of the reservation over all hosts.
    aside: Option<Uuid>,
    set: Option<AttemptReservation>,
    /// Bytes of the answer received so far.
    received: Arc<AtomicU64>,
}

/// Why an attempt did not begin.
#[derive(Debug, thiserror::Error)]
enum NotBegun {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Other hosts have used up a limit.
    #[error("{0}")]
    Quota(CallError),
    /// Other hosts have used up the provider's requests per minute.
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

/// Adds the spending of other hosts.
async fn catch_up(models: &ModelServices) -> Result<(), JournalError> {
    let now = models.scribe.now();
    let (month, _) = now.month_bounds();
    let kept = models.scribe.journal().spent_since(hour_of(month)).await?;
    models.purses.catch_up(&kept, now);
    Ok(())
}

impl<'a> InferenceAttempt<'a> {
    /// Records the reservation durably. If the process dies, the next start settles it.
    async fn begin(
        models: &'a ModelServices,
        place: InferenceContext<'a>,
        spec: &'a Spec,
        attempt: u32,
        request_hash: clawk_proto::Digest,
        set: AttemptReservation,
    ) -> Result<Self, NotBegun> {
        let id = models.scribe.clock().new_uuid();
        let estimate = set.estimated_usage();
        let purses = set.reservation.persistent_accounts();
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
        let draft = models.scribe.draft_event(&place.thread, &payload);
        // Beside other hosts, this commit decides whether there is room.
        let terms = match models.scribe.journal().host_cluster() {
            Some(_) => BatchConditions {
                request: spec.limits.requests_per_minute.map(|per_minute| ProviderRate {
                    provider: spec.name.as_str().into(),
                    per_minute,
                }),
                ..set.reservation.batch_conditions(id)
            },
            None => BatchConditions::default(),
        };
        let (rooms, aside) = (terms.room.clone(), terms.aside.is_some());
        let begun = models.scribe.account_if(vec![draft], Default::default(), terms)?;
        let begun = begun.wait_until_durable().await;
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

    /// Returns the estimated tokens sent and received, at four bytes per token.
    fn estimated_usage(&self, set: &AttemptReservation) -> Usage {
        Usage {
            output_tokens: self.received.load(Ordering::Relaxed).div_ceil(4),
            ..set.estimated_usage()
        }
    }

    /// Returns the usage to count for a provider's report: see [`AttemptReservation::counted_usage`].
    fn counted_usage(&self, usage: Usage) -> Usage {
        self.set.as_ref().map_or(usage, |set| set.counted_usage(usage))
    }

    fn duration_ms(&self) -> u64 {
        self.models
            .scribe
            .clock()
            .monotonic_us()
            .saturating_sub(self.started_us)
            / 1000
    }

    /// Settles the attempt and records its end, in one commit.
    async fn settle_outcome(
        mut self,
        outcome: &Result<ModelCompletion, ProviderError>,
        found: Vec<Draft>,
    ) -> Result<(), crate::ports::JournalError> {
        let Some(set) = self.set.take() else { return Ok(()) };
        let duration_ms = self.duration_ms();
        let usage = match outcome {
            Ok(completion) => completion.usage,
            Err(error) => spent_by(error, self.estimated_usage(&set), set.estimated_usage()),
        };
        let cost = set.cost(&usage);
        let took = set.amount_taken(&usage, duration_ms);
        let settled = set.reservation.settle(took, self.models.scribe.now());
        let told = budget_uses(&settled.told);
        let draft = match outcome {
            Ok(completion) => self.completed_draft(completion, cost, (took, told), duration_ms),
            Err(error) => self.failed_draft(error, usage, cost, (took, told)),
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
            .wait_until_durable()
            .await?;
        for warning in &settled.warnings {
            self.place
                .notices
                .send(SessionNotice::Warned(warning.to_string()))
                .await;
        }
        Ok(())
    }

    fn completed_draft(
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
            .draft_event(&self.place.thread, &payload)
            .with_content(completion_hash, bytes)
    }

    fn failed_draft(
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
            reason: ChainText::from_code(error.kind.as_str()),
            retry_after_ms: error.retry_after_ms,
            status: error.status,
            told: error.usage.and_then(|usage| usage.told),
            took: told,
            turn: self.place.turn,
            words_hash: Some(words.digest()),
        };
        self.models
            .scribe
            .draft_event(&self.place.thread, &payload)
            .with_words(words)
    }
}

impl Drop for InferenceAttempt<'_> {
    fn drop(&mut self) {
        let Some(set) = self.set.take() else { return };
        let usage = self.estimated_usage(&set);
        let took = set.amount_taken(&usage, self.duration_ms());
        let error = provider_error(
            FaultKind::Cancelled,
            "nobody waits for it any more; settled at what was sent and received".to_owned(),
            None,
        );
        let cost = set.cost(&usage);
        let settled = set.reservation.settle(took, self.models.scribe.now());
        let draft = self.failed_draft(&error, usage, cost, (took, budget_uses(&settled.told)));
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

/// Returns the cost of a failed attempt: the server's counts if it sent them, else what was really sent and received. An
/// interrupted answer is not free, but does not cost the maximum. Only if nothing was counted, the whole reservation counts.
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

fn provider_error(kind: FaultKind, message: String, retry_after_ms: Option<u64>) -> ProviderError {
    ProviderError {
        kind,
        message,
        status: None,
        retry_after_ms,
        usage: None,
        cause: None,
    }
}
