//! What every start asks for is found without looking at every event.

use clawk_kernel::kind;
use clawk_kernel::ports::JournalScan;
use clawk_kernel::replay::ReplayTape;

use super::{StateDirReader, select};
use crate::{Options, StateDir};

fn plan(reader: &StateDirReader, scan: &JournalScan) -> String {
    let sql = format!("EXPLAIN QUERY PLAN {}", select(scan));
    let mut select = reader.connection.prepare(&sql).unwrap();
    let mut rows = select.raw_query();
    let mut plan = String::new();
    while let Some(row) = rows.next().unwrap() {
        plan.push_str(&row.get::<_, String>(3).unwrap());
        plan.push('\n');
    }
    plan
}

#[test]
fn every_index_over_some_event_types_serves_its_queries_and_is_cheap_to_keep() {
    let folder = tempfile::tempdir().unwrap();
    StateDir::open(folder.path(), Options::default()).unwrap().close();
    let reader = StateDirReader::open(folder.path()).unwrap();
    for (kinds, index) in [
        (&[kind::LIFECYCLE][..], "events_rare "),
        (&[kind::STOP_ENGAGED, kind::STOP_LIFTED], "events_governed "),
        (&ReplayTape::CHANGES, "events_atlas "),
    ] {
        let scan = JournalScan {
            kinds,
            ..JournalScan::default()
        };
        let plan = plan(&reader, &scan);
        assert!(
            plan.contains(&format!("SEARCH e USING INDEX {index}")),
            "{kinds:?}: {plan}"
        );
    }
    // An insertion makes no table of its own: that would be the greater part of its cost.
    let insert = "EXPLAIN INSERT INTO events (session, sequence, at, kind, event_id, span, payload, hash) \
                  VALUES (1, 0, 0, 'x', x'', x'', '{}', x'')";
    let mut statement = reader.connection.prepare(insert).unwrap();
    let mut rows = statement.raw_query();
    let mut opcodes: Vec<String> = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        opcodes.push(row.get(1).unwrap());
    }
    assert!(opcodes.iter().any(|code| code == "IdxInsert"), "{opcodes:?}");
    assert!(!opcodes.iter().any(|code| code == "OpenEphemeral"), "{opcodes:?}");
}

#[test]
fn what_a_start_folds_is_read_in_the_order_of_an_index() {
    let folder = tempfile::tempdir().unwrap();
    StateDir::open(folder.path(), Options::default()).unwrap().close();
    let reader = StateDirReader::open(folder.path()).unwrap();
    for (kinds, index) in [
        (
            &[
                kind::CARP_SESSION,
                kind::CARP_ISSUED,
                kind::CARP_CHARGED,
                kind::ATLAS_LOADED,
                kind::ATLAS_REMOVED,
                kind::SESSION_ENDED,
            ][..],
            "events_carp",
        ),
        (&ReplayTape::BESIDE, "events_carp"),
        (
            &[kind::SWARM_DELEGATED, kind::SWARM_REPORTED, kind::SWARM_BROADCAST],
            "events_peers",
        ),
    ] {
        let scan = JournalScan {
            kinds,
            limit: 1_000,
            with_content: true,
            ..JournalScan::default()
        };
        let plan = plan(&reader, &scan);
        assert!(
            plan.contains(&format!("SEARCH e USING INDEX {index} (row>?)")),
            "{plan}"
        );
        assert!(
            !plan.contains("TEMP B-TREE"),
            "a page costs a page, whatever lies behind it: {plan}"
        );
    }
}
