//! What vendors really answer. Each row is a body as servers send it, from their pages and from public bug reports.

use clawk_core::ports::RefusalCause;

use super::{cause_of, is_used_up};

fn too_long(limit_tokens: Option<u64>) -> Option<RefusalCause> {
    Some(RefusalCause::TooLong { limit_tokens })
}

fn parameter(name: &str) -> Option<RefusalCause> {
    Some(RefusalCause::Parameter {
        instead: None,
        name: name.to_owned(),
    })
}

fn renamed(name: &str, instead: &str) -> Option<RefusalCause> {
    Some(RefusalCause::Parameter {
        instead: Some(instead.to_owned()),
        name: name.to_owned(),
    })
}

fn check(rows: &[(u16, &str, Option<RefusalCause>)]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|(status, body, wanted)| {
            let found = cause_of(Some(*status), body);
            (found != *wanted).then(|| format!("{status} {body}\n  found {found:?}\n  wanted {wanted:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
fn a_conversation_that_is_too_long_is_known_in_every_vendors_words() {
    check(&[
        // OpenAI, Azure, DeepSeek, OpenRouter
        (
            400,
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            too_long(Some(8192)),
        ),
        (
            400,
            r#"{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#,
            too_long(None),
        ),
        (
            400,
            r#"{"error":{"message":"This model's maximum context length is 131072 tokens. However, you requested 133034 tokens (125034 in the messages, 8000 in the completion).","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
            too_long(Some(131_072)),
        ),
        (
            400,
            r#"{"error":{"message":"This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (39000 of text input, 1000 in the output).","code":400}}"#,
            too_long(Some(32_768)),
        ),
        (
            429,
            r#"{"error":{"message":"Request too large for gpt-5.6 in organization org-x on tokens per min (TPM): Limit 30000, Requested 35000. The input or output tokens must be reduced in order to run successfully.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
            too_long(Some(30_000)),
        ),
        (
            400,
            r#"{"error":{"message":"Invalid 'messages[1].content': string too long. Expected a string with maximum length 1048576, but got a string with length 1540820 instead.","type":"invalid_request_error","param":"messages[1].content","code":"string_above_max_length"}}"#,
            too_long(None),
        ),
        // Anthropic
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 208310 tokens > 200000 maximum"}}"#,
            too_long(Some(200_000)),
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length or `max_tokens` and try again"}}"#,
            too_long(Some(200_000)),
        ),
        (
            413,
            r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}"#,
            too_long(None),
        ),
        // Gemini
        (
            400,
            r#"[{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]"#,
            too_long(Some(1_048_576)),
        ),
        (
            400,
            r#"{"error":{"message":"The input token count (9000) exceeds the maximum number of tokens allowed (8000).","type":"INVALID_ARGUMENT"}}"#,
            too_long(Some(8_000)),
        ),
        // DashScope, Kimi, GLM, MiniMax
        (
            400,
            r#"{"error":{"message":"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]","type":"invalid_request_error","code":"invalid_parameter_error"}}"#,
            too_long(Some(30_720)),
        ),
        (
            400,
            r#"{"error":{"message":"Invalid request: Your request exceeded model token limit: 262144","type":"invalid_request_error"}}"#,
            too_long(Some(262_144)),
        ),
        (
            400,
            r#"{"error":{"code":"1261","message":"Prompt exceeds max length"}}"#,
            too_long(None),
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"bad_request_error","message":"invalid params, context window exceeds limit (2013)"}}"#,
            too_long(None),
        ),
        // Mistral, Groq, Together, Fireworks, Cerebras, Cohere, xAI
        (
            400,
            r#"{"object":"error","message":"Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_prompt_too_long","param":null,"code":"3051"}"#,
            too_long(Some(32_768)),
        ),
        (
            400,
            r#"{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            too_long(None),
        ),
        (
            413,
            r#"{"error":{"message":"Request too large for model `llama-3.3-70b` in organization `org` on tokens per minute (TPM): Limit 6000, Requested 9012, please reduce your message size and try again.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            too_long(Some(6_000)),
        ),
        (
            422,
            r#"{"error":{"message":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens and 512 `max_new_tokens`","type":"invalid_request_error"}}"#,
            too_long(Some(8_193)),
        ),
        (
            422,
            r#"{"error":"Input validation error: `inputs` must have less than 4096 tokens. Given: 5120","error_type":"validation"}"#,
            too_long(Some(4_096)),
        ),
        (
            400,
            r#"{"error":{"object":"error","type":"invalid_request_error","message":"The prompt is too long: 9000, model maximum context length: 8191"}}"#,
            too_long(Some(8_191)),
        ),
        (
            400,
            r#"{"message":"Please reduce the length of the messages or completion. Current length is 8500 while limit is 8192","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}"#,
            too_long(Some(8_192)),
        ),
        (
            400,
            r#"{"message":"too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000. Try using a shorter prompt."}"#,
            too_long(Some(4_081)),
        ),
        (
            400,
            r#"{"code":"Client specified an invalid argument","error":"This model's maximum prompt length is 131072 but the request contains 136973 tokens."}"#,
            too_long(Some(131_072)),
        ),
        // Bedrock, GitHub, other gateways
        (
            400,
            r#"{"message":"Input is too long for requested model."}"#,
            too_long(None),
        ),
        (
            400,
            r#"{"error":{"message":"litellm.BadRequestError: {\"message\":\"The model returned the following errors: prompt is too long: 210000 tokens > 200000 maximum\"}","type":null,"code":"400"}}"#,
            too_long(Some(200_000)),
        ),
        (
            400,
            r#"{"error":{"message":"prompt token count of 70000 exceeds the limit of 64000","code":"model_max_prompt_tokens_exceeded"}}"#,
            too_long(Some(64_000)),
        ),
        (
            413,
            r#"{"error":{"code":"tokens_limit_reached","message":"Request body too large for gpt-4o model. Max size: 8000 tokens."}}"#,
            too_long(Some(8_000)),
        ),
        // llama.cpp, vLLM, Ollama, LM Studio, SGLang
        (
            400,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":9012,"n_ctx":4096}}"#,
            too_long(Some(4_096)),
        ),
        (
            500,
            r#"{"error":{"code":500,"message":"context size exceeded","type":"server_error"}}"#,
            too_long(None),
        ),
        (
            400,
            r#"{"error":{"message":"The decoder prompt (length 163840) is longer than the maximum model length of 131072. Make sure that `max_model_len` is no smaller than the number of text tokens.","type":"BadRequestError","param":null,"code":400}}"#,
            too_long(Some(131_072)),
        ),
        (
            400,
            r#"{"error":{"message":"You passed 9001 input tokens and requested 4096 output tokens. However, the model's context length is only 8192 tokens, resulting in a maximum input length of 4096 tokens.","type":"BadRequestError","code":400}}"#,
            too_long(Some(8_192)),
        ),
        (
            400,
            r#"{"object":"error","message":"max_tokens must be at least 1, got -907.","type":"BadRequestError","param":null,"code":400}"#,
            too_long(None),
        ),
        (
            400,
            r#"{"error":{"message":"'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 tokens and your request has 6000 input tokens (4096 > 8192 - 6000).","type":"BadRequestError","param":null,"code":400}}"#,
            too_long(Some(8_192)),
        ),
        (
            400,
            r#"{"error":"the input length exceeds the context length"}"#,
            too_long(None),
        ),
        (
            400,
            r#"{"error":"Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough."}"#,
            too_long(Some(4_096)),
        ),
        (
            400,
            r#"{"error":"The number of tokens to keep from the initial prompt is greater than the context length. Try to load the model with a larger context length, or provide a shorter input"}"#,
            too_long(None),
        ),
        (
            400,
            r#"{"object":"error","message":"length of prompt_tokens (163280) must be less than max_seq_len (32768)."}"#,
            too_long(Some(32_768)),
        ),
    ]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
fn a_parameter_that_is_refused_is_known_by_its_name() {
    check(&[
        // OpenAI, Azure
        (
            400,
            r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#,
            renamed("max_tokens", "max_completion_tokens"),
        ),
        (
            400,
            r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."}}"#,
            renamed("max_tokens", "max_completion_tokens"),
        ),
        (
            400,
            r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported.","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}"#,
            parameter("temperature"),
        ),
        (
            400,
            r#"{"error":{"message":"Unrecognized request argument supplied: stream_options","type":"invalid_request_error","param":null,"code":null}}"#,
            parameter("stream_options"),
        ),
        (
            400,
            r#"{"error":{"message":"Unknown parameter: 'prompt_cache_key'.","type":"invalid_request_error","param":"prompt_cache_key","code":"unknown_parameter"}}"#,
            parameter("prompt_cache_key"),
        ),
        (
            400,
            r#"{"error":{"message":"Unsupported parameter: 'reasoning.effort' is not supported with this model.","type":"invalid_request_error","param":"reasoning.effort","code":"unsupported_parameter"}}"#,
            parameter("reasoning"),
        ),
        (
            400,
            r#"{"error":{"message":"Unsupported parameter: 'parallel_tool_calls' is not supported with this model.","param":"parallel_tool_calls","code":"unsupported_parameter"}}"#,
            parameter("parallel_tool_calls"),
        ),
        (
            400,
            r#"{"error":{"message":"Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.","type":"invalid_request_error"}}"#,
            parameter("parallel_tool_calls"),
        ),
        // vLLM, Mistral, gateways with pydantic
        (
            400,
            r#"{"object":"error","message":"[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), 'msg': 'Extra inputs are not permitted', 'input': {'include_usage': True}}]","type":"BadRequestError","param":null,"code":400}"#,
            parameter("stream_options"),
        ),
        (
            422,
            r#"{"object":"Error","detail":[{"type":"extra_forbidden","loc":["body","parallel_tool_calls"],"msg":"Extra inputs are not permitted","input":true}],"type":"invalid_request_error","code":3001}"#,
            parameter("parallel_tool_calls"),
        ),
        (
            422,
            r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted","input":{}}]},"type":"invalid_request_error"}"#,
            parameter("stream_options"),
        ),
        (
            422,
            r#"{"object":"error","message":"{\"detail\":[{\"type\":\"extra_forbidden\",\"loc\":[\"body\",\"prompt_cache_key\"],\"msg\":\"Extra inputs are not permitted\"}]}","type":"internal_error_proxy","code":"1000"}"#,
            parameter("prompt_cache_key"),
        ),
        (
            422,
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","messages",31,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted","input":"hm"}]}"#,
            parameter("reasoning_content"),
        ),
        (
            400,
            r#"{"error":{"message":"Error: Extra inputs are not permitted, field: 'stream_options'","type":"invalid_request_error"}}"#,
            parameter("stream_options"),
        ),
        // Groq, xAI, Cohere, Cerebras
        (
            400,
            r#"{"error":{"message":"property 'prompt_cache_key' is unsupported","type":"invalid_request_error"}}"#,
            parameter("prompt_cache_key"),
        ),
        (
            400,
            r#"{"error":{"message":"'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property 'reasoning_content' is unsupported)]","type":"invalid_request_error"}}"#,
            parameter("reasoning_content"),
        ),
        (
            400,
            r#"{"error":{"message":"`reasoning_effort` is not supported with this model","type":"invalid_request_error"}}"#,
            parameter("reasoning_effort"),
        ),
        (
            400,
            r#"{"code":"invalid-argument","error":"Argument not supported on this model: reasoning_effort"}"#,
            parameter("reasoning_effort"),
        ),
        (
            422,
            r#"{"message":"unknown field: parameter 'stream_options' is not a valid field"}"#,
            parameter("stream_options"),
        ),
        (
            422,
            r#"{"error":"Failed to deserialize the JSON body into the target type: unknown field `stream_options`, expected one of `model`, `messages` at line 1 column 40"}"#,
            parameter("stream_options"),
        ),
        // Gemini
        (
            400,
            r#"[{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"parallel_tool_calls\": Cannot find field.","status":"INVALID_ARGUMENT","details":[{"fieldViolations":[{"description":"Invalid JSON payload received. Unknown name \"parallel_tool_calls\": Cannot find field."}]}]}}]"#,
            parameter("parallel_tool_calls"),
        ),
        // Anthropic, Bedrock
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"thinking: Extra inputs are not permitted"}}"#,
            parameter("thinking"),
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"`temperature` is deprecated for this model."}}"#,
            parameter("temperature"),
        ),
        (
            400,
            r#"{"message":"The model returned the following errors: output_config: Extra inputs are not permitted"}"#,
            parameter("output_config"),
        ),
        // Ollama, llama.cpp and other small servers
        (
            400,
            r#"{"error":"\"qwen2.5:7b\" does not support thinking"}"#,
            parameter("reasoning_effort"),
        ),
        (
            400,
            r#"{"error":{"message":"create() got an unexpected keyword argument 'stream_options'"}}"#,
            parameter("stream_options"),
        ),
        (400, "tool_choice is not supported", parameter("tool_choice")),
    ]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
