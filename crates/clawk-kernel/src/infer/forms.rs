//! The format of requests to each provider: the operator's settings, the window that its server reports, and adaptations learnt
//! from refusals (R53).
//!
//! An adaptation applies to one endpoint and one model. It is stored in the journal (`ckp.provider.adapted`), read at the start,
//! and recorded in a session before its turns use it, so that prompts can be rebuilt from that session's record alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_events::count_of;
use clawk_events::payload::{ContextTrimmed, ProviderAdapted};
use clawk_manifest::model::{Provider as Spec, ProviderProtocol};
use clawk_proto::{Digest, SessionId};
use uuid::Uuid;

use super::{InferenceContext, ModelServices};
use crate::event::{Thread, canonical, digest, kind};
use crate::fit::{ContextRoom, fit_messages};
use crate::ports::{InferRequest, JournalError, JournalScan, RecordedEvent, RefusalCause, RequestAdaptation};

/// Tokens of conversation that a model is shown if its window is unknown, until it refuses.
pub(crate) const UNKNOWN_WINDOW_TOKENS: usize = 100_000;
/// Assumed window after a refusal that did not report the size, in tokens.
const REFUSED_WINDOW_TOKENS: usize = 8_192;
/// Smallest plausible window in tokens. A smaller one means that the refusal has another cause.
const LEAST_WINDOW_TOKENS: usize = 512;
/// Smallest answer limit in a full window, in tokens.
const LEAST_ANSWER_TOKENS: u64 = 256;
/// Number of times that one request is shortened.
const MAX_SHRINKS: u32 = 3;
/// Largest number of changes of one request, and of parameters learnt to be omitted, so that a server which names a new one each
/// time is not followed forever.
const MAX_CHANGES: u32 = 8;
const MAX_LEARNT: usize = 32;
/// Lifetime of an adaptation in milliseconds. After it a repaired server is asked in the usual format again.
const LEARNT_MS: i64 = 30 * 86_400_000;
/// Time limit for a server to report its model's window.
const ASK: Duration = Duration::from_millis(1_500);
/// Required parameters. A server that refuses these can't be used by omitting them.
const ESSENTIAL: [&str; 7] = [
    "messages",
    "model",
    "input",
    "system",
    "instructions",
    "tools",
    "stream",
];
/// Parameters that limit an answer. One of them may only be renamed to another of these.
const ANSWER_BOUNDS: [&str; 3] = ["max_tokens", "max_completion_tokens", "max_output_tokens"];

/// The adaptation for one endpoint and model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LearntForm {
    pub(crate) adaptation: RequestAdaptation,
    /// The window reported by the server, in tokens.
    pub(crate) server_tokens: Option<u64>,
    /// The window derived from refusals, in tokens.
    pub(crate) refused_tokens: Option<u64>,
}

impl LearntForm {
    fn from_event(adapted: &ProviderAdapted) -> Self {
        Self {
            adaptation: adapted.adaptation.clone().unwrap_or_default(),
            server_tokens: adapted.server_tokens,
            refused_tokens: adapted.window_tokens,
        }
    }

    /// What a session knew before a turn, of a recorded event; `None`: a refusal taught it within the turn, which comes again by itself.
    ///
    /// # Errors
    /// The event can't be read.
    pub(crate) fn known_before(event: &RecordedEvent) -> Result<Option<KnownForm>, JournalError> {
        let adapted: ProviderAdapted = event.read_as()?;
        let form = Self::from_event(&adapted);
        Ok((adapted.cause == KNOWN).then_some(KnownForm {
            turn: adapted.turn.to_string(),
            provider: adapted.provider,
            form,
        }))
    }
}

/// A provider's known adaptation before a turn.
#[derive(Debug, Clone)]
pub(crate) struct KnownForm {
    pub(crate) turn: String,
    pub(crate) provider: String,
    pub(crate) form: LearntForm,
}

/// The cause of an event that only tells a session what was known before.
const KNOWN: &str = "known";

