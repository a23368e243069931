//! Every table crosses; one that is forgotten here would be lost in silence.

use clawk_kernel::moved::TABLES;

use super::OWN;
use crate::dir::WriteDurability;
use crate::schema;

/// Tables that do not cross, and why: words and buckets are made anew, `probe` measures the disk, unfinished erasures are finished
/// before, a cache is filled again, and the references of keys cross beside the tables.
const STAYS: [&str; 6] = [
    "answer_buckets",
    "memory_words",
    "probe",
    "erasing",
    "embeddings",
    "seals",
];

#[test]
fn every_table_of_a_state_crosses_or_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.db");
    let connection = schema::open_writer(&path, WriteDurability::Relaxed).unwrap();
    let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE 'memory_words_%'";
    let mut select = connection.prepare(sql).unwrap();
    let names = select.query_map([], |row| row.get::<_, String>(0)).unwrap();
    for name in names {
        let name = name.unwrap();
        let crosses = TABLES.iter().any(|table| table.name == name);
        assert!(crosses != STAYS.contains(&name.as_str()), "{name}");
    }
    for table in &TABLES {
        if table.name == super::CONTENTS {
            continue;
        }
        assert!(
            connection.prepare(&super::select_statement(table)).is_ok(),
            "{}",
            super::select_statement(table)
        );
    }
    assert!(OWN.contains(&"state.db"));
}
