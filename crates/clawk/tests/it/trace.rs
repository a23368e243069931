//! The record from outside: signed while an agent runs, erased, replayed, taken along.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;

use crate::agent::{Agent, text};

pub(crate) fn json(agent: &Agent, args: &[&str]) -> (i32, Value) {
    let output = assert_cmd::Command::new(crate::agent::program())
        .args(args)
        .current_dir(agent.path(""))
        .env_clear()
        .envs(agent.environment())
        .timeout(std::time::Duration::from_secs(60))
        .output()
        .unwrap();
    let out = text(&output.stdout);
    let value =
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{args:?}: {out}\n{}", text(&output.stderr)));
    (output.status.code().unwrap(), value)
}

pub(crate) fn configured(toml: &str) -> Agent {
    let agent = Agent::new();
    std::fs::write(agent.path("clawk.toml"), toml).unwrap();
    agent
}

/// Answers requests with these statuses in turn; the bodies that came.
fn collector(listener: TcpListener, statuses: Vec<&'static str>) -> std::thread::JoinHandle<Vec<String>> {
    std::thread::spawn(move || {
        let mut bodies = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                let got = stream.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..got]);
                let whole = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = whole.split_once("\r\n\r\n") else {
                    continue;
                };
                let head = head.to_lowercase();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "));
                if body.len() >= length.unwrap().trim().parse::<usize>().unwrap() {
                    bodies.push(body.to_owned());
                    break;
                }
            }
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
        bodies
    })
}

