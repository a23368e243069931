//! Measures one request over loopback, directly and through the sandbox's proxy: the median in microseconds.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clawk_egress::proxy::Options;
use clawk_egress::{HostAllowList, NameResolver, Proxy};
use clawk_secrets::EnvironmentSource;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";

/// Makes `requests` requests one after the other, each on its own connection.
pub(crate) fn microseconds(proxied: bool, requests: usize) -> Result<f64> {
    let server = serve()?;
    let (to, target) = if proxied {
        let place = format!("ok.test:{}", server.port());
        (proxy(&place)?, format!("http://{place}/"))
    } else {
        (server, "/".to_owned())
    };
    let request = format!("GET {target} HTTP/1.1\r\nHost: ok.test:{}\r\n\r\n", server.port());
    let mut took = Vec::with_capacity(requests);
    for _ in 0..requests {
        let began = Instant::now();
        let mut stream = TcpStream::connect(to)?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
        ensure!(answer.ends_with(b"hello"), "no answer");
    }
    took.sort_by(f64::total_cmp);
    took.get(requests / 2).copied().context("no request")
}

fn serve() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // The thread ends with the process.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 4096];
            // silent-ok: the measurement sees a missing answer
            let _ = stream.read(&mut request);
            let _ = stream.write_all(ANSWER);
        }
    });
    Ok(address)
}

fn proxy(place: &str) -> Result<SocketAddr> {
    let options = Options {
        rules: HostAllowList {
            allow_private: vec![place.to_owned().try_into()?],
            ..HostAllowList::default()
        },
        names: NameResolver::Fixed(BTreeMap::from([(
            "ok.test".to_owned(),
            vec![[127, 0, 0, 1].into()],
        )])),
        ..Options::default()
    };
    let call = Proxy::new(options, &EnvironmentSource::from_pairs([("A", "")]))?.call(&[])?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            if let Ok(listener) = tokio::net::TcpListener::from_std(listener) {
                call.serve_listener(listener, std::future::pending()).await;
            }
        });
    });
    Ok(address)
}
