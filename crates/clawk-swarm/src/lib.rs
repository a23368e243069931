//! Swarms: which member works on what, how answers are combined, what is retried, and when a run ends (CKP §5.9).
//!
//! *Owns:* the members of a swarm and who may ask whom, the five topologies, the five ways of aggregation, tries, circuit
//! breakers and limits as values, the state of every run and task as a fold of the journal's facts.
//! *Depends on:* clawk-manifest for the Swarm's words, clawk-proto, clawk-trace for canonical JSON.
//! *Must not know:* sessions, models, buses, clocks, async: events come in with their time, effects go out.
//! *Start reading at:* [`coord`], then [`plan`], then [`combine`].
//!
//! Decisions where the contract is silent:
//! * If several members were asked and only one answers, that is not a majority: the vote needs its quorum. If only one
//!   member was asked, its answer is enough.
//! * With only one counting answer, no head is asked: there is nothing to choose or to combine.
//! * A failed stage ends a pipeline, because there is no answer to pass on.
//! * Two members with the same name are distinguished by their role: `NAME.ROLE`.

pub mod answer;
pub mod combine;
pub mod coord;
pub mod limit;
pub mod merge;
pub mod plan;
pub mod vote;
pub mod words;

pub use answer::{SwarmFault, TaskAnswer};
pub use combine::TaskOutcome;
pub use coord::{Effect, SwarmCoordinator, SwarmFact};
pub use limit::Limits;
pub use plan::{Plan, SwarmSeat, SwarmWorkerId};
