//! Files of platforms (C9): bytes at addresses that an API gave. The API's own host, and hosts of its vendor's behind the egress guard.

use std::time::Duration;

use bytes::Bytes;
use clawk_egress::{Client, Deadlines, EgressError, HostPattern, Request, Rules, Url};
use clawk_secrets::Env;
use http::{HeaderMap, Method};

/// How long one file may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a platform's files may be.
#[derive(Debug)]
pub(crate) struct Remote {
    env: Env,
    base: Url,
    vendors: &'static [&'static str],
}

impl Remote {
    /// `base` is the API's address; `vendors` are domains of the vendor's.
    ///
    /// # Errors
    /// The address can't be read.
    pub(crate) fn new(base: &str, env: &Env, vendors: &'static [&'static str]) -> Result<Self, String> {
        Ok(Self {
            env: env.clone(),
            base: Url::parse(base).map_err(|error| error.to_string())?,
            vendors,
        })
    }

    /// The bytes at an address, at most `max_bytes`.
    ///
    /// # Errors
    /// For the model and people; no address is in it.
    pub(crate) async fn get(&self, url: &str, headers: HeaderMap, max_bytes: u64) -> Result<Bytes, String> {
        let url = Url::parse(url).map_err(|_| "the platform gave no address of the file".to_owned())?; // silent-ok: said
        let client = self.client(&url, max_bytes).map_err(|error| error.to_string())?;
        let request = Request {
            method: Method::GET,
            url,
            headers,
            body: Bytes::new(),
        };
        let response = client.send(request).await.map_err(told)?;
        if !response.status().is_success() {
            return Err(format!("the platform answered {}", response.status().as_u16()));
        }
        response.bytes().await.map_err(told)
    }

    fn client(&self, url: &Url, max_bytes: u64) -> Result<Client, EgressError> {
        let total_ms = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
        let deadlines = Deadlines {
            total_ms,
            ..Deadlines::default()
        };
        // The operator wrote it down.
        if url.host_str() == self.base.host_str() && url.port() == self.base.port() {
            return Client::for_provider(url, &self.env, deadlines, max_bytes);
        }
        // Whatever else is asked for, the guard refuses.
        let patterns = self
            .vendors
            .iter()
            .flat_map(|domain| [(*domain).to_owned(), format!("*.{domain}")]);
        let rules = Rules {
            hosts: patterns
                .filter_map(|name| HostPattern::try_from(name).ok())
                .collect(), // silent-ok: ours are patterns
            ports: vec![443],
            max_response_bytes: max_bytes,
            ..Rules::default()
        };
        Client::guarded(rules, &self.env, deadlines)
    }
}

fn told(error: EgressError) -> String {
    match error {
        EgressError::TooLarge(_) => "it is larger than `max_attachment_mb`".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clawk_secrets::Env;
    use http::HeaderMap;

    use super::Remote;

    #[tokio::test]
    async fn an_address_outside_of_the_platform_is_not_followed() {
        let env = Env::Fixed(std::collections::BTreeMap::new());
        let files = Remote::new("https://graph.facebook.com/v23.0", &env, &["fbsbx.com"]).unwrap();
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
}
