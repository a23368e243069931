//! Shared by all dialects that write requests: changes that a refusal asked for (R53), effort, the cache key.

use clawk_core::ports::{InferRequest, ModelMessage, ReasoningEffort, RequestAdaptation};
use serde_json::Value;

use crate::call_ids::IdRule;
use crate::state::StateOwner;

/// The request of one attempt, and the server, model and adaptations that it is written for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) request: &'a InferRequest,
    pub(crate) owner: StateOwner<'a>,
    pub(crate) streaming: bool,
}

impl RequestContext<'_> {
    /// Returns whether a refusal asked to omit this member or parameter.
    pub(crate) fn omits_member(&self, name: &str) -> bool {
        self.request.adaptation.omitted.contains(name)
    }

    /// Returns the part of the system prompt that stays the same from turn to turn. If there is no user message for the changing
    /// part, it is included.
    pub(crate) fn stable_system(&self) -> &str {
        match self.split_system() {
            Some((stable, _)) => stable,
            None => &self.request.system,
        }
    }

    /// Returns the part of the system prompt that changes from turn to turn.
    pub(crate) fn volatile_text(&self) -> Option<&str> {
        self.split_system().map(|(_, volatile)| volatile)
    }

    fn split_system(&self) -> Option<(&str, &str)> {
        let volatile = self.request.volatile.as_str();
        let has_words = self
            .request
            .messages
            .iter()
            .any(|message| matches!(message, ModelMessage::User { .. }));
        let stable = self.request.system.strip_suffix(volatile)?;
        (has_words && !volatile.is_empty()).then_some((stable.trim_end(), volatile))
    }

    /// Returns whether the server is Mistral's own. It has the strictest rules, and none of its refusals names all of them.
    pub(crate) fn is_mistral(&self) -> bool {
        has_domain(self.owner.host, "mistral.ai")
    }

    /// Returns whether the server is OpenAI's or Azure's.
    pub(crate) fn is_openai(&self) -> bool {
        const DOMAINS: [&str; 2] = ["openai.com", "openai.azure.com"];
        DOMAINS.iter().any(|domain| has_domain(self.owner.host, domain))
    }

    /// Returns whether the model refuses calls without `reasoning_content`, even calls of another model.
    pub(crate) fn wants_reasoning(&self) -> bool {
        const DOMAINS: [&str; 3] = ["deepseek.com", "moonshot.ai", "moonshot.cn"];
        DOMAINS.iter().any(|domain| has_domain(self.owner.host, domain))
            || ["deepseek", "kimi"]
                .iter()
                .any(|name| own_name(self.owner.model).starts_with(name))
    }

    /// Returns whether the model refuses calls without a thought signature, even calls of another model.
    pub(crate) fn wants_signatures(&self) -> bool {
        has_domain(self.owner.host, "googleapis.com") || self.owner.model.starts_with("gemini-")
    }

    /// Returns the format of call ids; `usual` is the dialect's default.
    pub(crate) fn id_rule(&self, usual: IdRule) -> IdRule {
        match self.request.adaptation.short_call_ids || self.is_mistral() {
            true => IdRule::Short,
            false => usual,
        }
    }

    /// Returns whether roles must strictly alternate.
    pub(crate) fn requires_alternation(&self) -> bool {
        self.request.adaptation.alternate_roles || self.is_mistral()
    }

    /// Returns the cache key, if the server is known to accept one.
    pub(crate) fn chat_cache_key(&self) -> Option<&str> {
        const TAKES_KEY: [&str; 4] = ["openai.com", "openai.azure.com", "moonshot.ai", "moonshot.cn"];
        let takes = TAKES_KEY.iter().any(|domain| has_domain(self.owner.host, domain));
        self.request.cache_key.as_deref().filter(|_| takes)
    }
}

/// Returns the model's name in lower case, without the prefixes of services that forward requests.
fn own_name(model: &str) -> String {
    let name = model.rsplit('/').next().unwrap_or(model);
    name.to_ascii_lowercase()
}

/// Returns whether the host is this domain or one of its subdomains.
pub(crate) fn has_domain(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Sets a member of an object.
pub(crate) fn set_member(body: &mut Value, name: &str, value: Value) {
    if let Some(object) = body.as_object_mut() {
        object.insert(name.to_owned(), value);
    }
}

/// Omits and renames the parameters that refusals named. A name may be a path with dots.
pub(crate) fn adapt_body(body: &mut Value, adaptation: &RequestAdaptation) {
    for name in &adaptation.omitted {
        let (path, last) = name.rsplit_once('.').unwrap_or(("", name));
        let place = path
            .split('.')
            .filter(|step| !step.is_empty())
            .try_fold(&mut *body, |place, step| place.get_mut(step));
        if let Some(place) = place.and_then(Value::as_object_mut) {
            place.remove(last);
        }
    }
    let Some(object) = body.as_object_mut() else {
        return;
    };
    for (from, to) in &adaptation.renamed {
        if let Some(value) = object.remove(from) {
            object.insert(to.clone(), value);
        }
    }
}

/// Returns the effort in the spelling of OpenAI's dialects.
pub(crate) fn effort_word(effort: ReasoningEffort, host: &str) -> &'static str {
    match effort {
        ReasoningEffort::None => "none",
        ReasoningEffort::Minimal => "minimal",
        ReasoningEffort::Low => "low",
        ReasoningEffort::Medium => "medium",
        ReasoningEffort::High => "high",
        ReasoningEffort::Max if has_domain(host, "openai.com") || has_domain(host, "azure.com") => "xhigh",
        ReasoningEffort::Max if has_domain(host, "deepseek.com") => "max",
        ReasoningEffort::Max => "high",
    }
}

/// Returns whether the model's name says that its answers begin inside a thought opened by the server's template.
pub(crate) fn opens_thought(model: &str) -> bool {
    const NAMES: [&str; 7] = [
        "thinking",
        "-r1",
        "deepseek-r1",
        "qwq",
        "reasoner",
        "reasoning",
        "magistral",
    ];
    let model = model.to_ascii_lowercase();
    NAMES.iter().any(|name| model.contains(name))
}

/// Returns whether the model's name says that it wants its written thoughts back inside the text.
pub(crate) fn wants_written_thoughts(model: &str) -> bool {
    model.to_ascii_lowercase().contains("minimax")
}

#[cfg(test)]
mod tests {
    use super::{adapt_body, has_domain};
    use clawk_core::ports::RequestAdaptation;
    use serde_json::json;

    #[test]
    fn a_request_is_changed_as_refusals_asked() {
        let mut body = json!({ "max_tokens": 5, "stream": true, "stream_options": { "include_usage": true }, "output_config": { "effort": "low", "x": 1 } });
        let adaptation = RequestAdaptation {
            omitted: [
                "stream_options",
                "output_config.effort",
                "not.there",
                "temperature",
            ]
            .map(str::to_owned)
            .into(),
            renamed: [("max_tokens".to_owned(), "max_completion_tokens".to_owned())].into(),
            ..RequestAdaptation::default()
        };
        adapt_body(&mut body, &adaptation);
        assert_eq!(
            body,
            json!({ "max_completion_tokens": 5, "stream": true, "output_config": { "x": 1 } })
        );
    }

    #[test]
    fn a_host_is_below_its_domain_only() {
        assert!(has_domain("api.mistral.ai", "mistral.ai") && has_domain("mistral.ai", "mistral.ai"));
        assert!(
            !has_domain("notmistral.ai", "mistral.ai") && !has_domain("mistral.ai.evil.com", "mistral.ai")
        );
    }
}
