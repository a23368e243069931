use std::path::Path;

use clawk_kernel::ports::{RunError, RunOutcome};
use serde_json::{Value, json};

use crate::testing::{Ran, open_plan, runner, text};

async fn run(config: Value, arguments: Value, dir: &Path) -> Result<RunOutcome, RunError> {
    let runner = runner(json!([{"name": "t"}]), &json!({"t": config}).to_string(), dir);
    Ran::new(open_plan()).run(&runner, dir, "t", arguments).await
}

fn shell(script: &str) -> Value {
    json!({"command": ["/bin/sh", "-c", script], "env": {"PLAIN": "1"}, "secret_env": {"TOKEN": "TOKEN_REF"}})
}

#[tokio::test]
async fn a_command_gets_json_and_gives_text() {
    let dir = tempfile::tempdir().expect("a folder");
    let outcome = run(
        shell("cat; echo \" $PLAIN $TOKEN\"; pwd"),
        json!({"a": [1]}),
        dir.path(),
    )
    .await
    .expect("ran");
    assert_eq!(
        text(&outcome),
        format!("{{\"a\":[1]}} 1 s3cr3t-value\n{}\n", dir.path().display())
    );
    let facts = outcome.structured.expect("facts");
    assert_eq!(
        (&facts["exit_code"], &facts["level"]),
        (&json!(0), &json!("process"))
    );
    assert!(!outcome.is_error);
}

#[tokio::test]
async fn a_command_that_speaks_the_result_format_is_taken_at_its_word() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = r#"echo '{"content":[{"type":"text","text":"hi"},{"type":"odd"}],"isError":true,"structuredContent":{"n":1,"exit_code":99}}'"#;
    let outcome = run(shell(script), json!({}), dir.path()).await.expect("ran");
    assert_eq!(text(&outcome), "hi\n{\"type\":\"odd\"}");
    assert!(outcome.is_error);
    let facts = outcome.structured.expect("facts");
    assert_eq!(
        (&facts["n"], &facts["exit_code"]),
        (&json!(1), &json!(0)),
        "facts cannot be forged"
    );
}

#[tokio::test]
async fn a_failed_command_says_why() {
    let dir = tempfile::tempdir().expect("a folder");
    let outcome = run(shell("echo part; echo broken >&2; exit 4"), json!({}), dir.path())
        .await
        .expect("ran");
    assert!(outcome.is_error);
    assert_eq!(text(&outcome), "part\n\n[exit code 4]\nbroken");
    let absent = run(json!({"command": ["/no/such/program"]}), json!({}), dir.path()).await;
    assert!(matches!(absent, Err(RunError::Sandbox(_))), "{absent:?}");
}

#[tokio::test]
async fn an_endpoint_gets_json_and_secret_headers() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let dir = tempfile::tempdir().expect("a folder");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
    let config = json!({"http": {"url": url, "headers": {"X-A": "1"}, "secret_headers": {"Authorization": "TOKEN_REF"}, "secret_prefix": "Bearer "}});
    let server = async {
        let (mut stream, _) = listener.accept().await.expect("a caller");
        let mut request = vec![0; 8 << 10];
        let read = stream.read(&mut request).await.expect("read");
        let body = r#"{"content":[{"type":"text","text":"posted"}]}"#;
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.expect("written");
        String::from_utf8_lossy(request.get(..read).unwrap_or_default()).into_owned()
    };
    let (outcome, request) = tokio::join!(run(config.clone(), json!({"q": 1}), dir.path()), server);
    assert_eq!(text(&outcome.expect("ran")), "posted");
    assert!(
        request.contains("authorization: Bearer s3cr3t-value") && request.ends_with(r#"{"q":1}"#),
        "{request}"
    );
    drop(listener);
    let gone = run(config, json!({}), dir.path()).await;
    assert!(
        matches!(gone, Err(RunError::Unavailable(_))),
        "surely nothing happened: {gone:?}"
    );
}
