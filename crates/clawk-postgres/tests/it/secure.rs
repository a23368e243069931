//! Who the server is, and what is never said.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// TLS as PostgreSQL negotiates it, before a server whose build has none: the real protocol behind a real handshake.
struct Front {
    port: u16,
    handshakes: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Front {
    /// Its certificate is for `localhost`, by a new authority whose own is written to this file.
    async fn start(server: &Server, authority: &Path) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut root = CertificateParams::new(Vec::new()).unwrap();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(authority, root.self_signed(&key).unwrap().pem()).unwrap();
        let own = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&own, &Issuer::new(root, key)).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(own.serialize_der()).into(),
            )
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let door = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = door.local_addr().unwrap().port();
        let behind = server.address();
        let handshakes = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&handshakes);
        let task = tokio::spawn(async move {
            let mut served = tokio::task::JoinSet::new();
            while let Ok((mut client, _)) = door.accept().await {
                let (acceptor, behind, count) = (acceptor.clone(), behind.clone(), Arc::clone(&count));
                served.spawn(async move {
                    let mut asked = [0; 8];
                    client.read_exact(&mut asked).await.unwrap();
                    assert_eq!(
                        asked,
                        [0, 0, 0, 8, 4, 210, 22, 47],
                        "an SSLRequest before anything else"
                    );
                    client.write_all(b"S").await.unwrap();
                    let Ok(mut client) = acceptor.accept(client).await else {
                        return;
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    let mut server = TcpStream::connect(behind).await.unwrap();
                    let _ended = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self {
            port,
            handshakes,
            task,
        }
    }
}

#[tokio::test]
async fn the_servers_certificate_decides_whom_we_talk_to() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let (ours, other) = (folder.path().join("ours.pem"), folder.path().join("other.pem"));
    let front = Front::start(&server, &ours).await;
    let _another = Front::start(&server, &other).await;
    let store = store(json!({"type": "conversation"}));
    let by = |host: &str, tls: TlsMode, authority: &Path| {
        memory(Options {
            url: Secret::new("url", format!("postgres://clawk@{host}:{}/postgres", front.port)),
            tls,
            ca_file: Some(authority.to_owned()),
            ..options(&server)
        })
    };
    for (at, (host, tls)) in [
        ("localhost", TlsMode::VerifyFull),
        ("localhost", TlsMode::VerifyCa),
        ("127.0.0.1", TlsMode::VerifyCa),
    ]
    .into_iter()
    .enumerate()
    {
        let memory = by(host, tls, &ours);
        assert_eq!(
            memory.count_entries(&store, &here()).await.unwrap(),
            0,
            "{host} {tls:?}"
        );
        assert_eq!(front.handshakes.load(Ordering::Relaxed), at + 1, "{host} {tls:?}");
    }
    for (host, tls, authority, word) in [
        ("127.0.0.1", TlsMode::VerifyFull, &ours, "certificate"),
        ("localhost", TlsMode::VerifyFull, &other, "ca_file"),
        ("localhost", TlsMode::VerifyCa, &other, "ca_file"),
    ] {
        let error = by(host, tls, authority)
            .count_entries(&store, &here())
            .await
            .unwrap_err();
        assert!(error.to_string().contains(word), "{host} {tls:?}: {error}");
    }
    assert_eq!(
        front.handshakes.load(Ordering::Relaxed),
        3,
        "nobody else was let in"
    );
}

#[tokio::test]
async fn nothing_is_said_in_clear_to_a_server_that_should_encrypt() {
    let server = Server::start();
    let encrypted = Options {
        tls: TlsMode::VerifyFull,
        ..options(&server)
    };
    let error = memory(encrypted)
        .count_entries(&store(json!({"type": "conversation"})), &here())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("tls = \"disable\""), "{error}");
    let far = Options {
        url: Secret::new("url", "postgres://clawk@db.example.com/x"),
        ..options(&server)
    };
    let refused = PgDatabase::new(far, &EnvironmentSource::Process)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("db.example.com"), "{refused}");
    let names = Options {
        tls: TlsMode::VerifyCa,
        ..options(&server)
    };
    let refused = PgDatabase::new(names, &EnvironmentSource::Process)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("ca_file"), "{refused}");
}

#[tokio::test]
async fn a_password_is_in_no_message() {
    let server = Server::start();
    let spec = store(json!({"type": "conversation"}));
    let secret = "CANARY-wrong-0815";
    let whole = server.url().replace("clawk@", &format!("clawk:{secret}@"));
    let mut said = Vec::new();
    let wrong = [
        Options {
            password: Some(Secret::new("PG_PASSWORD", secret)),
            ..options(&server)
        },
        Options {
            url: Secret::new("DATABASE_URL", whole.clone()),
            password: None,
            ..options(&server)
        },
    ];
    for options in wrong {
        said.push(format!("{options:?}"));
        let memory = memory(options);
        said.push(format!("{memory:?}"));
        let error = memory.count_entries(&spec, &here()).await.unwrap_err();
        assert!(
            error.to_string().contains("password authentication failed"),
            "{error}"
        );
        said.push(format!("{error} {error:?}"));
    }
    for url in [
        whole.replace("postgres://", "postgres:///"),
        format!("{secret}://x:y"),
        format!("{whole}?{secret}=1"),
    ] {
        let options = Options {
            url: Secret::new("DATABASE_URL", url),
            ..options(&server)
        };
        let refused = PgDatabase::new(options, &EnvironmentSource::Process).unwrap_err();
        said.push(format!("{refused} {refused:?}"));
    }
    assert!(said.iter().all(|text| !text.contains("CANARY")), "{said:#?}");
}
