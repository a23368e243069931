//! The benchmark's rows, in the order of DESIGN §8.

mod boxes;
mod carp;
mod channels;
pub(super) mod disk;
mod entry;
mod hosts;
mod library;
mod memory;
mod shared;
mod start;
mod swarm;
mod tools;
mod transports;
mod turns;
mod wire;

use std::path::Path;

use anyhow::Result;

use super::Size;
use super::programs::Programs;
use super::table::Table;

/// A measurement. It adds rows to the table. Its folder is new and is removed afterwards.
type Measure = fn(&Programs, &Path, Size, &mut Table) -> Result<()>;

/// All measurements, each with the text that is printed while it runs.
pub(super) const ALL: [(&str, Measure); 20] = [
    ("starts", start::starts),
    ("idle memory", start::idle),
    ("claw.status and claw.tool.call", wire::floods),
    ("transports", transports::rows),
    ("channels", channels::rows),
    ("durable calls, one by one", disk::sequential),
    ("durable calls, 64 in flight", disk::group),
    ("policy decisions and a long trace", library::rows),
    ("CARP and TRACE", carp::rows),
    ("sandboxed commands", tools::sandboxed),
    ("boxes", boxes::rows),
    ("memory, from few entries to many", memory::rows),
    ("bytes of an entry", entry::bytes),
    ("vectors of a provider", entry::embedded),
    ("memory on PostgreSQL", shared::rows),
    ("swarm, by back end", swarm::rows),
    ("swarm, by members", swarm::members),
    ("hosts on one database", hosts::rows),
    ("flat memory", wire::flat),
    ("flat memory over turns and sessions", turns::flat),
];
