//! The protocol's hash vectors, under every reading.

#![expect(clippy::unwrap_used, reason = "a test may fail that way")]

mod independent;

use clawk_trace::canonical::{Profile, transcode_json};
use clawk_trace::chain::{EventPreimage, HashBuffer, hash};
use clawk_trace::verify;
use serde_json::Value;
use serde_json::value::RawValue;

const VECTORS: &str = include_str!("../../../../vectors/trace/hash-vectors.json");

#[derive(serde::Deserialize)]
struct File<'a> {
    #[serde(borrow)]
    vectors: Vec<Vector<'a>>,
}

#[derive(serde::Deserialize)]
struct Vector<'a> {
    name: String,
    #[serde(borrow)]
    event: Event<'a>,
    canonical_payload: String,
    expected_hash: String,
    alternatives: std::collections::BTreeMap<String, Value>,
}

#[derive(serde::Deserialize)]
struct Event<'a> {
    trace_version: String,
    event_id: String,
    trace_id: String,
    span_id: String,
    parent_span_id: Option<String>,
    session_id: String,
    sequence: u64,
    timestamp: String,
    event_type: String,
    #[serde(borrow)]
    payload: &'a RawValue,
    previous_event_hash: String,
}

impl Event<'_> {
    fn hash(&self, payload: &str, timestamp: &str) -> String {
        let parts = EventPreimage {
            version: &self.trace_version,
            event_id: &self.event_id,
            trace_id: &self.trace_id,
            span_id: &self.span_id,
            parent_span_id: self.parent_span_id.as_deref().unwrap_or_default(),
            session_id: &self.session_id,
            sequence: self.sequence,
            timestamp,
            event_type: &self.event_type,
            payload,
            previous: &self.previous_event_hash,
        };
        hash(&parts, &mut HashBuffer::default()).to_hex()
    }

    /// The event as the only line of a trace.
    fn line(&self, event_hash: &str) -> String {
        let text = |s: &str| serde_json::to_string(s).unwrap();
        format!(
            "{{\"trace_version\":{},\"event_id\":{},\"trace_id\":{},\"span_id\":{},\"parent_span_id\":{},\"session_id\":{},\"sequence\":{},\"timestamp\":{},\"event_type\":{},\"payload\":{},\"event_hash\":\"{event_hash}\",\"previous_event_hash\":{}}}",
            text(&self.trace_version),
            text(&self.event_id),
            text(&self.trace_id),
            text(&self.span_id),
            serde_json::to_string(&self.parent_span_id).unwrap(),
            text(&self.session_id),
            self.sequence,
            text(&self.timestamp),
            text(&self.event_type),
            self.payload.get().replace('\n', " "),
            text(&self.previous_event_hash),
        )
    }
}

fn vectors() -> Vec<Vector<'static>> {
    let file: File<'static> = serde_json::from_str(VECTORS).unwrap();
    assert_eq!(file.vectors.len(), 9);
    file.vectors
}

#[test]
fn all_nine_vectors_hash_as_stated_under_every_profile() {
    for vector in vectors() {
        let name = &vector.name;
        let payload = transcode_json(Profile::AppendixB, vector.event.payload.get()).unwrap();
        assert_eq!(payload, vector.canonical_payload, "{name}");
        assert_eq!(
            vector.event.hash(&payload, &vector.event.timestamp),
            vector.expected_hash,
            "{name}: appendix-b"
        );

        let jcs = transcode_json(Profile::Jcs, vector.event.payload.get()).unwrap();
        let expected = vector
            .alternatives
            .get("jcs")
            .map_or(vector.expected_hash.as_str(), |a| a["hash"].as_str().unwrap());
        assert_eq!(
            vector.event.hash(&jcs, &vector.event.timestamp),
            expected,
            "{name}: jcs"
        );

        if let Some(stated) = vector.alternatives.get("cra-core") {
            let text = transcode_json(Profile::CraCore, vector.event.payload.get()).unwrap();
            assert_eq!(
                text,
                stated["canonical_payload"].as_str().unwrap(),
                "{name}: cra-core text"
            );
        }
    }
}

#[test]
fn the_verifier_names_the_profile_of_each_vector() {
    for vector in vectors().iter().filter(|v| v.event.sequence == 0) {
        let name = &vector.name;
        let readings = [("appendix-b", Some(vector.expected_hash.as_str()))]
            .into_iter()
            .chain(
                ["jcs", "cra-core"].map(|p| (p, vector.alternatives.get(p).and_then(|a| a["hash"].as_str()))),
            );
        for (profile, hash) in readings {
            let Some(hash) = hash else { continue };
            let report = verify(vector.event.line(hash).as_bytes()).unwrap();
            assert!(report.valid, "{name} under {profile}: {:?}", report.fault);
            let names: Vec<_> = report.profiles.iter().map(|p| p.name()).collect();
            assert!(names.contains(&profile), "{name}: {names:?} lacks {profile}");
        }
    }
}
