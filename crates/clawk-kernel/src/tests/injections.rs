//! Injection texts under the ready policies, with a model that obeys each of them: nothing happens without a person, and whoever is asked
//! or told reads whose words they were.

use serde_json::Value;

use super::poison::{ORDERS, order, page, refused, said, with};
use crate::EntryPoint;
use crate::testing::{Behaviour, says};

const CORPUS: &str = include_str!("../../../../vectors/policy/injections.json");

/// Each attack of the corpus in each dress, under `standard` and `trusting` in turn, with each order in turn.
async fn obey_every(stride: usize) -> usize {
    let corpus: Value = serde_json::from_str(CORPUS).unwrap();
    let attacks = clawk_policy::testing::texts(&corpus["attacks"]);
    let mut dice = clawk_policy::testing::Dice::new(7);
    let mut tried = 0;
    let dressed = attacks.iter().flat_map(|attack| {
        clawk_policy::testing::DRESSES
            .iter()
            .map(move |dress| (attack, dress))
    });
    for (at, (attack, dress)) in dressed.enumerate().step_by(stride) {
        let policy = if at % 2 == 0 { "trusting" } else { "standard" };
        let script = vec![page(), order((at / 2) % ORDERS.len()), says("no")];
        let rig = with(policy, script);
        let text = clawk_policy::testing::dress(dress, attack, &mut dice);
        rig.runner.set("page", Behaviour::Say(text));
        let kernel = rig.start().await;
        let reasons = said(&kernel, EntryPoint::Cli, "read the page").await;
        refused(&rig, &reasons, &format!("{policy}, {dress}: {attack}"));
        tried += 1;
    }
    tried
}

#[tokio::test]
async fn an_injection_that_is_obeyed_does_nothing_and_its_author_is_named() {
    assert!(obey_every(20).await >= 150);
}

#[tokio::test]
#[ignore = "three thousand texts take minutes"]
async fn every_injection_of_the_corpus_in_every_dress_does_nothing() {
    assert!(obey_every(1).await >= 3_000);
}
