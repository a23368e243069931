//! Who the server is, and what is never said.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

/// An authority and a server's certificate for `localhost`, in a folder: `ca.pem`, `server.pem`, `server.key`.
fn certified(folder: &std::path::Path) {
    let key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).unwrap();
    std::fs::write(folder.join("ca.pem"), certificate.pem()).unwrap();
    let issuer = Issuer::new(authority, key);
    let own = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let server = server.signed_by(&own, &issuer).unwrap();
    std::fs::write(folder.join("server.pem"), server.pem()).unwrap();
    std::fs::write(folder.join("server.key"), own.serialize_pem()).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(folder.join("server.key"), mode).unwrap();
}

#[tokio::test]
async fn the_servers_certificate_decides_whom_we_talk_to() {
    let (ours, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    certified(ours.path());
    certified(other.path());
    let file = |name: &str| ours.path().join(name).display().to_string();
    let lines = [
        "ssl=on".to_owned(),
        format!("ssl_cert_file={}", file("server.pem")),
        format!("ssl_key_file={}", file("server.key")),
    ];
    let server = Server::start(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let store = store(json!({"type": "conversation"}));
    let by = |host: &str, tls: TlsMode, authority: &std::path::Path| {
        let url = server.url().replace("127.0.0.1", host);
        memory(Options {
            url: Secret::new("url", url),
            tls,
            ca_file: Some(authority.join("ca.pem")),
            ..options(&server)
        })
    };
    for (host, tls) in [
        ("localhost", TlsMode::VerifyFull),
        ("localhost", TlsMode::VerifyCa),
        ("127.0.0.1", TlsMode::VerifyCa),
    ] {
        let memory = by(host, tls, ours.path());
        assert_eq!(memory.count(&store, &here()).await.unwrap(), 0, "{host} {tls:?}");
        let encrypted = "SELECT count(*) > 0 AND bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'clawk'";
        assert_eq!(server.sql(encrypted), "t", "{host} {tls:?}");
    }
    for (host, tls, authority, word) in [
        ("127.0.0.1", TlsMode::VerifyFull, ours.path(), "certificate"),
        ("localhost", TlsMode::VerifyFull, other.path(), "ca_file"),
        ("localhost", TlsMode::VerifyCa, other.path(), "ca_file"),
    ] {
        let error = by(host, tls, authority).count(&store, &here()).await.unwrap_err();
        assert!(error.to_string().contains(word), "{host} {tls:?}: {error}");
    }
}

#[tokio::test]
async fn nothing_is_said_in_clear_to_a_server_that_should_encrypt() {
    let server = Server::start(&[]);
    let encrypted = Options {
        tls: TlsMode::VerifyFull,
        ..options(&server)
    };
    let error = memory(encrypted)
        .count(&store(json!({"type": "conversation"})), &here())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("tls = \"disable\""), "{error}");
    let far = Options {
        url: Secret::new("url", "postgres://clawk@db.example.com/x"),
        ..options(&server)
    };
    let refused = Database::new(far, &Env::Process).unwrap_err().to_string();
    assert!(refused.contains("db.example.com"), "{refused}");
    let names = Options {
        tls: TlsMode::VerifyCa,
        ..options(&server)
    };
    let refused = Database::new(names, &Env::Process).unwrap_err().to_string();
    assert!(refused.contains("ca_file"), "{refused}");
}

#[tokio::test]
async fn a_password_is_in_no_message() {
    let server = Server::start(&[]);
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
        let error = memory.count(&spec, &here()).await.unwrap_err();
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
        let refused = Database::new(options, &Env::Process).unwrap_err();
        said.push(format!("{refused} {refused:?}"));
    }
    assert!(said.iter().all(|text| !text.contains("CANARY")), "{said:#?}");
}
