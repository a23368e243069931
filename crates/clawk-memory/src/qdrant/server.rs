//! A client for the parts of Qdrant's HTTP API that stores need.

use std::time::Duration;

use bytes::Bytes;
use clawk_core::ports::MemoryError;
use clawk_egress::{ClientDeadlines, EgressClient, Request, Url};
use clawk_secrets::{EnvironmentSource, Secret};
use http::{HeaderValue, Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::row::{FIELDS, STATIC, WORDS};

/// The maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 256 * 1024 * 1024;

/// The maximum size of a request, in bytes. Qdrant's default limit is 32 MiB.
pub(super) const MAX_REQUEST_BYTES: usize = 31 * 1024 * 1024;

/// The address of a Qdrant server, and how to connect to it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The base address, http or https.
    pub url: String,
    /// The value of the header `api-key`.
    pub api_key: Option<Secret>,
    /// The prefix of every collection's name.
    pub prefix: String,
    /// The time limit for connecting.
    pub connect_timeout: Duration,
    /// The time limit for one answer.
    pub operation_timeout: Duration,
}

/// A client of one server.
#[derive(Debug)]
pub(super) struct QdrantServer {
    client: EgressClient,
    base: Url,
    key: Option<HeaderValue>,
    at: String,
}

fn to_millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// Whether this address is on the local machine.
fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host
            .parse::<std::net::Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback()),
        None => false,
    }
}

