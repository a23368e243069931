//! Push notifications: a task's states, posted to where its owner wants them. The operator's list says where that may be, and the
//! egress guard judges each address when it is connected to.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_egress::{Client, Deadlines, EgressError, Request, Rules, Url};
use clawk_secrets::Env;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::tasks::Task;
use super::wire::{self, Refusal};

/// Receivers of one task.
const MAX_RECEIVERS: usize = 8;
/// Notifications that are being posted at the same time, for all tasks.
const MAX_POSTS: usize = 32;
/// Bytes of a receiver's address, of its token, of its credentials.
const MAX_TEXT_BYTES: usize = 4_096;
/// Waits before a notification is posted again; after the last it is given up.
const WAITS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
];
/// A receiver answers within so many milliseconds.
const ANSWER_MS: u64 = 10_000;
/// The header with the receiver's own token.
const TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");

/// Sends push notifications (A2A 1.0, §4.3). Cheap to clone.
#[derive(Debug, Clone)]
pub struct Push(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    rules: Rules,
    client: Client,
    posts: Semaphore,
}

impl Push {
    /// Receivers are hosts that `rules` admit. Redirects are not followed.
    ///
    /// # Errors
    /// Root certificates are not usable.
    pub fn new(rules: Rules, env: &Env) -> Result<Self, EgressError> {
        let rules = Rules {
            max_redirects: 0,
            max_response_bytes: 1 << 20,
            ..rules
        };
        let deadlines = Deadlines {
            connect_ms: ANSWER_MS,
            first_byte_ms: ANSWER_MS,
            idle_ms: ANSWER_MS,
            total_ms: ANSWER_MS,
        };
        Ok(Self(Arc::new(Sender {
            client: Client::guarded(rules.clone(), env, deadlines)?,
            rules,
            posts: Semaphore::new(MAX_POSTS),
        })))
    }

