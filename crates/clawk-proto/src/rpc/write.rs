//! Writes outbound frames, each as a whole, to a buffer.

use serde::Serialize;

use super::RpcId;
use crate::error::{ErrorCode, RpcError};

const HEAD: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":";

/// Appends the response frame that answers `id` with `result`, without a newline.
pub fn write_result<T: Serialize + ?Sized>(out: &mut Vec<u8>, id: &RpcId<'_>, result: &T) {
    let start = out.len();
    out.extend_from_slice(HEAD);
    out.extend_from_slice(id.as_json().as_bytes());
    out.extend_from_slice(b",\"result\":");
    match serde_json::to_writer(&mut *out, result) {
        Ok(()) => out.push(b'}'),
        Err(e) => {
            out.truncate(start);
            write_error(
                out,
                id,
                &RpcError::new(ErrorCode::Internal, format!("the result is not valid JSON: {e}")),
            );
        }
    }
}

/// Appends the response frame that answers `id` with `error`, without a newline.
pub fn write_error(out: &mut Vec<u8>, id: &RpcId<'_>, error: &RpcError) {
    out.extend_from_slice(HEAD);
    out.extend_from_slice(id.as_json().as_bytes());
    out.extend_from_slice(b",\"error\":");
    let start = out.len();
    if serde_json::to_writer(&mut *out, error).is_err() {
        // Impossible: a number, a string and a `Value` can always be serialised into memory.
        out.truncate(start);
        out.extend_from_slice(b"{\"code\":-32603,\"message\":\"the error is not valid JSON\"}");
    }
    out.push(b'}');
}

/// Appends a notification frame, without a newline. Returns `false` and appends nothing if `params` can't be serialised.
pub fn write_notification<P: Serialize + ?Sized>(out: &mut Vec<u8>, method: &str, params: &P) -> bool {
    #[derive(Serialize)]
    struct Notification<'a, P: Serialize + ?Sized> {
        jsonrpc: &'static str,
        method: &'a str,
        params: &'a P,
    }
    let start = out.len();
    let written = serde_json::to_writer(
        &mut *out,
        &Notification {
            jsonrpc: "2.0",
            method,
            params,
        },
    )
    .is_ok();
    if !written {
        out.truncate(start);
    }
    written
}