/// Changes the database as somebody would who knows our tables.
pub(crate) fn forge(agent: &Agent, sql: &str) {
    let status = std::process::Command::new("python3")
        .args([
            "-c",
            "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.commit()",
        ])
        .arg(agent.state().join("state.db"))
        .arg(sql)
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_run_is_signed_at_its_end_and_kept_in_a_second_place() {
    let agent = configured("[checkpoints]\nfile = \"heads.jsonl\"\n");
    agent
        .clawk(["run", "claw.yaml", "-m", "read it"])
        .assert()
        .success();
    let key = text(&agent.clawk(["trace", "key"]).output().unwrap().stdout);
    assert_eq!(key.trim().len(), 64);
    std::fs::write(agent.path("agent.pub"), &key).unwrap();
    // All of it is signed, the lifecycle's last events included.
    let (code, report) = json(&agent, &["trace", "verify", "--format", "json"]);
    assert_eq!(
        (code, &report["signed"]["events"]),
        (0, &report["event_count"]),
        "{report}"
    );
    let elsewhere = [
        "trace",
        "verify",
        "--format",
        "json",
        "--key",
        "agent.pub",
        "--checkpoints",
        "heads.jsonl",
    ];
    assert_eq!(json(&agent, &elsewhere).0, 0);
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    assert_eq!(json(&agent, &elsewhere).0, 0);
    // The exported file and one session of it hold against the same heads.
    agent
        .clawk(["trace", "export", "-o", "all.trace.jsonl"])
        .assert()
        .success();
    agent
        .clawk(["trace", "export", "--session", "last", "-o", "one.trace.jsonl"])
        .assert()
        .success();
    for args in [
        vec![
            "trace",
            "verify",
            "all.trace.jsonl",
            "--key",
            "agent.pub",
            "--checkpoints",
            "heads.jsonl",
        ],
        vec![
            "trace",
            "verify",
            "one.trace.jsonl",
            "--session",
            "last",
            "--key",
            "agent.pub",
            "--checkpoints",
            "heads.jsonl",
        ],
    ] {
        let args = [args, vec!["--format", "json"]].concat();
        assert_eq!(json(&agent, &args).0, 0);
    }
}

#[test]
fn a_cut_a_rollback_and_a_swapped_key_are_found_and_nothing_starts() {
    let agent = configured("[checkpoints]\nfile = \"heads.jsonl\"\n");
    agent
        .clawk(["run", "claw.yaml", "-m", "read it"])
        .assert()
        .success();
    let copy = |from: &Path, to: &Path| {
        std::fs::remove_dir_all(to).ok();
        assert!(
            std::process::Command::new("cp")
                .arg("-a")
                .args([from, to])
                .status()
                .unwrap()
                .success()
        );
    };
    let (state, old, good) = (agent.state(), agent.path("old"), agent.path("good"));
    copy(&state, &old);
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    copy(&state, &good);
    let verify = ["trace", "verify", "--format", "json"];

    // The last events go, and the tables say so, too.
    forge(
        &agent,
        "CREATE TEMP TABLE cut AS SELECT max(row) - 2 AS n FROM events; DELETE FROM events WHERE row > (SELECT n FROM cut); \
         DELETE FROM sessions WHERE id NOT IN (SELECT session FROM events); \
         UPDATE sessions SET events = (SELECT count(*) FROM events e WHERE e.session = sessions.id), \
         head = (SELECT hash FROM events e WHERE e.session = sessions.id ORDER BY sequence DESC LIMIT 1); \
         UPDATE sessions SET verified = events, verified_hash = head;",
    );
    let (code, report) = json(&agent, &verify);
    assert_eq!(
        (code, report["error"].as_str()),
        (1, Some("sequence_gap")),
        "{report}"
    );
    let refused = agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .failure();
    assert!(text(&refused.get_output().stderr).contains("not the one that was signed"));

    // An older state is put back: by itself it is whole, the second place knows better.
    copy(&old, &state);
    assert_eq!(json(&agent, &verify).0, 0);
    let (code, report) = json(&agent, &[&verify[..], &["--checkpoints", "heads.jsonl"]].concat());
    assert_eq!(
        (code, report["error"].as_str()),
        (1, Some("sequence_gap")),
        "{report}"
    );
    let refused = agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .failure();
    assert!(text(&refused.get_output().stderr).contains("an older state was put back"));

    // Another key.
    copy(&good, &state);
    std::fs::write(state.join("keys/checkpoint.key"), "11".repeat(32)).unwrap();
    let refused = agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .failure();
    assert!(text(&refused.get_output().stderr).contains("names the key"));
    copy(&good, &state);
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
}

#[test]
fn a_webhook_gets_every_head_and_its_failures_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let agent = configured(&format!("[checkpoints]\nwebhook = \"http://{address}/heads\"\n"));
    // The first answer is a refusal.
    let server = collector(listener, vec!["503 Busy", "200 OK"]);
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    let (_, key) = json(&agent, &["trace", "key", "--format", "json"]);
    assert_eq!(key["second_places"][0]["failures"], 1, "{key}");
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();
    let bodies = server.join().unwrap();
    assert_eq!(bodies[0], bodies[1], "what failed is sent again");
    assert!(bodies[1].lines().all(|line| line.contains("\"signature\"")));
}

#[test]
fn redacted_content_is_nowhere_in_the_state_and_the_chain_says_so() {
    let agent = Agent::new();
    std::fs::write(agent.path("in.txt"), "the launch code is 0000-PLUM").unwrap();
    agent
        .clawk(["run", "claw.yaml", "-m", "read it"])
        .assert()
        .success();
    let grep = || {
        let found = std::process::Command::new("grep")
            .args(["-ral", "0000-PLUM"])
            .arg(agent.state())
            .output()
            .unwrap();
        text(&found.stdout)
    };
    assert!(grep().contains("state.db"), "it was there");
    agent
        .clawk([
            "trace",
            "redact",
            "--session",
            "last",
            "--reason",
            "asked to forget",
        ])
        .assert()
        .success();
    assert_eq!(grep(), "");
    let (code, report) = json(
        &agent,
        &["trace", "verify", "--session", "last", "--format", "json"],
    );
    assert_eq!((code, &report["valid"]), (0, &Value::Bool(true)), "{report}");
    assert!(report["contents"]["erased"].as_u64().unwrap() >= 4, "{report}");
    assert_eq!(
        (&report["contents"]["missing"], &report["contents"]["present"]),
        (&0.into(), &1.into()),
        "the reason is a content: {report}"
    );
    let human = text(&agent.clawk(["trace", "verify"]).output().unwrap().stdout);
    assert!(human.contains("content erased (on the record)"), "{human}");
    let shown = text(
        &agent
            .clawk(["trace", "show", "--session", "last"])
            .output()
            .unwrap()
            .stdout,
    );
    assert!(
        shown.contains("ckp.content.redacted") && shown.contains("asked to forget"),
        "{shown}"
    );
    // Nothing left: exit code 1, and no second event.
    agent
        .clawk(["trace", "redact", "--session", "last", "--reason", "again"])
        .assert()
        .code(1);
    // The agent goes on.
    agent
        .clawk(["run", "claw.yaml", "--session", "last", "-m", "hello"])
        .assert()
        .success();
}