fn roles_ids_and_the_responses_api_are_known() {
    use RefusalCause::{CallIds, ResponsesApi, Roles};
    check(&[
        (
            500,
            r#"{"error":{"code":500,"message":"\nWhile executing CallExpression at line 189, column 32 in source:\nError: Jinja Exception: After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.","type":"server_error"}}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"object":"error","message":"Conversation roles must alternate user/assistant/user/assistant/...","type":"BadRequestError","code":400}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"object":"error","message":"Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant","type":"invalid_request_message_order","code":"3230"}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","type":"invalid_request_message_order","code":"3230"}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"object":"error","message":"Assistant message must have either content or tool_calls, but not none.","code":"3240"}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.3: all messages must have non-empty content except for the optional final assistant message"}}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages: text content blocks must be non-empty"}}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"error":{"message":"System role not supported","type":"BadRequestError"}}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"error":{"message":"System message must be at the beginning.","type":"invalid_request_error"}}"#,
            Some(Roles),
        ),
        (
            400,
            r#"{"object":"error","message":"Tool call id was call_0fypS1hVX but must be a-z, A-Z, 0-9, with a length of 9.","type":"invalid_function_call","param":null,"code":"3280"}"#,
            Some(CallIds),
        ),
        (
            400,
            r#"{"error":{"message":"Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length 53 instead.","type":"invalid_request_error","param":"messages[2].tool_calls[0].id","code":"string_above_max_length"}}"#,
            Some(CallIds),
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"}}"#,
            Some(CallIds),
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.5.content.1: `tool_use` ids must be unique"}}"#,
            Some(CallIds),
        ),
        (
            500,
            "Tool call IDs should be alphanumeric strings with length 9!",
            Some(CallIds),
        ),
        (
            400,
            r#"{"error":{"message":"Function tools with reasoning_effort are not supported for gpt-5.6-terra in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.","type":"invalid_request_error","param":"reasoning_effort","code":null}}"#,
            Some(ResponsesApi),
        ),
        (
            400,
            r#"{"error":{"message":"Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions. Please use /v1/responses instead.","type":"invalid_request_error","param":"reasoning_effort","code":null}}"#,
            Some(ResponsesApi),
        ),
        (
            404,
            r#"{"error":{"message":"This model is only supported in v1/responses and not in v1/chat/completions.","type":"invalid_request_error","param":"model","code":null}}"#,
            Some(ResponsesApi),
        ),
    ]);
}

