//! The path of a call: nothing that the agent does to the world runs without a permit, and only this crate makes permits.
//!
//! *Owns:* the path of a tool call and its permits, its record, approvals and grants, the catalogue of tools, Atlases, emergency stops, deduplication, screening.
//! *Depends on:* `clawk-core` with its ports, proto, manifest, events, policy, Atlases, sandbox plans.
//! *Must not know:* sessions, turns that run, models, memory, swarms, other hosts, replay, vendors.
//! *Start reading at:* [`call`], then [`catalog`], then [`event`].
//!
//! An auditor reads here: [`call::Permit`] and who makes it, [`call::ToolRunner`], which takes it, and the ports of
//! the path in [`call`], behind which everything else is.

pub mod call;
pub mod catalog;
pub mod event;

pub mod carp;
pub mod dedup;
pub mod effect;
pub mod lifecycle;
pub mod screen;
pub mod skill_rights;
pub mod stop;
pub mod taint;

pub mod budget_events;

use clawk_core::{
    author, door, error, narrow, notice, place, ports, purse, rates, retry_policy, roles, sheet, time, turn,
    turn_result, watch, witness,
};

/// Target of log lines for the operator. `clawk serve` always writes them to standard error.
pub const OPERATOR: &str = "clawk::operator";
