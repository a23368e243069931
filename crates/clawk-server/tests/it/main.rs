//! The server against a real kernel with scripted parts, over in-memory streams.

mod agent;
mod approvals;
mod beat;
mod control;
mod flow;
mod framing;
mod fuzz;
mod lifecycle;
mod methods;
mod wire;
