use super::{ModelCatalogue, SHIPPED};
use crate::ports::ReasoningEffort;
use crate::time::Timestamp;

fn shipped() -> ModelCatalogue {
    ModelCatalogue::parse(SHIPPED).unwrap()
}

#[test]
fn the_shipped_catalogue_reads_and_every_row_says_where_it_is_from() {
    let catalogue = shipped();
    assert!(catalogue.models().len() > 60 && !catalogue.date().is_empty());
    for (name, facts) in catalogue.models() {
        assert!(!facts.source.is_empty() && facts.date.len() == 10, "{name}");
        if let Some(successor) = &facts.successor {
            let next = catalogue
                .find_facts(successor)
                .unwrap_or_else(|| panic!("{name}: {successor}"));
            assert!(next.shutdown.is_none(), "{name}: its successor is shut down, too");
        }
    }
}

#[test]
fn no_alias_leads_to_a_model_with_a_known_shutdown() {
    let catalogue = shipped();
    for (alias, model) in &catalogue.aliases {
        assert!(catalogue.find_facts(model).unwrap().shutdown.is_none(), "{alias}");
    }
    for alias in [
        "openai:small",
        "openai:medium",
        "anthropic:medium",
        "google:medium",
    ] {
        assert_ne!(catalogue.resolve_alias(alias), alias);
    }
}

#[test]
fn models_are_found_by_their_names_and_versions_and_no_other() {
    let catalogue = shipped();
    for known in [
        "gpt-5.6-terra",
        "openai/gpt-5.6-luna",
        "gpt-4o-mini-2024-07-18",
        "claude-sonnet-5",
        "anthropic/claude-opus-5.5",
        "claude-3-5-haiku-latest",
        "models/gemini-2.5-pro",
        "llama3.2:3b",
        "openai:small",
    ] {
        assert!(catalogue.find_facts(known).is_some(), "{known}");
    }
    for other in [
        "gpt-5.9",
        "gpt-5-ultra",
        "claude-opus-9",
        "o30",
        "llama3.2-mine",
        "house",
        "openai:none",
    ] {
        assert!(catalogue.find_facts(other).is_none(), "{other}");
    }
}

#[test]
fn a_shutdown_is_told_sixty_days_before_and_names_the_successor() {
    let catalogue = shipped();
    let at = |day: &str| Timestamp::parse(&format!("{day}T12:00:00Z")).unwrap();
    let warning = |day| catalogue.shutdown_warning("gpt-5-mini", at(day));
    assert_eq!(warning("2026-10-01"), None);
    let soon = warning("2026-11-27").unwrap();
    assert!(
        soon.contains("is shut down on 2026-12-11") && soon.contains("gpt-5.6-luna"),
        "{soon}"
    );
    assert!(warning("2027-01-01").unwrap().contains("was shut down"));
    assert_eq!(catalogue.shutdown_warning("gpt-5.6-luna", at("2026-11-27")), None);
}

#[test]
fn an_effort_that_a_model_does_not_have_is_refused() {
    let catalogue = shipped();
    assert_eq!(
        catalogue.effort_fault("gpt-5.6-terra", ReasoningEffort::High),
        None
    );
    assert_eq!(
        catalogue.effort_fault("unknown-model", ReasoningEffort::Max),
        None
    );
    let fault = catalogue
        .effort_fault("gpt-5.6-terra", ReasoningEffort::Minimal)
        .unwrap();
    assert!(fault.contains("`medium`"), "{fault}");
    assert!(
        catalogue
            .effort_fault("gpt-4o", ReasoningEffort::Low)
            .unwrap()
            .contains("no levels")
    );
}

#[test]
fn a_catalogue_that_cannot_be_meant_is_refused_with_its_place() {
    for (text, words) in [
        (
            "[models.m]\nsource = \"x\"\ndate = \"2026-11-27\"\nshutdown = \"soon\"",
            "shutdown",
        ),
        (
            "[models.m]\nsource = \"x\"\ndate = \"2026-11-27\"\nwindow_tokens = 0",
            "window_tokens",
        ),
        (
            "[models.m]\nsource = \"x\"\ndate = \"2026-11-27\"\nwindows = 5",
            "windows",
        ),
        ("[aliases]\na = \"m\"", "`a`"),
        ("not toml", "expected"),
    ] {
        let error = ModelCatalogue::parse(text).unwrap_err().to_string();
        assert!(
            error.contains(words) || words == "`a`" && error.contains("aliases.\"a\""),
            "{error}"
        );
    }
}
