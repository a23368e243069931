//! Long conversations with tools through strict stand-ins of models' vendors: each refuses what its vendor refuses, checks the
//! signatures that it handed over, and computes what its cache would have read.
//!
//! The long ones are run by hand: `cargo test -p clawk --test models -- --ignored --nocapture`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they fail, and they start the program under test"
)]

mod anthropic;
mod chat;
mod claw;
mod responses;
mod server;
mod soak;
mod story;

use claw::{Conversation, VENDORS, Vendor};

/// Turns of twenty steps: over a restart, a fallback in the middle, and a compaction.
fn twenty_steps(vendor: Vendor) {
    let at = VENDORS.iter().position(|known| *known == vendor).unwrap();
    let next = VENDORS[(at + 3) % VENDORS.len()];
    let vendors = [vendor, next];
    let mut conversation = Conversation::start(&vendors, 24_000);
    conversation.turn(20);
    conversation.restart();
    conversation.fault(vendor, 1, 7);
    conversation.fault(vendor, 1, 8);
    conversation.fault(vendor, 2, 12);
    for _ in 1..5 {
        conversation.turn(20);
    }
    conversation.check_exchanges(&vendors);
    conversation.check_cache(vendor);
    conversation.check_prompts();
    eprintln!("{}", conversation.summary(&vendors));
}

#[test]
fn turns_of_twenty_steps_with_openai() {
    twenty_steps(Vendor::OpenAi);
}

#[test]
fn turns_of_twenty_steps_with_azure() {
    twenty_steps(Vendor::Azure);
}

#[test]
fn turns_of_twenty_steps_with_gemini() {
    twenty_steps(Vendor::Gemini);
}

#[test]
fn turns_of_twenty_steps_with_deepseek() {
    twenty_steps(Vendor::DeepSeek);
}

#[test]
fn turns_of_twenty_steps_with_anthropic() {
    twenty_steps(Vendor::Anthropic);
}

#[test]
fn turns_of_twenty_steps_with_mistral() {
    twenty_steps(Vendor::Mistral);
}

#[test]
fn turns_of_twenty_steps_with_a_local_server() {
    twenty_steps(Vendor::Local);
}

/// Turns of a long conversation.
const LONG: u32 = 500;

/// Many turns, with fallbacks in the middle of every fifth, restarts and crashes between them.
fn many_turns(vendors: &[Vendor], turns: u32) {
    let mut conversation = Conversation::start(vendors, 24_000);
    for task in 0..turns {
        if task % 5 == 3 {
            conversation.fault(vendors[0], task, 1);
        }
        if task % 20 == 13 {
            conversation.fault(vendors[0], task, 2);
            conversation.fault(vendors[1], task, 2);
        }
        conversation.turn(1 + task % 4);
        match task % 50 {
            17 => conversation.restart(),
            31 => conversation.crash(),
            _ => {}
        }
    }
    conversation.check_exchanges(vendors);
    conversation.check_prompts();
    eprintln!("{}", conversation.summary(vendors));
}

#[test]
fn forty_turns_pass_between_vendors() {
    many_turns(&[Vendor::Anthropic, Vendor::Gemini, Vendor::OpenAi], 40);
}

#[test]
#[ignore = "takes minutes; run by hand"]
fn long_conversation_with_openai() {
    many_turns(&[Vendor::OpenAi, Vendor::Anthropic, Vendor::Gemini], LONG);
}

#[test]
#[ignore = "takes minutes; run by hand"]
fn long_conversation_with_anthropic() {
    many_turns(&[Vendor::Anthropic, Vendor::Gemini, Vendor::Mistral], LONG);
}

#[test]
#[ignore = "takes minutes; run by hand"]
fn long_conversation_with_gemini() {
    many_turns(&[Vendor::Gemini, Vendor::Mistral, Vendor::Local], LONG);
}

#[test]
#[ignore = "takes minutes; run by hand"]
fn long_conversation_with_mistral() {
    many_turns(&[Vendor::Mistral, Vendor::Local, Vendor::OpenAi], LONG);
}

#[test]
#[ignore = "takes minutes; run by hand"]
fn long_conversation_with_a_local_server() {
    many_turns(&[Vendor::Local, Vendor::OpenAi, Vendor::Anthropic], LONG);
}

#[test]
fn money_is_booked_whatever_shape_answers_have() {
    soak::soak(0x9e37_79b9_7f4a_7c15, 12);
}

#[test]
#[ignore = "takes minutes; run by hand"]
fn long_soak() {
    for seed in 1..=8 {
        soak::soak(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed), 60);
    }
}

#[test]
fn a_servers_models_are_listed_with_what_the_catalogue_knows() {
    let conversation = Conversation::start(&[Vendor::Local], 24_000);
    let listed = conversation.json(&["provider", "models", "local"]);
    let models = listed["providers"][0]["models"].as_array().unwrap();
    let model = |id: &str| {
        models
            .iter()
            .find(|model| model["id"] == id)
            .unwrap_or_else(|| panic!("{listed}"))
    };
    assert_eq!(model("qwen3-8b")["used"], true, "{listed}");
    assert_eq!(
        model("next")["window_tokens"],
        12345,
        "the server's own word: {listed}"
    );
    let old = model("gpt-5-mini");
    assert_eq!(
        (&old["shutdown"], &old["used"]),
        (&"2026-12-11".into(), &false.into()),
        "{listed}"
    );
    assert!(
        old["price"]["input"].is_u64() && old["successor"].is_string(),
        "{listed}"
    );
}
