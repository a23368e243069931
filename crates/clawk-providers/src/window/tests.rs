use serde_json::{Value, json};

use super::{listed_window, of_description, of_properties, of_running};

#[test]
fn windows_are_read_as_servers_say_them() {
    let rows: &[(Value, Option<u64>)] = &[
        // vLLM, OpenRouter, Groq, Together, Mistral, LM Studio
        (
            json!({"object": "list", "data": [{"id": "m", "max_model_len": 32768}]}),
            Some(32_768),
        ),
        (
            json!({"data": [{"id": "m", "context_length": 200000, "top_provider": {"context_length": 128000}}]}),
            Some(128_000),
        ),
        (
            json!({"data": [{"id": "m", "context_window": 131072}, {"id": "n", "context_window": 8192}]}),
            Some(131_072),
        ),
        (json!([{"id": "m", "context_length": 8193}]), Some(8_193)),
        (
            json!({"data": [{"id": "m", "max_context_length": 32768}]}),
            Some(32_768),
        ),
        (
            json!({"data": [{"id": "m", "max_context_length": 131072, "loaded_context_length": 4096}]}),
            Some(4_096),
        ),
        // A server with one model serves it under any name.
        (
            json!({"data": [{"id": "/models/other.gguf", "max_model_len": 4096}]}),
            Some(4_096),
        ),
        (
            json!({"data": [{"id": "a", "max_model_len": 4096}, {"id": "b", "max_model_len": 1}]}),
            None,
        ),
        (json!({"data": [{"id": "m", "object": "model"}]}), None),
        (json!({"data": [{"id": "m", "context_length": "many"}]}), None),
        (json!({"data": [{"id": "m", "context_length": 0}]}), None),
        (json!({"models": []}), None),
    ];
    for (list, wanted) in rows {
        assert_eq!(listed_window(list, "m"), *wanted, "{list}");
    }
    assert_eq!(
        of_properties(&json!({"default_generation_settings": {"n_ctx": 4096}})),
        Some(4_096)
    );
    assert_eq!(of_properties(&json!({"n_ctx": 8192})), Some(8_192));
    assert_eq!(of_properties(&json!({"total_slots": 1})), None);
    let running = json!({"models": [{"name": "llama3.2:latest", "context_length": 4096}]});
    assert_eq!(of_running(&running, "llama3.2"), Some(4_096));
    assert_eq!(of_running(&running, "other"), None);
    assert_eq!(
        of_description(&json!({"parameters": "stop \"x\"\nnum_ctx    16384\n"})),
        Some(16_384)
    );
    let trained = json!({"model_info": {"llama.context_length": 131072}, "parameters": ""});
    assert_eq!(of_description(&trained), None, "trained with, not served");
}
