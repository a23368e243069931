//! Lark's reactions: put by an emoji's name, removed by the id of the reaction.

use http::Method;
use serde_json::{Value, json};

use super::{LarkAdapter, error_code, error_text};
use crate::api::{PlatformFailure, PlatformResponse};
use crate::platform_kit::escaped;

/// Lark names its emoji by words. The vendor's pages that we have show no name for 👀; this one says "on it".
const ON_IT: &str = "OnIt";

fn at(id: &str) -> String {
    format!("open-apis/im/v1/messages/{}/reactions", escaped(id))
}

async fn asked(
    lark: &LarkAdapter,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<PlatformResponse, String> {
    let answer = lark
        .call(method, path, body)
        .await
        .map_err(PlatformFailure::reason)?;
    if error_code(&answer) == 0 {
        Ok(answer)
    } else {
        Err(error_text(&answer))
    }
}

/// The id of the reaction.
pub(super) async fn put(lark: &LarkAdapter, id: &str) -> Result<Option<String>, String> {
    let body = json!({"reaction_type": {"emoji_type": ON_IT}});
    let answer = asked(lark, Method::POST, &at(id), Some(&body)).await?;
    Ok(answer.text("/data/reaction_id").map(str::to_owned))
}

/// Without its id, it is looked for among those on the message: an app removes only its own.
pub(super) async fn remove(lark: &LarkAdapter, id: &str, mark: Option<&str>) -> Result<(), String> {
    let mark = match mark {
        Some(mark) => Some(mark.to_owned()),
        None => {
            let path = format!("{}?reaction_type={ON_IT}&page_size=50", at(id));
            let answer = asked(lark, Method::GET, &path, None).await?;
            let items = answer.body.pointer("/data/items").and_then(Value::as_array);
            let of_app = |item: &&Value| {
                item.pointer("/operator/operator_type").and_then(Value::as_str) == Some("app")
                    && item.pointer("/operator/operator_id").and_then(Value::as_str) == Some(lark.app_id())
            };
            let own = items.into_iter().flatten().find(of_app);
            own.and_then(|item| item.get("reaction_id")?.as_str())
                .map(str::to_owned)
        }
    };
    let Some(mark) = mark else { return Ok(()) };
    let path = format!("{}/{}", at(id), escaped(&mark));
    asked(lark, Method::DELETE, &path, None).await.map(|_answer| ())
}
