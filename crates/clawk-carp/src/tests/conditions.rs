use serde_json::{Value, json};

use super::{NOW, actions, allowed, at, denied, manifest, paths, read, request, resolution, resolved, set};
use crate::RateLedger;
use crate::fault::{FaultCollector, InputPath};
use crate::window::TimeWindow;

/// A deny under these conditions; does it hold for a request with these parts?
fn holds(conditions: &Value, parts: &Value) -> bool {
    let policy = json!({"policy_id": "p", "type": "deny", "conditions": conditions});
    let set = set(&json!({
        "actions": [{"action_id": "a.b", "risk_tier": "medium"}],
        "capabilities": [{"capability_id": "read", "name": "R", "actions": ["a.*"]}, {"capability_id": "write", "name": "W", "actions": ["a.b"]}],
        "policies": [policy],
    }));
    allowed(&resolution(&set, parts)).is_empty()
}

#[test]
fn risk_tiers_look_at_the_higher_of_task_and_action() {
    let tiers = |list: &[&str]| json!({"risk_tiers": list});
    assert!(holds(&tiers(&["medium"]), &json!({})));
    assert!(!holds(&tiers(&["low"]), &json!({})));
    assert!(!holds(
        &tiers(&["medium"]),
        &json!({"task": {"risk_tier": "high"}})
    ));
    assert!(holds(
        &tiers(&["high", "critical"]),
        &json!({"task": {"risk_tier": "critical"}})
    ));
}

#[test]
fn agents_are_globs_and_lists_are_alternatives() {
    let agents = |list: &[&str]| json!({"agents": list});
    assert!(holds(&agents(&["test-*"]), &json!({})));
    assert!(holds(&agents(&["other", "????-agent"]), &json!({})));
    assert!(!holds(&agents(&["other", "agent"]), &json!({})));
}

#[test]
fn capabilities_are_the_requested_ones() {
    let wanted = json!({"capabilities": ["write", "admin"]});
    assert!(!holds(&wanted, &json!({})));
    assert!(!holds(
        &wanted,
        &json!({"task": {"required_capabilities": ["read"]}})
    ));
    assert!(holds(
        &wanted,
        &json!({"task": {"required_capabilities": ["read", "write"]}})
    ));
}

#[test]
fn context_matches_are_equal_texts() {
    let wanted = json!({"context_matches": {"env": "prod", "n": "1"}});
    assert!(holds(
        &wanted,
        &json!({"context": {"env": "prod", "n": "1", "more": true}})
    ));
    assert!(!holds(&wanted, &json!({"context": {"env": "prod", "n": 1}})));
    assert!(!holds(&wanted, &json!({"context": {"env": "prod"}})));
}

#[test]
fn all_given_conditions_must_hold() {
    let both = json!({"agents": ["test-*"], "context_matches": {"env": "prod"}});
    assert!(!holds(&both, &json!({})));
    assert!(holds(&both, &json!({"context": {"env": "prod"}})));
}

#[test]
fn an_empty_list_is_refused_because_readers_differ() {
    for key in ["risk_tiers", "agents", "capabilities"] {
        let parts = json!({"policies": [{"policy_id": "p", "type": "deny", "conditions": {key: []}}]});
        let faults = read(&manifest("com.example.test", &parts)).expect_err("empty");
        assert_eq!(paths(&faults), [format!("/policies/0/conditions/{key}")]);
    }
    let parts = json!({"policies": [{"policy_id": "p", "type": "deny", "actions": []}]});
    assert!(read(&manifest("com.example.test", &parts)).is_err());
}

fn window(value: &Value) -> TimeWindow {
    let mut report = FaultCollector::default();
    let window = TimeWindow::read(&mut report, value, &InputPath::Root);
    report.faults.into_result(window).expect("a window")
}

fn inside(value: &Value, moments: &[(&str, bool)]) {
    let window = window(value);
    for (moment, expected) in moments {
        assert_eq!(window.contains(at(moment)), *expected, "{moment} in {value}");
    }
}

#[test]
fn a_window_of_office_hours() {
    let office = json!({
        "start": "09:00", "end": "17:00", "timezone": "Europe/Berlin", "days": ["mon", "tue", "wed", "thu", "fri"],
    });
    inside(
        &office,
        &[
            ("2026-03-04T07:59:59Z", false),
            ("2026-03-04T08:00:00Z", true),
            ("2026-03-04T15:59:59Z", true),
            ("2026-03-04T16:00:00Z", false),
            ("2026-03-07T12:00:00Z", false), // a Saturday
            ("2026-07-01T07:00:00Z", true),  // summer time: nine o'clock is an hour earlier
        ],
    );
}