#[test]
fn spans_form_a_tree_and_reach_a_collector() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "read it"])
        .assert()
        .success();
    let (code, document) = json(&agent, &["trace", "export", "--session", "last", "--as", "otlp"]);
    assert_eq!(code, 0);
    let spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
        .as_array()
        .unwrap();
    let named = |name: &str| {
        spans
            .iter()
            .find(|span| span["name"].as_str().unwrap().starts_with(name))
            .unwrap()
    };
    let (session, turn) = (named("session cli"), named("turn"));
    let (chat, tool) = (named("chat main"), named("execute_tool file-read"));
    assert_eq!(session["parentSpanId"], "");
    assert_eq!(turn["parentSpanId"], session["spanId"]);
    assert_eq!(chat["parentSpanId"], turn["spanId"]);
    assert_eq!(tool["parentSpanId"], turn["spanId"]);
    for span in spans {
        assert_eq!(span["spanId"].as_str().unwrap().len(), 16);
        assert_eq!(span["traceId"], session["traceId"]);
        assert!(span["startTimeUnixNano"].as_str() <= span["endTimeUnixNano"].as_str());
    }
    assert!(
        !document.to_string().contains("a line of text"),
        "contents stay at home"
    );

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let server = collector(listener, vec!["200 OK", "400 Bad Request"]);
    let send = || {
        agent
            .clawk([
                "trace",
                "export",
                "--session",
                "last",
                "--otlp-endpoint",
                &endpoint,
            ])
            .assert()
    };
    send().success();
    let refused = send().failure();
    assert!(text(&refused.get_output().stderr).contains("answered 400"));
    let sent: Value = serde_json::from_str(&server.join().unwrap()[0]).unwrap();
    assert_eq!(sent, document);
}