#[test]
fn a_refusal_that_names_nothing_stays_what_it_is() {
    check(&[
        (400, "", None),
        (400, "Bad Request", None),
        (400, "<html><body>400 Bad Request</body></html>", None),
        (
            400,
            r#"{"error":{"message":"Invalid request","type":"invalid_request_error"}}"#,
            None,
        ),
        (
            404,
            r#"{"error":{"message":"The model `gpt-9` does not exist or you do not have access to it.","type":"invalid_request_error","code":"model_not_found"}}"#,
            None,
        ),
        (
            401,
            r#"{"error":{"message":"Incorrect API key provided: maximum context","code":"invalid_api_key"}}"#,
            None,
        ),
        (
            429,
            r#"{"error":{"message":"Rate limit reached for gpt-5.6 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.","code":"rate_limit_exceeded"}}"#,
            None,
        ),
        (503, r#"{"error":{"message":"context size exceeded"}}"#, None),
        // A name inside of a tool's schema is none of the request's.
        (
            400,
            r#"{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"const\" at 'tools[0].function_declarations[5].parameters': Cannot find field."}}"#,
            None,
        ),
        (
            422,
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","messages",0,"user","name"],"msg":"Extra inputs are not permitted"}]}"#,
            None,
        ),
        (
            422,
            r#"{"object":"Error","detail":[{"type":"extra_forbidden","loc":["body","tools"],"msg":"Extra inputs are not permitted","input":[]}]}"#,
            None,
        ),
        (
            400,
            r#"{"error":"registry.ollama.ai/library/tinyllama:latest does not support tools"}"#,
            None,
        ),
        (
            400,
            r#"{"error":{"message":"image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"}}"#,
            None,
        ),
        (
            400,
            r#"{"error":{"message":"max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.","param":"max_tokens"}}"#,
            None,
        ),
        (
            400,
            r#"{"error":{"message":"An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'."}}"#,
            None,
        ),
        (
            500,
            r#"{"error":{"message":"'stream_options' is not supported"}}"#,
            None,
        ),
    ]);
}

#[test]
fn a_quota_that_will_not_heal_is_told_from_a_busy_minute() {
    for gone in [
        r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","code":"insufficient_quota"}}"#,
        r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#,
        r#"{"error":{"message":"Insufficient Balance","type":"unknown_error"}}"#,
        r#"{"error":{"message":"Billing hard limit has been reached","code":"billing_hard_limit_reached"}}"#,
    ] {
        assert!(is_used_up(gone), "{gone}");
    }
    for busy in [
        r#"[{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details. Please retry in 34.07s.","status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"34s"}]}}]"#,
        r#"{"error":{"message":"Rate limit reached for requests","code":"rate_limit_exceeded"}}"#,
    ] {
        assert!(!is_used_up(busy), "{busy}");
    }
}
