//! Push notifications: clawk posts a task's states to an address that the task's owner gives. The operator's list limits the
//! addresses, and the egress guard checks each address at connection time. A notification is stored durably before it is posted, so
//! a restart does not lose it. Delivery is at least once and in order. After a bounded number of attempts clawk gives up and
//! records that.

mod book;
mod deliver;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use clawk_egress::{ClientDeadlines, EgressClient, EgressError, HostAllowList, Url};
use clawk_recall::seal::SealKeyring;
use clawk_secrets::EnvironmentSource;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::wire::{self, A2aError};
pub use book::BookError;
use book::{PushStore, ReceiverKey};

/// The largest number of receivers of one task.
const MAX_RECEIVERS: usize = 8;
/// The largest number of simultaneous posts, over all tasks.
const MAX_POSTS: usize = 32;
/// The longest address, token or credentials of a receiver, bytes each.
const MAX_TEXT_BYTES: usize = 4_096;
/// How long a receiver may take to answer, milliseconds.
const ANSWER_MS: u64 = 10_000;
/// The header with the receiver's own token.
const TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");

/// Why push notifications are not available.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The root certificates can't be used.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// The file of pending notifications can't be used.
    #[error(transparent)]
    Book(#[from] BookError),
}

/// Sends push notifications (A2A 1.0, §4.3). Cheap to clone.
#[derive(Debug, Clone)]
pub struct PushNotifier(Arc<Sender>);

#[derive(Debug)]
struct Sender {
    rules: HostAllowList,
    client: EgressClient,
    posts: Semaphore,
    book: PushStore,
    /// One lock per receiver, so that only one task posts to it, even while one run of the agent hands over to the next.
    lanes: Mutex<HashMap<ReceiverKey, Weak<tokio::sync::Mutex<()>>>>,
}

impl PushNotifier {
    /// Creates the notifier. It posts only to hosts that `rules` allow and follows no redirects. Pending notifications are stored
    /// in `file`, sealed with `vault`.
    ///
    /// # Errors
    /// The root certificates can't be used, or the file can't be opened.
    pub fn new(
        rules: HostAllowList,
        env: &EnvironmentSource,
        file: &Path,
        vault: SealKeyring,
    ) -> Result<Self, PushError> {
        let rules = HostAllowList {
            max_redirects: 0,
            max_response_bytes: 1 << 20,
            ..rules
        };
        let deadlines = ClientDeadlines {
            connect_ms: ANSWER_MS,
            first_byte_ms: ANSWER_MS,
            idle_ms: ANSWER_MS,
            total_ms: ANSWER_MS,
        };
        Ok(Self(Arc::new(Sender {
            client: EgressClient::with_allow_list(rules.clone(), env, deadlines)?,
            rules,
            posts: Semaphore::new(MAX_POSTS),
            book: PushStore::open(file, vault)?,
            lanes: Mutex::default(),
        })))
    }

    /// Checks a client's request for push notifications. `id` is used when the client gives no id. `old`: the receiver gets the
    /// shapes of A2A 0.3.
    pub(super) fn receiver(
        &self,
        task: &str,
        config: &Value,
        id: &str,
        old: bool,
    ) -> Result<PushReceiver, A2aError> {
        let given = |name: &str| {
            config
                .get(name)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let address = wire::required_text(config, "url")?;
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
            return Err(A2aError::invalid_params(format!(
                "a text of the configuration is longer than {MAX_TEXT_BYTES} bytes"
            )));
        }
        let url = Url::parse(&address).map_err(|error| A2aError::invalid_params(format!("url: {error}")))?;
        let target = self
            .0
            .rules
            .judge_url(&url)
            .map_err(|refusal| A2aError::invalid_params(format!("url: {refusal}")))?;
        if url.scheme() != "https" && !target.private {
            return Err(A2aError::invalid_params("url: must be https"));
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
        Ok(PushReceiver {
            id: given("id").unwrap_or(id).to_owned(),
            task: task.to_owned(),
            old,
            scheme: (!scheme.is_empty()).then(|| scheme.to_owned()),
            url,
            headers,
            over: CancellationToken::new(),
        })
    }
}

/// The id of a receiver: the client's own, or else one derived from the address, so that the same address gives the same id.
pub(super) fn id_of(config: &Value) -> String {
    let of = |name: &str| {
        let text = config.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty())
    };
    match of("id") {
        Some(id) => id.to_owned(),
        None => super::tasks::id_of(of("url").unwrap_or_default()),
    }
}

fn sensitive(text: &str, name: &str) -> Result<HeaderValue, A2aError> {
    // silent-ok: the reason would repeat the secret
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| A2aError::invalid_params(format!("{name}: can't be a header")))?;
    value.set_sensitive(true);
    Ok(value)
}

/// A receiver of a task's states: address, secrets and protocol version.
#[derive(Debug, Clone)]
pub(super) struct PushReceiver {
    pub(super) id: String,
    task: String,
    /// The receiver gets the shapes of A2A 0.3.
    pub(super) old: bool,
    url: Url,
    scheme: Option<String>,
    headers: HeaderMap,
    over: CancellationToken,
}

impl PushReceiver {
    /// The receiver as its owner may read it, without token and credentials.
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
pub(crate) struct PushReceivers(Mutex<Vec<PushReceiver>>);

impl PushReceivers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PushReceiver>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a receiver, or replaces the one with the same id.
    pub(super) fn put(&self, receiver: PushReceiver) -> Result<(), A2aError> {
        let mut all = self.lock();
        if let Some(same) = all.iter_mut().find(|known| known.id == receiver.id) {
            same.over.cancel();
            *same = receiver;
            return Ok(());
        }
        if all.len() >= MAX_RECEIVERS {
            return Err(A2aError::invalid_params(format!(
                "a task has at most {MAX_RECEIVERS} receivers"
            )));
        }
        all.push(receiver);
        Ok(())
    }

    /// Whether the same receiver is already registered.
    pub(super) fn has(&self, receiver: &PushReceiver) -> bool {
        let same = |known: &PushReceiver| {
            (&known.id, &known.url, &known.headers, known.old)
                == (&receiver.id, &receiver.url, &receiver.headers, receiver.old)
        };
        self.lock().iter().any(same)
    }

    /// All receivers as their owner may read them.
    pub(super) fn shown(&self) -> Vec<Value> {
        self.lock().iter().map(PushReceiver::shown).collect()
    }

    /// The receiver with this id, as its owner may read it.
    pub(super) fn find(&self, id: &str) -> Option<Value> {
        self.lock()
            .iter()
            .find(|known| known.id == id)
            .map(PushReceiver::shown)
    }

    /// Removes a receiver. It gets no more notifications.
    pub(super) fn remove(&self, id: &str) {
        self.lock().retain(|known| {
            if known.id == id {
                known.over.cancel();
            }
            known.id != id
        });
    }
}
