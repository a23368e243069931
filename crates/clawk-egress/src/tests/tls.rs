//! Real handshakes, with an authority made for the test.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::*;

/// An authority in `dir/NAME.pem`, and a server configuration for `api.test` and `localhost` signed by it.
fn authority(dir: &Path, name: &str) -> rustls::ServerConfig {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join(name), issuer.pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = vec!["api.test".to_owned(), "localhost".to_owned()];
    let certificate = CertificateParams::new(names)
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap()
}

async fn serve(config: rustls::ServerConfig) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    #[expect(clippy::disallowed_methods, reason = "a test's server, ended by the test")]
    let task = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust us ends the handshake.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(OK.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (port, task)
}

fn trusting(dir: &Path, name: &str) -> EnvironmentSource {
    EnvironmentSource::from_pairs([("SSL_CERT_FILE", dir.join(name).to_str().unwrap())])
}

async fn declared(url: &str, env: &EnvironmentSource) -> Result<Response, EgressError> {
    let url = Url::parse(url).unwrap();
    EgressClient::for_provider(&url, env, ClientDeadlines::default(), 1000)?
        .send(get(url.as_str()))
        .await
}

#[tokio::test]
async fn only_a_trusted_certificate_for_the_right_name_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let (port, served) = serve(authority(dir.path(), "ours.pem")).await;
    authority(dir.path(), "theirs.pem");
    let url = format!("https://localhost:{port}/");

    let answer = declared(&url, &trusting(dir.path(), "ours.pem")).await.unwrap();
    assert_eq!(answer.bytes().await.unwrap(), "hello");
    for env in [
        trusting(dir.path(), "theirs.pem"),
        EnvironmentSource::from_pairs([("A", "")]),
    ] {
        assert!(matches!(declared(&url, &env).await, Err(EgressError::Tls(_))));
    }
    let wrong_name = format!("https://127.0.0.1:{port}/");
    assert!(matches!(
        declared(&wrong_name, &trusting(dir.path(), "ours.pem")).await,
        Err(EgressError::Tls(_))
    ));
    // Roots that were asked for and are not there are not replaced by others.
    let missing = declared(&url, &trusting(dir.path(), "missing.pem")).await;
    assert!(matches!(missing, Err(EgressError::Setup(_))), "{missing:?}");
    served.abort();
}

#[tokio::test]
async fn a_pinned_address_is_still_asked_for_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (port, served) = serve(authority(dir.path(), "ours.pem")).await;
    let rules = rules(&format!(
        "allow_private = ['api.test:{port}', 'other.test:{port}']"
    ));
    let table = names(&[("api.test", &["127.0.0.1"]), ("other.test", &["127.0.0.1"])]);
    let env = trusting(dir.path(), "ours.pem");
    let client = EgressClient::guarded_with(rules, &env, ClientDeadlines::default(), table).unwrap();
    let answer = client
        .send(get(&format!("https://api.test:{port}/")))
        .await
        .unwrap();
    assert_eq!(answer.bytes().await.unwrap(), "hello");
    let other = client.send(get(&format!("https://other.test:{port}/"))).await;
    assert!(matches!(other, Err(EgressError::Tls(_))), "{other:?}");
    served.abort();
}
