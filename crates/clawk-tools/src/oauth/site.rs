//! Checks which URLs belong to an authorization server. Combining the login page of one server with the token endpoint of another
//! is the mix-up attack, which sends the honest server's code to the attacker (RFC 9700 §4.4).

use clawk_egress::Url;

use super::OAuthError;

/// An issuer, and the foreign hosts that a person agreed to.
#[derive(Debug, Clone, Copy)]
pub(super) struct IssuerSite<'a> {
    pub(super) issuer: &'a str,
    /// `HOST`, or `HOST:PORT` if the port is not 443.
    pub(super) agreed: &'a [String],
}

impl IssuerSite<'_> {
    /// Checks that an endpoint belongs to the issuer: it has the issuer's host and port, is on a subdomain, or is on a host that a
    /// person agreed to.
    ///
    /// # Errors
    /// It is on another host; the message names both hosts.
    pub(super) fn check_endpoint(self, what: &str, endpoint: &str) -> Result<(), OAuthError> {
        let bad = |text: &str| {
            OAuthError::Protocol(format!(
                "the {what} of `{}` is not a valid address: {text}",
                self.issuer
            ))
        };
        let issuer = Url::parse(self.issuer).map_err(|error| bad(&error.to_string()))?;
        let url = Url::parse(endpoint).map_err(|error| bad(&error.to_string()))?;
        let host = host_port(&url);
        if belongs_to_issuer(&issuer, &url) || self.agreed.contains(&host) {
            return Ok(());
        }
        Err(OAuthError::Protocol(format!(
            "the authorization server `{}` has its {what} at another host, `{host}`. Whoever runs `{host}` could use the login. \
             If you know that both belong together, repeat this with `--also-host {host}`",
            host_port(&issuer)
        )))
    }
}

/// The host, with the port if it is not the default.
fn host_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn belongs_to_issuer(issuer: &Url, url: &Url) -> bool {
    if issuer.scheme() != url.scheme() || issuer.port_or_known_default() != url.port_or_known_default() {
        return false;
    }
    let (Some(own), Some(host)) = (issuer.host_str(), url.host_str()) else {
        return false;
    };
    let is_name = issuer.domain().is_some() && own.trim_end_matches('.').contains('.');
    own == host || (is_name && host.strip_suffix(own).is_some_and(|rest| rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_elsewhere_is_refused_unless_a_person_agreed() {
        let attacks = [
            ("https://as.example", "https://evil.example/token"),
            ("https://as.example", "https://as.example.evil.test/token"),
            ("https://as.example", "https://evilas.example/token"),
            ("https://as.example", "https://as.example@evil.test/token"),
            ("https://as.example", "https://as.example:8443/token"),
            ("https://as.example", "http://as.example/token"),
            ("https://as.example", "https://evil.test/?as.example"),
            ("https://as.example", "https://evil.test/#@as.example"),
            ("https://as.example", "https://evil.test\\as.example/token"),
            ("https://login.as.example", "https://as.example/token"),
            ("https://login.as.example", "https://other.as.example/token"),
            ("https://as.example", "https://аs.example/token"),
            ("https://example", "https://evil.example/token"),
            ("https://127.0.0.1", "https://1.127.0.0.1/token"),
            ("https://127.0.0.1:1", "https://127.0.0.1:2/token"),
            ("https://as.example", "javascript:alert(1)"),
            ("https://as.example", "//evil.test/token"),
            ("https://as.example", ""),
        ];
        for (issuer, endpoint) in attacks {
            let site = IssuerSite { issuer, agreed: &[] };
            assert!(
                site.check_endpoint("token endpoint", endpoint).is_err(),
                "{issuer} {endpoint}"
            );
        }
        for (issuer, endpoint) in [
            ("https://as.example", "https://as.example/token"),
            ("https://as.example/tenant", "https://as.example/other/token"),
            ("https://as.example", "https://AS.example:443/token"),
            ("https://as.example", "https://token.as.example/token"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/token"),
        ] {
            let site = IssuerSite { issuer, agreed: &[] };
            assert!(
                site.check_endpoint("token endpoint", endpoint).is_ok(),
                "{issuer} {endpoint}"
            );
        }
        let agreed = ["oauth2.googleapis.example".to_owned()];
        let site = IssuerSite {
            issuer: "https://accounts.google.example",
            agreed: &agreed,
        };
        assert!(
            site.check_endpoint("token endpoint", "https://oauth2.googleapis.example/token")
                .is_ok()
        );
        let refused = site
            .check_endpoint("token endpoint", "https://evil.test/token")
            .unwrap_err()
            .to_string();
        assert!(
            refused.contains("`accounts.google.example`") && refused.contains("--also-host evil.test"),
            "{refused}"
        );
    }
}
