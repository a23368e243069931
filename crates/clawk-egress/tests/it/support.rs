//! Servers that remember what reached them, and a proxy to test.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clawk_egress::proxy::{Limits, Options};
use clawk_egress::{ConnectionReport, HostAllowList, NameResolver, Proxy, ProxyCall};
use clawk_secrets::EnvironmentSource;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server on loopback that keeps what reached it.
pub(crate) struct Canary {
    pub(crate) port: u16,
    hits: Arc<Mutex<Vec<String>>>,
    accepted: Arc<Mutex<usize>>,
}

pub(crate) const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

type Reply = Arc<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

impl Canary {
    pub(crate) fn new() -> Self {
        Self::answering(|_| HELLO.into())
    }

    pub(crate) fn answering(reply: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::start(None, Arc::new(reply))
    }

    pub(crate) fn tls(
        config: rustls::ServerConfig,
        reply: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::start(Some(Arc::new(config)), Arc::new(reply))
    }

    fn start(tls: Option<Arc<rustls::ServerConfig>>, reply: Reply) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = listener.local_addr().expect("an address").port();
        let (hits, accepted) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let canary = Self {
            port,
            hits: Arc::clone(&hits),
            accepted: Arc::clone(&accepted),
        };
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                *accepted.lock().expect("a lock") += 1;
                let (hits, reply, tls) = (Arc::clone(&hits), Arc::clone(&reply), tls.clone());
                std::thread::spawn(move || {
                    let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                    match tls {
                        None => serve(stream, &hits, &reply),
                        Some(config) => {
                            let connection = rustls::ServerConnection::new(config).expect("a configuration");
                            serve(rustls::StreamOwned::new(connection, stream), &hits, &reply);
                        }
                    }
                });
            }
        });
        canary
    }

    /// Whole requests that arrived.
    pub(crate) fn hits(&self) -> Vec<String> {
        self.hits.lock().expect("a lock").clone()
    }

    /// Connections that arrived, with or without a request.
    pub(crate) fn accepted(&self) -> usize {
        *self.accepted.lock().expect("a lock")
    }
}

fn serve(mut stream: impl Read + Write, hits: &Mutex<Vec<String>>, reply: &Reply) {
    let mut all = Vec::new();
    let mut piece = [0; 8192];
    while !complete(&all) {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(read) => all.extend_from_slice(&piece[..read]),
        }
    }
    if all.is_empty() {
        return;
    }
    let text = String::from_utf8_lossy(&all).into_owned();
    hits.lock().expect("a lock").push(text.clone());
    let _ = stream.write_all(&reply(&text));
    let _ = stream.flush();
}

fn complete(all: &[u8]) -> bool {
    let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
    let body = &all[end + 4..];
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with(b"0\r\n\r\n");
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// A proxy at work.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) call: ProxyCall,
    pub(crate) proxy: Proxy,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    /// Stops it; what became of the connections.
    pub(crate) async fn end(self) -> ConnectionReport {
        let _ = self.stop.send(());
        self.task.await.expect("no panic");
        self.call.ledger().take_report()
    }
}

pub(crate) fn rules(toml: &str) -> HostAllowList {
    toml::from_str(toml).expect("rules")
}

/// Names of `table`, each at loopback.
pub(crate) fn at_loopback(table: &[&str]) -> NameResolver {
    let loopback: IpAddr = [127, 0, 0, 1].into();
    let names = table.iter().map(|name| ((*name).to_owned(), vec![loopback]));
    NameResolver::Fixed(names.collect::<BTreeMap<_, _>>())
}

pub(crate) async fn start(options: Options, env: &EnvironmentSource) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    start_on(options, env, listener)
}

pub(crate) fn start_on(options: Options, env: &EnvironmentSource, listener: TcpListener) -> Running {
    let address = listener.local_addr().expect("an address");
    let proxy = Proxy::new(options, env).expect("a proxy");
    let call = proxy.call(&["shell"]).expect("a call");
    let (stop, stopped) = oneshot::channel();
    let serving = call.clone();
    #[expect(clippy::disallowed_methods, reason = "a test's proxy, ended by the test")]
    let task = tokio::spawn(async move {
        let stopped = async move {
            let _ = stopped.await;
        };
        serving.serve_listener(listener, stopped).await;
    });
    Running {
        address,
        call,
        proxy,
        stop,
        task,
    }
}

/// Short waits, and the given rules.
pub(crate) fn options(toml: &str, names: NameResolver) -> Options {
    Options {
        rules: rules(toml),
        names,
        limits: quick(),
        ..Options::default()
    }
}

pub(crate) fn quick() -> Limits {
    Limits {
        head_ms: 1_000,
        connect_ms: 1_000,
        idle_ms: 2_000,
        ..Limits::default()
    }
}

pub(crate) fn no_env() -> EnvironmentSource {
    EnvironmentSource::from_pairs([("A", "")])
}

/// Sends bytes and reads to the end.
pub(crate) async fn say(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).await.expect("connected");
    let _ = stream.write_all(bytes).await;
    listen(&mut stream).await
}

pub(crate) async fn listen(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let reading = stream.read_to_end(&mut all);
    let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
    String::from_utf8_lossy(&all).into_owned()
}

/// `200`, `403`, … of an answer; 0 without one.
pub(crate) fn status(answer: &str) -> u16 {
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0)
}

/// An authority in `dir/NAME`, and a server configuration for `hosts` signed by it.
pub(crate) fn certified(dir: &Path, name: &str, hosts: &[&str]) -> rustls::ServerConfig {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "a test's authority");
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed");
    std::fs::write(dir.join(name), issuer.pem()).expect("written");
    let key = KeyPair::generate().expect("a key");
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).expect("parameters");
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer).expect("signed");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate")
}

/// An environment that trusts `dir/NAME` alone.
pub(crate) fn trusting(dir: &Path, name: &str) -> EnvironmentSource {
    EnvironmentSource::from_pairs([("SSL_CERT_FILE", dir.join(name).to_str().expect("a path"))])
}

/// A TLS client's configuration that trusts the certificates of `pem`.
pub(crate) fn client_trusting(pem: &str) -> Arc<rustls::ClientConfig> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()).map_while(Result::ok) {
        let _ = roots.add(certificate);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

/// `CONNECT authority`, then TLS naming `sni`, then `request`; what came back, or the word for what failed.
pub(crate) async fn through_tls(
    proxy: SocketAddr,
    authority: &str,
    sni: &str,
    trust: &str,
    request: &str,
) -> Result<String, String> {
    let mut stream = TcpStream::connect(proxy).await.expect("connected");
    let connect = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    stream.write_all(connect.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    if status(&head) != 200 {
        return Err(head);
    }
    let name = rustls::pki_types::ServerName::try_from(sni.to_owned()).expect("a name");
    let connector = tokio_rustls::TlsConnector::from(client_trusting(trust));
    let mut stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| format!("tls: {error}"))?;
    stream
        .write_all(request.as_bytes())
        .await
        .map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    let reading = stream.read_to_end(&mut all);
    let _ = tokio::time::timeout(Duration::from_secs(5), reading).await;
    Ok(String::from_utf8_lossy(&all).into_owned())
}
