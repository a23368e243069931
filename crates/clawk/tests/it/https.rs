//! A secret at the boundary, by real clients over real TLS: the tool holds a placeholder, the bound host gets the secret, nobody
//! else does, and the tool sees neither (R37).

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::without::{Host, own, said};

pub(crate) const SECRET: &str = "s3cr3t-of-the-host-kael-0123456789";

/// A server that writes down what it was sent and sends it back. With a certificate, over TLS.
const SERVER: &str = r#"
import http.server, ssl, sys
seen, certificate = sys.argv[1], sys.argv[2:]
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        got = self.headers.get("Authorization", "none")
        with open(seen, "a") as log: log.write(self.path + " " + got + "\n")
        body = ("echo of " + got).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Echo", got)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Echo)
if certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
open(seen + ".port", "w").write(str(server.server_port))
server.serve_forever()
"#;

pub(crate) struct Web {
    child: Child,
    seen: PathBuf,
    pub(crate) port: u16,
}

impl Web {
    pub(crate) fn new(host: &Host, name: &str, certificate: &[PathBuf]) -> Self {
        let seen = host.beside(name);
        std::fs::write(&seen, "").unwrap();
        let mut web = Self {
            child: Command::new("/usr/bin/python3")
                .args(["-c", SERVER])
                .arg(&seen)
                .args(certificate)
                .stdin(Stdio::null())
                .spawn()
                .unwrap(),
            seen,
            port: 0,
        };
        let until = Instant::now() + Duration::from_secs(20);
        let told = PathBuf::from(format!("{}.port", web.seen.display()));
        loop {
            if let Some(port) = std::fs::read_to_string(&told)
                .ok()
                .and_then(|text| text.parse().ok())
            {
                web.port = port;
                return web;
            }
            assert!(Instant::now() < until, "the server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn seen(&self) -> String {
        std::fs::read_to_string(&self.seen).unwrap()
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority and a certificate for these names: authority, certificate, key.
pub(crate) fn certificates(host: &Host, names: &[&str]) -> [PathBuf; 3] {
    let [authority, key, certificate, own_key, request, more] = [
        "ca.pem",
        "ca.key",
        "server.pem",
        "server.key",
        "server.csr",
        "server.ext",
    ]
    .map(|name| host.beside(name));
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
    let extensions = format!("subjectAltName={}\nbasicConstraints=CA:FALSE\n", names.join(","));
    std::fs::write(&more, extensions).unwrap();
    let [authority_text, key_text] = [text(&authority), text(&key)];
    let new_key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ];
    let steps: [Vec<String>; 3] = [
        [
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=test authority",
            "-keyout",
            &key_text,
            "-out",
            &authority_text,
        ]
        .iter()
        .chain(&new_key)
        .map(|word| (*word).to_owned())
        .collect(),
        [
            "req",
            "-subj",
            "/CN=localhost",
            "-keyout",
            &text(&own_key),
            "-out",
            &text(&request),
        ]
        .iter()
        .chain(&new_key)
        .map(|word| (*word).to_owned())
        .collect(),
        [
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            &text(&request),
            "-CA",
            &authority_text,
            "-CAkey",
            &key_text,
            "-CAcreateserial",
            "-extfile",
            &text(&more),
            "-out",
            &text(&certificate),
        ]
        .iter()
        .map(|word| (*word).to_owned())
        .collect(),
    ];
    for step in steps {
        let made = Command::new("openssl").args(&step).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    [authority, certificate, own_key]
}

#[test]
fn a_placeholder_becomes_the_secret_for_its_host_alone() {
    let host = Host::new(own());
    let [authority, certificate, key] = certificates(&host, &["localhost"]);
    let web = Web::new(&host, "bound", &[certificate, key]);
    let other = Web::new(&host, "other", &[]);
    let config = format!(
        "[egress]\nallow_private = [\"localhost:{0}\", \"127.0.0.1:{1}\"]\n\
         [secrets.TOKEN]\ntools = [\"shell\"]\nhosts = [\"localhost:{0}\"]\nprefix = \"Bearer \"\n",
        web.port, other.port
    );
    let file = host.beside("clawk.toml");
    std::fs::write(&file, config).unwrap();
    let sandbox = json!({"level": "process", "capabilities": {"shell": {"mode": "full"},
        "network": {"mode": "allowlist",
            "allowed_hosts": [format!("localhost:{}", web.port), format!("127.0.0.1:{}", other.port)]}},
        "resource_limits": {"timeout_ms": 30_000}});
    let flags = ["--config", file.to_str().unwrap()];
    let trust = [("SSL_CERT_FILE", authority.to_str().unwrap()), ("TOKEN", SECRET)];
    let mut served = host.serve_with("", &flags, &trust);
    let answer = served.initialize(&sandbox);
    assert!(answer["result"].is_object(), "{answer}");

    let url = format!("https://localhost:{}", web.port);
    let clients = [
        format!("curl -sSi -m 9 -H \"Authorization: Bearer $TOKEN\" {url}/curl"),
        format!(
            "python3 -c 'import os, urllib.request as u; a = u.urlopen(u.Request(\"{url}/python\", headers={{\"Authorization\": \"Bearer \" + os.environ[\"TOKEN\"]}}), timeout=9); print(a.headers, a.read().decode())'"
        ),
    ];
    for client in &clients {
        let answer = served.shell(client);
        let text = said(&answer);
        assert!(text.contains("echo of "), "{text}");
        assert!(!answer.to_string().contains(SECRET), "{answer}");
    }
    assert_eq!(
        web.seen(),
        format!("/curl Bearer {SECRET}\n/python Bearer {SECRET}\n")
    );

    // What the tool itself holds, and what it can make of it elsewhere.
    let plain = format!("http://127.0.0.1:{}", other.port);
    let answer = served.shell(&format!(
        "echo \"[$TOKEN]\" | rev; env; cat /proc/self/environ; cat /run/clawk/*; curl -sS -m 9 -H \"Authorization: Bearer $TOKEN\" {plain}/one;
         curl -sS -m 9 {plain}/two/$TOKEN; curl -sS -m 9 -H \"Host: localhost:{0}\" -H \"Authorization: Bearer $TOKEN\" {plain}/three;
         curl -sS -m 9 --connect-to localhost:{0}:127.0.0.1:{1} -H \"Authorization: Bearer $TOKEN\" {url}/four; curl -sS -m 9 -d \"$TOKEN\" {url}/body; echo [over]",
        web.port, other.port
    ));
    let backwards: String = SECRET.chars().rev().collect();
    let whole = answer.to_string();
    assert!(said(&answer).contains("[over]"), "{answer}");
    assert!(!whole.contains(SECRET) && !whole.contains(&backwards), "{answer}");
    assert!(!other.seen().contains(SECRET), "{}", other.seen());
    drop(served);
    judge_trace(&host, web.port);
}

/// The connections are in the trace, with the secret's name and never its value.
fn judge_trace(host: &Host, port: u16) {
    let trace = host.trace();
    assert!(!trace.contains(SECRET));
    let events: Vec<Value> = match serde_json::from_str::<Value>(&trace) {
        Ok(Value::Array(events)) => events,
        Ok(one) => one["events"].as_array().cloned().unwrap_or_default(),
        Err(_) => trace
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect(),
    };
    let connected: Vec<&Value> = events
        .iter()
        .filter(|event| {
            event["event_type"] == "ckp.egress.connected" && event.to_string().contains(&port.to_string())
        })
        .collect();
    assert!(connected.len() >= 2, "{trace}");
    for event in connected.iter().take(2) {
        assert!(
            event.to_string().contains("TOKEN") && event.to_string().contains("localhost"),
            "{event}"
        );
    }
    assert!(trace.contains("ckp.egress.refused"), "{trace}");
}