impl QdrantServer {
    /// Creates a client; does not connect yet.
    pub(super) fn new(options: &Options, env: &EnvironmentSource) -> Result<Self, String> {
        let fault = |what: String| format!("`[qdrant] url`: {what}");
        let mut base = Url::parse(&options.url).map_err(|error| fault(error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
            return Err(fault(
                "write http or https and a host (example: `http://127.0.0.1:6333`)".to_owned(),
            ));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(fault(
                "it holds a password; name a secret by `[qdrant] secret_ref` instead".to_owned(),
            ));
        }
        if options.api_key.is_some() && base.scheme() == "http" && !is_loopback(&base) {
            return Err(fault(
                "the API key would cross the network readable; write `https`".to_owned(),
            ));
        }
        base.set_query(None);
        base.set_fragment(None);
        let deadlines = ClientDeadlines {
            connect_ms: to_millis(options.connect_timeout),
            first_byte_ms: to_millis(options.operation_timeout),
            idle_ms: to_millis(options.operation_timeout),
            total_ms: to_millis(options.operation_timeout),
        };
        let client = EgressClient::for_provider(&base, env, deadlines, MAX_ANSWER_BYTES)
            .map_err(|error| fault(error.to_string()))?;
        let key = options.api_key.as_ref().map(|secret| {
            let value = HeaderValue::from_str(secret.expose());
            let mut value =
                value.map_err(|_| "`[qdrant] secret_ref`: its value is no header's value".to_owned())?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        });
        Ok(Self {
            client,
            at: base.origin().ascii_serialization(),
            base,
            key: key.transpose()?,
        })
    }

    pub(super) fn server_error(&self, what: &str) -> MemoryError {
        MemoryError::Backend(format!("Qdrant at {}: {what}", self.at))
    }

    /// Sends one request. `None`: the collection does not exist.
    async fn send_request<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<Option<T>, MemoryError> {
        let mut url = self.base.clone();
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.pop_if_empty().extend(path);
        }
        if matches!(method, Method::PUT | Method::POST | Method::DELETE) {
            // Wait until the change is durable before the server acknowledges it.
            url.set_query(Some("wait=true"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::post(url, "application/json", Bytes::from(body));
        request.method = method;
        if let Some(key) = &self.key {
            request.headers.insert("api-key", key.clone());
        }
        let told = |error: clawk_egress::EgressError| self.server_error(&error.to_string());
        let response = self.client.send(request).await.map_err(told)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(told)?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let mut answer: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null); // silent-ok: refused below
        if !status.is_success() {
            let why = answer.pointer("/status/error").and_then(Value::as_str);
            let why: String = why.unwrap_or("it gives no reason").chars().take(300).collect();
            return Err(self.server_error(&format!("{status}: {why}")));
        }
        let result = answer.get_mut("result").map(Value::take).unwrap_or_default();
        let read = serde_json::from_value(result);
        read.map(Some)
            .map_err(|error| self.server_error(&format!("its answer is not what its API says: {error}")))
    }

    /// `POST /collections/NAME/…`.
    pub(super) async fn post_request<T: DeserializeOwned>(
        &self,
        name: &str,
        path: &[&str],
        body: &Value,
    ) -> Result<Option<T>, MemoryError> {
        let path: Vec<&str> = ["collections", name]
            .into_iter()
            .chain(path.iter().copied())
            .collect();
        self.send_request(Method::POST, &path, Some(body)).await
    }

    /// Sends a change. Returns an error if the collection does not exist.
    pub(super) async fn send_change(
        &self,
        name: &str,
        path: &[&str],
        body: &Value,
    ) -> Result<(), MemoryError> {
        let done: Option<Value> = self.post_request(name, path, body).await?;
        done.map(drop)
            .ok_or_else(|| self.server_error(&format!("collection `{name}` is gone")))
    }

    /// Writes points and replaces existing ones. It is one server operation: all points are written, or none.
    pub(super) async fn upsert_points(&self, name: &str, points: &Value) -> Result<(), MemoryError> {
        let path = ["collections", name, "points"];
        let body = json!({ "points": points });
        let done: Option<Value> = self.send_request(Method::PUT, &path, Some(&body)).await?;
        done.map(drop)
            .ok_or_else(|| self.server_error(&format!("collection `{name}` is gone")))
    }

    /// All collections whose names start with `with`.
    pub(super) async fn collections_with_prefix(&self, with: &str) -> Result<Vec<String>, MemoryError> {
        #[derive(serde::Deserialize)]
        struct CollectionName {
            name: String,
        }
        #[derive(serde::Deserialize)]
        struct CollectionList {
            collections: Vec<CollectionName>,
        }
        let all: Option<CollectionList> = self.send_request(Method::GET, &["collections"], None).await?;
        let names = all
            .into_iter()
            .flat_map(|all| all.collections)
            .map(|one| one.name);
        Ok(names.filter(|name| name.starts_with(with)).collect())
    }

    async fn is_there(&self, name: &str) -> Result<bool, MemoryError> {
        #[derive(serde::Deserialize)]
        struct CollectionExists {
            exists: bool,
        }
        let there: Option<CollectionExists> = self
            .send_request(Method::GET, &["collections", name, "exists"], None)
            .await?;
        Ok(there.is_some_and(|there| there.exists))
    }

    async fn create_collection(
        &self,
        name: &str,
        body: &Value,
        indexes: &[(&str, &str)],
    ) -> Result<(), MemoryError> {
        if !self.is_there(name).await? {
            let made = self
                .send_request::<Value>(Method::PUT, &["collections", name], Some(body))
                .await;
            // Another process may have created it in the meantime.
            if let Err(error) = made
                && !self.is_there(name).await?
            {
                return Err(error);
            }
        }
        for (field_name, field_schema) in indexes {
            let body = json!({"field_name": field_name, "field_schema": field_schema});
            let _made: Option<Value> = self
                .send_request(Method::PUT, &["collections", name, "index"], Some(&body))
                .await?;
        }
        Ok(())
    }

    /// Creates the collection of a store's entries.
    pub(super) async fn make_entries(&self, name: &str) -> Result<(), MemoryError> {
        let body = json!({
            "vectors": {STATIC: {"size": clawk_recall::table::DIMENSIONS, "distance": "Cosine"}},
            "sparse_vectors": {WORDS: {"modifier": "idf"}},
        });
        self.create_collection(name, &body, &FIELDS).await
    }

    /// Creates the collection of a model's vectors.
    pub(super) async fn make_vectors(&self, name: &str, size: usize) -> Result<(), MemoryError> {
        let body = json!({"vectors": {"size": size, "distance": "Cosine"}});
        self.create_collection(name, &body, &[("scope", "keyword"), ("whose", "keyword")])
            .await
    }
}