#[test]
fn the_page_asks_for_nothing_and_shows_text_as_text() {
    let agent = Agent::new();
    agent
        .clawk(["run", "claw.yaml", "-m", "write it"])
        .assert()
        .success();
    agent
        .clawk(["trace", "export", "--as", "html", "-o", "run.html"])
        .assert()
        .success();
    let page = std::fs::read_to_string(agent.path("run.html")).unwrap();
    assert!(page.contains("Every chain holds") && page.contains("default-src 'none'; style-src 'sha256-"));
    assert!(
        page.contains("may file-write run? Files are precious, rule writing")
            && page.contains("answered deny")
    );
    for never in ["<script", "http://", "https://", "src=", "url(", "@import"] {
        assert!(!page.contains(never), "{never}");
    }
    // A hostile record, which does not even hold.
    agent
        .clawk(["trace", "export", "--session", "last", "-o", "run.trace.jsonl"])
        .assert()
        .success();
    let hostile = std::fs::read_to_string(agent.path("run.trace.jsonl")).unwrap();
    let hostile = hostile.replace("Files are precious", "<script>alert(1)</script>\\u202e");
    std::fs::write(agent.path("bad.trace.jsonl"), hostile).unwrap();
    agent
        .clawk([
            "trace",
            "export",
            "bad.trace.jsonl",
            "--as",
            "html",
            "-o",
            "bad.html",
        ])
        .assert()
        .success();
    let page = std::fs::read_to_string(agent.path("bad.html")).unwrap();
    assert!(page.contains("The record does not hold"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}"));
    assert!(!page.contains("<script") && !page.contains('\u{202e}'));
}

#[test]
fn a_line_of_a_hundred_megabytes_is_refused_in_bounded_memory() {
    let agent = Agent::new();
    let mut file = std::fs::File::create(agent.path("long.trace.jsonl")).unwrap();
    let block = vec![b'x'; 1 << 20];
    for _ in 0..100 {
        file.write_all(&block).unwrap();
    }
    drop(file);
    for verb in ["verify", "show", "replay"] {
        // 80 MiB for data: the line whole would not fit.
        let output = std::process::Command::new("prlimit")
            .args(["--data=83886080", "--"])
            .arg(crate::agent::program())
            .args(["trace", verb, "long.trace.jsonl"])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{verb}: {}", text(&output.stderr));
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("longer than 16777216 bytes"), "{verb}: {said}");
    }
}

#[test]
fn a_diff_prints_no_more_than_its_limit_and_counts_the_rest() {
    let agent = Agent::new();
    let event = |n: usize, ms: usize, result: &str| {
        format!(
            "{{\"event_type\":\"action.executed\",\"payload\":{{\"action_id\":\"a{n}\",\"duration_ms\":{ms},\"result\":\"{result}\"}}}}\n"
        )
    };
    let first: String = (0..300).map(|n| event(n, 1, "x")).collect();
    // 270 durations, then 30 results.
    let second: String = (0..300)
        .map(|n| {
            if n < 270 {
                event(n, 2, "x")
            } else {
                event(n, 1, "y")
            }
        })
        .collect();
    std::fs::write(agent.path("a.jsonl"), first).unwrap();
    std::fs::write(agent.path("b.jsonl"), second).unwrap();
    let diff = |more: &[&str]| {
        let words = [&["trace", "diff", "a.jsonl", "b.jsonl", "--format", "json"], more].concat();
        let (code, report) = json(&agent, &words);
        assert_eq!((code, &report["compatibility"]), (1, &"incompatible".into()));
        report
    };
    let listed = |report: &Value| report["differences"].as_array().unwrap().len();
    for more in [&[][..], &["--limit", "0"], &["--limit", "300"]] {
        let whole = diff(more);
        assert_eq!((listed(&whole), whole.get("left_out")), (300, None), "{more:?}");
        assert_eq!(whole["differences"][0]["path"], "/0/payload/duration_ms");
    }
    let cut = diff(&["--limit", "40"]);
    assert_eq!(listed(&cut), 40);
    assert_eq!(
        cut["left_out"],
        serde_json::json!({ "differences": 260, "major": 0, "minor": 260, "by_type": { "value_changed": 260 } })
    );
    assert_eq!(
        cut["differences"][0]["path"], "/270/payload/result",
        "what matters comes first"
    );
    assert_eq!(diff(&["--limit", "1"])["left_out"]["major"], 29);
    // For people a limit holds unless they name another.
    let people = |more: &[&str]| {
        let mut command = agent.clawk(["trace", "diff", "a.jsonl", "b.jsonl"]);
        text(&command.args(more).assert().failure().get_output().stdout)
    };
    let short = people(&[]);
    assert_eq!(short.lines().count(), 102);
    assert!(
        short.starts_with("INCOMPATIBLE  30 major, 270 minor differences"),
        "{short}"
    );
    assert!(
        short.ends_with("… and 200 more, 0 of them major (200 with another value); --limit 0 prints all\n"),
        "{short}"
    );
    assert_eq!(people(&["--limit", "0"]).lines().count(), 301);
}
