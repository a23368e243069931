use std::time::{Duration, Instant};

use clawk_plan::Limits;
use clawk_sandbox::{LaunchError, Spec};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::{launcher, lives, plan, script, seconds};

#[tokio::test]
async fn a_service_is_spoken_to_and_stopped() {
    let mut service = launcher()
        .start_service(&Spec::new("cat", plan(Limits::default())))
        .await
        .expect("starts");
    let mut input = service.stdin.take().expect("input");
    let mut output = BufReader::new(service.stdout.take().expect("output"));
    input.write_all(b"hello\n").await.expect("writes");
    let mut line = String::new();
    output.read_line(&mut line).await.expect("reads");
    assert_eq!(line, "hello\n");
    assert!(service.service_end().is_none());
    let end = service.stop().await.expect("ends");
    assert_eq!(end.signal, Some(15));
}

#[tokio::test]
async fn standard_error_is_drained_and_its_end_kept() {
    let spec = script("head -c 5000000 /dev/zero | tr '\\0' x >&2; echo the-end >&2; exit 4");
    let service = launcher().start_service(&spec).await.expect("starts");
    let end = service.wait().await.expect("ends");
    assert_eq!(end.exit_code, Some(4));
    let tail = service.stderr_tail();
    assert!(tail.ends_with("the-end\n") && tail.len() <= 16 << 10);
}

#[tokio::test]
async fn dropping_a_service_kills_it() {
    let word = seconds();
    let service = launcher()
        .start_service(&script(&format!("trap '' TERM; sleep {word} & sleep {word}")))
        .await
        .expect("starts");
    drop(service);
    let started = Instant::now();
    while lives(&word) {
        assert!(started.elapsed() < Duration::from_secs(5), "still there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_service_that_cannot_start_is_refused() {
    let refused = launcher()
        .start_service(&Spec::new("/no/such/file", plan(Limits::default())))
        .await;
    assert!(matches!(refused, Err(LaunchError::Refused(_))));
}
