//! Checks after the start whether providers can be reached, without cost. Reports those that can't; the state is ERROR while none
//! can.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_events::payload::ProviderUnreachable;
use clawk_proto::method::LifecycleState;
use futures::future::join_all;
use tokio::time::Instant;

use crate::event::{ChainText, EventWords, WordField};
use crate::infer::ModelServices;
use crate::lifecycle::AgentLifecycle;
use crate::notice::SessionNotice;
use crate::ports::ModelProvider;
use crate::screen::answer;
use crate::state::{State, Table};

/// Time limit for one check of all providers, in milliseconds. A provider that refuses is tried again until then, because its
/// server may be starting.
const LOOK_MS: u64 = 5_000;
/// Delay between two attempts of one check, in milliseconds.
const AGAIN_MS: u64 = 500;
/// Delay between two checks while no provider can be reached, in milliseconds: the first, which is doubled each time, and the
/// longest.
const FIRST_WAIT_MS: u64 = 1_000;
const MAX_WAIT_MS: u64 = 30_000;

/// The result of the last check, for sessions that open later.
#[derive(Debug)]
pub(crate) struct Health {
    models: Arc<ModelServices>,
    life: Arc<AgentLifecycle>,
    table: Arc<Table>,
    said: Mutex<Option<String>>,
}

impl Health {
    pub(crate) fn new(models: Arc<ModelServices>, life: Arc<AgentLifecycle>, table: Arc<Table>) -> Self {
        Self {
            models,
            life,
            table,
            said: Mutex::default(),
        }
    }

    fn set_notice(&self, said: Option<String>) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }

    fn current_notice(&self) -> Option<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A provider that could not be reached, and the reason.
type UnreachableProvider = (String, String);

/// Checks the providers in the background. The start does not wait for it.
pub(crate) fn spawn_health_watch(health: &Arc<Health>) {
    if health.models.providers.is_empty() {
        return;
    }
    let own = Arc::clone(health);
    health.life.tracker.spawn(async move {
        tokio::select! {
            biased;
            () = own.life.closing.cancelled() => {}
            () = until_one_answers(&own) => {}
        }
    });
}

async fn until_one_answers(health: &Health) {
    let mut wait_ms = FIRST_WAIT_MS;
    let mut before: Option<usize> = None;
    loop {
        let down = probe_providers(health).await;
        let none_answers = down.len() == health.models.providers.len();
        let said = (!down.is_empty()).then(|| describe_unreachable(&down, none_answers));
        if before != Some(down.len()) {
            record_health(health, &down);
            notify_sessions(health, said.as_deref()).await;
        }
        health.set_notice(said.clone());
        let moved = if none_answers {
            health
                .life
                .advance_to(LifecycleState::Error, said.as_deref().unwrap_or_default())
        } else if before.is_some() {
            health
                .life
                .advance_to(LifecycleState::Ready, "a provider can be reached again")
        } else {
            Ok(())
        };
        if let Err(error) = moved {
            tracing::error!(%error, "the lifecycle's move could not be recorded");
        }
        if !none_answers {
            return;
        }
        before = Some(down.len());
        tokio::time::sleep(Duration::from_millis(
            health.models.scribe.clock().patience_ms(wait_ms),
        ))
        .await;
        wait_ms = wait_ms.saturating_mul(2).min(MAX_WAIT_MS);
    }
}

/// Checks all providers concurrently. One that does not answer in time counts as unreachable.
async fn probe_providers(health: &Health) -> Vec<UnreachableProvider> {
    let each = health.models.providers.iter().map(|(name, provider)| async move {
        let reason = probe_provider(health, name, &**provider).await?;
        Some((name.clone(), reason))
    });
    join_all(each).await.into_iter().flatten().collect()
}

/// Returns why this provider can't be reached; `None`: it can.
async fn probe_provider(health: &Health, name: &str, provider: &dyn ModelProvider) -> Option<String> {
    let deadline = Instant::now() + Duration::from_millis(LOOK_MS);
    let again = Duration::from_millis(AGAIN_MS);
    let mut reason = format!("provider `{name}`: no answer within {LOOK_MS} ms");
    loop {
        match tokio::time::timeout_at(deadline, provider.check_reachable()).await {
            Ok(Ok(())) => return None,
            Ok(Err(mut error)) => {
                answer::screen_failure(&health.models.screens, &mut error);
                reason = error.message;
            }
            Err(_) => return Some(reason),
        }
        if Instant::now() + again >= deadline {
            return Some(reason);
        }
        tokio::time::sleep(again).await;
    }
}

fn describe_unreachable(down: &[UnreachableProvider], all: bool) -> String {
    let reasons: Vec<&str> = down.iter().map(|(_, reason)| reason.as_str()).collect();
    let reasons = reasons.join("; ");
    if all {
        format!("no provider can be reached, messages wait until one can: {reasons}")
    } else {
        format!("not every provider can be reached: {reasons}")
    }
}

fn record_health(health: &Health, down: &[UnreachableProvider]) {
    let thread = health.life.root.child(health.life.root.span);
    let event = |(provider, reason): &UnreachableProvider| {
        tracing::warn!(provider, reason, "it can't be reached");
        let words = EventWords::new(WordField::Reason, reason);
        let payload = ProviderUnreachable {
            provider: provider.to_owned(),
            reason: ChainText::IN_CONTENT,
            words_hash: Some(words.digest()),
        };
        health
            .models
            .scribe
            .draft_event(&thread, &payload)
            .with_words(words)
    };
    let drafts: Vec<_> = down.iter().map(event).collect();
    if !drafts.is_empty()
        && let Err(error) = health.models.scribe.submit_drafts(drafts)
    {
        tracing::error!(%error, "unreachable providers could not be recorded");
    }
}

/// Notifies the connected clients.
async fn notify_sessions(health: &Health, said: Option<&str>) {
    let Some(said) = said else { return };
    let open: Vec<Arc<State>> = health.table.lock_open().values().cloned().collect();
    for state in open {
        state
            .notices
            .send(SessionNotice::Unreachable(said.to_owned()))
            .await;
    }
}

/// Tells a new session the earlier result.
pub(crate) async fn notify_new_session(health: &Health, state: &State) {
    if let Some(said) = health.current_notice() {
        state.notices.send(SessionNotice::Unreachable(said)).await;
    }
}
