//! `wasi:http` of a guest at level `wasm`, through the real program: it goes by the call's own way out, which judges, dresses and
//! records it, and nowhere else. Judged by what arrives at servers.

mod rig;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::https::{SECRET, certificates};
use rig::{DENIED, Rig, Web};

#[test]
fn an_allowed_host_is_reached_and_no_other() {
    let (web, other) = (Web::new(), Web::new());
    let mut rig = Rig::new(&[&web], "");
    let text = rig.ask(&format!("GET http://localhost:{}/one X-Word here", web.port));
    assert!(
        text.contains("status 200") && text.contains("you said GET /one"),
        "{text}"
    );
    assert!(web.seen().contains("x-word: here"), "{}", web.seen());
    let text = rig.ask(&format!("POST http://localhost:{}/two - - some-text", web.port));
    assert!(
        text.contains("status 200") && web.seen().contains("some-text"),
        "{text} {}",
        web.seen()
    );

    let asked = web.hits();
    for place in [
        format!("http://localhost:{}/", other.port),
        // By its number: no name was allowed that says so.
        format!("http://127.0.0.1:{}/", web.port),
        format!("http://127.1:{}/", web.port),
        format!("http://[::ffff:127.0.0.1]:{}/", web.port),
        format!("http://2130706433:{}/", web.port),
        format!("http://localhost.:{}/", other.port),
        "http://169.254.169.254/latest".to_owned(),
        "https://example.com/".to_owned(),
    ] {
        let text = rig.ask(&format!("GET {place} - -"));
        assert!(text.contains(DENIED), "{place}: {text}");
    }
    for way in [
        format!("CONNECT http://localhost:{}/ - -", web.port),
        format!("GET http://user@localhost:{}/ - -", web.port),
    ] {
        let text = rig.ask(&way);
        assert!(text.contains("error "), "{way}: {text}");
    }
    assert_eq!((other.hits(), web.hits()), (0, asked));

    let events = rig.end();
    let of = |kind: &str| -> Vec<String> {
        let all = events.iter().filter(|event| event["event_type"] == kind);
        all.map(Value::to_string).collect()
    };
    let rule = format!("localhost:{}", web.port);
    let connected = of("ckp.egress.connected");
    assert_eq!(connected.len(), 2, "{connected:?}");
    assert!(
        connected
            .iter()
            .all(|one| one.contains("wasi-http") && one.contains(&rule)),
        "{connected:?}"
    );
    let refused = of("ckp.egress.refused");
    assert!(refused.len() >= 9, "{refused:?}");
    for (place, code) in [
        (other.port.to_string(), "port"),
        ("127.0.0.1".to_owned(), "literal"),
        ("example.com".to_owned(), "host"),
    ] {
        assert!(
            refused
                .iter()
                .any(|one| one.contains(&place) && one.contains(code)),
            "{place}: {refused:?}"
        );
    }
}

#[test]
fn without_network_it_is_refused_on_record_and_is_no_trap() {
    let web = Web::new();
    let mut rig = Rig::with(&json!({}), "", &[]);
    let text = rig.ask(&format!("GET http://localhost:{}/ - -", web.port));
    assert!(text.contains(DENIED) && !text.contains("trap"), "{text}");
    assert_eq!(web.hits(), 0);
    let events = rig.end();
    let refused: Vec<_> = events
        .iter()
        .filter(|event| event["event_type"] == "ckp.egress.refused")
        .collect();
    assert_eq!(refused.len(), 1, "{events:?}");
    assert!(refused[0].to_string().contains("localhost"), "{refused:?}");
}

#[test]
fn a_redirect_is_judged_anew() {
    let (web, other) = (Web::new(), Web::new());
    let mut rig = Rig::new(&[&web], "");
    let to = |port: u16| format!("GET http://localhost:{}/to/localhost:{port}/there - -", web.port);
    let text = rig.ask(&to(web.port));
    assert!(
        text.contains("status 302") && text.contains("you said GET /there"),
        "{text}"
    );
    let text = rig.ask(&to(other.port));
    assert!(text.contains("status 302") && text.contains(DENIED), "{text}");
    assert_eq!(other.hits(), 0);
}

