use std::fs;
use std::path::Path;

use super::{hosts, only, swarm};
use crate::run;

fn words(of: &[&str]) -> Vec<String> {
    of.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn a_misspelt_word_starts_nothing() {
    let known = ["--seeds", "--hours"];
    assert!(only(&words(&["--hours", "0.5"]), &known).is_ok());
    for wrong in [&["--hour", "1"][..], &["1"], &["--seeds", "1", "more"]] {
        assert!(only(&words(wrong), &known).is_err(), "{wrong:?}");
    }
}

fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            all.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

/// `cargo test NAME --exact` with a name that is gone runs nothing, and succeeds.
#[test]
fn the_tests_that_a_soak_names_are_there() {
    let mut all = String::new();
    sources(&run::root().join("crates/clawk/tests/it"), &mut all);
    let names = swarm::TESTS.iter().map(|(_, name)| *name).chain([hosts::TEST]);
    for name in names {
        let function = name.rsplit("::").next().unwrap();
        assert!(all.contains(&format!("fn {function}()")), "{name}");
    }
}