/// The adaptations of all providers.
#[derive(Debug, Default)]
pub(crate) struct LearntForms {
    all: Mutex<BTreeMap<String, LearntForm>>,
    /// The adaptations used by each running turn, by session. What others learn meanwhile does not change them.
    turns: Mutex<HashMap<SessionId, BTreeMap<String, LearntForm>>>,
    /// The adaptations recorded in each session.
    told: Mutex<HashMap<SessionId, BTreeMap<String, LearntForm>>>,
    /// Providers whose servers were asked for their windows in this run.
    asked: Mutex<BTreeSet<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LearntForms {
    /// Returns a provider's adaptation in this session.
    pub(crate) fn get(&self, session: SessionId, provider: &str) -> LearntForm {
        if let Some(turn) = lock(&self.turns).get(&session) {
            return turn.get(provider).cloned().unwrap_or_default();
        }
        lock(&self.all).get(provider).cloned().unwrap_or_default()
    }

    /// Stores what a session learnt. It applies to that session at once, and to others from their next turn on.
    fn learn_form(&self, session: SessionId, provider: &str, form: &LearntForm) {
        self.set_form(provider, form.clone());
        if let Some(turn) = lock(&self.turns).get_mut(&session) {
            turn.insert(provider.to_owned(), form.clone());
        }
        let mut told = lock(&self.told);
        let told = told.entry(session).or_default();
        told.insert(provider.to_owned(), form.clone());
    }

    /// Sets a provider's adaptation.
    pub(crate) fn set_form(&self, provider: &str, form: LearntForm) {
        lock(&self.all).insert(provider.to_owned(), form);
    }

    /// Removes a session that has left memory.
    pub(crate) fn forget_session(&self, session: SessionId) {
        lock(&self.turns).remove(&session);
        lock(&self.told).remove(&session);
    }
}

/// The changes that refusals made to one request so far.
#[derive(Debug, Default)]
pub(super) struct RefusalChanges {
    causes: BTreeSet<String>,
    shrinks: u32,
    all: u32,
}

/// A change after a refusal.
#[derive(Debug)]
struct FormChange {
    /// The cause's word in the record.
    cause: &'static str,
    /// Description for people.
    words: String,
    form: LearntForm,
}

impl ModelServices {
    /// Reads the adaptations that earlier runs learnt for these endpoints and models.
    ///
    /// # Errors
    /// The journal can't be read.
    pub(crate) async fn restore_forms(&self) -> Result<(), JournalError> {
        let scan = JournalScan {
            kinds: &[kind::PROVIDER_ADAPTED],
            since: Some(self.scribe.now().plus_millis(-LEARNT_MS)),
            ..JournalScan::default()
        };
        let see = |event: &RecordedEvent| {
            let read: ProviderAdapted = event.read_as()?;
            let form = LearntForm::from_event(&read);
            let spec = self.manifest.provider(&read.provider);
            let same =
                spec.is_some_and(|spec| spec.model == read.model && endpoint_of(spec) == read.endpoint);
            if same && read.cause != KNOWN {
                self.forms.set_form(&read.provider, form);
            }
            Ok(())
        };
        self.scribe.read_each(scan, see).await
    }

    /// Prepares a turn: asks servers for their windows once, and records the known adaptations of the possible providers in the
    /// session.
    ///
    /// # Errors
    /// The journal can't be written.
    pub(crate) async fn begin_turn(
        &self,
        thread: &Thread,
        turn: Uuid,
        provider: &str,
    ) -> Result<(), JournalError> {
        self.ask_windows(provider).await;
        let all = lock(&self.forms.all).clone();
        let session = thread.session;
        let mut drafts = Vec::new();
        {
            let mut told = lock(&self.forms.told);
            let told = told.entry(session).or_default();
            for spec in self.provider_chain(provider) {
                let form = all.get(&spec.name).cloned().unwrap_or_default();
                if told.get(&spec.name).cloned().unwrap_or_default() == form {
                    continue;
                }
                let change = FormChange {
                    cause: KNOWN,
                    words: "learnt before".to_owned(),
                    form: form.clone(),
                };
                drafts.push(self.adapted_draft(thread, turn, spec, &change));
                told.insert(spec.name.clone(), form);
            }
        }
        lock(&self.forms.turns).insert(session, all);
        if !drafts.is_empty() {
            let _ticket = self.scribe.submit_drafts(drafts)?; // the inference, recorded behind it, is waited for
        }
        Ok(())
    }

