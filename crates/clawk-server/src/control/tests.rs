//! The socket as a file: whose it is, what is left over, how long its path may be.

#![expect(
    clippy::disallowed_methods,
    reason = "tests make their own tasks and ids, and end with them"
)]

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use clawk_kernel::Kernel;
use clawk_kernel::ports::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{ControlClient, ControlError, ControlSocket, SOCKET};
use crate::agent::{AgentFactory, InitFailure};
use crate::host::{AgentHost, Options};

/// A host without an agent.
fn nobody() -> AgentHost {
    #[derive(Debug)]
    struct Nobody;
    impl AgentFactory for Nobody {
        fn check_manifest<'a>(
            &'a self,
            _wire: &'a serde_json::Value,
        ) -> BoxFuture<'a, Result<(), InitFailure>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn start_agent<'a>(
            &'a self,
            _wire: Option<&'a serde_json::Value>,
        ) -> BoxFuture<'a, Result<Kernel, InitFailure>> {
            Box::pin(std::future::ready(Err(InitFailure::Manifest(Vec::new()))))
        }
    }
    AgentHost::new(Arc::new(Nobody), Options::default())
}

#[tokio::test]
async fn the_socket_is_its_owners_alone_and_goes_with_the_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let control = ControlSocket::bind(dir.path(), nobody()).expect("bound");
    let mode = std::fs::metadata(dir.path().join(SOCKET))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("readable").count(),
        1,
        "nothing else is left"
    );
    drop(control);
    assert_eq!(std::fs::read_dir(dir.path()).expect("readable").count(), 0);
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET)).expect("bound"));
    let live = ControlSocket::bind(dir.path(), nobody()).expect("the stale file is replaced");
    let second = ControlSocket::bind(dir.path(), nobody()).expect_err("refused");
    assert_eq!(second.kind(), std::io::ErrorKind::AddrInUse);
    drop(live);
}

#[tokio::test]
async fn a_state_directory_with_a_long_path_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let deep = dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).expect("made");
    let control = ControlSocket::bind(&deep, nobody()).expect("bound");
    let over = CancellationToken::new();
    let serving = tokio::spawn(control.serve(over.clone()));
    let mut client = ControlClient::connect(&deep).await.expect("connected");
    let refused = client
        .call_method("clawk.status", &serde_json::json!({}))
        .await
        .expect_err("no agent yet");
    assert!(matches!(refused, ControlError::Refused(error) if error.code == -32600));
    over.cancel();
    serving.await.expect("no panic");
}

#[tokio::test]
async fn nobody_running_is_said_plainly() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = ControlClient::connect(&dir.path().join("nowhere"))
        .await
        .expect_err("refused");
    assert!(matches!(missing, ControlError::NotRunning { .. }));
    let unused = ControlClient::connect(dir.path()).await.expect_err("refused");
    assert!(unused.to_string().starts_with("no agent is running"), "{unused}");
    drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET)).expect("bound"));
    assert!(matches!(
        ControlClient::connect(dir.path()).await.expect_err("refused"),
        ControlError::NotRunning { .. }
    ));
}
