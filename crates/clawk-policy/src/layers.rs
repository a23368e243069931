//! All layers that decide a call, in the kernel's order (R12): autonomy, the rules, and each policy named in addition. The kernel
//! adds layers of a running agent: ceilings of skills and standing grants.

use std::fmt;

use clawk_manifest::model::AutonomyLevel;
use serde_json::Value;

use crate::engine::{Engine, PolicySubject};
use crate::explain::{DecisionExplanation, ExplanationStep};
use crate::verdict::{Verdict, autonomy_verdict};

/// The layers that narrow a call in addition to the rules.
#[derive(Debug, Clone, Copy)]
pub struct PolicyLayers<'a> {
    /// The identity's autonomy.
    pub autonomy: AutonomyLevel,
    /// The tool's `policy_ref` and `context.policy`; each narrows further (R15). The name of a missing policy denies.
    pub named: &'a [&'a str],
}

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyLayer<'a> {
    /// The identity's autonomy (R13).
    Autonomy(AutonomyLevel),
    /// All policies' rules.
    Rules,
    /// One policy alone.
    Named(&'a str),
}

/// The verdict of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerAnswer<'a> {
    /// The layer.
    pub layer: PolicyLayer<'a>,
    /// Its own verdict.
    pub verdict: Verdict,
    /// The rules that it checked, in order; empty for the autonomy.
    pub steps: Vec<ExplanationStep<'a>>,
}

/// A decision with the verdict of every layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayeredDecision<'a> {
    /// The verdict of [`PolicyLayers::decide`].
    pub verdict: Verdict,
    /// The layers, in order.
    pub layers: Vec<LayerAnswer<'a>>,
    /// The index of the layer that decided.
    pub deciding: usize,
}

impl LayeredDecision<'_> {
    /// The layer that decided.
    #[must_use]
    pub fn deciding_layer(&self) -> Option<&LayerAnswer<'_>> {
        self.layers.get(self.deciding)
    }
}

impl fmt::Display for PolicyLayer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Autonomy(level) => write!(f, "autonomy `{level}`"),
            Self::Rules => f.write_str("rules"),
            Self::Named(policy) => write!(f, "policy_ref `{policy}`"),
        }
    }
}

impl PolicyLayers<'_> {
    /// Every layer's own verdict, in order. The kernel decides by these.
    pub fn layer_verdicts<'s>(
        &'s self,
        engine: &'s Engine,
        subject: &'s PolicySubject<'s>,
    ) -> impl Iterator<Item = (PolicyLayer<'s>, Verdict)> {
        let own = || {
            (
                PolicyLayer::Autonomy(self.autonomy),
                autonomy_verdict(self.autonomy, read_only(subject)),
            )
        };
        let rules = || (PolicyLayer::Rules, engine.decide(subject));
        let named = self.named.iter().map(|name| {
            let further = engine.decide_named(name, subject);
            (
                PolicyLayer::Named(name),
                further.unwrap_or_else(|| unknown_policy_verdict(name)),
            )
        });
        std::iter::once_with(own)
            .chain(std::iter::once_with(rules))
            .chain(named)
    }

    /// The strictest verdict of all layers.
    #[must_use]
    pub fn decide(&self, engine: &Engine, subject: &PolicySubject<'_>) -> Verdict {
        let words = self.layer_verdicts(engine, subject).map(|(_, verdict)| verdict);
        words.reduce(Verdict::stricter).unwrap_or_else(Verdict::allow)
    }

    /// The decision with an explanation for people. Slower than [`decide`](Self::decide).
    #[must_use]
    pub fn explain<'e>(&'e self, engine: &'e Engine, subject: &PolicySubject<'_>) -> LayeredDecision<'e> {
        let by_rules = |layer, DecisionExplanation { verdict, steps }| LayerAnswer {
            layer,
            verdict,
            steps,
        };
        let mut layers = vec![
            LayerAnswer {
                layer: PolicyLayer::Autonomy(self.autonomy),
                verdict: autonomy_verdict(self.autonomy, read_only(subject)),
                steps: Vec::new(),
            },
            by_rules(PolicyLayer::Rules, engine.explain(subject)),
        ];
        layers.extend(self.named.iter().map(|name| {
            let explained = engine.explain_named(name, subject);
            by_rules(
                PolicyLayer::Named(name),
                explained.unwrap_or_else(|| DecisionExplanation {
                    verdict: unknown_policy_verdict(name),
                    steps: Vec::new(),
                }),
            )
        }));
        let (mut verdict, mut deciding) = (Verdict::allow(), 0);
        for (at, said) in layers.iter().enumerate() {
            if at == 0 {
                verdict = said.verdict.clone();
                continue;
            }
            let before = verdict.clone();
            verdict = verdict.stricter(said.verdict.clone());
            let changed = (&before.effect, &before.rule_id, &before.reason)
                != (&verdict.effect, &verdict.rule_id, &verdict.reason);
            if changed {
                deciding = at;
            }
        }
        LayeredDecision {
            verdict,
            layers,
            deciding,
        }
    }
}

/// Whether the annotations in force say that the call has no side effects (R13).
fn read_only(subject: &PolicySubject<'_>) -> bool {
    subject.annotations.get("readOnlyHint").and_then(Value::as_bool) == Some(true)
}

fn unknown_policy_verdict(policy: &str) -> Verdict {
    Verdict::deny(format!("no policy `{policy}`"))
}