    /// Asks servers for unknown windows, concurrently, once per run.
    async fn ask_windows(&self, provider: &str) {
        let mut asking = Vec::new();
        for spec in self.provider_chain(provider) {
            let declared = spec.limits.max_context_window.is_some()
                || self.local_options(&spec.name).context_tokens.is_some()
                || !self.local_options(&spec.name).fits_turns;
            let Some(server) = self.providers.get(&spec.name).filter(|_| !declared) else {
                continue;
            };
            if lock(&self.forms.asked).insert(spec.name.clone()) {
                asking.push(async move { (spec, tokio::time::timeout(ASK, server.window_tokens()).await) });
            }
        }
        for (spec, said) in futures::future::join_all(asking).await {
            // silent-ok: a server without an answer in time counts as one that does not report it
            let said = said.ok().flatten();
            let fits =
                |tokens: &u64| usize::try_from(*tokens).is_ok_and(|tokens| tokens >= LEAST_WINDOW_TOKENS);
            let Some(tokens) = said.filter(fits) else { continue };
            let mut all = lock(&self.forms.all);
            let form = all.entry(spec.name.clone()).or_default();
            form.server_tokens = Some(tokens);
        }
    }

    /// Returns a provider's window in tokens, if known.
    fn known_window(&self, session: SessionId, provider: &str) -> Option<usize> {
        let spec = self.manifest.provider(provider)?;
        let (local, form) = (self.local_options(provider), self.forms.get(session, provider));
        let declared = spec.limits.max_context_window.or(local.context_tokens);
        let known = declared.or(form.server_tokens).or(local.catalogue_tokens);
        // The limit per request includes the answer's tokens.
        let by_request = spec.limits.tokens_per_request.filter(|_| local.fits_turns);
        let by_request = by_request.map(|most| most / 4 * 3);
        let bounds = [known, form.refused_tokens, by_request];
        let least = bounds.into_iter().flatten().min()?;
        usize::try_from(least).ok() // silent-ok: more than the address space is no limit
    }

    /// Returns a provider's known or assumed window in tokens.
    pub(crate) fn window_tokens(&self, session: SessionId, provider: &str) -> usize {
        self.known_window(session, provider)
            .unwrap_or(UNKNOWN_WINDOW_TOKENS)
    }

    /// Returns the tokens available for an answer after a prompt of this size. The size is an estimate, so an eighth of it is kept
    /// free in addition.
    pub(super) fn answer_room(&self, session: SessionId, provider: &str, input_tokens: u64) -> u64 {
        let known = self.known_window(session, provider);
        let Some(window) = known.and_then(|window| u64::try_from(window).ok()) else {
            return u64::MAX; // silent-ok: no window, no bound
        };
        window
            .saturating_sub(input_tokens.saturating_add(input_tokens / 8))
            .max(LEAST_ANSWER_TOKENS)
    }

    /// Returns the space for a conversation in a provider's window.
    pub(crate) fn context_room(
        &self,
        session: SessionId,
        provider: &str,
        (system, tools): (&str, &[crate::ports::ToolOffer]),
    ) -> ContextRoom {
        let fits_turns = self.local_options(provider).fits_turns;
        ContextRoom::new(self.window_tokens(session, provider), system, tools, fits_turns)
    }

