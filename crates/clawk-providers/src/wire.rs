//! What the dialects share in writing a request: changes that a refusal asked for (R53), effort, the cache key.

use clawk_core::ports::{InferRequest, ModelMessage, ReasoningEffort, RequestAdaptation};
use serde_json::Value;

use crate::call_ids::IdRule;
use crate::state::StateOwner;

/// One attempt's request, and who is asked in which way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) request: &'a InferRequest,
    pub(crate) owner: StateOwner<'a>,
    pub(crate) streaming: bool,
}

impl RequestContext<'_> {
    /// The member or parameter is left out.
    pub(crate) fn omits(&self, name: &str) -> bool {
        self.request.adaptation.omitted.contains(name)
    }

    /// The system prompt without what changes from turn to turn; that, too, where there are no words of a user to put it beside.
    pub(crate) fn stable_system(&self) -> &str {
        match self.split_system() {
            Some((stable, _)) => stable,
            None => &self.request.system,
        }
    }

    /// What changes from turn to turn.
    pub(crate) fn volatile(&self) -> Option<&str> {
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

    /// Mistral's own service has the strictest rules, and says so in no refusal that names them all.
    pub(crate) fn is_mistral(&self) -> bool {
        has_domain(self.owner.host, "mistral.ai")
    }

    /// OpenAI's own service, or Azure's.
    pub(crate) fn is_openai(&self) -> bool {
        const DOMAINS: [&str; 2] = ["openai.com", "openai.azure.com"];
        DOMAINS.iter().any(|domain| has_domain(self.owner.host, domain))
    }

    /// The model refuses calls without `reasoning_content`, also those of another model.
    pub(crate) fn wants_reasoning(&self) -> bool {
        const DOMAINS: [&str; 3] = ["deepseek.com", "moonshot.ai", "moonshot.cn"];
        DOMAINS.iter().any(|domain| has_domain(self.owner.host, domain))
            || ["deepseek", "kimi"]
                .iter()
                .any(|name| own_name(self.owner.model).starts_with(name))
    }

    /// The model refuses calls without a thought signature, also those of another model.
    pub(crate) fn wants_signatures(&self) -> bool {
        has_domain(self.owner.host, "googleapis.com") || self.owner.model.starts_with("gemini-")
    }

    /// How ids of calls are written, where the dialect usually writes them like `usual`.
    pub(crate) fn id_rule(&self, usual: IdRule) -> IdRule {
        match self.request.adaptation.short_call_ids || self.is_mistral() {
            true => IdRule::Short,
            false => usual,
        }
    }

    /// Roles strictly in turn.
    pub(crate) fn alternates(&self) -> bool {
        self.request.adaptation.alternate_roles || self.is_mistral()
    }

    /// The cache key, for servers known to take one.
    pub(crate) fn chat_cache_key(&self) -> Option<&str> {
        const TAKES_KEY: [&str; 4] = ["openai.com", "openai.azure.com", "moonshot.ai", "moonshot.cn"];
        let takes = TAKES_KEY.iter().any(|domain| has_domain(self.owner.host, domain));
        self.request.cache_key.as_deref().filter(|_| takes)
    }
}

/// A model's name without those of the services that pass it on, in lower case.
fn own_name(model: &str) -> String {
    let name = model.rsplit('/').next().unwrap_or(model);
    name.to_ascii_lowercase()
}

/// Whether the host is this domain or below it.
pub(crate) fn has_domain(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain)
        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Adds a member to an object.
pub(crate) fn set(body: &mut Value, name: &str, value: Value) {
    if let Some(object) = body.as_object_mut() {
        object.insert(name.to_owned(), value);
    }
}

/// Leaves out and renames what refusals named. A name may be a path with dots.
pub(crate) fn adapt(body: &mut Value, adaptation: &RequestAdaptation) {
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

/// The effort as OpenAI's dialects write it.
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

/// The model's answers begin inside of a thought that the server's template has opened, by its name.
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

/// The model wants the thoughts that it wrote into its text back in the text, by its name.
pub(crate) fn wants_written_thoughts(model: &str) -> bool {
    model.to_ascii_lowercase().contains("minimax")
}

#[cfg(test)]
mod tests {
    use super::{adapt, has_domain};
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
        adapt(&mut body, &adaptation);
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
