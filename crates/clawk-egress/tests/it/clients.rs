//! Real clients.