    /// Returns the request in the form that is sent: within the provider's window, in its format. Omitted parts are recorded.
    /// `first`: the first provider of the chain.
    ///
    /// # Errors
    /// The reason why it can't be sent, for people.
    pub(super) fn shape_request(
        &self,
        place: InferenceContext<'_>,
        (first, spec): (&str, &Spec),
        request: &InferRequest,
    ) -> Result<InferRequest, String> {
        let session = place.thread.session;
        let local = self.local_options(&spec.name);
        // In records of earlier versions, every request was fitted to the first provider's window.
        let whose = if local.fits_turns { &spec.name } else { first };
        let room = self.context_room(session, whose, (&request.system, &request.tools));
        let fitted =
            fit_messages(&request.messages, room, |id| self.cuts.whole_of(session, id)).map_err(|error| {
                let bound = spec.limits.tokens_per_request.filter(|_| local.fits_turns);
                let bound = bound.map_or(String::new(), |most| format!(" (`tokens_per_request` is {most})"));
                format!("provider `{}`: {error}{bound}", spec.name)
            })?;
        self.cuts.add(session, fitted.readable.iter().copied());
        if fitted.dropped_messages > 0 || fitted.shortened_results > 0 {
            let payload = ContextTrimmed {
                dropped_messages: count_of(fitted.dropped_messages),
                kept_messages: count_of(fitted.messages.len()),
                provider: Some(spec.name.clone()).filter(|name| *name != first),
                shortened_results: count_of(fitted.shortened_results),
                turn: place.turn,
            };
            let draft = self.scribe.draft_event(&place.thread, &payload);
            if let Err(error) = self.scribe.submit_drafts(vec![draft]) {
                tracing::warn!(%error, "a trimmed context could not be recorded");
            }
        }
        Ok(InferRequest {
            system: request.system.clone(),
            volatile: request.volatile.clone(),
            messages: fitted.messages,
            tools: request.tools.clone(),
            max_output_tokens: request.max_output_tokens,
            // A fallback's model may not have the level that was asked for.
            effort: request
                .effort
                .filter(|effort| local.takes_effort(*effort))
                .or(local.effort),
            cache_key: request.cache_key.clone(),
            adaptation: merge_adaptations(local.adaptation, self.forms.get(session, &spec.name).adaptation),
        })
    }

    /// Changes the format of requests to this provider after a refusal, once per cause. Returns `false` if nothing can be changed.
    pub(super) fn adapt_request(
        &self,
        place: InferenceContext<'_>,
        spec: &Spec,
        (cause, refused): (&RefusalCause, &InferRequest),
        changes: &mut RefusalChanges,
    ) -> Result<bool, JournalError> {
        let session = place.thread.session;
        let form = self.forms.get(session, &spec.name);
        // Anthropic's requests require a limit for the answer.
        let needed = spec.protocol == ProviderProtocol::AnthropicNative
            && matches!(cause, RefusalCause::Parameter { name, .. } if name == "max_tokens");
        if needed || changes.all >= MAX_CHANGES || form.adaptation.omitted.len() >= MAX_LEARNT {
            return Ok(false);
        }
        changes.all += 1;
        let change = match cause {
            RefusalCause::TooLong { limit_tokens } => {
                self.shrink_window(session, spec, (*limit_tokens, refused), form, changes)
            }
            RefusalCause::Parameter { instead, name } => {
                let now = &refused.adaptation;
                without_parameter(form, now, (name, instead.as_deref()), changes)
            }
            RefusalCause::Roles => form_once(form, "roles", changes, |form| {
                form.alternate_roles = true;
                "roles alternate, and no message is empty"
            }),
            RefusalCause::CallIds => form_once(form, "call-ids", changes, |form| {
                form.short_call_ids = true;
                "call ids have nine letters and digits"
            }),
            RefusalCause::ResponsesApi if spec.protocol == ProviderProtocol::OpenaiCompatible => {
                form_once(form, "responses-api", changes, |form| {
                    form.responses_api = true;
                    "the Responses API is asked"
                })
            }
            RefusalCause::ResponsesApi => None,
        };
        let Some(change) = change else { return Ok(false) };
        let draft = self.adapted_draft(&place.thread, place.turn, spec, &change);
        let _ticket = self.scribe.submit_drafts(vec![draft])?; // the next attempt, recorded behind it, is waited for
        self.forms.learn_form(session, &spec.name, &change.form);
        Ok(true)
    }