#[test]
fn a_window_over_midnight_belongs_to_the_day_it_began_on() {
    let night = json!({"start": "22:00", "end": "06:00", "days": ["fri"]});
    inside(
        &night,
        &[
            ("2026-03-06T21:59:59Z", false),
            ("2026-03-06T22:00:00Z", true),
            ("2026-03-07T00:00:00Z", true),
            ("2026-03-07T05:59:59Z", true),
            ("2026-03-07T06:00:00Z", false),
            ("2026-03-06T03:00:00Z", false), // Thursday's night
            ("2026-03-07T22:30:00Z", false),
        ],
    );
    let sunday = json!({"start": "23:00", "end": "01:00", "days": ["sun"]});
    inside(
        &sunday,
        &[("2026-03-09T00:30:00Z", true), ("2026-03-08T00:30:00Z", false)],
    );
}

#[test]
fn whole_days_and_the_end_of_the_day() {
    inside(
        &json!({"days": ["wed"]}),
        &[("2026-03-04T00:00:00Z", true), ("2026-03-05T00:00:00Z", false)],
    );
    inside(
        &json!({"start": "08:00", "end": "08:00"}),
        &[("2026-03-04T03:00:00Z", true)],
    );
    inside(
        &json!({"start": "18:00", "end": "24:00"}),
        &[("2026-03-04T23:59:59Z", true), ("2026-03-05T00:00:00Z", false)],
    );
    inside(
        &json!({"start": "00:00:30", "end": "00:01"}),
        &[
            ("2026-03-04T00:00:29Z", false),
            ("2026-03-04T00:00:59Z", true),
            ("2026-03-04T00:01:00Z", false),
        ],
    );
}

#[test]
fn the_clock_change_skips_and_repeats() {
    let hour = json!({"start": "02:15", "end": "02:45", "timezone": "Europe/Berlin"});
    // 29 March 2026: 02:00 becomes 03:00, so there is no 02:30.
    inside(
        &hour,
        &[
            ("2026-03-29T00:59:59Z", false),
            ("2026-03-29T01:00:00Z", false),
            ("2026-03-29T01:30:00Z", false),
        ],
    );
    // 25 October 2026: 03:00 becomes 02:00, so 02:30 comes twice.
    inside(
        &hour,
        &[
            ("2026-10-25T00:30:00Z", true),
            ("2026-10-25T01:30:00Z", true),
            ("2026-10-25T01:50:00Z", false),
        ],
    );
}

#[test]
fn a_wrong_window_is_told_where() {
    for (value, path) in [
        (json!({"start": "9:00", "end": "17:00"}), "/start"),
        (json!({"start": "24:00", "end": "17:00"}), "/start"),
        (json!({"start": "09:00"}), "/end"),
        (json!({"start": "09:00", "end": "24:01"}), "/end"),
        (json!({"start": "09:00", "end": "17:60"}), "/end"),
        (json!({"timezone": "Europe/Berlinn"}), "/timezone"),
        (json!({"days": ["monday"]}), "/days/0"),
        (json!({"days": []}), "/days"),
        (json!({"from": "09:00"}), "/from"),
    ] {
        let mut report = FaultCollector::default();
        TimeWindow::read(&mut report, &value, &InputPath::Root);
        assert_eq!(paths(&report.faults), [path], "{value}");
    }
    let mut report = FaultCollector::default();
    TimeWindow::read(
        &mut report,
        &json!({"timezone": "Europe/Berlinn"}),
        &InputPath::Root,
    );
    assert!(
        report.faults.to_string().contains("`Europe/Berlin`"),
        "{}",
        report.faults
    );
}

#[test]
fn a_window_governs_and_is_told_as_a_constraint() {
    let set = set(&json!({
        "actions": actions(&["a.b"]),
        "policies": [{"policy_id": "hours", "type": "allow",
                      "conditions": {"time_window": {"start": "09:00", "end": "17:00"}}}],
    }));
    let day = resolved(&set, &request(&json!({})), NOW, &RateLedger::new()).resolution;
    assert_eq!(allowed(&day), ["a.b"]);
    assert_eq!(day.constraints[0].parameters["start"], json!("09:00"));
    assert_eq!(day.constraints[0].parameters["timezone"], json!("UTC"));
    let night = resolved(
        &set,
        &request(&json!({})),
        "2026-03-04T20:00:00Z",
        &RateLedger::new(),
    )
    .resolution;
    assert_eq!(denied(&night), [("a.b", "no_policy_allows", None)]);
}
