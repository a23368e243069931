//! "Unknown field" in the words of many servers and validators, from their pages and from public bug reports.

use clawk_core::ports::RefusalCause;

use crate::refusal::cause_of;

fn named(status: u16, body: &str) -> Option<String> {
    match cause_of(Some(status), body) {
        Some(RefusalCause::Parameter { name, .. }) => Some(name),
        Some(
            RefusalCause::TooLong { .. }
            | RefusalCause::Roles
            | RefusalCause::CallIds
            | RefusalCause::ResponsesApi,
        )
        | None => None,
    }
}

fn check(rows: &[(u16, &str, Option<&str>)]) {
    let wrong: Vec<String> = rows
        .iter()
        .filter(|(status, body, wanted)| named(*status, body).as_deref() != *wanted)
        .map(|(status, body, wanted)| {
            format!(
                "{status} {body}\n  found {:?}, wanted {wanted:?}",
                named(*status, body)
            )
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const CONTENT: Option<&str> = Some("extra_content");
const OPTIONS: Option<&str> = Some("stream_options");

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn a_member_of_a_message_is_known_wherever_a_server_says_it_stands() {
    check(&[
        // Google
        (
            400,
            r#"[{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"extra_content\" at 'messages[0]': Cannot find field.","status":"INVALID_ARGUMENT"}}]"#,
            CONTENT,
        ),
        (
            400,
            r#"{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"extra_content\" at 'messages[3].tool_calls[0]': Cannot find field.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.BadRequest","fieldViolations":[{"field":"messages[3].tool_calls[0]","description":"Invalid JSON payload received. Unknown name \"extra_content\" at 'messages[3].tool_calls[0]': Cannot find field."}]}]}}"#,
            CONTENT,
        ),
        (
            400,
            r#"{"error":{"message":"Error from provider: {\n  \"error\": {\n    \"code\": 400,\n    \"message\": \"Invalid JSON payload received. Unknown name \\\"reasoning_details\\\" at 'messages[1]': Cannot find field.\"}}"}}"#,
            Some("reasoning_details"),
        ),
        // OpenAI
        (
            400,
            r#"{"error":{"message":"Unknown parameter: 'messages[2].tool_calls[0].extra_content'.","type":"invalid_request_error","param":"messages[2].tool_calls[0].extra_content","code":"unknown_parameter"}}"#,
            CONTENT,
        ),
        (
            400,
            r#"{"error":{"message":"Additional properties are not allowed ('reasoning_details' was unexpected) - 'messages.1'","type":"invalid_request_error","param":null,"code":null}}"#,
            Some("reasoning_details"),
        ),
        // Anthropic, and its dialect elsewhere
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0.text.cache_control: Extra inputs are not permitted"}}"#,
            Some("cache_control"),
        ),
        (
            400,
            r#"{"message":"The model returned the following errors: tools.3.custom.cache_control: Extra inputs are not permitted"}"#,
            Some("cache_control"),
        ),
        // pydantic, serde, Fireworks, Groq, Cerebras
        (
            422,
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","messages",4,"assistant","tool_calls",0,"extra_content"],"msg":"Extra inputs are not permitted","input":{}}]}"#,
            CONTENT,
        ),
        (
            422,
            r#"{"error":"Failed to deserialize the JSON body into the target type: messages[2]: unknown field `reasoning_details`, expected one of `role`, `content`, `name` at line 1 column 90"}"#,
            Some("reasoning_details"),
        ),
        (
            400,
            r#"{"error":{"message":"Extra inputs are not permitted, field: 'messages[5].reasoning_details', value: []"}}"#,
            Some("reasoning_details"),
        ),
        (
            400,
            r#"{"error":{"message":"'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning_details' is unsupported)]"}}"#,
            Some("reasoning_details"),
        ),
        (
            400,
            r##"{"message":"Malformed input request: #/messages/1: extraneous key [extra_content] is not permitted, please reformat your input and try again."}"##,
            CONTENT,
        ),
        (
            400,
            r#"{"message":["messages.0.property provider_specific_fields should not exist"],"error":"Bad Request","statusCode":400}"#,
            Some("provider_specific_fields"),
        ),
        (
            400,
            r#"{"error":{"issues":[{"code":"unrecognized_keys","keys":["reasoning_text"],"path":["messages",1],"message":"Unrecognized key"}]}}"#,
            Some("reasoning_text"),
        ),
        (
            400,
            "✖ Unrecognized key: \"thinking_blocks\"\n  → at messages[1]",
            Some("thinking_blocks"),
        ),
        (
            400,
            r#"{"message":"Unrecognized field \"extra_content\" (class api.Message), not marked as ignorable (through reference chain: api.Request[\"messages\"]->java.util.ArrayList[0]->api.Message[\"extra_content\"])"}"#,
            CONTENT,
        ),
        (
            400,
            r#"{"detail":"Object contains unknown field `extra_content` - at `$.messages[0]`"}"#,
            CONTENT,
        ),
        (
            400,
            r#"{"error":"Encountered an unknown key 'extra_content' at path: $.messages[0]"}"#,
            CONTENT,
        ),
    ]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn an_unknown_field_is_known_in_the_words_of_validators() {
    check(&[
        (
            400,
            r#"{"error":"json: unknown field \"stream_options\""}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"proto: (line 1:20): unknown field \"stream_options\""}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"Cannot find field: stream_options in message v1.ChatRequest"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"INVALID_ARGUMENT: no such field: 'stream_options'"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"message":"Unrecognized field \"stream_options\" (class api.ChatRequest), not marked as ignorable"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"errors":{"$.stream_options":["The JSON property 'stream_options' could not be mapped to any .NET member contained in type 'Api.Chat'."]}}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"Unrecognized key(s) in object: 'stream_options'"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"success":false,"error":{"issues":[{"code":"unrecognized_keys","keys":["stream_options"],"path":[],"message":"m"}]}}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"errors":[{"instancePath":"","keyword":"additionalProperties","params":{"additionalProperty":"stream_options"},"message":"must NOT have additional properties"}]}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"message":"request/body must NOT have additional properties","errors":[{"path":"/body/stream_options","message":"must NOT have additional properties","errorCode":"additionalProperties.openapi.validation"}]}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"statusCode":400,"message":["property stream_options should not exist"],"error":"Bad Request"}"#,
            OPTIONS,
        ),
        (
            422,
            r#"{"detail":[{"loc":["body","stream_options"],"msg":"extra fields not permitted","type":"value_error.extra"}]}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":{"message":"1 validation error for ChatRequest\nstream_options\n  Extra inputs are not permitted [type=extra_forbidden, input_value={}, input_type=dict]"}}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"1 validation error for Request\nbody -> stream_options\n  extra fields not permitted (type=value_error.extra)"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":{"message":"[\"At body -> stream_options: Extra inputs are not permitted\"]"}}"#,
            OPTIONS,
        ),
        (422, r#"{"stream_options":["Unknown field."]}"#, OPTIONS),
        (
            422,
            r#"{"violations":[{"propertyPath":"stream_options","title":"This field was not expected."}]}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"detail":"Extra attributes are not allowed (\"stream_options\" is unknown)."}"#,
            OPTIONS,
        ),
        (
            400,
            r##"{"message":"Malformed input request: #: extraneous key [stream_options] is not permitted"}"##,
            OPTIONS,
        ),
        (
            400,
            r#"{"message":"Invalid request body: [object instance has properties which are not allowed by the schema: [\"stream_options\"]]"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"(root): Additional property stream_options is not allowed"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"at '': additional properties 'stream_options' not allowed"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"Unevaluated properties are not allowed ('stream_options' was unexpected)"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"The property stream_options is not defined and the definition does not allow additional properties"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"$.stream_options: is not defined in the schema and the schema does not allow additional properties"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"object property at `/stream_options` is a disallowed additional property"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"this field has unspecified keys: stream_options"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":"Invalid key: Expected never but received \"stream_options\""}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"detail":"Validation: Unsupported parameter(s): `stream_options`"}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":{"message":"body.stream_options: property 'body.stream_options' is unsupported"}}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"Response":{"Error":{"Code":"UnknownParameter","Message":"The parameter `stream_options` is not recognized."}}}"#,
            OPTIONS,
        ),
        (
            400,
            r#"{"error":{"message":"litellm.UnsupportedParamsError: groq does not support parameters: ['stream_options'], for model=x"}}"#,
            OPTIONS,
        ),
        // A member of a parameter's own object: the parameter is left out.
        (
            400,
            r#"{"error":{"message":"Unknown name \"include_usage\" at 'stream_options': Cannot find field."}}"#,
            OPTIONS,
        ),
    ]);
}

#[test]
fn a_field_of_a_tool_or_a_message_that_history_does_not_carry_is_no_parameter() {
    check(&[
        (
            400,
            r#"{"error":{"message":"Invalid JSON payload received. Unknown name \"additionalProperties\" at 'tools[0].function_declarations[34].parameters.properties[6].value': Cannot find field."}}"#,
            None,
        ),
        (
            400,
            r#"{"error":{"message":"Unknown name \"role\" at 'contents[0].parts': Cannot find field."}}"#,
            None,
        ),
        (
            400,
            r#"{"error":"messages[0]: unknown field `name`, expected one of `role`, `content` at line 1 column 9"}"#,
            None,
        ),
        (
            400,
            r##"{"message":"#/tools/0/function: extraneous key [strict] is not permitted"}"##,
            None,
        ),
        (
            400,
            r#"{"error":{"message":"Additional properties are not allowed ('strict' was unexpected) - 'tools.0.function'"}}"#,
            None,
        ),
        (
            400,
            r#"{"message":["messages.0.property name should not exist"]}"#,
            None,
        ),
        (
            400,
            r#"{"error":{"issues":[{"code":"unrecognized_keys","keys":["name"],"path":["messages",1],"message":"m"}]}}"#,
            None,
        ),
        (
            400,
            r#"{"error":"messages -> 1 -> user -> name: Extra inputs are not permitted"}"#,
            None,
        ),
        // Prose.
        (400, r#"{"error":"unknown field in the request"}"#, None),
        (400, r#"{"error":"an unexpected property was found"}"#, None),
        (
            400,
            r#"{"error":"the property of the tool must be an object"}"#,
            None,
        ),
        (
            400,
            r#"{"error":"The parameter `temperature` must be between 0 and 2"}"#,
            None,
        ),
        (400, r#"{"error":"Additional properties are good to have"}"#, None),
    ]);
}
