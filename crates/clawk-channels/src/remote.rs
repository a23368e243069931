//! Downloads and uploads files at addresses that a platform's API gave (C9). Only the API's own host and the vendor's domains are
//! reached; the egress guard checks each address.

use std::time::Duration;

use bytes::Bytes;
use clawk_egress::{ClientDeadlines, EgressClient, EgressError, HostAllowList, HostPattern, Request, Url};
use clawk_secrets::EnvironmentSource;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

/// The largest answer to an upload, bytes.
const MAX_ANSWER_BYTES: u64 = 1 << 20;
/// How long one file may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an address answered.
#[derive(Debug)]
pub(crate) struct RemoteFileResponse {
    pub(crate) status: StatusCode,
    pub(crate) bytes: Bytes,
}

/// Where a platform's files may be.
#[derive(Debug)]
pub(crate) struct RemoteFiles {
    env: EnvironmentSource,
    base: Option<Url>,
    vendors: &'static [&'static str],
}

/// Every public name. An address without a name, and one inside the own network, is refused by the guard.
const ANYWHERE: [&str; 1] = ["*"];

impl RemoteFiles {
    /// `base` is the API's address; `vendors` are the vendor's domains.
    ///
    /// # Errors
    /// The address can't be read.
    pub(crate) fn new(
        base: &str,
        env: &EnvironmentSource,
        vendors: &'static [&'static str],
    ) -> Result<Self, String> {
        Ok(Self {
            env: env.clone(),
            base: Some(Url::parse(base).map_err(|error| error.to_string())?),
            vendors,
        })
    }

    /// Files at any public host, by HTTPS, and at `base`, which the operator wrote down.
    ///
    /// # Errors
    /// The address can't be read.
    pub(crate) fn public_hosts(base: Option<&str>, env: &EnvironmentSource) -> Result<Self, String> {
        let base = base.map(Url::parse).transpose();
        Ok(Self {
            env: env.clone(),
            base: base.map_err(|error| error.to_string())?,
            vendors: &ANYWHERE,
        })
    }

    /// The bytes at an address, at most `max_bytes`.
    ///
    /// # Errors
    /// For the model and people; no address is in it.
    pub(crate) async fn get(&self, url: &str, headers: HeaderMap, max_bytes: u64) -> Result<Bytes, String> {
        let got = self.request_url(url, headers, max_bytes).await?;
        if !got.status.is_success() {
            return Err(format!("the platform answered {}", got.status.as_u16()));
        }
        Ok(got.bytes)
    }

    /// Whether an address is at the host that the operator wrote down.
    pub(crate) fn is_base(&self, url: &Url) -> bool {
        let is = |base: &Url| url.host_str() == base.host_str() && url.port() == base.port();
        self.base.as_ref().is_some_and(is)
    }

    /// POSTs bytes to an address that the API gave for them.
    ///
    /// # Errors
    /// They were not taken; the errors of [`Self::get`].
    pub(crate) async fn post_bytes(&self, url: &str, kind: &str, body: Bytes) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        let kind = HeaderValue::from_str(kind).map_err(|error| error.to_string())?;
        headers.insert(CONTENT_TYPE, kind);
        let got = self
            .exchange_bytes(Method::POST, url, headers, body, MAX_ANSWER_BYTES)
            .await?;
        if got.status.is_success() {
            return Ok(());
        }
        Err(format!("the platform answered {}", got.status.as_u16()))
    }

    /// What an address answers, whatever its status.
    ///
    /// # Errors
    /// The errors of [`Self::get`].
    pub(crate) async fn request_url(
        &self,
        url: &str,
        headers: HeaderMap,
        max_bytes: u64,
    ) -> Result<RemoteFileResponse, String> {
        self.exchange_bytes(Method::GET, url, headers, Bytes::new(), max_bytes)
            .await
    }

    async fn exchange_bytes(
        &self,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
        max_bytes: u64,
    ) -> Result<RemoteFileResponse, String> {
        let url = Url::parse(url).map_err(|_| "the platform gave no address of the file".to_owned())?; // silent-ok: said
        let client = self
            .client_for(&url, max_bytes)
            .map_err(|error| error.to_string())?;
        let request = Request {
            method,
            url,
            headers,
            body,
        };
        let response = client.send(request).await.map_err(error_text)?;
        Ok(RemoteFileResponse {
            status: response.status(),
            bytes: response.bytes().await.map_err(error_text)?,
        })
    }

    fn client_for(&self, url: &Url, max_bytes: u64) -> Result<EgressClient, EgressError> {
        let total_ms = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
        let deadlines = ClientDeadlines {
            total_ms,
            ..ClientDeadlines::default()
        };
        // The operator wrote it down.
        if self.is_base(url) {
            return EgressClient::for_provider(url, &self.env, deadlines, max_bytes);
        }
        // Whatever else is asked for, the guard refuses.
        let patterns = self
            .vendors
            .iter()
            .flat_map(|domain| [(*domain).to_owned(), format!("*.{domain}")]);
        let rules = HostAllowList {
            hosts: patterns
                .filter_map(|name| HostPattern::try_from(name).ok())
                .collect(), // silent-ok: ours are patterns
            ports: vec![443],
            max_response_bytes: max_bytes,
            ..HostAllowList::default()
        };
        EgressClient::with_allow_list(rules, &self.env, deadlines)
    }
}

fn error_text(error: EgressError) -> String {
    match error {
        EgressError::TooLarge(_) => "it is larger than `max_attachment_mb`".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clawk_secrets::EnvironmentSource;
    use http::HeaderMap;

    use super::RemoteFiles;

    #[tokio::test]
    async fn an_address_outside_of_the_platform_is_not_followed() {
        let env = EnvironmentSource::Fixed(std::collections::BTreeMap::new());
        let files = RemoteFiles::new("https://graph.facebook.com/v23.0", &env, &["fbsbx.com"]).unwrap();
        for url in [
            "http://127.0.0.1:1/x",
            "https://169.254.169.254/latest/meta-data",
            "https://fbsbx.com.evil.example/x",
            "file:///etc/passwd",
            "https://lookaside.fbsbx.com:8443/x",
            "x",
        ] {
            let refused = files.get(url, HeaderMap::new(), 10).await.unwrap_err();
            assert!(!refused.contains("meta-data"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_file_that_a_message_names_is_fetched_from_public_hosts_alone() {
        let env = EnvironmentSource::Fixed(std::collections::BTreeMap::new());
        for base in [None, Some("http://127.0.0.1:9/in")] {
            let files = RemoteFiles::public_hosts(base, &env).unwrap();
            for url in [
                "http://127.0.0.1:1/x",
                "https://127.0.0.1/x",
                "https://localhost/x",
                "https://localhost:8443/x",
                "https://[::1]/x",
                "https://[::ffff:127.0.0.1]/x",
                "https://2130706433/x",
                "https://0x7f.1/x",
                "https://169.254.169.254/latest/meta-data",
                "https://10.0.0.1/x",
                "https://192.168.1.1/x",
                "https://0.0.0.0/x",
                "file:///etc/passwd",
                "ftp://example.com/x",
                "data:text/plain,x",
                "http://example.com/x",
                "https://example.com:22/x",
                "https://user@127.0.0.1/x",
                "x",
                "",
            ] {
                let refused = files.get(url, HeaderMap::new(), 10).await.unwrap_err();
                assert!(!refused.contains("meta-data"), "{url}: {refused}");
                let tried = refused.contains("the platform answered");
                assert!(!tried, "{url}: {refused}");
            }
        }
    }
}
