use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

fn provider(found: &DiscoveredProvider) -> &Provider {
    found.provider.as_ref().unwrap()
}

#[tokio::test]
async fn keys_come_in_a_fixed_order_and_are_never_shown() {
    let all = [
        ("ANTHROPIC_API_KEY", "canary-a"),
        ("OPENAI_API_KEY", "canary-o"),
        ("OPENROUTER_API_KEY", "canary-r"),
    ];
    let expected = [
        (
            "https://api.anthropic.com",
            ProviderProtocol::AnthropicNative,
            AuthType::ApiKeyHeader,
        ),
        (
            "https://api.openai.com/v1",
            ProviderProtocol::OpenaiCompatible,
            AuthType::Bearer,
        ),
        (
            "https://openrouter.ai/api/v1",
            ProviderProtocol::OpenaiCompatible,
            AuthType::Bearer,
        ),
    ];
    for (skip, (endpoint, protocol, auth)) in expected.into_iter().enumerate() {
        let found = discover_provider(&EnvironmentSource::from_pairs(all.iter().skip(skip).copied())).await;
        let provider = provider(&found);
        assert_eq!(
            (provider.endpoint.as_str(), provider.protocol, provider.auth.kind),
            (endpoint, protocol, auth)
        );
        assert_eq!(provider.auth.secret_ref.as_deref(), Some(all[skip].0));
        assert!(!format!("{found:?}").contains("canary"));
    }
    let base = [
        ("ANTHROPIC_API_KEY", "k"),
        ("ANTHROPIC_BASE_URL", "http://localhost:9/x"),
        ("ANTHROPIC_MODEL", "m"),
    ];
    let found = discover_provider(&EnvironmentSource::from_pairs(base)).await;
    assert_eq!(
        (
            provider(&found).endpoint.as_str(),
            provider(&found).model.as_str()
        ),
        ("http://localhost:9/x", "m")
    );
}

#[tokio::test]
async fn a_local_server_is_found_by_what_it_lists() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let ports = [(port(&silent), "silent"), (port(&listener), "real")];
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 1024];
        let read = stream.read(&mut head).await.unwrap();
        assert!(head[..read].starts_with(b"GET /v1/models "));
        let body = r#"{"object":"list","data":[{"id":"tiny-model"}]}"#;
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    };
    let env = EnvironmentSource::from_pairs([("X", "")]);
    let (found, ()) = tokio::join!(probe_ports(&env, &ports), serve);
    let found = found.unwrap();
    assert_eq!(provider(&found).model, "tiny-model");
    assert!(found.why.contains("real"), "{}", found.why);
    assert!(probe_ports(&env, &[(port(&silent), "silent")]).await.is_none());
}

#[test]
fn ollama_hosts_in_every_spelling() {
    for (host, base) in [
        ("127.0.0.1:11434", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("box.lan", "http://box.lan:11434/v1"),
        ("https://box.lan/", "https://box.lan/v1"),
        ("http://box.lan:1/v1", "http://box.lan:1/v1"),
    ] {
        assert_eq!(ollama_base(host), base, "{host}");
    }
}
