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

    fn set(&self, said: Option<String>) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }

    fn said(&self) -> Option<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A provider that could not be reached, and the reason.
type UnreachableProvider = (String, String);

/// Checks the providers in the background. The start does not wait for it.
pub(crate) fn watch(health: &Arc<Health>) {
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
        let down = look(health).await;
        let none_answers = down.len() == health.models.providers.len();
        let said = (!down.is_empty()).then(|| words(&down, none_answers));
        if before != Some(down.len()) {
            record(health, &down);
            tell(health, said.as_deref()).await;
        }
        health.set(said.clone());
        let moved = if none_answers {
            health
                .life
                .advance(LifecycleState::Error, said.as_deref().unwrap_or_default())
        } else if before.is_some() {
            health
                .life
                .advance(LifecycleState::Ready, "a provider can be reached again")
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
async fn look(health: &Health) -> Vec<UnreachableProvider> {
    let each = health.models.providers.iter().map(|(name, provider)| async move {
        let reason = unreached(health, name, &**provider).await?;
        Some((name.clone(), reason))
    });
    join_all(each).await.into_iter().flatten().collect()
}

/// Returns why this provider can't be reached; `None`: it can.
async fn unreached(health: &Health, name: &str, provider: &dyn ModelProvider) -> Option<String> {
    let deadline = Instant::now() + Duration::from_millis(LOOK_MS);
    let again = Duration::from_millis(AGAIN_MS);
    let mut reason = format!("provider `{name}`: no answer within {LOOK_MS} ms");
    loop {
        match tokio::time::timeout_at(deadline, provider.reach()).await {
            Ok(Ok(())) => return None,
            Ok(Err(mut error)) => {
                answer::failure(&health.models.screens, &mut error);
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

fn words(down: &[UnreachableProvider], all: bool) -> String {
    let reasons: Vec<&str> = down.iter().map(|(_, reason)| reason.as_str()).collect();
    let reasons = reasons.join("; ");
    if all {
        format!("no provider can be reached, messages wait until one can: {reasons}")
    } else {
        format!("not every provider can be reached: {reasons}")
    }
}

fn record(health: &Health, down: &[UnreachableProvider]) {
    let thread = health.life.root.child(health.life.root.span);
    let event = |(provider, reason): &UnreachableProvider| {
        tracing::warn!(provider, reason, "it can't be reached");
        let words = EventWords::new(WordField::Reason, reason);
        let payload = ProviderUnreachable {
            provider: provider.to_owned(),
            reason: ChainText::IN_CONTENT,
            words_hash: Some(words.digest()),
        };
        health.models.scribe.entry(&thread, &payload).words(words)
    };
    let drafts: Vec<_> = down.iter().map(event).collect();
    if !drafts.is_empty()
        && let Err(error) = health.models.scribe.submit(drafts)
    {
        tracing::error!(%error, "unreachable providers could not be recorded");
    }
}

/// Notifies the connected clients.
async fn tell(health: &Health, said: Option<&str>) {
    let Some(said) = said else { return };
    let open: Vec<Arc<State>> = health.table.open().values().cloned().collect();
    for state in open {
        state
            .notices
            .send(SessionNotice::Unreachable(said.to_owned()))
            .await;
    }
}

/// Tells a new session the earlier result.
pub(crate) async fn greet(health: &Health, state: &State) {
    if let Some(said) = health.said() {
        state.notices.send(SessionNotice::Unreachable(said)).await;
    }
}