#[test]
fn a_placeholder_becomes_the_secret_on_the_wire_and_its_echo_none() {
    let folder = super::without::Host::new(super::without::own());
    let [authority, certificate, key] = certificates(&folder, &["localhost"]);
    let bound = super::https::Web::new(&folder, "bound", &[certificate, key]);
    let other = Web::new();
    let config = format!(
        "[secrets.TOKEN]\ntools = [\"shell\"]\nhosts = [\"localhost:{}\"]\n",
        bound.port
    );
    let hosts = [
        format!("localhost:{}", bound.port),
        format!("localhost:{}", other.port),
    ];
    let network = json!({"mode": "allowlist", "allowed_hosts": hosts});
    let env = [("SSL_CERT_FILE", authority.to_str().unwrap()), ("TOKEN", SECRET)];
    let private = format!("[egress]\nallow_private = [\"{}\", \"{}\"]\n", hosts[0], hosts[1]);
    let mut rig = Rig::with(&network, &(private + &config), &env);

    let url = format!("https://localhost:{}", bound.port);
    let text = rig.ask(&format!("GET {url}/a Authorization $TOKEN"));
    assert!(
        text.contains("status 200echo of ") && !text.contains(SECRET),
        "{text}"
    );
    assert_eq!(bound.seen(), format!("/a {SECRET}\n"));
    // In the wrong header, the URL, the body, or to another host: it does not leave.
    for way in [
        format!("GET {url}/b X-Other $TOKEN"),
        format!("POST {url}/c - - $TOKEN"),
        format!("GET http://localhost:{}/d Authorization $TOKEN", other.port),
    ] {
        let text = rig.ask(&way);
        assert!(text.contains(DENIED), "{way}: {text}");
    }
    assert_eq!(bound.seen(), format!("/a {SECRET}\n"));
    assert_eq!(other.hits(), 0);
    // The same name by a server whose certificate nobody vouches for.
    let events = rig.end();
    let whole = json!(events).to_string();
    assert!(!whole.contains(SECRET));
    let connected: Vec<_> = events
        .iter()
        .filter(|event| event["event_type"] == "ckp.egress.connected")
        .collect();
    assert!(
        connected.len() == 1 && connected[0].to_string().contains("TOKEN"),
        "{connected:?}"
    );
}

#[test]
fn a_certificate_that_nobody_vouches_for_is_an_error() {
    let folder = super::without::Host::new(super::without::own());
    let [_, certificate, key] = certificates(&folder, &["localhost"]);
    let web = super::https::Web::new(&folder, "self", &[certificate, key]);
    let place = format!("localhost:{}", web.port);
    let network = json!({"mode": "allowlist", "allowed_hosts": [place]});
    let mut rig = Rig::with(
        &network,
        &format!("[egress]\nallow_private = [\"{place}\"]\n"),
        &[],
    );
    let text = rig.ask(&format!("GET https://{place}/a - -"));
    assert!(text.contains("error 12"), "{text}");
    assert_eq!(web.seen(), "");
}

#[test]
fn what_is_long_streams_through_and_what_breaks_off_is_told() {
    let web = Web::new();
    let mut rig = Rig::new(&[&web], "");
    // Four times the guest's memory.
    let text = rig.ask(&format!("GET http://localhost:{}/long/67108864 - -", web.port));
    assert!(
        text.contains("status 200") && text.contains("bytes 67108864"),
        "{text}"
    );
    let text = rig.ask(&format!("GET http://localhost:{}/broken - -", web.port));
    assert!(text.contains("status 200") && text.contains("broken"), "{text}");
    // A server's word that the request was refused is not ours.
    let text = rig.ask(&format!("GET http://localhost:{}/forged - -", web.port));
    assert!(text.contains("status 200") && !text.contains("error"), "{text}");
}

#[test]
fn a_silent_server_is_waited_for_until_the_deadline() {
    let web = Web::new();
    let mut rig = Rig::new(&[&web], "");
    rig.ask(&format!("GET http://localhost:{}/first - -", web.port));
    let started = Instant::now();
    let text = rig.ask(&format!("GET http://localhost:{}/silent - -", web.port));
    assert!(text.contains("-32014"), "{text}");
    assert!(
        started.elapsed() < Duration::from_secs(9),
        "{:?}",
        started.elapsed()
    );
    // The connection went with the call, and the next call is served.
    let until = Instant::now() + Duration::from_secs(5);
    while web.silent() > 0 {
        assert!(Instant::now() < until, "the connection is still open");
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = rig.ask(&format!("GET http://localhost:{}/next - -", web.port));
    assert!(text.contains("you said GET /next"), "{text}");
}

#[test]
fn things_without_end_in_the_hosts_memory_end_the_guest() {
    let web = Web::new();
    let mut rig = Rig::new(&[&web], "");
    let text = rig.ask("endless http://localhost/ - -");
    assert!(text.contains("no free keys"), "{text}");
}
