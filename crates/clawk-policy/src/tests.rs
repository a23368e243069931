//! Table tests of every form, attacks on paths, and the engine against a naive reading of the specification.

mod changes;
mod forms;
mod naive;
mod pairs;
mod paths;
mod values;
