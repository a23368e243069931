//! One module per verb: its flags (`Args`) and what it does (`run`).

pub(crate) mod approvals;
pub(crate) mod atlas;
pub(crate) mod budget;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod conformance;
pub(crate) mod dead_letters;
pub(crate) mod doctor;
pub(crate) mod effects;
pub(crate) mod init;
pub(crate) mod man;
pub(crate) mod memory;
pub(crate) mod outbox;
pub(crate) mod policy;
pub(crate) mod resolve;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod schema;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod stop;
pub(crate) mod trace;
pub(crate) mod validate;