    /// What a client asks for, checked. `id` names it where the client does not.
    pub(super) fn receiver(&self, task: &str, config: &Value, id: &str) -> Result<Receiver, Refusal> {
        let given = |name: &str| {
            config
                .get(name)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let address = wire::text(config, "url")?;
        let secret = config.get("authentication").filter(|secret| !secret.is_null());
        let of_secret = |name: &str| secret.and_then(|secret| secret.get(name)).and_then(Value::as_str);
        let texts = [
            Some(address.as_str()),
            given("token"),
            given("id"),
            of_secret("credentials"),
            of_secret("scheme"),
        ];
        if texts.iter().flatten().any(|text| text.len() > MAX_TEXT_BYTES) {
            return Err(Refusal::invalid(format!(
                "a text of the configuration is longer than {MAX_TEXT_BYTES} bytes"
            )));
        }
        let url = Url::parse(&address).map_err(|error| Refusal::invalid(format!("url: {error}")))?;
        let target = self
            .0
            .rules
            .judge(&url)
            .map_err(|refusal| Refusal::invalid(format!("url: {refusal}")))?;
        if url.scheme() != "https" && !target.private {
            return Err(Refusal::invalid("url: must be https"));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(token) = given("token") {
            headers.insert(TOKEN, sensitive(token, "token")?);
        }
        let scheme = of_secret("scheme").unwrap_or_default();
        if let Some(credentials) = of_secret("credentials").filter(|text| !text.is_empty()) {
            headers.insert(
                AUTHORIZATION,
                sensitive(&format!("{scheme} {credentials}"), "authentication")?,
            );
        }
        Ok(Receiver {
            id: given("id").unwrap_or(id).to_owned(),
            task: task.to_owned(),
            scheme: (!scheme.is_empty()).then(|| scheme.to_owned()),
            url,
            headers,
            over: CancellationToken::new(),
        })
    }

    /// Tells a receiver of every state from now on, and the whole task at its end. A slow receiver may miss states on the way,
    /// never the last one.
    pub(super) async fn follow(self, task: Arc<Task>, receiver: Receiver) {
        let mut phases = task.follow();
        loop {
            phases.mark_unchanged();
            let view = task.view();
            let is_final = view.phase.state.is_final();
            let event = if is_final {
                json!({"task": wire::task(&view)})
            } else {
                wire::status_update(&task)
            };
            tokio::select! {
                () = receiver.over.cancelled() => return,
                () = self.post(&receiver, &event) => {}
            }
            if is_final {
                return;
            }
            tokio::select! {
                () = receiver.over.cancelled() => return,
                changed = phases.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn post(&self, receiver: &Receiver, event: &Value) {
        let mut waits = WAITS.into_iter();
        loop {
            let Ok(place) = self.0.posts.acquire().await else {
                return;
            };
            let request = Request {
                method: Method::POST,
                url: receiver.url.clone(),
                headers: receiver.headers.clone(),
                body: event.to_string().into(),
            };
            let sent = self.0.client.send(request).await;
            drop(place);
            let (task, host) = (&receiver.task, receiver.url.host_str().unwrap_or_default());
            let again = match sent {
                Ok(answer) if answer.status().is_success() => return,
                Ok(answer) => {
                    let status = answer.status();
                    tracing::warn!(%task, host, %status, "a push notification was not taken");
                    status.is_server_error() || matches!(status.as_u16(), 408 | 429)
                }
                Err(error) => {
                    tracing::warn!(%task, host, %error, "a push notification could not be sent");
                    !matches!(error, EgressError::Refused(_))
                }
            };
            match waits.next().filter(|_| again) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return,
            }
        }
    }
}

fn sensitive(text: &str, name: &str) -> Result<HeaderValue, Refusal> {
    // silent-ok: the reason would repeat the secret
    let mut value =
        HeaderValue::from_str(text).map_err(|_| Refusal::invalid(format!("{name}: can't be a header")))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Where a task's states go.
#[derive(Debug, Clone)]
pub(super) struct Receiver {
    id: String,
    task: String,
    url: Url,
    scheme: Option<String>,
    headers: HeaderMap,
    over: CancellationToken,
}

impl Receiver {
    /// As its owner reads it: without token and credentials.
    pub(super) fn shown(&self) -> Value {
        let mut shown = json!({"id": self.id, "taskId": self.task, "url": self.url.as_str()});
        if let (Some(scheme), Some(facts)) = (&self.scheme, shown.as_object_mut()) {
            facts.insert("authentication".into(), json!({"scheme": scheme}));
        }
        shown
    }
}

/// The receivers of one task.
#[derive(Debug, Default)]
pub(crate) struct Receivers(Mutex<Vec<Receiver>>);

impl Receivers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Receiver>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one; it replaces the one of the same id.
    pub(super) fn put(&self, receiver: Receiver) -> Result<(), Refusal> {
        let mut all = self.lock();
        if let Some(same) = all.iter_mut().find(|known| known.id == receiver.id) {
            same.over.cancel();
            *same = receiver;
            return Ok(());
        }
        if all.len() >= MAX_RECEIVERS {
            return Err(Refusal::invalid(format!(
                "a task has at most {MAX_RECEIVERS} receivers"
            )));
        }
        all.push(receiver);
        Ok(())
    }

    /// All, as their owner reads them.
    pub(super) fn shown(&self) -> Vec<Value> {
        self.lock().iter().map(Receiver::shown).collect()
    }

    /// The one of this id.
    pub(super) fn find(&self, id: &str) -> Option<Value> {
        self.lock()
            .iter()
            .find(|known| known.id == id)
            .map(Receiver::shown)
    }

    /// Takes one away: it is told nothing more.
    pub(super) fn remove(&self, id: &str) {
        self.lock().retain(|known| {
            if known.id == id {
                known.over.cancel();
            }
            known.id != id
        });
    }
}
