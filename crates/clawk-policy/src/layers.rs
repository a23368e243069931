//! All layers that a manifest puts on one call, in the kernel's order (R12): autonomy, the rules, each policy that is named
//! besides. The kernel adds what only a running agent has: skills' ceilings and people's standing grants.

use std::fmt;

use clawk_manifest::model::Autonomy;
use serde_json::Value;

use crate::engine::{Engine, Subject};
use crate::explain::{Explanation, Step};
use crate::verdict::{Verdict, autonomy};

/// The layers that narrow a call besides the rules.
#[derive(Debug, Clone, Copy)]
pub struct Layers<'a> {
    /// The identity's autonomy.
    pub autonomy: Autonomy,
    /// The tool's `policy_ref`, `context.policy`: each narrows further (R15). A name that no policy has denies.
    pub named: &'a [&'a str],
}

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer<'a> {
    /// The identity's autonomy (R13).
    Autonomy(Autonomy),
    /// All policies' rules.
    Rules,
    /// One policy alone.
    Named(&'a str),
}

/// A layer's own answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said<'a> {
    /// Which.
    pub layer: Layer<'a>,
    /// What it says by itself.
    pub verdict: Verdict,
    /// The rules that it looked at, in order; none for the autonomy.
    pub steps: Vec<Step<'a>>,
}

/// A decision with what every layer said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account<'a> {
    /// The same as [`Layers::decide`] gives.
    pub verdict: Verdict,
    /// In order.
    pub layers: Vec<Said<'a>>,
    /// Index of the layer whose word holds.
    pub deciding: usize,
}

impl Account<'_> {
    /// The layer whose word holds.
    #[must_use]
    pub fn decided(&self) -> Option<&Said<'_>> {
        self.layers.get(self.deciding)
    }
}

impl fmt::Display for Layer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Autonomy(level) => write!(f, "autonomy `{level}`"),
            Self::Rules => f.write_str("rules"),
            Self::Named(policy) => write!(f, "policy_ref `{policy}`"),
        }
    }
}

impl Layers<'_> {
    /// Every layer's own word, in order. The kernel decides by these.
    pub fn words<'s>(
        &'s self,
        engine: &'s Engine,
        subject: &'s Subject<'s>,
    ) -> impl Iterator<Item = (Layer<'s>, Verdict)> {
        let own = || {
            (
                Layer::Autonomy(self.autonomy),
                autonomy(self.autonomy, read_only(subject)),
            )
        };
        let rules = || (Layer::Rules, engine.decide(subject));
        let named = self.named.iter().map(|name| {
            let further = engine.decide_named(name, subject);
            (Layer::Named(name), further.unwrap_or_else(|| unknown(name)))
        });
        std::iter::once_with(own)
            .chain(std::iter::once_with(rules))
            .chain(named)
    }

    /// The strictest of all layers.
    #[must_use]
    pub fn decide(&self, engine: &Engine, subject: &Subject<'_>) -> Verdict {
        let words = self.words(engine, subject).map(|(_, verdict)| verdict);
        words.reduce(Verdict::stricter).unwrap_or_else(Verdict::allow)
    }

    /// The same decision with everything that led to it; for people, not for the path.
    #[must_use]
    pub fn explain<'e>(&'e self, engine: &'e Engine, subject: &Subject<'_>) -> Account<'e> {
        let by_rules = |layer, Explanation { verdict, steps }| Said {
            layer,
            verdict,
            steps,
        };
        let mut layers = vec![
            Said {
                layer: Layer::Autonomy(self.autonomy),
                verdict: autonomy(self.autonomy, read_only(subject)),
                steps: Vec::new(),
            },
            by_rules(Layer::Rules, engine.explain(subject)),
        ];
        layers.extend(self.named.iter().map(|name| {
            let explained = engine.explain_named(name, subject);
            by_rules(
                Layer::Named(name),
                explained.unwrap_or_else(|| Explanation {
                    verdict: unknown(name),
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
        Account {
            verdict,
            layers,
            deciding,
        }
    }
}

/// Without side effects (R13): the annotations that count say so.
fn read_only(subject: &Subject<'_>) -> bool {
    subject.annotations.get("readOnlyHint").and_then(Value::as_bool) == Some(true)
}

fn unknown(policy: &str) -> Verdict {
    Verdict::deny(format!("no policy `{policy}`"))
}