    /// Returns a smaller window than the refused one.
    fn shrink_window(
        &self,
        session: SessionId,
        spec: &Spec,
        (limit_tokens, refused): (Option<u64>, &InferRequest),
        form: LearntForm,
        changes: &mut RefusalChanges,
    ) -> Option<FormChange> {
        if changes.shrinks >= MAX_SHRINKS || !self.local_options(&spec.name).fits_turns {
            return None;
        }
        changes.shrinks += 1;
        let sent: usize = refused
            .messages
            .iter()
            .map(|message| canonical(message).len())
            .sum();
        let sent_tokens = canonical(refused).len() / crate::recall::TOKEN_BYTES;
        let known = self.known_window(session, &spec.name);
        let limit = limit_tokens.and_then(|limit| usize::try_from(limit).ok()); // silent-ok: more than the address space is no limit
        let taken = known.unwrap_or(UNKNOWN_WINDOW_TOKENS);
        let mut window = match limit.filter(|limit| *limit < taken) {
            Some(limit) => limit,
            None if known.is_none() => REFUSED_WINDOW_TOKENS.min(sent_tokens / 4 * 3),
            None => taken.min(sent_tokens) / 4 * 3,
        };
        let room =
            |window| ContextRoom::new(window, &refused.system, &refused.tools, true).conversation_bytes;
        while window >= LEAST_WINDOW_TOKENS && room(window) >= sent {
            window = window / 4 * 3;
        }
        if window < LEAST_WINDOW_TOKENS {
            return None;
        }
        Some(FormChange {
            cause: "too-long",
            words: format!("the conversation is fitted to a window of {window} tokens"),
            form: LearntForm {
                refused_tokens: u64::try_from(window).ok(), // silent-ok: a usize fits
                ..form
            },
        })
    }

    fn adapted_draft(
        &self,
        thread: &Thread,
        turn: Uuid,
        spec: &Spec,
        change: &FormChange,
    ) -> crate::event::Draft {
        let payload = ProviderAdapted {
            adaptation: Some(change.form.adaptation.clone()).filter(|form| !form.is_empty()),
            cause: change.cause.to_owned(),
            change: change.words.to_string(),
            endpoint: endpoint_of(spec),
            model: spec.model.to_string(),
            provider: spec.name.to_string(),
            server_tokens: change.form.server_tokens,
            turn,
            window_tokens: change.form.refused_tokens,
        };
        self.scribe.draft_event(thread, &payload)
    }
}

/// Returns the endpoint's identity for the record.
fn endpoint_of(spec: &Spec) -> Digest {
    digest(format!("{}\n{}", spec.protocol, spec.endpoint).as_bytes())
}

/// Combines the operator's settings with what was learnt.
fn merge_adaptations(mut own: RequestAdaptation, learnt: RequestAdaptation) -> RequestAdaptation {
    own.alternate_roles |= learnt.alternate_roles;
    own.responses_api |= learnt.responses_api;
    own.short_call_ids |= learnt.short_call_ids;
    own.omitted.extend(learnt.omitted);
    own.renamed.extend(learnt.renamed);
    own.renamed.retain(|name, _| !own.omitted.contains(name));
    own
}

/// Omits a refused parameter, or renames it as the server suggests.
fn without_parameter(
    mut form: LearntForm,
    now: &RequestAdaptation,
    (name, instead): (&str, Option<&str>),
    changes: &mut RefusalChanges,
) -> Option<FormChange> {
    if ESSENTIAL.contains(&name) || now.omitted.contains(name) {
        return None;
    }
    if !changes.causes.insert(format!("parameter {name}")) {
        return None;
    }
    // A renamed parameter is identified by its original name.
    let own = now.renamed.iter().find(|(_, sent)| *sent == name);
    let own = own.map_or(name, |(own, _)| own.as_str()).to_owned();
    let bound = |name: &&str| ANSWER_BOUNDS.contains(name);
    let instead = instead.filter(|instead| bound(&name) && bound(instead) && own == name && *instead != name);
    let words = match instead {
        Some(instead) => {
            form.adaptation.renamed.insert(own.clone(), instead.to_owned());
            format!("`{own}` is sent as `{instead}`")
        }
        None => {
            form.adaptation.renamed.remove(&own);
            form.adaptation.omitted.insert(own.clone());
            format!("`{own}` is left out")
        }
    };
    Some(FormChange {
        cause: "parameter",
        words,
        form,
    })
}

/// Makes a format change once.
fn form_once(
    mut form: LearntForm,
    cause: &'static str,
    changes: &mut RefusalChanges,
    change: impl FnOnce(&mut RequestAdaptation) -> &'static str,
) -> Option<FormChange> {
    let before = form.adaptation.clone();
    let words = change(&mut form.adaptation);
    let is_new = form.adaptation != before && changes.causes.insert(cause.to_owned());
    is_new.then(|| FormChange {
        cause,
        words: words.to_owned(),
        form,
    })
}
