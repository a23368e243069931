//! Swarms: who works on what, how answers become one, what is tried again, and when it ends (CKP §5.9).
//!
//! *Owns:* the members of a swarm and who may ask whom, the five topologies, the five ways of aggregation, tries, circuit
//! breakers and limits as values, the state of every run and task as a fold of what the journal says.
//! *Depends on:* clawk-manifest for the Swarm's words, clawk-proto, clawk-trace for canonical JSON.
//! *Must not know:* sessions, models, buses, clocks, async: events come in with their time, effects go out.
//! *Start reading at:* [`coord`], then [`plan`], then [`combine`].
//!
//! The readings taken where the contract is silent:
//! * One answer out of several that were asked is no majority; the vote needs its quorum. One that was asked alone is.
//! * With a single counting answer no head is asked either: there is nothing to choose from or to unite.
//! * A failed stage ends a pipeline: nothing is there to hand on.
//! * Two members that would have one name are told apart by their role: `NAME.ROLE`.

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
